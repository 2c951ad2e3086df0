//! A process of the same user writes nonsense over rings that are in use: every call ends, and the server
//! goes on serving others.
//!
//! # Safety
//!
//! 1. A file is mapped for as long as a [`Mapped`] lives, and its words are written as atomics, within its
//!    length.
//! 2. Arrays passed to `epoll_wait` are on this stack; other calls of C take numbers.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::child;
use crate::running::{Running, until};
use crate::support::{Place, free_port};

/// Bytes in front of the rings.
const HEADER_BYTES: usize = 4096;
/// How long answers to others may take, on a busy machine.
const HANG: Duration = Duration::from_secs(20);
/// How long calls may run, or be on their way, that do not wait.
const CALL: Duration = Duration::from_secs(1);
/// Attackers of each kind: `ADVERB_SCRIBBLES` says how many.
const ROUNDS: u64 = 4;

#[derive(Debug)]
pub(crate) struct Mapped {
    base: *mut AtomicU64,
    len: usize,
}

impl Mapped {
    fn new(path: &Path) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let len = usize::try_from(file.metadata().ok()?.len()).ok().filter(|len| *len > 0)?;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: the kernel chooses the address.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        (base != libc::MAP_FAILED).then_some(Self { base: base.cast(), len })
    }

    fn words(&self) -> usize {
        self.len / size_of::<u64>()
    }

    fn store_all(&self, words: [usize; 2], value: u64) {
        words.into_iter().for_each(|word| self.store(word, value));
    }

    fn store(&self, word: usize, value: u64) {
        assert!(word < self.words());
        // SAFETY: within the mapping (rule 1).
        let at = unsafe { self.base.add(word) };
        // SAFETY: the mapping is there as long as this is (rule 1).
        let at = unsafe { &*at };
        at.store(value, Ordering::Relaxed);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made, and not used any more (rule 1).
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Numbers that look random, and are the same each time.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(most).expect("a number")).expect("a number")
    }

    /// A value of a kind that words of the header have, or never have.
    fn value(&mut self) -> u64 {
        match self.next() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => self.next() % 6,
            3 => self.next() % (1 << 20),
            4 => ((self.next() % 6) << 32) | (self.next() % 6),
            _ => self.next(),
        }
    }
}

/// What is written over.
#[derive(Clone, Copy, Debug)]
enum Extent {
    /// One word of the header after the other.
    Word,
    /// The header.
    Header,
    /// All of it.
    All,
    /// Nothing: the file is cut off.
    Cut,
}

const EXTENTS: [Extent; 4] = [Extent::Word, Extent::Header, Extent::All, Extent::Cut];

fn scribble(rings: &[Mapped], extent: Extent, random: &mut Random) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(40) {
        for rings in rings {
            let most = match extent {
                Extent::Word | Extent::Header => HEADER_BYTES / size_of::<u64>(),
                Extent::All | Extent::Cut => rings.words(),
            };
            let count = if matches!(extent, Extent::Word) { 1 } else { most };
            for _ in 0..count {
                rings.store(random.below(most), random.value());
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Files that are in use now: rings of connections.
fn is_ring(name: &OsStr) -> bool {
    name.len() == 32
}

/// Mailboxes of UDP sockets, and the directory of them.
fn is_mailbox(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"udp.")
}

fn files(place: &Place, wanted: fn(&OsStr) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.rings()).into_iter().flatten().flatten();
    entries.filter(|entry| wanted(&entry.file_name())).map(|entry| entry.path()).collect()
}

fn mapped(place: &Place, wanted: fn(&OsStr) -> bool) -> Vec<Mapped> {
    files(place, wanted).iter().filter_map(|file| Mapped::new(file)).collect()
}

pub(crate) fn rings(place: &Place) -> Vec<Mapped> {
    mapped(place, is_ring)
}

/// Leaves no more of them than that.
fn cut(place: &Place, wanted: fn(&OsStr) -> bool, len: usize) {
    let len = u64::try_from(len).expect("a length");
    for file in files(place, wanted) {
        // It may be gone by now.
        let _ = OpenOptions::new().write(true).open(file).and_then(|file| file.set_len(len));
    }
}

/// An honest client, which is not accelerated, gets its answer.
pub(crate) fn is_served(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    stream.set_read_timeout(Some(HANG)).expect("a time");
    for _ in 0..3 {
        stream.write_all(b"honest").expect("the server");
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).expect("the server answers others");
        assert_eq!(&answer, b"honest");
    }
}

/// Connections that the server has, besides the one that asks.
fn others(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    stream.set_read_timeout(Some(HANG)).expect("a time");
    stream.write_all(b"?").expect("the server");
    let mut answer = [0; 10];
    let got = stream.read(&mut answer).expect("the server answers others");
    String::from_utf8_lossy(&answer[..got]).into_owned()
}

/// Three clients, and at least so much memory that they use. They end after half a second, in which they may not have got a
/// processor: others follow them then.
pub(crate) fn in_use(
    start: impl Fn() -> Running,
    memory: impl Fn() -> Vec<Mapped>,
    least: usize,
) -> (Vec<Running>, Vec<Mapped>) {
    let mut clients: Vec<_> = (0..3).map(|_| start()).collect();
    let mut found = Vec::new();
    until("clients use shared memory", || {
        for client in &mut clients {
            if let Some(status) = client.has_ended() {
                assert!(status.success(), "a call of a client's hung");
                *client = start();
            }
        }
        found = memory();
        found.len() >= least
    });
    (clients, found)
}

fn survives(name: &str, extent: Extent) {
    let rounds = std::env::var("ADVERB_SCRIBBLES")
        .map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    for seed in 0..rounds {
        let (place, port) = (Place::new(&format!("nonsense-{name}-{seed}")), free_port());
        let role = |role: &str| {
            let mut command = child(&place, &format!("{role} {port}"));
            command.env_remove("ADVERB_SOCKETS_EXPLAIN").stdout(Stdio::null());
            command
        };
        let mut server = Running::serve(&mut role(name), port);
        let start = || Running::start(&mut role("call"));
        let (mut clients, mapped) = in_use(start, || rings(&place), 2);
        let mut random = Random(seed);
        match extent {
            Extent::Cut => cut(&place, is_ring, 0),
            Extent::Word | Extent::Header | Extent::All => scribble(&mapped, extent, &mut random),
        }
        let start = Instant::now();
        is_served(port);
        // One client is killed, two look by themselves whether each of their calls has ended.
        clients.truncate(2);
        for client in &mut clients {
            assert!(
                client.end().success(),
                "{name} {extent:?} {seed}: a call of the client's hung"
            );
        }
        is_served(port);
        until("the server has no other connection", || others(port) == "0");
        assert!(start.elapsed() < 3 * HANG, "{name} {extent:?} {seed}");
        assert_eq!(server.has_ended(), None, "{name} {extent:?} {seed}: the server has ended");
        // It is not poisoned itself: the next client is served, with rings.
        assert!(Running::start(&mut role("call")).end().success(), "{name} {extent:?} {seed}");
    }
}

/// Goal: a server that has a thread for each connection survives nonsense in rings.
#[test]
fn threads_survive_nonsense_in_rings() {
    EXTENTS.into_iter().for_each(|extent| survives("threads", extent));
}

/// Goal: a server that does everything from one thread, and waits for nothing but events, survives it, too.
#[test]
fn events_survive_nonsense_in_rings() {
    EXTENTS.into_iter().for_each(|extent| survives("events", extent));
}

/// Goal: datagrams: every call ends, and others are served, whatever is written into mailboxes and their directory.
#[test]
fn sockets_survive_nonsense_in_mailboxes() {
    let rounds = std::env::var("ADVERB_SCRIBBLES")
        .map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    for (extent, seed) in
        EXTENTS.into_iter().flat_map(|extent| (0..rounds).map(move |s| (extent, s)))
    {
        let (place, port) = (Place::new(&format!("nonsense-boxes-{seed}")), free_port());
        let start = |what: &str| {
            let mut command = role(&place, &format!("{what} {port}"));
            Running::start(command.stdout(Stdio::null()))
        };
        let mut server = start("answer");
        is_answered(port);
        let (mut clients, boxes) = in_use(|| start("ask"), || mapped(&place, is_mailbox), 3);
        eprintln!("{extent:?} {seed}");
        match extent {
            Extent::Cut => cut(&place, is_mailbox, 0),
            Extent::Word | Extent::Header | Extent::All => {
                scribble(&boxes, extent, &mut Random(seed));
            }
        }
        is_answered(port);
        clients.truncate(2); // One is killed.
        for client in &mut clients {
            assert!(client.end().success(), "{extent:?} {seed}: a call of a client's hung");
        }
        is_answered(port);
        assert_eq!(server.has_ended(), None, "{extent:?} {seed}: the server has ended");
    }
}

/// A client that is not accelerated gets its answer. Datagrams may get lost, so it asks again.
fn is_answered(port: u16) {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time");
    let mut answer = [0; 6];
    until("the server answers others", || {
        let _ = socket.send_to(b"honest", ("127.0.0.1", port));
        socket.recv(&mut answer).is_ok_and(|got| &answer[..got] == b"honest")
    });
}

/// Answers datagrams.
pub(crate) fn answer_datagrams(port: u16) {
    Watch::start();
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
    let mut buffer = vec![0; 60_000];
    loop {
        if let Ok((got, from)) = bounded("receive", || socket.recv_from(&mut buffer)) {
            let _ = bounded("send", || socket.send_to(&buffer[..got], from));
        }
    }
}

/// Asks for half a second, with sockets that come and go.
pub(crate) fn ask_by_datagrams(port: u16) {
    Watch::start();
    let start = Instant::now();
    let mut buffer = vec![7; 1000];
    while start.elapsed() < Duration::from_millis(500) {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        for _ in 0..2000 {
            let _ = bounded("send", || socket.send_to(&buffer, ("127.0.0.1", port)));
            if bounded("receive", || socket.recv(&mut buffer)).is_err() {
                break;
            }
            if start.elapsed() > Duration::from_millis(500) {
                break;
            }
        }
        bounded("close", || drop(socket));
    }
}

/// Echoes from a thread for each connection. A client that sends a `?` first is told how many others are there.
pub(crate) fn serve_from_threads(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    let there = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming().flatten() {
        let there = Arc::clone(&there);
        there.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            let (mut stream, mut buffer) = (stream, vec![0; 60_000]);
            let others = || there.load(Ordering::SeqCst) - 1;
            while let Ok(got @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&answer(&buffer[..got], others())).is_err() {
                    break;
                }
            }
            there.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn answer(asked: &[u8], others: usize) -> Vec<u8> {
    if asked == b"?" { others.to_string().into_bytes() } else { asked.to_vec() }
}

/// One that an instance watches.
#[derive(Debug)]
struct Watched {
    stream: TcpStream,
    unsent: Vec<u8>,
}

impl Watched {
    /// Reads and writes what can be, and returns whether the connection goes on. No call may take long.
    fn step(&mut self, others: usize) -> bool {
        let mut buffer = vec![0; 60_000];
        if self.unsent.is_empty() {
            match bounded("read", || self.stream.read(&mut buffer)) {
                Ok(got @ 1..) => self.unsent = answer(&buffer[..got], others),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Ok(_) | Err(_) => return false,
            }
        }
        match bounded("write", || self.stream.write(&self.unsent)) {
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        true
    }
}

/// How late this process gets a processor: a thread that sleeps for a moment, again and again, says how much longer
/// that took, at most.
#[derive(Debug)]
struct Lateness;

static LATEST_NS: AtomicU64 = AtomicU64::new(0);

impl Lateness {
    const MOMENT: Duration = Duration::from_millis(5);

    fn watch() {
        std::thread::spawn(|| {
            loop {
                let start = Instant::now();
                std::thread::sleep(Self::MOMENT);
                let late = start.elapsed().saturating_sub(Self::MOMENT).as_nanos();
                LATEST_NS.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
    }

    /// What a call may take here: it waits for a processor a few times.
    fn allowed() -> Duration {
        CALL + 4 * Duration::from_nanos(LATEST_NS.load(Ordering::Relaxed))
    }
}

/// What a thread is seen to do in a call: another one looks again and again whether it sleeps.
#[derive(Debug)]
struct Watch;

static SLEPT: AtomicU64 = AtomicU64::new(0);

impl Watch {
    const MOMENT: Duration = Duration::from_millis(5);
    /// Looks that may find a thread asleep in a call that does not wait: a second of them.
    const SLEPT_MAX: u64 = 200;

    /// Looks at the calling thread from now on.
    fn start() {
        // SAFETY: the call takes nothing.
        let thread = unsafe { libc::gettid() };
        let stat = format!("/proc/self/task/{thread}/stat");
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Self::MOMENT);
                let stat = fs::read_to_string(&stat).expect("a thread");
                if stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S')) {
                    SLEPT.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// How often it was asleep, and what it has had of a processor.
    fn seen() -> (u64, Duration) {
        let mut ran = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a structure on this stack (rule 2).
        let got = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut ran) };
        assert_eq!(got, 0);
        let [seconds, ns] = [ran.tv_sec, ran.tv_nsec].map(|of| u64::try_from(of).expect("a time"));
        let ran = Duration::from_secs(seconds) + Duration::from_nanos(ns);
        (SLEPT.load(Ordering::Relaxed), ran)
    }
}

/// Fails if a call sleeps or runs for long that does not wait. What it waits for a processor is of no account.
fn bounded<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let (slept, ran) = Watch::seen();
    let answer = call();
    let (slept, ran) = (Watch::seen().0 - slept, Watch::seen().1 - ran);
    assert!(slept < Watch::SLEPT_MAX, "to {what}, it slept at {slept} looks");
    assert!(ran < CALL, "to {what}, it ran for {ran:?}");
    answer
}

/// Words of a ring's header (`ring.rs`): of each direction, whether a bell is about to be sent, whether it has
/// ended, and how many bells were sent.
const RINGING: [usize; 2] = [296 / 8, 936 / 8];
const BELLS: [usize; 2] = [304 / 8, 944 / 8];

/// Goal: an end that goes back to the kernel waits for a neighbour that has stopped in the midst of something for
/// less than a second, and what comes late is not taken for data.
/// Method: a program is about to become one without the library; the words that the neighbour writes say that it
/// is about to ring, for ever, or that it has rung more often than it has.
#[test]
fn a_neighbour_that_stops_in_the_midst_does_not_keep_an_end_from_leaving() {
    for (name, words, value) in [("ringing", RINGING, 1 << 32), ("rung", BELLS, 1000)] {
        let (place, port) = (Place::new(&format!("nonsense-leave-{name}")), free_port());
        let mut server = role(&place, &format!("threads {port}"));
        let mut server = Running::serve(server.stdout(Stdio::null()), port);
        let mut client = role(&place, &format!("leave {port}"));
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.spawn().expect("a client");
        let mut said = BufReader::new(client.stdout.take().expect("a pipe")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line.contains("ready"))), "{name}");
        let mapped = rings(&place);
        assert!(!mapped.is_empty(), "{name}: there are no rings");
        let write = || mapped.iter().for_each(|rings| rings.store_all(words, value));
        // The server may be in the midst of ringing, and say then that it is not any more.
        std::thread::sleep(Duration::from_millis(50));
        write();
        Lateness::watch();
        let start = Instant::now();
        client.stdin.take().expect("a pipe").write_all(b"go\n").expect("the client");
        let status = loop {
            match client.try_wait().expect("the client") {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            write();
        };
        let took = start.elapsed();
        assert!(status.success(), "{name}: {status}");
        assert!(took < Lateness::allowed(), "{name}: {took:?} of {:?}", Lateness::allowed());
        // It has waited for what will not come: the words are where they are written to here.
        assert!(took > Duration::from_millis(300), "{name}: {took:?}");
        is_served(port);
        until("the server has no other connection", || others(port) == "0");
        assert_eq!(server.has_ended(), None, "{name}: the server has ended");
    }
}

/// Goal: an end that closes leaves the processor to a neighbour that is about to ring: that one may have been taken from it by
/// the very end that waits. Method: the word says so for ever, and the end that waits sleeps again and again, rather than be
/// ready to run all the time.
#[test]
fn an_end_that_closes_sleeps_until_the_last_bell_is_there() {
    let (place, port) = (Place::new("nonsense-close"), free_port());
    let mut server = role(&place, &format!("threads {port}"));
    let server = Running::serve(server.stdout(Stdio::null()), port);
    let mut client = role(&place, &format!("close {port}"));
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("a client");
    let mut said = BufReader::new(client.stdout.take().expect("a pipe")).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line.contains("ready"))));
    let mapped = rings(&place);
    assert!(!mapped.is_empty(), "there are no rings");
    // It says no more of its own that it does not ring.
    server.signal("STOP");
    mapped.iter().for_each(|rings| rings.store_all(RINGING, 1 << 32));
    client.stdin.take().expect("a pipe").write_all(b"go\n").expect("the client");
    let took = said.by_ref().find_map(|line| Some(line.ok()?.strip_prefix("took ")?.to_owned()));
    said.for_each(drop);
    let sleeps = took.expect("a number").parse::<i64>().expect("a number");
    assert!(client.wait().expect("the client").success());
    assert!(sleeps >= 5, "{sleeps} sleeps");
}

/// Goal: memory of a ring that is missing resets the connection; it is neither a signal nor an `EFAULT`, which says
/// that the program's buffer is none. Method: the file is cut, to nothing or to its header, while a program that uses
/// it has so many mappings that a single page cannot be replaced.
#[test]
fn missing_memory_of_a_ring_is_no_fault_of_the_program() {
    for len in [0, HEADER_BYTES] {
        let (place, port) = (Place::new(&format!("nonsense-unmappable-{len}")), free_port());
        let mut server = role(&place, &format!("threads {port}"));
        let mut server = Running::serve(server.stdout(Stdio::null()), port);
        let mut client = role(&place, &format!("unmappable {port}"));
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.spawn().expect("a client");
        let mut said = BufReader::new(client.stdout.take().expect("a pipe")).lines();
        assert!(said.any(|line| line.is_ok_and(|line| line.contains("ready"))), "{len}");
        assert!(!rings(&place).is_empty(), "{len}: there are no rings");
        cut(&place, is_ring, len);
        client.stdin.take().expect("a pipe").write_all(b"go\n").expect("the client");
        let status = client.wait().expect("the client");
        assert!(status.success(), "{len}: {status}");
        is_served(port);
        assert_eq!(server.has_ended(), None, "{len}: the server has ended");
    }
}

/// Talks by rings, and, once it is told to, again, when the kernel gives this process no more mappings.
pub(crate) fn talk_without_mappings(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    let mut answer = [0; 5];
    for _ in 0..100 {
        stream.write_all(b"hello").expect("the server");
        stream.read_exact(&mut answer).expect("the server");
    }
    use_up_mappings();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let ended = stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut answer));
    let kind = ended.expect_err("a connection that is broken").kind();
    let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];
    assert!(reset.contains(&kind), "{kind:?}");
}

/// Each other page of a long mapping gets rights of its own, until the kernel refuses.
fn use_up_mappings() {
    const PAGE_BYTES: usize = 4096;
    const PAGES: usize = 1 << 22;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (len, none) = (PAGES * PAGE_BYTES, libc::PROT_NONE);
    // SAFETY: the kernel chooses the address.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, none, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    let refused = (0..PAGES).step_by(2).any(|page| {
        let at = base.wrapping_byte_add(page * PAGE_BYTES);
        // SAFETY: a page of the mapping from above, which holds nothing.
        unsafe { libc::mprotect(at, PAGE_BYTES, libc::PROT_READ) != 0 }
    });
    assert!(refused, "there are more mappings than pages");
}

fn role(place: &Place, role: &str) -> Command {
    let mut command = child(place, role);
    command.stderr(Stdio::inherit());
    command
}

/// Talks by rings, and, once it is told to, becomes a program without the library that has the connection, too.
pub(crate) fn leave(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    let mut answer = [0; 5];
    for _ in 0..100 {
        stream.write_all(b"hello").expect("the server");
        stream.read_exact(&mut answer).expect("the server");
    }
    // SAFETY: the call takes numbers.
    assert_eq!(unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let error = Command::new("true").env_remove("LD_PRELOAD").exec();
    panic!("{error}");
}

/// Talks by rings, and closes the connection once it is told to: says how often it has slept for that.
pub(crate) fn close(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
    let mut answer = [0; 5];
    for _ in 0..100 {
        stream.write_all(b"hello").expect("the server");
        stream.read_exact(&mut answer).expect("the server");
    }
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let before = sleeps();
    drop(stream);
    println!("\ntook {}", sleeps() - before);
}

/// How often this thread has left the processor by itself.
fn sleeps() -> i64 {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a structure on this stack (rule 2).
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

/// Echoes from one thread, by epoll, without ever waiting for a connection.
pub(crate) fn serve_events(port: u16) {
    Watch::start();
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    // SAFETY: the call has no preconditions.
    let instance = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let events = |events: libc::c_int| u32::try_from(events).expect("a mask");
    let control = |how, fd: i32, mask: u32| {
        let mut event = libc::epoll_event { events: mask, u64: u64::try_from(fd).expect("open") };
        // SAFETY: the event is on this stack (rule 2).
        let answer = unsafe { libc::epoll_ctl(instance, how, fd, &raw mut event) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    };
    control(libc::EPOLL_CTL_ADD, listener.as_raw_fd(), events(libc::EPOLLIN));
    let mut watched: Vec<Watched> = Vec::new();
    loop {
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: the array is on this stack (rule 2).
        let count = unsafe { libc::epoll_wait(instance, found.as_mut_ptr(), 16, 1000) };
        for event in &found[..usize::try_from(count).unwrap_or(0)] {
            let fd = i32::try_from(event.u64).expect("a descriptor");
            if fd == listener.as_raw_fd() {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("a connection");
                    control(libc::EPOLL_CTL_ADD, stream.as_raw_fd(), events(libc::EPOLLIN));
                    watched.push(Watched { stream, unsent: Vec::new() });
                }
                continue;
            }
            let others = watched.len() - 1;
            let Some(at) = watched.iter().position(|one| one.stream.as_raw_fd() == fd) else {
                continue;
            };
            if watched[at].step(others) {
                let room = if watched[at].unsent.is_empty() { 0 } else { libc::EPOLLOUT };
                control(libc::EPOLL_CTL_MOD, fd, events(libc::EPOLLIN | room));
            } else {
                drop(watched.swap_remove(at));
            }
        }
    }
}

/// Asks for half a second, again and again, and gives up a connection on which nothing comes: no call takes
/// long, whatever its rings say.
pub(crate) fn call(port: u16) {
    Watch::start();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
        stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a time");
        let mut buffer = vec![7; 30_000];
        while start.elapsed() < Duration::from_millis(500)
            && bounded("write", || stream.write(&buffer[..1000])).is_ok()
            && bounded("read", || stream.read(&mut buffer)).is_ok_and(|got| got > 0)
        {}
        bounded("close", || drop(stream));
    }
}
