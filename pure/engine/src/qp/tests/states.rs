//! States, types and attributes: what each state does, and what modifying does.

use super::*;
use crate::access::Access;
use crate::testing::{PATH, SRQ, headers, kind_of};
use crate::transition::{AttributeSet, ModifyError};
use crate::transport::RequestOp;
use crate::work::{Datagram, RequestKind, Route};
use adverb_wire::{Deth, Headers, Opcode, Qkey, XrcEth};

const KEY: Qkey = Qkey(0x1111);

/// Everything that can be set.
fn all() -> Attributes {
    let (init, rts) = (init(), rts());
    Attributes {
        partition: init.partition,
        port: init.port,
        access: init.access,
        qkey: Some(KEY),
        first_psn: rts.first_psn,
        timeout: rts.timeout,
        retry_count: rts.retry_count,
        rnr_retry: rts.rnr_retry,
        max_rd_atomic: rts.max_rd_atomic,
        window_packets: rts.window_packets,
        ..rtr()
    }
}

/// Those of `given` that are in the set.
fn pick(given: &Attributes, set: AttributeSet) -> Attributes {
    let has = |one: AttributeSet| set.contains(one);
    Attributes {
        partition: given.partition.filter(|_| has(AttributeSet::PKEY)),
        port: given.port.filter(|_| has(AttributeSet::PORT)),
        access: given.access.filter(|_| has(AttributeSet::ACCESS)),
        qkey: given.qkey.filter(|_| has(AttributeSet::QKEY)),
        remote_gid: given.remote_gid.filter(|_| has(AttributeSet::ADDRESS)),
        remote: given.remote.filter(|_| has(AttributeSet::REMOTE)),
        expected_psn: given.expected_psn.filter(|_| has(AttributeSet::EXPECTED_PSN)),
        path_mtu: given.path_mtu.filter(|_| has(AttributeSet::PATH_MTU)),
        max_dest_rd_atomic: given
            .max_dest_rd_atomic
            .filter(|_| has(AttributeSet::MAX_DEST_RD_ATOMIC)),
        min_rnr_timer: given.min_rnr_timer.filter(|_| has(AttributeSet::MIN_RNR_TIMER)),
        first_psn: given.first_psn.filter(|_| has(AttributeSet::FIRST_PSN)),
        timeout: given.timeout.filter(|_| has(AttributeSet::TIMEOUT)),
        retry_count: given.retry_count.filter(|_| has(AttributeSet::RETRY_COUNT)),
        rnr_retry: given.rnr_retry.filter(|_| has(AttributeSet::RNR_RETRY)),
        max_rd_atomic: given.max_rd_atomic.filter(|_| has(AttributeSet::MAX_RD_ATOMIC)),
        notify_drained: given.notify_drained.filter(|_| has(AttributeSet::NOTIFY_DRAINED)),
        ..Attributes::default()
    }
}

fn go(qp: &mut Qp, to: QpState, desk: &mut Desk) {
    let rule = crate::transition::transition(qp.kind(), qp.state(), to).unwrap();
    qp.modify(to, &pick(&all(), rule.required), desk).unwrap();
}

/// A queue pair of this type in this state, reached the proper way.
fn reached(kind: QpType, state: QpState, shared_receives: bool) -> Qp {
    let port_mtu = crate::testing::MTU;
    let options = QpOptions { port_mtu, shared_receives, ..QpOptions::of(kind, Qpn::new(0x11), 8) };
    let mut qp = Qp::new(options);
    let mut desk = Desk::new();
    let steps: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        QpState::Err => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err],
    };
    for &to in steps {
        go(&mut qp, to, &mut desk);
    }
    if state == QpState::Sqe {
        qp.post(send_over(kind, 1)).unwrap();
        desk.local = false;
        qp.transmit(NOW, true, &mut desk);
    }
    assert_eq!(qp.state(), state);
    qp
}

/// A SEND as the type wants it addressed.
fn send_over(kind: QpType, len: u32) -> Request {
    addressed(kind, request(SEND, len))
}

fn addressed(kind: QpType, request: Request) -> Request {
    let datagram = Datagram { route: Route(1), remote: REMOTE, qkey: KEY };
    let to = match kind {
        QpType::Rc | QpType::Uc => To::Peer,
        QpType::Ud => To::Datagram(datagram),
        QpType::XrcInitiator | QpType::XrcTarget => To::SharedQueue(SRQ),
    };
    Request { to, ..request }
}

/// A SEND that comes in over this type's transport.
fn incoming(kind: QpType, at: i32) -> Packet<'static> {
    let headers = headers(Operation::SendOnly, at, Extension::None, 10);
    let transport = kind.transport();
    let opcode = Opcode::of(transport, Operation::SendOnly).unwrap();
    let bth = adverb_wire::Bth { opcode, ack_request: true, ..headers.bth };
    let deth = (transport == Transport::Ud).then_some(Deth { qkey: KEY, src_qp: REMOTE });
    let xrceth = (transport == Transport::Xrc).then_some(XrcEth { srqn: SRQ });
    Packet { headers: Headers { bth, deth, xrceth, ..headers }, payload: &BYTES[..10] }
}

/// Whether a queue pair of this type can be in this state.
fn exists(kind: QpType, state: QpState) -> bool {
    state != QpState::Sqe || !kind.is_reliable()
}

#[test]
fn every_state_of_every_type_does_to_work_and_packets_what_the_table_says() {
    for kind in QpType::ALL {
        for state in QpState::ALL.into_iter().filter(|&state| exists(kind, state)) {
            let behaviour = state.behaviour();
            let mut qp = reached(kind, state, false);
            let mut desk = Desk::with_receives(2, 100);
            let posted = qp.post(send_over(kind, 10));
            if !behaviour.post_send {
                assert_eq!(posted, Err(RequestError::State(state)), "{kind} in {state}");
            } else {
                assert_eq!(posted.is_ok(), kind.sends(), "{kind} in {state}");
            }
            qp.transmit(NOW, true, &mut desk);
            let emits = behaviour.outgoing && behaviour.sends == Processing::All && kind.sends();
            assert_eq!(!desk.emitted.is_empty(), emits, "{kind} in {state}");
            let flushes = behaviour.sends == Processing::Flushed && kind.sends();
            let flushed =
                |done: &crate::host::SendDone| done.status == WcStatus::WorkRequestFlushed;
            assert_eq!(desk.sent.iter().any(flushed), flushes, "{kind} in {state}");

            let receives_flushed = desk.received.len();
            let own = matches!(kind, QpType::Rc | QpType::Uc | QpType::Ud);
            let expected = behaviour.receives == Processing::Flushed && own;
            assert_eq!(receives_flushed, if expected { 2 } else { 0 }, "{kind} in {state}");

            qp.on_packet(&incoming(kind, 0), PEER, NOW, &mut desk);
            let arrived = desk.received.len() - receives_flushed;
            let serves = behaviour.incoming && kind.serves();
            assert_eq!(arrived, usize::from(serves), "{kind} in {state}");
            assert_eq!(qp.counters().dropped_pkts, u64::from(!serves), "{kind} in {state}");
        }
    }
}

#[test]
fn unreliable_transports_answer_nothing_and_reliable_ones_in_kind() {
    for kind in QpType::ALL.into_iter().filter(|kind| kind.serves()) {
        let mut qp = reached(kind, QpState::Rtr, false);
        let mut desk = Desk::with_receives(2, 100);
        qp.on_packet(&incoming(kind, 0), PEER, NOW, &mut desk);
        qp.transmit(NOW, true, &mut desk);
        let answers: Vec<Transport> =
            desk.emitted.iter().map(|(headers, _)| headers.bth.opcode.transport()).collect();
        let expected: &[Transport] = if kind.is_reliable() { &[kind.transport()] } else { &[] };
        assert_eq!(answers, expected, "{kind}");
    }
}

#[test]
fn a_completion_says_where_the_message_came_from() {
    for (kind, srq) in [(QpType::Rc, None), (QpType::Ud, None), (QpType::XrcTarget, Some(SRQ))] {
        let mut qp = reached(kind, QpState::Rtr, false);
        let mut desk = Desk::with_receives(1, 100);
        qp.on_packet(&incoming(kind, 0), PEER, NOW, &mut desk);
        let done = desk.received[0];
        assert_eq!((done.src_qp, done.srq, done.pkey_index), (REMOTE, srq, 0), "{kind}");
        assert_eq!(done.grh, kind == QpType::Ud, "{kind}");
        assert_eq!(done.byte_len, if done.grh { 50 } else { 10 }, "{kind}");
    }
}

/// Each line: what is wrong with a request, and for whom.
#[test]
fn a_request_that_makes_no_sense_is_not_posted() {
    let long = PATH.mtu.bytes() + 1;
    let longest = Request::LEN_MAX;
    let lines = [
        (QpType::Ud, request(SEND, 1), RequestError::Address { kind: QpType::Ud }),
        (QpType::Rc, send_over(QpType::Ud, 1), RequestError::Address { kind: QpType::Rc }),
        (
            QpType::XrcInitiator,
            request(SEND, 1),
            RequestError::Address { kind: QpType::XrcInitiator },
        ),
        (
            QpType::Ud,
            send_over(QpType::Ud, long),
            RequestError::Length { len: long, allowed: long - 1 },
        ),
        (
            QpType::Uc,
            request(SEND, longest + 1),
            RequestError::Length { len: longest + 1, allowed: longest },
        ),
        (QpType::Rc, request(ATOMIC, 7), RequestError::Length { len: 7, allowed: 8 }),
        (
            QpType::Rc,
            request(RequestKind::BindWindow, 1),
            RequestError::Length { len: 1, allowed: 0 },
        ),
    ];
    for (kind, request, error) in lines {
        let mut qp = reached(kind, QpState::Rts, false);
        assert_eq!(qp.post(request), Err(error), "{request:?} over {kind}");
        assert_eq!(qp.outstanding(), 0);
    }
    let mut qp = reached(QpType::Ud, QpState::Rts, false);
    assert_eq!(qp.post(send_over(QpType::Ud, long - 1)), Ok(0));
}

#[test]
fn operations_are_posted_where_the_table_has_them() {
    for kind in QpType::ALL {
        for operation in RequestOp::ALL {
            let mut qp = reached(kind, QpState::Rts, false);
            let request = request(kind_of(operation), 0);
            let len = request.kind.fixed_len().unwrap_or(1);
            let request = addressed(kind, Request { len, ..request });
            let expected = match allowed(kind, operation) {
                true => Ok(0),
                false => Err(RequestError::Operation { kind, operation }),
            };
            assert_eq!(qp.post(request), expected, "{operation} over {kind}");
        }
    }
}

#[test]
fn the_first_packet_in_rtr_is_an_event_and_no_other_is() {
    for kind in QpType::ALL.into_iter().filter(|kind| kind.serves()) {
        let mut qp = reached(kind, QpState::Rtr, false);
        let mut desk = Desk::with_receives(4, 100);
        for at in 0..3 {
            qp.on_packet(&incoming(kind, at), PEER, NOW, &mut desk);
        }
        assert_eq!(desk.events, [QpEvent::CommEst], "{kind}");

        let mut qp = reached(kind, QpState::Rts, false);
        desk.events.clear();
        qp.on_packet(&incoming(kind, 0), PEER, NOW, &mut desk);
        assert_eq!(desk.events, [], "{kind}");
    }
}

fn sqd(notify: bool) -> Attributes {
    Attributes { notify_drained: Some(notify), ..Attributes::default() }
}

/// Goal: what has begun ends, what has not waits, and the end is told once, if it was asked for.
#[test]
fn a_send_queue_drains_and_goes_on() {
    for notify in [false, true] {
        let mut qp = reached(QpType::Rc, QpState::Rts, false);
        let mut desk = Desk { room: 1, ..Desk::new() };
        qp.post(request(SEND, 300)).unwrap();
        qp.post(request(SEND, 1)).unwrap();
        qp.transmit(NOW, true, &mut desk);
        desk.room = usize::MAX;
        qp.modify(QpState::Sqd, &sqd(notify), &mut desk).unwrap();
        qp.transmit(NOW, true, &mut desk);
        assert_eq!(desk.operations(), [(Operation::SendFirst, 0), (Operation::SendLast, 1)]);
        assert!(qp.is_draining() && desk.events.is_empty());

        qp.on_packet(&ack(1, Syndrome::ACK), PEER, NOW, &mut desk);
        let expected: &[QpEvent] = if notify { &[QpEvent::SqDrained] } else { &[] };
        assert_eq!((qp.is_draining(), &desk.events[..]), (false, expected));
        assert!(!qp.transmit(NOW, true, &mut desk) && !qp.has_more());
        assert!(desk.emitted.is_empty());

        go(&mut qp, QpState::Rts, &mut desk);
        qp.transmit(NOW, true, &mut desk);
        assert_eq!(desk.operations(), [(Operation::SendOnly, 2)]);
        assert_eq!(desk.events, expected);
    }
}

#[test]
fn an_idle_send_queue_has_drained_at_once() {
    for kind in QpType::ALL {
        let mut qp = reached(kind, QpState::Rts, false);
        let mut desk = Desk::new();
        qp.modify(QpState::Sqd, &sqd(true), &mut desk).unwrap();
        assert_eq!(desk.events, [QpEvent::SqDrained], "{kind}");
    }
}

/// Goal: the clock runs for what has begun, and a lost packet is sent again.
#[test]
fn a_draining_queue_sends_again_what_got_lost() {
    let mut qp = reached(QpType::Rc, QpState::Rts, false);
    let mut desk = Desk::new();
    qp.post(request(SEND, 1)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    qp.modify(QpState::Sqd, &sqd(true), &mut desk).unwrap();
    let deadline = qp.next_deadline().unwrap();
    qp.on_timer(deadline, &mut desk);
    qp.transmit(deadline, true, &mut desk);
    assert_eq!(desk.operations(), [(Operation::SendOnly, 0); 2]);
}

#[test]
fn attributes_that_change_in_sqd_take_effect() {
    let mut qp = reached(QpType::Rc, QpState::Sqd, false);
    let mut desk = Desk::new();
    let timeout = crate::time::AckTimeout::from_exponent(3).unwrap();
    let change = Attributes {
        timeout: Some(timeout),
        max_rd_atomic: Some(1),
        access: Some(Access::NONE),
        ..Attributes::default()
    };
    qp.modify(QpState::Sqd, &change, &mut desk).unwrap();
    go(&mut qp, QpState::Rts, &mut desk);
    qp.post(request(READ, 1)).unwrap();
    qp.post(request(READ, 1)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    assert_eq!(desk.operations(), [(Operation::ReadRequest, 0)]);
    assert_eq!(qp.next_deadline(), Some(NOW.plus_nanos(timeout.nanos().unwrap())));
    assert_eq!(qp.settings().timeout, timeout);
    qp.on_packet(&read_request(0, 1), PEER, NOW, &mut desk);
    assert_eq!((qp.state(), &desk.events[..]), (QpState::Err, &[QpEvent::QpReqErr][..]));
}

/// Goal: an unreliable queue pair that cannot send still receives, and recovers.
#[test]
fn sqe_flushes_sends_and_goes_back_to_rts() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut qp = reached(kind, QpState::Sqe, false);
        let mut desk = Desk::with_receives(2, 100);
        qp.post(send_over(kind, 10)).unwrap();
        qp.transmit(NOW, true, &mut desk);
        assert_eq!(desk.sent[0].status, WcStatus::WorkRequestFlushed);
        qp.on_packet(&incoming(kind, 0), PEER, NOW, &mut desk);
        assert_eq!(desk.received[0].status, WcStatus::Success);
        go(&mut qp, QpState::Rts, &mut desk);
        qp.post(send_over(kind, 10)).unwrap();
        qp.transmit(NOW, true, &mut desk);
        assert_eq!(desk.operations().len(), 1);
        assert_eq!(desk.sent[1].status, WcStatus::Success);
    }
}

/// Goal: what an unreliable connection writes at once does not overtake what it has sent, which no acknowledgement tells of.
#[test]
fn an_unreliable_connection_reaches_its_peer_until_it_has_sent_a_packet() {
    let mut desk = Desk { reach: Reach::Done, ..Desk::new() };
    let mut qp = reached(QpType::Uc, QpState::Init, false);
    qp.set_link(SHARED_MEMORY);
    go(&mut qp, QpState::Rtr, &mut desk);
    go(&mut qp, QpState::Rts, &mut desk);
    let write = request(WRITE, 100);
    for _ in 0..2 {
        assert!(qp.can_reach(&write) && qp.reach_at_once(&write, &mut desk));
    }
    assert!(!qp.can_reach(&request(READ, 100)) && !qp.can_reach(&request(SEND, 8)));
    assert_eq!((desk.sent.len(), desk.emitted.len(), qp.next_index()), (2, 0, 2));
    qp.post(request(SEND, 8)).unwrap();
    qp.transmit(NOW, true, &mut desk);
    assert_eq!((desk.emitted.len(), desk.sent[2].index), (1, 2));
    assert!(!qp.can_reach(&write));
}

#[test]
fn a_shared_queue_is_not_flushed_and_the_owner_is_told_once() {
    let mut qp = reached(QpType::Rc, QpState::Rts, true);
    let mut desk = Desk::with_receives(3, 1000);
    qp.on_packet(&packet(Operation::SendFirst, 0, Extension::None, 256), PEER, NOW, &mut desk);
    qp.to_err(&mut desk);
    qp.to_err(&mut desk);
    qp.flush(&mut desk);
    // The one in use is this queue pair's, and ends with it.
    assert_eq!((desk.received.len(), desk.receives.len()), (1, 2));
    assert_eq!(desk.received[0].status, WcStatus::WorkRequestFlushed);
    assert_eq!(desk.events, [QpEvent::LastWqeReached]);
    assert_eq!(qp.counters().rq_num_wrfe, 1);
}

#[test]
fn a_reset_gives_back_the_receive_in_use() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut qp = reached(kind, QpState::Rts, true);
        let mut desk = Desk::with_receives(3, 1000);
        let mut first = packet(Operation::SendFirst, 0, Extension::None, 256);
        first.headers.bth.opcode = Opcode::of(kind.transport(), Operation::SendFirst).unwrap();
        qp.on_packet(&first, PEER, NOW, &mut desk);
        assert_eq!(desk.receives.len(), 2);
        qp.modify(QpState::Reset, &Attributes::default(), &mut desk).unwrap();
        assert_eq!((desk.receives.len(), desk.received.len()), (3, 0));
        assert_eq!(desk.receives[0].token, 0);
    }
}

#[test]
fn a_failure_of_the_surroundings_is_fatal_and_told_once() {
    let mut qp = reached(QpType::Rc, QpState::Rts, false);
    let mut desk = Desk::new();
    qp.abort(&mut desk);
    qp.abort(&mut desk);
    assert_eq!((qp.state(), &desk.events[..]), (QpState::Err, &[QpEvent::QpFatal][..]));
}

#[test]
fn a_wrong_belief_and_a_wrong_attribute_change_nothing() {
    let mut qp = reached(QpType::Rc, QpState::Rts, false);
    let mut desk = Desk::new();
    let before = *qp.settings();
    let believed = Attributes {
        current: Some(QpState::Sqd),
        access: Some(Access::NONE),
        ..Default::default()
    };
    let error = ModifyError::Current { actual: QpState::Rts, believed: QpState::Sqd };
    assert_eq!(qp.modify(QpState::Rts, &believed, &mut desk), Err(error));
    let wrong = Attributes { qkey: Some(KEY), access: Some(Access::NONE), ..Default::default() };
    assert!(qp.modify(QpState::Rts, &wrong, &mut desk).is_err());
    assert_eq!((*qp.settings(), qp.state()), (before, QpState::Rts));
}

/// Goal: each attribute that is required is missed, and each that is not allowed is refused.
#[test]
fn every_transition_needs_all_that_is_required_and_takes_nothing_else() {
    for kind in QpType::ALL {
        for from in QpState::ALL.into_iter().filter(|&state| exists(kind, state)) {
            for to in QpState::ALL {
                let Some(rule) = crate::transition::transition(kind, from, to) else {
                    let error = reached(kind, from, false).modify(
                        to,
                        &Attributes::default(),
                        &mut Desk::new(),
                    );
                    assert_eq!(error, Err(ModifyError::State { from, to }), "{kind}");
                    continue;
                };
                for bit in (0..21).map(|bit| AttributeSet::from_bits(1 << bit)) {
                    let without = pick(&all(), rule.required.without(bit));
                    let with = pick(&all(), rule.required.with(bit));
                    let known = !with.given().without(rule.required).is_empty();
                    let try_it = |attributes: &Attributes| {
                        reached(kind, from, false).modify(to, attributes, &mut Desk::new()).is_ok()
                    };
                    let required = rule.required.contains(bit);
                    assert_eq!(try_it(&without), !required, "{kind} {from} {to} without {bit}");
                    let refused = known && !rule.optional.contains(bit);
                    assert_eq!(try_it(&with), !refused, "{kind} {from} {to} with {bit}");
                }
            }
        }
    }
}

#[test]
fn datagrams_without_the_key_or_room_are_dropped_and_counted() {
    let mut qp = reached(QpType::Ud, QpState::Rts, false);
    let mut desk = Desk::with_receives(1, 49);
    desk.receives.push_back(crate::host::Receive { token: 9, len: 50 });
    let mut wrong = incoming(QpType::Ud, 0);
    wrong.headers.deth = Some(Deth { qkey: Qkey(1), src_qp: REMOTE });
    qp.on_packet(&wrong, PEER, NOW, &mut desk);
    assert_eq!((qp.counters().qkey_viol, qp.counters().dropped_pkts), (1, 1));
    // Too short a receive stays for the next, shorter, message.
    qp.on_packet(&incoming(QpType::Ud, 0), PEER, NOW, &mut desk);
    assert_eq!((desk.received.len(), desk.receives[0].token), (0, 0));
    desk.receives.pop_front();
    let stranger = Gid::from_v4([192, 0, 2, 66]);
    qp.on_packet(&incoming(QpType::Ud, 7), stranger, NOW, &mut desk);
    assert_eq!(desk.received[0].byte_len, 50);
    assert_eq!(qp.counters().dropped_pkts, 2);
}

/// Goal: a queue pair is small, since there may be very many.
#[test]
fn a_queue_pair_without_queues_is_small() {
    assert!(size_of::<Qp>() <= 2048, "{} bytes", size_of::<Qp>());
}

/// Goal: a message over XRC stays with the queue that its first packet named.
#[test]
fn a_message_over_xrc_does_not_change_its_queue() {
    let other = Qpn::new(SRQ.get() + 1);
    for (srq, state) in [(SRQ, QpState::Rtr), (other, QpState::Err)] {
        let mut qp = reached(QpType::XrcTarget, QpState::Rtr, false);
        let mut desk = Desk::with_receives(1, 1000);
        for (at, operation, srqn) in [(0, Operation::SendFirst, SRQ), (1, Operation::SendLast, srq)]
        {
            let len = if operation.is_end() { 10 } else { 256 };
            let mut headers = headers(operation, at, Extension::None, len);
            headers.bth.opcode = Opcode::of(Transport::Xrc, operation).unwrap();
            headers.xrceth = Some(XrcEth { srqn });
            let packet = Packet { headers, payload: &BYTES[..len] };
            qp.on_packet(&packet, PEER, NOW, &mut desk);
        }
        assert_eq!(qp.state(), state);
        assert_eq!(desk.received.len(), 1);
    }
}

/// Goal: whatever is aimed at a queue pair of whatever type, in whatever state, it neither panics
/// nor loops, every request ends at most once, and no receive is lost. Method: random headers near
/// the window, from a fixed seed.
#[test]
fn random_packets_break_promises_of_no_type() {
    let mut random = 0x5eed_u64;
    let mut next = move |bound: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for round in 0..6_000_usize {
        let kind = QpType::ALL[round % 5];
        let state = QpState::ALL[round / 5 % 7];
        if !exists(kind, state) {
            continue;
        }
        let mut qp = reached(kind, state, next(2) == 0);
        let mut desk = Desk::with_receives(4, 600);
        let already = qp.next_index();
        let work = [request(READ, 3000), request(SEND, 200), request(WRITE, 0)];
        let posts = work.into_iter().filter(|&work| qp.post(addressed(kind, work)).is_ok());
        let posts = already + u64::try_from(posts.count()).unwrap();
        let mut now = NOW;
        for _ in 0..30 {
            qp.transmit(now, next(2) == 0, &mut desk);
            desk.emitted.clear();
            let mut bytes = BYTES;
            for byte in &mut bytes[..64] {
                *byte = u8::try_from(next(256)).unwrap();
            }
            // Plausible where it matters: transport, partition, a PSN near the window, the key.
            let transport = [0x00, 0x20, 0x60, 0xa0, 0xa0][round % 5];
            bytes[0] = transport | u8::try_from(next(0x1e)).unwrap();
            bytes[1] = 0x40;
            (bytes[2], bytes[3]) = (0xff, 0xff);
            let near = Psn::new(u32::try_from(next(24)).unwrap()).plus(FIRST.get()).minus(6);
            bytes[9..12].copy_from_slice(&near.get().to_be_bytes()[1..]);
            if kind == QpType::Ud {
                bytes[12..16].copy_from_slice(&KEY.0.to_be_bytes());
            }
            if transport == 0xa0 {
                bytes[12..16].copy_from_slice(&SRQ.get().to_be_bytes());
            }
            if next(2) == 0 {
                let at = if transport == 0xa0 { 16 } else { 12 };
                bytes[at..at + 16]
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
        let expected: Vec<u64> = (already..posts).collect();
        assert_eq!(ended, expected, "round {round}, {kind} in {state}");
        let receives = desk.received.len() + desk.receives.len();
        assert_eq!(receives, 4, "round {round}, {kind} in {state}");
    }
}
