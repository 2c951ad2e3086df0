//! Queue pair numbers.

/// A queue pair number: 24 bits, unique within a device.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Qpn(u32);

impl Qpn {
    /// The general service interface, which serves connection management.
    pub const GSI: Self = Self(1);

    /// The destination of multicast datagrams, which names no single queue pair.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_24_bits() {
        assert_eq!(Qpn::new(0xff00_0001), Qpn::GSI);
        assert_eq!(Qpn::new(u32::MAX), Qpn::MULTICAST);
    }
}
