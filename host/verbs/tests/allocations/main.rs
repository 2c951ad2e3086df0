//! What is allocated, and when: nothing on the data path, and how much for a queue pair.
//!
//! One test, because the allocator counts for the whole process: it has it to itself. And nobody
//! else's packets: putting steering right, which they may cause, allocates.

#[path = "../verbs/alone.rs"]
mod alone;
mod counting;
#[path = "../verbs/pair.rs"]
mod pair;

use adverb_verbs::{
    Access, Buf, Context, Cq, Memory, Mr, MwBind, MwKind, QpConfig, ReceiveWork, RemoteSlice,
    SendData, SendKind, SendTo, SendWork, Sge, WcStatus, Work,
};
use counting::counts;
use pair::{Pair, Setup, Side, remote};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: u64 = 10_000;
const LEN: usize = 64;

#[test]
fn the_data_path_allocates_nothing_and_queue_pairs_are_small() {
    alone::alone("the_data_path_allocates_nothing_and_queue_pairs_are_small", || {
        data_path();
        queue_pairs();
    });
}

fn data_path() {
    // Without time-outs: on a busy machine they come early, and a late answer makes the helper put
    // steering right, which allocates and is no part of the data path.
    let setup = Setup { timeout: 0, ..Setup::default() };
    let pair = setup.pair();
    let scene = Scene::new(&pair);
    let large = setup.pair();
    let long = Scene::with_len(&large, 100_000);
    scene.round_trips(1000);
    scene.owned_round_trips(1000);
    long.round_trips(100);
    scene.with_a_helper(20);

    let (before, _) = counts();
    scene.round_trips(ROUNDS);
    assert_eq!(counts().0 - before, 0, "raw batches");
    let (before, _) = counts();
    scene.owned_round_trips(ROUNDS);
    assert_eq!(counts().0 - before, 0, "owned work");
    let (before, _) = counts();
    long.round_trips(ROUNDS / 20);
    assert_eq!(counts().0 - before, 0, "many packets a message");
    windows(&pair, 100);
    let (before, _) = counts();
    windows(&pair, ROUNDS / 20);
    assert_eq!(counts().0 - before, WINDOWS, "a window is made, but binding it is free");
    let (before, _) = counts();
    scene.with_a_helper(100);
    assert_eq!(counts().0 - before, 0, "driven by the helper");
    two_threads(&pair);
}

/// What making a region and a window allocates: the region.
const WINDOWS: usize = 1;

/// B binds a window, A writes through it, and B invalidates its key.
fn windows(pair: &Pair, rounds: u64) {
    let Pair { a, b, .. } = pair;
    let mr = b.pd.allocate(LEN, Access::LOCAL_WRITE | Access::MW_BIND).expect("memory");
    let mw = b.pd.alloc_mw(MwKind::Type2).expect("a window");
    let part = MwBind::new(&mr, 0, LEN, Access::REMOTE_WRITE);
    let mut mine: Buf = a.pd.buffer(LEN).expect("memory");
    for _ in 0..rounds {
        let rkey = mw.rkey().incremented();
        b.qp.post(Work::bind_mw(&mw, rkey, &part).expect("it fits")).expect("room");
        assert_eq!(b.status(), WcStatus::Success);
        a.qp.post(Work::write(mine, RemoteSlice { addr: part.addr(), rkey })).expect("room");
        let done = pair::wait(&a.cq).ok().expect("success");
        mine = done.memory.and_then(Memory::into_buf).expect("it comes back");
        b.qp.post(Work::local_invalidate(rkey)).expect("room");
        assert_eq!(b.status(), WcStatus::Success);
    }
}

/// Two sides, each with a region; A's requests go to B's.
struct Scene<'a> {
    pair: &'a Pair,
    at_a: Mr,
    at_b: Mr,
    len: usize,
}

impl<'a> Scene<'a> {
    fn new(pair: &'a Pair) -> Self {
        Self::with_len(pair, LEN)
    }

    fn with_len(pair: &'a Pair, len: usize) -> Self {
        let region = |side: &Side| side.pd.allocate(len, Access::ALL).expect("memory");
        Self { pair, at_a: region(&pair.a), at_b: region(&pair.b), len }
    }

    fn kinds(&self) -> [SendKind; 6] {
        let (va, rkey) = (self.at_b.addr(), self.at_b.rkey());
        [
            SendKind::Send { imm: None },
            SendKind::Write { va, rkey, imm: None },
            SendKind::Read { va, rkey },
            SendKind::FetchAdd { va, rkey, add: 1 },
            SendKind::CompareSwap { va, rkey, compare: 0, swap: 1 },
            SendKind::Write { va, rkey, imm: Some(adverb_verbs::Imm(5)) },
        ]
    }

    fn work<'b>(&self, n: u64, kind: SendKind, sge: &'b [Sge]) -> SendWork<'b> {
        let data = SendData::Gather(sge);
        SendWork {
            to: SendTo::Peer,
            wr_id: n,
            kind,
            data,
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        }
    }

    /// Each operation in turn, posted raw and polled for, one after the other.
    fn round_trips(&self, rounds: u64) {
        let Pair { a, b, .. } = self.pair;
        let whole = [self.at_a.sge(0, self.len).expect("in there")];
        let word = [self.at_a.sge(0, 8).expect("in there")];
        let room = [self.at_b.sge(0, self.len).expect("in there")];
        for n in 0..rounds {
            for kind in self.kinds() {
                let atomic =
                    matches!(kind, SendKind::FetchAdd { .. } | SendKind::CompareSwap { .. });
                let receives =
                    matches!(kind, SendKind::Send { .. } | SendKind::Write { imm: Some(_), .. });
                if receives {
                    let receive = ReceiveWork { wr_id: n, sges: &room, buffer: None };
                    b.post_recv(&[receive]).expect("room");
                }
                let sge = if atomic { &word } else { &whole };
                a.post_send(&[self.work(n, kind, sge)]).expect("room");
                assert_eq!(a.status(), WcStatus::Success);
                if receives {
                    assert_eq!(b.status(), WcStatus::Success);
                }
            }
        }
    }

    /// The same with work that owns its memory.
    fn owned_round_trips(&self, rounds: u64) {
        let Pair { a, b, .. } = self.pair;
        let mut mine: Buf = a.pd.buffer(LEN).expect("memory");
        let mut theirs: Buf = b.pd.buffer(LEN).expect("memory");
        let far = remote(&self.at_b);
        let back = |cq: &Cq| -> Buf {
            let done = pair::wait(cq).ok().expect("success");
            done.memory.and_then(Memory::into_buf).expect("it comes back")
        };
        for _ in 0..rounds {
            b.qp.post(Work::recv(theirs)).expect("room");
            a.qp.post(Work::send(mine)).expect("room");
            mine = back(&a.cq);
            theirs = back(&b.cq);
            a.qp.post(Work::write(mine, far)).expect("room");
            mine = back(&a.cq);
            a.qp.post(Work::read(mine, far)).expect("room");
            mine = back(&a.cq);
            mine.resize(8).expect("it fits");
            a.qp.post(Work::fetch_add(mine, far, 1)).expect("room");
            mine = back(&a.cq);
            mine.resize(LEN).expect("it fits");
        }
    }

    /// Requests that complete while nobody polls.
    fn with_a_helper(&self, rounds: u64) {
        let Pair { a, .. } = self.pair;
        let sge = [self.at_a.sge(0, self.len).expect("in there")];
        for n in 0..rounds {
            let [_, write, read, ..] = self.kinds();
            for kind in [write, read] {
                a.post_send(&[self.work(n, kind, &sge)]).expect("room");
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(a.status(), WcStatus::Success);
            }
        }
    }
}

/// Goal: neither thread allocates when each side has one of its own.
fn two_threads(pair: &Pair) {
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    let target = pair.b.pd.allocate(LEN, Access::ALL).expect("memory");
    let from = pair.a.pd.allocate(LEN, Access::ALL).expect("memory");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let room = [target.sge(0, LEN).expect("in there")];
            let receive = ReceiveWork { wr_id: 0, sges: &room, buffer: None };
            pair.b.post_recv(&[receive; 64]).expect("room");
            ready.store(true, Ordering::Release);
            while !stop.load(Ordering::Acquire) {
                if pair.b.cq.next().expect("no overrun").is_some() {
                    pair.b.post_recv(&[receive]).expect("room");
                }
            }
        });
        while !ready.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let sge = [from.sge(0, LEN).expect("in there")];
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: 0,
            kind: SendKind::Send { imm: None },
            data: SendData::Gather(&sge),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        };
        let run = |rounds| {
            for _ in 0..rounds {
                pair.a.post_send(&[work]).expect("room");
                assert_eq!(pair.a.status(), WcStatus::Success);
            }
        };
        run(1000);
        let (before, _) = counts();
        run(ROUNDS);
        let after = counts().0;
        stop.store(true, Ordering::Release);
        assert_eq!(after - before, 0, "two threads");
    });
}

/// Prints what a queue pair takes, and fails if that is out of all proportion.
fn queue_pairs() {
    const COUNT: usize = 1000;
    let context = Context::open("soft_lo").expect("the loopback device");
    let pd = context.alloc_pd();
    let cq = context.create_cq(16).expect("a completion queue");
    let usual = QpConfig::new(&cq);
    let smallest = QpConfig { max_send_wr: 1, max_recv_wr: 1, max_inline: 0, ..usual.clone() };
    for (name, config, most) in [("usual", usual, 64 << 10), ("smallest", smallest, 4 << 10)] {
        let (_, before) = counts();
        let mut qps = Vec::with_capacity(COUNT);
        for _ in 0..COUNT {
            qps.push(pd.create_qp(&config).expect("a queue pair"));
        }
        let made = (counts().1 - before) / COUNT;
        for pair in qps.as_chunks::<2>().0 {
            let [a, b] = pair;
            let setup = Setup::default();
            a.connect(&setup.attributes(a, b)).expect("connected");
            b.connect(&setup.attributes(b, a)).expect("connected");
        }
        let connected = (counts().1 - before) / COUNT;
        println!("{name} queue pair: {made} bytes, connected {connected} bytes");
        assert!(connected < most, "{connected}");
        drop(qps);
        let left = counts().1.saturating_sub(before);
        println!("{name}: {left} bytes stay when all {COUNT} are gone");
    }
}
