//! Ethernet frames that carry RoCE packets: the headers below the BTH, written and read.

use adverb_wire::ip::{Envelope, Sum, emit_udp_headers};
use adverb_wire::{Flow, Marks};
use adverb_xdp::umem::Writer;
use std::net::Ipv6Addr;

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MacAddresses {
    pub(crate) src: [u8; 6],
    pub(crate) dst: [u8; 6],
}

/// What the frames of a burst have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) macs: MacAddresses,
    pub(crate) flow: &'a Flow,
    pub(crate) marks: Marks,
}

impl Frame<'_> {
    /// Writes a packet, from the BTH on, behind its headers.
    #[inline]
    pub(crate) fn write(&self, writer: &mut Writer<'_>, id: u16, packet: &[u8]) {
        let Self { macs: MacAddresses { src, dst }, flow, marks } = *self;
        let len = u16::try_from(packet.len()).unwrap_or(0); // Packets of a burst are shorter.
        let kind = if flow.is_ipv6() { IPV6 } else { IPV4 };
        writer.push(&dst);
        writer.push(&src);
        writer.push(&kind.to_be_bytes());
        let headers = emit_udp_headers(flow, id, marks, len);
        writer.push(headers.as_slice());
        writer.push(packet);
        if flow.is_ipv6() {
            self.check(writer, headers.as_slice());
        }
    }

    /// Writes the checksum of UDP, which IPv6 demands.
    fn check(&self, writer: &mut Writer<'_>, headers: &[u8]) {
        let Some((ip, udp)) = headers.split_first_chunk::<40>() else { return };
        let [_, _, _, _, _, _, next, _, addresses @ ..] = *ip;
        let (src, dst) = addresses.split_at(16);
        let address = |octets: &[u8]| octets.first_chunk::<16>().copied().map(Ipv6Addr::from);
        let (Some(src), Some(dst)) = (address(src), address(dst)) else { return };
        let [_, _, _, _, l0, l1, ..] = *udp else { return };
        let pseudo = Sum::pseudo_v6(src, dst, next, u16::from_be_bytes([l0, l1]));
        let sum = match writer.fold(ETHERNET + 40, pseudo, Sum::with).finish() {
            0 => 0xffff, // 0 says that there is none.
            sum => sum,
        };
        writer.patch(ETHERNET + 40 + 6, &sum.to_be_bytes());
    }
}

/// The datagram in a frame; `None` if it is something else, which the steering program has kept away.
#[inline]
pub(crate) fn parse(frame: &[u8]) -> Option<Envelope<'_>> {
    Envelope::parse(frame.get(ETHERNET..)?).ok()
}

const ETHERNET: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
