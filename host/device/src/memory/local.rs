//! Local bytes of posted work: pieces of registered memory, or a copy.

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
/// An `Option` of it is one word, written at once and read at once. Of two words that are read as one
/// the processor makes whoever reads them wait for all earlier writes, of which some are to memory
/// that another processor has.
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
#[derive(Debug)]
pub(crate) enum Local<'a> {
    Gather(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Bytes of a list together; `None` if they exceed 2³² − 1.
pub(crate) fn total_len(sges: &[Sge]) -> Option<u32> {
    sges.iter().try_fold(0_u32, |sum, sge| sum.checked_add(sge.len))
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
}
