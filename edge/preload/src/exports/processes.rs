//! Forks, threads, signal handlers, and programs that confine themselves.
//!
//! `vfork` is left alone: it returns twice into the same frame, which no function can wrap. Its
//! child is recognised as a `vfork` child in our memory, and changes nothing.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_int, c_long, c_void};

use crate::base::real::real;
use crate::base::{raw, signal};
use crate::share::life;
use crate::transport::doorbell;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> libc::pid_t {
    life::before_fork();
    let answer = real!(fork());
    if answer != 0 {
        life::after_fork(answer);
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start<*mut c_void>,
    argument: *mut c_void,
) -> c_int {
    doorbell::make_room_once();
    real!(pthread_create(thread, attributes, start, argument))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: Start<c_int>,
    argument: *mut c_void,
) -> c_int {
    doorbell::make_room_once();
    real!(thrd_create(thread, start, argument))
}

/// What a thread begins with.
type Start<R> = unsafe extern "C-unwind" fn(*mut c_void) -> R;

/// Ends without cleaning up; but peers of connections with rings see that they have ended.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    life::end_at_once();
    // SAFETY: no pointer; the call does not return.
    let _ = unsafe { raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    loop {
        std::hint::spin_loop();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: the program's promise.
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    number: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's promise: null, or an action.
    let new = unsafe { new.as_ref() };
    // SAFETY: the program's promise: null, or room for an action.
    signal::sigaction(number, new, unsafe { old.as_mut() })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn signal(number: c_int, handler: usize) -> usize {
    signal::signal(number, handler, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bsd_signal(number: c_int, handler: usize) -> usize {
    signal::signal(number, handler, libc::SA_RESTART)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sysv_signal(number: c_int, handler: usize) -> usize {
    signal::signal(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    signal::signal(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: all zeros is a legal value of this structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    if signal::sigaction(number, None, Some(&mut action)) != 0 {
        return -1;
    }
    if interrupts != 0 {
        action.sa_flags &= !libc::SA_RESTART;
    } else {
        action.sa_flags |= libc::SA_RESTART;
    }
    signal::sigaction(number, Some(&action), None)
}

/// Five arguments at most, none of them floating: so they come in registers, however many are meant.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if confines(libc::SYS_prctl, [option as usize, a, b]) {
        life::confine();
    }
    real!(prctl(option, a, b, c, d))
}

/// Whether a call with these first arguments confines the program to some system calls. Without a filter
/// it asks whether it could.
pub(super) fn confines(call: c_long, [a, b, c]: [usize; 3]) -> bool {
    let (strict, filter) = match call {
        libc::SYS_seccomp => (libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER),
        _ if a == libc::PR_SET_SECCOMP as usize => {
            return b == libc::SECCOMP_MODE_STRICT as usize
                || b == libc::SECCOMP_MODE_FILTER as usize && c != 0;
        }
        _ => return false,
    };
    a == strict as usize || a == filter as usize && c != 0
}
