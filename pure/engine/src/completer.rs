//! The completer: reads acknowledgements and says what they mean for what was sent.
//!
//! A reliable queue pair has three parts that never call one another. The *requester* turns work
//! into packets, the *responder* serves the peer's packets, and the completer, here, retires the
//! requester's. `qp.rs` holds all three and carries each [`Verdict`] from this one to the
//! requester, so that every decision to send again is taken in one place.
//!
//! Read IBTA Vol. 1 §9.7.5 (acknowledgements) and §9.9 (errors) before changing this file.

use crate::attributes::{RnrRetry, RtsAttributes};
use crate::host::{Host, Landing};
use crate::packetizer::Path;
use crate::round_trip::RoundTrip;
use crate::send_queue::{NOT_STARTED, SendQueue};
use crate::status::WcStatus;
use crate::time::Time;
use crate::work::RequestKind;
use adverb_wire::{Nak, Operation, Psn, Syndrome};

/// What the requester has to do about what came in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Verdict {
    /// The oldest outstanding request has failed, and with it the queue pair.
    Fail(WcStatus),
    /// A stray: nothing happened.
    Ignore,
    /// Send again from this sequence number, but not before `until`.
    Pause { from: u64, until: Time },
    /// Send the packet with this sequence number and the last one again, so that the peer says where it is.
    Probe { from: u64 },
    /// The window has moved, or not even that.
    Progress,
    /// Send again from this sequence number.
    Resend { from: u64 },
}

/// How often to send again before giving up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Budget {
    retries: u8,
    rnr: RnrRetry,
}

/// The outcome of retiring requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Retired {
    /// All that was acknowledged is retired.
    All,
    /// A READ or atomic stands in the way whose data never came.
    DataMissing,
}

/// The retiring half of a reliable requester.
#[derive(Clone, Debug)]
pub(crate) struct Completer {
    /// Sequence number of the oldest packet that is not acknowledged, or whose data is awaited.
    unacked: u64,
    limits: Budget,
    budget: Budget,
    timeout_ns: Option<u64>,
    deadline: Option<Time>,
    /// Packets may be lost: probes are sent, if there is a time-out.
    lossy: bool,
    trip: RoundTrip,
    /// When a probe is due, if nothing is acknowledged until then.
    probe_at: Option<Time>,
    /// The clock was set when there was no room to emit anything.
    awaits_room: bool,
    /// A hole in the data for which they were asked again already, and when. Answers to the first attempt may
    /// still be on their way and show the same hole: it is not acted on again before an answer is late.
    known_hole: Option<(u64, Time)>,
}

/// How long to believe that answers which show a known hole belong to an earlier attempt, if no
/// timeout decides that.
const HOLE_PATIENCE_NS: u64 = 67_108_864;

impl Completer {
    pub(crate) fn new(path: &Path, attributes: &RtsAttributes) -> Self {
        let limits = Budget { retries: attributes.retry_count.get(), rnr: attributes.rnr_retry };
        Self {
            unacked: 0,
            limits,
            budget: limits,
            timeout_ns: attributes.timeout.nanos(),
            deadline: None,
            lossy: path.link.lossy,
            trip: RoundTrip::default(),
            probe_at: None,
            awaits_room: false,
            known_hole: None,
        }
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// When [`Completer::on_timer`] wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.probe_at {
            None => self.deadline,
            probe => self.deadline.min(probe).or(probe),
        }
    }

    /// The packet with this sequence number has been sent for the first time.
    #[inline]
    pub(crate) fn on_emit(&mut self, sequence: u64, now: Time) {
        if self.lossy {
            self.trip.on_emit(sequence, now);
        }
    }

    /// Sets the clock for the oldest packet under way. `next` is the first one not emitted.
    pub(crate) fn arm(&mut self, next: u64, now: Time) {
        self.awaits_room = false;
        self.deadline = match self.timeout_ns {
            Some(_) if self.unacked < next && now == Time::UNKNOWN => Some(Time::UNKNOWN),
            Some(wait) if self.unacked < next => Some(now.plus_nanos(wait)),
            Some(_) | None => None,
        };
        self.arm_probe(now);
    }

    /// The window has moved. If that ends a round trip, says how long it took and how long the shortest one did.
    #[inline]
    pub(crate) fn on_progress(&mut self, now: Time) -> Option<(u64, u64)> {
        if !self.lossy {
            return None;
        }
        self.trip.on_progress(self.unacked, now)
    }

    /// Sets the clock for a probe: with an ACK time-out that runs, which it comes well before.
    #[inline]
    fn arm_probe(&mut self, now: Time) {
        self.probe_at = match self.deadline {
            Some(deadline) if self.lossy && now != Time::UNKNOWN => {
                Some(now.plus_nanos(self.trip.probe_after_ns())).filter(|at| *at < deadline)
            }
            Some(_) | None => None,
        };
    }

    /// The time is known: sets the clock if it was only meant to be set.
    pub(crate) fn on_clock(&mut self, next: u64, now: Time) {
        if self.deadline == Some(Time::UNKNOWN) {
            self.arm(next, now);
        }
    }

    /// Stops the clock.
    pub(crate) fn disarm(&mut self) {
        (self.deadline, self.probe_at) = (None, None);
    }

    /// Sets the clock unless it runs for a packet under way.
    pub(crate) fn arm_if_idle(&mut self, next: u64, now: Time) {
        if self.deadline.is_none() || self.awaits_room {
            self.arm(next, now);
        }
    }

    /// Sets the clock unless it runs, though nothing may be under way: there is no room for it, and who
    /// does not make any may be gone.
    pub(crate) fn arm_for_room(&mut self, now: Time) {
        if self.deadline.is_none() && now != Time::UNKNOWN {
            self.deadline = self.timeout_ns.map(|wait| now.plus_nanos(wait));
            (self.awaits_room, self.probe_at) = (true, None);
        }
    }

    /// Nothing waits for room: what there was to do is emitted, or was done without packets.
    pub(crate) fn on_room(&mut self) {
        if self.awaits_room {
            (self.deadline, self.awaits_room) = (None, false);
        }
    }

    /// The sequence number that `psn` stands for, given that it is near the window.
    fn sequence(&self, psn: Psn, unacked_psn: Psn) -> Option<u64> {
        self.unacked.checked_add_signed(i64::from(psn.since(unacked_psn)))
    }

    /// Takes one acknowledgement.
    #[inline(always)]
    pub(crate) fn on_ack(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        sent: Sent,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Verdict {
        let Some(sequence) = self.sequence(psn, sent.unacked_psn) else {
            return Verdict::Ignore;
        };
        if sequence < self.unacked || sequence >= sent.top {
            return Verdict::Ignore; // A duplicate from before the window, or a forgery from beyond.
        }
        // A positive acknowledgement covers its own packet; a refusal only the ones before it.
        let hole = match syndrome {
            Syndrome::Ack { .. } => sequence + 1,
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => sequence,
        };
        if self.retire_before(hole, queue, host) == Retired::DataMissing {
            return self.resend_around_known(sent.now);
        }
        match syndrome {
            Syndrome::Ack { .. } => Verdict::Progress,
            Syndrome::RnrNak(_) if sent.paused => Verdict::Ignore, // A copy of the one we obey.
            Syndrome::RnrNak(timer) => {
                let until = sent.now.plus_nanos(timer.nanos());
                self.pause_or_fail(hole, until)
            }
            Syndrome::Nak(Nak::SequenceError) => self.resend_or_fail(hole, sent.now),
            Syndrome::Nak(Nak::InvalidRequest) => Verdict::Fail(WcStatus::RemoteInvalidRequest),
            Syndrome::Nak(Nak::RemoteAccess) => Verdict::Fail(WcStatus::RemoteAccess),
            Syndrome::Nak(Nak::RemoteOperation) => Verdict::Fail(WcStatus::RemoteOperation),
            Syndrome::Nak(Nak::InvalidRdRequest) => Verdict::Ignore, // Of another transport (RD).
        }
    }

    /// Takes one packet that carries data for a READ or an atomic.
    pub(crate) fn on_data(
        &mut self,
        psn: Psn,
        operation: Operation,
        data: &[u8],
        sent: Sent,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Verdict {
        let Some(sequence) = self.sequence(psn, sent.unacked_psn) else {
            return Verdict::Ignore;
        };
        if sequence < self.unacked || sequence >= sent.top {
            return Verdict::Ignore;
        }
        // A response acknowledges all requests before its own.
        let retired = self.retire_before(sequence, queue, host);
        if retired == Retired::DataMissing || self.unacked != sequence {
            return self.resend_around_known(sent.now);
        }
        let index = queue.head();
        let Some(entry) = queue.get(index) else {
            return Verdict::Ignore;
        };
        if !entry.request.kind.awaits_data() {
            // An ATOMIC WRITE is acknowledged by the answer to a READ of nothing; that the peer
            // answers anything else with data is not our affair.
            let atomic_write = matches!(entry.request.kind, RequestKind::AtomicWrite { .. });
            if !atomic_write || operation != Operation::ReadResponseOnly || !data.is_empty() {
                return Verdict::Ignore;
            }
            let _ = self.retire_before(sequence + 1, queue, host);
            return Verdict::Progress;
        }
        let at = u32::try_from(sequence.saturating_sub(entry.start)).unwrap_or(u32::MAX);
        let segment = entry.cutting.segment;
        let offset = at.saturating_mul(segment);
        let expected = match entry.request.kind {
            RequestKind::Read { .. } => entry.request.len.saturating_sub(offset).min(segment),
            RequestKind::CompareSwap { .. } | RequestKind::FetchAdd { .. } => 8,
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Write { .. }
            | RequestKind::AtomicWrite { .. }
            | RequestKind::LocalInvalidate { .. }
            | RequestKind::BindWindow => 0,
        };
        let atomic = matches!(operation, Operation::AtomicAcknowledge);
        let read = matches!(entry.request.kind, RequestKind::Read { .. });
        // The bytes at a sequence number are the same whichever request asked for them, so FIRST,
        // MIDDLE and LAST are not held against the peer; a wrong length is.
        if atomic == read || usize::try_from(expected) != Ok(data.len()) {
            return Verdict::Fail(WcStatus::BadResponse);
        }
        if host.scatter(Landing::Request(index), offset, data).is_err() {
            return Verdict::Fail(WcStatus::LocalProtection);
        }
        self.moved_to(sequence + 1);
        let _ = self.retire_before(sequence + 1, queue, host);
        Verdict::Progress
    }

    /// The clock has run out, or has it? `None` if there is nothing to do.
    ///
    /// `next` is the first sequence number that is not under way, and nothing from `top` on was ever sent.
    pub(crate) fn on_timer(&mut self, next: u64, top: u64, now: Time) -> Option<Verdict> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.disarm();
            self.trip.on_silence(top);
            return Some(self.resend_or_fail(self.unacked, now));
        }
        self.probe_at.filter(|at| *at <= now)?;
        self.trip.on_probe(self.unacked, next.saturating_sub(1));
        self.arm_probe(now);
        Some(Verdict::Probe { from: self.unacked })
    }

    /// Retires the requests at the head that were carried out without a packet.
    pub(crate) fn retire_local(&mut self, queue: &mut SendQueue, host: &mut impl Host) {
        let local = |queue: &SendQueue| {
            queue
                .get(queue.head())
                .is_some_and(|entry| entry.has_begun() && entry.cutting.packets == 0)
        };
        if local(queue) {
            let _ = self.retire_before(self.unacked, queue, host);
        }
    }

    /// Changes how long to wait and how often to send again. What was spent of a budget that stays
    /// the same stays spent.
    pub(crate) fn set_limits(&mut self, attributes: &RtsAttributes) {
        self.timeout_ns = attributes.timeout.nanos();
        let limits = Budget { retries: attributes.retry_count.get(), rnr: attributes.rnr_retry };
        if self.limits != limits {
            (self.limits, self.budget) = (limits, limits);
        }
    }

    /// Retires every request that ends before `hole`, in order.
    #[inline]
    fn retire_before(&mut self, hole: u64, queue: &mut SendQueue, host: &mut impl Host) -> Retired {
        loop {
            let Some(entry) = queue.get(queue.head()) else {
                return Retired::All;
            };
            if entry.start == NOT_STARTED {
                return Retired::All;
            }
            if entry.request.kind.awaits_data() {
                self.moved_to(entry.start.min(hole));
                if self.unacked < entry.end() {
                    let missing = hole > self.unacked;
                    return if missing { Retired::DataMissing } else { Retired::All };
                }
            } else if hole < entry.end() {
                self.moved_to(hole);
                return Retired::All;
            }
            self.moved_to(entry.end());
            queue.retire(WcStatus::Success, host);
        }
    }

    /// Moves the window's start forward; progress refills the budget.
    #[inline]
    fn moved_to(&mut self, sequence: u64) {
        if sequence > self.unacked {
            self.unacked = sequence;
            self.budget = self.limits;
            self.known_hole = None;
        }
    }

    fn resend_or_fail(&mut self, from: u64, now: Time) -> Verdict {
        let Some(left) = self.budget.retries.checked_sub(1) else {
            return Verdict::Fail(WcStatus::RetryExceeded);
        };
        self.budget.retries = left;
        self.known_hole = Some((from, now));
        self.trip.on_resend();
        Verdict::Resend { from }
    }

    /// An answer shows that the oldest packet's data got lost: a refusal that nobody wrote down.
    fn resend_around_known(&mut self, now: Time) -> Verdict {
        let late = |since: Time| match self.lossy {
            true => since.plus_nanos(self.trip.late_after_ns()) <= now,
            false => false,
        };
        match self.known_hole {
            Some((hole, since)) if hole == self.unacked && !late(since) => {}
            Some(_) | None => return self.resend_or_fail(self.unacked, now),
        }
        if self.timeout_ns.is_none() && self.deadline.is_none() {
            self.deadline = Some(now.plus_nanos(HOLE_PATIENCE_NS));
        }
        Verdict::Progress
    }

    fn pause_or_fail(&mut self, from: u64, until: Time) -> Verdict {
        if self.budget.rnr != RnrRetry::FOREVER {
            let left = self.budget.rnr.get().checked_sub(1).and_then(RnrRetry::new);
            let Some(left) = left else {
                return Verdict::Fail(WcStatus::RnrRetryExceeded);
            };
            self.budget.rnr = left;
        }
        self.disarm(); // The pause is the clock now.
        Verdict::Pause { from, until }
    }
}

/// What the requester has to say for an acknowledgement to make sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// PSN of the oldest unacknowledged packet.
    pub(crate) unacked_psn: Psn,
    /// One past the highest sequence number ever emitted.
    pub(crate) top: u64,
    /// The peer's wish to be left alone is being obeyed.
    pub(crate) paused: bool,
    pub(crate) now: Time,
}

#[cfg(test)]
mod tests;
