//! The lock of what every message passes: a queue pair, a completion queue, the writing end of a shared-memory link, the
//! receiving end of a port. It is the system's ([`adverb_sys::futex_mutex`]), counted where debug assertions are on.

use crate::locks::tally;
pub(crate) use adverb_sys::futex_mutex::FutexGuard;

/// A mutex, counted where debug assertions are on.
#[derive(Debug, Default)]
pub(crate) struct FutexMutex<T>(adverb_sys::futex_mutex::FutexMutex<T>);

impl<T> FutexMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(adverb_sys::futex_mutex::FutexMutex::new(value))
    }

    /// Waits until the mutex is free.
    #[inline(always)]
    pub(crate) fn lock(&self) -> FutexGuard<'_, T> {
        tally::<T>();
        self.0.lock()
    }

    /// `None` if the mutex is held.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<FutexGuard<'_, T>> {
        let value = self.0.try_lock()?;
        tally::<T>();
        Some(value)
    }
}
