//! An allocator that counts.
//!
//! # Safety
//!
//! Every call goes on to the system's allocator as it came; counting touches nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Allocations of the calling thread since its start.
#[allow(dead_code, reason = "the test of scale counts bytes alone")]
pub(crate) fn own() -> usize {
    OWN.get()
}

/// Allocations of all threads since the start, and bytes allocated now.
pub(crate) fn counts() -> (usize, usize) {
    (ALLOCATIONS.load(Ordering::SeqCst), BYTES.load(Ordering::SeqCst))
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all memory is the system allocator's, with the layouts it was asked for.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        OWN.set(OWN.get() + 1);
        BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise, and `alloc` got the memory there.
        unsafe { System.dealloc(place, layout) }
    }
}
