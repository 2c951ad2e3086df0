//! Messengers: any length, no message without a receive, no way to get stuck.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Access, ChannelError, Config, Departure, Endpoint, MessageError, Messenger, MessengerConfig,
    Signal, ThreadMode, WorkMode,
};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};
use support::{LONG, pair, pattern};

fn shallow() -> Config {
    Config::default().send_depth(12).receive_depth(16)
}

fn small_blocks() -> MessengerConfig {
    let mut config = MessengerConfig::default();
    config.block_bytes = 100;
    config
}

fn open(endpoint: &Endpoint, config: MessengerConfig) -> Messenger {
    Messenger::open(endpoint, "data", config).expect("a messenger").with_timeout(LONG)
}

fn messengers(config: Config, settings: MessengerConfig) -> (Messenger, Messenger) {
    let (client, server) = pair(config);
    let other = thread::spawn(move || open(&server, settings));
    (open(&client, settings), other.join().expect("no panic"))
}

/// No sender was ever told to wait for a receive.
fn assert_no_rnr(messengers: &[&Messenger]) {
    for messenger in messengers {
        let counters = messenger.channel().counters();
        assert_eq!((counters.send_rnr_err, counters.rcvd_rnr_err), (0, 0));
    }
}

fn lens() -> impl Iterator<Item = usize> {
    [0, 1, 99, 100, 101, 5000, 100_000, 1 << 20].into_iter().chain((0..200).map(|n| n * 13 % 211))
}

#[test]
fn messages_of_all_lengths_arrive_whole_and_in_order_in_every_mode() {
    let every = Signal::Every(NonZeroU32::new(100).unwrap());
    for config in [
        shallow(),
        shallow().signal(every),
        Config::default().work_mode(WorkMode::CompletionChannel),
        shallow().work_mode(WorkMode::Epoll).thread_mode(ThreadMode::SHARED),
    ] {
        let (client, server) = messengers(config, small_blocks());
        let receiver = server.clone();
        let receiving = thread::spawn(move || {
            for (seed, len) in (0..).zip(lens()) {
                let message = receiver.recv().unwrap();
                assert!(message.to_vec() == pattern(seed, len), "message {seed} of {len} bytes");
            }
        });
        for (seed, len) in (0..).zip(lens()) {
            client.send(&pattern(seed, len)).unwrap();
        }
        client.flush().unwrap();
        receiving.join().unwrap();
        assert_no_rnr(&[&client, &server]);
    }
}

/// Goal: a receiver that takes its time is never sent more than it has room for.
#[test]
fn a_slow_receiver_is_not_overrun() {
    let (client, server) = messengers(shallow(), small_blocks());
    let mut sent = 0_u64;
    while client.try_send(&pattern(sent, 50)).unwrap() {
        sent += 1;
    }
    assert!(sent > 1 && sent <= 16, "{sent}");
    assert_eq!(client.window().granted, 0);
    let error = client.with_timeout(Duration::from_millis(30)).send(b"no room").unwrap_err();
    assert!(matches!(error, MessageError::Timeout { .. }), "{error}");
    for seed in 0..sent {
        assert_eq!(server.recv().unwrap().to_vec(), pattern(seed, 50));
    }
    client.send(b"room again").unwrap();
    assert_eq!(server.recv().unwrap().to_vec(), b"room again");
    assert_no_rnr(&[&client, &server]);
}

/// Goal: two sides that have both sent all that they may come free again, in one thread each.
#[test]
fn both_sides_full_is_no_deadlock() {
    let (client, server) = messengers(shallow(), small_blocks());
    let mut counts = (0, 0);
    let limit = Instant::now() + LONG;
    // How many rounds that takes is up to the device's helper too.
    for round in 0.. {
        if counts.0 > 200 && counts.1 > 200 {
            break;
        }
        assert!(Instant::now() < limit, "{counts:?}");
        for (from, to, sent) in
            [(&client, &server, &mut counts.0), (&server, &client, &mut counts.1)]
        {
            // Long ones among them.
            let len = if round % 3 == 0 { 1000 } else { 10 };
            while from.try_send(&pattern(*sent, len)).unwrap() {
                *sent += 1;
            }
            assert!(to.window().granted < 16);
        }
        for (from, to) in [(&client, &server), (&server, &client)] {
            while let Some(message) = to.try_recv().unwrap() {
                assert!(message.len() == 1000 || message.len() == 10);
            }
            from.try_recv().unwrap();
        }
    }
    assert_no_rnr(&[&client, &server]);
}

/// Goal: four threads on two messengers, all directions at once.
#[test]
fn threads_can_share_a_messenger() {
    for config in [shallow(), shallow().work_mode(WorkMode::CompletionChannel)] {
        let (client, server) = messengers(config, small_blocks());
        let threads: Vec<_> = [client.clone(), server.clone()]
            .into_iter()
            .flat_map(|messenger| {
                let sender = messenger.clone();
                let send = thread::spawn(move || {
                    for seed in 0..500 {
                        sender.send(&pattern(seed, 150)).unwrap();
                    }
                });
                let recv = thread::spawn(move || {
                    for seed in 0..500 {
                        assert_eq!(messenger.recv().unwrap().to_vec(), pattern(seed, 150));
                    }
                });
                [send, recv]
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_no_rnr(&[&client, &server]);
    }
}

#[test]
fn blocks_go_without_a_copy_into_blocks() {
    let (client, server) = messengers(Config::default(), MessengerConfig::default());
    let source = client.endpoint().adapter().buffer(2, 300_000).unwrap();
    source.at(1).unwrap().write(0, &pattern(5, 300_000)).unwrap();
    let sending = thread::spawn({
        let (client, block) = (client.clone(), source.at(1).unwrap());
        move || client.send_block(&block)
    });
    let target = server.endpoint().adapter().buffer(1, 300_001).unwrap().at(0).unwrap();
    let short = target.clone().first(10).unwrap();
    let error = server.recv_into(&short).unwrap_err();
    assert_eq!(error, MessageError::TooLong { len: 300_000, max: 10 });
    assert_eq!(server.recv_into(&target), Ok(300_000));
    sending.join().unwrap().unwrap();
    assert!(target.first(300_000).unwrap().to_vec() == pattern(5, 300_000));

    let private = client.endpoint().adapter().buffer_with(1, 8, Access::LOCAL_WRITE).unwrap();
    let error = client.send_block(&private.at(0).unwrap()).unwrap_err();
    assert_eq!(error, MessageError::NotReadable);
}

#[test]
fn what_was_sent_before_the_end_arrives_and_then_the_end() {
    let (client, server) = messengers(Config::default(), small_blocks());
    let receiving = thread::spawn(move || {
        let mut received = 0;
        loop {
            match server.recv() {
                Ok(message) => assert_eq!(message.to_vec(), pattern(received, 500)),
                Err(error) => return (received, error),
            }
            received += 1;
        }
    });
    for seed in 0..100 {
        client.send(&pattern(seed, 500)).unwrap();
    }
    client.close().unwrap();
    let gone = MessageError::Channel(ChannelError::PeerGone(Departure::Closed));
    assert_eq!(receiving.join().unwrap(), (100, gone));
}

#[test]
fn what_the_receiver_does_not_take_is_not_sent() {
    let mut config = small_blocks();
    config.message_max = 1000;
    let (client, server) = messengers(Config::default(), config);
    let error = client.send(&[0; 1001]).unwrap_err();
    assert_eq!(error, MessageError::TooLong { len: 1001, max: 1000 });
    client.send(&[1; 1000]).unwrap();
    assert_eq!(server.recv().unwrap().to_vec(), [1; 1000]);
}

/// Goal: a peer that does not keep to the rules costs the channel, and nothing else.
#[test]
fn unruly_peers_are_found_out() {
    let cases: [(&[u8], &str); 5] = [
        (b"short", "no header"),
        (&[9; 16], "no header"),
        (b"\x02\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0", "grants"),
        (b"\x02\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0", "takes"),
        (
            b"\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
            "too long",
        ),
    ];
    for (bytes, text) in cases {
        let (client, server) = pair(Config::default());
        let opening = thread::spawn(move || open(&server, small_blocks()));
        // It plays a messenger's part by hand.
        let facts = client.adapter().buffer(1, 24).unwrap();
        for place in 0..3 {
            facts.at(0).unwrap().write(place * 8, &100_u64.to_be_bytes()).unwrap();
        }
        client.advertise("messages of data", &facts).unwrap();
        let server = opening.join().unwrap();
        let block = client.adapter().buffer(1, 64).unwrap().at(0).unwrap();
        block.write(0, bytes).unwrap();
        client.channel("data").unwrap().send(block.first(bytes.len()).unwrap()).unwrap();
        let error = server.recv().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(server.send(b"hello").unwrap_err(), error);
    }
}

/// Goal: a second messenger on one channel is refused as such, and the first does not notice.
#[test]
fn a_channel_has_one_messenger() {
    let (client, server) = messengers(shallow(), small_blocks());
    for _ in 0..2 {
        let receives = client.channel().in_flight().receives;
        let second = Messenger::open(client.endpoint(), "data", small_blocks()).unwrap_err();
        assert!(second.to_string().contains("has one already"), "{second}");
        assert_eq!(client.channel().in_flight().receives, receives);
    }
    client.send(b"hello").unwrap();
    assert_eq!(server.recv().unwrap().to_vec(), b"hello");
}
