//! Objects beside the data path: kinds of memory, what queries say, and sizes that change.
//!
//! # Safety
//!
//! Raw requests are of regions that outlive them and lend no references.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use adverb_sys::memory::{Mapping, memfd};
use adverb_verbs::{
    Access, AllocateError, CqConfig, DataPath, QpConfig, QpState, RemoteSlice, ResizeError,
    SendData, SendKind, SendTo, SendWork, Sge, Timestamps, WcStatus, Work, WorkCompletion,
};
use support::Bench;

/// Writes `bytes` from one queue pair's side to `target` of the other's.
fn write(bench: &Bench, target: RemoteSlice, bytes: &[u8]) -> WcStatus {
    let cq = bench.context.create_cq(16).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    let mut source = bench.pd.buffer(bytes.len()).unwrap();
    source.copy_from_slice(bytes);
    a.post(Work::write(source, target)).unwrap();
    cq.wait().unwrap().wc.status
}

#[test]
fn peers_reach_zero_based_memory_by_offset() {
    let bench = Bench::new();
    let flags = [Access::ON_DEMAND, Access::RELAXED_ORDERING, Access::HUGETLB];
    let access = flags.into_iter().fold(Access::ALL | Access::ZERO_BASED, Access::with);
    let mr = bench.pd.allocate(8192, access).unwrap();
    assert_eq!((mr.addr(), mr.access()), (0, access));
    let at = RemoteSlice { addr: 8000, rkey: mr.rkey() };
    assert_eq!(write(&bench, at, b"here"), WcStatus::Success);
    let mut got = [0; 4];
    mr.read(8000, &mut got).unwrap();
    assert_eq!(&got, b"here");
    assert_eq!(write(&bench, at.plus(192), b"x"), WcStatus::RemoteAccess);
}

#[test]
fn a_files_memory_is_shared_with_all_that_map_it() {
    let bench = Bench::new();
    let (mapping, file) = Mapping::memfd("shared", 3 * 4096).unwrap();
    let mr = bench.pd.register_fd(&file, 5000, 4096, Access::ALL).unwrap();
    drop(file);
    let word = mapping.atomic_u64(5000).unwrap();
    let at = RemoteSlice { addr: mr.addr(), rkey: mr.rkey() };
    assert_eq!(write(&bench, at, &7_u64.to_ne_bytes()), WcStatus::Success);
    assert_eq!(word.load(std::sync::atomic::Ordering::Acquire), 7);

    let open = memfd("open", 4096).unwrap();
    let refused = bench.pd.register_fd(&open, 0, 4096, Access::ALL).unwrap_err();
    assert!(matches!(refused, AllocateError::NotSealed), "{refused}");
    let (_mapping, file) = Mapping::memfd("short", 4096).unwrap();
    for (offset, len) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, usize::MAX)] {
        let refused = bench.pd.register_fd(&file, offset, len, Access::ALL).unwrap_err();
        assert!(matches!(refused, AllocateError::FileTooShort { .. }), "{refused}");
    }
}

#[test]
fn memory_of_the_device_is_copied_to_and_from_and_written_by_peers() {
    let bench = Bench::new();
    let dm = bench.context.alloc_dm(4096).unwrap();
    dm.write(0, b"before").unwrap();
    let mr = bench.pd.register_dm(&dm, 100, 50, Access::ALL).unwrap();
    assert_eq!(mr.addr(), 0);
    let at = RemoteSlice { addr: 2, rkey: mr.rkey() };
    assert_eq!(write(&bench, at, b"peer"), WcStatus::Success);
    let mut got = [0; 4];
    dm.read(102, &mut got).unwrap();
    assert_eq!(&got, b"peer");
    assert_eq!(write(&bench, at.plus(45), b"peer"), WcStatus::RemoteAccess);
    assert!(dm.write(4095, b"xx").is_err());
    assert!(bench.pd.register_dm(&dm, 4000, 97, Access::ALL).is_err());
    drop(dm);
    mr.write(0, b"the region keeps it").unwrap();
}

#[test]
fn a_region_registered_anew_has_new_rights_and_its_old_key_is_dead() {
    let bench = Bench::new();
    let mr = bench.pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    mr.write(0, b"kept").unwrap();
    let at = RemoteSlice { addr: mr.addr(), rkey: mr.rkey() };
    assert_eq!(write(&bench, at, b"x"), WcStatus::RemoteAccess);

    let other = mr.clone();
    let refused = mr.reregister(&bench.pd, Access::ALL).unwrap_err();
    assert!(matches!(refused.why, AllocateError::InUse { handles: 1 }), "{refused}");
    drop(other);
    let refused = refused.mr.reregister(&bench.pd, Access::REMOTE_WRITE).unwrap_err();
    assert!(matches!(refused.why, AllocateError::Region(_)), "{refused}");
    let mr = refused.mr.reregister(&bench.pd, Access::ALL).unwrap();
    let now = RemoteSlice { addr: mr.addr(), rkey: mr.rkey() };
    assert_eq!(write(&bench, now.plus(4), b" it"), WcStatus::Success);
    assert_eq!(write(&bench, at, b"x"), WcStatus::RemoteAccess);
    let mut got = [0; 7];
    mr.read(0, &mut got).unwrap();
    assert_eq!(&got, b"kept it");

    // In another domain it is out of reach.
    let mr = mr.reregister(&bench.context.alloc_pd(), Access::ALL).unwrap();
    let at = RemoteSlice { addr: mr.addr(), rkey: mr.rkey() };
    assert_eq!(write(&bench, at, b"x"), WcStatus::RemoteAccess);
}

/// Goal: lists may have 32 pieces, null ones among them.
#[test]
fn a_message_is_gathered_from_32_pieces_and_scattered_around_what_is_not_wanted() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(16).unwrap();
    let config = QpConfig::new(&cq).max_send_sge(32).max_recv_sge(32);
    let [a, b] = bench.pair_of(&config, &config);
    let (source, target) = (
        bench.pd.allocate(64, Access::LOCAL_WRITE).unwrap(),
        bench.pd.allocate(64, Access::LOCAL_WRITE).unwrap(),
    );
    let null = bench.pd.null_mr().unwrap();
    source.write(0, &(0..64).collect::<Vec<u8>>()).unwrap();
    // Every other byte backwards, and two of zeros at the end.
    let mut from: Vec<Sge> = (0..31).map(|at| source.sge(62 - 2 * at, 1).unwrap()).collect();
    from.push(null.sge(2));
    let to = [null.sge(3), target.sge(10, 20).unwrap(), null.sge(8), target.sge(40, 2).unwrap()];
    let receive = adverb_verbs::ReceiveWork { wr_id: 1, sges: &to, buffer: None };
    // SAFETY: the regions outlive the work and lend no references.
    unsafe { b.post_recv(&[receive]) }.unwrap();
    let send = SendWork {
        to: SendTo::Peer,
        wr_id: 2,
        kind: SendKind::Send { imm: None },
        data: SendData::Gather(&from),
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    };
    // SAFETY: as above.
    unsafe { a.post_send(&[send]) }.unwrap();
    for _ in 0..2 {
        assert_eq!(cq.wait().unwrap().ok().unwrap().wc.byte_len, 33);
    }
    let mut got = [0; 20];
    target.read(10, &mut got).unwrap();
    let want: Vec<u8> = (3..23).map(|at| 62 - 2 * at).collect();
    assert_eq!(got.to_vec(), want);
    let mut zeros = [9; 2];
    target.read(40, &mut zeros).unwrap();
    assert_eq!(zeros, [0, 0]);
}

#[test]
fn a_completion_queue_can_change_its_size_and_keeps_what_it_has() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(2).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    let recv = |wr_id| a.post(Work::recv(bench.pd.buffer(1).unwrap()).wr_id(wr_id)).unwrap();
    (1..=4).for_each(recv);
    cq.resize(4).unwrap();
    a.to_err();
    assert_eq!(cq.resize(3), Err(ResizeError::InUse { asked: 3, used: 4 }));
    assert!(matches!(cq.resize(0), Err(ResizeError::OutOfRange { .. })));
    for wr_id in 1..=4 {
        assert_eq!(cq.next().unwrap().unwrap().wc.wr_id, wr_id);
    }
    assert!(cq.next().unwrap().is_none());
    cq.resize(1).unwrap();
    assert_eq!(cq.capacity(), 1);
}

#[test]
fn completions_are_stamped_in_order_by_the_clock_that_was_asked_for() {
    let bench = Bench::new();
    let clocks: [(Timestamps, fn() -> u64); 2] = [
        (Timestamps::Monotonic, adverb_sys::clock::now_ns),
        (Timestamps::WallClock, adverb_sys::clock::unix_ns),
    ];
    for (timestamps, now) in clocks {
        let before = now();
        let config = CqConfig::new(16).timestamps(timestamps);
        let cq = bench.context.create_cq_with(&config).unwrap();
        let [a, b] = bench.pair(&cq, &cq);
        let mut last = before;
        for _ in 0..4 {
            b.post(Work::recv(bench.pd.buffer(1).unwrap())).unwrap();
            a.post(Work::send(bench.pd.buffer(1).unwrap())).unwrap();
            for _ in 0..2 {
                let stamp = cq.wait().unwrap().wc.timestamp_ns;
                assert!(stamp >= last && stamp <= now(), "{timestamps:?}");
                last = stamp;
            }
        }
    }
    let cq = bench.context.create_cq(1).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    a.post(Work::recv(bench.pd.buffer(1).unwrap())).unwrap();
    a.to_err();
    assert_eq!(cq.wait().unwrap().wc.timestamp_ns, 0);
}

/// Goal: a program that waits for its request before it looks for the answer waits for one poll, in which the answer
/// comes and acknowledges the request. Method: both ends are of this process; the helper may come first, but not often.
#[test]
fn the_poll_that_takes_an_answer_ends_the_request_that_it_acknowledges() {
    const ROUNDS: usize = 100;
    let bench = Bench::new();
    let [sends, receives, far_sends, far_receives] =
        [(); 4].map(|()| bench.context.create_cq(16).unwrap());
    let here = QpConfig::new(&sends).recv_cq(&receives);
    let there = QpConfig::new(&far_sends).recv_cq(&far_receives);
    let [a, b] = bench.pair_of(&here, &there);
    if a.path() != Some(DataPath::InProcess) {
        println!("skipped: answers of neighbours alone acknowledge at once");
        return;
    }
    let buffer = || bench.pd.buffer(8).unwrap();
    let mut many = [WorkCompletion::EMPTY; 4];
    let mut at_once = 0;
    for _ in 0..ROUNDS {
        a.post(Work::recv(buffer())).unwrap();
        b.post(Work::recv(buffer())).unwrap();
        a.post(Work::send(buffer())).unwrap();
        far_receives.wait().unwrap().ok().unwrap();
        b.post(Work::send(buffer())).unwrap();
        let found = sends.poll(&mut many).unwrap();
        match found {
            0 => drop(sends.wait().unwrap().ok().unwrap()),
            _ => drop(sends.take(&many[0])),
        }
        at_once += found;
        receives.wait().unwrap().ok().unwrap();
        far_sends.wait().unwrap().ok().unwrap();
    }
    assert!(at_once > ROUNDS / 2, "{at_once} of {ROUNDS}");
}

#[test]
fn a_query_says_what_a_queue_pair_is_and_was_made_of() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(16).unwrap();
    let config = QpConfig::new(&cq).max_send_wr(5).max_inline(100);
    let fresh = bench.pd.create_qp(&config).unwrap().query();
    assert_eq!((fresh.state, fresh.remote), (QpState::Reset, None));
    let [a, b] = bench.pair_of(&config, &config);
    let now = a.query();
    assert_eq!((now.state, now.cap.max_send_wr, now.cap.max_inline), (QpState::Rts, 5, 100));
    assert_eq!(now.remote.map(|(_, number)| number), Some(b.number()));
    let parent = bench.pd.parent_domain();
    let buffer = parent.buffer(1).unwrap();
    b.post(Work::recv(bench.pd.buffer(1).unwrap())).unwrap();
    a.post(Work::send(buffer)).unwrap();
    for _ in 0..2 {
        cq.wait().unwrap().ok().unwrap();
    }
}

/// Goal: neither sequence numbers nor keys of a queue pair, or a region, tell those of the next.
#[test]
fn sequence_numbers_and_keys_cannot_be_told() {
    let firsts = || {
        let bench = Bench::new();
        let cq = bench.context.create_cq(16).unwrap();
        let [a, b] = bench.pair(&cq, &cq);
        let mr = bench.pd.allocate(64, Access::ALL).unwrap();
        [a.first_psn().get(), b.first_psn().get(), mr.rkey().0]
    };
    let all: Vec<_> = (0..8).map(|_| firsts()).collect();
    let steps = |at: usize| all.windows(2).map(move |pair| pair[1][at].wrapping_sub(pair[0][at]));
    for at in 0..3 {
        let steps: std::collections::BTreeSet<_> = steps(at).collect();
        assert!(steps.len() > 4, "{at}: {all:x?}");
    }
}

#[test]
fn what_is_out_of_bounds_is_refused_with_the_bounds() {
    let bench = Bench::new();
    let attr = bench.context.query_device();
    let vector = CqConfig::new(1).comp_vector(attr.num_comp_vectors);
    let refused = bench.context.create_cq_with(&vector).unwrap_err().to_string();
    assert!(refused.contains("comp_vector"), "{refused}");
    for cqe in [0, attr.max_cqe + 1] {
        assert!(bench.context.create_cq(cqe).unwrap_err().to_string().contains("cqe"));
    }
}
