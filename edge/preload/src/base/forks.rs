//! Forks: locks and calls that take part in them from when they are first used, and whether there is another thread that
//! could hold a lock.
//!
//! Not here: what every process has from the start (`life.rs`).
//!
//! # Safety
//!
//! The C library's `__libc_single_threaded`, where it has one, is a byte that lies where it is for good.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::base::lock::{Lazy, Lock};

/// What a lock guards. A thread that holds an earlier one may take a later one, and any that a process has from the
/// start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rank {
    Desks,
    Rings,
    Streams,
}

static LOCKS: [Lazy<&'static Lock>; 3] = [const { Lazy::new() }; 3];
static IN_CHILD: Lazy<fn()> = Lazy::new();

/// From now on a lock is held across a fork.
pub(crate) fn join(rank: Rank, lock: &'static Lock) {
    let place = match rank {
        Rank::Desks => 0,
        Rank::Rings => 1,
        Rank::Streams => 2,
    };
    if let Some(known) = LOCKS.get(place)
        && known.get().is_none()
    {
        known.get_or_init(|| lock);
    }
}

/// From now on a child calls this, with no lock held.
pub(crate) fn call_in_child(call: fn()) {
    if IN_CHILD.get().is_none() {
        IN_CHILD.get_or_init(|| call);
    }
}

/// Those locks, in their order.
pub(crate) fn locks() -> impl Iterator<Item = &'static Lock> {
    LOCKS.iter().filter_map(Lazy::get).copied()
}

/// In a child just forked.
pub(crate) fn in_child() {
    if let Some(call) = IN_CHILD.get() {
        call();
    }
}

/// Where the C library says whether there is one thread (Linux, glibc 2.32); null where that is not known.
static IS_SINGLE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// From now on [`is_alone`] has an answer. This looks a name up.
#[cold]
pub(crate) fn learn_threads() {
    // SAFETY: a C string; a null pointer if there is no such name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    IS_SINGLE.store(found.cast(), Ordering::Relaxed);
}

/// Whether the calling thread is known to be the only one: no other holds a lock that this process has for itself. Handlers
/// have to be kept out all the same.
#[inline]
pub(crate) fn is_alone() -> bool {
    let at = NonNull::new(IS_SINGLE.load(Ordering::Relaxed));
    // SAFETY: it lies there for good; only threads that begin or end change it, and this is the only one, or the answer is no.
    at.is_some_and(|at| unsafe { at.read_volatile() } != 0)
}
