//! Headers of packets that leave, with their checksums.

use adverb_tcpip::ethernet::Ethernet;
use adverb_tcpip::tcp::Tcp;
use adverb_tcpip::tuple::Tuple;
use adverb_wire::Room;
use adverb_wire::ip::{Ipv4, Ipv6, Sum};
use std::net::IpAddr;

/// What a packet has before its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    /// What its Ethernet header says that it is.
    pub(crate) kind: u16,
    bytes: Room<BYTES_MAX>,
}

impl Headers {
    /// Of a segment; `None` if the addresses are of two families, or it is too long for a packet.
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

/// The headers of a connection's segments as nearly all of them are: over IPv4, with time stamps and no other options of TCP.
/// Sequence numbers, lengths and checksums are filled in.
#[derive(Debug)]
struct Template {
    tuple: Tuple,
    /// The header of IPv4, with zeros for its length and checksum, and the ports.
    head: [u8; Ipv4::LEN + 4],
    /// Sums of what is there: of the header of IPv4, and of the pseudo header and the ports.
    ip: Sum,
    tcp: Sum,
}

impl Template {
    /// `None` over IPv6.
    fn new(tuple: &Tuple) -> Option<Self> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (tuple.local, tuple.remote) else { return None };
        let (_, mut room, _) = ip(tuple.local, tuple.remote, TCP, 0)?;
        room.patch(LEN_AT, [0; 2]);
        room.patch(SUM_AT, [0; 2]);
        let ip = Sum::default().with(room.as_slice());
        let ([s0, s1], [d0, d1]) =
            (tuple.local_port.to_be_bytes(), tuple.remote_port.to_be_bytes());
        let ports = [s0, s1, d0, d1];
        room.push(ports);
        let tcp = Sum::pseudo_v4(src, dst, TCP, 0).with(&ports);
        let head = room.as_slice().first_chunk().copied()?;
        Some(Self { tuple: *tuple, head, ip, tcp })
    }

    /// The headers of a segment; `None` if it has other options, or is too long for a packet.
    #[inline]
    fn fill<'a>(
        &self,
        header: &Tcp,
        payload: impl Iterator<Item = &'a [u8]>,
        payload_bytes: usize,
    ) -> Option<Headers> {
        let stamps = header.options.stamps_alone()?;
        let len = u16::try_from(Tcp::LEN + stamps.len() + payload_bytes).ok()?;
        let [l0, l1] = len.to_be_bytes();
        let packet_len = len.checked_add(IPV4_BYTES)?.to_be_bytes();
        let [q0, q1, q2, q3] = header.seq.bits().to_be_bytes();
        let [a0, a1, a2, a3] = header.ack.bits().to_be_bytes();
        let ([w0, w1], [u0, u1]) = (header.window.to_be_bytes(), header.urgent.to_be_bytes());
        let flags = header.flags.bits();
        let fixed = [q0, q1, q2, q3, a0, a1, a2, a3, WORDS << 4, flags, w0, w1, l0, l1, u0, u1];
        // The place of the checksum has the length of the pseudo header until the sum is known.
        let sum = payload.fold(self.tcp.with(&fixed).with(&stamps), Sum::with).finish();
        let mut bytes = Room::new();
        bytes.push(self.head);
        bytes.push(fixed);
        bytes.push(stamps);
        bytes.patch(LEN_AT, packet_len);
        bytes.patch(SUM_AT, self.ip.with(&packet_len).finish().to_be_bytes());
        bytes.patch(Ipv4::LEN + TCP_SUM_AT, sum.to_be_bytes());
        Some(Headers { kind: Ethernet::IPV4, bytes })
    }
}

/// Makes the headers of segments. A connection that sends several in a row gets a template.
#[derive(Debug, Default)]
pub(crate) struct Headings {
    template: Option<Template>,
    /// The connection of the last segment without one.
    last: Option<Tuple>,
}

impl Headings {
    /// The headers of a segment; `None` if it is too long for a packet.
    #[inline]
    pub(crate) fn of_segment<'a>(
        &mut self,
        tuple: &Tuple,
        header: &Tcp,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
        payload_bytes: usize,
    ) -> Option<Headers> {
        let its = self.template.as_ref().filter(|template| template.tuple == *tuple);
        match its.and_then(|template| template.fill(header, payload.clone(), payload_bytes)) {
            Some(headers) => Some(headers),
            None => {
                if self.last.replace(*tuple) == Some(*tuple) {
                    self.template = Template::new(tuple);
                }
                let Tuple { local, remote, .. } = *tuple;
                Headers::of_segment(local, remote, header, payload, payload_bytes)
            }
        }
    }
}

/// The IP header, what it is called, and the begin of a checksum.
fn ip(from: IpAddr, to: IpAddr, protocol: u8, len: u16) -> Option<(u16, Room<BYTES_MAX>, Sum)> {
    let mut room = Room::new();
    match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (traffic_class, id, dont_fragment, hop_limit) = (0, 0, true, HOPS);
            let header = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src, dst };
            room.push(header.emit(len));
            Some((Ethernet::IPV4, room, Sum::pseudo_v4(src, dst, protocol, len)))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (traffic_class, flow_label, hop_limit) = (0, 0, HOPS);
            let header = Ipv6 { traffic_class, flow_label, next: protocol, hop_limit, src, dst };
            room.push(header.emit(len));
            Some((Ethernet::IPV6, room, Sum::pseudo_v6(src, dst, protocol, len)))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// Bytes of the longest headers.
const BYTES_MAX: usize = Ipv6::LEN + Tcp::LEN_MAX;
/// Where in the header of IPv4 its length and its checksum are, and in that of TCP the checksum.
const LEN_AT: usize = 2;
const SUM_AT: usize = 10;
const TCP_SUM_AT: usize = 16;
const IPV4_BYTES: u16 = 20;
/// Words of four bytes of a TCP header with time stamps.
const WORDS: u8 = 8;
/// Routers that a packet may pass.
const HOPS: u8 = 64;
const TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_tcpip::tcp::{Flags, Options, Seq, TimeStamps};

    /// Goal: a segment has the same headers whichever way they are made.
    #[test]
    fn filled_in_headers_are_those_of_a_segment_alone() {
        let [local, remote] = ["10.0.0.1", "10.255.0.2"].map(|ip| ip.parse().unwrap());
        let tuple = Tuple { local, local_port: 0xfffe, remote, remote_port: 7 };
        let template = Template::new(&tuple).unwrap();
        let time_stamps = Some(TimeStamps { value: 0xffff_fffd, echo: 0x0102_0304 });
        let options = Options { time_stamps, ..Options::default() };
        for (seq, window, flags) in
            [(0, 0, Flags::ACK), (u32::MAX, u16::MAX, Flags::ACK | Flags::PSH), (7, 1, Flags::FIN)]
        {
            let header = Tcp {
                src_port: tuple.local_port,
                dst_port: tuple.remote_port,
                seq: Seq::new(seq),
                ack: Seq::new(!seq),
                flags,
                window,
                urgent: 0,
                options,
            };
            for len in [0, 1, 2, 63, 64, 1448, 65_483] {
                let payload: Vec<u8> = (0..len).map(|at: u32| at.to_le_bytes()[0] ^ 0xa5).collect();
                for cut in [0, 1, payload.len() / 2, payload.len()] {
                    let Some((one, next)) = payload.split_at_checked(cut) else { continue };
                    let pieces = [one, next].into_iter();
                    let filled = template.fill(&header, pieces.clone(), payload.len()).unwrap();
                    let alone =
                        Headers::of_segment(local, remote, &header, pieces, payload.len()).unwrap();
                    assert_eq!((filled.kind, filled.as_slice()), (alone.kind, alone.as_slice()));
                }
            }
            assert!(template.fill(&header, std::iter::empty(), 65_484).is_none());
            let other = Tcp { options: Options { mss: Some(1), ..options }, ..header };
            assert!(template.fill(&other, std::iter::empty(), 0).is_none());
        }
        let v6: IpAddr = "fd00::1".parse().unwrap();
        assert!(Template::new(&Tuple { local: v6, remote: v6, ..tuple }).is_none());
        // Of two connections in turn, neither has a template; of one, from the third segment on.
        let mut headings = Headings::default();
        let header = Tcp {
            src_port: tuple.local_port,
            dst_port: tuple.remote_port,
            seq: Seq::new(1),
            ack: Seq::new(2),
            flags: Flags::ACK,
            window: 3,
            urgent: 0,
            options,
        };
        let other = Tuple { remote_port: 8, ..tuple };
        for (tuple, has_template) in
            [(tuple, false), (other, false), (tuple, false), (tuple, true), (other, true)]
        {
            let header = Tcp { dst_port: tuple.remote_port, ..header };
            let made = headings.of_segment(&tuple, &header, std::iter::once(&b"x"[..]), 1).unwrap();
            let alone = std::iter::once(&b"x"[..]);
            let alone = Headers::of_segment(local, remote, &header, alone, 1).unwrap();
            assert_eq!(made.as_slice(), alone.as_slice());
            assert_eq!(headings.template.is_some(), has_template);
        }
    }

    /// Goal: packets say nothing of how many others there were, to whichever host: their identification is the same, which it may
    /// be as none of them is cut. RFC 6864 §4.1.
    #[test]
    fn no_packet_tells_of_others() {
        let [local, near, far]: [IpAddr; 3] =
            ["10.0.0.1", "10.0.0.2", "192.0.2.1"].map(|ip| ip.parse().unwrap());
        let mut headings = Headings::default();
        for remote in [near, near, near, far, near, far, far, far] {
            for len in [0, 1, 1448] {
                let payload = vec![7; len];
                let tuple = Tuple { local, local_port: 4791, remote, remote_port: 7 };
                let stamps = TimeStamps { value: 9, echo: 10 };
                let header = Tcp {
                    src_port: 4791,
                    dst_port: 7,
                    seq: Seq::new(1),
                    ack: Seq::new(2),
                    flags: Flags::ACK,
                    window: 3,
                    urgent: 0,
                    options: Options { time_stamps: Some(stamps), ..Options::default() },
                };
                let whole = std::iter::once(&payload[..]);
                let segment = headings.of_segment(&tuple, &header, whole, len).unwrap();
                let (ip, _) = Ipv4::parse(&[segment.as_slice(), &payload].concat()).unwrap();
                assert_eq!((ip.id, ip.dont_fragment), (0, true), "{remote} {len}");
            }
        }
    }
}
