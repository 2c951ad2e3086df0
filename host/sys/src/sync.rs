//! The primitives of the lock in `latch.rs`, which a model checker has others of.

use crate::barrier;
use crate::latch::NOBODY;
use std::cell::Cell;
use std::hint;
use std::sync::atomic::compiler_fence;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How often in a row somebody has to come to own a lock: more than it takes to set something up.
pub(crate) const HABIT: u32 = 256;
/// How often it takes at most after he has lost it, time and again: by then it has paid for what the loss
/// costs, some microseconds.
pub(crate) const HABIT_MAX: u32 = 1 << 12;
/// Looks before sleeping.
pub(crate) const LOOKS: u32 = 100;
/// Times that a processor is given away before sleeping.
const YIELDS: u32 = 16;
/// The longest sleep between two looks: what a wake-up that was missed costs at most.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// As long as an owner that is inside is waited for at a time, who wakes nobody.
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    static ME: Cell<u64> = const { Cell::new(NOBODY) };
}

/// The number of the calling thread, which no other has or had.
#[inline(always)]
pub(crate) fn me() -> u64 {
    #[cold]
    fn first() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        set_me(number);
        number
    }
    match ME.with(Cell::get) {
        NOBODY => first(),
        number => number,
    }
}

/// Another number for the calling thread.
pub(crate) fn set_me(number: u64) {
    ME.with(|me| me.set(number));
}

/// Barriers for all threads can be had.
#[cfg(not(miri))]
pub(crate) fn prepare_barriers() -> bool {
    barrier::prepare()
}

/// Miri has none.
#[cfg(miri)]
pub(crate) fn prepare_barriers() -> bool {
    false
}

/// The compiler keeps to the order; of the processor [`barrier_everywhere`] asks it.
#[inline(always)]
pub(crate) fn barrier_here() {
    compiler_fence(Ordering::SeqCst);
}

/// Every thread of the process passes a barrier.
pub(crate) fn barrier_everywhere() {
    while !barrier::everywhere() {
        // A child's barriers may have to be prepared anew.
        if !barrier::prepare() {
            // It has confined itself. A processor writes down what it has to within nanoseconds.
            return thread::sleep(PAUSE);
        }
    }
}

/// Lets others go on, after so many looks in vain.
pub(crate) fn pause(looks: u32) {
    if looks < LOOKS {
        hint::spin_loop();
    } else if looks < LOOKS + YIELDS {
        thread::yield_now();
    } else {
        // Whoever is waited for may be of a lower priority, and need this very processor.
        thread::sleep(PAUSE);
    }
}

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
    //! Of the lock that stands on them, whose own file is the model checker's, too.

    use super::{HABIT, HABIT_MAX};
    use crate::latch::{Latch, NOBODY, abstain};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;

    const THREADS: u64 = 4;
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

    fn owned<T>(value: T) -> Latch<T> {
        let latch = Latch::new(value);
        take(&latch, HABIT);
        assert!(latch.is_mine());
        latch
    }

    fn take<T>(latch: &Latch<T>, times: u32) {
        (0..times).for_each(|_| drop(latch.lock()));
    }

    fn take_elsewhere<T: Send>(latch: &Latch<T>, times: u32) {
        thread::scope(|scope| {
            scope.spawn(|| take(latch, times));
        });
    }

    #[test]
    fn one_at_a_time_has_the_value() {
        // Two halves that only their holder makes differ.
        let latch = Latch::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut halves = latch.lock();
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
        assert_eq!(*latch.lock(), (THREADS * ROUNDS, THREADS * ROUNDS));
        assert_eq!(latch.sleepers(), 0);
    }

    #[test]
    fn nobody_else_gets_it_meanwhile_and_a_panic_lets_go_of_it() {
        let mut latch = Latch::new(7);
        let held = latch.lock();
        assert!(latch.try_lock().is_none());
        assert_eq!(format!("{latch:?} {held:?}"), "<locked> 7");
        drop(held);
        let ended = thread::scope(|scope| {
            let panics = || {
                let mut value = latch.lock();
                *value = 8;
                panic!("as is meant");
            };
            scope.spawn(panics).join()
        });
        assert!(ended.is_err());
        assert_eq!(latch.try_lock().map(|value| *value), Some(8));
        assert_eq!(*latch.get_mut(), 8);
    }

    /// Goal: whoever lets go may overlook a sleeper, who wakes all the same.
    #[test]
    fn a_sleeper_looks_himself() {
        let latch = Latch::new(());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let held = latch.lock();
            scope.spawn(|| {
                drop(latch.lock());
                tell.send(()).unwrap();
            });
            while latch.sleepers() == 0 {
                thread::yield_now();
            }
            latch.release_silently(held);
            told.recv().unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "nobody owns a lock there")]
    fn who_comes_often_in_a_row_owns_it_until_another_comes_and_then_after_twice_as_often() {
        let latch = owned(7);
        *latch.lock() += 1;
        assert_eq!(latch.try_lock().map(|value| *value), Some(8));
        for round in 1..8 {
            take_elsewhere(&latch, 1);
            assert_eq!(latch.owner(), NOBODY);
            let needed = (HABIT << round).min(HABIT_MAX);
            take(&latch, needed - 1);
            assert_eq!(latch.owner(), NOBODY);
            take(&latch, 1);
            assert!(latch.is_mine());
        }
        assert_eq!(*latch.lock(), 8);
    }

    #[test]
    #[cfg_attr(miri, ignore = "nobody owns a lock there")]
    fn nobody_else_ever_owns_what_one_has_owned() {
        let latch = owned(());
        take_elsewhere(&latch, 3 * HABIT_MAX);
        assert_eq!(latch.owner(), NOBODY);
    }

    #[test]
    fn who_comes_in_between_starts_the_count_anew() {
        let latch = Latch::new(());
        take(&latch, HABIT - 1);
        take_elsewhere(&latch, 1);
        take(&latch, 1);
        assert_eq!(latch.owner(), NOBODY);
    }

    #[test]
    fn who_abstains_never_owns_it() {
        let latch = Latch::new(());
        thread::scope(|scope| {
            scope.spawn(|| {
                abstain();
                take(&latch, 3 * HABIT);
            });
        });
        assert_eq!(latch.owner(), NOBODY);
    }

    #[test]
    #[cfg_attr(miri, ignore = "nobody owns a lock there")]
    fn an_owner_that_comes_twice_is_told_and_a_panic_leaves_it_open() {
        let latch = owned(0);
        let twice = catch_unwind(AssertUnwindSafe(|| {
            let _guard = latch.lock();
            assert!(latch.try_lock().is_none());
            let _again = latch.lock();
        }));
        assert!(twice.is_err());
        *latch.lock() += 1;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*latch.lock(), 1));
        });
    }

    /// Goal: who only tries is not let in while the owner is inside, and takes nothing from whoever comes
    /// after him.
    #[test]
    #[cfg_attr(miri, ignore = "nobody owns a lock there")]
    fn an_owner_that_is_inside_is_waited_for() {
        let latch = owned(0);
        thread::scope(|scope| {
            let mut guard = latch.lock();
            scope.spawn(|| assert!(latch.try_lock().is_none())).join().unwrap();
            assert_eq!(latch.owner(), NOBODY);
            let waits = scope.spawn(|| *latch.lock());
            (0..20).for_each(|_| thread::yield_now());
            *guard += 1;
            drop(guard);
            assert_eq!(waits.join().unwrap(), 1);
        });
    }

    /// Goal: nobody meets inside, whoever owns the lock when the others come. Method: a number that is
    /// read and written in two steps, by an owner and others that come at any time, wait or try.
    #[test]
    fn no_two_are_inside_at_once() {
        let (rounds, times) = if cfg!(miri) { (2, 20) } else { (200, 1000) };
        for round in 0..rounds {
            let latch = Latch::new(0_u64);
            thread::scope(|scope| {
                for other in 0..3 {
                    let latch = &latch;
                    scope.spawn(move || {
                        let late = 300 * other * (round % 5);
                        (0..late).for_each(|_| std::hint::spin_loop());
                        for at in 0..times {
                            let tried = (at % 7 == other).then(|| latch.try_lock()).flatten();
                            let mut guard = tried.unwrap_or_else(|| latch.lock());
                            let before = *guard;
                            std::hint::black_box(&mut guard);
                            *guard = before + 1;
                        }
                    });
                }
            });
            assert_eq!(*latch.lock(), 3 * times);
        }
    }
}
