//! The headers below RoCE: IPv4, IPv6 and UDP, as far as a packet's bytes need them.
//!
//! The operating system makes the real ones. These are for code that has to show or read a whole
//! packet, a capture or a simulated network, and for the invariant CRC, which covers them. Not a
//! stack: options, extension headers and fragments are refused.
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

use core::fmt;

use crate::icrc::Flow;
use crate::room::Room;

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
    pub const FLOW_LABEL_MAX: u32 = 0xf_ffff;
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
        let (head, _) = packet.split_first_chunk::<20>().ok_or(Error::Truncated)?;
        let [version, tos, l0, l1, i0, i1, f0, f1, ttl, protocol, _, _, addresses @ ..] = *head;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        if version != V4_VERSION {
            return Err(Error::Options);
        }
        if [f0, f1] != DONT_FRAGMENT {
            return Err(Error::Fragment);
        }
        if protocol != UDP {
            return Err(Error::NotUdp);
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let packet = packet.get(20..len).ok_or(Error::Truncated)?;
        let (ports, payload) = parse_udp(packet)?;
        let flow = Flow::v4([s0, s1, s2, s3], [d0, d1, d2, d3], ports.0, ports.1);
        let marks = Marks { traffic_class: tos, hop_limit: ttl, flow_label: 0 };
        Ok(Self { flow, id: u16::from_be_bytes([i0, i1]), marks, payload })
    }

    fn parse_v6(packet: &'a [u8]) -> Result<Self, Error> {
        let (head, rest) = packet.split_first_chunk::<8>().ok_or(Error::Truncated)?;
        let (src, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
        let (dst, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
        let [c0, c1, c2, c3, l0, l1, next, hop_limit] = *head;
        if next != UDP {
            return Err(Error::NotUdp);
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let (ports, payload) = parse_udp(rest.get(..len).ok_or(Error::Truncated)?)?;
        let flow = Flow::v6(*src, *dst, ports.0, ports.1);
        let (traffic_class, flow_label) = parse_class([c0, c1, c2, c3]);
        Ok(Self { flow, id: 0, marks: Marks { traffic_class, hop_limit, flow_label }, payload })
    }
}

/// Traffic class and flow label of an IPv6 header's first four bytes.
pub(crate) fn parse_class(bytes: [u8; 4]) -> (u8, u32) {
    let [first, second, ..] = bytes;
    ((first << 4) | (second >> 4), u32::from_be_bytes(bytes) & Marks::FLOW_LABEL_MAX)
}

/// Ports and payload of a UDP datagram that fills `packet`.
fn parse_udp(packet: &[u8]) -> Result<((u16, u16), &[u8]), Error> {
    let (head, payload) = packet.split_first_chunk::<8>().ok_or(Error::Truncated)?;
    let [s0, s1, d0, d1, l0, l1, _, _] = *head;
    if usize::from(u16::from_be_bytes([l0, l1])) != packet.len() {
        return Err(Error::Length);
    }
    Ok(((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])), payload))
}

/// Error of parsing an IP packet with one UDP datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// It is, or may become, a fragment.
    Fragment,
    /// The lengths of UDP and IP disagree.
    Length,
    /// The version is neither 4 nor 6.
    NotIp,
    /// It carries something else.
    NotUdp,
    /// The IPv4 header has options.
    Options,
    /// It ends too early.
    Truncated,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fragment => "the packet is, or may become, a fragment",
            Self::Length => "the lengths of UDP and IP disagree",
            Self::NotIp => "the packet is neither IPv4 nor IPv6",
            Self::NotUdp => "the packet does not carry UDP",
            Self::Options => "the IPv4 header has options",
            Self::Truncated => "the packet ends too early",
        })
    }
}

impl core::error::Error for Error {}

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
    let Marks { traffic_class, hop_limit, flow_label } = marks;
    let udp_len = udp_payload_len.wrapping_add(UDP_LEN);
    let mut room = Room::new();
    match *flow.addresses() {
        Addresses::V4 { src, dst } => {
            let len = udp_len.wrapping_add(V4_LEN);
            let emit = |sum| emit_v4(src, dst, traffic_class, len, id, hop_limit, sum);
            room.push(emit(check_sum(&emit(0))));
        }
        Addresses::V6 { src, dst } => {
            let label = flow_label & Marks::FLOW_LABEL_MAX;
            room.push(emit_v6(u32::from(traffic_class) << 20 | label, udp_len, hop_limit));
            room.push(src);
            room.push(dst);
        }
    }
    let (src_port, dst_port) = flow.ports();
    room.push(emit_udp(src_port, dst_port, udp_len, 0));
    HeaderBytes(room)
}

/// The headers as the invariant CRC takes them: ones where a router may change something. The
/// lengths and the identification, which differ from packet to packet, are 0.
pub(crate) fn masked_headers(addresses: &Addresses, src_port: u16, dst_port: u16) -> HeaderBytes {
    let mut room = Room::new();
    match *addresses {
        Addresses::V4 { src, dst } => room.push(emit_v4(src, dst, 0xff, 0, 0, 0xff, 0xffff)),
        Addresses::V6 { src, dst } => {
            room.push(emit_v6(0x0fff_ffff, 0, 0xff));
            room.push(src);
            room.push(dst);
        }
    }
    room.push(emit_udp(src_port, dst_port, 0, 0xffff));
    HeaderBytes(room)
}

fn emit_v4(
    [s0, s1, s2, s3]: [u8; 4],
    [d0, d1, d2, d3]: [u8; 4],
    tos: u8,
    len: u16,
    id: u16,
    ttl: u8,
    sum: u16,
) -> [u8; 20] {
    let ([l0, l1], [i0, i1]) = (len.to_be_bytes(), id.to_be_bytes());
    let ([f0, f1], [c0, c1]) = (DONT_FRAGMENT, sum.to_be_bytes());
    [V4_VERSION, tos, l0, l1, i0, i1, f0, f1, ttl, UDP, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]
}

/// The part of an IPv6 header before the addresses; `class` is traffic class and flow label.
fn emit_v6(class: u32, len: u16, hops: u8) -> [u8; 8] {
    let [c0, c1, c2, c3] = (V6_VERSION | class).to_be_bytes();
    let [l0, l1] = len.to_be_bytes();
    [c0, c1, c2, c3, l0, l1, UDP, hops]
}

fn emit_udp(src_port: u16, dst_port: u16, len: u16, sum: u16) -> [u8; 8] {
    let ([s0, s1], [d0, d1]) = (src_port.to_be_bytes(), dst_port.to_be_bytes());
    let ([l0, l1], [c0, c1]) = (len.to_be_bytes(), sum.to_be_bytes());
    [s0, s1, d0, d1, l0, l1, c0, c1]
}

/// The internet check sum of a header whose own sum is 0.
fn check_sum(header: &[u8; 20]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    // Ten words overflow by less than 10, so folding twice leaves no carry.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    !u16::from_be_bytes([high, low])
}

/// Length of a UDP header, in bytes.
pub(crate) const UDP_LEN: u16 = 8;

/// Length of an IPv4 header without options, in bytes.
pub(crate) const V4_LEN: u16 = 20;

/// The longest UDP payload under IPv4, in bytes. IPv6 could carry 20 more, but they are not sent.
pub(crate) const UDP_PAYLOAD_MAX: u16 = u16::MAX - UDP_LEN - V4_LEN;

/// Version 4, five words.
const V4_VERSION: u8 = 0x45;
const V6_VERSION: u32 = 6 << 28;
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
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
