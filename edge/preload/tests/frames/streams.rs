//! Connections past the kernel: what their programs do, and the tests.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

use std::ffi::{CString, c_int};
use std::fs;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use adverb_sys::affinity;

use super::{
    FAR, FAR_6, FORKED, NEAR, NEAR_6, PORT, Pair, Running, at, run, soon, with_namespaces,
};

/// Serves connections: sends everything back, or what the mode says.
pub(crate) fn serve(at: SocketAddr, mode: &str) {
    let mut listener = TcpListener::bind(at);
    soon("the port", || {
        listener.is_ok() || {
            listener = TcpListener::bind(at);
            listener.is_ok()
        }
    });
    let listener = listener.expect("a port");
    println!("\nready");
    let many = (mode == "many").then(|| Epoll::new(0));
    if let Some(all) = many {
        return serve_many(&listener, &all);
    }
    if mode == "unbound ever" {
        give_up_ports();
    }
    for stream in listener.incoming() {
        let (stream, mode) = (stream.expect("a connection"), mode.to_owned());
        std::thread::spawn(move || match mode.split_once(' ') {
            Some(("pour", bytes)) => pour(stream, bytes.parse().expect("a number")),
            _ if mode == "fork" => fork(stream),
            _ if mode == "bequeath" => bequeath(stream),
            Some(("slice", bytes)) => slice(stream, bytes.parse().expect("a number")),
            Some(("rate", bytes)) => {
                pace(&stream);
                slice(stream, bytes.parse().expect("a number"));
            }
            Some(("answer", bytes)) => answer(stream, bytes.parse().expect("a number")),
            Some(("heir", bytes)) => heir(stream, bytes.parse().expect("a number")),
            Some(("trickle", bytes)) => {
                let mut stream = stream;
                trickle(&mut stream, bytes.parse().expect("a number"));
            }
            Some(("take", bytes)) => take(stream, bytes.parse().expect("a number")),
            Some(("late", bytes)) => late(stream, bytes.parse().expect("a number")),
            Some(("idle", bytes)) => idle(stream, bytes.parse().expect("a number")),
            Some(("end", bytes)) => end(stream, bytes.parse().expect("a number")),
            Some(("tail", bytes)) => tail(stream, bytes.parse().expect("a number")),
            Some(("brim", what)) => brim(stream, what),
            Some(("part", bytes)) => part(stream, bytes.parse().expect("a number")),
            Some(("slow", then)) => slow(stream, then),
            Some(("low", bytes)) => {
                narrow(&stream);
                pour(stream, bytes.parse().expect("a number"));
            }
            Some(("quick", bytes)) => quick(stream, bytes.parse().expect("a number")),
            Some(("hand", how)) => hand_on(stream, how),
            Some(("reset", how)) => outlive(stream, how),
            Some(("unbound", _)) => close_unbound(stream),
            Some(("hold", "on")) => hold_on(stream),
            Some(("hold", option)) => impatient(stream, option),
            _ if mode == "shared" => outlive_together(stream),
            _ if mode == "lock" => lock(stream),
            _ if mode == "urgent" => urge(stream),
            _ if mode == "hold" => hold(stream),
            _ if mode == "hup" => hear_of_the_end(stream),
            _ if mode == "first" => close_first(stream),
            _ if mode == "wish" => wish(stream),
            _ if ["more", "cork"].contains(&mode.as_str()) => in_two(stream, &mode),
            _ => echo(stream, &mode),
        });
    }
}

pub(crate) struct Epoll(c_int);

impl Epoll {
    pub(crate) fn new(flags: c_int) -> Self {
        // SAFETY: no pointer.
        Self(unsafe { libc::epoll_create1(flags) })
    }

    pub(crate) fn add(&self, fd: c_int, events: c_int) {
        let key = u64::try_from(fd).expect("a descriptor");
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: key };
        // SAFETY: an event, which is ours.
        assert_eq!(unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    }

    fn wait(&self) -> c_int {
        c_int::try_from(self.next().u64).expect("a descriptor")
    }

    /// What there is of the one descriptor.
    pub(crate) fn wait_for_events(&self) -> c_int {
        self.next().events.cast_signed()
    }

    fn next(&self) -> libc::epoll_event {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: an event, which is ours.
        assert_eq!(unsafe { libc::epoll_wait(self.0, &raw mut event, 1, -1) }, 1);
        event
    }
}

/// One instance for the listener and all connections.
fn serve_many(listener: &TcpListener, all: &Epoll) {
    let mut streams = std::collections::HashMap::new();
    all.add(listener.as_raw_fd(), libc::EPOLLIN);
    let mut room = vec![0; 1 << 16];
    loop {
        let fd = all.wait();
        if fd == listener.as_raw_fd() {
            let (stream, _) = listener.accept().expect("a connection");
            all.add(stream.as_raw_fd(), libc::EPOLLIN);
            streams.insert(stream.as_raw_fd(), stream);
            continue;
        }
        let stream = streams.get_mut(&fd).expect("a connection");
        match stream.read(&mut room) {
            Ok(len @ 1..) => stream.write_all(&room[..len]).expect("it is sent"),
            Ok(_) | Err(_) => drop(streams.remove(&fd)),
        }
    }
}

fn echo(mut stream: TcpStream, mode: &str) {
    let spins = ["spin", "sip"].contains(&mode);
    stream.set_nonblocking(spins || mode == "edge").expect("an option");
    stream.set_nodelay(mode == "sip").expect("an option");
    let instance = ["epoll", "edge"].contains(&mode).then(|| {
        let instance = Epoll::new(0);
        let edge = if mode == "edge" { libc::EPOLLET } else { 0 };
        instance.add(stream.as_raw_fd(), libc::EPOLLIN | edge);
        instance
    });
    // Some messages fit, and some do not.
    let mut room = vec![0; if mode == "sip" { 66 } else { 1 << 16 }];
    loop {
        if mode == "poll" {
            let mut polled =
                libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: a structure, which is ours.
            assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
        }
        instance.iter().for_each(|instance| _ = instance.wait());
        loop {
            match stream.read(&mut room) {
                Ok(0) => return,
                Ok(len) => send_all(&mut stream, &room[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return println!("said {error}"),
            }
            if !spins && mode != "edge" {
                break;
            }
        }
    }
}

/// Whether the socket waits or not.
fn send_all(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return,
        }
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let byte = |at: usize| at.wrapping_mul(0x9e37_79b9) >> 13;
    (0..len).map(|at| u8::try_from(byte(at) & 0xff).expect("a byte")).collect()
}

/// Sends so many bytes, and closes at once.
fn pour(mut stream: TcpStream, bytes: usize) {
    stream.write_all(&pattern(bytes)).expect("it is sent");
}

/// Closes first, at a line, and ends at another one; says how often it has slept by then.
fn close_first(mut stream: TcpStream) {
    begin(&mut stream);
    let line = || std::io::stdin().read_line(&mut String::new()).expect("a line");
    line();
    drop(stream);
    println!("said closed");
    line();
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
    println!("naps {}", usage.ru_nvcsw);
    std::process::exit(0);
}

/// Sends so many bytes back, sends some more, and closes first.
fn part(mut stream: TcpStream, bytes: usize) {
    let (mut left, mut room) = (bytes, vec![0; 1 << 16]);
    while left > 0 {
        let len = stream.read(&mut room).expect("a request");
        send_all(&mut stream, &room[..len]);
        left -= len;
    }
    pour(stream, 1000);
}

/// The same, in pieces of a segment each.
fn slice(mut stream: TcpStream, bytes: usize) {
    pattern(bytes).chunks(1448).for_each(|piece| stream.write_all(piece).expect("it is sent"));
}

/// The connection has a rate of 4,000,000 bytes a second, and as much as a test sends may be written at once.
fn pace(stream: &TcpStream) {
    // The three numbers of `struct vma_rate_limit_t`.
    set(stream, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, [32_000_u32, 100_000_000, 0]);
}

/// Sends back all that comes, a while after it may have come, and so many bytes behind its end.
fn answer(mut stream: TcpStream, bytes: usize) {
    send_back(&mut stream);
    pour(stream, bytes);
}

fn send_back(stream: &mut TcpStream) {
    std::thread::sleep(Duration::from_millis(50));
    let mut room = vec![0; 1 << 16];
    while let Ok(len @ 1..) = stream.read(&mut room) {
        send_all(stream, &room[..len]);
    }
}

/// The same, but a child sends those bytes.
fn heir(mut stream: TcpStream, bytes: usize) {
    send_back(&mut stream);
    // SAFETY: no pointer; the child ends when it has sent.
    if unsafe { libc::fork() } == 0 {
        pour(stream, bytes);
        // SAFETY: no pointer.
        unsafe { libc::_exit(0) };
    }
}

/// Sends so many bytes in short pieces, for some seconds.
fn trickle(stream: &mut TcpStream, bytes: usize) {
    for pieces in pattern(bytes).chunks(8 * 1448) {
        pieces.chunks(1448).for_each(|piece| stream.write_all(piece).expect("it is sent"));
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Sends back what comes, and says after a while that filters of the socket are to stay as they are.
fn lock(mut stream: TcpStream) {
    begin(&mut stream);
    set(&stream, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1_i32);
    echo(stream, "block");
}

/// Says when so many bytes have come.
fn take(mut stream: TcpStream, bytes: usize) {
    let mut all = vec![0; bytes];
    stream.read_exact(&mut all).expect("all of it");
    assert!(all == pattern(bytes), "other bytes");
    stream.write_all(b"!").expect("it is sent");
}

/// Sends back what comes first, and so many bytes before it reads what comes then. Says how much that was.
fn late(mut stream: TcpStream, bytes: usize) {
    let mut room = [0; 100];
    for _ in 0..50 {
        let len = stream.read(&mut room).expect("a request");
        send_all(&mut stream, &room[..len]);
    }
    std::thread::sleep(Duration::from_millis(200));
    stream.write_all(&pattern(bytes)).expect("it is sent");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the rest");
    assert!(rest == pattern(rest.len()), "other bytes");
    println!("said {}", rest.len());
}

/// Ends its stream when the peer has ended its own, and reads the rest of that slowly, or closes the connection instead; or
/// reads all, and closes it.
fn slow(mut stream: TcpStream, then: &str) {
    begin(&mut stream);
    std::thread::sleep(Duration::from_millis(200));
    if then == "end" {
        stream.read_to_end(&mut Vec::new()).expect("the end");
    } else {
        stream.shutdown(Shutdown::Write).expect("it ends");
        // The last acknowledgement is on its way.
        std::thread::sleep(Duration::from_millis(100));
    }
    if ["close", "end"].contains(&then) {
        let (own, before) = (stream.as_raw_fd(), open_descriptors());
        let socket = fs::read_link(format!("/proc/self/fd/{own}")).expect("a socket");
        let copies = || open_descriptors().iter().filter(|one| **one == socket).count();
        assert!(before.contains(&socket));
        drop(stream);
        soon("no copy", || copies() == 0);
        return println!("said none");
    }
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("an option");
    let (mut rest, mut room) = (Vec::new(), [0; 4096]);
    let end = loop {
        match stream.read(&mut room).map_err(|error| error.kind()) {
            Ok(0) => break Ok(()),
            Ok(len) => rest.extend_from_slice(&room[..len]),
            Err(error) => break Err(error),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(rest == pattern(rest.len()), "other bytes");
    println!("said {} {end:?}", rest.len());
}

/// Takes no step until so many bytes are there, reads all that the peer sends at a time, and answers with one.
fn quick(mut stream: TcpStream, bytes: usize) {
    begin(&mut stream);
    let mut all = vec![0; bytes + 500];
    loop {
        let mut waiting: c_int = 0;
        while usize::try_from(waiting).expect("a number") < bytes {
            // SAFETY: an integer, which is ours.
            let asked =
                unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
            assert_eq!(asked, 0);
        }
        stream.read_exact(&mut all).expect("the rest");
        assert!(all == pattern(all.len()), "other bytes");
        stream.write_all(b"!").expect("it is sent");
    }
}

/// What the descriptors of this process stand for.
fn open_descriptors() -> Vec<std::path::PathBuf> {
    let all = fs::read_dir("/proc/self/fd").expect("a directory");
    all.flatten().filter_map(|one| fs::read_link(one.path()).ok()).collect()
}

/// Has the kernel take little at a time.
fn narrow(stream: &TcpStream) {
    set(stream, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 16 << 10);
}

/// Sends so many bytes at once, and does nothing more.
fn idle(mut stream: TcpStream, bytes: usize) {
    narrow(&stream);
    stream.write_all(&pattern(bytes)).expect("it is sent");
    std::thread::park();
}

/// Sends so many bytes at once, ends its stream, and waits for the end of the other.
fn end(mut stream: TcpStream, bytes: usize) {
    narrow(&stream);
    stream.write_all(&pattern(bytes)).expect("it is sent");
    stream.shutdown(Shutdown::Write).expect("it ends");
    println!("said {:?}", stream.read(&mut [0; 9]));
}

/// Sends what is taken without waiting, in such pieces. Returns how much that is.
fn fill(stream: &TcpStream, piece: usize) -> usize {
    stream.set_nonblocking(true).expect("an option");
    let (mut stream, bytes, mut sent) = (stream, pattern(32 << 20), 0);
    while let Ok(len @ 1..) = stream.write(&bytes[sent..(sent + piece).min(bytes.len())]) {
        sent += len;
    }
    sent
}

/// Sends so many bytes, then what is taken without waiting, and does nothing more.
fn tail(mut stream: TcpStream, bytes: usize) {
    narrow(&stream);
    stream.write_all(&pattern(bytes)).expect("it is sent");
    println!("said {}", fill(&stream, 64 << 10));
    std::thread::park();
}

/// Sends what is taken without waiting, and ends its stream, or sends an urgent byte, while the kernel cannot hold all of
/// that.
fn brim(mut stream: TcpStream, what: &str) {
    give_up_administration();
    let mut room = [0; 100];
    for _ in 0..50 {
        let len = stream.read(&mut room).expect("a request");
        send_all(&mut stream, &room[..len]);
    }
    let sent = fill(&stream, 4 << 10);
    if what == "urgent" {
        let next = pattern(sent + 1)[sent];
        // SAFETY: a byte that is ours.
        let send = || unsafe {
            libc::send(stream.as_raw_fd(), (&raw const next).cast(), 1, libc::MSG_OOB)
        };
        // The peer takes nothing before it is told how much there is.
        let is_refused = (0..20).all(|_| send() < 0);
        println!("said {sent}");
        while is_refused && send() < 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("said {is_refused}");
        std::thread::park();
    }
    stream.set_nonblocking(false).expect("an option");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (&stream).read(&mut [0; 9]).expect("the end"));
        std::thread::sleep(Duration::from_millis(50));
        if what == "twice" {
            stream.shutdown(Shutdown::Write).expect("it ends");
        }
        stream.shutdown(Shutdown::Both).expect("it ends");
        assert_eq!(reader.join().expect("a thread"), 0);
    });
    println!("said {sent}");
}

/// The kernel holds no more for this thread's sockets than for those of any program.
fn give_up_administration() {
    const CAP_NET_ADMIN: u32 = 12;
    give_up_capability(CAP_NET_ADMIN);
}

fn give_up_capability(which: u32) {
    // Its version, and the calling thread.
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the header and room for what it asks for.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    sets[0] &= !(1 << which);
    // SAFETY: the header and what it announces.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!((got, set), (0, 0));
}

/// A port that may be privileged cannot be bound from now on.
fn give_up_ports() {
    const CAP_NET_BIND_SERVICE: u32 = 10;
    give_up_capability(CAP_NET_BIND_SERVICE);
}

/// Closes a connection whose port it may not bind any more, and of whose packets none is on its way.
fn close_unbound(mut stream: TcpStream) {
    begin(&mut stream);
    std::thread::sleep(Duration::from_millis(200));
    give_up_ports();
}

/// Sends 50 messages back.
pub(crate) fn begin(stream: &mut TcpStream) {
    let mut room = [0; 100];
    for _ in 0..50 {
        let len = stream.read(&mut room).expect("a request");
        send_all(stream, &room[..len]);
    }
}

/// At each line sends an urgent byte, says whether it may, and sends one message back, for which it sleeps.
fn urge(mut stream: TcpStream) {
    begin(&mut stream);
    for _line in std::io::stdin().lock().lines() {
        let byte = pattern(1);
        // SAFETY: a byte that is ours.
        let sent = unsafe {
            libc::send(stream.as_raw_fd(), byte.as_ptr().cast(), byte.len(), libc::MSG_OOB)
        };
        let error = std::io::Error::last_os_error().kind();
        println!("said {}", if sent == 1 { "sent".to_owned() } else { error.to_string() });
        let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a structure, which is ours.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
        let mut room = [0; 100];
        let len = stream.read(&mut room).expect("a request");
        send_all(&mut stream, &room[..len]);
    }
}

/// Asks at a line for what only the kernel has, and goes on.
fn wish(mut stream: TcpStream) {
    begin(&mut stream);
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    set(&stream, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    println!("said wished");
    echo(stream, "poll");
}

/// Another program, which knows nothing of the library, goes on with the connection at a line; if there is no such program,
/// it is closed.
fn hand_on(mut stream: TcpStream, how: &str) {
    begin(&mut stream);
    let how = match how.strip_prefix("ended ") {
        None => how,
        Some(how) => {
            end_second(&stream);
            how
        }
    };
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let fd = stream.as_raw_fd();
    if how == "watched" {
        return watch(stream);
    }
    if ["child", "standard"].contains(&how) {
        return keep_at_hand(stream, how);
    }
    let none = how.strip_prefix("none ");
    let how = none.unwrap_or(how);
    let mut heir = match none {
        None => Command::new(super::myself()),
        Some(_) => Command::new("/there/is/none"),
    };
    heir.args(["--exact", "roles::a_role", "--nocapture", "--test-threads=1"]);
    heir.env_remove("LD_PRELOAD").env("ADVERB_TEST_ROLE", format!("heir {fd}"));
    if how == "given" {
        let copy = stream.try_clone().expect("a copy");
        heir.env("ADVERB_TEST_ROLE", "heir 0").stdin(OwnedFd::from(copy));
    } else {
        // SAFETY: no pointer.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    }
    if how == "forked" {
        // SAFETY: the child does nothing there.
        unsafe { heir.pre_exec(|| Ok(())) };
    }
    if none.is_some() {
        assert_eq!(heir.spawn().expect_err("no program").kind(), ErrorKind::NotFound);
        return;
    }
    let vain = (how == "beside").then(InVain::start);
    let mut heir = heir.spawn().expect("a program");
    vain.into_iter().for_each(InVain::fail);
    drop(stream);
    println!("\nsaid handed");
    heir.wait().expect("it has ended");
}

/// Another program that cannot be started, and takes its time.
struct InVain {
    pipe: std::path::PathBuf,
    start: std::thread::JoinHandle<c_int>,
}

impl InVain {
    fn start() -> Self {
        let pipe = std::env::temp_dir().join(format!("adverb-frames-{}", std::process::id()));
        let name = CString::new(pipe.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a string, which is ours.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let start = std::thread::spawn(move || {
            // SAFETY: all zeros is a legal value of this structure.
            let mut actions: libc::posix_spawn_file_actions_t = unsafe { std::mem::zeroed() };
            let actions = &raw mut actions;
            // SAFETY: a structure, which is ours.
            assert_eq!(unsafe { libc::posix_spawn_file_actions_init(actions) }, 0);
            let (name, how) = (name.as_ptr(), libc::O_RDONLY);
            // SAFETY: that structure, and a string of ours.
            let added = unsafe { libc::posix_spawn_file_actions_addopen(actions, 0, name, how, 0) };
            assert_eq!(added, 0);
            let (path, none, mut pid) = (c"/there/is/none".as_ptr(), [std::ptr::null_mut()], 0);
            let (pid, none, how) = (&raw mut pid, none.as_ptr(), std::ptr::null());
            // SAFETY: that structure, a string, and an array that ends at once. Its child waits in that open for a writer.
            unsafe { libc::posix_spawn(pid, path, actions, how, none, none) }
        });
        // By then this library has counted it.
        soon("a child that waits", has_child);
        Self { pipe, start }
    }

    fn fail(self) {
        drop(fs::OpenOptions::new().write(true).open(&self.pipe).expect("a reader"));
        assert_eq!(self.start.join().expect("a thread"), libc::ENOENT);
        fs::remove_file(self.pipe).expect("a pipe");
    }
}

/// Whether this process has started another one, which has not ended.
fn has_child() -> bool {
    fs::read_dir("/proc").expect("processes").flatten().any(|process| {
        // The second field behind the name, which is in brackets.
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent == Some(&std::process::id().to_string())
    })
}

/// A child goes on with the connection, or this program by its standard input.
fn keep_at_hand(stream: TcpStream, how: &str) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("an option");
    if how == "standard" {
        let own = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let socket = fs::read_link(own).expect("a socket");
        // SAFETY: no pointer; the standard input is not read any more.
        assert_eq!(unsafe { libc::dup2(stream.as_raw_fd(), 0) }, 0);
        drop(stream);
        soon("no copy", || !open_descriptors().contains(&socket));
        return inherit(0);
    }
    // SAFETY: no pointer; the child ends when it has read.
    let child = unsafe { libc::fork() };
    if child == 0 {
        inherit(stream.into_raw_fd());
        // SAFETY: no pointer.
        unsafe { libc::_exit(0) };
    }
    drop(stream);
    // SAFETY: no pointer: a child of ours.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// An epoll instance tells of the connection after another program has been started that has it, too.
fn watch(stream: TcpStream) {
    let fd = stream.into_raw_fd();
    // SAFETY: no pointer.
    let watch = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 7 };
    let event = &raw mut event;
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::epoll_ctl(watch, libc::EPOLL_CTL_ADD, fd, event) }, 0);
    // SAFETY: the same.
    assert_eq!(unsafe { libc::epoll_wait(watch, event, 1, 5000) }, 1);
    // SAFETY: no pointer.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    let status = Command::new("true").env_remove("LD_PRELOAD").status().expect("a program");
    assert!(status.success(), "{status}");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::epoll_wait(watch, event, 1, 5000) }, 1);
    inherit(fd);
}

/// Ends a stream when the peer has ended its own, and reads nothing of that. The end is not to be seen behind more than the
/// ring holds.
fn end_second(stream: &TcpStream) {
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: a structure, which is ours.
    assert!(unsafe { libc::poll(&raw mut polled, 1, 500) } >= 0);
    stream.shutdown(Shutdown::Write).expect("it ends");
}

/// Goes on with a connection of the program that has started this one.
pub(crate) fn inherit(fd: c_int) {
    // SAFETY: a descriptor that was left to this program alone.
    let mut stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let (mut got, mut room) = (0, [0; 100]);
    let end = loop {
        match stream.read(&mut room).map_err(|error| error.kind()) {
            Ok(0) => break Ok(()),
            Ok(len) => {
                send_all(&mut stream, &room[..len]);
                got += len;
            }
            Err(error) => break Err(error),
        }
    };
    println!("\nbequeathed {got} {end:?}");
}

/// Sets an option of a socket to a number or a structure.
pub(crate) fn set<T>(socket: impl AsFd, level: c_int, name: c_int, value: T) {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("a length");
    let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
    // SAFETY: a value, which is ours, and its length.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, at, len) }, 0);
}

fn option(stream: &TcpStream, level: c_int, name: c_int) -> c_int {
    let (mut value, mut len) =
        (0, libc::socklen_t::try_from(size_of::<c_int>()).expect("a length"));
    // SAFETY: an integer and its length, which are ours.
    let answer = unsafe {
        libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    assert_eq!(answer, 0);
    value
}

fn push(stream: &TcpStream, flags: c_int) {
    let (fd, bytes) = (stream.as_raw_fd(), [1_u8; 10]);
    // SAFETY: bytes that are ours, and their number.
    assert_eq!(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) }, 10);
}

/// Answers each byte with twenty, in two pieces that are to arrive as one.
fn in_two(mut stream: TcpStream, mode: &str) {
    stream.set_nodelay(true).expect("an option");
    while stream.read(&mut [0]).is_ok_and(|got| got == 1) {
        let flags = if mode == "more" { libc::MSG_MORE } else { 0 };
        let cork =
            |on| _ = (mode == "cork").then(|| set(&stream, libc::IPPROTO_TCP, libc::TCP_CORK, on));
        cork(1);
        push(&stream, flags);
        std::thread::sleep(Duration::from_millis(20));
        push(&stream, 0);
        cork(0);
    }
}

/// Says what becomes of a connection whose peer is silent, after what options say that are set late.
fn impatient(mut stream: TcpStream, what: &str) {
    let mut room = [0; 100];
    for _ in 0..100 {
        let len = stream.read(&mut room).expect("a request");
        send_all(&mut stream, &room[..len]);
    }
    if what != "waiting" {
        for (name, value) in
            [(libc::TCP_KEEPIDLE, 1), (libc::TCP_KEEPINTVL, 1), (libc::TCP_KEEPCNT, 2)]
        {
            set(&stream, libc::IPPROTO_TCP, name, value);
        }
        set(&stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        assert_eq!(option(&stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        if what == "whole" {
            // What has come is less than is wanted, and the answer all the same.
            let mut receive = |flags| {
                let (fd, at) = (stream.as_raw_fd(), (&raw mut room).cast());
                // SAFETY: room of ours.
                unsafe { libc::recv(fd, at, 100, flags) }
            };
            let there = receive(libc::MSG_PEEK);
            println!("said {there} are here");
            assert_eq!(receive(libc::MSG_WAITALL), there);
        }
        return hold(stream);
    }
    set(&stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1500);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        if let Err(error) = stream.write(b"?") {
            return println!("said {:?}", error.kind());
        }
    }
}

/// A child goes on with the connection after some bytes.
fn fork(mut stream: TcpStream) {
    let mut room = vec![0; 1 << 16];
    for turn in 0_u32.. {
        if turn == 100 {
            // SAFETY: no pointer; the child goes on as its parent, whose end of the connection is closed.
            match unsafe { libc::fork() } {
                // SAFETY: no pointer. It ends with its parent: with the thread that has made it.
                0 => _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) },
                _ => {
                    drop(stream);
                    std::thread::park();
                    return;
                }
            }
        }
        match stream.read(&mut room) {
            Ok(len @ 1..) => send_all(&mut stream, &room[..len]),
            Ok(_) | Err(_) => return,
        }
    }
}

/// After a line, a child starts another program that has the connection. Says what becomes of it here.
fn bequeath(mut stream: TcpStream) {
    begin(&mut stream);
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    // SAFETY: no pointer; the child ends once that program has.
    if unsafe { libc::fork() } == 0 {
        let copy = OwnedFd::from(stream.try_clone().expect("a copy"));
        let status = Command::new("true").stdin(copy).env_remove("LD_PRELOAD").status();
        assert!(status.expect("a program").success());
        // SAFETY: no pointer.
        unsafe { libc::_exit(0) };
    }
    let reads = [(), ()].map(|()| stream.read(&mut [0]).map_err(|error| error.kind()));
    println!("said {reads:?}");
}

/// Says what becomes of a connection that brings nothing.
fn hold(mut stream: TcpStream) {
    let mut room = [0; 64];
    loop {
        match stream.read(&mut room) {
            Ok(len @ 1..) => send_all(&mut stream, &room[..len]),
            Ok(_) => return println!("said end"),
            Err(error) => return println!("said {:?}", error.kind()),
        }
    }
}

/// Says what becomes of a connection that brings nothing, and what comes behind that; or, at a line, another program gets
/// it before.
fn hold_on(mut stream: TcpStream) {
    begin(&mut stream);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    if line.starts_with("give") {
        let copy = OwnedFd::from(stream.try_clone().expect("a copy"));
        Command::new("true").stdin(copy).env_remove("LD_PRELOAD").status().expect("a program");
    }
    let read = || (&stream).read(&mut [0; 9]).map_err(|error| error.kind());
    if line.starts_with("ask") {
        let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: a structure, which is ours.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
        let told = (polled.revents & libc::POLLERR != 0)
            .then(|| option(&stream, libc::SOL_SOCKET, libc::SO_ERROR));
        assert_eq!(told, Some(libc::ECONNRESET));
    } else {
        assert_eq!(read(), Err(ErrorKind::ConnectionReset));
    }
    println!("said {:?} {:?}", read(), read());
    println!("said {:?}", (&stream).write(b"?").map_err(|error| error.kind()));
}

/// Says whether it hears of the end of the peer's stream before it reads any of that, and how much it reads slowly, at edges.
fn hear_of_the_end(mut stream: TcpStream) {
    begin(&mut stream);
    let instance = Epoll::new(0);
    instance.add(stream.as_raw_fd(), libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET);
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: a structure, which is ours.
    let count = unsafe { libc::poll(&raw mut polled, 1, 5_000) };
    println!("said {count} {}", polled.revents == libc::POLLRDHUP);
    stream.set_nonblocking(true).expect("an option");
    let (mut got, mut room) = (0, [0; 3000]);
    loop {
        match stream.read(&mut room).map_err(|error| error.kind()) {
            Ok(0) => return println!("said {got}"),
            Ok(len) => got += len,
            Err(ErrorKind::WouldBlock) => _ = instance.wait(),
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Says what is to be read of a connection after it has been reset, and what comes behind that; or something else is asked
/// before, or a child or another program reads it.
fn outlive(mut stream: TcpStream, how: &str) {
    begin(&mut stream);
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
    assert_eq!(polled.revents, libc::POLLERR | libc::POLLHUP);
    polled.events = libc::POLLIN | libc::POLLRDHUP;
    // SAFETY: the same.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 0) }, 1);
    println!("said {}", polled.revents & polled.events == polled.events);
    let flags = if how == "waitall" { libc::MSG_WAITALL } else { 0 };
    let read = |room: &mut [u8]| {
        let (fd, at, len) = (stream.as_raw_fd(), room.as_mut_ptr().cast(), room.len());
        // SAFETY: room of ours.
        let read = unsafe { libc::recv(fd, at, len, flags) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error().kind())
    };
    let write = || (&stream).write(b"?").map_err(|error| error.kind());
    let rest = || {
        let (mut bytes, mut room) = (Vec::new(), [0; 3000]);
        let end = loop {
            match read(&mut room) {
                Ok(len @ 1..) => bytes.extend_from_slice(&room[..len]),
                end => break end,
            }
        };
        assert!(bytes == pattern(bytes.len()), "other bytes");
        println!("said {} {end:?} {:?} {:?}", bytes.len(), read(&mut room), write());
    };
    match how {
        "asked" => println!("said {}", option(&stream, libc::SOL_SOCKET, libc::SO_ERROR)),
        "written" => println!("said {:?} {:?}", write(), write()),
        "another" => {
            let copy = OwnedFd::from(stream.try_clone().expect("a copy"));
            let cat = Command::new("cat").stdin(copy).env_remove("LD_PRELOAD").output();
            let cat = cat.expect("a program");
            let told = String::from_utf8_lossy(&cat.stderr).contains("reset by peer");
            println!("said {} {told}", cat.stdout.len());
        }
        "child" => {
            // SAFETY: no pointer; the child ends when it has read.
            let child = unsafe { libc::fork() };
            if child == 0 {
                rest();
                // SAFETY: no pointer.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: no pointer: a child of ours.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        _ => {}
    }
    if !["another", "child"].contains(&how) {
        rest();
    }
    println!("said done");
}

/// After a line, says what a child reads of a connection that has been reset, and then what this program does.
fn outlive_together(mut stream: TcpStream) {
    begin(&mut stream);
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
    let mut say = |read: usize| {
        let mut bytes = pattern(read);
        let end = stream.read_to_end(&mut bytes).map_err(|error| error.kind());
        assert!(bytes == pattern(bytes.len()), "other bytes");
        println!(
            "said {} {end:?} {:?}",
            bytes.len(),
            stream.read(&mut [0]).map_err(|error| error.kind())
        );
        bytes.len()
    };
    let mut pipe = [0; 2];
    // SAFETY: room for two numbers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: no pointer; the child ends when it has read.
    let child = unsafe { libc::fork() };
    if child == 0 {
        println!("said ready");
        // SAFETY: a structure, which is ours.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
        let read = say(0).to_ne_bytes();
        // SAFETY: so many bytes of ours.
        unsafe { libc::write(pipe[1], read.as_ptr().cast(), read.len()) };
        // SAFETY: no pointer.
        unsafe { libc::_exit(0) };
    }
    let mut read = [0; size_of::<usize>()];
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::read(pipe[0], read.as_mut_ptr().cast(), read.len()) };
    assert_eq!(usize::try_from(got), Ok(read.len()));
    say(usize::from_ne_bytes(read));
}

/// Connects, or accepts one connection, and does what lines say.
pub(crate) fn talk(at: SocketAddr, accepts: bool) {
    let listener = accepts.then(|| TcpListener::bind(at).expect("a port"));
    let mut streams = Vec::new();
    if !accepts {
        streams.push(connect(at));
    }
    println!("\nready");
    let accepted = listener.iter().map(|listener| listener.accept().expect("a connection").0);
    streams.extend(accepted);
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let stream = &mut streams[0];
        match words[0] {
            "exchange" => {
                let done = (0..number(1)).take_while(|turn| {
                    std::thread::sleep(Duration::from_micros(
                        number(3).try_into().expect("a time"),
                    ));
                    exchange(stream, number(2), *turn)
                });
                println!("said {}", done.count());
            }
            "stream" => println!("said {}", through(stream, number(1))),
            "drink" => {
                let mut bytes = Vec::new();
                let end = stream.read_to_end(&mut bytes).map_err(|error| error.kind());
                assert!(bytes == pattern(bytes.len()), "other bytes");
                println!("said {} {:?}", bytes.len(), end.map(|_| ()));
            }
            "clock" => {
                stream.read_exact(&mut [0]).expect("a byte");
                let since = std::time::Instant::now();
                let rest = stream.read_to_end(&mut Vec::new()).expect("the rest");
                println!("said {} {}", rest + 1, since.elapsed().as_millis());
            }
            "write" => {
                stream.write_all(&pattern(number(1))).expect("it is sent");
                println!("said written");
            }
            "shut" => println!("said {:?}", stream.shutdown(Shutdown::Write)),
            "half" => {
                stream.write_all(&pattern(number(1))).expect("it is sent");
                stream.shutdown(Shutdown::Write).expect("it ends");
                let mut bytes = Vec::new();
                let end = stream.read_to_end(&mut bytes).map_err(|error| error.kind());
                let (back, rest) = bytes.split_at(number(2).min(bytes.len()));
                assert!(back == pattern(back.len()) && rest == pattern(rest.len()), "other bytes");
                println!("said {} {:?}", rest.len(), end.map(|_| ()));
            }
            "abort" => {
                stream.write_all(&pattern(number(1))).expect("it is sent");
                if words.get(2) == Some(&"ended") {
                    stream.shutdown(Shutdown::Write).expect("it ends");
                }
                soon("an answer", || unacknowledged(stream) == 0);
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                set(stream, libc::SOL_SOCKET, libc::SO_LINGER, linger);
                streams.remove(0);
                println!("said aborted");
            }
            "bursts" => {
                let bytes = pattern(number(2));
                let whole = (0..number(1)).take_while(|_| {
                    stream.write_all(&bytes).expect("it is sent");
                    stream.read_exact(&mut [0]).is_ok()
                });
                println!("said {}", whole.count());
            }
            "urge" => {
                crate::urgent::urge(stream);
                println!("said urged");
            }
            "unacknowledged" => println!("said {}", unacknowledged(stream)),
            "resent" => println!("said {}", resent(stream)),
            "sip" => println!("said {}", sip(stream, number(1))),
            "inline" => {
                set(stream, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
                println!("said inline");
            }
            "resets" => {
                let is_reset = |mut one: &TcpStream| {
                    let read = one.read(&mut [0; 9]).map_err(|error| error.kind());
                    read == Err(ErrorKind::ConnectionReset)
                };
                println!("said {}", streams.iter().take_while(|one| is_reset(one)).count());
            }
            "pieces" => {
                let whole = (0..number(1)).filter(|_| {
                    stream.write_all(b"?").expect("it is sent");
                    let mut room = [0; 20];
                    let first = stream.read(&mut room).expect("an answer");
                    stream.read_exact(&mut room[first..]).expect("the rest");
                    first == 20
                });
                println!("said {}", whole.count());
            }
            "end" => {
                stream.shutdown(Shutdown::Write).expect("it ends");
                println!("said {:?}", stream.read(&mut [0; 9]));
            }
            "open" => {
                streams.extend((1..number(1)).map(|_| connect(at)));
                println!("said {}", streams.len());
            }
            "trickle" => {
                trickle(stream, number(1));
                stream.read_exact(&mut [0]).expect("an answer");
                println!("said {}", number(1));
            }
            "upload" => {
                let bytes = pattern(number(1));
                streams.iter_mut().for_each(|one| one.write_all(&bytes).expect("it is sent"));
                let is_there = |one: &mut TcpStream| {
                    one.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
                    one.read_exact(&mut [0]).is_ok()
                };
                let there = streams.iter_mut().filter_map(|one| is_there(one).then_some(()));
                println!("said {}", there.count());
            }
            "all" => {
                for turn in 0..number(1) {
                    let pattern = pattern(100);
                    streams
                        .iter_mut()
                        .for_each(|one| one.write_all(&pattern[turn..]).expect("sent"));
                    for one in &mut streams {
                        let mut back = vec![0; 100 - turn];
                        one.read_exact(&mut back).expect("it comes back");
                        assert_eq!(back, pattern[turn..]);
                    }
                }
                println!("said {}", streams.len());
            }
            "insist" => {
                let failed = (0..200).find_map(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    stream.write_all(b"?").err()
                });
                println!("said {:?}", failed.map(|error| error.kind()));
            }
            _ => panic!("{line}?"),
        }
    }
}

/// Bytes that have come and not been read.
pub(crate) fn waiting(stream: &TcpStream) -> c_int {
    let mut count = 0;
    // SAFETY: an integer, which is ours.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    assert_eq!(asked, 0);
    count
}

/// How often the kernel has sent something again.
fn resent(stream: &TcpStream) -> u32 {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).expect("a length");
    let (fd, level) = (stream.as_raw_fd(), libc::IPPROTO_TCP);
    let (info_at, len_at) = ((&raw mut info).cast(), &raw mut len);
    // SAFETY: a structure, which is ours, and its length.
    assert_eq!(unsafe { libc::getsockopt(fd, level, libc::TCP_INFO, info_at, len_at) }, 0);
    info.tcpi_total_retrans
}

fn unacknowledged(stream: &TcpStream) -> c_int {
    let mut count = 0;
    // SAFETY: an integer, which is ours.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    assert_eq!(asked, 0);
    count
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at);
    soon("a connection", || {
        stream.is_ok() || {
            stream = TcpStream::connect(at);
            stream.is_ok()
        }
    });
    let stream = stream.expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
    stream
}

fn exchange(stream: &mut TcpStream, len: usize, turn: usize) -> bool {
    let bytes = pattern(len + turn % 7);
    let mut back = vec![0; bytes.len()];
    stream.write_all(&bytes).is_ok() && stream.read_exact(&mut back).is_ok() && back == bytes
}

/// Reads slowly, until so many bytes have come or no more do, and says how many have.
fn sip(stream: &mut TcpStream, most: usize) -> usize {
    let (mut bytes, mut room) = (Vec::new(), vec![0; 64 << 10]);
    while bytes.len() < most
        && let left = room.len().min(most - bytes.len())
        && let Ok(len @ 1..) = stream.read(&mut room[..left])
    {
        bytes.extend_from_slice(&room[..len]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(bytes == pattern(bytes.len()), "other bytes");
    bytes.len()
}

/// Sends so many bytes while they come back, and says how many have.
fn through(stream: &mut TcpStream, len: usize) -> usize {
    let bytes = pattern(len);
    let mut writer = stream.try_clone().expect("a copy");
    std::thread::scope(|scope| {
        let all = &bytes;
        scope.spawn(move || writer.write_all(all).expect("it is sent"));
        let mut back = vec![0; len];
        stream.read_exact(&mut back).expect("it comes back");
        if back == bytes { len } else { 0 }
    })
}

/// Segments that the kernel of this namespace has received.
pub(crate) fn by_kernel() -> u64 {
    crate::running::by_kernel("Tcp", "InSegs")
}

pub(crate) fn talker(pair: &Pair, to: &str) -> Running {
    Running::start(&mut pair.role(true, "talk", at(to)))
}

/// Goal: connections that a program accepts pass the kernel, however it waits, and whatever address it listens at;
/// bytes come once and in order, and both ends see each other's end.
#[test]
fn accepted_connections_pass_the_kernel() {
    with_namespaces("streams::accepted_connections_pass_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (any, to) in [(NEAR, NEAR), ("::", NEAR), (NEAR_6, NEAR_6)] {
            for mode in ["block", "spin", "sip", "poll", "epoll", "edge"] {
                let said_all = ["env", "VMA_TRACELEVEL=5"];
                let server = pair.framed_by(&said_all, &format!("serve {mode}"), at(any), None);
                let mut client = talker(&pair, to);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50", "{mode} {any}");
                let before = by_kernel();
                assert_eq!(client.ask("exchange 500 64 0"), "said 500", "{mode} {any}");
                assert_eq!(client.ask("exchange 20 100 20000"), "said 20", "{mode} {any}");
                assert_eq!(client.ask("stream 3000000"), "said 3000000", "{mode} {any}");
                let kernels = by_kernel() - before;
                let said = server.explained();
                assert!(server.has_frames() && kernels < 50, "{mode} {any}: {kernels}, {said}");
                assert_eq!(client.ask("end"), "said Ok(0)", "{mode} {any}");
            }
        }
    });
}

/// Goal: the thread that carries frames runs where the program wants it: on one processor, and in a set, of which a plain
/// directory takes the part.
#[test]
fn the_thread_that_carries_frames_is_where_it_was_put() {
    with_namespaces("streams::the_thread_that_carries_frames_is_where_it_was_put", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let last = *affinity::cpus().expect("processors").last().expect("a processor");
        let set = pair.place.0.join("set");
        fs::create_dir(&set).expect("a directory");
        fs::write(set.join("tasks"), "").expect("a file");
        let put = [
            format!("VMA_INTERNAL_THREAD_AFFINITY={last}"),
            format!("VMA_INTERNAL_THREAD_CPUSET={}", set.display()),
        ];
        let server = pair.framed_by(&["env", &put[0], &put[1]], "serve block", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        let threads = format!("/proc/{}/task", server.child.id());
        let said =
            |thread: &Path, file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
        let processors = |thread: &Path| {
            let status = said(thread, "status");
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap_or_default().trim().to_owned()
        };
        soon("the thread is there", || {
            let mut threads = fs::read_dir(&threads).expect("a process").flatten();
            let thread = threads.find(|thread| said(&thread.path(), "comm") == "adverb-frames\n");
            thread.is_some_and(|thread| {
                let number = fs::read_to_string(set.join("tasks")).expect("a file");
                processors(&thread.path()) == last.to_string()
                    && thread.file_name().to_string_lossy() == number
            })
        });
        let own = processors(Path::new(&threads).join(server.child.id().to_string()).as_path());
        assert_eq!(own, processors(Path::new("/proc/self")), "the program's own thread stays");
        drop((client, server));
        // A file that cannot be opened now is waited for by no thread: it would take the lowest number of a descriptor.
        fs::remove_file(set.join("tasks")).expect("a file");
        assert!(Command::new("mkfifo").arg(set.join("tasks")).status().expect("a tool").success());
        let server = pair.framed_by(&["env", &put[0], &put[1]], "serve block", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        let threads = format!("/proc/{}/task", server.child.id());
        soon("the thread goes on", || {
            let mut threads = fs::read_dir(&threads).expect("a process").flatten();
            let thread = threads.find(|thread| said(&thread.path(), "comm") == "adverb-frames\n");
            thread.is_some_and(|thread| processors(&thread.path()) == last.to_string())
        });
    });
}

/// Goal: the same of connections that a program makes.
#[test]
fn connections_that_are_made_pass_the_kernel() {
    with_namespaces("streams::connections_that_are_made_pass_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for to in [FAR, FAR_6] {
            let _server = Running::start(&mut pair.role(true, "serve block", at(to)));
            for profile in [None, Some("latency"), Some("frugal")] {
                let mut client = pair.framed("talk", at(to), profile);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                let before = by_kernel();
                assert_eq!(client.ask("exchange 500 64 0"), "said 500");
                assert_eq!(client.ask("exchange 20 100 20000"), "said 20");
                assert_eq!(client.ask("stream 3000000"), "said 3000000");
                let kernels = by_kernel() - before;
                assert!(client.has_frames() && kernels < 50, "{to}: {kernels}");
                // The kernel ends what it has back.
                assert_eq!(client.ask("end"), "said Ok(0)", "{to} {profile:?}");
            }
        }
    });
}

/// Goal: what a program has sent before it closes arrives, and then the end.
#[test]
fn what_was_sent_before_closing_arrives() {
    with_namespaces("streams::what_was_sent_before_closing_arrives", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for bytes in [1, 1000, 100_000, 2_000_000] {
            let server = pair.framed(&format!("serve pour {bytes}"), at(NEAR), None);
            for _ in 0..5 {
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("drink"), format!("said {bytes} Ok(())"));
            }
            assert!(server.has_frames(), "{}", server.explained());
        }
    });
}

/// Goal: a child goes on with its parent's connection, through the kernel, and no byte is lost.
#[test]
fn a_child_goes_on_with_a_connection() {
    with_namespaces("streams::a_child_goes_on_with_a_connection", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("serve fork", at(NEAR), None);
        for _ in 0..3 {
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert_eq!(client.ask("stream 2000000"), "said 2000000");
            assert_eq!(client.ask("exchange 200 64 0"), "said 200", "{}", server.explained());
            assert_eq!(client.ask("end"), "said Ok(0)");
        }
        assert!(server.has_frames(), "{}", server.explained());
        assert_eq!(server.explained().matches(FORKED).count(), 3, "{}", server.explained());
    });
}

/// Goal: a program with a thousand connections serves them all; or with as many as the environment says, for which there have to be
/// eight times as many descriptors (`ulimit -n 100000; ADVERB_TEST_CONNECTIONS=10000`).
#[test]
fn a_thousand_connections_are_served() {
    with_namespaces("streams::a_thousand_connections_are_served", || {
        let count = std::env::var("ADVERB_TEST_CONNECTIONS").unwrap_or("1000".to_owned());
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("serve many", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask(&format!("open {count}")), format!("said {count}"));
        assert_eq!(client.ask("all 5"), format!("said {count}"));
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()));
        let status = status.expect("a process");
        status.lines().filter(|line| line.starts_with("Rss")).for_each(|line| println!("{line}"));
        let framed = server.explained().matches("frames of the interface").count();
        assert!(framed >= count.parse().expect("a number"), "{framed}");
    });
}

fn kill(child: &mut Child) {
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
}

/// Goal: the peers of a program that is killed see a reset, whether they send or not; so do a program whose owner is killed
/// and its peers, and its next connections are the kernel's.
#[test]
fn peers_of_what_is_killed_see_a_reset() {
    with_namespaces("streams::peers_of_what_is_killed_see_a_reset", || {
        let pair = Pair::new();
        let mut owner = pair.owner();
        let mut server = pair.framed("serve hold", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        assert!(server.has_frames(), "{}", server.explained());
        let mut silent = talker(&pair, NEAR);
        assert_eq!(silent.ask("exchange 100 64 0"), "said 100");
        kill(&mut server.child);
        assert_eq!(silent.ask("drink"), "said 0 Err(ConnectionReset)");
        let said = client.ask("insist");
        assert!(["ConnectionReset", "BrokenPipe"].iter().any(|end| said.contains(end)), "{said}");
        drop(server);
        let mut server = pair.framed("serve hold", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        kill(&mut owner.child);
        assert_eq!(server.await_line("said "), "said ConnectionReset");
        assert_eq!(client.ask("drink"), "said 0 Err(ConnectionReset)");
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 100 64 0"), "said 100");
    });
}

/// Goal: where no owner can help, or no memory is left, the kernel carries connections, and nothing waits for long.
#[test]
fn where_frames_cannot_be_had_the_kernel_goes_on() {
    with_namespaces("streams::where_frames_cannot_be_had_the_kernel_goes_on", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let rings = pair.place.rings();
        fs::create_dir_all(&rings).expect("a directory");
        let small = "mount -t tmpfs -o size=64k,mode=700 x \"$0\" && exec \"$@\"";
        let rings = rings.to_str().expect("a path");
        let small = ["unshare", "-m", "sh", "-c", small, rings];
        let elsewhere = ["unshare", "-p", "-f", "--kill-child"];
        for (front, least, most) in [(&small[..], 1, 30), (&elsewhere[..], 0, 0)] {
            let server = pair.framed_by(front, "serve many", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("open 40"), "said 40", "{front:?}");
            assert_eq!(client.ask("all 5"), "said 40", "{front:?}");
            let framed = server.explained().matches("frames of the interface").count();
            assert!((least..=most).contains(&framed), "{front:?}: {}", server.explained());
        }
        // Waiting for an owner that is stopped again and again would take longer than clients wait.
        owner.signal("STOP");
        let server = pair.framed("serve many", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("open 30"), "said 30");
        assert_eq!(client.ask("all 5"), "said 30");
        assert!(!server.has_frames(), "{}", server.explained());
        owner.signal("CONT");
    });
}

/// Goal: nothing is lost of connections whose packets a member does not get: those of a queue where it has no socket, and those
/// that are longer than a frame, as the kernel puts them together before a program behind the driver sees them.
#[test]
fn nothing_is_lost_of_what_members_do_not_get() {
    with_namespaces("streams::nothing_is_lost_of_what_members_do_not_get", || {
        for (how, each) in [("generic", ""), ("one", "numtxqueues 2 numrxqueues 2")] {
            let pair = Pair::with_each_end(each);
            let _owner = Running::start(&mut pair.role(false, &format!("owner {how}"), at(NEAR)));
            let server = pair.framed("serve take 300000", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("open 20"), "said 20", "{how}");
            assert_eq!(client.ask("upload 300000"), "said 20", "{how}: {}", server.explained());
        }
    });
}

/// Goal: connections go back to the kernel once packets may come that are longer than frames, and nothing of them is lost.
#[test]
fn connections_leave_an_interface_that_carries_longer_packets_than_frames() {
    with_namespaces(
        "streams::connections_leave_an_interface_that_carries_longer_packets_than_frames",
        || {
            let pair = Pair::new();
            let _owner = pair.owner();
            let server = pair.framed("serve take 300000", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("open 20"), "said 20");
            let are = |what| server.explained().matches(what).count();
            soon("frames", || are("frames of the interface") == 20);
            run(Command::new("ip").args("link set near mtu 3000".split(' ')));
            soon("the kernel", || are("that only the kernel has") == 20);
            assert_eq!(client.ask("upload 300000"), "said 20", "{}", server.explained());
        },
    );
}

/// Goal: a connection goes on by the kernel when its program says that filters of the socket are to stay as they are.
#[test]
fn a_filter_is_not_locked_with_that_of_frames() {
    with_namespaces("streams::a_filter_is_not_locked_with_that_of_frames", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("serve lock", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 200 64 0"), "said 200", "{}", server.explained());
        assert!(server.has_frames(), "{}", server.explained());
        assert!(server.explained().contains("that only the kernel has"), "{}", server.explained());
    });
}

/// Goal: a connection whose packets come by another interface than its frames goes back to the kernel, and nothing of it is lost.
#[test]
fn connections_whose_packets_come_by_another_interface_are_the_kernels() {
    with_namespaces(
        "streams::connections_whose_packets_come_by_another_interface_are_the_kernels",
        || {
            let pair = Pair::new();
            let _owner = pair.owner();
            let far = pair.far.child.id();
            let cable = format!("link add near2 type veth peer name far2 netns {far}");
            run(Command::new("ip").args(cable.split(' ')));
            run(Command::new("ip").args("link set near2 up".split(' ')));
            run(pair.far("ip").args("link set far2 up".split(' ')));
            let any = "for one in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$one; done";
            for mut shell in [Command::new("sh"), pair.far("sh")] {
                run(shell.args(["-c", any]));
            }
            let server = pair.framed("serve take 300000", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("open 3"), "said 3");
            let are = |what| server.explained().matches(what).count();
            soon("frames", || are("frames of the interface") == 3);
            let other = format!("route add {NEAR}/32 dev far2 src {FAR}");
            run(pair.far("ip").args(other.split(' ')));
            assert_eq!(client.ask("upload 300000"), "said 3", "{}", server.explained());
            soon("the kernel", || are("that only the kernel has") == 3);
        },
    );
}

/// Goal: a stream goes to the kernel where a round trip is so long that frames would have fewer bytes on their way, whatever its
/// pieces, and in either direction; nothing of it is lost.
#[test]
fn streams_that_round_trips_hold_back_are_the_kernels() {
    with_namespaces("streams::streams_that_round_trips_hold_back_are_the_kernels", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for sends in [false, true] {
            let mode = if sends { "serve take 14000000" } else { "serve trickle 14000000" };
            let _server = Running::start(&mut pair.role(true, mode, at(FAR)));
            // What is sent before uses up what may leave at once: the answer to the SYN is late.
            let slow = "qdisc add dev far root tbf rate 64kbit burst 1600 limit 30000";
            run(pair.far("tc").args(slow.split(' ')));
            let before = "for n in 1 2; do head -c 1400 /dev/zero >/dev/udp/10.95.0.1/9; done";
            run(pair.far("bash").args(["-c", before]));
            let mut client = pair.framed("talk", at(FAR), None);
            run(pair.far("tc").args("qdisc del dev far root".split(' ')));
            let (ask, said) = match sends {
                false => ("drink", "said 14000000 Ok(())"),
                true => ("trickle 14000000", "said 14000000"),
            };
            assert_eq!(client.ask(ask), said);
            let explained = client.explained();
            assert!(client.has_frames(), "{sends}: {explained}");
            assert!(explained.contains("which the kernel carries better"), "{sends}: {explained}");
        }
    });
}

/// Goal: small pieces that are announced to be followed by others leave with them.
#[test]
fn small_pieces_wait_for_those_that_follow() {
    with_namespaces("streams::small_pieces_wait_for_those_that_follow", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for mode in ["more", "cork"] {
            let server = pair.framed(&format!("serve {mode}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            // On a machine that is busy enough, some wait for longer than they may.
            let joined = |said: &str| said["said ".len()..].parse::<u32>().expect("a number");
            soon(mode, || joined(&client.ask("pieces 10")) >= 8);
            assert!(server.has_frames(), "{mode}: {}", server.explained());
        }
    });
}

/// Goal: what a program says of silent peers counts, also where it says it late, and a call that returns what had come by
/// then hides it not from the next one.
#[test]
fn a_silent_peer_is_given_up_when_the_program_says() {
    with_namespaces("streams::a_silent_peer_is_given_up_when_the_program_says", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for mode in ["asking", "waiting", "whole"] {
            let mut server = pair.framed(&format!("serve hold {mode}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            if mode == "whole" {
                client.tell("exchange 101 64 0");
                assert_eq!(server.await_line("said "), "said 66 are here");
            } else {
                assert_eq!(client.ask("exchange 100 64 0"), "said 100");
            }
            let _loss = Running::start(&mut pair.role(true, "loss 100", at(FAR)));
            assert_eq!(server.await_line("said "), "said TimedOut", "{mode}");
            assert!(server.has_frames(), "{mode}: {}", server.explained());
        }
    });
}

/// Goal: a stream of long pieces goes back to the kernel, one of short ones stays, and both arrive.
#[test]
fn the_kernel_carries_what_it_carries_better() {
    with_namespaces("streams::the_kernel_carries_what_it_carries_better", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (mode, goes) in [("pour", true), ("slice", false)] {
            let server = pair.framed(&format!("serve {mode} 30000000"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("drink"), "said 30000000 Ok(())", "{mode}");
            let explained = server.explained();
            let went = explained.contains("which the kernel carries better");
            assert!(server.has_frames() && went == goes, "{mode}: {explained}");
        }
    });
}

/// Goal: what a program sends arrives although its peer has ended its stream, whatever has it carry what is left: the
/// kernel, as it is a stream of long pieces, or as a child sends it; and whenever the end came.
#[test]
fn what_is_sent_after_the_peers_end_arrives() {
    with_namespaces("streams::what_is_sent_after_the_peers_end_arrives", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for mode in ["answer", "heir"] {
            for bytes in [1000, 3_000_000, 30_000_000] {
                let server = pair.framed(&format!("serve {mode} {bytes}"), at(NEAR), None);
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                let said = client.ask("half 0 0");
                assert_eq!(said, format!("said {bytes} Ok(())"), "{}", server.explained());
                assert!(server.has_frames(), "{mode}: {}", server.explained());
                // It has ended before frames could carry it.
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("half 100 100"), format!("said {bytes} Ok(())"), "{mode}");
            }
        }
        let mut server = pair.framed("serve late 30000000", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert_eq!(client.ask("half 20000 0"), "said 30000000 Ok(())");
        assert_eq!(server.await_line("said "), "said 20000", "{}", server.explained());
        assert!(server.has_frames(), "{}", server.explained());
    });
}

/// Goal: a program gets what did not fit its ring of a connection both of whose streams have ended, and then the end; and
/// if it closes the connection instead, nothing of that is kept.
#[test]
fn what_a_ring_does_not_hold_outlasts_its_connection() {
    with_namespaces("streams::what_a_ring_does_not_hold_outlasts_its_connection", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        // More than the ring holds: by less than a segment, and by about as much as the window.
        for sent in [66_000, 150_000] {
            let all = format!("{sent} Ok(())");
            for (then, end) in [("read", all.as_str()), ("close", "none"), ("end", "none")] {
                let how = format!("serve slow {then}");
                let mut server = pair.framed_by(&TIGHT, &how, at(NEAR), None);
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                assert_eq!(client.ask(&format!("half {sent} 0")), "said 0 Ok(())");
                let said = server.await_line("said ");
                assert_eq!(said, format!("said {end}"), "{}", server.explained());
                assert!(server.has_frames(), "{sent} {then}: {}", server.explained());
            }
        }
    });
}

/// Goal: a program whose connection is reset is told so once, and of the end from then on, as by the kernel: whether its
/// peer resets it, or another program was to have it that cannot.
#[test]
fn a_reset_is_told_once_and_then_the_end() {
    with_namespaces("streams::a_reset_is_told_once_and_then_the_end", || {
        let pair = Pair::new();
        let owner = pair.owner();
        for what in ["abort", "ask", "give"] {
            let mut server = pair.framed("serve hold on", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert!(server.has_frames(), "{what}: {}", server.explained());
            if what == "give" {
                owner.signal("STOP");
            } else {
                assert_eq!(client.ask("abort 0"), "said aborted");
            }
            assert_eq!(server.ask(what), "said Ok(0) Ok(0)", "{what}");
            assert_eq!(server.await_line("said "), "said Err(BrokenPipe)", "{what}");
            if what == "give" {
                owner.signal("CONT");
            }
        }
    });
}

/// Goal: what had come before a reset is read before the program, its child or another one learns of that, as by the kernel,
/// and where more had come than its ring holds. If the peer had ended its stream before, that hides the reset from what reads.
#[test]
fn what_came_before_a_reset_is_read() {
    with_namespaces("streams::what_came_before_a_reset_is_read", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let hows = ["read", "waitall", "asked", "written", "child", "another"];
        for (how, end) in hows.into_iter().flat_map(|how| [(how, ""), (how, " ended")]) {
            let said = |mut server: Running, bytes: usize, has_frames: bool| {
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                assert_eq!(server.has_frames(), has_frames, "{how}: {}", server.explained());
                assert_eq!(client.ask(&format!("abort {bytes}{end}")), "said aborted");
                let mut lines = vec![server.await_line("said ")];
                while lines.last().is_some_and(|line| line != "said done") {
                    lines.push(server.await_line("said "));
                }
                lines.join(", ").replace(&format!("said {bytes} "), "said all ")
            };
            let serve = format!("serve reset {how}");
            let kernels = Running::start(&mut pair.role(false, &serve, at(NEAR)));
            let kernels = said(kernels, 20_000, false);
            for bytes in [64, 20_000, 66_000, 150_000] {
                let ours = pair.framed_by(&TIGHT, &serve, at(NEAR), None);
                assert_eq!(said(ours, bytes, true), kernels, "{how}{end} {bytes}");
            }
        }
    });
}

/// Goal: a child that has a connection of its parent's, whose owner has been stopped, takes neither the rest of one that was
/// reset from its parent nor the error, where it reads before that does.
#[test]
fn a_child_leaves_what_its_parent_has() {
    with_namespaces("streams::a_child_leaves_what_its_parent_has", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed_by(&TIGHT, "serve shared", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        assert_eq!(server.ask("fork"), "said ready");
        assert_eq!(client.ask("abort 150000"), "said aborted");
        let childs = server.await_line("said ");
        let reset = "Err(ConnectionReset)";
        assert!(childs.ends_with(&format!(" {reset} {reset}")), "{childs}");
        assert!(!childs.starts_with("said 150000 "), "{childs}");
        assert_eq!(server.await_line("said "), format!("said 150000 {reset} Ok(0)"));
        owner.signal("CONT");
    });
}

/// Goal: a program hears at once that its peer has ended its stream, also where more has come than its ring holds; at edges
/// it misses neither the rest nor the end.
#[test]
fn the_end_of_a_stream_is_told_before_the_rest_is_read() {
    with_namespaces("streams::the_end_of_a_stream_is_told_before_the_rest_is_read", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for bytes in [64, 66_000, 150_000] {
            let mut server = pair.framed_by(&TIGHT, "serve hup", at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert!(server.has_frames(), "{bytes}: {}", server.explained());
            client.tell(&format!("half {bytes} 0"));
            assert_eq!(server.await_line("said "), "said 1 true", "{bytes}");
            assert_eq!(server.await_line("said "), format!("said {bytes}"));
            assert_eq!(client.await_line("said "), "said 0 Ok(())");
        }
    });
}

/// Goal: a program that ends waits for what it has to say, and not for what it has said.
/// Method: its stream ends first, by frames, as its owner is stopped; a wait is some thousand naps.
#[test]
fn an_end_does_not_wait_for_what_has_been_said() {
    with_namespaces("streams::an_end_does_not_wait_for_what_has_been_said", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed("serve first", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        server.tell("close");
        assert_eq!(server.await_line("said "), "said closed");
        assert_eq!(client.ask("half 0 0"), "said 0 Ok(())");
        std::thread::sleep(Duration::from_millis(100));
        server.tell("exit");
        let naps: u64 = server.await_line("naps ")["naps ".len()..].parse().expect("a number");
        let pid = libc::pid_t::try_from(server.child.id()).expect("a number");
        // SAFETY: all zeros is a legal value of this structure of integers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a structure, which is ours, and a child of ours.
        let ended = unsafe { libc::wait4(pid, std::ptr::null_mut(), 0, &raw mut usage) };
        assert_eq!(ended, pid);
        let more = u64::try_from(usage.ru_nvcsw).expect("a number") - naps;
        assert!(more < 200, "{more} naps");
        owner.signal("CONT");
    });
}

/// Goal: a reader that empties its ring at the moment at which it becomes full is told of what follows.
#[test]
fn a_reader_that_is_quick_is_told_of_the_rest() {
    with_namespaces("streams::a_reader_that_is_quick_is_told_of_the_rest", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed_by(&TIGHT, &format!("serve quick {RING}"), at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert_eq!(client.ask(&format!("bursts 200 {}", RING + 500)), "said 200");
        assert!(server.has_frames(), "{}", server.explained());
    });
}

/// Goal: no byte of a stream is missing that goes back to the kernel, however little the program has the kernel hold.
#[test]
fn a_short_queue_of_the_kernels_leaves_no_hole() {
    with_namespaces("streams::a_short_queue_of_the_kernels_leaves_no_hole", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("serve low 30000000", at(NEAR), None);
        for _ in 0..3 {
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("sip 30000000"), "said 30000000", "{}", server.explained());
        }
        let explained = server.explained();
        assert!(explained.contains("which the kernel carries better"), "{explained}");
    });
}

/// Goal: the last bytes of a stream arrive while its program does nothing more, and before an end that it has said.
#[test]
fn the_last_bytes_of_a_stream_need_no_call() {
    with_namespaces("streams::the_last_bytes_of_a_stream_need_no_call", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for bytes in [100_000, 4 << 20, 30_000_000] {
            let server = pair.framed(&format!("serve idle {bytes}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            let said = client.ask(&format!("sip {bytes}"));
            assert_eq!(said, format!("said {bytes}"), "{}", server.explained());
            assert!(server.has_frames(), "{bytes}: {}", server.explained());
            drop(server);
            let mut server = pair.framed(&format!("serve end {bytes}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            let said = client.ask(&format!("sip {}", bytes + 1));
            assert_eq!(said, format!("said {bytes}"), "{}", server.explained());
            drop(client);
            assert_eq!(server.await_line("said "), "said Ok(0)");
        }
    });
}

/// What the rings hold of a program that this starts.
const RING: usize = 65_536;
const TIGHT: [&str; 3] =
    ["env", "ADVERB_SOCKETS_RING_BYTES=65536", "ADVERB_SOCKETS_RING_BYTES_MAX=65536"];
/// What starts a program with rings that hold more than the kernel does.
const ROOMY: [&str; 3] =
    ["env", "ADVERB_SOCKETS_RING_BYTES=16777216", "ADVERB_SOCKETS_RING_BYTES_MAX=16777216"];

/// Goal: what a call has taken that does not wait arrives, though the program does nothing more.
#[test]
fn what_a_stream_has_taken_needs_no_call() {
    with_namespaces("streams::what_a_stream_has_taken_needs_no_call", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        // It is found to be one of long pieces with what follows, of which the client takes nothing meanwhile.
        let first = 100_000;
        let mut server = pair.framed_by(&ROOMY, &format!("serve tail {first}"), at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask(&format!("sip {first}")), format!("said {first}"));
        let said = server.await_line("said ");
        let rest = &said["said ".len()..];
        assert_eq!(client.ask(&format!("sip {rest}")), said, "{}", server.explained());
        let explained = server.explained();
        assert!(explained.contains("which the kernel carries better"), "{explained}");
    });
}

/// Goal: a program that shuts down a connection reads no more at once, and all that was sent before arrives, though the kernel cannot
/// hold it; and an urgent byte does not overtake it.
#[test]
fn what_the_kernel_does_not_take_yet_is_neither_lost_nor_overtaken() {
    with_namespaces(
        "streams::what_the_kernel_does_not_take_yet_is_neither_lost_nor_overtaken",
        || {
            let pair = Pair::new();
            let _owner = pair.owner();
            for what in ["both", "twice", "urgent"] {
                let mut server =
                    pair.framed_by(&ROOMY, &format!("serve brim {what}"), at(NEAR), None);
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("inline"), "said inline");
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                // The client takes nothing meanwhile.
                let said = server.await_line("said ");
                let sent: usize = said["said ".len()..].parse().expect("a number");
                let arrives = if what == "urgent" { sent + 1 } else { sent };
                let got = client.ask(&format!("sip {}", sent + 1));
                assert_eq!(got, format!("said {arrives}"), "{what}");
                assert!(server.has_frames(), "{what}: {}", server.explained());
                if what == "urgent" {
                    assert_eq!(server.await_line("said "), "said true", "{}", server.explained());
                }
            }
        },
    );
}

/// Goal: bytes to be sent again that were kept for a connection that is no more do not stay.
#[test]
fn what_was_kept_for_a_connection_goes_with_it() {
    with_namespaces("streams::what_was_kept_for_a_connection_goes_with_it", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let _first = pair.framed("serve block", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        let rings = pair.place.rings();
        let is_rings = |name: &String| name.len() == 32 && !name.contains('.');
        let names = fs::read_dir(&rings).expect("a directory").flatten();
        let mut names = names.filter_map(|one| one.file_name().into_string().ok());
        let used = rings.join(format!("{}.back", names.find(is_rings).expect("rings")));
        let unused = rings.join(format!("{}.back", "0".repeat(32)));
        [&used, &unused].iter().for_each(|path| fs::write(path, "bytes").expect("a file"));
        let _second = Running::start(&mut pair.role(true, "serve block", at(FAR)));
        let mut second = pair.framed("talk", at(FAR), None);
        assert_eq!(second.ask("exchange 50 64 0"), "said 50");
        soon("it to go", || !unused.exists());
        assert!(used.exists());
    });
}

/// Goal: an owner that is stopped harms no connection that frames carry: each goes on, and ends as its program says; what is
/// made meanwhile is the kernel's; and when the owner goes on, so do frames.
#[test]
fn connections_survive_an_owner_that_is_stopped() {
    with_namespaces("streams::connections_survive_an_owner_that_is_stopped", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let server = pair.framed("serve part 13390", at(NEAR), None);
        let framed = || server.explained().matches("frames of the interface").count();
        let mut early = [(); 2].map(|()| talker(&pair, NEAR));
        for client in &mut early {
            assert_eq!(client.ask("exchange 100 64 0"), "said 100");
        }
        assert_eq!(framed(), 2, "{}", server.explained());
        owner.signal("STOP");
        let mut late = talker(&pair, NEAR);
        let through = |client: &mut Running| {
            assert_eq!(client.ask("exchange 100 64 0"), "said 100");
            assert_eq!(client.ask("drink"), "said 1000 Ok(())");
        };
        assert_eq!(late.ask("exchange 100 64 0"), "said 100");
        through(&mut late);
        assert_eq!(framed(), 2, "{}", server.explained());
        let [first, second] = &mut early;
        through(first);
        owner.signal("CONT");
        through(second);
        soon("frames again", || {
            let mut next = talker(&pair, NEAR);
            assert_eq!(next.ask("exchange 100 64 0"), "said 100");
            through(&mut next);
            framed() > 2
        });
    });
}

/// Goal: an owner that is stopped in the midst of taking a connection over leaves it to the kernel, which ends it as its
/// program says. Method: the owner stops once it has the key.
#[test]
fn an_owner_that_stops_midway_leaves_a_connection_to_the_kernel() {
    with_namespaces(
        "streams::an_owner_that_stops_midway_leaves_a_connection_to_the_kernel",
        || {
            let pair = Pair::new();
            let owner = Running::start(&mut pair.role(false, "owner stops", at(NEAR)));
            let server = pair.framed("serve part 6695", at(NEAR), None);
            let through = || {
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 100 64 0"), "said 100");
                assert_eq!(client.ask("drink"), "said 1000 Ok(())");
            };
            through();
            assert!(owner.is_stopped());
            assert!(!server.has_frames(), "{}", server.explained());
            owner.signal("CONT");
            soon("frames", || {
                through();
                server.has_frames()
            });
        },
    );
}

/// Goal: the peer of a connection that an owner has taken out of the kernel's hands, and is stopped before it says so, sees a
/// reset, as does the program; nothing else is harmed.
#[test]
fn a_connection_that_stays_between_two_stacks_is_reset() {
    with_namespaces("streams::a_connection_that_stays_between_two_stacks_is_reset", || {
        let pair = Pair::new();
        let owner = Running::start(&mut pair.role(false, "owner stops taking", at(NEAR)));
        let mut server = pair.framed("serve hold", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        client.tell("exchange 1 64 0");
        assert_eq!(client.ask("drink"), "said 0");
        assert_eq!(server.await_line("said "), "said ConnectionReset", "{}", server.explained());
        assert!(owner.is_stopped());
        owner.signal("CONT");
        soon("frames", || {
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 100 64 0"), "said 100");
            server.has_frames()
        });
    });
}

/// Goal: a connection that an owner has put back, and is stopped before it says so, goes on; what it says late harms none
/// of the others.
#[test]
fn an_owner_that_stops_while_it_puts_one_back_harms_none() {
    with_namespaces("streams::an_owner_that_stops_while_it_puts_one_back_harms_none", || {
        let pair = Pair::new();
        let owner = Running::start(&mut pair.role(false, "owner stops giving", at(NEAR)));
        let server = pair.framed("serve part 6694", at(NEAR), None);
        let mut clients = [(); 2].map(|()| talker(&pair, NEAR));
        for client in &mut clients {
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        }
        let framed = server.explained().matches("frames of the interface").count();
        assert_eq!(framed, 2, "{}", server.explained());
        for client in &mut clients {
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert_eq!(client.ask("drink"), "said 1000 Ok(())", "{}", server.explained());
            if owner.is_stopped() {
                owner.signal("CONT");
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    });
}

/// Goal: the peer of a connection that the kernel does not take back sees a reset, and one that it would not take back stays
/// the kernel's. Method: the program may not bind its port any more, or never could.
#[test]
fn what_the_kernel_does_not_take_back_is_reset() {
    with_namespaces("streams::what_the_kernel_does_not_take_back_is_reset", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let limit = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
        fs::write(limit, (PORT + 1).to_string()).expect("a limit of this namespace");
        for (since, has_frames, end) in
            [("late", true, "Err(ConnectionReset)"), ("ever", false, "Ok(())")]
        {
            let server = pair.framed(&format!("serve unbound {since}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            let said = client.ask("drink");
            assert_eq!(server.has_frames(), has_frames, "{since}: {}", server.explained());
            assert_eq!(said, format!("said 0 {end}"), "{}", server.explained());
        }
    });
}

/// Goal: another program gets what was not read of a connection both of whose streams have ended, and its end.
#[test]
fn another_program_gets_the_rest_of_what_has_ended() {
    with_namespaces("streams::another_program_gets_the_rest_of_what_has_ended", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for how in WAYS {
            for rest in [0, 64] {
                let mut server = pair.framed(&format!("serve hand ended {how}"), at(NEAR), None);
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                assert_eq!(client.ask(&format!("half {rest} 0")), "said 0 Ok(())");
                assert!(server.has_frames(), "{how}: {}", server.explained());
                // The last acknowledgement is on its way.
                std::thread::sleep(Duration::from_millis(100));
                server.tell("go");
                let line = server.await_line("bequeathed ");
                assert_eq!(line, format!("bequeathed {rest} Ok(())"), "{how}");
            }
        }
    });
}

/// Goal: so does what goes on with a connection in another way, and where more has come than its ring holds.
#[test]
fn what_follows_gets_what_a_ring_did_not_hold() {
    with_namespaces("streams::what_follows_gets_what_a_ring_did_not_hold", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for how in WAYS.into_iter().chain(["child", "standard", "watched"]) {
            for (front, rest) in
                [(&TIGHT[..], 64), (&TIGHT[..], 66_000), (&TIGHT[..], 150_000), (&[][..], 350_000)]
            {
                let serve = format!("serve hand ended {how}");
                let mut server = pair.framed_by(front, &serve, at(NEAR), None);
                let mut client = talker(&pair, NEAR);
                assert_eq!(client.ask("exchange 50 64 0"), "said 50");
                assert_eq!(client.ask(&format!("half {rest} 0")), "said 0 Ok(())");
                assert!(server.has_frames(), "{how}: {}", server.explained());
                // The last acknowledgement is on its way.
                std::thread::sleep(Duration::from_millis(100));
                server.tell("go");
                let line = server.await_line("bequeathed ");
                let explained = server.explained();
                assert_eq!(line, format!("bequeathed {rest} Ok(())"), "{how}: {explained}");
            }
        }
    });
}

/// Goal: while its owner does not answer, a connection that frames carry takes no urgent byte, rather than lose it, and
/// wakes its program as before; it takes one when the owner goes on.
#[test]
fn an_urgent_byte_waits_for_an_owner_that_is_stopped() {
    with_namespaces("streams::an_urgent_byte_waits_for_an_owner_that_is_stopped", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed("serve urgent", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("inline"), "said inline");
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        for _ in 0..2 {
            assert_eq!(server.ask("urge"), "said operation would block");
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(client.ask("exchange 1 64 0"), "said 1");
        }
        owner.signal("CONT");
        soon("it is sent", || {
            let sent = server.ask("urge") == "said sent";
            assert!(!sent || client.ask("sip 1") == "said 1");
            assert_eq!(client.ask("exchange 1 64 0"), "said 1");
            sent
        });
    });
}

/// Goal: a connection whose program wants what only the kernel has, while its owner does not answer, goes on, and is the
/// kernel's once the owner goes on.
#[test]
fn what_only_the_kernel_has_waits_for_an_owner_that_is_stopped() {
    with_namespaces("streams::what_only_the_kernel_has_waits_for_an_owner_that_is_stopped", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed("serve wish", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        assert_eq!(server.ask("go"), "said wished");
        let mut kernels = || {
            let before = by_kernel();
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            by_kernel() - before
        };
        assert!(kernels() < 50);
        owner.signal("CONT");
        soon("it is the kernel's", || kernels() >= 50);
    });
}

/// How another program gets a connection: as what it reads, or with all that it inherits, of a child of ours or at once.
const WAYS: [&str; 3] = ["given", "kept", "forked"];

/// Goal: a connection that frames carry, and that another program gets while its owner does not answer, is reset: no byte is
/// lost in silence.
#[test]
fn a_connection_that_cannot_go_to_another_program_is_reset() {
    with_namespaces("streams::a_connection_that_cannot_go_to_another_program_is_reset", || {
        let pair = Pair::new();
        let owner = pair.owner();
        for how in WAYS {
            let mut server = pair.framed(&format!("serve hand {how}"), at(NEAR), None);
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50");
            assert!(server.has_frames(), "{how}: {}", server.explained());
            owner.signal("STOP");
            server.tell("go");
            assert_eq!(client.ask("drink"), "said 0 Err(ConnectionReset)", "{how}");
            owner.signal("CONT");
        }
    });
}

/// Goal: the same, of one that the child of a program passes on: the program, which sleeps on it, learns of that.
#[test]
fn a_connection_that_a_child_cannot_pass_on_is_reset() {
    with_namespaces("streams::a_connection_that_a_child_cannot_pass_on_is_reset", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut server = pair.framed("serve bequeath", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 50 64 0"), "said 50");
        assert!(server.has_frames(), "{}", server.explained());
        owner.signal("STOP");
        server.tell("go");
        assert_eq!(server.await_line("said "), "said [Err(ConnectionReset), Ok(0)]");
        assert_eq!(client.ask("drink"), "said 0 Err(ConnectionReset)");
        owner.signal("CONT");
    });
}

/// Goal: another program goes on with a connection that this one closes, though the owner, which has not answered, may have a
/// copy of the socket, and a third one cannot be started.
#[test]
fn another_program_goes_on_while_the_owner_is_stopped() {
    with_namespaces("streams::another_program_goes_on_while_the_owner_is_stopped", || {
        let pair = Pair::new();
        let owner = pair.owner();
        for how in WAYS.into_iter().chain(["beside"]) {
            let mut server = pair.framed(&format!("serve hand {how}"), at(NEAR), None);
            let mut first = talker(&pair, NEAR);
            assert_eq!(first.ask("exchange 40 64 0"), "said 40");
            assert!(server.has_frames(), "{how}: {}", server.explained());
            owner.signal("STOP");
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50", "{how}");
            server.tell("go");
            assert_eq!(server.await_line("said "), "said handed", "{how}");
            assert_eq!(client.ask("exchange 50 64 0"), "said 50", "{how}");
            owner.signal("CONT");
        }
    });
}

/// Goal: a connection that another program was to have, which could not be started, ends when this one closes it, though
/// the owner, which has not answered, may have a copy of the socket.
#[test]
fn a_program_that_cannot_be_started_keeps_no_connection() {
    with_namespaces("streams::a_program_that_cannot_be_started_keeps_no_connection", || {
        let pair = Pair::new();
        let owner = pair.owner();
        for how in ["kept", "forked"] {
            let mut server = pair.framed(&format!("serve hand none {how}"), at(NEAR), None);
            let mut first = talker(&pair, NEAR);
            assert_eq!(first.ask("exchange 40 64 0"), "said 40");
            assert!(server.has_frames(), "{how}: {}", server.explained());
            owner.signal("STOP");
            let mut client = talker(&pair, NEAR);
            assert_eq!(client.ask("exchange 50 64 0"), "said 50", "{how}");
            server.tell("go");
            assert_eq!(client.ask("drink"), "said 0 Ok(())", "{how}");
            owner.signal("CONT");
        }
    });
}

/// Goal: an interface without an owner does not keep connections by another one from frames.
#[test]
fn each_interface_has_its_owner_asked() {
    with_namespaces("streams::each_interface_has_its_owner_asked", || {
        let pair = Pair::new();
        let far = pair.far.child.id();
        let words = |words: &str| run(Command::new("ip").args(words.split(' ')));
        words(&format!("link add other type veth peer name beyond netns {far}"));
        words("address add 10.94.0.1/24 dev other");
        words("link set other up");
        for text in ["address add 10.94.0.2/24 dev beyond", "link set beyond up"] {
            run(pair.far("ip").args(text.split(' ')));
        }
        let _owner = pair.owner();
        let server = pair.framed("serve many", at("0.0.0.0"), None);
        let mut plain = talker(&pair, "10.94.0.1");
        assert_eq!(plain.ask("exchange 100 64 0"), "said 100");
        assert!(!server.has_frames(), "{}", server.explained());
        let mut framed = talker(&pair, NEAR);
        assert_eq!(framed.ask("exchange 100 64 0"), "said 100");
        assert!(server.has_frames(), "{}", server.explained());
        words("link delete other");
    });
}

/// Goal: the peer of a program that is killed sees a reset, though what would tell it is lost at first.
/// Method: the far end drops all that comes at that moment.
#[test]
fn a_silent_peer_sees_a_reset_though_a_packet_is_lost() {
    with_namespaces("streams::a_silent_peer_sees_a_reset_though_a_packet_is_lost", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut server = pair.framed("serve hold", at(NEAR), None);
        let mut silent = talker(&pair, NEAR);
        assert_eq!(silent.ask("exchange 100 64 0"), "said 100");
        assert!(server.has_frames(), "{}", server.explained());
        let loss = Running::start(&mut pair.role(true, "loss 100", at(FAR)));
        kill(&mut server.child);
        // The owner notices meanwhile.
        std::thread::sleep(Duration::from_millis(100));
        drop(loss);
        assert_eq!(silent.ask("drink"), "said 0 Err(ConnectionReset)");
    });
}

/// Goal: all peers of a program whose owner is killed see a reset, however many there are.
#[test]
fn all_peers_see_that_an_owner_is_killed() {
    with_namespaces("streams::all_peers_see_that_an_owner_is_killed", || {
        let pair = Pair::new();
        let mut owner = pair.owner();
        let server = pair.framed("serve many", at(NEAR), None);
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("open 600"), "said 600");
        assert_eq!(client.ask("all 2"), "said 600");
        assert!(server.explained().matches("frames of the interface").count() >= 600);
        kill(&mut owner.child);
        assert_eq!(client.ask("resets"), "said 600");
    });
}

/// Goal: segments of a connection with a rate leave at that rate, however much is written at once; those of one without
/// do not wait.
#[test]
fn frames_of_a_connection_with_a_rate_are_paced() {
    with_namespaces("streams::frames_of_a_connection_with_a_rate_are_paced", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let mut took = Vec::new();
        for mode in ["rate", "slice"] {
            let server = pair.framed(&format!("serve {mode} 2000000"), at(NEAR), None);
            let said = talker(&pair, NEAR).ask("clock");
            let millis = said.strip_prefix("said 2000000 ").expect("all bytes");
            took.push(millis.parse::<u64>().expect("a number"));
            let explained = server.explained();
            assert!(server.has_frames() && !explained.contains("carries better"), "{explained}");
        }
        // Half a second at that rate; what came before the first look may be missing.
        assert!(took[0] >= 400 && took[0] > 2 * took[1], "{took:?}");
    });
}

/// Goal: bytes arrive, both ways, although the network loses packets.
#[test]
fn streams_survive_loss() {
    with_namespaces("streams::streams_survive_loss", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        let server = pair.framed("serve block", at(NEAR), None);
        let _loss = Running::start(&mut pair.role(true, "loss 2", at(FAR)));
        let mut client = talker(&pair, NEAR);
        assert_eq!(client.ask("exchange 200 64 0"), "said 200");
        assert_eq!(client.ask("stream 2000000"), "said 2000000");
        assert!(server.has_frames(), "{}", server.explained());
    });
}

/// Goal: the same of connections that a program makes, and of what the far end sends.
#[test]
fn streams_survive_loss_of_what_comes() {
    with_namespaces("streams::streams_survive_loss_of_what_comes", || {
        let pair = Pair::new();
        pair.put_bridge_before_far();
        let _owner = pair.owner();
        let _server = Running::start(&mut pair.role(true, "serve block", at(FAR)));
        for devices in [&["far"][..], &["inner"], &["far", "inner"]] {
            let losses = devices.iter().map(|device| {
                Running::start(&mut pair.role(true, &format!("loss 2 {device}"), at(FAR)))
            });
            let _losses: Vec<_> = losses.collect();
            let mut client = pair.framed("talk", at(FAR), None);
            assert_eq!(client.ask("exchange 200 64 0"), "said 200");
            let before = by_kernel();
            assert_eq!(client.ask("stream 2000000"), "said 2000000", "{devices:?}");
            assert!(client.has_frames() && by_kernel() - before < 50, "{devices:?}");
        }
    });
}

/// A program of the system's, if there is one.
fn found(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|found| found.status.success())
}

/// Goal: a program that is not ours, with nonblocking connections and timeouts, gets a file from a server of the kernel's.
#[test]
fn curl_gets_a_file() {
    with_namespaces("streams::curl_gets_a_file", || {
        if !found("curl") || !found("python3") {
            return println!("skipped: no curl");
        }
        let pair = Pair::new();
        let _owner = pair.owner();
        let page = pattern(1_500_000);
        fs::write(pair.place.0.join("page"), &page).expect("a file");
        let mut command = pair.far("python3");
        command.args(["-m", "http.server", "7481", "--bind", FAR]).current_dir(&pair.place.0);
        let mut server = command.stderr(std::process::Stdio::null()).spawn().expect("a server");
        let log = pair.place.0.join("curl.log");
        let mut curl = Command::new("curl");
        curl.env("LD_PRELOAD", super::library::library()).env("VMA_LOG_FILE", &log);
        curl.env("ADVERB_SOCKETS_SHM_DIR", pair.place.rings()).env("ADVERB_SOCKETS_QUIET", "1");
        curl.env("ADVERB_SOCKETS_TRANSPORT", "xdp").env("ADVERB_SOCKETS_EXPLAIN", "1");
        curl.args(["-sS", "--retry", "30", "--retry-connrefused", "--retry-delay", "1"]);
        let output = curl.arg(format!("http://{FAR}:7481/page")).output().expect("curl");
        kill(&mut server);
        assert!(output.stdout == page, "{}: {output:?}", output.stdout.len());
        let explained = fs::read_to_string(log).unwrap_or_default();
        assert!(explained.contains("frames of the interface, past the kernel"), "{explained}");
    });
}
