//! Data of READs that has come early: which of it, and what is missing before it.
//!
//! The answers to READs may overtake one another, or get lost. What comes early is put where it belongs at once,
//! for the request's buffers are the requester's own until it ends; here is written down what that was, so that
//! only what is missing is asked for again, and what has come is not waited for.

use crate::early::OVERTAKEN_MAX;
use crate::time::Time;
use alloc::collections::VecDeque;

/// Runs of early data that are told apart; what would make one more is dropped.
const RUNS_MAX: usize = 64;

/// Data beyond the oldest that is awaited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// Early data is kept.
    keeps: bool,
    /// From one sequence number to before the other, in order, with something missing between any two.
    runs: VecDeque<(u64, u64)>,
    /// What is missing before this sequence number was asked for again.
    asked: u64,
    /// When that was last done for the first of it.
    since: Option<(u64, Time)>,
}

impl Arrived {
    /// Early data is kept from now on.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    /// Nothing has come early.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// One more piece of early data can be noted.
    pub(crate) fn has_room(&self) -> bool {
        self.keeps && self.runs.len() < RUNS_MAX
    }

    /// How many packets have come early.
    pub(crate) fn packets(&self) -> u64 {
        self.runs.iter().map(|&(start, end)| end - start).sum()
    }

    /// The data from one sequence number to before the other have come.
    pub(crate) fn has_all(&self, from: u64, to: u64) -> bool {
        self.runs.iter().any(|&(start, end)| start <= from && to <= end)
    }

    /// The first run of what has come early.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.runs.front().copied()
    }

    /// One past the last of what has come early.
    pub(crate) fn end(&self) -> Option<u64> {
        self.runs.back().map(|&(_, end)| end)
    }

    /// The first run is early no longer.
    pub(crate) fn forget_first(&mut self) {
        self.runs.pop_front();
    }

    /// The data at this sequence number has come.
    pub(crate) fn has(&self, sequence: u64) -> bool {
        self.runs.iter().rev().any(|&(start, end)| (start..end).contains(&sequence))
    }

    /// The data at this sequence number, which had not come, has come; there is room.
    pub(crate) fn note(&mut self, sequence: u64) {
        debug_assert!(self.has_room() && !self.has(sequence), "the caller asked");
        let after = self.runs.iter().rev().take_while(|&&(start, _)| start > sequence).count();
        let at = self.runs.len() - after;
        let joins_next = self.runs.get(at).is_some_and(|&(start, _)| start == sequence + 1);
        let before = at.checked_sub(1).and_then(|before| self.runs.get_mut(before));
        match before.filter(|(_, end)| *end == sequence) {
            Some((_, end)) if !joins_next => *end += 1,
            Some(before) => {
                let start = before.0;
                self.runs.remove(at - 1);
                if let Some(run) = self.runs.get_mut(at - 1) {
                    run.0 = start;
                }
            }
            None if joins_next => {
                if let Some(run) = self.runs.get_mut(at) {
                    run.0 = sequence;
                }
            }
            None => self.runs.insert(at, (sequence, sequence + 1)),
        }
    }

    /// What counts as lost and is to be asked for again: from one sequence number to before the other. Everything
    /// before `unacked` has come; answers are late after `late_ns`.
    pub(crate) fn missing(&mut self, unacked: u64, now: Time, late_ns: u64) -> Option<(u64, u64)> {
        let overtook_max = u64::try_from(OVERTAKEN_MAX).unwrap_or(u64::MAX);
        let mut later = self.packets();
        let (mut from, mut first) = (unacked, None);
        for &(start, end) in &self.runs {
            if later <= overtook_max {
                break;
            }
            first = first.or(Some((from, start)));
            if from >= self.asked {
                self.asked = end;
                if from == unacked {
                    self.since = Some((from, now));
                }
                return Some((from, start));
            }
            later -= end - start;
            from = end;
        }
        let (from, to) = first?;
        let known = self.since.filter(|&(hole, _)| hole == from);
        if known.is_some_and(|(_, at)| now < at.plus_nanos(late_ns)) {
            return None;
        }
        self.since = Some((from, now));
        known.map(|_| (from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const NOW: Time = Time::from_nanos(7);

    fn arrived(numbers: impl IntoIterator<Item = u64>) -> Arrived {
        let mut arrived = Arrived { keeps: true, ..Arrived::default() };
        numbers.into_iter().for_each(|number| arrived.note(number));
        arrived
    }

    #[test]
    fn runs_grow_at_both_ends_and_meet() {
        let mut early = arrived([5, 9, 6, 4, 8]);
        assert_eq!(early.runs, [(4, 7), (8, 10)]);
        assert!(early.has(6) && !early.has(7) && !early.has(3) && !early.has(10));
        early.note(7);
        assert_eq!(early.runs, [(4, 10)]);
        early.note(2);
        assert_eq!(early.runs, [(2, 3), (4, 10)]);
        early.note(3);
        assert_eq!(early.runs, [(2, 10)]);
    }

    /// Goal: every order gives the same runs, and no more of them than there is room for.
    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let numbers = [1, 2, 3, 7, 8, 20, 22, 23, 24, 30];
        for turn in 0..numbers.len() {
            for stride in [1, 3, 7, 9] {
                let order = (0..numbers.len()).map(|at| numbers[(turn + at * stride) % 10]);
                let runs: Vec<_> = arrived(order).runs.into();
                assert_eq!(runs, [(1, 4), (7, 9), (20, 21), (22, 25), (30, 31)]);
            }
        }
        let mut many = Arrived::default();
        assert!(!many.has_room());
        many.keep();
        (0..)
            .map(|at| 2 * at)
            .take_while(|&at| {
                let room = many.has_room();
                if room {
                    many.note(at);
                }
                room
            })
            .for_each(drop);
        assert_eq!(many.runs.len(), RUNS_MAX);
    }

    #[test]
    fn what_more_packets_follow_than_may_overtake_one_is_asked_for_again_once_in_a_while() {
        let mut early = arrived(4..12);
        assert_eq!(early.missing(3, NOW, 100), None);
        early.note(12);
        assert_eq!(early.missing(3, NOW, 100), Some((3, 4)));
        early.note(13);
        assert_eq!(early.missing(3, NOW, 100), None);
        (16..30).for_each(|number| early.note(number));
        assert_eq!(early.missing(3, NOW, 100), Some((14, 16)));
        assert_eq!(early.missing(3, NOW, 100), None);
        assert_eq!(early.missing(3, NOW.plus_nanos(100), 100), Some((3, 4)));
        assert_eq!(early.missing(3, NOW.plus_nanos(100), 100), None);
    }
}
