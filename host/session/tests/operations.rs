//! What a channel does when all is well.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    Access, BlockError, ChannelError, ClientSession, Config, Departure, ExchangeError, Operation,
    PathMtu, ServerSession, Signal, Ticket,
};
use std::num::NonZeroU32;
use std::thread;
use std::time::Duration;
use support::process::free_address;
use support::{LONG, departure, pair, pair_of, pattern};

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    let (client, server) = pair(Config::default());
    let sizes = [0, 1, 63, 64, 4095, 4096, 4097, 100_000];
    let receiving = thread::spawn(move || {
        let channel = server.channel("data").unwrap();
        let buffer = server.adapter().buffer(sizes.len(), 100_000).unwrap();
        for _ in sizes {
            channel.post_recv(buffer.next().unwrap()).unwrap();
        }
        let received = sizes.map(|_| channel.recv().unwrap());
        server.close().unwrap();
        received.map(|event| event.block.first(event.bytes).unwrap().to_vec())
    });
    let channel = client.channel("data").unwrap();
    let buffer = client.adapter().buffer(1, 100_000).unwrap();
    for (seed, len) in (0..).zip(sizes) {
        let block = buffer.at(0).unwrap().first(len).unwrap();
        block.write(0, &pattern(seed, len)).unwrap();
        channel.send(block).unwrap();
    }
    let received = receiving.join().unwrap();
    for ((seed, len), message) in (0..).zip(sizes).zip(received) {
        assert!(message == pattern(seed, len), "{len} bytes differ");
    }
}

/// Goal: a block of posted work is not handed out before the event of that work was dropped.
/// Method: a SEND that cannot be done, because the peer has posted no receive.
#[test]
fn blocks_in_flight_are_not_handed_out_until_their_events_were_taken() {
    let (client, server) = pair(Config::default());
    let (near, far) = (client.channel("data").unwrap(), server.channel("data").unwrap());
    let local = client.adapter().buffer(5, 64).unwrap();
    let sink = server.adapter().buffer(5, 64).unwrap();
    for _ in 0..5 {
        let block = local.next().unwrap();
        block.fill(u8::try_from(block.index()).unwrap()).unwrap();
        near.post_send(block).unwrap();
    }
    let error = local.next().unwrap_err();
    assert_eq!(error, BlockError::AllInUse { blocks: 5 });
    for index in 0..5 {
        far.post_recv(sink.next().unwrap()).unwrap();
        assert_eq!(far.recv().unwrap().block.to_vec(), [index; 64]);
    }
    near.drain().unwrap();
    assert!(local.next().is_err(), "the events have not been taken");
    let event = near.poll().unwrap().unwrap();
    assert!(local.next().is_err(), "the event is still there");
    drop(event);
    assert_eq!(local.next().unwrap().index(), 0);
    assert_eq!(far.in_flight().events, 0);
}

#[test]
fn write_read_and_atomics_reach_the_advertised_buffer() {
    let (client, server) = pair(Config::default());
    let sink = server.adapter().buffer(4, 1000).unwrap();
    server.advertise("sink", &sink).unwrap();

    let channel = client.channel("data").unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    assert_eq!((remote.blocks(), remote.block_bytes()), (4, 1000));
    let local = client.adapter().buffer(3, 1000).unwrap();
    local.at(0).unwrap().write(0, &pattern(1, 1000)).unwrap();

    channel.write(local.at(0).unwrap(), remote.at(2).unwrap()).unwrap();
    assert_eq!(sink.at(2).unwrap().to_vec(), pattern(1, 1000));
    assert_eq!(sink.at(1).unwrap().to_vec(), [0; 1000]);
    assert_eq!(sink.at(3).unwrap().to_vec(), [0; 1000]);

    let part = remote.at(2).unwrap().part(100, 50).unwrap();
    let into = local.at(1).unwrap().first(50).unwrap();
    channel.read(into, part).unwrap();
    assert_eq!(local.at(1).unwrap().to_vec()[..50], pattern(1, 1000)[100..150]);

    let word = remote.at(0).unwrap().first(8).unwrap();
    let result = || local.at(2).unwrap().first(8).unwrap();
    assert_eq!(channel.fetch_add(result(), word, 5).unwrap(), 0);
    assert_eq!(channel.fetch_add(result(), word, 7).unwrap(), 5);
    assert_eq!(channel.compare_swap(result(), word, 99, 1).unwrap(), 12);
    assert_eq!(channel.compare_swap(result(), word, 12, 40).unwrap(), 12);
    assert_eq!(sink.at(0).unwrap().load_u64(0).unwrap(), 40);
}

#[test]
fn immediate_data_tells_messages_from_writes() {
    let (client, server) = pair(Config::default());
    let sink = server.adapter().buffer(3, 64).unwrap();
    server.advertise("sink", &sink).unwrap();
    let receiver = server.channel("data").unwrap();
    receiver.post_recv(sink.at(1).unwrap()).unwrap();
    receiver.post_recv(sink.at(2).unwrap()).unwrap();

    let channel = client.channel("data").unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    let local = client.adapter().buffer(1, 64).unwrap();
    local.fill(9).unwrap();
    channel.write_with_imm(local.at(0).unwrap(), remote.at(0).unwrap(), 0xdead_beef).unwrap();
    let short = local.at(0).unwrap().first(3).unwrap();
    channel.send_with_imm(short, 17).unwrap();

    let write = receiver.recv().unwrap();
    assert_eq!(write.operation, Operation::WriteReceived);
    assert_eq!((write.imm, write.bytes), (Some(0xdead_beef), 64));
    assert_eq!(sink.at(0).unwrap().to_vec(), [9; 64]);
    assert_eq!(write.block.to_vec(), [0; 64]);
    let send = receiver.recv().unwrap();
    assert_eq!(send.operation, Operation::Receive);
    assert_eq!((send.imm, send.bytes), (Some(17), 3));
    assert_eq!(send.block.to_vec()[..4], [9, 9, 9, 0]);
}

#[test]
fn channels_of_one_endpoint_do_not_mix() {
    let config = Config::default().channels(["control", "data"]);
    let (client, server) = pair(config);
    let names: Vec<_> = server.channels().iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(names, ["control", "data"]);
    let buffer = server.adapter().buffer(2, 8).unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    for (index, name) in ["control", "data"].into_iter().enumerate() {
        let channel = server.channel(name).unwrap();
        channel.post_recv(buffer.at(index).unwrap()).unwrap();
    }
    local.fill(2).unwrap();
    let data = client.channel("data").unwrap();
    data.send(local.at(0).unwrap()).unwrap();
    server.channel("data").unwrap().recv().unwrap();
    assert_eq!(buffer.at(0).unwrap().to_vec(), [0; 8]);
    assert_eq!(buffer.at(1).unwrap().to_vec(), [2; 8]);
    assert!(server.channel("control").unwrap().poll().unwrap().is_none());

    let error = client.channel("dta").unwrap_err();
    assert_eq!(error.to_string(), "the endpoint has no channel \"dta\"; it has: control data");
}

/// Goal: events come in order and once, and no more than there is room for.
#[test]
fn many_events_are_taken_at_once_as_far_as_there_is_room() {
    let (client, server) = pair(Config::default());
    server.advertise("sink", &server.adapter().buffer(1, 8).unwrap()).unwrap();
    let sink = client.remote_buffer("sink").unwrap();
    let channel = client.channel("data").unwrap();
    let local = client.adapter().buffer(1, 8).unwrap();
    let post = |_| channel.post_write(local.at(0).unwrap(), sink.at(0).unwrap()).unwrap();
    let tickets: Vec<_> = (0..10).map(post).collect();
    channel.drain().unwrap();
    let mut events = Vec::with_capacity(4);
    let mut taken = Vec::new();
    while taken.len() < tickets.len() {
        let count = channel.poll_many(&mut events).unwrap();
        assert_eq!((count, events.capacity()), (events.len(), 4));
        taken.extend(events.drain(..).map(|event| event.ticket));
    }
    assert_eq!(taken, tickets);
    assert_eq!(channel.poll_many(&mut events).unwrap(), 0);
    assert_eq!(channel.poll_many(&mut Vec::new()).unwrap(), 0);
}

/// Goal: posted work has one event each, whichever work asks for completions.
/// Method: more WRITEs than the queue holds, polled in between, some awaited by ticket.
#[test]
fn every_posted_write_has_one_event_also_without_a_completion_of_its_own() {
    for every in [1, 3, 16, 1000] {
        let signal = Signal::Every(NonZeroU32::new(every).unwrap());
        let config = Config::default().send_depth(16).signal(signal);
        let (client, server) = pair(config);
        let sink = server.adapter().buffer(200, 8).unwrap();
        server.advertise("sink", &sink).unwrap();
        let channel = client.channel("data").unwrap();
        let remote = client.remote_buffer("sink").unwrap();
        let local = client.adapter().buffer(200, 8).unwrap();

        let mut tickets: Vec<Ticket> = Vec::new();
        let mut taken: Vec<Ticket> = Vec::new();
        while tickets.len() < 200 {
            let index = tickets.len();
            let block = local.at(index).unwrap();
            block.store_u64(0, u64::try_from(index).unwrap()).unwrap();
            match channel.post_write(block, remote.at(index).unwrap()) {
                Ok(ticket) => tickets.push(ticket),
                Err(ChannelError::Full { depth: 16, .. }) => {
                    taken.extend(channel.poll().unwrap().map(|event| event.ok().unwrap().ticket));
                }
                Err(error) => panic!("{error}"),
            }
            assert!(channel.in_flight().sends <= 16);
        }
        let last = *tickets.last().unwrap();
        assert_eq!(channel.wait(last).unwrap().ticket, last);
        assert_eq!(channel.wait(last).unwrap_err(), ChannelError::Taken(last));
        while let Some(event) = channel.poll().unwrap() {
            taken.push(event.ok().unwrap().ticket);
        }
        taken.push(last);
        assert_eq!(taken, tickets);
        assert_eq!(channel.room(), (16, 128));
        channel.drain().unwrap();
        assert_eq!(channel.in_flight().sends, 0);
        for index in 0..200 {
            let value = sink.at(index).unwrap().load_u64(0).unwrap();
            assert_eq!(value, u64::try_from(index).unwrap());
        }
    }
}

#[test]
fn inline_data_is_free_for_reuse_at_once() {
    let (client, server) = pair(Config::default().inline_bytes(32));
    let sink = server.adapter().buffer(100, 32).unwrap();
    server.advertise("sink", &sink).unwrap();
    let channel = client.channel("data").unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    let local = client.adapter().buffer(1, 32).unwrap();
    for index in 0..100_u8 {
        let block = local.at(0).unwrap();
        block.fill(index).unwrap();
        let to = remote.at(usize::from(index)).unwrap();
        channel.post_write(block, to).unwrap();
    }
    channel.drain().unwrap();
    for index in 0..100_u8 {
        let block = sink.at(usize::from(index)).unwrap();
        assert_eq!(block.to_vec(), [index; 32]);
    }
}

#[test]
fn the_smaller_path_mtu_and_number_of_reads_are_used() {
    let mut small = Config::default().path_mtu(PathMtu::B1024).name("small");
    small.adapter.reads = 2;
    let large = Config::default().name("large");
    for (client, server) in [(small.clone(), large.clone()), (large, small)] {
        let names = (client.name.clone(), server.name.clone());
        let (client, server) = pair_of(client, server);
        for peer in [client.peer(), server.peer()] {
            assert_eq!((peer.path_mtu, peer.reads), (PathMtu::B1024, 2));
            assert_eq!(peer.device.as_str(), "soft_lo");
        }
        assert_eq!(server.peer().name.as_str(), names.0);
        assert_eq!(client.peer().name.as_str(), names.1);
        let buffer = server.adapter().buffer(1, 10_000).unwrap();
        server.advertise("sink", &buffer).unwrap();
        let local = client.adapter().buffer(1, 10_000).unwrap();
        local.at(0).unwrap().write(0, &pattern(4, 10_000)).unwrap();
        let to = client.remote_buffer("sink").unwrap().at(0).unwrap();
        let channel = client.channel("data").unwrap();
        channel.write(local.at(0).unwrap(), to).unwrap();
        assert!(buffer.at(0).unwrap().to_vec() == pattern(4, 10_000));
    }
}

#[test]
fn a_server_serves_several_clients_and_they_share_its_buffers() {
    let mut server = ServerSession::bind("127.0.0.1:0", Config::default()).unwrap();
    let address = server.local_addr();
    let clients = thread::spawn(move || {
        let session = ClientSession::new(Config::default()).unwrap();
        let endpoints: Vec<_> = (0..5).map(|_| session.connect(address).unwrap()).collect();
        for (index, endpoint) in endpoints.iter().enumerate() {
            let buffer = endpoint.adapter().buffer(1, 8).unwrap();
            buffer.fill(u8::try_from(index).unwrap() + 1).unwrap();
            let to = endpoint.remote_buffer("sink").unwrap().at(index).unwrap();
            let channel = endpoint.channel("data").unwrap();
            channel.write(buffer.at(0).unwrap(), to).unwrap();
        }
        for endpoint in endpoints {
            endpoint.close().unwrap();
        }
    });
    let sink = server.adapter().unwrap().buffer(5, 8).unwrap();
    let endpoints: Vec<_> = (0..5)
        .map(|_| {
            let endpoint = server.accept(LONG).unwrap();
            endpoint.advertise("sink", &sink).unwrap();
            endpoint
        })
        .collect();
    clients.join().unwrap();
    for index in 0..5_u8 {
        let block = sink.at(usize::from(index)).unwrap();
        assert_eq!(block.to_vec(), [index + 1; 8]);
    }
    for endpoint in &endpoints {
        assert_eq!(departure(endpoint), Departure::Closed);
    }
}

#[test]
fn a_client_that_comes_first_waits_for_its_server() {
    let address = free_address();
    let connecting = thread::spawn(move || {
        let session = ClientSession::new(Config::default().connect_timeout(LONG)).unwrap();
        session.connect(address).map(|endpoint| endpoint.peer().addr)
    });
    thread::sleep(Duration::from_millis(200));
    let mut server = ServerSession::bind(address, Config::default()).unwrap();
    server.accept(LONG).unwrap();
    assert_eq!(connecting.join().unwrap().unwrap(), address);
}

#[test]
fn two_threads_can_use_one_channel() {
    let (client, server) = pair(Config::default());
    let sink = server.adapter().buffer(2, 8).unwrap();
    server.advertise("sink", &sink).unwrap();
    let remote = client.remote_buffer("sink").unwrap();
    let threads: Vec<_> = (0..2)
        .map(|index| {
            let channel = client.channel("data").unwrap();
            let local = client.adapter().buffer(1, 8).unwrap();
            let to = remote.at(index).unwrap();
            thread::spawn(move || {
                for _ in 0..500 {
                    channel.fetch_add(local.at(0).unwrap(), to, 1).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for index in 0..2 {
        assert_eq!(sink.at(index).unwrap().load_u64(0).unwrap(), 500);
    }
}

#[test]
fn advertising_has_its_rules() {
    let hasty = Config::default().work_timeout(Duration::from_millis(50));
    let (client, server) = pair_of(hasty, Config::default());
    let adapter = server.adapter();
    let sink = adapter.buffer(1, 8).unwrap();
    server.advertise("sink", &sink).unwrap();
    let again = server.advertise("sink", &sink).unwrap_err();
    assert!(matches!(again, ExchangeError::NameTaken { .. }), "{again}");
    let local = adapter.buffer_with(1, 8, Access::LOCAL_WRITE).unwrap();
    let private = server.advertise("private", &local).unwrap_err();
    assert!(matches!(private, ExchangeError::NotShared), "{private}");
    let foreign = client.advertise("sink", &sink).unwrap_err();
    assert!(matches!(foreign, ExchangeError::ForeignBuffer), "{foreign}");
    while client.remote_buffer("sink").is_err() {
        assert_eq!(client.departure(), None); // It is on its way.
    }
    let missing = client.remote_buffer("snik").unwrap_err();
    assert_eq!(missing.to_string(), "the peer advertised no buffer snik within 50ms, but: sink");
}
