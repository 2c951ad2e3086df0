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

/// A remote key: what a peer must show to read or write a memory region.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Rkey(pub u32);
