//! The IPv4 header. RFC 791 §3.1.

use core::net::Ipv4Addr;

use super::error::Error;
use super::sum::Sum;

/// An IPv4 header of a packet that is not a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4 {
    /// Differentiated services code point, and what routers say of congestion.
    pub traffic_class: u8,
    /// Identification.
    pub id: u16,
    /// Routers must not cut the packet.
    pub dont_fragment: bool,
    /// Time to live: how many routers it may still pass.
    pub hop_limit: u8,
    /// What it carries: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Where it comes from.
    pub src: Ipv4Addr,
    /// Where it goes.
    pub dst: Ipv4Addr,
}

/// What an IPv4 packet has after the fixed part of its header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4Rest<'a> {
    /// Options, padded to words.
    pub options: &'a [u8],
    /// What the packet carries.
    pub payload: &'a [u8],
}

impl Ipv4 {
    /// Length of the header without options, in bytes.
    pub const LEN: usize = 20;

    /// Splits the header off `packet`. Bytes after the packet's end, which Ethernet adds to short frames, are
    /// left out. The checksum is not looked at: [`Ipv4::is_intact`].
    ///
    /// # Errors
    ///
    /// [`Error::NotIp`], [`Error::Truncated`] or [`Error::Fragment`] say what it is instead.
    pub fn parse(packet: &[u8]) -> Result<(Self, Ipv4Rest<'_>), Error> {
        let (head, _) = packet.split_first_chunk::<{ Self::LEN }>().ok_or(Error::Truncated)?;
        let [version, traffic_class, l0, l1, i0, i1, f0, f1, hop_limit, protocol, ..] = *head;
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *head;
        let head_len = usize::from(version & 0xf) * 4;
        if version >> 4 != 4 || head_len < Self::LEN {
            return Err(Error::NotIp);
        }
        let flags = u16::from_be_bytes([f0, f1]);
        if flags & !DONT_FRAGMENT != 0 {
            return Err(Error::Fragment);
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let payload = packet.get(head_len..len).ok_or(Error::Truncated)?;
        let options = packet.get(Self::LEN..head_len).ok_or(Error::Truncated)?;
        let header = Self {
            traffic_class,
            id: u16::from_be_bytes([i0, i1]),
            dont_fragment: flags & DONT_FRAGMENT != 0,
            hop_limit,
            protocol,
            src: Ipv4Addr::new(s0, s1, s2, s3),
            dst: Ipv4Addr::new(d0, d1, d2, d3),
        };
        Ok((header, Ipv4Rest { options, payload }))
    }

    /// The header at the front of `packet` matches its checksum.
    pub fn is_intact(packet: &[u8]) -> bool {
        let len = packet.first().map_or(0, |version| usize::from(version & 0xf) * 4);
        packet.get(..len).is_some_and(|header| Sum::default().with(header).finish() == 0)
    }

    /// The header of a packet that carries `payload_len` bytes, which wraps beyond 65 515.
    pub fn emit(&self, payload_len: u16) -> [u8; Self::LEN] {
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (self.src.octets(), self.dst.octets());
        let words = [
            [VERSION, self.traffic_class],
            payload_len.wrapping_add(LEN).to_be_bytes(),
            self.id.to_be_bytes(),
            self.flags().to_be_bytes(),
            [self.hop_limit, self.protocol],
            [s0, s1],
            [s2, s3],
            [d0, d1],
            [d2, d3],
        ];
        self.emit_with(payload_len, Sum::of_words(&words).finish())
    }

    const fn flags(&self) -> u16 {
        if self.dont_fragment { DONT_FRAGMENT } else { 0 }
    }

    /// The header with this checksum.
    pub(super) fn emit_with(&self, payload_len: u16, sum: u16) -> [u8; Self::LEN] {
        let len = payload_len.wrapping_add(LEN);
        let ([l0, l1], [i0, i1]) = (len.to_be_bytes(), self.id.to_be_bytes());
        let ([f0, f1], [c0, c1]) = (self.flags().to_be_bytes(), sum.to_be_bytes());
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (self.src.octets(), self.dst.octets());
        let Self { traffic_class: tos, hop_limit: ttl, protocol, .. } = *self;
        [
            VERSION, tos, l0, l1, i0, i1, f0, f1, ttl, protocol, c0, c1, s0, s1, s2, s3, d0, d1,
            d2, d3,
        ]
    }
}

/// Version 4, five words.
const VERSION: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
/// [`Ipv4::LEN`] as the header counts.
const LEN: u16 = 20;
