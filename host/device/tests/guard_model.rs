//! Every interleaving of an accessing thread at memory and an owner that takes it back, tried by a model checker.
//!
//! The file under test is the device's own; the words are loom's. Memory that was taken back is written to by its
//! owner, which loom reports if an accessing thread may be at it still.
//!
//! # Safety
//!
//! 1. Bytes are accessed through loom's cells only, which report two accesses at once of which one writes.

#![allow(dead_code, unreachable_pub, reason = "a part of the device, seen from outside")]
#![expect(clippy::indexing_slicing, reason = "a test may fail")]

/// What the file under test finds in its surroundings.
///
/// To loom, sequentially consistent accesses are no more than acquire and release. The order between such accesses
/// of one thread that the file relies on, a change before a look, is had by fences behind the changes.
mod sync {
    pub(crate) use loom::sync::atomic::Ordering;
    use loom::sync::atomic::fence;

    #[derive(Debug)]
    pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub(crate) fn new(value: u32) -> Self {
            Self(loom::sync::atomic::AtomicU32::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
            fenced(self.0.swap(value, order), order)
        }

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            fenced(self.0.fetch_add(value, order), order)
        }

        pub(crate) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            fenced(self.0.fetch_sub(value, order), order)
        }

        pub(crate) fn fetch_xor(&self, value: u32, order: Ordering) -> u32 {
            fenced(self.0.fetch_xor(value, order), order)
        }
    }

    fn fenced(found: u32, order: Ordering) -> u32 {
        if order == Ordering::SeqCst {
            fence(order);
        }
        found
    }
}

#[path = "../src/link/shm/guard.rs"]
mod guard;

use guard::{AccessGuard, Counters};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU32, Ordering};

/// A region: what is published of it, and its bytes.
struct Region {
    key: AtomicU32,
    bytes: UnsafeCell<u32>,
}

/// Two processes and what they share.
struct Shared {
    phase: AtomicU32,
    accesses: [AtomicU32; 2],
    regions: [Region; 2],
}

// SAFETY: rule 1.
unsafe impl Sync for Shared {}
// SAFETY: rule 1.
unsafe impl Send for Shared {}

impl<'a> Counters<'a> for &'a Shared {
    fn phase(self) -> &'a AtomicU32 {
        &self.phase
    }

    fn accesses(self, phase: bool) -> &'a AtomicU32 {
        &self.accesses[usize::from(phase)]
    }
}

impl Shared {
    fn new() -> Self {
        let zero = || AtomicU32::new(0);
        let region = || Region { key: AtomicU32::new(1), bytes: UnsafeCell::new(0) };
        Self { phase: zero(), accesses: [zero(), zero()], regions: [region(), region()] }
    }

    /// Looks at a region's bytes if it is published.
    fn guard(&self, region: usize) -> bool {
        let guard = AccessGuard::begin(self);
        let Region { key, bytes } = &self.regions[region];
        let there = key.load(Ordering::SeqCst) != 0;
        if there {
            bytes.with(|bytes| assert!(!bytes.is_null()));
        }
        drop(guard);
        there
    }

    /// Takes a region back, and does with its bytes what it likes.
    fn withdraw(&self, region: usize) {
        let Region { key, bytes } = &self.regions[region];
        key.swap(0, Ordering::SeqCst);
        let goes_on = || {
            thread::yield_now();
            true
        };
        assert!(guard::wait(self, goes_on));
        bytes.with_mut(|bytes| assert!(!bytes.is_null()));
    }
}

/// Goal: no access is at memory that was taken back. Method: two regions are taken back one after the other, for the
/// second time an accessing thread may have looked at the phase before the first.
#[test]
fn no_access_is_at_memory_that_was_taken_back() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        let theirs = Arc::clone(&shared);
        let accessor = thread::spawn(move || _ = theirs.guard(1));
        shared.withdraw(0);
        shared.withdraw(1);
        accessor.join().unwrap();
        assert!(guard::is_vacant(&*shared));
    });
}

#[test]
fn several_accesses_are_all_waited_for() {
    // Of three threads there are too many interleavings: those in which two are interrupted.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Arc::new(Shared::new());
        let accesses = [(); 2].map(|()| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || _ = theirs.guard(0))
        });
        shared.withdraw(0);
        accesses.into_iter().for_each(|accessor| accessor.join().unwrap());
        assert!(!shared.guard(0));
        assert!(guard::is_vacant(&*shared));
    });
}

/// Goal: an owner that gives up says so. Method: an access that does not end.
#[test]
fn an_access_that_does_not_end_is_given_up() {
    loom::model(|| {
        let shared = Shared::new();
        let guard = AccessGuard::begin(&shared);
        let mut looks = 0;
        let given_up = !guard::wait(&shared, || {
            looks += 1;
            looks < 3
        });
        assert!(given_up && looks == 3 && !guard::is_vacant(&shared));
        drop(guard);
        assert!(guard::wait(&shared, || false));
    });
}
