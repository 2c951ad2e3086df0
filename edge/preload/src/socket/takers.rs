//! Takers of a socket: other programs that have it, or may have, so that to close it here does not end a connection.
//!
//! One is counted before a program is started, and is taken back if it cannot be. By then the socket may have been closed,
//! and its place be another's: the count and the life that it is about are one word, so that one is not taken from the other.

use std::sync::atomic::{AtomicU64, Ordering};

/// Starts of programs that have a socket's descriptor, or may have, and that are not known to have failed; and how often
/// it has been passed on. Above them the life of the socket that this is about.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Takers(AtomicU64);

impl Takers {
    /// A new socket has none.
    pub(super) fn begin(&self, life: u32) {
        self.0.store(u64::from(life) << LIFE_SHIFT, Ordering::Relaxed);
    }

    /// Another program is about to have it, or may be. Returns the life by which [`Takers::take_back`] knows it again.
    pub(crate) fn count(&self) -> u32 {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        u32::try_from(before >> LIFE_SHIFT).unwrap_or(0)
    }

    /// That has not come to pass. Nothing happens if the socket has become another one since.
    pub(crate) fn take_back(&self, life: u32) {
        let less = |word: u64| {
            let is_same = word >> LIFE_SHIFT == u64::from(life);
            (is_same && number(word) > 0).then(|| word - 1)
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether there are any.
    pub(crate) fn is_any(&self) -> bool {
        number(self.0.load(Ordering::Relaxed)) > 0
    }
}

fn number(word: u64) -> u64 {
    word & u64::from(u32::MAX)
}

const LIFE_SHIFT: u32 = u32::BITS;

#[cfg(test)]
mod tests {
    use super::Takers;

    #[test]
    fn each_start_that_fails_takes_back_its_own() {
        let takers = Takers::default();
        takers.begin(1);
        let lives = [takers.count(), takers.count()];
        takers.take_back(lives[0]);
        assert!(takers.is_any());
        takers.take_back(lives[1]);
        assert!(!takers.is_any());
    }

    /// Goal: a start that fails late takes nothing from the socket that has come in place of its own.
    #[test]
    fn the_next_socket_keeps_its_own() {
        let takers = Takers::default();
        takers.begin(u32::MAX);
        let late = takers.count();
        takers.begin(0);
        takers.count();
        takers.take_back(late);
        assert!(takers.is_any());
    }
}
