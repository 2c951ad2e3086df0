//! Targets of `adverb-wire`.

use adverb_wire::cm;
use adverb_wire::ip::{self, Marks, emit_udp_headers};
use adverb_wire::{Flow, Headers, ICRC_LEN, Operation, Packet, ROCE_PORT, pcap};

/// A datagram that parses is one that we could have sent, up to what parsing forgives.
pub(crate) fn parse(datagram: &[u8]) {
    let Ok(packet) = Packet::parse(datagram) else {
        return;
    };
    assert!(packet.headers.is_legal(), "{packet:?}");
    let flow = flow_v4();
    let mut again = Vec::new();
    packet.emit_into(&flow, 7, &mut again);
    assert_eq!(Packet::parse(&again), Ok(packet));
    assert_eq!(flow.verify(&again, 0), Some(7));
    assert_eq!(
        without_reserved(&again, &packet.headers),
        without_reserved(datagram, &packet.headers)
    );
}

/// Clears the bits that parsing ignores: reserved ones, padding and the invariant CRC.
fn without_reserved(datagram: &[u8], headers: &Headers) -> Vec<u8> {
    let mut bytes = datagram.to_vec();
    let mut clear =
        |at: usize, mask: u8| bytes.iter_mut().skip(at).take(1).for_each(|b| *b &= !mask);
    clear(4, 0x3f);
    clear(8, 0x7f);
    if headers.deth.is_some() {
        clear(16, 0xff);
    }
    if headers.xrceth.is_some() {
        clear(12, 0xff);
    }
    if headers.bth.opcode.operation() == Operation::Flush {
        let at = if headers.xrceth.is_some() { 16 } else { 12 };
        (at..at + 3).for_each(|at| clear(at, 0xff));
        clear(at + 3, 0b1100_0000);
    }
    if headers.bth.opcode.operation() == Operation::Cnp {
        (12..28).for_each(|at| clear(at, 0xff));
    }
    let end = datagram.len() - ICRC_LEN - headers.bth.pad.len();
    (end..datagram.len()).for_each(|at| clear(at, 0xff));
    bytes
}

/// A datagram verifies if and only if the specification's own way finds an identification.
pub(crate) fn icrc(datagram: &[u8]) {
    let guess = datagram.last_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
    for flow in [flow_v4(), flow_v6()] {
        let id = flow.verify(datagram, guess);
        let Some((packet, sum)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            assert_eq!(id, None);
            continue;
        };
        if packet.len() < 12 || datagram.len() > 65_507 {
            assert_eq!(id, None);
            continue;
        }
        let mut book = Book::of(&flow, packet);
        match id {
            Some(id) => assert_eq!(book.sum(id), *sum, "{id:#06x} does not fit"),
            // All identifications take milliseconds, so only now and then.
            None if packet.len() < 64 && guess.is_multiple_of(256) => {
                // IPv6 has none: one stands for all.
                let last = if flow.is_v6() { 0 } else { u16::MAX };
                let found = (0..=last).find(|id| book.sum(*id) == *sum);
                assert_eq!(found, None, "an identification fits");
            }
            None => {}
        }
        let good = [packet, &book.sum(guess)].concat();
        let expected = if flow.is_v6() { 0 } else { guess };
        assert_eq!(flow.verify(&good, !guess), Some(expected));
    }
}

/// What the specification sums: everything joined, and masked.
struct Book {
    bytes: Vec<u8>,
    is_v6: bool,
}

impl Book {
    /// Where an IPv4 header, which eight bytes of ones precede, has its identification.
    const ID: usize = 8 + 4;

    fn of(flow: &Flow, packet: &[u8]) -> Self {
        let len = u16::try_from(packet.len() + ICRC_LEN).expect("a datagram that fits");
        let marks =
            Marks { traffic_class: 0xff, hop_limit: 0xff, flow_label: Marks::FLOW_LABEL_MAX };
        let mut bytes = [0xff; 8].to_vec();
        bytes.extend_from_slice(emit_udp_headers(flow, 0, marks, len).as_slice());
        bytes.extend_from_slice(packet);
        let is_v6 = flow.is_v6();
        let masked: &[usize] =
            if is_v6 { &[8, 9, 10, 11, 54, 55, 60] } else { &[18, 19, 34, 35, 40] };
        for at in masked {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte |= if *at == 8 { 0x0f } else { 0xff };
            }
        }
        Self { bytes, is_v6 }
    }

    /// The sum, with this identification.
    fn sum(&mut self, id: u16) -> [u8; ICRC_LEN] {
        if !self.is_v6 {
            let place = self.bytes.iter_mut().skip(Self::ID);
            place.zip(id.to_be_bytes()).for_each(|(byte, new)| *byte = new);
        }
        crc32fast::hash(&self.bytes).to_le_bytes()
    }
}

/// A management datagram that parses is one that we could have sent, up to reserved bits.
pub(crate) fn management(datagram: &[u8]) {
    let Ok(message) = cm::Datagram::parse(datagram) else {
        return;
    };
    assert_eq!(cm::Datagram::parse(&message.emit()), Ok(message));
    if let cm::Message::Req(req) = message.message
        && let Some((addressing, _)) = cm::Addressing::parse(&req.private)
    {
        let again = addressing.emit();
        assert_eq!(cm::Addressing::parse(&again), Some((addressing, &[][..])));
    }
}

/// A file is read to its end, whatever it holds, and so are the packets in it.
pub(crate) fn capture(file: &[u8]) {
    let Ok(reader) = pcap::Reader::new(file) else {
        return;
    };
    for frame in reader.flatten() {
        let Some(Ok(datagram)) = frame.ip().map(ip::Datagram::parse) else {
            continue;
        };
        let len = u16::try_from(datagram.payload.len()).expect("no longer than UDP can say");
        let ip::Datagram { flow, id, marks, payload } = datagram;
        let headers = emit_udp_headers(&flow, id, marks, len);
        let whole = [headers.as_slice(), payload].concat();
        assert_eq!(ip::Datagram::parse(&whole), Ok(datagram));
        parse(payload);
    }
}

fn flow_v4() -> Flow {
    Flow::v4([10, 77, 0, 11], [10, 77, 0, 12], 0xc0de, ROCE_PORT)
}

fn flow_v6() -> Flow {
    Flow::v6([0xfe; 16], [0x80; 16], 0xc0de, ROCE_PORT)
}
