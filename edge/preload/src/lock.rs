//! A lock that processes share, and that survives the death of its holder.
//!
//! It is held for the length of a copy, never across a wait. A holder that has died is recognised
//! by its thread number, and the lock is taken from it: what it guards is counters that only move
//! forward, each of which is right at every instant.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{raw, thread};

/// A lock: the number of the thread that holds it, or 0.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// The lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    /// A lock that nobody holds.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        thread::enter();
        let me = thread::id();
        if self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait(me);
        }
        Held(self)
    }

    /// The lock, if nobody holds it.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        thread::enter();
        let taken = self.0.compare_exchange(0, thread::id(), Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            thread::leave();
        }
        taken.is_ok().then(|| Held(self))
    }

    #[cold]
    fn wait(&self, me: u32) {
        let mut rounds = 0_u32;
        loop {
            match self.0.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(holder) => {
                    rounds = rounds.wrapping_add(1);
                    let is_dead = || holder != 0 && !raw::is_alive(holder);
                    if rounds.is_multiple_of(1024) && is_dead() {
                        let steal = self.0.compare_exchange(
                            holder,
                            me,
                            Ordering::Acquire,
                            Ordering::Relaxed,
                        );
                        if steal.is_ok() {
                            return;
                        }
                    }
                }
            }
            if rounds < 64 { std::hint::spin_loop() } else { raw::give_way() }
        }
    }

    /// Lets go of a lock that the calling thread has held since before a fork; in the child, whose
    /// thread has another number, as well.
    pub(crate) fn let_go(&self) {
        drop(Held(self));
    }

    /// Whether whoever held it last has died with it.
    pub(crate) fn is_abandoned(&self) -> bool {
        let holder = self.0.load(Ordering::Acquire);
        holder != 0 && !raw::is_alive(holder)
    }

    /// For a child just forked whose parent's other threads may have held it.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
        thread::leave();
    }
}
