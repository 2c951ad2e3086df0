//! The RDMA extended header: which memory of the receiver a request is about.
//!
//! ```text
//!     +---------------------------------------------------------------+
//!  0  |                     virtual address                           |
//!  4  |                                                               |
//!     +---------------------------------------------------------------+
//!  8  |                       remote key                              |
//!     +---------------------------------------------------------------+
//! 12  |                    length of the message                      |
//!     +---------------------------------------------------------------+
//! ```
//!
//! Every value is legal here; whether the range may be touched is the region's to say.

use crate::error::{ParseError, take};
use crate::key::Rkey;

/// A claim on the receiver's memory by a READ or a WRITE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reth {
    /// Where the range starts, as the receiver's region counts.
    pub va: u64,
    /// The key that should permit it.
    pub rkey: Rkey,
    /// Length of the whole message, in bytes.
    pub len: u32,
}

impl Reth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 16;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Reth::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3] = *head;
        let reth = Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: Rkey(u32::from_be_bytes([k0, k1, k2, k3])),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        };
        Ok((reth, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.va.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.0.to_be_bytes();
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 99];
        let expected =
            Reth { va: 0x0001_0203_0405_0607, rkey: Rkey(0x0809_0a0b), len: 0x0c0d_0e0f };
        assert_eq!(Reth::parse(&bytes), Ok((expected, &[99][..])));
        assert_eq!(expected.emit(), bytes[..16]);
        assert_eq!(Reth::parse(&bytes[..15]), Err(ParseError::Truncated { len: 15 }));
    }
}
