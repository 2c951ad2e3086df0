//! Futures of channels and messengers.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    AsyncChannel, AsyncMessenger, ChannelError, Config, Departure, Messenger, MessengerConfig,
    Operation, ThreadMode, WorkMode,
};
use std::thread;
use std::time::Duration;
use support::{LONG, pair, pattern};
use tokio::time::timeout;

fn modes() -> Vec<Config> {
    let works = [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll];
    let threads = [ThreadMode::PerChannel, ThreadMode::SHARED];
    let all = works.into_iter().flat_map(|work| threads.map(|threads| (work, threads)));
    all.map(|(work, threads)| Config::default().work_mode(work).thread_mode(threads)).collect()
}

fn messengers(config: Config) -> (AsyncMessenger, AsyncMessenger) {
    let (client, server) = pair(config);
    let open = |endpoint| Messenger::open(&endpoint, "data", MessengerConfig::default());
    let other = thread::spawn(move || open(server).expect("a messenger"));
    let near = open(client).expect("a messenger");
    let far = other.join().expect("no panic");
    (AsyncMessenger::new(near).expect("a task"), AsyncMessenger::new(far).expect("a task"))
}

/// Goal: in every mode, tasks of one runtime and of one channel wait side by side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_send_receive_write_and_read() {
    for config in modes() {
        let (client, server) = pair(config);
        let near = AsyncChannel::new(client.channel("data").unwrap()).unwrap();
        let far = AsyncChannel::new(server.channel("data").unwrap()).unwrap();
        let sink = server.adapter().buffer(4, 64).unwrap();
        server.advertise("sink", &sink).unwrap();
        let remote = client.remote_buffer("sink").unwrap();
        let local = client.adapter().buffer(4, 64).unwrap();
        let receives = server.adapter().buffer(3, 64).unwrap();
        for _ in 0..3 {
            far.channel().post_recv(receives.next().unwrap()).unwrap();
        }
        let receiving = tokio::spawn(async move {
            let first = far.recv().await.unwrap();
            let second = far.event().await.unwrap();
            let third = far.recv().await.unwrap();
            (first.operation, second.operation, second.imm, third.imm)
        });
        local.at(0).unwrap().write(0, &pattern(1, 64)).unwrap();
        near.send(local.at(0).unwrap()).await.unwrap();
        let (from, to) = (local.at(0).unwrap(), remote.at(3).unwrap());
        near.write_with_imm(from.clone(), to, 9).await.unwrap();
        near.write(from, remote.at(2).unwrap()).await.unwrap();
        near.read(local.at(1).unwrap(), to).await.unwrap();
        assert_eq!(local.at(1).unwrap().to_vec(), pattern(1, 64));
        let word = remote.at(1).unwrap().first(8).unwrap();
        let result = || local.at(2).unwrap().first(8).unwrap();
        assert_eq!(near.fetch_add(result(), word, 5).await.unwrap(), 0);
        assert_eq!(near.compare_swap(result(), word, 5, 9).await.unwrap(), 5);
        assert_eq!(near.fetch_add(result(), word, 0).await.unwrap(), 9);
        near.send_with_imm(local.at(0).unwrap(), 11).await.unwrap();
        let told = timeout(LONG, receiving).await.unwrap().unwrap();
        assert_eq!(told, (Operation::Receive, Operation::WriteReceived, Some(9), Some(11)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messengers_carry_streams_both_ways_in_every_mode() {
    for config in modes() {
        let (client, server) = messengers(config);
        let echo = tokio::spawn(async move {
            let mut messages = server.messages();
            while let Some(message) = messages.next().await.unwrap() {
                server.send(&message.to_vec()).await.unwrap();
            }
        });
        let sender = client.clone();
        let sending = tokio::spawn(async move {
            for seed in 0..300_u64 {
                let len = usize::try_from(seed * 37 % 9000).unwrap();
                sender.send(&pattern(seed, len)).await.unwrap();
            }
        });
        for seed in 0..300_u64 {
            let len = usize::try_from(seed * 37 % 9000).unwrap();
            let message = timeout(LONG, client.recv()).await.unwrap().unwrap();
            assert!(message.to_vec() == pattern(seed, len), "message {seed}");
        }
        sending.await.unwrap();
        client.flush().await.unwrap();
        client.messenger().endpoint().clone().close().unwrap();
        timeout(LONG, echo).await.unwrap().unwrap();
    }
}

/// Goal: a future that is dropped loses nothing.
/// Method: each wait is given up many times before something comes.
#[tokio::test]
async fn futures_can_be_dropped() {
    let config = Config::default().work_mode(WorkMode::CompletionChannel);
    let (client, server) = messengers(config.clone());
    for seed in 0..50 {
        for _ in 0..3 {
            assert!(timeout(Duration::from_micros(10), server.recv()).await.is_err());
        }
        client.send(&pattern(seed, 20)).await.unwrap();
        let message = timeout(LONG, server.recv()).await.unwrap().unwrap();
        assert_eq!(message.to_vec(), pattern(seed, 20));
    }

    // Sends without a waiter are done, and leave their places.
    let (client, server) = pair(config.send_depth(4));
    let near = AsyncChannel::new(client.channel("data").unwrap()).unwrap();
    let far = AsyncChannel::new(server.channel("data").unwrap()).unwrap();
    let sink = server.adapter().buffer(20, 64).unwrap();
    let local = client.adapter().buffer(1, 64).unwrap();
    for _ in 0..20 {
        far.channel().post_recv(sink.next().unwrap()).unwrap();
        // What is dropped before there was room was not sent.
        while near.channel().room().0 == 0 {
            assert!(near.channel().poll().unwrap().is_none(), "its event was dropped");
        }
        let sending = near.send(local.at(0).unwrap());
        let mut sending = std::pin::pin!(sending);
        std::future::poll_fn(|context| {
            let _ = sending.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    for _ in 0..20 {
        timeout(LONG, far.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn tasks_that_wait_are_told_that_the_peer_is_gone() {
    for config in modes() {
        let (client, server) = pair(config);
        let far = AsyncChannel::new(server.channel("data").unwrap()).unwrap();
        let sink = server.adapter().buffer(1, 64).unwrap();
        far.channel().post_recv(sink.at(0).unwrap()).unwrap();
        let waiting = tokio::spawn(async move { far.recv().await.map(drop) });
        tokio::task::yield_now().await;
        client.close().unwrap();
        let gone = ChannelError::PeerGone(Departure::Closed);
        assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap(), Err(gone));
    }
}
