//! UDP sockets that change hands while datagrams are in their mailboxes: programs without the library
//! find them in the kernel's queue, each once, in order, and from where it was sent.
//!
//! # Safety
//!
//! Descriptors are those of sockets of the same function, or were left open for this program.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use support::Place;

/// So many datagrams are in the mailbox when the socket changes hands.
const COUNT: u32 = 200;

fn myself() -> PathBuf {
    std::env::current_exe().expect("a path of this test")
}

/// A child that does what lines tell it; it ends with the test.
struct Talker(Child, BufReader<ChildStdout>);

impl Talker {
    fn start(mut command: Command, role: &str) -> Self {
        command.args([
            "the_child",
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env("ADVERB_TEST_ROLE", role).env("ADVERB_SOCKETS_EXPLAIN", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self(child, said)
    }

    fn tell(&mut self, what: &str) {
        let to = self.0.stdin.as_mut().expect("a pipe");
        writeln!(to, "{what}").expect("a line");
    }

    /// The rest of the first line that begins with `what` somewhere.
    fn await_line(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).expect("a line") > 0, "it has ended before {what}");
            if let Some((_, rest)) = line.split_once(what) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Goal: whatever hands the socket over, and whether its sender still has its own or not, the heir gets
/// what lay in the mailbox.
#[test]
fn datagrams_in_a_mailbox_are_there_for_a_program_without_the_library() {
    for how in ["exec", "spawn"] {
        for (any, sender_leaves) in [(true, false), (false, false), (true, true)] {
            let place = Place::new(&format!("heir-{how}-{any}-{sender_leaves}"));
            let mut receiver = place.command(myself());
            receiver.env("ADVERB_TEST_BIND", if any { "0.0.0.0:0" } else { "127.0.0.1:0" });
            let mut receiver = Talker::start(receiver, &format!("receive {how}"));
            let port = receiver.await_line("port ");
            let mut sender = place.command(myself());
            sender.env("ADVERB_TEST_TO", format!("127.0.0.1:{port}"));
            let mut sender = Talker::start(sender, "send");
            let from = sender.await_line("from ");
            sender.await_line("acquainted");
            sender.tell(if sender_leaves { "leave" } else { "stay" });
            sender.await_line("sent");
            receiver.tell("go on");
            let said = receiver.await_line("heir ");
            assert_eq!(said, format!("{COUNT} from {from}"), "{how}, {any}, {sender_leaves}");
        }
    }
}

/// The program of these tests' own children.
#[test]
#[ignore = "the child of another test"]
fn the_child() {
    let Ok(role) = std::env::var("ADVERB_TEST_ROLE") else { return };
    match role.split_once(' ') {
        None if role == "send" => send(),
        None => inherit(),
        Some((_, how)) => receive(how),
    }
}

fn line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// Answers until it is told otherwise, with a datagram that says so; then it hands its socket over.
fn receive(how: &str) {
    let at = std::env::var("ADVERB_TEST_BIND").expect("an address");
    let socket = UdpSocket::bind(at).expect("a port");
    println!("port {}", socket.local_addr().expect("an address").port());
    let mut buffer = [0; 100];
    // It polls, so that it is never asleep: what is sent to it is for the mailbox.
    socket.set_nonblocking(true).expect("a socket");
    loop {
        let Ok((got, from)) = socket.recv_from(&mut buffer) else { continue };
        let is_last = buffer.get(..got) == Some(b"last");
        socket.send_to(buffer.get(..got).expect("a datagram"), from).expect("an answer");
        if is_last {
            break;
        }
    }
    assert_eq!(line(), "go on");
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is this socket's, and the command has no pointer.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    let mut heir = Command::new(myself());
    heir.args(["the_child", "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    heir.env("ADVERB_TEST_ROLE", "heir").env("ADVERB_TEST_FD", fd.to_string());
    heir.env_remove("LD_PRELOAD");
    if how == "exec" {
        panic!("{}", heir.exec());
    }
    let status = heir.status().expect("an heir");
    assert!(status.success());
}

/// Becomes acquainted, and sends so many datagrams that are not read.
fn send() {
    let to: SocketAddr = std::env::var("ADVERB_TEST_TO").expect("an address").parse().expect("one");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    println!("from {}", socket.local_addr().expect("an address"));
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let mut buffer = [0; 100];
    for round in 0..200 {
        let word = if round == 199 { "last" } else { "more" };
        socket.send_to(word.as_bytes(), to).expect("a datagram");
        socket.recv_from(&mut buffer).expect("an answer");
    }
    println!("acquainted");
    let leaves = line() == "leave";
    for number in 0..COUNT {
        socket.send_to(&number.to_le_bytes(), to).expect("a datagram");
    }
    if leaves {
        drop(socket);
    }
    println!("sent");
    line();
}

/// Reads what is there, without the library.
fn inherit() {
    assert!(std::env::var_os("LD_PRELOAD").is_none());
    let fd = std::env::var("ADVERB_TEST_FD").expect("a number").parse().expect("a number");
    // SAFETY: the descriptor was left open for this program, and nothing else here has it.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    socket.set_nonblocking(true).expect("a socket");
    let (mut count, mut whence) = (0_u32, None);
    let mut buffer = [0; 100];
    while let Ok((got, from)) = socket.recv_from(&mut buffer) {
        assert_eq!(buffer.get(..got), Some(&count.to_le_bytes()[..]));
        assert!(whence.is_none_or(|known| known == from), "{whence:?} {from}");
        (count, whence) = (count + 1, Some(from));
    }
    println!("heir {count} from {}", whence.map_or("nowhere".to_owned(), |from| from.to_string()));
}
