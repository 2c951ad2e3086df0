//! Every interleaving of an owner of a lock and of others that come, tried by a model checker.
//!
//! The file under test is the crate's own; the primitives are loom's. It has no barrier that one thread
//! makes for all, so both make one of their own: what the model says of the order of the steps holds, and
//! what the kernel promises of `membarrier(2)` is believed.
//!
//! # Safety
//!
//! The cell that the lock guards is touched by whoever has the guard. That nobody else is at it then is
//! what is tested, and the cell sees it.

#![allow(dead_code, unreachable_pub, reason = "a part of the crate, seen from outside")]

/// What the file under test finds in its surroundings.
mod sync {
    use loom::sync::atomic::fence;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::cell::Cell;

    /// Whoever has come becomes the owner, every time.
    pub(crate) const HABIT: u32 = 1;
    pub(crate) const HABIT_MAX: u32 = 1;
    pub(crate) const LOOKS: u32 = 1;

    loom::thread_local! {
        static ME: Cell<u64> = Cell::new(1);
    }

    pub(crate) fn me() -> u64 {
        ME.with(Cell::get)
    }

    pub(crate) fn set_me(number: u64) {
        ME.with(|me| me.set(number));
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

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    pub(crate) fn sleep(_word: &AtomicU32, _expected: u32) {}

    pub(crate) fn wake(_word: &AtomicU32) {}
}

#[path = "../src/latch.rs"]
mod latch;

use latch::{Latch, Latched};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ops::RangeInclusive;

/// Loom's own cell, which says so if two are at it at once.
type Counter = Latch<UnsafeCell<u32>>;

fn add_one(guard: &Latched<'_, UnsafeCell<u32>>) {
    // SAFETY: whoever has the guard is alone, which is what the cell checks.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn count(latch: &Counter) {
    add_one(&latch.lock());
}

/// Counts if nobody is inside; whether it did.
fn count_perhaps(latch: &Counter) -> u32 {
    latch.try_lock().map_or(0, |guard| {
        add_one(&guard);
        1
    })
}

fn total(latch: &Counter) -> u32 {
    let guard = latch.lock();
    // SAFETY: as above.
    guard.with(|value| unsafe { *value })
}

fn come(latch: &Arc<Counter>, number: u64, does: fn(&Counter) -> u32) -> thread::JoinHandle<u32> {
    let latch = Arc::clone(latch);
    thread::spawn(move || {
        sync::set_me(number);
        does(&latch)
    })
}

fn once(latch: &Counter) -> u32 {
    count(latch);
    1
}

fn twice(latch: &Counter) -> u32 {
    count(latch);
    count(latch);
    2
}

/// A counter that the calling thread owns.
fn owned() -> Arc<Counter> {
    let latch = Arc::new(Latch::new(UnsafeCell::new(0)));
    count(&latch);
    latch
}

/// As `loom::model`, but no thread is stopped more often than that for no reason.
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn an_owner_and_another_are_never_inside_at_once() {
    an_owner_meets(once, 1..=1);
}

#[test]
fn an_owner_and_one_that_only_tries_are_never_inside_at_once() {
    an_owner_meets(count_perhaps, 0..=1);
}

/// An owner and one who counts so often.
fn an_owner_meets(does: fn(&Counter) -> u32, times: RangeInclusive<u32>) {
    loom::model(move || {
        let latch = owned();
        let other = come(&latch, 2, does);
        count(&latch);
        count(&latch); // Perhaps as the owner once more.
        let counted = other.join().ok();
        assert!(counted.is_some_and(|counted| times.contains(&counted)));
        assert_eq!(Some(total(&latch)), counted.map(|counted| 3 + counted));
    });
}

#[test]
fn two_others_that_come_to_an_owner_are_never_inside_at_once() {
    // Of three, two that wait may keep the model from whoever lets go.
    check(2, || {
        let latch = owned();
        let others = [come(&latch, 2, once), come(&latch, 3, count_perhaps)];
        count(&latch);
        let counted: u32 = others.map(|other| other.join().unwrap_or_default()).iter().sum();
        assert_eq!(total(&latch), 2 + counted);
    });
}

#[test]
fn who_becomes_owner_is_alone_as_well() {
    check(3, || {
        let latch = Arc::new(Latch::new(UnsafeCell::new(0)));
        let other = come(&latch, 2, twice);
        count(&latch);
        count(&latch);
        assert_eq!(other.join().ok(), Some(2));
        assert_eq!(total(&latch), 4);
    });
}
