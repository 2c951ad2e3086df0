//! The two system calls that the heap makes, for a program that has nothing in front of its C library.
//!
//! # Safety
//!
//! Mappings are new ones, or the caller's.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// How much has been mapped so far.
pub(crate) fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

pub(crate) fn map_zeros(len: usize, _shared: bool) -> Result<*mut u8, ()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address, so that nothing in use is replaced.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(());
    }
    MAPPED.fetch_add(len, Ordering::Relaxed);
    Ok(base.cast())
}

/// # Safety
///
/// It is not touched any more.
pub(crate) unsafe fn unmap(base: *mut u8, len: usize) {
    MAPPED.fetch_sub(len, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base.cast(), len) };
}
