//! Peer cache of a datagram queue pair: which of its destinations are neighbours, and what their
//! records say that others do not.
//!
//! A datagram queue pair has no peer: a post finds the link by the number of the destination,
//! before the request is queued, and the request keeps it. A record says from where to where it goes,
//! because the receiver is shown a network header; it is the one that a packet would have had.
//!
//! A receiver that does not take what is sent is not waited for: a link that stays full for
//! [`FULL_MAX_NANOS`] loses datagrams, as a socket's buffer does.
//!
//! A message to a multicast group goes to each neighbour that has queue pairs in it, as a record, and to
//! the network, for all others. The kernel gives neighbours a copy of that too; they know by the
//! number of its sender that there is a link by which it has come already, or was lost. A neighbour that
//! cannot be met has no link, and so takes what comes from the network. The registry says which neighbours are in which
//! group, and counts changes: until one comes, a queue pair keeps a group's links ([`LocalMembers`]).

use crate::link::address_vector::AddressVector;
use crate::link::shm::link::{PeerId, ShmLink};
use crate::link::udp::endpoint::ip_of;
use crate::memory::peer_page::PeerPage;
use crate::registry::SLOTS_MAX;
use adverb_engine::Gid;
use adverb_wire::{Flow, Marks, Qpn, ROCE_PORT};
use std::net::IpAddr;
use std::sync::Arc;

/// Links that one queue pair remembers; of more, it forgets the oldest. All members of a group are
/// remembered at once.
const KNOWN_MAX: usize = 2 * SLOTS_MAX;
/// Groups whose links one queue pair remembers.
const GROUPS_MAX: usize = 32;

/// How long a full link is waited for. A receiver that runs empties one in less.
pub(crate) const FULL_MAX_NANOS: u64 = 10_000_000;

/// Next hop of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct NextHop {
    pub(crate) address_vector: Arc<AddressVector>,
    /// Where it is near: instead of the address vector's socket.
    pub(crate) shm_link: Option<Arc<ShmLink>>,
    /// To a multicast group: besides the address vector's socket.
    pub(crate) fan_out: Option<FanOut>,
}

/// Links by which a message to a multicast group goes.
pub(crate) type FanOut = Arc<[Arc<ShmLink>]>;

impl NextHop {
    /// What goes by both can go together.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same_shm_link = match (&self.shm_link, &other.shm_link) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (Some(_), None) | (None, Some(_)) => false,
        };
        let same_fan_out = match (&self.fan_out, &other.fan_out) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_shm_link && same_fan_out && Arc::ptr_eq(&self.address_vector, &other.address_vector)
    }
}

/// Devices of this host that a queue pair has sent datagrams to.
#[derive(Debug, Default)]
pub(crate) struct PeerCache {
    /// With the link, or none if the device does not answer.
    known: Vec<(PeerId, Option<Arc<ShmLink>>)>,
    oldest: usize,
    groups: Vec<LocalMembers>,
}

/// The neighbours that have queue pairs in a multicast group.
#[derive(Debug)]
pub(crate) struct LocalMembers {
    group: Gid,
    /// The registry's count of changes when it was asked.
    changes: u32,
    fan_out: FanOut,
    /// Members that do not answer.
    missing: Box<[PeerId]>,
}

impl LocalMembers {
    /// It is as it was, and no missing member has shown up.
    #[inline]
    fn is_current(&self, changes: u32, has_shm_link: impl Fn(PeerId) -> bool) -> bool {
        self.changes == changes
            && !self.fan_out.iter().any(|shm_link| shm_link.is_cut())
            && !self.missing.iter().any(|peer| has_shm_link(*peer))
    }
}

impl PeerCache {
    /// What is known of the link to a device: nothing, or its link, or that there is none.
    #[inline]
    pub(crate) fn find(&self, peer: PeerId) -> Option<Option<&Arc<ShmLink>>> {
        let found = self.known.iter().find(|(known, _)| *known == peer)?;
        Some(found.1.as_ref())
    }

    /// Links of a multicast group.
    #[inline]
    pub(crate) fn fan_out(&self, group: Gid) -> Option<&FanOut> {
        let local_members =
            self.groups.iter().find(|local_members| local_members.group == group)?;
        Some(&local_members.fan_out).filter(|fan_out| !fan_out.is_empty())
    }

    /// What is known of a multicast group is true.
    #[inline]
    pub(crate) fn knows(
        &self,
        group: Gid,
        changes: u32,
        has_shm_link: impl Fn(PeerId) -> bool,
    ) -> bool {
        let local_members = self.groups.iter().find(|local_members| local_members.group == group);
        local_members.is_some_and(|local_members| local_members.is_current(changes, has_shm_link))
    }

    /// Notes the members of a multicast group, unless one has to be met first.
    pub(crate) fn gather(
        &mut self,
        group: Gid,
        changes: u32,
        members: &[PeerId],
        has_shm_link: impl Fn(PeerId) -> bool,
    ) -> Option<PeerId> {
        let unknown = members.iter().copied().find(|peer| match self.find(*peer) {
            None => true,
            Some(None) => has_shm_link(*peer),
            Some(Some(shm_link)) => shm_link.is_cut(),
        });
        if unknown.is_some() {
            return unknown;
        }
        let shm_links = members.iter().filter_map(|peer| self.find(*peer)?.cloned());
        let fan_out = shm_links.collect();
        let missing = members.iter().copied().filter(|peer| matches!(self.find(*peer), Some(None)));
        let missing = missing.collect();
        self.groups.retain(|local_members| local_members.group != group);
        if self.groups.len() >= GROUPS_MAX {
            self.groups.remove(0);
        }
        self.groups.push(LocalMembers { group, changes, fan_out, missing });
        None
    }

    pub(crate) fn learn(&mut self, peer: PeerId, shm_link: Option<Arc<ShmLink>>) {
        self.known.retain(|(known, shm_link)| {
            *known != peer && shm_link.as_ref().is_none_or(|shm_link| !shm_link.is_cut())
        });
        if self.known.len() < KNOWN_MAX {
            self.known.push((peer, shm_link));
            return;
        }
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
        if let Some(place) = self.known.get_mut(self.oldest) {
            *place = (peer, shm_link);
        }
    }
}

/// An address of this network namespace, to which records can go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalRoute {
    pub(crate) addresses: Addresses,
    /// The network interface that has it: numbers of queue pairs are known by process, and what has the
    /// number that is meant there may be another one elsewhere.
    pub(crate) interface: u32,
    /// The destination is a multicast group.
    pub(crate) group: bool,
}

/// A neighbour that has gone, and from which messages to groups have come: the kernel's copies of them
/// may still lie in sockets.
#[derive(Debug)]
pub(crate) struct Departed {
    pub(crate) peer: PeerId,
    pub(crate) page: Arc<PeerPage>,
}

impl Departed {
    /// How many are remembered.
    pub(crate) const MAX: usize = 16;

    /// It had this queue pair.
    pub(crate) fn had(&self, qp: Qpn) -> bool {
        self.page.qp(qp).is_some()
    }
}

/// From where to where a record goes, and how its packet would have been marked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Addresses {
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    pub(crate) marks: Marks,
}

impl Addresses {
    /// In bytes.
    pub(crate) const LEN: usize = 16 + 16 + 1 + 1 + 3;

    pub(crate) fn emit(self) -> [u8; Self::LEN] {
        let Marks { traffic_class, hop_limit, flow_label } = self.marks;
        let [_, l0, l1, l2] = flow_label.to_be_bytes();
        let marks = [traffic_class, hop_limit, l0, l1, l2];
        let mut bytes = [0; Self::LEN];
        let (gids, last) = bytes.split_at_mut(32);
        let (first, second) = gids.split_at_mut(16);
        first.copy_from_slice(&self.source.0);
        second.copy_from_slice(&self.destination.0);
        last.copy_from_slice(&marks);
        bytes
    }

    /// `None` unless there are as many bytes, with addresses of one family.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (source, rest) = bytes.split_first_chunk::<16>()?;
        let (destination, rest) = rest.split_first_chunk::<16>()?;
        let [traffic_class, hop_limit, l0, l1, l2] = *rest.as_array::<5>()?;
        let flow_label = u32::from_be_bytes([0, l0, l1, l2]);
        let marks = Marks { traffic_class, hop_limit, flow_label };
        let addresses = Self { source: Gid(*source), destination: Gid(*destination), marks };
        let same = addresses.source.v4().is_some() == addresses.destination.v4().is_some();
        same.then_some(addresses)
    }

    /// What the packet's addresses would have been.
    pub(crate) fn flow(self) -> Option<Flow> {
        match (ip_of(self.source), ip_of(self.destination)) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Some(Flow::v4(source.octets(), destination.octets(), ROCE_PORT, ROCE_PORT))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Some(Flow::v6(source.octets(), destination.octets(), ROCE_PORT, ROCE_PORT))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }
}

/// Length of the datagram that headers and payload of a record would have made.
pub(crate) fn datagram_len(headers: usize, payload: usize) -> u16 {
    const ICRC: usize = 4;
    u16::try_from(headers + payload.next_multiple_of(4) + ICRC).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_and_are_of_one_family() {
        let (v4, v6) = (Gid::from_v4([10, 1, 2, 3]), Gid([0x20; 16]));
        for (source, destination) in [(v4, Gid::from_v4([127, 0, 0, 1])), (v6, Gid([9; 16]))] {
            let marks = Marks { traffic_class: 7, hop_limit: 9, flow_label: 0xa_bcde };
            let addresses = Addresses { source, destination, marks };
            assert_eq!(Addresses::parse(&addresses.emit()), Some(addresses));
            assert_eq!(addresses.flow().unwrap().is_v6(), source == v6);
            assert_eq!(Addresses::parse(&addresses.emit()[1..]), None);
        }
        let mixed = Addresses { source: v4, destination: v6, marks: Marks::USUAL };
        assert_eq!(Addresses::parse(&mixed.emit()), None);
        assert!(mixed.flow().is_none());
    }

    #[test]
    fn a_datagram_is_as_long_as_its_packet_would_be() {
        assert_eq!(datagram_len(20, 6), 20 + 8 + 4);
        assert_eq!(datagram_len(24, 0), 24 + 4);
    }
}
