//! A hostile process of the same user: it connects as any other, then scribbles over the memory that it shares
//! with its neighbours, or sends nonsense to the sockets by which devices find one another.
//!
//! The victim is this test's process. Each of its calls must end, its traffic with an honest neighbour must stay
//! right, newcomers must be able to reach it, and nothing may be left behind: memory, descriptors, a thread that spins.
//!
//! `ADVERB_SCRIBBLE_SECONDS` says how long each test runs, 6 if it says nothing; `ADVERB_SCRIBBLE_SEED=0x…` chooses
//! the first seed, which the output names.

use crate::agent::{Agent, own_listener, registry_of};
use crate::alone::alone;
use crate::pair::{Setup, Side, eventually, pattern};
use crate::path::Path;
use adverb_sys::memory;
use adverb_sys::unix::Stream;
use adverb_verbs::{Context, RemoteSlice, WcStatus, Work};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// No call takes longer, by the clock of [`Watch`].
const CALL_MAX: Duration = Duration::from_secs(1);
/// Nor does work, which waits for packets that were lost.
const WORK_MAX: Duration = Duration::from_secs(40);
/// How long a neighbour is hostile before it is killed.
const ROUND: Duration = Duration::from_millis(250);
/// Anonymous memory that may be kept between the first rounds and the last.
const GROWTH_MAX_KIB: u64 = 32 << 10;
/// Connections, and what belongs to them, that may be left between the first rounds and the last.
const DESCRIPTORS_MAX: usize = 100;

/// Scribbles over every mapping that the shared-memory links, peer pages or statistics pages of this process lie in.
fn scribbled(kind: &'static str) {
    let name = format!("scribbler::{kind}_scribbled_over_hold_up_no_other");
    alone(&name, || {
        Scene::new().rounds(|agent, seed| agent.tell(&format!("scribble {kind} {seed}")));
    });
}

#[test]
fn segments_scribbled_over_hold_up_no_other() {
    scribbled("segments");
}

#[test]
fn peer_pages_scribbled_over_hold_up_no_other() {
    scribbled("peer_pages");
}

#[test]
fn counters_scribbled_over_hold_up_no_other() {
    scribbled("counters");
}

/// Goal: nonsense in the registry keeps no process from what it has, and is put right when a device is opened. Method: as
/// above, with holes besides, and attempts to cut the file short; devices that are opened meanwhile may fail, later not.
fn registries_scribbled_over(path: Path, name: &str) {
    alone(name, || {
        let scene = Scene { withholds: true, ..Scene::over(path) };
        scene.rounds(|agent, seed| agent.tell(&format!("scribble registry {seed}")));
    });
}

#[test]
fn registries_scribbled_over_hold_up_no_other() {
    let name = "scribbler::registries_scribbled_over_hold_up_no_other";
    registries_scribbled_over(Path::SharedMemory, name);
}

#[test]
fn registries_scribbled_over_hold_up_no_packets() {
    let name = "scribbler::registries_scribbled_over_hold_up_no_packets";
    registries_scribbled_over(Path::Udp, name);
}

/// Goal: packets find a process that sleeps while the registry is written over, and does not see it. Method: every word
/// is overwritten once; the kernel has the socket of one such process before this one's, and those of two behind.
#[test]
fn processes_that_sleep_are_found_though_the_registry_is_wiped_out() {
    alone("scribbler::processes_that_sleep_are_found_though_the_registry_is_wiped_out", || {
        let (path, context) = (Path::Udp, Path::Udp.context());
        let registry = registry_of(std::process::id()).expect("it is open");
        let len = usize::try_from(registry.metadata().expect("a file").len()).expect("small");
        let mut agents = [(); 3].map(|()| Agent::start_over(path));
        let sides = agents.each_mut().map(|agent| {
            let side = setup(path).side(&context);
            let _ = agent.connect_to(&side.qp, &setup(path));
            (side, agent.memory())
        });
        let (_, last) = sides.last().expect("three");
        let [first, .., end] = &mut agents;
        let (from, _) = Agent::introduce(first, end, &setup(path));
        let write = format!("write {} 0 9000 {} {}", from.index, last.addr, last.rkey.0);
        for nonsense in [0, 0xff] {
            // They go to sleep when nothing comes.
            std::thread::sleep(ROUND);
            registry.write_all_at(&vec![nonsense; len], 0).expect("its memory may be written");
            for (side, far) in sides.iter().rev() {
                side.qp.post(Work::write(side.buffer(&pattern(1, 9000)), *far)).expect("room");
                assert_eq!(side.status(), WcStatus::Success, "{nonsense:#x}");
            }
            let [first, ..] = &mut agents;
            assert_eq!(first.ask(&write), "Success", "{nonsense:#x}: two others");
        }
    });
}

/// Goal: nonsense at the sockets of the rendezvous keeps no newcomer out. Method: seeded messages of all lengths,
/// and hellos that are nearly right, with descriptors of every wrong kind; on connections that stay, silent, and from
/// every other process as fast as it can.
#[test]
fn nonsense_at_the_rendezvous_holds_up_no_other() {
    alone("scribbler::nonsense_at_the_rendezvous_holds_up_no_other", || {
        Scene::new().rounds(|agent, seed| agent.tell(&format!("babble {seed}")));
    });
}

/// Goal: a crowd that enters and says nothing does not drive out one that is about to say hello. Method: a process
/// that has entered, and does not come to speak, while another one enters 500 times.
#[test]
fn silent_strangers_make_room_for_others() {
    alone("scribbler::silent_strangers_make_room_for_others", || {
        let context = Path::SharedMemory.context();
        let [mut newcomer, mut crowd] = [(); 2].map(|()| Agent::start_over(Path::SharedMemory));
        let listener = own_listener();
        assert_eq!(newcomer.ask(&format!("enter {listener} 1")), "entered");
        assert_eq!(crowd.ask(&format!("enter {listener} 500")), "entered");
        let inside =
            |agent: &mut Agent| -> usize { agent.ask("inside").parse().expect("a number") };
        eventually("most of the crowd are shown out", || inside(&mut crowd) < 100);
        assert_eq!(inside(&mut newcomer), 1);
        drop(context);
    });
}

/// The victim, its honest neighbour, and what is watched.
struct Scene {
    path: Path,
    /// Newcomers may fail as long as a neighbour is hostile.
    withholds: bool,
    watch: Watch,
    context: Context,
    honest: Agent,
    side: Side,
    far: RemoteSlice,
}

impl Scene {
    fn new() -> Self {
        Self::over(Path::SharedMemory)
    }

    fn over(path: Path) -> Self {
        let (watch, context) = (Watch::start(), path.context());
        let side = setup(path).side(&context);
        let mut honest = Agent::start_over(path);
        honest.connect_to(&side.qp, &setup(path));
        let far = honest.memory();
        Self { path, withholds: false, watch, context, honest, side, far }
    }

    /// One hostile neighbour after the other, until the time is over.
    fn rounds(mut self, hostile: impl Fn(&mut Agent, u64)) {
        let (first, end) = (first_seed(), Instant::now() + budget());
        println!("the first seed is {first:#x}");
        let mut at_first = None;
        let mut round = 0;
        while Instant::now() < end || round < 3 {
            let seed = first.wrapping_add(round);
            self.round(seed, &hostile);
            round += 1;
            if round == 3 {
                at_first = Some((resident_kib(), descriptors()));
            }
        }
        let (memory, files) = at_first.expect("three rounds at least");
        eventually("descriptors come back", || descriptors() <= files + DESCRIPTORS_MAX);
        let grown = resident_kib().saturating_sub(memory);
        assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more after {round} rounds");
        self.is_idle();
        let (longest, what) = self.watch.longest();
        println!("{round} rounds; the longest call: {what}, {longest:?}");
        assert!(longest <= CALL_MAX, "a call took {longest:?}: {what}");
    }

    fn setup(&self) -> Setup {
        setup(self.path)
    }

    fn round(&mut self, seed: u64, hostile: &impl Fn(&mut Agent, u64)) {
        let side = self.setup().side(&self.context);
        let mut agent = Agent::start_over(self.path);
        agent.connect_to(&side.qp, &self.setup());
        let far = agent.memory();
        let _ = side.qp.post(Work::write(side.buffer(&[1; 4096]), far));
        assert_eq!(side.status(), WcStatus::Success, "before it is hostile");
        hostile(&mut agent, seed);
        let end = Instant::now() + ROUND;
        let mut step = seed;
        while Instant::now() < end {
            self.use_hostile(&side, far, step);
            self.use_honest(step);
            step = step.wrapping_add(1);
        }
        let agent = match self.withholds {
            true => {
                agent.kill();
                None
            }
            false => Some(agent),
        };
        // A newcomer finds its way in, and is served.
        let mut newcomer = Agent::start_over(self.path);
        let other = self.setup().side(&self.context);
        self.watch.call("connect", || newcomer.connect_to(&other.qp, &self.setup()));
        let far = newcomer.memory();
        other.qp.post(Work::write(other.buffer(&pattern(seed, 9000)), far)).expect("room");
        assert_eq!(other.status(), WcStatus::Success, "seed {seed:#x}: a newcomer");
        assert!(newcomer.has(0, 9000, seed), "seed {seed:#x}: a newcomer");
        let far = self.honest.memory();
        let (from, _) = Agent::introduce(&mut newcomer, &mut self.honest, &setup(self.path));
        let write = format!("write {} 0 9000 {} {}", from.index, far.addr, far.rkey.0);
        assert_eq!(newcomer.ask(&write), "Success", "seed {seed:#x}: two others");
        assert!(self.honest.has(0, 9000, seed), "seed {seed:#x}: two others");
        drop(newcomer);
        drop(agent);
        self.watch.call("drop", || drop(side));
        self.watch.call("drop", || drop(other));
        self.use_honest(seed);
    }

    /// Requests of each kind to the one that is hostile: they end somehow.
    fn use_hostile(&self, side: &Side, far: RemoteSlice, step: u64) {
        let len = *pick(&[8, 64, 600, 9000, 100_000], step);
        let memory = self.watch.call("region", || side.region(&vec![7; len]));
        let part = memory.slice(0, len).expect("all");
        self.watch.call("post", || {
            // It fails once the queue pair is in error, or full.
            match step % 4 {
                0 => drop(side.qp.post(Work::send(part))),
                1 => drop(side.qp.post(Work::write(part, far))),
                2 => drop(side.qp.post(Work::recv(part))),
                _ => drop(side.qp.post(Work::read(part, far))),
            }
        });
        self.watch.call("poll", || (0..20).for_each(|_| drop(side.cq.next())));
        self.watch.call("drop", || drop(memory));
    }

    /// What is written to the honest one is read back unchanged.
    fn use_honest(&mut self, step: u64) {
        let len = *pick(&[8, 600, 30_000], step);
        let bytes = pattern(step, len);
        let ended = |what| {
            let status = match self.path {
                Path::Udp | Path::Frames => self.watch.work(what, || self.side.status()),
                Path::InProcess | Path::Ring | Path::SharedMemory => {
                    self.watch.call(what, || self.side.status())
                }
            };
            assert_eq!(status, WcStatus::Success, "step {step:#x}: {what} of the honest neighbour");
        };
        self.side.qp.post(Work::write(self.side.buffer(&bytes), self.far)).expect("room");
        ended("write");
        let back = self.side.region(&vec![0; len]);
        self.side.qp.post(Work::read(back.slice(0, len).expect("all"), self.far)).expect("room");
        ended("read");
        let mut found = vec![0; len];
        back.read(0, &mut found).expect("all");
        assert!(found == bytes, "step {step:#x}: bytes of the honest neighbour have changed");
        if step.is_multiple_of(64) {
            assert!(
                self.honest.has(0, len, step),
                "step {step:#x}: not as the neighbour sees them"
            );
        }
    }

    /// No thread of this process spins while nothing happens.
    fn is_idle(&self) {
        let cpu = || adverb_sys::process::usage().expect("figures").cpu();
        eventually("threads of the device sleep", || {
            let (start, before) = (Instant::now(), cpu());
            std::thread::sleep(Duration::from_millis(200));
            (cpu() - before) * 2 < start.elapsed()
        });
    }
}

/// Queue pairs to neighbours that may be kept from their processor. Packets may get lost.
fn setup(path: Path) -> Setup {
    let timeout = if path == Path::Udp { 16 } else { 20 };
    Setup { timeout, ..Setup::default() }
}

/// Since when a call has lasted, and which; and how long the longest took, and which that was.
type Calls = (Option<(Instant, &'static str)>, (Duration, &'static str));

/// Ends the process if one call takes too long, and remembers the longest.
struct Watch {
    state: Arc<Mutex<Calls>>,
    /// Microseconds in which this process could run: it stands still while the machine does.
    clock: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

/// How often the clock moves, and by how much at most.
const TICK: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(10);

impl Watch {
    fn start() -> Self {
        let watch = Self { state: Arc::default(), clock: Arc::default(), over: Arc::default() };
        let (state, clock) = (Arc::clone(&watch.state), Arc::clone(&watch.clock));
        let over = Arc::clone(&watch.over);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let current = state.lock().unwrap_or_else(PoisonError::into_inner).0;
                if let Some((since, what)) = current
                    && since.elapsed() > WORK_MAX
                {
                    eprintln!("{what} has not ended for {WORK_MAX:?}");
                    std::process::abort();
                }
                let tick = Instant::now();
                std::thread::sleep(TICK);
                let micros = tick.elapsed().min(TICK_MAX).as_micros();
                clock.fetch_add(u64::try_from(micros).expect("small"), Ordering::Relaxed);
            }
        });
        watch
    }

    /// A call of the library.
    fn call<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        let start = self.now();
        let result = self.work(what, call);
        let took = self.now() - start;
        let mut state = self.lock();
        state.1 = state.1.max((took, what));
        result
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.clock.load(Ordering::Relaxed))
    }

    /// Many calls, until work is done.
    fn work<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        self.lock().0 = Some((Instant::now(), what));
        let result = work();
        self.lock().0 = None;
        result
    }

    fn longest(&self) -> (Duration, &'static str) {
        self.lock().1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn budget() -> Duration {
    let seconds = std::env::var("ADVERB_SCRIBBLE_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("ADVERB_SCRIBBLE_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(6))
}

fn first_seed() -> u64 {
    let Ok(seed) = std::env::var("ADVERB_SCRIBBLE_SEED") else {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        return now.as_secs() << 24;
    };
    let digits = seed.strip_prefix("0x").expect("ADVERB_SCRIBBLE_SEED starts with 0x");
    u64::from_str_radix(digits, 16).expect("ADVERB_SCRIBBLE_SEED is a hexadecimal number")
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// One of some, chosen by a number.
fn pick<T>(some: &[T], number: u64) -> &T {
    let count = u64::try_from(some.len()).expect("64 bits");
    let at = usize::try_from(number % count).expect("below a length");
    some.get(at).expect("not empty")
}

/// A generator of numbers: xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("64 bits");
        usize::try_from(self.next() % bound).expect("below a length")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.next() >> 56).expect("eight bits")).collect()
    }
}

/// In the hostile process: writes nonsense into its mappings of one kind until it is killed. It writes by way of
/// `/proc/self/mem`, so that what it hits in its own address space is no reference of Rust's.
pub(crate) fn scribble(kind: &str, seed: u64) -> ! {
    let file = match kind {
        "segments" => "adverb-segment ",
        "peer_pages" => "adverb-peer-page ",
        "counters" => "adverb-counters ",
        "registry" => "adverb-registry-",
        _ => panic!("no such memory: {kind}"),
    };
    let mappings = writable(&format!("/memfd:{file}"));
    assert!(!mappings.is_empty(), "nothing to scribble over");
    let memory = File::options().write(true).open("/proc/self/mem").expect("proc");
    let registry = registry_of(std::process::id()).filter(|_| kind == "registry");
    let mut random = Random::new(seed);
    loop {
        if let Some(registry) = registry.as_ref().filter(|_| random.next().is_multiple_of(1024)) {
            cut(registry, &mut random);
        }
        let (start, len) = *pick(&mappings, random.next());
        // The beginning, where the words are on which much depends, as often as the rest.
        let len = if random.next().is_multiple_of(2) { len.min(4096) } else { len };
        let at = random.below(len - 64) & !7;
        let bytes = match random.below(5) {
            0 => random.bytes(64),
            1 => vec![0; 64],
            2 => vec![0xff; 8],
            3 => (random.next() % 8).to_le_bytes().to_vec(),
            _ => random.bytes(8),
        };
        let at = u64::try_from(start + at).expect("64 bits");
        let _ = memory.write_at(&bytes, at);
        if random.next().is_multiple_of(64) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Takes pages out of a file, and tries to make it shorter, which its seals forbid.
fn cut(file: &File, random: &mut Random) {
    let _ = file.set_len(random.next() % 8192);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let at = (random.next() % 256 * 4096).to_string();
    let mut punch = Command::new("fallocate");
    // Where there is no such command, there are no holes.
    let _ = punch.args(["--punch-hole", "--offset", &at, "--length", "8192", &path]).status();
}

/// Start and length of the writable shared mappings of files of this name.
fn writable(name: &str) -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let ours = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains(name));
    ours.filter_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let [start, end] = [start, end].map(|word| usize::from_str_radix(word, 16).unwrap_or(0));
        Some((start, end.checked_sub(start).filter(|len| *len >= 4096)?))
    })
    .collect()
}

/// In the hostile process: sends nonsense to every socket of the rendezvous until it is killed; without a pause, if the
/// seed is odd.
pub(crate) fn babble(seed: u64) -> ! {
    let mut random = Random::new(seed);
    let wrong = wrong_descriptors();
    let mut held = Vec::new();
    loop {
        for name in names() {
            let Ok(stream) = Stream::connect(name.as_bytes()) else {
                continue;
            };
            for _ in 0..random.below(4) {
                let fds: Vec<BorrowedFd<'_>> =
                    (0..random.below(5)).map(|_| pick(&wrong, random.next()).as_fd()).collect();
                let _ = stream.send(&message(&mut random, &name), &fds);
            }
            held.push(stream);
        }
        if held.len() > 500 || random.next().is_multiple_of(16) {
            held.clear();
        }
        if seed.is_multiple_of(2) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The names by which devices listen in this network namespace.
fn names() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let names = sockets.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    // The lock of newcomers is no socket that anything is sent to.
    let ours = names.filter(|name| name.starts_with("adverb-") && !name.ends_with("-founding"));
    ours.map(str::to_owned).collect()
}

/// A hello, or what looks like one, or something about memory, or anything.
fn message(random: &mut Random, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match random.below(4) {
        0 => {
            let mut words = name.rsplit('-');
            let nonce = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let slot = words.next().and_then(|word| word.parse().ok());
            bytes.extend(b"advh");
            bytes.extend(u32::try_from(random.below(6)).expect("small").to_ne_bytes());
            bytes.extend(slot.unwrap_or_else(|| random.next() % 2048).to_ne_bytes());
            bytes.extend(nonce.unwrap_or_else(|| random.next()).to_ne_bytes());
            if random.next().is_multiple_of(2) {
                let at = random.below(bytes.len());
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8));
            }
        }
        1 => {
            bytes.extend((random.next() % 8).to_ne_bytes());
            bytes.extend((random.next() % 16).to_ne_bytes());
        }
        2 => bytes.extend(b"advr"),
        _ => {}
    }
    if random.next().is_multiple_of(2) {
        let len = random.below(64);
        bytes.extend(random.bytes(len));
    }
    bytes.truncate(1 + random.below(80));
    bytes
}

/// A directory, a device, both ends of a pipe, files that are too short, not sealed or full of nothing.
fn wrong_descriptors() -> Vec<OwnedFd> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let open = |path| OwnedFd::from(File::open(path).expect("it is there"));
    let sealed = |len| {
        let file = memory::memfd("adverb-segment", len).expect("memory");
        memory::seal(&file).expect("sealed");
        file
    };
    vec![
        open("/"),
        open("/dev/null"),
        open("/proc/self/maps"),
        OwnedFd::from(reader),
        OwnedFd::from(writer),
        memory::memfd("adverb-segment", 1 << 20).expect("memory"),
        sealed(4096),
        sealed(1 << 20),
        sealed(128 << 20),
    ]
}
