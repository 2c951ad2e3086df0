//! All ways to wait and to thread: the same program, by configuration alone.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Channel, Config, Departure, Endpoint, Event, Handler, PeerInfo, ServerSession, ThreadMode,
    WorkMode,
};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use support::{LONG, pair, pattern};

/// All six, and a shared queue with two threads.
fn modes() -> Vec<Config> {
    let two = ThreadMode::SharedCq { threads: NonZeroUsize::MIN.saturating_add(1) };
    let works = [WorkMode::BusyPoll, WorkMode::CompletionChannel, WorkMode::Epoll];
    let threads = [ThreadMode::PerChannel, ThreadMode::SHARED, two];
    let all = works.into_iter().flat_map(|work| threads.map(|threads| (work, threads)));
    all.map(|(work, threads)| Config::default().work_mode(work).thread_mode(threads)).collect()
}

#[test]
fn messages_go_there_and_back_in_every_mode() {
    for config in modes() {
        let name = format!("{:?} {:?}", config.work_mode, config.thread_mode);
        let (client, server) = pair(config.channels(["control", "data"]));
        let echo = thread::spawn(move || {
            let echoes = ["control", "data"].map(|name| {
                let channel = server.channel(name).unwrap().with_timeout(LONG);
                let buffer = server.adapter().buffer(4, 3000).unwrap();
                channel.post_recv(buffer.next().unwrap()).unwrap();
                thread::spawn(move || {
                    for _ in 0..50 {
                        let event = channel.recv().unwrap();
                        channel.post_recv(buffer.next().unwrap()).unwrap();
                        channel.send(event.block.first(event.bytes).unwrap()).unwrap();
                    }
                })
            });
            echoes.into_iter().for_each(|echo| echo.join().unwrap());
            server
        });
        // Two threads that wait on one source, if it is shared.
        let asks = ["control", "data"].map(|name| {
            let channel = client.channel(name).unwrap().with_timeout(LONG);
            let buffer = client.adapter().buffer(2, 3000).unwrap();
            thread::spawn(move || {
                for round in 0..50_u64 {
                    let len = usize::try_from(round * 57).unwrap();
                    let block = buffer.at(0).unwrap().first(len).unwrap();
                    block.write(0, &pattern(round, len)).unwrap();
                    channel.post_recv(buffer.at(1).unwrap()).unwrap();
                    channel.send(block).unwrap();
                    let event = channel.recv().unwrap();
                    assert_eq!(
                        event.block.first(event.bytes).unwrap().to_vec(),
                        pattern(round, len)
                    );
                }
            })
        });
        for ask in asks {
            assert!(ask.join().is_ok(), "{name}");
        }
        assert!(echo.join().is_ok(), "{name}");
    }
}

/// Notes what it is told, and answers each message with the same.
struct Echo {
    said: Mutex<Vec<String>>,
    gone: Mutex<mpsc::Sender<Departure>>,
    channels: Mutex<Vec<Channel>>,
}

impl Echo {
    fn new() -> (Arc<Self>, mpsc::Receiver<Departure>) {
        let (gone, told) = mpsc::channel();
        let gone = Mutex::new(gone);
        (Arc::new(Self { said: Mutex::default(), gone, channels: Mutex::default() }), told)
    }

    fn say(&self, what: &str) {
        self.said.lock().expect("no panic").push(what.to_owned());
    }
}

impl Handler for Echo {
    fn established(&self, endpoint: &Endpoint) {
        self.say("established");
        let buffer = endpoint.adapter().buffer(8, 64).expect("it works");
        endpoint.advertise("sink", &buffer).expect("it works");
        self.channels.lock().expect("no panic").extend(endpoint.channels().iter().cloned());
        for channel in endpoint.channels() {
            for _ in 0..4 {
                channel.post_recv(buffer.next().expect("it is free")).expect("it works");
            }
        }
    }

    fn received(&self, channel: &Channel, event: Event) {
        self.say("received");
        channel.post_send(event.block.first(event.bytes).expect("it works")).expect("it works");
    }

    fn sent(&self, channel: &Channel, event: Event) {
        let whole = event.block.buffer().at(event.block.index()).expect("it works");
        let _ = channel.post_recv(whole); // The peer may be gone.
    }

    fn write_received(&self, _channel: &Channel, event: Event) {
        self.say(&format!("write {}", event.imm.expect("it has one")));
    }

    fn gone(&self, _peer: &PeerInfo, how: Departure) {
        // It may use the channels still, whose locks are free.
        for channel in self.channels.lock().expect("no panic").drain(..) {
            channel.in_flight();
        }
        self.gone.lock().expect("no panic").send(how).expect("it works");
    }
}

/// Goal: in every mode a server with a handler answers clients that come while it runs, is told of
/// each thing once, and goes on when a client goes.
#[test]
fn handlers_are_called_in_every_mode() {
    for config in modes() {
        let name = format!("{:?} {:?}", config.work_mode, config.thread_mode);
        let (echo, gone) = Echo::new();
        let server = ServerSession::bind("127.0.0.1:0", config.clone().cpus([0])).unwrap();
        let service = server.serve(echo.clone()).unwrap();
        for client in 0..2 {
            let session = adverb_session::ClientSession::new(config.clone()).unwrap();
            let endpoint = session.connect(service.local_addr()).unwrap();
            let channel = endpoint.channel("data").unwrap().with_timeout(LONG);
            let buffer = endpoint.adapter().buffer(2, 64).unwrap();
            for round in 0..20_u64 {
                buffer.at(0).unwrap().write(0, &pattern(round, 64)).unwrap();
                channel.post_recv(buffer.at(1).unwrap()).unwrap();
                channel.send(buffer.at(0).unwrap()).unwrap();
                let event = channel.recv().unwrap();
                assert_eq!(event.block.to_vec(), pattern(round, 64), "{name}");
            }
            let sink = endpoint.remote_buffer("sink").unwrap();
            channel.write_with_imm(buffer.at(0).unwrap(), sink.at(7).unwrap(), client).unwrap();
            endpoint.close().unwrap();
            assert_eq!(gone.recv_timeout(LONG), Ok(Departure::Closed), "{name}");
        }
        let said = echo.said.lock().unwrap();
        let count = |what: &str| said.iter().filter(|said| *said == what).count();
        let counts = (count("established"), count("received"), count("write 0"), count("write 1"));
        assert_eq!(counts, (2, 40, 1, 1), "{name}: {said:?}");
    }
}

/// What ends a wait, in every mode.
#[test]
fn who_waits_is_woken_when_the_peer_goes_or_the_time_is_over() {
    for config in modes() {
        let name = format!("{:?} {:?}", config.work_mode, config.thread_mode);
        let (client, server) = pair(config);
        let channel = server.channel("data").unwrap();
        let buffer = server.adapter().buffer(1, 64).unwrap();
        channel.post_recv(buffer.at(0).unwrap()).unwrap();
        let early = channel.with_timeout(Duration::from_millis(30)).recv().unwrap_err();
        assert!(matches!(early, adverb_session::ChannelError::Timeout { .. }), "{name}: {early}");
        let waiting = thread::spawn(move || channel.with_timeout(LONG).recv());
        client.close().unwrap();
        let gone = adverb_session::ChannelError::PeerGone(Departure::Closed);
        assert_eq!(waiting.join().unwrap().unwrap_err(), gone, "{name}");
    }
}
