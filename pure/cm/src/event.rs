//! Events and counters of a manager.

use crate::request::{Gid, ListenerId};
use adverb_wire::cm::{CommId, Reason, Rep, Req, SidrRep, SidrReq};

/// Event of a connection. Each comes once; the names are those of
/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A peer wants a connection: accept or reject it.
    ConnectRequest {
        /// The connection.
        id: CommId,
        /// Address that was asked.
        local: Gid,
        /// Address of the peer.
        peer: Gid,
        /// The listener whose backlog the request is in.
        listener: ListenerId,
        /// What it asks for.
        request: Req,
    },
    /// The peer has accepted: move the queue pair, and say that it is ready.
    ConnectResponse {
        /// The connection.
        id: CommId,
        /// What the peer offers.
        reply: Rep,
    },
    /// The peer has ended the connection, or agreed to its end, or does not answer.
    Disconnected {
        /// The connection.
        id: CommId,
    },
    /// The peer is ready, too. Only the side that has accepted gets this.
    Established {
        /// The connection.
        id: CommId,
    },
    /// The peer refuses, or has given up.
    Rejected {
        /// The connection, which exists no longer.
        id: CommId,
        /// Why.
        reason: Reason,
        /// What the peer's user says.
        private: [u8; 148],
    },
    /// Which queue pair of datagrams serves, or that none does.
    Resolved {
        /// The search, which exists no longer.
        id: CommId,
        /// The answer.
        reply: SidrRep,
    },
    /// A peer looks for a queue pair of datagrams: answer it.
    ResolveRequest {
        /// The search.
        id: CommId,
        /// Address that was asked.
        local: Gid,
        /// Address of the peer.
        peer: Gid,
        /// The listener whose backlog the request is in.
        listener: ListenerId,
        /// What it looks for.
        request: SidrReq,
    },
    /// Nothing of the connection can arrive any more: its queue pair may be used again.
    TimewaitExit {
        /// The connection, which exists no longer.
        id: CommId,
    },
    /// The peer does not answer.
    Unreachable {
        /// The connection, which exists no longer.
        id: CommId,
    },
}

/// Counters of what has been dropped or repeated since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Requests that a full backlog or a full table has turned away.
    pub backlog_full: u64,
    /// Messages that came again, and were answered as before or ignored.
    pub duplicates: u64,
    /// Messages from a wrong address, or with wrong identifiers.
    pub forged: u64,
    /// Datagrams that are no message.
    pub malformed: u64,
    /// Messages sent again because no answer came.
    pub resent: u64,
    /// Requests of a queue pair that was connected already.
    pub stale: u64,
    /// Messages about connections that do not exist.
    pub unknown: u64,
    /// Datagrams that found no room among those that wait to be sent.
    pub unsent: u64,
}

impl Event {
    /// The connection or search that this is about.
    pub const fn id(&self) -> CommId {
        match self {
            Self::ConnectRequest { id, .. }
            | Self::ConnectResponse { id, .. }
            | Self::Disconnected { id }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Resolved { id, .. }
            | Self::ResolveRequest { id, .. }
            | Self::TimewaitExit { id }
            | Self::Unreachable { id } => *id,
        }
    }
}
