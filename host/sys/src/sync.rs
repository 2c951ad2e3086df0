//! The primitives of the mutex in `futex_mutex.rs`, which a model checker has others of.

use std::hint;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(miri)]
use std::thread;
#[cfg(not(miri))]
use std::time::Duration;

/// Looks before sleeping.
pub(crate) const LOOKS: u32 = 100;
/// The longest sleep between two looks: what a missed wake-up costs at most.
#[cfg(not(miri))]
const SLEEP_MAX: Duration = Duration::from_millis(1);

pub(crate) fn spin() {
    hint::spin_loop();
}

/// Sleeps while `word` is `expected`, but not for long.
#[cfg(not(miri))]
pub(crate) fn sleep(word: &AtomicU32, expected: u32) {
    use crate::futex::{Scope, wait};
    // Whatever it says, the word is looked at next.
    let _ = wait(word, Scope::Private, expected, Some(SLEEP_MAX));
}

/// Wakes one of those that sleep.
#[cfg(not(miri))]
#[cold]
pub(crate) fn wake(word: &AtomicU32) {
    use crate::futex::{Scope, wake};
    let _ = wake(word, Scope::Private, 1);
}

#[cfg(miri)]
pub(crate) fn sleep(_word: &AtomicU32, _expected: u32) {
    thread::yield_now();
}

#[cfg(miri)]
pub(crate) fn wake(_word: &AtomicU32) {}

#[cfg(test)]
mod tests {
    //! Of the mutex that stands on them, whose own file is the model checker's, too.

    use crate::futex_mutex::FutexMutex;
    use std::sync::mpsc;
    use std::thread;

    const THREADS: u64 = 4;
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

    #[test]
    fn one_at_a_time_has_the_value() {
        // Two halves that only their holder makes differ.
        let mutex = FutexMutex::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut halves = mutex.lock();
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
        assert_eq!(*mutex.lock(), (THREADS * ROUNDS, THREADS * ROUNDS));
        assert_eq!(mutex.sleepers(), 0);
    }

    #[test]
    fn it_is_held_until_its_guard_ends_also_by_a_panic() {
        let mut mutex = FutexMutex::new(7);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert_eq!(format!("{mutex:?} {held:?}"), "<locked> 7");
        drop(held);
        let ended = thread::scope(|scope| {
            let panics = || {
                let mut value = mutex.lock();
                *value = 8;
                panic!("as is meant");
            };
            scope.spawn(panics).join()
        });
        assert!(ended.is_err());
        assert_eq!(mutex.try_lock().map(|value| *value), Some(8));
        assert_eq!(*mutex.get_mut(), 8);
    }

    /// Goal: a release may miss a waiting thread, which locks all the same.
    #[test]
    fn a_thread_that_was_missed_looks_again() {
        let mutex = FutexMutex::new(());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let held = mutex.lock();
            scope.spawn(|| {
                drop(mutex.lock());
                tell.send(()).unwrap();
            });
            while mutex.sleepers() == 0 {
                thread::yield_now();
            }
            mutex.release_silently(held);
            told.recv().unwrap();
        });
    }
}
