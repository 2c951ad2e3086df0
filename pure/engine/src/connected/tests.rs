//! The responder of an unreliable connection alone: packets in, whole messages out.

use super::*;
use crate::status::WcStatus;
use crate::testing::{Desk, MTU, PATH, RKEY, VA, packet, settings};
use adverb_wire::{Extension, Operation, Reth, Rkey, Transport};
use alloc::vec::Vec;

const FULL: usize = 256;

fn responder() -> ConnectedResponder {
    assert_eq!(usize::try_from(MTU.bytes()), Ok(FULL));
    let path = Path { transport: Transport::Uc, ..PATH };
    ConnectedResponder::new(path, &settings())
}

fn send(operation: Operation, at: i32) -> Packet<'static> {
    let len = if operation.is_end() { 10 } else { FULL };
    packet(operation, at, Extension::None, len)
}

fn write(operation: Operation, at: i32, rkey: Rkey) -> Packet<'static> {
    let reth = Reth { va: VA, rkey, len: if operation.is_end() { 10 } else { 266 } };
    let extension = if operation.is_start() { Extension::Reth(reth) } else { Extension::None };
    packet(operation, at, extension, if operation.is_end() { 10 } else { FULL })
}

fn serve(packets: &[Packet<'_>], desk: &mut Desk) -> QpCounters {
    let (mut responder, mut counters) = (responder(), QpCounters::default());
    for packet in packets {
        assert_eq!(responder.on_request(packet, &mut counters, desk), Served::Fine);
    }
    counters
}

/// Tokens of the receives that ended, all well, and how long their messages were.
fn delivered(desk: &Desk) -> Vec<(u32, u32)> {
    assert!(desk.received.iter().all(|done| done.status == WcStatus::Success));
    desk.received.iter().map(|done| (done.receive.token, done.byte_len)).collect()
}

use Operation::{SendFirst, SendLast, SendMiddle, SendOnly, WriteFirst, WriteLast, WriteOnly};

/// Goal: a broken message leaves its receive to the next one. Method: each line lacks packets of
/// the first message; the second is whole.
#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_used_again() {
    let lines: &[&[Packet<'_>]] = &[
        &[send(SendFirst, 0), send(SendLast, 2), send(SendOnly, 3)],
        &[send(SendFirst, 0), send(SendMiddle, 1), send(SendOnly, 3)],
        &[send(SendMiddle, 1), send(SendLast, 2), send(SendOnly, 3)],
        &[send(SendLast, 2), send(SendOnly, 3)],
        &[send(SendOnly, 3)],
        &[send(SendFirst, 0), send(SendMiddle, 1), send(SendMiddle, 3), send(SendOnly, 4)],
        &[send(SendFirst, 0), send(SendFirst, 1), send(SendOnly, 2)],
    ];
    for line in lines {
        let mut desk = Desk::with_receives(2, 1000);
        serve(line, &mut desk);
        assert_eq!(delivered(&desk), [(0, 10)], "{line:?}");
        assert_eq!(desk.receives.len(), 1, "{line:?}");
        assert!(desk.emitted.is_empty());
    }
}

/// Goal: errors are silent, and end with the message. Method: each line ends with a packet that is
/// fine after a message that is not.
#[test]
fn a_message_that_cannot_be_served_is_dropped_without_a_word() {
    let long = packet(SendLast, 1, Extension::None, FULL);
    let lines: &[(u32, &[Packet<'_>])] = &[
        (300, &[send(SendFirst, 0), long, send(SendOnly, 2)]), // Longer than its receive.
        (100, &[send(SendFirst, 0), send(SendLast, 1), send(SendOnly, 2)]),
        (300, &[packet(SendFirst, 0, Extension::None, 9), send(SendLast, 1), send(SendOnly, 2)]),
        (300, &[write(WriteFirst, 0, Rkey(1)), write(WriteLast, 1, RKEY), send(SendOnly, 2)]),
        (300, &[write(WriteOnly, 0, Rkey(1)), send(SendOnly, 1)]),
    ];
    for (len, line) in lines {
        let mut desk = Desk::with_receives(1, *len);
        let counters = serve(line, &mut desk);
        assert_eq!(delivered(&desk), [(0, 10)], "{line:?}");
        assert!(desk.emitted.is_empty() && desk.events.is_empty() && desk.written.is_empty());
        assert!(counters.dropped_pkts > 0, "{line:?}");
    }
}

#[test]
fn a_message_without_a_receive_is_dropped_whole() {
    let mut desk = Desk::new();
    let (mut responder, mut counters) = (responder(), QpCounters::default());
    let mut serve = |packet, desk: &mut Desk| {
        assert_eq!(responder.on_request(&packet, &mut counters, desk), Served::Fine);
    };
    serve(send(SendFirst, 0), &mut desk);
    desk.receives = Desk::with_receives(1, 1000).receives;
    serve(send(SendLast, 1), &mut desk);
    assert_eq!(delivered(&desk), []);
    serve(send(SendOnly, 2), &mut desk);
    assert_eq!(delivered(&desk), [(0, 10)]);
}

/// Goal: a network that copies and reorders delivers no message twice, and none late.
#[test]
fn what_comes_late_is_dropped() {
    let mut desk = Desk::with_receives(9, 1000);
    let packets = [send(SendOnly, 0), send(SendOnly, 0), send(SendOnly, 2), send(SendOnly, 1)];
    let counters = serve(&packets, &mut desk);
    assert_eq!(delivered(&desk), [(0, 10), (1, 10)]);
    assert_eq!((counters.duplicate_request, counters.out_of_seq_request), (2, 1));

    // A late packet does not break the message that is on its way in.
    let mut desk = Desk::with_receives(9, 1000);
    serve(
        &[send(SendOnly, 0), send(SendFirst, 1), send(SendOnly, 0), send(SendLast, 2)],
        &mut desk,
    );
    assert_eq!(delivered(&desk), [(0, 10), (1, 266)]);
}

/// Goal: a peer that was not heard for half the circle of numbers is heard again.
#[test]
fn numbers_far_behind_are_the_future() {
    let mut desk = Desk::with_receives(9, 1000);
    let far = 1 << 23;
    serve(&[send(SendOnly, 0), send(SendOnly, far), send(SendOnly, far + 1)], &mut desk);
    assert_eq!(delivered(&desk).len(), 3);
}

#[test]
fn a_receive_whose_memory_is_gone_ends_the_queue_pair() {
    let mut desk = Desk { local: false, ..Desk::with_receives(1, 100) };
    let mut counters = QpCounters::default();
    let served = responder().on_request(&send(SendOnly, 0), &mut counters, &mut desk);
    assert_eq!(served, Served::Fatal(None));
    assert_eq!(desk.received[0].status, WcStatus::LocalProtection);
    assert_eq!(counters.rq_num_lpe, 1);
}
