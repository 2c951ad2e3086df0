//! The locks of the device and of the API above it: mutexes that say, in builds with debug assertions,
//! which of them a thread has taken.
//!
//! The data path takes no lock but those of the queues it is about; a test holds it to that by
//! looking at the counts. In other builds a [`Mutex`] is the standard library's and nothing more.

use std::fmt;
use std::sync::{MutexGuard, PoisonError, TryLockError};

/// [`std::sync::Mutex`], counted where debug assertions are on. What a thread has left that panicked while it held
/// the lock is taken as it is.
#[derive(Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// As [`std::sync::Mutex::new`].
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// As [`std::sync::Mutex::lock`].
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        tally::<T>();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`std::sync::Mutex::try_lock`]; counts if it succeeds.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        tally::<T>();
        Some(guard)
    }

    /// As [`std::sync::Mutex::get_mut`].
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a lock was taken, and the name of the type that it guards.
pub type Tally = (&'static str, u64);

/// Kinds of locks that can be told apart.
pub const KINDS_MAX: usize = 32;

/// What the calling thread has taken since it last asked; nothing where debug assertions are off.
pub fn taken() -> [Tally; KINDS_MAX] {
    counts::take()
}

#[inline]
pub(crate) fn tally<T>() {
    #[cfg(debug_assertions)]
    counts::add(std::any::type_name::<T>());
}

#[cfg(debug_assertions)]
mod counts {
    use super::{KINDS_MAX, Tally};
    use std::cell::Cell;

    thread_local! {
        static COUNTS: Cell<[Tally; KINDS_MAX]> = const { Cell::new([("", 0); KINDS_MAX]) };
    }

    pub(super) fn add(name: &'static str) {
        // A thread that ends has no counters left.
        let _ = COUNTS.try_with(|cell| {
            let mut counts = cell.get();
            let free = counts.iter_mut().find(|(known, n)| *n == 0 || *known == name);
            if let Some((known, count)) = free {
                (*known, *count) = (name, *count + 1);
            }
            cell.set(counts);
        });
    }

    pub(super) fn take() -> [Tally; KINDS_MAX] {
        COUNTS.replace([("", 0); KINDS_MAX])
    }
}

#[cfg(not(debug_assertions))]
mod counts {
    use super::{KINDS_MAX, Tally};

    pub(super) const fn take() -> [Tally; KINDS_MAX] {
        [("", 0); KINDS_MAX]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_counts_what_it_takes_by_what_it_guards() {
        let (one, two) = (Mutex::new(1_u8), Mutex::new("two"));
        let _ = taken();
        for _ in 0..3 {
            drop(one.lock());
        }
        let held = two.lock();
        assert!(two.try_lock().is_none());
        drop(held);
        let other = std::thread::scope(|scope| {
            scope.spawn(|| drop(one.try_lock())).join().unwrap();
            scope.spawn(taken).join().unwrap()
        });
        let counts = if cfg!(debug_assertions) { [("u8", 3), ("&str", 1)] } else { [("", 0); 2] };
        assert_eq!(taken()[..2], counts);
        assert_eq!(other[0], ("", 0));
        assert_eq!(taken()[0], ("", 0));
    }
}
