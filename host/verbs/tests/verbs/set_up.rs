//! Mistakes before there is a connection: each is named, with what was asked and what is allowed.

use crate::alone::over_udp;
use crate::pair::{Pair, Setup, remote};
use crate::path::Path;
use adverb_verbs::{
    Access, AllocateError, ConnectError, Connected, Context, Cq, CreateError, Gid, InDomain,
    Modify, OpenError, PathMtu, Pd, Pkey, PostError, Qp, QpConfig, QpLimits, QpState, RangeError,
    Rc, RcConnect, Supports, Uc, WcStatus, Work, op,
};
use std::net::UdpSocket;

fn context() -> Context {
    Context::open("soft_lo").expect("the loopback device")
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let error = Context::open("soft_nothing0").expect_err("there is none");
    let OpenError::NotFound { name, known } = &error else {
        panic!("{error}");
    };
    assert_eq!(name, "soft_nothing0");
    assert!(known.iter().any(|name| name == "soft_lo"));
    assert!(error.to_string().contains("soft_lo"));
    let error = Context::open("lo").expect_err("an interface").to_string();
    assert!(error.ends_with("; the device of the interface lo is soft_lo"), "{error}");
}

#[test]
fn capacities_out_of_range_are_named_with_their_bounds() {
    let context = context();
    let pd = context.alloc_pd();
    let cq = context.create_cq(16).expect("a completion queue");
    let usual = QpConfig::new(&cq);
    let (wr, sge, inline) = (QpLimits::WR_MAX, QpLimits::SGE_MAX, QpLimits::INLINE_MAX);
    let cases = [
        ("max_send_wr", usual.clone().max_send_wr(0), (1, wr)),
        ("max_send_wr", usual.clone().max_send_wr(wr + 1), (1, wr)),
        ("max_recv_wr", usual.clone().max_recv_wr(wr + 1), (0, wr)),
        ("max_send_sge", usual.clone().max_send_sge(0), (1, sge)),
        ("max_send_sge", usual.clone().max_send_sge(sge + 1), (1, sge)),
        ("max_recv_sge", usual.clone().max_recv_sge(0), (1, sge)),
        ("max_inline", usual.clone().max_inline(inline + 1), (0, inline)),
    ];
    for (name, config, bounds) in cases {
        let error = pd.create_qp(&config).expect_err(name);
        let CreateError::OutOfRange { what, allowed, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((what, allowed), (name, bounds));
    }
    for cqe in [0, context.query_device().max_cqe + 1] {
        let error = context.create_cq(cqe).expect_err("out of range");
        assert!(error.to_string().contains("cqe"), "{error}");
    }
}

/// Goal: a queue pair begins with the window that the one before it had found out, whether that has gone or not.
/// Method: how much of a message leaves with the call that posts it; a window of an unknown path is 16 packets.
#[test]
fn a_newcomer_begins_with_the_window_of_the_path() {
    let setup = Setup { path_mtu: PathMtu::B256, ..Path::Udp.setup() };
    let sent_at_once = |pair: &Pair| {
        let far = pair.b.region(&[0; 64 << 10]);
        let (near, to) = (pair.a.region(&[1; 64 << 10]), remote(&far));
        let mut sent = None;
        for _ in 0..100 {
            pair.a
                .qp
                .post(Work::write(near.slice(0, 64 << 10).expect("in there"), to))
                .expect("room");
            sent.get_or_insert(pair.a.qp.counters().sent_pkts);
            assert_eq!(pair.a.status(), WcStatus::Success);
        }
        sent.expect("some")
    };
    let first = setup.pair();
    sent_at_once(&first);
    let beside = setup.pair();
    let sent = sent_at_once(&beside);
    assert!(sent > UNKNOWN, "{sent} packets beside another");
    drop((first, beside));
    let sent = sent_at_once(&setup.pair());
    assert!(sent > UNKNOWN, "{sent} packets after others");
}

/// Packets under way on a path of which nothing is known.
const UNKNOWN: u64 = 16;

#[test]
fn what_main_prints_of_an_error_is_its_text() {
    let context = context();
    let cq = context.create_cq(1).expect("a queue");
    let more = cq.clone();
    let busy = cq.destroy().expect_err("it has another handle");
    assert_eq!(format!("{busy:?}"), busy.to_string());
    drop(more);
    let moved = Setup::default().side(&context).qp.modify(&Modify::to(QpState::Rts));
    let moved = moved.expect_err("RESET to RTS");
    assert_eq!(format!("{moved:?}"), moved.to_string());
    let meet = adverb_verbs::cm::MeetError::Unreachable { status: -110 };
    assert_eq!(format!("{meet:?}"), meet.to_string());
}

#[test]
fn addresses_that_do_not_fit_are_refused() {
    let context = context();
    let side = Setup::default().side(&context);
    let error = side.qp.address_at(99).expect_err("there is none");
    assert!(matches!(error, ConnectError::NoSuchGid { index: 99 }), "{error}");
    // What `main` prints of it.
    assert_eq!(format!("{error:?}"), error.to_string());

    let local = side.qp.address().expect("127.0.0.1");
    let mut remote = local;
    remote.gid = Gid([0xfd; 16]);
    let error = side.qp.connect(RcConnect::new(remote).gid_index(1)).expect_err("IPv4 and IPv6");
    assert!(matches!(error, ConnectError::OtherFamily { .. }), "{error}");
    assert_eq!(side.qp.state(), QpState::Init, "as far as it came");
}

/// Goal: receives are posted before the peer can send, on every kind of connected queue pair that has some.
#[test]
fn receives_are_posted_before_the_connection() {
    fn takes<T: Connected + InDomain + Supports<op::Receive>>(pd: &Pd, cq: &Cq) -> Qp<T> {
        let qp = pd.create_qp_of::<T>(&QpConfig::new(cq)).expect("a queue pair");
        let early = qp.post(Work::recv(pd.buffer(8).expect("memory"))).expect_err("in RESET");
        assert!(matches!(early.error, PostError::NotReady { .. }), "{early:?}");
        qp.init().expect("INIT");
        qp.init().expect("once more changes nothing");
        qp.post(Work::recv(pd.buffer(8).expect("memory"))).expect("a place");
        qp
    }
    let context = context();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16).expect("a completion queue"));
    let (a, b) = (takes::<Rc>(&pd, &cq), takes::<Rc>(&pd, &cq));
    b.connect(a.address().expect("127.0.0.1")).expect("connected");
    a.connect(b.address().expect("127.0.0.1")).expect("connected");
    a.post(Work::send(pd.buffer(8).expect("memory"))).expect("room");
    for _ in 0..2 {
        cq.wait().expect("a completion").ok().expect("success");
    }
    assert!(matches!(a.init().expect_err("it is connected"), ConnectError::State(_)));
    let (a, b) = (takes::<Uc>(&pd, &cq), takes::<Uc>(&pd, &cq));
    b.connect(a.address().expect("127.0.0.1")).expect("connected");
    a.connect(b.address().expect("127.0.0.1")).expect("connected");
    a.post(Work::send(pd.buffer(8).expect("memory"))).expect("room");
    for _ in 0..2 {
        cq.wait().expect("a completion").ok().expect("success");
    }
}

#[test]
fn a_queue_pair_connects_once() {
    let pair = Setup::default().pair();
    let again = Setup::default().attributes(&pair.b.qp);
    let error = pair.a.qp.connect(again).expect_err("it is connected");
    assert!(matches!(error, ConnectError::State(_)), "{error}");
    assert_eq!(pair.a.qp.state(), QpState::Rts);
}

/// Goal: where the kernel's own RoCE, or any process, has the port, the message says so.
#[test]
fn a_port_that_is_taken_is_named_with_the_cure() {
    over_udp("set_up::a_port_that_is_taken_is_named_with_the_cure", || {
        let Ok(_taken) = UdpSocket::bind(("127.0.0.1", adverb_wire::ROCE_PORT)) else {
            println!("skipped: another process has the port");
            return;
        };
        let context = context();
        let side = Setup::default().side(&context);
        let local = side.qp.address().expect("127.0.0.1");
        let error = side.qp.connect(local).expect_err("it is taken");
        let text = error.to_string();
        assert!(text.contains("4791") && text.contains("rdma_rxe"), "{text}");
    });
}

#[test]
fn the_port_has_one_partition_and_queue_pairs_can_be_in_no_other() {
    let context = context();
    assert_eq!((context.pkey(), context.query_port().pkey_tbl_len), (Pkey::DEFAULT, 1));
    let (pd, cq) = (context.alloc_pd(), context.create_cq(1).expect("a queue"));
    let qp = pd.create_qp(&QpConfig::new(&cq)).expect("a queue pair");
    let init = Modify::to(QpState::Init).pkey_index(1).port(1).access(Access::NONE);
    let refused = qp.modify(&init).expect_err("there is no second");
    assert!(refused.to_string().contains("pkey_index = 1"), "{refused}");
    assert_eq!(qp.state(), QpState::Reset);
    qp.modify(&init.pkey_index(0)).expect("the first");
}

#[test]
fn accesses_outside_a_region_are_refused_and_change_nothing() {
    let pd = context().alloc_pd();
    let mr = pd.allocate(100, Access::LOCAL_WRITE).expect("memory");
    let outside = |offset, len| Err(RangeError::OutOfBounds { offset, len, memory: 100 });
    assert_eq!(mr.write(99, &[1, 2]), outside(99, 2));
    assert_eq!(mr.read(usize::MAX, &mut [0; 2]), outside(usize::MAX, 2));
    assert_eq!(mr.fill(100, 1, 9), outside(100, 1));
    assert_eq!(mr.store_u64(96, 1), outside(96, 8));
    assert_eq!(mr.store_u64(4, 1), Err(RangeError::Misaligned { offset: 4 }));
    assert_eq!(mr.load_u8(100).map(|_| ()), outside(100, 1));
    assert_eq!(mr.slice(1, 100).map(|_| ()), outside(1, 100));
    assert_eq!(mr.sge(101, 0).map(|_| ()), outside(101, 0));
    assert_eq!(crate::pair::bytes_of(&mr, 0, 100), [0; 100]);

    let read_only = pd.allocate(100, Access::REMOTE_READ).expect("memory");
    assert_eq!(read_only.write(0, &[1]), Err(RangeError::ReadOnly));
    assert_eq!(read_only.store_u64(0, 1), Err(RangeError::ReadOnly));
    let mut buffer = pd.buffer(10).expect("memory");
    assert!(buffer.resize(11).is_err());
    assert_eq!(buffer.len(), 10);
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let pd = context().alloc_pd();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let error = pd.allocate(8, access).expect_err("needs local writing too");
        assert!(error.to_string().contains("local write"), "{error}");
    }
    for len in [usize::MAX, 1 << 50] {
        let error = pd.allocate(len, Access::NONE).expect_err("no machine has that much");
        assert!(matches!(error, AllocateError::Memory { .. }), "{error}");
    }
    assert!(pd.register_vec(Vec::new(), Access::NONE).is_err(), "it is empty");
}
