//! Each field of each message, against the tables of the specification.

use super::*;
use crate::key::{Pkey, Qkey};
use crate::mtu::PathMtu;
use crate::psn::Psn;
use crate::qpn::Qpn;

/// Data that every attribute reads as something legal.
fn some_data(attribute: u16) -> [u8; Mad::DATA_LEN] {
    let mut data = [0; Mad::DATA_LEN];
    if attribute == REQ {
        data[50] = 0x10; // The smallest path MTU.
    }
    data
}

/// How many of the 1856 bits mean nothing, counted by hand from the tables of IBTA Vol. 1 §12.6
/// and §12.11. Of a REQ: 64 reserved, 48 of EE contexts, 1 of RDCs, 3 of the extended transport,
/// and 12 of each path.
const RESERVED: [(u16, usize); 11] = [
    (REQ, 64 + 48 + 1 + 3 + 2 * 12),
    (MRA, 6 + 3),
    (REJ, 6 + 1),
    (REP, 8 + 32 + 8 + 4),
    (RTU, 0),
    (DREQ, 8),
    (DREP, 0),
    (SIDR_REQ, 16),
    (SIDR_REP, 16 + 8),
    (LAP, 32 + 3 + 32 + 12),
    (APR, 16),
];

/// Goal: no field is left out, read twice or cut.
/// Method: flip each bit; it means nothing, or is read as something else that is emitted again.
#[test]
fn every_bit_but_the_reserved_ones_means_something() {
    for (attribute, reserved) in RESERVED {
        let data = some_data(attribute);
        let message = Message::parse(attribute, &data).expect("legal");
        assert_eq!(message.emit(), data, "attribute {attribute:#x}");
        assert_eq!(message.attribute(), attribute);
        let mut silent = 0;
        for bit in 0..8 * Mad::DATA_LEN {
            let mut flipped = data;
            flipped[bit / 8] ^= 1 << (bit % 8);
            match Message::parse(attribute, &flipped) {
                Ok(other) if other == message => silent += 1,
                Ok(other) => assert_eq!(other.emit(), flipped, "{attribute:#x}, bit {bit}"),
                Err(error) => assert!(
                    matches!(error, MadError::PathMtu(_) | MadError::TransportService(2)),
                    "{attribute:#x}, bit {bit}: {error}"
                ),
            }
        }
        assert_eq!(silent, reserved, "attribute {attribute:#x}");
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    let refused = |attribute, at: usize, value: u8| {
        let mut data = some_data(attribute);
        data[at] = value;
        Message::parse(attribute, &data).unwrap_err()
    };
    assert_eq!(refused(REQ, 50, 0x00), MadError::PathMtu(0));
    assert_eq!(refused(REQ, 50, 0x60), MadError::PathMtu(6));
    assert_eq!(refused(REQ, 43, 2 << 1), MadError::TransportService(2));
    assert_eq!(refused(REQ, 43, 3 << 1), MadError::TransportService(3)); // Not extended.
    assert_eq!(refused(REJ, 8, 0xc0), MadError::Subject(3));
    assert_eq!(refused(MRA, 8, 0xc0), MadError::Subject(3));
    assert_eq!(Message::parse(0x1b, &[0; 232]), Err(MadError::Attribute(0x1b)));
}

#[test]
fn extended_connections_have_two_codes() {
    let mut data = some_data(REQ);
    (data[43], data[51]) = (3 << 1, 1);
    let Ok(Message::Req(req)) = Message::parse(REQ, &data) else { panic!("a REQ") };
    assert_eq!((req.service, req.emit()), (Service::Xrc, data));
}

#[test]
fn other_classes_versions_and_methods_are_no_messages() {
    let rtu = Rtu { local_id: CommId(1), remote_id: CommId(2), private: [3; 224] };
    let datagram = Datagram { transaction: 4, message: Message::Rtu(rtu) };
    let bytes = datagram.emit();
    assert_eq!(Datagram::parse(&bytes), Ok(datagram));
    let with = |at: usize, value| {
        let mut bytes = bytes;
        bytes[at] = value;
        Datagram::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(1, 3), MadError::Class { class: 3, version: 2 });
    assert_eq!(with(2, 1), MadError::Class { class: 7, version: 1 });
    assert_eq!(with(3, Mad::GET), MadError::Method(Mad::GET));
}

/// The fields of a REQ and a REP as a dissector of another project prints them for `cm_rping`.
#[test]
fn fields_are_where_another_dissector_sees_them() {
    let mut data = [0; Mad::DATA_LEN];
    let words: [u32; 13] = [
        0x641e_bbe6,
        0,
        0,
        0x0106_1c06,
        0x0077_00ff,
        0xfe00_0011,
        0,
        0,
        0x0000_2b01,
        1,
        0xa0,
        0x1aaf_eea7,
        0xffff_57f0,
    ];
    for (place, word) in data.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    let Ok(Message::Req(req)) = Message::parse(REQ, &data) else { panic!("a REQ") };
    assert_eq!((req.local_id, req.qpn), (CommId(0x641e_bbe6), Qpn::new(0x2b)));
    assert_eq!(req.service_id, ServiceId::of_port(PortSpace::Tcp, 0x1c06));
    assert_eq!((req.ca_guid, req.qkey), (0x0077_00ff_fe00_0011, Qkey(0)));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout.get(), req.local_response_timeout.get()), (20, 20));
    assert_eq!((req.service, req.psn), (Service::Rc, Psn::new(0x1a_afee)));
    assert_eq!((req.retries.get(), req.rnr_retries.get(), req.cm_retries.get()), (7, 7, 15));
    assert_eq!((req.pkey, req.path_mtu, req.srq), (Pkey::DEFAULT, PathMtu::B4096, false));
}
