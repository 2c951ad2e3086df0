//! The datagram extended header: the sender, and the key that the receiver asks for.
//!
//! ```text
//!     +---------------------------------------------------------------+
//!  0  |                        queue key                              |
//!     +---------------+-----------------------------------------------+
//!  4  |   reserved    |             source queue pair                 |
//!     +---------------+-----------------------------------------------+
//! ```
//!
//! Parsing ignores the reserved byte, and emitting clears it.

use crate::error::{ParseError, take};
use crate::key::Qkey;
use crate::qpn::Qpn;

/// Datagram extended header: the sender of a datagram, and its Q_Key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Deth {
    /// The key, which must be the receiving queue pair's.
    pub qkey: Qkey,
    /// The queue pair that sent it.
    pub src_qp: Qpn,
}

impl Deth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Deth::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [k0, k1, k2, k3, _reserved, q0, q1, q2] = *head;
        let deth = Self {
            qkey: Qkey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        };
        Ok((deth, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qp.get().to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let deth = Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::GSI };
        assert_eq!(deth.emit(), [0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Deth::parse(&[0x80, 1, 0, 0, 0xff, 0, 0, 1, 7]), Ok((deth, &[7][..])));
        assert_eq!(Deth::parse(&[0; 7]), Err(ParseError::Truncated { len: 7 }));
    }
}
