//! I/O vectors: buffers of the program, where its bytes go to and come from.
//!
//! # Safety
//!
//! The program has promised, by calling a function of the C library with these buffers, that they
//! are readable (when it sends) or writable (when it receives) for as long as the call lasts. They
//! are never seen through references to their bytes, since its other threads may change them. A
//! promise that is not kept is an error, as it is to the kernel (`copy.rs`).

use std::ffi::c_void;

use crate::base::copy;

/// The most buffers that one call of ours passes on to the kernel at a time.
pub(crate) const PARTS_MAX: usize = 16;

/// A buffer is not where the program has said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault;

/// A position in a list of buffers.
#[derive(Clone, Debug)]
pub(crate) struct IoCursor<'a> {
    parts: &'a [libc::iovec],
    /// How far into the first of them.
    offset: usize,
}

impl<'a> IoCursor<'a> {
    pub(crate) fn new(parts: &'a [libc::iovec]) -> Self {
        Self { parts, offset: 0 }
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        let all = self.parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.iov_len));
        all.saturating_sub(self.offset)
    }

    /// The next run of bytes, at most `most` long.
    fn next_run(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        while let Some((first, rest)) = self.parts.split_first() {
            let left = first.iov_len.saturating_sub(self.offset);
            if left > 0 {
                let base = first.iov_base.cast::<u8>().wrapping_add(self.offset);
                return Some((base, left.min(most)));
            }
            (self.parts, self.offset) = (rest, 0);
        }
        None
    }

    /// Goes on by `count` bytes.
    pub(crate) fn skip(&mut self, mut count: usize) {
        while count > 0 {
            let Some((_, run)) = self.next_run(count) else { return };
            self.offset += run;
            count -= run;
        }
    }

    /// Copies up to `len` bytes from `source` into the buffers, and returns how many there was room
    /// for. `source` must have `len` bytes. After a fault, the position is of no use.
    pub(crate) fn fill(&mut self, source: *const u8, len: usize) -> Result<usize, Fault> {
        let mut done = 0;
        while done < len {
            let Some((target, run)) = self.next_run(len - done) else { break };
            // SAFETY: the program's promise for the target, the caller's for the source; a ring and
            // a buffer of the program do not overlap.
            if !unsafe { copy::copy(target, source.wrapping_add(done), run) } {
                return Err(Fault);
            }
            self.offset += run;
            done += run;
        }
        Ok(done)
    }

    /// Copies up to `len` bytes out of the buffers to `target`, and returns how many there were.
    /// `target` must have room for `len` bytes. After a fault, the position is of no use.
    pub(crate) fn drain(&mut self, target: *mut u8, len: usize) -> Result<usize, Fault> {
        let mut done = 0;
        while done < len {
            let Some((source, run)) = self.next_run(len - done) else { break };
            // SAFETY: the program's promise for the source, the caller's for the target; a ring and
            // a buffer of the program do not overlap.
            if !unsafe { copy::copy(target.wrapping_add(done), source, run) } {
                return Err(Fault);
            }
            self.offset += run;
            done += run;
        }
        Ok(done)
    }

    /// The buffers from here on, as the kernel wants them: at most [`PARTS_MAX`], and at most
    /// `most` bytes in all. Returns how many.
    pub(crate) fn rest(&self, most: usize, into: &mut [libc::iovec; PARTS_MAX]) -> usize {
        let (mut left, mut offset, mut count) = (most, self.offset, 0);
        for (part, socket) in self.parts.iter().zip(into.iter_mut()) {
            let len = part.iov_len.saturating_sub(offset).min(left);
            let base = part.iov_base.cast::<u8>().wrapping_add(offset).cast::<c_void>();
            *socket = libc::iovec { iov_base: base, iov_len: len };
            left -= len;
            offset = 0;
            count += 1;
            if left == 0 {
                break;
            }
        }
        count
    }
}
