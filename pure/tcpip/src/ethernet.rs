//! The Ethernet header. RFC 894, IEEE 802.3 §3.1.1.
//!
//! ```text
//!     +-----------------+-----------------+---------+
//!     | destination, 6  |    source, 6    | type, 2 |
//!     +-----------------+-----------------+---------+
//! ```

use core::net::IpAddr;

/// An address of Ethernet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All hosts of the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// That of a group of hosts; `None` for one host: RFC 1112 §6.4, RFC 2464 §7.
    pub const fn of_group(to: IpAddr) -> Option<Self> {
        match to {
            IpAddr::V4(to) if to.is_multicast() => {
                let [_, b, c, d] = to.octets();
                Some(Self([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V4(to) if to.is_broadcast() => Some(Self::BROADCAST),
            IpAddr::V6(to) if to.is_multicast() => {
                let [.., a, b, c, d] = to.octets();
                Some(Self([0x33, 0x33, a, b, c, d]))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }

    /// It stands for several hosts.
    pub const fn is_group(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }
}

/// An Ethernet header without a VLAN tag: a tag is another [`kind`](Ethernet::kind).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ethernet {
    /// Where the frame goes.
    pub dst: Mac,
    /// Where it comes from.
    pub src: Mac,
    /// What it carries.
    pub kind: u16,
}

impl Ethernet {
    /// Length of the header, in bytes.
    pub const LEN: usize = 14;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;

    /// Splits the header off `frame`, and returns it with what it carries; `None` if the frame is too short.
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = frame.split_first_chunk::<{ Self::LEN }>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, k0, k1] = *head;
        let dst = Mac([d0, d1, d2, d3, d4, d5]);
        let src = Mac([s0, s1, s2, s3, s4, s5]);
        Some((Self { dst, src, kind: u16::from_be_bytes([k0, k1]) }, rest))
    }

    /// The header as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]) = (self.dst.0, self.src.0);
        let [k0, k1] = self.kind.to_be_bytes();
        [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, k0, k1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_hardware_addresses_that_the_rfcs_say() {
        let mac = |text: &str| Mac::of_group(text.parse().unwrap());
        assert_eq!(mac("224.129.7.8"), Some(Mac([0x01, 0x00, 0x5e, 1, 7, 8])));
        assert_eq!(mac("255.255.255.255"), Some(Mac::BROADCAST));
        assert_eq!(mac("ff02::1:ff00:1"), Some(Mac([0x33, 0x33, 0xff, 0, 0, 1])));
        assert_eq!((mac("10.0.0.1"), mac("fd00::1")), (None, None));
    }
}
