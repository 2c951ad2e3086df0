//! Tests of the socket over loopback, on ports that the kernel chooses.
//!
//! # Safety
//!
//! Raw bytes come from a mapping that is this test's own and outlives what points into it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::steering::{Connections, ROUTES_MAX, Route, program};
use super::*;
use crate::epoll::{Epoll, Events, Interest};

const TIMEOUT: Duration = Duration::from_secs(20);

fn v4() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn v6() -> SocketAddr {
    (Ipv6Addr::LOCALHOST, 0).into()
}

fn bind(addr: SocketAddr) -> Socket {
    Socket::bind(&BindOptions::new(addr)).unwrap()
}

fn shared(addr: SocketAddr) -> Socket {
    Socket::bind(&BindOptions { reuse_port: true, ..BindOptions::new(addr) }).unwrap()
}

fn dest(socket: &Socket) -> Destination {
    Destination::new(socket.local_addr())
}

/// Sends `bytes` as one batch.
fn send(from: &Socket, to: &Socket, bytes: &[u8], segment: Option<u16>) -> io::Result<usize> {
    from.send(bytes, &dest(to), segment)
}

/// Waits for the next datagram; loopback delivers, so that only a bug makes this give up.
fn recv(socket: &Socket, buffer: &mut [u8]) -> Received {
    let epoll = Epoll::new().unwrap();
    epoll.add(socket, 0, Interest::Readable).unwrap();
    let mut events = Events::with_capacity(1);
    while epoll.wait(&mut events, Some(TIMEOUT)).unwrap() > 0 {
        match socket.recv(buffer) {
            Ok(received) => return received,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    panic!("nothing came");
}

/// Bytes of which no two neighbours are alike.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

#[test]
fn a_datagram_arrives_whole_with_its_senders_address() {
    for addr in [v4(), v6()] {
        let (a, b) = (bind(addr), bind(addr));
        assert_eq!(send(&a, &b, b"hello", None).unwrap(), 5);
        let mut buffer = [0; 64];
        let received = recv(&b, &mut buffer);
        let source = a.local_addr();
        assert_eq!(received, Received { len: 5, source, segment: None, truncated: false });
        assert_eq!(&buffer[..5], b"hello");
    }
}

#[test]
fn an_empty_socket_says_so_and_does_not_wait() {
    let socket = bind(v4());
    assert_eq!(socket.recv(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_empty_batch_is_an_empty_datagram() {
    let (a, b) = (bind(v4()), bind(v4()));
    assert_eq!(send(&a, &b, b"", None).unwrap(), 0);
    assert_eq!(recv(&b, &mut [0; 16]).len, 0);
}

#[test]
fn a_buffer_too_small_is_reported() {
    let (a, b) = (bind(v4()), bind(v4()));
    send(&a, &b, &[7; 100], None).unwrap();
    let received = recv(&b, &mut [0; 99]);
    assert!(received.truncated);
    assert_eq!(received.len, 99);
}

/// Goal: a burst is cut where we said, in order, and the last piece may be short.
/// Method: the receiver does without GRO, so that it sees the single datagrams.
#[test]
fn a_burst_is_cut_into_segments() {
    for addr in [v4(), v6()] {
        let a = bind(addr);
        let b = Socket::bind(&BindOptions { gro: false, ..BindOptions::new(addr) }).unwrap();
        assert!(a.gso());
        let bytes = pattern(1000 * 9 + 10);
        assert_eq!(send(&a, &b, &bytes, Some(1000)).unwrap(), bytes.len());
        let mut buffer = [0; 2000];
        for expected in bytes.chunks(1000) {
            let received = recv(&b, &mut buffer);
            assert_eq!(received.segment, None);
            assert_eq!(&buffer[..received.len], expected);
        }
    }
}

#[test]
fn a_burst_arrives_in_one_piece_with_the_size_of_its_segments() {
    for addr in [v4(), v6()] {
        let (a, b) = (bind(addr), bind(addr));
        assert!(b.gro());
        let bytes = pattern(1000 * (SEGMENTS_MAX - 1) + 10);
        send(&a, &b, &bytes, Some(1000)).unwrap();
        let mut buffer = vec![0; BURST_BYTES_MAX];
        let mut got = 0;
        while got < bytes.len() {
            let received = recv(&b, &mut buffer);
            assert!(received.segment == Some(1000) || received.len <= 1000, "{received:?}");
            assert_eq!(buffer[..received.len], bytes[got..got + received.len]);
            got += received.len;
        }
    }
}

#[test]
fn the_largest_burst_is_accepted_and_one_byte_more_is_not() {
    let (a, b) = (bind(v4()), bind(v4()));
    let bytes = pattern(BURST_BYTES_MAX + 1);
    assert_eq!(send(&a, &b, &bytes[1..], Some(1024)).unwrap(), BURST_BYTES_MAX);
    let error = send(&a, &b, &bytes, Some(1024)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn a_datagram_larger_than_the_path_is_refused_and_not_cut_up() {
    let (a, b) = (bind(v6()), bind(v6()));
    let error = send(&a, &b, &[0; 65_528], None).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn a_port_taken_is_an_error_unless_both_share_it() {
    let taken = bind(v4());
    let error = Socket::bind(&BindOptions::new(taken.local_addr())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

    let first = shared(v4());
    let second = shared(first.local_addr());
    assert_eq!(first.local_addr(), second.local_addr());
}

#[test]
fn both_families_may_have_one_port_number() {
    let four = bind((Ipv4Addr::UNSPECIFIED, 0).into());
    let six: SocketAddr = (Ipv6Addr::UNSPECIFIED, four.local_addr().port()).into();
    assert_eq!(bind(six).local_addr(), six);
}

#[test]
fn buffers_are_as_large_as_the_kernel_allows() {
    let small = BindOptions {
        recv_buffer_bytes: 16 << 10,
        send_buffer_bytes: 16 << 10,
        ..BindOptions::new(v4())
    };
    let small = Socket::bind(&small).unwrap();
    let large = bind(v4());
    let bytes = small.recv_buffer_bytes().unwrap();
    assert!((16 << 10..128 << 10).contains(&bytes), "{bytes}");
    assert!(large.recv_buffer_bytes().unwrap() > bytes);
    assert!(large.send_buffer_bytes().unwrap() > small.send_buffer_bytes().unwrap());
}

/// Sends `bytes` marked like this, and returns how they were marked when they came, with their length.
fn marked(marks: Marks, addr: SocketAddr, bytes: &[u8], segment: Option<u16>) -> (Marks, usize) {
    let (from, to) = (bind(addr), bind(addr));
    to.show_marks().unwrap();
    assert_eq!(from.send(bytes, &dest(&to).marked(marks), segment).unwrap(), bytes.len());
    to.wait_readable();
    let mut buffer = vec![0; BURST_BYTES_MAX];
    let (received, marks) = to.recv_marked(&mut buffer).unwrap();
    assert_eq!((received.source, received.truncated), (from.local_addr(), false));
    assert_eq!(received.segment, segment.map(usize::from));
    assert_eq!(&buffer[..received.len], bytes);
    (marks, received.len)
}

impl Socket {
    fn wait_readable(&self) {
        let epoll = Epoll::new().unwrap();
        epoll.add(self, 0, Interest::Readable).unwrap();
        assert!(epoll.wait(&mut Events::with_capacity(1), Some(TIMEOUT)).unwrap() > 0);
    }
}

/// Goal: each mark by itself and all of them reach the other end, with single datagrams and bursts.
#[test]
fn datagrams_arrive_as_they_were_marked() {
    let bytes = pattern(1000);
    for (traffic_class, hop_limit, flow_label) in
        [(0xb8, 0, 0), (0, 7, 0), (0, 0, 0xf_edcb), (0xff, 255, 1), (1, 1, Marks::FLOW_LABEL_MAX)]
    {
        let marks = Marks { traffic_class, hop_limit, flow_label };
        for segment in [None, Some(300)] {
            for addr in [v4(), v6()] {
                let (got, len) = marked(marks, addr, &bytes, segment);
                assert_eq!(len, bytes.len());
                let usual = bind(addr).usual_hop_limit().unwrap();
                let hop_limit = if hop_limit == 0 { usual } else { hop_limit };
                assert_eq!((got.traffic_class, got.hop_limit), (traffic_class, hop_limit));
                if addr.is_ipv4() {
                    assert_eq!(got.flow_label, 0);
                } else if flow_label != 0 {
                    assert_eq!(got.flow_label, flow_label); // Else it is the system's choice.
                }
            }
        }
    }
}

#[test]
fn what_is_not_marked_is_as_the_system_does_it() {
    for addr in [v4(), v6()] {
        let (got, _) = marked(Marks::default(), addr, b"plain", None);
        let usual = bind(addr).usual_hop_limit().unwrap();
        assert_eq!((got.traffic_class, got.hop_limit), (0, usual));
    }
}

/// Goal: a socket's usual hop limit can be chosen, and a datagram's own still counts more.
#[test]
fn the_usual_hop_limit_is_that_of_datagrams_that_have_none_of_their_own() {
    for addr in [v4(), v6()] {
        let (from, to) = (bind(addr), bind(addr));
        to.show_marks().unwrap();
        from.set_usual_hop_limit(255).unwrap();
        assert_eq!(from.usual_hop_limit().unwrap(), 255);
        for (own, expected) in [(0, 255), (7, 7), (0, 255)] {
            let marks = Marks { hop_limit: own, ..Marks::default() };
            from.send(b"bytes", &dest(&to).marked(marks), None).unwrap();
            to.wait_readable();
            let (_, got) = to.recv_marked(&mut [0; 64]).unwrap();
            assert_eq!(got.hop_limit, expected);
        }
    }
}

/// A `struct in6_flowlabel_req`.
#[derive(Clone, Copy)]
#[repr(C)]
struct LabelRequest {
    destination: [u8; 16],
    label: [u8; 4],
    action: u8,
    share: u8,
    flags: u16,
    expires: u16,
    linger: u16,
    padding: u32,
}

/// Goal: where a process has reserved a label, Linux refuses all that are not reserved, and packets go
/// without.
/// Method: a network namespace of this thread's own, where that is allowed.
#[test]
fn labels_that_the_system_refuses_are_left_out() {
    let own = std::thread::spawn(|| {
        // SAFETY: it takes an integer, and concerns this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return;
        }
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()));
        let marks = Marks { traffic_class: 0x20, hop_limit: 9, flow_label: 0x1_2345 };
        assert_eq!(marked(marks, v6(), b"before", None).0, marks);

        let holder = bind(v6());
        let request = LabelRequest {
            destination: Ipv6Addr::LOCALHOST.octets(),
            label: 77_u32.to_be_bytes(),
            action: 0, // To get it,
            share: 1,  // for no other user,
            flags: 1,  // though it does not exist yet.
            expires: 60,
            linger: 0,
            padding: 0,
        };
        let level = libc::IPPROTO_IPV6;
        sockopt::set(&holder.fd, level, libc::IPV6_FLOWLABEL_MGR, &request).unwrap();
        let (got, _) = marked(marks, v6(), b"after", None);
        assert_eq!((got.traffic_class, got.hop_limit), (0x20, 9));
        assert_ne!(got.flow_label, marks.flow_label);
    });
    own.join().unwrap();
}

/// Goal: every queue pair's datagrams reach the socket that its block belongs to, bursts whole.
/// Method: three sockets on one port, two routes, 256 source ports' worth of senders.
#[test]
fn datagrams_reach_the_socket_their_queue_pairs_block_belongs_to() {
    let first = shared(v4());
    let group = [shared(first.local_addr()), shared(first.local_addr())];
    let group = [&first, &group[0], &group[1]];
    let routes = [Route { block: 0x0abc, index: 1 }, Route { block: 0xfffff, index: 2 }];
    first
        .attach_reuseport_filter(&program(4, NO_PROBE, &routes, &Connections::NONE, 0).unwrap())
        .unwrap();

    let cases = [(0x00_abc0, 1), (0x00_abcf, 1), (0xff_ffff, 2), (0xff_fff0, 2), (0x00_abd0, 0)];
    let mut buffer = vec![0; BURST_BYTES_MAX];
    for round in 0..8 {
        let sender = bind(v4());
        for (qpn, index) in cases {
            let burst = burst(qpn, round);
            send(&sender, &first, &burst, Some(64)).unwrap();
            let mut got = Vec::new();
            while got.len() < burst.len() {
                let received = recv(group[index], &mut buffer);
                assert_eq!(received.source, sender.local_addr());
                got.extend_from_slice(&buffer[..received.len]);
            }
            assert_eq!(got, burst, "queue pair {qpn:#x}");
            for socket in group {
                assert!(socket.recv(&mut buffer).is_err(), "a stray datagram for {qpn:#x}");
            }
        }
    }
}

/// Goal: messages of connection management reach the socket that has the connection which they name for the receiver;
/// requests, which name none, the one that is to have them. Method: each attribute, with names whose upper bits differ.
#[test]
fn management_datagrams_reach_the_socket_their_connection_belongs_to() {
    let first = shared(v4());
    let group = [shared(first.local_addr()), shared(first.local_addr())];
    let group = [&first, &group[0], &group[1]];
    let routes = [Route { block: 0x1f, index: 1 }, Route { block: 0x3ff, index: 2 }];
    let connections = Connections { prefix_bits: 10, routes: &routes };
    let blocks = [Route { block: 7, index: 2 }, Route { block: 0, index: 2 }];
    const REQUESTS: [u8; 2] = [0x10, 0x17];
    const SIDR_REP: u8 = 0x18;
    let sender = bind(v4());
    let mut buffer = vec![0; BURST_BYTES_MAX];
    for (attribute, others) in (0x10..0x1c_u8).flat_map(|it| [(it, 0), (it, 1)]) {
        let program = program(8, NO_PROBE, &blocks, &connections, others).unwrap();
        first.attach_reuseport_filter(&program).unwrap();
        let others = usize::try_from(others).unwrap();
        let names = [(0x1f << 22, 1), (0x1f << 22 | 77, 1), (u32::MAX, 2), (0x20 << 22, others)];
        for (name, index) in names {
            let mut datagram = burst(1, 0);
            datagram.truncate(64);
            datagram[36..38].copy_from_slice(&[0, attribute]);
            let at = if attribute == SIDR_REP { 44 } else { 48 };
            datagram[at..at + 4].copy_from_slice(&name.to_be_bytes());
            send(&sender, &first, &datagram, None).unwrap();
            let index = if REQUESTS.contains(&attribute) { others } else { index };
            let received = recv(group[index], &mut buffer);
            assert_eq!(buffer[..received.len], datagram, "{attribute:#x}, {name:#x}");
        }
    }
}

/// Goal: a socket that has left its group keeps what it has, and the last one has its place.
#[test]
fn a_socket_that_leaves_its_group_gets_nothing_more() {
    for local in [v4(), v6()] {
        let first = shared(local);
        let group = [shared(first.local_addr()), shared(first.local_addr())];
        let to_the_first = program(4, NO_PROBE, &[], &Connections::NONE, 0).unwrap();
        first.attach_reuseport_filter(&to_the_first).unwrap();
        let sender = bind(local);
        let mut buffer = vec![0; BURST_BYTES_MAX];
        send(&sender, &first, &burst(1, 1), Some(64)).unwrap();
        first.leave_group().unwrap();
        for round in 2..10 {
            let burst = burst(1, round);
            send(&sender, &first, &burst, Some(64)).unwrap();
            let mut got = Vec::new();
            while got.len() < burst.len() {
                let received = recv(&group[1], &mut buffer);
                got.extend_from_slice(&buffer[..received.len]);
            }
            assert_eq!(got, burst);
        }
        let mut left = 0;
        while let Ok(received) = first.recv(&mut buffer) {
            left += received.len;
        }
        assert_eq!(left, burst(1, 1).len());
        assert!(group[0].recv(&mut buffer).is_err());
    }
}

/// Sixteen datagrams of 64 bytes that begin with a transport header for `qpn`. The byte before the
/// number is not zero, as when congestion has been noted.
fn burst(qpn: u32, round: u8) -> Vec<u8> {
    let [_, q0, q1, q2] = qpn.to_be_bytes();
    (0..16)
        .flat_map(|i| {
            let mut datagram = [round; 64];
            datagram[..12].copy_from_slice(&[4, 0, 0xff, 0xff, 0xc0, q0, q1, q2, 0, 0, 0, i]);
            datagram
        })
        .collect()
}

#[test]
fn a_probe_reaches_the_socket_whose_index_it_names() {
    let first = shared(v4());
    let second = shared(first.local_addr());
    let routes = [Route { block: 7, index: 0 }];
    first
        .attach_reuseport_filter(&program(8, 0xfffe, &routes, &Connections::NONE, 0).unwrap())
        .unwrap();
    let sender = bind(v4());
    for (socket, index) in [(&first, 0), (&second, 1), (&second, 1)] {
        send(&sender, &first, &[0, 0, 0, 0, 0x61, 0xff, 0xfe, index], None).unwrap();
        assert_eq!(recv(socket, &mut [0; 16]).len, 8);
    }
}

#[test]
fn a_datagram_too_short_to_tell_goes_to_the_first_socket() {
    let first = shared(v4());
    let second = shared(first.local_addr());
    let routes = [Route { block: 0, index: 1 }];
    first
        .attach_reuseport_filter(&program(0, NO_PROBE, &routes, &Connections::NONE, 0).unwrap())
        .unwrap();
    let sender = bind(v4());
    send(&sender, &first, &[0; 7], None).unwrap();
    assert_eq!(recv(&first, &mut [0; 16]).len, 7);
    send(&sender, &first, &[0; 8], None).unwrap();
    assert_eq!(recv(&second, &mut [0; 16]).len, 8);
}

#[test]
fn the_largest_program_is_accepted_by_the_kernel_and_one_route_more_is_refused() {
    let first = shared(v4());
    let routes = vec![Route { block: 1, index: 0 }; ROUTES_MAX + 1];
    first
        .attach_reuseport_filter(
            &program(4, NO_PROBE, &routes[1..], &Connections::NONE, 0).unwrap(),
        )
        .unwrap();
    assert_eq!(
        program(4, NO_PROBE, &routes, &Connections::NONE, 0).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        program(24, NO_PROBE, &[], &Connections::NONE, 0).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
}

#[test]
fn an_empty_program_or_a_port_not_shared_is_refused() {
    let alone = bind(v4());
    let error = alone
        .attach_reuseport_filter(&program(4, NO_PROBE, &[], &Connections::NONE, 0).unwrap())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    let error = shared(v4()).attach_reuseport_filter(&[]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn without_gro_a_burst_arrives_in_pieces_that_the_cheap_call_can_take() {
    let (sender, receiver) = (bind(v4()), bind(v4()));
    receiver.set_gro(false).unwrap();
    send(&sender, &receiver, &[7; 100], Some(40)).unwrap();
    let mut buffer = [0; 64];
    for len in [40, 40, 20] {
        let received = loop {
            match receiver.recv_single(&mut buffer) {
                Ok(received) => break received,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        assert_eq!((received.len, received.segment, received.truncated), (len, None, false));
        assert_eq!(received.source, sender.local_addr());
    }
    send(&sender, &receiver, &[7; 100], None).unwrap();
    let received = loop {
        if let Ok(received) = receiver.recv_single(&mut buffer) {
            break received;
        }
    };
    assert!(received.truncated);
    assert_eq!(received.len, 64);
}

/// A block that no test uses.
const NO_PROBE: u32 = u32::MAX;
