//! What the verbs set on a queue pair before it can work.

use crate::time::AckTimeout;
use adverb_wire::{PathMtu, Pkey, Psn, Qpn, RnrTimer};
use core::fmt;

/// A global identifier: the address of a port. For RoCEv2 an IPv6 or an IPv4-mapped address.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The identifier of an IPv4 address, `::ffff:a.b.c.d`.
    pub const fn from_v4(address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address within, if it is one.
    pub const fn v4(&self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pair) in self.0.chunks_exact(2).enumerate() {
            if at > 0 {
                f.write_str(":")?;
            }
            for byte in pair {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rights to memory, as `enum ibv_access_flags` numbers them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access(u32);

impl Access {
    /// Read by the owner only.
    pub const NONE: Self = Self(0);
    /// The owner's receives, READs and atomics may write.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may WRITE.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may READ.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may run atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// All rights that peers can have, and local writing.
    pub const ALL: Self = Self(0b1111);

    /// The rights with these bits; unknown ones are kept out.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// These rights and those.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Every right in `other` is among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// How often a request is sent again when no acknowledgement comes: 0 to 7.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The most that the three bits can say.
    pub const MAX: Self = Self(7);

    /// The count; `None` if it does not fit three bits.
    pub const fn new(count: u8) -> Option<Self> {
        if count > Self::MAX.0 { None } else { Some(Self(count)) }
    }

    /// The count.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// How often a request is sent again when the peer has no receive for it: 0 to 6, or for ever.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Until the peer posts a receive, however long that takes; encoded as 7.
    pub const FOREVER: Self = Self(7);

    /// The count, or [`RnrRetry::FOREVER`] for 7; `None` if it does not fit three bits.
    pub const fn new(count: u8) -> Option<Self> {
        if count > Self::FOREVER.0 { None } else { Some(Self(count)) }
    }

    /// The three bits.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Set on the way from RESET to INIT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InitAttributes {
    /// The partition.
    pub pkey: Pkey,
    /// What the peer may do to this queue pair at all.
    pub access: Access,
}

/// Set on the way from INIT to RTR: who the peer is, and what it may expect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RtrAttributes {
    /// The peer's address.
    pub remote_gid: Gid,
    /// The peer's queue pair.
    pub remote: Qpn,
    /// Sequence number of the peer's first packet.
    pub expected_psn: Psn,
    /// Size of the parts into which both sides cut messages.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that are remembered at once.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is told to wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
}

/// Set on the way from RTR to RTS: how this side sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RtsAttributes {
    /// Sequence number of the first packet.
    pub first_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to send again then.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive.
    pub rnr_retry: RnrRetry,
    /// READs and atomics under way at once.
    pub max_rd_atomic: u8,
    /// Packets under way at once, at most: what the path and the peer's buffers are known to bear.
    pub window_packets: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_ipv4_address_survives_in_an_identifier() {
        let gid = Gid::from_v4([10, 77, 0, 11]);
        assert_eq!(gid.v4(), Some([10, 77, 0, 11]));
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a4d:000b");
        assert_eq!(Gid([1; 16]).v4(), None);
    }

    #[test]
    fn counts_have_three_bits() {
        assert_eq!(RetryCount::new(7), Some(RetryCount::MAX));
        assert_eq!(RetryCount::new(8), None);
        assert_eq!(RnrRetry::new(7), Some(RnrRetry::FOREVER));
        assert_eq!(RnrRetry::new(8), None);
    }

    #[test]
    fn rights_contain_their_parts() {
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert!(both.contains(Access::REMOTE_READ) && both.contains(Access::NONE));
        assert!(!both.contains(Access::ALL));
        assert_eq!(Access::from_bits(u32::MAX), Access::ALL);
    }
}
