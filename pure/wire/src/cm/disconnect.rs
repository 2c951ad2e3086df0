//! The two messages that end a connection.
//!
//! ```text
//!     DREQ                           DREP
//!  0  local id                    0  local id
//!  4  remote id                   4  remote id
//!  8  remote QPN (24), 0 (8)      8  private data
//! 12  private data
//! ```
//!
//! Read IBTA Vol. 1 §12.6.10 and §12.6.11 before changing this file.

use super::fields::{Data, Parts};
use super::id::CommId;
use crate::mad::Mad;
use crate::qpn::Qpn;

/// Ends a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dreq {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// What the user adds.
    pub private: [u8; 220],
}

/// Agrees to the end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Drep {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// What the user adds.
    pub private: [u8; 224],
}

impl Dreq {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let (qpn, _) = parts.u24();
        Self { local_id, remote_id, remote_qpn: Qpn::new(qpn), private: parts.take() }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .u24(self.remote_qpn.get(), 0)
            .put(self.private)
            .done()
    }
}

impl Drep {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Self {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        Self { local_id, remote_id, private: parts.take() }
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new().u32(self.local_id.0).u32(self.remote_id.0).put(self.private).done()
    }
}
