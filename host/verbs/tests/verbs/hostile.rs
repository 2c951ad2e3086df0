//! Datagrams from strangers: dropped and counted, while a good connection goes on.
//!
//! Each test has a namespace of its own, so that the counts are exact.

use crate::agent::Agent;
use crate::alone::{is_alone, over_udp};
use crate::pair::{Pair, Setup, assert_same, bytes_of, eventually, pattern, remote};
use crate::stranger::{ANOTHERS, PEERS, Stranger, VICTIM, headers, write};
use adverb_sys::poll;
use adverb_sys::udp::{BindOptions, Destination, Socket};
use adverb_verbs::{Context, CqConfig, Mr, PortCounters, QpState, Qpn, Rkey, WcStatus, Work};
use adverb_wire::{Aeth, Extension, Msn, Operation, ROCE_PORT, Reth, Syndrome};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A pair, a region that may not change, and the number after which counts are looked at.
struct Scene {
    pair: Pair,
    target: Mr,
    bytes: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        Self::of(&Setup::default())
    }

    fn of(setup: &Setup) -> Self {
        let pair = setup.pair();
        let bytes = pattern(77, 4096);
        let target = pair.b.region(&bytes);
        Self { pair, target, bytes }
    }

    fn counters(&self) -> PortCounters {
        self.pair.context.counters()
    }

    /// Waits until the port has counted this many datagrams more, of whatever kind.
    fn settle(&self, before: PortCounters, datagrams: u64) -> PortCounters {
        let seen = |c: PortCounters| {
            c.malformed + c.icrc_errors + c.unknown_qp + c.rcvd_pkts + c.dropped_management
        };
        eventually("all datagrams are counted", || {
            self.pair.context.drive();
            seen(self.counters()) >= seen(before) + datagrams
        });
        self.counters()
    }

    /// Nothing was changed, and the connection works.
    fn is_sound(&self) {
        let Pair { a, b, .. } = &self.pair;
        assert_same(&bytes_of(&self.target, 0, self.bytes.len()), &self.bytes, "the region");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
        let other = b.region(&[0; 5000]);
        a.qp.post(Work::write(a.buffer(&pattern(5, 5000)), remote(&other))).expect("room");
        assert_eq!(a.status(), WcStatus::Success);
        assert_same(&bytes_of(&other, 0, 5000), &pattern(5, 5000), "a good WRITE");
    }
}

#[test]
fn truncated_packets_are_dropped_at_every_length() {
    over_udp("hostile::truncated_packets_are_dropped_at_every_length", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        let bytes = [0x5a; 64];
        let headers = write(b.qp.number(), a.qp.first_psn(), &scene.target, &bytes);
        let whole = stranger.packet(headers, &bytes);
        let before = scene.counters();
        for len in 0..whole.len() {
            stranger.send(whole.get(..len).expect("in there"));
        }
        let sent = u64::try_from(whole.len()).expect("short");
        let now = scene.settle(before, sent);
        let malformed = now.malformed - before.malformed;
        let corrupt = now.icrc_errors - before.icrc_errors;
        // A cut packet's last bytes are an ICRC by chance: once in 65,536.
        assert!(malformed + corrupt + 1 >= sent, "{malformed} malformed, {corrupt} corrupt");
        assert!(malformed >= 12 + 4, "what is shorter than a header cannot be read");
        assert_same(&bytes_of(&scene.target, 0, 4096), &scene.bytes, "the region");
        // The whole one would have been taken: the test is worth something.
        stranger.send(&whole);
        eventually("the whole packet lands", || {
            scene.pair.context.drive();
            bytes_of(&scene.target, 0, 64) == bytes
        });
    });
}

/// A change to a packet, by name.
type Change = (&'static str, fn(&mut [u8]));

#[test]
fn headers_that_cannot_be_are_dropped() {
    over_udp("hostile::headers_that_cannot_be_are_dropped", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        let changes: [Change; 6] = [
            ("version 1", |p| set(p, 1, |flags| flags | 1)),
            ("version 15", |p| set(p, 1, |flags| flags | 15)),
            ("opcode of a reserved transport", |p| set(p, 0, |_| 0xe0)),
            ("opcode that RC does not have", |p| set(p, 0, |_| 0x1f)),
            ("manufacturer's opcode", |p| set(p, 0, |_| 0xff)),
            ("more padding than there is", |p| set(p, 0, |_| 0x11)), // An ACK with payload.
        ];
        let empty = headers(Operation::WriteOnly, b.qp.number(), a.qp.first_psn(), 0, {
            Extension::Reth(Reth { va: 0, rkey: Rkey(0), len: 0 })
        });
        let mut padded = stranger.packet(empty, &[]);
        set(&mut padded, 1, |flags| flags | 0x30);
        stranger.seal(&mut padded);
        let before = scene.counters();
        stranger.send(&padded);
        let now = scene.settle(before, 1);
        assert_eq!(now.malformed, before.malformed + 1, "padding without payload");
        for (name, change) in changes {
            let before = scene.counters();
            let bytes = [0x5a; 64];
            let headers = write(b.qp.number(), a.qp.first_psn(), &scene.target, &bytes);
            let mut packet = stranger.packet(headers, &bytes);
            change(&mut packet);
            stranger.seal(&mut packet);
            stranger.send(&packet);
            let now = scene.settle(before, 1);
            assert_eq!(now.malformed, before.malformed + 1, "{name}");
            assert_eq!(now.rcvd_pkts, before.rcvd_pkts, "{name}");
        }
        scene.is_sound();
    });
}

fn set(packet: &mut [u8], at: usize, change: fn(u8) -> u8) {
    let byte = packet.get_mut(at).expect("in there");
    *byte = change(*byte);
}

#[test]
fn a_packet_with_any_byte_changed_is_dropped() {
    over_udp("hostile::a_packet_with_any_byte_changed_is_dropped", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        let bytes = [0x5a; 64];
        let headers = write(b.qp.number(), a.qp.first_psn(), &scene.target, &bytes);
        let packet = stranger.packet(headers, &bytes);
        let before = scene.counters();
        let mut sent = 0;
        for at in (0..packet.len()).filter(|at| *at != 4) {
            // Byte 4 is for congestion marks, which routers change: the ICRC leaves it out.
            for bit in [0x01, 0x10, 0x80] {
                let mut changed = packet.clone();
                *changed.get_mut(at).expect("in there") ^= bit;
                stranger.send(&changed);
                sent += 1;
            }
        }
        let now = scene.settle(before, sent);
        let (malformed, corrupt) =
            (now.malformed - before.malformed, now.icrc_errors - before.icrc_errors);
        assert_eq!(malformed + corrupt, sent, "{malformed} malformed, {corrupt} corrupt");
        assert!(corrupt > 200, "{corrupt} of {sent}");
        assert_eq!(now.rcvd_pkts, before.rcvd_pkts);
        scene.is_sound();
    });
}

#[test]
fn packets_for_no_queue_pair_are_counted() {
    over_udp("hostile::packets_for_no_queue_pair_are_counted", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        // One that was never made in our block of numbers, and others far away.
        let own = b.qp.number().get() ^ 0x80;
        for number in [own, 0, 1, 2, 0x00ff_ffff, own ^ 0x0080_0000] {
            let before = scene.counters();
            let headers = write(Qpn::new(number), a.qp.first_psn(), &scene.target, &[1; 8]);
            stranger.send(&stranger.packet(headers, &[1; 8]));
            let now = scene.settle(before, 1);
            // Queue pair 1 is the address's own, and takes management datagrams alone.
            let management = u64::from(number == 1);
            assert_eq!(now.dropped_management, before.dropped_management + management);
            assert_eq!(now.unknown_qp, before.unknown_qp + 1 - management, "{number:#x}");
        }
        scene.is_sound();
    });
}

#[test]
fn packets_from_another_address_are_not_the_peers() {
    over_udp("hostile::packets_from_another_address_are_not_the_peers", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(ANOTHERS);
        let before = scene.counters();
        let dropped = b.qp.counters().dropped_pkts;
        let headers = write(b.qp.number(), a.qp.first_psn(), &scene.target, &[1; 8]);
        for _ in 0..10 {
            stranger.send(&stranger.packet(headers, &[1; 8]));
        }
        let now = scene.settle(before, 10);
        assert_eq!(now.rcvd_pkts, before.rcvd_pkts + 10, "the ICRC is right");
        assert_eq!(b.qp.counters().dropped_pkts, dropped + 10);
        scene.is_sound();
    });
}

/// Goal: answers to what was never asked change nothing.
#[test]
fn forged_answers_are_ignored() {
    over_udp("hostile::forged_answers_are_ignored", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        let before = scene.counters();
        let mut sent = 0;
        for ahead in [0, 1, 1000, 1 << 22, (1 << 23) - 1, 1 << 23, (1 << 24) - 1] {
            let psn = a.qp.first_psn().plus(ahead);
            for code in [0x00, 0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f] {
                let Some(syndrome) = Syndrome::new(code) else {
                    continue;
                };
                let aeth = Aeth { syndrome, msn: Msn::new(7) };
                let number = a.qp.number();
                let ack = headers(Operation::Acknowledge, number, psn, 0, Extension::Aeth(aeth));
                stranger.send(&stranger.packet(ack, &[]));
                let operation = Operation::ReadResponseOnly;
                let data = headers(operation, number, psn, 4, Extension::Aeth(aeth));
                stranger.send(&stranger.packet(data, &[1; 4]));
                sent += 2;
            }
        }
        scene.settle(before, sent);
        assert!(a.is_quiet());
        assert_eq!(b.qp.state(), QpState::Rts);
        scene.is_sound();
    });
}

#[test]
fn the_largest_datagrams_are_dropped_whole() {
    over_udp("hostile::the_largest_datagrams_are_dropped_whole", || {
        let scene = Scene::new();
        let (a, b) = (&scene.pair.a, &scene.pair.b);
        let stranger = Stranger::at(PEERS);
        let before = scene.counters();
        for seed in 1..=20 {
            stranger.send(&pattern(seed, 65_507));
        }
        let now = scene.settle(before, 20);
        let dropped = now.malformed + now.icrc_errors - before.malformed - before.icrc_errors;
        assert_eq!(dropped, 20);
        // A SEND whose packet is longer than the path MTU, with an ICRC that fits: the peer, if it
        // was one, is refused; memory is safe.
        let long = vec![1; 60_000];
        let headers =
            headers(Operation::SendOnly, b.qp.number(), a.qp.first_psn(), 60_000, Extension::None);
        b.qp.post(Work::recv(b.buffer(&[7; 8]))).expect("room");
        stranger.send(&stranger.packet(headers, &long));
        assert_eq!(b.status(), WcStatus::WorkRequestFlushed);
        assert_eq!(b.qp.state(), QpState::Err);
    });
}

#[test]
fn bursts_of_garbage_are_dropped_piece_by_piece() {
    over_udp("hostile::bursts_of_garbage_are_dropped_piece_by_piece", || {
        let scene = Scene::new();
        let bind = BindOptions::new(SocketAddr::new(ANOTHERS.into(), 0));
        let socket = Socket::bind(&bind).expect("a socket");
        for (segment, count) in [(1_u16, 64_u16), (15, 60), (16, 64), (100, 64), (1000, 60)] {
            let before = scene.counters();
            let bytes = pattern(u64::from(segment), usize::from(segment) * usize::from(count));
            socket.send(&bytes, &Destination::new(VICTIM), Some(segment)).expect("sent");
            let now = scene.settle(before, u64::from(count));
            let dropped = now.malformed + now.icrc_errors - before.malformed - before.icrc_errors;
            assert_eq!(dropped, u64::from(count), "{count} of {segment} bytes");
        }
        scene.is_sound();
    });
}

/// Goal: a flood of anything leaves a good connection's data whole.
/// Method: noise, and good packets with some bytes changed, as fast as one thread can, from the
/// peer's own address and from another, while the connection writes and reads back.
#[test]
fn a_flood_of_garbage_does_not_spoil_a_good_connection() {
    over_udp("hostile::a_flood_of_garbage_does_not_spoil_a_good_connection", || {
        const FLOOD: u64 = 100_000;
        // The flood takes the sockets' room, and others the processors: that may last.
        let scene = Scene::of(&Setup::patient());
        let Pair { a, b, .. } = &scene.pair;
        let (number, psn) = (b.qp.number(), a.qp.first_psn());
        let target = b.region(&vec![0; 1 << 20]);
        let before = scene.counters();
        let template = write(number, psn, &scene.target, &[1; 256]);
        std::thread::scope(|scope| {
            let flood = scope.spawn(move || {
                let strangers = [Stranger::at(PEERS), Stranger::at(ANOTHERS)];
                let good: Vec<_> =
                    strangers.iter().map(|s| s.packet(template, &[1; 256])).collect();
                let noise = pattern(1, 1 << 16);
                for n in 0..FLOOD {
                    let at = usize::try_from(n.wrapping_mul(7919) % 60_000).expect("small");
                    let len = usize::try_from(n % 400).expect("small");
                    let random = noise.get(at..at + len).expect("in there");
                    let (Ok(which), [x, y, ..]) = (usize::try_from(n % 2), random) else {
                        continue;
                    };
                    let (stranger, good) = (strangers.get(which), good.get(which));
                    let (Some(stranger), Some(good)) = (stranger, good) else {
                        continue;
                    };
                    if n % 4 < 2 {
                        stranger.send(random);
                    } else {
                        let mut changed = good.clone();
                        let at = usize::from(*x) % changed.len();
                        // Not the byte that the ICRC leaves out.
                        let at = if at == 4 { 5 } else { at };
                        *changed.get_mut(at).expect("in there") ^= (*y).max(1);
                        stranger.send(&changed);
                    }
                }
            });
            let mut rounds = 0;
            while !flood.is_finished() || rounds < 10 {
                let data = pattern(rounds, 1 << 20);
                a.qp.post(Work::write(a.buffer(&data), remote(&target))).expect("room");
                assert_eq!(a.status(), WcStatus::Success, "round {rounds}");
                assert_same(&bytes_of(&target, 0, 1 << 20), &data, "what was written");
                rounds += 1;
            }
            println!("{rounds} x 1 MiB during the flood");
        });
        let now = scene.counters();
        let dropped = now.malformed + now.icrc_errors - before.malformed - before.icrc_errors;
        println!("{dropped} of {FLOOD} datagrams reached the device and were dropped");
        assert!(dropped > FLOOD / 100, "{dropped}");
        scene.is_sound();
    });
}

/// Ports of the loopback address at which devices can be passed packets.
fn relay_ports() -> Vec<u16> {
    let sockets = std::fs::read_to_string("/proc/net/udp").expect("Linux has it");
    let ports = sockets.lines().filter_map(|line| {
        let local = line.split_whitespace().nth(1)?;
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (address == "0100007F" && port != ROCE_PORT).then_some(port)
    });
    ports.collect()
}

/// Goal: what a stranger has sent to be passed on is taken away, and does not wake for ever threads that
/// sleep until a completion comes.
#[test]
fn strangers_do_not_keep_sleepers_awake() {
    over_udp("hostile::strangers_do_not_keep_sleepers_awake", || {
        const NIGHT: Duration = Duration::from_millis(500);
        for by_descriptor in [false, true] {
            let context = Context::open("soft_lo").expect("the loopback device");
            let channel = context.create_comp_channel().expect("a channel");
            let config = CqConfig::new(16).channel(&channel);
            let cq = context.create_cq_with(&config).expect("a completion queue");
            cq.req_notify(false).expect("it has a channel");
            let sleep = || {
                let end = Instant::now() + NIGHT;
                let left = || end.saturating_duration_since(Instant::now());
                while !left().is_zero() {
                    if by_descriptor {
                        poll::readable(&channel, std::iter::empty(), Some(left())).expect("polled");
                        assert!(channel.try_get_event().is_none());
                    } else {
                        assert!(channel.get_event_timeout(left()).expect("slept").is_none());
                    }
                }
            };
            let cpu = || adverb_sys::process::usage().expect("figures").cpu();
            let (start, before) = (Instant::now(), cpu());
            std::thread::scope(|scope| {
                scope.spawn(sleep);
                std::thread::sleep(NIGHT / 5);
                let stranger = Stranger::at(PEERS);
                for port in relay_ports() {
                    stranger.socket.send_to(b"nonsense", (PEERS, port)).expect("sent");
                }
            });
            let (used, night) = (cpu() - before, start.elapsed());
            println!("{used:?} of {night:?}, by descriptor: {by_descriptor}");
            assert!(used < night / 2, "kept awake: {used:?} of {night:?}");
        }
    });
}

/// Goal: what a stranger on this host sends to the relay port changes nothing and keeps no device awake. (That a
/// forged message is not taken either: the device's own tests, which know its form.)
#[test]
fn what_strangers_send_to_relay_ports_is_dropped() {
    over_udp("hostile::what_strangers_send_to_relay_ports_is_dropped", || {
        let scene = Scene::new();
        let mut agent = Agent::start("soft_lo", 1);
        let ports = relay_ports();
        assert!(ports.len() >= 2, "both processes can be passed packets");
        let stranger = Stranger::at(PEERS);
        for port in &ports {
            for bytes in [&b""[..], b"x", &[0; 2000]] {
                stranger.socket.send_to(bytes, (PEERS, *port)).expect("sent");
            }
        }
        let (start, cpu) = (Instant::now(), agent.cpu());
        std::thread::sleep(Duration::from_secs(1));
        let (used, night) = (agent.cpu().saturating_sub(cpu), start.elapsed());
        println!("{used:?} of {night:?}, ports {ports:?}");
        assert!(used < night / 2, "kept awake: {used:?} of {night:?}");
        for _ in 0..1000 {
            scene.pair.context.drive();
        }
        scene.is_sound();
        if is_alone() {
            assert_eq!(scene.counters().relayed, 0);
        }
    });
}
