//! The extended header of XRC requests: the shared receive queue they are for.
//!
//! ```text
//!     +---------------+-----------------------------------------------+
//!  0  |   reserved    |           shared receive queue                |
//!     +---------------+-----------------------------------------------+
//! ```
//!
//! Parsing ignores the reserved byte, and emitting clears it.

use crate::error::{ParseError, take};
use crate::qpn::Qpn;

/// XRC extended header: the shared receive queue of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct XrcEth {
    /// The queue's number, from the same 24 bits as a queue pair's.
    pub srqn: Qpn,
}

impl XrcEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`XrcEth::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [_reserved, q0, q1, q2] = *head;
        Ok((Self { srqn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])) }, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.srqn.get().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_where_the_book_draws_it() {
        let xrceth = XrcEth { srqn: Qpn::new(0x01_0203) };
        assert_eq!(xrceth.emit(), [0, 1, 2, 3]);
        assert_eq!(XrcEth::parse(&[0xff, 1, 2, 3, 4]), Ok((xrceth, &[4][..])));
        assert_eq!(XrcEth::parse(&[0; 3]), Err(ParseError::Truncated { len: 3 }));
    }
}
