//! Packet sequence numbers.

/// A packet sequence number: 24 bits that wrap.
///
/// `Psn` has no `Ord`, because there is no first one. Two of them compare only by distance, which
/// means something while they are less than 2²³ packets apart.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Psn(u32);

impl Psn {
    /// The number whose low 24 bits are those of `value`; the rest is ignored.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The number, below 2²⁴.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    #[inline]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` earlier.
    #[inline]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// Packets from `earlier` to `self`, −2²³ to 2²³ − 1; negative if `self` is the earlier one.
    #[inline]
    pub const fn since(self, earlier: Self) -> i32 {
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

const MASK: u32 = 0x00ff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(Psn::new(0xff_fffe).plus(3), Psn::new(1));
        assert_eq!(Psn::new(1).minus(3), Psn::new(0xff_fffe));
        assert_eq!(Psn::new(0x0100_0000).get(), 0);
        assert_eq!(Psn::new(5).plus(u32::MAX), Psn::new(4));
    }

    #[test]
    fn distance_is_signed_and_straddles_the_wrap() {
        assert_eq!(Psn::new(1).since(Psn::new(0xff_fffe)), 3);
        assert_eq!(Psn::new(0xff_fffe).since(Psn::new(1)), -3);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(9).since(Psn::new(9)), 0);
    }
}
