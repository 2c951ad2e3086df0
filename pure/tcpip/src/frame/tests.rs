//! Tests of frames: what is emitted parses, and what is unusual or damaged is told apart.

extern crate std;

use std::vec::Vec;

use super::*;
use crate::arp::Operation;
use crate::ethernet::Mac;
use crate::icmp::Report;
use crate::neighbour::Kind;
use crate::tcp::Seq;
use core::net::{Ipv4Addr, Ipv6Addr};

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PAYLOAD: &[u8] = b"some bytes";

fn header() -> Tcp {
    Tcp {
        src_port: 1000,
        dst_port: 2000,
        seq: Seq::new(u32::MAX),
        ack: Seq::new(7),
        flags: Flags::ACK | Flags::PSH,
        window: 5000,
        urgent: 0,
        options: crate::tcp::Options::default(),
    }
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    let header = Ethernet { dst: Mac([2, 0, 0, 0, 0, 2]), src: Mac([2, 0, 0, 0, 0, 1]), kind };
    [&header.emit(), packet].concat()
}

fn v4(protocol: u8, carried: &[u8]) -> Vec<u8> {
    let ip = Ipv4 {
        traffic_class: 0,
        id: 9,
        dont_fragment: true,
        hop_limit: 64,
        protocol,
        src: SRC,
        dst: DST,
    };
    let len = u16::try_from(carried.len()).unwrap();
    ethernet(Ethernet::IPV4, &[&ip.emit(len), carried].concat())
}

fn v6(next: u8, carried: &[u8]) -> Vec<u8> {
    let ip = Ipv6 { traffic_class: 0, flow_label: 0, next, hop_limit: 255, src: SRC6, dst: DST6 };
    let len = u16::try_from(carried.len()).unwrap();
    ethernet(Ethernet::IPV6, &[&ip.emit(len), carried].concat())
}

fn segment(pseudo: impl Fn(u16) -> Sum) -> Vec<u8> {
    let len = u16::try_from(Tcp::LEN + PAYLOAD.len()).unwrap();
    let header = header().emit_sum(pseudo(len), [&PAYLOAD[..3], &PAYLOAD[3..]].into_iter());
    [header.as_slice(), PAYLOAD].concat()
}

fn segment_v4() -> Vec<u8> {
    v4(TCP, &segment(|len| Sum::pseudo_v4(SRC, DST, TCP, len)))
}

fn segment_v6() -> Vec<u8> {
    v6(TCP, &segment(|len| Sum::pseudo_v6(SRC6, DST6, TCP, len)))
}

#[test]
fn a_segment_that_is_emitted_parses_and_its_payload_is_found() {
    for frame in [segment_v4(), segment_v6()] {
        let padded = [&frame[..], &[0; 9]].concat();
        let parsed = Frame::parse(&padded, Checksums::Verified).unwrap();
        let Frame::Tcp { tuple, header: found, payload } = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(found, header());
        assert_eq!((tuple.local_port, tuple.remote_port), (2000, 1000));
        assert_eq!(&padded[payload], PAYLOAD);
    }
}

#[test]
fn every_flipped_bit_behind_ethernet_is_noticed() {
    for (frame, covered) in [(segment_v4(), 14), (segment_v6(), 14 + 4)] {
        let good = Frame::parse(&frame, Checksums::Verified);
        for bit in covered * 8..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let parsed = Frame::parse(&flipped, Checksums::Verified);
            // No checksum covers the hop limit of IPv6.
            let hops = covered == 18 && bit / 8 == 14 + 7;
            assert!(parsed.is_err() || hops && parsed == good, "bit {bit}: {parsed:?}");
        }
    }
}

/// Frames of virtual interfaces carry the sum of the pseudo header alone, for hardware to complete.
#[test]
fn an_incomplete_checksum_passes_where_checksums_are_trusted() {
    let mut frame = segment_v4();
    frame[14 + 20 + 16] ^= 0x55;
    assert_eq!(Frame::parse(&frame, Checksums::Verified), Err(Refused::Damaged));
    assert!(matches!(Frame::parse(&frame, Checksums::Trusted), Ok(Frame::Tcp { .. })));
}

/// Goal: of incomplete checksums only the one passes that a sender begins with, and complete ones are verified.
#[test]
fn a_checksum_that_was_only_begun_passes_if_complete_ones_are_verified() {
    for (frame, at) in [(segment_v4(), 14 + 20 + 16), (segment_v6(), 14 + 40 + 16)] {
        let parse = |frame: &[u8]| Frame::parse(frame, Checksums::Complete);
        assert!(parse(&frame).is_ok());
        let mut damaged = frame.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(parse(&damaged), Err(Refused::Damaged));
        let len = u16::try_from(Tcp::LEN + PAYLOAD.len()).unwrap();
        let pseudo = match at {
            50 => Sum::pseudo_v4(SRC, DST, TCP, len),
            _ => Sum::pseudo_v6(SRC6, DST6, TCP, len),
        };
        damaged[at..at + 2].copy_from_slice(&(!pseudo.finish()).to_be_bytes());
        assert!(parse(&damaged).is_ok());
        assert_eq!(Frame::parse(&damaged, Checksums::Verified), Err(Refused::Damaged));
        damaged[at] ^= 1;
        assert_eq!(parse(&damaged), Err(Refused::Damaged));
    }
}

#[test]
fn datagrams_parse_with_and_without_a_checksum() {
    let len = u16::try_from(Udp::LEN + PAYLOAD.len()).unwrap();
    let without = Udp { src_port: 1, dst_port: 2, sum: 0 };
    let bytes = [&without.emit(len), PAYLOAD].concat();
    assert!(matches!(Frame::parse(&v4(UDP, &bytes), Checksums::Verified), Ok(Frame::Udp { .. })));
    assert_eq!(Frame::parse(&v6(UDP, &bytes), Checksums::Verified), Err(Refused::Damaged));
    let sum = Sum::pseudo_v6(SRC6, DST6, UDP, len).with(&bytes).finish();
    let with = [&Udp { sum, ..without }.emit(len), PAYLOAD].concat();
    let frame = v6(UDP, &with);
    let Ok(Frame::Udp { payload, .. }) = Frame::parse(&frame, Checksums::Verified) else {
        panic!("a datagram");
    };
    assert_eq!(&frame[payload], PAYLOAD);
}

#[test]
fn what_is_unusual_is_the_kernels() {
    let kernel = |frame: &[u8]| Frame::parse(frame, Checksums::Trusted) == Err(Refused::Kernel);
    assert!(kernel(&ethernet(0x8100, &segment_v4()[14..])), "a VLAN");
    assert!(kernel(&v4(2, &[0; 8])), "IGMP");
    assert!(kernel(&v6(0, &[0; 8])), "a hop-by-hop header");
    assert!(kernel(&v6(44, &[0; 8])), "a fragment of IPv6");
    for (at, bits) in [(6, 0x20), (7, 1)] {
        let mut fragment = segment_v4();
        fragment[14 + at] |= bits;
        assert!(kernel(&fragment), "a fragment");
    }
}

#[test]
fn options_of_ipv4_are_skipped() {
    let frame = segment_v4();
    let mut packet = frame[14..].to_vec();
    packet.splice(20..20, [1, 1, 1, 0]);
    packet[0] = 0x46;
    packet[3] += 4;
    packet[10..12].fill(0);
    let sum = Sum::default().with(&packet[..24]).finish().to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    let frame = ethernet(Ethernet::IPV4, &packet);
    let Ok(Frame::Tcp { payload, .. }) = Frame::parse(&frame, Checksums::Verified) else {
        panic!("a segment");
    };
    assert_eq!(&frame[payload], PAYLOAD);
}

#[test]
fn addresses_are_resolved_in_both_families() {
    let (mac, none) = (Mac([2, 0, 0, 0, 0, 9]), Mac([0; 6]));
    let arp = Arp { operation: Operation::Request, sender: (mac, SRC), target: (none, DST) };
    let frame = ethernet(Ethernet::ARP, &[&arp.emit()[..], &[0; 18]].concat());
    assert_eq!(Frame::parse(&frame, Checksums::Verified), Ok(Frame::Arp(arp)));
    for kind in [
        Kind::Solicitation,
        Kind::Advertisement { solicited: true },
        Kind::Advertisement { solicited: false },
    ] {
        let neighbour = Neighbour { kind, target: DST6, mac: Some(mac) };
        let frame = v6(ICMPV6, &neighbour.emit(SRC6, DST6));
        assert_eq!(Frame::parse(&frame, Checksums::Verified), Ok(Frame::Neighbour(neighbour)));
        let mut routed = frame.clone();
        routed[14 + 7] = 254;
        assert_eq!(Frame::parse(&routed, Checksums::Verified), Err(Refused::Kernel));
        let mut endless = frame;
        endless[14 + 40 + 25] = 0; // The option's length.
        assert_eq!(Frame::parse(&endless, Checksums::Trusted), Err(Refused::Kernel));
    }
}

#[test]
fn an_error_names_the_connection_and_what_it_had_in_flight() {
    let sent = segment_v4();
    let mut message = [&[3, 4, 0, 0, 0, 0, 4, 176][..], &sent[14..14 + 28]].concat();
    let sum = Sum::default().with(&message).finish().to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let parsed = Frame::parse(&v4(ICMP, &message), Checksums::Trusted);
    let Ok(Frame::IcmpError(error)) = parsed else {
        panic!("{parsed:?}");
    };
    assert_eq!(error.report, Report::TooBig { mtu: 1200 });
    assert_eq!((error.seq, error.protocol), (header().seq, TCP));
    assert_eq!((error.tuple.local, error.tuple.local_port), (IpAddr::V4(SRC), 1000));

    let sent = segment_v6();
    let message = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &sent[14..]].concat();
    let parsed = Frame::parse(&v6(ICMPV6, &message), Checksums::Trusted);
    let Ok(Frame::IcmpError(error)) = parsed else {
        panic!("{parsed:?}");
    };
    assert_eq!((error.report, error.seq), (Report::Refused, header().seq));
    assert_eq!((error.tuple.remote, error.tuple.remote_port), (IpAddr::V6(DST6), 2000));
}

/// Goal: the short parser of usual segments and datagrams reads what the general one reads, or leaves the frame to it.
/// Method: every byte of one has every value, with the sum of its IP header as it was and made right, and the frame has every
/// length.
#[test]
fn a_usual_frame_is_read_as_by_the_way_of_all_frames() {
    let stamps = crate::tcp::TimeStamps { value: 77, echo: 0x0102_0304 };
    let options = crate::tcp::Options { time_stamps: Some(stamps), ..Default::default() };
    let pieces = || [PAYLOAD].into_iter();
    let len = u16::try_from(Tcp::LEN + 12 + PAYLOAD.len()).unwrap();
    let head = Tcp { options, ..header() }.emit_sum(Sum::pseudo_v4(SRC, DST, TCP, len), pieces());
    read_as_any(&v4(TCP, &[head.as_slice(), PAYLOAD].concat()), Frame::parse_usual);
    let len = u16::try_from(Udp::LEN + PAYLOAD.len()).unwrap();
    let mut udp = Udp { src_port: 1000, dst_port: 2000, sum: 0 };
    udp.sum = Sum::pseudo_v4(SRC, DST, UDP, len).with(&udp.emit(len)).with(PAYLOAD).finish();
    read_as_any(&v4(UDP, &[&udp.emit(len), PAYLOAD].concat()), Frame::parse_usual_datagram);
}

/// Both parsers agree on a frame, also on a damaged one; usual frames are read by the short one.
fn read_as_any(usual: &[u8], parse: impl Fn(&[u8], Checksums) -> Option<Frame>) {
    let all = [Checksums::Complete, Checksums::Trusted, Checksums::Verified];
    let compare = |frame: &[u8]| {
        for checksums in all {
            assert_eq!(Frame::parse(frame, checksums), Frame::parse_any(frame, checksums));
        }
    };
    assert!(all.iter().all(|checksums| parse(usual, *checksums).is_some()));
    let mut read = 0;
    for at in 0..usual.len() {
        compare(&usual[..at]);
        for value in 0..=u8::MAX {
            let mut frame = usual.to_vec();
            frame[at] = value;
            compare(&frame);
            let (_, packet) = frame.split_at_mut(Ethernet::LEN);
            packet[10..12].copy_from_slice(&[0, 0]);
            let sum = Sum::default().with(&packet[..Ipv4::LEN]).finish();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            compare(&frame);
            read += usize::from(parse(&frame, Checksums::Trusted).is_some());
        }
    }
    compare(&[usual, &[0; 9]].concat());
    assert!(read > 5000, "{read} were usual");
}
