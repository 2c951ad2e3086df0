//! The headers below RoCE: IPv4, IPv6 and UDP.
//!
//! [`Ipv4`], [`Ipv6`], [`Udp`] and [`Sum`] are the headers and their checksum, for every packet. [`Datagram`] is
//! one with RoCE in it: with sockets the operating system makes its headers, so they are for code that has to
//! show or read a whole packet, a capture or a simulated network, and for the invariant CRC, which covers them.
//! There, options, extension headers and fragments are refused.
//!
//! ```text
//!      IPv4                                      IPv6
//!     +-------+-------+-------+-------+         +-----+-------+-----------------+
//!  0  |4  | 5 |  TOS  | total length  |      0  |6|class|     flow label        |
//!  4  | identification|flags, offset  |      4  | payload length|next   |hops   |
//!  8  | TTL   |proto  |  check sum    |      8  |       source, 16 bytes        |
//! 12  |            source             |     24  |    destination, 16 bytes      |
//! 16  |          destination          |         +-------------------------------+
//!     +-------------------------------+
//!                                                UDP
//!                                               +---------------+---------------+
//!                                            0  | source port   | destination   |
//!                                            4  | length        | check sum     |
//!                                               +---------------+---------------+
//! ```

mod error;
mod sum;
mod udp;
mod v4;
mod v6;

pub use self::error::Error;
pub use self::sum::Sum;
pub use self::udp::Udp;
pub use self::v4::{Ipv4, Ipv4Rest};
pub use self::v6::Ipv6;

use crate::icrc::Flow;
use crate::room::Room;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) use self::v6::parse_class;

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// Source and destination addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Addresses {
    V4 { src: [u8; 4], dst: [u8; 4] },
    V6 { src: [u8; 16], dst: [u8; 16] },
}

/// GRH fields: how a packet is to be treated on its way. Routers may change it, and the
/// invariant CRC covers none of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Marks {
    /// Traffic class of IPv6, type of service of IPv4: the differentiated services code point in the
    /// upper six bits, what routers say of congestion in the lower two.
    pub traffic_class: u8,
    /// Hop limit of IPv6, time to live of IPv4: how many routers it may still pass.
    pub hop_limit: u8,
    /// Flow label, 20 bits. IPv4 has none.
    pub flow_label: u32,
}

impl Marks {
    /// A router has marked the packet: it has met congestion. RFC 3168 §5.
    #[inline]
    pub const fn met_congestion(&self) -> bool {
        self.traffic_class & 0b11 == 0b11
    }

    /// The traffic class of packets that routers may mark instead of dropping them, and of which nothing else is said:
    /// ECT(0) of RFC 3168 §5.
    pub const ECN_CAPABLE: u8 = 0b10;
    /// The largest flow label.
    pub const FLOW_LABEL_MAX: u32 = v6::FLOW_LABEL_MAX;
    /// The values that most hosts use by default.
    pub const USUAL: Self = Self { traffic_class: 0, hop_limit: 64, flow_label: 0 };
}

/// One UDP datagram, with what the IP header said about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Datagram<'a> {
    /// From where to where.
    pub flow: Flow,
    /// The IPv4 identification; 0 for IPv6.
    pub id: u16,
    /// How it was to be treated on its way.
    pub marks: Marks,
    /// What UDP carries.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads an IP packet as [`Envelope::parse`] does.
    ///
    /// # Errors
    ///
    /// [`Error`] says what it is instead.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Error> {
        let Envelope { from, to, id, marks, payload } = Envelope::parse(packet)?;
        let flow = match (from.ip(), to.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Flow::v4(src.octets(), dst.octets(), from.port(), to.port())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Flow::v6(src.octets(), dst.octets(), from.port(), to.port())
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
                return Err(Error::NotIp);
            }
        };
        Ok(Self { flow, id, marks, payload })
    }
}

/// One UDP datagram, with its addresses in place of its [`Flow`]: cheaper where that is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Envelope<'a> {
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// The IPv4 identification; 0 for IPv6.
    pub id: u16,
    /// How it was to be treated on its way.
    pub marks: Marks,
    /// What UDP carries.
    pub payload: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Reads an IP packet that carries a whole UDP datagram. Check sums are not looked at, and
    /// bytes after the packet's end, which Ethernet adds to short frames, are ignored.
    ///
    /// # Errors
    ///
    /// [`Error`] says what it is instead.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Error> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(packet),
            Some(6) => Self::parse_v6(packet),
            Some(_) => Err(Error::NotIp),
            None => Err(Error::Truncated),
        }
    }

    fn parse_v4(packet: &'a [u8]) -> Result<Self, Error> {
        let (ip, rest) = Ipv4::parse(packet)?;
        if !rest.options.is_empty() {
            return Err(Error::Options);
        }
        if !ip.dont_fragment {
            return Err(Error::Fragment);
        }
        if ip.protocol != UDP {
            return Err(Error::NotUdp);
        }
        let (udp, payload) = Udp::parse(rest.payload)?;
        let from = SocketAddr::new(ip.src.into(), udp.src_port);
        let to = SocketAddr::new(ip.dst.into(), udp.dst_port);
        let marks =
            Marks { traffic_class: ip.traffic_class, hop_limit: ip.hop_limit, flow_label: 0 };
        Ok(Self { from, to, id: ip.id, marks, payload })
    }

    fn parse_v6(packet: &'a [u8]) -> Result<Self, Error> {
        let (ip, rest) = Ipv6::parse(packet)?;
        if ip.next != UDP {
            return Err(Error::NotUdp);
        }
        let (udp, payload) = Udp::parse(rest)?;
        let from = SocketAddr::new(ip.src.into(), udp.src_port);
        let to = SocketAddr::new(ip.dst.into(), udp.dst_port);
        let Ipv6 { traffic_class, hop_limit, flow_label, .. } = ip;
        let marks = Marks { traffic_class, hop_limit, flow_label };
        Ok(Self { from, to, id: 0, marks, payload })
    }
}

/// IP and UDP headers as bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeaderBytes(Room<48>);

impl HeaderBytes {
    /// The headers: 28 bytes for IPv4, 48 for IPv6.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// The headers that the operating system would put before a datagram of `udp_payload_len` bytes:
/// don't-fragment set, UDP check sum 0. IPv6 ignores `id`, IPv4 the flow label, of which 20 bits
/// count.
///
/// Lengths wrap beyond what an IP packet can carry, 65 507 bytes.
pub fn emit_udp_headers(flow: &Flow, id: u16, marks: Marks, udp_payload_len: u16) -> HeaderBytes {
    let udp_len = udp_payload_len.wrapping_add(UDP_LEN);
    let mut room = Room::new();
    match *flow.addresses() {
        Addresses::V4 { src, dst } => room.push(v4_header(src, dst, id, marks).emit(udp_len)),
        Addresses::V6 { src, dst } => room.push(v6_header(src, dst, marks).emit(udp_len)),
    }
    let (src_port, dst_port) = flow.ports();
    room.push(Udp { src_port, dst_port, sum: 0 }.emit(udp_len));
    HeaderBytes(room)
}

/// The headers as the invariant CRC takes them: ones where a router may change something. The
/// lengths and the identification, which differ from packet to packet, are 0.
pub(crate) fn masked_headers(addresses: &Addresses, src_port: u16, dst_port: u16) -> HeaderBytes {
    let masked = Marks { traffic_class: 0xff, hop_limit: 0xff, flow_label: Marks::FLOW_LABEL_MAX };
    let mut room = Room::new();
    match *addresses {
        Addresses::V4 { src, dst } => {
            let no_len = 0_u16.wrapping_sub(V4_LEN);
            room.push(v4_header(src, dst, 0, masked).emit_with(no_len, 0xffff));
        }
        Addresses::V6 { src, dst } => room.push(v6_header(src, dst, masked).emit(0)),
    }
    room.push(Udp { src_port, dst_port, sum: 0xffff }.emit(0));
    HeaderBytes(room)
}

fn v4_header(src: [u8; 4], dst: [u8; 4], id: u16, marks: Marks) -> Ipv4 {
    let Marks { traffic_class, hop_limit, flow_label: _ } = marks;
    let (src, dst) = (Ipv4Addr::from(src), Ipv4Addr::from(dst));
    Ipv4 { traffic_class, id, dont_fragment: true, hop_limit, protocol: UDP, src, dst }
}

fn v6_header(src: [u8; 16], dst: [u8; 16], marks: Marks) -> Ipv6 {
    let Marks { traffic_class, hop_limit, flow_label } = marks;
    let (src, dst) = (Ipv6Addr::from(src), Ipv6Addr::from(dst));
    Ipv6 { traffic_class, flow_label, next: UDP, hop_limit, src, dst }
}

/// Length of a UDP header, in bytes.
pub(crate) const UDP_LEN: u16 = 8;

/// Length of an IPv4 header without options, in bytes.
pub(crate) const V4_LEN: u16 = 20;

/// The longest UDP payload under IPv4, in bytes. IPv6 could carry 20 more, but they are not sent.
pub(crate) const UDP_PAYLOAD_MAX: u16 = u16::MAX - UDP_LEN - V4_LEN;

const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_an_rfc_would_have_them() {
        let flow = Flow::v4([10, 77, 0, 11], [10, 77, 0, 12], 0xc001, ROCE_PORT);
        let bytes = emit_udp_headers(&flow, 0x877d, Marks::USUAL, 20);
        let expected = [
            0x45, 0, 0, 48, 0x87, 0x7d, 0x40, 0, 64, 17, 0x9e, 0x8f, 10, 77, 0, 11, 10, 77, 0, 12,
            0xc0, 1, 0x12, 0xb7, 0, 28, 0, 0,
        ];
        assert_eq!(bytes.as_slice(), expected);
    }

    #[test]
    fn what_is_emitted_parses() {
        let flows = [
            Flow::v4([1, 2, 3, 4], [5, 6, 7, 8], 9, 10),
            Flow::v6([1; 16], [2; 16], 0xffff, ROCE_PORT),
        ];
        for flow in flows {
            let flow_label = if flow.is_v6() { 0x9_8765 } else { 0 };
            let marks = Marks { traffic_class: 0xa5, hop_limit: 7, flow_label };
            let mut bytes = emit_udp_headers(&flow, 0x1234, marks, 3).as_slice().to_vec();
            bytes.extend([1, 2, 3, 99]); // The last byte is not the packet's.
            let id = if flow.is_v6() { 0 } else { 0x1234 };
            let expected = Datagram { flow, id, marks, payload: &[1, 2, 3] };
            assert_eq!(Datagram::parse(&bytes), Ok(expected));
            for len in 0..bytes.len() - 1 {
                assert_eq!(Datagram::parse(&bytes[..len]), Err(Error::Truncated), "{len}");
            }
        }
    }

    #[test]
    fn what_is_not_one_whole_udp_datagram_is_refused() {
        let flow = Flow::v4([1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
        let good = emit_udp_headers(&flow, 0, Marks::USUAL, 0).as_slice().to_vec();
        let refused = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Datagram::parse(&bytes).map(|_| ())
        };
        assert_eq!(refused(0, 0x55), Err(Error::NotIp));
        assert_eq!(refused(0, 0x46), Err(Error::Options));
        assert_eq!(refused(6, 0x20), Err(Error::Fragment)); // More follow.
        assert_eq!(refused(6, 0x00), Err(Error::Fragment)); // A router may cut it.
        assert_eq!(refused(7, 1), Err(Error::Fragment)); // Not the first.
        assert_eq!(refused(9, 6), Err(Error::NotUdp));
        assert_eq!(refused(3, 27), Err(Error::Truncated));
        assert_eq!(refused(3, 19), Err(Error::Truncated));
        assert_eq!(refused(25, 9), Err(Error::Length));
    }
}
