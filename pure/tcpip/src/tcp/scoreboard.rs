//! What has been sent and not acknowledged, segment by segment. RFC 6675 §3, RFC 8985 §5.

use alloc::collections::VecDeque;

use crate::time::Time;

/// A segment that has been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Position of its first byte, or of the SYN.
    pub(super) start: u64,
    /// Position after its last byte, or after the FIN.
    pub(super) end: u64,
    /// When it left last.
    pub(super) sent_at: Time,
    /// It left more than once.
    pub(super) again: bool,
    /// Where it is taken to be.
    pub(super) fate: Fate,
    /// If it is the first or the last of segments in a row that are at the peer: how many they are.
    run: usize,
}

/// Where a segment is taken to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// In the network.
    InFlight,
    /// Nowhere: it is to be sent again.
    Lost,
    /// At the peer.
    Sacked,
}

/// Segments by position, without gaps, and how many bytes are where.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    sent: VecDeque<Sent>,
    in_flight: u64,
    sacked_segments: usize,
    lost_segments: usize,
    /// No segment before this position is lost.
    lost_from: u64,
}

impl Scoreboard {
    /// Bytes that are taken to be in the network.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Segments that the peer has out of order.
    pub(super) fn sacked_segments(&self) -> usize {
        self.sacked_segments
    }

    /// Some segment is to be sent again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost_segments > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Segments that are remembered.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter()
    }

    /// All segments are in the network, and left once.
    pub(super) fn is_plain(&self) -> bool {
        self.sacked_segments == 0
            && self.lost_segments == 0
            && !self.sent.iter().any(|sent| sent.again)
    }

    /// All segments have arrived, which are in the network: `delivered` gets each.
    pub(super) fn clear_plain(&mut self, delivered: impl FnMut(&Sent)) {
        self.sent.iter().for_each(delivered);
        self.sent.clear();
        self.in_flight = 0;
    }

    /// A new segment leaves.
    pub(super) fn send(&mut self, start: u64, end: u64, now: Time) {
        debug_assert!(self.sent.back().is_none_or(|last| last.end == start), "a gap");
        let fate = Fate::InFlight;
        self.sent.push_back(Sent { start, end, sent_at: now, again: false, fate, run: 0 });
        self.in_flight += end - start;
    }

    /// The first lost segment, or as much of it as `len_max` says, leaves again.
    pub(super) fn send_lost(&mut self, len_max: u64, now: Time) -> Option<(u64, u64)> {
        if self.lost_segments == 0 {
            return None;
        }
        let from = self.sent.partition_point(|sent| sent.end <= self.lost_from);
        let found = self.sent.range(from..).position(|sent| sent.fate == Fate::Lost)? + from;
        let range = self.send_again(found, len_max, now)?;
        self.lost_from = range.1;
        Some(range)
    }

    /// The last segment leaves again, unless it has arrived.
    pub(super) fn send_last(&mut self, len_max: u64, now: Time) -> Option<(u64, u64)> {
        let last = self.sent.len().checked_sub(1)?;
        self.sent.get(last).filter(|sent| sent.fate != Fate::Sacked)?;
        self.send_again(last, len_max, now)
    }

    fn send_again(&mut self, at: usize, len_max: u64, now: Time) -> Option<(u64, u64)> {
        let sent = *self.sent.get(at)?;
        // The path may have become narrower: what is longer leaves in parts.
        let end = sent.end.min(sent.start + len_max.max(1));
        if end < sent.end {
            self.split(at, end);
        }
        self.set(at, Fate::InFlight);
        let sent = self.sent.get_mut(at)?;
        (sent.sent_at, sent.again) = (now, true);
        Some((sent.start, sent.end))
    }

    fn split(&mut self, at: usize, position: u64) {
        let Some(sent) = self.sent.get_mut(at) else {
            return;
        };
        let rest = Sent { start: position, ..*sent };
        sent.end = position;
        match rest.fate {
            Fate::InFlight => {}
            Fate::Lost => self.lost_segments += 1,
            Fate::Sacked => self.sacked_segments += 1,
        }
        self.sent.insert(at + 1, rest);
        if rest.fate == Fate::Sacked {
            self.set_run(at, rest.run + 1);
        }
    }

    /// How many segments in a row are at the peer, of which this is the first or the last.
    fn run(&self, at: usize) -> usize {
        self.sent.get(at).filter(|sent| sent.fate == Fate::Sacked).map_or(0, |sent| sent.run)
    }

    /// From this segment on, so many in a row are at the peer; those before and after them are not.
    fn set_run(&mut self, at: usize, run: usize) {
        for end in [at, (at + run).saturating_sub(1)] {
            if let Some(sent) = self.sent.get_mut(end).filter(|_| run > 0) {
                sent.run = run;
            }
        }
    }

    /// The segment, which was not, is at the peer: it may join others. Returns where the next one is that is not.
    fn arrive(&mut self, at: usize) -> usize {
        self.set(at, Fate::Sacked);
        let before = at.checked_sub(1).map_or(0, |before| self.run(before));
        let after = self.run(at + 1);
        self.set_run(at - before, before + 1 + after);
        at + 1 + after
    }

    fn is_sacked(&self, at: usize) -> bool {
        self.sent.get(at).is_some_and(|sent| sent.fate == Fate::Sacked)
    }

    /// All before `position` has arrived. `delivered` gets each segment that was not known to have.
    pub(super) fn acknowledge(&mut self, position: u64, mut delivered: impl FnMut(&Sent)) {
        while let Some(first) = self.sent.front().copied() {
            if first.start >= position {
                return;
            }
            if first.end > position {
                self.split(0, position);
                continue;
            }
            if first.fate != Fate::Sacked {
                delivered(&first);
                self.arrive(0); // So that it counts once, below.
            }
            self.sacked_segments -= 1;
            let run = self.run(0);
            self.sent.pop_front();
            self.set_run(0, run.saturating_sub(1));
        }
    }

    /// The segments within `from..to` have arrived. `delivered` gets each that was not known to have.
    pub(super) fn sack(&mut self, from: u64, to: u64, mut delivered: impl FnMut(&Sent)) {
        let mut at = self.sent.partition_point(|sent| sent.start < from);
        let mut next = |board: &mut Self, at| {
            let sent = board.sent.get(at).copied().filter(|sent| sent.end <= to)?;
            if sent.fate == Fate::Sacked {
                return Some(at + sent.run.max(1));
            }
            delivered(&sent);
            Some(board.arrive(at))
        };
        // Within a run, its length is not known.
        while at > 0 && self.is_sacked(at - 1) && self.is_sacked(at) {
            at += 1;
        }
        while let Some(after) = next(self, at) {
            at = after;
        }
    }

    /// Marks as lost each segment in flight for which `is_lost` says so; looks no further than it says `None`, and not
    /// at segments that have arrived.
    pub(super) fn lose(&mut self, mut is_lost: impl FnMut(&Sent) -> Option<bool>) -> bool {
        let mut any = false;
        let mut next = 0;
        while let Some(sent) = self.sent.get(next).copied() {
            let at = next;
            if sent.fate == Fate::Sacked {
                next += sent.run.max(1);
                continue;
            }
            next += 1;
            match is_lost(&sent) {
                Some(true) if sent.fate == Fate::InFlight => {
                    self.set(at, Fate::Lost);
                    self.lost_from = self.lost_from.min(sent.start);
                    any = true;
                }
                Some(_) => {}
                None => break,
            }
        }
        any
    }

    /// The peer has dropped what it had said that it has: RFC 2018 §8.
    pub(super) fn renege(&mut self) {
        for at in 0..self.sent.len() {
            if self.is_sacked(at) {
                self.set(at, Fate::InFlight);
            }
        }
    }

    fn set(&mut self, at: usize, fate: Fate) {
        let Some(sent) = self.sent.get_mut(at) else {
            return;
        };
        let len = sent.end - sent.start;
        match sent.fate {
            Fate::InFlight => self.in_flight -= len,
            Fate::Lost => self.lost_segments -= 1,
            Fate::Sacked => self.sacked_segments -= 1,
        }
        sent.fate = fate;
        match fate {
            Fate::InFlight => self.in_flight += len,
            Fate::Lost => self.lost_segments += 1,
            Fate::Sacked => self.sacked_segments += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn counted(board: &Scoreboard) -> (u64, usize, usize) {
        let of = |fate| board.sent.iter().filter(move |sent| sent.fate == fate);
        let in_flight = of(Fate::InFlight).map(|sent| sent.end - sent.start).sum();
        (in_flight, of(Fate::Sacked).count(), of(Fate::Lost).count())
    }

    #[test]
    fn sums_are_right_after_everything_that_can_happen() {
        let mut board = Scoreboard::default();
        for at in 0..10 {
            board.send(at * 100, at * 100 + 100, Time::from_nanos(at));
        }
        let check = |board: &Scoreboard| {
            let known = (board.in_flight, board.sacked_segments, board.lost_segments);
            assert_eq!(known, counted(board));
        };
        let mut delivered = Vec::new();
        board.sack(250, 600, |sent| delivered.push(sent.start));
        assert_eq!(delivered, [300, 400, 500]);
        check(&board);
        assert!(board.lose(|sent| (sent.start < 700).then_some(true)));
        check(&board);
        assert_eq!(board.send_lost(70, Time::ZERO), Some((0, 70)));
        assert_eq!(board.send_lost(70, Time::ZERO), Some((70, 100)));
        assert_eq!(board.send_lost(70, Time::ZERO), Some((100, 170)));
        check(&board);
        delivered.clear();
        board.acknowledge(450, |sent| delivered.push(sent.start));
        assert_eq!(delivered, [0, 70, 100, 170, 200]);
        check(&board);
        assert_eq!(board.send_lost(1000, Time::ZERO), Some((600, 700)));
        assert_eq!(board.send_lost(1000, Time::ZERO), None);
        board.renege();
        check(&board);
        assert_eq!(board.send_last(1000, Time::ZERO), Some((900, 1000)));
        board.acknowledge(1000, |_| {});
        check(&board);
        assert!(board.is_empty());
    }

    #[test]
    fn the_last_segment_leaves_again_and_lost_ones_before_it_are_still_found() {
        let mut board = Scoreboard::default();
        for at in 0..4 {
            board.send(at * 100, at * 100 + 100, Time::ZERO);
        }
        board.lose(|_| Some(true));
        assert_eq!(board.send_lost(100, Time::ZERO), Some((0, 100)));
        assert_eq!(board.send_last(50, Time::ZERO), Some((300, 350)));
        for expected in [(100, 200), (200, 300), (350, 400)] {
            assert!(board.has_lost());
            assert_eq!(board.send_lost(100, Time::ZERO), Some(expected));
        }
        assert!(!board.has_lost());
    }

    /// What is known of runs is what there is.
    fn check_runs(board: &Scoreboard) {
        let mut at = 0;
        while at < board.sent.len() {
            let run = board.sent.range(at..).take_while(|sent| sent.fate == Fate::Sacked).count();
            assert_eq!(board.run(at), run);
            assert_eq!(board.run(at + run.max(1) - 1), run);
            at += run.max(1);
        }
    }

    /// Goal: runs of segments that have arrived are known after any sequence of events, and what has arrived is what a
    /// list of bytes says.
    #[test]
    fn runs_are_known_whatever_happens() {
        let mut random = adverb_fabric::Random::new(14);
        for _ in 0..200 {
            let (mut board, mut end, mut first) = (Scoreboard::default(), 0_u64, 0_u64);
            for _ in 0..200 {
                let (from, len) = (random.between(first, end), random.between(1, 40));
                match random.below(12) {
                    0..=3 => {
                        board.send(end, end + len, Time::ZERO);
                        end += len;
                    }
                    4..=7 => {
                        let to = (from + 3 * len).min(end);
                        board.sack(from, to, |sent| assert_ne!(sent.fate, Fate::Sacked));
                        let within = |sent: &&Sent| sent.start >= from && sent.end <= to;
                        assert!(board.iter().filter(within).all(|sent| sent.fate == Fate::Sacked));
                    }
                    8 => _ = board.lose(|sent| Some(sent.start % 3 == 0)),
                    9 => _ = board.send_lost(len, Time::ZERO),
                    10 => _ = board.send_last(len, Time::ZERO),
                    _ if len == 1 => board.renege(),
                    _ => {
                        first = first.max((first + len).min(end));
                        board.acknowledge(first, |_| {});
                    }
                }
                check_runs(&board);
                let known = (board.in_flight, board.sacked_segments, board.lost_segments);
                assert_eq!(known, counted(&board));
            }
        }
    }

    #[test]
    fn what_has_arrived_is_not_looked_at_again() {
        let mut board = Scoreboard::default();
        for at in 0..1000 {
            board.send(at, at + 1, Time::ZERO);
        }
        let mut looked_at = 0;
        for to in 2..1000 {
            board.sack(1, to, |_| {});
            board.lose(|sent| {
                looked_at += 1;
                (sent.start == 0).then_some(true)
            });
        }
        // The first, and the one after those that have arrived.
        assert_eq!(looked_at, 2 * 998);
    }
}
