//! Throughput and round trips of two stacks in one process and one thread, frames and checksums included.
//!
//! Run with `cargo run --release -p adverb-tcpip --example in_process`. Prints the best of some rounds, because
//! noise only ever adds.

#![expect(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use adverb_tcpip::Time;
use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::stack::{ConnectionId, Listen, ListenerId, Stack};
use adverb_tcpip::tcp::{Config, Piece};
use adverb_tcpip::tuple::Tuple;
use adverb_wire::ip::{Ipv4, Sum};

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const LISTENER: ListenerId = ListenerId { port: 80, address: None };

/// A frame, or a chunk of the program's: both are shared bytes here.
type Bytes = Arc<[u8]>;

struct Pair {
    stacks: [Stack<Bytes>; 2],
    ids: [ConnectionId; 2],
    start: Instant,
    checksums: Checksums,
    frame: Vec<u8>,
}

impl Pair {
    fn new(idle: u16, checksums: Checksums, mtu: u16) -> Self {
        let config = Config { mtu, no_delay: true, ..Config::default() };
        let mut stacks = [1, 2].map(|key| Stack::new(20_000, [key, key]));
        let [client, server] = &mut stacks;
        let many = usize::from(idle) + 10;
        let listen = Listen { config, backlog: many, half_open_max: many, syn_rate: None };
        server.listen(LISTENER, listen, Time::ZERO).expect("the port is free");
        let mut connect = |port| {
            let [local, remote] = ADDRESSES.map(IpAddr::V4);
            let tuple = Tuple { local, local_port: port, remote, remote_port: 80 };
            client.connect(tuple, &config, Time::ZERO).expect("there is room")
        };
        let id = connect(1);
        (0..idle).for_each(|port| _ = connect(2 + port));
        let start = Instant::now();
        let mut pair = Self { stacks, ids: [id; 2], start, checksums, frame: Vec::new() };
        while pair.carry() > 0 {}
        pair.ids[1] = pair.stacks[1].accept(LISTENER).expect("a connection");
        pair
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Carries all frames once in each direction, and says how many.
    fn carry(&mut self) -> usize {
        let mut carried = 0;
        for from in [0, 1] {
            let now = self.now();
            let [client, server] = &mut self.stacks;
            let (from, to) = if from == 0 { (client, server) } else { (server, client) };
            from.on_time(now);
            while let Some(transmit) = from.poll_transmit(now) {
                emit(&transmit, self.checksums, &mut self.frame);
                // The only copy: into the frame, as a ring's frames are.
                let frame: Bytes = Arc::from(self.frame.as_slice());
                let parsed = Frame::parse(&frame, self.checksums).expect("a frame");
                let Frame::Tcp { tuple, header, payload } = parsed else {
                    unreachable!("only TCP is sent");
                };
                to.on_segment(tuple, &header, Piece::new(frame, payload), now);
                carried += 1;
            }
        }
        carried
    }

    fn read(&mut self, side: usize) -> usize {
        let id = self.ids.get(side).copied().expect("a side");
        let stack = self.stacks.get_mut(side).expect("a side");
        stack
            .with(id, |connection| {
                let mut bytes = 0;
                while let Some(received) = connection.receive() {
                    bytes += received.as_ref().len();
                }
                bytes
            })
            .expect("a connection")
    }

    fn write(&mut self, side: usize, chunk: &Bytes) -> bool {
        let now = self.now();
        let id = self.ids.get(side).copied().expect("a side");
        let stack = self.stacks.get_mut(side).expect("a side");
        stack.with(id, |connection| connection.send(chunk.clone(), now).is_ok()) == Some(true)
    }

    fn round_trip_nanos(&mut self) -> f64 {
        const ROUNDS: u32 = 20_000;
        let chunk: Bytes = Arc::from([7; 64]);
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            assert!(self.write(0, &chunk), "room");
            while self.read(1) == 0 {
                self.carry();
            }
            assert!(self.write(1, &chunk), "room");
            while self.read(0) == 0 {
                self.carry();
            }
        }
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
    }

    fn bytes_a_second(&mut self) -> f64 {
        const BYTES: u32 = 200 << 20;
        let chunk: Bytes = Arc::from(vec![7; 64 << 10]);
        let begin = Instant::now();
        let mut read = 0;
        while read < 200 << 20 {
            while self.write(0, &chunk) {}
            self.carry();
            read += self.read(1);
        }
        f64::from(BYTES) / begin.elapsed().as_secs_f64()
    }
}

fn emit(
    transmit: &adverb_tcpip::stack::Transmit<'_, Bytes>,
    checksums: Checksums,
    frame: &mut Vec<u8>,
) {
    let tuple = &transmit.tuple;
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (tuple.local, tuple.remote) else {
        unreachable!("all addresses are of IPv4");
    };
    let header_bytes = transmit.header.emit(0).as_slice().len();
    let len = u16::try_from(header_bytes + transmit.payload_bytes()).expect("a short segment");
    let header = match checksums {
        Checksums::Trusted => transmit.header.emit(0),
        Checksums::Complete | Checksums::Verified => {
            transmit.header.emit_sum(Sum::pseudo_v4(src, dst, 6, len), transmit.payload())
        }
    };
    let (traffic_class, id, dont_fragment, hop_limit, protocol) = (0, 0, true, 64, 6);
    let ip = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src, dst };
    let ethernet = Ethernet { dst: Mac([2; 6]), src: Mac([2; 6]), kind: Ethernet::IPV4 };
    frame.clear();
    frame.extend_from_slice(&ethernet.emit());
    frame.extend_from_slice(&ip.emit(len));
    frame.extend_from_slice(header.as_slice());
    transmit.payload().for_each(|bytes| frame.extend_from_slice(bytes));
}

fn main() {
    for checksums in [Checksums::Trusted, Checksums::Verified] {
        for idle in [0, 1000, 10_000] {
            let mut pair = Pair::new(idle, checksums, 1500);
            let best = (0..5).map(|_| pair.round_trip_nanos()).fold(f64::MAX, f64::min);
            println!(
                "{checksums:?}: round trip of 64 B with {idle} idle connections: {best:.0} ns"
            );
        }
        for mtu in [1500, 9000] {
            let mut pair = Pair::new(0, checksums, mtu);
            let best = (0..3).map(|_| pair.bytes_a_second()).fold(0.0, f64::max);
            println!("{checksums:?}: stream with MTU {mtu}: {:.2} GB/s", best / 1e9);
        }
    }
}
