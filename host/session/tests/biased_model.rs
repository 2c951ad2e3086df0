//! Every interleaving of an owner of a biased lock and of others that come, tried by a model checker.
//!
//! The file under test is the session's own; the primitives are loom's. It has no barrier that one thread
//! makes for all, so both make one of their own: what the model says of the order of the steps holds, and
//! what the kernel promises of `membarrier(2)` is believed.
//!
//! # Safety
//!
//! The cell that the lock guards is touched by whoever has the guard. That nobody else is at it then is
//! what is tested, and the cell sees it.

#![allow(dead_code, unreachable_pub, reason = "a part of the session, seen from outside")]

/// What the file under test finds in its surroundings.
mod sync {
    use loom::sync::atomic::fence;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    use std::cell::Cell;

    pub(crate) const HABIT: u32 = 1;

    loom::thread_local! {
        pub(crate) static ME: Cell<u64> = Cell::new(1);
    }

    pub(crate) fn me() -> u64 {
        ME.with(Cell::get)
    }

    pub(crate) fn prepare_barriers() -> bool {
        true
    }

    pub(crate) fn barrier_here() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn barrier_everywhere() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn pause(_looks: u32) {
        loom::thread::yield_now();
    }
}

#[path = "../src/biased.rs"]
mod biased;

use biased::Biased;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Loom's own cell, which says so if two are at it at once.
type Counter = Biased<UnsafeCell<u32>>;

fn count(lock: &Counter) {
    let guard = lock.lock();
    // SAFETY: whoever has the guard is alone, which is what the cell checks.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn total(lock: &Counter) -> u32 {
    let guard = lock.lock();
    // SAFETY: as above.
    guard.with(|value| unsafe { *value })
}

fn come(lock: &Arc<Counter>, number: u64, times: u32) -> thread::JoinHandle<()> {
    let lock = Arc::clone(lock);
    thread::spawn(move || {
        sync::ME.with(|me| me.set(number));
        (0..times).for_each(|_| count(&lock));
    })
}

#[test]
fn an_owner_and_another_are_never_inside_at_once() {
    loom::model(|| {
        let lock = Arc::new(Biased::new(UnsafeCell::new(0)));
        count(&lock); // An owner from now on.
        let other = come(&lock, 2, 1);
        count(&lock);
        count(&lock);
        let done = other.join();
        assert!(done.is_ok());
        assert_eq!(total(&lock), 4);
    });
}

#[test]
fn two_others_that_come_to_an_owner_are_never_inside_at_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(Biased::new(UnsafeCell::new(0)));
        count(&lock);
        let others = [2, 3].map(|number| come(&lock, number, 1));
        count(&lock);
        others.into_iter().for_each(|other| assert!(other.join().is_ok()));
        assert_eq!(total(&lock), 4);
    });
}

#[test]
fn who_becomes_owner_is_alone_as_well() {
    loom::model(|| {
        let lock = Arc::new(Biased::new(UnsafeCell::new(0)));
        let other = come(&lock, 2, 2);
        count(&lock);
        count(&lock);
        assert!(other.join().is_ok());
        assert_eq!(total(&lock), 4);
    });
}
