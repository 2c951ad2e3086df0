//! The provider for hardware, over a double of libibverbs: every operation, object and status that it
//! has, and clear errors for what it has not.
//!
//! `ADVERB_TEST_DEVICE=rxe0` runs the same tests on a device of the system's.
//!
//! # Safety
//!
//! Requests are posted by address for memory that the test holds until they are done.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod fake;

use adverb_verbs::{
    Access, AhAttr, AllocateError, Buf, Connected, Context, Cq, CqConfig, CreateError, EventKind,
    GRH_LEN, InDomain, Memory, Modify, MwKind, Pd, PortState, PostError, Provider, Qkey, Qp,
    QpConfig, QpState, Rc, RemoteSlice, Rkey, SendData, SendKind, SendTo, SendWork, SrqConfig,
    Supports, Timestamps, Uc, Ud, WcOpcode, WcStatus, Work, WorkCompletion, XrcInitiator, devices,
    op,
};
use std::time::{Duration, Instant};

/// Two queue pairs of one transport, connected to each other.
struct Pair<T: InDomain> {
    pd: Pd,
    cq: Cq,
    a: Qp<T>,
    b: Qp<T>,
}

impl<T: InDomain> Pair<T> {
    fn new(context: &Context) -> Self {
        let (pd, cq) = (context.alloc_pd(), context.create_cq(128).unwrap());
        let config = QpConfig::new(&cq).max_send_sge(2).max_recv_sge(2);
        let [a, b] = [(); 2].map(|()| pd.create_qp_of(&config).unwrap());
        Self { pd, cq, a, b }
    }

    fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buffer = self.pd.buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// The next completions, by the requests' numbers.
    fn wait(&self, count: usize) -> Vec<(WorkCompletion, Option<Memory>)> {
        let mut all = wait(&self.cq, count);
        all.sort_by_key(|(wc, _)| wc.wr_id);
        all
    }
}

fn wait(cq: &Cq, count: usize) -> Vec<(WorkCompletion, Option<Memory>)> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        assert!(start.elapsed() < Duration::from_secs(60), "only {all:?}");
        all.extend(cq.next().unwrap().map(|done| (done.wc, done.memory)));
    }
    all
}

fn bytes(memory: Option<Memory>) -> Vec<u8> {
    memory.and_then(Memory::into_buf).unwrap().to_vec()
}

fn rc(context: &Context) -> Pair<Rc> {
    let pair = Pair::<Rc>::new(context);
    let [a, b] = [&pair.a, &pair.b].map(|qp| qp.address().unwrap());
    pair.a.connect(b).unwrap();
    pair.b.connect(a).unwrap();
    pair
}

fn uc(context: &Context) -> Pair<Uc> {
    let pair = Pair::<Uc>::new(context);
    let [a, b] = [&pair.a, &pair.b].map(|qp| qp.address().unwrap());
    pair.a.connect(b).unwrap();
    pair.b.connect(a).unwrap();
    pair
}

#[test]
fn devices_of_both_providers_are_listed_ours_first() {
    let name = fake::name();
    let all = devices().unwrap();
    let at = all.iter().position(|device| device.name == name).unwrap();
    assert!(all[..at].iter().any(|device| device.name == "soft_lo"));
    let ours = |device: &adverb_verbs::Device| device.provider == Provider::Soft;
    assert!(all[..at].iter().any(ours) && !all[at..].iter().any(ours));
    assert!(all[at].gids.iter().any(|gid| gid.index == 1 && gid.gid.v4().is_some()));

    let context = fake::open();
    assert_eq!(context.device().name, name);
    assert_eq!(context.query_port().state, PortState::Active);
    assert!(context.query_device().max_cqe > 0);
    assert_eq!(context.query_gid_table().unwrap(), context.gids());
    let unknown = Context::open("nothing0").unwrap_err().to_string();
    assert!(unknown.contains("soft_lo") && unknown.contains(name), "{unknown}");
}

#[test]
fn messages_arrive_with_their_immediate_and_memory_comes_back() {
    let pair = rc(&fake::open());
    for wr_id in 1..=3 {
        pair.b.post(Work::recv(pair.pd.buffer(16).unwrap()).wr_id(wr_id)).unwrap();
    }
    pair.a.post(Work::send(pair.buffer(b"plain")).wr_id(11)).unwrap();
    pair.a.post(Work::send_with_imm(pair.buffer(b"imm"), 0x0102_0304).wr_id(12)).unwrap();
    let inline = SendWork {
        wr_id: 13,
        to: SendTo::Peer,
        kind: SendKind::Send { imm: None },
        data: SendData::Inline(b"inline"),
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    };
    // SAFETY: inline bytes are copied when posted.
    unsafe { pair.a.post_send(&[inline]) }.unwrap();

    let done = pair.wait(6);
    let ok = |(wc, _): &(WorkCompletion, Option<Memory>)| wc.status == WcStatus::Success;
    assert!(done.iter().all(ok), "{done:?}");
    let mut done = done.into_iter();
    for (text, imm) in [(&b"plain"[..], None), (b"imm", Some(0x0102_0304)), (b"inline", None)] {
        let (wc, memory) = done.next().unwrap();
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Receive, text.len().try_into().unwrap()));
        assert_eq!((wc.imm.map(|imm| imm.0), wc.qp), (imm, pair.b.number()));
        assert_eq!(&bytes(memory)[..text.len()], text);
    }
    let sent: Vec<_> =
        done.map(|(wc, memory)| (wc.opcode, wc.byte_len, memory.is_some())).collect();
    let send = WcOpcode::Send;
    assert_eq!(sent, [(send, 5, true), (send, 3, true), (send, 6, false)]);
}

#[test]
fn one_sided_operations_reach_the_peers_memory() {
    let pair = rc(&fake::open());
    let target = pair.pd.allocate(64, Access::ALL).unwrap();
    let at = |offset| RemoteSlice { addr: target.addr() + offset, rkey: target.rkey() };
    pair.a.post(Work::write(pair.buffer(b"written!"), at(8)).wr_id(1)).unwrap();
    pair.b.post(Work::recv(pair.pd.buffer(8).unwrap()).wr_id(2)).unwrap();
    pair.a.post(Work::write_with_imm(pair.buffer(b"told"), at(16), 7).wr_id(3)).unwrap();
    let done = pair.wait(3);
    let kinds: Vec<_> = done.iter().map(|(wc, _)| (wc.status, wc.opcode)).collect();
    let (ok, write) = (WcStatus::Success, WcOpcode::RdmaWrite);
    assert_eq!(kinds, [(ok, write), (ok, WcOpcode::ReceiveRdmaWithImm), (ok, write)]);
    assert_eq!((done[1].0.imm.unwrap().0, done[1].0.byte_len), (7, 4));
    let mut seen = [0; 12];
    target.read(8, &mut seen).unwrap();
    assert_eq!(&seen, b"written!told");

    pair.a.post(Work::read(pair.pd.buffer(12).unwrap(), at(8)).wr_id(4)).unwrap();
    let mut done = pair.wait(1);
    assert_eq!((done[0].0.opcode, done[0].0.byte_len), (WcOpcode::RdmaRead, 12));
    assert_eq!(bytes(done.remove(0).1), b"written!told");

    target.store_u64(0, 40).unwrap();
    pair.a.post(Work::fetch_add(pair.pd.buffer(8).unwrap(), at(0), 2).wr_id(5)).unwrap();
    pair.a.post(Work::compare_swap(pair.pd.buffer(8).unwrap(), at(0), 42, 9).wr_id(6)).unwrap();
    let done = pair.wait(2);
    let found: Vec<_> = done.into_iter().map(|(wc, m)| (wc.opcode, bytes(m))).collect();
    let word = |n: u64| n.to_ne_bytes().to_vec();
    assert_eq!(found, [(WcOpcode::FetchAdd, word(40)), (WcOpcode::CompareSwap, word(42))]);
    assert_eq!(target.load_u64(0).unwrap(), 9);
}

#[test]
fn unreliable_connections_send_and_write() {
    let pair = uc(&fake::open());
    let target = pair.pd.allocate(64, Access::ALL).unwrap();
    let at = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    pair.b.post(Work::recv(pair.pd.buffer(8).unwrap()).wr_id(1)).unwrap();
    pair.a.post(Work::write(pair.buffer(b"uc"), at).wr_id(2)).unwrap();
    pair.a.post(Work::send(pair.buffer(b"sent")).wr_id(3)).unwrap();
    let mut done = pair.wait(3);
    assert!(done.iter().all(|(wc, _)| wc.status == WcStatus::Success), "{done:?}");
    assert_eq!(&bytes(done.remove(0).1)[..4], b"sent");
    let mut seen = [0; 2];
    target.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"uc");
}

#[test]
fn datagrams_go_where_their_address_handle_says() {
    let context = fake::open();
    let pair = Pair::<Ud>::new(&context);
    let qkey = Qkey(0x1111);
    pair.a.activate(qkey).unwrap();
    pair.b.activate(qkey).unwrap();
    pair.b.post(Work::recv(pair.pd.buffer(GRH_LEN + 8).unwrap()).wr_id(1)).unwrap();
    let ah = pair.pd.create_ah(&AhAttr::new(pair.b.address().unwrap().gid)).unwrap();
    let message = Work::send_to(pair.buffer(b"datagram"), &ah, pair.b.number(), qkey).wr_id(2);
    pair.a.post(message).unwrap();
    drop(ah); // The request holds it.
    let mut done = pair.wait(2);
    let wc = done[0].0;
    assert_eq!((wc.status, wc.grh, wc.src_qp), (WcStatus::Success, true, pair.a.number()));
    assert_eq!(&bytes(done.remove(0).1)[GRH_LEN..], b"datagram");

    let soft = Context::open("soft_lo").unwrap().alloc_pd();
    let foreign = soft.create_ah(&AhAttr::new(pair.b.address().unwrap().gid));
    if let Ok(foreign) = foreign {
        let work = Work::send_to(pair.buffer(b"x"), &foreign, pair.b.number(), qkey);
        let refused = pair.a.post(work).unwrap_err();
        assert_eq!(refused.error, PostError::ForeignAddress);
    }
    let long = pair.pd.buffer(8192).unwrap();
    let ah = pair.pd.create_ah(&AhAttr::new(pair.b.address().unwrap().gid)).unwrap();
    let refused = pair.a.post(Work::send_to(long, &ah, pair.b.number(), qkey)).unwrap_err();
    let too_long =
        PostError::DatagramTooLong { len: 8192, mtu: context.query_port().active_mtu.bytes() };
    assert_eq!(refused.error, too_long);
}

#[test]
fn a_shared_receive_queue_feeds_queue_pairs_and_tells_when_it_is_low() {
    let context = fake::open();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(64).unwrap());
    let srq = pd.create_srq(&SrqConfig::new(8).context(77)).unwrap();
    let a = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let b = pd.create_qp(&QpConfig::new(&cq).srq(&srq)).unwrap();
    let [here, there] = [&a, &b].map(|qp| qp.address().unwrap());
    a.connect(there).unwrap();
    b.connect(here).unwrap();
    let events = context.async_events().unwrap();
    for wr_id in 0..4 {
        srq.post(Work::recv(pd.buffer(4).unwrap()).wr_id(wr_id)).unwrap();
    }
    assert_eq!(srq.query().posted, 4);
    srq.arm_limit(3).unwrap();
    for n in 0..2_u8 {
        let mut message = pd.buffer(4).unwrap();
        message.fill(n);
        a.post(Work::send(message).wr_id(10)).unwrap();
    }
    let mut received: Vec<_> = wait(&cq, 4).into_iter().filter(|(wc, _)| wc.wr_id < 10).collect();
    received.sort_by_key(|(wc, _)| wc.wr_id);
    for ((wc, memory), n) in received.into_iter().zip(0..2) {
        assert_eq!((wc.status, wc.srq), (WcStatus::Success, Some(srq.number())));
        assert_eq!(bytes(memory), [n; 4]);
    }
    let event = events.get_timeout(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(event.kind, EventKind::SrqLimitReached);
    let element = adverb_verbs::Element::Srq { number: srq.number(), context: 77 };
    assert_eq!(event.element, element);
    assert_eq!(
        b.post(Work::recv(pd.buffer(4).unwrap())).unwrap_err().error,
        PostError::SharedReceives
    );
    srq.resize(16).unwrap();
    for wr_id in 0..14 {
        srq.post(Work::recv(pd.buffer(4).unwrap()).wr_id(wr_id)).unwrap();
    }
    let full = srq.post(Work::recv(pd.buffer(4).unwrap())).unwrap_err();
    assert_eq!(full.error, PostError::QueueFull { capacity: 16 });
}

#[test]
fn an_armed_queue_wakes_its_channel() {
    let context = fake::open();
    let channel = context.create_comp_channel().unwrap();
    let config = CqConfig::new(64).channel(&channel).context(5);
    let (pd, cq) = (context.alloc_pd(), context.create_cq_with(&config).unwrap());
    let quiet = context.create_cq(64).unwrap();
    let a = pd.create_qp(&QpConfig::new(&quiet)).unwrap();
    let b = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let [here, there] = [&a, &b].map(|qp| qp.address().unwrap());
    a.connect(there).unwrap();
    b.connect(here).unwrap();
    assert!(quiet.req_notify(false).is_err(), "it has no channel");
    assert!(channel.try_get_event().is_none());
    assert!(channel.get_event_timeout(Duration::from_millis(1)).unwrap().is_none());

    let send = |work: Work<op::Send>| {
        b.post(Work::recv(pd.buffer(4).unwrap())).unwrap();
        a.post(work).unwrap();
        wait(&quiet, 1);
    };
    let plain = || Work::send(pd.buffer(4).unwrap());
    let event = || channel.get_event_timeout(Duration::from_secs(60)).unwrap().unwrap();
    cq.req_notify(false).unwrap();
    send(plain());
    assert!(event().cq().is_same(&cq) && wait(&cq, 1).len() == 1);
    cq.req_notify(true).unwrap();
    send(plain());
    assert!(wait(&cq, 1).len() == 1 && channel.try_get_event().is_none(), "it was not asked for");
    send(plain().solicited());
    assert_eq!(event().context(), 5);
    wait(&cq, 1);
    assert_eq!(cq.unacknowledged(), 0);
    drop((a, b));
    cq.destroy().unwrap();
}

#[test]
fn memory_of_unsignaled_work_comes_back_with_the_next_signaled_one() {
    let pair = rc(&fake::open());
    let target = pair.pd.allocate(8, Access::ALL).unwrap();
    let source = pair.pd.allocate(8, Access::ALL).unwrap();
    let at = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    let write = || Work::write(source.slice(0, 8).unwrap(), at);
    for _ in 0..100 {
        pair.a.post(write().unsignaled()).unwrap();
    }
    let busy = source.clone().deregister().unwrap_err();
    assert!(matches!(busy.why, AllocateError::InUse { .. }));
    drop(busy);
    pair.a.post(write().wr_id(1)).unwrap();
    assert_eq!(pair.wait(1)[0].0.wr_id, 1);
    // All places are free again.
    for _ in 0..127 {
        pair.a.post(write().unsignaled()).unwrap();
    }
    pair.a.post(write().wr_id(2)).unwrap();
    let full = pair.a.post(write()).unwrap_err();
    assert_eq!(full.error, PostError::QueueFull { capacity: 128 });
    assert_eq!(pair.wait(1)[0].0.wr_id, 2);
    drop(full);
    source.deregister().unwrap();
}

#[test]
fn failures_have_their_status_and_what_follows_is_flushed() {
    let pair = rc(&fake::open());
    let nowhere = RemoteSlice { addr: 0x1000, rkey: Rkey(0x00ff_ff00) };
    pair.a.post(Work::recv(pair.pd.buffer(4).unwrap()).wr_id(3)).unwrap();
    pair.a.post(Work::write(pair.buffer(b"lost"), nowhere).wr_id(1)).unwrap();
    let first = pair.wait(2);
    assert_eq!(
        (first[0].0.status, first[0].0.opcode),
        (WcStatus::RemoteAccess, WcOpcode::RdmaWrite)
    );
    assert_eq!(
        (first[1].0.status, first[1].0.opcode),
        (WcStatus::WorkRequestFlushed, WcOpcode::Receive)
    );
    assert_eq!(first[1].0.byte_len, 0);
    assert!(first.iter().all(|(_, memory)| memory.is_some()), "memory comes back");
    assert_eq!(pair.a.state(), QpState::Err);
    pair.a.post(Work::send(pair.buffer(b"late")).wr_id(2)).unwrap();
    assert_eq!(pair.wait(1)[0].0.status, WcStatus::WorkRequestFlushed);
}

#[test]
fn a_queue_pair_that_is_reset_forgets_its_work_and_can_begin_anew() {
    let context = fake::open();
    let pair = rc(&context);
    let lent = pair.pd.allocate(8, Access::LOCAL_WRITE).unwrap();
    pair.b.post(Work::recv(lent.slice(0, 8).unwrap()).wr_id(1)).unwrap();
    pair.b.modify(&Modify::to(QpState::Reset)).unwrap();
    lent.deregister().unwrap(); // Nothing outstanding holds it.
    let here = pair.b.address().unwrap();
    let refused = pair.b.post(Work::send(pair.buffer(b"x"))).unwrap_err();
    assert_eq!(refused.error, PostError::NotReady { state: QpState::Reset });
    pair.a.modify(&Modify::to(QpState::Reset)).unwrap();
    let there = pair.a.address().unwrap();
    pair.b.connect(there).unwrap();
    pair.a.connect(here).unwrap();
    let attr = pair.b.query();
    assert_eq!((attr.state, attr.remote.unwrap().1), (QpState::Rts, pair.a.number()));
    let reads = context.query_device().max_qp_init_rd_atom.min(16);
    assert_eq!((attr.max_rd_atomic, attr.timeout.exponent()), (reads, 14));
    pair.b.post(Work::recv(pair.pd.buffer(4).unwrap()).wr_id(1)).unwrap();
    pair.a.post(Work::send(pair.buffer(b"anew")).wr_id(2)).unwrap();
    assert_eq!(bytes(pair.wait(2).remove(0).1), b"anew");
}

#[test]
fn mistakes_are_errors_before_anything_is_queued() {
    let context = fake::open();
    let pair = Pair::<Rc>::new(&context);
    let missing = pair.a.modify(&Modify::to(QpState::Init)).unwrap_err().to_string();
    assert!(missing.contains("needs qp_access_flags, pkey_index, port_num"), "{missing}");
    let no_gid = pair.a.address_at(200).unwrap_err().to_string();
    assert!(no_gid.contains("200"), "{no_gid}");

    let soft = Context::open("soft_lo").unwrap();
    let foreign_cq = soft.create_cq(4).unwrap();
    let error = pair.pd.create_qp(&QpConfig::new(&foreign_cq)).unwrap_err();
    assert!(matches!(error, CreateError::ForeignCq), "{error}");
    let foreign = soft.alloc_pd().buffer(8).unwrap();
    let refused = pair.a.post(Work::recv(foreign)).unwrap_err();
    assert_eq!(refused.error, PostError::ForeignMemory);

    let most = context.query_device().max_sge;
    let config = QpConfig::new(&pair.cq).max_send_sge(most + 1);
    assert!(matches!(pair.pd.create_qp(&config), Err(CreateError::OutOfRange { .. })));
    if fake::is_double() {
        let config = QpConfig::new(&pair.cq).max_inline(129);
        let error = pair.pd.create_qp(&config).unwrap_err().to_string();
        assert!(error.starts_with("fake0 refused a queue pair of 128"), "{error}");
        let mut b = pair.b.address().unwrap();
        b.gid.0[15] = 66;
        let error = pair.a.connect(b).unwrap_err().to_string();
        assert!(error.contains("fake0 refused to take a queue pair to RTR"), "{error}");
        assert!(error.contains("is it routable"), "{error}");
    }
}

#[test]
fn what_the_device_lacks_is_an_error_that_names_it() {
    let context = fake::open();
    let name = fake::name();
    let (pd, cq) = (context.alloc_pd(), context.create_cq(4).unwrap());
    let config = CqConfig::new(4).timestamps(Timestamps::Monotonic);
    let errors = [
        pd.alloc_mw(MwKind::Type1).unwrap_err().to_string(),
        pd.null_mr().unwrap_err().to_string(),
        context.alloc_dm(64).unwrap_err().to_string(),
        context.create_cq_with(&config).unwrap_err().to_string(),
        pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq)).unwrap_err().to_string(),
        context.open_xrcd().create_target(0).unwrap_err().to_string(),
        pd.create_xrc_srq(&SrqConfig::new(4), &context.open_xrcd(), &cq).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.starts_with(&format!("{name} has no ")), "{error}");
    }
    let pair = rc(&context);
    let target = pair.pd.allocate(8, Access::ALL).unwrap();
    let at = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    let refused = pair.a.post(Work::atomic_write(pair.pd.buffer(8).unwrap(), at)).unwrap_err();
    let refused = refused.error.to_string();
    assert!(refused.contains("do not have the operation"), "{refused}");
}

#[test]
fn slices_are_lent_for_the_length_of_a_scope() {
    let pair = rc(&fake::open());
    let (message, mut room) = (*b"hello", [0; 5]);
    pair.pd.scope(|scope| {
        pair.b.post(Work::recv(scope.lend_mut(&mut room).unwrap()).wr_id(1)).unwrap();
        pair.a.post(Work::send(scope.lend(&message).unwrap()).wr_id(2)).unwrap();
        let done = pair.wait(2);
        assert!(done.iter().all(|(wc, _)| wc.status == WcStatus::Success), "{done:?}");
    });
    assert_eq!(room, message);
}

#[test]
fn zero_based_and_reregistered_memory_is_reached_by_its_new_addresses() {
    let pair = rc(&fake::open());
    let target = pair.pd.allocate(64, Access::ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(target.addr(), 0);
    let at = RemoteSlice { addr: 8, rkey: target.rkey() };
    pair.a.post(Work::write(pair.buffer(b"zero"), at).wr_id(1)).unwrap();
    assert_eq!(pair.wait(1)[0].0.status, WcStatus::Success);
    let old = target.rkey();
    let target = target.reregister(&pair.pd, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    assert_ne!(target.rkey(), old);
    let mut seen = [0; 4];
    target.read(8, &mut seen).unwrap();
    assert_eq!(&seen, b"zero");
}

/// Only what both have compiles: a check that the markers say the same for either provider.
#[test]
fn transports_are_those_of_the_software_device() {
    fn has<T: Supports<O> + Connected, O>() {}
    has::<Rc, op::Atomic>();
    has::<Uc, op::Write>();
}
