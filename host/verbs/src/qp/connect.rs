//! Connecting in one call: every attribute of the transitions to INIT, RTR and RTS in one value.

use super::Qp;
use crate::remote::RemoteQp;
use crate::transport::{Connected, Rc, Uc, Ud, XrcInitiator, XrcTarget};
use adverb_device::{
    AckTimeout, Attributes, Change, ConnectError, Gid, GidEntry, GroupError, Marks, Partition,
    PathMtu, Pkey, Psn, Qkey, QpLimits, QpState, RetryCount, RnrRetry, RnrTimer,
};

/// Parameters of connecting an unreliable queue pair: the attributes of INIT, RTR and RTS. Nothing is sent
/// again, so there is nothing to say of that. `struct ibv_qp_attr`; IBTA Vol. 1 §11.2.5.2.
///
/// A [`RemoteQp`] is one with the usual attributes: path MTU 1024, all rights.
///
/// [`RcConnect`] has an example.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_qp_attr")]
pub struct UcConnect {
    remote: RemoteQp,
    gid_index: Option<u8>,
    marks: Marks,
    pkey: Pkey,
    access: crate::Access,
    path_mtu: PathMtu,
    first_psn: Option<Psn>,
}

/// Parameters of connecting a reliable queue pair: the attributes of INIT, RTR and RTS. An XRC initiator has
/// no use for what says how to serve, a target none for what says how to request. `struct ibv_qp_attr`; IBTA
/// Vol. 1 §11.2.5.2.
///
/// A [`RemoteQp`] is one with the usual attributes: path MTU 1024, all rights, 67 ms until sending again, 7
/// times, RNR for ever, 16 READs.
///
/// ```
/// # use adverb_verbs::{AckTimeout, PathMtu, Qp, Rc, RcConnect, RemoteQp};
/// # fn with(a: &Qp<Rc>, b: RemoteQp) -> Result<(), adverb_verbs::ConnectError> {
/// a.connect(RcConnect::new(b).path_mtu(PathMtu::B4096).timeout(AckTimeout::FOREVER))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_qp_attr")]
pub struct RcConnect {
    common: UcConnect,
    timeout: AckTimeout,
    retry_count: RetryCount,
    rnr_retry: RnrRetry,
    min_rnr_timer: RnrTimer,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
}

/// Setters of what both have.
macro_rules! common_setters {
    ($type:ident, $($path:ident).*) => {
        impl $type {
            adverb_device::setters! {
                /// Place of this side's address in the GID table. Unless it is said, the first of the peer's family,
                /// IPv4 or IPv6.
                fn gid_index(gid_index: u8) => self.$($path.)*gid_index = Some(gid_index);
                /// The flow label of IPv6, 20 bits; 0 leaves it to the system. `grh.flow_label`.
                fn flow_label(flow_label: u32) => self.$($path.)*marks.flow_label = flow_label;
                /// The traffic class of its packets: [`AhAttr::traffic_class`](crate::AhAttr::traffic_class).
                fn traffic_class(traffic_class: u8) => self.$($path.)*marks.traffic_class = traffic_class;
                /// How many routers they may pass; 0 leaves it to the system. `grh.hop_limit`.
                fn hop_limit(hop_limit: u8) => self.$($path.)*marks.hop_limit = hop_limit;
                /// The partition.
                fn pkey(pkey: Pkey) => self.$($path.)*pkey = pkey;
                /// What the peer may do.
                fn access(access: crate::Access) => self.$($path.)*access = access;
                /// Size of the parts into which both sides cut messages. Both sides need the same.
                fn path_mtu(path_mtu: PathMtu) => self.$($path.)*path_mtu = path_mtu;
                /// Sequence number of the first packet to send: [`Qp::first_psn`] unless it is said. The peer has to
                /// know it.
                fn first_psn(first_psn: Psn) => self.$($path.)*first_psn = Some(first_psn);
            }
        }
    };
}

common_setters!(UcConnect,);
common_setters!(RcConnect, common);

impl UcConnect {
    /// To this queue pair, with the usual attributes.
    pub const fn new(remote: RemoteQp) -> Self {
        Self {
            remote,
            gid_index: None,
            marks: Marks { traffic_class: 0, hop_limit: 0, flow_label: 0 },
            pkey: Pkey::DEFAULT,
            access: crate::Access::ALL,
            path_mtu: PathMtu::B1024,
            first_psn: None,
        }
    }
}

impl RcConnect {
    /// To this queue pair, with the usual attributes.
    pub fn new(remote: RemoteQp) -> Self {
        Self {
            common: UcConnect::new(remote),
            timeout: AckTimeout::from_exponent(14).unwrap_or(AckTimeout::FOREVER),
            retry_count: RetryCount::MAX,
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: RNR_TIMER,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }

    adverb_device::setters! {
        /// How long to wait for an acknowledgement before sending again.
        fn timeout(timeout: AckTimeout) => self.timeout = timeout;
        /// How often to send again then.
        fn retry_count(retry_count: RetryCount) => self.retry_count = retry_count;
        /// How often to send again when the peer has no receive posted.
        fn rnr_retry(rnr_retry: RnrRetry) => self.rnr_retry = rnr_retry;
        /// How long the peer is told to wait when no receive is posted here.
        fn min_rnr_timer(min_rnr_timer: RnrTimer) => self.min_rnr_timer = min_rnr_timer;
        /// READs and atomics under way at once, 0 to
        /// [`DeviceAttr::max_qp_init_rd_atom`](crate::DeviceAttr::max_qp_init_rd_atom); at most what the peer
        /// remembers.
        fn max_rd_atomic(max_rd_atomic: u8) => self.max_rd_atomic = max_rd_atomic;
        /// READs and atomics of the peer that are remembered, 0 to
        /// [`DeviceAttr::max_qp_rd_atom`](crate::DeviceAttr::max_qp_rd_atom).
        fn max_dest_rd_atomic(max_dest_rd_atomic: u8) => self.max_dest_rd_atomic = max_dest_rd_atomic;
    }
}

impl From<RemoteQp> for UcConnect {
    fn from(remote: RemoteQp) -> Self {
        Self::new(remote)
    }
}

impl From<RemoteQp> for RcConnect {
    fn from(remote: RemoteQp) -> Self {
        Self::new(remote)
    }
}

/// Changes of the transitions to INIT, RTR and RTS.
pub(crate) type Steps = [Change; 3];

impl UcConnect {
    fn steps(&self, own: Own<'_>) -> Steps {
        let partition = Partition { index: 0, pkey: self.pkey };
        let init = Attributes {
            partition: Some(partition),
            port: Some(1),
            access: Some(self.access.transport()),
            ..Attributes::default()
        };
        let rtr = Attributes {
            remote_gid: Some(self.remote.gid),
            remote: Some(self.remote.qpn),
            expected_psn: Some(self.remote.psn),
            path_mtu: Some(self.path_mtu),
            ..Attributes::default()
        };
        let first_psn = self.first_psn.unwrap_or(own.first_psn);
        let rts = Attributes { first_psn: Some(first_psn), ..Attributes::default() };
        let usual = || GidEntry::usual(own.gids, Some(self.remote.gid));
        let (gid_index, marks) = (self.gid_index.unwrap_or_else(usual), self.marks);
        [init, rtr, rts].map(|attributes| Change { attributes, gid_index, marks })
    }
}

/// Facts of a queue pair about itself.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    first_psn: Psn,
    gids: &'a [GidEntry],
}

impl RcConnect {
    fn serve(&self, rtr: &mut Change) {
        let most = self.max_dest_rd_atomic.min(QpLimits::RD_ATOMIC_MAX);
        rtr.attributes.max_dest_rd_atomic = Some(most);
        rtr.attributes.min_rnr_timer = Some(self.min_rnr_timer);
    }

    fn request(&self, rts: &mut Change) {
        rts.attributes.timeout = Some(self.timeout);
        rts.attributes.retry_count = Some(self.retry_count);
        rts.attributes.rnr_retry = Some(self.rnr_retry);
        rts.attributes.max_rd_atomic = Some(self.max_rd_atomic.min(QpLimits::RD_ATOMIC_MAX));
    }
}

impl Connected for Rc {
    type Connect = RcConnect;

    fn steps(how: &RcConnect, own: Own<'_>) -> Steps {
        let [init, mut rtr, mut rts] = how.common.steps(own);
        how.serve(&mut rtr);
        how.request(&mut rts);
        [init, rtr, rts]
    }
}

impl Connected for Uc {
    type Connect = UcConnect;

    fn steps(how: &UcConnect, own: Own<'_>) -> Steps {
        how.steps(own)
    }
}

impl Connected for XrcInitiator {
    type Connect = RcConnect;

    fn steps(how: &RcConnect, own: Own<'_>) -> Steps {
        let [init, rtr, mut rts] = how.common.steps(own);
        how.request(&mut rts);
        [init, rtr, rts]
    }
}

impl Connected for XrcTarget {
    type Connect = RcConnect;

    fn steps(how: &RcConnect, own: Own<'_>) -> Steps {
        let [init, mut rtr, mut rts] = how.common.steps(own);
        how.serve(&mut rtr);
        rts.attributes.timeout = Some(how.timeout);
        [init, rtr, rts]
    }
}

impl<T: Connected> Qp<T> {
    /// RESET to INIT, from where [`Qp::connect`] goes on: receives can be posted before the peer can send. The peer
    /// has no rights until then. IBTA Vol. 1 §11.2.5.2.
    ///
    /// ```
    /// use adverb_verbs::{Context, QpConfig, Work};
    /// # let context = Context::open("soft_lo")?;
    /// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
    /// let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
    /// b.init()?;
    /// b.post(Work::recv(pd.buffer(8)?))?;
    /// b.connect(a.address()?)?;
    /// a.connect(b.address()?)?;
    /// a.post(Work::send(pd.buffer(8)?))?;
    /// for _ in 0..2 {
    ///     cq.wait()?.ok()?; // Of the SEND, and of the receive.
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError::State`] if it is connected; nothing has changed then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&self) -> Result<(), ConnectError> {
        let attributes = Attributes {
            partition: Some(Partition { index: 0, pkey: Pkey::DEFAULT }),
            port: Some(1),
            access: Some(crate::Access::NONE),
            ..Attributes::default()
        };
        self.change(QpState::Init, &Change { attributes, ..Change::default() })
    }

    /// Connects: RESET, or INIT ([`Qp::init`]), to INIT, RTR and RTS. Of READs and atomics, no more are asked for than the
    /// device has room for. IBTA Vol. 1 §11.2.5.2.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the queue pair may have come as far as INIT or RTR.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(&self, how: impl Into<T::Connect>) -> Result<(), ConnectError> {
        let attr = self.port.attr();
        let gids = self.port.gids();
        let own = Own { first_psn: self.psn, gids: &gids };
        let steps = T::steps(&how.into(), own);
        for (state, step) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(steps) {
            let mut step = step;
            let Attributes { max_rd_atomic, max_dest_rd_atomic, .. } = &mut step.attributes;
            *max_rd_atomic = max_rd_atomic.map(|reads| reads.min(attr.max_qp_init_rd_atom));
            *max_dest_rd_atomic = max_dest_rd_atomic.map(|reads| reads.min(attr.max_qp_rd_atom));
            self.change(state, &step)?;
        }
        Ok(())
    }
}

impl Qp<Ud> {
    /// Makes it ready: RESET to INIT, RTR and RTS. It takes datagrams to every address of the port
    /// that show `qkey`, and shows it itself where a request asks for its own.
    /// IBTA Vol. 1 §11.2.5.2.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the queue pair may have come as far as INIT or RTR.
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(&self, qkey: Qkey) -> Result<(), ConnectError> {
        let init = Attributes {
            partition: Some(Partition { index: 0, pkey: Pkey::DEFAULT }),
            port: Some(1),
            qkey: Some(qkey),
            ..Attributes::default()
        };
        let rts = Attributes { first_psn: Some(self.psn), ..Attributes::default() };
        let change = |attributes| Change { attributes, ..Change::default() };
        self.change(QpState::Init, &change(init))?;
        self.change(QpState::Rtr, &Change::default())?;
        self.change(QpState::Rts, &change(rts))
    }
}

impl Qp<Ud> {
    /// Attaches it to a multicast group: it gets a copy of each message to it that shows its Q_Key,
    /// its own messages included. Once more changes nothing; dropping the queue pair detaches it.
    /// IBTA Vol. 1 §10.5.
    ///
    /// Messages are sent to a group with an address handle of its address, such as `224.0.1.7` or
    /// `ff02::7`, and the number [`Qpn::MULTICAST`](crate::Qpn::MULTICAST). They pass no router unless
    /// the handle says how many. The loopback interface knows groups of IPv4 only.
    ///
    /// # Errors
    ///
    /// [`GroupError`]; nothing has changed then.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<(), GroupError> {
        self.inner.attach(group)
    }

    /// Detaches it from a multicast group. IBTA Vol. 1 §10.5.
    ///
    /// # Errors
    ///
    /// [`GroupError::NotAttached`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<(), GroupError> {
        self.inner.detach(group)
    }
}

/// The wait that peers without a receive are told unless they say otherwise: 0.64 ms.
const RNR_TIMER: RnrTimer = RnrTimer::new(12);
