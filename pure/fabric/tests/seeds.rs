//! Random work over random networks: whatever happens on the way, the promises of the transport
//! hold.
//!
//! Every request ends exactly once, in order, with a status that the network explains; memory and
//! messages are exact to the byte; when all is done, no more packets are sent. A failing run prints
//! one line with its seed. `ADVERB_SEED=0x…` runs that one again, with `ADVERB_TRACE=1` every packet
//! is shown; `ADVERB_SEED_SECONDS=60` looks for new seeds that long.

#![expect(clippy::disallowed_methods, reason = "what to run, and how long, is asked outside")]
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may panic")]

use adverb_engine::{
    Access, AckTimeout, QpState, RetryCount, RnrRetry, SendDone, Time, WcOpcode, WcStatus,
};
use adverb_fabric::{A, B, Link, Net, NodeId, Random, Setup, Target, Window, Work};
use adverb_wire::{PathMtu, Psn, Rkey, RnrTimer};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seeds of the fixed set.
const SEEDS: u64 = 600;
/// New seeds that are tried however long they take: what a machine does that is twenty times as slow as usual.
const NEW_SEEDS_MIN: u64 = 250;

/// Says which seed failed, and how, in one line.
struct Failure {
    seed: u64,
    reason: String,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, reason } = self;
        write!(f, "seed {seed:#018x}: {}", reason.lines().next().unwrap_or_default())
    }
}

/// What became of a run that kept all promises.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    succeeded: u64,
    retries_exceeded: u64,
    rnr_exceeded: u64,
    sent_again: u64,
}

#[test]
fn every_request_ends_once_and_every_byte_is_right_on_any_network() -> Result<(), Failure> {
    std::panic::set_hook(Box::new(|_| {})); // The line with the seed says it all.
    if let Some(seed) = number_in("ADVERB_SEED") {
        return check(seed).map(|tally| println!("{tally:?}"));
    }
    if let Some(seconds) = number_in("ADVERB_SEED_SECONDS") {
        let end = Instant::now() + Duration::from_secs(seconds);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seeds = Random::new(u64::try_from(since_epoch.as_nanos()).unwrap_or_default());
        let mut tried = 0;
        while Instant::now() < end || tried < NEW_SEEDS_MIN {
            check(seeds.bits())?;
            tried += 1;
        }
        println!("{tried} seeds");
        return Ok(());
    }
    let mut total = Tally::default();
    for seed in 0..SEEDS {
        let tally = check(seed)?;
        total.succeeded += tally.succeeded;
        total.retries_exceeded += tally.retries_exceeded;
        total.rnr_exceeded += tally.rnr_exceeded;
        total.sent_again += tally.sent_again;
    }
    println!("{total:?}");
    let all = [total.succeeded, total.retries_exceeded, total.rnr_exceeded, total.sent_again];
    let missing = Failure { seed: SEEDS, reason: format!("not all ends were seen: {total:?}") };
    if all.iter().all(|&count| count > 0) { Ok(()) } else { Err(missing) }
}

fn number_in(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn check(seed: u64) -> Result<Tally, Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(text.unwrap_or_else(|| "a panic".to_owned()))
    });
    outcome.map_err(|reason| Failure { seed, reason })
}

/// Fails the run unless `$holds`.
macro_rules! ensure {
    ($holds:expr, $($reason:tt)*) => {
        if !$holds {
            return Err(format!($($reason)*));
        }
    };
}

fn run(seed: u64) -> Result<Tally, String> {
    let mut random = Random::new(seed);
    let (setup, weather) = random_setup(&mut random);
    let mut net = Net::pair(random.bits(), &setup);
    let zone = zone_of(&setup);
    let mut sides = [A, B].map(|me| Side::new(me, &mut net, zone, &mut random));
    let accidents = weather == Weather::Harsh && random.below(8) == 0;
    let outcome = work(&mut net, &mut sides, accidents, &mut random);
    let outcome = outcome.and_then(|()| judge(&mut net, &sides, weather));
    if std::env::var("ADVERB_TRACE").is_ok() {
        eprintln!("{setup:#?}\n{}", net.log());
    }
    outcome
}

/// What a network does to packets decides on what it may be blamed for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Weather {
    /// Nothing: no request fails, and none is sent again.
    Calm,
    /// One fault in a hundred, and seven retries: it does not happen that a request fails.
    Mild,
    /// Anything.
    Harsh,
}

/// Anything that two sides may agree on, and the network between them.
fn random_setup(random: &mut Random) -> (Setup, Weather) {
    let harsh = [0, 0, 2_000, 10_000, 30_000, 100_000, 300_000];
    let weather = random.pick(&[Weather::Calm, Weather::Mild, Weather::Harsh, Weather::Harsh]);
    let worst = match weather {
        Weather::Calm => 0,
        Weather::Mild => 10_000,
        Weather::Harsh => 300_000,
    };
    let mut link = || {
        let mut chance = |most: u32| random.pick(&harsh).min(most).min(worst);
        Link {
            loss_ppm: chance(300_000),
            duplication_ppm: chance(100_000),
            reordering_ppm: chance(100_000),
            corruption_ppm: chance(30_000),
            delay_ns: random.below(20_000),
            spacing_ns: random.between(1, 200),
            detour_ns: random.between(1, 50_000),
            ..Link::default()
        }
    };
    let links = [link(), link()];
    let mut psn = || match random.below(2) {
        0 => Psn::new(0).minus(low(random.below(200))),
        _ => Psn::new(low(random.below(1 << 24))),
    };
    let first_psns = [psn(), psn()];
    let patient = weather != Weather::Harsh || random.below(3) > 0;
    let reads = low8(random.between(1, 8) * random.pick(&[1, 1, 4]));
    let size_max = random.pick(&[2 << 10, 20 << 10, 20 << 10, 200 << 10]);
    let size_max = if random.below(40) == 0 { 1 << 20 } else { size_max };
    let setup = Setup {
        path_mtu: random.pick(&PathMtu::ALL),
        v6: random.below(4) == 0,
        first_psns,
        links,
        send_capacity: random.pick(&[1, 2, 7, 32, 64]),
        timeout: AckTimeout::from_exponent(low8(random.between(8, 11))).unwrap(),
        retry_count: RetryCount::new(if patient { 7 } else { low8(random.below(8)) }).unwrap(),
        rnr_retry: RnrRetry::new(if patient { 7 } else { low8(random.below(8)) }).unwrap(),
        rnr_timer: RnrTimer::new(low8(random.between(1, 8))),
        max_rd_atomic: reads,
        max_dest_rd_atomic: reads + low8(random.below(3)),
        trains: random.below(2) == 0,
        keeps_early: [(); 2].map(|()| random.below(3) > 0),
        window_packets: random.pick(&[8, 16, 64, 256]),
        region_len: 2 * size_max + CELLS * 8,
        room: random.pick(&[1, 3, 16, 64]),
        ack_delay_ns: random.pick(&[0, 0, 1_000, 20_000]),
        ..Setup::default()
    };
    (setup, weather)
}

/// Eight-byte cells for atomics.
const CELLS: usize = 8;

/// A region is: bytes that are only read, as many that are written, cells.
fn zone_of(setup: &Setup) -> usize {
    (setup.region_len - CELLS * 8) / 2
}

/// What one side does to the other, and what must come of it.
struct Side {
    me: NodeId,
    peer: NodeId,
    plan: Vec<Step>,
    posted: usize,
    /// The peer's memory before anything happened.
    before: Vec<u8>,
    /// Lengths of the receives that this side has yet to post.
    receives: Vec<u32>,
}

#[derive(Clone)]
struct Step {
    work: Work,
    effect: Effect,
}

#[derive(Clone)]
enum Effect {
    /// A message arrives; immediate data, and bytes written before.
    Send {
        imm: Option<u32>,
        written: Option<usize>,
    },
    Write {
        at: usize,
    },
    Read {
        expected: Vec<u8>,
    },
    Atomic {
        found: u64,
        at: usize,
        left: u64,
    },
    /// Nothing that the peer could see.
    Local,
}

impl Side {
    fn new(me: NodeId, net: &mut Net, zone: usize, random: &mut Random) -> Self {
        let peer = if me == A { B } else { A };
        let target = net.region(peer, 0);
        let memory = &mut net.node_mut(peer).region_mut(0).bytes;
        memory.iter_mut().for_each(|byte| *byte = low8(random.below(256)));
        let before = memory.clone();
        let own = net.region(me, 0);
        let (memory, windows) = (before.clone(), Vec::new());
        let mut world = World { target, own, zone, memory, read_open: false, windows };
        let count = random.between(1, 40);
        let plan = (0..count).map(|_| world.random_step(random)).collect();
        Self { me, peer, plan, posted: 0, before, receives: Vec::new() }
    }

    /// Messages that arrive at the peer: step, and bytes of the receive.
    fn messages(&self) -> Vec<&Step> {
        let takes = |step: &&Step| matches!(step.effect, Effect::Send { .. });
        self.plan.iter().filter(takes).collect()
    }
}

/// The peer's memory as it will be when everything before has been executed.
struct World {
    target: Target,
    zone: usize,
    memory: Vec<u8>,
    /// A READ of bytes that are written may be under way: a write has to wait for it.
    read_open: bool,
    /// This side's own memory, and the windows on it that are bound.
    own: Target,
    windows: Vec<Rkey>,
}

impl World {
    fn random_step(&mut self, random: &mut Random) -> Step {
        let mut step = match random.below(10) {
            0..3 => self.send(random),
            3..6 => self.write(random),
            6..8 => self.read(random),
            8 => self.atomic(random),
            _ => self.local(random),
        };
        let changes = match step.effect {
            Effect::Send { written, .. } => written.is_some(),
            Effect::Write { .. } | Effect::Atomic { .. } => true,
            Effect::Read { .. } | Effect::Local => false,
        };
        if (changes && self.read_open) || random.below(16) == 0 {
            step.work = step.work.fenced();
            self.read_open &= matches!(step.effect, Effect::Read { .. });
        }
        if random.below(3) == 0 {
            step.work = step.work.unsignaled();
        }
        if random.below(4) == 0 {
            step.work = step.work.solicited();
        }
        step
    }

    /// A length that tests something: empty, tiny, around a multiple of the MTU, anything.
    fn length(&self, random: &mut Random) -> usize {
        let most = match random.below(4) {
            0 => self.zone,
            _ => self.zone.min(5000),
        };
        let around = 256 * random.index(20) + random.index(3);
        match random.below(8) {
            0 => 0,
            1 => random.index(9).min(most),
            2 | 3 => around.saturating_sub(1).min(most),
            _ => random.index(most + 1),
        }
    }

    fn send(&mut self, random: &mut Random) -> Step {
        let bytes = random_bytes(self.length(random), random);
        let imm = (random.below(2) == 0).then(|| low(random.bits()));
        let work = match imm {
            Some(imm) => Work::send_imm(bytes, imm),
            None => Work::send(bytes),
        };
        Step { work, effect: Effect::Send { imm, written: None } }
    }

    fn write(&mut self, random: &mut Random) -> Step {
        let bytes = random_bytes(self.length(random), random);
        let at = self.zone + random.index(self.zone - bytes.len() + 1);
        self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        let target = self.target.plus(at.try_into().unwrap());
        if random.below(3) > 0 {
            return Step { work: Work::write(target, bytes), effect: Effect::Write { at } };
        }
        let imm = low(random.bits());
        let work = Work::write_imm(target, bytes, imm);
        Step { work, effect: Effect::Send { imm: Some(imm), written: Some(at) } }
    }

    fn read(&mut self, random: &mut Random) -> Step {
        let len = self.length(random);
        let written = random.below(2) == 0;
        let at = random.index(self.zone - len + 1) + if written { self.zone } else { 0 };
        self.read_open |= written;
        let expected = self.memory[at..at + len].to_vec();
        let work = Work::read(self.target.plus(at.try_into().unwrap()), len);
        Step { work, effect: Effect::Read { expected } }
    }

    fn atomic(&mut self, random: &mut Random) -> Step {
        if random.below(4) == 0 {
            return self.atomic_write(random);
        }
        let at = 2 * self.zone + 8 * random.index(CELLS);
        let cell = &mut self.memory[at..at + 8];
        let found = u64::from_ne_bytes(cell.try_into().unwrap());
        let target = self.target.plus(at.try_into().unwrap());
        let (work, left) = match random.below(3) {
            0 => (Work::compare_swap(target, found, !found), !found),
            1 => (Work::compare_swap(target, found ^ 1, 7), found),
            _ => {
                let add = random.bits();
                (Work::fetch_add(target, add), found.wrapping_add(add))
            }
        };
        cell.copy_from_slice(&left.to_ne_bytes());
        Step { work, effect: Effect::Atomic { found, at, left } }
    }
}

impl World {
    /// Binds a window, or invalidates one that was bound.
    fn local(&mut self, random: &mut Random) -> Step {
        if random.below(2) == 0
            && let Some(rkey) = self.windows.pop()
        {
            return Step { work: Work::local_invalidate(rkey), effect: Effect::Local };
        }
        let rkey = Rkey(0x9000 + low(random.below(1 << 20)));
        self.windows.push(rkey);
        let window =
            Window { rkey, region: 0, va: self.own.va, len: 64, access: Access::REMOTE_WRITE };
        Step { work: Work::bind(window), effect: Effect::Local }
    }

    fn atomic_write(&mut self, random: &mut Random) -> Step {
        let at = 2 * self.zone + 8 * random.index(CELLS);
        let bytes = random.bits().to_ne_bytes();
        self.memory[at..at + 8].copy_from_slice(&bytes);
        let work = Work::atomic_write(self.target.plus(at.try_into().unwrap()), bytes);
        Step { work, effect: Effect::Write { at } }
    }
}

fn random_bytes(len: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.bits().to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Posts everything, bit by bit, and waits for the end.
///
/// If there are `accidents`, a queue pair may be put into ERR at any moment.
fn work(
    net: &mut Net,
    sides: &mut [Side; 2],
    accidents: bool,
    random: &mut Random,
) -> Result<(), String> {
    let prompt = random.below(2) == 0; // Receives are there before messages come.
    for at in 0..2 {
        let lens =
            sides[at].messages().iter().map(|step| step.work.request.len).collect::<Vec<_>>();
        let slack = lens.iter().map(|len| len + low(random.below(3))).collect();
        sides[1 - at].receives = slack;
        sides[1 - at].receives.reverse();
        if prompt {
            while let Some(len) = sides[1 - at].receives.pop() {
                net.post_receive(sides[1 - at].me, len);
            }
        }
    }
    while sides.iter().any(|side| side.posted < side.plan.len() || !side.receives.is_empty()) {
        let side = &mut sides[random.index(2)];
        for _ in 0..random.below(6) {
            let Some(step) = side.plan.get(side.posted) else {
                break;
            };
            if net.try_post(side.me, step.work.clone()).is_err() {
                break;
            }
            side.posted += 1;
        }
        for _ in 0..random.below(6) {
            if let Some(len) = side.receives.pop() {
                net.post_receive(side.me, len);
            }
        }
        if random.below(12) == 0 {
            drain_or_go_on(net, sides[random.index(2)].me);
        }
        if accidents && random.below(20) == 0 {
            net.to_err(sides[random.index(2)].me);
        }
        let pause = random.pick(&[0, 100, 10_000, 300_000]);
        net.drive_until(net.now().plus_nanos(pause));
    }
    for side in sides {
        if net.node(side.me).qp().state() == QpState::Sqd {
            drain_or_go_on(net, side.me);
        }
    }
    net.drive().map_err(|stuck| format!("never at rest: {} ns", stuck.at.nanos()))
}

/// Goes from RTS to SQD, where what has not begun has to wait, or back.
fn drain_or_go_on(net: &mut Net, node: NodeId) {
    match net.node(node).qp().state() {
        QpState::Rts => net.go(node, QpState::Sqd),
        QpState::Sqd => net.go(node, QpState::Rts),
        QpState::Reset | QpState::Init | QpState::Rtr | QpState::Sqe | QpState::Err => {}
    }
}

fn judge(net: &mut Net, sides: &[Side; 2], weather: Weather) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for side in sides {
        let name = if side.me == A { "A" } else { "B" };
        let fine =
            successes(net, side, &mut tally).map_err(|reason| format!("{name}: {reason}"))?;
        results(net, side, fine).map_err(|reason| format!("{name}: {reason}"))?;
        memory(net, side, fine).map_err(|reason| format!("{name}: {reason}"))?;
        messages(net, side, fine).map_err(|reason| format!("{name}: {reason}"))?;
        let counters = net.node(side.me).qp().counters();
        tally.sent_again += counters.completer_retry_err;
        let all = fine == side.plan.len();
        let again = counters.completer_retry_err;
        ensure!(all || weather == Weather::Harsh, "{name}: no reason to fail");
        ensure!(again == 0 || weather != Weather::Calm, "{name}: no reason to send again");
    }
    let packets = net.packets();
    ensure!(net.is_idle(), "idle, but with a deadline");
    net.drive_until(Time::from_nanos(u64::MAX / 2));
    ensure!(net.packets() == packets, "a packet after the end of time");
    Ok(tally)
}

/// All requests have ended once, in order; returns how many did well.
fn successes(net: &Net, side: &Side, tally: &mut Tally) -> Result<usize, String> {
    let node = net.node(side.me);
    let sent = node.sent();
    ensure!(sent.len() == side.plan.len(), "{} of {} ended", sent.len(), side.plan.len());
    let in_order = (0..).zip(sent).all(|(index, done)| done.index == index);
    ensure!(in_order, "requests ended out of order");
    for (done, step) in sent.iter().zip(&side.plan) {
        let failed = done.status != WcStatus::Success;
        ensure!(done.report == (failed || step.work.request.signaled), "report of {done:?}");
        ensure!(done.opcode == step.work.request.kind.wc_opcode(), "opcode of {done:?}");
        ensure!(failed || done.byte_len == step.work.request.len, "length of {done:?}");
    }
    let good = |done: &&SendDone| done.status == WcStatus::Success;
    let fine = sent.iter().take_while(good).count();
    tally.succeeded += u64::try_from(fine).unwrap();
    let mut rest = sent[fine..].iter().map(|done| done.status);
    let broken = node.qp().state() == QpState::Err;
    match rest.next() {
        None | Some(WcStatus::WorkRequestFlushed) => {}
        Some(WcStatus::RetryExceeded) => tally.retries_exceeded += 1,
        Some(WcStatus::RnrRetryExceeded) => tally.rnr_exceeded += 1,
        Some(status) => return Err(format!("no network explains a {status}")),
    }
    ensure!(fine == sent.len() || broken, "a failure, but the queue pair lives");
    ensure!(rest.all(|status| status == WcStatus::WorkRequestFlushed), "alive after a failure");
    Ok(fine)
}

/// What READs and atomics brought home.
fn results(net: &Net, side: &Side, fine: usize) -> Result<(), String> {
    for (index, step) in (0..).zip(&side.plan[..fine]) {
        let bytes = net.node(side.me).request_bytes(index);
        match &step.effect {
            Effect::Read { expected } => ensure!(bytes == expected, "READ {index} is wrong"),
            Effect::Atomic { found, .. } => {
                ensure!(bytes == found.to_ne_bytes(), "atomic {index} found something else");
            }
            Effect::Send { .. } | Effect::Write { .. } | Effect::Local => {}
        }
    }
    Ok(())
}

/// The peer's memory is what it is after everything that did well, and perhaps, in order, some of
/// what failed: its execution may have been all that worked.
fn memory(net: &Net, side: &Side, fine: usize) -> Result<(), String> {
    let actual = net.node(side.peer).memory(0);
    let mut expected = side.before.clone();
    for step in &side.plan[..fine] {
        apply(step, &mut expected, usize::MAX);
    }
    if fine == side.plan.len() {
        ensure!(actual == expected, "memory differs after success");
        return Ok(());
    }
    for step in &side.plan[fine..] {
        // As much of it as has arrived, wherever it was cut.
        let mut partly = expected.clone();
        apply(step, &mut partly, arrived(step, actual));
        if actual == partly {
            return Ok(());
        }
        apply(step, &mut expected, usize::MAX);
        if actual == expected {
            return Ok(());
        }
    }
    ensure!(actual == expected, "memory is not what any prefix of the work makes");
    Ok(())
}

/// How many bytes of a request `memory` begins with, where it writes them.
fn arrived(step: &Step, memory: &[u8]) -> usize {
    match step.effect {
        Effect::Write { at } | Effect::Send { written: Some(at), .. } => {
            let pairs = memory[at..].iter().zip(&step.work.bytes);
            pairs.take_while(|(there, sent)| there == sent).count()
        }
        Effect::Send { written: None, .. }
        | Effect::Read { .. }
        | Effect::Atomic { .. }
        | Effect::Local => 0,
    }
}

/// Does to `memory` what the first `most` bytes of a request do.
fn apply(step: &Step, memory: &mut [u8], most: usize) {
    match step.effect {
        Effect::Write { at } | Effect::Send { written: Some(at), .. } => {
            let len = step.work.bytes.len().min(most);
            memory[at..at + len].copy_from_slice(&step.work.bytes[..len]);
        }
        Effect::Atomic { at, left, .. } if most >= 8 => {
            memory[at..at + 8].copy_from_slice(&left.to_ne_bytes());
        }
        Effect::Send { written: None, .. }
        | Effect::Read { .. }
        | Effect::Atomic { .. }
        | Effect::Local => {}
    }
}

/// The peer's receives: one for each message that did well, in order, with the right bytes.
fn messages(net: &Net, side: &Side, fine: usize) -> Result<(), String> {
    let peer = net.node(side.peer);
    let takes = |step: &&Step| matches!(step.effect, Effect::Send { .. });
    let certain = side.plan[..fine].iter().filter(takes).count();
    let good = peer.received().iter().take_while(|done| done.status == WcStatus::Success).count();
    // A sender that fails half-way leaves a receive that waits for the rest of its message.
    let half = fine < side.plan.len() && peer.qp().state() != QpState::Err;
    let gone = side.messages().len() - peer.received().len() - peer.receives();
    ensure!(gone == 0 || (gone == 1 && half), "{gone} receives have vanished");
    ensure!(good >= certain, "{certain} messages did well, {good} arrived");
    let flushed = |done: &adverb_engine::ReceiveDone| done.status == WcStatus::WorkRequestFlushed;
    ensure!(peer.received()[good..].iter().all(flushed), "a receive failed");
    ensure!(good == peer.received().len() || peer.qp().state() == QpState::Err, "flushed in RTS");
    for ((done, step), token) in peer.received().iter().zip(side.messages()).zip(0..).take(good) {
        ensure!(done.receive.token == token, "receives ended out of order");
        let Effect::Send { imm, written } = step.effect else {
            continue;
        };
        let opcode = written.map_or(WcOpcode::Receive, |_| WcOpcode::ReceiveRdmaWithImm);
        ensure!(done.opcode == opcode, "opcode of {done:?}");
        ensure!(done.imm.map(|imm| imm.0) == imm, "immediate data of {done:?}");
        ensure!(done.byte_len == step.work.request.len, "length of {done:?}");
        ensure!(done.solicited == step.work.request.solicited, "solicited bit of {done:?}");
        let bytes = &peer.receive_bytes(token)[..step.work.bytes.len()];
        ensure!(written.is_some() || bytes == step.work.bytes, "message {token} is wrong");
    }
    Ok(())
}

fn low(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).unwrap()
}

fn low8(number: u64) -> u8 {
    u8::try_from(number & 0xff).unwrap()
}
