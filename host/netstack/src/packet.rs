//! Headers of packets that leave, with their checksums.

use adverb_tcpip::ethernet::Ethernet;
use adverb_tcpip::tcp::Tcp;
use adverb_wire::Room;
use adverb_wire::ip::{Ipv4, Ipv6, Sum, Udp};
use std::net::{IpAddr, SocketAddr};

/// What a packet has before its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// What its Ethernet header says that it is.
    pub(crate) kind: u16,
    bytes: Room<BYTES_MAX>,
}

impl Headers {
    /// Of a datagram; `None` if the addresses are of two families, or it is too long for a packet.
    pub(crate) fn of_datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Self> {
        let len = u16::try_from(Udp::LEN + payload.len()).ok()?;
        let (kind, ip, pseudo) = ip(from.ip(), to.ip(), UDP, len)?;
        let mut udp = Udp { src_port: from.port(), dst_port: to.port(), sum: 0 };
        // 0 says that there is no checksum: RFC 768.
        udp.sum = match pseudo.with(&udp.emit(len)).with(payload).finish() {
            0 => 0xffff,
            sum => sum,
        };
        let mut bytes = ip;
        bytes.push(udp.emit(len));
        Some(Self { kind, bytes })
    }

    /// Of a segment; `None` as for a datagram.
    pub(crate) fn of_segment<'a>(
        from: IpAddr,
        to: IpAddr,
        header: &Tcp,
        payload: impl Iterator<Item = &'a [u8]>,
        payload_bytes: usize,
    ) -> Option<Self> {
        let mut transport = header.emit(0);
        let len = transport.as_slice().len() + payload_bytes;
        let (kind, mut bytes, pseudo) = ip(from, to, TCP, u16::try_from(len).ok()?)?;
        Tcp::put_sum(&mut transport, pseudo, payload);
        bytes.append(transport.as_slice());
        Some(Self { kind, bytes })
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// The IP header, what it is called, and the begin of a checksum.
fn ip(from: IpAddr, to: IpAddr, protocol: u8, len: u16) -> Option<(u16, Room<BYTES_MAX>, Sum)> {
    let mut room = Room::new();
    match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (traffic_class, id, dont_fragment, hop_limit) = (0, 0, true, hop_limit(to));
            let header = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src, dst };
            room.push(header.emit(len));
            Some((Ethernet::IPV4, room, Sum::pseudo_v4(src, dst, protocol, len)))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (traffic_class, flow_label, hop_limit) = (0, 0, hop_limit(to));
            let header = Ipv6 { traffic_class, flow_label, next: protocol, hop_limit, src, dst };
            room.push(header.emit(len));
            Some((Ethernet::IPV6, room, Sum::pseudo_v6(src, dst, protocol, len)))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// Packets to groups stay on their link unless more is asked for: RFC 1112 §6.1.
const fn hop_limit(to: IpAddr) -> u8 {
    if to.is_multicast() { 1 } else { HOPS }
}

/// Bytes of the longest headers.
const BYTES_MAX: usize = Ipv6::LEN + Tcp::LEN_MAX;
/// Routers that a packet may pass.
const HOPS: u8 = 64;
const TCP: u8 = 6;
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_groups_pass_no_router() {
        for (from, to, at, hops) in [
            ("10.0.0.1", "10.0.0.2", 8, 64),
            ("10.0.0.1", "239.1.2.3", 8, 1),
            ("fd00::1", "fd00::2", 7, 64),
            ("fd00::1", "ff05::2", 7, 1),
        ] {
            let [from, to] = [from, to].map(|ip| SocketAddr::new(ip.parse().unwrap(), 7));
            let headers = Headers::of_datagram(from, to, b"").unwrap();
            assert_eq!(headers.as_slice()[at], hops, "{to}");
        }
    }
}
