//! Cancelled threads (`pthread_cancel`): no call is cancelled within.
//!
//! The C library ends a thread by unwinding it, within many of its functions. Frames of Rust cannot be unwound by it: it
//! would end the program. So a call is [`uncancelled`]; what waits can be cancelled in `waiting.rs`.
//!
//! # Safety
//!
//! The function of the C library has the type of its header.

use libc::c_int;
use std::ptr;

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
