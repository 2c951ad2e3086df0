//! The responder alone: packets in, answers out, in order and each once.

use super::*;
use crate::host::Receive;
use crate::status::WcStatus;
use crate::testing::{
    Desk, FIRST, MTU, PATH, RKEY, VA, asking, packet, read_request, send_only, settings,
};
use alloc::vec::Vec;

fn responder() -> Responder {
    Responder::new(PATH, &settings())
}

fn serve(responder: &mut Responder, packet: &Packet<'_>, desk: &mut Desk) -> Served {
    responder.on_request(packet, &mut QpCounters::default(), desk)
}

/// Serves packets that must all be fine.
fn serve_all(responder: &mut Responder, packets: &[Packet<'_>], desk: &mut Desk) {
    for packet in packets {
        assert_eq!(serve(responder, packet, desk), Served::Fine, "{packet:?}");
    }
}

fn atomic(at: i32) -> Packet<'static> {
    let operands = AtomicEth { va: VA, rkey: RKEY, swap_or_add: 1, compare: 0 };
    packet(Operation::FetchAdd, at, Extension::Atomic(operands), 0)
}

fn write(operation: Operation, at: i32, total: u32, len: usize) -> Packet<'static> {
    let reth = Reth { va: VA, rkey: RKEY, len: total };
    let extension = if operation.is_start() { Extension::Reth(reth) } else { Extension::None };
    packet(operation, at, extension, len)
}

fn pay(responder: &mut Responder, desk: &mut Desk) -> Vec<(i32, Syndrome, u32)> {
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), desk), Served::Fine);
    responder.transmit_ack(desk);
    desk.acks()
}

const SEQUENCE: Syndrome = Syndrome::Nak(Nak::SequenceError);

#[test]
fn one_acknowledgement_covers_all_that_came_and_counts_messages() {
    let mut desk = Desk::with_receives(3, 100);
    let mut responder = responder();
    let packets = [send_only(0), asking(send_only(1)), send_only(2)];
    serve_all(&mut responder, &packets, &mut desk);

    // The third did not ask, but it is covered when the acknowledgement leaves.
    assert_eq!(pay(&mut responder, &mut desk), [(2, Syndrome::ACK, 3)]);
    assert_eq!(pay(&mut responder, &mut desk), []);
}

/// Goal: a peer that may have to wait is known: it has asked in the midst of a message, or again.
#[test]
fn an_acknowledgement_is_awaited_in_the_midst_of_a_message_and_by_a_peer_that_repeats_itself() {
    let mut desk = Desk::with_receives(1, 100);
    let mtu = usize::try_from(MTU.bytes()).unwrap();
    let mut responder = responder();
    let total = 2 * MTU.bytes();
    serve_all(&mut responder, &[asking(send_only(0))], &mut desk);
    assert!(responder.owes_plain_ack() && !responder.is_awaited());
    let first = asking(write(Operation::WriteFirst, 1, total, mtu));
    serve_all(&mut responder, &[first], &mut desk);
    assert!(responder.is_awaited());
    pay(&mut responder, &mut desk);
    assert!(!responder.is_awaited());

    let last = asking(write(Operation::WriteLast, 2, total, mtu));
    serve_all(&mut responder, &[last], &mut desk);
    assert!(responder.owes_plain_ack() && !responder.is_awaited());
    serve_all(&mut responder, &[last], &mut desk);
    assert!(responder.is_awaited());
    pay(&mut responder, &mut desk);

    // What is answered with data is no acknowledgement.
    serve_all(&mut responder, &[asking(read_request(3, 8)), asking(read_request(3, 8))], &mut desk);
    assert!(!responder.is_awaited());
}

#[test]
fn what_was_not_asked_for_is_not_answered() {
    let mut desk = Desk::with_receives(1, 100);
    let mut responder = responder();
    serve_all(&mut responder, &[send_only(0), send_only(0)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), []);
    assert_eq!(desk.received.len(), 1);
}

/// Goal: the peer is told of a hole once, until the missing packet comes.
#[test]
fn a_missing_packet_is_reported_once() {
    let mut desk = Desk::with_receives(9, 100);
    let mut responder = responder();
    serve_all(&mut responder, &[send_only(0), send_only(2)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(1, SEQUENCE, 1)]);
    serve_all(&mut responder, &[send_only(3), send_only(4)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), []);

    serve_all(&mut responder, &[send_only(1), send_only(3)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(2, SEQUENCE, 2)]);
}

/// Goal: a complaint that has not left yet names what is missing when it leaves.
#[test]
fn a_late_packet_moves_the_complaint_to_what_was_dropped() {
    let mut desk = Desk::with_receives(9, 100);
    let mut responder = responder();
    let packets = [send_only(0), send_only(3), asking(send_only(1)), send_only(2)];
    serve_all(&mut responder, &packets, &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(3, SEQUENCE, 3)]);
}

#[test]
fn a_complaint_becomes_an_acknowledgement_when_nothing_is_missing_any_more() {
    let mut desk = Desk::with_receives(9, 100);
    let mut responder = responder();
    let packets = [send_only(0), send_only(2), send_only(1), send_only(2)];
    serve_all(&mut responder, &packets, &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(2, Syndrome::ACK, 3)]);
}

#[test]
fn without_a_receive_the_peer_is_put_off_and_what_follows_is_dropped() {
    let mut desk = Desk::new();
    let mut responder = responder();
    let packets = [send_only(0), asking(send_only(1))];
    serve_all(&mut responder, &packets, &mut desk);
    let refusal = (0, Syndrome::RnrNak(settings().min_rnr_timer), 0);
    assert_eq!(pay(&mut responder, &mut desk), [refusal]);

    desk.receives.push_back(Receive { token: 0, len: 10 });
    desk.receives.push_back(Receive { token: 1, len: 10 });
    serve_all(&mut responder, &packets, &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(1, Syndrome::ACK, 2)]);
}

#[test]
fn a_read_takes_as_many_numbers_as_its_answer_has_packets() {
    let mut desk = Desk::new();
    let mut responder = responder();
    serve_all(&mut responder, &[read_request(0, 600)], &mut desk);
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    let payloads: Vec<u32> = desk.emitted.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(payloads, [256, 256, 88]);
    let expected = [
        (Operation::ReadResponseFirst, 0),
        (Operation::ReadResponseMiddle, 1),
        (Operation::ReadResponseLast, 2),
    ];
    assert_eq!(desk.operations(), expected);
    serve_all(&mut responder, &[asking(write(Operation::WriteOnly, 3, 0, 0))], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(3, Syndrome::ACK, 2)]);
}

/// Goal: data acknowledge what was before them, so nothing is said twice; and they go first.
#[test]
fn data_go_before_the_acknowledgement_of_what_came_after_them() {
    let mut desk = Desk::with_receives(9, 100);
    let mut responder = responder();
    let packets = [asking(send_only(0)), read_request(1, 10), asking(send_only(2))];
    serve_all(&mut responder, &packets, &mut desk);
    responder.transmit_ack(&mut desk);
    assert!(desk.emitted.is_empty(), "an acknowledgement would overtake data");
    let expected = [(1, Syndrome::ACK, 2), (2, Syndrome::ACK, 3)];
    assert_eq!(pay(&mut responder, &mut desk), expected);
}

#[test]
fn a_repeated_read_is_read_again_and_only_within_what_was_asked() {
    let mut desk = Desk::new();
    let mut responder = responder();
    serve_all(&mut responder, &[read_request(0, 600)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk).len(), 2); // MIDDLE has no AETH.

    serve_all(&mut responder, &[read_request(1, 344)], &mut desk);
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    let read = |(_, payload): &(_, Payload)| matches!(payload, Payload::Region(_));
    assert!(desk.emitted.iter().all(read));
    let expected = [(Operation::ReadResponseFirst, 1), (Operation::ReadResponseLast, 2)];
    assert_eq!(desk.operations(), expected);

    serve_all(&mut responder, &[read_request(1, 600)], &mut desk);
    assert!(!responder.owes_data(), "packet 3 was not asked for before");
}

#[test]
fn a_repeated_read_replaces_what_is_still_owed_of_it() {
    let mut desk = Desk { room: 2, ..Desk::new() };
    let mut responder = responder();
    serve_all(&mut responder, &[read_request(0, 1000), read_request(4, 10)], &mut desk);
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    assert_eq!(desk.operations().len(), 2);
    serve_all(&mut responder, &[read_request(0, 1000), read_request(4, 10)], &mut desk);
    desk.room = usize::MAX;
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    let numbers: Vec<i32> = desk.operations().into_iter().map(|(_, at)| at).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}

/// Goal: a READ that was answered before ends no connection when it comes again and its region is gone since.
/// Method: two packets of the repeated answer leave, then the region goes; another SEND is served.
#[test]
fn a_repeated_read_of_a_region_that_is_gone_is_dropped() {
    let mut desk = Desk { receives: [Receive { token: 0, len: 100 }].into(), ..Desk::new() };
    let mut responder = responder();
    serve_all(&mut responder, &[read_request(0, 1000)], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk).len(), 2, "an AETH in the first and in the last");
    serve_all(&mut responder, &[read_request(0, 1000)], &mut desk);
    desk.room = 2;
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    assert_eq!(desk.operations().len(), 2);
    (desk.room, desk.region) = (usize::MAX, false);
    assert_eq!(pay(&mut responder, &mut desk), []);
    serve_all(&mut responder, &[asking(send_only(4))], &mut desk);
    assert_eq!(pay(&mut responder, &mut desk), [(4, Syndrome::ACK, 2)]);
}

#[test]
fn a_repeated_atomic_is_answered_from_memory_while_it_may_be_asked_for() {
    let mut desk = Desk::new();
    let mut responder = responder();
    for at in 0..3 {
        serve_all(&mut responder, &[atomic(at)], &mut desk);
        assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    }
    desk.emitted.clear();
    serve_all(&mut responder, &[atomic(0), atomic(1), atomic(2)], &mut desk);
    assert_eq!(responder.transmit_data(&mut QpCounters::default(), &mut desk), Served::Fine);
    assert_eq!(desk.atomics, 3);
    let values: Vec<_> = desk.emitted.iter().map(|(headers, _)| headers.extension).collect();
    let answer = |msn, value| {
        Extension::AtomicAck(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(msn) }, value)
    };
    assert_eq!(values, [answer(2, 1002), answer(3, 1003)]); // Two at once were agreed on.
}

/// Goal: more at once than agreed on is refused, but repetitions do not count.
/// Goal: a peer whose atomic's or READ's answer was lost is not told by a plain acknowledgement that it has come:
/// `rdma_rxe` of Linux 6.1 completes an atomic then, without its value.
#[test]
fn a_repeated_send_is_not_acknowledged_with_the_number_of_an_answer() {
    let mut desk = Desk::with_receives(9, 100);
    let mut responder = responder();
    for packet in [asking(send_only(0)), atomic(1), read_request(2, 10), atomic(3)] {
        serve_all(&mut responder, &[packet], &mut desk);
        pay(&mut responder, &mut desk);
    }
    serve_all(&mut responder, &[asking(send_only(0))], &mut desk);
    let acks = pay(&mut responder, &mut desk);
    assert_eq!(acks.iter().map(|(at, _, _)| *at).collect::<Vec<_>>(), [0], "{acks:?}");

    // What is executed after them may be acknowledged as ever.
    serve_all(&mut responder, &[send_only(4), asking(send_only(0))], &mut desk);
    let acks = pay(&mut responder, &mut desk);
    assert_eq!(acks.iter().map(|(at, _, _)| *at).collect::<Vec<_>>(), [4], "{acks:?}");
}

#[test]
fn a_repeated_atomic_write_is_answered_as_the_first_was() {
    let mut desk = Desk::new();
    let mut responder = responder();
    for _ in 0..2 {
        serve_all(&mut responder, &[asking(atomic_write(0))], &mut desk);
        responder.transmit_ack(&mut desk);
        assert_eq!(desk.operations(), [(Operation::ReadResponseOnly, 0)]);
        desk.emitted.clear();
    }
}

#[test]
fn resources_are_for_new_requests() {
    let mut desk = Desk { room: 0, ..Desk::new() };
    let mut responder = responder();
    serve_all(&mut responder, &[atomic(0), atomic(1)], &mut desk);
    serve_all(&mut responder, &[atomic(0), atomic(1)], &mut desk);
    serve_all(&mut responder, &[atomic(2), atomic(3)], &mut desk);
    let invalid = Served::Fatal(Some(QpEvent::QpReqErr));
    assert_eq!(serve(&mut responder, &atomic(4), &mut desk), invalid);
    assert_eq!(desk.atomics, 4);
}

/// Goal: FIRST and MIDDLE of a SEND need not fill the MTU if both sides are known to be of our kind, and only then.
#[test]
fn packets_of_a_send_are_as_long_as_a_peer_of_our_kind_likes() {
    let sent = |ours, lens: [usize; 3]| {
        let mut desk = Desk::with_receives(1, 4096);
        let mut responder = Responder::new(Path { keeps_early: ours, ..PATH }, &settings());
        let operations = [Operation::SendFirst, Operation::SendMiddle, Operation::SendLast];
        let served = (0..).zip(operations).zip(lens).map(|((at, operation), len)| {
            let mut packet = packet(operation, at, Extension::None, len);
            packet.headers.bth.keeps_early = true;
            serve(&mut responder, &packet, &mut desk)
        });
        let refused = served.filter(|served| *served != Served::Fine).count();
        (refused, desk.received.len())
    };
    assert_eq!(sent(true, [200, 4, 100]), (0, 1));
    assert_eq!(sent(false, [200, 4, 100]), (1, 0));
    for lens in [[0, 4, 4], [6, 4, 4], [260, 4, 4]] {
        assert_eq!(sent(true, lens), (1, 0), "{lens:?}");
    }
}

/// Each line: packets of which the last makes no sense after the ones before.
#[test]
fn what_makes_no_sense_is_an_invalid_request() {
    use Operation::{
        AtomicWrite, SendFirst, SendLast, SendMiddle, SendOnly, WriteFirst, WriteLast, WriteMiddle,
        WriteOnly,
    };
    let mtu = usize::try_from(MTU.bytes()).unwrap();
    let total = MTU.bytes() * 2;
    let send = |operation, at, len| packet(operation, at, Extension::None, len);
    let lines: &[&[Packet<'_>]] = &[
        &[send(SendMiddle, 0, mtu)],
        &[send(SendLast, 0, 1)],
        &[write(WriteMiddle, 0, total, mtu)],
        &[write(WriteLast, 0, total, mtu)],
        &[send(SendFirst, 0, mtu), send(SendFirst, 1, mtu)],
        &[send(SendFirst, 0, mtu), send(SendOnly, 1, 1)],
        &[send(SendFirst, 0, mtu), read_request(1, 1)],
        &[send(SendFirst, 0, mtu), write(WriteMiddle, 1, total, mtu)],
        &[write(WriteFirst, 0, total, mtu), send(SendLast, 1, 1)],
        &[write(WriteFirst, 0, total, mtu), atomic(1)],
        &[send(SendFirst, 0, mtu - 1)],
        &[send(SendFirst, 0, mtu), send(SendMiddle, 1, mtu - 4)],
        &[send(SendFirst, 0, mtu), send(SendLast, 1, 0)],
        &[send(SendOnly, 0, mtu + 1)],
        &[write(WriteOnly, 0, 5, 6)],
        &[write(WriteOnly, 0, 6, 5)],
        &[write(WriteFirst, 0, total, mtu), write(WriteLast, 1, total, mtu - 1)],
        &[write(WriteFirst, 0, total, mtu), write(WriteMiddle, 1, total, mtu)],
        &[write(WriteOnly, 0, (1 << 31) + 1, 5)],
        &[read_request(0, (1 << 31) + 1)],
        &[packet(AtomicWrite, 0, read_request(0, 7).headers.extension, 8)],
        &[packet(AtomicWrite, 0, Extension::Reth(Reth { va: VA + 4, rkey: RKEY, len: 8 }), 8)],
    ];
    for line in lines {
        let mut desk = Desk::with_receives(9, 4096);
        let mut responder = responder();
        let (last, before) = line.split_last().unwrap();
        serve_all(&mut responder, before, &mut desk);
        let open = matches!(before, [first] if first.headers.bth.opcode.operation().is_send());
        // Where a completion tells, an event does not.
        let event = if open { None } else { Some(QpEvent::QpReqErr) };
        assert_eq!(serve(&mut responder, last, &mut desk), Served::Fatal(event), "{line:?}");
        let at = last.headers.bth.psn.since(FIRST);
        let expected = [(at, Syndrome::Nak(Nak::InvalidRequest), 0)];
        assert_eq!(pay(&mut responder, &mut desk), expected, "{line:?}");
        let ends: Vec<WcStatus> = desk.received.iter().map(|done| done.status).collect();
        let expected: &[WcStatus] = if open { &[WcStatus::RemoteInvalidRequest] } else { &[] };
        assert_eq!(ends, expected, "{line:?}");
    }
}

#[test]
fn a_receive_whose_memory_is_gone_ends_here_and_there() {
    let mut desk = Desk { local: false, ..Desk::with_receives(1, 100) };
    let mut responder = responder();
    assert_eq!(serve(&mut responder, &send_only(0), &mut desk), Served::Fatal(None));
    let expected = [(0, Syndrome::Nak(Nak::RemoteOperation), 0)];
    assert_eq!(pay(&mut responder, &mut desk), expected);
    assert_eq!(desk.received[0].status, WcStatus::LocalProtection);
}

fn atomic_write(at: i32) -> Packet<'static> {
    let reth = Reth { va: VA + 8, rkey: RKEY, len: 8 };
    packet(Operation::AtomicWrite, at, Extension::Reth(reth), 8)
}

/// Goal: an ATOMIC WRITE is acknowledged by the answer to a READ of nothing, unless something after
/// it is acknowledged anyway, and a copy is not executed.
#[test]
fn an_atomic_write_is_answered_as_a_read_of_nothing() {
    let mut desk = Desk::with_receives(1, 100);
    let mut responder = responder();
    let pay_all = |responder: &mut Responder, desk: &mut Desk| {
        assert_eq!(responder.transmit_data(&mut QpCounters::default(), desk), Served::Fine);
        responder.transmit_ack(desk);
        desk.operations()
    };
    serve_all(&mut responder, &[atomic_write(0), atomic_write(1)], &mut desk);
    assert_eq!(pay_all(&mut responder, &mut desk), [(Operation::ReadResponseOnly, 1)]);
    serve_all(&mut responder, &[atomic_write(2), asking(send_only(3))], &mut desk);
    assert_eq!(pay_all(&mut responder, &mut desk), [(Operation::Acknowledge, 3)]);
    serve_all(&mut responder, &[asking(atomic_write(2))], &mut desk);
    assert_eq!(pay_all(&mut responder, &mut desk), [(Operation::Acknowledge, 3)]);
    assert_eq!(desk.written_at_once, [(VA + 8, [0; 8]); 3]);
}

#[test]
fn a_send_invalidates_at_its_end_and_the_completion_says_what() {
    let mut desk = Desk::with_receives(2, 1000);
    let mut responder = responder();
    let ieth = Extension::Invalidate(adverb_wire::Ieth { rkey: RKEY });
    let first = packet(Operation::SendFirst, 0, Extension::None, 256);
    serve_all(&mut responder, &[first], &mut desk);
    assert!(desk.invalidated.is_empty());
    let last = packet(Operation::SendLastInvalidate, 1, ieth, 1);
    serve_all(&mut responder, &[last, last], &mut desk);
    assert_eq!(desk.invalidated, [(RKEY, crate::host::Invalidator::Peer)]);
    assert_eq!(desk.received[0].invalidated, Some(RKEY));
    assert_eq!(desk.received.len(), 1);

    let wrong = Extension::Invalidate(adverb_wire::Ieth { rkey: adverb_wire::Rkey(1) });
    let only = packet(Operation::SendOnlyInvalidate, 2, wrong, 1);
    assert_eq!(serve(&mut responder, &only, &mut desk), Served::Fatal(None));
    assert_eq!(desk.received[1].status, WcStatus::LocalAccess);
    assert_eq!(pay(&mut responder, &mut desk), [(2, Syndrome::Nak(Nak::RemoteAccess), 1)]);
}
