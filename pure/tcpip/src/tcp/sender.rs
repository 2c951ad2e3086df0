//! The sending half of a connection: what to send, when to send it again, and when to give up.
//!
//! It knows positions, not sequence numbers, and emits none: `departure.rs` makes segments of what it chooses.

use core::time::Duration;

use super::config::{Algorithm, Config};
use super::congestion::Congestion;
use super::outbox::Outbox;
use super::pacer::Pacer;
use super::piece::Piece;
use super::rack::{Answer, Rack};
use super::round_trip::RoundTrip;
use super::scoreboard::{Fate, Scoreboard, Sent};
use crate::time::{Time, earliest, is_due};

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Sender<B> {
    pub(super) outbox: Outbox<B>,
    board: Scoreboard,
    congestion: Congestion,
    trip: RoundTrip,
    rack: Rack,
    phase: Phase,
    /// All before this position is acknowledged.
    unacked: u64,
    /// Position after all that was ever sent.
    next: u64,
    pub(super) peer: PeerWindow,
    /// Bytes of payload in a full segment.
    segment: u64,
    /// The peer sends selective acknowledgements.
    pub(super) sacks: bool,
    /// Repeated acknowledgements of `unacked`, from a peer that does not.
    repeats: u64,
    timers: Timers,
    pub(super) patience: Patience,
    probe: Probe,
    pacer: Pacer,
    /// A segment may leave whatever the congestion window says: the first of a recovery, or a probe.
    forced: bool,
    /// Small segments leave at once.
    pub(super) no_delay: bool,
    /// Small segments wait for more, or for a while.
    corked: bool,
    /// When something left last.
    last_sent: Time,
}

/// How much the peer takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerWindow {
    /// Position after the last byte that the peer takes.
    pub(super) limit: u64,
    /// The largest window that it ever had.
    pub(super) largest: u64,
    /// Sequence position and acknowledgement of the segment that said so: RFC 9293's WL1 and WL2.
    pub(super) said_by: (u64, u64),
}

/// Whether segments are being sent again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// They are not.
    Open,
    /// Some were lost; over when all before `until` is acknowledged.
    Recovery { until: u64 },
    /// There was no answer in time; over when all before `until` is acknowledged.
    TimedOut { until: u64 },
}

/// Deadlines.
#[derive(Clone, Copy, Debug, Default)]
struct Timers {
    /// Retransmission. RFC 6298.
    retransmit: Option<Time>,
    /// A probe for the loss of the last segments. RFC 8985 §7.
    tail: Option<Time>,
    /// Segments that may have been overtaken are lost then.
    reorder: Option<Time>,
    /// The peer's window is looked after, or small segments have waited enough. RFC 9293 §3.8.6.
    persist: Option<Time>,
}

/// How long silence is borne.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The longest silence.
    pub(super) limit: Duration,
    /// Since when the peer owes an answer.
    since: Option<Time>,
}

/// Probes on the way, or due.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    /// Position after a tail loss probe that is not answered, and whether it was sent before.
    tail: Option<(u64, bool)>,
    /// A tail loss probe is due.
    tail_due: bool,
    /// A window probe is due: a segment that the peer must answer.
    window_due: bool,
    /// Small segments leave, whatever else says no.
    small_due: bool,
    /// A segment of so many bytes, longer than others, is due.
    longer: Option<u64>,
    /// One longer than others has arrived.
    carried: Option<u64>,
}

/// What the segment after this one should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Choice {
    /// These positions.
    Send {
        /// The first.
        from: u64,
        /// After the last.
        to: u64,
    },
    /// A segment without payload that the peer must answer.
    Probe,
}

/// An acknowledgement, in positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack<I> {
    /// All before it has arrived.
    pub(super) position: u64,
    /// What else has arrived.
    pub(super) sacked: I,
    /// The peer says that this arrived twice.
    pub(super) twice: bool,
    /// It came alone, and said what the one before it said.
    pub(super) repeated: bool,
    /// When the segment that it answers left, if time stamps say so.
    pub(super) echoed: Option<Time>,
}

impl<B: AsRef<[u8]>> Sender<B> {
    pub(super) fn new(config: &Config, segment: u64, now: Time) -> Self {
        Self {
            outbox: Outbox::new(),
            board: Scoreboard::default(),
            congestion: Congestion::new(config.congestion, segment),
            trip: RoundTrip::new(config),
            rack: Rack::default(),
            phase: Phase::Open,
            unacked: 0,
            next: 0,
            peer: PeerWindow { limit: 1, ..PeerWindow::default() },
            segment,
            sacks: false,
            repeats: 0,
            timers: Timers::default(),
            patience: Patience { limit: config.handshake_timeout, since: None },
            probe: Probe::default(),
            pacer: Pacer::new(config.pacing),
            forced: false,
            no_delay: config.no_delay,
            corked: false,
            last_sent: now,
        }
    }

    /// All before this position is acknowledged.
    pub(super) fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Position after all that was ever sent.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes that the program has handed over and the peer has not acknowledged.
    pub(super) fn queued(&self) -> u64 {
        self.outbox.end().saturating_sub(self.unacked.max(1))
    }

    /// Bytes of payload in a full segment.
    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// The smoothed round trip, if one has been measured.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.trip.smoothed()
    }

    /// Bytes that may be in the network.
    pub(super) fn congestion_window(&self) -> u64 {
        self.congestion.window()
    }

    /// Segments that are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.board.len()
    }

    /// Small segments wait for more, or do not any longer.
    pub(super) fn set_corked(&mut self, corked: bool) {
        self.corked = corked;
    }

    /// Bytes a second; `None` is no limit.
    pub(super) fn set_pacing(&mut self, rate: Option<u64>) {
        self.pacer.set(rate);
    }

    /// How the network's load is guessed from now on.
    pub(super) fn set_congestion(&mut self, algorithm: Algorithm) {
        self.congestion.set_algorithm(algorithm);
    }

    /// The handshake has agreed upon these.
    pub(super) fn agree(&mut self, segment: u64, sacks: bool) {
        self.sacks = sacks;
        self.set_segment(segment);
    }

    /// The connection is established already, and nothing is in flight: the SYN has been acknowledged, and the peer takes
    /// so many bytes.
    pub(super) fn resume(&mut self, window: u64, patience: Duration) {
        (self.unacked, self.next) = (1, 1);
        self.peer = PeerWindow { limit: 1 + window, largest: window, said_by: (0, 0) };
        self.patience = Patience { limit: patience, since: None };
    }

    /// What has been sent is to leave again: the SYN, with another face.
    pub(super) fn repeat(&mut self) {
        self.board.lose(|_| Some(true));
        self.forced = true;
    }

    /// The path takes shorter segments only; longer ones on the way will not arrive.
    pub(super) fn shorten(&mut self, segment: u64) {
        self.set_segment(segment);
        self.probe.longer = None;
        self.board.lose(|sent| Some(sent.end - sent.start > segment));
        self.forced = true;
        self.timers.tail = None; // What is lost is known already.
    }

    /// The path takes longer segments.
    pub(super) fn lengthen(&mut self, segment: u64) {
        self.set_segment(segment);
    }

    /// One segment of so many bytes is to leave, of which nothing is known whether the path takes it.
    pub(super) fn try_longer(&mut self, bytes: u64) {
        self.probe.longer = Some(bytes);
    }

    /// It has not left.
    pub(super) fn tries_longer(&self) -> bool {
        self.probe.longer.is_some()
    }

    /// Bytes of the longest segment that has arrived, if it was longer than others.
    pub(super) fn take_carried(&mut self) -> Option<u64> {
        self.probe.carried.take()
    }

    /// Time-outs since the last answer, if the first segment in flight has so many bytes or more.
    pub(super) fn time_outs_of(&self, bytes: u64) -> u32 {
        let first = self.board.iter().next();
        let long = first.is_some_and(|sent| sent.end - sent.start >= bytes);
        if long { self.trip.time_outs() } else { 0 }
    }

    fn set_segment(&mut self, segment: u64) {
        self.segment = segment;
        self.congestion.set_segment(segment);
    }

    /// Drops everything: nothing is sent any more.
    pub(super) fn clear(&mut self) {
        self.outbox.clear();
        self.board = Scoreboard::default();
        self.timers = Timers::default();
        self.patience.since = None;
        self.next = self.next.max(self.unacked);
    }

    /// There is nothing that could leave: all has been sent, nothing is lost, and no probe is due.
    pub(super) fn is_calm(&self) -> bool {
        self.next > 0
            && self.next >= self.outbox.end_with_fin()
            && !self.board.has_lost()
            && !self.probe.window_due
            && !self.probe.tail_due
    }

    /// What leaves next; it must leave.
    pub(super) fn choose(&mut self, now: Time) -> Option<Choice> {
        if self.pacer.waits(now) {
            return None;
        }
        if core::mem::take(&mut self.probe.window_due) {
            return Some(Choice::Probe);
        }
        let room = self.congestion.window().saturating_sub(self.in_flight());
        let can = self.forced || room >= self.segment || self.in_flight() == 0;
        let tail_due = core::mem::take(&mut self.probe.tail_due);
        let (from, to) = if can && self.board.has_lost() {
            self.board.send_lost(self.segment, now)?
        } else if let Some(range) = self.new_range(if can || tail_due { u64::MAX } else { room }) {
            self.board.send(range.0, range.1, now);
            self.next = range.1;
            self.probe.longer = self.probe.longer.filter(|longer| range.1 - range.0 < *longer);
            self.expect_tail(range.1, tail_due.then_some(false), now);
            range
        } else if tail_due {
            let range = self.board.send_last(self.segment, now)?;
            self.expect_tail(range.1, Some(true), now);
            range
        } else {
            self.watch_window(now);
            return None;
        };
        self.forced = false;
        self.probe.small_due = false;
        self.timers.persist = None;
        self.last_sent = now;
        self.pacer.sent(to - from, now);
        if self.timers.retransmit.is_none() {
            self.timers.retransmit = Some(now.plus(self.trip.timeout()));
        }
        self.patience.since = self.patience.since.or(Some(now));
        Some(Choice::Send { from, to })
    }

    /// The new positions that may leave now, if `room` bytes fit the network.
    fn new_range(&self, room: u64) -> Option<(u64, u64)> {
        let (from, all) = (self.next, self.outbox.end_with_fin());
        if from == 0 {
            return Some((0, 1)); // The SYN.
        }
        if from >= all {
            return None;
        }
        let end = self.outbox.end();
        let ready = end.min(self.peer.limit.max(from)) - from;
        let longer =
            self.probe.longer.filter(|longer| ready >= *longer && self.phase == Phase::Open);
        let to = from + ready.min(longer.unwrap_or(self.segment));
        let len = to - from;
        // The FIN counts in the peer's window, but not as a byte of payload.
        let with_fin = u64::from(to == end && all > end && self.peer.limit > end);
        if len + with_fin == 0 || len > room {
            return None;
        }
        let full = len >= self.segment;
        let last = to == end;
        let quiet = self.next == self.unacked;
        // RFC 9293 §3.8.6.2.1 and §3.7.4: no small segment if a larger one can be expected.
        let may_be_small = if last {
            with_fin == 1 || !self.corked && (self.no_delay || quiet)
        } else {
            len >= self.peer.largest / 2
        };
        (full || may_be_small || self.probe.small_due).then_some((from, to + with_fin))
    }

    /// Nothing leaves although there is something: sees to it that this ends.
    fn watch_window(&mut self, now: Time) {
        let waiting = self.unacked > 0 && self.next < self.outbox.end_with_fin();
        let quiet = self.next == self.unacked;
        if waiting && (quiet || self.corked) && self.timers.persist.is_none() {
            let blocked = self.peer.limit <= self.next;
            let wait = if blocked { self.trip.timeout() } else { SMALL_WAIT };
            self.timers.persist = Some(now.plus(wait));
        }
    }

    fn expect_tail(&mut self, end: u64, probe: Option<bool>, now: Time) {
        match probe {
            Some(again) => {
                self.probe.tail = Some((end, again));
                self.timers.tail = None;
                self.timers.retransmit = Some(now.plus(self.trip.timeout()));
            }
            None => self.arm_tail(now),
        }
    }

    /// RFC 8985 §7.2: after two round trips without an answer the last segment is asked for.
    fn arm_tail(&mut self, now: Time) {
        let can = self.sacks
            && self.phase == Phase::Open
            && self.board.sacked_segments() == 0
            && self.probe.tail.is_none()
            && !self.board.is_empty();
        self.timers.tail = self.trip.smoothed().filter(|_| can).map(|smoothed| {
            let alone = self.board.in_flight() <= self.segment;
            let wait = smoothed * 2 + if alone { PEER_DELAY_MAX } else { TAIL_MIN };
            now.plus(wait)
        });
    }

    fn in_flight(&self) -> u64 {
        // Each repeated acknowledgement is of a segment that has left the network: RFC 5681 §3.2.
        self.board.in_flight().saturating_sub(self.repeats.saturating_mul(self.segment))
    }

    /// Takes an acknowledgement of something that was sent. Returns how many positions are acknowledged that were
    /// not.
    pub(super) fn on_ack(&mut self, ack: Ack<impl Iterator<Item = (u64, u64)>>, now: Time) -> u64 {
        let before = self.board.in_flight();
        let (mut sample, mut again) = (None, false);
        let shortest = self.trip.shortest().unwrap_or_default();
        let (rack, end, mut longest) = (&mut self.rack, self.outbox.end(), 0);
        let mut deliver = |sent: &Sent, echoed: Option<Time>| {
            longest = longest.max(end.min(sent.end).saturating_sub(sent.start));
            rack.deliver(sent, &Answer { now, echoed, shortest });
            again |= sent.again;
            // What follows a hole is acknowledged when the hole is filled, which is no round trip.
            sample = (!again).then(|| now.since(sent.sent_at));
        };
        self.board.acknowledge(ack.position, |sent| deliver(sent, ack.echoed));
        for (from, to) in ack.sacked {
            // The time stamp is that of the last segment in order, not of what came early: RFC 7323 §4.3.
            self.board.sack(from, to, |sent| deliver(sent, None));
        }
        self.probe.carried = (longest > self.segment).then_some(longest);
        let acked = ack.position.saturating_sub(self.unacked);
        if acked > 0 {
            self.unacked = ack.position;
            self.outbox.release(ack.position);
            self.trip.answered();
            self.patience.since = (!self.board.is_empty()).then_some(now);
        }
        if let Some(sample) = sample {
            self.trip.measure(sample, now);
        }
        if ack.twice {
            self.rack.on_duplicate();
        }
        self.answer_tail(ack.position, ack.twice);
        let lost = if self.sacks {
            self.detect(now)
        } else {
            self.count_repeats(ack.position, ack.repeated, acked)
        };
        self.change_phase(lost, before, ack.position);
        if acked > 0 && !matches!(self.phase, Phase::Recovery { .. }) {
            let rtt = self.trip.smoothed().unwrap_or_default();
            self.congestion.on_ack(acked, before, rtt, now);
        }
        if acked > 0 {
            let outstanding = !self.board.is_empty();
            self.timers.retransmit = outstanding.then(|| now.plus(self.trip.timeout()));
        }
        if acked > 0 || self.board.sacked_segments() > 0 {
            self.arm_tail(now);
        }
        acked
    }

    /// An acknowledgement of this position, which says nothing else, is of all that is on its way, and that is as it
    /// mostly is: nothing is lost, has left twice, or is known to have arrived.
    pub(super) fn is_answered_by(&self, position: u64) -> bool {
        position == self.next
            && position > self.unacked
            && self.phase == Phase::Open
            && self.probe.tail.is_none()
            && self.board.is_plain()
    }

    /// Takes such an acknowledgement, as [`Sender::on_ack`] would.
    pub(super) fn on_answer(&mut self, position: u64, now: Time) -> u64 {
        let before = self.board.in_flight();
        let answer =
            Answer { now, echoed: None, shortest: self.trip.shortest().unwrap_or_default() };
        let (rack, end) = (&mut self.rack, self.outbox.end());
        let (mut longest, mut sent_at) = (0, now);
        self.board.clear_plain(|sent| {
            longest = longest.max(end.min(sent.end).saturating_sub(sent.start));
            sent_at = sent.sent_at;
            rack.deliver(sent, &answer);
        });
        self.probe.carried = (longest > self.segment).then_some(longest);
        let acked = position - self.unacked;
        self.unacked = position;
        self.outbox.release(position);
        self.trip.answered();
        self.trip.measure(now.since(sent_at), now);
        let rtt = self.trip.smoothed().unwrap_or_default();
        self.congestion.on_ack(acked, before, rtt, now);
        (self.timers.retransmit, self.timers.tail) = (None, None);
        match self.sacks {
            true => self.timers.reorder = None,
            false => self.repeats = 0,
        }
        self.patience.since = None;
        acked
    }

    fn detect(&mut self, now: Time) -> bool {
        let hurry = self.phase != Phase::Open || self.board.sacked_segments() >= REPEATS;
        let smoothed = self.trip.smoothed().unwrap_or_default();
        let shortest = self.trip.shortest().unwrap_or_default();
        let (lost, again) = self.rack.detect(&mut self.board, hurry, smoothed, shortest, now);
        self.timers.reorder = again;
        lost
    }

    /// Loss without selective acknowledgements: RFC 5681 §3.2, RFC 6582.
    fn count_repeats(&mut self, position: u64, repeated: bool, acked: u64) -> bool {
        let first_is_lost = if acked > 0 {
            self.repeats = 0;
            // An acknowledgement within a recovery: the next hole.
            matches!(self.phase, Phase::Recovery { until } if position < until)
        } else if repeated && !self.board.is_empty() {
            self.repeats += 1;
            self.repeats == 3 && self.phase == Phase::Open
        } else {
            false
        };
        if !first_is_lost {
            return false;
        }
        // RFC 6582 §3.2: the next hole leaves at once, for nothing else brings another acknowledgement.
        self.forced |= acked > 0;
        let first = self.unacked;
        self.board.lose(|sent| (sent.start <= first).then_some(!sent.again || acked > 0))
    }

    /// RFC 8985 §7.4: if an answer covers the probe and nothing arrived twice, the probe has hidden a loss.
    fn answer_tail(&mut self, position: u64, twice: bool) {
        let Some((end, again)) = self.probe.tail else {
            return;
        };
        if again && !twice && position > end && self.phase == Phase::Open {
            self.congestion.on_loss(self.congestion.window());
        }
        if position > end || twice || !again && position == end {
            self.probe.tail = None;
        }
    }

    fn change_phase(&mut self, lost: bool, before: u64, position: u64) {
        match self.phase {
            Phase::Recovery { until } | Phase::TimedOut { until } if position >= until => {
                self.phase = Phase::Open;
                self.repeats = 0;
                self.rack.on_recovered();
            }
            Phase::Open | Phase::Recovery { .. } | Phase::TimedOut { .. } => {}
        }
        if lost && self.phase == Phase::Open {
            self.phase = Phase::Recovery { until: self.next };
            self.congestion.on_loss(before);
            self.forced = true;
            self.timers.tail = None;
            self.probe.tail = None;
        }
    }

    /// The peer has said how much it takes.
    pub(super) fn on_window(&mut self, limit: u64, window: u64, said_by: (u64, u64)) {
        if limit > self.peer.limit {
            self.timers.persist = None;
            if self.next == self.unacked {
                self.trip.answered();
            }
        }
        self.peer.limit = limit;
        self.peer.largest = self.peer.largest.max(window);
        self.peer.said_by = said_by;
    }

    /// The peer is there, though it takes nothing: that is borne for as long as there is a program to end it.
    pub(super) fn on_alive(&mut self) {
        if self.board.is_empty() {
            self.patience.since = None;
        }
    }

    /// When [`Sender::on_time`] is to be called.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let Timers { retransmit, tail, reorder, persist } = self.timers;
        earliest([retransmit, tail, reorder, persist, self.pacer.deadline(), self.patience.end()])
    }

    /// Time has passed. Says whether the peer has been silent for too long.
    pub(super) fn on_time(&mut self, now: Time) -> bool {
        self.pacer.on_time(now);
        if is_due(self.timers.reorder, now) {
            self.timers.reorder = None;
            let before = self.board.in_flight();
            let lost = self.detect(now);
            self.change_phase(lost, before, self.unacked);
        }
        if is_due(self.timers.tail, now) {
            self.timers.tail = None;
            self.probe.tail_due = true;
        }
        if is_due(self.timers.persist, now) {
            self.timers.persist = None;
            self.on_persist(now);
        }
        if is_due(self.timers.retransmit, now) {
            self.on_timeout(now);
        }
        is_due(self.patience.end(), now)
    }

    fn on_persist(&mut self, now: Time) {
        if self.peer.limit > self.next {
            self.probe.small_due = true;
            return;
        }
        self.probe.window_due = true;
        self.trip.back_off();
        self.patience.since = self.patience.since.or(Some(now));
    }

    /// No answer in time: RFC 6298 §5, RFC 5681 §3.1.
    fn on_timeout(&mut self, now: Time) {
        if self.board.is_empty() {
            self.timers.retransmit = None;
            return;
        }
        if self.board.iter().next().is_some_and(|first| first.fate == Fate::Sacked) {
            self.board.renege();
        }
        if self.sacks {
            self.rack.on_timeout(&mut self.board, now);
        } else {
            self.board.lose(|_| Some(true));
        }
        let first = !matches!(self.phase, Phase::TimedOut { .. });
        self.congestion.on_timeout(self.next - self.unacked, first);
        self.phase = Phase::TimedOut { until: self.next };
        self.repeats = 0;
        self.trip.back_off();
        self.probe = Probe::default();
        self.forced = true;
        (self.timers.tail, self.timers.reorder) = (None, None);
        self.timers.retransmit = Some(now.plus(self.trip.timeout()));
    }

    /// Nothing has left for so long that the network may have changed: RFC 5681 §4.1.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        now.since(self.last_sent) > self.trip.timeout()
    }

    /// Hands over bytes to be sent.
    pub(super) fn push(&mut self, piece: Piece<B>, now: Time) {
        if self.board.is_empty() && self.is_idle(now) {
            self.congestion.on_idle(now);
        }
        self.outbox.push(piece);
    }
}

impl Patience {
    /// When it is over.
    fn end(self) -> Option<Time> {
        self.since.map(|since| since.plus(self.limit))
    }
}

/// Signs of loss that RFC 5681 waits for.
const REPEATS: usize = 3;

/// How long small segments wait at most, if the peer's window or a cork holds them: RFC 9293 §3.8.6.2.1 has it
/// between 0.1 and 1 second.
const SMALL_WAIT: Duration = Duration::from_millis(200);

/// How long a peer may hold the acknowledgement of a single segment. RFC 8985 §7.2.
const PEER_DELAY_MAX: Duration = Duration::from_millis(200);

/// Room for the jitter of timers.
const TAIL_MIN: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
