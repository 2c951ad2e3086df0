//! What happens to identifiers.

use crate::id::{Id, Membership};
use crate::kind::{EventKind, Param};

/// Something that has happened. `struct rdma_cm_event`.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Debug)]
pub struct Event {
    /// What it has happened to; of [`EventKind::ConnectRequest`] the new identifier.
    pub id: Id,
    /// Of [`EventKind::ConnectRequest`]: the identifier that listens.
    pub listener: Option<Id>,
    /// Of multicast events: the membership.
    pub membership: Option<Membership>,
    /// What has happened.
    pub kind: EventKind,
    /// 0; the negative of an error number; of [`EventKind::Rejected`] the reason, and of
    /// [`EventKind::Unreachable`] of datagrams the status, that the peer gives.
    pub status: i32,
    /// What the peer says.
    pub param: Param,
}
