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

    /// A new segment leaves.
    pub(super) fn send(&mut self, start: u64, end: u64, now: Time) {
        debug_assert!(self.sent.back().is_none_or(|last| last.end == start), "a gap");
        let fate = Fate::InFlight;
        self.sent.push_back(Sent { start, end, sent_at: now, again: false, fate });
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

    /// The last segment leaves again.
    pub(super) fn send_last(&mut self, len_max: u64, now: Time) -> Option<(u64, u64)> {
        let last = self.sent.len().checked_sub(1)?;
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
    }

    /// All before `position` has arrived. `delivered` gets each segment that was not known to have.
    pub(super) fn acknowledge(&mut self, position: u64, mut delivered: impl FnMut(&Sent)) {
        while let Some(first) = self.sent.front().copied() {
            if first.end > position {
                if first.start < position {
                    self.split(0, position);
                    continue;
                }
                return;
            }
            if first.fate != Fate::Sacked {
                delivered(&first);
            }
            self.set(0, Fate::Sacked); // So that it counts once, below.
            self.sacked_segments -= 1;
            self.sent.pop_front();
        }
    }

    /// The segments within `from..to` have arrived. `delivered` gets each that was not known to have.
    pub(super) fn sack(&mut self, from: u64, to: u64, mut delivered: impl FnMut(&Sent)) {
        let mut at = self.sent.partition_point(|sent| sent.start < from);
        while let Some(sent) = self.sent.get(at).copied() {
            if sent.end > to {
                return;
            }
            if sent.fate != Fate::Sacked {
                delivered(&sent);
                self.set(at, Fate::Sacked);
            }
            at += 1;
        }
    }

    /// Marks as lost each segment in flight for which `is_lost` says so; looks no further than it says `None`.
    pub(super) fn lose(&mut self, mut is_lost: impl FnMut(&Sent) -> Option<bool>) -> bool {
        let mut any = false;
        for at in 0..self.sent.len() {
            let Some(sent) = self.sent.get(at).copied() else {
                break;
            };
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
            if self.sent.get(at).is_some_and(|sent| sent.fate == Fate::Sacked) {
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
}
