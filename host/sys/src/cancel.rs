//! Cancelled threads (`pthread_cancel`): no call is cancelled within.
//!
//! The C library ends a thread by unwinding it, within many of its functions. Frames of Rust cannot be unwound by it: it
//! would end the program. So a call that reaches such a function on a thread of the program's is [`uncancelled`].
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

/// Calls, and lets nothing cancel the thread meanwhile.
#[inline]
pub fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    let _state = Uncancelled::new();
    call()
}

/// Nothing cancels the thread that made it until it is dropped there.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: a state that there is, and a place for the old one.
        unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that was found.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}
