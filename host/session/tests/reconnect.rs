//! Clients that come back by themselves to a server that they have lost.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../../verbs/tests/verbs/alone.rs"]
mod alone;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Channel, ChannelError, ClientSession, Config, Departure, Endpoint, Event, Handler, Reconnect,
    ServerSession, ThreadMode, WorkMode,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::lasting::{self, await_word, use_all};
use support::process::{Process, address, free_address};
use support::{LONG, pair};

/// Patient enough for a server that starts slowly.
fn patient() -> Reconnect {
    Reconnect::default().attempts(1000).longest_pause(Duration::from_millis(100))
}

fn modes() -> impl Iterator<Item = Config> {
    let works = [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll];
    works.into_iter().flat_map(|work| {
        [ThreadMode::PerChannel, ThreadMode::SHARED].map(|threads| {
            let config = Config::default().channels(["control", "data"]).reconnect(patient());
            config.work_mode(work).thread_mode(threads)
        })
    })
}

/// Goal: what was under way ends once, the same endpoint and channels go on, and both sides find the
/// other's buffers by name; as often as it happens, in every mode.
fn killed_and_started_again() {
    for config in modes() {
        let mode = format!("{:?} {:?}", config.work_mode, config.thread_mode);
        let (mut server, at) = Process::listen("lasting_server");
        let endpoint = ClientSession::new(config).unwrap().connect(at).unwrap();
        let sink = endpoint.adapter().buffer(1, 8).unwrap();
        endpoint.advertise("sink", &sink).unwrap();
        let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
        let control = endpoint.channel("control").unwrap().with_timeout(LONG);
        for round in 0..2 {
            await_word(&sink);
            let table = use_all(&endpoint, &channel);
            let mine = endpoint.adapter().buffer(4, 8).unwrap();
            for index in 0..4 {
                channel.post_recv(mine.at(index).unwrap()).unwrap();
            }
            control.post_recv(mine.at(0).unwrap()).unwrap();
            server.kill();
            let gone = ChannelError::PeerGone(Departure::Lost);
            for _ in 0..4 {
                assert_eq!(channel.recv().unwrap_err(), gone, "{mode}, round {round}");
            }
            assert_eq!(control.recv().unwrap_err(), gone, "{mode}, round {round}");
            assert_eq!(channel.recv().unwrap_err(), ChannelError::NothingPosted, "each once");
            server = Process::start("lasting_server", at);
            endpoint.wait_until_up(LONG).unwrap();
            assert_eq!(endpoint.departure(), None);
            let old = channel.write(mine.at(0).unwrap(), table.at(0).unwrap());
            assert_eq!(old.unwrap_err(), ChannelError::OldBuffer, "{mode}, round {round}");
        }
        use_all(&endpoint, &channel);
        server.kill();
    }
}

#[test]
fn a_client_comes_back_over_udp() {
    alone::over_udp("a_client_comes_back_over_udp", killed_and_started_again);
}

#[test]
fn a_client_comes_back_over_shared_memory() {
    alone::alone("a_client_comes_back_over_shared_memory", killed_and_started_again);
}

#[test]
#[ignore = "the child of another test"]
fn lasting_server() {
    let Some(address) = address() else { return };
    lasting::run(address, Config::default());
}

/// Goal: tasks wait for the server's return as threads do.
#[cfg(feature = "tokio")]
mod tasks {
    use super::*;
    use adverb_session::AsyncChannel;

    #[test]
    fn a_task_comes_back_over_udp() {
        alone::over_udp("tasks::a_task_comes_back_over_udp", come_back);
    }

    #[test]
    fn a_task_comes_back_over_shared_memory() {
        alone::alone("tasks::a_task_comes_back_over_shared_memory", come_back);
    }

    fn come_back() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        for config in modes() {
            runtime.block_on(one(config));
        }
    }

    async fn one(config: Config) {
        let (mut server, at) = Process::listen("lasting_server");
        let endpoint = ClientSession::new(config).unwrap().connect(at).unwrap();
        let sink = endpoint.adapter().buffer(3, 8).unwrap();
        endpoint.advertise("sink", &sink).unwrap();
        let channel = AsyncChannel::new(endpoint.channel("data").unwrap()).unwrap();
        let (near, far) = (sink.at(1).unwrap(), sink.at(2).unwrap());
        for _ in 0..2 {
            channel.up().await.unwrap();
            await_word(&sink);
            channel.channel().post_recv(far.clone()).unwrap();
            channel.send(near.clone()).await.unwrap();
            assert_eq!(channel.recv().await.unwrap().bytes, 8);
            channel.channel().post_recv(far.clone()).unwrap();
            server.kill();
            let gone = ChannelError::PeerGone(Departure::Lost);
            assert_eq!(channel.recv().await.unwrap_err(), gone);
            server = Process::start("lasting_server", at);
        }
        channel.up().await.unwrap();
        server.kill();
    }
}

/// Goal: the number of tries is bounded; a call that waits then hears that the peer will not come back.
#[test]
fn a_client_gives_up_after_so_many_tries() {
    alone::alone("a_client_gives_up_after_so_many_tries", || {
        let (server, at) = Process::listen("lasting_server");
        let policy = patient().attempts(3);
        let session = ClientSession::new(Config::default().reconnect(policy)).unwrap();
        let endpoint = session.connect(at).unwrap();
        server.kill();
        assert_eq!(gone_for_good(&endpoint), ChannelError::PeerGone(Departure::Lost));
        assert_eq!(endpoint.departure(), Some(Departure::Lost));
    });
}

/// What is heard of an endpoint that does not come back. It is up until the loss is noticed.
fn gone_for_good(endpoint: &Endpoint) -> ChannelError {
    let limit = Instant::now() + LONG;
    loop {
        match endpoint.wait_until_up(LONG) {
            Ok(()) => assert!(Instant::now() < limit, "it was not noticed"),
            Err(error) => return error,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Goal: a goodbye is a goodbye unless the policy says otherwise; a handler is told of the return.
#[test]
fn a_server_that_said_goodbye_is_followed_if_asked() {
    for follow in [false, true] {
        let at = free_address();
        let mut server = ServerSession::bind(at, Config::default()).unwrap();
        let config = Config::default().reconnect(patient().after_goodbye(follow));
        let connecting =
            thread::spawn(move || ClientSession::new(config).unwrap().connect(at).unwrap());
        let first = server.accept(LONG).unwrap();
        let endpoint = connecting.join().unwrap();
        let (told, established) = mpsc::channel();
        endpoint.handle(Arc::new(Tell(told, AtomicU32::new(0)))).unwrap();
        first.close().unwrap();
        if follow {
            let _second = server.accept(LONG).unwrap();
            endpoint.wait_until_up(LONG).unwrap();
            assert_eq!(established.recv_timeout(LONG), Ok(1));
        } else {
            let gone = ChannelError::PeerGone(Departure::Closed);
            assert_eq!(gone_for_good(&endpoint), gone);
        }
    }
}

/// Counts how often a peer has come.
struct Tell(mpsc::Sender<u32>, AtomicU32);

impl Handler for Tell {
    fn established(&self, _endpoint: &Endpoint) {
        let count = self.1.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.send(count).expect("the test listens");
    }

    fn received(&self, _channel: &Channel, _event: Event) {}
}

/// Goal: an endpoint that is closed on its way back stays away.
#[test]
fn an_endpoint_that_is_closed_does_not_come_back() {
    let config = Config::default().reconnect(patient().after_goodbye(true));
    let (client, server) = pair(config);
    server.close().unwrap();
    while client.departure().is_none() {}
    let other = client.clone();
    // The work that it has is done, for it has none.
    let _ = client.close();
    let error = other.wait_until_up(LONG).unwrap_err();
    assert!(matches!(error, ChannelError::PeerGone(_)), "{error}");
}
