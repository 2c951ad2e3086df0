//! The two messages that find the queue pair of a service of datagrams.
//!
//! ```text
//!     SIDR_REQ                              SIDR_REP
//!  0  request id                         0  request id
//!  4  partition key (16), 0 (16)         4  status, length of information, 0 (16)
//!  8  service id (64)                    8  QPN (24), 0 (8)
//! 16  private data                      12  service id (64)
//!                                       20  queue key
//!                                       24  information
//!                                       96  private data
//! ```
//!
//! Read IBTA Vol. 1 §12.11 before changing this file.

use super::addressing::ServiceId;
use super::fields::{Data, Parts};
use super::id::CommId;
use crate::key::{Pkey, Qkey};
use crate::mad::Mad;
use crate::qpn::Qpn;

/// Asks which queue pair serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SidrReq {
    /// The request, as its sender names it.
    pub request_id: CommId,
    /// The partition.
    pub pkey: Pkey,
    /// What is looked for.
    pub service_id: ServiceId,
    /// What the user adds; with IP addressing, [`Addressing`](super::Addressing) comes first.
    pub private: [u8; 216],
}

/// Says which queue pair serves, or that none does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SidrRep {
    /// The request that is answered.
    pub request_id: CommId,
    /// Whether there is one.
    pub status: SidrStatus,
    /// How many bytes of `information` mean something.
    pub information_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// What was looked for.
    pub service_id: ServiceId,
    /// The key that datagrams to the queue pair must show.
    pub qkey: Qkey,
    /// What else there is to know, if the status says so.
    pub information: [u8; 72],
    /// What the user adds.
    pub private: [u8; 136],
}

/// Status of a search for a queue pair. IBTA Vol. 1 §12.11.2.1.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// There is a queue pair.
    pub const VALID: Self = Self(0);

    /// Nothing has the service identifier.
    pub const UNSUPPORTED: Self = Self(1);

    /// The user of the service refuses.
    pub const REJECTED: Self = Self(2);

    /// There is no queue pair to be had.
    pub const NO_QP: Self = Self(3);
}

impl SidrReq {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (request_id, pkey) = (CommId(parts.u32()), Pkey(parts.u16()));
        let _reserved = parts.u16();
        Self { request_id, pkey, service_id: ServiceId(parts.u64()), private: parts.take() }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.request_id.0)
            .put(self.pkey.0.to_be_bytes())
            .put([0; 2])
            .put(self.service_id.0.to_be_bytes())
            .put(self.private)
            .done()
    }
}

impl SidrRep {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let request_id = CommId(parts.u32());
        let [status, information_len, _, _] = parts.take();
        let (qpn, _) = parts.u24();
        Self {
            request_id,
            status: SidrStatus(status),
            information_len,
            qpn: Qpn::new(qpn),
            service_id: ServiceId(parts.u64()),
            qkey: Qkey(parts.u32()),
            information: parts.take(),
            private: parts.take(),
        }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.request_id.0)
            .put([self.status.0, self.information_len, 0, 0])
            .u24(self.qpn.get(), 0)
            .put(self.service_id.0.to_be_bytes())
            .u32(self.qkey.0)
            .put(self.information)
            .put(self.private)
            .done()
    }
}
