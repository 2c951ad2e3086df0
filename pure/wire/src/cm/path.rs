//! Paths: where packets go, and the messages that would add an alternate one.
//!
//! ```text
//!     a path, 44 bytes                      LAP                       APR
//!  0  local LID (16), remote LID (16)    0  local id               0  local id
//!  4  local GID                          4  remote id              4  remote id
//! 20  remote GID                         8  reserved               8  length of information,
//! 36  flow label (20), 0 (6), rate (6)  12  remote QPN (24),          status, reserved (16)
//! 40  traffic class, hop limit,             time-out (5), 0       12  information
//!     SL (4), local (1), 0 (3),         16  reserved              84  private data
//!     ACK time-out (5), 0 (3)           20  a path
//!                                       64  private data
//! ```
//!
//! RoCE has no alternate paths: the one is read to be refused by the other. Its LIDs mean nothing
//! and are [`Path::NO_LID`].
//!
//! Read IBTA Vol. 1 §12.6.9 and §12.8 (alternate paths) before changing this file.

use super::fields::{Data, Parts};
use super::id::CommId;
use super::small::{Exponent, Small};
use crate::mad::Mad;
use crate::qpn::Qpn;

/// Path of packets, as its sender sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Path {
    /// The local identifier of the side that says it.
    pub local_lid: u16,
    /// That of the other side.
    pub remote_lid: u16,
    /// Address of the side that says it: an IPv6 or an IPv4-mapped address.
    pub local_gid: [u8; 16],
    /// Address of the other side.
    pub remote_gid: [u8; 16],
    /// Flow label. The upper 12 bits are not sent.
    pub flow_label: u32,
    /// How fast packets may follow one another, as a code.
    pub rate: Small<6>,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: Small<4>,
    /// Both sides are in one subnet.
    pub subnet_local: bool,
    /// How long to wait for an acknowledgement of a packet on this path.
    pub ack_timeout: Exponent,
}

/// Offers an alternate path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lap {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// How long the receiver may take.
    pub response_timeout: Exponent,
    /// The alternate path.
    pub alternate: Path,
    /// What the user adds.
    pub private: [u8; 168],
}

/// Answers an offer of an alternate path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Apr {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// How many bytes of `information` mean something.
    pub information_len: u8,
    /// 0 for yes; [`Apr::UNSUPPORTED`] and others for no.
    pub status: u8,
    /// What would be acceptable.
    pub information: [u8; 72],
    /// What the user adds.
    pub private: [u8; 148],
}

impl Path {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 44;

    /// The local identifier that RoCE has: none.
    pub const NO_LID: u16 = 0xffff;

    /// The path that stands for none.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: [0; 16],
        remote_gid: [0; 16],
        flow_label: 0,
        rate: Small::ZERO,
        traffic_class: 0,
        hop_limit: 0,
        service_level: Small::ZERO,
        subnet_local: false,
        ack_timeout: Small::ZERO,
    };

    pub(super) fn parse(parts: &mut Parts<'_>) -> Self {
        let (local_lid, remote_lid) = (parts.u16(), parts.u16());
        let (local_gid, remote_gid) = (parts.take(), parts.take());
        let word = parts.u32();
        let [_, _, _, rate] = word.to_be_bytes();
        let [traffic_class, hop_limit, level, timeout] = parts.take();
        Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label: word >> LABEL_SHIFT,
            rate: Small::of(rate, 0),
            traffic_class,
            hop_limit,
            service_level: Small::of(level, 4),
            subnet_local: level & SUBNET_LOCAL != 0,
            ack_timeout: Small::of(timeout, 3),
        }
    }

    pub(super) fn emit(&self, data: Data) -> Data {
        let local = if self.subnet_local { SUBNET_LOCAL } else { 0 };
        let level = self.service_level.get() << 4 | local;
        data.put(self.local_lid.to_be_bytes())
            .put(self.remote_lid.to_be_bytes())
            .put(self.local_gid)
            .put(self.remote_gid)
            .u32(self.flow_label << LABEL_SHIFT | u32::from(self.rate.get()))
            .put([self.traffic_class, self.hop_limit, level, self.ack_timeout.get() << 3])
    }
}

impl Lap {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let _reserved = parts.u32();
        let (qpn, timeout) = parts.u24();
        let _reserved = parts.u32();
        Self {
            local_id,
            remote_id,
            remote_qpn: Qpn::new(qpn),
            response_timeout: Small::of(timeout, 3),
            alternate: Path::parse(&mut parts),
            private: parts.take(),
        }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        let data = Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .u32(0)
            .u24(self.remote_qpn.get(), self.response_timeout.get() << 3)
            .u32(0);
        self.alternate.emit(data).put(self.private).done()
    }
}

impl Apr {
    /// The status of a side that has no alternate paths.
    pub const UNSUPPORTED: u8 = 2;

    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let [information_len, status, _, _] = parts.take();
        let (information, private) = (parts.take(), parts.take());
        Self { local_id, remote_id, information_len, status, information, private }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .put([self.information_len, self.status, 0, 0])
            .put(self.information)
            .put(self.private)
            .done()
    }
}

const LABEL_SHIFT: u32 = 12;
const SUBNET_LOCAL: u8 = 0x08;
