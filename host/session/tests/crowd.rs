//! Many endpoints of one adapter, in every way of waiting.
//!
//! As many as `ADVERB_TEST_ENDPOINTS` says, or as there are descriptors for.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Adapter, AsyncChannel, ClientSession, Config, Endpoint, ServerSession, ThreadMode, WorkMode,
};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use support::LONG;

/// More than the kernel lets sleep on the descriptors of one device.
const COUNT: usize = 1_200;
/// One crowd at a time has the descriptors.
static TURN: Mutex<()> = Mutex::new(());

/// As many endpoints as there are descriptors for, of which each takes so many.
fn count(descriptors: usize) -> usize {
    let asked = std::env::var("ADVERB_TEST_ENDPOINTS").ok().and_then(|count| count.parse().ok());
    let asked: usize = asked.unwrap_or(COUNT);
    let limit = || {
        let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
        let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
        line.split_whitespace().nth(3)?.parse::<usize>().ok()
    };
    let wanted = asked * descriptors + 500;
    if limit().is_some_and(|limit| limit < wanted) {
        let id = std::process::id().to_string();
        let raise = ["--pid", &id, &format!("--nofile={wanted}")];
        let _ = Command::new("prlimit").args(raise).stderr(Stdio::null()).status();
    }
    let room = limit().unwrap_or(1024).saturating_sub(500) / descriptors;
    if room < asked {
        println!("{room} endpoints instead of {asked}: there are no more descriptors");
    }
    asked.min(room)
}

/// Both ends of `count` endpoints, of two adapters.
fn crowd(config: &Config, count: usize) -> (Vec<Endpoint>, Vec<Endpoint>) {
    let config = config.clone().send_depth(4).receive_depth(4).connect_timeout(LONG);
    let config = config.handshake_timeout(LONG).work_timeout(LONG);
    let adapter = || Adapter::open(config.clone()).unwrap();
    let mut server = ServerSession::bind_on("127.0.0.1:0", adapter()).unwrap();
    let address = server.local_addr();
    let accepting =
        thread::spawn(move || (0..count).map(|_| server.accept(LONG).unwrap()).collect::<Vec<_>>());
    let session = ClientSession::on(adapter());
    let clients = (0..count).map(|at| {
        session.connect(address).unwrap_or_else(|error| panic!("endpoint {at}: {error}"))
    });
    (clients.collect(), accepting.join().unwrap())
}

/// Goal: each endpoint carries a message, whatever their number and the way of waiting.
#[test]
fn a_crowd_of_endpoints_exchanges_messages_in_every_mode() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for work in [WorkMode::Epoll, WorkMode::CompletionChannel, WorkMode::BusyPoll] {
        for threads in [ThreadMode::PerChannel, ThreadMode::SHARED] {
            // Both ends have a connection, and a completion channel if they do not share it.
            let count = count(if work == WorkMode::CompletionChannel { 4 } else { 2 });
            let start = std::time::Instant::now();
            let config = Config::default().work_mode(work).thread_mode(threads);
            let (clients, servers) = crowd(&config, count);
            let connected = start.elapsed();
            // Clients are accepted in any order: one after another has its peer wait for it.
            let (near, far) = (clients[0].adapter().clone(), servers[0].adapter().clone());
            let (near, far) = (near.buffer(1, 8).unwrap(), far.buffer(count, 8).unwrap());
            for (at, server) in servers.iter().enumerate() {
                let channel = server.channel("data").unwrap();
                channel.post_recv(far.at(at).unwrap()).unwrap();
            }
            let receivers = thread::spawn(move || {
                for server in &servers {
                    assert_eq!(server.channel("data").unwrap().recv().unwrap().bytes, 8);
                }
            });
            for client in &clients {
                client.channel("data").unwrap().send(near.at(0).unwrap()).unwrap();
            }
            receivers.join().unwrap();
            println!(
                "{work:?} {threads:?}: {count} connected in {connected:?}, {:?}",
                start.elapsed()
            );
        }
    }
}

/// Goal: the same with a runtime that all of them wait in.
#[test]
fn a_crowd_of_endpoints_exchanges_messages_in_a_runtime() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Bells, sets and the runtime's copies come on top.
    let count = count(12);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for work in [WorkMode::Epoll, WorkMode::CompletionChannel] {
        let (clients, servers) = crowd(&Config::default().work_mode(work), count);
        runtime.block_on(async {
            let near = clients[0].adapter().buffer(1, 8).unwrap();
            let far = servers[0].adapter().buffer(count, 8).unwrap();
            let mut receivers = Vec::new();
            for (at, server) in servers.iter().enumerate() {
                let channel = AsyncChannel::new(server.channel("data").unwrap()).unwrap();
                channel.channel().post_recv(far.at(at).unwrap()).unwrap();
                receivers.push(tokio::spawn(async move { channel.recv().await.unwrap().bytes }));
            }
            let exchange = async {
                for client in &clients {
                    let channel = AsyncChannel::new(client.channel("data").unwrap()).unwrap();
                    channel.send(near.at(0).unwrap()).await.unwrap();
                }
                for receiver in receivers {
                    assert_eq!(receiver.await.unwrap(), 8);
                }
            };
            tokio::time::timeout(LONG * 2, exchange).await.unwrap();
        });
    }
}
