//! Children of `vfork`: processes that borrow their parent's memory until they execute something.
//!
//! # Safety
//!
//! The test makes one that has a stack of its own, and waits for it, as `vfork` does.

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

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};

    use adverb_shm::alive;

    use super::settle_in;
    use crate::base::{raw, thread};

    /// What a child does with its parent's thread.
    extern "C" fn ask_for_number(asked: *mut c_void) -> c_int {
        // SAFETY: the parent's own, which waits.
        unsafe { asked.cast::<u32>().write(thread::id()) };
        0
    }

    /// Goal: a thread is known by its own number, also where a `vfork` child has asked for that first: it uses its parent's
    /// memory, and the thread's, and is gone when the parent goes on.
    #[test]
    fn a_thread_has_its_own_number_after_a_vfork() {
        settle_in();
        std::thread::spawn(|| {
            let (mut stack, mut asked) = (vec![0_u128; 4096], 0_u32);
            let end = stack.as_mut_ptr_range().end.cast();
            let (how, at) = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, &raw mut asked);
            // SAFETY: a stack of ours, and a number, both of which are there until the child has ended.
            let child = unsafe { libc::clone(ask_for_number, end, how, at.cast()) };
            assert_eq!(alive::number(asked), child.cast_unsigned());
            assert_eq!(alive::number(thread::id()), raw::thread_id());
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        })
        .join()
        .unwrap();
    }
}
