//! Connections whose peers send something urgent: what their programs see of it, and the tests.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::streams::{Epoll, begin, by_kernel, connect, pattern, talker};
use super::{FAR, FAR_6, NEAR, NEAR_6, Pair, Running, at, soon, with_namespaces};

/// Sends something urgent in the midst of other bytes.
pub(crate) fn urge(mut stream: &TcpStream) {
    stream.write_all(b"before").expect("it is sent");
    // SAFETY: a byte that is ours.
    let sent = unsafe { libc::send(stream.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    stream.write_all(b"after").expect("it is sent");
}

/// How often there was SIGURG.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Has one connection, accepted, late if so, or made, on which it says what comes, and what of that out of line.
pub(crate) fn hear(at: SocketAddr, how: &str) {
    let (mode, begins) = how.split_once(' ').expect("two words");
    let line = || std::io::stdin().read_line(&mut String::new()).expect("a line");
    let mut stream = if begins == "connects" {
        let stream = connect(at);
        println!("\nready");
        stream
    } else {
        let listener = TcpListener::bind(at).expect("a port");
        println!("\nready");
        if begins == "late" {
            line();
        }
        listener.accept().expect("a connection").0
    };
    if begins != "late" {
        begin(&mut stream);
        if mode == "stuck" {
            return stuck(stream);
        }
        println!("said begun");
    }
    let heard = match mode {
        "block" => blocking(&mut stream),
        "select" => selected(&mut stream),
        "signal" => signalled(&mut stream),
        "inline" => in_line(&mut stream),
        "pri" => polled(&mut stream, libc::POLLPRI),
        "poll" => polled(&mut stream, libc::POLLPRI | libc::POLLIN),
        "epoll" => watched(&mut stream, 0),
        _ => watched(&mut stream, libc::EPOLLET),
    };
    println!("said {heard}");
    begin(&mut stream);
    line();
}

/// Reads once; nothing, if there is nothing now.
fn read(stream: &mut TcpStream) -> String {
    let mut room = [0; 100];
    match stream.read(&mut room) {
        Ok(len) => String::from_utf8_lossy(&room[..len]).into_owned(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => String::new(),
        Err(error) => format!("{error}"),
    }
}

/// Reads until the end of what is sent has come.
fn rest(stream: &mut TcpStream, mut heard: String) -> String {
    while !heard.ends_with("after") {
        heard += &read(stream);
    }
    heard
}

/// What came out of line.
fn out_of_line(stream: &TcpStream) -> String {
    let mut room = [0_u8; 2];
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::recv(stream.as_raw_fd(), room.as_mut_ptr().cast(), 2, libc::MSG_OOB) };
    let got = usize::try_from(got).map(|got| String::from_utf8_lossy(&room[..got]).into_owned());
    got.unwrap_or_else(|_| format!("{:?}", std::io::Error::last_os_error().kind()))
}

fn is_at_mark(stream: &TcpStream) -> bool {
    let mut mark = 0;
    // SAFETY: an integer, which is ours.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), SIOCATMARK, &raw mut mark) };
    assert_eq!(asked, 0);
    mark != 0
}

const SIOCATMARK: libc::Ioctl = 0x8905;

fn blocking(stream: &mut TcpStream) -> String {
    rest(stream, String::new())
}

/// What is urgent first, if only that is waited for, or when it is told of.
fn polled(stream: &mut TcpStream, events: i16) -> String {
    let (mut heard, mut urgent) = (String::new(), String::new());
    while urgent.is_empty() || !heard.ends_with("after") {
        let events = if urgent.is_empty() { events } else { libc::POLLIN };
        let mut polled = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
        // SAFETY: a structure, which is ours.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
        assert_eq!(polled.revents & !events, 0, "{:x}", polled.revents);
        if polled.revents & libc::POLLPRI != 0 {
            urgent = out_of_line(stream);
        } else {
            heard += &read(stream);
        }
    }
    format!("{heard} {urgent}")
}

fn selected(stream: &mut TcpStream) -> String {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    let (fd, null) = (stream.as_raw_fd(), std::ptr::null_mut());
    // SAFETY: a set, which is ours, and a descriptor below a thousand.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    // SAFETY: a set, which is ours.
    let count = unsafe { libc::select(fd + 1, null, null, &raw mut set, std::ptr::null_mut()) };
    assert_eq!(count, 1);
    let urgent = out_of_line(stream);
    let heard = read(stream);
    let is_at_mark = is_at_mark(stream);
    format!("{} {urgent} {is_at_mark}", rest(stream, heard))
}

fn watched(stream: &mut TcpStream, how: c_int) -> String {
    let instance = Epoll::new(0);
    instance.add(stream.as_raw_fd(), libc::EPOLLIN | libc::EPOLLPRI | how);
    stream.set_nonblocking(true).expect("an option");
    let (mut heard, mut urgent) = (String::new(), String::new());
    while urgent.is_empty() || !heard.ends_with("after") {
        let events = instance.wait_for_events();
        let known = libc::EPOLLIN | libc::EPOLLPRI;
        assert_eq!(events & !known, 0, "{events:x}");
        if events & libc::EPOLLPRI != 0 && urgent.is_empty() {
            urgent = out_of_line(stream);
        }
        while let more = read(stream)
            && !more.is_empty()
        {
            heard += &more;
        }
    }
    stream.set_nonblocking(false).expect("an option");
    format!("{heard} {urgent}")
}

/// Makes no call on the connection before the signal.
fn signalled(stream: &mut TcpStream) -> String {
    let handler: extern "C" fn(c_int) = count;
    #[expect(clippy::as_conversions, reason = "the C library takes a function as a number")]
    let handler = handler as libc::sighandler_t;
    // SAFETY: a handler that counts.
    unsafe { libc::signal(libc::SIGURG, handler) };
    let own = c_int::try_from(std::process::id()).expect("a number");
    // SAFETY: no pointer.
    assert_eq!(unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETOWN, own) }, 0);
    println!("said owned");
    while SIGNALS.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut urgent = out_of_line(stream);
    // The signal says that it is announced.
    while urgent == "WouldBlock" {
        std::thread::sleep(Duration::from_millis(1));
        urgent = out_of_line(stream);
    }
    format!("{} {urgent}", rest(stream, String::new()))
}

fn in_line(stream: &mut TcpStream) -> String {
    let (fd, on) = (stream.as_raw_fd(), 1_i32);
    let len = libc::socklen_t::try_from(size_of_val(&on)).expect("a length");
    let (level, name) = (libc::SOL_SOCKET, libc::SO_OOBINLINE);
    // SAFETY: an integer, which is ours, and its length.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, (&raw const on).cast(), len) }, 0);
    let mut polled = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
    // SAFETY: a structure, which is ours.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, -1) }, 1);
    let heard = read(stream);
    let is_at_mark = is_at_mark(stream);
    format!("{} {is_at_mark}", rest(stream, heard))
}

/// Hears what comes while another thread is in the midst of a send. That reads a page that there is from the next line on.
fn stuck(mut stream: TcpStream) {
    let page = Withheld::new();
    let mut sending = stream.try_clone().expect("a copy");
    let bytes = page.bytes();
    let sender = std::thread::spawn(move || sending.write_all(bytes).expect("it is sent"));
    page.await_reader();
    let provider = std::thread::spawn(move || {
        std::io::stdin().read_line(&mut String::new()).expect("a line");
        page.provide();
    });
    println!("said begun");
    println!("said {}", blocking(&mut stream));
    provider.join().expect("it is there");
    sender.join().expect("it is sent");
}

/// A page that is not there yet: what reads it waits. See userfaultfd(2).
struct Withheld {
    faults: OwnedFd,
    at: usize,
}

impl Withheld {
    fn new() -> Self {
        // SAFETY: no pointer.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE) };
        let faults = c_int::try_from(faults).expect("a descriptor");
        assert!(faults >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it has just been made, and nothing else has it.
        let faults = unsafe { OwnedFd::from_raw_fd(faults) };
        let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let withheld = Self { faults, at: page.expose_provenance() };
        withheld.tell(UFFDIO_API, &mut [0xaa, 0, 0]);
        withheld.tell(UFFDIO_REGISTER, &mut [withheld.at(), PAGE_WORD, 1, 0]);
        withheld
    }

    fn tell<const N: usize>(&self, what: libc::Ioctl, words: &mut [u64; N]) {
        // SAFETY: the structure of this request has so many words.
        let told = unsafe { libc::ioctl(self.faults.as_raw_fd(), what, words.as_mut_ptr()) };
        assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    }

    fn at(&self) -> u64 {
        u64::try_from(self.at).expect("an address")
    }

    fn bytes(&self) -> &'static [u8] {
        // SAFETY: the page is mapped until the process ends, and is not written to once it can be read.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.at), PAGE) }
    }

    /// Waits until a thread waits for the page.
    fn await_reader(&self) {
        let mut message = [0_u8; 32];
        let into = message.as_mut_ptr().cast();
        // SAFETY: room for so many bytes.
        let got = unsafe { libc::read(self.faults.as_raw_fd(), into, message.len()) };
        assert_eq!(got, 32);
    }

    fn provide(&self) {
        let bytes = pattern(PAGE);
        let from = u64::try_from(bytes.as_ptr().expose_provenance()).expect("an address");
        self.tell(UFFDIO_COPY, &mut [self.at(), from, PAGE_WORD, 0, 0]);
    }
}

const PAGE: usize = 4096;
const PAGE_WORD: u64 = 4096;
/// Flags and requests of userfaultfd(2) and ioctl_userfaultfd(2).
const USER_MODE: c_int = 1;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFDIO_COPY: libc::Ioctl = 0xc028_aa03;

/// What a program hears in each mode.
const MODES: [(&str, &str); 8] = [
    ("block", "said beforeafter"),
    ("pri", "said beforeafter !"),
    ("poll", "said beforeafter !"),
    ("epoll", "said beforeafter !"),
    ("edge", "said beforeafter !"),
    ("select", "said beforeafter ! true"),
    ("signal", "said beforeafter !"),
    ("inline", "said before!after true"),
];

/// Numbers from here on are those of the library's own descriptors.
const OWN_MIN: u32 = 1000;

/// The descriptor that a line of the library is about.
fn number_of(line: &str) -> Option<u32> {
    line.split_once("fd ")?.1.split_once(' ')?.0.parse().ok()
}

/// Goal: what the peer has marked as urgent comes out of line, or in line, with its mark, its event and its signal, as by the
/// kernel, to a program that waits however it does; nothing is lost, no end is told of that there is not, and the connection goes on,
/// by the kernel.
#[test]
fn what_is_urgent_is_heard_as_by_the_kernel() {
    with_namespaces("urgent::what_is_urgent_is_heard_as_by_the_kernel", || {
        let pair = Pair::new();
        let _owner = pair.owner();
        for (mode, expected) in MODES {
            let is_made = ["poll", "inline"].contains(&mode);
            let (near, far) = if mode == "epoll" { (NEAR_6, FAR_6) } else { (NEAR, FAR) };
            let (mut program, mut peer) = match is_made {
                false => {
                    let program = pair.framed(&format!("urgent {mode} accepts"), at(near), None);
                    (program, talker(&pair, near))
                }
                true => {
                    let peer = Running::start(&mut pair.role(true, "talk accepts", at(far)));
                    (pair.framed(&format!("urgent {mode} connects"), at(far), None), peer)
                }
            };
            assert_eq!(peer.ask("exchange 50 64 0"), "said 50", "{mode}");
            assert_eq!(program.await_line("said "), "said begun");
            assert!(program.has_frames(), "{mode}: {}", program.explained());
            if mode == "signal" {
                assert_eq!(program.await_line("said "), "said owned");
            }
            assert_eq!(peer.ask("urge"), "said urged");
            assert_eq!(program.await_line("said "), expected, "{mode}");
            let before = by_kernel();
            assert_eq!(peer.ask("exchange 50 64 0"), "said 50", "{mode}");
            assert!(by_kernel() - before >= 50, "{mode}: it is the kernel's");
            let explained = program.explained();
            let numbers: Vec<_> = explained.lines().filter_map(number_of).collect();
            let is_told = explained.contains("a feature that only the kernel has");
            assert!(is_told && numbers.iter().all(|fd| *fd < OWN_MIN), "{mode}: {explained}");
        }
    });
}

/// Goal: a connection whose peer has sent something urgent before it is accepted stays the kernel's, with all that has come.
#[test]
fn what_is_urgent_before_a_connection_is_accepted_stays_the_kernels() {
    with_namespaces(
        "urgent::what_is_urgent_before_a_connection_is_accepted_stays_the_kernels",
        || {
            let pair = Pair::new();
            let _owner = pair.owner();
            for (mode, expected) in MODES.into_iter().filter(|(mode, _)| *mode != "signal") {
                let mut program = pair.framed(&format!("urgent {mode} late"), at(NEAR), None);
                let mut peer = talker(&pair, NEAR);
                assert_eq!(peer.ask("urge"), "said urged");
                soon("it has come", || peer.ask("unacknowledged") == "said 0");
                program.tell("accept");
                assert_eq!(program.await_line("said "), expected, "{mode}");
                assert_eq!(peer.ask("exchange 50 64 0"), "said 50", "{mode}");
            }
        },
    );
}

/// Goal: while the owner does not answer, what is urgent comes in line, and nothing is lost or waits for ever.
#[test]
fn what_is_urgent_comes_in_line_while_the_owner_is_stopped() {
    with_namespaces("urgent::what_is_urgent_comes_in_line_while_the_owner_is_stopped", || {
        let pair = Pair::new();
        let owner = pair.owner();
        let mut program = pair.framed("urgent block accepts", at(NEAR), None);
        let mut peer = talker(&pair, NEAR);
        assert_eq!(peer.ask("exchange 50 64 0"), "said 50");
        assert_eq!(program.await_line("said "), "said begun");
        assert!(program.has_frames(), "{}", program.explained());
        owner.signal("STOP");
        assert_eq!(peer.ask("urge"), "said urged");
        assert_eq!(program.await_line("said "), "said before!after");
        assert_eq!(peer.ask("exchange 50 64 0"), "said 50");
        owner.signal("CONT");
    });
}

/// Goal: a connection of which another thread of the program is in the midst of something goes back to the kernel as soon as that
/// is over; if it is not over for long, what is urgent comes in line. Nothing is lost.
#[test]
fn what_is_urgent_waits_for_a_thread_that_sends_but_not_for_ever() {
    with_namespaces(
        "urgent::what_is_urgent_waits_for_a_thread_that_sends_but_not_for_ever",
        || {
            let pair = Pair::new();
            let _owner = pair.owner();
            for (attempts, expected) in [(u32::MAX, "said beforeafter"), (3, "said before!after")] {
                let limit = format!("ADVERB_TEST_LEAVE_ATTEMPTS={attempts}");
                let front = ["env", &limit];
                let mut program = pair.framed_by(&front, "urgent stuck accepts", at(NEAR), None);
                let mut peer = talker(&pair, NEAR);
                assert_eq!(peer.ask("exchange 50 64 0"), "said 50");
                assert_eq!(program.await_line("said "), "said begun");
                assert!(program.has_frames(), "{}", program.explained());
                assert_eq!(peer.ask("urge"), "said urged");
                let is_back = expected == "said beforeafter";
                if is_back {
                    // The first attempt waits for less than that takes.
                    let resent = |peer: &mut Running| peer.ask("resent")[5..].parse::<u32>();
                    soon("it is sent again", || resent(&mut peer).is_ok_and(|resent| resent > 3));
                    program.tell("go");
                }
                assert_eq!(program.await_line("said "), expected, "{attempts}");
                if !is_back {
                    program.tell("go");
                }
                assert_eq!(peer.ask("drink"), "said 4096 Ok(())");
                let explained = program.explained();
                let is_told = explained.contains("a feature that only the kernel has");
                assert_eq!(is_told, is_back, "{attempts}: {explained}");
            }
        },
    );
}
