//! A connection as one host keeps it, for as long as the other side may have to be told of its end.
//!
//! It is no message: a [`Dreq`](super::Dreq) is made from it.

use super::id::CommId;
use crate::qpn::Qpn;

/// What the end of an established connection is announced with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionRecord {
    /// Address of this side.
    pub local: [u8; 16],
    /// Address of the other side.
    pub peer: [u8; 16],
    /// The connection, as this side names it.
    pub id: CommId,
    /// The connection, as the other side names it.
    pub remote_id: CommId,
    /// The other side's queue pair.
    pub remote_qpn: Qpn,
    /// Traffic class of the messages.
    pub traffic_class: u8,
}
