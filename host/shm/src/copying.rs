//! Copies of bytes that others may read and write meanwhile, in this process and in others.
//!
//! The compiler may not assume that such bytes stay as they are, nor read or write them twice. So it does not see
//! the copies: up to 256 bytes are moved by instructions of our own, which is also faster than a call for messages that
//! are short; more by the C library. What is torn is torn: protocols say when all of a copy is one message's.
//!
//! # Safety
//!
//! Bytes are copied by pointer, and the caller answers for both places.

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    /// `memcpy(3)`.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    /// `memmove(3)`.
    fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    /// `memset(3)`.
    fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void;
}

/// As [`std::ptr::copy_nonoverlapping`]. Up to 64 bytes are copied as two pieces, which overlap unless the length
/// is twice theirs, up to 256 as a row of pieces from the start on: into lines that another processor has, the
/// C library writes so few bytes in an order that takes longer.
///
/// # Safety
///
/// As there, but that others may change the bytes meanwhile.
#[inline(always)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // The longer ones first: they are what most messages are copied in.
    if len > 64 {
        match len {
            // SAFETY: the caller's promise; the pieces are no longer than `len`.
            65..=256 => unsafe { copy_row(from, to, len) },
            // SAFETY: the caller's promise.
            _ => unsafe { copy_long(from, to, len) },
        }
    } else if len >= 32 {
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        unsafe { copy_ends::<32>(from, to, len) }
    } else if len >= 16 {
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        unsafe { copy_ends::<16>(from, to, len) }
    } else if len >= 8 {
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        unsafe { copy_ends::<8>(from, to, len) }
    } else if len >= 4 {
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        unsafe { copy_ends::<4>(from, to, len) }
    } else if len >= 2 {
        // SAFETY: the caller's promise; the piece is no longer than `len`.
        unsafe { copy_ends::<2>(from, to, len) }
    } else if len == 1 {
        // SAFETY: the caller's promise.
        unsafe { copy_piece::<1>(from, to) }
    }
}

/// Copies any number of bytes, by a call.
///
/// # Safety
///
/// As [`copy_short`].
#[inline]
pub unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let copy = std::hint::black_box::<Copy>(memcpy);
    // SAFETY: the caller's promise.
    unsafe { copy(to.cast(), from.cast(), len) };
}

/// The same for places that may overlap.
///
/// # Safety
///
/// As [`std::ptr::copy`], but that others may change the bytes meanwhile.
#[inline]
pub unsafe fn move_long(from: *const u8, to: *mut u8, len: usize) {
    let copy = std::hint::black_box::<Copy>(memmove);
    // SAFETY: the caller's promise.
    unsafe { copy(to.cast(), from.cast(), len) };
}

/// Sets any number of bytes to one value, by a call.
///
/// # Safety
///
/// `len` bytes can be written there, which others may read and write meanwhile.
#[inline]
pub unsafe fn fill_long(to: *mut u8, byte: u8, len: usize) {
    let fill = std::hint::black_box::<Fill>(memset);
    // SAFETY: the caller's promise.
    unsafe { fill(to.cast(), c_int::from(byte), len) };
}

/// The compiler knows what `memcpy` does, but not that it is what a pointer of this type points to.
type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
/// The same of `memset`.
type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;

/// Copies eight bytes at once.
///
/// # Safety
///
/// As [`copy_short`], of eight bytes.
#[inline(always)]
pub unsafe fn copy_word(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { copy_piece::<8>(from, to) };
}

/// Reads a word that others may write meanwhile.
///
/// # Safety
///
/// Eight bytes can be read from there.
#[inline(always)]
pub unsafe fn read_word(from: *const u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word: u64;
        // SAFETY: eight bytes from where the caller may.
        unsafe {
            std::arch::asm!("mov {word}, qword ptr [{from}]",
                from = in(reg) from, word = out(reg) word,
                options(nostack, preserves_flags, readonly));
        }
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let mut word = [0; 8];
        // SAFETY: the caller's promise, and a local of eight bytes.
        unsafe { copy_word(from, word.as_mut_ptr()) };
        u64::from_ne_bytes(word)
    }
}

/// Copies the first and the last `N` bytes of `len`.
///
/// # Safety
///
/// As [`copy_short`], and `N <= len`.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - N;
    // SAFETY: `N` bytes from the start, of `len` (the caller's promise).
    unsafe { copy_piece::<N>(from, to) };
    // SAFETY: `N` bytes up to the end, of `len`.
    unsafe { copy_piece::<N>(from.wrapping_add(last), to.wrapping_add(last)) };
}

/// Copies from the start on, `PIECE` bytes at once.
///
/// # Safety
///
/// As [`copy_short`], and `PIECE <= len`.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, len: usize) {
    const PIECE: usize = 32;
    let last = len - PIECE;
    let mut at = 0;
    while at < last {
        // SAFETY: `at + PIECE < len`, so that the piece ends within it.
        unsafe { copy_piece::<PIECE>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += PIECE;
    }
    // SAFETY: `PIECE` bytes up to the end, of `len`.
    unsafe { copy_piece::<PIECE>(from.wrapping_add(last), to.wrapping_add(last)) };
}

/// Copies 1, 2, 4, 8, 16 or 32 bytes.
///
/// # Safety
///
/// As [`copy_short`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_piece<const N: usize>(from: *const u8, to: *mut u8) {
    use std::arch::asm;
    const { assert!(matches!(N, 1 | 2 | 4 | 8 | 16 | 32)) };
    match N {
        // SAFETY: one byte from and to where the caller may.
        1 => unsafe {
            asm!("mov {word:l}, byte ptr [{from}]", "mov byte ptr [{to}], {word:l}",
                from = in(reg) from, to = in(reg) to, word = out(reg) _,
                options(nostack, preserves_flags));
        },
        // SAFETY: two bytes from and to where the caller may.
        2 => unsafe {
            asm!("movzx {word:e}, word ptr [{from}]", "mov word ptr [{to}], {word:x}",
                from = in(reg) from, to = in(reg) to, word = out(reg) _,
                options(nostack, preserves_flags));
        },
        // SAFETY: four bytes from and to where the caller may.
        4 => unsafe {
            asm!("mov {word:e}, dword ptr [{from}]", "mov dword ptr [{to}], {word:e}",
                from = in(reg) from, to = in(reg) to, word = out(reg) _,
                options(nostack, preserves_flags));
        },
        // SAFETY: eight bytes from and to where the caller may.
        8 => unsafe {
            asm!("mov {word}, qword ptr [{from}]", "mov qword ptr [{to}], {word}",
                from = in(reg) from, to = in(reg) to, word = out(reg) _,
                options(nostack, preserves_flags));
        },
        // SAFETY: sixteen bytes from and to where the caller may.
        16 => unsafe {
            asm!("movups {word}, xmmword ptr [{from}]", "movups xmmword ptr [{to}], {word}",
                from = in(reg) from, to = in(reg) to, word = out(xmm_reg) _,
                options(nostack, preserves_flags));
        },
        // SAFETY: 32 bytes from and to where the caller may.
        _ => unsafe {
            asm!("movups {low}, xmmword ptr [{from}]", "movups {high}, xmmword ptr [{from} + 16]",
                "movups xmmword ptr [{to}], {low}", "movups xmmword ptr [{to} + 16], {high}",
                from = in(reg) from, to = in(reg) to, low = out(xmm_reg) _, high = out(xmm_reg) _,
                options(nostack, preserves_flags));
        },
    }
}

/// As above, where there are no instructions for it.
///
/// # Safety
///
/// As above.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
unsafe fn copy_piece<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { copy_long(from, to, N) };
}

#[cfg(test)]
mod tests {
    use super::{copy_long, copy_short, fill_long, read_word};

    #[test]
    fn every_length_is_copied_and_nothing_else() {
        let from: Vec<u8> = (1..=250).cycle().take(300).collect();
        let all: [unsafe fn(*const u8, *mut u8, usize); 2] = [
            // SAFETY: the caller's promise.
            |from, to, len| unsafe { copy_short(from, to, len) },
            // SAFETY: the caller's promise.
            |from, to, len| unsafe { copy_long(from, to, len) },
        ];
        for copy in all {
            for len in 0..=from.len() {
                let mut to = vec![0; from.len()];
                // SAFETY: both have `len` bytes, and are not the same.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len) };
                let (copied, rest) = to.split_at(len);
                assert_eq!(copied, &from[..len]);
                assert!(rest.iter().all(|byte| *byte == 0), "{len} bytes");
            }
        }
        // SAFETY: eight bytes of a vector of 300.
        let word = unsafe { read_word(from[1..9].as_ptr()) };
        assert_eq!(word.to_ne_bytes(), from[1..9]);
        let mut to = from.clone();
        // SAFETY: 70 bytes of a vector of 300.
        unsafe { fill_long(to[10..80].as_mut_ptr(), 255, 70) };
        assert_eq!(to, [&from[..10], &[255; 70], &from[80..]].concat());
    }
}
