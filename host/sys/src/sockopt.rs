//! Socket options that are plain C values.
//!
//! # Safety
//!
//! The kernel reads exactly the length it is told. [`set`] takes length and pointer from the same
//! reference, and is private to this crate: its callers pass the type that `setsockopt(2)` names
//! for the option, and whatever that points to lives as long as the call.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Sets an option to a value of the C type that the option takes.
pub(crate) fn set<T: Copy>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY:
    // - Readable: `value` is a reference, and `len` is the size of what it refers to.
    // - Open: `socket` lends its descriptor for the length of this call.
    let result = unsafe { libc::setsockopt(fd, level, name, ptr::from_ref(value).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option whose value is a structure of `N` C integers, some of which say what is asked for.
pub(crate) fn ask<const N: usize>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    mut values: [c_int; N],
) -> io::Result<[c_int; N]> {
    let mut len = libc::socklen_t::try_from(size_of_val(&values)).map_err(io::Error::other)?;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY:
    // - Readable and writable: `values` and `len` are locals, and `len` is the size of `values`; the kernel writes no more
    //   than that, and any bytes it writes are valid integers.
    // - Open: `socket` lends its descriptor for the length of this call.
    let result =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut values).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(values) }
}

/// Reads an option whose value is a C integer.
pub(crate) fn get(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    get_all::<1>(socket, level, name).map(|[value]| value)
}

/// Reads an option whose value is a structure of `N` C integers. Those that the kernel does not fill are 0.
pub(crate) fn get_all<const N: usize>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
) -> io::Result<[c_int; N]> {
    ask(socket, level, name, [0; N])
}
