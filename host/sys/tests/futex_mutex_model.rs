//! Every interleaving of threads that lock the mutex of the data path, tried by a model checker.
//!
//! The file under test is the crate's own; the primitives are loom's.
//!
//! # Safety
//!
//! The cell that the mutex guards is touched by the holder of the guard. That no other thread is at it then is
//! what is tested, and the cell sees it.

#![allow(dead_code, unreachable_pub, reason = "a part of the crate, seen from outside")]

/// What the file under test finds in its surroundings.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

    pub(crate) const LOOKS: u32 = 1;

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    pub(crate) fn sleep(_word: &AtomicU32, _expected: u32) {}

    pub(crate) fn wake(_word: &AtomicU32) {}
}

#[path = "../src/futex_mutex.rs"]
mod futex_mutex;

use futex_mutex::{FutexGuard, FutexMutex};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Loom's own cell, which says so if two are at it at once.
type Counter = FutexMutex<UnsafeCell<u32>>;

fn add_one(guard: &FutexGuard<'_, UnsafeCell<u32>>) {
    // SAFETY: the holder of the guard is alone, which is what the cell checks.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn count(mutex: &Counter) -> u32 {
    add_one(&mutex.lock());
    1
}

/// Counts if the mutex is free; whether it did.
fn count_perhaps(mutex: &Counter) -> u32 {
    mutex.try_lock().map_or(0, |guard| {
        add_one(&guard);
        1
    })
}

fn total(mutex: &Counter) -> u32 {
    let guard = mutex.lock();
    // SAFETY: as above.
    guard.with(|value| unsafe { *value })
}

/// Threads that each do one of these, while the first thread counts, are never inside at once.
fn meet<const N: usize>(does: [fn(&Counter) -> u32; N], preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    // No thread is stopped more often than that for no reason: waiting threads may keep the model from the holder.
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let mutex = Arc::new(FutexMutex::new(UnsafeCell::new(0)));
        let others = does.map(|does| {
            let mutex = Arc::clone(&mutex);
            thread::spawn(move || does(&mutex))
        });
        let counted = count(&mutex);
        let counted =
            others.into_iter().filter_map(|other| other.join().ok()).sum::<u32>() + counted;
        assert_eq!(total(&mutex), counted);
    });
}

#[test]
fn two_that_wait_are_never_inside_at_once() {
    meet([count], 4);
}

#[test]
fn one_that_only_tries_is_never_inside_with_another() {
    meet([count_perhaps], 4);
}

#[test]
fn three_are_never_inside_at_once() {
    meet([count, count_perhaps], 2);
}
