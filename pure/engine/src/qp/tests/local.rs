//! A queue pair whose link can do more than carry packets: what is carried out at once, what waits, what is sent, and
//! messages that go by reference.

use super::*;
use crate::host::{FetchError, LocalError, Reach, Receive, Target};
use crate::status::WcStatus;
use crate::testing::{RKEY, SEGMENT, SHARED_MEMORY, VA};
use adverb_wire::{Extension, Reth};

/// In RTS, with the peer at the other end of shared memory.
pub(super) fn neighbour() -> Qp {
    let mut qp = Qp::new(QpOptions::rc(Qpn::new(0x11), 8));
    qp.set_link(SHARED_MEMORY);
    connect(&mut qp);
    qp
}

fn operations(desk: &Desk) -> Vec<Operation> {
    desk.emitted.iter().map(|(headers, _)| headers.bth.opcode.operation()).collect()
}

#[test]
fn what_can_be_reached_is_done_at_once_and_becomes_no_packet() {
    let mut desk = Desk { reach: Reach::Done, ..Desk::new() };
    let mut qp = neighbour();
    for (kind, len) in [(WRITE, 1 << 20), (READ, 100), (ATOMIC, 8)] {
        qp.post(request(kind, len)).unwrap();
    }
    assert!(!qp.transmit(NOW, true, &mut desk));
    assert!(desk.emitted.is_empty());
    let ends: Vec<_> = desk.sent.iter().map(|done| (done.index, done.status)).collect();
    assert_eq!(ends, [0, 1, 2].map(|index| (index, WcStatus::Success)));
    assert_eq!((qp.outstanding(), qp.next_deadline()), (0, None));
}

/// Goal: nothing overtakes a SEND that the peer has not taken.
#[test]
fn what_can_be_reached_waits_for_what_was_sent_before() {
    let mut desk = Desk { reach: Reach::Done, ..Desk::new() };
    let mut qp = neighbour();
    for kind in [SEND, READ, SEND] {
        qp.post(request(kind, 8)).unwrap();
    }
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(operations(&desk), [Operation::SendOnly]);
    assert!(desk.sent.is_empty());
    qp.on_packet(&ack(0, Syndrome::ACK), PEER, NOW, &mut desk);
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(operations(&desk), [Operation::SendOnly; 2]);
    assert_eq!(desk.sent.len(), 2, "the SEND, and the READ at once");
}

#[test]
fn what_cannot_be_reached_is_sent_in_pieces_of_the_link_and_not_of_the_path_mtu() {
    let mut desk = Desk::new();
    let mut qp = neighbour();
    qp.post(request(WRITE, SEGMENT + 1)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(operations(&desk), [Operation::WriteFirst, Operation::WriteLast]);
}

#[test]
fn a_deadline_that_was_left_open_is_set_by_the_next_look_at_the_clock() {
    let mut desk = Desk::new();
    let mut qp = neighbour();
    qp.post(request(SEND, 8)).unwrap();
    qp.transmit(Time::UNKNOWN, true, &mut desk);
    assert_eq!(qp.next_deadline(), Some(Time::UNKNOWN));
    qp.on_clock(Time::from_nanos(5));
    let known = qp.next_deadline().unwrap();
    qp.on_clock(Time::from_nanos(500));
    assert_eq!(qp.next_deadline(), Some(known));
    assert!(known > Time::from_nanos(5) && known < Time::UNKNOWN);
}

#[test]
fn a_message_by_reference_is_one_packet_however_long_it_is() {
    let len = 10 * SEGMENT;
    let mut desk = Desk { by_reference: Some(len), ..Desk::new() };
    let mut qp = neighbour();
    qp.post(request(SEND, len)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(operations(&desk), [Operation::SendOnly]);
    assert_eq!(desk.emitted[0].1.len(), len);
    qp.on_packet(&ack(0, Syndrome::ACK), PEER, NOW, &mut desk);
    assert_eq!(desk.sent[0].status, WcStatus::Success);
}

/// Goal: a message by reference ends as a sent one would. Each line: what fetching comes to, how the receive
/// ends, whether it is there for the next message.
#[test]
fn a_message_by_reference_is_fetched_or_ends_as_one_that_was_sent() {
    let local = FetchError::Local(LocalError::Protection);
    for (fetches, status, left) in [
        (Ok(()), Some(WcStatus::Success), 0),
        (Err(local), Some(WcStatus::LocalProtection), 0),
        (Err(FetchError::Lost), None, 1),
    ] {
        let mut desk = Desk { by_reference: Some(5000), fetches, ..Desk::with_receives(1, 5000) };
        let mut qp = neighbour();
        let message = packet(Operation::SendOnly, 0, Extension::None, 0);
        qp.on_packet(&message, PEER, NOW, &mut desk);
        assert!(matches!(desk.fetched[..], [Target::Receive(Receive { len: 5000, .. })]));
        assert_eq!(desk.received.first().map(|done| done.status), status, "{fetches:?}");
        assert_eq!(desk.receives.len(), left);
    }
    let mut desk = Desk { by_reference: Some(5001), ..Desk::with_receives(1, 5000) };
    let message = packet(Operation::SendOnly, 0, Extension::None, 0);
    neighbour().on_packet(&message, PEER, NOW, &mut desk);
    assert_eq!(desk.received[0].status, WcStatus::LocalLength);
    assert!(desk.fetched.is_empty());
}

#[test]
fn a_write_by_reference_is_fetched_to_where_it_says() {
    let mut desk = Desk { by_reference: Some(5000), ..Desk::new() };
    let reth = Reth { va: VA, rkey: RKEY, len: 5000 };
    let message = packet(Operation::WriteOnly, 0, Extension::Reth(reth), 0);
    neighbour().on_packet(&message, PEER, NOW, &mut desk);
    assert_eq!(desk.fetched, [Target::Region { rkey: RKEY, va: VA }]);
    assert!(desk.written.is_empty());
}
