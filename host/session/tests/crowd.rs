//! Many endpoints of one adapter, in every way of waiting. Their other ends are another process's: a process has
//! descriptors for so many alone.
//!
//! As many as `ADVERB_TEST_ENDPOINTS` says, or as there are descriptors for.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Adapter, AsyncChannel, ClientSession, Config, Endpoint, ServerSession, ThreadMode, WorkMode,
};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use support::LONG;
use support::process::{self, Process};

/// More than the kernel lets sleep on the descriptors of one device.
const COUNT: usize = 1_200;
/// Descriptors that a process has besides.
const SPARE: usize = 200;
/// Completion channels that an adapter has at most, where endpoints do not share one, and descriptors of each: the
/// channel, and in a runtime the bell, the set and the runtime's copies of that.
const CHANNELS: usize = 1024;
const OF_CHANNEL: usize = 5;
/// One crowd at a time has the machine.
static TURN: Mutex<()> = Mutex::new(());

/// Ways of waiting, by their place in this table. In each an end takes one descriptor, that of its connection.
const WAYS: [(WorkMode, ThreadMode); 6] = [
    (WorkMode::Epoll, ThreadMode::PerChannel),
    (WorkMode::Epoll, ThreadMode::SHARED),
    (WorkMode::CompletionChannel, ThreadMode::PerChannel),
    (WorkMode::CompletionChannel, ThreadMode::SHARED),
    (WorkMode::BusyPoll, ThreadMode::PerChannel),
    (WorkMode::BusyPoll, ThreadMode::SHARED),
];
/// What the parent tells its child: the place in the table, and the number of endpoints.
const WAY: &str = "ADVERB_TEST_CROWD";

/// Descriptors that each of the first endpoints takes besides its connection's.
fn of_channel(work: WorkMode) -> usize {
    if work == WorkMode::CompletionChannel { OF_CHANNEL } else { 0 }
}

/// Descriptors for so many endpoints.
fn descriptors(work: WorkMode, count: usize) -> usize {
    SPARE + count + count.min(CHANNELS) * of_channel(work)
}

/// As many endpoints as there are descriptors for.
fn count(work: WorkMode) -> usize {
    let asked = std::env::var("ADVERB_TEST_ENDPOINTS").ok().and_then(|count| count.parse().ok());
    let asked: usize = asked.unwrap_or(COUNT);
    let room = make_room(descriptors(work, asked)).saturating_sub(SPARE);
    let few = room / (1 + of_channel(work));
    let room = if few <= CHANNELS { few } else { room - CHANNELS * of_channel(work) };
    if room < asked {
        println!("{room} endpoints instead of {asked}: there are no more descriptors");
    }
    asked.min(room)
}

/// How many descriptors this process may have: as many as are wanted, if the limit can be raised.
fn make_room(wanted: usize) -> usize {
    let limit = || {
        let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
        let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
        line.split_whitespace().nth(3)?.parse::<usize>().ok()
    };
    if limit().is_some_and(|limit| limit < wanted) {
        let id = std::process::id().to_string();
        let raise = ["--pid", &id, &format!("--nofile={wanted}")];
        let _ = Command::new("prlimit").args(raise).stderr(Stdio::null()).status();
    }
    limit().unwrap_or(1024)
}

fn adapter(work: WorkMode, threads: ThreadMode) -> Adapter {
    let config = Config::default().work_mode(work).thread_mode(threads);
    let config = config.send_depth(4).receive_depth(4).connect_timeout(LONG);
    Adapter::open(config.handshake_timeout(LONG).work_timeout(LONG)).unwrap()
}

/// A child with the other ends, and what it is to be told.
fn servers(role: &str, way: usize, count: usize) -> (Process, SocketAddr) {
    let address = process::free_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(WAY, format!("{way} {count}"));
    (Process::start_by(command, role, address), address)
}

/// Connects to them.
fn clients(adapter: Adapter, address: SocketAddr, count: usize) -> Vec<Endpoint> {
    let session = ClientSession::on(adapter);
    let limit = Instant::now() + LONG;
    // The child may not listen yet.
    let first = loop {
        match session.connect(address) {
            Ok(first) => break first,
            Err(error) => assert!(Instant::now() < limit, "the first endpoint: {error}"),
        }
    };
    let connect = |at| session.connect(address).unwrap_or_else(|e| panic!("endpoint {at}: {e}"));
    std::iter::once(first).chain((1..count).map(connect)).collect()
}

/// In a child: accepts them, and has each ready to receive 8 bytes. `None` if it is not one.
fn accept() -> Option<(usize, Vec<Endpoint>)> {
    let address = process::address()?;
    let told = std::env::var(WAY).unwrap();
    let (way, count) = told.split_once(' ').unwrap();
    let (way, count): (usize, usize) = (way.parse().unwrap(), count.parse().unwrap());
    let (work, threads) = *WAYS.get(way).unwrap();
    make_room(descriptors(work, count));
    let mut server = ServerSession::bind_on(address, adapter(work, threads)).unwrap();
    let endpoints: Vec<_> = (0..count).map(|_| server.accept(LONG).unwrap()).collect();
    let far = endpoints.first().unwrap().adapter().buffer(count, 8).unwrap();
    for (at, endpoint) in endpoints.iter().enumerate() {
        endpoint.channel("data").unwrap().post_recv(far.at(at).unwrap()).unwrap();
    }
    Some((count, endpoints))
}

/// The child has got a message by each of its ends, and says so.
fn ends_well(mut child: Process) {
    assert!(child.0.wait().unwrap().success(), "the other process has got all messages");
}

/// Goal: each endpoint carries a message, whatever their number and the way of waiting.
#[test]
fn a_crowd_of_endpoints_exchanges_messages_in_every_mode() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (way, (work, threads)) in WAYS.into_iter().enumerate() {
        let count = count(work);
        let start = Instant::now();
        let (child, address) = servers("receives_in_a_crowd", way, count);
        let adapter = adapter(work, threads);
        let clients = clients(adapter.clone(), address, count);
        let connected = start.elapsed();
        let near = adapter.buffer(1, 8).unwrap();
        for client in &clients {
            client.channel("data").unwrap().send(near.at(0).unwrap()).unwrap();
        }
        ends_well(child);
        println!("{work:?} {threads:?}: {count} connected in {connected:?}, {:?}", start.elapsed());
    }
}

#[test]
#[ignore = "the child of another test"]
fn receives_in_a_crowd() {
    let Some((count, servers)) = accept() else { return };
    // Clients are accepted in any order: one after another has its peer wait for it.
    for server in &servers {
        assert_eq!(server.channel("data").unwrap().recv().unwrap().bytes, 8);
    }
    assert_eq!(servers.len(), count);
}

/// Goal: the same with a runtime that all of them wait in.
#[test]
fn a_crowd_of_endpoints_exchanges_messages_in_a_runtime() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for way in [0, 2] {
        let (work, threads) = WAYS[way];
        let count = count(work);
        let start = Instant::now();
        let (child, address) = servers("receives_in_a_runtime", way, count);
        let adapter = adapter(work, threads);
        let clients = clients(adapter.clone(), address, count);
        let connected = start.elapsed();
        runtime.block_on(async {
            let near = adapter.buffer(1, 8).unwrap();
            let exchange = async {
                for client in &clients {
                    let channel = AsyncChannel::new(client.channel("data").unwrap()).unwrap();
                    channel.send(near.at(0).unwrap()).await.unwrap();
                }
            };
            tokio::time::timeout(LONG * 2, exchange).await.unwrap();
        });
        ends_well(child);
        println!("tokio, {work:?}: {count} connected in {connected:?}, {:?}", start.elapsed());
    }
}

#[test]
#[ignore = "the child of another test"]
fn receives_in_a_runtime() {
    let Some((_, servers)) = accept() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut receivers = Vec::new();
        for server in &servers {
            let channel = AsyncChannel::new(server.channel("data").unwrap()).unwrap();
            receivers.push(tokio::spawn(async move { channel.recv().await.unwrap().bytes }));
        }
        for receiver in receivers {
            assert_eq!(receiver.await.unwrap(), 8);
        }
    });
}
