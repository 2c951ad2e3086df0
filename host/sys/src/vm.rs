//! Copies from and to the memory of another process of this user, in one system call where that is allowed.
//!
//! # Safety
//!
//! `process_vm_readv(2)` and `process_vm_writev(2)` touch the bytes that [`Piece`]s name in this
//! process, which the caller answers for; bytes of the other process are checked by the kernel.

use std::io;
use std::os::raw::c_ulong;

/// A run of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// First byte.
    pub start: *mut u8,
    /// Number of bytes.
    pub len: usize,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the other process to this one.
    Read,
    /// From this process to the other.
    Write,
}

/// Pieces of one call, at most.
pub const PIECES_MAX: usize = 32;

/// Copies between the pieces here, together, and as many bytes from `there` on in process `pid`.
///
/// # Errors
///
/// `EPERM` if this process may not; `ESRCH` if there is no such process; `EFAULT` if some byte is
/// not mapped there: some may have been copied then.
///
/// # Safety
///
/// The pieces are mapped, writable for [`Direction::Read`] and readable for [`Direction::Write`], and no code
/// holds references to them that the copy would make untrue.
pub unsafe fn copy(pid: u32, direction: Direction, here: &[Piece], there: u64) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut local = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
    let mut total = 0;
    for (place, piece) in local.iter_mut().zip(here) {
        *place = libc::iovec { iov_base: piece.start.cast(), iov_len: piece.len };
        total += piece.len;
    }
    if here.len() > PIECES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let address = usize::try_from(there).map_err(io::Error::other)?;
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address), // Of another process: never used here.
        iov_len: total,
    };
    let count = c_ulong::try_from(here.len()).map_err(io::Error::other)?;
    let call = match direction {
        Direction::Read => libc::process_vm_readv,
        Direction::Write => libc::process_vm_writev,
    };
    // SAFETY: `count` entries of `local` are filled from pieces that the caller answers for; one
    // entry names bytes of the other process.
    let copied = unsafe { call(pid, local.as_ptr(), count, &raw const remote, 1, 0) };
    match usize::try_from(copied) {
        Ok(copied) if copied == total => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes go both ways. Method: this process is the other one; where even that is
    /// forbidden, the error says so.
    #[test]
    fn bytes_go_both_ways_where_that_is_allowed() {
        let mut there = *b"0123456789";
        let (mut a, mut b) = ([0; 4], [0; 6]);
        let start = u64::try_from(there.as_mut_ptr().expose_provenance()).unwrap();
        let pieces =
            [Piece { start: a.as_mut_ptr(), len: 4 }, Piece { start: b.as_mut_ptr(), len: 6 }];
        let pid = std::process::id();
        // SAFETY: the arrays are ours and not looked at meanwhile.
        if let Err(error) = unsafe { copy(pid, Direction::Read, &pieces, start) } {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            return;
        }
        assert_eq!((&a, &b), (b"0123", b"456789"));
        a = *b"abcd";
        std::hint::black_box(&a);
        // SAFETY: as above.
        unsafe { copy(pid, Direction::Write, &pieces[..1], start) }.unwrap();
        assert_eq!(std::hint::black_box(&there), b"abcd456789");
        // SAFETY: as above; nothing is mapped at the first page.
        let error = unsafe { copy(pid, Direction::Read, &pieces, 16) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
