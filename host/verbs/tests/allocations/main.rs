//! What is allocated and locked, and when: nothing is allocated on the data path, nothing locked but
//! the queues it is about; and how much a queue pair takes.
//!
//! One test, because the allocator counts for the whole process: it has it to itself. And no
//! other process's packets: putting steering right, which they may cause, allocates.
//!
//! # Safety
//!
//! Raw requests are of regions that outlive them and lend no references.

#[path = "../verbs/alone.rs"]
mod alone;
mod counting;
#[path = "../verbs/pair.rs"]
mod pair;
#[path = "../verbs/path.rs"]
mod path;
mod transports;

use adverb_sys::poll;
use adverb_verbs::{
    Access, Buf, CompChannel, Context, Cq, CqConfig, Memory, Mr, MwBind, MwKind, Qp, QpConfig, Rc,
    ReceiveWork, RemoteSlice, SendData, SendKind, SendTo, SendWork, Sge, Srq, SrqConfig, WcStatus,
    Work, locks,
};
use counting::counts;
use pair::{Pair, Setup, Side, remote};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUNDS: u64 = 10_000;
const LEN: usize = 64;
const BATCH: usize = 16;

#[test]
fn the_data_path_allocates_nothing_and_queue_pairs_are_small() {
    alone::alone("the_data_path_allocates_nothing_and_queue_pairs_are_small", || {
        data_path();
        channels();
        locks();
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

    allocates_nothing("raw requests", || scene.round_trips(ROUNDS));
    allocates_nothing("batches", || scene.batches(ROUNDS / 16));
    allocates_nothing("owned work", || scene.owned_round_trips(ROUNDS));
    allocates_nothing("many packets a message", || long.round_trips(ROUNDS / 20));
    let others = transports::Transports::new(&setup);
    (0..100).for_each(|_| others.round());
    allocates_nothing("UC, UD, multicast and XRC", || (0..ROUNDS / 5).for_each(|_| others.round()));
    windows(&pair, 100);
    // A window is made, but binding it is free.
    allocates("windows", WINDOWS, || windows(&pair, ROUNDS / 20));
    allocates_nothing_anywhere("driven by the helper", || scene.with_a_helper(20));
    two_threads(&pair);
}

fn allocates_nothing(what: &str, run: impl Fn()) {
    allocates(what, 0, run);
}

/// Some run of the same work allocates so often in this thread and no more. What the work itself allocates, it
/// allocates each time. The helper's housekeeping is no part of it: it allocates now and then, for all sockets.
fn allocates(what: &str, most: usize, run: impl Fn()) {
    assert!(fewest(counting::own, most, run) <= most, "{what}: every run has allocated");
}

/// The same in any thread: the helper may make room for itself whenever it first has something to do.
fn allocates_nothing_anywhere(what: &str, run: impl Fn()) {
    assert_eq!(fewest(|| counts().0, 0, run), 0, "{what}: every run has allocated");
}

/// What the run allocates that allocates least, of those until one allocates `most`.
fn fewest(allocations: impl Fn() -> usize, most: usize, run: impl Fn()) -> usize {
    let count = || {
        let before = allocations();
        run();
        allocations() - before
    };
    let mut least = count();
    for _ in 0..TRIES {
        if least > most {
            least = least.min(count());
        }
    }
    least
}

/// Runs after the first one.
const TRIES: u32 = 9;

/// A message from a queue pair to another one whose receives are shared, announced on a channel.
struct Announced {
    context: Context,
    channel: CompChannel,
    sends: Cq,
    receives: Cq,
    srq: Srq,
    memory: Mr,
    from: Qp<Rc>,
    _to: Qp<Rc>,
}

impl Announced {
    fn new() -> Self {
        let context = Context::open("soft_lo").expect("the loopback device");
        let channel = context.create_comp_channel().expect("a channel");
        let config = CqConfig::new(64).channel(&channel);
        let (sends, receives) = (context.create_cq(64), context.create_cq_with(&config));
        let (sends, receives) = (sends.expect("a queue"), receives.expect("a queue"));
        let pd = context.alloc_pd();
        let srq = pd.create_srq(&SrqConfig::new(64)).expect("a shared receive queue");
        let memory = pd.allocate(LEN, Access::ALL).expect("memory");
        let shared = QpConfig::new(&receives).srq(&srq);
        let from = pd.create_qp(&QpConfig::new(&sends)).expect("a queue pair");
        let to = pd.create_qp(&shared).expect("a queue pair");
        let setup = Setup { timeout: 0, ..Setup::default() };
        from.connect(setup.attributes(&to)).expect("connected");
        to.connect(setup.attributes(&from)).expect("connected");
        Self { context, channel, sends, receives, srq, memory, from, _to: to }
    }

    /// Arms, posts, waits for the event, acknowledges it and takes what it announced.
    fn message(&self, by_descriptor: bool) {
        let sges = [self.memory.sge(0, LEN).expect("in there")];
        let receive = ReceiveWork { wr_id: 0, sges: &sges, buffer: None };
        // SAFETY: the region outlives the receive and lends no references.
        unsafe { self.srq.post_recv(&[receive]) }.expect("room");
        self.receives.req_notify(false).expect("it has a channel");
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: 0,
            kind: SendKind::Send { imm: None },
            data: SendData::Inline(&[1; LEN]),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: inline data is copied when it is posted.
        unsafe { self.from.post_send(&[work]) }.expect("room");
        let event = match by_descriptor {
            false => self.channel.get_event().expect("an event"),
            true => loop {
                let fd = self.channel.as_fd();
                poll::readable(&fd, std::iter::empty(), None).expect("polled");
                if let Some(event) = self.channel.try_get_event() {
                    break event;
                }
            },
        };
        let cq = event.keep();
        cq.ack_events(1);
        assert_eq!(pair::wait(&cq).wc.status, WcStatus::Success);
        assert_eq!(pair::wait(&self.sends).wc.status, WcStatus::Success);
    }
}

/// Goal: neither shared receive queues nor channels allocate, however one waits.
fn channels() {
    let scene = Announced::new();
    for by_descriptor in [false, true] {
        let rounds = |count| (0..count).for_each(|_| scene.message(by_descriptor));
        rounds(500);
        allocates_nothing("a shared receive queue, and a channel", || rounds(ROUNDS / 5));
    }
    drop(scene.context);
}

/// Locks that belong to the queues that the work is about, by what they guard: a queue pair and the
/// order of its unsignaled work, the shared-memory link to a neighbour, where a record is written under a lock that
/// the process's queue pairs to that neighbour share, a completion queue and the memory of its work, a
/// shared receive queue and the memory of its work, and a channel. The receiving side of the device is
/// tried and never waited for.
const OWN: [&str; 11] = [
    "QpInner",
    "ring::Writer",
    "Chain",
    "notify::State",
    "Tables",
    "srq::State",
    "cq::Owned",
    "notify::Mail",
    "Interest",
    "HashMap<u64",
    "Receiver",
];

/// Goal: the data path takes no lock but those of its queues. What else is taken is not taken for a
/// message, but once in a while: regions for the buffers at the start, timers when one has run out.
fn locks() {
    const ROUNDS: u64 = 1000;
    let pair = Setup::default().pair();
    let (scene, announced) = (Scene::new(&pair), Announced::new());
    let others = transports::Transports::new(&Setup::default());
    let each = |run: &dyn Fn()| (0..ROUNDS).for_each(|_| run());
    let paths: [(&str, &dyn Fn()); 6] = [
        ("raw requests", &|| scene.round_trips(ROUNDS)),
        ("batches", &|| scene.batches(ROUNDS)),
        ("owned work", &|| scene.owned_round_trips(ROUNDS)),
        ("a channel", &|| each(&|| announced.message(false))),
        ("its descriptor", &|| each(&|| announced.message(true))),
        ("other transports", &|| each(&|| others.round())),
    ];
    for (what, run) in paths {
        run();
        let _ = locks::taken();
        run();
        for (name, count) in locks::taken().into_iter().filter(|(_, count)| *count > 0) {
            println!("{what}, {ROUNDS} rounds: {count} x {name}");
            let own = OWN.iter().any(|own| name.contains(own));
            assert!(own || count < ROUNDS / 50, "{what} takes {name}");
        }
    }
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

    /// Many SENDs in one call, and their receives.
    fn batches(&self, rounds: u64) {
        let Pair { a, b, .. } = self.pair;
        let from = [self.at_a.sge(0, self.len).expect("in there")];
        let room = [self.at_b.sge(0, self.len).expect("in there")];
        let receive = ReceiveWork { wr_id: 0, sges: &room, buffer: None };
        let [send, ..] = self.kinds();
        for _ in 0..rounds {
            b.post_recv(&[receive; BATCH]).expect("room");
            a.post_send(&[self.work(0, send, &from); BATCH]).expect("room");
            for _ in 0..BATCH {
                assert_eq!(a.status(), WcStatus::Success);
                assert_eq!(b.status(), WcStatus::Success);
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

    /// Requests that complete while the program does not poll.
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
            let (mut taken, mut before) = (0_u32, 0);
            while !stop.load(Ordering::Acquire) {
                if pair.b.cq.next().expect("no overrun").is_some() {
                    pair.b.post_recv(&[receive]).expect("room");
                    taken += 1;
                    if taken == 1000 {
                        before = counting::own();
                    }
                }
            }
            assert_eq!(counting::own(), before, "the thread that receives");
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
        let least = fewest(counting::own, 0, || run(ROUNDS));
        stop.store(true, Ordering::Release);
        assert_eq!(least, 0, "two threads");
    });
}

/// Prints what a queue pair takes, and fails if that is out of all proportion.
fn queue_pairs() {
    const COUNT: usize = 1000;
    let context = Context::open("soft_lo").expect("the loopback device");
    let pd = context.alloc_pd();
    let cq = context.create_cq(16).expect("a completion queue");
    let usual = QpConfig::new(&cq);
    let smallest = usual.clone().max_send_wr(1).max_recv_wr(1).max_inline(0);
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
            a.connect(setup.attributes(b)).expect("connected");
            b.connect(setup.attributes(a)).expect("connected");
        }
        let connected = (counts().1 - before) / COUNT;
        println!("{name} queue pair: {made} bytes, connected {connected} bytes");
        assert!(connected < most, "{connected}");
        drop(qps);
        let left = counts().1.saturating_sub(before);
        println!("{name}: {left} bytes stay when all {COUNT} are gone");
    }
}
