//! Another process that does what it is told: one line asks, one line answers.
//!
//! The process is this test program itself, started again to run nothing but [`agent`], which
//! serves until its input ends. It has one region of memory and any number of queue pairs.

use crate::alone::program;
use crate::pair::{FOREVER, Setup, bytes_of, pattern, wait};
use crate::path::Path;
use crate::talker::{Talker, reply};
use adverb_verbs::{
    Access, Context, Cq, Gid, Memory, Mr, PathMtu, Pd, Psn, Qp, Qpn, Rc, RcConnect, RemoteQp,
    RemoteSlice, Rkey, Supports, WcOpcode, WcStatus, Work,
};
use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in the environment of the process that is to serve.
const VARIABLE: &str = "ADVERB_TEST_AGENT";

/// The other process, seen from the one that tells it what to do. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Agent(Talker);

impl Agent {
    /// Starts a process that has this device open.
    pub(crate) fn start(device: &str, gid_index: u8) -> Self {
        Self::start_by(Command::new(program()), device, gid_index)
    }

    /// Starts a process whose queue pairs take this path.
    pub(crate) fn start_over(path: Path) -> Self {
        let mut command = Command::new(program());
        command.env("ADVERB_PATH", path.variable());
        Self::start_by(command, "soft_lo", 1)
    }

    /// Starts it by way of a command that runs what its arguments say.
    pub(crate) fn start_by(command: Command, device: &str, gid_index: u8) -> Self {
        let mut agent = Self(Talker::start(command, "agent::agent", VARIABLE));
        agent.ask(&format!("open {device} {gid_index}"));
        agent
    }

    /// Makes a queue pair there and says where it is.
    pub(crate) fn qp(&mut self) -> Remote {
        Remote::parse(&self.ask("qp"))
    }

    pub(crate) fn connect(&mut self, own: &Remote, peer: RemoteQp, setup: &Setup) {
        assert_eq!(self.try_connect(own, peer, setup), "connected");
    }

    /// Fails to connect, and says why.
    pub(crate) fn refused(&mut self, own: &Remote, peer: RemoteQp, setup: &Setup) -> String {
        let answer = self.try_connect(own, peer, setup);
        assert_ne!(answer, "connected");
        answer
    }

    fn try_connect(&mut self, own: &Remote, peer: RemoteQp, setup: &Setup) -> String {
        let Setup { path_mtu, timeout, retry_count, traffic_class: class, .. } = setup;
        let RemoteQp { gid, qpn, psn } = peer;
        let (index, gid, mtu) = (own.index, hex(&gid.0), path_mtu.bytes());
        let (qpn, psn) = (qpn.get(), psn.get());
        let line =
            format!("connect {index} {gid} {qpn} {psn} {mtu} {timeout} {retry_count} {class}");
        self.ask(&line)
    }

    /// Connects a new queue pair of this process with a new one there.
    pub(crate) fn connect_to(&mut self, qp: &Qp<Rc>, setup: &Setup) -> Remote {
        let there = self.qp();
        let here = qp.address_at(setup.gid_index).expect("an address");
        self.connect(&there, here, setup);
        qp.connect(setup.to(RcConnect::new(there.qp))).expect("connected");
        there
    }

    /// Connects two agents with each other.
    pub(crate) fn introduce(a: &mut Self, b: &mut Self, setup: &Setup) -> (Remote, Remote) {
        let (x, y) = (a.qp(), b.qp());
        a.connect(&x, y.qp, setup);
        b.connect(&y, x.qp, setup);
        (x, y)
    }

    pub(crate) fn memory(&mut self) -> RemoteSlice {
        let answer = self.ask("memory");
        let mut words = answer.split(' ').map(|word| word.parse().expect("a number"));
        let addr = words.next().expect("an address");
        let rkey = words.next().and_then(|key: u64| u32::try_from(key).ok()).expect("a key");
        RemoteSlice { addr, rkey: Rkey(rkey) }
    }

    pub(crate) fn fill(&mut self, at: usize, len: usize, seed: u64) {
        assert_eq!(self.ask(&format!("fill {at} {len} {seed}")), "filled");
    }

    /// The memory there is what [`pattern`] makes of the seed.
    pub(crate) fn has(&mut self, at: usize, len: usize, seed: u64) -> bool {
        self.ask(&format!("check {at} {len} {seed}")) == "true"
    }

    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        let answer = self.ask("counters");
        let found = answer.split(' ').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
        found.and_then(|value| value.parse().ok()).expect("there is such a counter")
    }

    /// Processor time that it has used.
    pub(crate) fn cpu(&mut self) -> Duration {
        Duration::from_micros(self.ask("cpu").parse().expect("a number"))
    }

    /// Ends it as nothing else can: at whatever instruction it is.
    pub(crate) fn kill(self) {
        self.0.kill();
    }
}

impl Deref for Agent {
    type Target = Talker;

    fn deref(&self) -> &Talker {
        &self.0
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut Talker {
        &mut self.0
    }
}

/// A queue pair of an agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) index: usize,
    pub(crate) qp: RemoteQp,
}

impl Remote {
    fn parse(answer: &str) -> Self {
        let words: Vec<_> = answer.split(' ').collect();
        let [index, gid, qpn, psn] = *words else { panic!("not a queue pair: {answer}") };
        let number = |word: &str| word.parse::<u32>().expect("a number");
        let index = index.parse().expect("an index");
        let (qpn, psn) = (Qpn::new(number(qpn)), Psn::new(number(psn)));
        Self { index, qp: RemoteQp { gid: unhex(gid), qpn, psn } }
    }
}

/// Receives that wait for messages with numbers.
const FOLLOWED_AHEAD: usize = 64;

/// What memory is filled with that no other process is to see or to change.
pub(crate) const CANARY: u8 = 0xca;

/// Length of an agent's region, in bytes.
pub(crate) const MEMORY_BYTES: usize = 16 << 20;

fn hex(gid: &[u8; 16]) -> String {
    gid.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("strings grow");
        text
    })
}

fn unhex(text: &str) -> Gid {
    let number = u128::from_str_radix(text, 16).expect("32 digits");
    Gid(number.to_be_bytes())
}

/// What the serving process has.
struct Servant {
    gid_index: u8,
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Option<Qp<Rc>>>,
    squatted: Vec<adverb_sys::unix::Listener>,
    /// Connections to listening sockets, over which nothing is said.
    held: Vec<adverb_sys::unix::Stream>,
}

/// Not a test: the other process, if the environment says that this is it.
#[test]
#[ignore = "the child of another test"]
fn agent() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut servant: Option<Servant> = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let words: Vec<_> = line.split(' ').collect();
        let answer = match (servant.as_mut(), words.as_slice()) {
            (None, ["open", device, gid_index]) => {
                servant = Some(Servant::open(device, gid_index.parse().expect("a number")));
                "open".to_owned()
            }
            (Some(servant), words) => servant.serve(words),
            (None, _) => panic!("nothing is open: {line}"),
        };
        reply(&answer);
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn small(word: &str) -> usize {
    word.parse().expect("a number")
}

/// Receives and sends so many messages, one after the other, and does nothing but poll in between.
/// `opened` of them were sent before. A receive is posted before, and afterwards.
pub(crate) fn bounce(qp: &Qp<Rc>, cq: &Cq, memory: impl Fn() -> Memory, rounds: u32, opened: u32) {
    let (mut received, mut posted, mut sent) = (0, opened, 0);
    let end = Instant::now() + FOREVER;
    while received < rounds || sent < rounds {
        let Some(completion) = cq.next().expect("no overrun") else {
            continue;
        };
        assert_eq!(completion.wc.status, WcStatus::Success);
        assert!(Instant::now() < end, "after {received} of {rounds} messages");
        if completion.wc.opcode == WcOpcode::Receive {
            received += 1;
            qp.post(Work::recv(memory())).expect("room");
            if posted < rounds {
                posted += 1;
                qp.post(Work::send(memory())).expect("room");
            }
        } else {
            sent += 1;
        }
    }
}

impl Servant {
    fn open(device: &str, gid_index: u8) -> Self {
        let context = Context::open(device).expect("the device");
        let pd = context.alloc_pd();
        let cq = context.create_cq(4096).expect("a completion queue");
        let mr = pd.allocate(MEMORY_BYTES, Access::ALL).expect("memory");
        Self {
            gid_index,
            context,
            pd,
            cq,
            mr,
            qps: Vec::new(),
            squatted: Vec::new(),
            held: Vec::new(),
        }
    }

    fn qp(&self, word: &str) -> &Qp<Rc> {
        self.qps.get(small(word)).and_then(Option::as_ref).expect("there is one")
    }

    fn serve(&mut self, words: &[&str]) -> String {
        match words {
            ["qp"] => {
                let qp = Setup::default().qp(&self.pd, &self.cq);
                let RemoteQp { gid, qpn, psn } = qp.address_at(self.gid_index).expect("an address");
                self.qps.push(Some(qp));
                let index = self.qps.len() - 1;
                format!("{index} {} {} {}", hex(&gid.0), qpn.get(), psn.get())
            }
            ["connect", index, gid, qpn, psn, mtu, timeout, retry_count, class] => {
                let qp = self.qp(index);
                let short = |word: &str| u32::try_from(number(word)).expect("short");
                let (qpn, psn) = (Qpn::new(short(qpn)), Psn::new(short(psn)));
                let remote = RemoteQp { gid: unhex(gid), qpn, psn };
                let setup = Setup {
                    gid_index: self.gid_index,
                    path_mtu: PathMtu::largest_below(short(mtu)).expect("an MTU"),
                    timeout: timeout.parse().expect("five bits"),
                    retry_count: retry_count.parse().expect("three bits"),
                    traffic_class: class.parse().expect("eight bits"),
                    ..Setup::default()
                };
                match qp.connect(setup.to(RcConnect::new(remote))) {
                    Ok(()) => "connected".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
            ["drop", index] => {
                let place = self.qps.get_mut(small(index)).expect("there is one");
                *place = None;
                "dropped".to_owned()
            }
            ["path", index] => self.qp(index).path().expect("connected").to_string(),
            ["knock", user] => knock(user),
            ["listener"] => own_listener(),
            ["squat", user] => {
                let names = (0..8).map(|slot| format!("adverb-registry-{user}-{slot}"));
                let bind = |name: String| adverb_sys::unix::Listener::bind(name.as_bytes());
                self.squatted = names.filter_map(|name| bind(name).ok()).collect();
                format!("has {}", self.squatted.len())
            }
            ["pose", whose, as_whose] => pose(whose, as_whose),
            ["enter", whose, count] => {
                let enter = |_| adverb_sys::unix::Stream::connect(whose.as_bytes());
                self.held.extend((0..small(count)).map(|n| enter(n).expect("it listens")));
                "entered".to_owned()
            }
            ["inside"] => {
                let ended = |stream| {
                    adverb_sys::poll::readable(stream, std::iter::empty(), Some(Duration::ZERO))
                };
                let inside = self.held.iter().filter(|stream| !ended(*stream).expect("poll"));
                inside.count().to_string()
            }
            ["ask", "for", "files", up_to] => crate::isolation::ask_for_files(number(up_to)),
            ["state", index] => self.qp(index).state().to_string(),
            ["heard", index] => {
                let counters = self.qp(index).counters();
                format!("{} {}", counters.rcvd_pkts, counters.rp_cnp_handled)
            }
            ["memory"] => format!("{} {}", self.mr.addr(), self.mr.rkey().0),
            ["fill", at, len, seed] => {
                let bytes = pattern(number(seed), small(len));
                self.mr.write(small(at), &bytes).expect("it fits");
                "filled".to_owned()
            }
            ["check", at, len, seed] => {
                let same = bytes_of(&self.mr, small(at), small(len));
                (same == pattern(number(seed), small(len))).to_string()
            }
            ["value", at] => self.mr.load_u64(small(at)).expect("aligned").to_string(),
            ["recv", index, at, len] => {
                self.qp(index).post(Work::recv(self.part(at, len))).expect("room");
                "posted".to_owned()
            }
            ["send", index, at, len] => self.run(index, Work::send(self.part(at, len))),
            ["write", index, at, len, addr, rkey] => {
                self.run(index, Work::write(self.part(at, len), far(addr, rkey)))
            }
            ["read", index, at, len, addr, rkey] => {
                self.run(index, Work::read(self.part(at, len), far(addr, rkey)))
            }
            ["add", index, addr, rkey, add] => {
                let add = number(add);
                self.run(index, Work::fetch_add(self.part("0", "8"), far(addr, rkey), add))
            }
            ["stream", index, len, addr, rkey] => self.stream(index, len, far(addr, rkey)),
            ["hammer", index, len, addr, rkey] => self.hammer(index, small(len), far(addr, rkey)),
            ["announce", index, rounds, addr, rkey] => {
                self.announce(index, number(rounds), far(addr, rkey))
            }
            ["number", index, count] => self.send_numbers(index, number(count)),
            ["follow", index, count] => self.follow_numbers(index, number(count)),
            ["bounce", index, rounds] => {
                let rounds = rounds.parse().expect("a number");
                bounce(self.qp(index), &self.cq, || self.part("0", "8"), rounds, 0);
                "bounced".to_owned()
            }
            ["late", index, addr, rkey] => {
                self.mr.store_u64(8, 7).expect("aligned");
                let write = Work::write(self.part("8", "8"), far(addr, rkey));
                let qp = self.qp(index);
                qp.post(Work::send(self.part("0", "8"))).expect("room");
                qp.post(write).expect("room");
                self.ended(2)
            }
            ["echo", index, rounds, addr, rkey] => {
                self.echo(index, number(rounds), far(addr, rkey))
            }
            ["wait"] => {
                let wc = wait(&self.cq).wc;
                format!("{:?} {:?} {}", wc.status, wc.opcode, wc.byte_len)
            }
            ["leave"] => {
                // As a program does that has what it came for: nothing is dropped.
                assert_eq!(wait(&self.cq).wc.status, WcStatus::Success);
                std::process::exit(0);
            }
            ["counters"] => {
                let counters = self.context.counters();
                let pairs = counters.iter().map(|(name, value)| format!("{name}={value}"));
                pairs.collect::<Vec<_>>().join(" ")
            }
            ["cpu"] => {
                let cpu = adverb_sys::process::usage().expect("figures").cpu();
                cpu.as_micros().to_string()
            }
            ["idle", ms] => {
                std::thread::sleep(Duration::from_millis(number(ms)));
                "rested".to_owned()
            }
            ["poll", ms] => {
                let end = Instant::now() + Duration::from_millis(number(ms));
                while Instant::now() < end {
                    assert!(self.cq.next().expect("no overrun").is_none());
                }
                "polled".to_owned()
            }
            ["scribble", kind, seed] => crate::scribbler::scribble(kind, number(seed)),
            ["babble", seed] => crate::scribbler::babble(number(seed)),
            ["mtu"] => self.context.query_port().active_mtu.bytes().to_string(),
            ["netns"] => adverb_sys::netns::current_id().expect("an id").to_string(),
            _ => panic!("an unknown command: {words:?}"),
        }
    }

    fn part(&self, at: &str, len: &str) -> Memory {
        self.mr.slice(small(at), small(len)).expect("it is in there").into()
    }

    /// Runs one request and says how it ended.
    fn run<O>(&self, index: &str, work: Work<O>) -> String
    where
        Rc: Supports<O>,
    {
        self.qp(index).post(work).expect("room");
        format!("{:?}", wait(&self.cq).wc.status)
    }

    /// Waits for so many completions, and says how the first that failed has ended.
    fn ended(&self, count: usize) -> String {
        let mut status = WcStatus::Success;
        for _ in 0..count {
            let ended = wait(&self.cq).wc.status;
            if status == WcStatus::Success {
                status = ended;
            }
        }
        format!("{status:?}")
    }

    /// Writes numbers that grow, and after each sends a message.
    fn announce(&self, index: &str, rounds: u64, to: RemoteSlice) -> String {
        for n in 1..=rounds {
            self.mr.store_u64(8, n).expect("aligned");
            let write = Work::write(self.part("8", "8"), to);
            self.qp(index).post(write).expect("room");
            self.qp(index).post(Work::send(self.part("0", "8"))).expect("room");
            let ended = self.ended(2);
            if ended != "Success" {
                return ended;
            }
        }
        "Success".to_owned()
    }

    /// Sends messages with numbers that grow by one.
    fn send_numbers(&self, index: &str, count: u64) -> String {
        for n in 1..=count {
            self.mr.store_u64(0, n).expect("aligned");
            let status = self.run(index, Work::send(self.part("0", "8")));
            if status != "Success" {
                return format!("{status} at {n}");
            }
        }
        "Success".to_owned()
    }

    /// Receives those, and says whether each has come once, in order.
    fn follow_numbers(&self, index: &str, count: u64) -> String {
        let places = (64..).step_by(8).take(FOLLOWED_AHEAD);
        let receive = |at| {
            let place = self.mr.slice(at, 8).expect("it is in there");
            self.qp(index).post(Work::recv(Memory::from(place))).expect("room");
        };
        places.clone().for_each(receive);
        for (n, at) in (1..=count).zip(places.clone().cycle()) {
            let status = wait(&self.cq).wc.status;
            let found = self.mr.load_u64(at).expect("aligned");
            if (status, found) != (WcStatus::Success, n) {
                return format!("{status:?} {found}, not {n}");
            }
            // As many are left in the end as there were to begin with: none.
            if count - n >= u64::try_from(FOLLOWED_AHEAD).expect("few") {
                receive(at);
            }
        }
        "in order".to_owned()
    }

    /// Sends a message, writes a number, reads it again and adds to it, all at once.
    fn echo(&self, index: &str, rounds: u64, to: RemoteSlice) -> String {
        for n in 1..=rounds {
            self.mr.store_u64(8, 5 * n).expect("aligned");
            let qp = self.qp(index);
            qp.post(Work::send(self.part("0", "8"))).expect("room");
            qp.post(Work::write(self.part("8", "8"), to)).expect("room");
            qp.post(Work::read(self.part("16", "8"), to)).expect("room");
            // A READ is answered when there is time: it may see what is not fenced behind it.
            qp.post(Work::fetch_add(self.part("24", "8"), to, 1).fence()).expect("room");
            qp.post(Work::write(self.part("24", "8"), to).fence()).expect("room");
            qp.post(Work::read(self.part("32", "8"), to)).expect("room");
            let ended = self.ended(6);
            let words = [16, 24, 32].map(|at| self.mr.load_u64(at).expect("aligned"));
            if ended != "Success" || words != [5 * n; 3] {
                return format!("{ended} {words:?}, not {}", 5 * n);
            }
        }
        "Success".to_owned()
    }

    /// Writes and reads in turn until that fails, and says how; or that it has read a [`CANARY`].
    fn hammer(&self, index: &str, len: usize, there: RemoteSlice) -> String {
        let end = Instant::now() + FOREVER;
        let part = |at| self.mr.slice(at, len).expect("it is in there");
        self.mr.fill(0, len, 1).expect("it is writable");
        loop {
            let qp = self.qp(index);
            qp.post(Work::write(part(0), there)).expect("room");
            qp.post(Work::read(part(len), there)).expect("room");
            let ended = self.ended(2);
            if ended != "Success" || Instant::now() > end {
                return ended;
            }
            if bytes_of(&self.mr, len, len).contains(&CANARY) {
                return "a canary was read".to_owned();
            }
        }
    }

    /// Writes again and again until that fails, and says how.
    fn stream(&self, index: &str, len: &str, to: RemoteSlice) -> String {
        let end = Instant::now() + FOREVER;
        let mut under_way = 0;
        loop {
            while under_way < 16 {
                let work = Work::write(self.part("0", len), to);
                if self.qp(index).post(work).is_err() {
                    break;
                }
                under_way += 1;
            }
            let wc = wait(&self.cq).wc;
            under_way -= 1;
            if wc.status != WcStatus::Success || Instant::now() > end {
                return format!("{:?}", wc.status);
            }
        }
    }
}

/// Tries the listening socket of each device of a user's, and asks each for the registry.
fn knock(user: &str) -> String {
    use adverb_sys::unix::Stream;
    let names = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let listeners = |prefix: String| {
        let names = names.lines().filter_map(|line| line.split(' ').next_back());
        let names = names.filter_map(move |name| name.strip_prefix('@'));
        names.filter(move |name| name.starts_with(&prefix)).map(|name| {
            let stream = Stream::connect(name.as_bytes()).expect("it listens");
            // A process that is shut out hears so at once; one that is let in is waited for.
            let wait = Some(Duration::from_millis(500));
            let heard = adverb_sys::poll::readable(&stream, std::iter::empty(), wait);
            (stream, heard.expect("poll"))
        })
    };
    let mut entered: Vec<bool> =
        listeners(format!("adverb-{user}-")).map(|(_, ended)| !ended).collect();
    entered.dedup();
    let mut given: Vec<bool> = listeners(format!("adverb-registry-{user}-"))
        .map(|(stream, _)| {
            let mut files = Vec::new();
            let _ = stream.recv(&mut [0; 64], &mut files);
            !files.is_empty()
        })
        .collect();
    given.dedup();
    match (entered.as_slice(), given.as_slice()) {
        ([true], [true]) => "let in, and the registry is open".to_owned(),
        ([false], [false]) => "shut out, and the registry is closed".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The name by which this process's device is met.
pub(crate) fn own_listener() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").expect("proc").filter_map(Result::ok);
    let own: Vec<_> = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let all = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let found = all.lines().find_map(|line| {
        let [.., inode, name] = *line.split_whitespace().collect::<Vec<_>>() else { return None };
        let name = name.strip_prefix("@adverb-").filter(|name| !name.starts_with("registry"))?;
        let is_own =
            own.iter().any(|file| file.as_os_str() == format!("socket:[{inode}]").as_str());
        is_own.then(|| format!("adverb-{name}"))
    });
    found.expect("it listens")
}

/// Says hello at a device's listening socket, as the device that has another one; says what comes of it.
fn pose(whose: &str, as_whose: &str) -> String {
    const VERSION: u32 = 4;
    let mut parts = as_whose.rsplit('-');
    let nonce = parts.next().and_then(|nonce| u64::from_str_radix(nonce, 16).ok());
    let slot = parts.next().map(number).expect("a slot");
    let mut hello = b"advh".to_vec();
    hello.extend(VERSION.to_ne_bytes());
    hello.extend(slot.to_ne_bytes());
    hello.extend(nonce.expect("a nonce").to_ne_bytes());
    let stream = adverb_sys::unix::Stream::connect(whose.as_bytes()).expect("it listens");
    stream.send(&hello, &[]).expect("sent");
    let heard = adverb_sys::poll::readable(&stream, std::iter::empty(), Some(FOREVER));
    let len = stream.recv(&mut [0; 64], &mut Vec::new());
    match (heard, len) {
        (Ok(true), Ok(0) | Err(_)) => "refused".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The registry that a process has open, by a description of our own.
pub(crate) fn registry_of(pid: u32) -> Option<std::fs::File> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.filter_map(Result::ok);
    let is_registry = |path: &std::path::PathBuf| {
        let name = std::fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:adverb-registry-")
    };
    let path = entries.map(|entry| entry.path()).find(is_registry)?;
    std::fs::File::options().read(true).write(true).open(path).ok()
}

fn far(addr: &str, rkey: &str) -> RemoteSlice {
    RemoteSlice { addr: number(addr), rkey: Rkey(u32::try_from(number(rkey)).expect("a key")) }
}
