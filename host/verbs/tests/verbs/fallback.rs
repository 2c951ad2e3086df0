//! Fallbacks for networks and peers that do things differently: refuse bursts, or leave the UDP checksum out.
//!
//! Where bursts are refused, packets leave one by one, and their ICRCs fit again.
//!
//! The peer is a plain socket that looks at what arrives: our own receiver would forgive a wrong
//! IP identification, because it never sees one.
//!
//! # Safety
//!
//! One function sets an integer option of a socket of this process; the kernel reads a local.

use crate::alone::over_udp;
use crate::pair::{FOREVER, Setup, Side, eventually, pattern};
use adverb_verbs::{Context, Gid, PathMtu, Psn, QpState, Qpn, RcConnect, RemoteQp, Work};
use adverb_wire::{
    Bth, Extension, Flow, Headers, Opcode, Operation, Packet, Pad, Pkey, ROCE_PORT, Reth, Rkey,
    Transport,
};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const THERE: Ipv4Addr = Ipv4Addr::new(127, 4, 7, 91);

/// A queue pair whose peer is this socket.
fn observed(setup: Setup) -> (Context, Side, UdpSocket) {
    let context = Context::open("soft_lo").expect("the loopback device");
    let side = setup.side(&context);
    let peer = UdpSocket::bind((THERE, ROCE_PORT)).expect("no other socket is there");
    peer.set_read_timeout(Some(FOREVER)).expect("a limit");
    let gid = Gid::from_v4(THERE.octets());
    let remote = RemoteQp { gid, qpn: Qpn::new(77), psn: Psn::new(0) };
    let setup = Setup { timeout: 0, ..setup }; // Never twice.
    side.qp.connect(setup.to(RcConnect::new(remote))).expect("connected");
    (context, side, peer)
}

fn post(side: &Side, data: &[u8]) {
    // Not a WRITE: its first packet has one header more than the rest, and ends a burst.
    side.qp.post(Work::send(side.buffer(data))).expect("room");
}

/// Takes the packets of one SEND; returns the identification that each was made for.
fn arrivals(peer: &UdpSocket, data: &[u8]) -> Vec<u16> {
    let flow = Flow::v4(HERE.octets(), THERE.octets(), ROCE_PORT, ROCE_PORT);
    let (mut ids, mut bytes) = (Vec::new(), Vec::new());
    while bytes.len() < data.len() {
        let mut buffer = vec![0; 65_536];
        let (len, from) = peer.recv_from(&mut buffer).expect("a packet");
        assert_eq!((from.ip(), from.port()), (HERE.into(), ROCE_PORT));
        buffer.truncate(len);
        let id = flow.verify(&buffer, 0).expect("the ICRC fits an identification");
        let packet = Packet::parse(&buffer).expect("a packet");
        ids.push(id);
        bytes.extend_from_slice(packet.payload);
    }
    assert!(bytes == data, "the data are as they were");
    ids
}

/// Switches an option of a socket on, if `fd` is a socket that has it; says whether.
fn switch_on(fd: i32, level: i32, name: i32) -> bool {
    let on: i32 = 1;
    let len = libc::socklen_t::try_from(size_of::<i32>()).expect("small");
    // SAFETY: the kernel reads `len` bytes of a local; what is not a socket is refused.
    unsafe { libc::setsockopt(fd, level, name, (&raw const on).cast(), len) == 0 }
}

/// Makes the RoCE sockets of this process refuse bursts: without checksums the kernel does not cut.
fn refuse_bursts() {
    let entries = std::fs::read_dir("/proc/self/fd").expect("Linux has it");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let fds = names.map(|name| name.to_string_lossy().parse().expect("a number"));
    let refusing = fds.filter(|fd| switch_on(*fd, libc::SOL_SOCKET, libc::SO_NO_CHECK)).count();
    assert!(refusing > 0, "there is a socket");
}

#[test]
fn a_burst_is_numbered_and_a_refused_burst_is_not() {
    over_udp("fallback::a_burst_is_numbered_and_a_refused_burst_is_not", || {
        for path_mtu in [PathMtu::B256, PathMtu::B1024, PathMtu::B4096] {
            let (_context, side, peer) = observed(Setup { path_mtu, ..Setup::default() });
            let mtu = usize::try_from(path_mtu.bytes()).expect("small");
            let data = pattern(1, mtu * 12 - 3);
            post(&side, &data);
            let ids = arrivals(&peer, &data);
            assert_eq!(ids, (0..12).collect::<Vec<_>>(), "the kernel numbers a burst");
        }
        let (context, side, peer) =
            observed(Setup { path_mtu: PathMtu::B1024, ..Setup::default() });
        refuse_bursts();
        let dropped = context.counters().send_dropped;
        // The first burst is refused and cut by hand, those after it are never made.
        for seed in 0..3 {
            let data = pattern(seed, 1024 * 4 + 1);
            post(&side, &data);
            assert_eq!(arrivals(&peer, &data), [0; 5], "SEND {seed}"); // All three fit the first window.
        }
        assert_eq!(context.counters().send_dropped, dropped);
        assert_eq!(side.qp.state(), QpState::Rts);
    });
}

#[test]
fn everything_works_without_bursts() {
    over_udp("fallback::everything_works_without_bursts", || {
        let pair = Setup::default().pair();
        refuse_bursts();
        let data = pattern(3, 3 << 20);
        let target = pair.b.region(&vec![0; data.len()]);
        let far = crate::pair::remote(&target);
        pair.a.qp.post(Work::write(pair.a.buffer(&data), far)).expect("room");
        assert_eq!(pair.a.status(), adverb_verbs::WcStatus::Success);
        assert!(crate::pair::bytes_of(&target, 0, data.len()) == data);
        let room = pair.a.pd.buffer(data.len()).expect("memory");
        pair.a.qp.post(Work::read(room, far)).expect("room");
        let read = pair.a.wait().ok().expect("read").memory;
        let read = read.and_then(adverb_verbs::Memory::into_buf).expect("a buffer");
        assert!(*read == *data);
    });
}

/// Goal: one connection whose path MTU is too large for the route does not cost the others their
/// bursts.
#[test]
fn a_path_mtu_that_does_not_fit_spoils_only_its_own_connection() {
    over_udp("fallback::a_path_mtu_that_does_not_fit_spoils_only_its_own_connection", || {
        if !crate::alone::is_alone() {
            println!("skipped: the loopback interface's MTU is not ours to change");
            return;
        }
        let mut ip = std::process::Command::new("ip");
        assert!(ip.args(["link", "set", "lo", "mtu", "1500"]).status().expect("ip").success());
        let fits = Setup { path_mtu: PathMtu::B1024, ..Setup::default() };
        let (context, side, peer) = observed(fits);
        let large = Setup { timeout: 8, retry_count: 1, ..Setup::default() }.pair();
        let target = large.b.region(&[0; 50_000]);
        let dropped = context.counters().send_dropped;
        let far = crate::pair::remote(&target);
        large.a.qp.post(Work::write(large.a.buffer(&[1; 50_000]), far)).expect("room");
        assert_eq!(large.a.status(), adverb_verbs::WcStatus::RetryExceeded);
        assert!(context.counters().send_dropped > dropped);
        let data = pattern(1, 4096);
        post(&side, &data);
        assert_eq!(arrivals(&peer, &data), [0, 1, 2, 3], "still a burst");
    });
}

/// Goal: the kernel's RoCE sends IPv6 packets without a UDP checksum, which an ordinary socket does
/// not accept; ours does, for the ICRC covers more.
#[test]
fn ipv6_packets_without_a_udp_checksum_are_taken() {
    over_udp("fallback::ipv6_packets_without_a_udp_checksum_are_taken", || {
        let setup = Setup { gid_index: 0, ..Setup::default() };
        let pair = setup.pair();
        let stranger = UdpSocket::bind(("::1", 0)).expect("a socket");
        assert!(switch_on(stranger.as_raw_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX));
        let port = stranger.local_addr().expect("an address").port();
        let here = Ipv6Addr::LOCALHOST.octets();
        let flow = Flow::v6(here, here, port, ROCE_PORT);
        let bth = Bth {
            opcode: Opcode::of(Transport::Rc, Operation::WriteOnly).expect("RC has it"),
            solicited: false,
            migrated: true,
            pad: Pad::for_len(0),
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: pair.b.qp.number(),
            ack_request: false,
            keeps_early: false,
            psn: pair.a.qp.first_psn(),
        };
        let extension = Extension::Reth(Reth { va: 0, rkey: Rkey(0), len: 0 });
        let headers = Headers { bth, deth: None, xrceth: None, extension };
        let mut datagram = Vec::new();
        Packet { headers, payload: &[] }.emit_into(&flow, 0, &mut datagram);
        let before = pair.b.qp.counters().rcvd_pkts;
        stranger.send_to(&datagram, ("::1", ROCE_PORT)).expect("sent");
        eventually("a packet", || {
            pair.context.drive();
            pair.b.qp.counters().rcvd_pkts > before
        });
    });
}
