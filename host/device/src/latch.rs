//! The lock of what every message passes: a queue pair, the writing end of a lane, the receiving end of
//! a port. It is taken and let go of all the time, and hardly ever wanted by two at once.
//!
//! Letting go is a plain write. The standard library's is a locked instruction, which waits until all
//! that was written before is where others see it: bytes of a message among it, in lines that another
//! processor has. The price is that whoever lets go may overlook somebody who has just begun to wait. So
//! nobody sleeps for longer than [`SLEEP_MAX`] without looking himself.
//!
//! # Safety
//!
//! 1. The value is reached through a guard only, or by whoever has the lock for himself.
//! 2. There is a guard only while the word says `HELD`, and only one: it is made where the word was
//!    turned from `FREE` to `HELD`, and ends before it is turned back.

use crate::locks::tally;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Looks before sleeping.
const LOOKS: u32 = 100;
/// The longest sleep between two looks: what a wake-up that was missed costs at most.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A value that one thread at a time has.
#[derive(Default)]
pub(crate) struct Latch<T> {
    word: AtomicU32,
    /// Threads that may be asleep.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value (rules 1 and 2), which may be any.
unsafe impl<T: Send> Sync for Latch<T> {}

/// Has the value until dropped.
pub(crate) struct Latched<'a, T> {
    latch: &'a Latch<T>,
}

// SAFETY: it gives shared access to the value, and no more.
unsafe impl<T: Sync> Sync for Latched<'_, T> {}

impl<T> Latch<T> {
    pub(crate) const fn new(value: T) -> Self {
        let (word, sleepers) = (AtomicU32::new(FREE), AtomicU32::new(0));
        Self { word, sleepers, value: UnsafeCell::new(value) }
    }

    /// Waits until nobody else has the value.
    #[inline]
    pub(crate) fn lock(&self) -> Latched<'_, T> {
        if !self.seize() {
            self.wait();
        }
        tally::<T>();
        Latched { latch: self }
    }

    /// `None` if somebody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Latched<'_, T>> {
        if !self.seize() {
            return None;
        }
        tally::<T>();
        Some(Latched { latch: self })
    }

    /// The value, for whoever has the lock for himself.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
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
            self.sleep();
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Seizes it if it becomes free soon.
    fn look_out(&self) -> bool {
        (0..LOOKS).any(|_| {
            hint::spin_loop();
            self.word.load(Ordering::Relaxed) == FREE && self.seize()
        })
    }

    #[cfg(not(miri))]
    fn sleep(&self) {
        use adverb_sys::futex::{Scope, wait};
        // Whatever it says, the word is looked at next.
        let _ = wait(&self.word, Scope::Private, HELD, Some(SLEEP_MAX));
    }

    #[cfg(not(miri))]
    #[cold]
    fn wake(&self) {
        use adverb_sys::futex::{Scope, wake};
        let _ = wake(&self.word, Scope::Private, 1);
    }

    #[cfg(miri)]
    fn sleep(&self) {
        std::thread::yield_now();
    }

    #[cfg(miri)]
    fn wake(&self) {}

    #[inline]
    fn release(&self) {
        self.word.store(FREE, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }
}

impl<T> Deref for Latched<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard (rule 2).
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for Latched<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard (rule 2), and borrowed for itself.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for Latched<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.release();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const THREADS: u64 = 4;
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

    #[test]
    fn one_at_a_time_has_the_value() {
        // Two halves that only their holder makes differ.
        let latch = Latch::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut halves = latch.lock();
                        halves.0 += 1;
                        if round % 64 == 0 {
                            thread::yield_now(); // While others wait, and go to sleep.
                        }
                        assert_eq!(halves.0, halves.1 + 1);
                        halves.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), (THREADS * ROUNDS, THREADS * ROUNDS));
        assert_eq!(latch.sleepers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nobody_else_gets_it_meanwhile_and_a_panic_lets_go_of_it() {
        let mut latch = Latch::new(7);
        let held = latch.lock();
        assert!(latch.try_lock().is_none());
        assert_eq!(format!("{latch:?} {held:?}"), "<locked> 7");
        drop(held);
        let ended = thread::scope(|scope| {
            let panics = || {
                let mut value = latch.lock();
                *value = 8;
                panic!("as is meant");
            };
            scope.spawn(panics).join()
        });
        assert!(ended.is_err());
        assert_eq!(latch.try_lock().map(|value| *value), Some(8));
        assert_eq!(*latch.get_mut(), 8);
    }

    /// Goal: whoever lets go may overlook a sleeper, who wakes all the same.
    #[test]
    fn a_sleeper_looks_himself() {
        let latch = Latch::new(());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let held = latch.lock();
            scope.spawn(|| {
                drop(latch.lock());
                tell.send(()).unwrap();
            });
            while latch.sleepers.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            // As `release` without the wake-up.
            latch.word.store(FREE, Ordering::Release);
            std::mem::forget(held);
            told.recv().unwrap();
        });
    }
}
