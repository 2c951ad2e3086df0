//! When queue pairs want to be woken: a heap that is touched rarely.
//!
//! A queue pair's deadline moves with every acknowledgement, but only the first one after its last
//! wake-up enters the heap; when that comes due, the queue pair is asked again.

use adverb_engine::Time;
use adverb_wire::Qpn;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Deadlines of all queue pairs of a port.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(u64, u32)>>>,
    /// The earliest deadline, `u64::MAX` if there is none.
    next: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::with_capacity(1024)), next: AtomicU64::new(u64::MAX) }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        match self.next.load(Ordering::Acquire) {
            u64::MAX => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// Wakes `qp` at `at`.
    pub(crate) fn arm(&self, qp: Qpn, at: Time) {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        heap.push(Reverse((at.nanos(), qp.get())));
        self.note_first(&heap);
    }

    /// Takes one queue pair whose time has come.
    pub(crate) fn due(&self, now: Time) -> Option<Qpn> {
        if self.next.load(Ordering::Acquire) > now.nanos() {
            return None;
        }
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let Reverse((at, qp)) = *heap.peek()?;
        if at > now.nanos() {
            return None;
        }
        heap.pop();
        self.note_first(&heap);
        Some(Qpn::new(qp))
    }

    fn note_first(&self, heap: &BinaryHeap<Reverse<(u64, u32)>>) {
        let first = heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.next.store(first, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_whose_time_has_come_are_taken_in_order() {
        let timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.arm(Qpn::new(2), Time::from_nanos(20));
        timers.arm(Qpn::new(1), Time::from_nanos(10));
        assert_eq!(timers.next(), Some(Time::from_nanos(10)));
        assert_eq!(timers.due(Time::from_nanos(9)), None);
        assert_eq!(timers.due(Time::from_nanos(30)), Some(Qpn::new(1)));
        assert_eq!(timers.due(Time::from_nanos(30)), Some(Qpn::new(2)));
        assert_eq!(timers.due(Time::from_nanos(30)), None);
        assert_eq!(timers.next(), None);
    }
}
