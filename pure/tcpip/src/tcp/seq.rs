//! Sequence numbers. RFC 9293 §3.4.

/// A sequence number: 32 bits that wrap.
///
/// `Seq` has no `Ord`, because there is no first one. Two of them compare only by distance, which means something
/// while they are less than 2³¹ bytes apart.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seq(u32);

impl Seq {
    /// The sequence number with these bits.
    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The sequence number `bytes` later.
    #[must_use]
    pub const fn plus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Bytes from `earlier` to `self`; negative if `self` is the earlier one.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right_across_the_wrap() {
        let last = Seq::new(u32::MAX);
        assert_eq!(last.plus(3), Seq::new(2));
        assert_eq!(last.plus(3).since(last), 3);
        assert_eq!(last.since(last.plus(3)), -3);
    }
}
