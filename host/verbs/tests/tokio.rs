//! Waiting in a tokio runtime: nothing is missed, and a wait that is given up has taken nothing.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use adverb_verbs::{
    AsyncCompChannel, AsyncEventStream, CqConfig, EventKind, WcStatus, Work, WorkCompletion,
};
use std::time::Duration;
use support::{Bench, TIMEOUT};

fn block_on<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.expect("in time") })
}

#[test]
fn tasks_exchange_messages_and_miss_none() {
    const ROUNDS: usize = 500;
    block_on(async {
        let bench = Bench::new();
        let side = || {
            let channel = bench.context.create_comp_channel().unwrap();
            let config = CqConfig::new(16).channel(&channel);
            let cq = bench.context.create_cq_with(&config).unwrap();
            (AsyncCompChannel::new(channel).unwrap(), cq)
        };
        let sink = bench.context.create_cq(2048).unwrap();
        let (left, right) = (side(), side());
        let of = |cq| adverb_verbs::QpConfig::new(cq).send_cq(&sink).recv_cq(cq).max_send_wr(1024);
        let [a, b] = bench.pair_of(&of(&left.1), &of(&right.1));
        for qp in [&a, &b] {
            qp.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
        }
        let play = async |qp: &adverb_verbs::Qp<adverb_verbs::Rc>,
                          (channel, cq): &(AsyncCompChannel, adverb_verbs::Cq),
                          first: bool| {
            let send = || qp.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
            if first {
                send();
            }
            for round in 0..ROUNDS {
                let mut out = [WorkCompletion::EMPTY; 1];
                assert_eq!(channel.poll(cq, &mut out).await.unwrap(), 1);
                assert_eq!(out[0].status, WcStatus::Success);
                drop(cq.take(&out[0]));
                qp.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
                if !first || round + 1 < ROUNDS {
                    send();
                }
            }
        };
        tokio::join!(play(&a, &left, true), play(&b, &right, false));
    });
}

#[test]
fn a_wait_that_is_given_up_has_taken_nothing() {
    block_on(async {
        let bench = Bench::new();
        let channel = bench.context.create_comp_channel().unwrap();
        let config = CqConfig::new(16).channel(&channel);
        let cq = bench.context.create_cq_with(&config).unwrap();
        let [a, _b] = bench.pair(&cq, &cq);
        let channel = AsyncCompChannel::new(channel).unwrap();
        a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
        cq.req_notify(false).unwrap();
        for _ in 0..10 {
            let short = Duration::from_millis(1);
            assert!(tokio::time::timeout(short, channel.event()).await.is_err());
        }
        a.to_err();
        let event = channel.event().await.unwrap();
        assert_eq!(event.cq().next().unwrap().unwrap().wc.status, WcStatus::WorkRequestFlushed);
    });
}

#[test]
fn a_task_hears_of_asynchronous_events() {
    block_on(async {
        let bench = Bench::new();
        let events = AsyncEventStream::new(bench.context.async_events().unwrap()).unwrap();
        let short = Duration::from_millis(5);
        assert!(tokio::time::timeout(short, events.next()).await.is_err());
        let cq = bench.context.create_cq(1).unwrap();
        let [a, _b] = bench.pair(&cq, &cq);
        for _ in 0..2 {
            a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
        }
        a.to_err();
        assert_eq!(events.next().await.unwrap().kind, EventKind::CqErr);
    });
}
