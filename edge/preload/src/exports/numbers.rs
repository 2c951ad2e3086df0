//! System calls by number: `syscall`.
//!
//! Those that move bytes, close or copy descriptors come to the functions of the same names here. Setting
//! up an `io_uring` is the end of acceleration: what is asked of the kernel in a queue cannot be seen. So is
//! the program's confining itself to some calls.
//! The Rust runtime within this library comes by here as well, so that the way of all others is short.
//!
//! # Safety
//!
//! 1. The program calls this under the contract of `syscall(2)`: as many arguments as the call takes, in
//!    registers and on the stack like those of any function; what we read beyond them is not used.
//! 2. Arguments that were pointers are passed on as what they were.

#![expect(clippy::as_conversions, reason = "arguments are words")]

use std::ffi::{c_int, c_long, c_uint, c_void};

use super::{bytes, descriptors, processes, size};
use crate::base::raw;
use crate::share::{exec_target, life};
use crate::socket::table;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let is_known = || c_int::try_from(a).is_ok_and(|fd| table::socket(fd).is_some());
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_recvmsg
        | libc::SYS_sendmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
            if is_known() =>
        {
            // SAFETY: the program's promise (rule 1).
            unsafe { on_socket(number, [a, b, c, d, e, f]) }
        }
        // SAFETY: plain numbers.
        libc::SYS_close if is_known() => unsafe { descriptors::close(a as c_int) }.into(),
        // SAFETY: plain numbers.
        libc::SYS_dup if is_known() => unsafe { descriptors::dup(a as c_int) }.into(),
        libc::SYS_dup3 if is_known() => {
            // SAFETY: plain numbers.
            unsafe { descriptors::dup3(a as c_int, b as c_int, c as c_int) }.into()
        }
        libc::SYS_io_uring_setup => {
            exec_target::give_up_all();
            // SAFETY: the program's promise (rule 1).
            size(unsafe { raw::syscall(number, [a, b, c, d, e, f]) }) as c_long
        }
        libc::SYS_prctl | libc::SYS_seccomp if processes::confines(number, [a, b, c]) => {
            life::confine();
            // SAFETY: the program's promise (rule 1).
            size(unsafe { raw::syscall(number, [a, b, c, d, e, f]) }) as c_long
        }
        // SAFETY: the program's promise (rule 1).
        _ => size(unsafe { raw::syscall(number, [a, b, c, d, e, f]) }) as c_long,
    }
}

/// The functions of these names.
///
/// # Safety
///
/// The arguments are those of the call of that number.
unsafe fn on_socket(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let fd = a as c_int;
    let at = std::ptr::with_exposed_provenance_mut::<c_void>(b);
    let (to, len) = (std::ptr::with_exposed_provenance_mut(e), f);
    let answer = match number {
        // SAFETY: the caller's promise.
        libc::SYS_read => unsafe { bytes::read(fd, at, c) },
        // SAFETY: as above.
        libc::SYS_write => unsafe { bytes::write(fd, at, c) },
        // SAFETY: as above.
        libc::SYS_readv => unsafe { bytes::readv(fd, at.cast(), c as c_int) },
        // SAFETY: as above.
        libc::SYS_writev => unsafe { bytes::writev(fd, at.cast(), c as c_int) },
        libc::SYS_recvfrom => {
            let len = std::ptr::with_exposed_provenance_mut(len);
            // SAFETY: as above.
            unsafe { bytes::recvfrom(fd, at, c, d as c_int, to, len) }
        }
        // SAFETY: as above.
        libc::SYS_sendto => unsafe {
            bytes::sendto(fd, at, c, d as c_int, to, len as libc::socklen_t)
        },
        // SAFETY: as above.
        libc::SYS_recvmsg => unsafe { bytes::recvmsg(fd, at.cast(), c as c_int) },
        // SAFETY: as above.
        libc::SYS_sendmsg => unsafe { bytes::sendmsg(fd, at.cast(), c as c_int) },
        libc::SYS_sendmmsg => {
            // SAFETY: as above.
            unsafe { bytes::sendmmsg(fd, at.cast(), c as c_uint, d as c_int) as libc::ssize_t }
        }
        _ => {
            let limit = std::ptr::with_exposed_provenance_mut(e);
            let (count, flags) = (c as c_uint, d as c_int);
            // SAFETY: as above.
            unsafe { bytes::recvmmsg(fd, at.cast(), count, flags, limit) as libc::ssize_t }
        }
    };
    answer as c_long
}
