//! Futures of channels and messengers.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    AsyncChannel, AsyncClientSession, AsyncEndpoint, AsyncMessenger, AsyncServerSession,
    ChannelError, ClientSession, Config, Departure, ExchangeError, Messenger, MessengerConfig,
    Operation, ServerSession, ThreadMode, WorkMode,
};
use std::net::TcpStream;
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

fn server(config: &Config) -> AsyncServerSession {
    let config = config.clone().handshake_timeout(LONG);
    let server = ServerSession::bind("127.0.0.1:0", config).expect("a server");
    AsyncServerSession::new(server).expect("a descriptor")
}

fn client(config: &Config) -> AsyncClientSession {
    let config = config.clone().connect_timeout(LONG);
    AsyncClientSession::new(ClientSession::new(config).expect("a client"))
}

/// Goal: everything from accept to close is done by tasks, of one thread, in every mode.
#[tokio::test]
async fn one_thread_accepts_connects_opens_and_closes() {
    const CLIENTS: u8 = 10;
    for config in modes() {
        let mut server = server(&config);
        let address = server.session().local_addr();
        let serving = tokio::spawn(async move {
            let mut served = Vec::new();
            for _ in 0..CLIENTS {
                let endpoint = server.accept().await.unwrap();
                served.push(tokio::spawn(async move { echo(&endpoint).await }));
            }
            for one in served {
                one.await.unwrap();
            }
        });
        let client = client(&config);
        let clients = (0..CLIENTS).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let endpoint = client.connect(address).await.unwrap();
                let config = MessengerConfig::default();
                let messages = endpoint.messenger("data", config).await.unwrap();
                messages.send(&[number; 20_000]).await.unwrap();
                assert_eq!(messages.recv().await.unwrap().to_vec(), [number; 20_000]);
                messages.close().await.unwrap();
            })
        });
        for one in clients.collect::<Vec<_>>() {
            timeout(LONG, one).await.unwrap().unwrap();
        }
        timeout(LONG, serving).await.unwrap().unwrap();
    }
}

async fn echo(endpoint: &AsyncEndpoint) {
    let messenger =
        endpoint.messenger("data", MessengerConfig::default()).await.expect("a messenger");
    let mut messages = messenger.messages();
    while let Some(message) = messages.next().await.expect("a messenger") {
        messenger.send(&message.to_vec()).await.expect("a messenger");
    }
}

/// Goal: a wait for a client that is given up loses no newcomer, and one that says nothing keeps none waiting.
#[tokio::test]
async fn an_accept_can_be_dropped() {
    let config = Config::default();
    let mut server = server(&config);
    let address = server.session().local_addr();
    let _silent = TcpStream::connect(address).unwrap();
    let connecting = tokio::spawn(async move { client(&Config::default()).connect(address).await });
    let far = loop {
        // Shorter than a handshake.
        if let Ok(far) = timeout(Duration::from_micros(50), server.accept()).await {
            break far.unwrap();
        }
    };
    let near = timeout(LONG, connecting).await.unwrap().unwrap().unwrap();
    assert_eq!(far.endpoint().peer().gid, near.endpoint().peer().gid);
}

/// Goal: a newcomer's time is kept although nothing comes that wakes the task.
#[tokio::test]
async fn a_newcomer_that_says_nothing_is_reported_to_the_task() {
    let config = Config::default().handshake_timeout(Duration::from_millis(20));
    let server = ServerSession::bind("127.0.0.1:0", config).unwrap();
    let mut server = AsyncServerSession::new(server).unwrap();
    let _silent = TcpStream::connect(server.session().local_addr()).unwrap();
    let error = timeout(LONG, server.accept()).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("Hello"), "{error}");
}

/// Goal: a task that asks for a buffer gets it when it is advertised, is told when the time is over, and when the
/// peer goes.
#[tokio::test]
async fn tasks_wait_for_a_buffer() {
    let (near, far) = pair(Config::default().work_timeout(Duration::from_millis(50)));
    let near = AsyncEndpoint::new(near);
    let Err(ExchangeError::Timeout { known, .. }) = near.remote_buffer("sink").await else {
        panic!("there is none");
    };
    assert!(known.is_empty());

    let (near, far_too) = pair(Config::default());
    let near = AsyncEndpoint::new(near);
    let waiting = near.clone();
    let waiting = tokio::spawn(async move { waiting.remote_buffer("sink").await });
    tokio::task::yield_now().await;
    let sink = far_too.adapter().buffer(1, 64).unwrap();
    far_too.advertise("sink", &sink).unwrap();
    assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap().unwrap().blocks(), 1);

    let waiting = tokio::spawn(async move { near.remote_buffer("other").await });
    tokio::task::yield_now().await;
    far_too.close().unwrap();
    let gone = timeout(LONG, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(gone, ExchangeError::PeerGone(Departure::Closed)), "{gone}");
    drop(far);
}
