//! The captures in `testdata/golden`, made by another implementation: every packet must parse,
//! come out again byte for byte, and carry the invariant CRC that we compute.

mod captures;

use adverb_wire::cm::{self, Addressing, Message, PortSpace, Reason, ServiceId, SidrStatus};
use adverb_wire::ip::{Datagram, emit_udp_headers};
use adverb_wire::{Extension, Packet, Qkey, Qpn, ROCE_PORT};
use captures::{Capture, captures};

/// Calls `check` for every RoCE datagram of every capture, and counts them.
fn each_datagram(mut check: impl FnMut(&str, Datagram<'_>)) -> usize {
    let mut count = 0;
    for Capture { name, packets } in captures() {
        for (number, packet) in packets.iter().enumerate() {
            let datagram = Datagram::parse(packet).expect("the captures hold UDP datagrams");
            check(&format!("{name} packet {number}"), datagram);
            count += 1;
        }
    }
    count
}

#[test]
fn every_packet_comes_out_as_it_came_in() {
    let count = each_datagram(|name, datagram| {
        let packet = Packet::parse(datagram.payload).expect(name);
        let mut emitted = Vec::new();
        packet.emit_into(&datagram.flow, datagram.id, &mut emitted);
        assert_eq!(emitted, datagram.payload, "{name}");
    });
    assert_eq!(count, 188);
}

#[test]
fn every_ip_and_udp_header_comes_out_as_it_came_in() {
    for Capture { name, packets } in captures() {
        for packet in packets {
            let datagram = Datagram::parse(&packet).expect("a UDP datagram");
            let len = u16::try_from(datagram.payload.len()).expect("a short datagram");
            let Datagram { flow, id, marks, .. } = datagram;
            let headers = emit_udp_headers(&flow, id, marks, len);
            let headers = headers.as_slice();
            let mut expected = packet[..headers.len()].to_vec();
            if flow.is_v6() {
                // We have no flow label.
                [expected[1], expected[2], expected[3]] = [expected[1] & 0xf0, 0, 0];
            }
            assert_eq!(headers, expected, "{name}");
        }
    }
}

#[test]
fn every_check_sum_verifies_and_the_identification_is_found() {
    each_datagram(|name, Datagram { flow, id, payload, .. }| {
        let wrong = [0, id ^ 1, id ^ 0x8000, id.wrapping_add(1), !id];
        for guess in [id].into_iter().chain(wrong) {
            assert_eq!(flow.verify(payload, guess), Some(id), "{name}, guess {guess:#x}");
        }
    });
}

/// Goal: no single flipped bit passes, but in the byte that the sum masks.
/// Method: the identification is unknown, so that the check has half its strength. A flip may
/// pass as another identification only if the flip is in the identification itself, which is not
/// part of a datagram: so none may.
#[test]
fn every_packet_with_one_bit_flipped_fails() {
    const MARKS: usize = 4;
    each_datagram(|name, Datagram { flow, id, payload, .. }| {
        let mut bytes = payload.to_vec();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let expected = (at == MARKS).then_some(id);
                assert_eq!(flow.verify(&bytes, id), expected, "{name}, byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
    });
}

/// Goal: the headers below the datagram are checked as well.
/// Method: flip every bit of the IP and UDP headers that the parser lets through.
#[test]
fn a_flipped_address_port_or_identification_is_noticed() {
    for Capture { name, packets } in captures() {
        for mut packet in packets {
            let original = Datagram::parse(&packet).expect("a UDP datagram");
            let (flow, id, v6) = (original.flow, original.id, original.flow.is_v6());
            let headers = packet.len() - original.payload.len();
            for at in 0..headers {
                for bit in 0..8 {
                    packet[at] ^= 1 << bit;
                    if let Ok(flipped) = Datagram::parse(&packet) {
                        let found = flipped.flow.verify(flipped.payload, id);
                        // What the flow and the datagram do not show cannot matter: the class,
                        // the label, the hops, the check sums, and the identification.
                        let expected = (flipped.flow == flow).then_some(id);
                        assert_eq!(found, expected, "{name}, byte {at} bit {bit}");
                        let seen = !v6 && (4..6).contains(&at);
                        assert_eq!(flipped.id != id, seen, "{name}, byte {at} bit {bit}");
                    }
                    packet[at] ^= 1 << bit;
                }
            }
        }
    }
}

#[test]
fn management_datagrams_are_unreliable_datagrams_with_256_bytes() {
    let mut count = 0;
    each_datagram(|name, datagram| {
        let packet = Packet::parse(datagram.payload).expect(name);
        if packet.headers.bth.dest_qp == Qpn::GSI {
            let deth = packet.headers.deth.expect(name);
            assert_eq!((deth.qkey, deth.src_qp), (Qkey(0x8001_0000), Qpn::GSI), "{name}");
            assert_eq!(packet.payload.len(), 256, "{name}");
            assert_eq!(packet.headers.extension, Extension::None, "{name}");
            count += 1;
        }
    });
    assert_eq!(count, 9);
}

/// The messages of connection management in the captures, in order.
fn messages() -> Vec<cm::Datagram> {
    let mut messages = Vec::new();
    each_datagram(|name, datagram| {
        let packet = Packet::parse(datagram.payload).expect(name);
        if packet.headers.bth.dest_qp == Qpn::GSI {
            let message = cm::Datagram::parse(packet.payload).expect(name);
            assert_eq!(message.emit(), packet.payload, "{name}");
            messages.push(message);
        }
    });
    messages
}

#[test]
fn every_management_datagram_comes_out_as_it_came_in() {
    let attributes: Vec<_> = messages().iter().map(|m| m.message.attribute()).collect();
    assert_eq!(attributes, [0x10, 0x12, 0x10, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
}

#[test]
fn management_datagrams_say_what_their_programs_did() {
    let messages: Vec<_> = messages().into_iter().map(|m| m.message).collect();
    let [Message::Req(refused), Message::Rej(rej), Message::Req(req), Message::Rep(rep), ..] =
        messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((rej.reason, rej.remote_id), (Reason::INVALID_SERVICE_ID, refused.local_id));
    assert_eq!(rep.remote_id, req.local_id);
    for req in [refused, req] {
        assert_eq!(req.service_id, ServiceId::of_port(PortSpace::Tcp, 7174)); // rping's port.
        let (addressing, rest) = Addressing::parse(&req.private).expect("IP addressing");
        assert_eq!(addressing.source.to_string(), "10.77.0.11");
        assert_eq!(addressing.destination.to_string(), "10.77.0.12");
        assert_eq!((addressing.emit().as_slice(), rest), (&req.private[..36], &[0; 56][..]));
    }
    let [.., Message::SidrReq(ask), Message::SidrRep(answer)] = messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(ask.service_id, ServiceId::of_port(PortSpace::Udp, 7174)); // udaddy's port.
    assert!(Addressing::parse(&ask.private).is_some());
    assert_eq!((answer.request_id, answer.status), (ask.request_id, SidrStatus::VALID));
    assert_eq!((answer.qpn, answer.qkey), (Qpn::new(0x2c), Qkey(0x0123_4567)));
}

#[test]
fn answers_travel_the_reversed_flow() {
    let mut flows = Vec::new();
    each_datagram(|name, Datagram { flow, .. }| {
        if name.starts_with("rc_read_multi") {
            flows.push(flow);
        }
    });
    assert_eq!(flows[1], flows[0].reversed());
    assert_ne!(flows[1], flows[0]);
    assert_eq!(flows[1].reversed(), flows[0]);
    assert_ne!(ROCE_PORT, 0);
}
