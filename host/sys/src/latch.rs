//! The lock of what every message passes: taken and let go of all the time, and hardly ever wanted by two.
//!
//! Such a lock has one thread, mostly, that takes it several times for a message; with an ordinary one
//! that is a good part of what the message costs. So who has taken it often enough in a row is its *owner*
//! from then on, and takes it without a locked instruction: it writes down that it is inside, looks whether
//! it is the owner still, and is in. The next other thread that comes takes the ownership away: it says so,
//! makes every thread pass a barrier (`membarrier(2)`), and waits until the owner has left.
//!
//! The owner writes `inside` and then reads `owner`; who takes it away writes `owner` and then reads `inside`.
//! The barrier falls somewhere in between the owner's instructions. If its read comes after that, it sees
//! that it owns nothing, and leaves; if before, the write came before, too, and the other waits for it.
//! An owner may become owner again, but has to come twice as often in a row each time. No other thread ever
//! may: a former owner that was stopped between its write and its read would clear the next one's mark.
//!
//! All others take it by a locked instruction, and let go by a plain write. A locked one waits until
//! all that was written before is where others see it: bytes of a message among it, in lines that another
//! processor has. The price is that whoever lets go may overlook somebody who has just begun to wait. So
//! nobody sleeps for longer than a millisecond without looking himself.
//!
//! The primitives come from the module's surroundings (`super::sync`), so that a model checker can try
//! every interleaving: `tests/latch_model.rs`.
//!
//! # Safety
//!
//! 1. The value is reached through a guard only, or by whoever has the lock for himself. There is one guard
//!    at a time: of the owner, from when it has seen that it is the owner until it clears `inside`, or of who
//!    has turned the word from `FREE` to `HELD` and then has seen no owner, and nobody inside, until he turns
//!    it back.
//! 2. `habit` is touched by whoever has turned the word to `HELD`.
//! 3. A guard stays with its thread.

use super::sync::{
    AtomicU32, AtomicU64, HABIT, HABIT_MAX, LOOKS, Ordering, barrier_everywhere, barrier_here, me,
    pause, prepare_barriers, set_me, sleep, spin, wake,
};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Nobody owns the lock.
pub(crate) const NOBODY: u64 = 0;
/// The number of every thread that owns no lock, ever.
const ABSTAINS: u64 = u64::MAX;

/// The calling thread owns no lock from now on: it serves others, who shall.
pub fn abstain() {
    set_me(ABSTAINS);
}

/// A value that one thread at a time has, and one thread has for less. A panic inside leaves it open.
pub struct Latch<T> {
    /// Number of the thread that owns the lock, or [`NOBODY`].
    owner: AtomicU64,
    /// The owner is inside, or is about to see that it is owner no more.
    inside: AtomicU32,
    word: AtomicU32,
    /// Threads that may be asleep.
    sleepers: AtomicU32,
    habit: UnsafeCell<Habit>,
    value: UnsafeCell<T>,
}

/// Who has come, lately.
#[derive(Debug)]
struct Habit {
    thread: u64,
    /// How often in a row.
    times: u32,
    /// How often it takes to become the owner.
    needed: u32,
    /// Who has been the owner, if anybody.
    ever: u64,
}

// SAFETY: the value is handed to one thread at a time (rule 1).
unsafe impl<T: Send> Send for Latch<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Latch<T> {}

/// Has the value until dropped.
pub struct Latched<'a, T> {
    latch: &'a Latch<T>,
    /// It is the owner's.
    owns: bool,
    /// It is not for another thread.
    stays: PhantomData<*const ()>,
}

// SAFETY: it gives shared access to the value, and no more.
unsafe impl<T: Sync> Sync for Latched<'_, T> {}

impl<T> Latch<T> {
    /// A lock that is open, and what it guards.
    pub fn new(value: T) -> Self {
        let habit = Habit { thread: NOBODY, times: 0, needed: HABIT, ever: NOBODY };
        Self {
            owner: AtomicU64::new(NOBODY),
            inside: AtomicU32::new(0),
            word: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            habit: UnsafeCell::new(habit),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else has the value. Who has it himself waits for ever, or panics.
    #[inline(always)]
    pub fn lock(&self) -> Latched<'_, T> {
        let me = me();
        let owns = self.enter(me);
        if !owns {
            self.lock_by_word(me);
        }
        Latched { latch: self, owns, stays: PhantomData }
    }

    /// `None` if somebody has it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Latched<'_, T>> {
        let me = me();
        let owns = self.enter(me);
        let has = owns || self.try_by_word(me);
        has.then(|| Latched { latch: self, owns, stays: PhantomData })
    }

    /// The value, for whoever has the lock for himself.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The calling thread is the owner.
    pub fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == me()
    }

    /// Who owns it.
    #[cfg(test)]
    pub(crate) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Relaxed)
    }

    /// As if whoever waits had been overlooked.
    #[cfg(test)]
    pub(crate) fn release_silently(&self, held: Latched<'_, T>) {
        std::mem::forget(held);
        self.word.store(FREE, Ordering::Release);
    }

    /// Goes in as the owner; false if the caller is not the owner, or is inside already.
    #[inline(always)]
    fn enter(&self, me: u64) -> bool {
        let may =
            self.owner.load(Ordering::Relaxed) == me && self.inside.load(Ordering::Relaxed) == 0;
        if !may {
            return false;
        }
        self.inside.store(1, Ordering::Relaxed);
        barrier_here();
        let owns = self.owner.load(Ordering::Acquire) == me;
        if !owns {
            self.inside.store(0, Ordering::Release);
        }
        owns
    }

    #[inline(never)]
    fn lock_by_word(&self, me: u64) {
        // Nobody but the thread itself makes it the owner, so it was before, and has a guard.
        assert!(self.owner.load(Ordering::Relaxed) != me, "a thread waits for itself");
        if !self.seize() {
            self.wait();
        }
        self.dispossess();
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) != 0 {
            pause(looks);
            looks += 1;
        }
        self.count(me);
    }

    #[inline(never)]
    fn try_by_word(&self, me: u64) -> bool {
        if self.owner.load(Ordering::Relaxed) == me || !self.seize() {
            return false;
        }
        self.dispossess();
        let has = self.inside.load(Ordering::Acquire) == 0;
        match has {
            true => self.count(me),
            false => self.release(),
        }
        has
    }

    #[inline]
    fn seize(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        if self.look_out() {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Whoever polls takes it again at once: a single look after each sleep might never be in time.
        while !self.look_out() {
            sleep(&self.word, HELD);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Seizes it if it becomes free soon.
    fn look_out(&self) -> bool {
        (0..LOOKS).any(|_| {
            spin();
            self.word.load(Ordering::Relaxed) == FREE && self.seize()
        })
    }

    /// Takes the ownership away, if there is an owner. It may be inside still.
    #[inline]
    fn dispossess(&self) {
        if self.owner.load(Ordering::Relaxed) == NOBODY {
            return;
        }
        self.owner.store(NOBODY, Ordering::Relaxed);
        barrier_everywhere();
        // SAFETY: the caller has turned the word (rule 2).
        unsafe { (*self.habit.get()).ask_for_more() };
    }

    /// Notes who has come.
    #[inline]
    fn count(&self, me: u64) {
        // SAFETY: the caller has turned the word (rule 2).
        let habit = unsafe { &mut *self.habit.get() };
        habit.times = if habit.thread == me { habit.times + 1 } else { 1 };
        habit.thread = me;
    }

    /// Lets go, who has turned the word.
    #[inline(never)]
    fn release(&self) {
        // SAFETY: the caller has turned the word (rule 2).
        let habit = unsafe { &mut *self.habit.get() };
        if habit.times >= habit.needed && habit.makes_an_owner() {
            self.owner.store(habit.thread, Ordering::Relaxed);
        }
        self.word.store(FREE, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            wake(&self.word);
        }
    }
}

impl Habit {
    /// Who has come so often may own the lock.
    #[cold]
    fn makes_an_owner(&mut self) -> bool {
        self.times = 0;
        let may = self.thread != ABSTAINS && [NOBODY, self.thread].contains(&self.ever);
        if !may {
            return false;
        }
        let can = prepare_barriers();
        match can {
            true => self.ever = self.thread,
            false => self.ask_for_more(),
        }
        can
    }

    #[cold]
    fn ask_for_more(&mut self) {
        self.needed = self.needed.saturating_mul(2).min(HABIT_MAX);
    }
}

impl<T> Deref for Latched<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard (rule 1).
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for Latched<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard (rule 1), and borrowed for itself.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for Latched<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.owns {
            true => self.latch.inside.store(0, Ordering::Release),
            false => self.latch.release(),
        }
    }
}

impl<T: Default> Default for Latch<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => value.fmt(f),
            None => f.write_str("<locked>"),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Latched<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
