//! The three messages that make a connection.
//!
//! ```text
//!     REQ                                             REP
//!  0  local id                                     0  local id
//!  4  reserved                                     4  remote id
//!  8  service id (64)                              8  queue key
//! 16  channel adapter's GUID (64)                 12  QPN (24), 0 (8)
//! 24  reserved                                    16  EE context (24), 0 (8)
//! 28  queue key                                   20  starting PSN (24), 0 (8)
//! 32  QPN (24), responder resources (8)           24  responder resources, initiator depth,
//! 36  EE context (24), initiator depth (8)            ACK delay (5), failover (2), flow (1),
//! 40  EE context (24),                                RNR retries (3), SRQ (1), 0 (4)
//!     remote time-out (5), service (2), flow (1)  28  channel adapter's GUID (64)
//! 44  starting PSN (24),                          36  private data
//!     local time-out (5), retries (3)
//! 48  partition key (16), path MTU (4), 0 (1),        RTU
//!     RNR retries (3), CM retries (4), SRQ (1),    0  local id
//!     extended transport (3)                       4  remote id
//! 52  primary path                                 8  private data
//! 96  alternate path
//! 140 private data
//! ```
//!
//! Read IBTA Vol. 1 §12.6.5 (REQ), §12.6.8 (REP) and §12.6.9 (RTU) before changing this file.

use super::addressing::ServiceId;
use super::fields::{Data, Parts};
use super::id::CommId;
use super::path::Path;
use super::small::{Exponent, Small};
use crate::key::{Pkey, Qkey};
use crate::mad::{Mad, MadError};
use crate::mtu::PathMtu;
use crate::psn::Psn;
use crate::qpn::Qpn;

/// Asks for a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Req {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// With what.
    pub service_id: ServiceId,
    /// The sender's channel adapter.
    pub ca_guid: u64,
    /// Queue key; of no meaning for the services that RoCE has.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// How many READs and atomics of the peer the sender serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics the sender has outstanding at once.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer.
    pub remote_response_timeout: Exponent,
    /// Of what transport the connection is.
    pub service: Service,
    /// The sender has end-to-end flow control.
    pub flow_control: bool,
    /// Number of the first packet that the sender expects. IBTA Vol. 1 §12.7.31.
    pub psn: Psn,
    /// How long the sender may take to answer.
    pub local_response_timeout: Exponent,
    /// How often to send a packet again.
    pub retries: Small<3>,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// How often to ask again while no receive is posted; 7 is for ever.
    pub rnr_retries: Small<3>,
    /// How often the receiver may send its messages again.
    pub cm_retries: Small<4>,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// Where packets go.
    pub primary: Path,
    /// Where they go if they do not arrive; [`Path::NONE`] for nowhere else.
    pub alternate: Path,
    /// What the user adds; with IP addressing, [`Addressing`](super::Addressing) comes first.
    pub private: [u8; 92],
}

/// Of what transport a connection is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Service {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Extended reliable connections.
    Xrc,
}

/// Accepts a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rep {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// Queue key; of no meaning for the services that RoCE has.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Number of the first packet that the sender expects. IBTA Vol. 1 §12.7.31.
    pub psn: Psn,
    /// How many READs and atomics of the peer the sender serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics the sender has outstanding at once.
    pub initiator_depth: u8,
    /// How long the sender's acknowledgements may take.
    pub target_ack_delay: Exponent,
    /// What became of the alternate path: 0 accepted, 1 not supported, 2 refused.
    pub failover: Small<2>,
    /// The sender has end-to-end flow control.
    pub flow_control: bool,
    /// How often to ask again while no receive is posted; 7 is for ever.
    pub rnr_retries: Small<3>,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's channel adapter.
    pub ca_guid: u64,
    /// What the user adds.
    pub private: [u8; 196],
}

/// Says that the connection can be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rtu {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// What the user adds.
    pub private: [u8; 224],
}

impl Req {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Result<Self, MadError> {
        let mut parts = Parts::new(data);
        let local_id = CommId(parts.u32());
        let _reserved = parts.u32();
        let service_id = ServiceId(parts.u64());
        let ca_guid = parts.u64();
        let _reserved = parts.u32();
        let qkey = Qkey(parts.u32());
        let (qpn, responder_resources) = parts.u24();
        let (_, initiator_depth) = parts.u24();
        let (_, kind) = parts.u24();
        let (psn, wait) = parts.u24();
        let pkey = Pkey(parts.u16());
        let [mtu, last] = parts.take();
        Ok(Self {
            local_id,
            service_id,
            ca_guid,
            qkey,
            qpn: Qpn::new(qpn),
            responder_resources,
            initiator_depth,
            remote_response_timeout: Small::of(kind, 3),
            service: Service::new(Small::of(kind, 1), Small::of(last, 0))?,
            flow_control: kind & 1 != 0,
            psn: Psn::new(psn),
            local_response_timeout: Small::of(wait, 3),
            retries: Small::of(wait, 0),
            pkey,
            path_mtu: PathMtu::from_code(mtu >> 4).ok_or(MadError::PathMtu(mtu >> 4))?,
            rnr_retries: Small::of(mtu, 0),
            cm_retries: Small::of(last, 4),
            srq: last & REQ_SRQ != 0,
            primary: Path::parse(&mut parts),
            alternate: Path::parse(&mut parts),
            private: parts.take(),
        })
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        let (service, extended) = self.service.codes();
        let kind = self.remote_response_timeout.get() << 3 | service << 1;
        let wait = self.local_response_timeout.get() << 3 | self.retries.get();
        let mtu = self.path_mtu.code() << 4 | self.rnr_retries.get();
        let srq = if self.srq { REQ_SRQ } else { 0 };
        let data = Data::new()
            .u32(self.local_id.0)
            .u32(0)
            .put(self.service_id.0.to_be_bytes())
            .put(self.ca_guid.to_be_bytes())
            .u32(0)
            .u32(self.qkey.0)
            .u24(self.qpn.get(), self.responder_resources)
            .u24(0, self.initiator_depth)
            .u24(0, kind | u8::from(self.flow_control))
            .u24(self.psn.get(), wait)
            .put(self.pkey.0.to_be_bytes())
            .put([mtu, self.cm_retries.get() << 4 | srq | extended]);
        let data = self.alternate.emit(self.primary.emit(data));
        data.put(self.private).done()
    }
}

impl Service {
    const fn new(code: Small<2>, extended: Small<3>) -> Result<Self, MadError> {
        match (code.get(), extended.get()) {
            (0, _) => Ok(Self::Rc),
            (1, _) => Ok(Self::Uc),
            (3, 1) => Ok(Self::Xrc),
            (code, _) => Err(MadError::TransportService(code)),
        }
    }

    /// The codes of service and extension.
    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Xrc => (3, 1),
        }
    }
}

impl Rep {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let qkey = Qkey(parts.u32());
        let (qpn, _) = parts.u24();
        let _ee_context = parts.u32();
        let (psn, _) = parts.u24();
        let [responder_resources, initiator_depth, delay, retries] = parts.take();
        Self {
            local_id,
            remote_id,
            qkey,
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            responder_resources,
            initiator_depth,
            target_ack_delay: Small::of(delay, 3),
            failover: Small::of(delay, 1),
            flow_control: delay & 1 != 0,
            rnr_retries: Small::of(retries, 5),
            srq: retries & REP_SRQ != 0,
            ca_guid: parts.u64(),
            private: parts.take(),
        }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        let delay = self.target_ack_delay.get() << 3 | self.failover.get() << 1;
        let srq = if self.srq { REP_SRQ } else { 0 };
        Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .u32(self.qkey.0)
            .u24(self.qpn.get(), 0)
            .u32(0)
            .u24(self.psn.get(), 0)
            .put([self.responder_resources, self.initiator_depth])
            .put([delay | u8::from(self.flow_control), self.rnr_retries.get() << 5 | srq])
            .put(self.ca_guid.to_be_bytes())
            .put(self.private)
            .done()
    }
}

impl Rtu {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        Self { local_id, remote_id, private: parts.take() }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new().u32(self.local_id.0).u32(self.remote_id.0).put(self.private).done()
    }
}

const REQ_SRQ: u8 = 0x08;
const REP_SRQ: u8 = 0x10;
