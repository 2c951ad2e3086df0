//! All objects, used at random by several threads: made, connected, posted to, dropped in any order
//! and with work outstanding, leaked.
//!
//! What is looked for is what the types promise cannot happen: a use of memory that has gone, a
//! change of memory that is not shared, a hang. The test itself sees the latter two; the first is
//! seen by valgrind or AddressSanitizer, under which `cargo xtask memcheck` runs it.
//!
//! `ADVERB_STRESS_SEED` chooses the run, as far as threads let it; `ADVERB_STRESS_STEPS` its length.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use adverb_verbs::{
    Access, Ah, AhAttr, Buf, BufferNumber, CompChannel, Context, Cq, CqConfig, InDomain, Memory,
    Modify, Mr, Mw, MwBind, MwKind, Pd, Qkey, Qp, QpConfig, QpState, Rc, RcConnect, Rejected,
    RemoteSlice, Rkey, RnrRetry, Srq, SrqConfig, Uc, Ud, Work, WorkCompletion,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const THREADS: u64 = 4;
const STEPS: u64 = 3_000;
/// Objects of one kind at once.
const STOCK_MAX: usize = 6;
/// Objects that are leaked, of all kinds.
const LEAKS_MAX: u32 = 40;
const LEN: usize = 4096;

/// SplitMix64: small, and good enough to choose.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    fn small(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end.max(1))).unwrap()
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Handles of one kind that all threads use.
struct Stock<T>(Mutex<Vec<T>>);

impl<T> Default for Stock<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Stock<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap()
    }

    /// Adds one; if there are enough, another one goes.
    fn put(&self, one: T, random: &mut Random) {
        let mut all = self.lock();
        all.push(one);
        let gone = (all.len() > STOCK_MAX).then(|| all.swap_remove(random.below(STOCK_MAX)));
        drop(all); // Dropping takes its time.
        drop(gone);
    }

    fn take(&self, random: &mut Random) -> Option<T> {
        let mut all = self.lock();
        let at = random.below(all.len());
        (at < all.len()).then(|| all.swap_remove(at))
    }
}

impl<T: Clone> Stock<T> {
    fn any(&self, random: &mut Random) -> Option<T> {
        let all = self.lock();
        all.get(random.below(all.len())).cloned()
    }
}

/// A queue pair of any type that can be made alone.
enum AnyQp {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
}

/// Does something to the queue pair, whatever its type is.
macro_rules! with {
    ($any:expr, $qp:ident => $run:expr) => {
        match $any {
            AnyQp::Rc($qp) => $run,
            AnyQp::Uc($qp) => $run,
            AnyQp::Ud($qp) => $run,
        }
    };
}

impl AnyQp {
    fn post(&self, work: Work) -> Result<(), Rejected> {
        with!(self, qp => qp.post(work))
    }

    fn srq(&self) -> Option<&Srq> {
        with!(self, qp => qp.srq())
    }

    fn bind_mw(&self, mw: &Mw, part: &MwBind<'_>) {
        match self {
            Self::Rc(qp) => drop(qp.bind_mw(mw, part, 1)),
            Self::Uc(qp) => drop(qp.bind_mw(mw, part, 1)),
            Self::Ud(_) => {}
        }
    }
}

const QKEY: Qkey = Qkey(5);

struct World {
    /// The domain of most objects, so that most of them go together.
    home: Pd,
    contexts: Stock<Context>,
    pds: Stock<Pd>,
    channels: Stock<CompChannel>,
    cqs: Stock<Cq>,
    srqs: Stock<Srq>,
    qps: Stock<Arc<AnyQp>>,
    ahs: Stock<Ah>,
    mrs: Stock<Mr>,
    mws: Stock<Arc<Mw>>,
    /// In hand: they may not change.
    bufs: Stock<(Buf, u8)>,
    /// Places that peers were told of, whatever has become of them.
    places: Stock<RemoteSlice>,
    leaks: AtomicU32,
    /// Work that has ended, by what it was and how it ended.
    ended: Mutex<BTreeMap<(String, String), u32>>,
}

impl World {
    fn new() -> Self {
        Self {
            home: Context::open("soft_lo").unwrap().alloc_pd(),
            contexts: Stock::default(),
            pds: Stock::default(),
            channels: Stock::default(),
            cqs: Stock::default(),
            srqs: Stock::default(),
            qps: Stock::default(),
            ahs: Stock::default(),
            mrs: Stock::default(),
            mws: Stock::default(),
            bufs: Stock::default(),
            places: Stock::default(),
            leaks: AtomicU32::new(0),
            ended: Mutex::default(),
        }
    }

    fn pd(&self, random: &mut Random) -> Pd {
        let other = self.pds.any(random).filter(|_| random.one_in(16));
        other.unwrap_or_else(|| self.home.clone())
    }

    /// Makes one of something, of whatever others there are.
    fn make(&self, random: &mut Random) -> Option<()> {
        match random.below(9) {
            0 => self.contexts.put(Context::open("soft_lo").unwrap(), random),
            1 => self.pds.put(self.contexts.any(random)?.alloc_pd(), random),
            2 => {
                let channel = self.contexts.any(random)?.create_comp_channel();
                self.channels.put(channel.unwrap(), random);
            }
            3 => {
                let channel = self.channels.any(random);
                let cqe = if random.one_in(8) { 1 + random.small(8) } else { 1000 };
                let config = CqConfig::new(cqe).channel(channel.as_ref());
                let cq = self.contexts.any(random)?.create_cq_with(&config).ok()?;
                self.cqs.put(cq, random);
            }
            4 => {
                let config = SrqConfig::new(1 + random.small(16));
                self.srqs.put(self.pd(random).create_srq(&config).unwrap(), random);
            }
            5 => self.make_pair(random)?,
            6 => {
                let access = some_access(random);
                let pd = self.pd(random);
                let mr = match random.one_in(2) {
                    true => pd.allocate(LEN, access),
                    false => pd.register_vec(vec![0; LEN], access),
                };
                self.mrs.put(mr.ok()?, random);
            }
            7 => {
                let kind = [MwKind::Type1, MwKind::Type2][random.below(2)];
                self.mws.put(Arc::new(self.pd(random).alloc_mw(kind).unwrap()), random);
            }
            _ => {
                let len = if random.one_in(8) { random.below(LEN) } else { 256 };
                self.keep(self.pd(random).buffer(len).unwrap(), random);
            }
        }
        Some(())
    }

    fn make_qp<T: InDomain>(&self, random: &mut Random) -> Option<Qp<T>> {
        let (send_cq, recv_cq) = (self.cqs.any(random)?, self.cqs.any(random)?);
        let srq = self.srqs.any(random).filter(|_| random.one_in(6));
        let config = QpConfig::new(&send_cq)
            .recv_cq(&recv_cq)
            .srq(srq.as_ref())
            .max_send_wr(1 + random.small(16))
            .max_recv_wr(1 + random.small(16));
        self.pd(random).create_qp_of(&config).ok()
    }

    /// Makes two queue pairs, mostly connected to one another.
    fn make_pair(&self, random: &mut Random) -> Option<()> {
        match random.below(6) {
            0 => {
                let qp = self.make_qp::<Ud>(random)?;
                let gid = qp.address().unwrap().gid;
                qp.activate(QKEY).unwrap();
                self.ahs.put(self.pd(random).create_ah(&AhAttr::new(gid)).unwrap(), random);
                self.qps.put(Arc::new(AnyQp::Ud(qp)), random);
            }
            1 => {
                let (a, b) = (self.make_qp::<Uc>(random)?, self.make_qp::<Uc>(random)?);
                let [here, there] = [a.address().unwrap(), b.address().unwrap()];
                a.connect(there).unwrap();
                b.connect(here).unwrap();
                self.qps.put(Arc::new(AnyQp::Uc(a)), random);
                self.qps.put(Arc::new(AnyQp::Uc(b)), random);
            }
            _ => {
                let (a, b) = (self.make_qp::<Rc>(random)?, self.make_qp::<Rc>(random)?);
                let [here, there] = [a.address().unwrap(), b.address().unwrap()];
                for (qp, remote) in [(&a, there), (&b, here)] {
                    if !random.one_in(16) {
                        let rnr_retry = RnrRetry::new(1).unwrap();
                        let how = RcConnect::new(remote).rnr_retry(rnr_retry);
                        qp.connect(how).unwrap();
                    }
                }
                self.qps.put(Arc::new(AnyQp::Rc(a)), random);
                self.qps.put(Arc::new(AnyQp::Rc(b)), random);
            }
        }
        Some(())
    }

    /// Ends one of something, or loses it.
    fn end(&self, random: &mut Random) {
        let leak = random.one_in(8) && self.leaks.fetch_add(1, Ordering::Relaxed) < LEAKS_MAX;
        fn part<T>(stock: &Stock<T>, leak: bool, random: &mut Random) {
            match stock.take(random) {
                Some(one) if leak => std::mem::forget(one),
                Some(one) => drop(one),
                None => {}
            }
        }
        match random.below(11) {
            9 => part(&self.ahs, leak, random),
            0 => part(&self.contexts, leak, random),
            1 => part(&self.pds, leak, random),
            2 => part(&self.channels, leak, random),
            3 => part(&self.cqs, leak, random),
            4 => part(&self.srqs, leak, random),
            5 => part(&self.qps, leak, random),
            6 => part(&self.mrs, leak, random),
            7 => part(&self.mws, leak, random),
            8 => part(&self.bufs, leak, random),
            _ => {
                if let Some(mr) = self.mrs.take(random) {
                    let (pd, access) = (self.pd(random), some_access(random));
                    let kept = mr.reregister(&pd, access).unwrap_or_else(|error| error.mr);
                    self.mrs.put(kept, random);
                }
            }
        }
    }

    /// Buffers in hand carry a mark of their own.
    fn keep(&self, mut buf: Buf, random: &mut Random) {
        let mark = u8::try_from(random.small(256)).unwrap();
        buf.fill(mark);
        self.bufs.put((buf, mark), random);
    }

    fn buffer(&self, random: &mut Random) -> Option<Buf> {
        let (buf, mark) = self.bufs.take(random)?;
        let changed = buf.iter().position(|byte| *byte != mark);
        assert_eq!(changed, None, "a buffer was changed that was not shared");
        Some(buf)
    }

    fn memory(&self, random: &mut Random) -> Option<Memory> {
        if random.one_in(4) {
            let (offset, len) = (random.below(LEN), random.below(400));
            return Some(self.mrs.any(random)?.slice(offset, len).ok()?.into());
        }
        let buf = self.buffer(random);
        Some(buf.or_else(|| self.pd(random).buffer(256).ok())?.into())
    }

    fn give_back(&self, memory: Option<Memory>, random: &mut Random) {
        if let Some(buf) = memory.and_then(Memory::into_buf) {
            self.keep(buf, random);
        }
    }

    /// Memory for an atomic.
    fn word(&self, random: &mut Random) -> Option<Memory> {
        let mr = self.mrs.any(random)?;
        Some(mr.slice(random.below(LEN - 8), 8).ok()?.into())
    }

    /// A place at a peer: of a region or a window, there, or beside it.
    fn place(&self, random: &mut Random) -> Option<RemoteSlice> {
        if random.one_in(16) {
            return self.places.any(random);
        }
        let mr = self.mrs.any(random)?;
        let rkey = match random.below(64) {
            0 => Rkey(random.small(u32::MAX)),
            1..16 => self.mws.any(random).filter(|mw| mw.is_bound())?.rkey(),
            _ => mr.rkey(),
        };
        let end = if random.one_in(64) { 2 * LEN } else { LEN - 256 };
        let offset = u64::try_from(random.below(end) & !7).unwrap();
        let place = RemoteSlice { addr: mr.addr().wrapping_add(offset), rkey };
        if random.one_in(8) {
            self.places.put(place, random);
        }
        Some(place)
    }

    fn post(&self, random: &mut Random) -> Option<()> {
        let qp = self.qps.any(random)?;
        if with!(&*qp, qp => qp.state()) == QpState::Err && !random.one_in(4) {
            return self.make_pair(random);
        }
        if random.one_in(16) {
            return self.bind(&qp, random);
        }
        let receive = random.one_in(2);
        let memory = self.memory(random)?;
        if receive {
            return self.receive(&qp, memory, random);
        }
        let work = match random.below(24) {
            _ if matches!(*qp, AnyQp::Ud(_)) && !random.one_in(16) => {
                let (ah, other) = (self.ahs.any(random)?, self.qps.any(random)?);
                let number = with!(&*other, qp => qp.number());
                Work::send_to(memory, &ah, number, QKEY).any()
            }
            0..6 => Work::send(memory).any(),
            6..9 => Work::send_with_imm(memory, 7).any(),
            9 => {
                let mw = self.mws.any(random).filter(|mw| mw.is_bound() || random.one_in(16))?;
                Work::send_with_invalidate(memory, mw.rkey()).any()
            }
            10..14 => Work::write(memory, self.place(random)?).any(),
            14..16 => Work::write_with_imm(memory, self.place(random)?, 7).any(),
            16..20 => Work::read(memory, self.place(random)?).any(),
            20 => Work::compare_swap(self.word(random)?, self.place(random)?, 0, 1).any(),
            21 => Work::fetch_add(self.word(random)?, self.place(random)?, 1).any(),
            _ => Work::atomic_write(self.word(random)?, self.place(random)?).any(),
        };
        let work = if random.one_in(4) { work.unsignaled() } else { work };
        let work = if random.one_in(4) { work.fence() } else { work };
        if let Err(rejected) = qp.post(work) {
            self.give_back(rejected.memory.into_iter().next(), random);
        }
        Some(())
    }

    fn receive(&self, qp: &AnyQp, memory: Memory, random: &mut Random) -> Option<()> {
        if memory_len(&memory) < 256 && !random.one_in(16) {
            return None;
        }
        let srq = qp.srq().cloned().or_else(|| self.srqs.any(random));
        let work = Work::recv(memory);
        let posted = match srq {
            Some(srq) if qp.srq().is_some() || random.one_in(3) => srq.post(work),
            Some(_) | None => qp.post(work.any()),
        };
        if let Err(rejected) = posted {
            self.give_back(rejected.memory.into_iter().next(), random);
        }
        Some(())
    }

    /// Binds a window, or invalidates a key.
    fn bind(&self, qp: &AnyQp, random: &mut Random) -> Option<()> {
        let (mw, mr) = (self.mws.any(random)?, self.mrs.any(random)?);
        let access = Access::from_bits(random.small(32) & 0b1110);
        let part = MwBind::new(&mr, random.below(LEN / 2), random.below(LEN / 2), access);
        if mw.kind() == MwKind::Type2 && mw.is_bound() && random.one_in(4) {
            let _ = qp.post(Work::local_invalidate(mw.rkey()).any());
        } else if mw.kind() == MwKind::Type1 {
            qp.bind_mw(&mw, &part);
        } else if let Ok(work) = Work::bind_mw(&mw, mw.rkey().incremented(), &part) {
            let _ = qp.post(work.any());
        }
        Some(())
    }

    /// Takes completions, keeps some of their memory, and makes some up.
    fn poll(&self, random: &mut Random) -> Option<()> {
        let cq = self.cqs.any(random)?;
        let mut out = [WorkCompletion::EMPTY; 4];
        let taken = cq.poll(&mut out).unwrap_or(0);
        for wc in &out[..taken] {
            let what = (format!("{:?}", wc.opcode), wc.status.to_string());
            *self.ended.lock().unwrap().entry(what).or_default() += 1;
            if !random.one_in(8) {
                self.give_back(cq.take(wc), random);
            }
        }
        let made_up =
            WorkCompletion { buffer: BufferNumber::new(random.small(20)), ..WorkCompletion::EMPTY };
        self.give_back(cq.take(&made_up), random);
        Some(())
    }

    /// What else can be done to objects.
    fn fiddle(&self, random: &mut Random) -> Option<()> {
        match random.below(8) {
            0 => {
                let qp = self.qps.any(random)?;
                match random.below(32) {
                    0 => with!(&*qp, qp => qp.to_err()),
                    1 => drop(with!(&*qp, qp => qp.modify(&Modify::to(QpState::Reset)))),
                    _ => drop(with!(&*qp, qp => qp.query())),
                }
            }
            1 => drop(self.cqs.any(random)?.resize(1 + random.small(300))),
            2 => drop(self.cqs.any(random)?.req_notify(random.one_in(2))),
            3 => drop(self.channels.any(random)?.try_get_event()),
            4 => drop(self.srqs.any(random)?.resize(1 + random.small(32))),
            5 => drop(self.srqs.any(random)?.arm_limit(random.small(8))),
            6 => {
                let mr = self.mrs.any(random)?;
                let (mut bytes, at) = ([0; 64], random.below(LEN));
                let _ = mr.read(at, &mut bytes);
                let _ = mr.write(at, &bytes);
                let _ = mr.load_u64(at);
            }
            _ => self.lend(random)?,
        }
        Some(())
    }

    /// Lends memory of the stack to work that may outlast it.
    fn lend(&self, random: &mut Random) -> Option<()> {
        let (qp, pd) = (self.qps.any(random)?, self.pd(random));
        if !random.one_in(8) {
            return Some(()); // What outlasts its scope ends a connection.
        }
        let (mut room, text) = ([0x5a; 200], [0xa5; 200]);
        pd.scope(|scope| {
            let lent = scope.lend_mut(&mut room).ok()?;
            let _ = with!(&*qp, qp => qp.post(Work::recv(lent).wr_id(1)));
            let work = Work::send(scope.lend(&text).ok()?).wr_id(2);
            let _ = match &*qp {
                AnyQp::Rc(qp) => qp.post(work),
                AnyQp::Uc(qp) => qp.post(work),
                AnyQp::Ud(_) => Ok(()), // It has no peer.
            };
            Some(())
        })?;
        room.fill(0x33);
        std::thread::yield_now();
        assert_eq!(room, [0x33; 200], "the stack was written to after its scope");
        assert_eq!(text, [0xa5; 200]);
        Some(())
    }

    fn step(&self, random: &mut Random) {
        match random.below(100) {
            0..6 => drop(self.make(random)),
            6 => self.end(random),
            7..65 => drop(self.post(random)),
            65..92 => drop(self.poll(random)),
            _ => drop(self.fiddle(random)),
        }
    }
}

fn memory_len(memory: &Memory) -> usize {
    match memory {
        Memory::Buf(buf) => buf.len(),
        Memory::Slice(slice) => usize::try_from(slice.len()).unwrap(),
        Memory::Lent(_) | Memory::Nothing | _ => 0,
    }
}

/// Rights of a region: mostly all there are.
fn some_access(random: &mut Random) -> Access {
    match random.one_in(8) {
        true => Access::from_bits(random.small(64)),
        false => Access::ALL | Access::MW_BIND,
    }
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect(variable))
}

#[test]
fn no_use_of_objects_by_any_thread_does_harm() {
    let seed = number("ADVERB_STRESS_SEED", 1);
    let steps = number("ADVERB_STRESS_STEPS", STEPS);
    println!("ADVERB_STRESS_SEED={seed} ADVERB_STRESS_STEPS={steps}");
    let world = World::new();
    let mut random = Random(seed);
    // Some of everything, so that there is something to do from the start.
    for _ in 0..200 {
        world.make(&mut random);
    }
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let (world, mut random) = (&world, Random(seed.wrapping_mul(THREADS) + thread));
            scope.spawn(move || (0..steps).for_each(|_| world.step(&mut random)));
        }
    });
    for _ in 0..100 {
        world.end(&mut random);
    }
    let ended = std::mem::take(&mut *world.ended.lock().unwrap());
    drop(world);
    for ((what, how), count) in &ended {
        println!("{count:>8}  {what}: {how}");
    }

    // Later ones are served.
    let bench = support::Bench::new();
    let cq = bench.context.create_cq(16).unwrap();
    let [a, b] = bench.pair(&cq, &cq);
    b.post(Work::recv(bench.pd.buffer(8).unwrap())).unwrap();
    a.post(Work::send(bench.pd.buffer(8).unwrap())).unwrap();
    for _ in 0..2 {
        cq.wait().unwrap().ok().unwrap();
    }
}
