//! Shared receive queues.
//!
//! # Safety
//!
//! Raw posting hands addresses and keys to the device as they are: see `qp.rs`.

use crate::attr::DeviceAttr;
use crate::context::Pd;
use crate::cq::{Cq, Owned};
use crate::error::{Busy, CreateError, Rejected};
use crate::provider::{self, Domain, Events, Port};
use crate::transport::op;
use crate::work::Work;
use adverb_device::locks::Mutex;
use adverb_device::{BufferNumber, ReceiveWork, SrqAttr, SrqError};
use std::fmt;
use std::sync::{Arc, MutexGuard, Weak};

/// Parameters of a shared receive queue. `struct ibv_srq_init_attr`.
///
/// [`Srq`] has an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[doc(alias = "ibv_srq_init_attr")]
pub struct SrqConfig {
    /// Receives in it at once, 1 to [`DeviceAttr::max_qp_wr`].
    pub max_wr: u32,
    /// Pieces of a receive's buffer, 1 to [`DeviceAttr::max_sge`].
    pub max_sge: u32,
    /// A number of the program's own; comes back with the queue's events.
    pub context: u64,
}

impl SrqConfig {
    /// A queue of `max_wr` receives of one piece each.
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, context: 0 }
    }

    adverb_device::setters! {
        max_wr: u32,
        max_sge: u32,
        context: u64,
    }

    pub(crate) fn for_device(&self, domain: u32, events: &Events) -> adverb_device::SrqConfig {
        let Self { max_wr, max_sge, context } = *self;
        let events = events.soft().cloned();
        adverb_device::SrqConfig { domain, context, max_wr, max_sge, events }
    }

    fn check(&self, attr: &DeviceAttr) -> Result<(), CreateError> {
        CreateError::check([
            ("max_wr", self.max_wr, (1, attr.max_qp_wr)),
            ("max_sge", self.max_sge, (1, attr.max_sge)),
        ])
    }
}

/// A shared receive queue: one stock of receives for many queue pairs. `struct ibv_srq`; IBTA
/// Vol. 1 §10.2.9.
///
/// A handle: clones are the same queue.
///
/// ```
/// use adverb_verbs::{Context, QpConfig, SrqConfig, Work};
///
/// let context = Context::open("soft_lo")?;
/// let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// let srq = pd.create_srq(&SrqConfig::new(16))?;
/// let a = pd.create_qp(&QpConfig::new(&cq))?;
/// let b = pd.create_qp(&QpConfig::new(&cq).srq(&srq))?;
/// a.connect(b.address()?)?;
/// b.connect(a.address()?)?;
///
/// srq.post(Work::recv(pd.buffer(8)?).wr_id(1))?;
/// a.post(Work::send(pd.buffer(8)?).wr_id(2))?;
/// for _ in 0..2 {
///     cq.wait()?.ok()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_srq")]
pub struct Srq {
    inner: Arc<Inner>,
}

/// Shared state of a queue's handles.
pub(crate) struct Inner {
    device: provider::Srq,
    port: Port,
    domain: u32,
    owned: Mutex<Owned>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.close();
    }
}

impl Inner {
    pub(crate) fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock()
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl Srq {
    pub(crate) fn create(
        port: &Port,
        events: &Events,
        domain: &Domain,
        config: &SrqConfig,
    ) -> Result<Self, CreateError> {
        config.check(&port.attr())?;
        let device = domain.create_srq(events, config)?;
        Ok(Self::of(device, port, domain.number(), config))
    }

    /// Makes a queue of an XRC domain.
    pub(crate) fn create_xrc(
        pd: &Pd,
        config: &SrqConfig,
        xrcd: &adverb_device::Xrcd,
        cq: &Cq,
    ) -> Result<Self, CreateError> {
        let (port, events) = pd.parts();
        config.check(&port.attr())?;
        let soft = port.soft(provider::XRC)?;
        if !cq.belongs_to(port) {
            return Err(CreateError::ForeignCq);
        }
        let cq_of_device = cq.device().soft().ok_or(CreateError::ForeignCq)?;
        if !soft.owns_xrcd(xrcd) {
            return Err(CreateError::ForeignXrcd);
        }
        let number = pd.domain().number();
        let wanted = config.for_device(number, events);
        let made = soft.create_xrc_srq(&wanted, xrcd, cq_of_device);
        let device = provider::Srq::Soft(made.map_err(CreateError::System)?);
        let srq = Self::of(device, port, number, config);
        cq.expect_from(&srq);
        Ok(srq)
    }

    fn of(device: provider::Srq, port: &Port, domain: u32, config: &SrqConfig) -> Self {
        let mut owned = Owned::default();
        owned.reserve(usize::try_from(config.max_wr).unwrap_or(0));
        let owned = Mutex::new(owned);
        Self { inner: Arc::new(Inner { device, port: port.clone(), domain, owned }) }
    }

    pub(crate) fn belongs_to(&self, port: &Port) -> bool {
        self.inner.port.is_same(port)
    }

    pub(crate) fn device(&self) -> &provider::Srq {
        &self.inner.device
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Its number, unique in this process; that of an XRC queue, on this host: initiators name it, and
    /// completions of its receives do.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> u32 {
        self.inner.device.number()
    }

    /// What it is like now. IBTA Vol. 1 §10.2.9.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        self.inner.device.query()
    }

    /// Asks for one [`crate::EventKind::SrqLimitReached`] once there are fewer than `limit` receives,
    /// which may be now; 0 takes the question back. IBTA Vol. 1 §10.2.9.
    ///
    /// # Errors
    ///
    /// [`SrqError::Limit`]; nothing has changed then.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        self.inner.device.arm_limit(limit)
    }

    /// Changes how many receives it holds; those that are there stay. IBTA Vol. 1 §10.2.9.
    ///
    /// # Errors
    ///
    /// [`SrqError::InUse`] and [`SrqError::OutOfRange`]; nothing has changed then.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
        self.inner.device.resize(max_wr)?;
        self.inner.owned().reserve(usize::try_from(max_wr).unwrap_or(0));
        Ok(())
    }

    /// Posts a receive that owns its memory; it comes back with the completion, on the completion
    /// queue of the queue pair that received. IBTA Vol. 1 §11.4.1.2.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the memory; nothing was posted then.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&self, work: Work<op::Receive>) -> Result<(), Rejected> {
        let Work { memory, wr_id, .. } = work;
        if let Err(error) = memory.check(self.inner.domain) {
            return Err(Rejected::new(0, error, [memory]));
        }
        let sges = [memory.sge()];
        let number = self.inner.owned().put(memory, None).number;
        let work = ReceiveWork { wr_id, sges: &sges, buffer: BufferNumber::new(number) };
        self.inner
            .device
            .post_receive(&[work])
            .map_err(|(_, error)| Rejected::new(0, error, self.inner.owned().take_back(number)))
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
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_recv(&self, batch: &[ReceiveWork<'_>]) -> Result<(), Rejected> {
        debug_assert!(batch.iter().all(|work| work.buffer.is_none()), "numbers are ours to give");
        self.inner.device.post_receive(batch).map_err(Rejected::raw)
    }

    /// Ends the queue, or says why it cannot end yet. Dropping the last handle does so without
    /// asking; receives that are in it then are forgotten. IBTA Vol. 1 §10.2.9.
    ///
    /// # Errors
    ///
    /// [`Busy`] with the queue, while queue pairs or other handles use it, or events of it are not
    /// acknowledged.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<(), Busy<Self>> {
        let handles = Arc::strong_count(&self.inner) - 1;
        let unacknowledged = self.inner.device.unacknowledged();
        if handles > 0 || unacknowledged > 0 {
            return Err(Busy { object: self, handles, unacknowledged });
        }
        Ok(())
    }
}
