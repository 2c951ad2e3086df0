//! Two processes: a test starts this binary again as its child.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

#[path = "../../verbs/tests/verbs/alone.rs"]
mod alone;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    AckTimeout, Channel, ChannelError, ClientSession, Config, Departure, Endpoint, Event, Handler,
    Operation, PeerInfo, RetryCount, ServerSession, ThreadMode, WorkMode,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::process::{Process, address};
use support::{LONG, departure, pattern};

fn server() -> ServerSession {
    ServerSession::bind("127.0.0.1:0", Config::default()).expect("a server")
}

/// The child's endpoint; `None` if this process was not started as one.
fn child() -> Option<Endpoint> {
    let address = address()?;
    let session = ClientSession::new(Config::default()).expect("a client");
    Some(session.connect(address).expect("an endpoint"))
}

const ROUNDS: u64 = 200;
const BYTES: usize = 10_000;

#[test]
fn every_byte_goes_there_and_back_between_two_processes() {
    let mut server = server();
    let mut process = Process::start("echo", server.local_addr());
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let buffer = endpoint.adapter().buffer(2, BYTES).unwrap();
    for round in 0..ROUNDS {
        let len = usize::try_from(round * 97).unwrap() % BYTES;
        channel.post_recv(buffer.at(1).unwrap()).unwrap();
        let block = buffer.at(0).unwrap().first(len).unwrap();
        block.write(0, &pattern(round, len)).unwrap();
        channel.send(block).unwrap();
        let event = channel.recv().unwrap();
        let message = event.block.first(event.bytes).unwrap().to_vec();
        assert!(message == pattern(round, len), "round {round} differs");
    }
    assert!(process.0.wait().unwrap().success());
    assert_eq!(departure(&endpoint), Departure::Closed);
}

#[test]
#[ignore = "the child of another test"]
fn echo() {
    let Some(endpoint) = child() else { return };
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let buffer = endpoint.adapter().buffer(2, BYTES).unwrap();
    channel.post_recv(buffer.next().unwrap()).unwrap();
    for _ in 0..ROUNDS {
        let event = channel.recv().unwrap();
        channel.post_recv(buffer.next().unwrap()).unwrap();
        channel.send(event.block.first(event.bytes).unwrap()).unwrap();
    }
    endpoint.close().unwrap();
}

#[test]
fn a_peer_killed_while_it_sends_is_noticed_by_who_receives() {
    let mut server = server();
    let mut process = Process::start("sender", server.local_addr());
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let buffer = endpoint.adapter().buffer(8, BYTES).unwrap();
    for _ in 0..8 {
        channel.post_recv(buffer.next().unwrap()).unwrap();
    }
    for _ in 0..100 {
        let event = channel.recv().unwrap();
        channel.post_recv(event.block).unwrap();
    }
    process.0.kill().unwrap();
    let error = loop {
        match channel.recv() {
            Ok(event) => match channel.post_recv(event.block) {
                Ok(_) => {}
                Err(error) => break error,
            },
            Err(error) => break error,
        }
    };
    assert_eq!(error, ChannelError::PeerGone(Departure::Lost));
    drop((channel, endpoint));

    // The server goes on with the next.
    let _next = Process::start("sender", server.local_addr());
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    channel.post_recv(buffer.next().unwrap()).unwrap();
    channel.recv().unwrap();
}

#[test]
#[ignore = "the child of another test"]
fn sender() {
    let Some(endpoint) = child() else { return };
    let channel = endpoint.channel("data").unwrap();
    let buffer = endpoint.adapter().buffer(1, BYTES).unwrap();
    // Until it is killed, or the peer is gone.
    while channel.send(buffer.at(0).unwrap()).is_ok() {}
}

/// Goal: work that is under way when the peer is killed ends, each piece once, all as errors from
/// some point on.
#[test]
fn a_peer_killed_under_writes_and_reads_ends_all_of_them() {
    let mut server = server();
    let mut process = Process::start("target", server.local_addr());
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let remote = endpoint.remote_buffer("sink").unwrap();
    let local = endpoint.adapter().buffer(8, 1 << 20).unwrap();
    let write = || channel.post_write(local.next().unwrap(), remote.next());
    let mut posted = 0_u64;
    let (mut good, mut bad) = (0_u64, 0_u64);
    while good < 8 {
        while posted < good + 8 {
            write().unwrap();
            posted += 1;
        }
        if let Some(event) = channel.poll().unwrap() {
            event.ok().unwrap();
            good += 1;
        }
    }
    process.0.kill().unwrap();
    // Memory that both share can be read until the news has come.
    let gone = ChannelError::PeerGone(Departure::Lost);
    let mut lost = false;
    while !lost || good + bad < posted {
        match local.next().map(|block| channel.post_read(block, remote.next())) {
            Ok(Ok(_)) => posted += 1,
            Ok(Err(error)) => lost |= error == gone,
            Err(_) => {} // All are in flight.
        }
        match channel.poll().unwrap().map(|event| event.ok()) {
            Some(Ok(_)) => {
                assert_eq!(bad, 0, "work succeeds after work has failed");
                good += 1;
            }
            Some(Err(_)) => bad += 1,
            None => {}
        }
    }
    assert!(channel.poll().unwrap().is_none());
    assert_eq!(write().unwrap_err(), gone);
    assert_eq!(channel.write(local.next().unwrap(), remote.next()).unwrap_err(), gone);
}

/// Goal: a peer that is there but does nothing is given up on.
/// Method: a process that is stopped takes no packets, and its connection stays open.
/// It is over UDP, for a frozen process's memory can be written to by its neighbours.
#[test]
fn a_frozen_peer_is_given_up_on_and_another_is_served() {
    // Alone, for the kernel may hand packets of others to a process that is frozen.
    alone::over_udp("a_frozen_peer_is_given_up_on_and_another_is_served", frozen_and_another);
}

fn frozen_and_another() {
    let mut config = Config::default();
    config.adapter.retry_count = RetryCount::new(5).unwrap();
    config.adapter.ack_timeout = AckTimeout::from_exponent(16).unwrap();
    let mut server = ServerSession::bind("127.0.0.1:0", config).unwrap();
    // Killed before the other is frozen, so that a newcomer takes its slot, and not its place.
    let first = Process::start("target", server.local_addr());
    drop(server.accept(LONG).unwrap());
    let process = Process::start("target", server.local_addr());
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    let remote = endpoint.remote_buffer("sink").unwrap();
    let local = endpoint.adapter().buffer(1, 8).unwrap();
    channel.write(local.at(0).unwrap(), remote.at(0).unwrap()).unwrap();
    first.kill();
    process.signal("-STOP");
    // The signal may take a moment to stop all of its threads.
    let write = || channel.write(local.at(0).unwrap(), remote.at(0).unwrap());
    let error = std::iter::from_fn(|| Some(write())).find_map(Result::err);
    let (operation, route) = (Operation::Write, channel.route());
    assert_eq!(error, Some(ChannelError::Unanswered { operation, route }));
    assert_eq!((route.local, route.remote), (endpoint.adapter().gid(), endpoint.peer().gid));
    let said = error.map(|error| error.to_string()).unwrap_or_default();
    for word in [route.local.to_string(), "over udp".to_owned(), "4791".to_owned()] {
        assert!(said.contains(&word), "{said}");
    }
    assert_eq!(endpoint.departure(), None);

    // Each takes the place of the one before, which was killed.
    for _ in 0..3 {
        let _next = Process::start("target", server.local_addr());
        let endpoint = server.accept(LONG).unwrap();
        let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
        let remote = endpoint.remote_buffer("sink").unwrap();
        channel.write(local.at(0).unwrap(), remote.at(0).unwrap()).unwrap();
    }
}

/// Goal: a peer that is frozen is noticed although nothing is sent to it, in every mode, also by a
/// handler, and a peer that is there is not taken for gone.
/// Method: two processes, of which one is stopped; both have nothing to say.
#[test]
fn a_silent_peer_is_noticed_in_every_mode_and_an_idle_one_stays() {
    alone::alone("a_silent_peer_is_noticed_in_every_mode_and_an_idle_one_stays", silent_and_idle);
}

/// Goal: the same where the frozen process's socket is one of those on the same port.
#[test]
fn a_silent_peer_is_noticed_over_udp_too() {
    alone::over_udp("a_silent_peer_is_noticed_over_udp_too", silent_and_idle);
}

fn silent_and_idle() {
    for work in [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll] {
        for threads in [ThreadMode::PerChannel, ThreadMode::SHARED] {
            let config = Config::default().work_mode(work).thread_mode(threads);
            let config = config.silence_timeout(Duration::from_secs(1));
            let mut server = ServerSession::bind("127.0.0.1:0", config).unwrap();
            let mut endpoints = Vec::new();
            let processes: Vec<_> = (0..2)
                .map(|_| {
                    let process = Process::start("target", server.local_addr());
                    let endpoint = server.accept(LONG).unwrap();
                    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
                    let buffer = endpoint.adapter().buffer(1, 8).unwrap();
                    channel.post_recv(buffer.at(0).unwrap()).unwrap();
                    endpoints.push((endpoint, channel));
                    process
                })
                .collect();
            let (told, handled) = std::sync::mpsc::channel();
            endpoints[1].1.handle(Arc::new(Tell(Mutex::new(told)))).unwrap();
            processes[0].signal("-STOP");
            let gone = ChannelError::PeerGone(Departure::Silent);
            assert_eq!(endpoints[0].1.recv().unwrap_err(), gone, "{work:?} {threads:?}");
            assert_eq!(endpoints[1].0.departure(), None, "{work:?} {threads:?}");
            processes[1].signal("-STOP");
            let gone = handled.recv_timeout(LONG);
            assert_eq!(gone, Ok(Departure::Silent), "{work:?} {threads:?}");
        }
    }
}

/// Tells how a peer went.
struct Tell(Mutex<std::sync::mpsc::Sender<Departure>>);

impl Handler for Tell {
    fn gone(&self, _peer: &PeerInfo, how: Departure) {
        self.0.lock().expect("no panic").send(how).expect("the parent listens");
    }

    fn received(&self, _channel: &Channel, _event: Event) {}
}

/// Goal: a peer that leaves as soon as it has a message has acknowledged it: its sender is not told that
/// the peer is gone instead.
#[test]
fn a_message_that_has_arrived_is_a_success_although_the_peer_leaves_at_once() {
    let mut server = server();
    let mut process = Process::start("leaver", server.local_addr());
    for round in 0..LEAVES {
        let endpoint = server.accept(LONG).unwrap();
        let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
        let buffer = endpoint.adapter().buffer(2, 8).unwrap();
        channel.post_recv(buffer.at(0).unwrap()).unwrap();
        channel.recv().unwrap(); // It is ready.
        let sent = channel.send(buffer.at(1).unwrap());
        assert!(sent.is_ok(), "round {round}: {sent:?}");
    }
    assert!(process.0.wait().unwrap().success());
}

#[test]
#[ignore = "the child of another test"]
fn leaver() {
    let Some(address) = address() else { return };
    for _ in 0..LEAVES {
        let session = ClientSession::new(Config::default()).unwrap();
        let endpoint = session.connect(address).unwrap();
        let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
        let buffer = endpoint.adapter().buffer(2, 8).unwrap();
        channel.post_recv(buffer.at(0).unwrap()).unwrap();
        channel.send(buffer.at(1).unwrap()).unwrap();
        channel.recv().unwrap();
    }
}

const LEAVES: u32 = 50;

/// Goal: what a client has advertised is there again after it has connected again.
#[test]
fn a_client_comes_back_after_its_server_was_killed() {
    let (mut first, address) = Process::listen("one_shot_server");
    let session = ClientSession::new(Config::default()).unwrap();
    let endpoint = session.connect(address).unwrap();
    let buffer = endpoint.adapter().buffer(2, 8).unwrap();
    endpoint.advertise("sink", &buffer).unwrap();
    let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
    buffer.at(0).unwrap().store_u64(0, 41).unwrap();
    // The server writes back what it has read, and one more.
    while buffer.at(1).unwrap().load_u64(0).unwrap() != 42 {}
    // Before the end: after it, the queue pair may refuse at once.
    channel.post_recv(buffer.at(0).unwrap()).unwrap();
    first.0.kill().unwrap();
    assert_eq!(channel.recv().unwrap_err(), ChannelError::PeerGone(Departure::Lost));

    buffer.at(1).unwrap().store_u64(0, 0).unwrap();
    let _second = Process::start("one_shot_server", address);
    let _again = endpoint.reconnect().unwrap();
    while buffer.at(1).unwrap().load_u64(0).unwrap() != 42 {}
}

#[test]
#[ignore = "the child of another test"]
fn one_shot_server() {
    let Some(address) = address() else { return };
    let mut server = ServerSession::bind(address, Config::default()).unwrap();
    let endpoint = server.accept(LONG).unwrap();
    let channel = endpoint.channel("data").unwrap();
    let remote = endpoint.remote_buffer("sink").unwrap();
    let local = endpoint.adapter().buffer(1, 8).unwrap().at(0).unwrap();
    loop {
        let Ok(()) = channel.read(local.clone(), remote.at(0).unwrap()) else { return };
        let word = local.load_u64(0).unwrap();
        local.store_u64(0, word + 1).unwrap();
        let Ok(()) = channel.write(local.clone(), remote.at(1).unwrap()) else { return };
    }
}

#[test]
#[ignore = "the child of another test"]
fn target() {
    let Some(endpoint) = child() else { return };
    let sink = endpoint.adapter().buffer(2, 1 << 20).unwrap();
    endpoint.advertise("sink", &sink).unwrap();
    // It does nothing: its device serves the peer by itself.
    while endpoint.departure().is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
}
