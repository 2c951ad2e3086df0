//! A lock for what one thread uses almost always, which then takes no locked instruction.
//!
//! Most channels have one thread that posts and polls. It takes the lock of its channel three times for a
//! message and its answer, and with an ordinary one that is half of what the session adds to them. So who
//! has taken the lock [`HABIT`] times in a row is its *owner* from then on: it writes down that it is
//! inside, looks whether it is the owner still, and is in. The first other thread that comes takes the
//! ownership away, for good: it says so, makes every thread pass a barrier (`membarrier(2)`), and waits until
//! the owner has left. From then on the lock is an ordinary one.
//!
//! The owner writes `inside` and then reads `owner`; who takes it away writes `owner` and then reads `inside`.
//! The barrier falls somewhere in between the owner's instructions. If its read comes after that, it sees
//! that it owns nothing, and leaves; if before, the write came before, too, and the other waits for it.
//! Nobody becomes owner a second time: a former owner that was stopped between its write and its read
//! would clear the next one's mark.
//!
//! The primitives come from the module's surroundings (`super::sync`), so that a model checker can try
//! every interleaving: `tests/biased_model.rs`.
//!
//! # Safety
//!
//! 1. `value` and `kept` are touched by whoever is inside alone: the owner, from when it has seen that it is
//!    until it clears `inside`, or who holds `ordinary`, after the owner, if there was one, has left for good.
//! 2. `kept` is the guard of `ordinary` beside it, and is let go before the borrow that the [`Guard`] is ends.
//!    So the lock is not moved meanwhile. Nobody forgets a [`Guard`].
//! 3. A [`Guard`] stays with its thread, and so does what it keeps.

use super::sync::{
    AtomicBool, AtomicU64, HABIT, Mutex, MutexGuard, Ordering, barrier_everywhere, barrier_here,
    me, pause, prepare_barriers,
};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

/// The lock, and what it guards. A panic inside leaves it open.
pub(crate) struct Biased<T> {
    /// Number of the thread that owns the lock, [`NOBODY`] or [`NEVER`].
    owner: AtomicU64,
    /// The owner is inside, or is about to see that it is owner no more.
    inside: AtomicBool,
    /// What whoever is inside without being the owner holds.
    kept: UnsafeCell<Option<MutexGuard<'static, Habit>>>,
    ordinary: Mutex<Habit>,
    value: UnsafeCell<T>,
}

/// Nobody owns the lock so far.
pub(crate) const NOBODY: u64 = 0;
/// Nobody owns the lock any more.
pub(crate) const NEVER: u64 = u64::MAX;

/// Who has come, lately.
#[derive(Debug, Default)]
struct Habit {
    thread: u64,
    times: u32,
}

// SAFETY: the value is handed to one thread at a time (rule 1), and the guard that is kept is given back by
// the thread that took it (rule 3).
unsafe impl<T: Send> Send for Biased<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(if prepare_barriers() { NOBODY } else { NEVER }),
            inside: AtomicBool::new(false),
            kept: UnsafeCell::new(None),
            ordinary: Mutex::new(Habit::default()),
            value: UnsafeCell::new(value),
        }
    }

    /// Who owns it.
    #[cfg(test)]
    pub(crate) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Waits until nobody else is inside. A thread that is inside itself panics, or waits for ever.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let me = me();
        if self.owner.load(Ordering::Relaxed) != me || !self.enter(me) {
            self.lock_slowly(me);
        }
        Guard { lock: self, stays: PhantomData }
    }

    /// Goes in as the owner; false if it is not the owner any more.
    #[inline(always)]
    fn enter(&self, me: u64) -> bool {
        assert!(!self.inside.load(Ordering::Relaxed), "a thread waits for itself");
        self.inside.store(true, Ordering::Relaxed);
        barrier_here();
        let owns = self.owner.load(Ordering::Acquire) == me;
        if !owns {
            self.inside.store(false, Ordering::Release);
        }
        owns
    }

    #[inline(never)]
    fn lock_slowly(&self, me: u64) {
        let mut habit = self.ordinary.lock().unwrap_or_else(PoisonError::into_inner);
        match self.owner.load(Ordering::Relaxed) {
            NEVER => {}
            NOBODY if habit.thread == me => habit.times += 1,
            NOBODY => *habit = Habit { thread: me, times: 1 },
            _ => self.dispossess(),
        }
        // SAFETY: the guard is of a lock beside it, and does not outlive the caller's borrow (rule 2).
        let habit = unsafe {
            std::mem::transmute::<MutexGuard<'_, Habit>, MutexGuard<'static, Habit>>(habit)
        };
        // SAFETY: whoever holds `ordinary` is inside alone, after the owner has left (rule 1).
        unsafe { *self.kept.get() = Some(habit) };
    }

    /// Takes the ownership away, and waits until the owner has left.
    #[cold]
    fn dispossess(&self) {
        self.owner.store(NEVER, Ordering::Release);
        barrier_everywhere();
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) {
            pause(looks);
            looks += 1;
        }
    }

    #[inline(never)]
    fn unlock_slowly(&self) {
        // SAFETY: the caller is inside (rule 1).
        let Some(habit) = (unsafe { (*self.kept.get()).take() }) else {
            return;
        };
        if habit.times >= HABIT && self.owner.load(Ordering::Relaxed) == NOBODY {
            self.owner.store(habit.thread, Ordering::Relaxed);
        }
        drop(habit);
    }
}

/// Somebody is inside.
pub(crate) struct Guard<'a, T> {
    lock: &'a Biased<T>,
    /// It is not for another thread.
    stays: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: whoever has a guard is inside (rule 1).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and there is one guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it is inside still (rule 1).
        if unsafe { (*self.lock.kept.get()).is_none() } {
            self.lock.inside.store(false, Ordering::Release);
        } else {
            self.lock.unlock_slowly();
        }
    }
}
