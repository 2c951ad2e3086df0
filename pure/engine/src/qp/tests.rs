//! The queue pair as its owner sees it: states, strangers, debts and the clock.

use super::*;
use crate::attributes::Attributes;
use crate::host::Reach;
use crate::testing::{
    ATOMIC, BYTES, Desk, FIRST, PEER, READ, REMOTE, SEND, SHARED_MEMORY, WRITE, ack, asking,
    connect, init, packet, read_request, request, rtr, rts, send_only, steps,
};
use adverb_wire::{Nak, Operation, Psn, Syndrome, Transport};
use alloc::vec::Vec;

mod eager;
mod local;
mod states;

const NOW: Time = Time::ZERO;

/// A queue pair in this state, reached the proper way.
fn in_state(state: QpState) -> Qp {
    let mut qp = Qp::new(QpOptions::rc(Qpn::new(0x11), 8));
    for (to, attributes) in steps() {
        if qp.state() == state {
            return qp;
        }
        qp.modify(to, &attributes, &mut Desk::new()).unwrap();
    }
    if state == QpState::Err {
        qp.to_err(&mut Desk::new());
    }
    qp
}

const STATES: [QpState; 5] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];

#[test]
fn states_follow_one_another_and_nothing_is_skipped() {
    for from in STATES {
        let goes = |to, with| in_state(from).modify(to, &with, &mut Desk::new()).is_ok();
        let is_new = matches!(from, QpState::Reset | QpState::Init);
        assert_eq!(goes(QpState::Init, init()), is_new, "{from}");
        assert_eq!(goes(QpState::Rtr, rtr()), from == QpState::Init, "{from}");
        assert_eq!(goes(QpState::Rts, rts()), from == QpState::Rtr, "{from}");
        assert_eq!(in_state(from).state(), from);
    }
}

#[test]
fn packets_from_strangers_are_dropped_and_counted() {
    let stranger = Gid::from_v4([192, 0, 2, 66]);
    let mut foreign = asking(send_only(0));
    foreign.headers.bth.pkey = Pkey(0x8001);
    let mut limited = asking(send_only(0));
    limited.headers.bth.pkey = Pkey(0x7fff);
    let mut unreliable = asking(send_only(0));
    unreliable.headers.bth.opcode =
        adverb_wire::Opcode::of(Transport::Uc, Operation::SendOnly).unwrap();
    let lines = [
        (asking(send_only(0)), stranger, true),
        (foreign, PEER, true),
        (unreliable, PEER, true),
        (limited, PEER, false), // One full member is enough.
        (asking(send_only(0)), PEER, false),
    ];
    for (packet, source, dropped) in lines {
        let mut qp = in_state(QpState::Rts);
        let mut desk = Desk::with_receives(1, 100);
        qp.on_packet(&packet, source, NOW, &mut desk);
        qp.transmit(NOW, true, &mut desk);
        assert_eq!(qp.counters().dropped_pkts, u64::from(dropped), "{packet:?} from {source}");
        assert_eq!(desk.emitted.len(), usize::from(!dropped));
    }
}

#[test]
fn packets_are_served_only_in_states_that_receive() {
    for state in STATES {
        let mut qp = in_state(state);
        let mut desk = Desk::with_receives(1, 100);
        qp.on_packet(&asking(send_only(0)), PEER, NOW, &mut desk);
        assert!(!qp.transmit(NOW, true, &mut desk));
        let serves = matches!(state, QpState::Rtr | QpState::Rts);
        assert_eq!(desk.emitted.len(), usize::from(serves), "{state}");
        assert_eq!(qp.counters().dropped_pkts, u64::from(!serves), "{state}");
    }
}

/// Goal: the peer learns why, even though the queue pair is already in ERR.
#[test]
fn a_refusal_leaves_after_the_queue_pair_has_failed_and_nothing_after_it() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk { room: 1, ..Desk::new() };
    qp.on_packet(&read_request(0, 600), PEER, NOW, &mut desk);
    qp.on_packet(&packet(Operation::SendLast, 3, Extension::None, 1), PEER, NOW, &mut desk);
    assert_eq!(qp.state(), QpState::Err);
    let mut emitted = Vec::new();
    while qp.transmit(NOW, true, &mut desk) {
        emitted.append(&mut desk.operations());
    }
    emitted.append(&mut desk.operations());
    let expected = [
        (Operation::ReadResponseFirst, 0),
        (Operation::ReadResponseMiddle, 1),
        (Operation::ReadResponseLast, 2),
        (Operation::Acknowledge, 3),
    ];
    assert_eq!(emitted, expected);
    qp.on_packet(&asking(send_only(0)), PEER, NOW, &mut desk);
    assert!(!qp.transmit(NOW, true, &mut desk) && desk.emitted.is_empty());
}

/// Goal: a peer that takes nothing any more is given up, though nothing is under way to it; and one that has made
/// room is waited for from then on. Method: no room at all, in which time passes.
#[test]
fn requests_for_which_there_is_no_room_run_out_of_time() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk { room: 0, ..Desk::new() };
    qp.post(request(SEND, 1)).unwrap();
    assert!(qp.transmit(NOW, true, &mut desk));
    assert_eq!(qp.next_deadline(), None, "it is the host's business");
    qp.on_no_room(NOW);
    let first = qp.next_deadline().expect("it is not waited for ever");
    desk.room = usize::MAX;
    qp.transmit(NOW.plus_nanos(1), true, &mut desk);
    qp.on_timer(first, &mut desk);
    assert_eq!(qp.counters().ack_timeout, 0, "it has just left");
    desk.room = 0;
    for _ in 0..100 {
        let Some(deadline) = qp.next_deadline() else {
            break;
        };
        qp.on_timer(deadline, &mut desk);
        if qp.transmit(deadline, true, &mut desk) {
            qp.on_no_room(deadline);
        }
    }
    assert_eq!(qp.state(), QpState::Err);
    assert!(qp.counters().ack_timeout > 0);
}

/// Goal: a queue pair that has waited for room, and then needed none, has no deadline: it would go to ERR with
/// nothing under way.
#[test]
fn what_is_carried_out_on_the_peers_memory_waits_for_no_room() {
    let mut qp = in_state(QpState::Reset);
    qp.set_link(SHARED_MEMORY);
    connect(&mut qp);
    let mut desk = Desk { room: 0, ..Desk::new() };
    qp.post(request(WRITE, 1)).unwrap();
    assert!(qp.transmit(NOW, true, &mut desk));
    qp.on_no_room(NOW);
    assert!(qp.next_deadline().is_some());
    desk.reach = Reach::Done;
    desk.room = usize::MAX;
    assert!(!qp.transmit(NOW, true, &mut desk));
    assert_eq!((qp.outstanding(), qp.next_deadline()), (0, None));
}

#[test]
fn a_queue_pair_that_fails_by_itself_says_nothing_more() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk::with_receives(2, 100);
    qp.on_packet(&read_request(0, 600), PEER, NOW, &mut desk);
    qp.on_packet(&asking(send_only(3)), PEER, NOW, &mut desk);
    qp.to_err(&mut desk);
    assert!(!qp.transmit(NOW, true, &mut desk));
    assert!(desk.emitted.is_empty());
    assert_eq!(desk.received.len(), 2);
}

#[test]
fn there_is_no_deadline_in_err() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk::new();
    qp.post(request(WRITE, 100)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    assert!(qp.next_deadline().is_some());
    qp.to_err(&mut desk);
    assert_eq!(qp.next_deadline(), None);
    qp.on_timer(Time::from_nanos(u64::MAX), &mut desk);
    assert_eq!(desk.sent.len(), 1);
}

/// Goal: a refusal that comes during a pause does not start the clock.
#[test]
fn nothing_is_late_during_a_pause() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk::new();
    qp.post(request(SEND, 100)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    let timer = adverb_wire::RnrTimer::new(0);
    let until = NOW.plus_nanos(timer.nanos());
    qp.on_packet(&ack(0, Syndrome::RnrNak(timer)), PEER, NOW, &mut desk);
    assert_eq!(qp.next_deadline(), Some(until));
    qp.on_packet(&ack(0, Syndrome::Nak(Nak::SequenceError)), PEER, NOW, &mut desk);
    assert_eq!(qp.next_deadline(), Some(until));
    desk.emitted.clear();
    assert!(!qp.transmit(NOW, true, &mut desk) && desk.emitted.is_empty());
    qp.on_timer(until, &mut desk);
    qp.transmit(until, true, &mut desk);
    assert_eq!(desk.operations(), [(Operation::SendOnly, 0)]);
    assert!(qp.next_deadline().is_some_and(|deadline| deadline > until));
}

#[test]
fn acknowledgements_can_be_held_back_and_then_cover_more() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk::with_receives(3, 100);
    for at in 0..3 {
        qp.on_packet(&asking(send_only(at)), PEER, NOW, &mut desk);
        assert!(!qp.transmit(NOW, false, &mut desk));
        assert!(qp.owes_ack() && desk.emitted.is_empty());
    }
    assert!(!qp.transmit(NOW, true, &mut desk));
    assert_eq!(desk.acks(), [(2, Syndrome::ACK, 3)]);
    assert!(!qp.owes_ack());
}

/// Goal: a side with requests to send without end acknowledges all the same, and before the peer's time-out
/// ends. Method: room for one packet at a time.
#[test]
fn a_stream_of_requests_does_not_hold_back_the_acknowledgement() {
    for before in 0..2 {
        let mut qp = in_state(QpState::Rts);
        let mut desk = Desk { room: 1, ..Desk::with_receives(1, 100) };
        for _ in 0..8 {
            qp.post(request(SEND, 100)).unwrap();
        }
        (0..before).for_each(|_| assert!(qp.transmit(NOW, true, &mut desk)));
        qp.on_packet(&asking(send_only(0)), PEER, NOW, &mut desk);
        for _ in 0..3 {
            desk.room = desk.emitted.len() + 1;
            assert!(qp.transmit(NOW, true, &mut desk), "more requests wait");
        }
        assert_eq!(desk.acks(), [(0, Syndrome::ACK, 1)], "{before} before");
    }
}

#[test]
fn a_reset_forgets_everything_without_a_word() {
    let mut qp = in_state(QpState::Rts);
    let mut desk = Desk::new();
    qp.post(request(SEND, 1)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    qp.modify(QpState::Reset, &Attributes::default(), &mut desk).unwrap();
    assert_eq!((qp.state(), qp.outstanding(), qp.remote()), (QpState::Reset, 0, None));
    assert!(desk.sent.is_empty());

    // The next life starts afresh, but indices go on.
    connect(&mut qp);
    desk.emitted.clear();
    assert_eq!(qp.post(request(SEND, 1)), Ok(1));
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(desk.operations(), [(Operation::SendOnly, 0)]);
    assert_eq!(qp.remote(), Some((PEER, REMOTE)));
}

/// Goal: whatever is aimed at a queue pair, in whatever state, it neither panics nor loops, and
/// every request ends at most once. Method: random headers near the window, from a fixed seed.
#[test]
fn random_packets_break_promises_in_no_state() {
    let mut random = 0x5eed_u64;
    let mut next = move |bound: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for round in 0..3_000 {
        let state = STATES[usize::try_from(next(6)).unwrap().min(4)];
        let mut qp = in_state(state);
        let mut desk = Desk::with_receives(4, 600);
        let posted =
            [request(READ, 3000), request(SEND, 600), request(ATOMIC, 8), request(WRITE, 0)];
        let posted = posted.into_iter().filter(|request| qp.post(*request).is_ok()).count();
        let mut now = NOW;
        for _ in 0..40 {
            qp.transmit(now, next(2) == 0, &mut desk);
            desk.emitted.clear();
            let mut bytes = BYTES;
            for byte in &mut bytes[..64] {
                *byte = u8::try_from(next(256)).unwrap();
            }
            // Plausible where it matters: RC, the right partition, a PSN near the window.
            bytes[0] = u8::try_from(next(24)).unwrap();
            bytes[1] = 0x40;
            (bytes[2], bytes[3]) = (0xff, 0xff);
            let near = Psn::new(u32::try_from(next(24)).unwrap()).plus(FIRST.get()).minus(6);
            bytes[9..12].copy_from_slice(&near.get().to_be_bytes()[1..]);
            if next(2) == 0 {
                bytes[12..28]
                    .copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x77, 0, 0, 3, 0]);
            }
            let len = 16 + usize::try_from(4 * next(100)).unwrap();
            if let Ok(packet) = Packet::parse(&bytes[..len]) {
                qp.on_packet(&packet, PEER, now, &mut desk);
            }
            if next(8) == 0 {
                now = qp.next_deadline().unwrap_or(now).max(now);
                qp.on_timer(now, &mut desk);
            }
        }
        qp.to_err(&mut desk);
        let ended: Vec<u64> = desk.sent.iter().map(|done| done.index).collect();
        let all: Vec<u64> = (0..u64::try_from(posted).unwrap()).collect();
        assert_eq!(ended, all, "round {round}, {state}");
        assert_eq!(desk.received.len(), 4, "round {round}, {state}");
    }
}
