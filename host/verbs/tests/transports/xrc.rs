//! Extended reliable connections: domains, queues found by number, targets without a protection
//! domain.

use crate::pair::{bytes_of, eventually, pattern, remote, wait};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Access, Buf, Completion, Context, Cq, CreateError, DataPath, Imm, Memory, OpenXrcd, Pd,
    PostError, Qp, QpConfig, QpState, Rkey, Srq, SrqConfig, WcOpcode, WcStatus, Work, XrcInitiator,
    XrcTarget, Xrcd,
};
use std::io::ErrorKind;

on_every_path! {
    a_queue_that_goes_under_way_ends_the_message,
    a_queue_that_is_not_there_is_refused_and_one_that_has_gone_too,
    a_queue_without_receives_lets_the_initiator_wait,
    every_operation_reaches_the_queue_or_the_memory_that_it_names,
    memory_is_that_of_the_queues_protection_domain,
    nothing_is_posted_to_a_target_and_no_receives_to_an_initiator,
    several_pairs_fill_one_queue_and_all_of_it_arrives,
}

/// An initiator and a target that are connected, with their completion queues.
struct Scene {
    /// The initiator's.
    pd: Pd,
    /// The target's.
    far: Context,
    far_pd: Pd,
    /// Where the initiator's work completes.
    sent: Cq,
    /// Where receives complete.
    received: Cq,
    xrcd: Xrcd,
    initiator: Qp<XrcInitiator>,
    target: Qp<XrcTarget>,
}

impl Scene {
    /// Over a path.
    fn over(path: Path) -> Self {
        let scene = Self::of(path.contexts());
        assert_eq!(scene.initiator.path(), Some(path.expected()));
        scene
    }

    fn of([context, far]: [Context; 2]) -> Self {
        let (pd, far_pd) = (context.alloc_pd(), far.alloc_pd());
        let [sent, received] = [&context, &far].map(|side| side.create_cq(256).expect("a queue"));
        let xrcd = far.open_xrcd();
        let (initiator, target) = connect(&pd, &sent, &xrcd);
        Self { pd, far, far_pd, sent, received, xrcd, initiator, target }
    }

    fn srq(&self) -> Srq {
        let config = SrqConfig::new(64);
        self.far_pd.create_xrc_srq(&config, &self.xrcd, &self.received).expect("a queue")
    }

    fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buffer = self.pd.buffer(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn sent(&self) -> Completion {
        wait(&self.sent)
    }
}

fn connect(pd: &Pd, cq: &Cq, xrcd: &Xrcd) -> (Qp<XrcInitiator>, Qp<XrcTarget>) {
    let target = xrcd.create_target(0).expect("a target");
    let initiator = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(cq)).expect("an initiator");
    let here = initiator.address().expect("an address");
    let there = target.address().expect("an address");
    initiator.connect(there).expect("connected");
    target.connect(here).expect("connected");
    (initiator, target)
}

fn every_operation_reaches_the_queue_or_the_memory_that_it_names(path: Path) {
    let scene = Scene::over(path);
    let queues = [scene.srq(), scene.srq(), scene.srq()];
    for (seed, len) in (1..).zip([0, 1, 1024, 1025, 9000, 50_000]) {
        let data = pattern(seed, len);
        for (n, srq) in (0..).zip(&queues) {
            let target = scene.far_pd.allocate(len.max(8), Access::ALL).expect("memory");
            let number = srq.number();
            srq.post(Work::recv(scene.far_pd.buffer(len).expect("memory")).wr_id(n)).expect("room");
            let work = match n {
                0 => Work::send(scene.buffer(&data)),
                _ => Work::send_with_imm(scene.buffer(&data), 7),
            };
            scene.initiator.post(work.to_srq(number)).expect("room");
            assert_eq!(scene.sent().ok().expect("sent").wc.opcode, WcOpcode::Send);
            let done = wait(&scene.received).ok().expect("received");
            assert_eq!((done.wc.wr_id, done.wc.srq), (n, Some(number)));
            assert_eq!((done.wc.qp, done.wc.opcode), (scene.target.number(), WcOpcode::Receive));
            assert_eq!(done.wc.imm, (n != 0).then_some(Imm(7)));
            let buffer = done.memory.and_then(Memory::into_buf).expect("the buffer comes back");
            assert!(*buffer == *data, "{len} bytes to queue {n}");

            srq.post(Work::recv(scene.far_pd.buffer(0).expect("memory")).wr_id(n)).expect("room");
            let work = Work::write_with_imm(scene.buffer(&data), remote(&target), 9);
            scene.initiator.post(work.to_srq(number)).expect("room");
            scene.sent().ok().expect("written");
            let done = wait(&scene.received).ok().expect("told");
            assert_eq!(done.wc.opcode, WcOpcode::ReceiveRdmaWithImm);
            assert!(bytes_of(&target, 0, len) == data);
            let read = Work::read(scene.pd.buffer(len).expect("memory"), remote(&target));
            scene.initiator.post(read.to_srq(number)).expect("room");
            let read = scene.sent().ok().expect("read").memory.and_then(Memory::into_buf);
            assert!(*read.expect("a buffer") == *data);
            let write = Work::write(scene.buffer(&[0; 8]), remote(&target));
            scene.initiator.post(write.to_srq(number)).expect("room");
            scene.sent().ok().expect("written");
            for work in [
                Work::fetch_add(scene.buffer(&[0; 8]), remote(&target), 5),
                Work::compare_swap(scene.buffer(&[0; 8]), remote(&target), 5, 6),
            ] {
                scene.initiator.post(work.to_srq(number)).expect("room");
                scene.sent().ok().expect("done");
            }
            assert_eq!(target.load_u64(0), Ok(6));
        }
    }
}

fn several_pairs_fill_one_queue_and_all_of_it_arrives(path: Path) {
    let scene = Scene::over(path);
    let (other, _target) = connect(&scene.pd, &scene.sent, &scene.xrcd);
    let srq = scene.srq();
    for round in 0..20_u8 {
        for _ in 0..20 {
            srq.post(Work::recv(scene.far_pd.buffer(3000).expect("memory"))).expect("room");
        }
        for n in 0..10 {
            for (from, qp) in (0..).zip([&scene.initiator, &other]) {
                let message = scene.buffer(&[[round, n, from].repeat(900), vec![1]].concat());
                qp.post(Work::send(message).to_srq(srq.number())).expect("room");
            }
        }
        let mut next = [0; 2];
        for _ in 0..20 {
            scene.sent().ok().expect("sent");
            let done = wait(&scene.received).ok().expect("received");
            let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
            let Some(&[r, n, from]) = buffer.first_chunk() else { panic!("bytes") };
            let next = next.get_mut(usize::from(from)).expect("two");
            assert_eq!((r, n), (round, *next), "from {from}");
            *next += 1;
        }
    }
}

fn a_queue_that_is_not_there_is_refused_and_one_that_has_gone_too(path: Path) {
    let scene = Scene::over(path);
    let number = scene.srq().number(); // Which is dropped at once.
    let lives = scene.srq();
    lives.post(Work::recv(scene.far_pd.buffer(8).expect("memory"))).expect("room");
    scene.initiator.post(Work::send(scene.buffer(b"here")).to_srq(lives.number())).expect("room");
    scene.sent().ok().expect("sent");
    scene.initiator.post(Work::send(scene.buffer(b"gone")).to_srq(number)).expect("room");
    let status = scene.sent().wc.status;
    assert_eq!(status, WcStatus::RemoteInvalidRequest);
    assert_eq!(scene.initiator.state(), QpState::Err);
    eventually("the target's end", || {
        scene.far.drive();
        scene.target.state() == QpState::Err
    });
    // A queue of another domain is not there either.
    let stranger = Scene::over(path);
    let work = Work::send(stranger.buffer(b"not yours")).to_srq(lives.number());
    stranger.initiator.post(work).expect("room");
    assert_eq!(stranger.sent().wc.status, WcStatus::RemoteInvalidRequest);
}

/// Goal: a target has no protection domain; that of the queue decides.
fn memory_is_that_of_the_queues_protection_domain(path: Path) {
    let scene = Scene::over(path);
    let other = scene.far.alloc_pd();
    let srq = scene.srq();
    let config = SrqConfig::new(8);
    let foreign = other.create_xrc_srq(&config, &scene.xrcd, &scene.received).expect("a queue");
    let mine = scene.far_pd.allocate(64, Access::ALL).expect("memory");
    let theirs = other.allocate(64, Access::ALL).expect("memory");
    for (memory, queue) in [(&mine, &srq), (&theirs, &foreign)] {
        let work = Work::write(scene.buffer(b"allowed!"), remote(memory)).to_srq(queue.number());
        scene.initiator.post(work).expect("room");
        scene.sent().ok().expect("written");
        assert_eq!(bytes_of(memory, 0, 8), b"allowed!");
    }
    let work = Work::write(scene.buffer(b"refused!"), remote(&mine)).to_srq(foreign.number());
    scene.initiator.post(work).expect("room");
    assert_eq!(scene.sent().wc.status, WcStatus::RemoteAccess);
    assert_eq!(bytes_of(&mine, 0, 8), b"allowed!");
}

fn a_queue_without_receives_lets_the_initiator_wait(path: Path) {
    let scene = Scene::over(path);
    let srq = scene.srq();
    scene.initiator.post(Work::send(scene.buffer(b"early")).to_srq(srq.number())).expect("room");
    eventually("an attempt", || {
        scene.far.drive();
        scene.target.counters().rcvd_pkts > 0
    });
    srq.post(Work::recv(scene.far_pd.buffer(5).expect("memory"))).expect("room");
    scene.sent().ok().expect("sent");
    wait(&scene.received).ok().expect("received");
}

fn nothing_is_posted_to_a_target_and_no_receives_to_an_initiator(path: Path) {
    let scene = Scene::over(path);
    let work = Work::recv(scene.buffer(b"x")).any();
    let refused = scene.initiator.post(work).expect_err("no receives");
    assert_eq!(
        refused.to_string(),
        "queue pairs of type XRC initiator have no receives of their own"
    );
    let refused = scene.target.post(Work::send(scene.buffer(b"x")).any()).expect_err("no sends");
    assert!(matches!(refused.error, PostError::ForeignMemory), "{refused}");
    let refused = scene.initiator.post(Work::send(scene.buffer(b"x")).any()).expect_err("to whom?");
    let kind = adverb_verbs::QpType::XrcInitiator;
    assert_eq!(refused.error, PostError::Address { kind });
    // What reaches no peer needs no queue.
    scene.initiator.post(Work::local_invalidate(Rkey(1))).expect("room");
    assert_eq!(scene.sent().wc.status, WcStatus::MemoryWindowBind);
}

#[test]
fn a_file_names_a_domain_for_all_that_open_it() {
    let device = Context::open("soft_lo").expect("the loopback device");
    let scene = Scene::of([device.clone(), device]);
    let file = std::fs::File::open(std::env::current_exe().expect("a file")).expect("open");
    let refused = scene.far.open_xrcd_of(&file, OpenXrcd::Existing).expect_err("none yet");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let one = scene.far.open_xrcd_of(&file, OpenXrcd::CreateNew).expect("made");
    let again = scene.far.open_xrcd_of(&file, OpenXrcd::CreateNew).expect_err("there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    // By another descriptor and another context; queues of the one are found by targets of the other.
    let same = std::fs::File::open(std::env::current_exe().expect("a file")).expect("open");
    let context = Context::open("soft_lo").expect("the same device");
    let two = context.open_xrcd_of(&same, OpenXrcd::Create).expect("opened");
    assert!(one.is_same(&two) && !one.is_same(&scene.xrcd));
    let (initiator, _target) = connect(&scene.pd, &scene.sent, &two);
    // Its packets may have to be given to other processes, and so there have to be some.
    assert_eq!(initiator.path(), Some(DataPath::Udp));
    let config = SrqConfig::new(4);
    let srq = scene.pd.create_xrc_srq(&config, &one, &scene.received).expect("a queue");
    srq.post(Work::recv(scene.pd.buffer(2).expect("memory"))).expect("room");
    initiator.post(Work::send(scene.buffer(b"ok")).to_srq(srq.number())).expect("room");
    scene.sent().ok().expect("sent");
    wait(&scene.received).ok().expect("received");
    // It lives as long as anything of it.
    drop((one, two));
    scene.far.open_xrcd_of(&file, OpenXrcd::Existing).expect("the target holds it");
    drop((initiator, _target, srq));
    let gone = scene.far.open_xrcd_of(&file, OpenXrcd::Existing).expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let bad = scene.pd.create_xrc_srq(&SrqConfig::new(0), &scene.xrcd, &scene.received);
    assert!(matches!(bad, Err(CreateError::OutOfRange { .. })));
}

/// Goal: a queue goes in the middle of a message, and nothing is written where it was.
fn a_queue_that_goes_under_way_ends_the_message(path: Path) {
    let scene = Scene::over(path);
    for round in 0..20 {
        let (initiator, target) = connect(&scene.pd, &scene.sent, &scene.xrcd);
        let srq = scene.srq();
        srq.post(Work::recv(scene.far_pd.buffer(1 << 20).expect("memory"))).expect("room");
        let work = Work::send(scene.pd.buffer(1 << 20).expect("memory")).to_srq(srq.number());
        initiator.post(work).expect("room");
        for _ in 0..round {
            scene.far.drive();
        }
        drop(srq);
        let status = scene.sent().wc.status;
        let fits = [WcStatus::Success, WcStatus::RemoteInvalidRequest, WcStatus::RemoteOperation];
        assert!(fits.contains(&status), "{status}");
        drop((initiator, target));
        while scene.received.next().expect("no overrun").is_some() {}
    }
}
