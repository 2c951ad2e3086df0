//! The lock of what every message passes: a queue pair, the writing end of a shared-memory link, the receiving end of
//! a port. It is the system's ([`adverb_sys::latch`]), counted where debug assertions are on.

use crate::locks::tally;
pub(crate) use adverb_sys::latch::Latched;

/// A mutex, counted where debug assertions are on.
#[derive(Debug, Default)]
pub(crate) struct Latch<T>(adverb_sys::latch::Latch<T>);

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(adverb_sys::latch::Latch::new(value))
    }

    /// Waits until the mutex is free.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Latched<'_, T> {
        tally::<T>();
        self.0.lock()
    }

    /// `None` if the mutex is held.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Latched<'_, T>> {
        let value = self.0.try_lock()?;
        tally::<T>();
        Some(value)
    }

    /// The value, without locking.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
