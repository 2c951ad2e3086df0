//! The keys that packets carry: of a partition, of a datagram queue, of a memory region.

/// A partition key: which partition of the fabric a packet belongs to.
///
/// The top bit tells full members from limited ones. RoCE has one partition, [`Pkey::DEFAULT`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Pkey(pub u16);

impl Pkey {
    /// Full membership of the default partition.
    pub const DEFAULT: Self = Self(0xffff);
}

/// A queue key: what a datagram must show to be delivered to a queue pair.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Qkey(pub u32);

impl Qkey {
    /// That of queue pair 1. IBTA Vol. 1 §3.5.3.
    pub const GSI: Self = Self(0x8001_0000);
}

/// A remote key: what a peer must show to read or write a memory region.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Rkey(pub u32);

impl Rkey {
    /// The next key for the same window: its low 8 bits are the owner's to choose, and this adds one
    /// to them. IBTA Vol. 1 §10.6.3.
    #[doc(alias = "ibv_inc_rkey")]
    #[must_use]
    pub const fn incremented(self) -> Self {
        Self(self.0 & !OWNERS | self.0.wrapping_add(1) & OWNERS)
    }
}

/// The bits of a remote key that its owner chooses.
const OWNERS: u32 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incremented_key_is_one_of_the_same_window() {
        assert_eq!(Rkey(0x1234_5600).incremented(), Rkey(0x1234_5601));
        assert_eq!(Rkey(0x1234_56ff).incremented(), Rkey(0x1234_5600));
        assert_eq!(Rkey(u32::MAX).incremented(), Rkey(0xffff_ff00));
    }
}
