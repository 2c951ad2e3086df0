//! Unreliable datagrams: addresses, network headers, Q_Keys, lengths.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use crate::alone::{is_alone, over_udp};
use crate::pair::{FOREVER, eventually, pattern, wait};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Ah, AhAttr, AhError, Buf, Completion, Context, ContextConfig, Cq, GRH_LEN, Gid, GlobalRoute,
    Memory, Modify, PathChoice, Pd, PostError, Qkey, Qp, QpConfig, QpState, Qpn, SrqConfig, Ud,
    WcOpcode, WcStatus, Work,
};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

on_every_path! {
    a_batch_that_goes_several_ways_arrives_by_each_in_its_order,
    a_datagram_can_be_answered_to_where_it_came_from,
    a_wrong_key_is_counted_and_dropped_and_a_controlled_one_is_the_senders_own,
    a_receiver_that_does_not_look_holds_up_no_sender,
    datagrams_are_received_from_a_shared_queue_and_streams_of_them_arrive_in_order,
    datagrams_of_all_lengths_arrive_whole_over_both_families,
    one_queue_pair_speaks_to_many,
    packets_are_made_where_there_is_no_other_way,
    the_network_header_names_the_sender,
    what_has_no_receive_or_does_not_fit_is_lost_and_the_next_arrives,
}

pub(crate) const QKEY: Qkey = Qkey(0x1234_5678);

/// A datagram queue pair with what it needs.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp<Ud>,
}

impl Side {
    pub(crate) fn new(qkey: Qkey) -> Self {
        Self::on("soft_lo", qkey)
    }

    pub(crate) fn on(device: &str, qkey: Qkey) -> Self {
        Self::of(Context::open(device).expect("the device"), qkey)
    }

    /// Two that reach one another by this path.
    fn pair(path: Path) -> [Self; 2] {
        path.contexts().map(|context| Self::of(context, QKEY))
    }

    pub(crate) fn of(context: Context, qkey: Qkey) -> Self {
        Self::made(context, qkey, false)
    }

    /// Its own messages to groups do not come back to it, or do.
    pub(crate) fn deaf(deaf: bool) -> Self {
        Self::made(Context::open("soft_lo").expect("the device"), QKEY, deaf)
    }

    fn made(context: Context, qkey: Qkey, block_self_multicast: bool) -> Self {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(256).expect("a queue"));
        let config = QpConfig::new(&cq).block_self_multicast(block_self_multicast);
        let qp = pd.create_qp_of::<Ud>(&config).expect("a queue pair");
        qp.activate(qkey).expect("ready");
        Self { context, pd, cq, qp }
    }

    /// The way to another of the same address.
    pub(crate) fn ah(&self, gid_index: u8) -> Ah {
        self.to(self, gid_index)
    }

    /// The way to another.
    pub(crate) fn to(&self, other: &Self, gid_index: u8) -> Ah {
        let gid = other.gid(gid_index);
        self.pd.create_ah(&AhAttr::new(gid).gid_index(gid_index)).expect("a way")
    }

    pub(crate) fn gid(&self, index: u8) -> Gid {
        self.qp.address_at(index).expect("an address").gid
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buffer = self.pd.buffer(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Posts a receive for a message of this length.
    pub(crate) fn recv(&self, len: usize) {
        let room = self.pd.buffer(GRH_LEN + len).expect("memory");
        self.qp.post(Work::recv(room).wr_id(1)).expect("room");
    }

    pub(crate) fn send(&self, bytes: &[u8], ah: &Ah, to: Qpn, qkey: Qkey) {
        self.qp.post(Work::send_to(self.buffer(bytes), ah, to, qkey).wr_id(2)).expect("room");
        let sent = wait(&self.cq).ok().expect("sent");
        assert_eq!((sent.wc.wr_id, sent.wc.opcode), (2, WcOpcode::Send));
    }

    pub(crate) fn received(&self) -> (Completion, GlobalRoute, Vec<u8>) {
        let done = wait(&self.cq);
        assert_eq!((done.wc.status, done.wc.wr_id), (WcStatus::Success, 1));
        let len = usize::try_from(done.wc.byte_len).expect("small");
        let memory = done.memory.expect("the buffer comes back");
        let buffer = memory.into_buf().expect("a buffer");
        let grh = buffer[..GRH_LEN].try_into().expect("40 bytes");
        let message = buffer[GRH_LEN..len].to_vec();
        (Completion { wc: done.wc, memory: None }, grh, message)
    }

    /// Nothing arrives, though the device is driven for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        (0..1000).all(|_| self.cq.next().expect("no overrun").is_none())
    }
}

/// Goal: a device that closes takes no datagram along that was meant for another one of its address. Method: the kernel
/// moves the last socket of an address into the place of one that goes, and datagrams to that come one after the other.
#[test]
fn a_device_that_leaves_the_address_takes_no_datagram_along() {
    over_udp("datagram::a_device_that_leaves_the_address_takes_no_datagram_along", || {
        let config = ContextConfig::default().path(PathChoice::Udp).exclusive(true);
        let open = || Side::of(Context::open_with("soft_lo", &config).expect("a device"), QKEY);
        let a = open();
        for _ in 0..60 {
            let (leaver, b) = (open(), open());
            let ah = a.ah(1);
            let ended = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    drop(leaver);
                    ended.store(true, Ordering::Release);
                });
                let mut more = 10;
                while more > 0 {
                    more -= u32::from(ended.load(Ordering::Acquire));
                    b.recv(8);
                    a.send(&[1; 8], &ah, b.qp.number(), QKEY);
                    b.received();
                }
            });
        }
    });
}

fn datagrams_of_all_lengths_arrive_whole_over_both_families(path: Path) {
    let [a, b] = Side::pair(path);
    let mtu = usize::try_from(a.context.query_port().active_mtu.bytes()).expect("small");
    for gid_index in [0, 1] {
        let ah = a.to(&b, gid_index);
        for (seed, len) in (1..).zip([0, 1, 2, 3, 4, 1000, mtu - 1, mtu]) {
            let data = pattern(seed, len);
            b.recv(len);
            a.send(&data, &ah, b.qp.number(), QKEY);
            let (done, _, message) = b.received();
            assert!(message == data, "{len} bytes");
            assert!(done.wc.grh);
            assert_eq!((done.wc.opcode, done.wc.pkey_index), (WcOpcode::Receive, 0));
            assert_eq!((done.wc.src_qp, done.wc.qp), (a.qp.number(), b.qp.number()));
        }
        let work = Work::send_to(a.buffer(&vec![0; mtu + 1]), &ah, b.qp.number(), QKEY);
        let rejected = a.qp.post(work).expect_err("too long");
        let (len, mtu) =
            (u32::try_from(mtu + 1).expect("small"), u32::try_from(mtu).expect("small"));
        assert_eq!(rejected.error, PostError::DatagramTooLong { len, mtu });
        assert!(rejected.to_string().contains(&format!("the port's MTU allows {mtu}")));
    }
}

/// Goal: datagrams that the socket has no room for wait for it: nothing sends them again. Method: a line that takes longer
/// for one than a connection, which sends again, would wait.
#[test]
fn datagrams_that_find_the_socket_full_wait_for_room() {
    over_udp("datagram::datagrams_that_find_the_socket_full_wait_for_room", || {
        let line = "qdisc add dev lo root tbf rate 20mbit burst 64kb limit 256mb";
        let shaped = Command::new("tc").args(line.split(' ')).output();
        if !is_alone() || !shaped.as_ref().is_ok_and(|shaped| shaped.status.success()) {
            println!("skipped: no slow line: {shaped:?}");
            return;
        }
        let [a, b] = [(); 2].map(|()| Side::new(QKEY));
        let (ah, bytes) = (a.ah(0), [7; 4096]);
        let (mut sent, mut waited) = (0, 0);
        while waited < WAITS && sent < SENT_MAX {
            let before = Instant::now();
            a.send(&bytes, &ah, b.qp.number(), QKEY);
            sent += 1;
            waited += u32::from(before.elapsed() > Duration::from_millis(1));
        }
        println!("{sent} sent, {waited} waited");
        assert_eq!((waited, a.context.counters().send_dropped), (WAITS, 0));
    });
}

/// Datagrams that have to wait.
const WAITS: u32 = 40;
/// Many more than a socket holds.
const SENT_MAX: u32 = 100_000;

/// Has a queue of ten packets before a slow line; says why not, if it cannot be had.
pub(crate) fn slow_line() -> bool {
    let made = is_alone()
        && [
            "qdisc add dev lo root handle 1: htb default 1",
            "class add dev lo parent 1: classid 1:1 htb rate 20mbit",
            "qdisc add dev lo parent 1:1 pfifo limit 10",
        ]
        .into_iter()
        .all(|line| {
            let shaped = Command::new("tc").args(line.split(' ')).output();
            shaped.is_ok_and(|shaped| shaped.status.success())
        });
    if !made {
        println!("skipped: no slow line");
    }
    made
}

/// Goal: datagrams that the socket has room for and the interface's queue has not wait as well, and none is lost. Method: a
/// queue of ten packets before a slow line.
#[test]
fn datagrams_that_find_the_interfaces_queue_full_wait_for_room() {
    over_udp("datagram::datagrams_that_find_the_interfaces_queue_full_wait_for_room", || {
        if !slow_line() {
            return;
        }
        let [a, b] = [(); 2].map(|()| Side::new(QKEY));
        for gid_index in [0, 1] {
            let (ah, bytes) = (a.ah(gid_index), [7; 4096]);
            (0..60).for_each(|_| b.recv(4096));
            (0..60).for_each(|_| a.send(&bytes, &ah, b.qp.number(), QKEY));
            (0..60).for_each(|_| assert!(b.received().2 == bytes));
        }
        assert_eq!(a.context.counters().send_dropped, 0);
    });
}

/// Goal: between neighbours no packet is made, and elsewhere nothing else.
fn packets_are_made_where_there_is_no_other_way(path: Path) {
    let [a, b] = Side::pair(path);
    for gid_index in [0, 1] {
        b.recv(5);
        a.send(b"hello", &a.to(&b, gid_index), b.qp.number(), QKEY);
        assert_eq!(b.received().2, b"hello");
        assert_eq!(b.qp.counters().rcvd_pkts, u64::from(gid_index) + 1);
    }
    let packets = if path.has_packets() { 2 } else { 0 };
    assert_eq!(b.context.counters().rcvd_pkts, packets);
}

/// Goal: a receiver that does not take what it is sent is not waited for: what does not fit is lost.
/// Method: far more than a ring or a socket's buffer holds, to a device that is not driven, as far as can
/// be told: its helper may take some of it, and drops that for want of a receive.
fn a_receiver_that_does_not_look_holds_up_no_sender(path: Path) {
    let [a, b] = Side::pair(path);
    let most = usize::try_from(path.path_mtu_max().bytes()).expect("small");
    let (ah, data) = (a.to(&b, 1), pattern(1, most));
    for _ in 0..2000 {
        a.send(&data, &ah, b.qp.number(), QKEY);
    }
    b.recv(2);
    eventually("the last one arrives", || {
        a.send(b"ok", &ah, b.qp.number(), QKEY);
        b.cq.next().expect("no overrun").is_some_and(|done| done.wc.byte_len == 42)
    });
}

/// The header that a receiver sees is that of the packet: the one of IPv4 in the last 20 bytes.
fn the_network_header_names_the_sender(path: Path) {
    let [a, b] = Side::pair(path);
    b.recv(6);
    a.send(b"header", &a.to(&b, 1), b.qp.number(), QKEY);
    let (done, grh, _) = b.received();
    assert_eq!(done.wc.byte_len, 46);
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20], 0x45);
    // IP, UDP, BTH, DETH, 6 bytes, 2 of padding, ICRC.
    assert_eq!(u16::from_be_bytes([grh[22], grh[23]]), 20 + 8 + 12 + 8 + 8 + 4);
    assert_eq!(grh[29], 17, "UDP");
    assert_eq!((&grh[32..36], &grh[36..]), (&a.gid(1).0[12..], &b.gid(1).0[12..]));
    let sum: u32 =
        grh[20..].as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's check sum");

    b.recv(6);
    a.send(b"header", &a.to(&b, 0), b.qp.number(), QKEY);
    let (_, grh, _) = b.received();
    assert_eq!(grh[0] >> 4, 6);
    assert_eq!((&grh[8..24], &grh[24..]), (&a.gid(0).0[..], &b.gid(0).0[..]));
}

fn a_datagram_can_be_answered_to_where_it_came_from(path: Path) {
    let [a, b] = Side::pair(path);
    for gid_index in [0, 1] {
        b.recv(8);
        a.send(b"question", &a.to(&b, gid_index), b.qp.number(), QKEY);
        let (done, grh, _) = b.received();
        let attr = b.pd.ah_attr_from(&done.wc, &grh).expect("an address");
        let gid = a.gid(gid_index);
        assert_eq!((attr.gid, attr.gid_index), (gid, Some(gid_index)));
        let back = b.pd.create_ah_from(&done.wc, &grh).expect("a way");
        a.recv(6);
        b.send(b"answer", &back, done.wc.src_qp, QKEY);
        assert_eq!(a.received().2, b"answer");

        let mut connected = done.wc;
        connected.grh = false;
        let refused = b.pd.ah_attr_from(&connected, &grh).expect_err("no header");
        assert!(matches!(refused, AhError::NoHeader));
        assert!(matches!(b.pd.ah_attr_from(&done.wc, &[0; 40]), Err(AhError::NoHeader)));
        let mut elsewhere = grh;
        elsewhere[39] ^= 0x40;
        let refused = b.pd.ah_attr_from(&done.wc, &elsewhere).expect_err("not ours");
        assert!(matches!(refused, AhError::NotOurs { .. }));
    }
    let v6 = Gid(std::net::Ipv6Addr::LOCALHOST.octets());
    let refused = a.pd.create_ah(&AhAttr::new(v6).gid_index(1)).expect_err("from an IPv4 address");
    assert!(refused.to_string().contains("not both IPv4 or both IPv6"), "{refused}");
    let refused = a.pd.create_ah(&AhAttr::new(v6).gid_index(77));
    assert!(refused.expect_err("no such place").to_string().contains("no GID with index 77"));
    let usual = a.pd.create_ah(&AhAttr::new(v6)).expect("from the IPv6 address");
    assert_eq!(usual.attr().gid_index, Some(0));
}

fn a_wrong_key_is_counted_and_dropped_and_a_controlled_one_is_the_senders_own(path: Path) {
    let [a, b] = Side::pair(path);
    let (ah, to) = (a.to(&b, 1), b.qp.number());
    b.recv(8);
    a.send(b"wrong", &ah, to, Qkey(QKEY.0 ^ 1));
    // The thread that has taken it may have lost its processor since.
    eventually("a violation", || {
        assert!(b.cq.next().expect("no overrun").is_none());
        b.qp.counters().qkey_viol > 0
    });
    assert_eq!((b.qp.counters().qkey_viol, b.qp.counters().dropped_pkts), (1, 1));
    // With the highest bit set the sender's own key is shown: that of the receiver here.
    a.send(b"own", &ah, to, Qkey(0x8000_0000));
    assert_eq!(b.received().2, b"own");
    // And where it is another, it is refused.
    let c = Side::of(a.context.clone(), Qkey(7));
    b.recv(8);
    c.send(b"other", &c.to(&b, 1), to, Qkey(QKEY.0 | 0x8000_0000));
    assert!(b.is_quiet());
    assert_eq!(b.qp.counters().qkey_viol, 2);
}

fn what_has_no_receive_or_does_not_fit_is_lost_and_the_next_arrives(path: Path) {
    let [a, b] = Side::pair(path);
    let (ah, to) = (a.to(&b, 1), b.qp.number());
    a.send(b"not waited for", &ah, to, QKEY);
    assert!(b.is_quiet());
    b.recv(4);
    a.send(b"5byte", &ah, to, QKEY);
    assert!(b.is_quiet());
    a.send(b"4byt", &ah, to, QKEY);
    assert_eq!(b.received().2, b"4byt");
    assert_eq!(b.qp.counters().dropped_pkts, 2);
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// Goal: requests of one batch go to different places over different families, in their order.
fn one_queue_pair_speaks_to_many(path: Path) {
    let [a, last] = Side::pair(path);
    let others: Vec<_> = (0..5).map(|_| Side::of(last.context.clone(), QKEY)).collect();
    let ways = [a.to(&last, 0), a.to(&last, 1)];
    let rounds = 20_u8;
    for round in 0..rounds {
        for (n, other) in (0_u8..).zip(&others) {
            other.recv(2);
            let way = &ways[usize::from((round + n) % 3 / 2)];
            let work = Work::send_to(a.buffer(&[round, n]), way, other.qp.number(), QKEY);
            a.qp.post(work.unsignaled()).expect("room");
        }
        last.recv(0);
        let signaled = Work::send_to(a.buffer(&[]), &ways[0], last.qp.number(), QKEY);
        a.qp.post(signaled).expect("room");
        wait(&a.cq).ok().expect("sent");
        for (n, other) in (0_u8..).zip(&others) {
            assert_eq!(other.received().2, [round, n]);
        }
        assert_eq!(last.received().2, []);
    }
    assert_eq!(a.qp.counters().sent_pkts, u64::from(rounds) * 6);
}

fn datagrams_are_received_from_a_shared_queue_and_streams_of_them_arrive_in_order(path: Path) {
    let [a, other] = Side::pair(path);
    let context = &other.context;
    let (pd, cq) = (context.alloc_pd(), context.create_cq(256).expect("a queue"));
    let srq = pd.create_srq(&SrqConfig::new(64)).expect("a queue");
    let config = QpConfig::new(&cq).srq(&srq);
    let b = pd.create_qp_of::<Ud>(&config).expect("a queue pair");
    b.activate(QKEY).expect("ready");
    let ah = a.to(&other, 1);
    let end = Instant::now() + FOREVER;
    for round in 0..50_u8 {
        for _ in 0..64 {
            srq.post(Work::recv(pd.buffer(GRH_LEN + 100).expect("memory"))).expect("room");
        }
        for n in 0..64 {
            let work = Work::send_to(a.buffer(&[round, n]), &ah, b.number(), QKEY);
            a.qp.post(work).expect("room");
        }
        for n in 0..64 {
            wait(&a.cq).ok().expect("sent");
            let done = wait(&cq).ok().expect("received");
            assert_eq!(done.wc.srq, Some(srq.number()));
            let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
            assert_eq!(buffer[GRH_LEN..GRH_LEN + 2], [round, n]);
        }
        assert!(Instant::now() < end);
    }
}

/// Goal: a burst goes one way, and each way keeps its order.
/// Method: what waits in SQD leaves at once; the network header says which way each one came.
fn a_batch_that_goes_several_ways_arrives_by_each_in_its_order(path: Path) {
    let [a, b] = Side::pair(path);
    let ways = [a.to(&b, 0), a.to(&b, 1)];
    let by = |n: u8| usize::from(n / 3 % 2);
    a.qp.modify(&Modify::to(QpState::Sqd)).expect("SQD");
    for n in 0..100 {
        b.recv(1);
        let way = &ways[by(n)];
        a.qp.post(Work::send_to(a.buffer(&[n]), way, b.qp.number(), QKEY)).expect("room");
    }
    a.qp.modify(&Modify::to(QpState::Rts)).expect("RTS");
    // Each way has an order; between the two there is none.
    let mut arrived = [vec![], vec![]];
    for _ in 0..100 {
        wait(&a.cq).ok().expect("sent");
        let (_, grh, message) = b.received();
        arrived[usize::from(grh[0] >> 4 != 6)].extend(message);
    }
    for (way, arrived) in arrived.into_iter().enumerate() {
        let posted: Vec<_> = (0..100).filter(|n| by(*n) == way).collect();
        assert_eq!(arrived, posted);
    }
}
