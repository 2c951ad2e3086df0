//! Immediate data: four bytes that travel outside the message.
//!
//! ```text
//!     +---------------------------------------------------------------+
//!  0  |                     immediate data                            |
//!     +---------------------------------------------------------------+
//! ```

use crate::error::{ParseError, take};

/// Immediate data, as the number whose big-endian bytes are on the wire.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Imm(pub u32);

impl Imm {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Splits the data off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Imm::LEN`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        Ok((Self(u32::from_be_bytes(*head)), rest))
    }

    /// The data as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_big_endian() {
        assert_eq!(Imm(0xdead_be00).emit(), [0xde, 0xad, 0xbe, 0]);
        assert_eq!(Imm::parse(&[0xde, 0xad, 0xbe, 0, 5]), Ok((Imm(0xdead_be00), &[5][..])));
        assert_eq!(Imm::parse(&[0; 3]), Err(ParseError::Truncated { len: 3 }));
    }
}
