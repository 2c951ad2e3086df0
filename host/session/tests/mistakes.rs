//! What callers do wrong, and peers at the other end of a channel.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Access, Adapter, AdapterError, ChannelError, ClientSession, Config, ConnectError, Departure,
    Operation, PathMtu, RemoteBuffer, RnrRetry, ServerSession, Signal, WcStatus, frame,
};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};
use support::process::free_address;
use support::{LONG, pair, pair_of};

const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_message_longer_than_the_receive_block_ends_both_sides_with_an_error() {
    let (client, server) = pair(Config::default());
    let receiver = server.channel("data").unwrap();
    let sink = server.adapter().buffer(2, 16).unwrap();
    receiver.post_recv(sink.at(0).unwrap()).unwrap();
    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(1, 17).unwrap();
    assert_eq!(
        channel.send(local.at(0).unwrap()).unwrap_err(),
        ChannelError::Work { operation: Operation::Send, status: WcStatus::RemoteInvalidRequest }
    );
    let error = receiver.recv().unwrap_err();
    let (operation, status) = (Operation::Receive, WcStatus::LocalLength);
    assert_eq!(error, ChannelError::Work { operation, status });
    assert_eq!(
        error.to_string(),
        "RECEIVE failed: local length error: the message is longer than the block of the receive"
    );
    assert_eq!(sink.at(1).unwrap().to_vec(), [0; 16]);
    // Both are of no use any more, and say why.
    let operation = Operation::Send;
    let status = WcStatus::RemoteInvalidRequest;
    let broken = ChannelError::Broken { operation, status };
    assert_eq!(channel.send(local.at(0).unwrap()).unwrap_err(), broken);
    assert_eq!(channel.failure(), Some(broken));
    assert!(receiver.post_recv(sink.at(0).unwrap()).is_err());
}

#[test]
fn a_write_longer_than_the_remote_block_is_not_posted() {
    let (client, server) = pair(Config::default());
    let sink = server.adapter().buffer(2, 16).unwrap();
    server.advertise("sink", &sink).unwrap();
    let channel = client.channel("data").unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    let local = client.adapter().buffer(1, 17).unwrap();
    let too_long = ChannelError::TooLong { local: 17, remote: 16 };
    let error = channel.write(local.at(0).unwrap(), remote.at(0).unwrap());
    assert_eq!(error.unwrap_err(), too_long);
    let error = channel.read(local.at(0).unwrap(), remote.at(0).unwrap());
    assert_eq!(error.unwrap_err(), too_long);
    assert!(remote.at(2).is_err());
    let fits = local.at(0).unwrap().first(16).unwrap();
    channel.write(fits, remote.at(1).unwrap()).unwrap();
}

/// Goal: what a peer may not touch it cannot touch, whatever it believes.
/// Method: claims past the end, with a wrong key, and without the right, each on a new endpoint.
#[test]
fn the_device_refuses_accesses_that_the_advertisement_did_not_cover() {
    for case in 0..4 {
        let (client, server) = pair(Config::default());
        let access = [Access::ALL, Access::ALL, Access::REMOTE_WRITE, Access::ALL][case]
            | Access::LOCAL_WRITE;
        let sink = server.adapter().buffer_with(2, 16, access).unwrap();
        server.advertise("sink", &sink).unwrap();
        let channel = client.channel("data").unwrap();
        let local = client.adapter().buffer(1, 4096).unwrap();
        local.fill(7).unwrap();
        let known = client.remote_buffer("sink").unwrap();
        let (addr, rkey) = (known.addr(), known.rkey());
        let lie = |addr, rkey| RemoteBuffer::from_raw(addr, rkey, 1, 4096).at(0).unwrap();
        let block = || local.at(0).unwrap().first(33).unwrap();
        let error = match case {
            0 => channel.write(block(), lie(addr, rkey)),
            1 => channel
                .write(block().first(8).unwrap(), lie(addr, adverb_session::Rkey(rkey.0 ^ 0x40))),
            2 => channel.read(block().first(8).unwrap(), lie(addr, rkey)),
            _ => channel.write(block().first(8).unwrap(), lie(addr - 4, rkey)),
        };
        let error = error.unwrap_err();
        let ChannelError::Work { status, .. } = error else {
            panic!("case {case}: {error}");
        };
        assert_eq!(status, WcStatus::RemoteAccess, "case {case}");
        for index in 0..2 {
            assert_eq!(sink.at(index).unwrap().to_vec(), [0; 16], "case {case}");
        }
    }
}

#[test]
fn calls_that_wait_give_up_in_time_and_the_work_goes_on() {
    let (client, server) = pair(Config::default());
    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    // The peer has posted no receive, so the message waits for one.
    let error = channel.with_timeout(SHORT).send(local.at(0).unwrap());
    let waited = SHORT;
    assert_eq!(error.unwrap_err(), ChannelError::Timeout { waited });
    assert_eq!(channel.in_flight().sends, 1);

    let receiver = server.channel("data").unwrap();
    let error = receiver.recv().unwrap_err();
    assert_eq!(error, ChannelError::NothingPosted);
    let sink = server.adapter().buffer(2, 8).unwrap();
    receiver.post_recv(sink.at(0).unwrap()).unwrap();
    receiver.recv().unwrap();
    // The event of work without a waiter comes by polling.
    let event = loop {
        if let Some(event) = channel.poll().unwrap() {
            break event;
        }
    };
    assert_eq!(event.ok().unwrap().operation, Operation::Send);

    receiver.post_recv(sink.at(1).unwrap()).unwrap();
    let error = receiver.with_timeout(SHORT).recv().unwrap_err();
    assert_eq!(error, ChannelError::Timeout { waited });
    assert_eq!(receiver.in_flight().receives, 1);
}

#[test]
fn a_peer_without_a_receive_is_given_up_on_if_so_configured() {
    let mut config = Config::default();
    config.adapter.rnr_retry = RnrRetry::new(1).unwrap();
    let (client, _server) = pair(config);
    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    let error = channel.send(local.at(0).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "SEND failed: RNR retry counter exceeded: the peer has posted no receive"
    );
}

#[test]
fn queues_that_are_full_say_so_until_events_are_taken() {
    let config = Config::default().send_depth(2).receive_depth(3);
    let (client, server) = pair(config);
    let receiver = server.channel("data").unwrap();
    let sink = server.adapter().buffer(4, 8).unwrap();
    for _ in 0..3 {
        receiver.post_recv(sink.next().unwrap()).unwrap();
    }
    let error = receiver.post_recv(sink.next().unwrap()).unwrap_err();
    let operation = Operation::Receive;
    assert_eq!(error, ChannelError::Full { operation, depth: 3 });

    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    let post = || channel.post_send(local.at(0).unwrap());
    post().unwrap();
    post().unwrap();
    let full = ChannelError::Full { operation: Operation::Send, depth: 2 };
    assert_eq!(post().unwrap_err(), full);
    channel.drain().unwrap();
    assert_eq!(post().unwrap_err(), full); // Done, but the events have not been taken.
    assert_eq!(channel.in_flight().events, 2);
    assert!(channel.poll().unwrap().is_some());
    post().unwrap();
}

/// Goal: also work that asks for no completion has its event when it fails, and when what was
/// before it fails.
#[test]
fn failures_end_all_work_whether_it_asks_for_a_completion_or_not() {
    let every = Signal::Every(NonZeroU32::new(1000).unwrap());
    let (client, server) = pair(Config::default().signal(every));
    let sink = server.adapter().buffer(1, 8).unwrap();
    server.advertise("sink", &sink).unwrap();
    let good = client.remote_buffer("sink").unwrap();
    let bad = RemoteBuffer::from_raw(good.addr() + 4096 * 4096, good.rkey(), 1, 8);
    let local = client.adapter().buffer(1, 8).unwrap();
    let channel = client.channel("data").unwrap();
    for to in [&good, &good, &bad, &good, &good] {
        channel.post_write(local.at(0).unwrap(), to.at(0).unwrap()).unwrap();
    }
    let mut statuses = Vec::new();
    let limit = Instant::now() + LONG;
    while statuses.len() < 5 {
        assert!(Instant::now() < limit, "{statuses:?}");
        statuses.extend(channel.poll().unwrap().map(|event| event.status));
    }
    let flushed = WcStatus::WorkRequestFlushed;
    let (good, bad) = (WcStatus::Success, WcStatus::RemoteAccess);
    assert_eq!(statuses, [good, good, bad, flushed, flushed]);
    assert!(channel.drain().is_err());
    assert_eq!(channel.in_flight().sends, 0);
}

#[test]
fn atomics_take_words_only() {
    let (client, server) = pair(Config::default());
    let sink = server.adapter().buffer(2, 20).unwrap();
    server.advertise("sink", &sink).unwrap();
    let channel = client.channel("data").unwrap();
    let to = client.remote_buffer("sink").unwrap().at(0).unwrap();
    let local = client.adapter().buffer(1, 16).unwrap();
    let word = || local.at(0).unwrap().first(8).unwrap();
    let add = |block, at| channel.fetch_add(block, at, 1).unwrap_err();
    let error = ChannelError::NotAWord;
    assert_eq!(add(local.at(0).unwrap(), to), error);
    assert_eq!(add(word(), to.part(4, 8).unwrap()), error);
    assert_eq!(add(word(), to.part(0, 7).unwrap()), error);
    channel.fetch_add(word(), to.part(8, 8).unwrap(), 1).unwrap();
}

#[test]
fn buffers_of_another_adapter_are_refused() {
    let (client, _server) = pair(Config::default());
    let other = Adapter::open(Config::default()).unwrap();
    let foreign = other.buffer(1, 8).unwrap();
    let channel = client.channel("data").unwrap();
    let error = channel.send(foreign.at(0).unwrap()).unwrap_err();
    assert_eq!(error, ChannelError::ForeignBuffer);
    let error = channel.post_recv(foreign.at(0).unwrap()).unwrap_err();
    assert_eq!(error, ChannelError::ForeignBuffer);
}

#[test]
fn what_arrived_before_the_peer_closed_comes_first_and_then_the_news() {
    let (client, server) = pair(Config::default());
    let receiver = server.channel("data").unwrap();
    let sink = server.adapter().buffer(5, 8).unwrap();
    for _ in 0..5 {
        receiver.post_recv(sink.next().unwrap()).unwrap();
    }
    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(3, 8).unwrap();
    for _ in 0..3 {
        channel.post_send(local.next().unwrap()).unwrap();
    }
    client.close().unwrap();
    let here = ChannelError::PeerGone(Departure::Here);
    let limit = Instant::now() + LONG;
    while channel.failure().is_none() {
        assert!(Instant::now() < limit, "it does not know that it is closed");
        channel.poll().unwrap();
    }
    assert_eq!(channel.failure(), Some(here));

    for _ in 0..3 {
        receiver.recv().unwrap();
    }
    let gone = ChannelError::PeerGone(Departure::Closed);
    assert_eq!(receiver.recv().unwrap_err(), gone);
    assert_eq!(receiver.recv().unwrap_err(), gone); // The other receive that was posted.
    assert_eq!(receiver.recv().unwrap_err(), ChannelError::NothingPosted);
    assert_eq!(receiver.post_recv(sink.next().unwrap()).unwrap_err(), gone);
    assert_eq!(server.departure(), Some(Departure::Closed));
    assert!(server.remote_buffer("sink").is_err());
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_can() {
    let open = |config| Adapter::open(config).unwrap_err();
    let error = open(Config::default().device("soft_nowhere"));
    assert!(matches!(error, AdapterError::Open(_)));
    assert!(error.to_string().contains("soft_lo"), "{error}");
    let error = open(Config::default().gid_index(200));
    assert!(error.to_string().contains("1 (127.0.0.1)"), "{error}");
    let error = open(Config::default().send_depth(0));
    assert_eq!(error.to_string(), "send_depth = 0, but it must be from 1 to 1048576");
    open(Config::default().receive_depth(u32::MAX));
    open(Config::default().inline_bytes(5000));
    open(Config::default().channels(["a", "b", "a"]));
    open(Config::default().channels([""]));
    open(Config::default().channels(Vec::<String>::new()));
    open(Config::default().channels((0..65).map(|n| n.to_string())));
    open(Config::default().name("x".repeat(65)));
    Adapter::open(Config::default().path_mtu(PathMtu::B256)).unwrap();
}

#[test]
fn a_client_without_a_server_gives_up_in_time() {
    let address = free_address();
    let session = ClientSession::new(Config::default().connect_timeout(SHORT)).unwrap();
    let start = Instant::now();
    let error = session.connect(address).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let (short, long) = (start.elapsed(), 10 * SHORT);
    let session = ClientSession::new(Config::default().connect_timeout(long)).unwrap();
    let start = Instant::now();
    session.connect(address).unwrap_err();
    let took = start.elapsed();
    // It tries for about as long as it may: a tenth of the time takes a part of it.
    assert!(took > long / 2, "{took:?} of {long:?}");
    assert!(short < took / 2, "{short:?}, and {took:?} with ten times the limit");
    let error = session.connect("not an address").unwrap_err();
    assert!(matches!(error, ConnectError::Address { .. }), "{error}");
}

#[test]
fn addresses_of_two_families_do_not_meet_and_both_sides_hear_why() {
    let v6 = Config::default().gid_index(0);
    if Adapter::open(v6.clone()).is_err() {
        println!("skipped: no IPv6");
        return;
    }
    let mut server = ServerSession::bind("127.0.0.1:0", Config::default()).unwrap();
    let address = server.local_addr();
    let accepting = thread::spawn(move || server.accept(LONG).map(drop));
    let session = ClientSession::new(v6.clone()).unwrap();
    let error = session.connect(address).unwrap_err();
    assert!(error.to_string().contains("gid_index"), "{error}");
    let error = accepting.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("gid_index"), "{error}");

    // Both of them with IPv6, all is well.
    let (client, server) = pair_of(v6.clone(), v6);
    let sink = server.adapter().buffer(1, 8).unwrap();
    server.advertise("sink", &sink).unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    local.fill(1).unwrap();
    let to = client.remote_buffer("sink").unwrap().at(0).unwrap();
    let channel = client.channel("data").unwrap();
    channel.write(local.at(0).unwrap(), to).unwrap();
    assert_eq!(sink.at(0).unwrap().to_vec(), [1; 8]);
}

/// Goal: what a program prints of its handles is what it knows of them, not how they are made.
#[test]
fn handles_print_as_a_line() {
    let (client, _server) = pair(Config::default());
    let block = client.adapter().buffer(1, 16).unwrap().at(0).unwrap();
    for shown in [format!("{client:?}"), format!("{block:?}"), format!("{:?}", client.adapter())] {
        assert!(shown.len() < 500 && shown.contains("soft_lo"), "{shown}");
    }
}

/// Goal: a program whose `main` returns an error, and so prints its `Debug`, says what a person can read.
#[test]
fn what_main_prints_of_an_error_is_its_text() {
    let config = Config::default().device("soft_none");
    let errors: [Box<dyn std::error::Error>; 6] = [
        Box::new(Adapter::open(config).unwrap_err()),
        Box::new(ServerSession::bind("192.0.2.1:7", Config::default()).unwrap_err()),
        Box::new(ConnectError::NotAClient),
        Box::new(ChannelError::NotAWord),
        Box::new(frame::FrameError::Magic),
        Box::new(frame::Name::new("").unwrap_err()),
    ];
    for error in errors {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

#[test]
fn an_address_that_is_not_of_this_machine_is_named() {
    let error = ServerSession::bind("192.0.2.1:7", Config::default()).unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("cannot listen on 192.0.2.1:7: "), "{said}");
}
