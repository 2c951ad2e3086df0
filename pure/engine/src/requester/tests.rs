//! The requester alone: requests in, packets out, back and on again.

use super::*;
use crate::Capabilities;
use crate::testing::{ATOMIC, Desk, PATH, READ, SEND, VA, WRITE, request, settings};
use adverb_wire::Headers;
use alloc::vec::Vec;

const NOW: Time = Time::ZERO;

/// A requester with a queue of requests of these kinds and lengths.
fn with_work(work: &[(RequestKind, u32)]) -> (Requester, SendQueue) {
    let mut queue = SendQueue::with_capacity(16);
    for &(kind, len) in work {
        push(&mut queue, request(kind, len));
    }
    (Requester::new(PATH, &settings()), queue)
}

fn push(queue: &mut SendQueue, request: Request) {
    queue.push(Entry::new(request)).unwrap();
}

/// Emits, and says what: operation, and number from 0.
fn emit(requester: &mut Requester, queue: &mut SendQueue, unacked: u64) -> Vec<(Operation, i32)> {
    let mut desk = Desk::new();
    let (emitted, packets) = requester.transmit(unacked, NOW, queue, &mut desk);
    assert_eq!(emitted, Emitted::All);
    let operations = desk.operations();
    let requests = u64::try_from(operations.len()).unwrap();
    assert!(packets >= requests, "{packets} numbers for {requests} packets");
    operations
}

#[test]
fn a_message_is_cut_at_the_mtu_and_asks_at_its_end() {
    let (mut requester, mut queue) = with_work(&[(SEND, 600)]);
    let mut desk = Desk::new();
    let (_, packets) = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(packets, 3);
    let asks: Vec<bool> = desk.emitted.iter().map(|(headers, _)| headers.bth.ack_request).collect();
    let lens: Vec<u32> = desk.emitted.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!((asks, lens), (Vec::from([false, false, true]), Vec::from([256, 256, 88])));
    let expected =
        [(Operation::SendFirst, 0), (Operation::SendMiddle, 1), (Operation::SendLast, 2)];
    assert_eq!(desk.operations(), expected);
}

#[test]
fn the_window_bounds_what_is_under_way_and_its_last_packet_asks() {
    let (mut requester, mut queue) = with_work(&[(WRITE, 256 * 40)]);
    let mut desk = Desk::new();
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(desk.emitted.len(), 16);
    let asks = desk.emitted.iter().map(|(headers, _)| headers.bth.ack_request);
    let asked: Vec<usize> = asks.enumerate().filter(|&(_, ask)| ask).map(|(at, _)| at).collect();
    assert_eq!(asked, [3, 7, 11, 15]);
    requester.on_progress(4, 4, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 4).len(), 4);
}

/// Goal: what the peer keeps makes room, until it is acknowledged or the requester goes back; there is a bound to it.
#[test]
fn what_the_peer_keeps_is_not_under_way() {
    let (_, mut queue) = with_work(&[(SEND, 256 * 10_000)]);
    let mut requester = Requester::new(PATH, &settings());
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 16);
    requester.on_kept(9);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 9);
    requester.on_progress(3, 3, &queue); // Now six of them may be left.
    assert_eq!(emit(&mut requester, &mut queue, 3).len(), 0);
    requester.on_kept(20);
    assert_eq!(emit(&mut requester, &mut queue, 3).len(), 14);
    requester.rewind(3, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 3).len(), 16);

    let mut requester = Requester::new(PATH, &Settings { window_packets: 4096, ..settings() });
    requester.window = Window::open(4096);
    requester.on_kept(4000);
    let begun = emit(&mut requester, &mut queue, 0).len();
    assert_eq!(begun, 4096, "a window that is larger than the bound");
    let mut requester = Requester { window: Window::open(1024), ..requester };
    requester.rewind(0, &queue);
    requester.on_kept(4000);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 2048);
}

/// Goal: what was to be emitted again and has come after all is no work left, though nothing is emitted in between.
#[test]
fn what_has_come_after_all_is_not_emitted_again() {
    let (mut requester, mut queue) = with_work(&[(SEND, 600)]);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 3);
    let missing = |from, to| Missing { from, to, executed: false, late_ns: 0 };
    assert!(requester.fill(missing(0, 1), NOW, &queue));
    assert!(requester.fill(missing(1, 2), NOW, &queue));
    requester.on_progress(1, 1, &queue);
    let mut desk = Desk::new();
    let _ = requester.transmit(1, NOW, &mut queue, &mut desk);
    assert_eq!(desk.operations(), [(Operation::SendMiddle, 1)]);
    assert!(requester.fill(missing(1, 3), NOW, &queue));
    assert!(requester.has_work(&queue));
    requester.on_progress(3, 2, &queue);
    assert!(!requester.has_work(&queue));
}

/// Goal: while packets are missing, room for a few others waits for more, over a link of trains.
#[test]
fn what_is_emitted_behind_a_hole_is_emitted_as_a_train() {
    let link = Capabilities::TRAINS;
    for (path, packets) in [(PATH, 7), (Path { link, ..PATH }, 0)] {
        let (_, mut queue) = with_work(&[(SEND, 256 * 1000)]);
        let mut requester = Requester::new(path, &settings());
        requester.window = Window::open(64);
        assert_eq!(emit(&mut requester, &mut queue, 0).len(), 64);
        requester.on_kept(7);
        assert_eq!(emit(&mut requester, &mut queue, 0).len(), packets);
        requester.on_kept(15);
        assert_eq!(emit(&mut requester, &mut queue, 0).len(), 15 - packets);
    }
}

/// Goal: a requester that finds no room says so, even if there is some a moment later. Method: a ring whose reader
/// makes room right after the look in vain.
#[test]
fn room_that_is_made_a_moment_too_late_is_come_back_for() {
    let (mut requester, mut queue) = with_work(&[(SEND, 600)]);
    let mut desk = Desk { room: 1, late_room: 8, ..Desk::new() };
    assert_eq!(requester.transmit(0, NOW, &mut queue, &mut desk), (Emitted::NoRoom, 1));
    assert_eq!(requester.transmit(0, NOW, &mut queue, &mut desk), (Emitted::All, 2));
}

/// Goal: a repeated READ never asks for a range that differs from what was asked before, except
/// that its beginning may be missing.
#[test]
fn a_read_is_cut_at_the_same_places_whatever_the_window_is() {
    let (mut requester, mut queue) = with_work(&[(READ, 256 * 10)]);
    let first = emit(&mut requester, &mut queue, 0);
    assert_eq!(first, [(Operation::ReadRequest, 0), (Operation::ReadRequest, 4)]);

    requester.rewind(0, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 0), first);
    requester.on_progress(3, 3, &queue);
    requester.rewind(3, &queue);
    let mut desk = Desk::new();
    let _ = requester.transmit(3, NOW, &mut queue, &mut desk);
    let len = |(headers, _): &(Headers, Payload)| {
        let Extension::Reth(reth) = headers.extension else {
            return 0;
        };
        reth.len
    };
    let lens: Vec<u32> = desk.emitted.iter().map(len).collect();
    assert_eq!(lens, [256, 1024]);
    assert_eq!(desk.operations(), [(Operation::ReadRequest, 3), (Operation::ReadRequest, 4)]);
}

/// Goal: a piece that was asked for under a larger window is asked for again as it was; what was never asked for is cut
/// as the window is now.
#[test]
fn a_loss_makes_new_pieces_smaller_and_leaves_those_that_were_asked_for() {
    let (_, mut queue) = with_work(&[(READ, 256 * 60)]);
    let mut requester = Requester::new(PATH, &Settings { window_packets: 64, ..settings() });
    let asked = |requester: &mut Requester, queue: &mut SendQueue, unacked| {
        let mut desk = Desk::new();
        let _ = requester.transmit(unacked, NOW, queue, &mut desk);
        reths(&desk).into_iter().map(|(at, len)| (at / 256, len / 256)).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut requester, &mut queue, 0), [(0, 16)]);
    requester.on_loss(0);
    requester.rewind(0, &queue);
    assert_eq!(asked(&mut requester, &mut queue, 0), [(0, 16)]);
    requester.on_progress(16, 16, &queue);
    assert_eq!(asked(&mut requester, &mut queue, 16), [(16, 12)]);
}

/// Goal: READs whose data have come whole, early, make room for others, but not without end.
/// Method: of each, the first packet is missing; two may be under way at once.
#[test]
fn reads_that_have_come_early_let_others_begin() {
    let (mut requester, mut queue) = with_work(&[(READ, 1); 12]);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 2);
    let mut arrived = Arrived::default();
    arrived.keep();
    for begun in 3..=8 {
        arrived.note(begun - 2);
        requester.on_arrived(&arrived);
        let expected = i32::try_from(begun - 1).unwrap();
        assert_eq!(emit(&mut requester, &mut queue, 0), [(Operation::ReadRequest, expected)]);
    }
    arrived.note(7);
    requester.on_arrived(&arrived);
    assert_eq!(emit(&mut requester, &mut queue, 0), []);
    requester.on_arrived(&Arrived::default());
    requester.on_progress(8, 8, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 8).len(), 2);
}

/// Goal: what a READ asks for comes back as packets, so it counts against the window as a whole.
#[test]
fn a_read_waits_until_the_window_has_room_for_a_whole_piece() {
    let mut queue = SendQueue::with_capacity(16);
    push(&mut queue, request(SEND, 1));
    push(&mut queue, request(READ, 256 * 40));
    let settings = Settings { max_rd_atomic: 9, ..settings() };
    let mut requester = Requester::new(PATH, &settings);
    let numbers = |emitted: Vec<(Operation, i32)>| -> Vec<i32> {
        emitted.into_iter().map(|(_, at)| at).collect()
    };
    assert_eq!(numbers(emit(&mut requester, &mut queue, 0)), [0, 1, 5, 9]); // 13 of 16.
    requester.on_progress(1, 1, &queue);
    assert_eq!(numbers(emit(&mut requester, &mut queue, 1)), [13]);
    assert_eq!(numbers(emit(&mut requester, &mut queue, 4)), []);
    assert_eq!(numbers(emit(&mut requester, &mut queue, 5)), [17]);
}

#[test]
fn reads_and_atomics_wait_for_one_another_beyond_the_agreed_number() {
    let (mut requester, mut queue) = with_work(&[(READ, 1), (ATOMIC, 8), (READ, 1), (SEND, 1)]);
    let expected = [(Operation::ReadRequest, 0), (Operation::FetchAdd, 1)];
    assert_eq!(emit(&mut requester, &mut queue, 0), expected);
    requester.on_progress(1, 1, &queue);
    let expected = [(Operation::ReadRequest, 2), (Operation::SendOnly, 3)];
    assert_eq!(emit(&mut requester, &mut queue, 1), expected);
}

#[test]
fn a_fence_holds_a_request_and_all_behind_it_until_the_data_are_there() {
    let (mut requester, mut queue) = with_work(&[(READ, 300)]);
    push(&mut queue, Request { fence: true, ..request(WRITE, 1) });
    push(&mut queue, request(SEND, 1));
    assert_eq!(emit(&mut requester, &mut queue, 0), [(Operation::ReadRequest, 0)]);
    requester.on_progress(1, 1, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 1), []);
    requester.on_progress(2, 1, &queue);
    let expected = [(Operation::WriteOnly, 2), (Operation::SendOnly, 3)];
    assert_eq!(emit(&mut requester, &mut queue, 2), expected);
}

#[test]
fn going_back_starts_in_the_middle_of_a_message() {
    let (mut requester, mut queue) = with_work(&[(SEND, 1), (WRITE, 600), (SEND, 1)]);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 5);
    requester.rewind(2, &queue);
    let expected =
        [(Operation::WriteMiddle, 2), (Operation::WriteLast, 3), (Operation::SendOnly, 4)];
    assert_eq!(emit(&mut requester, &mut queue, 2), expected);
}

/// Goal: what the first attempt achieved is not sent again.
#[test]
fn acknowledgements_that_overtake_the_second_attempt_shorten_it() {
    let (mut requester, mut queue) = with_work(&[(WRITE, 256 * 8)]);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 8);
    requester.rewind(1, &queue);
    requester.on_progress(6, 5, &queue);
    let expected = [(Operation::WriteMiddle, 6), (Operation::WriteLast, 7)];
    assert_eq!(emit(&mut requester, &mut queue, 6), expected);
}

#[test]
fn nothing_is_emitted_during_a_pause() {
    let (mut requester, mut queue) = with_work(&[(SEND, 1)]);
    let until = NOW.plus_nanos(10);
    requester.pause(until);
    assert_eq!(emit(&mut requester, &mut queue, 0), []);
    assert_eq!(requester.paused_until(), Some(until));
    let mut desk = Desk::new();
    let _ = requester.transmit(0, until, &mut queue, &mut desk);
    assert_eq!(desk.emitted.len(), 1);
    assert_eq!(requester.paused_until(), None);
}

#[test]
fn without_room_the_rest_waits() {
    let (mut requester, mut queue) = with_work(&[(WRITE, 600)]);
    let mut desk = Desk { room: 2, ..Desk::new() };
    assert_eq!(requester.transmit(0, NOW, &mut queue, &mut desk), (Emitted::NoRoom, 2));
    assert_eq!(emit(&mut requester, &mut queue, 0), [(Operation::WriteLast, 2)]);
}

#[test]
fn what_cannot_be_read_breaks_the_request_and_is_tried_again_after_going_back() {
    let (mut requester, mut queue) = with_work(&[(WRITE, 100)]);
    let mut desk = Desk { local: false, ..Desk::new() };
    assert_eq!(requester.transmit(0, NOW, &mut queue, &mut desk), (Emitted::Broken, 0));
    assert_eq!(requester.broken(), Some((0, WcStatus::LocalProtection)));
    assert_eq!(emit(&mut requester, &mut queue, 0), []);
    requester.rewind(0, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 0), [(Operation::WriteOnly, 0)]);
}

/// Goal: no allocation once the queue pair exists.
#[test]
fn the_list_of_reads_never_grows() {
    let (mut requester, mut queue) = with_work(&[(READ, 256 * 40)]);
    let capacity = requester.reads.capacity();
    for unacked in 0..40 {
        let _ = emit(&mut requester, &mut queue, unacked);
        assert!(requester.reads.len() <= 2);
        requester.rewind(unacked, &queue);
        let _ = emit(&mut requester, &mut queue, unacked);
        requester.on_progress(unacked + 1, 1, &queue);
    }
    assert_eq!(requester.reads.capacity(), capacity);
}

/// Goal: what is carried out here is carried out once, in its turn, however often the requester
/// goes back.
#[test]
fn local_requests_are_carried_out_once_and_take_no_number() {
    let work = [(SEND, 1), (RequestKind::BindWindow, 0), (SEND, 1)];
    let (mut requester, mut queue) = with_work(&work);
    let mut desk = Desk::new();
    let expected = [(Operation::SendOnly, 0), (Operation::SendOnly, 1)];
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(desk.operations(), expected);
    requester.rewind(0, &queue);
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(desk.operations(), expected);
    assert_eq!(desk.bound, [1]);
}

#[test]
fn a_key_is_invalidated_when_all_before_it_is_complete() {
    let invalidate = RequestKind::LocalInvalidate { rkey: crate::testing::RKEY };
    let work = [(SEND, 300), (invalidate, 0), (SEND, 1)];
    let (mut requester, mut queue) = with_work(&work);
    let mut desk = Desk::new();
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    requester.on_progress(1, 1, &queue);
    let _ = requester.transmit(1, NOW, &mut queue, &mut desk);
    assert_eq!((desk.operations().len(), desk.invalidated.len()), (2, 0));
    requester.on_progress(2, 1, &queue);
    let _ = requester.transmit(2, NOW, &mut queue, &mut desk);
    assert_eq!(desk.operations(), [(Operation::SendOnly, 2)]);
    assert_eq!(desk.invalidated.len(), 1);
}

#[test]
fn a_fence_holds_a_local_request_until_the_data_are_there() {
    for fence in [false, true] {
        let (mut requester, mut queue) = with_work(&[(READ, 1)]);
        let bind = request(RequestKind::BindWindow, 0);
        push(&mut queue, Request { fence, ..bind });
        let mut desk = Desk::new();
        let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
        assert_eq!(desk.bound.is_empty(), fence);
        requester.on_progress(1, 1, &queue);
        let _ = requester.transmit(1, NOW, &mut queue, &mut desk);
        assert_eq!(desk.bound, [1]);
    }
}

#[test]
fn a_window_that_cannot_be_bound_breaks_its_request_and_nothing_follows() {
    let (mut requester, mut queue) =
        with_work(&[(SEND, 1), (RequestKind::BindWindow, 0), (SEND, 1)]);
    let mut desk = Desk { region: false, ..Desk::new() };
    assert_eq!(requester.transmit(0, NOW, &mut queue, &mut desk), (Emitted::Broken, 1));
    assert_eq!(requester.broken(), Some((1, WcStatus::MemoryWindowBind)));
    assert_eq!(desk.operations(), [(Operation::SendOnly, 0)]);
}

#[test]
fn what_is_held_waits_unless_it_has_begun() {
    let (mut requester, mut queue) = with_work(&[(SEND, 600), (SEND, 1)]);
    let mut desk = Desk { room: 1, ..Desk::new() };
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    requester.hold(true);
    assert!(requester.has_work(&queue));
    let expected = [(Operation::SendMiddle, 1), (Operation::SendLast, 2)];
    assert_eq!(emit(&mut requester, &mut queue, 0), expected);
    assert!(!requester.has_work(&queue));
    requester.rewind(0, &queue);
    assert_eq!(emit(&mut requester, &mut queue, 0).len(), 3);
    requester.hold(false);
    assert_eq!(emit(&mut requester, &mut queue, 0), [(Operation::SendOnly, 3)]);
}

/// Goal: the cursor is not left behind on a request that has ended. Method: after going back, there
/// is room for the READ alone, and its answer ends the binding behind it as well.
#[test]
fn a_local_request_that_ends_under_the_cursor_does_not_hold_the_rest() {
    let (mut requester, mut queue) =
        with_work(&[(READ, 1), (RequestKind::BindWindow, 0), (SEND, 1)]);
    let mut desk = Desk { room: 1, ..Desk::new() };
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    desk.room = 2;
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(desk.bound, [1]);
    requester.rewind(0, &queue);
    desk.emitted.clear();
    desk.room = 1;
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    for _ in 0..2 {
        queue.retire(WcStatus::Success, &mut desk);
    }
    requester.on_progress(1, 1, &queue);
    assert!(requester.has_work(&queue));
    assert_eq!(emit(&mut requester, &mut queue, 1), [(Operation::SendOnly, 1)]);
}

/// The path of [`PATH`], over a link that takes trains.
fn over_trains(reads_max: u8) -> Requester {
    let path = Path { link: Capabilities::TRAINS, ..PATH };
    Requester::new(path, &Settings { max_rd_atomic: reads_max, ..settings() })
}

/// Addresses and lengths that packets name.
fn reths(desk: &Desk) -> Vec<(u64, u32)> {
    let reth = |headers: &Headers| {
        let Extension::Reth(reth) = headers.extension else { panic!("{headers:?}") };
        (reth.va - VA, reth.len)
    };
    desk.emitted.iter().map(|(headers, _)| reth(headers)).collect()
}

/// Goal: a WRITE over a link that takes trains is packets of one length, each a message.
/// Method: 600 bytes are two full packets of 256 and a short one, or three of 200.
#[test]
fn a_write_in_a_train_is_messages_of_one_length_and_asks_at_its_end() {
    let (_, mut queue) = with_work(&[(WRITE, 600)]);
    let mut requester = over_trains(2);
    let mut desk = Desk::new();
    let (_, packets) = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(packets, 3);
    assert_eq!(reths(&desk), [(0, 200), (200, 200), (400, 200)]);
    let asks: Vec<bool> = desk.emitted.iter().map(|(headers, _)| headers.bth.ack_request).collect();
    assert_eq!(asks, [false, false, true]);
    assert_eq!(desk.operations(), [0, 1, 2].map(|at| (Operation::WriteOnly, at)));
    requester.rewind(1, &queue);
    let mut desk = Desk::new();
    assert_eq!(requester.transmit(1, NOW, &mut queue, &mut desk), (Emitted::All, 2));
    assert_eq!(reths(&desk), [(200, 200), (400, 200)], "sent again as it was cut");
}

/// Goal: packets of a SEND are of one length as soon as the peer is known to take that, and what has begun stays as it is.
#[test]
fn a_send_in_a_train_does_not_fill_the_mtu_for_a_peer_of_our_kind() {
    let (_, mut queue) = with_work(&[(SEND, 600), (SEND, 600)]);
    let mut requester = over_trains(2);
    let lens = |desk: &Desk| -> Vec<u32> {
        let len = |payload: &Payload| match *payload {
            Payload::Request { len, .. } => len,
            Payload::None | Payload::Region(_) => panic!("{payload:?}"),
        };
        desk.emitted.iter().map(|(_, payload)| len(payload)).collect()
    };
    let mut desk = Desk { room: 1, ..Desk::new() };
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(lens(&desk), [256]);
    requester.learn_of_keeping();
    let mut desk = Desk::new();
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!(lens(&desk), [256, 88, 200, 200, 200]);
}

/// Goal: a short READ is asked for in pieces of one packet, no more of them at once than was agreed on.
#[test]
fn a_read_over_trains_is_pieces_that_keep_to_the_limit() {
    let (_, mut queue) = with_work(&[(READ, 400), (READ, 400), (READ, 4000)]);
    let mut requester = over_trains(9);
    let mut desk = Desk { room: 3, ..Desk::new() };
    let (_, packets) = requester.transmit(0, NOW, &mut queue, &mut desk);
    assert_eq!((packets, reths(&desk)), (3, Vec::from([(0, 200), (200, 200), (0, 200)])));
    let mut desk = Desk::new();
    let _ = requester.transmit(0, NOW, &mut queue, &mut desk);
    let expected = [(200, 200), (0, 1024), (1024, 1024), (2048, 1024)];
    assert_eq!(reths(&desk), expected, "a long one goes in long pieces");
}

/// Goal: READs that are answered one by one are asked for two by two, where that is a quarter of those under way, so that
/// questions and answers stay trains; going back waits for nothing.
#[test]
fn reads_over_trains_are_asked_for_together() {
    let asked = |requester: &mut Requester, queue: &mut SendQueue, unacked| {
        emit(requester, queue, unacked).into_iter().map(|(_, at)| at).collect::<Vec<_>>()
    };
    let (_, mut queue) = with_work(&[(READ, 100); 12]);
    let mut requester = over_trains(8);
    assert_eq!(asked(&mut requester, &mut queue, 0), (0..8).collect::<Vec<_>>());
    for (unacked, expected) in [(1, &[][..]), (2, &[8, 9]), (3, &[])] {
        requester.on_progress(unacked, 1, &queue);
        assert_eq!(asked(&mut requester, &mut queue, unacked), expected, "{unacked}");
    }
    requester.rewind(3, &queue);
    assert_eq!(asked(&mut requester, &mut queue, 3), (3..11).collect::<Vec<_>>());
    for (unacked, expected) in [(4, &[][..]), (5, &[11])] {
        requester.on_progress(unacked, 1, &queue);
        assert_eq!(asked(&mut requester, &mut queue, unacked), expected, "{unacked}");
    }
}

/// Goal: a piece of a READ that the responder may not have executed is asked for whole: if it executed the
/// beginning, it would ignore requests that begin there and go on to the end of the piece.
/// Method: pieces of four packets; the first three answers of one have come, and it is not known of more.
#[test]
fn a_part_of_a_piece_is_asked_for_again_only_where_the_whole_is_known_to_be_executed() {
    let asked = |again: &dyn Fn(&mut Requester, &SendQueue)| {
        let (_, mut queue) = with_work(&[(READ, 256 * 12)]);
        let mut requester = over_trains(9);
        requester.learn_of_keeping();
        let _ = requester.transmit(0, NOW, &mut queue, &mut Desk::new());
        again(&mut requester, &queue);
        let mut desk = Desk::new();
        let _ = requester.transmit(3, NOW, &mut queue, &mut desk);
        reths(&desk).into_iter().map(|(at, len)| (at / 256, len / 256)).collect::<Vec<_>>()
    };
    let missing = |from, to, executed| Missing { from, to, executed, late_ns: 1 };
    assert_eq!(asked(&|requester, queue| requester.probe(3, None, NOW, queue)), [(3, 1), (4, 4)]);
    assert_eq!(
        asked(&|requester, queue| requester.probe(3, Some(6), NOW, queue)),
        [(3, 1), (4, 2)]
    );
    for (to, executed, expected) in
        [(6, false, [(3, 1), (4, 4)]), (8, false, [(3, 1), (4, 4)]), (6, true, [(3, 1), (4, 2)])]
    {
        let fill = |requester: &mut Requester, queue: &SendQueue| {
            assert!(requester.fill(missing(3, to, executed), NOW, queue));
        };
        assert_eq!(asked(&fill), expected, "to {to}, executed: {executed}");
    }
}
