//! The opcode table against a second one, typed in from the specification.

use super::*;
use crate::operation::Operation::*;

/// The operations of a reliable connection as the specification prints them, typed in by hand:
/// code, and what is so. A second source for the table.
const PRINTED: [(u8, Operation, &str); 25] = [
    (0x00, SendFirst, "request send start receive payload"),
    (0x01, SendMiddle, "request send receive payload"),
    (0x02, SendLast, "request send end receive payload"),
    (0x03, SendLastImm, "request send end receive payload immediate"),
    (0x04, SendOnly, "request send start end receive payload"),
    (0x05, SendOnlyImm, "request send start end receive payload immediate"),
    (0x06, WriteFirst, "request write start payload"),
    (0x07, WriteMiddle, "request write payload"),
    (0x08, WriteLast, "request write end payload"),
    (0x09, WriteLastImm, "request write end receive payload immediate"),
    (0x0a, WriteOnly, "request write start end payload"),
    (0x0b, WriteOnlyImm, "request write start end receive payload immediate"),
    (0x0c, ReadRequest, "request start end"),
    (0x0d, ReadResponseFirst, "response data start payload"),
    (0x0e, ReadResponseMiddle, "response data payload"),
    (0x0f, ReadResponseLast, "response data end payload"),
    (0x10, ReadResponseOnly, "response data start end payload"),
    (0x11, Acknowledge, "response start end"),
    (0x12, AtomicAcknowledge, "response start end"),
    (0x13, CompareSwap, "request atomic start end"),
    (0x14, FetchAdd, "request atomic start end"),
    (0x16, SendLastInvalidate, "request send end receive payload"),
    (0x17, SendOnlyInvalidate, "request send start end receive payload"),
    (0x1c, Flush, "request start end"),
    (0x1d, AtomicWrite, "request start end payload"),
];

#[test]
fn every_operation_is_what_the_specification_says() {
    for (code, operation, printed) in PRINTED {
        let says = |word| printed.split(' ').any(|other| other == word);
        assert_eq!(Opcode::new(code), Opcode::of(Transport::Rc, operation));
        assert_eq!(operation.is_request(), says("request"), "{operation:?}");
        assert_eq!(operation.is_response(), says("response"), "{operation:?}");
        assert_eq!(operation.is_send(), says("send"), "{operation:?}");
        assert_eq!(operation.is_write(), says("write"), "{operation:?}");
        assert_eq!(operation.is_read_response(), says("data"), "{operation:?}");
        assert_eq!(operation.is_atomic(), says("atomic"), "{operation:?}");
        assert_eq!(operation.is_start(), says("start"), "{operation:?}");
        assert_eq!(operation.is_end(), says("end"), "{operation:?}");
        assert_eq!(operation.needs_receive(), says("receive"), "{operation:?}");
        assert_eq!(operation.has_payload(), says("payload"), "{operation:?}");
        assert_eq!(operation.has_immediate(), says("immediate"), "{operation:?}");
    }
}

#[test]
fn the_defined_codes_are_opcodes_and_no_others() {
    for code in 0..=u8::MAX {
        let defined = matches!(
            code,
            0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d    // RC
                | 0x20..=0x2b                          // UC
                | 0x64 | 0x65                          // UD
                | 0x81                                 // congestion
                | 0xa0..=0xb4 | 0xb6 | 0xb7 | 0xbc | 0xbd // XRC
        );
        match Opcode::new(code) {
            Some(opcode) => assert!(defined && opcode.code() == code, "{code:#04x}"),
            None => assert!(!defined, "{code:#04x}"),
        }
    }
}

#[test]
fn an_opcode_is_found_by_code_if_and_only_if_the_transport_has_the_operation() {
    for transport in Transport::ALL {
        for operation in Operation::ALL {
            if let Some(opcode) = Opcode::of(transport, operation) {
                assert_eq!((opcode.transport(), opcode.operation()), (transport, operation));
                assert_eq!(Opcode::new(opcode.code()), Some(opcode));
            }
        }
    }
    assert_eq!(Opcode::of(Transport::Uc, ReadRequest), None);
    assert_eq!(Opcode::of(Transport::Uc, SendOnlyInvalidate), None);
    assert_eq!(Opcode::of(Transport::Ud, SendFirst), None);
    assert_eq!(Opcode::of(Transport::Rd, SendOnly), None);
    assert_eq!(Opcode::of(Transport::Rc, Cnp), None);
    assert_eq!(Opcode::new(0x81), Opcode::of(Transport::Cnp, Cnp));
}

#[test]
fn only_datagrams_and_xrc_requests_have_a_header_of_their_transport() {
    for code in 0..=u8::MAX {
        if let Some(opcode) = Opcode::new(code) {
            assert_eq!(opcode.has_deth(), matches!(code, 0x60..=0x7f), "{code:#04x}");
            let xrc_request = matches!(code, 0xa0..=0xac | 0xb3..=0xbf);
            assert_eq!(opcode.has_xrceth(), xrc_request, "{code:#04x}");
        }
    }
}
