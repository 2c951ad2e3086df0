//! What this test's own children do: they serve and they ask, with what the standard library has.
//!
//! # Safety
//!
//! A child that forks has one thread besides the one that waits for it, and its children end by `_exit`
//! after reads and writes. Events go to and from arrays of a child's own.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::echo;
use crate::support::Place;

/// What a child does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Echoes to all at once.
    Serve,
    /// Echoes from a child for each connection.
    ServeForking,
    /// Echoes from tokio.
    ServeTokio,
    /// Echoes datagrams.
    ServeUdp,
    /// Asks without end, and checks what comes back.
    Call,
    /// Asks the next server as soon as the last is gone.
    CallAgain,
    /// Asks on as many connections as there can be at once.
    CallMost,
    /// Asks once on each of so many connections, one after the other.
    CallShort(usize),
    /// Asks from so many threads, on one short connection after another.
    CallStorm(usize),
    /// Asks on so many connections at once.
    CallTokio(usize),
    /// Asks on so many connections, one after the other, each watched while it is closed.
    CallWatched(usize),
    /// Asks by datagrams until it is refused.
    CallUdp,
    /// The same, and does not insist on an answer.
    CallUdpOnce,
}

impl Role {
    fn name(self) -> (&'static str, usize) {
        match self {
            Self::Serve => ("serve", 0),
            Self::ServeForking => ("serve-forking", 0),
            Self::ServeTokio => ("serve-tokio", 0),
            Self::ServeUdp => ("serve-udp", 0),
            Self::Call => ("call", 0),
            Self::CallAgain => ("call-again", 0),
            Self::CallMost => ("call-most", 0),
            Self::CallShort(count) => ("call-short", count),
            Self::CallStorm(count) => ("call-storm", count),
            Self::CallTokio(count) => ("call-tokio", count),
            Self::CallWatched(count) => ("call-watched", count),
            Self::CallUdp => ("call-udp", 0),
            Self::CallUdpOnce => ("call-udp-once", 0),
        }
    }

    /// A child that does this, with as many descriptors as it may have.
    pub(crate) fn command(self, place: &Place, port: u16) -> Command {
        self.limited(place, port, "$(ulimit -Hn)")
    }

    /// A child that does this, with at most so many descriptors.
    pub(crate) fn limited(self, place: &Place, port: u16, descriptors: &str) -> Command {
        let (name, count) = self.name();
        let mut command = place.command("sh");
        let run = format!(
            "ulimit -n {descriptors}; exec \"$0\" the_child --exact --include-ignored --nocapture"
        );
        command.arg("-c").arg(run).arg(std::env::current_exe().expect("a path of this test"));
        command.env("ADVERB_TEST_ROLE", format!("{name} {port} {count}"));
        command
    }
}

/// Does what stands in the environment, if this is a child.
pub(crate) fn run() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    let fields: Vec<&str> = role.split(' ').collect();
    let port = fields[1].parse().expect("a port");
    let count = fields[2].parse().expect("a number");
    match fields[0] {
        "serve" => serve(port),
        "serve-forking" => serve_forking(port),
        "serve-tokio" => echo::serve(port),
        "serve-udp" => serve_datagrams(port),
        "call" => talk(TcpStream::connect(("127.0.0.1", port)).expect("the server")),
        "call-again" => call_again(port),
        "call-most" => call_most(port),
        "call-short" => call_short(port, count),
        "call-storm" => call_storm(port, count),
        "call-tokio" => echo::call(port, count),
        "call-watched" => call_watched(port, count),
        "call-udp" => call_datagrams(port, false),
        "call-udp-once" => call_datagrams(port, true),
        other => panic!("no such role: {other}"),
    }
}

/// A client that sends a `?` first is told how many others are there.
fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    let there = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(error) => panic!("a connection: {error}"),
        };
        let there = Arc::clone(&there);
        std::thread::spawn(move || {
            there.fetch_add(1, Ordering::SeqCst);
            let mut buffer = [0; 5000];
            let first = stream.read(&mut buffer).unwrap_or(0);
            if buffer[..first] == *b"?" {
                let others = there.load(Ordering::SeqCst) - 1;
                let _ = stream.write_all(others.to_string().as_bytes());
            } else if stream.write_all(&buffer[..first]).is_ok() {
                echo_to(&mut stream);
            }
            drop(stream);
            there.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn echo_to(stream: &mut TcpStream) {
    let mut buffer = [0; 5000];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
}

fn serve_forking(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    // SAFETY: children that have ended are not used.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        // SAFETY: no thread but this one does anything, and the child ends below.
        if unsafe { libc::fork() } == 0 {
            echo_to(&mut stream);
            // SAFETY: ends the child on the spot.
            unsafe { libc::_exit(0) };
        }
    }
}

/// Talks until the server is gone, and checks what comes back.
fn talk(mut stream: TcpStream) {
    let mut writer = stream.try_clone().expect("a copy");
    let writing = std::thread::spawn(move || {
        let block: Vec<u8> = (0..251).collect();
        while writer.write_all(&block).is_ok() {}
    });
    let mut at = 0_usize;
    let mut buffer = [0; 4000];
    while let Ok(got @ 1..) = stream.read(&mut buffer) {
        for byte in &buffer[..got] {
            assert_eq!(usize::from(*byte), at % 251, "at {at}");
            at += 1;
        }
        if at == got {
            println!("talking");
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    writing.join().expect("the writer");
}

fn call_again(port: u16) {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => {
                talk(stream);
                println!("gone");
            }
            Err(error) => {
                // A process that is killed closes its listener last: what is in its queue then is reset.
                let expected = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
                assert!(expected.contains(&error.kind()), "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// One question and its answer.
fn ask(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("the server");
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).expect("the server");
    assert_eq!(answer, text.as_bytes());
}

fn call_most(port: u16) {
    for _ in 0..3 {
        let mut streams = Vec::new();
        let error = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => streams.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        for (number, stream) in streams.iter_mut().enumerate() {
            ask(stream, &format!("<{number}>"));
        }
        println!("had {}", streams.len());
    }
}

fn call_short(port: u16, count: usize) {
    for number in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
        ask(&mut stream, &format!("<{number}>"));
    }
}

fn call_storm(port: u16, threads: usize) {
    let storm = |thread: usize| {
        for turn in 0..10 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
            for part in 0..3 {
                ask(&mut stream, &format!("<{thread}, {turn}, {part}>"));
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || storm(thread));
        }
    });
    println!("right: {}", threads * 10);
}

/// The only connection of an epoll instance is closed while a thread waits there, which must be told
/// of nothing that has not been registered.
fn call_watched(port: u16, count: usize) {
    const KNOWN: u64 = 7;
    const WATCHERS: usize = 3;
    // SAFETY: takes a flag.
    let watch = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let is_over = AtomicBool::new(false);
    let spin = || {
        while !is_over.load(Ordering::Relaxed) {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: there is room for four events.
            let found = unsafe { libc::epoll_wait(watch, events.as_mut_ptr(), 4, 0) };
            for event in events.iter().take(usize::try_from(found).expect("no error")) {
                assert_eq!({ event.u64 }, KNOWN);
            }
        }
    };
    let ask_all = || {
        for turn in 0..count {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server");
            let events = (libc::EPOLLIN | libc::EPOLLRDHUP).cast_unsigned();
            let mut event = libc::epoll_event { events, u64: KNOWN };
            let fd = stream.as_raw_fd();
            // SAFETY: reads an event, which is a local.
            assert_eq!(unsafe { libc::epoll_ctl(watch, libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
            for part in 0..3 {
                ask(&mut stream, &format!("<{turn}, {part}>"));
            }
        }
    };
    std::thread::scope(|scope| {
        // More than there are processors: one of them is always in the midst of something.
        (0..WATCHERS).for_each(|_| drop(scope.spawn(spin)));
        let asked = scope.spawn(ask_all).join();
        is_over.store(true, Ordering::Relaxed);
        asked.expect("every answer");
    });
    println!("right: {count}");
}

fn serve_datagrams(port: u16) {
    let socket = UdpSocket::bind(("127.0.0.1", port)).expect("a port");
    let mut buffer = [0; 2000];
    while let Ok((got, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..got], from);
    }
}

/// Asks until it is refused, and asks again where no answer comes: what a server that dies has in its
/// queue is lost.
fn call_datagrams(port: u16, is_once: bool) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(("127.0.0.1", port)).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(25))).expect("a limit");
    let mut answers = 0_u64;
    let mut buffer = [0; 2000];
    let start = Instant::now();
    loop {
        let asked = socket.send(&answers.to_le_bytes());
        let answered = asked.and_then(|_| socket.recv(&mut buffer));
        match answered {
            Ok(got) => {
                let answer = u64::from_le_bytes(buffer[..got].try_into().expect("eight bytes"));
                assert!(answer <= answers, "{answer} when asked {answers}");
                answers += u64::from(answer == answers);
                if answers == 1 {
                    println!("talking");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                if is_once || answers > 0 || start.elapsed() > crate::running::A_MINUTE {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
