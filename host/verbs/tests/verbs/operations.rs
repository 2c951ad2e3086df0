//! Operations: every operation over soft_lo, at every size and path MTU, posted in every way.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use crate::pair::{FOREVER, Pair, Setup, assert_same, bytes_of, pattern, remote};
use crate::path::{Path, on_every_path};
use adverb_verbs::{
    Access, Completion, Imm, Memory, PathMtu, PollError, PostError, QpState, ReceiveWork, SendData,
    SendKind, SendTo, SendWork, Sge, WcOpcode, WcStatus, Work, WorkCompletion, op,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

on_every_path! {
    a_batch_is_posted_in_order_and_what_is_refused_comes_back,
    a_fenced_write_sends_what_the_read_before_it_brought,
    a_full_queue_says_so_and_gives_the_memory_back,
    a_slot_is_taken_until_its_completion_is_polled,
    a_vector_can_be_given_away_as_a_region,
    a_wait_has_an_end,
    an_atomic_write_is_seen_whole_or_not_at_all,
    both_directions_work_at_once,
    completions_come_in_order_however_they_are_brought,
    every_operation_and_size_works_at_the_largest_path_mtu,
    every_operation_and_size_works_over_ipv6,
    every_operation_works_at_every_path_mtu,
    inline_data_is_copied_when_posted,
    lists_of_pieces_are_gathered_and_scattered_in_order,
    memory_of_a_region_stays_registered_while_work_uses_it,
    mistakes_are_refused_and_nothing_is_queued,
    one_thread_can_be_both_ends,
    thousands_of_messages_arrive_in_order,
    unsignaled_requests_complete_silently,
}

const MTUS: [PathMtu; 5] =
    [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];
const GUARD: usize = 64;

fn sizes(mtu: PathMtu, large: bool) -> Vec<usize> {
    let mtu = usize::try_from(mtu.bytes()).expect("small");
    let mut sizes = vec![0, 1, 5, mtu - 1, mtu, mtu + 1, 64 << 10];
    if large {
        sizes.extend([(1 << 20) + 3, 8 << 20]);
    }
    sizes
}

/// Ends a thread even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `test` while another thread polls for B and hands its completions over.
fn with_b_elsewhere(pair: &Pair, test: impl FnOnce(&Receiver<Result<Completion, PollError>>)) {
    let stop = AtomicBool::new(false);
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let (stop, cq) = (&stop, &pair.b.cq);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if let Some(completion) = cq.next().transpose() {
                    let _ = tell.send(completion);
                }
            }
        });
        let _stop = Stop(stop);
        test(&told);
    });
}

/// Goal: no completion overtakes another, whether it was there before a poll or the poll has brought it
/// about, and however many it asks for.
/// Method: batches of numbered messages; sometimes the devices take steps before a poll.
fn completions_come_in_order_however_they_are_brought(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let (origin, target) = (a.region(&[7; 8]), b.region(&[0; 8]));
    let gather = [origin.sge(0, 8).expect("inside")];
    let scatter = [target.sge(0, 8).expect("inside")];
    let (mut sent, mut seen) = (0_u32, [0_u64; 2]);
    for round in 0..300_u32 {
        for _ in 0..1 + round % 7 {
            b.post_recv(&[ReceiveWork { wr_id: sent.into(), sges: &scatter, buffer: None }])
                .expect("room");
            let send = SendWork {
                to: SendTo::Peer,
                wr_id: sent.into(),
                kind: SendKind::Send { imm: Some(Imm(sent)) },
                data: SendData::Gather(&gather),
                signaled: true,
                solicited: false,
                fence: false,
                buffer: None,
            };
            a.post_send(&[send]).expect("room");
            sent += 1;
        }
        for _ in 0..round % 3 {
            pair.drive();
        }
        let most = usize::try_from(1 + round % 4).expect("small");
        let mut out = [WorkCompletion::EMPTY; 4];
        let began = Instant::now();
        while seen != [u64::from(sent); 2] {
            for (side, seen) in [b, a].into_iter().zip(&mut seen) {
                let taken = side.cq.poll(&mut out[..most]).expect("no overrun");
                for completion in &out[..taken] {
                    assert_eq!((completion.status, completion.wr_id), (WcStatus::Success, *seen));
                    let imm = completion.imm.map_or(*seen, |Imm(number)| number.into());
                    assert_eq!(imm, *seen);
                    *seen += 1;
                }
            }
            assert!(began.elapsed() < FOREVER, "{seen:?} of {sent}");
        }
    }
}

fn every_operation(setup: Setup, large: bool) {
    let pair = setup.pair();
    let (a, b) = (&pair.a, &pair.b);
    with_b_elsewhere(&pair, |received| {
        let received = || {
            let one = received.recv_timeout(FOREVER).expect("a completion");
            one.expect("no overrun").ok().expect("success")
        };
        for (seed, size) in (1..).zip(sizes(setup.path_mtu, large)) {
            let what = format!("{size} bytes, path MTU {}", setup.path_mtu.bytes());
            let (data, noise) = (pattern(seed, size), pattern(!seed, size + 2 * GUARD));
            let len = u32::try_from(size).expect("small");
            let target = b.region(&noise);
            let there = remote(&target).plus(u64::try_from(GUARD).expect("small"));
            let landed = |what: &str| {
                let now = bytes_of(&target, 0, noise.len());
                assert_same(&now[..GUARD], &noise[..GUARD], &format!("before, {what}"));
                assert_same(&now[GUARD..GUARD + size], &data, what);
                assert_same(
                    &now[GUARD + size..],
                    &noise[GUARD + size..],
                    &format!("after, {what}"),
                );
                target.write(0, &noise).expect("it fits");
            };

            for imm in [None, Some(0xdead_0000 | u32::from(setup.gid_index))] {
                // SEND.
                let room = b.pd.buffer(size + 1).expect("memory");
                b.qp.post(Work::recv(room).wr_id(seed)).expect("room");
                let message = a.buffer(&data);
                let work = match imm {
                    None => Work::send(message),
                    Some(imm) => Work::send_with_imm(message, imm),
                };
                a.qp.post(work.wr_id(!seed)).expect("room");
                let sent = a.wait().ok().expect("sent");
                assert_eq!((sent.wc.wr_id, sent.wc.opcode), (!seed, WcOpcode::Send));
                assert_eq!(sent.wc.qp, a.qp.number());
                let back = sent.memory.and_then(Memory::into_buf).expect("the buffer comes back");
                assert_same(&back, &data, "what was sent");
                let got = received();
                assert_eq!((got.wc.wr_id, got.wc.opcode), (seed, WcOpcode::Receive), "{what}");
                assert_eq!((got.wc.byte_len, got.wc.imm), (len, imm.map(Imm)), "{what}");
                assert_eq!((got.wc.qp, got.wc.src_qp), (b.qp.number(), a.qp.number()));
                let got = got.memory.and_then(Memory::into_buf).expect("the buffer comes back");
                assert_same(&got[..size], &data, &format!("SEND of {what}"));

                // WRITE.
                let message = a.buffer(&data);
                let work = match imm {
                    None => Work::write(message, there),
                    Some(imm) => {
                        b.qp.post(Work::recv(b.pd.buffer(0).expect("memory"))).expect("room");
                        Work::write_with_imm(message, there, imm)
                    }
                };
                a.qp.post(work).expect("room");
                assert_eq!(a.wait().ok().expect("written").wc.opcode, WcOpcode::RdmaWrite);
                if imm.is_some() {
                    let got = received();
                    assert_eq!(got.wc.opcode, WcOpcode::ReceiveRdmaWithImm);
                    assert_eq!((got.wc.byte_len, got.wc.imm), (len, imm.map(Imm)), "{what}");
                }
                landed(&format!("WRITE of {what}"));
            }

            // READ.
            target.write(GUARD, &data).expect("it fits");
            a.qp.post(Work::read(a.pd.buffer(size).expect("memory"), there)).expect("room");
            let read = a.wait().ok().expect("read");
            assert_eq!((read.wc.opcode, read.wc.byte_len), (WcOpcode::RdmaRead, len));
            let got = read.memory.and_then(Memory::into_buf).expect("the buffer comes back");
            assert_same(&got, &data, &format!("READ of {what}"));
            landed(&format!("READ of {what}"));
        }
        atomics(&pair);
    });
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

fn atomics(pair: &Pair) {
    let (a, b) = (&pair.a, &pair.b);
    let words = b.region(&[0; 32]);
    words.store_u64(8, 40).expect("it fits");
    let run = |work: Work<op::Atomic>| {
        a.qp.post(work).expect("room");
        let done = a.wait().ok().expect("done");
        assert_eq!(done.wc.byte_len, 8);
        let buffer = done.memory.and_then(Memory::into_buf).expect("the buffer comes back");
        (done.wc.opcode, u64::from_ne_bytes(buffer[..].try_into().expect("8 bytes")))
    };
    let word = remote(&words).plus(8);
    let room = || a.pd.buffer(8).expect("memory");
    assert_eq!(run(Work::fetch_add(room(), word, 2)), (WcOpcode::FetchAdd, 40));
    assert_eq!(run(Work::compare_swap(room(), word, 41, 0)), (WcOpcode::CompareSwap, 42));
    assert_eq!(run(Work::compare_swap(room(), word, 42, 7)), (WcOpcode::CompareSwap, 42));
    assert_eq!(run(Work::fetch_add(room(), word, u64::MAX)), (WcOpcode::FetchAdd, 7));
    assert_eq!(words.load_u64(8), Ok(6));
    let whole = a.buffer(&[1, 2, 3, 4, 5, 6, 7, 8]);
    a.qp.post(Work::atomic_write(whole, word)).expect("room");
    let done = a.wait().ok().expect("done");
    assert_eq!((done.wc.opcode, done.wc.byte_len), (WcOpcode::AtomicWrite, 8));
    assert_eq!(bytes_of(&words, 8, 8), [1, 2, 3, 4, 5, 6, 7, 8], "as they came");
    assert_eq!((words.load_u64(0), words.load_u64(16)), (Ok(0), Ok(0)));
    a.qp.post(Work::flush(word, 8)).expect("room");
    let done = a.wait().ok().expect("done");
    assert_eq!((done.wc.opcode, done.wc.byte_len), (WcOpcode::Flush, 0));
}

/// Goal: no reader sees a part of an ATOMIC WRITE.
/// Method: the owner looks all the time; each write's eight bytes are alike. Writes go on until the
/// owner has seen a hundred changes: its thread may get no processor for as long as 2,000 writes take.
fn an_atomic_write_is_seen_whole_or_not_at_all(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let words = b.region(&[0; 16]);
    let changes = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let [first, rest @ ..] = words.load_u64(8).expect("it fits").to_ne_bytes();
                assert_eq!(rest, [first; 7], "a mix");
                if first != last {
                    changes.fetch_add(1, Ordering::Relaxed);
                    last = first;
                }
            }
        });
        let stop = Stop(&done);
        let until = Instant::now() + FOREVER;
        let mut round = 0_u32;
        while !owner.is_finished() && (round < 2000 || changes.load(Ordering::Relaxed) < 100) {
            assert!(Instant::now() < until, "the owner saw {changes:?} changes in {round} writes");
            let bytes = [u8::try_from(round % 200).expect("small"); 8];
            a.qp.post(Work::atomic_write(a.buffer(&bytes), remote(&words).plus(8))).expect("room");
            assert_eq!(a.status(), WcStatus::Success);
            round += 1;
        }
        drop(stop);
        owner.join().expect("no mix");
    });
    assert_eq!(words.load_u64(0), Ok(0));
}

fn every_operation_and_size_works_at_the_largest_path_mtu(path: Path) {
    every_operation(path.setup(), true);
}

fn every_operation_and_size_works_over_ipv6(path: Path) {
    for path_mtu in [PathMtu::B1024, path.path_mtu_max()] {
        let setup = Setup { gid_index: 0, path_mtu, ..path.setup() };
        every_operation(setup, path_mtu == PathMtu::B1024);
    }
}

fn every_operation_works_at_every_path_mtu(path: Path) {
    for path_mtu in MTUS.into_iter().filter(|mtu| *mtu <= path.path_mtu_max()) {
        every_operation(Setup { path_mtu, ..path.setup() }, path_mtu == PathMtu::B256);
    }
}

fn one_thread_can_be_both_ends(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let data = pattern(9, 3 << 20);
    b.qp.post(Work::recv(b.pd.buffer(data.len()).expect("memory"))).expect("room");
    a.qp.post(Work::send(a.buffer(&data))).expect("room");
    let got = b.wait().ok().expect("received");
    assert_same(&got.memory.and_then(Memory::into_buf).expect("a buffer"), &data, "SEND");
    assert_eq!(a.status(), WcStatus::Success);
    atomics(&pair);
}

fn both_directions_work_at_once(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let (x, y) = (pattern(1, 1 << 20), pattern(2, 1 << 20));
    let (at_a, at_b) = (a.region(&vec![0; 1 << 20]), b.region(&vec![0; 1 << 20]));
    with_b_elsewhere(&pair, |done| {
        for _ in 0..20 {
            a.qp.post(Work::write(a.buffer(&x), remote(&at_b))).expect("room");
            b.qp.post(Work::write(b.buffer(&y), remote(&at_a))).expect("room");
        }
        for _ in 0..20 {
            assert_eq!(a.status(), WcStatus::Success);
            let done = done.recv_timeout(FOREVER).expect("a completion").expect("no overrun");
            assert_eq!(done.wc.status, WcStatus::Success);
        }
    });
    assert_same(&bytes_of(&at_a, 0, 1 << 20), &y, "to a");
    assert_same(&bytes_of(&at_b, 0, 1 << 20), &x, "to b");
}

/// Goal: a batch is what its requests one by one are, and a mistake in it costs nothing but what is behind it.
/// Method: more than go to the device at once, signaled and not, with a READ in the midst and receives beside; then
/// memory of another protection domain in the midst, and more than the queue holds.
fn a_batch_is_posted_in_order_and_what_is_refused_comes_back(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let region = b.region(&[9; 8]);
    let far = remote(&region);
    let count = 70_u8;
    let message = |at: u8| Work::send(a.buffer(&[at; 8])).wr_id(at.into()).any();
    b.qp.post_all((0..count).map(|_| Work::recv(b.buffer(&[0; 8])))).expect("room");
    let works = (0..count).map(|at| match at {
        40 => Work::read(a.buffer(&[0; 8]), far).wr_id(40).any(),
        at if at % 2 == 1 && at != count - 1 => message(at).unsignaled(),
        at => message(at),
    });
    a.qp.post_all(works).expect("room");
    for at in (0..count).filter(|at| *at != 40) {
        let done = b.wait().ok().expect("received");
        let got = done.memory.and_then(Memory::into_buf).expect("a buffer");
        assert_eq!(got[..], [at; 8]);
    }
    for at in (0..count).filter(|at| at % 2 == 0 || *at == count - 1) {
        let done = a.wait().ok().expect("done");
        assert_eq!(done.wc.wr_id, u64::from(at));
        let got = done.memory.and_then(Memory::into_buf).expect("a buffer");
        assert_eq!(got[..], [if at == 40 { 9 } else { at }; 8]);
    }
    let foreign = pair.context.alloc_pd().buffer(8).expect("memory");
    b.qp.post_all((0..3).map(|_| Work::recv(b.buffer(&[0; 8])))).expect("room");
    let works = [0, 1].map(message).into_iter().chain([Work::send(foreign).any(), message(3)]);
    let refused = a.qp.post_all(works).expect_err("memory of another domain");
    assert_eq!((refused.posted, refused.error), (2, PostError::ForeignMemory));
    let lens = refused.memory.into_iter().map(|memory| memory.into_buf().map(|buf| buf.len()));
    assert_eq!(lens.collect::<Vec<_>>(), [Some(8), Some(8)]);
    for _ in 0..2 {
        assert_eq!((b.status(), a.status()), (WcStatus::Success, WcStatus::Success));
    }
    assert!(a.is_quiet());
    let most = path.setup().wr;
    let refused = a.qp.post_all((0..most + 5).map(|_| message(0).unsignaled()));
    let refused = refused.expect_err("more than there is room for");
    let posted = u32::try_from(refused.posted).expect("few");
    assert!(posted >= 1 && posted <= most, "{posted} of {most}: {}", refused.error);
    assert_eq!(refused.memory.len(), usize::try_from(most + 5 - posted).expect("few"));
}

/// Goal: a wait ends after its time, and not before a completion that comes in it.
fn a_wait_has_an_end(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let start = Instant::now();
    assert!(b.cq.wait_timeout(Duration::from_millis(20)).expect("no overrun").is_none());
    assert!(start.elapsed() >= Duration::from_millis(20));
    b.qp.post(Work::recv(b.buffer(&[0; 8]))).expect("room");
    a.qp.post(Work::send(a.buffer(&[1; 8]))).expect("room");
    let done = b.cq.wait_timeout(FOREVER).expect("no overrun").expect("it has come");
    assert_eq!(done.wc.status, WcStatus::Success);
    assert_eq!(a.status(), WcStatus::Success);
}

fn raw(wr_id: u64, kind: SendKind, data: SendData<'_>) -> SendWork<'_> {
    let (signaled, solicited, fence) = (true, false, false);
    SendWork { to: SendTo::Peer, wr_id, kind, data, signaled, solicited, fence, buffer: None }
}

const SEND: SendKind = SendKind::Send { imm: None };

fn cut(mr: &adverb_verbs::Mr, parts: &[(usize, usize)]) -> Vec<Sge> {
    parts.iter().map(|(at, len)| mr.sge(*at, *len).expect("in there")).collect()
}

/// Goal: pieces are gathered and scattered in order, wherever the packets are cut.
/// Method: the cuts of the two lists and of the packets fall on different bytes; one piece is empty.
fn lists_of_pieces_are_gathered_and_scattered_in_order(path: Path) {
    for path_mtu in MTUS.into_iter().filter(|mtu| *mtu <= path.path_mtu_max()) {
        let pair = Setup { path_mtu, sge: 5, ..path.setup() }.pair();
        let (a, b) = (&pair.a, &pair.b);
        let bytes = pattern(3, 20_000);
        let (source, target) = (a.region(&bytes), b.region(&[0; 20_000]));
        let from = cut(&source, &[(9000, 4097), (0, 0), (17, 3), (5000, 1024), (100, 2500)]);
        let want: Vec<u8> =
            [&bytes[9000..13_097], &bytes[17..20], &bytes[5000..6024], &bytes[100..2600]].concat();
        let to = cut(&target, &[(1, 1), (10_000, 255), (2000, 3000), (0, 0), (12_000, 5000)]);
        b.post_recv(&[ReceiveWork { wr_id: 1, sges: &to, buffer: None }]).expect("room");
        a.post_send(&[raw(2, SEND, SendData::Gather(&from))]).expect("room");
        assert_eq!(a.status(), WcStatus::Success);
        let got = b.wait().ok().expect("received");
        assert_eq!(usize::try_from(got.wc.byte_len), Ok(want.len()));
        let got = [
            bytes_of(&target, 1, 1),
            bytes_of(&target, 10_000, 255),
            bytes_of(&target, 2000, 3000),
            bytes_of(&target, 12_000, want.len() - 3256),
        ]
        .concat();
        assert_same(&got, &want, "the pieces");

        // READ scatters at the requester.
        let len = want.len();
        target.write(0, &pattern(4, len)).expect("it fits");
        source.fill(0, 20_000, 0).expect("it fits");
        let kind = SendKind::Read { va: target.addr(), rkey: target.rkey() };
        a.post_send(&[raw(3, kind, SendData::Gather(&from))]).expect("room");
        a.wait().ok().expect("read");
        let got = [
            bytes_of(&source, 9000, 4097),
            bytes_of(&source, 17, 3),
            bytes_of(&source, 5000, 1024),
            bytes_of(&source, 100, 2500),
        ]
        .concat();
        assert_same(&got, &pattern(4, len), "what was read");
    }
}

fn inline_data_is_copied_when_posted(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let target = b.region(&[0; 64]);
    for len in [0, 1, 63, 64] {
        let mut data = pattern(5, len);
        let want = data.clone();
        let kind = SendKind::Write { va: target.addr(), rkey: target.rkey(), imm: None };
        a.post_send(&[raw(1, kind, SendData::Inline(&data))]).expect("room");
        data.fill(0);
        a.wait().ok().expect("written");
        assert_same(&bytes_of(&target, 0, len), &want, "inline WRITE");
    }
}

/// Goal: requests that were not marked complete silently, in order, and are covered by the next
/// one that is marked; `signal_all` marks all.
fn unsignaled_requests_complete_silently(path: Path) {
    let pair = Setup { wr: 16, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    let counter = b.region(&[0; 8]);
    let scratch = a.region(&[0; 8]);
    let sge = [scratch.sge(0, 8).expect("in there")];
    let add = SendKind::FetchAdd { va: counter.addr(), rkey: counter.rkey(), add: 1 };
    for round in 0..50 {
        let batch: Vec<_> = (0..16)
            .map(|n| SendWork { signaled: n == 15, ..raw(n, add, SendData::Gather(&sge)) })
            .collect();
        a.post_send(&batch).expect("room");
        let done = a.wait().ok().expect("done");
        assert_eq!(done.wc.wr_id, 15, "round {round}");
    }
    assert!(a.is_quiet());
    assert_eq!(counter.load_u64(0), Ok(50 * 16));
}

/// Goal: a fenced request starts only after the READs before it: here, the WRITE of what the READ
/// brings.
fn a_fenced_write_sends_what_the_read_before_it_brought(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let len = 1 << 20;
    let data = pattern(6, len);
    let (source, target) = (b.region(&data), b.region(&vec![0; len]));
    for _ in 0..10 {
        let between = a.region(&vec![0; len]);
        target.fill(0, len, 0).expect("it fits");
        let sge = [between.sge(0, len).expect("in there")];
        let read = SendKind::Read { va: source.addr(), rkey: source.rkey() };
        let write = SendKind::Write { va: target.addr(), rkey: target.rkey(), imm: None };
        let batch = [
            raw(1, read, SendData::Gather(&sge)),
            SendWork { fence: true, ..raw(2, write, SendData::Gather(&sge)) },
        ];
        a.post_send(&batch).expect("room");
        for wr_id in [1, 2] {
            assert_eq!(a.wait().ok().expect("done").wc.wr_id, wr_id);
        }
        assert_same(&bytes_of(&target, 0, len), &data, "what came back");
    }
}

/// Goal: deep queues keep their order, and a queue is free again when its work has completed.
fn thousands_of_messages_arrive_in_order(path: Path) {
    let pair = Setup { wr: 64, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    let (mut posted, mut received, mut receives, mut sent) = (0_u64, 0_u64, 0_u64, 0_u64);
    let total = 5000;
    let lens = |n: u64| usize::try_from(n * 97 % 9000).expect("small");
    while received < total || sent < total {
        while receives < total && receives < received + 64 {
            b.qp.post(Work::recv(b.pd.buffer(9000).expect("memory")).wr_id(receives))
                .expect("room");
            receives += 1;
        }
        while posted < total && posted < sent + 64 {
            a.qp.post(Work::send(a.buffer(&pattern(posted, lens(posted)))).wr_id(posted))
                .expect("room");
            posted += 1;
        }
        while let Some(done) = a.cq.next().expect("no overrun") {
            assert_eq!((done.wc.status, done.wc.wr_id), (WcStatus::Success, sent));
            sent += 1;
        }
        while let Some(done) = b.cq.next().expect("no overrun") {
            assert_eq!((done.wc.status, done.wc.wr_id), (WcStatus::Success, received));
            let len = usize::try_from(done.wc.byte_len).expect("small");
            assert_eq!(len, lens(received));
            let buffer = done.memory.and_then(Memory::into_buf).expect("a buffer");
            assert_same(&buffer[..len], &pattern(received, len), "a message");
            received += 1;
        }
    }
}

fn mistakes_are_refused_and_nothing_is_queued(path: Path) {
    let setup = Setup { wr: 4, sge: 2, inline: 16, max_rd_atomic: 0, ..path.setup() };
    let pair = setup.pair();
    let (a, b) = (&pair.a, &pair.b);
    let mr = a.region(&[1; 64]);
    let target = b.region(&[2; 64]);
    let (va, rkey) = (target.addr(), target.rkey());
    let sges = cut(&mr, &[(0, 8), (8, 8), (16, 8)]);
    let write = SendKind::Write { va, rkey, imm: None };
    let read = SendKind::Read { va, rkey };
    let add = SendKind::FetchAdd { va, rkey, add: 1 };
    let long = Sge { len: 1 << 31, ..sges[0] };
    let (too_long, barely_too_long) = ([long, long], [long, sges[0]]);
    let cases = [
        (raw(0, write, SendData::Gather(&sges)), PostError::TooManySges { count: 3, max: 2 }),
        (raw(0, write, SendData::Inline(&[0; 17])), PostError::InlineTooLong { len: 17, max: 16 }),
        (raw(0, read, SendData::Inline(&[0; 8])), PostError::InlineForRead),
        (raw(0, add, SendData::Gather(&sges[..2])), PostError::AtomicLength { len: 16 }),
        (raw(0, read, SendData::Gather(&sges[..1])), PostError::ReadsNotAllowed),
        (raw(0, add, SendData::Gather(&sges[..1])), PostError::ReadsNotAllowed),
        (raw(0, write, SendData::Gather(&too_long)), PostError::TooLong),
        (raw(0, SEND, SendData::Gather(&barely_too_long)), PostError::TooLong),
    ];
    for (work, error) in cases {
        let good = raw(7, write, SendData::Inline(&[3; 4]));
        let result = a.post_send(&[good, work, good]);
        assert_eq!(result, Err((1, error)), "those before the mistake are posted");
        assert_eq!(a.wait().ok().expect("written").wc.wr_id, 7);
        assert!(a.is_quiet(), "{error} queued something");
    }
    let sges = cut(&mr, &[(0, 1), (1, 1), (2, 1)]);
    let receive = ReceiveWork { wr_id: 1, sges: &sges, buffer: None };
    let result = a.post_recv(&[receive]);
    assert_eq!(result, Err((0, PostError::TooManySges { count: 3, max: 2 })));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

fn a_full_queue_says_so_and_gives_the_memory_back(path: Path) {
    let pair = Setup { wr: 4, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    for wr_id in 0..4 {
        a.qp.post(Work::recv(a.buffer(b"room")).wr_id(wr_id)).expect("room");
    }
    let refused = a.qp.post(Work::recv(a.buffer(b"mine"))).expect_err("full");
    assert_eq!(refused.error, PostError::QueueFull { capacity: 4 });
    let memory = refused.memory.into_iter().find_map(Memory::into_buf).expect("it comes back");
    assert_eq!(&memory[..], b"mine");

    // Without receives at the peer nothing completes.
    for wr_id in 0..4 {
        a.qp.post(Work::send(a.buffer(b"work")).wr_id(wr_id)).expect("room");
    }
    let refused = a.qp.post(Work::send(memory)).expect_err("full");
    assert_eq!(refused.error, PostError::QueueFull { capacity: 4 });
    let memory = refused.memory.into_iter().find_map(Memory::into_buf).expect("it comes back");
    assert_eq!(&memory[..], b"mine");
    for _ in 0..4 {
        b.qp.post(Work::recv(b.buffer(b"room"))).expect("room");
    }
    for wr_id in 0..4 {
        assert_eq!((a.wait().ok().expect("sent").wc.wr_id, b.status()), (wr_id, WcStatus::Success));
    }
    b.qp.post(Work::recv(b.buffer(b"room"))).expect("room again");
    a.qp.post(Work::send(memory)).expect("room again");
    assert_eq!((a.status(), b.status()), (WcStatus::Success, WcStatus::Success));
}

/// Goal: a program that posts until the queue is full never overruns a completion queue that is as long.
fn a_slot_is_taken_until_its_completion_is_polled(path: Path) {
    let pair = Setup { wr: 4, cqe: 4, ..path.setup() }.pair();
    let (a, b) = (&pair.a, &pair.b);
    let target = b.pd.allocate(8, Access::ALL).expect("memory");
    let post = || a.qp.post(Work::write(a.buffer(b"new word"), remote(&target)));
    let full = PostError::QueueFull { capacity: 4 };
    for _ in 0..4 {
        post().expect("room");
    }
    for _ in 0..3 {
        // All have ended; none has been polled.
        for _ in 0..1000 {
            pair.context.drive();
            pair.far.drive();
        }
        assert_eq!(post().expect_err("full").error, full);
        assert_eq!(a.status(), WcStatus::Success);
        post().expect("room for one");
        assert_eq!(post().expect_err("full again").error, full);
    }
    for _ in 0..4 {
        assert_eq!(a.status(), WcStatus::Success);
    }
    // A batch that is longer than the queue is posted as far as it fits, if its requests end at once.
    let kind = SendKind::Write { va: target.addr(), rkey: target.rkey(), imm: None };
    let batch: Vec<_> = (0..8).map(|wr_id| raw(wr_id, kind, SendData::Inline(b"word"))).collect();
    assert_eq!(a.post_send(&batch), Err((4, full)));
    for wr_id in 0..4 {
        let done = a.wait().wc;
        assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::Success));
    }
    assert!(a.is_quiet() && a.qp.state() == QpState::Rts);
}

#[test]
fn a_queue_pair_that_is_not_connected_takes_no_work() {
    let setup = Setup::default();
    let context = adverb_verbs::Context::open("soft_lo").expect("the loopback device");
    let side = setup.side(&context);
    let refused = side.qp.post(Work::send(side.buffer(b"x"))).expect_err("not connected");
    assert_eq!(refused.error, PostError::NotReady { state: QpState::Reset });
    assert_eq!(
        &refused.memory.into_iter().find_map(Memory::into_buf).expect("comes back")[..],
        b"x"
    );
    let refused = side.qp.post(Work::recv(side.buffer(b"x"))).expect_err("not connected");
    assert_eq!(refused.error, PostError::NotReady { state: QpState::Reset });
    assert!(side.is_quiet());
}

fn memory_of_a_region_stays_registered_while_work_uses_it(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let data = pattern(8, 4 << 20);
    let target = b.region(&vec![0; data.len()]);
    let source = a.region(&data);
    let slice = source.slice(0, data.len()).expect("in there");
    a.qp.post(Work::write(slice, remote(&target))).expect("room");
    drop(source); // The work holds it.
    assert_eq!(a.status(), WcStatus::Success);
    assert_same(&bytes_of(&target, 0, data.len()), &data, "WRITE");
}

fn a_vector_can_be_given_away_as_a_region(path: Path) {
    let pair = path.setup().pair();
    let (a, b) = (&pair.a, &pair.b);
    let mr = b.pd.register_vec(pattern(1, 1001), Access::LOCAL_WRITE | Access::REMOTE_READ);
    let mr = mr.expect("memory");
    a.qp.post(Work::read(a.pd.buffer(1000).expect("memory"), remote(&mr).plus(1))).expect("room");
    let got = a.wait().ok().expect("read").memory.and_then(Memory::into_buf).expect("a buffer");
    assert_same(&got, &pattern(1, 1001)[1..], "READ");
}
