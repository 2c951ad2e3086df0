//! Queue pairs.
//!
//! # Safety
//!
//! The raw posting calls hand addresses and keys to the device as they are. The device checks them
//! against its table of regions, so that a wrong one is a failed request and not a wild access; what
//! it cannot know is whether the program holds a reference to the bytes. That is the caller's promise.

use crate::attr::DeviceAttr;
use crate::cq::{Cq, Link};
use crate::error::{CreateError, Rejected};
use crate::provider::{self, Domain, Events, Port};
use crate::remote::RemoteQp;
use crate::srq::Srq;
use crate::trace;
use crate::transport::{Receives, Sends, Supports, Transport};
use crate::work::{Kind, Work};
use adverb_device::locks::Mutex;
use adverb_device::{
    BufferNumber, ConnectError, DataPath, GidEntry, PostError, Psn, QpCap, QpCounters, QpState,
    QpType, Qpn, ReceiveWork, SendData, SendKind, SendWork,
};
use std::marker::PhantomData;

mod batch;
mod connect;
mod modify;

pub(crate) use self::connect::{Own, Steps};
pub use self::connect::{RcConnect, UcConnect};
pub use self::modify::{Modify, QpAttr};

/// Parameters of a queue pair. `struct ibv_qp_init_attr`.
///
/// [`Qp`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpConfig<'a> {
    /// Where send requests complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Send requests outstanding at once, 1 to [`DeviceAttr::max_qp_wr`].
    pub max_send_wr: u32,
    /// Receives outstanding at once, 0 to [`DeviceAttr::max_qp_wr`].
    pub max_recv_wr: u32,
    /// Pieces of a send request's buffer, 1 to [`DeviceAttr::max_sge`].
    pub max_send_sge: u32,
    /// Pieces of a receive's buffer, 1 to [`DeviceAttr::max_sge`].
    pub max_recv_sge: u32,
    /// Bytes that a send request can carry inline, 0 to [`DeviceAttr::max_inline`].
    pub max_inline: u32,
    /// Every raw send request completes visibly, also those not marked so.
    pub signal_all: bool,
    /// What it sends to a multicast group that it is attached to does not come back to it; others of
    /// this process get it. Means something for UD.
    #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
    pub block_self_multicast: bool,
    /// Where its receives come from. Without one it has a receive queue of its own.
    pub srq: Option<&'a Srq>,
    /// Names the queue pair in its asynchronous events.
    pub context: u64,
}

impl<'a> QpConfig<'a> {
    /// 128 requests each way of one piece each, 64 bytes inline; all completes on `cq`.
    pub const fn new(cq: &'a Cq) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
            signal_all: false,
            block_self_multicast: false,
            context: 0,
            srq: None,
        }
    }

    adverb_device::setters! {
        send_cq: &'a Cq,
        recv_cq: &'a Cq,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline: u32,
        signal_all: bool,
        block_self_multicast: bool,
        context: u64,
        ;
        srq?: &'a Srq,
    }

    fn check(&self, attr: &DeviceAttr) -> Result<(), CreateError> {
        CreateError::check([
            ("max_send_wr", self.max_send_wr, (1, attr.max_qp_wr)),
            ("max_recv_wr", self.max_recv_wr, (0, attr.max_qp_wr)),
            ("max_send_sge", self.max_send_sge, (1, attr.max_sge)),
            ("max_recv_sge", self.max_recv_sge, (1, attr.max_sge)),
            ("max_inline", self.max_inline, (0, attr.max_inline)),
        ])
    }

    /// What the queue pair itself has of it: its receives are the shared queue's, if there is one.
    pub(crate) fn cap(&self) -> QpCap {
        QpCap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: if self.srq.is_some() { 0 } else { self.max_recv_wr },
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
        }
    }
}

/// Unsignaled requests that hold their memory until a signaled one is posted, which takes them over.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    last: Option<Link>,
    len: u32,
}

/// A queue pair. `struct ibv_qp`; IBTA Vol. 1 §10.2.4.
///
/// Handles of what other objects refer to (contexts, domains, queues, regions) are `Clone`, and the object lasts as
/// long as the last. Nothing refers to a queue pair, so it has one handle, which is not `Clone`: dropping it ends the
/// queue pair, and the program chooses when. What is owed to the peer goes out, outstanding work is forgotten. Memory of
/// such work comes back when its completion queue goes. Threads share a queue pair by reference, or in an `Arc`.
///
/// The example of the [crate](crate) connects two; step by step, as in C:
///
/// ```
/// use adverb_verbs::{Access, AhAttr, Context, Modify, QpConfig, QpState};
/// use adverb_verbs::{AckTimeout, PathMtu, RetryCount, RnrRetry, RnrTimer};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let config = QpConfig::new(&cq).max_send_wr(8).max_inline(64);
/// let (qp, peer) = (pd.create_qp(&config)?, pd.create_qp(&QpConfig::new(&cq))?);
/// let far = peer.address()?;
/// qp.modify(&Modify::to(QpState::Init).pkey_index(0).port(1).access(Access::REMOTE_READ))?;
/// let peer = Modify::to(QpState::Rtr).ah(AhAttr::new(far.gid)).remote(far.qpn).rq_psn(far.psn);
/// let receiving = peer.path_mtu(PathMtu::B1024).min_rnr_timer(RnrTimer::new(12));
/// qp.modify(&receiving.max_dest_rd_atomic(16))?;
/// let sending = Modify::to(QpState::Rts).sq_psn(qp.first_psn()).max_rd_atomic(16);
/// let retries = sending.retry_count(RetryCount::MAX).rnr_retry(RnrRetry::FOREVER);
/// qp.modify(&retries.timeout(AckTimeout::from_exponent(14)?))?;
/// assert_eq!((qp.state(), qp.query().cap.max_inline), (QpState::Rts, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
#[doc(alias = "ibv_destroy_qp")]
pub struct Qp<T: Transport> {
    inner: provider::Qp,
    port: Port,
    domain: u32,
    cap: QpCap,
    signal_all: bool,
    chain: Mutex<Chain>,
    /// Lives at least as long as the queue pairs that draw from it.
    srq: Option<Srq>,
    send_cq: Cq,
    recv_cq: Cq,
    psn: Psn,
    transport: PhantomData<fn() -> T>,
}

impl<T: Transport> Qp<T> {
    pub(crate) fn create(
        port: &Port,
        domain: &Domain,
        events: &Events,
        config: &QpConfig<'_>,
    ) -> Result<Self, CreateError> {
        Self::create_in(port, domain, events, config, None)
    }

    pub(crate) fn create_in(
        port: &Port,
        domain: &Domain,
        events: &Events,
        config: &QpConfig<'_>,
        xrcd: Option<&adverb_device::Xrcd>,
    ) -> Result<Self, CreateError> {
        config.check(&port.attr())?;
        // An initiator receives answers only.
        let receives = T::KIND != QpType::XrcInitiator;
        let max_recv_wr = if receives { config.max_recv_wr } else { 0 };
        let srq = config.srq.filter(|_| receives);
        let config = &config.clone().max_recv_wr(max_recv_wr).srq(srq);
        if !config.send_cq.belongs_to(port) || !config.recv_cq.belongs_to(port) {
            return Err(CreateError::ForeignCq);
        }
        if config.srq.is_some_and(|srq| !srq.belongs_to(port)) {
            return Err(CreateError::ForeignSrq);
        }
        let inner = domain.create_qp(T::KIND, events, config, xrcd)?;
        config.send_cq.reserve(config.max_send_wr);
        match config.srq {
            Some(srq) => config.recv_cq.expect_from(srq),
            None => config.recv_cq.reserve(config.max_recv_wr),
        }
        let mut cap = config.cap();
        if let Some(srq) = config.srq {
            cap.max_recv_sge = srq.query().max_sge;
        }
        trace::pair_made(inner.number(), T::KIND, cap);
        Ok(Self {
            inner,
            domain: domain.number(),
            cap,
            signal_all: config.signal_all,
            chain: Mutex::default(),
            srq: config.srq.cloned(),
            port: port.clone(),
            send_cq: config.send_cq.clone(),
            recv_cq: config.recv_cq.clone(),
            psn: adverb_device::random_psn(),
            transport: PhantomData,
        })
    }

    /// What the peer has to know to connect to this queue pair over the device's usual address: its IPv4
    /// address if it has one.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchGid`]: the device has no address.
    pub fn address(&self) -> Result<RemoteQp, ConnectError> {
        self.address_at(GidEntry::usual(&self.port.gids(), None))
    }

    /// What the peer has to know to connect to this queue pair over the address at `gid_index` of the device's
    /// GID table.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchGid`].
    pub fn address_at(&self, gid_index: u8) -> Result<RemoteQp, ConnectError> {
        let gids = self.port.gids();
        let entry = gids.iter().find(|entry| entry.index == gid_index);
        let entry = entry.ok_or(ConnectError::NoSuchGid { index: gid_index })?;
        Ok(RemoteQp { gid: entry.gid, qpn: self.number(), psn: self.psn })
    }

    /// The way its packets go, once connected.
    pub fn path(&self) -> Option<DataPath> {
        self.inner.path()
    }

    /// Posts work that owns its memory; it comes back with the completion. IBTA Vol. 1 §11.4.1.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the memory; nothing was posted then.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<O>(&self, work: Work<O>) -> Result<(), Rejected>
    where
        T: Supports<O>,
    {
        self.post_any(work.any())
    }

    pub(crate) fn post_any(&self, work: Work) -> Result<(), Rejected> {
        if let Err(error) = work.memory.check(self.domain) {
            return Err(Rejected::new(0, error, [work.memory]));
        }
        match work.kind {
            Kind::Send(kind) => {
                let sges = [work.memory.sge()];
                self.post_owned_send(kind, SendData::Gather(&sges), work)
            }
            Kind::Bind(bind) => {
                self.post_owned_send(SendKind::BindWindow, SendData::Bind(&bind), work)
            }
            Kind::Receive => {
                let sges = [work.memory.sge()];
                let Link { number, .. } = self.recv_cq.put(work.memory, None);
                let receive = ReceiveWork {
                    wr_id: work.wr_id,
                    sges: &sges,
                    buffer: BufferNumber::new(number),
                };
                self.inner
                    .post_receive(&[receive])
                    .map_err(|(_, error)| Rejected::new(0, error, self.recv_cq.take_back(number)))
            }
        }
    }

    fn post_owned_send(
        &self,
        kind: SendKind,
        data: SendData<'_>,
        work: Work,
    ) -> Result<(), Rejected> {
        let Work { memory, wr_id, signaled, solicited, fence, to, .. } = work;
        // Held until the request is posted, so that requests are in the chain in their order.
        let mut chain = self.chain.lock();
        let max = self.cap.max_send_wr;
        if !signaled && chain.len >= max {
            return Err(Rejected::new(0, PostError::TooManyUnsignaled { max }, [memory]));
        }
        let link = self.send_cq.put(memory, chain.last);
        let buffer = BufferNumber::new(link.number);
        let send = |to| SendWork { wr_id, to, kind, data, signaled, solicited, fence, buffer };
        let posted = match &self.inner {
            provider::Qp::Soft(qp) => {
                to.soft().and_then(|to| qp.post_send(&[send(to)]).map_err(|(_, error)| error))
            }
            provider::Qp::Hw(qp) => to
                .hw()
                .and_then(|(to, whom)| qp.post_send(&[send(to)], whom).map_err(|(_, error)| error)),
        };
        if let Err(error) = posted {
            return Err(Rejected::new(0, error, self.send_cq.take_back(link.number)));
        }
        *chain = match signaled {
            true => Chain::default(),
            false => Chain { last: Some(link), len: chain.len + 1 },
        };
        Ok(())
    }

    /// Posts raw send requests, in order. Their `buffer` must be `None`. IBTA Vol. 1 §11.4.1.1.
    ///
    /// # Errors
    ///
    /// [`Rejected`]: the first mistake and the request it is in.
    ///
    /// # Safety
    ///
    /// Until a request has completed, no code holds a reference to bytes of its scatter/gather
    /// entries that the request changes, nor a `&mut` reference to those that it reads.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_send(&self, batch: &[SendWork<'_>]) -> Result<(), Rejected>
    where
        T: Sends,
    {
        debug_assert!(batch.iter().all(|work| work.buffer.is_none()), "numbers are ours to give");
        self.inner.post_send(batch).map_err(Rejected::raw)
    }

    /// Posts raw receives, in order. Their `buffer` must be `None`. IBTA Vol. 1 §11.4.1.2.
    ///
    /// # Errors
    ///
    /// [`Rejected`]: the first mistake and the receive it is in.
    ///
    /// # Safety
    ///
    /// Until a receive has completed, no code holds a reference to bytes of its scatter entries.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_recv(&self, batch: &[ReceiveWork<'_>]) -> Result<(), Rejected>
    where
        T: Receives,
    {
        debug_assert!(batch.iter().all(|work| work.buffer.is_none()), "numbers are ours to give");
        self.inner.post_receive(batch).map_err(Rejected::raw)
    }
}

impl<T: Transport> Qp<T> {
    /// Posts a request that owns nothing.
    pub(crate) fn post_bare(&self, work: SendWork<'_>) -> Result<(), PostError> {
        self.inner.post_send(&[work]).map_err(|(_, error)| error)
    }

    /// Its number, unique on this host.
    #[inline]
    pub fn number(&self) -> Qpn {
        self.inner.number()
    }

    /// Its state. IBTA Vol. 1 §11.2.5.3.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> QpState {
        self.inner.state()
    }

    /// What it has counted.
    pub fn counters(&self) -> QpCounters {
        self.inner.counters()
    }

    /// Sequence number of its first packet, unless [`RcConnect::first_psn`] says otherwise: random, so
    /// that packets of an earlier life match no queue pair.
    pub fn first_psn(&self) -> Psn {
        self.psn
    }

    /// The completion queue of its send requests.
    pub fn send_cq(&self) -> &Cq {
        &self.send_cq
    }

    /// The completion queue of its receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.recv_cq
    }

    /// The queue that its receives come from, unless it has its own.
    pub fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Ends all outstanding work as flushed; nothing can be sent any more.
    pub fn to_err(&self) {
        self.inner.to_err();
    }
}
