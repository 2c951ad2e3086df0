//! Futexes: sleeping on a word of memory until it is changed and the sleeper is woken.
//!
//! The cheapest way to wake a sleeper: no descriptor, and no system call while no thread sleeps,
//! provided that the waker can see in the word whether one does.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

/// Which threads may wake one another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Threads of one process. The cheaper one.
    Private,
    /// Every process that has mapped the memory the word lies in.
    Shared,
}

impl Scope {
    const fn flags(self) -> futex::Flags {
        match self {
            Self::Private => futex::Flags::PRIVATE,
            Self::Shared => futex::Flags::empty(),
        }
    }
}

/// Reason why a wait has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// The word was not, or perhaps no longer is, what was expected: look again.
    Look,
    /// The time has run out.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, for at most `timeout` (`None`: for ever).
///
/// Ends early for no reason now and then; look at the word again and decide.
///
/// # Errors
///
/// Those of `futex(2)` that mean neither "changed", "woken", "interrupted" nor "timed out": none in
/// practice.
pub fn wait(
    word: &AtomicU32,
    scope: Scope,
    expected: u32,
    timeout: Option<Duration>,
) -> io::Result<Wake> {
    // A wait too long for the kernel's type is one without an end.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match futex::wait(word, scope.flags(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(Wake::Look),
        Err(Errno::TIMEDOUT) => Ok(Wake::TimedOut),
        Err(error) => Err(error.into()),
    }
}

/// Wakes up to `count` sleepers on `word`, and returns how many there were.
///
/// # Errors
///
/// Those of `futex(2)`: none in practice.
pub fn wake(word: &AtomicU32, scope: Scope, count: u32) -> io::Result<usize> {
    Ok(futex::wake(word, scope.flags(), count)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

    #[test]
    fn a_word_that_has_changed_already_is_not_slept_on() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, Scope::Private, 0, TIMEOUT).unwrap(), Wake::Look);
    }

    #[test]
    fn a_wait_that_is_not_ended_runs_out() {
        let word = AtomicU32::new(0);
        let short = Some(Duration::from_millis(1));
        let end = std::iter::repeat_with(|| wait(&word, Scope::Shared, 0, short).unwrap())
            .find(|&wake| wake == Wake::TimedOut);
        assert_eq!(end, Some(Wake::TimedOut));
    }

    #[test]
    fn a_wake_up_without_sleepers_counts_none() {
        assert_eq!(wake(&AtomicU32::new(0), Scope::Private, u32::MAX).unwrap(), 0);
    }

    #[test]
    fn a_sleeper_is_woken_in_either_scope() {
        for scope in [Scope::Private, Scope::Shared] {
            let word = AtomicU32::new(0);
            std::thread::scope(|threads| {
                let sleeper = threads.spawn(|| wait(&word, scope, 0, TIMEOUT).unwrap());
                while wake(&word, scope, 1).unwrap() == 0 && !sleeper.is_finished() {
                    std::thread::yield_now();
                }
                assert_eq!(sleeper.join().unwrap(), Wake::Look);
            });
        }
    }

    /// Goal: two mappings of one file are one word to the kernel.
    #[test]
    fn a_sleeper_is_woken_through_another_mapping_of_the_word() {
        let (here, file) = crate::memory::Mapping::memfd("futex", 4).unwrap();
        let there = crate::memory::Mapping::shared(&file, 4).unwrap();
        let (here, there) = (here.atomic_u32(0).unwrap(), there.atomic_u32(0).unwrap());
        std::thread::scope(|threads| {
            let sleeper = threads.spawn(|| {
                while here.load(Ordering::Acquire) == 0 {
                    assert_eq!(wait(here, Scope::Shared, 0, TIMEOUT).unwrap(), Wake::Look);
                }
            });
            there.store(1, Ordering::Release);
            wake(there, Scope::Shared, 1).unwrap();
            sleeper.join().unwrap();
        });
    }
}
