//! Programs that send to multicast groups and are members of them, unmodified and accelerated, on the
//! loopback device.
//!
//! # Safety
//!
//! Every pointer passed to the kernel is to a local of the length that is said.

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Place, free_port};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 7, 7, 7);

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Goal: what is sent to a group arrives once, in order and whole, and one that is not accelerated is
/// answered by the same member.
#[test]
fn sockperf_finds_what_it_sent_to_a_group() {
    if Command::new("sockperf").arg("--version").output().is_err() {
        eprintln!("skipped: sockperf is not installed");
        return;
    }
    let modes = [&["pp", "--mps=100000"][..], &["ul", "--mps=20000"], &["tp", "--mps=50000"]];
    // It mostly waits, so all modes are measured at the same time.
    std::thread::scope(|threads| {
        for (mode, last) in modes.into_iter().zip(1..) {
            threads.spawn(move || measure(mode, Ipv4Addr::new(239, 7, 8, last)));
        }
    });
}

/// Has sockperf send to a group, with the library and without, and looks at what it says.
fn measure(mode: &[&str], group: Ipv4Addr) {
    let place = Place::new(&format!("sockperf-{}", mode[0]));
    let (port, address) = (free_port().to_string(), group.to_string());
    let by_loopback = ["--mc-rx-if", "127.0.0.1", "--mc-tx-if", "127.0.0.1"];
    let of_group = [&["-i", &address, "-p", &port][..], &by_loopback].concat();
    let mut server = place.command("sockperf");
    server.arg("sr").args(&of_group).stdout(Stdio::null());
    let _server = Running(server.spawn().expect("sockperf"));
    await_member(group, &port);
    for mut client in [place.command("sockperf"), Command::new("sockperf")] {
        client.args(mode).args(&of_group).args(["-t", "1", "-m", "200"]);
        if mode[0] == "pp" {
            client.arg("--data-integrity");
        }
        let said = measured(&mut client);
        assert!(!said.to_lowercase().contains("data integrity test failed"), "{said}");
        if mode[0] != "tp" {
            assert!(said.contains("# duplicated messages = 0"), "{said}");
            assert!(said.contains("# out-of-order messages = 0"), "{said}");
        }
    }
}

/// What sockperf says of a second in which it got to measure anything: on a busy machine, its program
/// or its server may have had none of it.
fn measured(client: &mut Command) -> String {
    let start = Instant::now();
    loop {
        let output = client.output().expect("sockperf");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let is_over = start.elapsed() > Duration::from_secs(60);
        if !said.contains("No valid observations found") || is_over {
            return said;
        }
    }
}

/// Waits until a program has a port and is a member of the group.
fn await_member(group: Ipv4Addr, port: &str) {
    let start = Instant::now();
    let group = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let port = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
    let says = |path, what: &str| fs::read_to_string(path).expect("a list").contains(what);
    while !says("/proc/net/igmp", &group) || !says("/proc/net/udp", &port) {
        assert!(start.elapsed() < Duration::from_secs(60), "no member joins");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal: members come and are killed while a sender sends; each gets every datagram once and in order
/// from the first to the last that it gets, and one that is not accelerated too.
/// Method: members answer each datagram, and end if it is not the one after the last.
#[test]
fn members_that_come_and_are_killed_get_everything_once() {
    let (place, port) = (Place::new("members"), free_port());
    let myself = std::env::current_exe().expect("a path of this test");
    let myself = myself.to_str().expect("a path in Unicode");
    let child = |mut command: Command, variable: &str, value: String| {
        command
            .args(["the_child", "--exact", "--include-ignored", "--nocapture"])
            .env(variable, value);
        Running(command.stdout(Stdio::null()).spawn().expect("a child"))
    };
    let member = |command| child(command, "ADVERB_TEST_MEMBER", port.to_string());
    let mut members: Vec<Running> = (0..3).map(|_| member(place.command(myself))).collect();
    let mut sender = child(place.command(myself), "ADVERB_TEST_SENDER", port.to_string());
    let mut plain = None;
    for round in 0..rounds() {
        std::thread::sleep(Duration::from_millis(40 + round * 7 % 40));
        let place_in_line = usize::try_from(round).expect("few rounds") % members.len();
        members[place_in_line] = member(place.command(myself));
        if round % 5 == 0 {
            plain = Some(member(Command::new(myself)));
        }
        for running in members.iter_mut().chain(&mut plain).chain([&mut sender]) {
            let ended = running.0.try_wait().expect("a child");
            assert!(ended.is_none(), "round {round}: {ended:?}");
        }
    }
}

/// How often a member is killed.
fn rounds() -> u64 {
    std::env::var("ADVERB_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(30)
}

/// The program of this test's own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    let port = |name: &str| Some(std::env::var(name).ok()?.parse().expect("a port"));
    match (port("ADVERB_TEST_MEMBER"), port("ADVERB_TEST_SENDER")) {
        (Some(port), _) => be_member(port),
        (_, Some(port)) => send_for_ever(port),
        (None, None) => {}
    }
}

/// Answers every datagram; ends with an error if it is not the one after the last.
fn be_member(port: u16) {
    let socket = shared(port);
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).expect("a group");
    let mut last = None;
    let mut buffer = [0; 100];
    loop {
        let (got, from) = socket.recv_from(&mut buffer).expect("a datagram");
        let number = u64::from_le_bytes(buffer[..got].try_into().expect("eight bytes"));
        assert!(last.is_none_or(|last| number == last + 1), "{number} after {last:?}");
        last = Some(number);
        let _ = socket.send_to(&number.to_le_bytes(), from);
    }
}

/// A socket on a port that others have too.
fn shared(port: u16) -> UdpSocket {
    use std::os::fd::FromRawFd;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET.try_into().expect("a small number"),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    let len = u32::try_from(size_of_val(&address)).expect("a small number");
    let on = 1_i32;
    // SAFETY: locals of the lengths that are said, and a descriptor that is ours.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a socket in four steps")]
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        assert_eq!(libc::setsockopt(fd, level, name, (&raw const on).cast(), 4), 0);
        // A member without a processor for a moment is not to miss anything for want of room. Not all may ask for it.
        let room: libc::c_int = 8 << 20;
        let _ = libc::setsockopt(fd, level, libc::SO_RCVBUFFORCE, (&raw const room).cast(), 4);
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
        UdpSocket::from_raw_fd(fd)
    }
}

/// Sends numbers, each when all members have answered the one before, or have been silent for long. A
/// late answer is of a member that is not waited for yet: no member may fall so far behind that a
/// datagram finds no room.
fn send_for_ever(port: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    by_loopback(&socket);
    // Members share a port: only how many have answered can be seen.
    let mut expected = 1;
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let mut buffer = [0; 100];
    for number in 0.. {
        let number = u64::to_le_bytes(number);
        socket.send_to(&number, (GROUP, port)).expect("a datagram");
        let (mut answers, mut late) = (0, 0);
        let mut note = |answer: &[u8]| match answer == number {
            true => answers += 1,
            false => late += 1,
        };
        let mut left = expected;
        while left > 0 {
            let Ok(got) = socket.recv(&mut buffer) else { break };
            note(&buffer[..got]);
            left -= usize::from(buffer[..got] == number);
        }
        // Others may have come.
        socket.set_nonblocking(true).expect("a socket");
        while let Ok(got) = socket.recv(&mut buffer) {
            note(&buffer[..got]);
        }
        socket.set_nonblocking(false).expect("a socket");
        expected = (answers + usize::from(late > 0)).max(1);
    }
}

/// What a socket sends to groups goes by the loopback device.
fn by_loopback(socket: &UdpSocket) {
    use std::os::fd::AsRawFd;
    let way = u32::from(Ipv4Addr::LOCALHOST).to_be();
    let (level, name) = (libc::IPPROTO_IP, libc::IP_MULTICAST_IF);
    // SAFETY: a local of four bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const way).cast(), 4) };
}
