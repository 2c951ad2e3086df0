//! Parsing and emitting undo one another, for any legal packet and any bytes at all.

use adverb_wire::Operation::*;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Deth, Extension, Feth, Flow, HeaderBytes, Headers, ICRC_LEN, Ieth, Imm,
    Msn, Opcode, Operation, Packet, Pad, ParseError, Pkey, Psn, Qkey, Qpn, ROCE_PORT, Reth, Rkey,
    Syndrome, Transport, XrcEth,
};
use proptest::prelude::*;
use proptest::sample::select;

fn any_opcode() -> impl Strategy<Value = Opcode> {
    select((0..=u8::MAX).filter_map(Opcode::new).collect::<Vec<_>>())
}

fn any_bth() -> impl Strategy<Value = Bth> {
    let flags = any::<[bool; 6]>();
    let numbers = any::<(u16, u32, u32)>();
    (any_opcode(), flags, numbers).prop_map(|(opcode, flags, (pkey, dest_qp, psn))| {
        let [solicited, migrated, fecn, becn, ack_request, keeps_early] = flags;
        Bth {
            opcode,
            solicited,
            migrated,
            pad: Pad::NONE,
            pkey: Pkey(pkey),
            fecn,
            becn,
            dest_qp: Qpn::new(dest_qp),
            ack_request,
            keeps_early,
            psn: Psn::new(psn),
        }
    })
}

/// Values for any extended header there is.
#[derive(Clone, Copy, Debug)]
struct Fields {
    reth: Reth,
    feth: Feth,
    atomic: AtomicEth,
    aeth: Aeth,
    imm: Imm,
    original: u64,
}

fn any_fields() -> impl Strategy<Value = Fields> {
    let syndrome = select((0..=u8::MAX).filter_map(Syndrome::new).collect::<Vec<_>>());
    let numbers = any::<(u64, u32, u32, u64, u64, u32, u32, u64)>();
    (numbers, syndrome).prop_map(|(numbers, syndrome)| {
        let (va, rkey, len, swap_or_add, compare, msn, imm, original) = numbers;
        let rkey = Rkey(rkey);
        Fields {
            reth: Reth { va, rkey, len },
            feth: Feth {
                placement: imm.to_be_bytes()[0] & 0xf,
                selectivity: imm.to_be_bytes()[1] & 3,
            },
            atomic: AtomicEth { va, rkey, swap_or_add, compare },
            aeth: Aeth { syndrome, msn: Msn::new(msn) },
            imm: Imm(imm),
            original,
        }
    })
}

/// Which headers an operation has, written down a second time.
fn extension(operation: Operation, fields: &Fields) -> Extension {
    match operation {
        SendFirst | SendMiddle | SendLast | SendOnly => Extension::None,
        WriteMiddle | WriteLast | ReadResponseMiddle => Extension::None,
        SendLastImm | SendOnlyImm | WriteLastImm => Extension::Imm(fields.imm),
        SendLastInvalidate | SendOnlyInvalidate => {
            Extension::Invalidate(Ieth { rkey: fields.reth.rkey })
        }
        WriteFirst | WriteOnly | ReadRequest | AtomicWrite => Extension::Reth(fields.reth),
        WriteOnlyImm => Extension::RethImm(fields.reth, fields.imm),
        ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge => {
            Extension::Aeth(fields.aeth)
        }
        AtomicAcknowledge => Extension::AtomicAck(fields.aeth, fields.original),
        CompareSwap | FetchAdd => Extension::Atomic(fields.atomic),
        Flush => Extension::Flush(fields.feth, fields.reth),
        Cnp => Extension::Cnp,
    }
}

/// Any legal headers with a payload that they may have.
fn any_packet() -> impl Strategy<Value = (Headers, Vec<u8>)> {
    let bytes = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 8..64),
        1 => prop::collection::vec(any::<u8>(), 4090..4097),
    ];
    let cut = any::<prop::sample::Index>();
    (any_bth(), any_fields(), any::<(u32, u32)>(), bytes, cut).prop_map(
        |(mut bth, fields, (qkey, qpn), mut payload, cut)| {
            let (transport, operation) = (bth.opcode.transport(), bth.opcode.operation());
            let longest = if operation == AtomicWrite { 8 } else { cut.index(payload.len() + 1) };
            payload.truncate(if operation.has_payload() { longest } else { 0 });
            bth.pad = Pad::for_len(payload.len());
            let deth = Deth { qkey: Qkey(qkey), src_qp: Qpn::new(qpn) };
            let xrceth = XrcEth { srqn: Qpn::new(qpn) };
            let headers = Headers {
                bth,
                deth: (transport == Transport::Ud).then_some(deth),
                xrceth: (transport == Transport::Xrc && operation.is_request()).then_some(xrceth),
                extension: extension(operation, &fields),
            };
            (headers, payload)
        },
    )
}

fn flow() -> Flow {
    Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc123, ROCE_PORT)
}

proptest! {
    #[test]
    fn what_is_emitted_parses_to_what_it_was((headers, payload) in any_packet(), id: u16) {
        prop_assert!(headers.is_legal());
        let packet = Packet { headers, payload: &payload };
        let mut datagram = vec![0xee]; // What is there stays.
        packet.emit_into(&flow(), id, &mut datagram);
        prop_assert_eq!(datagram[0], 0xee);
        let datagram = &datagram[1..];

        prop_assert_eq!(Packet::parse(datagram), Ok(packet));
        prop_assert_eq!(flow().verify(datagram, !id), Some(id));
        prop_assert!(datagram.len().is_multiple_of(4));
        let length = headers.len() + payload.len().next_multiple_of(4) + ICRC_LEN;
        prop_assert_eq!(datagram.len(), length);

        let mut bytes = HeaderBytes::new();
        headers.emit(&mut bytes);
        prop_assert_eq!(bytes.as_slice(), &datagram[..headers.len()]);
        let rest = &datagram[headers.len()..];
        prop_assert_eq!(Headers::parse(datagram), Ok((headers, rest)));
    }

    #[test]
    fn a_cut_packet_is_refused_or_a_shorter_legal_one((headers, payload) in any_packet()) {
        let packet = Packet { headers, payload: &payload };
        let mut datagram = Vec::new();
        packet.emit_into(&flow(), 0, &mut datagram);
        for len in 0..datagram.len() {
            if let Ok(parsed) = Packet::parse(&datagram[..len]) {
                prop_assert!(headers.bth.opcode.operation().has_payload());
                prop_assert!(len.is_multiple_of(4));
                prop_assert!(payload.starts_with(parsed.payload));
            }
        }
        let short = datagram.get(..headers.len() + ICRC_LEN - 1).unwrap_or_default();
        let truncated = matches!(Packet::parse(short), Err(ParseError::Truncated { .. }));
        prop_assert!(truncated);
    }

    #[test]
    fn headers_that_do_not_belong_to_the_opcode_are_not_legal(
        (headers, _) in any_packet(),
        other in any_opcode(),
    ) {
        let mut wrong = headers;
        wrong.bth.opcode = other;
        if let Ok((parsed, _)) = Headers::parse(&{
            let mut bytes = HeaderBytes::new();
            headers.emit(&mut bytes);
            bytes.as_slice().to_vec()
        }) {
            prop_assert!(parsed.is_legal());
        }
        let same = |a: Extension, b: Extension| {
            core::mem::discriminant(&a) == core::mem::discriminant(&b)
        };
        let (mine, theirs) = (headers.bth.opcode, other);
        let fields = Fields {
            feth: Feth::default(),
            reth: Reth { va: 0, rkey: Rkey(0), len: 0 },
            atomic: AtomicEth { va: 0, rkey: Rkey(0), swap_or_add: 0, compare: 0 },
            aeth: Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) },
            imm: Imm(0),
            original: 0,
        };
        let alike = same(extension(mine.operation(), &fields), extension(theirs.operation(), &fields))
            && (mine.transport() == Transport::Ud) == (theirs.transport() == Transport::Ud)
            && headers.xrceth.is_some()
                == (theirs.transport() == Transport::Xrc && theirs.operation().is_request());
        prop_assert_eq!(wrong.is_legal(), alike);
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
        let _ = Packet::parse(&bytes);
        let _ = flow().verify(&bytes, 0);
        let _ = adverb_wire::ip::Datagram::parse(&bytes);
    }

    #[test]
    fn bytes_that_start_like_a_packet_parse_or_are_refused(
        opcode in any_opcode(),
        mut bytes in prop::collection::vec(any::<u8>(), 12..100),
    ) {
        bytes[0] = opcode.code();
        bytes[1] &= 0xf0;
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.headers.is_legal());
            let mut again = Vec::new();
            packet.emit_into(&flow(), 0, &mut again);
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert_eq!(Packet::parse(&again), Ok(packet));
        }
    }
}

/// A packet of `operation` with `body` after its headers, and a pad field of `pad`.
fn with_body(operation: Operation, pad: u8, body: &[u8]) -> Vec<u8> {
    let opcode = Opcode::of(Transport::Rc, operation).expect("RC has it");
    let headers = [opcode.code(), pad << 4, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
    let extended: &[u8] = if operation == Flush {
        &[0; 20]
    } else if matches!(operation, ReadRequest | AtomicWrite) {
        &[0; 16]
    } else if operation == Acknowledge {
        &[0; 4]
    } else {
        &[]
    };
    [headers.as_slice(), extended, body, &[0; ICRC_LEN]].concat()
}

#[test]
fn a_body_where_there_is_none_or_of_another_length_is_refused() {
    let refused =
        |operation, pad, body: &[u8]| Packet::parse(&with_body(operation, pad, body)).err();
    let length = |len, expected| Some(ParseError::Length { len, expected });
    assert_eq!(refused(Acknowledge, 0, &[]), None);
    assert_eq!(refused(Acknowledge, 0, &[0; 4]), length(4, 0));
    assert_eq!(refused(Acknowledge, 1, &[0; 4]), length(4, 0));
    assert_eq!(refused(ReadRequest, 0, &[0]), length(1, 0));
    assert_eq!(refused(Flush, 0, &[]), None);
    assert_eq!(refused(Flush, 0, &[0; 4]), length(4, 0));
    assert_eq!(refused(AtomicWrite, 0, &[0; 8]), None);
    assert_eq!(refused(AtomicWrite, 0, &[0; 12]), length(12, 8));
    assert_eq!(refused(AtomicWrite, 0, &[]), length(0, 8));
}

#[test]
fn padding_that_does_not_fit_is_refused() {
    let refused =
        |operation, pad, body: &[u8]| Packet::parse(&with_body(operation, pad, body)).err();
    let padding = |pad, len| Some(ParseError::Pad { pad, len });
    assert_eq!(refused(SendOnly, 3, &[0; 4]), None);
    assert_eq!(refused(SendOnly, 0, &[0; 5]), padding(0, 5));
    assert_eq!(refused(SendOnly, 1, &[0; 7]), padding(1, 7));
    assert_eq!(refused(SendOnly, 3, &[]), padding(3, 0));
    assert_eq!(refused(Acknowledge, 2, &[]), padding(2, 0));
    assert_eq!(refused(AtomicWrite, 1, &[0; 8]), padding(1, 8));
}
