//! `ppoll(2)` of the kernel: what several descriptors have, now or after a sleep.
//!
//! # Safety
//!
//! Arrays passed to the kernel are slices of the caller's.

#![expect(clippy::as_conversions, reason = "counts of the C library have other widths")]

use std::ffi::c_int;

use crate::base::raw::{self, Errno};
use crate::base::real::real;

/// Asks the kernel, now.
pub(crate) fn now(fds: &mut [libc::pollfd]) -> usize {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [fds.as_mut_ptr() as usize, fds.len(), &raw const zero as usize, 0, 0, 0];
    // SAFETY: the kernel writes the `revents` of the slice, and reads a structure of ours.
    unsafe { raw::syscall(libc::SYS_ppoll, args) }.unwrap_or(0)
}

/// Asks the kernel, and waits; the C library's function, so that a thread can be cancelled here.
pub(crate) fn sleep(
    fds: &mut [libc::pollfd],
    left_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let time = left_ns.map(|left| libc::timespec {
        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mask = mask.map_or(std::ptr::null(), std::ptr::from_ref);
    let answer = real!(
        c"ppoll"
            as fn(
                *mut libc::pollfd,
                libc::nfds_t,
                *const libc::timespec,
                *const libc::sigset_t,
            ) -> c_int,
        fds.as_mut_ptr(),
        fds.len() as libc::nfds_t,
        time,
        mask
    );
    usize::try_from(answer).map_err(|_| raw::errno())
}
