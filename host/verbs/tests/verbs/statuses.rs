//! Statuses: what fails, and how both sides learn of it.
//!
//! # Safety
//!
//! Raw requests are of regions that outlive them and lend no references.

use crate::pair::{Pair, Setup, bytes_of, eventually, remote};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Access, Memory, Mr, PathMtu, PostError, QpState, Rc, RcConnect, ReceiveWork, RemoteSlice, Rkey,
    SendData, SendKind, SendTo, SendWork, Supports, WcOpcode, WcStatus, Work,
};

on_every_path! {
    a_long_write_that_leaves_the_region_changes_nothing,
    a_misaligned_atomic_is_refused,
    a_peer_that_is_gone_exceeds_the_retries,
    a_queue_pair_without_the_right_is_refused,
    a_range_that_leaves_the_region_is_refused,
    a_read_into_read_only_memory_fails_here,
    a_receive_into_memory_of_another_domain_fails_on_both_sides,
    a_region_without_the_right_is_refused,
    a_send_longer_than_its_receive_changes_nothing_behind_it,
    a_send_longer_than_its_receive_fails_on_both_sides,
    a_write_with_immediate_waits_for_a_receive_too,
    a_wrong_key_is_refused,
    an_end_flushes_what_is_outstanding_and_gives_the_memory_back,
    an_overrun_completion_queue_says_so_and_stops_its_queue_pairs,
    local_memory_of_another_protection_domain_is_a_local_error,
    owned_memory_of_another_protection_domain_is_refused_before_it_is_posted,
    the_key_of_a_dropped_region_is_refused,
    the_key_of_another_protection_domain_is_refused,
    what_fails_names_the_work_and_the_reason,
    without_a_receive_and_without_patience_a_send_fails_at_once,
    without_a_receive_but_with_patience_a_send_waits_for_one,
}

/// Goal: every way of reaching where one may not ends the same: the requester learns that access
/// was denied, nothing is changed, and both queue pairs are in the error state.
fn is_denied<O>(
    setup: Setup,
    expected: WcStatus,
    work: impl Fn(&Pair, &Mr) -> Work<O>,
    access: Access,
) where
    Rc: Supports<O>,
{
    let pair = setup.pair();
    let target = pair.b.pd.allocate(64, access).expect("memory");
    let before = bytes_of(&target, 0, 64);
    pair.a.qp.post(work(&pair, &target).wr_id(3)).expect("room");
    let done = pair.a.wait();
    assert_eq!((done.wc.status, done.wc.wr_id), (expected, 3));
    assert!(done.memory.is_some(), "memory comes back from failed work too");
    assert_eq!(bytes_of(&target, 0, 64), before);
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
}

fn with(pair: &Pair, byte: u8) -> Memory {
    pair.a.buffer(&[byte; 8]).into()
}

fn wrong(slice: RemoteSlice) -> RemoteSlice {
    RemoteSlice { rkey: Rkey(slice.rkey.0 ^ 1), ..slice }
}

fn a_wrong_key_is_refused(path: Path) {
    let refused = WcStatus::RemoteAccess;
    let s = path.setup();
    is_denied(s, refused, |p, mr| Work::write(with(p, 1), wrong(remote(mr))), Access::ALL);
    is_denied(s, refused, |p, mr| Work::read(with(p, 1), wrong(remote(mr))), Access::ALL);
    is_denied(s, refused, |p, mr| Work::fetch_add(with(p, 1), wrong(remote(mr)), 1), Access::ALL);
    let swap = |p: &Pair, mr: &Mr| Work::compare_swap(with(p, 1), wrong(remote(mr)), 0, 1);
    is_denied(s, refused, swap, Access::ALL);
    // A key of a slot that never was, too.
    let nowhere = RemoteSlice { addr: 0, rkey: Rkey(u32::MAX) };
    is_denied(s, refused, |p, _| Work::write(with(p, 1), nowhere), Access::ALL);
}

fn a_range_that_leaves_the_region_is_refused(path: Path) {
    let refused = WcStatus::RemoteAccess;
    for offset in [57, 64, u64::MAX, u64::MAX - 7, 1 << 63] {
        let s = path.setup();
        let there = move |mr: &Mr| remote(mr).plus(offset);
        is_denied(s, refused, move |p, mr| Work::write(with(p, 1), there(mr)), Access::ALL);
        is_denied(s, refused, move |p, mr| Work::read(with(p, 1), there(mr)), Access::ALL);
    }
    let s = path.setup();
    is_denied(s, refused, |p, mr| Work::fetch_add(with(p, 1), remote(mr).plus(64), 1), Access::ALL);
}

fn a_long_write_that_leaves_the_region_changes_nothing(path: Path) {
    let setup = Setup { path_mtu: PathMtu::B256, ..path.setup() };
    let long = |p: &Pair, mr: &Mr| Work::write(p.a.buffer(&[1; 65]), remote(mr));
    is_denied(setup, WcStatus::RemoteAccess, long, Access::ALL);
}

fn a_region_without_the_right_is_refused(path: Path) {
    let refused = WcStatus::RemoteAccess;
    let s = path.setup();
    let but_write = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let but_read = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let but_atomic = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    is_denied(s, refused, |p, mr| Work::write(with(p, 1), remote(mr)), but_write);
    is_denied(s, refused, |p, mr| Work::atomic_write(with(p, 1), remote(mr)), but_write);
    is_denied(s, refused, |p, mr| Work::read(with(p, 1), remote(mr)), but_read);
    is_denied(s, refused, |p, mr| Work::fetch_add(with(p, 1), remote(mr), 1), but_atomic);
}

fn a_queue_pair_without_the_right_is_refused(path: Path) {
    let refused = WcStatus::RemoteInvalidRequest;
    let s = Setup { access: Access::LOCAL_WRITE, ..path.setup() };
    is_denied(s, refused, |p, mr| Work::write(with(p, 1), remote(mr)), Access::ALL);
    is_denied(s, refused, |p, mr| Work::read(with(p, 1), remote(mr)), Access::ALL);
    is_denied(s, refused, |p, mr| Work::fetch_add(with(p, 1), remote(mr), 1), Access::ALL);
}

fn a_misaligned_atomic_is_refused(path: Path) {
    let refused = WcStatus::RemoteInvalidRequest;
    let misaligned = |p: &Pair, mr: &Mr| Work::fetch_add(with(p, 1), remote(mr).plus(4), 1);
    is_denied(path.setup(), refused, misaligned, Access::ALL);
    let misaligned = |p: &Pair, mr: &Mr| Work::atomic_write(with(p, 1), remote(mr).plus(4));
    is_denied(path.setup(), refused, misaligned, Access::ALL);
}

fn the_key_of_a_dropped_region_is_refused(path: Path) {
    let pair = path.setup().pair();
    let target = pair.b.region(&[0; 64]);
    let there = remote(&target);
    pair.a.qp.post(Work::write(with(&pair, 1), there)).expect("room");
    assert_eq!(pair.a.status(), WcStatus::Success);
    drop(target);
    // The next region may take the same place, and must not be reached by the old key.
    let next = pair.b.region(&[0; 64]);
    pair.a.qp.post(Work::write(with(&pair, 1), there)).expect("room");
    assert_eq!(pair.a.status(), WcStatus::RemoteAccess);
    assert_eq!(bytes_of(&next, 0, 64), [0; 64]);
}

fn the_key_of_another_protection_domain_is_refused(path: Path) {
    let pair = path.setup().pair();
    // A's own region is not reachable through B's queue pair.
    let target = pair.a.region(&[0; 64]);
    pair.a.qp.post(Work::write(with(&pair, 1), remote(&target))).expect("room");
    assert_eq!(pair.a.status(), WcStatus::RemoteAccess);
    assert_eq!(bytes_of(&target, 0, 64), [0; 64]);
}

fn local_memory_of_another_protection_domain_is_a_local_error(path: Path) {
    for (number, len) in [(0, 8), (0, 600), (0, 9000), (1, 8), (1, 9000), (2, 8)] {
        let pair = path.setup().pair();
        let (a, b) = (&pair.a, &pair.b);
        b.qp.post(Work::recv(b.buffer(&[0; 9000]))).expect("room");
        let target = b.region(&[0; 9000]);
        let RemoteSlice { addr: va, rkey } = remote(&target);
        let kind = match number {
            0 => SendKind::Send { imm: None },
            1 => SendKind::Write { va, rkey, imm: None },
            _ => SendKind::Read { va, rkey },
        };
        let foreign = b.region(&vec![1; len]);
        let sges = [foreign.sge(0, len).expect("in there")];
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: 9,
            kind,
            data: SendData::Gather(&sges),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: the region outlives the request and lends no references.
        unsafe { a.qp.post_send(&[work]) }.expect("room");
        let done = a.wait();
        assert_eq!((done.wc.status, done.wc.wr_id), (WcStatus::LocalProtection, 9));
        assert_eq!(a.qp.state(), QpState::Err);
        assert_eq!(bytes_of(&target, 0, 9000), [0; 9000]);
    }
}

fn owned_memory_of_another_protection_domain_is_refused_before_it_is_posted(path: Path) {
    let pair = path.setup().pair();
    let foreign = pair.b.buffer(&[1; 8]);
    let refused = pair.a.qp.post(Work::send(foreign)).expect_err("not ours");
    assert_eq!(refused.error, PostError::ForeignMemory);
    assert_eq!(refused.memory.len(), 1);
}

fn a_receive_into_memory_of_another_domain_fails_on_both_sides(path: Path) {
    let pair = path.setup().pair();
    let foreign = pair.a.region(&[0; 64]);
    let sges = [foreign.sge(0, 64).expect("in there")];
    let receive = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
    // SAFETY: the region outlives the receive and lends no references.
    unsafe { pair.b.qp.post_recv(&[receive]) }.expect("room");
    pair.a.qp.post(Work::send(with(&pair, 1))).expect("room");
    assert_eq!(pair.a.status(), WcStatus::RemoteOperation);
    assert_eq!(pair.b.status(), WcStatus::LocalProtection);
}

fn a_read_into_read_only_memory_fails_here(path: Path) {
    let pair = path.setup().pair();
    let target = pair.b.region(&[7; 64]);
    let read_only = pair.a.pd.allocate(64, Access::NONE).expect("memory");
    let slice = read_only.slice(0, 64).expect("in there");
    pair.a.qp.post(Work::read(slice, remote(&target))).expect("room");
    assert_eq!(pair.a.status(), WcStatus::LocalProtection);
    assert_eq!(bytes_of(&read_only, 0, 64), [0; 64]);
}

/// Method: the region goes on behind the receive, and it is the receiver that polls.
fn a_send_longer_than_its_receive_changes_nothing_behind_it(path: Path) {
    for len in [11, 64, 600] {
        let pair = path.setup().pair();
        let (a, b) = (&pair.a, &pair.b);
        let target = b.region(&[0; 1000]);
        let scatter = [target.sge(0, 10).expect("inside")];
        b.post_recv(&[ReceiveWork { wr_id: 1, sges: &scatter, buffer: None }]).expect("room");
        a.qp.post(Work::send(a.buffer(&vec![1; len]))).expect("room");
        let refused = b.wait();
        assert_eq!(
            (refused.wc.wr_id, refused.wc.status),
            (1, WcStatus::LocalLength),
            "{len} bytes"
        );
        assert_eq!(a.status(), WcStatus::RemoteInvalidRequest, "{len} bytes");
        assert_eq!(bytes_of(&target, 10, 990), [0; 990]);
    }
}

fn a_send_longer_than_its_receive_fails_on_both_sides(path: Path) {
    for len in [11, 300, 600, 70_000] {
        let pair = Setup { path_mtu: PathMtu::B256, ..path.setup() }.pair();
        let (a, b) = (&pair.a, &pair.b);
        b.qp.post(Work::recv(b.buffer(&[0; 10])).wr_id(1)).expect("room");
        b.qp.post(Work::recv(b.buffer(&[0; 10])).wr_id(2)).expect("room");
        a.qp.post(Work::send(a.buffer(&vec![1; len])).wr_id(3)).expect("room");
        assert_eq!(a.status(), WcStatus::RemoteInvalidRequest, "{len} bytes");
        let (first, second) = (b.wait(), b.wait());
        assert_eq!((first.wc.wr_id, first.wc.status), (1, WcStatus::LocalLength));
        assert_eq!((second.wc.wr_id, second.wc.status), (2, WcStatus::WorkRequestFlushed));
        assert!(first.memory.is_some() && second.memory.is_some());
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    }
}

/// Goal: between processes the shared-memory link identifies a peer, and not what is written into it. Method: a third
/// device, whose shared-memory link is in use, connects to a queue pair that has a peer, and numbers its messages as
/// that peer would.
#[test]
fn a_neighbour_that_poses_as_the_peer_is_not_heard() {
    for path in [Path::Ring, Path::SharedMemory] {
        let pair = path.setup().pair();
        let (a, b) = (&pair.a, &pair.b);
        let setup = Setup { timeout: 12, retry_count: 1, ..path.setup() };
        let context = path.context();
        let (third, known, friend) =
            (setup.side(&context), setup.side(&context), setup.side(&pair.far));
        let [here, there] = [&known, &friend].map(|side| side.qp.address().expect("it is there"));
        known.qp.connect(path.setup().to(RcConnect::new(there))).expect("connected");
        friend.qp.connect(path.setup().to(RcConnect::new(here))).expect("connected");
        friend.qp.post(Work::recv(friend.buffer(&[0; 8]))).expect("room");
        known.qp.post(Work::send(known.buffer(&[2; 8]))).expect("room");
        assert_eq!((friend.status(), known.status()), (WcStatus::Success, WcStatus::Success));
        let [peer, victim] = [a, b].map(|side| side.qp.address().expect("it is there"));
        third.qp.connect(setup.to(RcConnect::new(victim)).first_psn(peer.psn)).expect("connected");
        let target = b.region(&[0; 8]);
        let scatter = [target.sge(0, 8).expect("inside")];
        b.post_recv(&[ReceiveWork { wr_id: 1, sges: &scatter, buffer: None }]).expect("room");
        third.qp.post(Work::send(third.buffer(&[9; 8]))).expect("room");
        assert!(b.is_quiet());
        assert_eq!(third.status(), WcStatus::RetryExceeded);
        assert_eq!(bytes_of(&target, 0, 8), [0; 8]);
        a.qp.post(Work::send(a.buffer(&[1; 8]))).expect("room");
        assert_eq!((b.status(), a.status()), (WcStatus::Success, WcStatus::Success));
        assert_eq!(bytes_of(&target, 0, 8), [1; 8]);
    }
}

fn without_a_receive_and_without_patience_a_send_fails_at_once(path: Path) {
    for rnr_retry in [0, 1, 3] {
        // On a busy machine a refusal may be late, and asked for again.
        let pair = Setup { rnr_retry, timeout: 20, ..path.setup() }.pair();
        pair.a.qp.post(Work::send(with(&pair, 1))).expect("room");
        assert_eq!(pair.a.status(), WcStatus::RnrRetryExceeded);
        let told = u64::from(rnr_retry) + 1;
        let at_most = told + pair.a.qp.counters().probes;
        let times = pair.b.qp.counters().send_rnr_err;
        assert!((told..=at_most).contains(&times), "rnr_retry {rnr_retry}: {times} times");
        assert_eq!(pair.a.qp.counters().retry_rnr_exceeded_err, 1);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Rts));
    }
}

fn without_a_receive_but_with_patience_a_send_waits_for_one(path: Path) {
    let pair = Setup { rnr_retry: 7, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    a.qp.post(Work::send(with(&pair, 5))).expect("room");
    while b.qp.counters().send_rnr_err < 20 {
        assert!(a.cq.next().expect("no overrun").is_none());
    }
    b.qp.post(Work::recv(b.buffer(&[0; 8]))).expect("room");
    assert_eq!(a.status(), WcStatus::Success);
    let got = b.wait().ok().expect("received").memory.and_then(Memory::into_buf);
    assert_eq!(&got.expect("a buffer")[..], &[5; 8]);
}

fn a_write_with_immediate_waits_for_a_receive_too(path: Path) {
    let pair = Setup { rnr_retry: 2, ..path.setup() }.pair();
    let target = pair.b.region(&[0; 8]);
    pair.a.qp.post(Work::write_with_imm(with(&pair, 5), remote(&target), 1)).expect("room");
    assert_eq!(pair.a.status(), WcStatus::RnrRetryExceeded);
}

fn a_peer_that_is_gone_exceeds_the_retries(path: Path) {
    let Pair { a, b, far, .. } = Setup { timeout: 8, retry_count: 2, ..path.setup() }.pair();
    let target = b.region(&[0; 8]);
    let there = remote(&target);
    let unknown = far.counters().unknown_qp;
    drop(b);
    for wr_id in 0..3 {
        a.qp.post(Work::write(a.buffer(&[1; 8]), there).wr_id(wr_id)).expect("room");
    }
    let statuses: Vec<_> = (0..3).map(|_| a.wait().wc).map(|wc| (wc.wr_id, wc.status)).collect();
    let flushed = WcStatus::WorkRequestFlushed;
    assert_eq!(statuses, [(0, WcStatus::RetryExceeded), (1, flushed), (2, flushed)]);
    assert_eq!(a.qp.counters().retry_exceeded_err, 1);
    assert_eq!(a.qp.counters().ack_timeout, 3, "the first attempt and two more");
    // The records stay in the ring until a thread over there runs.
    eventually("they are counted", || far.counters().unknown_qp >= unknown + 3);
}

fn an_end_flushes_what_is_outstanding_and_gives_the_memory_back(path: Path) {
    let pair = path.setup().pair();
    let a = &pair.a;
    for wr_id in 0..10 {
        a.qp.post(Work::send(with(&pair, 1)).wr_id(wr_id)).expect("room");
        a.qp.post(Work::recv(with(&pair, 1)).wr_id(100 + wr_id)).expect("room");
    }
    a.qp.to_err();
    assert_eq!(a.qp.state(), QpState::Err);
    let mut sends = Vec::new();
    let mut receives = Vec::new();
    for _ in 0..20 {
        let done = a.wait();
        assert_eq!(done.wc.status, WcStatus::WorkRequestFlushed);
        assert!(done.memory.is_some());
        if done.wc.opcode == WcOpcode::Receive {
            receives.push(done.wc.wr_id);
        } else {
            assert_eq!(done.wc.opcode, WcOpcode::Send);
            sends.push(done.wc.wr_id);
        }
    }
    assert_eq!(sends, (0..10).collect::<Vec<_>>());
    assert_eq!(receives, (100..110).collect::<Vec<_>>());

    // What is posted later ends the same way.
    a.qp.post(Work::send(with(&pair, 1)).wr_id(50)).expect("room");
    a.qp.post(Work::recv(with(&pair, 1)).wr_id(51)).expect("room");
    for _ in 0..2 {
        assert_eq!(a.status(), WcStatus::WorkRequestFlushed);
    }
    assert!(a.is_quiet());
}

fn an_overrun_completion_queue_says_so_and_stops_its_queue_pairs(path: Path) {
    let pair = Setup { cqe: 4, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    let target = b.region(&[0; 8]);
    let from = a.region(&[1; 8]);
    let sge = [from.sge(0, 8).expect("in there")];
    let kind = SendKind::Write { va: target.addr(), rkey: target.rkey(), imm: None };
    let work = |wr_id| SendWork {
        to: SendTo::Peer,
        wr_id,
        kind,
        data: SendData::Gather(&sge),
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    };
    let batch: Vec<_> = (0..8).map(work).collect();
    a.post_send(&batch).expect("room");
    // The device is driven, but completions are not taken, until there are too many.
    eventually("an error", || {
        pair.drive();
        a.qp.state() == QpState::Err
    });
    for wr_id in 0..4 {
        let done = a.cq.next().expect("those before the overrun").expect("are there");
        assert_eq!((done.wc.wr_id, done.wc.status), (wr_id, WcStatus::Success));
    }
    let error = a.cq.next().expect_err("it overran");
    assert!(error.to_string().contains("too small"), "{error}");
    assert_eq!(a.cq.next().expect_err("for good"), error);
    assert!(b.is_quiet(), "the peer's queue has nothing to do with it");
}

fn what_fails_names_the_work_and_the_reason(path: Path) {
    let pair = path.setup().pair();
    let target = pair.b.region(&[0; 8]);
    pair.a.qp.post(Work::write(with(&pair, 1), wrong(remote(&target))).wr_id(77)).expect("room");
    let error = pair.a.wait().ok().expect_err("refused");
    let text = error.to_string();
    assert!(text.contains("RdmaWrite (wr_id 77)") && text.contains("remote access"), "{text}");
}

/// Goal: an answer that a program has says that its question arrived, whatever the program does next.
#[test]
fn what_an_answer_acknowledges_has_succeeded_though_its_queue_pair_ends() {
    for path in [Path::InProcess, Path::Ring, Path::SharedMemory] {
        let Pair { context: _context, far: _far, a, b } = path.setup().pair();
        a.qp.post(Work::recv(a.buffer(&[0; 8])).wr_id(1)).expect("room");
        b.qp.post(Work::recv(b.buffer(&[0; 8])).wr_id(2)).expect("room");
        a.qp.post(Work::send(a.buffer(&[1; 8])).wr_id(3)).expect("room");
        assert_eq!(b.wait().wc.wr_id, 2);
        b.qp.post(Work::send(b.buffer(&[2; 8])).wr_id(4)).expect("room");
        // The helper may have acknowledged the question before it was answered.
        let mut ended = vec![a.wait().wc];
        while ended.iter().all(|wc| wc.wr_id != 1) {
            ended.push(a.wait().wc);
        }
        a.qp.to_err();
        ended.extend(std::iter::from_fn(|| a.cq.next().expect("no overrun")).map(|done| done.wc));
        let mut ended: Vec<_> = ended.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ended.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(ended, [(1, WcStatus::Success), (3, WcStatus::Success)], "{path:?}");
    }
}
