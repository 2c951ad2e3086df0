//! The easy way to connect: every attribute of the ways to INIT, RTR and RTS in one value.

use super::{Qp, RcConnect, UcConnect};
use crate::transport::{Connected, Rc, Uc, Ud, XrcInitiator, XrcTarget};
use adverb_device::{
    Attributes, Change, ConnectError, Gid, GroupError, Marks, Partition, Pkey, Qkey, QpLimits,
    QpState, RnrTimer,
};

/// What changes on the ways to INIT, RTR and RTS.
pub(crate) type Steps = [Change; 3];

impl UcConnect {
    fn steps(&self) -> Steps {
        let partition = Partition { index: 0, pkey: self.pkey };
        let init = Attributes {
            partition: Some(partition),
            port: Some(1),
            access: Some(self.access.into()),
            ..Attributes::default()
        };
        let rtr = Attributes {
            remote_gid: Some(self.remote.gid),
            remote: Some(self.remote.qpn),
            expected_psn: Some(self.remote.psn),
            path_mtu: Some(self.path_mtu),
            ..Attributes::default()
        };
        let rts = Attributes { first_psn: Some(self.local.psn), ..Attributes::default() };
        let Self { gid_index, flow_label, traffic_class, hop_limit, .. } = *self;
        let marks = Marks { traffic_class, hop_limit, flow_label };
        [init, rtr, rts].map(|attributes| Change { attributes, gid_index, marks })
    }
}

impl RcConnect {
    /// What an unreliable connection needs too.
    fn common(&self) -> Steps {
        let Self { local, remote, gid_index, pkey, access, path_mtu, .. } = *self;
        let Self { flow_label, traffic_class, hop_limit, .. } = *self;
        let marked =
            UcConnect { flow_label, traffic_class, hop_limit, ..UcConnect::new(local, remote) };
        UcConnect { gid_index, pkey, access, path_mtu, ..marked }.steps()
    }

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

    fn steps(how: &RcConnect) -> Steps {
        let [init, mut rtr, mut rts] = how.common();
        how.serve(&mut rtr);
        how.request(&mut rts);
        [init, rtr, rts]
    }
}

impl Connected for Uc {
    type Connect = UcConnect;

    fn steps(how: &UcConnect) -> Steps {
        how.steps()
    }
}

impl Connected for XrcInitiator {
    type Connect = RcConnect;

    fn steps(how: &RcConnect) -> Steps {
        let [init, rtr, mut rts] = how.common();
        how.request(&mut rts);
        [init, rtr, rts]
    }
}

impl Connected for XrcTarget {
    type Connect = RcConnect;

    fn steps(how: &RcConnect) -> Steps {
        let [init, mut rtr, mut rts] = how.common();
        how.serve(&mut rtr);
        rts.attributes.timeout = Some(how.timeout);
        [init, rtr, rts]
    }
}

impl<T: Connected> Qp<T> {
    /// Connects: RESET to INIT, RTR and RTS. Of READs and atomics, no more are asked for than the
    /// device has room for. IBTA Vol. 1 §11.2.5.2.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; the queue pair may have come as far as INIT or RTR.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(&self, how: &T::Connect) -> Result<(), ConnectError> {
        let attr = self.port.attr();
        let steps = T::steps(how);
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
pub(super) const RNR_TIMER: RnrTimer = RnrTimer::new(12);
