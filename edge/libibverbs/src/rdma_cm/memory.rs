//! The caller's memory, by addresses in commands: a wrong one is `EFAULT`, as it is to the kernel.
//!
//! # Safety
//!
//! 1. The kernel copies from and to this process, and refuses addresses that are not mapped. Memory that is written is what
//!    the caller named for the answer.
//! 2. Where the kernel does not let processes copy like this (`EPERM`, `ENOSYS`), addresses are trusted: they are
//!    librdmacm's own variables.

use crate::errno::{Answer, Errno};
use adverb_ibv::rdma_cm::Place;
use libc::{c_void, iovec};

/// What is there.
pub(super) fn read(place: Place) -> Answer<Vec<u8>> {
    let mut bytes = vec![0; place.len];
    let there = pointer(place.address)?;
    let here: *mut c_void = bytes.as_mut_ptr().cast();
    let (to, from) = (vector(here, place.len), vector(there.cast(), place.len));
    // SAFETY: rule 1; `bytes` is as long as that.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    if is_done(copied, place.len)? {
        return Ok(bytes);
    }
    // SAFETY: rule 2; `bytes` is as long as that.
    unsafe { std::ptr::copy_nonoverlapping(there.cast_const(), bytes.as_mut_ptr(), place.len) };
    Ok(bytes)
}

/// Puts an answer there.
pub(super) fn write(address: u64, bytes: &[u8]) -> Answer<()> {
    let there = pointer(address)?;
    let here: *const c_void = bytes.as_ptr().cast();
    let (from, to) = (vector(here.cast_mut(), bytes.len()), vector(there.cast(), bytes.len()));
    // SAFETY: rule 1; `bytes` is only read.
    let copied =
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) };
    if !is_done(copied, bytes.len())? {
        // SAFETY: rule 2.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), there, bytes.len()) };
    }
    Ok(())
}

/// The kernel has copied everything; false if it does not copy at all.
fn is_done(copied: isize, len: usize) -> Answer<bool> {
    if usize::try_from(copied) == Ok(len) {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    match (copied, error) {
        (-1, Some(libc::EPERM | libc::ENOSYS)) => Ok(false),
        _ => Err(Errno(libc::EFAULT)),
    }
}

const fn vector(start: *mut c_void, len: usize) -> iovec {
    iovec { iov_base: start, iov_len: len }
}

fn pointer(address: u64) -> Answer<*mut u8> {
    match usize::try_from(address) {
        Ok(address @ 1..) => Ok(std::ptr::with_exposed_provenance_mut(address)),
        Ok(0) | Err(_) => Err(Errno(libc::EFAULT)),
    }
}
