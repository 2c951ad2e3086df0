//! Cancelled threads (`pthread_cancel`): they end where they wait, as in the calls of the kernel that the real library
//! waits in, and nowhere else.
//!
//! The C library ends a thread by unwinding it, within many of its functions. Frames of Rust cannot be unwound by it: it
//! would end the program. So a call is [`uncancelled`], and what waits returns to the function that C calls, which
//! has nothing to drop, and waits there ([`until`]).
//!
//! # Safety
//!
//! 1. The functions of the C library have the types of its headers.
//! 2. The frames from the one that C calls to [`wait`] own nothing: they can be unwound.

use crate::errno::{Answer, Errno};
use crate::export::guarded;
use libc::{c_int, nfds_t, pollfd};
use std::ptr;

unsafe extern "C-unwind" {
    fn poll(list: *mut pollfd, used: nfds_t, timeout: c_int) -> c_int;
    fn pthread_testcancel();
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Threads are not cancelled in this state. (`PTHREAD_CANCEL_DISABLE` of all C libraries for Linux.)
const DISABLED: c_int = 1;

/// Calls what must not panic, and lets nothing cancel the thread meanwhile.
#[inline]
pub(crate) fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    let mut old = 0;
    // SAFETY: a state that there is, and a place for the old one.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut old) };
    let answer = call();
    // SAFETY: the state that was just found.
    unsafe { pthread_setcancelstate(old, ptr::null_mut()) };
    answer
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
