//! Copies of few bytes, without a call: many messages are short.
//!
//! # Safety
//!
//! Bytes are copied by pointer, and whoever asks for it answers for both places.

use std::ptr;

/// As [`ptr::copy_nonoverlapping`]. Up to 64 bytes are copied as two pieces, which overlap unless the length
/// is twice theirs, up to 256 as a row of pieces from the start on: into lines that another processor has, the
/// C library writes so few bytes in an order that takes longer.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(crate) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    match len {
        0 => {}
        // SAFETY: the caller's promise.
        1 => unsafe { copy_ends::<1>(from, to, len) },
        // SAFETY: as above.
        2..4 => unsafe { copy_ends::<2>(from, to, len) },
        // SAFETY: as above.
        4..8 => unsafe { copy_ends::<4>(from, to, len) },
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        8..16 => unsafe { copy_ends::<8>(from, to, len) },
        // SAFETY: as above.
        16..32 => unsafe { copy_ends::<16>(from, to, len) },
        // SAFETY: as above.
        32..=64 => unsafe { copy_ends::<32>(from, to, len) },
        // SAFETY: as above.
        65..=256 => unsafe { copy_row(from, to, len) },
        // SAFETY: the caller's promise.
        _ => unsafe { ptr::copy_nonoverlapping(from, to, len) },
    }
}

/// Copies any number of bytes, of which others may change some meanwhile.
///
/// # Safety
///
/// As [`ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// Copies the first and the last `N` bytes of `len`.
///
/// # Safety
///
/// As [`ptr::copy_nonoverlapping`], and `N <= len`.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - N;
    // SAFETY: `N` bytes from the start, of `len` (the caller's promise).
    unsafe { ptr::copy_nonoverlapping(from, to, N) };
    // SAFETY: `N` bytes up to the end, of `len`.
    unsafe { ptr::copy_nonoverlapping(from.wrapping_add(last), to.wrapping_add(last), N) };
}

/// Copies from the start on, `PIECE` bytes at once.
///
/// # Safety
///
/// As [`ptr::copy_nonoverlapping`], and `PIECE <= len`.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, len: usize) {
    const PIECE: usize = 32;
    let last = len - PIECE;
    let mut at = 0;
    while at < last {
        // SAFETY: `at + PIECE < len`.
        unsafe { ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), PIECE) };
        at += PIECE;
    }
    // SAFETY: `PIECE` bytes up to the end, of `len`.
    unsafe { ptr::copy_nonoverlapping(from.wrapping_add(last), to.wrapping_add(last), PIECE) };
}

#[cfg(test)]
mod tests {
    use super::copy_short;

    #[test]
    fn every_length_is_copied_and_nothing_else() {
        let from: Vec<u8> = (1..=250).cycle().take(300).collect();
        for len in 0..=from.len() {
            let mut to = vec![0; from.len()];
            // SAFETY: both have `len` bytes, and are not the same.
            unsafe { copy_short(from.as_ptr(), to.as_mut_ptr(), len) };
            let (copied, rest) = to.split_at(len);
            assert_eq!(copied, &from[..len]);
            assert!(rest.iter().all(|byte| *byte == 0), "{len} bytes");
        }
    }
}
