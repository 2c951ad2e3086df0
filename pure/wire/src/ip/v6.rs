//! The IPv6 header. RFC 8200 §3.

use core::net::Ipv6Addr;

use super::error::Error;

/// An IPv6 header. What follows it may be an extension header: [`Ipv6::next`] says so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv6 {
    /// Differentiated services code point, and what routers say of congestion.
    pub traffic_class: u8,
    /// Flow label, of which 20 bits count.
    pub flow_label: u32,
    /// What follows: 6 is TCP, 17 UDP, 58 ICMPv6.
    pub next: u8,
    /// How many routers it may still pass.
    pub hop_limit: u8,
    /// Where it comes from.
    pub src: Ipv6Addr,
    /// Where it goes.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Length of the header, in bytes.
    pub const LEN: usize = 40;

    /// Splits the header off `packet`, and returns it with what follows, without bytes after the packet's end.
    ///
    /// # Errors
    ///
    /// [`Error::NotIp`] or [`Error::Truncated`].
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (head, rest) = packet.split_first_chunk::<8>().ok_or(Error::Truncated)?;
        let (src, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
        let (dst, rest) = rest.split_first_chunk::<16>().ok_or(Error::Truncated)?;
        let [c0, c1, c2, c3, l0, l1, next, hop_limit] = *head;
        if c0 >> 4 != 6 {
            return Err(Error::NotIp);
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let payload = rest.get(..len).ok_or(Error::Truncated)?;
        let (traffic_class, flow_label) = parse_class([c0, c1, c2, c3]);
        let (src, dst) = (Ipv6Addr::from(*src), Ipv6Addr::from(*dst));
        Ok((Self { traffic_class, flow_label, next, hop_limit, src, dst }, payload))
    }

    /// The header of a packet that carries `payload_len` bytes.
    pub fn emit(&self, payload_len: u16) -> [u8; Self::LEN] {
        let class = u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL_MAX;
        let [c0, c1, c2, c3] = (VERSION | class).to_be_bytes();
        let [l0, l1] = payload_len.to_be_bytes();
        let mut bytes = [0; Self::LEN];
        let head = [c0, c1, c2, c3, l0, l1, self.next, self.hop_limit];
        let all = head.into_iter().chain(self.src.octets()).chain(self.dst.octets());
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = from;
        }
        bytes
    }
}

/// Traffic class and flow label of an IPv6 header's first four bytes.
pub(crate) fn parse_class(bytes: [u8; 4]) -> (u8, u32) {
    let [first, second, ..] = bytes;
    ((first << 4) | (second >> 4), u32::from_be_bytes(bytes) & FLOW_LABEL_MAX)
}

/// The largest flow label.
pub(super) const FLOW_LABEL_MAX: u32 = 0xf_ffff;
const VERSION: u32 = 6 << 28;
