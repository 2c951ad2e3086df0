//! The queue pair: holds the roles, and carries verdicts from one to the next.
//!
//! Everything that happens to a queue pair comes in through one of five doors: work is posted, a
//! packet arrives, the clock runs out, the host has room for packets, or the owner modifies it
//! (`qp/modify.rs`). Nothing leaves except through the [`Host`] lent for the call.

mod eager;
mod handover;
mod modify;

pub use eager::{EagerSends, Origin, Planned};

use crate::attributes::{Gid, Settings};
use crate::completer::{Completer, Sent, Verdict};
use crate::counters::QpCounters;
use crate::early::{EarlyBudget, Hole};
use crate::host::{Host, Payload, ReceiveDone};
use crate::link::Capabilities;
use crate::marked::Marked;
use crate::packetizer::Path;
use crate::requester::{Emitted, Requester};
use crate::responder::Served;
use crate::roles::{Receiver, Sender};
use crate::send_queue::{Entry, SendQueue};
use crate::status::{Processing, QpEvent, QpState, WcOpcode, WcStatus};
use crate::time::Time;
use crate::transport::{QpType, allowed};
use crate::work::{Request, RequestError, To};
use adverb_wire::{
    Aeth, Extension, Msn, Nak, Operation, Packet, PathMtu, Pkey, Qpn, Syndrome, Transport,
};

/// What a queue pair is made with. `struct ibv_qp_init_attr`, as far as the transport knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpOptions {
    /// Its number.
    pub number: Qpn,
    /// Its type.
    pub kind: QpType,
    /// Requests that the send queue holds.
    pub send_capacity: u32,
    /// Receives come from a shared queue: they are not flushed with this queue pair.
    pub shared_receives: bool,
    /// The longest payload of the port's packets: that of a datagram.
    pub port_mtu: PathMtu,
}

impl QpOptions {
    /// A reliable connection with receives of its own.
    pub const fn rc(number: Qpn, send_capacity: u32) -> Self {
        Self::of(QpType::Rc, number, send_capacity)
    }

    /// A queue pair of this type with receives of its own, on a port with an MTU of 1024 bytes.
    pub const fn of(kind: QpType, number: Qpn, send_capacity: u32) -> Self {
        let port_mtu = PathMtu::B1024;
        Self { number, kind, send_capacity, shared_receives: false, port_mtu }
    }
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    options: QpOptions,
    state: QpState,
    settings: Settings,
    peer: Option<Peer>,
    queue: SendQueue,
    sender: Option<Sender>,
    progress: Progress,
    /// Requests go before responses the next time, so that neither starves the other.
    requests_first: bool,
    /// What the link to the peer can do.
    link: Capabilities,
    /// Packets of the peer's come marked, and it is to be told.
    marks: Marked,
    /// Bytes of requests that come early.
    budget: EarlyBudget,
    counters: QpCounters,
}

/// What exists once packets can be understood.
#[derive(Clone, Debug)]
struct Peer {
    gid: Gid,
    path: Path,
    receiver: Option<Receiver>,
}

/// What is to be reported of a state, once in each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    /// Nothing any more.
    Settled,
    /// In RTR: the first packet.
    AwaitsPacket,
    /// In SQD: the end of the requests that have begun.
    Drains,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(options: QpOptions) -> Self {
        let capacity = if options.kind.sends() { options.send_capacity } else { 0 };
        Self {
            options,
            state: QpState::Reset,
            settings: Settings::new(options.port_mtu),
            peer: None,
            queue: SendQueue::with_capacity(capacity),
            sender: None,
            progress: Progress::Settled,
            requests_first: false,
            link: Capabilities::PACKETS,
            marks: Marked::default(),
            budget: EarlyBudget::default(),
            counters: QpCounters::default(),
        }
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.options.number
    }

    /// Its type.
    pub fn kind(&self) -> QpType {
        self.options.kind
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// What it is set to.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A peer on this host may act on memory by itself: its packets would be taken, and the first
    /// one was, so that no waiter is left without notice.
    pub fn is_open(&self) -> bool {
        self.state.receives() && self.progress != Progress::AwaitsPacket
    }

    /// In SQD: requests that had begun have not all ended. `sq_draining`.
    pub fn is_draining(&self) -> bool {
        self.progress == Progress::Drains
    }

    /// What it has counted.
    pub fn counters(&self) -> QpCounters {
        self.counters
    }

    /// Requests that were posted and have not ended.
    pub fn outstanding(&self) -> u64 {
        self.queue.len()
    }

    /// Index that the next request will have.
    pub fn next_index(&self) -> u64 {
        self.queue.tail()
    }

    /// The peer's address and queue pair, once they are known.
    pub fn remote(&self) -> Option<(Gid, Qpn)> {
        let peer = self.peer.as_ref().filter(|_| self.kind().is_connected());
        peer.map(|peer| (peer.gid, peer.path.remote))
    }

    /// Queues one request and returns its index; [`Qp::transmit`] sends it, or flushes it.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; nothing was queued then.
    #[inline]
    pub fn post(&mut self, request: Request) -> Result<u64, RequestError> {
        if !self.state.behaviour().post_send {
            return Err(RequestError::State(self.state));
        }
        self.check(&request)?;
        self.queue.push(Entry::new(request))
    }

    /// Says whether a request makes sense, whatever the state is.
    ///
    /// # Errors
    ///
    /// [`RequestError`].
    #[inline]
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        let (kind, operation) = (self.kind(), request.kind.operation());
        if !allowed(kind, operation) {
            return Err(RequestError::Operation { kind, operation });
        }
        let local = request.kind.is_local();
        let (addressed, longest) = match (kind, request.to) {
            (QpType::Ud, To::Datagram(_)) => (true, self.options.port_mtu.bytes()),
            (QpType::XrcInitiator, To::SharedQueue(_)) => (true, Request::LEN_MAX),
            (QpType::XrcInitiator, To::Peer) => (local, Request::LEN_MAX),
            (QpType::Rc | QpType::Uc, To::Peer) => (true, Request::LEN_MAX),
            (_, To::Peer | To::Datagram(_) | To::SharedQueue(_)) => (false, 0),
        };
        if !addressed {
            return Err(RequestError::Address { kind });
        }
        let (len, fixed) = (request.len, request.kind.fixed_len());
        if len > longest || fixed.is_some_and(|fixed| fixed != len) {
            return Err(RequestError::Length { len, allowed: fixed.unwrap_or(longest) });
        }
        Ok(())
    }

    /// Takes one packet that has passed [`crate::admit`] and is for this queue pair: addressed to
    /// it, or to a multicast group that it has joined.
    ///
    /// `source` is the address it came from. Answers are owed, not emitted: call
    /// [`Qp::transmit`] afterwards, or soon.
    pub fn on_packet(&mut self, packet: &Packet<'_>, source: Gid, now: Time, host: &mut impl Host) {
        if self.admit(packet, source, host) {
            self.on_admitted(packet, now, host);
        }
    }

    /// Takes a packet that [`Qp::admit`] has let in.
    #[inline]
    pub fn on_admitted(&mut self, packet: &Packet<'_>, now: Time, host: &mut impl Host) {
        let receiver = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut());
        if !packet.headers.bth.opcode.operation().is_request() {
            self.on_response(packet, now, host);
        } else if let Some(receiver) = receiver {
            let served = receiver.on_request(packet, &mut self.counters, host);
            self.settle(served, host);
        } else {
            self.counters.dropped_pkts += 1;
        }
    }

    /// Says whether a packet may be looked at: it is the peer's, and the state allows it. Otherwise it
    /// is counted and of no use.
    #[inline]
    pub fn admit(&mut self, packet: &Packet<'_>, source: Gid, host: &mut impl Host) -> bool {
        let bth = &packet.headers.bth;
        let kind = self.options.kind;
        let Some(peer) = self.peer.as_mut().filter(|_| self.state.receives()) else {
            self.counters.dropped_pkts += 1;
            return false;
        };
        let same_partition = same_partition(bth.pkey, peer.path.pkey);
        let transport = bth.opcode.transport();
        let known = (transport == kind.transport()
            || (transport == Transport::Cnp && kind.is_reliable()))
            && (source == peer.gid || !kind.is_connected());
        if !known || !same_partition {
            self.counters.bad_pkey += u64::from(!same_partition);
            self.counters.dropped_pkts += 1;
            return false;
        }
        self.counters.rcvd_pkts += 1;
        if self.progress == Progress::AwaitsPacket {
            self.progress = Progress::Settled;
            host.event(QpEvent::CommEst);
        }
        true
    }

    /// Does what serving a request has led to.
    fn settle(&mut self, served: Served, host: &mut impl Host) {
        if let Served::Fatal(event) = served {
            if let Some(event) = event {
                host.event(event);
            }
            self.enter_err(host);
        }
    }

    /// The roles of a reliable requester, if this is one.
    #[inline]
    fn reliable(&mut self) -> Option<(&mut Requester, &mut Completer)> {
        match self.sender.as_mut()? {
            Sender::Reliable { requester, completer } => Some((requester, completer)),
            Sender::Unreliable(_) => None,
        }
    }

    /// Packets that it may have under way to its peer, if it has found that out: for [`crate::Paths`].
    pub fn window(&self) -> Option<u32> {
        match self.sender.as_ref()? {
            Sender::Reliable { requester, .. } => requester.window(),
            Sender::Unreliable(_) => None,
        }
    }

    fn on_response(&mut self, packet: &Packet<'_>, now: Time, host: &mut impl Host) {
        let Some(Sender::Reliable { requester, completer }) = self.sender.as_mut() else {
            self.counters.dropped_pkts += 1;
            return;
        };
        let before = completer.unacked();
        let bth = &packet.headers.bth;
        if bth.opcode.transport() == Transport::Cnp {
            self.counters.rp_cnp_handled += 1;
            requester.on_marks(before);
            return;
        }
        let sent = Sent {
            unacked_psn: requester.psn(before),
            top: requester.top(),
            paused: requester.paused_until().is_some(),
            now,
        };
        let operation = bth.opcode.operation();
        let queue = &mut self.queue;
        let head = queue.head();
        if bth.keeps_early && !requester.knows_of_keeping() {
            requester.learn_of_keeping();
            if requester.knows_of_keeping() {
                completer.learn_of_keeping();
            }
        }
        let verdict = match packet.headers.extension {
            Extension::Aeth(Aeth {
                syndrome: syndrome @ Syndrome::Nak(Nak::SequenceError),
                msn,
            }) if bth.keeps_early => {
                self.counters.note_syndrome(syndrome);
                completer.on_report(bth.psn, Hole::from_msn(msn), sent, queue, host)
            }
            Extension::Aeth(aeth) if operation == Operation::Acknowledge => {
                self.counters.note_syndrome(aeth.syndrome);
                completer.on_ack(bth.psn, aeth.syndrome, sent, queue, host)
            }
            Extension::AtomicAck(_, value) => {
                completer.on_data(bth.psn, operation, &value.to_ne_bytes(), sent, queue, host)
            }
            Extension::Aeth(_) | Extension::None => {
                completer.on_data(bth.psn, operation, packet.payload, sent, queue, host)
            }
            Extension::Reth(_)
            | Extension::RethImm(..)
            | Extension::Imm(_)
            | Extension::Invalidate(_)
            | Extension::Atomic(_)
            | Extension::Flush(..)
            | Extension::Cnp => Verdict::Ignore,
        };
        self.follow(before, head, verdict, now, host);
    }

    /// Does what an answer has led to. Before it, `before` was the oldest sequence number awaited and
    /// `head` the oldest request.
    #[inline]
    fn follow(
        &mut self,
        before: u64,
        head: u64,
        verdict: Verdict,
        now: Time,
        host: &mut impl Host,
    ) {
        let Some(Sender::Reliable { requester, completer }) = self.sender.as_mut() else {
            return;
        };
        self.counters.note_sends(self.queue.head() - head);
        let unacked = completer.unacked();
        if unacked > before {
            requester.on_progress(unacked, unacked - before, &self.queue);
            if let Some((nanos, base_ns)) = completer.on_progress(now) {
                requester.on_round_trip(nanos, base_ns, unacked);
            }
            completer.arm(requester.next(), now);
        }
        self.obey(verdict, now, host);
        self.fail_if_broken(host);
        self.note_drained(host);
    }

    /// Carries a verdict of the completer to the requester.
    #[inline]
    fn obey(&mut self, verdict: Verdict, now: Time, host: &mut impl Host) {
        if !matches!(verdict, Verdict::Ignore | Verdict::Progress) {
            self.obey_refusal(verdict, now, host);
        }
    }

    #[cold]
    fn obey_refusal(&mut self, verdict: Verdict, now: Time, host: &mut impl Host) {
        let Some(Sender::Reliable { requester, completer }) = self.sender.as_mut() else {
            return;
        };
        match verdict {
            Verdict::Ignore | Verdict::Progress => {}
            Verdict::Keeps(packets) => requester.on_kept(packets),
            Verdict::Fill(missing) => {
                if requester.fill(missing, now, &self.queue) {
                    completer.on_loss();
                    requester.on_losses(missing.to - missing.from);
                    completer.on_fill(missing, now);
                } else {
                    completer.await_fill(now);
                }
            }
            Verdict::Resend { from } => {
                self.counters.completer_retry_err += 1;
                completer.on_loss();
                requester.on_loss(completer.unacked());
                requester.rewind(from, &self.queue);
                match requester.paused_until() {
                    Some(_) => completer.disarm(), // Nothing is sent, so nothing is late.
                    None => completer.arm(requester.top(), now),
                }
            }
            Verdict::Pause { from, until } => {
                requester.rewind(from, &self.queue);
                requester.pause(until);
            }
            Verdict::Probe { from, to } => {
                self.counters.probes += 1;
                requester.probe(from, to, now, &self.queue);
            }
            Verdict::Suspect { to } => completer.suspect(to, now),
            Verdict::Fail(status) => self.fail_oldest(status, host),
        }
    }

    /// Ends the oldest request with this status, and the queue pair's life with it.
    fn fail_oldest(&mut self, status: WcStatus, host: &mut impl Host) {
        self.counters.note_failure(status);
        self.queue.retire(status, host);
        self.fail(host);
    }

    /// Ends the request that could not be emitted, once all before it have ended.
    fn fail_if_broken(&mut self, host: &mut impl Host) {
        let broken = self.reliable().and_then(|(requester, _)| requester.broken());
        if let Some((index, status)) = broken.filter(|&(index, _)| index == self.queue.head()) {
            debug_assert!(index < self.queue.tail(), "what is broken was posted");
            self.fail_oldest(status, host);
        }
    }

    /// Emits responses, requests and, if `acks`, acknowledgements, as far as the host has room.
    ///
    /// True if there is more to emit than there was room for. An acknowledgement that is held back
    /// (`acks` is false) goes out with a later call and then covers all that came in between.
    pub fn transmit(&mut self, now: Time, acks: bool, host: &mut impl Host) -> bool {
        let mut more = false;
        if self.requests_first {
            more |= self.transmit_requests(now, host);
        }
        let receiver = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut());
        if let Some(responder) = receiver.and_then(Receiver::debtor_mut) {
            let served = responder.transmit_data(&mut self.counters, host);
            self.settle(served, host);
        }
        if !self.requests_first {
            more |= self.transmit_requests(now, host);
        }
        self.requests_first = !self.requests_first;
        if self.marks.is_owed() {
            self.transmit_notification(host);
        }
        let receiver = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut());
        if let Some(responder) = receiver.and_then(Receiver::debtor_mut) {
            if acks {
                responder.transmit_ack(host);
            }
            more |= responder.owes_data() || (acks && responder.owes_ack());
        }
        self.flush(host);
        more
    }

    /// A packet of the peer's has come that a switch has marked as having met congestion (RFC 3168 §5). A reliable
    /// peer is told with the next call of [`Qp::transmit`], but not too often, and not of marks of what it tells.
    ///
    /// Of the data of READs this side's window decides how much comes, and so it heeds their marks itself.
    pub fn on_mark(&mut self, packet: &Packet<'_>, now: Time) {
        let operation = packet.headers.bth.opcode.operation();
        if !self.kind().is_reliable() || !self.state.receives() || operation == Operation::Cnp {
            return;
        }
        self.marks.on_mark(now);
        let sends = self.sends();
        if let Some((requester, completer)) = self.reliable().filter(|_| sends)
            && operation.is_read_response()
        {
            requester.on_marks(completer.unacked());
        }
    }

    #[cold]
    fn transmit_notification(&mut self, host: &mut impl Host) {
        let Some(peer) = self.peer.as_ref().filter(|_| host.room()) else {
            return;
        };
        self.marks.on_sent();
        if let Some(headers) = peer.path.notification() {
            self.counters.np_cnp_sent += 1;
            let _ = host.emit(&headers, Payload::None, None); // Cannot fail: there is room, and no payload.
        }
    }

    /// Emits requests, if there are any; true if there is more to emit than there was room for.
    #[inline]
    fn transmit_requests(&mut self, now: Time, host: &mut impl Host) -> bool {
        self.queue.len() > 0 && self.transmit_outstanding(now, host)
    }

    #[inline(never)]
    fn transmit_outstanding(&mut self, now: Time, host: &mut impl Host) -> bool {
        let sends = self.sends();
        let emitted = match self.sender.as_mut().filter(|_| sends) {
            None => return false,
            Some(Sender::Reliable { requester, completer }) => {
                let unacked = completer.unacked();
                requester.on_arrived(completer.arrived());
                let (emitted, packets) = requester.transmit(unacked, now, &mut self.queue, host);
                self.counters.note_sends(requester.take_reached());
                if packets > 0 {
                    completer.on_emit(requester.next() - packets, now);
                    completer.arm_if_idle(requester.next(), now);
                } else if emitted != Emitted::NoRoom {
                    completer.on_room();
                }
                completer.retire_local(&mut self.queue, host);
                if emitted == Emitted::Broken {
                    self.counters.send_err += 1;
                    self.fail_if_broken(host);
                }
                emitted
            }
            Some(Sender::Unreliable(streamer)) => {
                let emitted = streamer.transmit(&mut self.queue, &mut self.counters, host);
                if emitted == Emitted::Broken {
                    self.counters.send_err += 1;
                    self.state = QpState::Sqe;
                    self.progress = Progress::Settled;
                }
                emitted
            }
        };
        self.note_drained(host);
        emitted == Emitted::NoRoom
    }

    /// The host has had no room for a single packet since the call before, because the peer makes none:
    /// that is waited for no longer than an acknowledgement is.
    pub fn on_no_room(&mut self, now: Time) {
        let waits = self.sends() && self.sender.as_ref().is_some_and(|s| s.has_work(&self.queue));
        if let Some((_, completer)) = self.reliable().filter(|_| waits) {
            completer.arm_for_room(now);
        }
    }

    /// Requests are sent, and their acknowledgements awaited.
    fn sends(&self) -> bool {
        self.state.behaviour().outgoing
    }

    /// Says so when everything that had begun before the state became SQD has ended.
    fn note_drained(&mut self, host: &mut impl Host) {
        if self.progress == Progress::Drains && self.queue.is_drained() {
            self.progress = Progress::Settled;
            if self.settings.notify_drained {
                host.event(QpEvent::SqDrained);
            }
        }
    }

    fn debtor(&self) -> Option<&crate::responder::Responder> {
        self.peer.as_ref()?.receiver.as_ref()?.debtor()
    }

    /// There may be something to emit besides an acknowledgement.
    pub fn has_more(&self) -> bool {
        let owes_data = self.debtor().is_some_and(|responder| responder.owes_data());
        let has_work = |sender: &Sender| sender.has_work(&self.queue);
        owes_data || self.sends() && self.sender.as_ref().is_some_and(has_work)
    }

    /// An acknowledgement waits to be emitted.
    pub fn owes_ack(&self) -> bool {
        self.marks.is_owed() || self.debtor().is_some_and(|responder| responder.owes_ack())
    }

    /// Nothing but an acknowledgement of what went well waits to be emitted.
    pub fn owes_plain_ack(&self) -> bool {
        !self.marks.is_owed() && self.debtor().is_some_and(|responder| responder.owes_plain_ack())
    }

    /// The acknowledgement that is owed is one of what went well, and the peer has not asked for it as one that waits.
    pub fn owes_patient_ack(&self) -> bool {
        self.owes_plain_ack() && self.debtor().is_some_and(|responder| !responder.is_awaited())
    }

    /// The message sequence number of the requests that were executed, as acknowledgements carry it; zero where nothing is
    /// acknowledged.
    pub fn received(&self) -> Msn {
        self.debtor().map_or(Msn::new(0), |responder| responder.received())
    }

    /// Counts packets that were emitted; the host knows best.
    pub fn count_sent(&mut self, packets: u64) {
        self.counters.sent_pkts += packets;
    }

    /// Counts an acknowledgement that is held back until it has company; the host knows best.
    pub fn count_deferred(&mut self) {
        self.counters.ack_deferred += 1;
    }

    /// When [`Qp::on_timer`] wants to be called, if at all.
    pub fn next_deadline(&self) -> Option<Time> {
        let sends = self.sends();
        match self.sender.as_ref().filter(|_| sends)? {
            Sender::Reliable { requester, completer } => {
                match (requester.paused_until(), completer.deadline()) {
                    (Some(pause), Some(deadline)) => Some(pause.min(deadline)),
                    (pause, deadline) => pause.or(deadline),
                }
            }
            Sender::Unreliable(_) => None,
        }
    }

    /// Sets the deadlines that [`Qp::transmit`] at [`Time::UNKNOWN`] has left open.
    pub fn on_clock(&mut self, now: Time) {
        if let Some((requester, completer)) = self.reliable() {
            completer.on_clock(requester.next(), now);
        }
    }

    /// Lets time pass. Call [`Qp::transmit`] afterwards.
    pub fn on_timer(&mut self, now: Time, host: &mut impl Host) {
        let sends = self.sends();
        let Some((requester, completer)) = self.reliable().filter(|_| sends) else {
            return;
        };
        requester.on_timer(now);
        if let Some(verdict) = completer.on_timer(requester.next(), requester.top(), now) {
            let early = matches!(verdict, Verdict::Probe { .. } | Verdict::Fill { .. });
            self.counters.ack_timeout += u64::from(!early);
            self.obey(verdict, now, host);
        }
    }

    /// Goes to ERR for a reason of this side's own: from now on it is silent.
    fn fail(&mut self, host: &mut impl Host) {
        if let Some(receiver) = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut()) {
            receiver.forget_debts();
        }
        self.enter_err(host);
    }

    /// Goes to ERR and flushes. What the responder owes, the refusal that led here included, is
    /// still paid.
    fn enter_err(&mut self, host: &mut impl Host) {
        let entered = self.state != QpState::Err;
        self.state = QpState::Err;
        self.progress = Progress::Settled;
        if let Some(receiver) = self.peer.as_mut().and_then(|peer| peer.receiver.as_mut()) {
            receiver.abandon(&mut self.counters, host);
        }
        self.flush(host);
        let shared = self.options.shared_receives || self.kind() == QpType::XrcTarget;
        if entered && shared {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// Ends outstanding work as flushed, where the state says so; harmless elsewhere. Receives of a
    /// shared queue stay there.
    pub fn flush(&mut self, host: &mut impl Host) {
        if self.state.behaviour().sends != Processing::Flushed {
            return;
        }
        while self.queue.len() > 0 {
            self.counters.note_failure(WcStatus::WorkRequestFlushed);
            self.queue.retire(WcStatus::WorkRequestFlushed, host);
        }
        let own_receives = match self.kind() {
            QpType::Rc | QpType::Uc | QpType::Ud => !self.options.shared_receives,
            QpType::XrcInitiator | QpType::XrcTarget => false,
        };
        if self.state.behaviour().receives == Processing::Flushed && own_receives {
            self.flush_receives(host);
        }
    }

    fn flush_receives(&mut self, host: &mut impl Host) {
        let src_qp = self.peer.as_ref().map_or(Qpn::new(0), |peer| peer.path.remote);
        while let Ok(receive) = host.take_receive(None) {
            self.counters.note_receive(WcStatus::WorkRequestFlushed);
            host.receive_done(ReceiveDone {
                receive,
                status: WcStatus::WorkRequestFlushed,
                opcode: WcOpcode::Receive,
                byte_len: 0,
                imm: None,
                invalidated: None,
                solicited: false,
                src_qp,
                grh: false,
                pkey_index: self.settings.partition.index,
                srq: None,
            });
        }
    }
}

/// Keys match if their low 15 bits do and at least one side is a full member.
/// IBTA Vol. 1 §10.9.3.
const fn same_partition(a: Pkey, b: Pkey) -> bool {
    a.0 & 0x7fff == b.0 & 0x7fff && (a.0 | b.0) & 0x8000 != 0
}

#[cfg(test)]
mod tests;
