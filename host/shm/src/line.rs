//! Cache lines: asking the processor for them ahead of their use.
//!
//! # Safety
//!
//! Each of these instructions is a hint, which neither reads nor writes nor faults, whatever the address is.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Asks for a line, to read it.
#[inline]
pub fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for the lines of `len` bytes, to read them.
#[inline]
pub fn prefetch_bytes(start: *const u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        prefetch(start.wrapping_add(at));
    }
}

/// Asks for two lines, to write a short record to them.
#[inline]
pub fn prefetch_record_for_writing(first: *const u8) {
    prefetch_for_writing(first);
    prefetch_for_writing(first.wrapping_add(LINE_BYTES));
}

/// Asks for a line, to write to it: at once, rather than first to read it and then again to write it. The compiler's
/// own hint would become one to read, on processors that it does not know to have this one.
#[inline]
pub fn prefetch_for_writing(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which does nothing where the processor does not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a hint.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = line;
}
