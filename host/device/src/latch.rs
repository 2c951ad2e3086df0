//! The lock of what every message passes: a queue pair, the writing end of a lane, the receiving end of
//! a port. It is the system's ([`adverb_sys::latch`]), counted where debug assertions are on.

use crate::locks::tally;
pub(crate) use adverb_sys::latch::Latched;

/// A value that one thread at a time has, and one thread has for less.
#[derive(Debug, Default)]
pub(crate) struct Latch<T>(adverb_sys::latch::Latch<T>);

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(adverb_sys::latch::Latch::new(value))
    }

    /// Waits until nobody else has the value.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Latched<'_, T> {
        tally::<T>();
        self.0.lock()
    }

    /// `None` if somebody has it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Latched<'_, T>> {
        let value = self.0.try_lock()?;
        tally::<T>();
        Some(value)
    }

    /// The calling thread is the one that has it for less.
    #[cfg(test)]
    pub(crate) fn is_mine(&self) -> bool {
        self.0.is_mine()
    }

    /// The value, for whoever has the lock for himself.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
