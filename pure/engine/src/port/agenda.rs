//! When queue pairs want to be woken: a heap that is touched rarely.
//!
//! A queue pair's deadline moves with every acknowledgement, but only the first one after its last
//! wake-up comes here; when that is due, the queue pair is asked again. An earlier deadline replaces
//! a later one: the heap then keeps a stale entry, which counts for nothing and is swept out before
//! there are many, however often a peer makes deadlines change.

use crate::time::Time;
use adverb_wire::Qpn;
use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::Reverse;

/// Deadlines of all queue pairs of a port.
#[derive(Debug)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Time, Qpn)>>,
    /// The deadline that counts, for each queue pair that has one or has had one: most are woken again and again.
    valid: BTreeMap<Qpn, Option<Time>>,
}

/// Stale entries that the heap may have beyond one for each queue pair.
const STALE_MAX: usize = 64;
/// Queue pairs for which there is room from the start.
const CAPACITY: usize = 1024;

impl Default for Agenda {
    fn default() -> Self {
        let heap = BinaryHeap::with_capacity(2 * CAPACITY + STALE_MAX);
        Self { heap, valid: BTreeMap::new() }
    }
}

impl Agenda {
    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Time> {
        // What is at the front counts: stale entries do not stay there.
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Queue pairs that have a deadline or have had one.
    pub(super) fn len(&self) -> usize {
        self.valid.len()
    }

    /// Wakes `qp` at `at`, and not at the time it was to be woken before.
    pub(super) fn arm(&mut self, qp: Qpn, at: Time) {
        self.valid.insert(qp, Some(at));
        self.heap.push(Reverse((at, qp)));
        self.sweep();
        self.drop_stale();
    }

    /// Takes one queue pair whose time has come.
    pub(super) fn due(&mut self, now: Time) -> Option<Qpn> {
        let Reverse((at, qp)) = *self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        if let Some(valid) = self.valid.get_mut(&qp) {
            *valid = None;
        }
        self.drop_stale();
        Some(qp)
    }

    /// Forgets a queue pair.
    pub(super) fn forget(&mut self, qp: Qpn) {
        self.valid.remove(&qp);
        self.drop_stale();
    }

    /// This entry is the one that counts.
    fn counts(&self, qp: Qpn, at: Time) -> bool {
        self.valid.get(&qp) == Some(&Some(at))
    }

    /// Drops entries from the front that no longer count.
    fn drop_stale(&mut self) {
        while let Some(Reverse((at, qp))) = self.heap.peek() {
            if self.counts(*qp, *at) {
                return;
            }
            self.heap.pop();
        }
    }

    /// Drops all entries that no longer count, if they have become many.
    fn sweep(&mut self) {
        if self.heap.len() > 2 * self.valid.len() + STALE_MAX {
            let valid = &self.valid;
            self.heap.retain(|Reverse((at, qp))| valid.get(qp) == Some(&Some(*at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn those_whose_time_has_come_are_taken_in_order() {
        let mut agenda = Agenda::default();
        assert_eq!(agenda.next(), None);
        agenda.arm(Qpn::new(2), at(20));
        agenda.arm(Qpn::new(1), at(10));
        assert_eq!(agenda.next(), Some(at(10)));
        assert_eq!(agenda.due(at(9)), None);
        assert_eq!(agenda.due(at(30)), Some(Qpn::new(1)));
        assert_eq!(agenda.due(at(30)), Some(Qpn::new(2)));
        assert_eq!(agenda.due(at(30)), None);
        assert_eq!(agenda.next(), None);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_one() {
        let mut agenda = Agenda::default();
        agenda.arm(Qpn::new(1), at(50));
        agenda.arm(Qpn::new(1), at(10));
        assert_eq!(agenda.due(at(60)), Some(Qpn::new(1)));
        assert_eq!(agenda.due(at(60)), None);
        agenda.arm(Qpn::new(1), at(70));
        agenda.forget(Qpn::new(1));
        assert_eq!(agenda.due(at(80)), None);
        assert_eq!(agenda.next(), None);
    }

    #[test]
    fn deadlines_that_keep_changing_take_no_memory() {
        let mut agenda = Agenda::default();
        for round in 0..100_000 {
            agenda.arm(Qpn::new(1), at(1 << 40));
            agenda.arm(Qpn::new(1), at(round));
            assert_eq!(agenda.due(at(round)), Some(Qpn::new(1)));
        }
        assert!(agenda.heap.len() <= STALE_MAX + 2);
    }

    #[test]
    fn queue_pairs_that_are_gone_leave_nothing() {
        let mut agenda = Agenda::default();
        for number in 0..1000 {
            agenda.arm(Qpn::new(number), at(10));
            if number % 2 == 0 {
                assert!(agenda.due(at(10)).is_some());
            }
            agenda.forget(Qpn::new(number));
        }
        assert_eq!((agenda.len(), agenda.next()), (0, None));
    }
}
