//! The mutex of the data path: locked several times for each message, and hardly ever contended.
//!
//! It is taken by a compare-and-exchange and released by a plain store. A locked instruction at the release would
//! wait until all earlier writes are visible to other processors, and among these are the bytes of a message.
//! The price is that a release may miss a thread that has just begun to wait. So a waiting thread sleeps for one
//! millisecond at most before it looks again.
//!
//! The primitives come from the module's surroundings (`super::sync`), so that a model checker can try
//! every interleaving: `tests/futex_mutex_model.rs`.
//!
//! # Safety
//!
//! 1. The value is reached through a guard, or through `&mut FutexMutex`. A guard exists only between the exchange
//!    of the word from `FREE` to `HELD`, which one thread at a time can make, and its store of `FREE`.
//! 2. The exchange acquires and the store releases, so each holder sees all that earlier holders have done.

use super::sync::{AtomicU32, LOOKS, Ordering, sleep, spin, wake};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A mutex whose release is a plain store. A panic of the holder releases it, and does not poison it.
pub struct FutexMutex<T> {
    word: AtomicU32,
    /// Threads that may be asleep.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is handed to one thread at a time (rule 1).
unsafe impl<T: Send> Send for FutexMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for FutexMutex<T> {}

/// Access to the value until dropped.
pub struct FutexGuard<'a, T> {
    mutex: &'a FutexMutex<T>,
    /// A guard stays with the thread that has locked.
    stays: PhantomData<*const ()>,
}

// SAFETY: it gives shared access to the value, and no more.
unsafe impl<T: Sync> Sync for FutexGuard<'_, T> {}

impl<T> FutexMutex<T> {
    /// A mutex that is free, and the value that it guards.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the mutex is free. A thread that holds it already waits for ever.
    #[inline(always)]
    pub fn lock(&self) -> FutexGuard<'_, T> {
        if !self.seize() {
            self.wait();
        }
        FutexGuard { mutex: self, stays: PhantomData }
    }

    /// `None` if the mutex is held.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<FutexGuard<'_, T>> {
        self.seize().then(|| FutexGuard { mutex: self, stays: PhantomData })
    }

    /// The value, without locking: `&mut self` shows that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[cfg(test)]
    pub(crate) fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Relaxed)
    }

    /// Releases as if the waiting thread had been missed.
    #[cfg(test)]
    pub(crate) fn release_silently(&self, held: FutexGuard<'_, T>) {
        std::mem::forget(held);
        self.word.store(FREE, Ordering::Release);
    }

    #[inline(always)]
    fn seize(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        if self.look_out() {
            return;
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // A holder that polls locks again at once: a single look after each sleep might never be in time.
        while !self.look_out() {
            sleep(&self.word, HELD);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Locks it if it becomes free soon.
    fn look_out(&self) -> bool {
        (0..LOOKS).any(|_| {
            spin();
            self.word.load(Ordering::Relaxed) == FREE && self.seize()
        })
    }
}

impl<T> Deref for FutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard (rule 1).
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for FutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard (rule 1), and borrowed for itself.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for FutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.mutex.word.store(FREE, Ordering::Release);
        if self.mutex.sleepers.load(Ordering::Relaxed) > 0 {
            wake(&self.mutex.word);
        }
    }
}

impl<T: Default> Default for FutexMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for FutexMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => value.fmt(f),
            None => f.write_str("<locked>"),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for FutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
