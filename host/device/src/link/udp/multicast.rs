//! Multicast groups: which queue pairs get a copy of what is sent to one.
//!
//! A group has a socket of its own, bound to its address: the kernel gives a copy to each process
//! that has one, and the port gives one to each queue pair that is attached. An attached queue pair
//! gets its own message too, as from hardware, unless it was made not to. Neighbours get records
//! instead, and take no notice of the copies that the kernel gives them (`peer_cache.rs`).
//!
//! The socket goes when no queue pair is attached any more. A thread that sleeps until packets come waits for a set
//! of all groups' sockets, so that it need not know of their coming and going.
//!
//! Read IBTA Vol. 1 §10.5 (multicast) before changing this file.

use crate::link::udp::endpoint::{Endpoint, ip_of};
use crate::registry::DomainClaim;
use adverb_engine::Gid;
use adverb_wire::Qpn;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Bounds of multicast groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits;

impl GroupLimits {
    /// Groups that queue pairs of a process are attached to at once.
    pub const GROUPS_MAX: usize = 32;
    /// Queue pairs of a process that are attached to one group.
    pub const MEMBERS_MAX: usize = 256;

    /// [`GroupLimits::GROUPS_MAX`], as device attributes have it.
    pub const GROUPS: u32 = 32;
    /// [`GroupLimits::MEMBERS_MAX`], as device attributes have it.
    pub const MEMBERS: u32 = 256;
}

/// Error of attaching or detaching a queue pair. Nothing has changed.
#[non_exhaustive]
pub enum GroupError {
    /// The loopback interface has no way to groups of IPv6, but to those of IPv4.
    Loopback {
        /// The group.
        gid: Gid,
    },
    /// The address is not that of a multicast group.
    NotAGroup {
        /// The address.
        gid: Gid,
    },
    /// The queue pair is not attached to the group.
    NotAttached {
        /// The group.
        gid: Gid,
    },
    /// The system refused something.
    System {
        /// The group.
        gid: Gid,
        /// What it said.
        error: io::Error,
    },
    /// As many groups are joined as possible.
    TooManyGroups {
        /// How many.
        max: usize,
    },
    /// As many queue pairs are attached to the group as possible.
    TooManyMembers {
        /// How many.
        max: usize,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback { gid } => write!(
                f,
                "the loopback interface has no way to the multicast group {gid}: use a group of \
                 IPv4, or another interface"
            ),
            Self::NotAGroup { gid } => write!(f, "{gid} is not the address of a multicast group"),
            Self::NotAttached { gid } => {
                write!(f, "the queue pair is not attached to the multicast group {gid}")
            }
            Self::System { gid, error } => {
                write!(f, "cannot join the multicast group {gid}: {error}")
            }
            Self::TooManyGroups { max } => {
                write!(f, "{max} multicast groups are joined, and more is not possible")
            }
            Self::TooManyMembers { max } => {
                write!(f, "{max} queue pairs are attached to the group, and more is not possible")
            }
        }
    }
}

adverb_sys::caused!(GroupError: error in Self::System { error, .. });

/// The queue pairs that are attached to a group.
#[derive(Debug)]
pub(crate) struct Group {
    gid: Gid,
    interface: u32,
    pub(crate) members: Vec<Qpn>,
    /// By which neighbours know that they can send records.
    pub(crate) claim: Option<DomainClaim>,
}

impl Group {
    /// Says whether there can be such a group.
    pub(crate) fn check(gid: Gid, loopback: bool) -> Result<(), GroupError> {
        match ip_of(gid) {
            ip if !ip.is_multicast() => Err(GroupError::NotAGroup { gid }),
            IpAddr::V6(_) if loopback => Err(GroupError::Loopback { gid }),
            IpAddr::V4(_) | IpAddr::V6(_) => Ok(()),
        }
    }

    /// A group without queue pairs.
    pub(crate) fn new(gid: Gid, interface: u32) -> Self {
        Self { gid, interface, members: Vec::new(), claim: None }
    }

    /// No queue pair is attached.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn is(&self, gid: Gid) -> bool {
        self.gid == gid
    }

    /// Attaches a queue pair; once more changes nothing.
    pub(crate) fn attach(&mut self, qp: Qpn, endpoint: &Arc<Endpoint>) -> Result<(), GroupError> {
        if self.members.contains(&qp) {
            return Ok(());
        }
        if self.members.len() >= GroupLimits::MEMBERS_MAX {
            return Err(GroupError::TooManyMembers { max: GroupLimits::MEMBERS_MAX });
        }
        if self.members.is_empty() {
            let failed = |error| GroupError::System { gid: self.gid, error };
            endpoint.socket.set_joined(self.interface, true).map_err(failed)?;
        }
        self.members.push(qp);
        Ok(())
    }

    /// Detaches a queue pair; false if it was not attached.
    pub(crate) fn detach(&mut self, qp: Qpn, endpoint: &Arc<Endpoint>) -> bool {
        let Some(at) = self.members.iter().position(|member| *member == qp) else {
            return false;
        };
        self.members.remove(at);
        if self.members.is_empty() {
            // The interface may have gone, and the membership with it.
            let _ = endpoint.socket.set_joined(self.interface, false);
        }
        true
    }
}

adverb_sys::debug_as_display!(GroupError);
