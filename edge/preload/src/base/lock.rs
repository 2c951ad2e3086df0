//! A lock that processes share, and that survives the death of its holder.
//!
//! It is held for the length of a copy, never across a wait. A thread that waits for it spins, yields, and then sleeps for
//! moments, so that a holder of lower real-time priority runs. A holder that has died is recognised
//! by its word (`adverb_shm::alive`), and the lock is taken from it: what it guards is counters that only move
//! forward, each of which is right at every instant.
//!
//! What a process has for itself is copied by a fork at whatever instant that comes: [`Guarded`] is held
//! across it, and [`Lazy`] needs no lock.
//!
//! # Safety
//!
//! 1. The value of a [`Guarded`] is touched only while its lock is held.
//! 2. The value of a [`Lazy`] comes from a box, and is never freed once it is there.

use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use adverb_shm::alive;

use crate::base::raw;
use crate::base::thread::Here;
use crate::base::yields::Yields;

/// A lock: the thread that holds it, or 0.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// Looks at a lock between two sleeps, before a thread yields.
const SPINS: u32 = 64;
/// Sleeps between two looks at whether its holder's number is another's by now.
const THOROUGH_NAPS: u32 = 16;
/// A thread sleeps so often at least before it gives up.
const NAPS_MIN: u32 = 4;
/// How long a thread that waits for a lock sleeps at a time.
const NAP_NS: i64 = 50_000;

/// The lock is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock, Here);

impl Lock {
    /// A lock that is not held.
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        let here = Here::find();
        let me = here.enter();
        if self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait(me);
        }
        Held(self, here)
    }

    /// Waits for the lock, for so long at most: a holder that is no part of this program may be stopped, or have
    /// written nonsense.
    #[inline]
    pub(crate) fn hold_within(&self, most_ns: u64) -> Option<Held<'_>> {
        self.hold_within_by(Here::find(), most_ns)
    }

    /// The same, by a caller that knows where its thread's numbers are.
    #[inline]
    pub(crate) fn hold_within_by(&self, here: Here, most_ns: u64) -> Option<Held<'_>> {
        let me = here.enter();
        if self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err()
            && !self.wait_for(me, most_ns)
        {
            here.leave();
            return None;
        }
        Some(Held(self, here))
    }

    /// The lock, if it is not held.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        self.try_hold_by(Here::find())
    }

    /// The same, by a caller that knows where its thread's numbers are.
    #[inline]
    pub(crate) fn try_hold_by(&self, here: Here) -> Option<Held<'_>> {
        let me = here.enter();
        let taken = self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            here.leave();
        }
        taken.is_ok().then(|| Held(self, here))
    }

    #[cold]
    fn wait(&self, me: u32) {
        self.wait_for(me, u64::MAX);
    }

    /// Returns whether the lock was there in time. Its holder has had occasion to run by then.
    #[cold]
    fn wait_for(&self, me: u32, most_ns: u64) -> bool {
        let (o, r) = (Ordering::Acquire, Ordering::Relaxed);
        let (mut naps, mut spins, mut yields) = (0_u32, 0, Yields::default());
        let until = raw::now_ns().saturating_add(most_ns);
        loop {
            let holder = self.0.load(r);
            if holder == 0 && self.0.compare_exchange_weak(0, me, o, r).is_ok() {
                return true;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            if yields.give_way() {
                continue;
            }
            (spins, yields) = (0, Yields::default());
            if holder == 0 && until == u64::MAX {
                continue;
            }
            naps = naps.wrapping_add(1);
            let is_dead = if naps.is_multiple_of(THOROUGH_NAPS) {
                alive::has_thread_ended(holder)
            } else {
                alive::is_thread_missing(holder)
            };
            if is_dead && self.0.compare_exchange(holder, me, o, r).is_ok() {
                return true;
            }
            if naps > NAPS_MIN && until != u64::MAX && raw::now_ns() >= until {
                return false;
            }
            // Its holder may have to wait for this processor, which to yield does not give it
            // if its priority is lower. It does not wake waiters: that would cost each release.
            raw::sleep_on(&self.0, holder, NAP_NS);
        }
    }

    /// Lets go of a lock that the calling thread has held since before a fork; in the child, whose
    /// thread has another number, as well.
    pub(crate) fn let_go(&self) {
        drop(Held(self, Here::find()));
    }

    /// Whether its last holder has died with it.
    pub(crate) fn is_abandoned(&self) -> bool {
        let holder = self.0.load(Ordering::Acquire);
        holder != 0 && alive::has_thread_ended(holder)
    }

    /// The thread that has it, by the kernel's number; 0 if none has.
    pub(crate) fn holder(&self) -> u32 {
        alive::number(self.0.load(Ordering::Acquire))
    }

    /// For a child just forked whose parent's other threads may have held it.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Held<'_> {
    /// Where the numbers of the thread are that holds it.
    #[inline]
    pub(crate) fn here(&self) -> Here {
        self.1
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
        self.1.leave();
    }
}

/// A value of this process that threads touch in turn.
#[derive(Debug)]
pub(crate) struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is touched only while the lock is held (rule 1).
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value; `f` must not come back here.
    pub(crate) fn with<A>(&self, f: impl FnOnce(&mut T) -> A) -> A {
        self.with_here(|value, _| f(value))
    }

    /// The same, for an `f` that takes other locks, too.
    pub(crate) fn with_here<A>(&self, f: impl FnOnce(&mut T, Here) -> A) -> A {
        let held = self.lock.hold();
        // SAFETY: the lock is held (rule 1), and `f` does not come back here.
        f(unsafe { &mut *self.value.get() }, held.here())
    }

    /// The same, unless the lock is held.
    pub(crate) fn try_with<A>(&self, f: impl FnOnce(&mut T) -> A) -> Option<A> {
        let _held = self.lock.try_hold()?;
        // SAFETY: the lock is held (rule 1), and `f` does not come back here.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// The lock, for a fork: the child gets a value that no thread is in the middle of.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }
}

/// A value that is made when it is first asked for. A thread that comes second while it is being made makes another
/// one, and throws it away: no thread waits for another, which might not be there after a fork.
#[derive(Debug)]
pub(crate) struct Lazy<T>(AtomicPtr<T>);

impl<T: Send + Sync> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, if it is there.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        let at = NonNull::new(self.0.load(Ordering::Acquire))?;
        // SAFETY: it is there for good (rule 2).
        Some(unsafe { at.as_ref() })
    }

    /// The value, made if need be.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(known) = self.get() {
            return known;
        }
        let new = Box::into_raw(Box::new(make()));
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let at = match self.0.compare_exchange(ptr::null_mut(), new, o, r) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: it came from a box just now, and has not been published.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        };
        // SAFETY: it is there for good (rule 2).
        unsafe { &*at }
    }
}
