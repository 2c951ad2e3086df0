//! Waits in which threads can be cancelled (`pthread_cancel`), as in the calls of the kernel that the real library waits in.
//!
//! A call is not cancelled elsewhere ([`adverb_device::uncancelled`]): what waits returns to the function that C calls, which has nothing to
//! drop, and waits there ([`until`]).
//!
//! # Safety
//!
//! 1. The functions of the C library have the types of its headers.
//! 2. The frames from the one that C calls to [`wait`] own nothing: they can be unwound.

use crate::errno::{Answer, Errno};
use crate::export::guarded;
use libc::{c_int, nfds_t, pollfd};

unsafe extern "C-unwind" {
    fn poll(list: *mut pollfd, used: nfds_t, timeout: c_int) -> c_int;
    fn pthread_testcancel();
}

/// What an attempt has come to.
pub(crate) enum Attempt {
    Done,
    /// There is nothing now, but may be when this descriptor can be read.
    Waits(c_int),
}

/// Attempts until something is done, and waits in between. A thread can be cancelled here, and a signal whose handler asks
/// for no restart ends it with `EINTR`.
///
/// The attempt owns nothing.
pub(crate) fn until(attempt: &dyn Fn() -> Answer<Attempt>) -> Answer<()> {
    // SAFETY: rule 2.
    unsafe { pthread_testcancel() };
    loop {
        match once(attempt)? {
            Attempt::Done => return Ok(()),
            Attempt::Waits(fd) => wait(fd)?,
        }
    }
}

/// In a frame of its own: what it drops is gone when it returns.
#[inline(never)]
fn once(attempt: &dyn Fn() -> Answer<Attempt>) -> Answer<Attempt> {
    guarded(attempt)
}

/// Waits until a descriptor can be read. A signal whose handler asks for no restart ends that with `EINTR`.
pub(crate) fn wait(fd: c_int) -> Answer<()> {
    let mut look = pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one descriptor to look at; rule 2.
        if unsafe { poll(&raw mut look, 1, -1) } > 0 {
            return Ok(());
        }
        // SAFETY: the C library's own place for this thread.
        let number = unsafe { libc::__errno_location().read() };
        if number != libc::EINTR || !adverb_device::all_handlers_restart() {
            return Err(Errno(number));
        }
    }
}
