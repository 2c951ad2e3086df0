//! The completer: reads acknowledgements and says what they mean for what was sent.
//!
//! A reliable queue pair has three parts that never call one another. The *requester* turns work
//! into packets, the *responder* serves the peer's packets, and the completer, here, retires the
//! requester's. `qp.rs` holds all three and carries each [`Verdict`] from this one to the
//! requester, so that every decision to send again is taken in one place.
//!
//! Read IBTA Vol. 1 §9.7.5 (acknowledgements) and §9.9 (errors) before changing this file.

use crate::arrived::Arrived;
use crate::attributes::{RnrRetry, Settings};
use crate::early::Hole;
use crate::host::{Host, Landing};
use crate::packetizer::Path;
use crate::round_trip::RoundTrip;
use crate::send_queue::{Entry, NOT_STARTED, SendQueue};
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
    /// Send what is missing again.
    Fill(Missing),
    /// A stray: nothing happened.
    Ignore,
    /// The peer keeps so many packets that came after the oldest one it has not got.
    Keeps(u64),
    /// Send again from this sequence number, but not before `until`.
    Pause { from: u64, until: Time },
    /// Send the packet with this sequence number and the last one again, so that the peer says where it is; of data,
    /// ask again for those from `from` to before `to`, if it is known where they end.
    Probe { from: u64, to: Option<u64> },
    /// The window has moved, or not even that.
    Progress,
    /// Send again from this sequence number.
    Resend { from: u64 },
    /// The packets before this sequence number may be missing, or only have been overtaken.
    Suspect { to: u64 },
}

/// Packets that are missing, or data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Missing {
    /// From one sequence number to before the other.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The peer is known to have executed the requests that they belong to: only answers are missing.
    pub(crate) executed: bool,
    /// They are sent again unless that was done less than so many nanoseconds ago.
    pub(crate) late_ns: u64,
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
    /// How often the ACK time-out has run out since there was progress, at most [`WAIT_DOUBLINGS_MAX`].
    silences: u8,
    deadline: Option<Time>,
    /// Packets may be lost: probes are sent, if there is a time-out.
    lossy: bool,
    trip: RoundTrip,
    /// When a probe is due, if nothing is acknowledged until then.
    probe_at: Option<Time>,
    /// Until everything before this sequence number is acknowledged, packets get lost, as others did of late.
    troubled_until: u64,
    /// The first packet that the last probe asked for or sent, how many probes that made without an answer, and when.
    probed: Option<(u64, u32, Time)>,
    /// The packets before this sequence number are suspected to be missing: in place of a probe they are sent again.
    suspected: u64,
    /// The clock was set when there was no room to emit anything.
    awaits_room: bool,
    /// Data that came early and is kept: the peer's answers may overtake one another.
    arrived: Arrived,
    /// A hole in the data for which they were asked again already, and when. Answers to the first attempt may
    /// still be on their way and show the same hole: it is not acted on again before an answer is late.
    known_hole: Option<(u64, Time)>,
}

/// How long to believe that answers which show a known hole belong to an earlier attempt, if no
/// timeout decides that.
const HOLE_PATIENCE_NS: u64 = 67_108_864;
/// Doublings of an ACK time-out, at most, and the longest one that they lead to: exponent 16, in nanoseconds.
const WAIT_DOUBLINGS_MAX: u8 = 2;
const DOUBLED_WAIT_MAX_NS: u64 = 4096 << 16;
/// After a loss so many packets may be lost as well.
const TROUBLED_PACKETS: u64 = 256;
/// For this share of the shortest round trip a packet that is suspected to be missing may still come.
const SUSPICION_SHARE: u64 = 2;

impl Completer {
    pub(crate) fn new(path: &Path, settings: &Settings) -> Self {
        let limits = Budget { retries: settings.retry_count.get(), rnr: settings.rnr_retry };
        Self {
            unacked: 0,
            limits,
            budget: limits,
            timeout_ns: settings.timeout.nanos(),
            silences: 0,
            deadline: None,
            lossy: path.link.lossy,
            trip: RoundTrip::default(),
            probe_at: None,
            troubled_until: 0,
            probed: None,
            suspected: 0,
            awaits_room: false,
            arrived: Arrived::default(),
            known_hole: None,
        }
    }

    /// Early data is kept from now on: the peer answers a request for a part of what it has answered. Others, such
    /// as `rdma_rxe`, need not.
    #[cold]
    pub(crate) fn learn_of_keeping(&mut self) {
        self.arrived.keep();
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Data that came early.
    pub(crate) fn arrived(&self) -> &Arrived {
        &self.arrived
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
        let wait_ns = self.wait_ns().filter(|_| self.unacked < next);
        // An unknown time stays one: it is the end of time.
        self.deadline = wait_ns.map(|wait| now.plus_nanos(wait));
        self.arm_probe(now);
    }

    /// How long to wait for an acknowledgement, in nanoseconds: the ACK time-out. It is doubled when it runs out, twice at
    /// most, and not beyond [`DOUBLED_WAIT_MAX_NS`]: IBTA Vol. 1 §9.7.6.1.3 allows four times as long. A software peer answers
    /// when its thread runs: on a busy machine that can take a second.
    #[inline]
    fn wait_ns(&self) -> Option<u64> {
        self.timeout_ns.map(|wait| (wait << self.silences).min(DOUBLED_WAIT_MAX_NS).max(wait))
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
                Some(now.plus_nanos(self.probe_after_ns())).filter(|at| *at < deadline)
            }
            Some(_) | None => None,
        };
    }

    /// After this long without progress, in nanoseconds, a probe is due. Where packets get lost it does not wait for a
    /// peer that may only not have been scheduled.
    #[inline]
    fn probe_after_ns(&self) -> u64 {
        match self.unacked < self.troubled_until {
            true => self.trip.refill_after_ns(),
            false => self.trip.probe_after_ns(),
        }
    }

    /// Packets were lost.
    pub(crate) fn on_loss(&mut self) {
        self.troubled_until = self.unacked + TROUBLED_PACKETS;
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

    /// Sets the clock unless it runs, though nothing may be under way: there is no room for it, and a peer
    /// that does not make any may be gone.
    pub(crate) fn arm_for_room(&mut self, now: Time) {
        if self.deadline.is_none() && now != Time::UNKNOWN {
            self.deadline = self.wait_ns().map(|wait| now.plus_nanos(wait));
            (self.awaits_room, self.probe_at) = (true, None);
        }
    }

    /// Nothing waits for room: what there was to do is emitted, or was done without packets.
    pub(crate) fn on_room(&mut self) {
        if self.awaits_room {
            (self.deadline, self.awaits_room) = (None, false);
        }
    }

    /// The sequence number that `psn` stands for; `None` if it is a duplicate from before the window, or a forgery
    /// from beyond.
    fn in_window(&self, psn: Psn, sent: Sent) -> Option<u64> {
        let sequence = self.sequence(psn, sent.unacked_psn)?;
        (self.unacked..sent.top).contains(&sequence).then_some(sequence)
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
        let Some(sequence) = self.in_window(psn, sent) else {
            return Verdict::Ignore;
        };
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

    /// Takes a report of a hole: everything before the packet with number `psn` has come, and much after the hole.
    #[cold]
    pub(crate) fn on_report(
        &mut self,
        psn: Psn,
        hole: Hole,
        sent: Sent,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> Verdict {
        let Some(sequence) = self.in_window(psn, sent) else {
            return Verdict::Ignore;
        };
        if self.retire_before(sequence, queue, host) == Retired::DataMissing {
            return self.resend_around_known(sent.now);
        }
        if hole.packets == 0 {
            return Verdict::Keeps(hole.ahead.into());
        }
        let from = sequence + u64::from(hole.ahead);
        let to = (from + u64::from(hole.packets)).min(sent.top);
        match (from < to && !sent.paused, hole.suspected) {
            (true, false) => {
                let late_ns = self.trip.round_ns();
                Verdict::Fill(Missing { from, to, executed: false, late_ns })
            }
            (true, true) => Verdict::Suspect { to },
            (false, _) => Verdict::Progress,
        }
    }

    /// The packets before this sequence number may be missing: if they are not acknowledged soon, they are sent again.
    pub(crate) fn suspect(&mut self, to: u64, now: Time) {
        let suspects = core::mem::replace(&mut self.suspected, to) > self.unacked;
        match suspects && !self.arrived.is_empty() {
            // More data came meanwhile: more of them may.
            true => self.probe_at = self.probe_at.map(|_| self.soon(now)),
            false => self.hasten_probe(now),
        }
    }

    /// When what was only overtaken will have come.
    fn soon(&self, now: Time) -> Time {
        now.plus_nanos(self.trip.base_ns() / SUSPICION_SHARE)
    }

    /// Something seems to be missing, or was overtaken: it is waited for a little.
    fn hasten_probe(&mut self, now: Time) {
        self.probe_at = self.probe_at.map(|at| at.min(self.soon(now)));
    }

    /// Packets that were reported missing are sent again: the clock for a probe begins anew. Where packets get lost it
    /// does not wait for a peer that may only not have been scheduled.
    pub(crate) fn on_fill(&mut self, missing: Missing, now: Time) {
        match self.arrived.is_empty() {
            true => self.trip.on_resend(),
            false => self.trip.on_fill(missing.from, missing.to),
        }
        self.arm_probe(now);
        self.await_fill(now);
    }

    /// Packets that were sent again are awaited no longer than a round trip takes.
    pub(crate) fn await_fill(&mut self, now: Time) {
        let soon = now.plus_nanos(self.trip.refill_after_ns());
        self.probe_at = self.probe_at.map(|at| at.min(soon));
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
        if sequence < self.unacked {
            self.on_known_data(sequence, sent.now);
            return Verdict::Ignore;
        }
        if sequence >= sent.top {
            return Verdict::Ignore;
        }
        // A response acknowledges all requests before its own.
        let retired = self.retire_before(sequence, queue, host);
        if retired == Retired::DataMissing || self.unacked != sequence {
            return match self.arrived.has_room() {
                true => self.on_early_data(sequence, operation, data, sent, queue, host),
                false => self.resend_around_known(sent.now),
            };
        }
        let index = queue.head();
        let Some(entry) = queue.get(index) else {
            return Verdict::Ignore;
        };
        if !entry.request.kind.awaits_data() {
            // That the peer answers anything else with data is not our affair.
            let empty = entry.request.kind.awaits_empty_data();
            if !empty || operation != Operation::ReadResponseOnly || !data.is_empty() {
                return Verdict::Ignore;
            }
            let _ = self.retire_before(sequence + 1, queue, host);
            return Verdict::Progress;
        }
        if let Err(status) = land(sequence, operation, data, index, entry, host) {
            return Verdict::Fail(status);
        }
        self.moved_to(sequence + 1);
        let _ = self.retire_before(sequence + 1, queue, host);
        if !self.arrived.is_empty() {
            self.absorb(queue, host);
            return self.suspect_first();
        }
        Verdict::Progress
    }

    /// Takes data that have come before. If a probe asked for them, as the oldest that were awaited, it was needless: they
    /// are its answer, and those that came first were on their way.
    #[cold]
    fn on_known_data(&mut self, sequence: u64, now: Time) {
        if let Some((_, probes, at)) = self.probed.filter(|&(probed, ..)| probed == sequence) {
            self.probed = None;
            self.trip.on_probe_answered(at, now);
            if self.unacked >= self.troubled_until {
                self.trip.on_needless_probe(probes);
            }
        }
    }

    /// Takes data that came before data that should have come first: it is kept where it belongs. What seems lost is
    /// asked for again.
    #[cold]
    fn on_early_data(
        &mut self,
        sequence: u64,
        operation: Operation,
        data: &[u8],
        sent: Sent,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Verdict {
        let Some((index, entry)) = queue.find(sequence) else {
            return Verdict::Ignore;
        };
        if !matches!(entry.request.kind, RequestKind::Read { .. }) {
            return self.resend_around_known(sent.now);
        }
        if !self.arrived.has(sequence) {
            if let Err(status) = land(sequence, operation, data, index, entry, host) {
                return Verdict::Fail(status);
            }
            self.arrived.note(sequence);
            self.trip.on_early(sequence, sent.now);
        }
        let late_ns = self.trip.late_after_ns();
        match self.arrived.missing(self.unacked, sent.now, late_ns) {
            Some((from, to)) => Verdict::Fill(Missing { from, to, executed: true, late_ns }),
            None => self.suspect_first(),
        }
    }

    /// What is missing before the first early data is suspected to be lost: it is, if nothing more follows that would
    /// tell.
    fn suspect_first(&self) -> Verdict {
        match self.arrived.first() {
            Some((to, _)) => Verdict::Suspect { to },
            None => Verdict::Progress,
        }
    }

    /// Data that has come early is next.
    #[cold]
    fn absorb(&mut self, queue: &mut SendQueue, host: &mut impl Host) {
        while let Some((start, end)) = self.arrived.first() {
            // Every request before an answered one was executed.
            let _ = self.retire_before(start, queue, host);
            if self.unacked < start {
                break;
            }
            self.moved_to(end);
            self.arrived.forget_first();
            let _ = self.retire_before(end, queue, host);
        }
    }

    /// The clock has run out, or has it? `None` if there is nothing to do.
    ///
    /// `next` is the first sequence number that is not under way, and nothing from `top` on was ever sent.
    pub(crate) fn on_timer(&mut self, next: u64, top: u64, now: Time) -> Option<Verdict> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.disarm();
            self.silences = (self.silences + 1).min(WAIT_DOUBLINGS_MAX);
            self.trip.on_silence(top);
            return Some(self.resend_or_fail(self.unacked, now));
        }
        self.probe_at.filter(|at| *at <= now)?;
        let (from, to) = (self.unacked, core::mem::take(&mut self.suspected).min(next));
        if from < to {
            self.arm_probe(now);
            self.await_fill(now);
            let executed = self.arrived.end().is_some_and(|end| to <= end);
            let late_ns = self.trip.round_ns();
            return Some(Verdict::Fill(Missing { from, to, executed, late_ns }));
        }
        self.trip.on_probe(self.unacked, next.saturating_sub(1));
        self.probed = Some((from, self.trip.probes(), now));
        self.arm_probe(now);
        Some(Verdict::Probe { from, to: self.arrived.first().map(|(start, _)| start) })
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
    pub(crate) fn set_limits(&mut self, settings: &Settings) {
        self.timeout_ns = settings.timeout.nanos();
        let limits = Budget { retries: settings.retry_count.get(), rnr: settings.rnr_retry };
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
            (self.budget, self.silences) = (self.limits, 0);
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

    /// An answer shows that the oldest packet's data got lost: a refusal that was not recorded.
    fn resend_around_known(&mut self, now: Time) -> Verdict {
        let late = |since: Time| match self.lossy {
            true => since.plus_nanos(self.trip.late_after_ns()) <= now,
            false => false,
        };
        let known = self.known_hole.filter(|&(hole, _)| hole == self.unacked);
        match known {
            Some((_, since)) if !late(since) => {}
            None if self.arrived.has_room() && self.probe_at.is_some() => {
                self.known_hole = Some((self.unacked, now));
                self.hasten_probe(now);
            }
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

/// Puts the data of one packet where the request with this index wants it.
#[inline]
fn land(
    sequence: u64,
    operation: Operation,
    data: &[u8],
    index: u64,
    entry: &Entry,
    host: &mut impl Host,
) -> Result<(), WcStatus> {
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
        | RequestKind::Flush { .. }
        | RequestKind::LocalInvalidate { .. }
        | RequestKind::BindWindow => 0,
    };
    let atomic = matches!(operation, Operation::AtomicAcknowledge);
    let read = matches!(entry.request.kind, RequestKind::Read { .. });
    // The bytes at a sequence number are the same whichever request asked for them, so FIRST,
    // MIDDLE and LAST are not held against the peer; a wrong length is.
    if atomic == read || usize::try_from(expected) != Ok(data.len()) {
        return Err(WcStatus::BadResponse);
    }
    if host.scatter(Landing::Request(index), offset, data).is_err() {
        return Err(WcStatus::LocalProtection);
    }
    Ok(())
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
