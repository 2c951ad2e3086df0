//! The streamer alone: requests in, packets out, once.

use super::*;
use crate::status::WcOpcode;
use crate::testing::{Desk, FIRST, PATH, REMOTE, RKEY, SEND, WRITE, request};
use crate::work::{Datagram, RequestKind, Route};
use adverb_wire::{Operation, Transport};
use alloc::vec::Vec;

const NUMBER: Qpn = Qpn::new(0x11);
const OWN_KEY: Qkey = Qkey(0x1234);

fn streamer(transport: Transport) -> Streamer {
    Streamer::new(Path { transport, ..PATH }, NUMBER, OWN_KEY, FIRST)
}

fn queue_of(work: &[(RequestKind, u32)]) -> SendQueue {
    let mut queue = SendQueue::with_capacity(8);
    for &(kind, len) in work {
        queue.push(Entry::new(request(kind, len))).unwrap();
    }
    queue
}

fn emit(streamer: &mut Streamer, queue: &mut SendQueue, desk: &mut Desk) -> Emitted {
    streamer.transmit(queue, &mut QpCounters::default(), desk)
}

fn done(desk: &Desk) -> Vec<(u64, WcStatus)> {
    desk.sent.iter().map(|done| (done.index, done.status)).collect()
}

#[test]
fn a_request_is_done_when_its_last_packet_is_out() {
    let mut queue = queue_of(&[(SEND, 600), (WRITE, 10)]);
    let mut streamer = streamer(Transport::Uc);
    let mut desk = Desk { room: 2, ..Desk::new() };
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::NoRoom);
    assert_eq!(done(&desk), []);
    desk.room = 3;
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::NoRoom);
    assert_eq!(done(&desk), [(0, WcStatus::Success)]);
    desk.room = 9;
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::All);
    assert_eq!(done(&desk), [(0, WcStatus::Success), (1, WcStatus::Success)]);

    assert!(desk.emitted.iter().all(|(headers, _)| !headers.bth.ack_request));
    let expected = [
        (Operation::SendFirst, 0),
        (Operation::SendMiddle, 1),
        (Operation::SendLast, 2),
        (Operation::WriteOnly, 3),
    ];
    assert_eq!(desk.operations(), expected);
}

/// Goal: the highest bit of the request's key asks for the queue pair's own.
#[test]
fn a_datagram_names_its_sender_and_shows_the_key_that_was_asked_for() {
    for (asked, shown) in [(0x7fff_ffff, 0x7fff_ffff), (0x8000_0000, OWN_KEY.0)] {
        let to = Datagram { route: Route(7), remote: REMOTE, qkey: Qkey(asked) };
        let mut queue = SendQueue::with_capacity(1);
        let datagram = crate::work::Request { to: To::Datagram(to), ..request(SEND, 10) };
        queue.push(Entry::new(datagram)).unwrap();
        let mut desk = Desk::new();
        assert_eq!(emit(&mut streamer(Transport::Ud), &mut queue, &mut desk), Emitted::All);
        let headers = desk.emitted[0].0;
        assert_eq!(headers.deth, Some(Deth { qkey: Qkey(shown), src_qp: NUMBER }));
        assert_eq!((headers.bth.dest_qp, &desk.routes[..]), (REMOTE, &[Route(7)][..]));
    }
}

/// Goal: after a failure in the middle of a message, the next one starts at its beginning, and
/// numbers go on, so that the receiver sees the gap.
#[test]
fn what_fails_half_way_is_not_resumed() {
    let mut queue = queue_of(&[(SEND, 600), (SEND, 300)]);
    let mut streamer = streamer(Transport::Uc);
    let mut desk = Desk { room: 1, ..Desk::new() };
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::NoRoom);
    (desk.room, desk.local) = (9, false);
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::Broken);
    assert_eq!(done(&desk), [(0, WcStatus::LocalProtection)]);
    desk.local = true;
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::All);
    let expected = [(Operation::SendFirst, 0), (Operation::SendFirst, 1), (Operation::SendLast, 2)];
    assert_eq!(desk.operations(), expected);
}

#[test]
fn what_is_held_waits_unless_it_has_begun() {
    let mut queue = queue_of(&[(SEND, 600), (SEND, 1)]);
    let mut streamer = streamer(Transport::Uc);
    let mut desk = Desk { room: 1, ..Desk::new() };
    let _ = emit(&mut streamer, &mut queue, &mut desk);
    streamer.hold(true);
    desk.room = 9;
    assert!(streamer.has_work(&queue));
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::All);
    assert!(!streamer.has_work(&queue));
    assert_eq!((desk.operations().len(), desk.sent.len()), (3, 1));
    streamer.hold(false);
    assert_eq!(emit(&mut streamer, &mut queue, &mut desk), Emitted::All);
    assert_eq!(desk.operations(), [(Operation::SendOnly, 3)]);
}

#[test]
fn local_requests_have_their_turn_and_take_no_number() {
    let invalidate = RequestKind::LocalInvalidate { rkey: RKEY };
    let mut queue =
        queue_of(&[(SEND, 1), (invalidate, 0), (RequestKind::BindWindow, 0), (SEND, 1)]);
    let mut desk = Desk::new();
    assert_eq!(emit(&mut streamer(Transport::Uc), &mut queue, &mut desk), Emitted::All);
    assert_eq!((desk.invalidated.len(), &desk.bound[..]), (1, &[2][..]));
    assert_eq!(desk.operations(), [(Operation::SendOnly, 0), (Operation::SendOnly, 1)]);
    let opcodes: Vec<WcOpcode> = desk.sent.iter().map(|done| done.opcode).collect();
    let expected =
        [WcOpcode::Send, WcOpcode::LocalInvalidate, WcOpcode::BindWindow, WcOpcode::Send];
    assert_eq!(opcodes, expected);
}
