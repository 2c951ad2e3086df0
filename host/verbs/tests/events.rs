//! Asynchronous events: of objects, and of an interface that changes under the device's feet.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use adverb_verbs::{
    AsyncEvents, Context, CqConfig, Element, EventKind, PortState, QpConfig, QpState, RcConnect,
    Work,
};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Bench, TIMEOUT};

/// Tells the copy of a test that it runs in a network of its own.
const INSIDE: &str = "ADVERB_TEST_INSIDE";

/// Runs the test `name` again, in a network namespace of its own; false in there. Where the system
/// has none to give, or no tool to fill it, the test is skipped.
fn sent_inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let tools = "ip link set lo up && ip link add va type veth peer name vb && ip link del va";
    let probe = ["-rn", "sh", "-c", tools];
    let quiet =
        |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !quiet(Command::new("unshare").args(probe)).is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network namespace to be had");
        return true;
    }
    let mut inside = Command::new("unshare");
    inside.arg("-rn").arg(std::env::current_exe().unwrap());
    inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    assert!(inside.status().unwrap().success());
    true
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status().unwrap();
    assert!(status.success(), "ip {words}");
}

/// Waits for an event of this kind; others may come before it.
fn wait_for(events: &AsyncEvents, kind: EventKind) -> Element {
    loop {
        let event = events.get_timeout(TIMEOUT).unwrap();
        let event = event.unwrap_or_else(|| panic!("no {}", kind.name()));
        if event.kind == kind {
            return event.element;
        }
    }
}

#[test]
fn the_port_and_its_addresses_come_and_go_with_the_interface() {
    if sent_inside("the_port_and_its_addresses_come_and_go_with_the_interface") {
        return;
    }
    ip("link set lo up");
    ip("link add va type veth peer name vb");
    ip("addr add 192.0.2.1/24 dev va");
    ip("link set va up");
    ip("link set vb up");
    let context = Context::open("soft_va").unwrap();
    let events = context.async_events().unwrap();
    let port = Element::Port { number: 1 };

    ip("link set va down");
    assert_eq!(wait_for(&events, EventKind::PortErr), port);
    assert_eq!(context.query_port().state, PortState::Down);
    ip("link set va up");
    assert_eq!(wait_for(&events, EventKind::PortActive), port);
    assert_eq!(context.query_port().state, PortState::Active);

    while events.get_timeout(Duration::from_millis(300)).unwrap().is_some() {}
    let has = |ip: &str| {
        let table = context.query_gid_table().unwrap();
        table.iter().any(|entry| entry.ip().to_string() == ip)
    };
    ip("addr add 192.0.2.7/24 dev va");
    assert_eq!(wait_for(&events, EventKind::GidChange), port);
    assert!(has("192.0.2.7"));
    meet_at("192.0.2.7", &context);
    ip("addr add 192.0.2.9/24 dev va");
    assert!(has("192.0.2.9"));
    while events.get_timeout(Duration::from_millis(300)).unwrap().is_some() {}
    ip("addr del 192.0.2.7/24 dev va");
    assert_eq!(wait_for(&events, EventKind::GidChange), port);
    assert!(!has("192.0.2.7"));
    // The place between others is empty, and the table as long as before.
    let table = context.query_gid_table().unwrap();
    let last = table.iter().map(|entry| usize::from(entry.index)).max().unwrap();
    assert!(table.len() <= last);
    assert_eq!(context.query_port().gid_tbl_len, last + 1);
    ip("addr del 192.0.2.9/24 dev va");
    while events.get_timeout(Duration::from_millis(300)).unwrap().is_some() {}
    ip("addr add 192.0.2.8/24 dev va");
    let again = Context::open("soft_va").unwrap();
    assert!(again.gids().iter().any(|entry| entry.ip().to_string() == "192.0.2.8"));
    assert!(context.gids().iter().all(|entry| entry.ip().to_string() != "192.0.2.8"));
    meet_at("192.0.2.8", &context);

    ip("link del va");
    assert_eq!(wait_for(&events, EventKind::DeviceFatal), Element::Device);
    assert_eq!(context.query_port().state, PortState::Down);
}

/// Two queue pairs of a device exchange a message over this address, which it has got while it was open.
fn meet_at(ip: &str, context: &Context) {
    let table = context.query_gid_table().unwrap();
    let place = table.iter().find(|entry| entry.ip().to_string() == ip).unwrap().index;
    let (pd, cq) = (context.alloc_pd(), context.create_cq(8).unwrap());
    let [one, two] = [(), ()].map(|()| pd.create_qp(&QpConfig::new(&cq)).unwrap());
    for (from, to) in [(&one, &two), (&two, &one)] {
        let how = RcConnect::new(to.address_at(place).unwrap()).gid_index(place);
        from.connect(how).unwrap();
    }
    two.post(Work::recv(pd.buffer(8).unwrap())).unwrap();
    one.post(Work::send(pd.buffer(8).unwrap())).unwrap();
    for _ in 0..2 {
        cq.wait().unwrap().ok().unwrap();
    }
}

/// Goal: every context hears of the port, and none of another context's objects.
#[test]
fn a_full_completion_queue_tells_the_context_it_was_made_from() {
    let bench = Bench::new();
    let other = Context::open("soft_lo").unwrap();
    let (ours, theirs) = (bench.context.async_events().unwrap(), other.async_events().unwrap());
    let small = CqConfig::new(1).context(42);
    let small = bench.context.create_cq_with(&small).unwrap();
    let pair = bench.pair(&small, &small);
    for _ in 0..3 {
        pair[0].post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    }
    pair[0].to_err();
    let event = ours.get_timeout(TIMEOUT).unwrap().unwrap();
    assert_eq!((event.kind, event.element), (EventKind::CqErr, Element::Cq { context: 42 }));
    assert!(event.to_string().starts_with("IBV_EVENT_CQ_ERR"));
    assert!(ours.try_get().is_none(), "told twice");
    assert!(theirs.try_get().is_none());

    // The completion from before the overrun can be had, then the error.
    assert!(small.next().unwrap().is_some());
    assert!(small.next().is_err());
    let last: Vec<_> = small.completions().take(2).map(|done| done.is_ok()).collect();
    assert_eq!(last, [false], "an iterator ends with the error");

    drop(pair);
    let busy = small.destroy().unwrap_err();
    assert_eq!((busy.handles, busy.unacknowledged), (0, 1));
    event.acknowledge();
    busy.object.destroy().unwrap();
}

/// Goal: a queue pair whose completions find no room stops in the middle of its work, and both the
/// queue and the queue pair say why.
#[test]
fn an_overrun_in_the_middle_of_work_is_an_event_of_the_queue_and_of_its_queue_pair() {
    let bench = Bench::new();
    let events = bench.context.async_events().unwrap();
    let (small, roomy) =
        (bench.context.create_cq(1).unwrap(), bench.context.create_cq(64).unwrap());
    let [a, b] = bench.pair(&small, &roomy);
    for _ in 0..3 {
        b.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
        a.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    }
    assert_eq!(wait_for(&events, EventKind::CqErr), Element::Cq { context: 0 });
    let Element::Qp { number, .. } = wait_for(&events, EventKind::QpFatal) else {
        panic!("of something else");
    };
    assert_eq!(number, a.number());
    assert_eq!(a.state(), QpState::Err);
    assert!(events.get_timeout(Duration::from_millis(50)).unwrap().is_none(), "told twice");
}
