//! Access flags of memory, as the verbs have them.

use core::fmt;
use core::ops::BitOr;

/// Rights of a region or of a queue pair's peer, and hints about memory.
/// `enum ibv_access_flags`; IBTA Vol. 1 §10.6.3.
///
/// The bits are those of the verbs.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[doc(alias = "ibv_access_flags")]
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
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Its first byte has address 0, for work requests and peers.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// A hint: its pages need not be present. The software device never pins any.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// A hint: it lies in huge pages.
    pub const HUGETLB: Self = Self(1 << 7);
    /// Peers may make sure that what they wrote is visible.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// Peers may make sure that what they wrote persists.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);
    /// A hint: accesses need not be ordered among themselves. The software device orders them.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);
    /// Local writing, and all of WRITE, READ and atomics for peers.
    pub const ALL: Self = Self(0b1111);

    const KNOWN: u32 = 0x3ff | Self::RELAXED_ORDERING.0;

    /// The rights with these bits; unknown ones are kept out.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::KNOWN)
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

    /// Those that an access is checked against: local writing, and what peers may do. The others are the host's.
    #[must_use]
    pub const fn transport(self) -> Self {
        Self(self.0 & Self::ALL.0)
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = NAMES.iter().filter(|(flag, _)| self.contains(*flag));
        let Some((_, first)) = names.next() else {
            return f.write_str("local read");
        };
        f.write_str(first)?;
        names.try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}

const NAMES: [(Access, &str); 11] = [
    (Access::LOCAL_WRITE, "local write"),
    (Access::REMOTE_WRITE, "remote write"),
    (Access::REMOTE_READ, "remote read"),
    (Access::REMOTE_ATOMIC, "remote atomic"),
    (Access::MW_BIND, "window bind"),
    (Access::ZERO_BASED, "zero based"),
    (Access::ON_DEMAND, "on demand"),
    (Access::HUGETLB, "huge pages"),
    (Access::FLUSH_GLOBAL, "flush global"),
    (Access::FLUSH_PERSISTENT, "flush persistent"),
    (Access::RELAXED_ORDERING, "relaxed ordering"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn the_transport_is_told_of_rights_and_not_of_hints() {
        let all = Access::from_bits(u32::MAX);
        assert_eq!(all.transport(), Access::ALL);
        assert_eq!((Access::ZERO_BASED | Access::REMOTE_READ).transport(), Access::REMOTE_READ);
    }

    #[test]
    fn rights_contain_their_parts() {
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert!(both.contains(Access::REMOTE_READ) && both.contains(Access::NONE));
        assert!(!both.contains(Access::ALL));
    }

    #[test]
    fn every_flag_has_its_name_and_unknown_bits_are_kept_out() {
        let all = NAMES.iter().fold(Access::NONE, |all, (flag, _)| all | *flag);
        assert_eq!(Access::from_bits(u32::MAX), all);
        let some = Access::LOCAL_WRITE | Access::ZERO_BASED;
        assert_eq!(some.to_string(), "local write, zero based");
        assert_eq!(Access::NONE.to_string(), "local read");
    }
}
