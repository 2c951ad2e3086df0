//! Numbers of a few bits.

use core::fmt;

/// A number of `BITS` bits, of which there are at most eight.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Small<const BITS: u32>(u8);

/// A time of 4.096 µs × 2ᵉ, of which this is the *e*: 0 to 31. IBTA Vol. 1 §12.7.
pub type Exponent = Small<5>;

impl<const BITS: u32> Small<BITS> {
    /// The largest.
    pub const MAX: Self = Self(u8::MAX >> (u8::BITS - BITS));

    /// The smallest.
    pub const ZERO: Self = Self(0);

    /// The number; `None` if it does not fit.
    pub const fn new(value: u8) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The number, or the largest that fits.
    pub const fn saturating(value: u8) -> Self {
        if value <= Self::MAX.0 { Self(value) } else { Self::MAX }
    }

    /// The number, below 2 to the `BITS`.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The number in the bits of `byte` from `shift` on.
    pub(super) const fn of(byte: u8, shift: u32) -> Self {
        Self(byte >> shift & Self::MAX.0)
    }
}

impl Exponent {
    /// The time in nanoseconds: 4,096 to 8.8 × 10¹².
    pub const fn nanos(self) -> u64 {
        4096 << self.0
    }

    /// The shortest time of at least `nanos`, or the longest there is.
    pub fn at_least(nanos: u64) -> Self {
        (0..=Self::MAX.0).map(Self).find(|e| e.nanos() >= nanos).unwrap_or(Self::MAX)
    }
}

impl<const BITS: u32> fmt::Debug for Small<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_bits_and_no_more() {
        assert_eq!(
            (Small::<3>::MAX.get(), Exponent::MAX.get(), Small::<8>::MAX.get()),
            (7, 31, 255)
        );
        assert_eq!((Small::<3>::new(7), Small::<3>::new(8)), (Some(Small::MAX), None));
        assert_eq!(Small::<3>::saturating(9), Small::MAX);
        assert_eq!(Small::<3>::of(0b1010_0111, 5).get(), 5);
    }

    #[test]
    fn the_shortest_time_that_is_long_enough_is_chosen() {
        assert_eq!((Exponent::ZERO.nanos(), Exponent::MAX.nanos()), (4096, 8_796_093_022_208));
        assert_eq!(Exponent::at_least(4097).get(), 1);
        assert_eq!(Exponent::at_least(1_000_000_000).nanos(), 1_073_741_824);
        assert_eq!(Exponent::at_least(u64::MAX), Exponent::MAX);
    }
}
