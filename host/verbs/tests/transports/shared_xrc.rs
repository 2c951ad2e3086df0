//! XRC domains that several processes have open by a file: targets of one reach queues of another.

use crate::alone::{alone, over_udp};
use crate::pair::{eventually, pattern, wait};
use crate::sharer::{Done, Sharer, digest};
use crate::talker::signal;
use adverb_sys::process;
use adverb_verbs::{
    AckTimeout, Buf, Context, Cq, Memory, OpenXrcd, Pd, Qp, QpConfig, QpState, RcConnect,
    RetryCount, RnrRetry, SrqConfig, WcStatus, Work, XrcInitiator,
};
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

/// A file that names a domain; removed when dropped.
struct Name(PathBuf);

impl Name {
    fn new(test: &str) -> Self {
        let name = format!("adverb-xrcd-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        File::create(&path).expect("a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("control_messages")
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The initiator's side, which is this process.
struct Scene {
    context: Context,
    pd: Pd,
    cq: Cq,
    initiator: Qp<XrcInitiator>,
}

impl Scene {
    fn new(target: &mut Sharer) -> (Self, usize, u32) {
        // Three processes take turns on a machine that may be busy.
        let timeout = AckTimeout::from_exponent(16).expect("five bits");
        Self::with(target, |how| how.timeout(timeout))
    }

    /// A peer that is silent for long is dead, and one that is not ready is so for good.
    fn impatient(target: &mut Sharer) -> (Self, usize, u32) {
        Self::with(target, |how| {
            how.timeout(AckTimeout::from_exponent(14).expect("five bits"))
                .retry_count(RetryCount::new(4).expect("three bits"))
                .rnr_retry(RnrRetry::new(2).expect("three bits"))
        })
    }

    fn with(
        sharer: &mut Sharer,
        change: impl FnOnce(RcConnect) -> RcConnect,
    ) -> (Self, usize, u32) {
        let context = Context::open("soft_lo").expect("the loopback device");
        let (pd, cq) = (context.alloc_pd(), context.create_cq(512).expect("a queue"));
        let initiator = pd.create_qp_of::<XrcInitiator>(&QpConfig::new(&cq)).expect("an initiator");
        let (target, there) = sharer.target();
        let here = initiator.address().expect("an address");
        sharer.connect(target, here);
        initiator.connect(change(RcConnect::new(there))).expect("connected");
        (Self { context, pd, cq, initiator }, target, there.qpn.get())
    }

    fn buffer(&self, bytes: &[u8]) -> Buf {
        let mut buffer = self.pd.buffer(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn send(&self, srq: u32, bytes: &[u8]) {
        self.initiator.post(Work::send(self.buffer(bytes)).to_srq(srq)).expect("room");
    }

    fn status(&self) -> WcStatus {
        wait(&self.cq).wc.status
    }
}

/// Every operation to queues of `owners`, by a target of the first of them.
fn every_operation(path: &str) {
    let mut target = Sharer::start(path);
    let mut owner = Sharer::start(path);
    let (scene, _, qpn) = Scene::new(&mut target);
    let queues = [owner.srq(), owner.srq()];
    for (seed, len) in (1..).zip([0, 1, 1024, 1025, 50_000, 1 << 20]) {
        let data = pattern(seed, len);
        let whole = digest(&data);
        for srq in queues {
            owner.recv(srq, len, 7 + seed);
            scene.send(srq, &data);
            assert_eq!(scene.status(), WcStatus::Success);
            let received = Done {
                wr_id: 7 + seed,
                status: "Success".to_owned(),
                opcode: "Receive".to_owned(),
                len,
                imm: None,
                srq,
                qp: qpn,
                digest: whole,
            };
            assert_eq!(owner.wait(), received);
            owner.recv(srq, len, 8);
            let work = Work::send_with_imm(scene.buffer(&data), 5).to_srq(srq);
            scene.initiator.post(work).expect("room");
            assert_eq!(scene.status(), WcStatus::Success);
            assert_eq!(owner.wait(), Done { wr_id: 8, imm: Some(5), ..received.clone() });

            let far = owner.memory(len.max(8), 100);
            let write = Work::write(scene.buffer(&data), far).to_srq(srq);
            scene.initiator.post(write).expect("room");
            assert_eq!(scene.status(), WcStatus::Success);
            assert_eq!(owner.digest(len), whole, "{len} bytes written");
            let read = Work::read(scene.pd.buffer(len).expect("memory"), far).to_srq(srq);
            scene.initiator.post(read).expect("room");
            let read = wait(&scene.cq).ok().expect("read").memory.and_then(Memory::into_buf);
            assert!(*read.expect("a buffer") == *data, "{len} bytes read");
            owner.recv(srq, 0, 9);
            let other = pattern(50 + seed, len);
            let work = Work::write_with_imm(scene.buffer(&other), far, 6).to_srq(srq);
            scene.initiator.post(work).expect("room");
            assert_eq!(scene.status(), WcStatus::Success);
            let told = owner.wait();
            assert_eq!((told.wr_id, told.imm, &*told.opcode), (9, Some(6), "ReceiveRdmaWithImm"));
            assert_eq!(owner.digest(len), digest(&other));

            let zeros = Work::write(scene.buffer(&[0; 8]), far).to_srq(srq);
            scene.initiator.post(zeros).expect("room");
            let add = Work::fetch_add(scene.buffer(&[0; 8]), far, 5).to_srq(srq);
            scene.initiator.post(add).expect("room");
            let swap = Work::compare_swap(scene.buffer(&[0; 8]), far, 5, 6).to_srq(srq);
            scene.initiator.post(swap).expect("room");
            for _ in 0..3 {
                assert_eq!(scene.status(), WcStatus::Success);
            }
            assert_eq!(owner.digest(8), digest(&6_u64.to_ne_bytes()));
        }
    }
    assert!(owner.is_quiet() && target.is_quiet());
}

#[test]
fn every_operation_reaches_a_queue_of_another_process() {
    let name = Name::new("operations");
    every_operation(name.path());
}

/// Goal: what neighbours share of their memory has nothing to do with it.
#[test]
fn it_does_without_shared_memory() {
    over_udp("shared_xrc::it_does_without_shared_memory", || {
        let name = Name::new("udp");
        every_operation(name.path());
    });
}

/// Goal: one connection serves queues of three processes, each message once, in order.
/// Method: messages to all of them are under way together; some of them READs, whose answers may not be
/// overtaken.
#[test]
fn messages_to_queues_of_several_processes_keep_their_order() {
    let name = Name::new("order");
    let mut owners = [(); 3].map(|()| Sharer::start(name.path()));
    let (scene, _, _) = Scene::new(&mut owners[0]);
    let queues = owners.each_mut().map(Sharer::srq);
    let far = owners.each_mut().map(|owner| owner.memory(20_000, 3));
    let data = pattern(3, 20_000);
    for round in 0..20_u64 {
        let mut expected = [(); 3].map(|()| Vec::new());
        let turns = (0..30_u64).map(|n| usize::try_from((n * (round + 1) / 2) % 3).expect("small"));
        let turns: Vec<_> = turns.collect();
        for (n, turn) in (0..).zip(&turns) {
            owners[*turn].recv(queues[*turn], 9000, n);
            let len = usize::try_from(1 + (n * 997) % 9000).expect("small");
            expected[*turn].push((n, pattern(n, len)));
        }
        for (n, turn) in (0_u64..).zip(&turns) {
            let len = usize::try_from(1 + (n * 997) % 9000).expect("small");
            scene.send(queues[*turn], &pattern(n, len));
            let read = Work::read(scene.pd.buffer(20_000).expect("memory"), far[*turn]);
            scene.initiator.post(read.to_srq(queues[*turn])).expect("room");
        }
        for n in 0..60 {
            let done = wait(&scene.cq).ok().expect("success");
            if n % 2 == 1 {
                assert!(*done.memory.and_then(Memory::into_buf).expect("a buffer") == *data);
            }
        }
        for (owner, expected) in owners.iter_mut().zip(&expected) {
            for (n, bytes) in expected {
                let done = owner.wait();
                assert_eq!((done.wr_id, done.len), (*n, bytes.len()), "round {round}");
                assert_eq!(done.digest, digest(bytes));
            }
        }
    }
    assert!(owners.iter_mut().all(Sharer::is_quiet));
}

#[test]
fn a_queue_without_receives_lets_the_initiator_wait_or_give_up() {
    let name = Name::new("rnr");
    let [mut target, mut owner] = [(); 2].map(|()| Sharer::start(name.path()));
    let (scene, _, _) = Scene::new(&mut target);
    let srq = owner.srq();
    scene.send(srq, b"early");
    eventually("a refusal", || {
        scene.context.drive();
        scene.initiator.counters().rcvd_rnr_err > 0
    });
    owner.recv(srq, 5, 1);
    assert_eq!(scene.status(), WcStatus::Success);
    assert_eq!(owner.wait().digest, digest(b"early"));
    // Once more, to a peer that is asked twice.
    let (scene, target_index, _) = Scene::impatient(&mut target);
    scene.send(srq, b"never");
    assert_eq!(scene.status(), WcStatus::RnrRetryExceeded);
    assert!(owner.is_quiet());
    assert_eq!(target.ask(&format!("state {target_index}")), "Rts");
}

/// Goal: a refused requester learns the same as from a queue of the target's own process, and so does the
/// target.
#[test]
fn refusals_are_those_of_one_process() {
    let name = Name::new("refusals");
    let [mut target, mut owner] = [(); 2].map(|()| Sharer::start(name.path()));
    let srq = owner.srq();
    let far = owner.memory(64, 1);
    for (what, status, event) in [
        ("too long", WcStatus::RemoteInvalidRequest, None),
        ("key", WcStatus::RemoteAccess, Some("QpAccessErr")),
        ("no queue", WcStatus::RemoteInvalidRequest, Some("QpReqErr")),
    ] {
        let (scene, index, _) = Scene::new(&mut target);
        owner.recv(srq, 4, 1);
        scene.send(srq, b"good");
        assert_eq!(scene.status(), WcStatus::Success);
        assert_eq!(owner.wait().status, "Success");
        match what {
            "too long" => {
                owner.recv(srq, 4, 2);
                scene.send(srq, b"more than four");
            }
            "key" => {
                let far = adverb_verbs::RemoteSlice { addr: far.addr + 60, ..far };
                let work = Work::write(scene.buffer(b"too far"), far).to_srq(srq);
                scene.initiator.post(work).expect("room");
            }
            _ => {
                // A number of the other process that is no queue's.
                scene.send(srq + 1, b"no queue");
            }
        }
        assert_eq!(scene.status(), status, "{what}");
        if what == "too long" {
            assert_eq!(owner.wait().status, "LocalLength");
        }
        for expected in ["CommEst"].into_iter().chain(event).chain(["LastWqeReached"]) {
            if expected != "CommEst" {
                assert_eq!(target.ask("event"), expected, "{what}");
            }
        }
        assert_eq!(target.ask(&format!("state {index}")), "Err");
        assert_eq!(scene.initiator.state(), QpState::Err);
    }
    assert!(owner.is_quiet());
}

#[test]
fn a_solicited_message_wakes_the_process_of_the_queue() {
    let name = Name::new("solicited");
    let [mut target, mut owner] = [(); 2].map(|()| Sharer::start(name.path()));
    let (scene, _, _) = Scene::new(&mut target);
    let srq = owner.srq();
    (0..2).for_each(|wr_id| owner.recv(srq, 4, wr_id));
    assert_eq!(owner.ask("arm"), "armed");
    owner.tell("told 60000"); // It sleeps by now, or will.
    scene.send(srq, b"idle");
    assert_eq!(scene.status(), WcStatus::Success);
    let work = Work::send(scene.buffer(b"wake")).solicited().to_srq(srq);
    scene.initiator.post(work).expect("room");
    assert_eq!(scene.status(), WcStatus::Success);
    assert_eq!(owner.answer(), "true");
    assert_eq!([owner.wait().wr_id, owner.wait().wr_id], [0, 1]);
}

#[test]
fn a_domain_is_there_until_its_last_process_closes_it() {
    alone("shared_xrc::a_domain_is_there_until_its_last_process_closes_it", || {
        let name = Name::new("last");
        let path = name.path();
        let [mut one, mut two, mut three] = [(); 3].map(|()| Sharer::idle());
        let open = |sharer: &mut Sharer, how: &str| sharer.ask(&format!("open {path} {how}"));
        assert_eq!(open(&mut one, "existing"), "NotFound");
        assert_eq!(open(&mut one, "new"), "opened");
        assert_eq!(open(&mut two, "new"), "AlreadyExists");
        assert_eq!(open(&mut two, "existing"), "opened");
        assert_eq!(one.ask("end domain"), "gone");
        assert_eq!(open(&mut three, "new"), "AlreadyExists");
        // A target holds it, whose requests other processes have served.
        let (scene, _, _) = Scene::new(&mut two);
        assert_eq!(open(&mut one, "existing"), "opened");
        let srq = one.srq();
        one.recv(srq, 4, 1);
        scene.send(srq, b"open");
        assert_eq!(scene.status(), WcStatus::Success);
        assert_eq!(one.wait().status, "Success");
        assert_eq!(two.ask("end domain"), "gone");
        assert_eq!(one.ask("end srqs"), "gone");
        assert_eq!(one.ask("end domain"), "gone");
        assert_eq!(open(&mut three, "existing"), "opened");
        assert_eq!(three.ask("end domain"), "gone");
        // The dead have nothing open, and no other process for their sake.
        two.kill();
        assert_eq!(open(&mut three, "existing"), "NotFound");
        assert_eq!(open(&mut one, "new"), "opened");
        one.kill();
        assert_eq!(open(&mut three, "new"), "opened");
    });
}

/// Goal: a process that cannot share a domain with one of another user is told.
#[test]
fn a_file_of_another_user_is_refused() {
    let context = Context::open("soft_lo").expect("the loopback device");
    let me = std::fs::metadata("/proc/self").expect("a process");
    let name = Name::new("user");
    if std::os::unix::fs::chown(name.path(), Some(12345), None).is_err() {
        println!("skipped: files cannot be given to another user");
        return;
    }
    let file = File::open(name.path()).expect("a file");
    let refused = context.open_xrcd_of(&file, OpenXrcd::Create).expect_err("not ours");
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let text = refused.to_string();
    let own = std::os::unix::fs::MetadataExt::uid(&me).to_string();
    assert!(text.contains("12345") && text.contains(&own), "{text}");
}

/// Goal: the death of the queue's process ends the message under way with a status, and nothing else:
/// the target goes on for queues of other processes if it had served everything.
#[test]
fn the_process_of_a_queue_may_be_killed_at_any_moment() {
    let name = Name::new("owner");
    let mut target = Sharer::start(name.path());
    let own = target.srq();
    for round in 0..12_u32 {
        let mut owner = Sharer::start(name.path());
        // A process without another to give up has time: the others may have to wait for a processor.
        let (scene, index, _) = match round {
            0 => Scene::new(&mut target),
            _ => Scene::impatient(&mut target),
        };
        let srq = owner.srq();
        (0..32).for_each(|n| owner.recv(srq, 20_000, n));
        if round == 0 {
            // Before anything is under way, and after everything is done.
            scene.send(srq, b"whole");
            assert_eq!(scene.status(), WcStatus::Success);
            owner.kill();
            target.recv(own, 4, 77);
            scene.send(own, b"mine");
            assert_eq!(scene.status(), WcStatus::Success);
            assert_eq!(target.wait().wr_id, 77);
            scene.send(srq, b"gone");
            assert_eq!(scene.status(), WcStatus::RemoteInvalidRequest);
            assert_eq!(target.ask(&format!("state {index}")), "Err");
            continue;
        }
        for _ in 0..32 {
            scene.send(srq, &pattern(1, 20_000));
        }
        for _ in 0..round * 3 {
            scene.context.drive();
        }
        owner.kill();
        scene.send(srq, b"late");
        let mut statuses = (0..33).map(|_| scene.status());
        let first = statuses.find(|status| *status != WcStatus::Success).expect("a refusal");
        let fits = [WcStatus::RemoteInvalidRequest, WcStatus::RetryExceeded];
        assert!(fits.contains(&first), "round {round}: {first}");
        assert!(statuses.all(|status| status == WcStatus::WorkRequestFlushed));
        // With another connection everything is as it was.
        let (scene, _, _) = Scene::new(&mut target);
        target.recv(own, 4, 78);
        scene.send(own, b"mine");
        assert_eq!(scene.status(), WcStatus::Success);
        assert_eq!(target.wait().wr_id, 78);
    }
}

/// Goal: the receive that a message of a dead target was filling is back in its queue, and the sender has
/// a status.
#[test]
fn the_process_of_a_target_may_be_killed_at_any_moment() {
    let name = Name::new("target");
    let mut owner = Sharer::start(name.path());
    let srq = owner.srq();
    let mut used = 0;
    for round in 0..8_u32 {
        let mut target = Sharer::start(name.path());
        let (scene, _, _) = Scene::impatient(&mut target);
        owner.recv(srq, 4 << 20, 1);
        scene.send(srq, &pattern(2, 4 << 20));
        for _ in 0..round * 40 {
            scene.context.drive();
        }
        target.kill();
        let status = scene.status();
        let fits = [WcStatus::Success, WcStatus::RetryExceeded];
        assert!(fits.contains(&status), "round {round}: {status}");
        // Its last packet may have come all the same.
        eventually("the receive is back, or used", || {
            used += u32::from(!owner.is_empty());
            let posted: u32 = owner.ask(&format!("posted {srq}")).parse().expect("a number");
            posted + used == round + 1
        });
    }
}

/// Goal: a process of either kind that is stopped holds up only requesters that want something of it, they
/// get a status, and when it goes on it serves others.
#[test]
fn the_process_of_a_queue_or_of_a_target_may_be_stopped_at_any_moment() {
    // Alone, for the kernel may hand packets of others to a process that is stopped.
    alone("shared_xrc::the_process_of_a_queue_or_of_a_target_may_be_stopped_at_any_moment", || {
        let name = Name::new("stopped");
        let [mut target, mut owner, mut other] = [(); 3].map(|()| Sharer::start(name.path()));
        let (srq, others) = (owner.srq(), other.srq());
        let serves = |target: &mut Sharer, whose: &mut Sharer, srq: u32| {
            let (scene, _, _) = Scene::new(target);
            whose.recv(srq, 8, 78);
            scene.send(srq, b"mine");
            assert_eq!(scene.status(), WcStatus::Success);
            assert_eq!(whose.wait().wr_id, 78);
        };
        for round in 0..6_u32 {
            let (scene, _, _) = Scene::impatient(&mut target);
            for n in 0..8 {
                owner.recv(srq, 400_000, n);
                scene.send(srq, &pattern(1, 400_000));
            }
            for _ in 0..round * 20 {
                scene.context.drive();
            }
            let stopped = if round % 2 == 0 { owner.pid() } else { target.pid() };
            signal(stopped, "-STOP");
            eventually("it stops", || process::is_stopped(stopped));
            let mut statuses = (0..8).map(|_| scene.status());
            // All of it may have been served before.
            if let Some(first) = statuses.find(|status| *status != WcStatus::Success) {
                assert_eq!(first, WcStatus::RetryExceeded, "round {round}");
                println!("round {round}: stopped in the midst of it");
            }
            assert!(statuses.all(|status| status == WcStatus::WorkRequestFlushed));
            if stopped == owner.pid() {
                serves(&mut target, &mut other, others);
            } else {
                let mut another = Sharer::start(name.path());
                serves(&mut another, &mut other, others);
            }
            signal(stopped, "-CONT");
            serves(&mut target, &mut other, others);
        }
    });
}

/// Goal: a target that goes away in the middle of a message leaves the receive to others, or ends it as
/// flushed if it fails.
#[test]
fn a_target_that_ends_takes_its_message_along() {
    let name = Name::new("ends");
    let [mut target, mut owner] = [(); 2].map(|()| Sharer::start(name.path()));
    let srq = owner.srq();
    for round in 0..10 {
        let (scene, index, _) = Scene::impatient(&mut target);
        owner.recv(srq, 4 << 20, 1);
        scene.send(srq, &pattern(2, 4 << 20));
        for _ in 0..20 * round {
            scene.context.drive();
        }
        let fails = round % 2 == 0;
        match fails {
            true => assert_eq!(target.ask(&format!("fail {index}")), "failed"),
            false => assert_eq!(target.ask(&format!("end target {index}")), "gone"),
        }
        let status = scene.status();
        assert!([WcStatus::Success, WcStatus::RetryExceeded].contains(&status), "{status}");
        let mut seen = String::new();
        eventually("the receive is back, or used", || {
            let posted: u32 = owner.ask(&format!("posted {srq}")).parse().expect("a number");
            posted == 1 || {
                seen = owner.ask("look");
                seen != "nothing"
            }
        });
        let fits = match fails {
            true => ["", "WorkRequestFlushed", "Success"],
            false => ["", "Success", "Success"],
        };
        assert!(fits.contains(&&*seen), "round {round}: {seen}");
        if seen.is_empty() {
            // Not begun, or back: the next message has it.
            let (scene, _, _) = Scene::new(&mut target);
            scene.send(srq, b"next");
            assert_eq!(scene.status(), WcStatus::Success);
            assert_eq!(owner.wait().digest, digest(b"next"));
        }
    }
    // Queues of this process are as good as any.
    let context = Context::open("soft_lo").expect("the loopback device");
    let file = File::open(name.path()).expect("a file");
    let xrcd = context.open_xrcd_of(&file, OpenXrcd::Existing).expect("open");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(8).expect("a queue"));
    let own = pd.create_xrc_srq(&SrqConfig::new(4), &xrcd, &cq).expect("a queue");
    own.post(Work::recv(pd.buffer(4).expect("memory"))).expect("room");
    let (scene, _, _) = Scene::new(&mut target);
    scene.send(own.number(), b"here");
    assert_eq!(scene.status(), WcStatus::Success);
    wait(&cq).ok().expect("received");
}
