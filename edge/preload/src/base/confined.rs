//! Confinement: whether the program has limited itself to some system calls (`seccomp`).
//!
//! Here are two facts that every file may ask for. How a program is confined is in `life.rs`.

use std::sync::atomic::{AtomicBool, Ordering};

/// The program has confined itself to some system calls.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
/// Since then none of its sockets is known here.
static IS_PASSTHROUGH: AtomicBool = AtomicBool::new(false);

/// From now on the program is confined. `is_passthrough`: none of its sockets is known here.
pub(crate) fn confine(is_passthrough: bool) {
    IS_PASSTHROUGH.store(is_passthrough, Ordering::Release);
    IS_CONFINED.store(true, Ordering::Release);
}

/// Whether the program has confined itself.
pub(crate) fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Acquire)
}

/// Whether the program has confined itself, and the kernel's own calls are all there is to its sockets.
pub(crate) fn is_passthrough() -> bool {
    IS_PASSTHROUGH.load(Ordering::Acquire)
}
