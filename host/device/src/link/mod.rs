//! Links between ports: packets over UDP sockets, records in shared memory.

pub(crate) mod address_vector;
pub(crate) mod errors;
pub(crate) mod gid;
pub(crate) mod kind;
pub(crate) mod out;
pub(crate) mod path;
pub(crate) mod peer_cache;
pub(crate) mod shm;
pub(crate) mod udp;
pub(crate) mod xdp;

use self::gid::{Device, GidTable, devices};
use self::path::PathChoice;
use self::peer_cache::{Addresses, LocalRoute};
use self::shm::link::{PeerId, ShmLink};
use crate::memory::export::Exports;
use crate::memory::peer_page;
use crate::memory::region::Regions;
use crate::registry::control_message::ControlMessage;
use crate::registry::counters::Counters;
use crate::registry::relay::{Passed, Relay};
use crate::registry::{DomainClaim, DomainName, Member, Registry, SlotId};
use crate::sync::Mutex;
use adverb_engine::{EarlyBudget, Gid, Paths, Time};
use adverb_sys::clock;
use adverb_wire::{Marks, Qpn};
use std::collections::HashMap;
use std::sync::Arc;

/// Parts of a device that its queue pairs share: its memory, its place in the registry, and its links to others.
#[derive(Debug)]
pub(crate) struct Links {
    /// As it was when it was opened.
    pub(crate) device: Device,
    /// As it is now.
    pub(crate) gids: Arc<GidTable>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) registry: Registry,
    pub(crate) relay: Relay,
    pub(crate) choice: PathChoice,
    /// Other devices of this host may have links to this one.
    pub(crate) uses_shm: bool,
    pub(crate) shm_links: Mutex<HashMap<SlotId, Arc<ShmLink>>>,
    /// Bytes of requests that come early, of all queue pairs.
    pub(crate) early: EarlyBudget,
    pub(crate) paths: Mutex<Paths>,
}

impl Links {
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(clock::now_ns())
    }

    /// What the queue pairs have found out about the ways to their peers.
    pub(crate) fn paths<R>(&self, run: impl FnOnce(&mut Paths) -> R) -> R {
        run(&mut self.paths.lock())
    }

    #[inline]
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// What neighbours can see and use, if they can.
    pub(crate) fn exports(&self) -> Option<&Arc<Exports>> {
        Some(&self.exports).filter(|_| self.uses_shm)
    }

    /// Both addresses are of this namespace, and the second one may be a neighbour's: what records
    /// between them say.
    pub(crate) fn local_route(
        &self,
        source: Gid,
        destination: Gid,
        marks: Marks,
    ) -> Option<LocalRoute> {
        if !self.uses_shm {
            return None;
        }
        let mentions = |device: &Device| device.gids.iter().any(|entry| entry.gid == destination);
        let interface = match self.gids.has(destination) {
            true => self.device.index,
            false => devices().ok()?.into_iter().find(mentions)?.index,
        };
        Some(LocalRoute {
            addresses: Addresses { source, destination, marks },
            interface,
            group: false,
        })
    }

    /// Some of those in a multicast group may be near.
    pub(crate) fn local_group_route(
        &self,
        source: Gid,
        group: Gid,
        marks: Marks,
    ) -> Option<LocalRoute> {
        if !self.uses_shm {
            return None;
        }
        let addresses = Addresses { source, destination: group, marks };
        Some(LocalRoute { addresses, interface: self.device.index, group: true })
    }

    /// The devices that live and have queue pairs in a multicast group, this one perhaps among them.
    pub(crate) fn members(&self, group: Gid) -> Vec<PeerId> {
        let name = DomainName::of_group(self.device.index, group.0);
        let mut members = Vec::new();
        for slot in self.registry.holders(name) {
            let nonce = self.registry.shm_nonce(slot, peer_page::VERSION);
            let known = members.iter().any(|member: &PeerId| member.slot == slot);
            members.extend(nonce.filter(|_| !known).map(|nonce| PeerId { slot, nonce }));
        }
        members
    }

    /// Tells neighbours that there are queue pairs in a multicast group here; `None` if they cannot know,
    /// and it has to come by way of the network.
    pub(crate) fn claim_group(&self, group: Gid) -> Option<DomainClaim> {
        if !self.uses_shm {
            return None;
        }
        let name = DomainName::of_group(self.device.index, group.0);
        self.registry.claim_domain(name, |_| Ok(())).ok()
    }

    /// There is a link to this device.
    pub(crate) fn has_shm_link(&self, peer: PeerId) -> bool {
        let shm_links = self.shm_links.lock();
        shm_links
            .get(&peer.slot)
            .is_some_and(|shm_link| shm_link.peer() == peer && !shm_link.is_cut())
    }

    /// The device of this interface that has this queue pair, if it uses shared memory.
    #[inline]
    pub(crate) fn neighbour(&self, qp: Qpn, interface: u32) -> Option<PeerId> {
        let slot = self.registry.owner(qp)?;
        if self.registry.interface(slot) != interface {
            return None;
        }
        let nonce = self.registry.last_shm_nonce(slot, peer_page::VERSION)?;
        Some(PeerId { slot, nonce })
    }

    /// It has this address, or had it when it was opened: of those that came later alone it takes a lock to know.
    pub(crate) fn is_at(&self, gid: Gid) -> bool {
        self.device.gids.iter().any(|entry| entry.gid == gid) || self.gids.has(gid)
    }

    /// Sends a control message by itself, which may get lost.
    pub(crate) fn tell(&self, to: Member, control: ControlMessage) {
        self.send_control_message(to, &control, None);
    }

    /// Sends a control message, which may get lost.
    pub(crate) fn send_control_message(
        &self,
        to: Member,
        control: &ControlMessage,
        passed: Option<Passed<'_>>,
    ) {
        let there = self.registry.relay_port(to.slot);
        if there.is_some_and(|there| self.relay.send(there, control, passed).is_ok()) {
            self.registry.note_relayed(to.slot);
            self.counters.forwarded.add(u64::from(passed.is_some()));
        }
    }
}
