//! Path MTUs.

/// The largest payload that one packet may carry on a path. Headers are not counted.
///
/// Ordered by size. Every packet of a message but the last carries exactly this many bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PathMtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what fits an Ethernet frame of the usual size.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes: needs jumbo frames.
    B4096,
}

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Payload in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The code that the verbs and the connection manager use: 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::B256 => 1,
            Self::B512 => 2,
            Self::B1024 => 3,
            Self::B2048 => 4,
            Self::B4096 => 5,
        }
    }

    /// The path MTU with this code, if there is one.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The largest path MTU of at most `bytes`; `None` below 256.
    pub const fn largest_below(bytes: u32) -> Option<Self> {
        match bytes {
            0..256 => None,
            256..512 => Some(Self::B256),
            512..1024 => Some(Self::B512),
            1024..2048 => Some(Self::B1024),
            2048..4096 => Some(Self::B2048),
            4096.. => Some(Self::B4096),
        }
    }

    /// How many packets a message of `len` bytes needs. An empty message needs one, too.
    #[inline]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(self.bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_sizes_agree() {
        for (code, mtu) in (1..).zip(PathMtu::ALL) {
            assert_eq!(mtu.code(), code);
            assert_eq!(mtu.bytes(), 128 << code);
            assert_eq!(PathMtu::from_code(code), Some(mtu));
            assert_eq!(PathMtu::largest_below(mtu.bytes()), Some(mtu));
            assert!(PathMtu::largest_below(mtu.bytes() - 1) < Some(mtu));
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
        assert_eq!(PathMtu::largest_below(255), None);
        assert_eq!(PathMtu::largest_below(u32::MAX), Some(PathMtu::B4096));
    }

    #[test]
    fn a_message_needs_at_least_one_packet_and_no_empty_last_one() {
        let mtu = PathMtu::B256;
        let expected = [(0, 1), (1, 1), (256, 1), (257, 2), (512, 2), (513, 3)];
        for (len, packets) in expected {
            assert_eq!(mtu.packets(len), packets, "{len} bytes");
        }
        assert_eq!(mtu.packets(1 << 31), 1 << 23);
        assert_eq!(mtu.packets(u32::MAX), 1 << 24);
    }
}
