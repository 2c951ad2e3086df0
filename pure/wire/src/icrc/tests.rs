//! The ICRC against an independent computation, and the captures.

use super::*;
use crate::ip::{Marks, ROCE_PORT, emit_udp_headers};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The sum as the specification describes it: join everything, mask, sum.
fn by_the_book(flow: &Flow, id: u16, packet: &[u8]) -> [u8; 4] {
    let len = u16::try_from(packet.len() + ICRC_LEN).unwrap();
    let marks = Marks { traffic_class: 3, ..Marks::USUAL };
    let mut headers = emit_udp_headers(flow, id, marks, len).as_slice().to_vec();
    let masked: &[usize] =
        if flow.is_v6() { &[1, 2, 3, 7, 46, 47] } else { &[1, 8, 10, 11, 26, 27] };
    for at in masked {
        headers[*at] = 0xff;
    }
    if flow.is_v6() {
        headers[0] |= 0x0f;
    }
    let mut packet = packet.to_vec();
    packet[4] = 0xff;
    crc32fast::hash(&[&[0xff; 8], headers.as_slice(), &packet].concat()).to_le_bytes()
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let v4 = any::<([u8; 4], [u8; 4], u16, u16)>().prop_map(|(a, b, c, d)| Flow::v4(a, b, c, d));
    let v6 = any::<([u8; 16], [u8; 16], u16, u16)>().prop_map(|(a, b, c, d)| Flow::v6(a, b, c, d));
    prop_oneof![v4, v6]
}

fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), Bth::LEN..200),
        1 => prop::collection::vec(any::<u8>(), 4000..4200),
    ]
}

proptest! {
    #[test]
    fn the_sum_is_that_of_the_book_however_the_packet_is_cut(
        flow in any_flow(),
        id: u16,
        packet in any_packet(),
        cuts: (prop::sample::Index, prop::sample::Index),
    ) {
        let headers = Bth::LEN + cuts.0.index(packet.len() - Bth::LEN + 1);
        let (headers, payload) = packet.split_at(headers);
        let (first, second) = payload.split_at(cuts.1.index(payload.len() + 1));
        let mut icrc = flow.icrc(u16::try_from(packet.len() + ICRC_LEN).unwrap(), id);
        icrc.headers(headers);
        icrc.update(first);
        icrc.update(second);
        prop_assert_eq!(icrc.finish(), by_the_book(&flow, id, &packet));
    }

    #[test]
    fn any_identification_is_found_from_any_guess(
        flow in any_flow(),
        id: u16,
        guess: u16,
        mut packet in any_packet(),
        marks: u8,
    ) {
        packet.extend(by_the_book(&flow, id, &packet));
        packet[4] = marks; // A router may do that.
        let expected = if flow.is_v6() { 0 } else { id };
        prop_assert_eq!(flow.verify(&packet, guess), Some(expected));
    }

    #[test]
    fn what_verifies_is_what_the_book_sums(flow in any_flow(), guess: u16, packet in any_packet()) {
        // Random sums pass once in 65536: then the identification must really fit.
        if let Some(id) = flow.verify(&packet, guess) {
            let (packet, sum) = packet.split_last_chunk::<ICRC_LEN>().unwrap();
            prop_assert_eq!(by_the_book(&flow, id, packet), *sum);
        }
    }
}

/// Goal: solving finds the right identification, not just one that is close.
/// Method: all of them, for one packet.
#[test]
fn all_identifications_are_found() {
    let flow = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, ROCE_PORT);
    let packet = [0x11; 16];
    for id in 0..=u16::MAX {
        let datagram = [packet.as_slice(), &by_the_book(&flow, id, &packet)].concat();
        assert_eq!(flow.verify(&datagram, 0x5a5a), Some(id));
    }
}

/// Goal: no single flipped bit looks like another identification, at any length we meet.
/// Method: bit n from the end of the packet changes the sum by x³²⁺ⁿ; none of these may be the
/// image of an identification. The first one that is lies 26 767 bytes after it, so packets that
/// carry a path MTU of 4096 are safe, and this test could fail.
#[test]
fn no_flipped_bit_passes_for_an_identification() {
    const X: u32 = 0x4000_0000;
    const X_TO_32: u32 = 0xedb8_8320;
    let first_alias = |len: u16| {
        let bits = 8 * (usize::from(len) - ICRC_LEN);
        let mut powers = (0..bits)
            .scan(X_TO_32, |power, _| Some(core::mem::replace(power, multiply(*power, X))));
        powers.position(|difference| id_behind(difference, len).is_some())
    };
    assert_eq!(first_alias(5000), None);
    assert_eq!(first_alias(26_000), None);
    assert!(first_alias(27_000).is_some());
}

#[test]
fn what_cannot_be_a_packet_does_not_verify() {
    let flows = [Flow::v4([0; 4], [0; 4], 0, 0), Flow::v6([0; 16], [0; 16], 0, 0)];
    for flow in flows {
        for len in (0..Bth::LEN + ICRC_LEN).chain([65_508, 65_536, 100_000]) {
            assert_eq!(flow.verify(&vec![0; len], 0), None, "{len} bytes");
        }
    }
}

#[test]
fn the_longest_datagram_verifies() {
    let flow = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, ROCE_PORT);
    let mut datagram = vec![0xa5; 65_507 - ICRC_LEN];
    datagram.extend(by_the_book(&flow, 0xbeef, &datagram));
    assert_eq!(flow.verify(&datagram, 0), Some(0xbeef));
}

#[test]
fn ipv6_has_nothing_to_solve_for() {
    let flow = Flow::v6([1; 16], [2; 16], 0xc000, ROCE_PORT);
    let packet = [0x22; 40];
    let datagram = [packet.as_slice(), &by_the_book(&flow, 0, &packet)].concat();
    assert_eq!(flow.verify(&datagram, 77), Some(0));
    for at in (0..datagram.len()).filter(|at| *at != 4) {
        let mut flipped = datagram.clone();
        flipped[at] ^= 0x10;
        assert_eq!(flow.verify(&flipped, 77), None, "byte {at}");
    }
}
