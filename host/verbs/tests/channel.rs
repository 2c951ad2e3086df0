//! Completion channels: which sleepers are woken, for what, and that none sleeps through an event.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "verbs/alone.rs"]
mod alone;
#[path = "verbs/pair.rs"]
mod pair;
#[path = "verbs/path.rs"]
mod path;
mod support;

use adverb_sys::poll;
use adverb_verbs::{
    CompChannel, Context, Cq, CqConfig, CqEvent, NotifyError, Pd, Qp, QpConfig, Rc, WcOpcode,
    WcStatus, Work, WorkCompletion,
};
use path::{Path, on_every_path};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use support::{Bench, TIMEOUT};

on_every_path! {
    a_sleeping_receiver_is_woken_by_a_message,
    a_solicited_arm_waits_for_a_solicited_message,
    more_threads_can_sleep_than_wait_for_the_sockets,
    one_channel_serves_many_queues_and_says_which,
    sleepers_on_the_descriptor_are_served_by_the_helper,
    sleepers_on_the_descriptor_for_packets_serve_themselves,
    a_sleeper_with_an_answer_hears_that_the_question_arrived,
}

const SHORT: Duration = Duration::from_millis(20);

fn cq_on(side: &Context, channel: &CompChannel, context: u64) -> Cq {
    let config = CqConfig::new(64).channel(channel).context(context);
    side.create_cq_with(&config).unwrap()
}

fn send(bench: &Bench, from: &Qp<Rc>, solicited: bool) {
    let work = Work::send(bench.pd.buffer(8).unwrap());
    from.post(if solicited { work.solicited() } else { work }).unwrap();
}

fn recv(bench: &Bench, at: &Qp<Rc>) {
    at.post(Work::recv(bench.far_pd.buffer(8).unwrap())).unwrap();
}

fn event(channel: &CompChannel) -> CqEvent {
    channel.get_event_timeout(TIMEOUT).unwrap().expect("an event in time")
}

/// Takes completions until there are `count`.
fn take(cq: &Cq, count: usize) -> Vec<WorkCompletion> {
    let mut all = Vec::new();
    let mut out = [WorkCompletion::EMPTY; 16];
    while all.len() < count {
        let taken = cq.poll(&mut out).unwrap();
        all.extend_from_slice(&out[..taken]);
    }
    all
}

/// Goal: what comes along with a message is not left lying when the program polls no more.
fn a_sleeper_with_an_answer_hears_that_the_question_arrived(path: Path) {
    let bench = Bench::over(path.contexts());
    let channel = bench.context.create_comp_channel().unwrap();
    let sends = cq_on(&bench.context, &channel, 3);
    let (receives, theirs) =
        (bench.context.create_cq(64).unwrap(), bench.far.create_cq(64).unwrap());
    let config = QpConfig::new(&sends).recv_cq(&receives);
    let [a, b] = bench.pair_of(&config, &QpConfig::new(&theirs));
    sends.req_notify(false).unwrap();
    a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    recv(&bench, &b);
    send(&bench, &a, false);
    let _ = take(&theirs, 1);
    b.post(Work::send(bench.far_pd.buffer(8).unwrap())).unwrap();
    let _ = take(&receives, 1);
    let event = event(&channel);
    assert_eq!((event.context(), take(event.cq(), 1)[0].status), (3, WcStatus::Success));
}

fn a_sleeping_receiver_is_woken_by_a_message(path: Path) {
    let bench = Bench::over(path.contexts());
    let channel = bench.far.create_comp_channel().unwrap();
    let (ours, theirs) = (bench.context.create_cq(64).unwrap(), cq_on(&bench.far, &channel, 7));
    let [a, b] = bench.pair(&ours, &theirs);
    recv(&bench, &b);
    theirs.req_notify(false).unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let event = channel.get_event().unwrap();
            (event.context(), take(event.cq(), 1)[0].status)
        });
        std::thread::sleep(SHORT);
        send(&bench, &a, false);
        assert_eq!(sleeper.join().unwrap(), (7, WcStatus::Success));
    });
}

#[test]
fn an_arm_is_one_event_and_what_came_before_it_is_none() {
    let bench = Bench::new();
    let channel = bench.context.create_comp_channel().unwrap();
    let cq = cq_on(&bench.far, &channel, 0);
    let [a, b] = bench.pair(&cq, &cq);
    (0..3).for_each(|_| recv(&bench, &b));
    send(&bench, &a, false);
    assert_eq!(take(&cq, 2).len(), 2);
    assert!(channel.try_get_event().is_none(), "no queue was armed");

    send(&bench, &a, false);
    while channel.get_event_timeout(SHORT).unwrap().is_some() {}
    cq.req_notify(false).unwrap();
    assert!(channel.get_event_timeout(SHORT).unwrap().is_none(), "they came before the arm");
    assert_eq!(take(&cq, 2).len(), 2);

    send(&bench, &a, false); // Two completions, one event.
    drop(event(&channel));
    assert_eq!(take(&cq, 2).len(), 2);
    assert!(channel.get_event_timeout(SHORT).unwrap().is_none());
}

fn a_solicited_arm_waits_for_a_solicited_message(path: Path) {
    let bench = Bench::over(path.contexts());
    let channel = bench.far.create_comp_channel().unwrap();
    let (ours, theirs) = (bench.context.create_cq(64).unwrap(), cq_on(&bench.far, &channel, 0));
    let [a, b] = bench.pair(&ours, &theirs);
    (0..3).for_each(|_| recv(&bench, &b));
    theirs.req_notify(true).unwrap();
    send(&bench, &a, false);
    assert_eq!(take(&theirs, 1).len(), 1);
    assert!(channel.get_event_timeout(SHORT).unwrap().is_none());
    send(&bench, &a, true);
    drop(event(&channel));

    // An arm for any completion is not taken back by one for solicited ones.
    assert_eq!(take(&theirs, 1).len(), 1);
    theirs.req_notify(false).unwrap();
    theirs.req_notify(true).unwrap();
    send(&bench, &a, false);
    drop(event(&channel));
}

#[test]
fn an_error_fires_a_solicited_arm() {
    let bench = Bench::new();
    let channel = bench.context.create_comp_channel().unwrap();
    let cq = cq_on(&bench.far, &channel, 0);
    let [a, _b] = bench.pair(&cq, &cq);
    recv(&bench, &a);
    cq.req_notify(true).unwrap();
    a.to_err();
    let event = event(&channel);
    assert_eq!(take(event.cq(), 1)[0].status, WcStatus::WorkRequestFlushed);
}

fn one_channel_serves_many_queues_and_says_which(path: Path) {
    let bench = Bench::over(path.contexts());
    let channel = bench.far.create_comp_channel().unwrap();
    let sink = bench.context.create_cq(64).unwrap();
    let cqs: Vec<_> = (0..20).map(|context| cq_on(&bench.far, &channel, context)).collect();
    let pairs: Vec<_> = cqs.iter().map(|cq| bench.pair(&sink, cq)).collect();
    for ([a, b], cq) in pairs.iter().zip(&cqs) {
        recv(&bench, b);
        cq.req_notify(false).unwrap();
        send(&bench, a, false);
    }
    let mut seen: Vec<u64> = (0..20).map(|_| event(&channel).context()).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..20));
    assert!(channel.try_get_event().is_none());
}

/// Goal: a program that sleeps on a descriptor that rings for events alone is served: only the
/// helper drives.
fn sleepers_on_the_descriptor_are_served_by_the_helper(path: Path) {
    play(path, |channel| assert!(readable(channel.event_fd()), "it was not rung"));
}

fn sleepers_on_the_descriptor_for_packets_serve_themselves(path: Path) {
    play(path, |channel| assert!(readable(channel.as_fd()), "it was not rung"));
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    poll::readable(&fd, std::iter::empty(), Some(TIMEOUT)).unwrap()
}

/// Two threads exchange messages and sleep, as `sleep` says, whenever they have none.
fn play(path: Path, sleep: impl Fn(&CompChannel) + Sync) {
    const ROUNDS: usize = 200;
    let bench = Bench::over(path.contexts());
    let side = |context: &Context, pd: &Pd| {
        let channel = context.create_comp_channel().unwrap();
        let cq = cq_on(context, &channel, 0);
        (channel, cq, pd.clone())
    };
    let (left, right) = (side(&bench.context, &bench.pd), side(&bench.far, &bench.far_pd));
    let recv = |pd: &Pd, qp: &Qp<Rc>| qp.post(Work::recv(pd.buffer(8).unwrap())).unwrap();
    let send = |pd: &Pd, qp: &Qp<Rc>| qp.post(Work::send(pd.buffer(8).unwrap())).unwrap();
    let [a, b] = bench.pair(&left.1, &right.1);
    for (side, qp) in [(&left, &a), (&right, &b)].repeat(2) {
        recv(&side.2, qp);
    }
    for cq in [&left.1, &right.1] {
        cq.req_notify(false).unwrap();
    }
    let play = |(channel, cq, pd): &(CompChannel, Cq, Pd), qp: &Qp<Rc>, first: bool| {
        let mut received = 0;
        if first {
            send(pd, qp);
        }
        while received < ROUNDS {
            sleep(channel);
            while let Some(event) = channel.try_get_event() {
                event.cq().req_notify(false).unwrap();
            }
            while let Some(done) = cq.next().unwrap() {
                if done.ok().unwrap().wc.opcode == WcOpcode::Receive {
                    received += 1;
                    recv(pd, qp);
                    if !first || received < ROUNDS {
                        send(pd, qp);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&left, &a, true));
        scope.spawn(|| play(&right, &b, false));
    });
}

fn more_threads_can_sleep_than_wait_for_the_sockets(path: Path) {
    let bench = Bench::over(path.contexts());
    let sink = bench.context.create_cq(64).unwrap();
    let sides: Vec<_> = (0..8)
        .map(|context| {
            let channel = bench.far.create_comp_channel().unwrap();
            let cq = cq_on(&bench.far, &channel, context);
            let pair = bench.pair(&sink, &cq);
            recv(&bench, &pair[1]);
            cq.req_notify(false).unwrap();
            (channel, cq, pair)
        })
        .collect();
    std::thread::scope(|scope| {
        for (channel, ..) in &sides {
            scope.spawn(move || drop(event(channel)));
        }
        std::thread::sleep(SHORT);
        for (_, _, [a, _]) in &sides {
            send(&bench, a, false);
        }
    });
}

#[test]
fn a_queue_ends_only_when_nothing_uses_it_and_its_events_are_acknowledged() {
    let bench = Bench::new();
    let channel = bench.context.create_comp_channel().unwrap();
    let cq = cq_on(&bench.far, &channel, 0);
    let qp = bench.pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let busy = cq.destroy().unwrap_err();
    assert!(busy.handles > 0, "{busy}");
    let cq = busy.object;
    let pair = bench.pair(&cq, &cq);
    recv(&bench, &pair[0]);
    cq.req_notify(false).unwrap();
    pair[0].to_err();
    drop((pair, qp));
    let kept = event(&channel).keep();
    drop(kept);
    let busy = cq.destroy().unwrap_err();
    assert_eq!((busy.handles, busy.unacknowledged), (0, 1), "{busy}");
    busy.object.ack_events(1);
    busy.object.destroy().unwrap();
}

#[test]
fn events_of_a_queue_that_is_gone_are_gone_too() {
    let bench = Bench::new();
    let channel = bench.context.create_comp_channel().unwrap();
    let cq = cq_on(&bench.far, &channel, 0);
    let pair = bench.pair(&cq, &cq);
    recv(&bench, &pair[0]);
    cq.req_notify(false).unwrap();
    pair[0].to_err();
    drop((pair, cq));
    assert!(channel.get_event_timeout(SHORT).unwrap().is_none());
}

#[test]
fn arming_a_queue_without_a_channel_is_an_error_that_says_so() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(1).unwrap();
    assert_eq!(cq.req_notify(false), Err(NotifyError));
    assert!(NotifyError.to_string().contains("CqConfig::channel"));
}
