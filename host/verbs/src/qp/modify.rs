//! Modify and query of queue pairs: every state and attribute by itself, as C has them.

use super::{Chain, Qp};
use crate::srq::Srq;
use crate::trace;
use crate::transport::Transport;
use adverb_device::QpCap;
use adverb_device::{
    Access, AckTimeout, AhAttr, Attributes, Change, ConnectError, Gid, GidEntry, Partition,
    PathMtu, Psn, Qkey, QpQuery, QpState, QpType, Qpn, RetryCount, RnrRetry, RnrTimer, Settings,
    Side,
};

/// Changes to a queue pair: the attributes that are `Some`. `struct ibv_qp_attr` with
/// `enum ibv_qp_attr_mask`; IBTA Vol. 1 §11.2.5.2.
///
/// Which of them a transition needs and which it may have is a table; [`ConnectError::State`] names
/// what is missing and what is not allowed:
///
/// ```
/// use adverb_verbs::{Context, Modify, QpConfig, QpState};
///
/// let context = Context::open("soft_lo")?;
/// let cq = context.create_cq(16)?;
/// let qp = context.alloc_pd().create_qp(&QpConfig::new(&cq))?;
/// let error = qp.modify(&Modify::to(QpState::Init).port(1)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "a queue pair (RC) on its way from RESET to INIT needs qp_access_flags, pkey_index"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_attr")]
#[doc(alias = "ibv_qp_attr_mask")]
pub struct Modify {
    /// The state to go to; without one, it stays in the state it is in. `qp_state`.
    pub state: Option<QpState>,
    /// The state that it is believed to be in. `cur_qp_state`.
    pub current: Option<QpState>,
    /// Place of its partition in the port's table: 0. `pkey_index`.
    pub pkey_index: Option<u16>,
    /// The port: 1. `port_num`.
    pub port: Option<u8>,
    /// What the peer may do. `qp_access_flags`.
    pub access: Option<Access>,
    /// The key that datagrams must show. `qkey`.
    pub qkey: Option<Qkey>,
    /// The way to the peer. `ah_attr`.
    pub ah: Option<AhAttr>,
    /// Size of the parts into which both sides cut messages. `path_mtu`.
    pub path_mtu: Option<PathMtu>,
    /// The peer's queue pair. `dest_qp_num`.
    pub remote: Option<Qpn>,
    /// Sequence number of the peer's first packet. `rq_psn`.
    pub rq_psn: Option<Psn>,
    /// Sequence number of the first packet. `sq_psn`.
    pub sq_psn: Option<Psn>,
    /// READs and atomics under way at once. `max_rd_atomic`.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics of the peer that are remembered. `max_dest_rd_atomic`.
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the peer is told to wait when no receive is posted here. `min_rnr_timer`.
    pub min_rnr_timer: Option<RnrTimer>,
    /// How long to wait for an acknowledgement before sending again. `timeout`.
    pub timeout: Option<AckTimeout>,
    /// How often to send again then. `retry_cnt`.
    pub retry_count: Option<RetryCount>,
    /// How often to send again when the peer has no receive posted. `rnr_retry`.
    pub rnr_retry: Option<RnrRetry>,
    /// Whether [`crate::EventKind::SqDrained`] is raised. `en_sqd_async_notify`.
    pub notify_drained: Option<bool>,
}

impl Modify {
    /// To this state, and no attribute yet.
    pub fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    adverb_device::setters! {
        ;
        current?: QpState,
        pkey_index?: u16,
        port?: u8,
        access?: Access,
        qkey?: Qkey,
        ah?: AhAttr,
        path_mtu?: PathMtu,
        remote?: Qpn,
        rq_psn?: Psn,
        sq_psn?: Psn,
        max_rd_atomic?: u8,
        max_dest_rd_atomic?: u8,
        min_rnr_timer?: RnrTimer,
        timeout?: AckTimeout,
        retry_count?: RetryCount,
        rnr_retry?: RnrRetry,
        notify_drained?: bool,
    }

    fn change(&self, gids: impl FnOnce() -> Vec<GidEntry>) -> Change {
        let partition = |index| Partition { index, ..Partition::DEFAULT };
        let attributes = Attributes {
            current: self.current,
            window_packets: None,
            window_first: None,
            partition: self.pkey_index.map(partition),
            port: self.port,
            access: self.access.map(Access::transport),
            qkey: self.qkey,
            remote_gid: self.ah.map(|ah| ah.gid),
            remote: self.remote,
            path_mtu: self.path_mtu,
            expected_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            first_psn: self.sq_psn,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            notify_drained: self.notify_drained,
        };
        let (gid_index, marks) =
            self.ah.map_or_else(Default::default, |ah| (ah.place(&gids()), ah.marks()));
        Change { attributes, gid_index, marks }
    }
}

/// Attributes of a queue pair as they are, and the parameters of its creation. `struct ibv_qp_attr` and
/// `struct ibv_qp_init_attr`, as `ibv_query_qp` fills them.
///
/// Alternate paths are missing: no queue pair here migrates.
///
/// [`Qp`] has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpAttr {
    /// Its type.
    pub kind: QpType,
    /// Its state.
    pub state: QpState,
    /// In SQD: requests that had begun have not all ended. `sq_draining`.
    pub draining: bool,
    /// The peer's address and number, once connected.
    pub remote: Option<(Gid, Qpn)>,
    /// The way to the peer, once connected. `ah_attr`.
    pub ah: Option<AhAttr>,
    /// Size of the parts into which both sides cut messages; of a datagram queue pair, that of the
    /// port. `path_mtu`.
    pub path_mtu: PathMtu,
    /// Place of its partition in the port's table. `pkey_index`.
    pub pkey_index: u16,
    /// The port. `port_num`.
    pub port: u8,
    /// What the peer may do: remote rights only. `qp_access_flags`.
    pub access: Access,
    /// The key that datagrams must show. `qkey`.
    pub qkey: Qkey,
    /// Sequence number of the peer's first packet. `rq_psn`.
    pub rq_psn: Psn,
    /// Sequence number of the first packet. `sq_psn`.
    pub sq_psn: Psn,
    /// READs and atomics under way at once. `max_rd_atomic`.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that are remembered. `max_dest_rd_atomic`.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is told to wait when no receive is posted here. `min_rnr_timer`.
    pub min_rnr_timer: RnrTimer,
    /// How long to wait for an acknowledgement before sending again. `timeout`.
    pub timeout: AckTimeout,
    /// How often to send again then. `retry_cnt`.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive posted. `rnr_retry`.
    pub rnr_retry: RnrRetry,
    /// Send requests that have not ended.
    pub outstanding: u64,
    /// What it can hold.
    pub cap: QpCap,
    /// Every send request completes visibly. `sq_sig_all`.
    pub signal_all: bool,
    /// The number of the shared receive queue that its receives come from.
    pub srq: Option<u32>,
}

impl<T: Transport> Qp<T> {
    /// Goes to another state, or changes attributes. [`Qp::connect`] and [`Qp::activate`] are the
    /// easy way. IBTA Vol. 1 §11.2.5.2.
    ///
    /// On the way to RESET, outstanding work ends without completions, and its memory is released;
    /// completions that are in the queue stay there.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing has changed then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, modify: &Modify) -> Result<(), ConnectError> {
        self.change(
            modify.state.unwrap_or_else(|| self.state()),
            &modify.change(|| self.port.gids()),
        )
    }

    pub(super) fn change(&self, to: QpState, change: &Change) -> Result<(), ConnectError> {
        // Held so that nothing is posted between forgetting what was.
        let mut chain = self.chain.lock();
        let mut forgotten = Vec::new();
        let from = self.state();
        self.inner.modify(to, change, |side, buffer| forgotten.push((side, buffer)))?;
        trace::changed(self.number(), from, to, &change.attributes);
        for (side, buffer) in forgotten {
            let cq = match side {
                Side::Receive => &self.recv_cq,
                Side::Send => &self.send_cq,
            };
            drop(cq.take_back(buffer));
        }
        if to == QpState::Reset {
            *chain = Chain::default();
        }
        Ok(())
    }

    /// What it is like now, and what it was made of. IBTA Vol. 1 §11.2.5.3.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let QpQuery { state, draining, gid_index, marks, settings } = self.inner.query();
        let remote = self.inner.remote();
        let Settings { partition, port, access, qkey, path_mtu, expected_psn, .. } = settings;
        let Settings { max_dest_rd_atomic, min_rnr_timer, first_psn, timeout, .. } = settings;
        let Settings { retry_count, rnr_retry, max_rd_atomic, .. } = settings;
        QpAttr {
            kind: T::KIND,
            state,
            draining,
            remote,
            ah: remote.map(|(gid, _)| AhAttr::new(gid).gid_index(gid_index).marked(marks)),
            path_mtu,
            pkey_index: partition.index,
            port,
            access,
            qkey,
            rq_psn: expected_psn,
            sq_psn: first_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            timeout,
            retry_count,
            rnr_retry,
            outstanding: self.inner.outstanding(),
            cap: self.cap,
            signal_all: self.signal_all,
            srq: self.srq.as_ref().map(Srq::number),
        }
    }
}
