//! The flush extended transport header: what a FLUSH makes sure of. IBTA Vol. 1 Annex A19.
//!
//! ```text
//!     +---------------------------------------------------+---+-------+
//!  0  |                  reserved                         |sel| place |
//!     +---------------------------------------------------+---+-------+
//! ```

use crate::error::{ParseError, take};

/// What a FLUSH makes sure of, and for how much of a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Feth {
    /// Placement types, four bits: [`Feth::GLOBAL`], [`Feth::PERSISTENT`].
    pub placement: u8,
    /// Selectivity level, two bits: [`Feth::RANGE`], [`Feth::REGION`].
    pub selectivity: u8,
}

impl Default for Feth {
    /// Visible to all, in the range.
    fn default() -> Self {
        Self { placement: Self::GLOBAL, selectivity: Self::RANGE }
    }
}

impl Feth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;
    /// What was written before is visible to all that read the memory.
    pub const GLOBAL: u8 = 1;
    /// What was written before outlives a loss of power.
    pub const PERSISTENT: u8 = 2;
    /// Both.
    pub const BOTH: u8 = Self::GLOBAL | Self::PERSISTENT;
    /// The range that the request names.
    pub const RANGE: u8 = 0;
    /// The whole region.
    pub const REGION: u8 = 1;

    /// Splits the header off the front of `packet`. Reserved bits are ignored.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Feth::LEN`].
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (&[_, _, _, bits], rest) = take::<{ Self::LEN }>(packet)?;
        Ok((Self { placement: bits & 0xf, selectivity: bits >> 4 & 0b11 }, rest))
    }

    /// The header as it stands on the wire; reserved bits are zero.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        [0, 0, 0, (self.selectivity & 0b11) << 4 | self.placement & 0xf]
    }
}
