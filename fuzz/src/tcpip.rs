//! Targets of `adverb-tcpip`.

use adverb_tcpip::arp::{Arp, Operation};
use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::neighbour::{Kind, Neighbour};
use adverb_tcpip::tcp::{Flags, Options, Seq, Tcp, TimeStamps};
use adverb_wire::ip::{Ipv4, Ipv6, Udp};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A payload lies within its frame, and a TCP header that parses can be sent again.
pub(crate) fn frame(bytes: &[u8]) {
    let trusted = Frame::parse(bytes, Checksums::Trusted);
    match &trusted {
        Ok(Frame::Tcp { header, payload, .. }) => {
            assert!(bytes.get(payload.clone()).is_some());
            assert!(Tcp::parse(header.emit(0).as_slice()).is_some());
        }
        Ok(Frame::Udp { payload, .. }) => assert!(bytes.get(payload.clone()).is_some()),
        Ok(Frame::Arp(_) | Frame::IcmpError(_) | Frame::Neighbour(_)) | Err(_) => {}
    }
    // Verifying refuses more, and reads nothing otherwise.
    let verified = Frame::parse(bytes, Checksums::Verified);
    assert!(verified.is_err() || verified == trusted);
}

/// One frame of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let tcp = Tcp {
        src_port: 40_000,
        dst_port: 80,
        seq: Seq::new(u32::MAX),
        ack: Seq::new(1),
        flags: Flags::SYN | Flags::ACK,
        window: 65_535,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            time_stamps: Some(TimeStamps { value: 1, echo: 2 }),
            ..Options::default()
        },
    };
    let tcp = [tcp.emit(0).as_slice(), b"payload"].concat();
    let udp = [&Udp { src_port: 1, dst_port: 2, sum: 0 }.emit(12)[..], b"four"].concat();
    let neighbour =
        Neighbour { kind: Kind::Solicitation, target: DST6, mac: Some(Mac([2, 0, 0, 0, 0, 1])) };
    let target = (Mac([0; 6]), DST);
    let arp = Arp { operation: Operation::Request, sender: (Mac([2; 6]), SRC), target };
    let quoted = |header: &[u8], packet: &[u8]| [header, packet].concat();
    vec![
        v4(6, &tcp),
        v6(6, &tcp),
        v4(17, &udp),
        v6(17, &udp),
        v6(58, &neighbour.emit(SRC6, DST6)),
        ethernet(Ethernet::ARP, &arp.emit()),
        v4(1, &quoted(&[3, 4, 0, 0, 0, 0, 4, 176], v4(6, &tcp).get(14..).unwrap_or_default())),
        v6(58, &quoted(&[2, 0, 0, 0, 0, 0, 5, 0], v6(6, &tcp).get(14..).unwrap_or_default())),
    ]
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&Ethernet { dst: Mac([2; 6]), src: Mac([4; 6]), kind }.emit(), packet].concat()
}

fn v4(protocol: u8, carried: &[u8]) -> Vec<u8> {
    let (traffic_class, id, dont_fragment, hop_limit) = (0, 0, true, 64);
    let ip = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src: SRC, dst: DST };
    let len = u16::try_from(carried.len()).unwrap_or_default();
    ethernet(Ethernet::IPV4, &[&ip.emit(len), carried].concat())
}

fn v6(next: u8, carried: &[u8]) -> Vec<u8> {
    let (traffic_class, flow_label, hop_limit) = (0, 0, 255);
    let ip = Ipv6 { traffic_class, flow_label, next, hop_limit, src: SRC6, dst: DST6 };
    let len = u16::try_from(carried.len()).unwrap_or_default();
    ethernet(Ethernet::IPV6, &[&ip.emit(len), carried].concat())
}

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
