//! Locks, with holders that end, and numbers that are others' by now.
//!
//! # Safety
//!
//! A lock is one word, of which any is legal.

#[path = "../../src/base/lock.rs"]
#[expect(dead_code, reason = "what is used depends on the crate that includes it")]
mod lock;
#[path = "../../src/base/pace.rs"]
mod pace;
#[path = "raw.rs"]
mod raw;
#[path = "../../src/base/thread.rs"]
#[expect(dead_code, reason = "what is used depends on the crate that includes it")]
mod thread;
#[path = "../../src/base/yields.rs"]
mod yields;

/// The room that they know.
mod base {
    pub(crate) use crate::{pace, raw, thread, yields};

    pub(crate) mod vfork {
        /// No process here has another one's memory.
        pub(crate) fn is_child() -> bool {
            false
        }
    }
}

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adverb_shm::alive;
use lock::{Guarded, Lock};

/// A word's bits from here on say when its process began.
const BEGINNING: u32 = 22;

/// A process that does nothing. It ends with the test.
struct Idle(Child);

impl Idle {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().expect("a process"))
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same number, and two beginnings, one of which is not that of its process.
fn forged(number: u32) -> [u32; 2] {
    [number | 1 << BEGINNING, number | 2 << BEGINNING]
}

fn lock_of(holder: u32) -> Lock {
    // SAFETY: a lock is one word.
    unsafe { std::mem::transmute(holder) }
}

/// Goal: a lock whose holder has died is taken from it, though its number is another process's, and one whose
/// holder lives is not.
#[test]
fn a_lock_is_taken_from_the_dead() {
    let other = Idle::new();
    for holder in forged(other.0.id()) {
        if alive::has_ended(holder) {
            let lock = lock_of(holder);
            assert!(lock.is_abandoned() && lock.try_hold().is_none());
            drop(lock.hold());
            assert!(lock.try_hold().is_some());
        }
    }
    let lock = lock_of(other.0.id());
    let has_it = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _held = lock.hold();
            has_it.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!has_it.load(Ordering::SeqCst), "its holder lives");
        drop(other);
    });
    assert!(has_it.load(Ordering::SeqCst));
}

/// Goal: one at a time has the value.
#[test]
fn a_guarded_value_is_one_thread_s_at_a_time() {
    static COUNT: Guarded<u64> = Guarded::new(0);
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 100_000;
    let count = || {
        for _ in 0..ROUNDS {
            COUNT.with(|count| {
                let before = std::hint::black_box(*count);
                *count = before + 1;
            });
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(count)));
    assert_eq!(COUNT.with(|count| *count), THREADS * ROUNDS);
}
