//! The bytes that fill a payload to a multiple of four.

/// Pad count: bytes that fill a payload up to a multiple of four, 0 to 3.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Pad(u8);

impl Pad {
    /// No padding.
    pub const NONE: Self = Self(0);

    /// The count in the low two bits of `bits`; the rest is ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 3)
    }

    /// The padding that `len` bytes of payload need.
    #[inline]
    pub const fn for_len(len: usize) -> Self {
        match len % 4 {
            1 => Self(3),
            2 => Self(2),
            3 => Self(1),
            _ => Self(0),
        }
    }

    /// Length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a count of bytes, not a collection")]
    #[expect(clippy::as_conversions, reason = "no other conversion is const")]
    pub const fn len(self) -> usize {
        self.0 as usize
    }

    /// The count as the two bits of the base transport header.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_fills_every_length_to_a_multiple_of_four() {
        for len in 0..70_000 {
            let pad = Pad::for_len(len);
            assert!((len + pad.len()).is_multiple_of(4) && pad.len() < 4, "length {len}");
        }
    }

    #[test]
    fn two_bits_are_taken_from_a_byte() {
        for bits in 0..=u8::MAX {
            assert_eq!(Pad::from_bits(bits).len(), usize::from(bits % 4));
            assert_eq!(Pad::from_bits(bits).bits(), bits % 4);
        }
    }
}
