//! The primitives of the biased lock, which a model checker has others of.

use std::cell::Cell;
use std::sync::atomic::compiler_fence;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// How often in a row somebody has to come to own a lock: more than it takes to set something up.
pub(crate) const HABIT: u32 = 256;

/// The number of the calling thread, which no other has or had.
#[inline(always)]
pub(crate) fn me() -> u64 {
    thread_local! {
        static ME: Cell<u64> = const { Cell::new(0) };
    }
    #[cold]
    fn first() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        ME.with(|me| me.set(number));
        number
    }
    match ME.with(Cell::get) {
        0 => first(),
        number => number,
    }
}

/// Barriers for all threads can be had.
pub(crate) fn prepare_barriers() -> bool {
    adverb_sys::barrier::prepare()
}

/// The compiler keeps to the order; of the processor [`barrier_everywhere`] asks it.
#[inline(always)]
pub(crate) fn barrier_here() {
    compiler_fence(Ordering::SeqCst);
}

/// Every thread of the process passes a barrier.
pub(crate) fn barrier_everywhere() {
    while !adverb_sys::barrier::everywhere() {
        // A child's barriers may have to be prepared anew.
        if !adverb_sys::barrier::prepare() {
            // It has confined itself. A processor writes down what it has to within nanoseconds.
            return thread::sleep(PAUSE);
        }
    }
}

/// Lets others go on, after so many looks in vain.
pub(crate) fn pause(looks: u32) {
    match looks < YIELDS {
        true => thread::yield_now(),
        // Whoever is waited for may be of a lower priority, and need this very processor.
        false => thread::sleep(PAUSE),
    }
}

const YIELDS: u32 = 16;
const PAUSE: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    //! Of the lock that stands on them, whose own file is the model checker's, too.

    use crate::biased::{Biased, NEVER, NOBODY};
    use crate::sync::{HABIT, me};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    fn owned(value: u64) -> Biased<u64> {
        let lock = Biased::new(value);
        for _ in 0..HABIT {
            let _guard = lock.lock();
        }
        assert_eq!(lock.owner(), me());
        lock
    }

    #[test]
    fn who_comes_often_in_a_row_owns_it_until_another_comes() {
        let lock = owned(7);
        *lock.lock() += 1;
        thread::scope(|scope| {
            scope.spawn(|| *lock.lock() += 1);
        });
        for _ in 0..2 * HABIT {
            *lock.lock() += 1;
        }
        assert_eq!(lock.owner(), NEVER);
        assert_eq!(*lock.lock(), 9 + 2 * u64::from(HABIT));
    }

    #[test]
    fn who_comes_in_between_starts_the_count_anew() {
        let lock = Biased::new(());
        for _ in 0..HABIT - 1 {
            drop(lock.lock());
        }
        thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
        });
        drop(lock.lock());
        assert_eq!(lock.owner(), NOBODY);
    }

    #[test]
    fn an_owner_that_comes_twice_is_told_and_a_panic_leaves_it_open() {
        let lock = owned(0);
        let twice = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.lock();
            let _again = lock.lock();
        }));
        assert!(twice.is_err());
        *lock.lock() += 1;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(*lock.lock(), 1));
        });
    }

    /// Goal: nobody meets inside, whoever owns the lock when the others come. Method: a number that is
    /// read and written in two steps, by an owner and others that come at any time.
    #[test]
    fn no_two_are_inside_at_once() {
        for round in 0..200 {
            let lock = Biased::new(0_u64);
            thread::scope(|scope| {
                for other in 0..3 {
                    let lock = &lock;
                    scope.spawn(move || {
                        let late = 300 * other * (round % 5);
                        (0..late).for_each(|_| std::hint::spin_loop());
                        for _ in 0..1000 {
                            let mut guard = lock.lock();
                            let before = *guard;
                            std::hint::black_box(&mut guard);
                            *guard = before + 1;
                        }
                    });
                }
            });
            assert_eq!(*lock.lock(), 3000);
        }
    }
}
