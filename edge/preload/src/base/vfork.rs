//! Children of `vfork`: processes that borrow their parent's memory until they execute something.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::raw;

/// The process whose memory and handlers these are, or 0: in a child of `vfork`, which shares our memory but not our
/// handlers, it is another.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// This process is whose memory this is, from now on.
pub(crate) fn settle_in() {
    PROCESS.store(raw::process_id(), Ordering::Relaxed);
}

/// Whose memory this is is not asked any more.
pub(crate) fn move_out() {
    PROCESS.store(0, Ordering::Relaxed);
}

/// Whether this is a process that borrows another's memory, until it executes something.
pub(crate) fn is_child() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != raw::process_id()
}
