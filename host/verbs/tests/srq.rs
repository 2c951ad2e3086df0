//! Shared receive queues: which queue pair draws, which channel is told, and what an error leaves alone.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "verbs/alone.rs"]
mod alone;
#[path = "verbs/pair.rs"]
mod pair;
#[path = "verbs/path.rs"]
mod path;
mod support;

use adverb_verbs::{Element, EventKind, PostError, QpConfig, SrqConfig, WcOpcode, WcStatus, Work};
use path::{Path, on_every_path};
use support::{Bench, TIMEOUT};

on_every_path! {
    a_queue_that_runs_low_says_so_once,
    a_sender_waits_until_a_receive_is_shared,
    an_error_of_one_queue_pair_leaves_the_receives_to_the_others,
    many_queue_pairs_draw_from_one_queue_and_get_their_memory_back,
}

fn many_queue_pairs_draw_from_one_queue_and_get_their_memory_back(path: Path) {
    const PAIRS: usize = 8;
    let bench = Bench::over(path.contexts());
    let (sink, cq) = (bench.context.create_cq(256).unwrap(), bench.far.create_cq(256).unwrap());
    let srq = bench.far_pd.create_srq(&SrqConfig::new(64)).unwrap();
    let shared = QpConfig::new(&cq).srq(&srq);
    let pairs: Vec<_> = (0..PAIRS).map(|_| bench.pair_of(&QpConfig::new(&sink), &shared)).collect();
    for wr_id in 0..64 {
        srq.post(Work::recv(bench.far_pd.buffer(8).unwrap()).wr_id(wr_id)).unwrap();
    }
    for round in 0..4_u8 {
        for (number, [a, _]) in (0..).zip(&pairs) {
            let mut message = bench.pd.buffer(2).unwrap();
            message.copy_from_slice(&[number, round]);
            a.post(Work::send(message)).unwrap();
        }
    }
    let mut next = [0; PAIRS];
    for _ in 0..4 * PAIRS {
        let done = cq.wait().unwrap().ok().unwrap();
        assert_eq!((done.wc.opcode, done.wc.srq), (WcOpcode::Receive, Some(srq.number())));
        let bytes = done.memory.unwrap().into_buf().unwrap();
        let [number, round] = [bytes[0], bytes[1]];
        let from = &pairs[usize::from(number)][1];
        assert_eq!(done.wc.qp, from.number());
        assert_eq!(round, next[usize::from(number)], "out of order");
        next[usize::from(number)] += 1;
    }
    assert_eq!(srq.query().posted, 64 - 4 * 8);
}

fn a_queue_that_runs_low_says_so_once(path: Path) {
    let bench = Bench::over(path.contexts());
    let events = bench.far.async_events().unwrap();
    let [sent, cq] = [&bench.context, &bench.far].map(|side| side.create_cq(64).unwrap());
    let srq = bench.far_pd.create_srq(&SrqConfig::new(8).context(5)).unwrap();
    let shared = QpConfig::new(&cq).srq(&srq);
    let [a, b] = bench.pair_of(&QpConfig::new(&sent), &shared);
    (0..3).for_each(|_| srq.post(Work::recv(bench.far_pd.buffer(8).unwrap())).unwrap());
    srq.arm_limit(2).unwrap();
    for _ in 0..3 {
        a.post(Work::send(bench.pd.buffer(1).unwrap())).unwrap();
    }
    for cq in [&sent, &cq].repeat(3) {
        cq.wait().unwrap().ok().unwrap();
    }
    let event = events.get_timeout(TIMEOUT).unwrap().unwrap();
    assert_eq!(event.kind, EventKind::SrqLimitReached);
    assert_eq!(event.element, Element::Srq { number: srq.number(), context: 5 });
    assert!(events.try_get().is_none());
    drop((a, b));
    let busy = srq.destroy().unwrap_err();
    assert_eq!((busy.handles, busy.unacknowledged), (0, 1));
    drop(event);
    busy.object.destroy().unwrap();
}

/// Goal: a queue pair that fails takes nothing with it that is not its own.
fn an_error_of_one_queue_pair_leaves_the_receives_to_the_others(path: Path) {
    let bench = Bench::over(path.contexts());
    let [sent, cq] = [&bench.context, &bench.far].map(|side| side.create_cq(64).unwrap());
    let srq = bench.far_pd.create_srq(&SrqConfig::new(8)).unwrap();
    let shared = QpConfig::new(&cq).srq(&srq);
    let [_a, broken] = bench.pair_of(&QpConfig::new(&sent), &shared);
    let [c, _d] = bench.pair_of(&QpConfig::new(&sent), &shared);
    for wr_id in 1..=2 {
        srq.post(Work::recv(bench.far_pd.buffer(8).unwrap()).wr_id(wr_id)).unwrap();
    }
    broken.to_err();
    assert!(cq.next().unwrap().is_none(), "a shared receive was flushed");
    assert_eq!(srq.query().posted, 2);
    for wr_id in 1..=2 {
        c.post(Work::send(bench.pd.buffer(1).unwrap()).wr_id(10)).unwrap();
        assert_eq!(sent.wait().unwrap().wc.status, WcStatus::Success);
        let drawn = cq.wait().unwrap().wc;
        assert_eq!((drawn.wr_id, drawn.status), (wr_id, WcStatus::Success));
    }
}

fn a_sender_waits_until_a_receive_is_shared(path: Path) {
    let bench = Bench::over(path.contexts());
    let [sent, cq] = [&bench.context, &bench.far].map(|side| side.create_cq(64).unwrap());
    let srq = bench.far_pd.create_srq(&SrqConfig::new(8)).unwrap();
    let shared = QpConfig::new(&cq).srq(&srq);
    let [a, _b] = bench.pair_of(&QpConfig::new(&sent), &shared);
    a.post(Work::send(bench.pd.buffer(1).unwrap())).unwrap();
    assert!(cq.next().unwrap().is_none());
    srq.post(Work::recv(bench.far_pd.buffer(8).unwrap())).unwrap();
    for cq in [&sent, &cq] {
        cq.wait().unwrap().ok().unwrap();
    }
}

#[test]
fn mistakes_are_errors_and_give_the_memory_back() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let srq = bench.pd.create_srq(&SrqConfig::new(1)).unwrap();
    let shared = QpConfig::new(&cq).srq(&srq);
    let [_a, b] = bench.pair_of(&QpConfig::new(&cq), &shared);
    let buffer = || bench.pd.buffer(8).unwrap();

    let rejected = b.post(Work::recv(buffer())).unwrap_err();
    assert_eq!(rejected.error, PostError::SharedReceives);
    assert_eq!(rejected.memory.len(), 1);
    let foreign = bench.context.alloc_pd().buffer(8).unwrap();
    assert_eq!(srq.post(Work::recv(foreign)).unwrap_err().error, PostError::ForeignMemory);
    srq.post(Work::recv(buffer())).unwrap();
    let full = srq.post(Work::recv(buffer())).unwrap_err();
    assert_eq!(full.error, PostError::QueueFull { capacity: 1 });
    assert!(srq.destroy().unwrap_err().handles > 0);
    assert!(bench.pd.create_srq(&SrqConfig::new(0)).is_err());
    assert!(bench.pd.create_srq(&SrqConfig::new(1).max_sge(33)).is_err());
}
