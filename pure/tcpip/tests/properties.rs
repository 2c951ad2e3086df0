//! Any bytes parse or are refused, and what is emitted parses to what it was.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::icmp::IcmpError;
use adverb_tcpip::neighbour::Neighbour;
use adverb_tcpip::tcp::{Flags, Options, SackBlocks, Seq, Tcp, TimeStamps};
use adverb_wire::ip::{Ipv4, Ipv6, Sum};
use proptest::collection::vec;
use proptest::prelude::*;

fn blocks() -> impl Strategy<Value = SackBlocks> {
    vec(any::<(u32, u32)>(), 0..=3).prop_map(|pairs| {
        let mut blocks = SackBlocks::default();
        for (from, to) in pairs {
            assert!(blocks.push(Seq::new(from), Seq::new(to)));
        }
        blocks
    })
}

fn options() -> impl Strategy<Value = Options> {
    let syn = (any::<Option<u16>>(), proptest::option::of(0_u8..15), any::<bool>());
    let syn = syn.prop_map(|(mss, window_scale, sack_permitted)| Options {
        mss,
        window_scale,
        sack_permitted,
        ..Options::default()
    });
    let other = blocks().prop_map(|sack| Options { sack, ..Options::default() });
    let stamps = proptest::option::of(any::<(u32, u32)>());
    (prop_oneof![syn, other], stamps).prop_map(|(options, stamps)| {
        let time_stamps = stamps.map(|(value, echo)| TimeStamps { value, echo });
        Options { time_stamps, ..options }
    })
}

fn header() -> impl Strategy<Value = Tcp> {
    (any::<(u16, u16, u32, u32, u8, u16, u16)>(), options()).prop_map(|(fields, options)| {
        let (src_port, dst_port, seq, ack, flags, window, urgent) = fields;
        let (seq, ack) = (Seq::new(seq), Seq::new(ack));
        let flags = Flags::from_bits(flags);
        Tcp { src_port, dst_port, seq, ack, flags, window, urgent, options }
    })
}

/// A frame whose first headers are right, so that what comes after them is looked at.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()];
    (any::<bool>(), protocol, vec(any::<u8>(), 0..120), any::<bool>()).prop_map(
        |(v6, protocol, mut carried, is_error)| {
            if is_error && carried.len() > 8 {
                carried[0] = if v6 { 1 } else { 3 };
                carried[8] = if v6 { 0x60 } else { 0x45 };
                carried[2..4].fill(0);
                let sum = Sum::default().with(&carried).finish().to_be_bytes();
                carried[2..4].copy_from_slice(&sum);
            }
            let len = u16::try_from(carried.len()).unwrap();
            let kind = if v6 { Ethernet::IPV6 } else { Ethernet::IPV4 };
            let mut frame = Ethernet { dst: Mac([2; 6]), src: Mac([4; 6]), kind }.emit().to_vec();
            let (traffic_class, hop_limit, id) = (0, 255, 0);
            if v6 {
                let (src, dst) = ([0x20; 16].into(), [0x21; 16].into());
                let next = protocol;
                let ip = Ipv6 { traffic_class, flow_label: 0, next, hop_limit, src, dst };
                frame.extend(ip.emit(len));
            } else {
                let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
                let dont_fragment = true;
                let ip = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src, dst };
                frame.extend(ip.emit(len));
            }
            frame.extend(carried);
            frame
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_parse_or_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        _ = Frame::parse(&bytes, Checksums::Verified);
        _ = Frame::parse(&bytes, Checksums::Trusted);
        _ = Options::parse(&bytes);
        _ = Tcp::parse(&bytes);
        _ = IcmpError::parse_v4(&bytes);
        _ = IcmpError::parse_v6(&bytes);
        _ = Neighbour::parse(&bytes, 255);
    }

    #[test]
    fn payloads_lie_within_their_frames(frame in plausible()) {
        match Frame::parse(&frame, Checksums::Trusted) {
            Ok(Frame::Tcp { payload, .. } | Frame::Udp { payload, .. }) => {
                prop_assert!(frame.get(payload).is_some());
            }
            Ok(Frame::Arp(_) | Frame::IcmpError(_) | Frame::Neighbour(_)) | Err(_) => {}
        }
    }

    #[test]
    fn headers_come_out_as_they_went_in(header in header(), payload in vec(any::<u8>(), 0..50)) {
        let mut bytes = header.emit(0x1234).as_slice().to_vec();
        bytes.extend(&payload);
        prop_assert_eq!(Tcp::parse(&bytes), Some((header, payload.as_slice())));
        for len in 0..bytes.len() - payload.len() {
            prop_assert_eq!(Tcp::parse(&bytes[..len]), None);
        }
    }
}
