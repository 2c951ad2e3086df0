//! The invalidate extended header: a key that the receiver should forget.
//!
//! ```text
//!     +---------------------------------------------------------------+
//!  0  |                       remote key                              |
//!     +---------------------------------------------------------------+
//! ```

use crate::error::{ParseError, take};
use crate::key::Rkey;

/// The key that a SEND with invalidate asks the receiver to forget.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ieth {
    /// A key that the receiver has handed out.
    pub rkey: Rkey,
}

impl Ieth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Ieth::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        Ok((Self { rkey: Rkey(u32::from_be_bytes(*head)) }, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.rkey.0.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_big_endian() {
        let ieth = Ieth { rkey: Rkey(0x0102_0304) };
        assert_eq!(ieth.emit(), [1, 2, 3, 4]);
        assert_eq!(Ieth::parse(&[1, 2, 3, 4, 5]), Ok((ieth, &[5][..])));
        assert_eq!(Ieth::parse(&[0; 3]), Err(ParseError::Truncated { len: 3 }));
    }
}
