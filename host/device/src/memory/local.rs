//! Local bytes of posted work: pieces of registered memory, or a copy.

use crate::memory::region::{Grips, Serial};
use adverb_engine::{Access, AccessError};
use std::num::NonZeroU32;

/// One piece of a local buffer. `struct ibv_sge`, and laid out like it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes. Zero is zero, not 2 GiB.
    pub len: u32,
    /// Key of the region that covers it.
    pub lkey: u32,
}

/// A number that a caller gave to a buffer.
///
/// An `Option` of it is one word, written at once and read at once. Reading two
/// separately written words with one load defeats store forwarding and stalls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BufferNumber(NonZeroU32);

impl BufferNumber {
    /// Any number but 2^32 − 1.
    #[inline]
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(!number) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        !self.0.get()
    }
}

/// Local bytes of a posted request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local<'a> {
    Gather(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Bytes of a list together; `None` if they exceed 2³² − 1.
pub(crate) fn total_len(sges: &[Sge]) -> Option<u32> {
    sges.iter().try_fold(0_u32, |sum, sge| sum.checked_add(sge.len))
}

/// The parts of these pieces that bytes `offset..offset + len` of them together are in, in order.
pub(crate) const fn parts(sges: &[Sge], offset: u32, len: u32) -> Parts<'_> {
    Parts { rest: sges, skip: offset, left: len }
}

/// Parts of pieces; see [`parts`].
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    rest: &'a [Sge],
    skip: u32,
    left: u32,
}

impl Iterator for Parts<'_> {
    type Item = Sge;

    #[inline(always)]
    fn next(&mut self) -> Option<Sge> {
        while let Some((sge, rest)) = self.rest.split_first().filter(|_| self.left > 0) {
            self.rest = rest;
            if self.skip >= sge.len {
                self.skip -= sge.len;
                continue;
            }
            let len = (sge.len - self.skip).min(self.left);
            let addr = sge.addr.wrapping_add(u64::from(self.skip));
            (self.skip, self.left) = (0, self.left - len);
            return Some(Sge { addr, len, lkey: sge.lkey });
        }
        None
    }
}

impl Parts<'_> {
    /// All bytes were in the parts that have come.
    #[inline]
    pub(crate) const fn is_done(&self) -> bool {
        self.left == 0
    }
}

/// Bytes that a packet or a record carries.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    None,
    /// Bytes `offset..offset + len` of a request's own, which is of this protection domain.
    Local {
        local: Local<'a>,
        offset: u32,
        len: u32,
        domain: u32,
    },
    /// Registered bytes that the peer reads by way of queue pair `qp`.
    Remote {
        rkey: u32,
        va: u64,
        len: u32,
        domain: u32,
        qp: Serial,
    },
}

impl Source<'_> {
    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Local { len, .. } | Self::Remote { len, .. } => size(*len),
        }
    }

    /// Shows each piece of the bytes, in order: where it starts, and its length. Registered memory is pinned by `grips`.
    #[inline(always)]
    pub(crate) fn each_piece(
        &self,
        grips: &mut Grips<'_>,
        mut show: impl FnMut(*const u8, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match *self {
            Self::None => Ok(()),
            Self::Remote { rkey, va, len, domain, qp } => {
                let pin = grips.remote.pin_remote(rkey, domain, qp)?;
                let start = pin.range(va, size(len), Access::REMOTE_READ)?;
                show(start.cast_const(), size(len))
            }
            Self::Local { local: Local::Inline(bytes), offset, len, .. } => {
                let end = size(offset).checked_add(size(len));
                let part = end.and_then(|end| bytes.get(size(offset)..end));
                let part = part.ok_or(AccessError::OutOfBounds)?;
                show(part.as_ptr(), part.len())
            }
            Self::Local { local: Local::Gather(sges), offset, len, domain } => {
                let mut parts = parts(sges, offset, len);
                for Sge { addr, len, lkey } in parts.by_ref() {
                    let pin = grips.local.pin_local(lkey, domain)?;
                    let start = pin.range(addr, size(len), Access::NONE)?;
                    show(start.cast_const(), size(len))?;
                }
                if parts.is_done() { Ok(()) } else { Err(AccessError::OutOfBounds) }
            }
        }
    }
}

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_do_not_fit_are_noticed() {
        let half = Sge { addr: 0, len: 1 << 31, lkey: 0 };
        assert_eq!(total_len(&[half]), Some(1 << 31));
        assert_eq!(total_len(&[half, half]), None);
    }

    #[test]
    fn parts_are_what_the_bytes_lie_in_and_say_whether_there_are_as_many() {
        let sge = |addr, len| Sge { addr, len, lkey: 7 };
        let list = [sge(100, 4), sge(200, 0), sge(300, 6)];
        for offset in 0..12 {
            for len in 0..12 {
                let bytes: Vec<_> = (100..104).chain(300..306).collect();
                let mut parts = parts(&list, offset, len);
                let found: Vec<_> = parts
                    .by_ref()
                    .flat_map(|part| part.addr..part.addr + u64::from(part.len))
                    .collect();
                let (from, to) = (size(offset).min(10), size(offset + len).min(10));
                assert_eq!(found, bytes[from..to], "{offset} {len}");
                assert_eq!(parts.is_done(), found.len() == size(len), "{offset} {len}");
            }
        }
    }
}
