//! From a frame of Ethernet to what it carries, and whose it is.
//!
//! A frame is ours if it carries, whole and without anything unusual, a TCP segment, a UDP datagram, an ICMP error
//! about either, or a message that finds neighbours. All else is the kernel's, except what is damaged.

use core::net::{IpAddr, Ipv4Addr};
use core::ops::Range;

use adverb_wire::ip::{self, Ipv4, Ipv6, Sum, Udp};

use crate::arp::Arp;
use crate::ethernet::Ethernet;
use crate::icmp::IcmpError;
use crate::neighbour::Neighbour;
use crate::tcp::{Flags, Tcp};
use crate::tuple::Tuple;

/// What a frame carries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Frame {
    /// A question for an Ethernet address, or the answer.
    Arp(Arp),
    /// A router or host reports an error about one of our packets.
    IcmpError(IcmpError),
    /// A question for an Ethernet address, or the answer, of IPv6.
    Neighbour(Neighbour),
    /// A segment of a connection.
    Tcp {
        /// The names of both ends, as the receiver sees them.
        tuple: Tuple,
        /// Its header.
        header: Tcp,
        /// Where in the frame its payload is.
        payload: Range<usize>,
    },
    /// A datagram.
    Udp {
        /// The names of both ends, as the receiver sees them.
        tuple: Tuple,
        /// Where in the frame its payload is.
        payload: Range<usize>,
    },
}

/// Why a frame is not for this crate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// A length, a checksum or an address cannot be: nothing should take it.
    Damaged,
    /// It is, or carries, what the kernel serves.
    Kernel,
}

/// Whether checksums of TCP, UDP and ICMP are verified. That of the IPv4 header always is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Checksums {
    /// They are verified if they are complete. A virtual interface hands over what the sender's kernel left to the
    /// hardware: the sum of the pseudo header, to which nothing has added the rest.
    Complete,
    /// They are taken to be right: the interface has verified them.
    Trusted,
    /// Packets with a wrong one are damaged.
    Verified,
}

impl Checksums {
    /// What a checksum begins with, and whether it may end there; `None` if it is not looked at.
    const fn then_check(self, pseudo: Sum) -> Option<(Sum, Self)> {
        match self {
            Self::Complete | Self::Verified => Some((pseudo, self)),
            Self::Trusted => None,
        }
    }
}

impl Frame {
    /// Reads a frame that has arrived.
    ///
    /// # Errors
    ///
    /// [`Refused`] says whose it is instead.
    #[inline]
    pub fn parse(frame: &[u8], checksums: Checksums) -> Result<Self, Refused> {
        let usual = Self::parse_usual(frame, checksums);
        match usual.or_else(|| Self::parse_usual_datagram(frame, checksums)) {
            Some(usual) => Ok(usual),
            None => Self::parse_any(frame, checksums),
        }
    }

    /// Reads a frame as those of most datagrams are: over IPv4 without options. `None` for all others, and for what may be
    /// damaged.
    #[inline]
    fn parse_usual_datagram(frame: &[u8], checksums: Checksums) -> Option<Self> {
        let (ethernet, rest) = frame.split_first_chunk::<{ Ethernet::LEN }>()?;
        let (ip, _) = rest.split_first_chunk::<{ Ipv4::LEN }>()?;
        let [.., 0x08, 0x00] = ethernet else { return None };
        let [0x45, _, l0, l1, _, _, 0 | 0x40, 0, _, UDP, _, _, ends @ ..] = *ip else {
            return None;
        };
        let [s0, s1, s2, s3, d0, d1, d2, d3] = ends;
        let (src, dst) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
        let (start, len) = (Ethernet::LEN + Ipv4::LEN, u16::from_be_bytes([l0, l1]));
        let end = Ethernet::LEN + usize::from(len);
        let carried = Carried {
            src: IpAddr::V4(src),
            dst: IpAddr::V4(dst),
            start,
            bytes: frame.get(start..end)?,
            pseudo: checksums.then_check(Sum::pseudo_v4(
                src,
                dst,
                UDP,
                len.checked_sub(IPV4_BYTES)?,
            )),
        };
        let is_usual =
            !src.is_multicast() && !src.is_broadcast() && Sum::default().with(ip).finish() == 0;
        if is_usual { carried.udp().ok() } else { None }
    }

    /// Reads a frame as most of a connection's are: a segment over IPv4 without options, with time stamps and no other options
    /// of TCP. `None` for all others, and for what may be damaged.
    #[inline]
    fn parse_usual(frame: &[u8], checksums: Checksums) -> Option<Self> {
        let (head, _) = frame.split_first_chunk::<USUAL_BYTES>()?;
        let (ethernet, rest) = head.split_first_chunk::<{ Ethernet::LEN }>()?;
        let (ip, rest) = rest.split_first_chunk::<{ Ipv4::LEN }>()?;
        let (_, stamps) = rest.split_first_chunk::<{ Tcp::LEN }>()?;
        let ([.., 0x08, 0x00], [1, 1, 8, 10, ..]) = (ethernet, stamps) else { return None };
        let [0x45, _, l0, l1, _, _, 0 | 0x40, 0, _, TCP, _, _, ends @ ..] = *ip else {
            return None;
        };
        let [s0, s1, s2, s3, d0, d1, d2, d3] = ends;
        let (src, dst) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
        let end = Ethernet::LEN + usize::from(u16::from_be_bytes([l0, l1]));
        let bytes = frame.get(Ethernet::LEN + Ipv4::LEN..end)?;
        let (header, payload) = Tcp::parse(bytes)?;
        let carried = Carried {
            src: IpAddr::V4(src),
            dst: IpAddr::V4(dst),
            start: Ethernet::LEN + Ipv4::LEN,
            bytes,
            pseudo: checksums.then_check(Sum::pseudo_v4(
                src,
                dst,
                TCP,
                u16::try_from(bytes.len()).ok()?,
            )),
        };
        let is_usual = payload.len() + USUAL_BYTES == end
            && header.flags.has(Flags::ACK)
            && !src.is_multicast()
            && !src.is_broadcast()
            && !dst.is_multicast()
            && Sum::default().with(ip).finish() == 0
            && carried.is_intact(16);
        let tuple = carried.tuple(header.src_port, header.dst_port);
        is_usual.then_some(Self::Tcp { tuple, header, payload: USUAL_BYTES..end })
    }

    fn parse_any(frame: &[u8], checksums: Checksums) -> Result<Self, Refused> {
        let (ethernet, packet) = Ethernet::parse(frame).ok_or(Refused::Damaged)?;
        match ethernet.kind {
            Ethernet::ARP => Arp::parse(packet).map(Self::Arp).ok_or(Refused::Kernel),
            Ethernet::IPV4 => Self::parse_v4(packet, checksums),
            Ethernet::IPV6 => Self::parse_v6(packet, checksums),
            _ => Err(Refused::Kernel),
        }
    }

    fn parse_v4(packet: &[u8], checksums: Checksums) -> Result<Self, Refused> {
        let (ip, rest) = Ipv4::parse(packet).map_err(refused)?;
        // A packet from several hosts, or from nowhere, has no sender that could be answered.
        if !Ipv4::is_intact(packet) || ip.src.is_multicast() || ip.src.is_broadcast() {
            return Err(Refused::Damaged);
        }
        let start = Ethernet::LEN + Ipv4::LEN + rest.options.len();
        let len = u16::try_from(rest.payload.len()).map_err(|_| Refused::Damaged)?;
        let pseudo = Sum::pseudo_v4(ip.src, ip.dst, ip.protocol, len);
        let carried = Carried {
            src: IpAddr::V4(ip.src),
            dst: IpAddr::V4(ip.dst),
            start,
            bytes: rest.payload,
            pseudo: checksums.then_check(pseudo),
        };
        match ip.protocol {
            TCP => carried.tcp(),
            UDP => carried.udp(),
            ICMP => IcmpError::parse_v4(rest.payload).map(Self::IcmpError).ok_or(Refused::Kernel),
            _ => Err(Refused::Kernel),
        }
    }

    fn parse_v6(packet: &[u8], checksums: Checksums) -> Result<Self, Refused> {
        let (ip, payload) = Ipv6::parse(packet).map_err(refused)?;
        if ip.src.is_multicast() {
            return Err(Refused::Damaged);
        }
        let len = u16::try_from(payload.len()).map_err(|_| Refused::Damaged)?;
        let pseudo = Sum::pseudo_v6(ip.src, ip.dst, ip.next, len);
        let carried = Carried {
            src: IpAddr::V6(ip.src),
            dst: IpAddr::V6(ip.dst),
            start: Ethernet::LEN + Ipv6::LEN,
            bytes: payload,
            pseudo: checksums.then_check(pseudo),
        };
        match ip.next {
            TCP => carried.tcp(),
            UDP => carried.udp(),
            ICMPV6 if !carried.is_intact(2) => Err(Refused::Damaged),
            ICMPV6 => IcmpError::parse_v6(payload)
                .map(Self::IcmpError)
                .or_else(|| Neighbour::parse(payload, ip.hop_limit).map(Self::Neighbour))
                .ok_or(Refused::Kernel),
            _ => Err(Refused::Kernel),
        }
    }
}

/// What an IP packet carries, and where.
struct Carried<'a> {
    src: IpAddr,
    dst: IpAddr,
    /// Where in the frame it begins.
    start: usize,
    bytes: &'a [u8],
    /// What a checksum begins with, and how it is verified, if it is.
    pseudo: Option<(Sum, Checksums)>,
}

impl Carried<'_> {
    /// The checksum, which the message has at this place, is right.
    fn is_intact(&self, at: usize) -> bool {
        let Some((pseudo, checksums)) = self.pseudo else { return true };
        let sum = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk::<2>());
        let begun = Some(!pseudo.finish()) == sum.map(|sum| u16::from_be_bytes(*sum));
        checksums == Checksums::Complete && begun || pseudo.with(self.bytes).finish() == 0
    }

    fn tuple(&self, src_port: u16, dst_port: u16) -> Tuple {
        let (local_port, remote_port) = (dst_port, src_port);
        Tuple { local: self.dst, local_port, remote: self.src, remote_port }
    }

    fn tcp(&self) -> Result<Frame, Refused> {
        let (header, payload) = Tcp::parse(self.bytes).ok_or(Refused::Damaged)?;
        if !self.is_intact(16) || self.dst.is_multicast() || header.flags == Flags::default() {
            return Err(Refused::Damaged);
        }
        let tuple = self.tuple(header.src_port, header.dst_port);
        Ok(Frame::Tcp { tuple, header, payload: self.range(payload) })
    }

    fn udp(&self) -> Result<Frame, Refused> {
        let (header, payload) = Udp::parse(self.bytes).map_err(|_| Refused::Damaged)?;
        // IPv4 may leave the checksum out, IPv6 may not: RFC 8200 §8.1.
        let none = header.sum == 0 && self.dst.is_ipv4();
        if !none && !self.is_intact(6) {
            return Err(Refused::Damaged);
        }
        let tuple = self.tuple(header.src_port, header.dst_port);
        Ok(Frame::Udp { tuple, payload: self.range(payload) })
    }

    /// Where in the frame `payload` is, the last part of these bytes.
    fn range(&self, payload: &[u8]) -> Range<usize> {
        let end = self.start + self.bytes.len();
        end - payload.len()..end
    }
}

const fn refused(error: ip::Error) -> Refused {
    match error {
        ip::Error::Fragment | ip::Error::NotUdp | ip::Error::Options => Refused::Kernel,
        ip::Error::Length | ip::Error::NotIp | ip::Error::Truncated => Refused::Damaged,
    }
}

/// Headers of most segments: time stamps are the only options.
const USUAL_BYTES: usize = Ethernet::LEN + Ipv4::LEN + Tcp::LEN + 12;
const IPV4_BYTES: u16 = 20;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

#[cfg(test)]
mod tests;
