//! Progress of a port: steps that receive, and do what is due.
//!
//! Packets arrive under the receive lock, which a driving thread takes if it is free; they are
//! parsed in the receive buffer and copied once, to where they belong. What comes by way of shared-memory links is in
//! `neighbours.rs`, and which thread sleeps meanwhile in `standby.rs`.

use super::rx_sockets::MISLED_MAX;
use super::seats::{Seated, Table};
use super::{Arrival, Clock, Held, Listeners, Port, Receiver, RxSocket};
use crate::link::udp::capture::Capture;
use crate::link::udp::endpoint::{FlowCache, KnownSender, gid_of};
use crate::link::udp::steering::scope;
use crate::memory::region::Grips;
use crate::objects::completion::PollBuffer;
use crate::objects::host::{Came, Origin};
use crate::objects::notice::DeferredWakeups;
use crate::objects::qp::Directed;
use crate::registry::probe;
use crate::registry::relay::{Message, Passed};
use adverb_engine::{
    Acks, Driver, Dropped, Gid, Given, Identification, Look, Seats, Time, Waiting, admit,
    serve_ready, set_open_deadline,
};
use adverb_wire::{Flow, Packet, Qpn, Transport};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Port {
    /// Takes a step on behalf of the program: receives, and does what is due. True if something was
    /// there to do.
    #[inline]
    pub fn drive(&self) -> bool {
        self.drive_with(None)
    }

    /// The same for a poll that waits for completions with this poll buffer.
    #[inline]
    pub(crate) fn drive_for(&self, poll_buffer: &mut PollBuffer<'_>) {
        self.drive_with(Some(poll_buffer));
    }

    #[inline(always)]
    fn drive_with(&self, mut poll_buffer: Option<&mut PollBuffer<'_>>) -> bool {
        // Not a read-modify-write: the helper wants to know that it changes, not by how much.
        self.drives.store(self.drives().wrapping_add(1), Ordering::Relaxed);
        match self.receiver.try_lock() {
            Some(mut receiver) => {
                let (taken, done) = self.fast_poll(&mut receiver, &mut poll_buffer);
                let busy = taken | (!done && self.step(&mut receiver, Driver::Program));
                let quiet = receiver.quiet;
                drop(receiver);
                if quiet >= SPIN_STEPS && quiet.is_multiple_of(YIELD_STEPS) {
                    return busy | self.yield_and_step();
                }
                busy
            }
            None => false,
        }
    }

    /// The neighbour may be waiting for this very processor. What it sent meanwhile is taken in: programs look next for other
    /// news, such as the end of its connection, and destroy the queue pair together with completions that came before it.
    #[cold]
    fn yield_and_step(&self) -> bool {
        std::thread::yield_now();
        let receiver = self.receiver.try_lock();
        receiver.is_some_and(|mut receiver| self.step(&mut receiver, Driver::Program))
    }

    /// Takes in all that has arrived, and answers all that waits for an answer.
    ///
    /// Unlike [`Port::drive`], it waits for a thread that is driving: that one may have taken packets
    /// and not yet looked at them. A peer that goes on sending is not waited for.
    pub fn settle(&self) {
        self.settle_held(&mut self.receiver.lock(), SETTLING_STEPS_MAX);
    }

    /// The same for a caller that holds a lock which others wait for: what can have arrived before the call is taken in, but
    /// not all that a peer goes on sending. A thread that keeps the port is given up after a while: it may be this one, if
    /// a signal interrupted it, or wait for this one's lock.
    pub fn settle_briefly(&self) {
        let until = Instant::now() + KEPT_MAX;
        loop {
            if let Some(mut receiver) = self.receiver.try_lock() {
                return self.settle_held(&mut receiver, BRIEF_STEPS_MAX);
            }
            if Instant::now() >= until {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn settle_held(&self, receiver: &mut Receiver, steps_max: u32) {
        receiver.waiting.set_patient(false);
        for _ in 0..steps_max {
            if !self.step(receiver, Driver::Helper) {
                break;
            }
        }
    }

    /// Acknowledges what a queue pair has received, which it may have put off.
    pub(crate) fn pay_debt(&self, number: Qpn) {
        let mut clock = Clock::new();
        if let Some(mut seat) =
            (Table { port: self, clock: &mut clock, poll_buffer: None }).seat(number)
        {
            Waiting::pay(&mut seat);
        }
    }

    /// Takes a step that is not the program's; true if something was there to do, `None` if another thread takes one.
    /// `patient`: acknowledgements can be held for a while, as the program may answer what it finds in its memory.
    pub(crate) fn help(&self, patient: bool) -> Option<bool> {
        let mut receiver = self.receiver.try_lock()?;
        receiver.waiting.set_patient(patient);
        Some(self.step(&mut receiver, Driver::Helper))
    }

    fn step(&self, receiver: &mut Receiver, driver: Driver) -> bool {
        // Reading the clock is a good part of a step that finds nothing.
        receiver.steps += 1;
        let calls = receiver.shm_receivers.is_empty() && receiver.frames.is_empty();
        let rarely = if calls { CLOCK_STEPS } else { SHM_CLOCK_STEPS };
        let due = receiver.steps >= rarely || receiver.waiting.has_packets();
        let mut clock = Clock::new();
        let (mut busy, mut published) = (false, false);
        let mut held = None;
        if due || driver == Driver::Helper {
            receiver.steps = 0;
            if let Some(link) = self.xdp_link.get() {
                link.take_renewed(&mut receiver.frames);
            }
            clock.now();
            let look = if driver == Driver::Helper { Look::Everything } else { Look::Usual };
            let mut table = Table { port: self, clock: &mut clock, poll_buffer: None };
            published |= receiver.waiting.acknowledge(&mut table, look);
            let look = if receiver.waiting.is_patient() { Look::Usual } else { look };
            held = Some(look);
        } else if receiver.waiting.is_pressing() {
            let mut table = Table { port: self, clock: &mut clock, poll_buffer: None };
            published |= receiver.waiting.acknowledge(&mut table, Look::Usual);
        }
        // A doorbell may ring without a shared-memory link: that of one that was cut, or of one that was never made. It
        // is silenced, or its sleepers wake at once.
        if !receiver.shm_receivers.is_empty() || self.standby.doorbell().is_suspect() {
            let (received, completed) = self.receive_records(receiver, &mut clock, driver);
            busy |= received;
            published |= completed;
        }
        if !receiver.frames.is_empty() {
            let (received, completed) = self.receive_frames(receiver, &mut clock, driver);
            busy |= received;
            published |= completed;
        }
        if receiver.looks_at_sockets(driver) {
            let (received, completed) = self.receive(receiver, &mut clock, driver);
            // The helper looks anyway: what a stranger sends would wake it again and again.
            let news = self.links.registry.relayed() != receiver.relayed;
            if news || driver == Driver::Helper {
                busy |= self.receive_relayed(receiver, &mut clock, driver);
            }
            busy |= received;
            published |= completed;
        }
        if !receiver.parked.is_empty() {
            busy |= self.look_after_parked(receiver, &mut clock, driver);
        }
        // After receiving: a thread that was kept from its processor for long finds the answers that it
        // thinks late in its socket, and the messages of a peer that seems to wait.
        if let Some(now) = clock.read {
            // What has completed is looked at first, but not always: an acknowledgement costs a system call.
            let can_wait = published && !receiver.waiting.is_overdue(now);
            if let Some(look) = held.filter(|look| !can_wait || *look == Look::Everything) {
                let mut table = Table { port: self, clock: &mut clock, poll_buffer: None };
                receiver.waiting.acknowledge_held(&mut table, now, look);
            }
            set_open_deadline(&mut Table { port: self, clock: &mut clock, poll_buffer: None });
            while let Some(number) = self.schedule.due(now) {
                self.on_timer(number, now);
            }
        }
        if self.schedule.is_ready() {
            // A program that has completions to look at often posts more at once, and then all of
            // it leaves together; but that is waited for only once.
            receiver.postponed = published && !receiver.postponed && driver == Driver::Program;
            // A shared-memory link may be full for long, if its other end is stopped: that is no reason to hurry.
            clock.now();
            busy |= receiver.postponed
                || serve_ready(&mut Table { port: self, clock: &mut clock, poll_buffer: None });
        }
        busy
    }

    /// Takes what the sockets have; says whether there was something, and whether it completed work.
    #[inline(never)]
    fn receive(&self, receiver: &mut Receiver, clock: &mut Clock, driver: Driver) -> (bool, bool) {
        let Receiver { rx_sockets, buffer, waiting, parked, shm_receivers, departed, .. } =
            receiver;
        let (mut busy, mut published) = (false, false);
        for rx_socket in rx_sockets {
            for _ in 0..BURSTS_MAX {
                let Some(received) = rx_socket.recv(buffer) else {
                    break;
                };
                let RxSocket { endpoint, flows, marks, group, .. } = &mut *rx_socket;
                busy = true;
                if received.len == 0 {
                    self.links.counters.malformed.add(1); // It has no pieces to go through below.
                    continue;
                }
                if received.truncated {
                    self.links.counters.truncated.add(1);
                    continue;
                }
                let passed = Passed {
                    source: received.source,
                    target: endpoint.addr.ip(),
                    marks: *marks,
                    segment: received.segment,
                    bytes: buffer.get(..received.len).unwrap_or_default(),
                };
                let now = clock.now();
                let group =
                    group.as_ref().map(|group| Listeners { group, shm_receivers, departed });
                let arrival =
                    Arrival { passed, endpoint, group, now, driver, relayed: false, id: None };
                let completed = self.take(&arrival, flows, waiting, parked) > 0;
                published |= completed;
                // The program has something to look at: completions, or a little in its memory.
                let little = received.len <= LITTLE_BYTES;
                if driver == Driver::Program && (completed || little) {
                    break;
                }
            }
        }
        (busy, published)
    }

    /// Takes what the relay socket has.
    #[inline(never)]
    fn receive_relayed(&self, receiver: &mut Receiver, clock: &mut Clock, driver: Driver) -> bool {
        let relayed = self.links.registry.relayed();
        if self
            .stats_page
            .as_ref()
            .is_some_and(|stats_page| !stats_page.has_answered(self.links.registry.asked()))
        {
            self.helper.notice(Time::ZERO);
        }
        let mut busy = false;
        let Receiver { rx_sockets, buffer, waiting, parked, relayed: seen, .. } = receiver;
        for _ in 0..RELAYED_MAX {
            let Ok((from, message)) = self.links.relay.take(buffer) else {
                *seen = relayed;
                return busy;
            };
            busy = true;
            let passed = match message.filter(|_| self.links.relay.is_here(from)) {
                None => continue,
                Some(Message::ControlMessage(control, passed)) => {
                    self.on_control_message(from, &control, passed, rx_sockets, clock.now());
                    continue;
                }
                Some(Message::Passed(passed)) => passed,
            };
            let found = RxSocket::at(rx_sockets, passed.target);
            if let Some(RxSocket { endpoint, flows, .. }) = found {
                self.links.counters.relayed.add(1);
                let now = clock.now();
                let arrival =
                    Arrival { passed, endpoint, group: None, now, driver, relayed: true, id: None };
                self.take(&arrival, flows, waiting, parked);
            } else {
                self.on_stray_management(&passed);
            }
        }
        busy
    }

    /// Takes what arrived at once from one source; says how many completions that published.
    pub(super) fn take(
        &self,
        arrival: &Arrival<'_>,
        flows: &mut FlowCache,
        waiting: &mut Waiting,
        parked: &mut Vec<Qpn>,
    ) -> u32 {
        let _deferred = DeferredWakeups::begin();
        let Arrival { passed, endpoint, now, .. } = arrival;
        let Some(KnownSender { gid, flow, .. }) = flows.get(&passed.source, endpoint) else {
            return 0;
        };
        let from = Origin { source: *gid, flow, marks: passed.marks };
        let mut published = 0;
        let mut current: Option<Held<'_>> = None;
        let mut grips = Grips::new(&self.links.regions);
        let step = passed.segment.unwrap_or(passed.bytes.len()).max(1);
        for (index, datagram) in passed.bytes.chunks(step).enumerate() {
            let guess = arrival.id.or(u16::try_from(index).ok()).unwrap_or(0);
            if let Some(capture) = endpoint.capture.as_deref() {
                grips.let_go(); // The file may be a pipe that nothing reads.
                record(capture, arrival, flow, guess, datagram);
            }
            let parsed = Packet::parse(datagram);
            let id = arrival.id.map_or(Identification::Guessed(guess), Identification::Known);
            let packet = match admit(&parsed, datagram, flow, id) {
                Ok(packet) => packet,
                Err(dropped) => {
                    self.on_dropped(dropped, datagram, arrival);
                    continue;
                }
            };
            let number = packet.headers.bth.dest_qp;
            let len = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
            let came = Came { from: &from, len };
            if let Some(group) = &arrival.group {
                published += self.give_to_all(group, packet, came, arrival, waiting);
                continue;
            }
            if current.as_ref().is_none_or(|held| held.number != number) {
                if let Some(held) = current.take() {
                    grips.let_go();
                    published += self.release(held, arrival, waiting);
                }
                let Some(guard) = self.table.lock(number) else {
                    self.on_absent(packet, datagram, arrival);
                    continue;
                };
                current = Some(Held { number, guard, published: 0 });
            }
            self.links.counters.rcvd_pkts.add_alone(1);
            if let Some(held) = current.as_mut()
                && let Some(inner) = held.guard.as_mut().filter(|inner| !inner.has_shm_link())
            {
                if packet.headers.xrceth.is_none() {
                    let grips = Some(&mut grips);
                    held.published += inner.on_packet(packet, came, *now, &self.links, grips);
                } else {
                    grips.let_go();
                    self.give_to_shared_queue(held, packet, came, (datagram, arrival), parked);
                }
            }
        }
        grips.let_go();
        if let Some(held) = current {
            published += self.release(held, arrival, waiting);
        }
        published
    }

    /// Gives a packet for a shared receive queue of an XRC domain to its target, or to where that lives.
    #[cold]
    #[inline(never)]
    fn give_to_shared_queue(
        &self,
        held: &mut Held<'_>,
        packet: &Packet<'_>,
        came: Came<'_>,
        (datagram, arrival): (&[u8], &Arrival<'_>),
        parked: &mut Vec<Qpn>,
    ) {
        let Some(inner) = held.guard.as_mut() else {
            return;
        };
        let one = Passed { segment: None, bytes: datagram, ..arrival.passed };
        match inner.direct(packet, came, &one, arrival.now, &self.links) {
            Directed::Served(count) => held.published += count,
            Directed::Elsewhere => {}
            Directed::Parked => self.note_parked(held.number, arrival.now, parked),
        }
    }

    /// A datagram was not let in.
    #[cold]
    #[inline(never)]
    fn on_dropped(&self, dropped: Dropped, datagram: &[u8], arrival: &Arrival<'_>) {
        match dropped {
            Dropped::Corrupt => self.links.counters.icrc_errors.add(1),
            Dropped::Malformed(_) => self.on_malformed(datagram, arrival),
        }
    }

    /// A packet is for no queue pair of this port.
    #[cold]
    #[inline(never)]
    fn on_absent(&self, packet: &Packet<'_>, datagram: &[u8], arrival: &Arrival<'_>) {
        match packet.headers.bth.dest_qp {
            Qpn::GSI => {
                self.on_management(packet, datagram, &arrival.passed, arrival.relayed);
            }
            number => self.pass_on(number, datagram, arrival),
        }
    }

    /// Gives a copy to each queue pair of a group; says how many completions that published.
    #[inline(never)]
    fn give_to_all(
        &self,
        listeners: &Listeners<'_>,
        packet: &Packet<'_>,
        came: Came<'_>,
        arrival: &Arrival<'_>,
        waiting: &mut Waiting,
    ) -> u32 {
        let bth = &packet.headers.bth;
        if bth.dest_qp != Qpn::MULTICAST || bth.opcode.transport() != Transport::Ud {
            self.links.counters.bad_multicast.add(1);
            return 0;
        }
        let sender = packet.headers.deth.map(|deth| deth.src_qp);
        if sender
            .is_some_and(|sender| self.has_come_by_shm_link(listeners, sender, came.from.source))
        {
            return 0;
        }
        self.links.counters.rcvd_pkts.add_alone(1);
        let mut completions = 0;
        for number in listeners.group.members.iter().copied() {
            let Some(mut guard) = self.table.lock(number) else {
                continue;
            };
            let own = sender == Some(number) && self.has_address(came.from.source);
            if let Some(inner) = guard.as_mut().filter(|inner| !own || inner.hears_itself()) {
                let published = inner.on_packet(packet, came, arrival.now, &self.links, None);
                completions += self.release(Held { number, guard, published }, arrival, waiting);
            }
        }
        completions
    }

    /// An address is one of this port's.
    fn has_address(&self, gid: Gid) -> bool {
        self.links.is_at(gid)
    }

    /// What is no packet may be a probe; it comes from the address that it is sent to.
    fn on_malformed(&self, datagram: &[u8], arrival: &Arrival<'_>) {
        let own = arrival.passed.source.ip() == arrival.endpoint.addr.ip();
        let registry = &self.links.registry;
        if !own || arrival.relayed {
            self.links.counters.malformed.add(1);
        } else if let Some((place, nonce)) = probe::parse(datagram) {
            registry.answer(place, nonce);
        } else if let Some(question) = probe::parse_question(datagram) {
            let addr = arrival.endpoint.addr;
            registry.answer_for(gid_of(addr.ip()).0, scope(addr), question);
        } else {
            self.links.counters.malformed.add(1);
        }
    }

    /// Lets a queue pair answer what it was given, and lets it go.
    fn release(&self, mut held: Held<'_>, arrival: &Arrival<'_>, waiting: &mut Waiting) -> u32 {
        let Some(inner) = held.guard.as_deref_mut() else {
            return 0;
        };
        let (number, mut clock) = (held.number, Clock::at(arrival.now));
        let mut seat = Seated { port: self, number, inner, clock: &mut clock, poll_buffer: None };
        let given = Given { published: held.published, only_served: false };
        held.published + waiting.release(&mut seat, given, arrival.driver)
    }

    /// A packet for a queue pair that is not ours: passed on to whose it is.
    fn pass_on(&self, number: Qpn, datagram: &[u8], arrival: &Arrival<'_>) {
        let owner =
            self.links.registry.owner(number).filter(|owner| *owner != self.links.registry.slot());
        let port = owner.and_then(|owner| Some((owner, self.links.registry.relay_port(owner)?)));
        // What was passed on once and is still not ours has lost its owner meanwhile.
        let Some((owner, port)) = port.filter(|_| !arrival.relayed) else {
            self.links.counters.unknown_qp.add(1);
            return;
        };
        let passed = Passed { segment: None, bytes: datagram, ..arrival.passed };
        if self.links.relay.pass(port, passed).is_err() {
            self.links.counters.send_dropped.add(1);
            return;
        }
        self.links.counters.forwarded.add(1);
        self.misled.fetch_add(1, Ordering::Relaxed);
        self.links.registry.note_relayed(owner);
    }

    #[inline(never)]
    fn on_timer(&self, number: Qpn, now: Time) {
        let _deferred = DeferredWakeups::begin();
        let Some(mut guard) = self.table.lock(number) else {
            return self.schedule.with(|schedule| schedule.forget(number)); // Armed as it went.
        };
        if guard.as_mut().is_some_and(|inner| inner.proxy_of().is_some()) {
            return self.on_proxy_timer(number, guard, now);
        }
        if let Some(inner) = guard.as_mut() {
            if let Some(aftermath) = inner.pacing.on_due(&inner.engine, now) {
                return self.follow_up(number, inner, aftermath);
            }
            let late = inner.on_timer(now, &self.links);
            if late && inner.can_be_misled() {
                // Its packets, or our answers, may go to a process that does not run.
                self.misled.fetch_add(MISLED_MAX, Ordering::Relaxed);
            }
            let aftermath = inner.transmit(now, Acks::Now, &self.links);
            self.follow_up(number, inner, aftermath);
        }
    }
}

/// Writes a datagram to the capture file.
#[cold]
#[inline(never)]
fn record(capture: &Capture, arrival: &Arrival<'_>, flow: &Flow, guess: u16, datagram: &[u8]) {
    if !probe::is_own(datagram) {
        let Passed { source, marks, .. } = arrival.passed;
        let id = flow.verify(datagram, guess).unwrap_or(guess);
        capture.packet((source, arrival.endpoint.addr), id, marks, datagram);
    }
}

/// Steps that find nothing, between looks at the clock.
const CLOCK_STEPS: u32 = 8;
/// The same, where there are shared-memory links or frames: a look at them is short.
pub(super) const SHM_CLOCK_STEPS: u32 = 64;
/// Steps in which no shared-memory link and no frame brings anything, before others are let to the processor, and again after so
/// many more: some 50 µs, and some 10.
const SPIN_STEPS: u32 = 2048;
const YIELD_STEPS: u32 = 512;
/// Bursts taken from one socket before others have their turn.
const BURSTS_MAX: usize = 16;
/// Messages of the relay socket taken at once: any process on this host can send there, without end.
const RELAYED_MAX: usize = 16;
/// Steps after which a peer that goes on sending is not waited for.
const SETTLING_STEPS_MAX: u32 = 10_000;
/// The same for a caller that others wait for: those of a ring that is full of the shortest records, 4,096 of them, in which
/// 2,048 bursts are taken from each socket.
const BRIEF_STEPS_MAX: u32 = 128;
/// How long such a caller waits for a thread that drives: one that has lost its processor has it again by then, also where
/// a dozen others want to run (a slice of the scheduler takes 3 ms).
const KEPT_MAX: Duration = Duration::from_millis(50);
/// What arrives in so few bytes at once is looked at before more is taken: a program may poll for it.
pub(super) const LITTLE_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::path::{PathChoice, PortConfig};
    use crate::progress::Port;
    use crate::registry::relay::Relay;
    use adverb_sys::poll;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn open() -> Arc<Port> {
        let config = PortConfig { path: Some(PathChoice::Udp), exclusive: true };
        let port = Port::open_with("soft_lo", &config).unwrap();
        port.endpoint(1).unwrap();
        port
    }

    fn message() -> Passed<'static> {
        let source = SocketAddr::new(HERE, adverb_wire::ROCE_PORT);
        Passed { source, target: HERE, marks: Default::default(), segment: None, bytes: &[0; 64] }
    }

    /// Has the helper's look at the relay socket, `times` times, until `port` has counted so many messages.
    fn take_relayed(port: &Port, times: usize, expected: u64) -> u64 {
        for _ in 0..times {
            let mut receiver = port.receiver.lock();
            port.receive_relayed(&mut receiver, &mut Clock::new(), Driver::Helper);
            if port.links.counters.relayed.get() == expected {
                break;
            }
        }
        port.links.counters.relayed.get()
    }

    #[test]
    fn frames_of_an_interface_that_has_none_are_refused_with_the_reason() {
        let config = PortConfig { path: Some(PathChoice::Xdp), exclusive: true };
        let error = Port::open_with("soft_lo", &config).unwrap_err().to_string();
        assert!(error.contains("ADVERB_PATH=xdp") && error.contains("lo has no"), "{error}");
    }

    /// Goal: what comes from a device is a packet, also if that has ended meanwhile; the same message from a
    /// stranger is not.
    #[test]
    fn only_devices_of_this_registry_can_pass_packets_on() {
        let [port, other] = [(); 2].map(|()| open());
        let to = port.links.relay.port();
        other.links.relay.pass(to, message()).unwrap();
        drop(other);
        assert_eq!(take_relayed(&port, 1000, 1), 1);
        let secret = port.links.registry.secret() ^ 1;
        let stranger = Relay::open(secret, std::iter::empty()).unwrap();
        stranger.pass(to, message()).unwrap();
        assert_eq!(take_relayed(&port, 100, 2), 1);
    }

    /// Goal: the helper can sleep again when the doorbell has rung and there is no shared-memory link that it could
    /// have rung for.
    #[test]
    fn a_doorbell_that_rings_without_a_link_is_silenced() {
        let config = PortConfig { path: Some(PathChoice::SharedMemory), exclusive: true };
        let port = Port::open_with("soft_lo", &config).unwrap();
        let doorbell = Arc::clone(port.standby.doorbell());
        doorbell.fd().signal().unwrap();
        let rings =
            || poll::readable(doorbell.fd(), std::iter::empty(), Some(Duration::ZERO)).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while rings() {
            assert!(Instant::now() < until, "it rings for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Goal: a thread that has the port for good, as one in a signal handler that ends the program, keeps no caller with a
    /// lock of its own for ever; and what has arrived is taken in once it is free.
    #[test]
    fn a_port_that_is_kept_is_waited_for_briefly() {
        let [port, other] = [(); 2].map(|()| open());
        let relayed = || port.links.counters.relayed.get();
        let receiver = port.receiver.lock();
        let before = relayed();
        other.links.relay.pass(port.links.relay.port(), message()).unwrap();
        port.settle_briefly();
        assert_eq!(relayed(), before);
        drop(receiver);
        port.settle_briefly();
        assert_eq!(relayed(), before + 1);
    }

    /// Goal: a peer that goes on sending is not waited for longer than the steps that are given.
    #[test]
    fn a_port_settles_in_so_many_steps_and_no_more() {
        let [port, other] = [(); 2].map(|()| open());
        let mut receiver = port.receiver.lock();
        (0..3 * RELAYED_MAX)
            .for_each(|_| other.links.relay.pass(port.links.relay.port(), message()).unwrap());
        let before = port.links.counters.relayed.get();
        port.settle_held(&mut receiver, 2);
        assert_eq!(
            port.links.counters.relayed.get() - before,
            2 * u64::try_from(RELAYED_MAX).unwrap()
        );
    }

    /// Goal: a stranger that sends to the relay socket without end does not keep a step from its other work.
    /// Method: more messages than a step takes are left where they are.
    #[test]
    fn a_step_takes_so_many_relayed_messages_and_no_more() {
        let [port, other] = [(); 2].map(|()| open());
        let most = u64::try_from(RELAYED_MAX).unwrap();
        let mut receiver = port.receiver.lock(); // The helper takes none of them.
        (0..3 * RELAYED_MAX)
            .for_each(|_| other.links.relay.pass(port.links.relay.port(), message()).unwrap());
        while port.links.counters.relayed.get() < 3 * most {
            let before = port.links.counters.relayed.get();
            port.receive_relayed(&mut receiver, &mut Clock::new(), Driver::Helper);
            let now = port.links.counters.relayed.get();
            assert!(now - before <= most, "{now} after {before}");
        }
    }
}
