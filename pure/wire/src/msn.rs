//! Message sequence numbers.

/// A message sequence number: how many requests a responder has completed, modulo 2²⁴.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Msn(u32);

impl Msn {
    /// The number whose low 24 bits are those of `value`; the rest is ignored.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The number, below 2²⁴.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number after one more request.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// Requests between `earlier` and this number, of 2²⁴ numbers that wrap.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & 0x00ff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_wraps_at_24_bits() {
        assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
        assert_eq!(Msn::new(0).next().get(), 1);
        assert_eq!(Msn::new(2).since(Msn::new(0xff_ffff)), 3);
    }
}
