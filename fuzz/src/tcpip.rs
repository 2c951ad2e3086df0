//! Targets of `adverb-tcpip`.

use adverb_tcpip::Time;
use adverb_tcpip::arp::{Arp, Operation};
use adverb_tcpip::ethernet::{Ethernet, Mac};
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::neighbour::{Kind, Neighbour};
use adverb_tcpip::stack::{ConnectionId, Listen, ListenerId, Outcome, Stack};
use adverb_tcpip::tcp::{Config, Flags, Options, Piece, Seq, Tcp, TimeStamps};
use adverb_tcpip::tuple::Tuple;
use adverb_wire::ip::{Ipv4, Ipv6, Udp};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// A payload lies within its frame, and a TCP header that parses can be sent again.
pub(crate) fn frame(bytes: &[u8]) {
    let trusted = Frame::parse(bytes, Checksums::Trusted);
    match &trusted {
        Ok(Frame::Tcp { header, payload, .. }) => {
            assert!(bytes.get(payload.clone()).is_some());
            assert!(Tcp::parse(header.emit(0).as_slice()).is_some());
        }
        Ok(Frame::Udp { payload, .. }) => assert!(bytes.get(payload.clone()).is_some()),
        Ok(Frame::Arp(_) | Frame::IcmpError(_) | Frame::Neighbour(_)) | Err(_) => {}
    }
    // Verifying refuses more, and reads nothing otherwise.
    let verified = Frame::parse(bytes, Checksums::Verified);
    assert!(verified.is_err() || verified == trusted);
}

/// One frame of each kind.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let tcp = Tcp {
        src_port: 40_000,
        dst_port: 80,
        seq: Seq::new(u32::MAX),
        ack: Seq::new(1),
        flags: Flags::SYN | Flags::ACK,
        window: 65_535,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            time_stamps: Some(TimeStamps { value: 1, echo: 2 }),
            ..Options::default()
        },
    };
    let tcp = [tcp.emit(0).as_slice(), b"payload"].concat();
    let udp = [&Udp { src_port: 1, dst_port: 2, sum: 0 }.emit(12)[..], b"four"].concat();
    let neighbour =
        Neighbour { kind: Kind::Solicitation, target: DST6, mac: Some(Mac([2, 0, 0, 0, 0, 1])) };
    let target = (Mac([0; 6]), DST);
    let arp = Arp { operation: Operation::Request, sender: (Mac([2; 6]), SRC), target };
    let quoted = |header: &[u8], packet: &[u8]| [header, packet].concat();
    vec![
        v4(6, &tcp),
        v6(6, &tcp),
        v4(17, &udp),
        v6(17, &udp),
        v6(58, &neighbour.emit(SRC6, DST6)),
        ethernet(Ethernet::ARP, &arp.emit()),
        v4(1, &quoted(&[3, 4, 0, 0, 0, 0, 4, 176], v4(6, &tcp).get(14..).unwrap_or_default())),
        v6(58, &quoted(&[2, 0, 0, 0, 0, 0, 5, 0], v6(6, &tcp).get(14..).unwrap_or_default())),
    ]
}

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&Ethernet { dst: Mac([2; 6]), src: Mac([4; 6]), kind }.emit(), packet].concat()
}

fn v4(protocol: u8, carried: &[u8]) -> Vec<u8> {
    let (traffic_class, id, dont_fragment, hop_limit) = (0, 0, true, 64);
    let ip = Ipv4 { traffic_class, id, dont_fragment, hop_limit, protocol, src: SRC, dst: DST };
    let len = u16::try_from(carried.len()).unwrap_or_default();
    ethernet(Ethernet::IPV4, &[&ip.emit(len), carried].concat())
}

fn v6(next: u8, carried: &[u8]) -> Vec<u8> {
    let (traffic_class, flow_label, hop_limit) = (0, 0, 255);
    let ip = Ipv6 { traffic_class, flow_label, next, hop_limit, src: SRC6, dst: DST6 };
    let len = u16::try_from(carried.len()).unwrap_or_default();
    ethernet(Ethernet::IPV6, &[&ip.emit(len), carried].concat())
}

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Goal: whatever segments a peer sends, and whatever the programs do meanwhile, nothing panics, memory stays bounded, and
/// time goes on.
/// Method: a stack with a connection that it makes and a listener; each step is a segment to one of both, whose numbers are
/// near what that would expect, and a call.
pub(crate) fn segments(bytes: &[u8]) {
    let mut peer = Peer::new();
    for step in bytes.as_chunks::<STEP_BYTES>().0.iter().take(STEPS_MAX) {
        peer.step(step);
    }
}

/// A stack, and what its peer knows of it.
struct Peer {
    stack: Stack<Vec<u8>>,
    made: Option<ConnectionId>,
    accepted: Option<ConnectionId>,
    /// What each connection expects, and how far it has sent: by the last segment that it sent.
    seen: [(Seq, Seq); 2],
    now: Time,
}

impl Peer {
    fn new() -> Self {
        let config =
            Config { receive_bytes_max: RECEIVE_BYTES, send_bytes_max: 4000, ..Config::default() };
        let mut stack = Stack::new(CONNECTIONS_MAX, [1, 2]);
        let listen = Listen { config, backlog: 2, half_open_max: 2, syn_rate: None };
        stack.listen(LISTENER, listen, Time::ZERO).expect("a free port");
        let made = stack.connect(tuple(0), &config, Time::ZERO).ok();
        let seen = [(Seq::new(0), Seq::new(0)); 2];
        let mut peer = Self { stack, made, accepted: None, seen, now: Time::ZERO };
        peer.transmit();
        peer
    }

    fn step(&mut self, step: &[u8; STEP_BYTES]) {
        let [flags, what, seq, seq_low, ack, ack_low, window, window_low, len, call] = *step;
        let at = usize::from(what & 1);
        let Some((expected, sent)) = self.seen.get(at).copied() else { return };
        let far = what & 2 != 0;
        let near = |to: Seq, by: [u8; 2]| {
            let by = i16::from_be_bytes(by);
            // Most numbers are what is expected, or within a segment of it.
            let by = if far { i32::from(by) << 16 } else { i32::from(by) / 16 };
            to.plus(by.cast_unsigned())
        };
        let mut options = Options { sack_permitted: what & 4 != 0, ..Options::default() };
        options.time_stamps = (what & 8 != 0)
            .then(|| TimeStamps { value: u32::from(call), echo: u32::from(seq_low) });
        options.window_scale = (what & 16 != 0).then_some(len);
        options.mss = (what & 32 != 0).then(|| u16::from(len) * 16);
        if what & 64 != 0 {
            options.sack.push(near(sent, [seq, ack_low]), near(sent, [ack, seq_low]));
        }
        let Tuple { local_port, remote_port, .. } = tuple(at);
        let header = Tcp {
            src_port: remote_port,
            dst_port: local_port,
            seq: near(expected, [seq, seq_low]),
            ack: near(sent, [ack, ack_low]),
            flags: Flags::from_bits(flags),
            window: u16::from_be_bytes([window, window_low]),
            urgent: 0,
            options,
        };
        // As it comes from a frame.
        let Some((header, _)) = Tcp::parse(header.emit(0).as_slice()) else { return };
        let payload = Piece::whole(vec![7; usize::from(len) * 8]);
        if self.stack.on_segment(tuple(at), &header, payload, self.now) == Outcome::Unknown {
            self.stack.refuse_unknown(tuple(at), &header, usize::from(len) * 8);
        }
        self.accepted = self.accepted.or_else(|| self.stack.accept(LISTENER));
        self.call(if at == 0 { self.made } else { self.accepted }, call);
        self.transmit();
        // What was due while a connection had something to send is due now.
        for _ in 0..ROUNDS_MAX {
            if self.stack.next_deadline().is_some_and(|at| at <= self.now) {
                self.stack.on_time(self.now);
                self.transmit();
            }
        }
        self.check();
    }

    /// A program does something, or time passes.
    fn call(&mut self, id: Option<ConnectionId>, call: u8) {
        let now = self.now;
        if let (7, Some(next)) = (call & 7, self.stack.next_deadline()) {
            self.now = now.max(next);
        }
        if call & 8 != 0 {
            self.now = self.now.plus(Duration::from_millis(u64::from(call)));
        }
        self.stack.on_time(self.now);
        let Some(id) = id else { return };
        self.stack.with(id, |connection| match call & 7 {
            0 | 1 => drop(connection.send(vec![1; usize::from(call) * 8], now)),
            2 | 3 => drop(connection.receive()),
            4 => connection.shut_down(),
            5 => connection.close(now),
            6 if call == 6 => connection.abort(),
            _ => {}
        });
        if self.stack.get(id).is_none() {
            self.accepted = self.accepted.filter(|accepted| *accepted != id);
        }
    }

    /// Takes all that the stack sends.
    fn transmit(&mut self) {
        let mut count = 0;
        while let Some(sent) = self.stack.poll_transmit(self.now) {
            let bytes = u32::try_from(sent.payload_bytes()).expect("a segment");
            assert_eq!(sent.payload().flatten().count(), sent.payload_bytes());
            assert!(Tcp::parse(sent.header.emit(0).as_slice()).is_some());
            let flags = sent.header.flags;
            let len = bytes + u32::from(flags.has(Flags::SYN)) + u32::from(flags.has(Flags::FIN));
            let at = usize::from(sent.tuple == tuple(1));
            if let Some(seen) = self.seen.get_mut(at) {
                *seen = (sent.header.ack, sent.header.seq.plus(len));
            }
            count += 1;
            assert!(count < SEGMENTS_MAX, "segments without end");
        }
        while self.stack.poll_event().is_some() {}
    }

    fn check(&self) {
        assert!(self.stack.len() <= CONNECTIONS_MAX);
        for connection in
            [self.made, self.accepted].into_iter().flatten().filter_map(|id| self.stack.get(id))
        {
            // A unit of the window may be rounded up.
            assert!(connection.readable_bytes() <= u64::from(RECEIVE_BYTES) + 1);
            assert!(connection.remembered() < REMEMBERED_MAX);
            assert!(
                connection.next_deadline().is_none_or(|at| at > self.now),
                "a deadline that stays"
            );
        }
    }
}

/// A connection that the stack makes, and one that the peer does.
fn tuple(at: usize) -> Tuple {
    let (local, remote) = (SRC.into(), DST.into());
    let (local_port, remote_port) = if at == 0 { (40_000, 80) } else { (LISTENER.port, 50_000) };
    Tuple { local, local_port, remote, remote_port }
}

/// Handshakes of both, and some bytes.
pub(crate) fn conversations() -> Vec<Vec<u8>> {
    const ACK: u8 = 16;
    const PUSH: u8 = 24;
    let step =
        |flags: u8, what: u8, len: u8, call: u8| [flags, what, 0, 0, 0, 0, 0x20, 0, len, call];
    let made = [
        step(18, 4 | 32, 90, 6), // SYN and ACK.
        step(PUSH, 0, 50, 2),
        step(ACK, 0, 0, 40),
        step(ACK, 64, 0, 7),
        step(17, 0, 10, 4), // FIN.
        step(ACK, 0, 0, 7),
    ];
    let accepted = [
        step(2, 1 | 4 | 16, 2, 7), // SYN.
        step(ACK, 1, 0, 0x11),
        step(PUSH, 1, 60, 3),
        step(ACK, 1, 0, 4),
        step(17, 1, 0, 7),
        step(4, 1, 0, 7), // RST.
    ];
    let both: Vec<_> = made.iter().zip(&accepted).flat_map(|(one, other)| [*one, *other]).collect();
    [made.as_flattened(), accepted.as_flattened(), both.as_flattened()].map(<[u8]>::to_vec).to_vec()
}

const LISTENER: ListenerId = ListenerId { port: 9, address: None };
/// Flags, what else is there, three numbers of two bytes, a length, and a call.
const STEP_BYTES: usize = 10;
const STEPS_MAX: usize = 200;
const CONNECTIONS_MAX: usize = 3;
const RECEIVE_BYTES: u32 = 3000;
/// Segments that leave at a time, and what a connection remembers: more than the bytes that it may have.
const SEGMENTS_MAX: usize = 500;
const REMEMBERED_MAX: usize = 500;
/// How often at one time something may be due.
const ROUNDS_MAX: usize = 3;
