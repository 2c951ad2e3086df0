//! Neighbours of a port, the other devices of the host: which link a queue pair's packets take,
//! and records, which are to links what packets are to sockets.
//!
//! Records are taken under the receive lock, as packets are. What links, peer pages and accesses are is said
//! in their own files.

use super::driving::SHM_CLOCK_STEPS;
use super::seats::{Seated, Table};
use super::{Clock, Held, Listeners, Port, Receiver, RxSocket, ShmReceiver};
use crate::link::address_vector::AddressVector;
use crate::link::errors::ConnectError;
use crate::link::gid::Device;
use crate::link::kind::Link;
use crate::link::path::PathChoice;
use crate::link::peer_cache::{Addresses, Departed, datagram_len};
use crate::link::shm::doorbell::PeerDoorbell;
use crate::link::shm::handshake::{Handshake, Meeting};
use crate::link::shm::link::{
    Copied, EagerRecord, InRing, MessageBytes, PeerId, Seen, Segment, ShmLink, Taken,
};
use crate::memory::export::{ACCESS_MAX, Exports};
use crate::memory::peer_page;
use crate::memory::region::Grip;
use crate::objects::completion::PollBuffer;
use crate::objects::notice::DeferredWakeups;
use crate::objects::qp::{Caller, Change, QpInner, Took};
use crate::objects::standby::Standby;
use crate::registry::Registry;
use crate::sync::Mutex;
use adverb_engine::{Driver, EagerHeader, Gid, Given, Look, Time, Waiting};
use adverb_sys::cancel::uncancelled;
use adverb_sys::{poll, random};
use adverb_wire::{Headers, Marks, Packet, Qpn};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

impl Port {
    /// What makes links to other devices of this host; `None` if this device does not.
    fn neighbours(&self) -> Option<&Handshake> {
        Some(&self.handshake).filter(|handshake| handshake.uses_shm())
    }

    /// The way to the peer that a queue pair is to be connected with; that of one that is not
    /// `connected` to one peer, or takes packets alone, is the network.
    pub(crate) fn link(
        &self,
        connected: bool,
        change: &Change,
        remote: Gid,
    ) -> Result<Link, ConnectError> {
        let index = change.gid_index;
        let local = self.links.gids.at(index).ok_or(ConnectError::NoSuchGid { index })?.gid;
        let same_kind = local.v4().is_some() == remote.v4().is_some();
        if let Some(qp) = change.attributes.remote.filter(|_| connected && same_kind)
            && let Some(shm_link) = self.shm_link(local, remote, qp)?
            && !shm_link.peer_word(qp).is_for_packets()
        {
            return Ok(Link::Shm(shm_link));
        }
        Ok(Link::Udp(AddressVector::new(self.endpoint(index)?, remote, change.marks)?))
    }

    /// The link to the device with this queue pair number, if both sides can use memory; `None` if packets take
    /// the network.
    pub(crate) fn shm_link(
        &self,
        local: Gid,
        remote: Gid,
        qp: Qpn,
    ) -> Result<Option<Arc<ShmLink>>, ConnectError> {
        let near = self.links.local_route(local, remote, Marks::USUAL);
        let peer = near.and_then(|near| self.links.neighbour(qp, near.interface));
        let lives =
            |peer: &PeerId| self.links.registry.shm_nonce(peer.slot, peer_page::VERSION).is_some();
        let peer = peer.filter(lives);
        match peer {
            Some(peer) => self.shm_link_to(peer).map(Some).map_err(ConnectError::System),
            None if self.links.choice == PathChoice::SharedMemory => {
                Err(ConnectError::NoSharedMemory { remote, qp })
            }
            None => Ok(None),
        }
    }

    /// The sender of a message to a multicast group is a neighbour, which has sent it by way of a link.
    pub(super) fn has_come_by_shm_link(
        &self,
        audience: &Listeners<'_>,
        sender: Qpn,
        from: Gid,
    ) -> bool {
        let Listeners { group, shm_receivers, departed } = audience;
        if group.claim.is_none() || !self.links.is_at(from) {
            return false;
        }
        shm_receivers
            .iter()
            .any(|shm_receiver| shm_receiver.shm_link.peer_page().qp(sender).is_some())
            || departed.iter().filter(|gone| gone.had(sender)).any(|gone| {
                // Its numbers may be another device's now.
                self.links.registry.owner(sender).is_none_or(|slot| slot == gone.peer.slot)
            })
    }

    /// The link to a device; `None` if it does not answer, which one that is stopped is not waited for.
    pub(crate) fn meet(&self, peer: PeerId) -> Option<Arc<ShmLink>> {
        self.links
            .registry
            .shm_nonce(peer.slot, peer_page::VERSION)
            .filter(|nonce| *nonce == peer.nonce)?;
        let stopped = || self.links.registry.is_stopped(peer.slot);
        self.shm_link_unless(peer, stopped).ok().filter(|shm_link| !shm_link.is_cut())
    }

    fn shm_link_to(&self, peer: PeerId) -> io::Result<Arc<ShmLink>> {
        self.shm_link_unless(peer, || false)
    }

    /// The link to a device, or one that is cut, if it has gone, does not answer, or is not there so far
    /// and it is `in_vain` to wait for an answer.
    fn shm_link_unless(
        &self,
        peer: PeerId,
        in_vain: impl Fn() -> bool,
    ) -> io::Result<Arc<ShmLink>> {
        let place = usize::try_from(peer.slot.number()).unwrap_or(0) % MEETINGS;
        let _meeting = self.meetings.get(place).map(Mutex::lock);
        let known = self.links.shm_links.lock().get(&peer.slot).cloned();
        if let Some(shm_link) =
            known.filter(|shm_link| shm_link.peer() == peer && !shm_link.is_given_up())
        {
            return Ok(shm_link);
        }
        // Files are closed, and answers waited for.
        uncancelled(|| self.new_shm_link(peer, in_vain))
    }

    fn new_shm_link(&self, peer: PeerId, in_vain: impl Fn() -> bool) -> io::Result<Arc<ShmLink>> {
        if peer.slot == self.links.registry.slot() {
            let shm_link = Arc::new(self.own_shm_link(peer)?);
            self.add_shm_receiver(&shm_link);
            self.remember_shm_link(&shm_link);
            return Ok(shm_link);
        }
        self.mend_registry(); // By which the other sees that this device is the one it claims to be.
        let met = self.neighbours().map(|handshake| handshake.meet(peer, in_vain));
        let Some(Ok(shm_link)) = met else {
            // It has died, or is stopped: a cable whose other end is not plugged in.
            let shm_link = self.own_shm_link(peer)?;
            shm_link.cut();
            return Ok(Arc::new(shm_link));
        };
        self.add_shm_receiver(&shm_link);
        self.remember_shm_link(&shm_link);
        Ok(shm_link)
    }

    fn own_shm_link(&self, peer: PeerId) -> io::Result<ShmLink> {
        let doorbell = self.standby.doorbell();
        let fd = doorbell.fd().as_fd().try_clone_to_owned()?;
        let peer_doorbell = PeerDoorbell::new(fd.into(), Arc::clone(doorbell.page()));
        Ok(ShmLink::new(peer, Segment::own()?, peer_doorbell, &self.links.exports))
    }

    /// Waits until no neighbour acts on what it was shown before the call.
    pub(crate) fn wait_for_neighbours(&self) {
        let _ = self.links.exports.wait_for_neighbours(ACCESS_MAX);
    }

    /// A link has brought something, or an acknowledgement waits; `None` if another thread takes a step.
    pub(crate) fn has_something_to_do(&self) -> Option<bool> {
        let receiver = self.receiver.try_lock()?;
        Some(receiver.waiting.owes_packets() || receiver.has_record())
    }

    /// Something has arrived that was not looked at, and no thread looks right now. Multicast does not count.
    pub(crate) fn has_arrivals(&self) -> bool {
        match self.receiver.try_lock() {
            None => return false,
            Some(receiver) if receiver.shm_receivers.iter().any(ShmReceiver::has_more) => {
                return true;
            }
            Some(_) => {}
        }
        // Without the lock: a thread that loses its processor in a system call would keep the program from receiving.
        let endpoints: Vec<_> = self.endpoints.lock().values().cloned().collect();
        let mut sockets = endpoints.iter().map(|endpoint| &endpoint.socket);
        let Some(first) = sockets.next() else {
            return false;
        };
        poll::readable(first, sockets.map(AsFd::as_fd), Some(Duration::ZERO)).unwrap_or(false)
    }

    /// A thread is in the midst of a step.
    pub(crate) fn is_taking_a_step(&self) -> bool {
        self.receiver.try_lock().is_none()
    }

    /// A number that changes with each call that drives, with each burst or batch of records that leaves, and with each
    /// request that is carried out on a neighbour's memory: a program that posts many at once is at work, though it does not
    /// look for completions meanwhile. `None` while a thread copies to or from such memory what takes long.
    pub(crate) fn calls(&self) -> Option<u64> {
        let mut calls = self.drives();
        for endpoint in self.endpoints.lock().values() {
            calls = calls.wrapping_add(endpoint.bursts());
        }
        for shm_link in self.links.shm_links.lock().values() {
            if shm_link.is_copying() {
                return None;
            }
            calls = calls.wrapping_add(shm_link.calls());
        }
        Some(calls)
    }

    /// A link has brought something that was not looked at. A thread that is about to sleep waits for one that
    /// looks right now, and may need this very processor for that.
    pub(crate) fn has_record_left(&self) -> bool {
        self.receiver.lock().has_record()
    }

    /// A step of the program's in which there is nothing to do but what there is in most: to find that
    /// no link has brought anything, or to take short messages. Says whether there were some, and whether
    /// that was all, or else a whole step is needed.
    #[inline]
    pub(super) fn fast_poll(
        &self,
        receiver: &mut Receiver,
        poll_buffer: &mut Option<&mut PollBuffer<'_>>,
    ) -> (bool, bool) {
        let Receiver { shm_receivers, waiting, parked, steps, quiet, .. } = receiver;
        let usual = !shm_receivers.is_empty()
            && *steps + 1 < SHM_CLOCK_STEPS
            && *quiet < QUIET_STEPS
            && !waiting.has_packets()
            && parked.is_empty()
            && !self.schedule.is_ready()
            && !self.standby.doorbell().is_suspect();
        let mut busy = false;
        if !usual {
            return (busy, false);
        }
        if waiting.is_pressing() {
            self.acknowledge(waiting, poll_buffer.as_deref_mut());
        }
        for shm_receiver in shm_receivers {
            match self.take_eager(shm_receiver, waiting, poll_buffer) {
                Some(taken) => busy |= taken,
                None => return (busy, false),
            }
        }
        if !busy && !waiting.is_empty() {
            self.acknowledge(waiting, poll_buffer.as_deref_mut()); // There is time for those.
        }
        *steps += 1;
        *quiet = if busy { 0 } else { *quiet + 1 };
        (busy, true)
    }

    /// Takes the next records of a link as far as they are eager for one queue pair; says whether there
    /// were any. `None` if there is something else.
    #[inline(always)]
    fn take_eager(
        &self,
        shm_receiver: &mut ShmReceiver,
        waiting: &mut Waiting,
        poll_buffer: &mut Option<&mut PollBuffer<'_>>,
    ) -> Option<bool> {
        let first = match shm_receiver.look() {
            Seen::Nothing => {
                shm_receiver.batch = 1;
                return Some(false);
            }
            Seen::Eager(eager, held) => (eager, held),
            Seen::Other => return None,
        };
        let number = first.0.dest_qp;
        let last_qp = shm_receiver.take_last_qp(number, || self.table.place_of(number));
        let _deferred = DeferredWakeups::begin();
        let mut guard = match &last_qp {
            Some((_, place)) => place.lock(),
            None => self.table.lock(number),
        };
        let known = guard.is_some();
        if let Some(inner) = guard.as_deref_mut().and_then(Option::as_deref_mut) {
            self.give_eager(inner, first, shm_receiver, waiting, poll_buffer);
        }
        drop(guard);
        shm_receiver.give_back(last_qp);
        known.then_some(true)
    }

    /// Gives a queue pair the eager header that is the first of a link, and those for it that follow.
    #[inline(always)]
    fn give_eager(
        &self,
        inner: &mut QpInner,
        (mut eager, mut held): (EagerHeader, EagerRecord),
        shm_receiver: &mut ShmReceiver,
        waiting: &mut Waiting,
        poll_buffer: &mut Option<&mut PollBuffer<'_>>,
    ) {
        let number = eager.dest_qp;
        let can_wait = waiting.takes(Driver::Program);
        let (most, mut count) = (shm_receiver.batch, 0);
        let (mut published, mut only_served, mut grip) = (0, true, Grip::new(&self.links.regions));
        loop {
            let shm_link = &shm_receiver.shm_link;
            let plain = match poll_buffer.as_deref_mut() {
                Some(poll_buffer) if can_wait => {
                    inner.take_plainly(&eager, held.near(), shm_link, poll_buffer, &mut grip)
                }
                Some(_) | None => false,
            };
            let took = if plain {
                Took { published: 1, only_served: true }
            } else {
                grip.let_go(); // Before anything that may wait for pins.
                let caller = Caller { can_wait, poll_buffer: poll_buffer.as_deref_mut() };
                self.give_unusual(inner, &eager, held.near(), shm_link, caller)
            };
            shm_receiver.release(held);
            published += took.published;
            only_served &= took.only_served;
            count += 1;
            if count == most {
                shm_receiver.batch = (most * 2).min(RECORDS_MAX);
                break;
            }
            match shm_receiver.look() {
                Seen::Eager(next, after) if next.dest_qp == number => {
                    (eager, held) = (next, after);
                }
                Seen::Nothing => {
                    shm_receiver.batch = 1;
                    break;
                }
                Seen::Eager(..) | Seen::Other => break,
            }
        }
        grip.let_go();
        let silent = || shm_receiver.shm_link.is_silent();
        if inner.pacing.acks.is_urgent(silent) && inner.engine.owes_plain_ack() {
            inner.acknowledge_eagerly(); // If it cannot leave now, it is put off as others are.
        }
        let mut clock = Clock::new();
        let mut seat = Seated { port: self, number, inner, clock: &mut clock, poll_buffer: None };
        waiting.release(&mut seat, Given { published, only_served }, Driver::Program);
    }

    /// Gives a queue pair an eager header that asks for more than most do. Not inlined, for the sake of those.
    #[inline(never)]
    fn give_unusual(
        &self,
        inner: &mut QpInner,
        eager: &EagerHeader,
        near: InRing<'_>,
        shm_link: &ShmLink,
        caller: Caller<'_, '_>,
    ) -> Took {
        let message = MessageBytes::InRing(near);
        inner.on_eager(eager, message, shm_link, caller, || self.links.now(), &self.links)
    }

    /// Takes what the links have; says whether there was something, and whether it completed work.
    pub(super) fn receive_records(
        &self,
        receiver: &mut Receiver,
        clock: &mut Clock,
        driver: Driver,
    ) -> (bool, bool) {
        let _deferred = DeferredWakeups::begin();
        let Receiver { shm_receivers, departed, rx_sockets, buffer, waiting, quiet, .. } = receiver;
        if self.standby.doorbell().silence() {
            shm_receivers.iter().for_each(|shm_receiver| shm_receiver.shm_link.forget_ringing());
        }
        let (mut busy, mut published) = (false, false);
        let mut at = 0;
        while let Some(shm_receiver) = shm_receivers.get_mut(at) {
            let most = if driver == Driver::Helper { RECORDS_MAX } else { shm_receiver.batch };
            let mut round = Round { rx_sockets, waiting, clock, driver };
            let (taken, completed) = self.receive_from(shm_receiver, most, buffer, &mut round);
            shm_receiver.batch = if taken < most { 1 } else { (most * 2).min(RECORDS_MAX) };
            published |= completed;
            busy |= taken > 0;
            if taken == 0 && shm_receiver.shm_link.is_cut() {
                let shm_receiver = shm_receivers.swap_remove(at);
                self.links.counters.broken_links.add(u64::from(shm_receiver.broken));
                if shm_receiver.has_multicast {
                    departed.truncate(Departed::MAX - 1);
                    let page = shm_receiver.shm_link.keep_peer_page();
                    departed.push_front(Departed { peer: shm_receiver.shm_link.peer(), page });
                }
            } else {
                at += 1;
            }
        }
        if !busy && !waiting.is_empty() {
            published |= self.acknowledge(waiting, None); // There is time for those.
        }
        *quiet = if busy { 0 } else { quiet.saturating_add(1) };
        (busy, published)
    }

    /// Takes up to `most` records of one link; says how many there were, and whether they completed
    /// work.
    fn receive_from(
        &self,
        shm_receiver: &mut ShmReceiver,
        most: usize,
        buffer: &mut [u8],
        round: &mut Round<'_>,
    ) -> (usize, bool) {
        let mut current: Option<Held<'_>> = None;
        let (mut taken, mut published) = (0, false);
        while taken < most
            && let Some(record) = shm_receiver.take(buffer)
        {
            taken += 1;
            // For most of them a program waits for every step.
            match record {
                Taken::Eager { eager: Some(eager), held } => {
                    published |= self.hold(eager.dest_qp, &mut current, round);
                    let (shm_link, can_wait) = (&shm_receiver.shm_link, round.can_wait());
                    if let Some(Held { guard, published, .. }) = &mut current
                        && let Some(inner) = guard.as_mut()
                    {
                        let (bytes, now) =
                            (MessageBytes::InRing(held.near()), || round.clock.now());
                        let caller = Caller { can_wait, poll_buffer: None };
                        let took =
                            inner.on_eager(&eager, bytes, shm_link, caller, now, &self.links);
                        *published += took.published;
                    }
                    shm_receiver.release(held);
                }
                Taken::Eager { eager: None, held } => {
                    self.links.counters.malformed.add(1);
                    shm_receiver.release(held);
                }
                Taken::Copied(copied) => match Message::of(copied, buffer) {
                    None => self.links.counters.malformed.add(1),
                    Some(message) => {
                        published |=
                            self.receive_message(&message, shm_receiver, &mut current, round);
                    }
                },
            }
        }
        (taken, published | (current.is_some() && self.let_go(&mut current, round)))
    }

    /// Takes what is no eager record with its bytes behind it; says whether that completed work.
    fn receive_message<'a>(
        &'a self,
        message: &Message<'_>,
        shm_receiver: &mut ShmReceiver,
        current: &mut Option<Held<'a>>,
        round: &mut Round<'_>,
    ) -> bool {
        let number = message.dest_qp();
        match message {
            Message::Datagram { packet, addresses, len } if number == Qpn::MULTICAST => {
                shm_receiver.has_multicast = true;
                let mut published = self.let_go(current, round);
                for mut held in self.copies(round.rx_sockets, packet, *addresses, *len) {
                    published |= self.release_local(&mut held, round);
                }
                published
            }
            Message::Datagram { addresses, .. } if !self.links.is_at(addresses.destination) => {
                self.links.counters.unknown_qp.add(1);
                false
            }
            Message::Datagram { .. }
            | Message::Packet { .. }
            | Message::EagerByReference { .. } => {
                let published = self.hold(number, current, round);
                let can_wait = round.can_wait();
                if let Some(held) = current {
                    self.hand_over(message, &shm_receiver.shm_link, held, can_wait, round.clock);
                }
                published
            }
        }
    }

    /// Sees to it that it is this queue pair that is held, if there is such a one; says whether letting go
    /// of another completed work.
    #[inline(always)]
    fn hold<'a>(
        &'a self,
        number: Qpn,
        current: &mut Option<Held<'a>>,
        round: &mut Round<'_>,
    ) -> bool {
        if current.as_ref().is_some_and(|held| held.number == number) {
            return false;
        }
        let published = current.is_some() && self.let_go(current, round);
        match self.table.lock(number) {
            None => self.links.counters.unknown_qp.add(1),
            Some(guard) => *current = Some(Held { number, guard, published: 0 }),
        }
        published
    }

    /// Lets go of the queue pair that is held, if one is; says whether that completed work.
    fn let_go(&self, current: &mut Option<Held<'_>>, round: &mut Round<'_>) -> bool {
        let Some(held) = current else {
            return false;
        };
        let published = self.release_local(held, round);
        *current = None;
        published
    }

    #[inline]
    fn hand_over(
        &self,
        message: &Message<'_>,
        shm_link: &ShmLink,
        held: &mut Held<'_>,
        can_wait: bool,
        clock: &mut Clock,
    ) {
        let Some(inner) = held.guard.as_mut() else {
            return;
        };
        held.published += match message {
            Message::EagerByReference { eager, pieces } => {
                match MessageBytes::parse(shm_link, pieces) {
                    Some(bytes) => {
                        let caller = Caller { can_wait, poll_buffer: None };
                        inner
                            .on_eager(eager, bytes, shm_link, caller, || clock.now(), &self.links)
                            .published
                    }
                    None => 0,
                }
            }
            Message::Datagram { packet, addresses, len } => {
                inner.on_datagram(packet, *addresses, *len, Time::ZERO, &self.links)
            }
            Message::Packet { packet, by_reference } => {
                // Requests do not care about the time, and reading it takes a while.
                let now = match packet.headers.bth.opcode.operation().is_request() {
                    true => Time::ZERO,
                    false => clock.now(),
                };
                inner.on_record(packet, *by_reference, shm_link, now, &self.links)
            }
        };
    }

    /// Gives a copy of a message to each queue pair of a multicast group that wants one.
    fn copies<'a>(
        &'a self,
        rx_sockets: &'a [RxSocket],
        packet: &'a Packet<'a>,
        addresses: Addresses,
        len: u16,
    ) -> impl Iterator<Item = Held<'a>> {
        let groups = rx_sockets.iter().filter_map(|rx_socket| rx_socket.group.as_ref());
        let mut groups = groups.filter(move |group| group.is(addresses.destination));
        let members = groups.next().map_or(&[][..], |group| &group.members);
        let sender = packet.headers.deth.map(|deth| deth.src_qp);
        members.iter().filter_map(move |number| {
            let number = *number;
            let mut guard = self.table.lock(number)?;
            let inner = guard.as_mut()?;
            if sender == Some(number) && !inner.hears_itself() {
                return None;
            }
            let published = inner.on_datagram(packet, addresses, len, Time::ZERO, &self.links);
            Some(Held { number, guard, published })
        })
    }

    /// Lets a queue pair answer the records that it was given; says whether they completed work.
    fn release_local(&self, held: &mut Held<'_>, round: &mut Round<'_>) -> bool {
        let Some(inner) = held.guard.as_deref_mut() else {
            return false;
        };
        let Round { waiting, clock, driver, .. } = round;
        let mut seat = Seated { port: self, number: held.number, inner, clock, poll_buffer: None };
        let given = Given { published: held.published, only_served: false };
        held.published + waiting.release(&mut seat, given, *driver) > 0
    }

    /// Looks at what neighbours have acknowledged, and sends the acknowledgements that queue pairs still
    /// owe; says whether that completed work.
    fn acknowledge(&self, waiting: &mut Waiting, poll_buffer: Option<&mut PollBuffer<'_>>) -> bool {
        let mut clock = Clock::new();
        waiting.acknowledge(&mut Table { port: self, clock: &mut clock, poll_buffer }, Look::Usual)
    }
}

impl Meeting for Port {
    fn registry(&self) -> &Registry {
        &self.links.registry
    }

    fn add_shm_receiver(&self, shm_link: &Arc<ShmLink>) {
        if !shm_link.is_own() {
            self.links.exports.add_neighbour(Arc::<ShmLink>::downgrade(shm_link));
        }
        self.receiver.lock().shm_receivers.push(ShmReceiver::new(Arc::clone(shm_link)));
    }

    fn remember_shm_link(&self, shm_link: &Arc<ShmLink>) {
        let mut shm_links = self.links.shm_links.lock();
        let known = shm_links.get(&shm_link.peer().slot);
        if known.is_none_or(|known| known.is_given_up() || known.peer() != shm_link.peer()) {
            shm_links.insert(shm_link.peer().slot, Arc::clone(shm_link));
        }
    }

    fn forget_shm_link(&self, shm_link: &Arc<ShmLink>) {
        self.links.shm_links.lock().retain(|_, known| !Arc::ptr_eq(known, shm_link));
        // A sleeper may be waiting for what it has left behind.
        let _ = self.standby.doorbell().fd().signal();
        self.standby.doorbell().suspect();
    }

    fn mend_registry(&self) {
        self.mend_registry();
    }

    fn answer_newcomers(&self) {
        let mended = self.links.registry.answer_newcomers();
        self.links.counters.registry_repairs.add(mended);
    }

    fn count_refused_neighbour(&self) {
        self.links.counters.refused_neighbours.add(1);
    }
}

impl Receiver {
    /// A link has brought something, or an acknowledgement is owed for that.
    fn has_record(&self) -> bool {
        !self.waiting.is_empty() || self.shm_receivers.iter().any(ShmReceiver::has_more)
    }

    /// The sockets' turn has come. A look costs a system call each, which a program that talks to
    /// its neighbours, or by frames, does not want to pay every time.
    pub(super) fn looks_at_sockets(&self, driver: Driver) -> bool {
        self.shm_receivers.is_empty() && self.frames.is_empty()
            || driver == Driver::Helper
            || self.quiet >= QUIET_STEPS
            || self.steps == 0
    }
}

/// The headers of a record, and its addresses if it has any.
#[inline]
fn parse(head: &[u8], addressed: bool) -> Option<(Headers, Option<Addresses>)> {
    match (Headers::parse(head).ok()?, addressed) {
        ((headers, []), false) => Some((headers, None)),
        ((headers, rest), true) => Some((headers, Some(Addresses::parse(rest)?))),
        ((_, [_, ..]), false) => None,
    }
}

/// Context of one round over the records of all links.
struct Round<'a> {
    rx_sockets: &'a [RxSocket],
    waiting: &'a mut Waiting,
    clock: &'a mut Clock,
    driver: Driver,
}

impl Round<'_> {
    /// What does not concern the message itself can be done later: the program calls again, or the helper
    /// comes.
    #[inline]
    fn can_wait(&self) -> bool {
        self.waiting.takes(self.driver)
    }
}

/// Parsed record.
enum Message<'a> {
    Packet { packet: Packet<'a>, by_reference: Option<&'a [u8]> },
    Datagram { packet: Packet<'a>, addresses: Addresses, len: u16 },
    EagerByReference { eager: EagerHeader, pieces: &'a [u8] },
}

impl<'a> Message<'a> {
    /// The message of a record that is in `buffer`, unless it makes no sense.
    fn of(record: Copied, buffer: &'a [u8]) -> Option<Self> {
        match record {
            Copied::EagerByReference { eager, len } => {
                let pieces = buffer.get(..len).unwrap_or_default();
                Some(Self::EagerByReference { eager: eager?, pieces })
            }
            Copied::Packet { head, len, by_reference, addressed } => {
                let bytes = buffer.get(..len).unwrap_or_default();
                let (head, rest) = bytes.split_at(head.min(bytes.len()));
                let (headers, addresses) = parse(head, addressed)?;
                Some(match (addresses, by_reference) {
                    (Some(addresses), _) => {
                        let packet = Packet { headers, payload: rest };
                        let len = datagram_len(head.len() - Addresses::LEN, rest.len());
                        Self::Datagram { packet, addresses, len }
                    }
                    (None, true) => Self::Packet {
                        packet: Packet { headers, payload: &[] },
                        by_reference: Some(rest),
                    },
                    (None, false) => Self::Packet {
                        packet: Packet { headers, payload: rest },
                        by_reference: None,
                    },
                })
            }
        }
    }

    #[inline]
    const fn dest_qp(&self) -> Qpn {
        match self {
            Self::Packet { packet, .. } | Self::Datagram { packet, .. } => {
                packet.headers.bth.dest_qp
            }
            Self::EagerByReference { eager, .. } => eager.dest_qp,
        }
    }
}

pub(super) fn open_handshake(
    device: &Device,
    registry: &Registry,
    standby: &Standby,
    exports: &Arc<Exports>,
    uses_shm: bool,
) -> io::Result<Handshake> {
    let nonce = random::number();
    let me = PeerId { slot: registry.slot(), nonce };
    let handshake = Handshake::new(me, registry, standby.doorbell(), exports, uses_shm)?;
    let version = if uses_shm { peer_page::VERSION } else { 0 };
    registry.set_shm(version, nonce, device.index);
    Ok(handshake)
}

/// Devices that are met at once, unless their slots are alike: a thread that meets a stopped one holds
/// few others up.
pub(super) const MEETINGS: usize = 64;

/// Records taken from one link before others have their turn.
const RECORDS_MAX: usize = 32;

/// Steps in which no link brings anything, before sockets are looked at in every step.
const QUIET_STEPS: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::path::PortConfig;
    use crate::link::shm::link::Takes;
    use adverb_wire::{Mad, Marks};
    use std::net::Ipv6Addr;
    use std::thread;
    use std::time::Instant;

    fn open(path: PathChoice) -> Arc<Port> {
        let config = PortConfig { path: Some(path), exclusive: true };
        Port::open_with("soft_lo", &config).unwrap()
    }

    /// Goal: a program that posts is at work, though it does not look for completions meanwhile.
    #[test]
    fn a_burst_that_leaves_is_a_call() {
        let port = open(PathChoice::Udp);
        let here = crate::link::udp::endpoint::gid_of(Ipv6Addr::LOCALHOST.into());
        port.open_all().unwrap();
        let (calls, drives) = (port.calls(), port.drives());
        port.send_management(0, here, Marks::USUAL, &[0; Mad::DATAGRAM_LEN]).unwrap();
        assert_ne!(port.calls(), calls);
        assert_eq!(port.drives(), drives);
    }

    /// Goal: the same where requests leave by shared memory, or are carried out there, and in the midst of a long copy.
    #[test]
    fn batches_of_records_and_copies_are_calls() {
        let [here, there] = [PathChoice::Auto; 2].map(open);
        let shm_link = here.shm_link_to(id(&there)).unwrap();
        let (calls, drives) = (here.calls(), here.drives());
        assert_eq!(here.calls(), calls);
        drop(shm_link.tx_batch(1));
        assert_ne!(here.calls(), calls);
        let calls = here.calls();
        shm_link.note_act();
        assert_ne!(here.calls(), calls);
        let calls = here.calls();
        assert!(shm_link.begin_copy(4096).is_none());
        let copying = shm_link.begin_copy(1 << 20);
        assert_eq!(here.calls(), None);
        drop(copying);
        assert_eq!(here.calls(), calls);
        assert_eq!(here.drives(), drives);
    }

    /// Goal: a program is not taken to be at work as a neighbour says so, nor for a look whether there is room.
    #[test]
    fn what_a_neighbour_writes_is_no_call() {
        let [here, there] = [PathChoice::Auto; 2].map(open);
        let shm_link = here.shm_link_to(id(&there)).unwrap();
        let calls = here.calls();
        assert!(calls.is_some());
        let neighbour = there.shm_link_to(id(&here)).unwrap();
        neighbour.hold_accesses();
        assert!(!neighbour.is_vacant());
        assert_eq!(here.calls(), calls);
        assert!(shm_link.has_room());
        assert!(matches!(shm_link.takes(1), Takes::It));
        assert_eq!(here.calls(), calls);
    }

    /// Goal: a thread that is about to sleep does not spin while another one looks after the links.
    /// Method: the other one, here, takes its time; a thread that spins drives again and again meanwhile.
    #[test]
    fn a_thread_about_to_sleep_waits_for_the_one_that_looks() {
        let port = open(PathChoice::Auto);
        let channel = port.create_comp_channel().unwrap();
        let looks = port.receiver.lock();
        let before = port.drives();
        let sleeper = thread::spawn(move || channel.get(Some(Duration::from_millis(200))));
        while port.drives() == before && !sleeper.is_finished() {
            thread::yield_now();
        }
        assert!(port.drives() > before, "it slept without a look");
        thread::sleep(Duration::from_millis(50));
        let drives = port.drives() - before;
        drop(looks);
        assert!(sleeper.join().unwrap().unwrap().is_none());
        // One that spins looks thousands of times a millisecond; it wakes up to look a few times besides.
        assert!(drives < 500, "{drives} looks, all in vain");
    }

    fn id(port: &Port) -> PeerId {
        let slot = port.links.registry.slot();
        PeerId { slot, nonce: port.links.registry.shm_nonce(slot, peer_page::VERSION).unwrap() }
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < until, "it never came to this: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Goal: a neighbour that asks for link after link gets so many, and more once it has given some up.
    #[test]
    fn a_neighbour_has_few_links_at_once() {
        let [here, there] = [PathChoice::Auto; 2].map(open);
        let meet = || here.handshake.meet(id(&there), || false);
        let shm_links: Vec<_> = std::iter::from_fn(|| meet().ok()).take(1000).collect();
        assert_eq!((shm_links.len(), there.links.counters.refused_neighbours.get()), (8, 1));
        shm_links.iter().take(3).for_each(|shm_link| shm_link.cut());
        let more = std::iter::from_fn(|| meet().ok()).take(1000).count();
        assert_eq!((more, there.links.counters.refused_neighbours.get()), (3, 2));
    }

    /// Goal: a link into which nonsense was written is cut and counted, once, and another one takes its place.
    #[test]
    fn nonsense_in_a_link_cuts_it_and_is_counted_once() {
        let [here, there] = [PathChoice::Auto; 2].map(open);
        let shm_link = here.shm_link_to(id(&there)).unwrap();
        assert!(!shm_link.is_given_up());
        shm_link.spoil();
        eventually("it is cut", || {
            there.drive();
            shm_link.is_given_up()
        });
        for _ in 0..1000 {
            there.drive();
        }
        assert_eq!(there.links.counters.broken_links.get(), 1);
        assert!(!here.shm_link_to(id(&there)).unwrap().is_given_up());
    }

    /// Goal: a device that uses shared memory of another version, or is at another interface, is reached by
    /// packets, and a queue pair that wants shared memory alone is told.
    /// Method: it says of itself that it is so.
    #[test]
    fn memory_of_another_version_or_place_is_not_used() {
        let [here, strict, there] =
            [PathChoice::Auto, PathChoice::SharedMemory, PathChoice::Auto].map(open);
        let local = here.links.device.gids.iter().find(|entry| entry.index == 1).unwrap().gid;
        let qp = there.take_number().unwrap();
        let me = there.links.device.index;
        let nonce = there
            .links
            .registry
            .shm_nonce(there.links.registry.slot(), peer_page::VERSION)
            .unwrap();
        assert!(here.shm_link(local, local, qp).unwrap().is_some());
        for (version, interface) in
            [(peer_page::VERSION + 1, me), (peer_page::VERSION, me + 1), (0, me)]
        {
            there.links.registry.set_shm(version, nonce, interface);
            assert!(here.shm_link(local, local, qp).unwrap().is_none());
            let refused = strict.shm_link(local, local, qp).unwrap_err().to_string();
            assert!(refused.contains("asks for shared memory"), "{refused}");
        }
        there.links.registry.set_shm(peer_page::VERSION, nonce, me);
        assert!(strict.shm_link(local, local, qp).unwrap().is_some());
    }
}
