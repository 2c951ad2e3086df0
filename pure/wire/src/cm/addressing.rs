//! IP addresses and ports for connections: which service identifiers stand for ports, and what
//! the private data of a request begins with.
//!
//! ```text
//!     service id:  00 00 00 00 01  protocol (8)  port (16)
//!
//!     private data
//!  0  major (4), minor version (4), IP version (4), 0 (4), source port (16)
//!  4  source address: 16 bytes, of which IPv4 takes the last four
//! 20  destination address, likewise
//! 36  what the user adds
//! ```
//!
//! Parsing ignores the minor version, the reserved bits and the bytes before an IPv4 address.
//!
//! Read IBTA Vol. 1 Annex A11 before changing this file.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Service identifier: 64 bits.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceId(pub u64);

/// The ports of one protocol, as the connection manager's users name it: `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PortSpace {
    /// `RDMA_PS_IB`, with an IP address: any transport.
    Ib,
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
}

/// The asking address, and the one that is asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Addressing {
    /// Where the request comes from.
    pub source: IpAddr,
    /// Its port.
    pub source_port: u16,
    /// Where it goes. Of the same version as `source`.
    pub destination: IpAddr,
}

impl ServiceId {
    /// The service at a port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        let [p0, p1] = port.to_be_bytes();
        Self(u64::from_be_bytes([0, 0, 0, 0, 1, space.protocol(), p0, p1]))
    }

    /// The port that this stands for; `None` if it stands for none.
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let [0, 0, 0, 0, 1, protocol, p0, p1] = self.0.to_be_bytes() else {
            return None;
        };
        match PortSpace::new(protocol) {
            Some(space) => Some((space, u16::from_be_bytes([p0, p1]))),
            None => None,
        }
    }
}

impl PortSpace {
    const fn new(protocol: u8) -> Option<Self> {
        match protocol {
            IB => Some(Self::Ib),
            TCP => Some(Self::Tcp),
            UDP => Some(Self::Udp),
            _ => None,
        }
    }

    /// The byte of a service identifier that says it: the protocol's number, as in the header of IP, but for
    /// [`PortSpace::Ib`].
    pub const fn protocol(self) -> u8 {
        match self {
            Self::Ib => IB,
            Self::Tcp => TCP,
            Self::Udp => UDP,
        }
    }
}

impl Addressing {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 36;

    /// Splits the addresses off the front of private data; `None` if they are of an unknown
    /// version.
    pub fn parse(private: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = private.split_first_chunk::<{ Self::LEN }>()?;
        let [version, ip, p0, p1, addresses @ ..] = *head;
        let (source, destination) = addresses.split_first_chunk::<16>()?;
        let destination = destination.first_chunk()?;
        if version >> 4 != MAJOR {
            return None;
        }
        let address = match ip >> 4 {
            4 => v4,
            6 => v6,
            _ => return None,
        };
        let source_port = u16::from_be_bytes([p0, p1]);
        Some((
            Self { source: address(source), source_port, destination: address(destination) },
            rest,
        ))
    }

    /// The addresses as they stand on the wire.
    ///
    /// # Panics
    ///
    /// In debug builds, if the two are of different versions.
    pub fn emit(&self) -> [u8; Self::LEN] {
        debug_assert_eq!(self.source.is_ipv4(), self.destination.is_ipv4());
        let [p0, p1] = self.source_port.to_be_bytes();
        let version = if self.source.is_ipv4() { 4 } else { 6 };
        let head = [MAJOR << 4, version << 4, p0, p1];
        let mut bytes = [0; Self::LEN];
        let all = head.into_iter().chain(octets(self.source)).chain(octets(self.destination));
        bytes.iter_mut().zip(all).for_each(|(place, byte)| *place = byte);
        bytes
    }
}

fn v4([.., a, b, c, d]: &[u8; 16]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d))
}

fn v6(octets: &[u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(*octets))
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

const MAJOR: u8 = 0;
const IB: u8 = 0x3f;
const TCP: u8 = 6;
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_id_is_a_port_or_something_else() {
        let id = ServiceId::of_port(PortSpace::Tcp, 0x1c06);
        assert_eq!(id, ServiceId(0x0000_0000_0106_1c06));
        assert_eq!(id.port(), Some((PortSpace::Tcp, 0x1c06)));
        assert_eq!(ServiceId(0x0111_0001).port(), Some((PortSpace::Udp, 1)));
        for other in [0x0112_0001, 0x0206_0001, 0x0001_0000_0106_0001] {
            assert_eq!(ServiceId(other).port(), None);
        }
    }

    #[test]
    fn addresses_of_both_versions_come_out_as_they_went_in() {
        let v6 = |last| IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
        let v4 = |last| IpAddr::V4(Ipv4Addr::new(10, 77, 0, last));
        for (source, destination) in [(v4(11), v4(12)), (v6(1), v6(2))] {
            let addressing = Addressing { source, source_port: 0x94b2, destination };
            let bytes = [&addressing.emit()[..], b"rest"].concat();
            assert_eq!(Addressing::parse(&bytes), Some((addressing, &b"rest"[..])));
        }
    }

    #[test]
    fn unknown_versions_are_not_read() {
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let good = Addressing { source: v4, source_port: 1, destination: v4 }.emit();
        for (at, value) in [(0, 0x10), (1, 0x50), (1, 0)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Addressing::parse(&bytes), None, "byte {at} is {value:#x}");
        }
        assert_eq!(Addressing::parse(&good[..35]), None);
    }
}
