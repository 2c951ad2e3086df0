//! Operations, and every way in which work can end: each status is provoked from the side that is
//! to blame, and the counters and events of both sides tell the same story.

use adverb_engine::{
    Access, AckTimeout, Attributes, QpCounters, QpEvent, QpState, QpType, RetryCount, RnrRetry,
    Time, WcOpcode, WcStatus,
};
use adverb_fabric::{A, A_TO_B, B, B_TO_A, Fault, Net, NodeId, Setup, Target, Window, Work};
use adverb_wire::{
    Aeth, Extension, Feth, Headers, Msn, Opcode, Operation, Packet, Rkey, Syndrome, Transport,
};

fn statuses(net: &Net, node: NodeId) -> Vec<WcStatus> {
    net.node(node).sent().iter().map(|done| done.status).collect()
}

fn received(net: &Net, node: NodeId) -> Vec<WcStatus> {
    net.node(node).received().iter().map(|done| done.status).collect()
}

/// Counters that are not 0, by their names in `diag_counters`.
fn diagnostics(net: &Net, node: NodeId) -> Vec<(&'static str, u64)> {
    let all = net.node(node).qp().counters().diagnostics();
    all.into_iter().filter(|&(_, count)| count > 0).collect()
}

/// The counters of rxe that tell of failures and are not 0.
fn failures(net: &Net, node: NodeId) -> Vec<(&'static str, u64)> {
    const TRAFFIC: [&str; 4] = ["sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs"];
    let all = net.node(node).qp().counters().hardware();
    all.into_iter().filter(|(name, count)| *count > 0 && !TRAFFIC.contains(name)).collect()
}

/// What provokes a status, and what both sides see.
struct Case {
    name: &'static str,
    setup: Setup,
    provoke: fn(&mut Net),
    sent: &'static [WcStatus],
    received: &'static [WcStatus],
    /// Counters of A and of B.
    diagnostics: [&'static [(&'static str, u64)]; 2],
    failures: [&'static [(&'static str, u64)]; 2],
    /// Events of B.
    events: &'static [QpEvent],
}

fn wrong(net: &Net) -> Target {
    Target { rkey: Rkey(0xbad), ..net.region(B, 0) }
}

/// An answer that belongs to another kind of request: a short piece of a READ.
fn forge_answer(net: &mut Net) {
    let mut first =
        Headers::parse(&[0x10, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0xff, 0xff, 0xfe, 0x1f, 0, 0, 1])
            .expect("headers")
            .0;
    first.bth.opcode = Opcode::of(Transport::Rc, Operation::ReadResponseOnly).expect("RC has it");
    first.extension = Extension::Aeth(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    let mut bytes = Vec::new();
    Packet { headers: first, payload: &[1; 4] }.emit_into(&net.flow_to(A), 0, &mut bytes);
    net.inject(A, bytes);
}

const FLUSHED: WcStatus = WcStatus::WorkRequestFlushed;

fn cases() -> Vec<Case> {
    let plain = || Case {
        name: "",
        setup: Setup::default(),
        provoke: |_| {},
        sent: &[],
        received: &[],
        diagnostics: [&[], &[]],
        failures: [&[], &[]],
        events: &[],
    };
    vec![
        Case {
            name: "remote access",
            provoke: |net| {
                net.post(A, Work::write(wrong(net), vec![1; 10]));
            },
            sent: &[WcStatus::RemoteAccess],
            diagnostics: [&[("sq_num_rae", 1)], &[("rq_num_rae", 1)]],
            failures: [&[], &[("send_nak_err", 1)]],
            events: &[QpEvent::QpAccessErr],
            ..plain()
        },
        Case {
            name: "remote access, and a receive in use",
            provoke: |net| {
                net.post_receive(B, 10);
                net.post(A, Work::send_invalidate(vec![1; 10], Rkey(0xbad)));
            },
            sent: &[WcStatus::RemoteAccess],
            received: &[WcStatus::LocalAccess],
            diagnostics: [&[("sq_num_rae", 1)], &[("rq_num_lae", 1), ("rq_num_rae", 1)]],
            failures: [&[], &[("send_nak_err", 1)]],
            ..plain()
        },
        Case {
            name: "remote invalid request",
            setup: Setup { qp_access: Access::NONE, ..Setup::default() },
            provoke: |net| {
                net.post(A, Work::read(net.region(B, 0), 10));
            },
            sent: &[WcStatus::RemoteInvalidRequest],
            diagnostics: [&[("sq_num_rire", 1)], &[("rq_num_rire", 1)]],
            failures: [&[], &[("send_nak_err", 1)]],
            events: &[QpEvent::QpReqErr],
            ..plain()
        },
        Case {
            name: "local length, at the receiver",
            provoke: |net| {
                net.post_receive(B, 10);
                net.post_receive(B, 10);
                net.post(A, Work::send(vec![1; 11]));
            },
            sent: &[WcStatus::RemoteInvalidRequest],
            received: &[WcStatus::LocalLength, FLUSHED],
            diagnostics: [
                &[("sq_num_rire", 1)],
                &[("rq_num_lle", 1), ("rq_num_wrfe", 1), ("rq_num_rire", 1)],
            ],
            failures: [&[], &[("send_nak_err", 1)]],
            ..plain()
        },
        Case {
            name: "local protection, at the receiver: remote operation",
            provoke: |net| {
                net.post_unwritable_receive(B, 100, 5);
                net.post(A, Work::send(vec![1; 11]));
            },
            sent: &[WcStatus::RemoteOperation],
            received: &[WcStatus::LocalProtection],
            diagnostics: [&[("sq_num_roe", 1)], &[("rq_num_lpe", 1), ("rq_num_roe", 1)]],
            failures: [&[], &[("send_nak_err", 1)]],
            ..plain()
        },
        Case {
            name: "local protection, at the sender, and flush",
            provoke: |net| {
                let other = Work::write(net.region(B, 0), vec![1; 11]);
                net.post(A, Work::send(vec![1; 11]).unreadable_from(3));
                net.post(A, other);
            },
            sent: &[WcStatus::LocalProtection, FLUSHED],
            diagnostics: [&[("sq_num_lpe", 1), ("sq_num_wrfe", 1)], &[]],
            failures: [&[("send_err", 1)], &[]],
            ..plain()
        },
        Case {
            name: "local operation",
            setup: Setup { max_rd_atomic: 0, ..Setup::default() },
            provoke: |net| {
                net.post(A, Work::read(net.region(B, 0), 10));
            },
            sent: &[WcStatus::LocalQpOperation],
            diagnostics: [&[("sq_num_lqpoe", 1)], &[]],
            failures: [&[("send_err", 1)], &[]],
            ..plain()
        },
        Case {
            name: "memory window bind",
            provoke: |net| {
                net.post(A, Work::local_invalidate(Rkey(0xbad)));
            },
            sent: &[WcStatus::MemoryWindowBind],
            diagnostics: [&[("sq_num_mwbe", 1)], &[]],
            failures: [&[("send_err", 1)], &[]],
            ..plain()
        },
        Case {
            name: "bad response",
            provoke: |net| {
                net.script(A_TO_B, Fault::Drop, 1..=1);
                net.post(A, Work::read(net.region(B, 0), 10));
                forge_answer(net);
            },
            sent: &[WcStatus::BadResponse],
            diagnostics: [&[("sq_num_bre", 1)], &[]],
            ..plain()
        },
        Case {
            name: "retry exceeded",
            setup: Setup {
                retry_count: RetryCount::new(2).expect("fits"),
                timeout: AckTimeout::from_exponent(5).expect("fits"),
                ..Setup::default()
            },
            provoke: |net| {
                net.script(A_TO_B, Fault::Drop, 1..=u64::MAX);
                net.post(A, Work::write(net.region(B, 0), vec![1; 1]));
            },
            sent: &[WcStatus::RetryExceeded],
            diagnostics: [&[("sq_num_to", 3), ("sq_num_tree", 1)], &[]],
            failures: [
                &[("retry_exceeded_err", 1), ("completer_retry_err", 2), ("ack_timeout", 3)],
                &[],
            ],
            ..plain()
        },
        Case {
            name: "RNR retry exceeded",
            setup: Setup { rnr_retry: RnrRetry::new(1).expect("fits"), ..Setup::default() },
            provoke: |net| {
                net.post(A, Work::send(vec![1; 1]));
            },
            sent: &[WcStatus::RnrRetryExceeded],
            diagnostics: [&[("sq_num_rnr", 2), ("sq_num_rree", 1)], &[("rq_num_rnr", 2)]],
            failures: [
                &[("rcvd_rnr_err", 2), ("retry_rnr_exceeded_err", 1)],
                &[("send_rnr_err", 2)],
            ],
            ..plain()
        },
        Case {
            name: "success in spite of a hole and a copy",
            provoke: |net| {
                net.script(A_TO_B, Fault::Drop, 1..=1);
                net.script(A_TO_B, Fault::Duplicate, 3..=3);
                net.post(A, Work::write(net.region(B, 0), vec![1; 2000]));
            },
            sent: &[WcStatus::Success],
            diagnostics: [&[("sq_num_oos", 1)], &[("rq_num_oos", 1), ("rq_num_dup", 1)]],
            failures: [
                &[("rcvd_seq_err", 1), ("completer_retry_err", 1)],
                &[("duplicate_request", 1), ("out_of_seq_request", 1)],
            ],
            ..plain()
        },
        Case {
            name: "local protection over UC, and flush in SQE",
            setup: Setup::of(QpType::Uc),
            provoke: |net| {
                net.post(A, Work::send(vec![1; 11]).unreadable_from(3));
                net.post(A, Work::send(vec![1; 11]));
            },
            sent: &[WcStatus::LocalProtection, FLUSHED],
            diagnostics: [&[("sq_num_lpe", 1), ("sq_num_wrfe", 1)], &[]],
            failures: [&[("send_err", 1)], &[]],
            ..plain()
        },
    ]
}

#[test]
fn every_status_is_produced_by_its_cause_and_both_sides_count_it() {
    for case in cases() {
        let mut net = Net::pair(1, &case.setup);
        (case.provoke)(&mut net);
        net.drive().expect("an end");
        assert_eq!(statuses(&net, A), case.sent, "{}", case.name);
        assert_eq!(received(&net, B), case.received, "{}", case.name);
        for (node, at) in [(A, 0), (B, 1)] {
            assert_eq!(diagnostics(&net, node), case.diagnostics[at], "{} {node:?}", case.name);
            assert_eq!(failures(&net, node), case.failures[at], "{} {node:?}", case.name);
        }
        assert_eq!(net.node(B).events(), case.events, "{}", case.name);
    }
}

#[test]
fn messages_are_counted_where_they_are_sent_and_received() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut net = Net::pair(1, &Setup::of(kind));
        net.post_receive(B, 4096);
        net.post(A, Work::send(vec![1; 4096]));
        net.post(A, Work::write(net.region(B, 0), vec![1; 1]));
        net.drive().expect("an end");
        let QpCounters { rdma_sends, .. } = net.node(A).qp().counters();
        let QpCounters { rdma_recvs, rcvd_pkts, .. } = net.node(B).qp().counters();
        assert_eq!((rdma_sends, rdma_recvs, rcvd_pkts), (2, 1, 5), "{kind}");
    }
}

#[test]
fn a_send_invalidates_a_window_of_the_receiver() {
    let mut net = Net::pair(1, &Setup::default());
    let window = window_of(&net, B, Rkey(0x900));
    net.post(B, Work::bind(window));
    net.post_receive(B, 100);
    let target = Target { rkey: window.rkey, va: window.va };
    net.post(A, Work::write(target, vec![5; 16]));
    net.post(A, Work::send_invalidate(vec![1; 10], window.rkey));
    net.post(A, Work::write(target, vec![6; 16]));
    net.drive().expect("an end");

    assert_eq!(statuses(&net, B), [WcStatus::Success]);
    let expected = [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccess];
    assert_eq!(statuses(&net, A), expected);
    let done = net.node(B).received()[0];
    assert_eq!((done.invalidated, done.opcode), (Some(window.rkey), WcOpcode::Receive));
    assert_eq!(net.node(B).memory(0)[64..80], [5; 16]);
}

/// A window of 16 bytes, 64 bytes into a node's first region.
fn window_of(net: &Net, node: NodeId, rkey: Rkey) -> Window {
    let va = net.region(node, 0).va + 64;
    Window { rkey, region: 0, va, len: 16, access: Access::REMOTE_WRITE }
}

/// Goal: a peer may forget windows, not regions.
#[test]
fn a_send_does_not_invalidate_a_region() {
    let mut net = Net::pair(1, &Setup::default());
    net.post_receive(B, 100);
    net.post(A, Work::send_invalidate(vec![1; 10], net.region(B, 0).rkey));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteAccess]);
    assert_eq!(received(&net, B), [WcStatus::LocalAccess]);
}

/// Goal: what is carried out here ends in its turn, between the packets around it.
#[test]
fn local_requests_end_in_order_with_the_others() {
    let mut net = Net::pair(1, &Setup::default());
    let window = window_of(&net, A, Rkey(0x901));
    net.script(A_TO_B, Fault::Drop, 1..=1);
    net.post(A, Work::write(net.region(B, 0), vec![1; 3000]));
    net.post(A, Work::bind(window));
    net.post(A, Work::local_invalidate(window.rkey));
    net.post(A, Work::read(net.region(B, 0), 10));
    net.post(A, Work::bind(window).fenced());
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::Success; 5]);
    let order: Vec<u64> = net.node(A).sent().iter().map(|done| done.index).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    let target = Target { rkey: window.rkey, va: window.va };
    net.post(B, Work::write(target, vec![8; 16]));
    net.drive().expect("an end");
    assert_eq!(net.node(A).memory(0)[64..80], [8; 16]);
}

#[test]
fn an_atomic_write_arrives_once_whatever_gets_lost() {
    for (link, trace) in [(A_TO_B, "D1"), (B_TO_A, "D1x D1")] {
        let mut net = Net::pair(1, &Setup::default());
        net.script(link, Fault::Drop, 1..=1);
        net.post(A, Work::atomic_write(net.region(B, 0), [7; 8]));
        net.drive().expect("an end");
        assert_eq!(net.trace(B_TO_A), trace);
        assert_eq!(statuses(&net, A), [WcStatus::Success]);
        assert_eq!(net.node(A).sent()[0].opcode, WcOpcode::AtomicWrite);
        assert_eq!(net.node(B).memory(0)[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    }
}

#[test]
fn a_flush_is_answered_whatever_gets_lost() {
    for link in [A_TO_B, B_TO_A] {
        let mut net = Net::pair(1, &Setup::default());
        net.script(link, Fault::Drop, 1..=1);
        net.post(A, Work::atomic_write(net.region(B, 0), [7; 8]));
        net.post(A, Work::flush(net.region(B, 0), 8, Feth::default()));
        net.drive().expect("an end");
        assert_eq!(statuses(&net, A), [WcStatus::Success; 2]);
        assert_eq!(net.node(A).sent()[1].opcode, WcOpcode::Flush);
    }
}

/// Goal: a FLUSH asks for no more than a WRITE to the same bytes would, whatever the range says of a whole region;
/// nothing here outlives a loss of power.
#[test]
fn a_flush_needs_the_right_to_write() {
    let global = Feth::default();
    let whole = Feth { selectivity: Feth::REGION, ..global };
    let to_disk = Feth { placement: Feth::PERSISTENT, ..global };
    let nothing = Feth { placement: 0, ..global };
    let cases = [
        (global, 8, WcStatus::Success),
        (global, 1 << 20, WcStatus::RemoteAccess),
        (whole, 1 << 20, WcStatus::Success),
        (to_disk, 8, WcStatus::RemoteAccess),
        (nothing, 8, WcStatus::RemoteInvalidRequest),
    ];
    for (how, len, status) in cases {
        let mut net = Net::pair(1, &Setup::default());
        net.post(A, Work::flush(net.region(B, 0), len, how));
        net.drive().expect("an end");
        assert_eq!(statuses(&net, A), [status], "{how:?}, {len}");
    }
}

#[test]
fn an_atomic_write_needs_alignment_and_the_right_to_write() {
    let mut net = Net::pair(1, &Setup::default());
    net.post(A, Work::atomic_write(net.region(B, 0).plus(4), [7; 8]));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteInvalidRequest]);

    let region_access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mut net = Net::pair(1, &Setup { region_access, ..Setup::default() });
    net.post(A, Work::atomic_write(net.region(B, 0), [7; 8]));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::RemoteAccess]);
}

/// Goal: a queue pair drains under traffic, is changed, and goes on as if nothing had been.
#[test]
fn a_send_queue_drains_and_goes_on_under_traffic() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut net = Net::pair(1, &Setup { room: 2, ..Setup::of(kind) });
        for _ in 0..4 {
            net.post(A, Work::write(net.region(B, 0), vec![1; 5000]));
        }
        let drain = Attributes { notify_drained: Some(true), ..Attributes::default() };
        net.modify(A, QpState::Sqd, &drain).expect("RTS to SQD");
        assert!(net.node(A).qp().is_draining());
        net.drive().expect("an end");
        assert_eq!(net.node(A).events(), [QpEvent::SqDrained], "{kind}");
        let ended = statuses(&net, A).len();
        assert!((1..4).contains(&ended), "{ended} have ended over {kind}");

        net.go(A, QpState::Rts);
        net.drive().expect("an end");
        assert_eq!(statuses(&net, A), [WcStatus::Success; 4], "{kind}");
        assert_eq!(net.node(A).events().len(), 1);
    }
}

#[test]
fn a_queue_pair_in_sqe_receives_and_goes_back_to_rts() {
    let mut net = Net::pair(1, &Setup::of(QpType::Uc));
    net.post_receive(A, 100);
    net.post_receive(B, 100);
    net.post(A, Work::send(vec![1; 11]).unreadable_from(3));
    assert_eq!(net.node(A).qp().state(), QpState::Sqe);
    net.post(B, Work::send(vec![2; 10]));
    net.drive().expect("an end");
    assert_eq!(received(&net, A), [WcStatus::Success]);

    net.go(A, QpState::Rts);
    net.post(A, Work::send(vec![3; 10]));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::LocalProtection, WcStatus::Success]);
    assert_eq!(received(&net, B), [WcStatus::Success]);
}

/// Goal: a queue pair that was reset and connected again is as good as new.
#[test]
fn a_reset_pair_lives_again() {
    let mut net = Net::pair(1, &Setup::default());
    net.post_receive(B, 100);
    net.post(A, Work::write(net.region(B, 0), vec![1; 5000]));
    net.post(A, Work::write(wrong(&net), vec![1; 1]));
    net.drive().expect("an end");
    assert_eq!(net.node(A).qp().state(), QpState::Err);
    for to in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        net.go(A, to);
        net.go(B, to);
    }
    net.post_receive(B, 100);
    net.post(A, Work::send(vec![9; 100]));
    net.drive_until(Time::from_nanos(u64::MAX / 4));
    assert_eq!(statuses(&net, A).last(), Some(&WcStatus::Success));
    assert_eq!(net.node(B).receive_bytes(1), [9; 100]);
}

#[test]
fn a_full_completion_queue_is_fatal_and_the_peer_finds_silence() {
    let mut net = Net::pair(1, &Setup::default());
    net.post_receive(B, 10);
    net.abort(B);
    assert_eq!(net.node(B).events(), [QpEvent::QpFatal]);
    assert_eq!(received(&net, B), [FLUSHED]);
    net.post(A, Work::send(vec![1; 1]));
    net.drive().expect("an end");
    assert_eq!(statuses(&net, A), [WcStatus::RetryExceeded]);
}
