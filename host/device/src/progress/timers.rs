//! When queue pairs want to be woken: a heap that is touched rarely.
//!
//! A queue pair's deadline moves with every acknowledgement, but only the first one after its last
//! wake-up comes here; when that is due, the queue pair is asked again. An earlier deadline replaces
//! a later one: the heap then keeps a stale entry, which counts for nothing and is swept out before
//! there are many, however often a peer makes deadlines change.

use crate::sync::Mutex;
use adverb_engine::Time;
use adverb_wire::Qpn;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

/// Deadlines of all queue pairs of a port.
#[derive(Debug)]
pub(crate) struct Timers {
    agenda: Mutex<Agenda>,
    /// The earliest deadline, `u64::MAX` if there is none.
    next: AtomicU64,
}

#[derive(Debug)]
struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The deadline that counts, for each queue pair that has one.
    valid: HashMap<u32, u64>,
}

/// Stale entries that the heap may have beyond one for each queue pair.
const STALE_MAX: usize = 64;
/// Queue pairs for which there is room from the start.
const CAPACITY: usize = 1024;

impl Timers {
    pub(crate) fn new() -> Self {
        let agenda = Agenda {
            heap: BinaryHeap::with_capacity(2 * CAPACITY + STALE_MAX),
            valid: HashMap::with_capacity(CAPACITY),
        };
        Self { agenda: Mutex::new(agenda), next: AtomicU64::new(u64::MAX) }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        match self.next.load(Ordering::Acquire) {
            u64::MAX => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// Wakes `qp` at `at`, and not at the time it was to be woken before.
    pub(crate) fn arm(&self, qp: Qpn, at: Time) {
        let mut agenda = self.lock();
        agenda.valid.insert(qp.get(), at.nanos());
        agenda.heap.push(Reverse((at.nanos(), qp.get())));
        agenda.sweep();
        self.note_first(&mut agenda);
    }

    /// Takes one queue pair whose time has come.
    pub(crate) fn due(&self, now: Time) -> Option<Qpn> {
        if self.next.load(Ordering::Acquire) > now.nanos() {
            return None;
        }
        let mut agenda = self.lock();
        let due = agenda.take_due(now);
        self.note_first(&mut agenda);
        due
    }

    /// Forgets a queue pair.
    pub(crate) fn forget(&self, qp: Qpn) {
        self.lock().valid.remove(&qp.get());
    }

    fn lock(&self) -> MutexGuard<'_, Agenda> {
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_first(&self, agenda: &mut Agenda) {
        agenda.drop_stale();
        let first = agenda.heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.next.store(first, Ordering::Release);
    }
}

impl Agenda {
    fn take_due(&mut self, now: Time) -> Option<Qpn> {
        self.drop_stale();
        let Reverse((at, qp)) = *self.heap.peek()?;
        if at > now.nanos() {
            return None;
        }
        self.heap.pop();
        self.valid.remove(&qp);
        Some(Qpn::new(qp))
    }

    /// Drops entries from the front that no longer count.
    fn drop_stale(&mut self) {
        while let Some(Reverse((at, qp))) = self.heap.peek() {
            if self.valid.get(qp) == Some(at) {
                return;
            }
            self.heap.pop();
        }
    }

    /// Drops all entries that no longer count, if they have become many.
    fn sweep(&mut self) {
        if self.heap.len() > 2 * self.valid.len() + STALE_MAX {
            let valid = &self.valid;
            self.heap.retain(|Reverse((at, qp))| valid.get(qp) == Some(at));
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
        let timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.arm(Qpn::new(2), at(20));
        timers.arm(Qpn::new(1), at(10));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.due(at(9)), None);
        assert_eq!(timers.due(at(30)), Some(Qpn::new(1)));
        assert_eq!(timers.due(at(30)), Some(Qpn::new(2)));
        assert_eq!(timers.due(at(30)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_one() {
        let timers = Timers::new();
        timers.arm(Qpn::new(1), at(50));
        timers.arm(Qpn::new(1), at(10));
        assert_eq!(timers.due(at(60)), Some(Qpn::new(1)));
        assert_eq!(timers.due(at(60)), None);
        timers.arm(Qpn::new(1), at(70));
        timers.forget(Qpn::new(1));
        assert_eq!(timers.due(at(80)), None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn deadlines_that_keep_changing_take_no_memory() {
        let timers = Timers::new();
        for round in 0..100_000 {
            timers.arm(Qpn::new(1), at(1 << 40));
            timers.arm(Qpn::new(1), at(round));
            assert_eq!(timers.due(at(round)), Some(Qpn::new(1)));
        }
        assert!(timers.lock().heap.len() <= STALE_MAX + 2);
    }
}
