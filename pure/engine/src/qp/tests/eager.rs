//! The eager path between neighbours, held against the general one: after the same events, both leave
//! the same queue pair behind, and have told their host the same.

use super::super::Origin;
use super::local::neighbour;
use super::*;
use crate::eager::EagerHeader;
use crate::host::{FetchError, LocalError, Reach};
use crate::testing::{SEGMENT, kind_of};
use crate::transport::RequestOp;
use crate::work::{Request, RequestKind};
use adverb_wire::{Extension, Imm, Pkey};
use alloc::format;
use alloc::string::String;

/// An eager header of the SEND `at` packets after the first.
fn eager(at: u32) -> EagerHeader {
    EagerHeader {
        dest_qp: Qpn::new(0x11),
        psn: Some(FIRST.plus(at)),
        pkey: Pkey::DEFAULT,
        ack_request: true,
        solicited: false,
        imm: None,
        acked: None,
    }
}

/// All that can be told of a queue pair, but for whose turn it is.
fn told(qp: &Qp) -> String {
    let turn = format!("requests_first: {}", qp.requests_first);
    format!("{qp:?}").replace(&turn, "")
}

fn desk(receives: u32, len: u32) -> Desk {
    Desk { by_reference: Some(10), ..Desk::with_receives(receives, len) }
}

/// Goal: an eager header is the packet that it stands for, whatever the queue pair is up to.
/// Method: what has come before, how many receives there are and how long, what fetching comes to;
/// then an eager header to one queue pair and a packet to the other, and what both emit.
#[test]
fn an_eager_send_does_what_its_packet_does() {
    type Before = fn(&mut Qp, &mut Desk);
    let nothing: Before = |_, _| {};
    let befores: [(&str, Before); 6] = [
        ("nothing", nothing),
        ("a SEND", |qp, desk| qp.on_packet(&asking(send_only(0)), PEER, NOW, desk)),
        ("a gap", |qp, desk| qp.on_packet(&asking(send_only(5)), PEER, NOW, desk)),
        ("a READ", |qp, desk| qp.on_packet(&read_request(0, 100), PEER, NOW, desk)),
        ("half a message", |qp, desk| {
            let first = packet(Operation::SendFirst, 0, Extension::None, 0);
            qp.on_packet(&first, PEER, NOW, desk);
        }),
        ("an end", |qp, desk| qp.to_err(desk)),
    ];
    let broken = Err(FetchError::Local(LocalError::Protection));
    for (name, before) in befores {
        for (receives, len, fetches) in
            [(3, 100, Ok(())), (0, 100, Ok(())), (3, 9, Ok(())), (3, 100, broken)]
        {
            for at in 0..3_u32 {
                let run = |hand: &mut dyn FnMut(&mut Qp, &mut Desk)| {
                    let (mut qp, mut desk) = (neighbour(), desk(receives, len));
                    before(&mut qp, &mut desk);
                    desk.fetches = fetches;
                    hand(&mut qp, &mut desk);
                    qp.transmit(Time::UNKNOWN, true, &mut desk);
                    (told(&qp), format!("{desk:?}"))
                };
                let packet_of = asking(send_only(i32::try_from(at).unwrap()));
                let packet_of = Packet { payload: &[], ..packet_of };
                let short = run(&mut |qp, desk| qp.on_eager(&eager(at), 10, || NOW, desk));
                let general = run(&mut |qp, desk| qp.on_packet(&packet_of, PEER, NOW, desk));
                assert_eq!(short, general, "{name}, {receives} receives of {len}, SEND {at}");
            }
        }
    }
}

/// Goal: a host that takes a message by itself leaves what one leaves that is told to.
#[test]
fn an_eager_send_that_is_awaited_may_be_taken_without_being_handed_over() {
    let prepare: [fn(&mut Qp, &mut Desk); 5] = [
        |_, _| {},
        |qp, desk| qp.on_packet(&asking(send_only(0)), PEER, NOW, desk),
        |qp, desk| qp.on_packet(&asking(send_only(5)), PEER, NOW, desk),
        |qp, desk| {
            qp.on_packet(&packet(Operation::SendFirst, 0, Extension::None, 0), PEER, NOW, desk)
        },
        |qp, desk| qp.to_err(desk),
    ];
    let mut awaited = Vec::new();
    for (before, prepare) in prepare.into_iter().enumerate() {
        for at in 0..3 {
            let ready = || {
                let (mut qp, mut desk) = (neighbour(), desk(3, 100));
                prepare(&mut qp, &mut desk);
                desk.received.clear();
                (qp, desk)
            };
            let (mut alone, _) = ready();
            let Some(origin) = alone.awaits_eager(&eager(at)) else {
                continue;
            };
            alone.note_taken();
            let (mut told_to, mut desk) = ready();
            assert!(told_to.on_eager_message(&eager(at), 10, &mut desk));
            assert_eq!(told(&alone), told(&told_to), "{before}, SEND {at}");
            let done = desk.received[0];
            assert_eq!(origin, Origin { src_qp: done.src_qp, pkey_index: done.pkey_index });
            awaited.push((before, at));
        }
    }
    assert_eq!(awaited, [(0, 0), (1, 1)]);
    let others = [
        EagerHeader { pkey: Pkey(0x8001), ..eager(0) },
        EagerHeader { psn: None, acked: Some(FIRST), ..eager(0) },
    ];
    assert!(others.iter().all(|eager| neighbour().awaits_eager(eager).is_none()));
    assert!(
        [QpState::Init, QpState::Rtr]
            .map(in_state)
            .iter()
            .all(|qp| qp.awaits_eager(&eager(0)).is_none())
    );
}

#[test]
fn an_eager_send_of_a_stranger_or_before_the_connection_is_known_is_no_other_than_its_packet() {
    for (state, pkey) in [
        (QpState::Rtr, Pkey::DEFAULT),
        (QpState::Rts, Pkey(0x8001)),
        (QpState::Rts, Pkey(0x7fff)),
        (QpState::Init, Pkey::DEFAULT),
    ] {
        let run = |hand: &mut dyn FnMut(&mut Qp, &mut Desk)| {
            let (mut qp, mut desk) = (in_state(state), desk(1, 100));
            hand(&mut qp, &mut desk);
            qp.transmit(Time::UNKNOWN, true, &mut desk);
            (told(&qp), format!("{desk:?}"))
        };
        let mut packet = asking(Packet { payload: &[], ..send_only(0) });
        packet.headers.bth.pkey = pkey;
        let eager = EagerHeader { pkey, ..eager(0) };
        let short = run(&mut |qp, desk| qp.on_eager(&eager, 10, || NOW, desk));
        let general = run(&mut |qp, desk| qp.on_packet(&packet, PEER, NOW, desk));
        assert_eq!(short, general, "{state} {pkey:?}");
    }
}

#[test]
fn what_an_eager_header_says_besides_its_bytes_is_in_the_completion() {
    let (mut qp, mut desk) = (neighbour(), desk(1, 100));
    let whole = EagerHeader { imm: Some(Imm(7)), solicited: true, ..eager(0) };
    qp.on_eager(&whole, 10, || NOW, &mut desk);
    let done = desk.received[0];
    assert_eq!((done.imm, done.solicited, done.byte_len), (Some(Imm(7)), true, 10));
}

/// Goal: as above, for the sender. Method: requests posted one after the other, one of them
/// acknowledged in between, to one queue pair eagerly where that is possible.
#[test]
fn a_request_that_is_sent_eagerly_leaves_what_one_that_was_emitted_leaves() {
    let run = |short: bool| {
        let (mut qp, mut desk) = (neighbour(), Desk::new());
        let mut log = Vec::new();
        for round in 0..6 {
            let request = request(SEND, 8);
            if short {
                let (index, eager) = qp.send_eager(&request, false).unwrap();
                log.push((index, eager.psn, eager.ack_request));
            } else {
                let index = qp.post(request).unwrap();
                qp.transmit(Time::UNKNOWN, true, &mut desk);
                let bth = desk.emitted.pop().unwrap().0.bth;
                log.push((index, Some(bth.psn), bth.ack_request));
            }
            if round == 3 {
                qp.on_packet(&ack(1, Syndrome::ACK), PEER, Time::UNKNOWN, &mut desk);
            }
        }
        (log, told(&qp), format!("{:?}", desk.sent))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_message_by_reference_goes_eagerly_as_it_does_in_a_packet() {
    for len in [600, SEGMENT, 10 * SEGMENT] {
        let run = |short: bool| {
            let (mut qp, mut desk) = (neighbour(), Desk { by_reference: Some(len), ..Desk::new() });
            if short {
                qp.send_eager(&request(SEND, len), true).unwrap();
            } else {
                qp.post(request(SEND, len)).unwrap();
                qp.transmit(Time::UNKNOWN, true, &mut desk);
            }
            told(&qp)
        };
        assert_eq!(run(true), run(false), "{len}");
    }
}

/// Goal: what went by reference and found no receive goes again as one packet of all its bytes: they may be few
/// enough to go through the lane then.
#[test]
fn a_message_by_reference_that_is_refused_goes_again_whole() {
    for len in [600, SEGMENT, 10 * SEGMENT] {
        let (mut qp, mut desk) = (neighbour(), Desk::new());
        qp.send_eager(&request(SEND, len), true).unwrap();
        qp.on_packet(
            &ack(0, Syndrome::RnrNak(adverb_wire::RnrTimer::new(1))),
            PEER,
            NOW,
            &mut desk,
        );
        let later = qp.next_deadline().unwrap();
        qp.on_timer(later, &mut desk);
        qp.transmit(later, true, &mut desk);
        let (headers, payload) = &desk.emitted[0];
        assert_eq!(headers.bth.opcode.operation(), Operation::SendOnly, "{len}");
        assert_eq!((payload.len(), desk.emitted.len()), (len, 1));
    }
}

/// Each line: what is in the way.
#[test]
fn what_cannot_go_eagerly_is_left_alone() {
    type Obstacle = fn(&mut Qp, &mut Desk);
    let long = SEGMENT + 1;
    let obstacles: [(Request, Obstacle); 8] = [
        (request(SEND, long), |_, _| {}),
        (request(WRITE, 8), |_, _| {}),
        (request(kind_of(RequestOp::SendInvalidate), 8), |_, _| {}),
        (Request { fence: true, ..request(SEND, 8) }, |qp, desk| {
            qp.post(request(READ, 8)).unwrap();
            qp.transmit(NOW, true, desk);
        }),
        (request(SEND, 8), |qp, _| assert_eq!(qp.post(request(SEND, 8)), Ok(0))),
        (request(SEND, 8), |qp, desk| qp.to_err(desk)),
        (request(SEND, 8), |qp, desk| {
            qp.post(request(SEND, 8)).unwrap();
            qp.transmit(NOW, true, desk);
            let later = Syndrome::RnrNak(adverb_wire::RnrTimer::new(1));
            qp.on_packet(&ack(0, later), PEER, NOW, desk);
        }),
        (request(SEND, 8), |qp, desk| {
            qp.on_packet(&asking(send_only(3)), PEER, NOW, desk); // A refusal is owed.
        }),
    ];
    for (number, (request, obstacle)) in obstacles.into_iter().enumerate() {
        let (mut qp, mut desk) = (neighbour(), Desk::new());
        obstacle(&mut qp, &mut desk);
        let before = format!("{qp:?}");
        assert_eq!(qp.send_eager(&request, false), None, "{number}");
        assert_eq!(format!("{qp:?}"), before, "{number}");
    }
    assert_eq!(in_state(QpState::Rts).send_eager(&request(SEND, 8), false), None, "over a network");
}

/// Goal: SENDs in a row say what they say one by one, and leave the same.
#[test]
fn eager_sends_in_a_row_are_those_of_single_requests() {
    for signaled in [None, Some(1), Some(3)] {
        let run = |row: bool| {
            let (mut qp, mut desk) = (neighbour(), desk(1, 100));
            qp.on_eager_message(&eager(0), 10, &mut desk); // Which is to be acknowledged.
            let requests = (0..10).map(|at| {
                let imm = (at == 2).then_some(Imm(7));
                let kind = RequestKind::Send { imm };
                Request { signaled: signaled == Some(at), solicited: at == 4, ..request(kind, 8) }
            });
            let mut log = Vec::new();
            if row {
                let mut eager_sends = qp.eager_sends().unwrap();
                for request in requests {
                    let Some(planned) = eager_sends.plan(&request, false) else {
                        break;
                    };
                    log.push((
                        eager_sends.note(&request, false, &planned),
                        EagerHeader::parse(planned.words).unwrap(),
                    ));
                }
            } else {
                log.extend(requests.map_while(|request| qp.send_eager(&request, false)));
            }
            (log, told(&qp))
        };
        let (log, told) = run(true);
        assert_eq!((log.clone(), told), run(false), "{signaled:?}");
        assert_eq!((log.len(), log[0].1.acked, log[1].1.acked), (8, Some(FIRST), None));
    }
}

#[test]
fn the_queue_takes_eagerly_as_many_as_it_holds_and_asks_when_few_are_left() {
    let mut qp = neighbour();
    let quiet = Request { signaled: false, ..request(SEND, 8) };
    let asked: Vec<_> = core::iter::from_fn(|| qp.send_eager(&quiet, false))
        .map(|(_, eager)| eager.ack_request)
        .collect();
    assert_eq!(asked.len(), 8);
    assert!(!asked[0] && asked[7], "{asked:?}");
}

/// Goal: an acknowledgement rides on a request, goes alone, or goes as a packet, and is the same one.
#[test]
fn an_acknowledgement_goes_once_and_covers_what_was_executed() {
    for rides in [true, false] {
        let (mut qp, mut desk) = (neighbour(), desk(3, 100));
        for at in 0..3 {
            qp.on_eager(&eager(at), 10, || NOW, &mut desk);
        }
        assert!(qp.owes_plain_ack());
        let acked = match rides {
            true => qp.send_eager(&request(SEND, 8), false).unwrap().1.acked,
            false => qp.acknowledge_eagerly().unwrap().acked,
        };
        assert_eq!(acked, Some(FIRST.plus(2)));
        assert!(!qp.owes_ack() && qp.acknowledge_eagerly().is_none());
        assert!(!qp.transmit(NOW, true, &mut desk));
        assert!(desk.emitted.is_empty());
    }
}

/// Goal: an acknowledgement that found no room, and has left with an eager header since, does not go before later
/// requests.
#[test]
fn an_acknowledgement_that_has_left_with_an_eager_send_is_overdue_no_more() {
    let run = |short: bool| {
        let (mut qp, mut desk) = (neighbour(), desk(3, 100));
        qp.on_eager(&eager(0), 10, || NOW, &mut desk);
        desk.room = 0;
        qp.transmit(Time::UNKNOWN, true, &mut desk);
        assert!(desk.emitted.is_empty() && qp.owes_ack());
        desk.room = usize::MAX;
        match short {
            true => assert!(qp.acknowledge_eagerly().is_some()),
            false => _ = qp.transmit(Time::UNKNOWN, true, &mut desk),
        }
        told(&qp)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn an_acknowledgement_in_an_eager_header_does_what_its_packet_does() {
    // The last ones were never sent, or come twice.
    for acked in [vec_of(&[0]), vec_of(&[2]), vec_of(&[1, 1]), vec_of(&[2, 0]), vec_of(&[3])] {
        let run = |short: bool| {
            let (mut qp, mut desk) = (neighbour(), Desk::new());
            for _ in 0..3 {
                qp.send_eager(&request(SEND, 8), false).unwrap();
            }
            for at in &acked {
                let alone = EagerHeader { psn: None, acked: Some(FIRST.plus(*at)), ..eager(0) };
                let at = i32::try_from(*at).unwrap();
                match short {
                    true => qp.on_eager(&alone, 0, || NOW, &mut desk),
                    false => {
                        let packet = ack(at, Syndrome::ACK);
                        qp.on_packet(&packet, PEER, Time::UNKNOWN, &mut desk);
                    }
                }
            }
            (told(&qp), format!("{:?}", desk.sent))
        };
        assert_eq!(run(true), run(false), "{acked:?}");
    }
}

/// Goal: what a message acknowledges may be looked at after its answer was posted, and makes no difference.
#[test]
fn an_acknowledgement_that_came_with_a_message_can_wait_for_the_answer() {
    for acked in 0..2 {
        let run = |waits: bool| {
            let (mut qp, mut desk) = (neighbour(), desk(3, 100));
            for _ in 0..2 {
                qp.send_eager(&request(SEND, 8), false).unwrap();
            }
            let eager = EagerHeader { acked: Some(FIRST.plus(acked)), ..eager(0) };
            qp.on_eager_message(&eager, 10, &mut desk);
            if !waits {
                qp.on_eager_ack(&eager, || NOW, &mut desk);
            }
            let answer = qp.send_eager(&request(SEND, 8), false).unwrap();
            if waits {
                qp.on_eager_ack(&eager, || NOW, &mut desk);
            }
            (format!("{answer:?}"), told(&qp), format!("{desk:?}"))
        };
        assert_eq!(run(true), run(false), "{acked}");
    }
}

fn vec_of(numbers: &[u32]) -> Vec<u32> {
    numbers.to_vec()
}

#[test]
fn what_is_reached_at_once_leaves_what_the_general_way_leaves() {
    let run = |short: bool| {
        let (mut qp, mut desk) = (neighbour(), Desk { reach: Reach::Done, ..Desk::new() });
        for (kind, len) in [(WRITE, 100), (READ, 100), (ATOMIC, 8)] {
            let request = request(kind, len);
            if short {
                assert!(qp.can_reach(&request));
                assert!(qp.reach_at_once(&request, &mut desk));
            } else {
                qp.post(request).unwrap();
                qp.transmit(Time::UNKNOWN, true, &mut desk);
            }
        }
        qp.post(request(SEND, 8)).unwrap();
        qp.transmit(Time::UNKNOWN, true, &mut desk);
        // Slots of requests that have ended say nothing.
        let outstanding = (qp.outstanding(), qp.next_index(), qp.counters(), qp.next_deadline());
        (outstanding, format!("{:?}{:?}", desk.sent, desk.emitted))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn nothing_is_reached_before_what_was_posted_before_or_where_the_host_cannot() {
    let (mut qp, mut desk) = (neighbour(), Desk::new());
    assert!(qp.can_reach(&request(WRITE, 8)));
    assert!(!qp.reach_at_once(&request(WRITE, 8), &mut desk));
    assert_eq!((qp.next_index(), desk.sent.len()), (0, 0));
    assert!(!qp.can_reach(&request(SEND, 8)));
    assert!(!qp.can_reach(&request(ATOMIC, 4)), "which is a mistake");
    qp.send_eager(&request(SEND, 8), false).unwrap();
    assert!(!qp.can_reach(&request(WRITE, 8)));
}

impl Qp {
    /// Posts and sends a SEND on the eager path.
    fn send_eager(&mut self, request: &Request, by_reference: bool) -> Option<(u64, EagerHeader)> {
        let mut eager_sends = self.eager_sends()?;
        let planned = eager_sends.plan(request, by_reference)?;
        let eager = EagerHeader::parse(planned.words)?;
        Some((eager_sends.note(request, by_reference, &planned), eager))
    }
}
