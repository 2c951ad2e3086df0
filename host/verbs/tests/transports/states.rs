//! States of queue pairs: what each does to posting and to work, and the transitions.

use crate::pair::{Pair, Setup, eventually, pattern, wait};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Access, AhAttr, ConnectError, Context, Element, EventKind, Modify, PathMtu, PostError, Psn,
    Qkey, Qp, QpConfig, QpState, Rc, RetryCount, RnrRetry, RnrTimer, Uc, Ud, WcStatus, Work,
};

on_every_path! {
    a_message_in_rtr_says_that_the_connection_stands,
    a_queue_pair_is_reused_after_reset,
    each_state_takes_the_posts_that_the_table_says,
}

/// From any state, over the software device: the steps of a reliable connection by hand.
fn init() -> Modify {
    Modify::to(QpState::Init).pkey_index(0).port(1).access(Access::ALL)
}

fn rtr(peer: &Qp<Rc>) -> Modify {
    let peer = peer.address().expect("an address");
    Modify::to(QpState::Rtr)
        .ah(AhAttr::new(peer.gid))
        .path_mtu(PathMtu::B1024)
        .remote(peer.qpn)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(4)
        .min_rnr_timer(RnrTimer::new(1))
}

fn rts(own: &Qp<Rc>) -> Modify {
    Modify::to(QpState::Rts)
        .sq_psn(own.first_psn())
        .timeout(adverb_verbs::AckTimeout::from_exponent(14).ok())
        .retry_count(RetryCount::new(7))
        .rnr_retry(RnrRetry::new(7))
        .max_rd_atomic(4)
}

/// Goal: the table of states as people print it, cell by cell, through the device.
fn each_state_takes_the_posts_that_the_table_says(path: Path) {
    let pair = path.setup().pair_unconnected();
    let (a, b) = (&pair.a, &pair.b);
    let posts = |expected: (bool, bool)| {
        let state = a.qp.state();
        let receive = a.qp.post(Work::recv(a.buffer(&[0; 8])).wr_id(1));
        let send = a.qp.post(Work::send(a.buffer(&[])).wr_id(2));
        assert_eq!((receive.is_ok(), send.is_ok()), expected, "{state}");
        for refused in [receive.err(), send.err()].into_iter().flatten() {
            assert_eq!(refused.error, PostError::NotReady { state });
        }
    };
    posts((false, false));
    a.qp.modify(&init()).expect("INIT");
    posts((true, false));
    a.qp.modify(&init()).expect("attributes again");
    a.qp.modify(&rtr(&b.qp)).expect("RTR");
    posts((true, false));
    b.qp.modify(&init()).expect("INIT");
    b.qp.modify(&rtr(&a.qp)).expect("RTR");
    b.qp.modify(&rts(&b.qp)).expect("RTS");
    b.qp.post(Work::recv(b.buffer(&[0; 8]))).expect("room");
    b.qp.post(Work::recv(b.buffer(&[0; 8]))).expect("room");
    a.qp.modify(&rts(&a.qp)).expect("RTS");
    posts((true, true));
    assert_eq!((a.status(), b.status()), (WcStatus::Success, WcStatus::Success));
    // What is posted in SQD waits until the state is RTS again.
    a.qp.modify(&Modify::to(QpState::Sqd)).expect("SQD");
    posts((true, true));
    assert!(a.is_quiet());
    a.qp.modify(&Modify::to(QpState::Rts)).expect("RTS");
    assert_eq!((a.status(), b.status()), (WcStatus::Success, WcStatus::Success));
    a.qp.modify(&Modify::to(QpState::Err)).expect("ERR");
    posts((true, true));
    let mut flushed: Vec<_> = (0..6).map(|_| a.wait().wc).map(|wc| (wc.wr_id, wc.status)).collect();
    flushed.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    let receives = [(1, WcStatus::WorkRequestFlushed); 5];
    assert_eq!(flushed.split_last(), Some((&(2, WcStatus::WorkRequestFlushed), &receives[..])));
}

/// Goal: RESET forgets everything, gives memory back, and the queue pair has a second life.
fn a_queue_pair_is_reused_after_reset(path: Path) {
    let pair = path.setup().pair_unconnected();
    let (a, b) = (&pair.a, &pair.b);
    for round in 0..3_u8 {
        for (qp, peer) in [(&a.qp, &b.qp), (&b.qp, &a.qp)] {
            qp.modify(&init()).expect("INIT");
            qp.modify(&rtr(peer)).expect("RTR");
            qp.modify(&rts(qp)).expect("RTS");
        }
        let data = pattern(u64::from(round), 5000);
        b.qp.post(Work::recv(b.buffer(&vec![0; 5000]))).expect("room");
        a.qp.post(Work::send(a.buffer(&data))).expect("room");
        assert_eq!(a.status(), WcStatus::Success);
        let got = b.wait().ok().expect("received").memory;
        assert!(*got.and_then(adverb_verbs::Memory::into_buf).expect("a buffer") == *data);

        // Work of all kinds is outstanding: receives, requests without an answer, unsignaled ones.
        let mr = a.region(&[0; 8]);
        for _ in 0..20 {
            a.qp.post(Work::recv(mr.slice(0, 8).expect("in there"))).expect("room");
        }
        b.qp.modify(&Modify::to(QpState::Reset)).expect("RESET");
        for _ in 0..10 {
            let slice = || mr.slice(0, 8).expect("in there");
            a.qp.post(Work::send(slice()).unsignaled()).expect("room");
            a.qp.post(Work::send(slice())).expect("room");
        }
        assert_eq!(a.qp.query().outstanding, 20);
        a.qp.modify(&Modify::to(QpState::Reset)).expect("RESET");
        let attr = a.qp.query();
        assert_eq!((attr.state, attr.outstanding, attr.remote), (QpState::Reset, 0, None));
        assert!(a.is_quiet(), "work vanishes without completions");
        // Packets that are still about would be taken for those of the next life, whose numbers they have.
        assert!(b.is_quiet());
        // No work holds the region any more, so its memory was given back.
        mr.reregister(&a.pd, Access::NONE).expect("nothing uses it");
    }
}

#[test]
fn draining_says_when_everything_that_had_begun_has_ended() {
    let context = Context::open("soft_lo").expect("the loopback device");
    let events = context.async_events().expect("events");
    let pair = Setup::default().pair_on(context);
    let (a, b) = (&pair.a, &pair.b);
    // A message without a receive has begun, and does not end.
    a.qp.post(Work::send(a.buffer(b"first")).wr_id(1)).expect("room");
    eventually("an attempt", || {
        pair.context.drive();
        b.qp.counters().rcvd_pkts > 0
    });
    let drain = Modify::to(QpState::Sqd).notify_drained(true);
    a.qp.modify(&drain).expect("SQD");
    a.qp.post(Work::send(a.buffer(b"other")).wr_id(2)).expect("room");
    assert!(a.qp.query().draining);
    b.qp.post(Work::recv(b.buffer(&[0; 5]))).expect("room");
    assert_eq!(a.wait().ok().expect("sent").wc.wr_id, 1);
    let event = loop {
        let event = events.get().expect("an event");
        if event.kind != EventKind::CommEst {
            break event;
        }
    };
    assert_eq!(event.kind, EventKind::SqDrained);
    assert!(!a.qp.query().draining);
    assert!(a.is_quiet());
    b.qp.post(Work::recv(b.buffer(&[0; 5]))).expect("room");
    let again = Modify::to(QpState::Rts).min_rnr_timer(RnrTimer::new(3));
    a.qp.modify(&again).expect("RTS");
    assert_eq!(a.wait().ok().expect("sent").wc.wr_id, 2);
    assert_eq!(a.qp.query().min_rnr_timer, RnrTimer::new(3));
}

/// A local mistake stops the send queue of an unreliable queue pair, and not its receives.
#[test]
fn a_failed_send_queue_works_again_when_told_to() {
    let context = Context::open("soft_lo").expect("the loopback device");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(64).expect("a queue"));
    let make = || pd.create_qp_of::<Uc>(&QpConfig::new(&cq)).expect("a queue pair");
    let [a, b] = [make(), make()];
    let [here, there] = [&a, &b].map(|qp| qp.address().expect("an address"));
    a.connect(there).expect("connected");
    b.connect(here).expect("connected");
    let mut short = [1_u8; 3000];
    // The loan ends while the request waits in SQD, so that its memory is gone when it is sent.
    a.modify(&Modify::to(QpState::Sqd)).expect("SQD");
    pd.scope(|scope| {
        let lent = scope.lend_mut(&mut short).expect("memory");
        a.post(Work::send(lent).wr_id(1)).expect("room");
    });
    a.modify(&Modify::to(QpState::Rts)).expect("RTS");
    let failed = wait(&cq);
    assert_eq!((failed.wc.wr_id, failed.wc.status), (1, WcStatus::LocalProtection));
    assert_eq!(a.state(), QpState::Sqe);
    a.post(Work::send(pd.buffer(1).expect("memory")).wr_id(2)).expect("flushed, and not refused");
    assert_eq!(wait(&cq).wc.status, WcStatus::WorkRequestFlushed);
    a.post(Work::recv(pd.buffer(1).expect("memory")).wr_id(3)).expect("room");
    b.post(Work::send(pd.buffer(1).expect("memory")).wr_id(4)).expect("room");
    for _ in 0..2 {
        wait(&cq).ok().expect("receives work");
    }
    a.modify(&Modify::to(QpState::Rts)).expect("RTS");
    b.post(Work::recv(pd.buffer(1).expect("memory")).wr_id(5)).expect("room");
    a.post(Work::send(pd.buffer(1).expect("memory")).wr_id(6)).expect("room");
    for _ in 0..2 {
        wait(&cq).ok().expect("sends work again");
    }
}

#[test]
fn what_is_asked_wrongly_is_named_and_changes_nothing() {
    let Pair { a, b, .. } = Setup::default().pair_unconnected();
    let qp = &a.qp;
    let says = |modify: &Modify, expected: &str| {
        let before = qp.query();
        let error = qp.modify(modify).expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert_eq!(qp.query(), before);
    };
    says(&Modify::to(QpState::Rts), "a queue pair in RESET cannot go to RTS");
    says(
        &init().qkey(Qkey(1)).pkey_index(None),
        "a queue pair (RC) on its way from RESET to INIT needs pkey_index and takes no qkey",
    );
    says(&init().pkey_index(1), "pkey_index = 1, but it must be from 0 to 0");
    says(&init().port(2), "port_num = 2, but it must be from 1 to 1");
    qp.modify(&init()).expect("INIT");
    says(&rtr(&b.qp).current(QpState::Rtr), "the queue pair is in INIT, not in RTR");
    says(
        &rtr(&b.qp).ah(None).path_mtu(None),
        "a queue pair (RC) on its way from INIT to RTR needs ah_attr, path_mtu",
    );
    let far = rtr(&b.qp).ah.expect("an address").gid_index(99);
    let error = qp.modify(&rtr(&b.qp).ah(far)).expect_err("no such place");
    assert!(matches!(error, ConnectError::NoSuchGid { index: 99 }));
    says(
        &rtr(&b.qp).max_dest_rd_atomic(129),
        "max_dest_rd_atomic = 129, but it must be from 0 to 128",
    );
    qp.modify(&rtr(&b.qp)).expect("RTR");
    says(
        &rts(qp).timeout(None).retry_count(None),
        "a queue pair (RC) on its way from RTR to RTS needs timeout, retry_cnt",
    );
}

#[test]
fn a_query_returns_what_was_set() {
    let Pair { a, b, .. } = Setup::default().pair_unconnected();
    a.qp.modify(&init()).expect("INIT");
    a.qp.modify(&rtr(&b.qp)).expect("RTR");
    a.qp.modify(&rts(&a.qp)).expect("RTS");
    let attr = a.qp.query();
    let peer = b.qp.address().expect("an address");
    assert_eq!((attr.state, attr.remote), (QpState::Rts, Some((peer.gid, peer.qpn))));
    assert_eq!(attr.ah.map(|ah| (ah.gid, ah.gid_index)), Some((peer.gid, Some(1))));
    assert_eq!((attr.path_mtu, attr.pkey_index, attr.port), (PathMtu::B1024, 0, 1));
    assert_eq!((attr.rq_psn, attr.sq_psn), (peer.psn, a.qp.first_psn()));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
    assert_eq!(attr.min_rnr_timer, RnrTimer::new(1));
    assert_eq!((attr.retry_count.get(), attr.rnr_retry.get()), (7, 7));
    assert!(!attr.draining && !attr.signal_all && attr.srq.is_none());
    assert_eq!((attr.access, attr.kind), (Access::ALL, adverb_verbs::QpType::Rc));

    let cq = a.cq.clone();
    let ud = a.pd.create_qp_of::<Ud>(&QpConfig::new(&cq)).expect("a queue pair");
    let init = Modify::to(QpState::Init).pkey_index(0).port(1).qkey(Qkey(5));
    ud.modify(&init).expect("INIT");
    ud.modify(&Modify::to(QpState::Rtr)).expect("RTR");
    let sq_psn = Some(Psn::new(9));
    ud.modify(&Modify::to(QpState::Rts).sq_psn(sq_psn)).expect("RTS");
    ud.modify(&Modify::default().qkey(Qkey(6))).expect("another key");
    let attr = ud.query();
    assert_eq!((attr.qkey, attr.sq_psn, attr.remote), (Qkey(6), Psn::new(9), None));
}

/// Goal: the first packet that comes before the owner knows that the connection stands is an event,
/// and no later one is.
fn a_message_in_rtr_says_that_the_connection_stands(path: Path) {
    let pair = path.setup().pair_unconnected();
    let events = pair.far.async_events().expect("events");
    let (a, b) = (&pair.a, &pair.b);
    for (qp, peer) in [(&a.qp, &b.qp), (&b.qp, &a.qp)] {
        qp.modify(&init()).expect("INIT");
        qp.modify(&rtr(peer)).expect("RTR");
    }
    a.qp.modify(&rts(&a.qp)).expect("RTS");
    for _ in 0..2 {
        b.qp.post(Work::recv(b.buffer(&[0; 8]))).expect("room");
        a.qp.post(Work::send(a.buffer(&[1; 8]))).expect("room");
        assert_eq!((a.status(), b.status()), (WcStatus::Success, WcStatus::Success));
    }
    let event = std::iter::from_fn(|| events.try_get());
    let kinds: Vec<_> = event.map(|event| (event.kind, event.element)).collect();
    let expected = Element::Qp { number: b.qp.number(), context: 0 };
    assert_eq!(kinds, [(EventKind::CommEst, expected)]);
    b.qp.modify(&rts(&b.qp)).expect("RTS");
}
