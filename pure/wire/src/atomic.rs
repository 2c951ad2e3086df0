//! The atomic extended header: what to do to eight bytes of the receiver.
//!
//! ```text
//!     +---------------------------------------------------------------+
//!  0  |                     virtual address                           |
//!  4  |                                                               |
//!     +---------------------------------------------------------------+
//!  8  |                       remote key                              |
//!     +---------------------------------------------------------------+
//! 12  |              value to swap in, or to add                      |
//! 16  |                                                               |
//!     +---------------------------------------------------------------+
//! 20  |         value to compare with (compare-and-swap only)         |
//! 24  |                                                               |
//!     +---------------------------------------------------------------+
//! ```
//!
//! Every value is legal here; alignment and access are the responder's to check.

use crate::error::{ParseError, take};
use crate::key::Rkey;

/// Atomic extended header: operands of a compare-and-swap or a fetch-and-add.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicEth {
    /// Where the eight bytes start, as the receiver's region counts.
    pub va: u64,
    /// The key that should permit it.
    pub rkey: Rkey,
    /// The new value of a compare-and-swap, or what a fetch-and-add adds.
    pub swap_or_add: u64,
    /// The value that a compare-and-swap expects. A fetch-and-add ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 28;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`AtomicEth::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, operands @ ..] = *head;
        let [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3, c4, c5, c6, c7] = operands;
        let atomic = Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: Rkey(u32::from_be_bytes([k0, k1, k2, k3])),
            swap_or_add: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            compare: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        };
        Ok((atomic, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.0.to_be_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.swap_or_add.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.compare.to_be_bytes();
        [
            v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, s0, s1, s2, s3, s4, s5, s6, s7, c0, c1,
            c2, c3, c4, c5, c6, c7,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let bytes: [u8; 28] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        let expected = AtomicEth {
            va: 0x0001_0203_0405_0607,
            rkey: Rkey(0x0809_0a0b),
            swap_or_add: 0x0c0d_0e0f_1011_1213,
            compare: 0x1415_1617_1819_1a1b,
        };
        assert_eq!(AtomicEth::parse(&bytes), Ok((expected, &[][..])));
        assert_eq!(expected.emit(), bytes);
        assert_eq!(AtomicEth::parse(&bytes[..27]), Err(ParseError::Truncated { len: 27 }));
    }
}
