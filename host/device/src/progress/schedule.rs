//! A port's schedule, shared by all threads.

use crate::sync::Mutex;
use adverb_engine::{Hints, Schedule, Time};
use adverb_wire::Qpn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A schedule for all threads, and what can be said of it without its lock.
#[derive(Debug)]
pub(super) struct SharedSchedule {
    schedule: Mutex<Schedule>,
    /// The earliest deadline, in nanoseconds; `u64::MAX` if there is none.
    deadline: AtomicU64,
    ready: AtomicBool,
    /// The queue pair whose deadline was left open; 0 if there is none.
    open: AtomicU32,
}

impl SharedSchedule {
    pub(super) fn new() -> Self {
        Self {
            schedule: Mutex::new(Schedule::default()),
            deadline: AtomicU64::new(u64::MAX),
            ready: AtomicBool::new(false),
            open: AtomicU32::new(0),
        }
    }

    /// Some queue pair has more to emit.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.deadline.load(Ordering::Acquire) {
            u64::MAX => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// The deadline of some queue pair was left open.
    pub(super) fn has_open(&self) -> bool {
        self.open.load(Ordering::Acquire) != 0
    }

    /// It is this queue pair's that was left open.
    #[inline]
    pub(super) fn is_open(&self, number: Qpn) -> bool {
        self.open.load(Ordering::Relaxed) == number.get()
    }

    pub(super) fn leave_open(&self, number: Qpn) -> bool {
        self.open.compare_exchange(0, number.get(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn take_open(&self) -> Option<Qpn> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.open.swap(0, Ordering::AcqRel)).filter(|open| *open != 0).map(Qpn::new)
    }

    /// Takes a queue pair whose time has come.
    pub(super) fn due(&self, now: Time) -> Option<Qpn> {
        self.deadline().filter(|first| *first <= now)?;
        self.with(|schedule| schedule.due(now))
    }

    pub(super) fn with<R>(&self, run: impl FnOnce(&mut Schedule) -> R) -> R {
        let mut schedule = self.schedule.lock();
        let result = run(&mut schedule);
        let Hints { deadline, ready } = schedule.hints();
        self.deadline.store(deadline.map_or(u64::MAX, Time::nanos), Ordering::Release);
        self.ready.store(ready, Ordering::Release);
        result
    }
}
