//! The list of places that a burst of datagrams is gathered from.
//!
//! # Safety
//!
//! 1. A [`Gather`] of lifetime `'a` holds pointers to bytes that stay readable for `'a`: borrowed
//!    slices, or memory for which the caller of [`Gather::push_raw`] has promised it.
//! 2. The pointers are handed to the kernel, or copied from. No reference is made from one, so that
//!    the bytes may change meanwhile, and neighbours may be joined without regard to where they are
//!    from.

use std::fmt;
use std::marker::PhantomData;

/// The most places that one call gathers from (`IOV_MAX`).
pub const VECTORS_MAX: usize = 1024;

/// The list is full: what did not fit has not been added. Send the batch, and go on with the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one call gathers from at most {VECTORS_MAX} places")
    }
}

impl std::error::Error for Full {}

/// Room for the list of places, made once and used for every burst.
pub struct GatherBuffer {
    vectors: Vec<libc::iovec>,
}

// SAFETY: between two batches the list is never read: `begin` empties it first. The pointers left
// in it mean nothing.
unsafe impl Send for GatherBuffer {}
// SAFETY: a shared `GatherBuffer` offers no way to look at the list.
unsafe impl Sync for GatherBuffer {}

impl GatherBuffer {
    /// Room for [`VECTORS_MAX`] places. This is the only allocation.
    #[must_use]
    pub fn new() -> Self {
        Self { vectors: Vec::with_capacity(VECTORS_MAX) }
    }

    /// Starts an empty batch of bytes that live for at least `'a`.
    #[inline]
    pub fn begin<'a>(&'a mut self) -> Gather<'a> {
        self.vectors.clear();
        Gather { vectors: &mut self.vectors, len: 0, bytes: PhantomData }
    }
}

impl Default for GatherBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GatherBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherBuffer").finish_non_exhaustive()
    }
}

/// Bytes to be sent, in order, wherever they lie.
pub struct Gather<'a> {
    vectors: &'a mut Vec<libc::iovec>,
    len: usize,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// Adds borrowed bytes.
    ///
    /// # Errors
    ///
    /// [`Full`] if they need a place of their own and there is none; nothing has been added.
    #[inline]
    pub fn push(&mut self, bytes: &'a [u8]) -> Result<(), Full> {
        self.append(bytes.as_ptr(), bytes.len())
    }

    /// Adds `len` bytes at `start`, which others may change until they are sent. The kernel takes
    /// them as it finds them, each byte once.
    ///
    /// # Errors
    ///
    /// [`Full`] if they need a place of their own and there is none; nothing has been added.
    ///
    /// # Safety
    ///
    /// `start..start + len` stays mapped and readable for `'a`. It need not be initialised by this
    /// program, nor free of writers.
    #[inline]
    pub unsafe fn push_raw(&mut self, start: *const u8, len: usize) -> Result<(), Full> {
        self.append(start, len)
    }

    /// Empties the batch, so that the next burst of the same lifetime can be gathered.
    #[inline]
    pub fn clear(&mut self) {
        self.vectors.clear();
        self.len = 0;
    }

    /// Bytes in the batch.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more places can be added, at least.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        VECTORS_MAX.saturating_sub(self.vectors.len())
    }

    /// Joins the bytes to the last place if they follow it in memory, as the end of one packet and
    /// the start of the next often do: half as many places for the kernel to visit.
    #[inline]
    fn append(&mut self, start: *const u8, len: usize) -> Result<(), Full> {
        if len == 0 {
            return Ok(());
        }
        let full = self.room() == 0;
        match self.vectors.last_mut() {
            Some(last) if last.iov_base.addr().wrapping_add(last.iov_len) == start.addr() => {
                last.iov_len = last.iov_len.wrapping_add(len);
            }
            Some(_) | None if full => return Err(Full),
            Some(_) | None => {
                let iov_base = start.cast_mut().cast();
                self.vectors.push(libc::iovec { iov_base, iov_len: len });
            }
        }
        self.len = self.len.wrapping_add(len);
        Ok(())
    }

    /// Copies the bytes into one piece at the front of `target`, as far as they fit, and returns
    /// how many were copied.
    pub fn copy_to(&self, target: &mut [u8]) -> usize {
        let mut done = 0;
        for vector in self.vectors.iter() {
            let Some(room) = target.get_mut(done..) else {
                break;
            };
            let part = vector.iov_len.min(room.len());
            // SAFETY: the bytes stay readable for `'a` (rule 1), and `room` is a reference, so that
            // it shares nothing with them.
            unsafe {
                std::ptr::copy_nonoverlapping(vector.iov_base.cast(), room.as_mut_ptr(), part)
            };
            done += part;
        }
        done
    }

    /// A look at the bytes from the first on.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { vectors: self.vectors, offset: 0 }
    }

    /// The only place there is, if there is one only: a call for one place is cheaper.
    #[inline]
    pub(super) fn only(&self) -> Option<(*const u8, usize)> {
        match self.vectors.as_slice() {
            [vector] => Some((vector.iov_base.cast_const().cast(), vector.iov_len)),
            _ => None,
        }
    }

    /// The list as the kernel wants it.
    #[inline]
    pub(super) fn as_raw(&self) -> (*const libc::iovec, usize) {
        (self.vectors.as_ptr(), self.vectors.len())
    }
}

/// A position in what was gathered.
#[derive(Debug)]
pub struct Cursor<'a> {
    vectors: &'a [libc::iovec],
    /// Bytes of the first place that were passed.
    offset: usize,
}

impl Cursor<'_> {
    /// Passes bytes that follow one another in memory, at most `most`, and says where they are; `None` at the end.
    #[inline]
    pub fn take(&mut self, most: usize) -> Option<(*const u8, usize)> {
        let (first, rest) = self.vectors.split_first()?;
        let start = first.iov_base.cast_const().cast::<u8>().wrapping_add(self.offset);
        let left = first.iov_len.saturating_sub(self.offset);
        if left > most {
            self.offset += most;
            return Some((start, most));
        }
        (self.vectors, self.offset) = (rest, 0);
        Some((start, left))
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vectors, len, bytes: PhantomData } = self;
        write!(f, "Gather {{ {len} bytes from {} places }}", vectors.len())
    }
}
