//! Which events there are, and what peers say with them.

use crate::parameters::{DatagramParameters, Parameters};

/// What has happened. `enum rdma_cm_event_type`, with its numbers.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address is known, and the device.
    AddrResolved,
    /// No device leads to the peer.
    AddrError,
    /// The path is known.
    RouteResolved,
    /// There is no path.
    RouteError,
    /// A peer asks for a connection.
    ConnectRequest,
    /// The peer has accepted: set the queue pair up and say that it is ready.
    ConnectResponse,
    /// The connection could not be made.
    ConnectError,
    /// The peer does not answer, or has no such queue pair.
    Unreachable,
    /// The peer refuses.
    Rejected,
    /// The connection can be used.
    Established,
    /// The peer has ended the connection, or agreed to its end.
    Disconnected,
    /// The device has gone.
    DeviceRemoval,
    /// The group was joined.
    MulticastJoin,
    /// The group could not be joined.
    MulticastError,
    /// The address is another device's now.
    AddrChange,
    /// Nothing of the connection can arrive any more.
    TimewaitExit,
    /// The program has queued it.
    User,
    /// The library above this one has queued it.
    Internal,
}

/// What the peer says with an event.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Param {
    /// Nothing.
    None,
    /// Of a connection.
    Connection(Parameters),
    /// Of datagrams.
    Datagram(DatagramParameters),
    /// A number that was queued with the event.
    Argument(u64),
}

impl EventKind {
    /// The number that `enum rdma_cm_event_type` has for it.
    pub const fn number(self) -> u32 {
        match self {
            Self::AddrResolved => 0,
            Self::AddrError => 1,
            Self::RouteResolved => 2,
            Self::RouteError => 3,
            Self::ConnectRequest => 4,
            Self::ConnectResponse => 5,
            Self::ConnectError => 6,
            Self::Unreachable => 7,
            Self::Rejected => 8,
            Self::Established => 9,
            Self::Disconnected => 10,
            Self::DeviceRemoval => 11,
            Self::MulticastJoin => 12,
            Self::MulticastError => 13,
            Self::AddrChange => 14,
            Self::TimewaitExit => 15,
            Self::User => 18,
            Self::Internal => 19,
        }
    }
}
