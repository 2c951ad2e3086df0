//! Locks, and words for those that hold them: with holders that end, and numbers that are others' by now.
//!
//! # Safety
//!
//! A lock is one word, of which any is legal.

#[path = "../../src/base/alive.rs"]
#[expect(dead_code, reason = "what is used depends on the crate that includes it")]
mod alive;
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

/// The room that they know.
mod base {
    pub(crate) use crate::{alive, pace, raw, thread};
}

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// Goal: a process that lives is known, by its number and by when it began.
#[test]
fn a_number_is_its_process_s_alone() {
    let me = alive::me();
    assert_eq!(alive::number(me), std::process::id());
    assert!(me >> BEGINNING != 0 && !alive::has_ended(me), "{me:x}");
    assert!(forged(std::process::id()).into_iter().any(alive::has_ended));
    assert!(!alive::has_thread_ended(thread::id()));
    let of_thread = std::thread::spawn(thread::id).join().expect("a thread");
    assert!(of_thread != thread::id() && of_thread >> BEGINNING == me >> BEGINNING);

    let other = Idle::new();
    let number = other.0.id();
    assert!(!alive::has_ended(number), "what is known is its number alone");
    assert!(forged(number).into_iter().any(alive::has_ended));
    drop(other);
    assert!(alive::has_ended(number) && forged(number).into_iter().all(alive::has_ended));
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
