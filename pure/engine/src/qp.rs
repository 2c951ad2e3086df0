//! The queue pair: holds the roles, and carries verdicts from one to the next.
//!
//! Everything that happens to a queue pair comes in through one of four doors: work is posted, a
//! packet arrives, the clock runs out, or the host has room for packets. Nothing leaves except
//! through the [`Host`] lent for the call.

use crate::attributes::{Access, Gid, InitAttributes, RtrAttributes, RtsAttributes};
use crate::completer::{Completer, Sent, Verdict};
use crate::counters::QpCounters;
use crate::host::{Host, ReceiveDone};
use crate::requester::{Emitted, NOT_STARTED, Path, Requester};
use crate::responder::{Responder, Served};
use crate::send_queue::{Entry, SendQueue, SendQueueFull};
use crate::status::{QpState, WcOpcode, WcStatus};
use crate::time::Time;
use crate::work::Request;
use adverb_wire::{Extension, Packet, Pkey, Qpn, Transport};
use core::fmt;

/// A transition that the queue pair's state does not allow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateError {
    /// The state it is in.
    pub from: QpState,
    /// The state it was asked to go to.
    pub to: QpState,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "a queue pair in {from} cannot go to {to}")
    }
}

impl core::error::Error for StateError {}

/// A reliable-connected queue pair.
#[derive(Debug)]
pub struct Qp {
    number: Qpn,
    state: QpState,
    init: InitAttributes,
    peer: Option<Peer>,
    queue: SendQueue,
    sender: Option<Sender>,
    /// Requests go before responses the next time, so that neither starves the other.
    requests_first: bool,
    counters: QpCounters,
}

/// What exists once the peer is known.
#[derive(Debug)]
struct Peer {
    gid: Gid,
    path: Path,
    responder: Responder,
}

/// What exists once sending is allowed.
#[derive(Debug)]
struct Sender {
    requester: Requester,
    completer: Completer,
}

impl Qp {
    /// A queue pair in RESET with room for `send_capacity` requests.
    pub fn new(number: Qpn, send_capacity: u32) -> Self {
        Self {
            number,
            state: QpState::Reset,
            init: InitAttributes { pkey: Pkey::DEFAULT, access: Access::NONE },
            peer: None,
            queue: SendQueue::with_capacity(send_capacity),
            sender: None,
            requests_first: false,
            counters: QpCounters::default(),
        }
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
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
        self.peer.as_ref().map(|peer| (peer.gid, peer.path.remote))
    }

    /// RESET to INIT.
    ///
    /// # Errors
    ///
    /// [`StateError`] in any state but RESET and INIT; nothing has changed then.
    pub fn to_init(&mut self, attributes: InitAttributes) -> Result<(), StateError> {
        self.transition(&[QpState::Reset, QpState::Init], QpState::Init)?;
        self.init = attributes;
        Ok(())
    }

    /// INIT to RTR: from now on the peer's packets are taken.
    ///
    /// # Errors
    ///
    /// [`StateError`] in any state but INIT; nothing has changed then.
    pub fn to_rtr(&mut self, attributes: RtrAttributes) -> Result<(), StateError> {
        self.transition(&[QpState::Init], QpState::Rtr)?;
        let path =
            Path { remote: attributes.remote, pkey: self.init.pkey, mtu: attributes.path_mtu };
        let responder = Responder::new(path, self.init.access, &attributes);
        self.peer = Some(Peer { gid: attributes.remote_gid, path, responder });
        Ok(())
    }

    /// RTR to RTS: from now on posted requests are sent.
    ///
    /// # Errors
    ///
    /// [`StateError`] in any state but RTR; nothing has changed then.
    pub fn to_rts(&mut self, attributes: RtsAttributes) -> Result<(), StateError> {
        let path = match (&self.peer, self.state) {
            (Some(peer), QpState::Rtr) => peer.path,
            (Some(_) | None, from) => {
                return Err(StateError { from, to: QpState::Rts });
            }
        };
        self.state = QpState::Rts;
        self.sender = Some(Sender {
            requester: Requester::new(path, &attributes).start_at(self.queue.head()),
            completer: Completer::new(path.mtu, &attributes),
        });
        Ok(())
    }

    /// Any state to ERR: all outstanding work ends as flushed.
    pub fn to_err(&mut self, host: &mut impl Host) {
        self.fail(host);
    }

    /// Any state to RESET: outstanding work and everything known of the peer is forgotten.
    ///
    /// Requests vanish without completions, as the verbs have it; the receives are the host's to
    /// clear.
    pub fn to_reset(&mut self) {
        self.state = QpState::Reset;
        self.peer = None;
        self.sender = None;
        while self.queue.pop().is_some() {}
    }

    fn transition(&mut self, from: &[QpState], to: QpState) -> Result<(), StateError> {
        if !from.contains(&self.state) {
            return Err(StateError { from: self.state, to });
        }
        self.state = to;
        Ok(())
    }

    /// Queues one request and returns its index; [`Qp::transmit`] sends it.
    ///
    /// # Errors
    ///
    /// [`SendQueueFull`]; nothing was queued then.
    pub fn post(&mut self, request: Request) -> Result<u64, SendQueueFull> {
        debug_assert!(request.len <= Request::LEN_MAX, "the caller checks lengths");
        self.queue.push(Entry { request, start: NOT_STARTED, packets: 0 })
    }

    /// Takes one packet that has passed [`crate::accept`] and is addressed to this queue pair.
    ///
    /// `source` is the address it came from. Answers are owed, not emitted: call
    /// [`Qp::transmit`] afterwards, or soon.
    pub fn on_packet(&mut self, packet: &Packet<'_>, source: Gid, now: Time, host: &mut impl Host) {
        let bth = &packet.headers.bth;
        let Some(peer) = self.peer.as_mut().filter(|_| self.state.receives()) else {
            self.counters.dropped_pkts += 1;
            return;
        };
        let known = source == peer.gid
            && bth.opcode.transport() == Transport::Rc
            && same_partition(bth.pkey, peer.path.pkey);
        if !known {
            self.counters.dropped_pkts += 1;
            return;
        }
        self.counters.rcvd_pkts += 1;
        if bth.opcode.operation().is_request() {
            let served = peer.responder.on_request(packet, &mut self.counters, host);
            if served == Served::Fatal {
                self.enter_err(host);
            }
        } else {
            self.on_response(packet, now, host);
        }
    }

    fn on_response(&mut self, packet: &Packet<'_>, now: Time, host: &mut impl Host) {
        let Some(Sender { requester, completer }) = self.sender.as_mut() else {
            self.counters.dropped_pkts += 1;
            return;
        };
        let before = completer.unacked();
        let bth = &packet.headers.bth;
        let sent = Sent {
            unacked_psn: requester.psn(before),
            top: requester.top(),
            paused: requester.paused_until().is_some(),
            now,
        };
        let operation = bth.opcode.operation();
        let queue = &mut self.queue;
        let verdict = match packet.headers.extension {
            Extension::Aeth(aeth) if operation == adverb_wire::Operation::Acknowledge => {
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
            | Extension::Cnp => Verdict::Ignore,
        };
        let unacked = completer.unacked();
        if unacked > before {
            requester.on_progress(unacked, unacked - before, &self.queue);
            completer.arm(requester.next(), now);
        }
        self.obey(verdict, now, host);
        self.fail_if_broken(host);
    }

    /// Carries a verdict of the completer to the requester.
    fn obey(&mut self, verdict: Verdict, now: Time, host: &mut impl Host) {
        let Some(Sender { requester, completer }) = self.sender.as_mut() else {
            return;
        };
        match verdict {
            Verdict::Ignore | Verdict::Progress => {}
            Verdict::Resend { from } => {
                self.counters.completer_retry_err += 1;
                requester.rewind(from, true, &self.queue);
                match requester.paused_until() {
                    Some(_) => completer.disarm(), // Nothing is sent, so nothing is late.
                    None => completer.arm(requester.top(), now),
                }
            }
            Verdict::Pause { from, until } => {
                requester.rewind(from, false, &self.queue);
                requester.pause(until);
            }
            Verdict::Fail(status) => {
                self.counters.note_failure(status);
                completer.retire(status, &mut self.queue, host);
                self.fail(host);
            }
        }
    }

    /// Ends the request that could not be emitted, once all before it have ended.
    fn fail_if_broken(&mut self, host: &mut impl Host) {
        let Some(Sender { requester, completer }) = self.sender.as_ref() else {
            return;
        };
        let Some((index, status)) = requester.broken() else {
            return;
        };
        if index == self.queue.head() {
            completer.retire(status, &mut self.queue, host);
            self.fail(host);
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
        if let Some(peer) = self.peer.as_mut()
            && peer.responder.transmit_data(&mut self.counters, host) == Served::Fatal
        {
            self.enter_err(host);
        }
        if !self.requests_first {
            more |= self.transmit_requests(now, host);
        }
        self.requests_first = !self.requests_first;
        if let Some(peer) = self.peer.as_mut() {
            if acks {
                peer.responder.transmit_ack(host);
            }
            more |= peer.responder.owes_data() || (acks && peer.responder.owes_ack());
        }
        if self.state == QpState::Err {
            self.flush(host);
        }
        more
    }

    /// Emits requests; true if there is more to emit than there was room for.
    fn transmit_requests(&mut self, now: Time, host: &mut impl Host) -> bool {
        let sends = self.sends();
        let Some(Sender { requester, completer }) = self.sender.as_mut().filter(|_| sends) else {
            return false;
        };
        let unacked = completer.unacked();
        let (emitted, packets) = requester.transmit(unacked, now, &mut self.queue, host);
        if packets > 0 {
            completer.arm_if_idle(requester.next(), now);
        }
        if emitted == Emitted::Broken {
            self.fail_if_broken(host);
        }
        emitted == Emitted::NoRoom
    }

    /// Requests are sent, and their acknowledgements awaited.
    fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// There may be something to emit besides an acknowledgement.
    pub fn has_more(&self) -> bool {
        let owes_data = self.peer.as_ref().is_some_and(|peer| peer.responder.owes_data());
        let tail = self.queue.tail();
        owes_data || self.sender.as_ref().is_some_and(|sender| sender.requester.is_behind(tail))
    }

    /// An acknowledgement waits to be emitted.
    pub fn owes_ack(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.responder.owes_ack())
    }

    /// Counts packets that were emitted; the host knows best.
    pub fn count_sent(&mut self, packets: u64) {
        self.counters.sent_pkts += packets;
    }

    /// When [`Qp::on_timer`] wants to be called, if at all.
    pub fn next_deadline(&self) -> Option<Time> {
        let sends = self.sends();
        let Sender { requester, completer } = self.sender.as_ref().filter(|_| sends)?;
        match (requester.paused_until(), completer.deadline()) {
            (Some(pause), Some(deadline)) => Some(pause.min(deadline)),
            (pause, deadline) => pause.or(deadline),
        }
    }

    /// Lets time pass. Call [`Qp::transmit`] afterwards.
    pub fn on_timer(&mut self, now: Time, host: &mut impl Host) {
        let sends = self.sends();
        let Some(Sender { requester, completer }) = self.sender.as_mut().filter(|_| sends) else {
            return;
        };
        requester.on_timer(now);
        if let Some(verdict) = completer.on_timer(now) {
            self.counters.ack_timeout += 1;
            self.obey(verdict, now, host);
        }
    }

    /// Goes to ERR for a reason of this side's own: from now on it is silent.
    fn fail(&mut self, host: &mut impl Host) {
        if let Some(peer) = self.peer.as_mut() {
            peer.responder.forget_debts();
        }
        self.enter_err(host);
    }

    /// Goes to ERR and flushes. What the responder owes, the refusal that led here included, is
    /// still paid.
    fn enter_err(&mut self, host: &mut impl Host) {
        self.state = QpState::Err;
        if let Some(peer) = self.peer.as_mut() {
            peer.responder.abandon(WcStatus::WorkRequestFlushed, host);
        }
        self.flush(host);
    }

    /// Ends all outstanding work as flushed. Harmless in any state but ERR, where it is due.
    pub fn flush(&mut self, host: &mut impl Host) {
        if self.state != QpState::Err {
            return;
        }
        while let Some((index, entry)) = self.queue.pop() {
            host.send_done(crate::host::SendDone {
                index,
                status: WcStatus::WorkRequestFlushed,
                opcode: entry.request.kind.wc_opcode(),
                byte_len: 0,
                report: true,
            });
        }
        let src_qp = self.peer.as_ref().map_or(Qpn::new(0), |peer| peer.path.remote);
        while let Some(receive) = host.take_receive() {
            host.receive_done(ReceiveDone {
                receive,
                status: WcStatus::WorkRequestFlushed,
                opcode: WcOpcode::Receive,
                byte_len: 0,
                imm: None,
                solicited: false,
                src_qp,
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
