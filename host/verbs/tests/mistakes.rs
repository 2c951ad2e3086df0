//! What a program can do wrong with handles and memory, and what becomes of it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use adverb_verbs::{
    Access, BufferNumber, Context, PostError, QpConfig, QpState, RemoteSlice, SrqConfig, WcStatus,
    Work, WorkCompletion,
};
use support::Bench;

#[test]
fn unsignaled_work_gives_its_memory_free_when_a_later_request_completes() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    let target = bench.pd.allocate(64, Access::ALL).unwrap();
    let source = bench.pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    let to = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    for _ in 0..50 {
        for _ in 0..7 {
            let work = Work::write(source.slice(0, 8).unwrap(), to).unsignaled();
            a.post(work).unwrap();
        }
        a.post(Work::write(source.slice(0, 8).unwrap(), to).wr_id(9)).unwrap();
        let done = cq.wait().unwrap().ok().unwrap();
        assert_eq!(done.wc.wr_id, 9, "an unsignaled request completed visibly");
        drop(done);
        // A region with other handles cannot be registered anew: none is left but ours.
        assert!(cq.next().unwrap().is_none());
    }
    source.reregister(&bench.pd, Access::LOCAL_WRITE).expect("all slices were released");
}

#[test]
fn unsignaled_work_that_fails_and_what_is_flushed_after_it_comes_back_piece_by_piece() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    let source = bench.pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    let nowhere = RemoteSlice { addr: 0, rkey: adverb_verbs::Rkey(0) };
    let target = bench.pd.allocate(64, Access::ALL).unwrap();
    let to = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    let slice = || source.slice(0, 8).unwrap();
    a.post(Work::write(slice(), to).unsignaled().wr_id(1)).unwrap();
    a.post(Work::write(slice(), nowhere).unsignaled().wr_id(2)).unwrap();
    let failed = cq.wait().unwrap();
    assert_eq!((failed.wc.wr_id, failed.wc.status), (2, WcStatus::RemoteAccess));
    assert!(failed.memory.is_some());
    // After the failure everything is flushed with a completion of its own.
    for wr_id in 3..6 {
        a.post(Work::write(slice(), to).unsignaled().wr_id(wr_id)).unwrap();
        let flushed = cq.wait().unwrap();
        assert_eq!(flushed.wc.wr_id, wr_id);
        assert_eq!(flushed.wc.status, WcStatus::WorkRequestFlushed);
        assert!(flushed.memory.is_some());
    }
    drop(failed);
    source.reregister(&bench.pd, Access::LOCAL_WRITE).expect("all slices came back");
}

#[test]
fn unsignaled_work_without_end_is_refused_before_it_fills_memory() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let config = QpConfig::new(&cq).max_send_wr(4);
    let [a, _b] = bench.pair_of(&config, &config);
    let target = bench.pd.allocate(64, Access::ALL).unwrap();
    let to = RemoteSlice { addr: target.addr(), rkey: target.rkey() };
    let work = || Work::write(target.slice(0, 8).unwrap(), to);
    let mut posted = 0;
    let refused = loop {
        match a.post(work().unsignaled()) {
            Ok(()) => posted += 1,
            Err(rejected) if rejected.error == PostError::QueueFull { capacity: 4 } => {
                bench.context.drive();
            }
            Err(rejected) => break rejected.error,
        }
    };
    assert_eq!((posted, refused), (4, PostError::TooManyUnsignaled { max: 4 }));
    while a.post(work()).is_err() {
        bench.context.drive();
    }
    cq.wait().unwrap().ok().unwrap();
    a.post(work().unsignaled()).unwrap();
}

/// Goal: memory that the device may use is out of reach, whatever completions a program makes up.
#[test]
fn a_made_up_completion_gives_nothing_back() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    for number in 0..10 {
        let made_up = WorkCompletion { buffer: BufferNumber::new(number), ..WorkCompletion::EMPTY };
        assert!(cq.take(&made_up).is_none());
        let made_up = WorkCompletion { srq: Some(1), ..made_up };
        assert!(cq.take(&made_up).is_none());
    }
    b.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    let mut out = [WorkCompletion::EMPTY; 2];
    let mut seen = 0;
    while seen < 2 {
        seen += cq.poll(&mut out[seen..]).unwrap();
    }
    for wc in out {
        assert!(cq.take(&wc).is_some());
        assert!(cq.take(&wc).is_none(), "given back twice");
    }
}

#[test]
fn slices_come_back_at_the_end_of_their_scope_whatever_is_outstanding() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    let mut room = [7; 8];
    bench.pd.scope(|scope| {
        b.post(Work::recv(scope.lend_mut(&mut room).unwrap()).wr_id(1)).unwrap();
    });
    room[0] = 8;
    a.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    let mut statuses = [cq.wait().unwrap().wc.status, cq.wait().unwrap().wc.status];
    statuses.sort_unstable_by_key(|status| *status == WcStatus::RemoteOperation);
    assert_eq!(statuses, [WcStatus::LocalProtection, WcStatus::RemoteOperation]);
    assert_eq!(room, [8, 7, 7, 7, 7, 7, 7, 7]);
}

/// Goal: what a scope has lent is refused once it has ended, by a queue pair and by a shared queue, and comes back;
/// so is what was lent in another domain.
#[test]
fn what_a_scope_has_lent_is_refused_when_it_has_ended() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, _b] = bench.pair(&cq, &cq);
    let srq = bench.pd.create_srq(&SrqConfig::new(4)).unwrap();
    let (mut room, text) = ([7; 8], *b"text");
    let [room, text] =
        bench.pd.scope(|scope| [scope.lend_mut(&mut room).unwrap(), scope.lend(&text).unwrap()]);
    let refused = [
        a.post(Work::recv(room.clone())).unwrap_err(),
        srq.post(Work::recv(room)).unwrap_err(),
        a.post(Work::send(text.clone())).unwrap_err(),
        a.post_all([Work::send(text.clone()), Work::send(text)]).unwrap_err(),
    ];
    for (refused, memory) in refused.into_iter().zip([1, 1, 1, 2]) {
        assert_eq!((refused.posted, refused.error), (0, PostError::ScopeEnded));
        assert_eq!(refused.memory.len(), memory);
    }
    let other = bench.context.alloc_pd();
    other.scope(|scope| {
        let refused = a.post(Work::send(scope.lend(b"text").unwrap())).unwrap_err();
        assert_eq!(refused.error, PostError::ForeignMemory);
    });
}

#[test]
fn slices_come_back_when_a_scope_panics() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    let mut room = [7; 8];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bench.pd.scope(|scope| {
            b.post(Work::recv(scope.lend_mut(&mut room).unwrap()).wr_id(1)).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    a.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    cq.wait().unwrap();
    cq.wait().unwrap();
    assert_eq!(room, [7; 8]);
}

#[test]
fn a_shared_slice_cannot_be_written_through_work() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    let text = *b"constant";
    bench.pd.scope(|scope| {
        b.post(Work::recv(scope.lend(&text).unwrap()).wr_id(1)).unwrap();
        a.post(Work::send(scope.lend(&text).unwrap()).wr_id(2)).unwrap();
        let statuses = [cq.wait().unwrap().wc.status, cq.wait().unwrap().wc.status];
        assert!(statuses.contains(&WcStatus::LocalProtection), "{statuses:?}");
    });
    assert!(bench.pd.scope(|scope| scope.lend(&[]).is_err()));
}

/// Goal: handles can go in any order, with work outstanding, and the device goes on for others.
#[test]
fn handles_are_dropped_in_any_order_with_work_outstanding() {
    let keep = Bench::new();
    let keep_cq = keep.context.create_cq(64).unwrap();
    let [c, d] = keep.pair(&keep_cq, &keep_cq);
    for order in 0..24_usize {
        let context = Context::open("soft_lo").unwrap();
        let pd = context.alloc_pd();
        let cq = context.create_cq(64).unwrap();
        let [a, b] = [QpConfig::new(&cq), QpConfig::new(&cq)].map(|c| pd.create_qp(&c).unwrap());
        support::connect(&a, &b);
        for _ in 0..4 {
            a.post(Work::recv(pd.buffer(4096).unwrap())).unwrap();
            b.post(Work::send(pd.buffer(4096).unwrap())).unwrap();
        }
        let mut handles: Vec<Box<dyn std::any::Any>> =
            vec![Box::new((context, pd)), Box::new(cq), Box::new(a), Box::new(b)];
        let mut left = order;
        for radix in (1..=4).rev() {
            drop(handles.remove(left % radix));
            left /= radix;
        }
        d.post(Work::recv(keep.pd.buffer(8).unwrap())).unwrap();
        c.post(Work::send(keep.pd.buffer(8).unwrap())).unwrap();
        for _ in 0..2 {
            keep_cq.wait().unwrap().ok().unwrap();
        }
    }
}

#[test]
fn leaked_handles_do_no_harm() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    std::mem::forget((a, b, cq));
    let cq = bench.context.create_cq(64).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    a.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    b.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    for _ in 0..2 {
        cq.wait().unwrap().ok().unwrap();
    }
}

#[test]
fn posting_in_the_wrong_state_names_the_state_and_gives_the_memory_back() {
    let bench = Bench::new();
    let cq = bench.context.create_cq(64).unwrap();
    let qp = bench.pd.create_qp(&QpConfig::new(&cq)).unwrap();
    for work in [
        Work::send(bench.pd.buffer(8).unwrap()).any(),
        Work::recv(bench.pd.buffer(8).unwrap()).any(),
    ] {
        let rejected = qp.post(work).unwrap_err();
        assert_eq!(rejected.error, PostError::NotReady { state: QpState::Reset });
        assert_eq!(rejected.memory.len(), 1);
        assert!(rejected.to_string().contains("RESET"), "{rejected}");
    }
}
