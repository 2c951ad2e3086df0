//! Runtimes that wait for many sockets in ways of their own: asyncio, Node.js, tokio.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::child::Role;
use crate::running::{Running, are_installed, explain, explained, kill, ringed, succeed};
use crate::support::{Place, free_port};

/// A script beside this file.
pub(crate) fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

#[derive(Clone, Copy, Debug)]
enum Runtime {
    Asyncio,
    Node,
    Tokio,
}

impl Runtime {
    fn program(self, place: &Place, role: &str, port: u16) -> Command {
        let run = |program, file| {
            let mut command = place.command(program);
            command.arg(script(file)).args([role, &port.to_string()]);
            command
        };
        match self {
            Self::Asyncio => run("python3", "echo.py"),
            Self::Node => run("node", "echo.js"),
            Self::Tokio if role == "serve" => Role::ServeTokio.command(place, port),
            Self::Tokio => Role::CallTokio(20).command(place, port),
        }
    }
}

/// Goal: whichever runtime serves and whichever asks, each gets every byte and every end.
/// Method: each runtime serves each, on 20 connections at once, with half of each closed first; then
/// one without the library, on the same listening socket. A client begins with a question and its
/// answer: one that has sent everything before it is accepted needs no rings.
#[test]
fn runtimes_serve_each_other() {
    let mut runtimes = vec![Runtime::Tokio];
    if are_installed(&["python3"]) {
        runtimes.push(Runtime::Asyncio);
    }
    if are_installed(&["node"]) {
        runtimes.push(Runtime::Node);
    }
    let place = Place::new("runtimes");
    for server in &runtimes {
        let port = free_port();
        let mut serving = server.program(&place, "serve", port);
        let _server = Running::serve(explain(&place, &mut serving), port);
        for client in &runtimes {
            let before = ringed(&place);
            let said = succeed(&mut client.program(&place, "call", port));
            assert!(said.contains("right: 20"), "{client:?} of {server:?}: {said}");
            let lines = fs::read_to_string(explained(&place)).expect("a file");
            assert!(ringed(&place) > before, "{client:?} of {server:?} had no rings:\n{lines}");
        }
        let mut plain = Runtime::Tokio.program(&place, "call", port);
        let said = succeed(plain.env_remove("LD_PRELOAD"));
        assert!(said.contains("right: 20"), "a plain one of {server:?}: {said}");
    }
}

/// A server that goes into the background: it listens, and a child goes on.
const BACKGROUND: &str = r#"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
if os.fork():
    os._exit(0)
print(port, os.getpid(), flush=True)
nothing = os.open("/dev/null", os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)
while True:
    server, _ = listener.accept()
    while True:
        got = server.recv(100)
        if not got:
            break
        server.sendall(got)
"#;

/// Speaks to it, and is gone.
const SPEAKER: &str = r#"
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(20):
    client.sendall(b"%d" % number)
    assert client.recv(100) == b"%d" % number
"#;

/// Goal: a server that has gone into the background is found like any other, however many clients have
/// come and gone, and its numbers can be seen.
#[test]
fn a_program_in_the_background_stays_where_rings_meet() {
    if !are_installed(&["python3"]) {
        return;
    }
    let place = Place::new("background");
    let mut server = place.command("python3");
    let said = succeed(server.args(["-c", BACKGROUND]));
    let (port, process) = said.trim().split_once(' ').expect("a port and a process");
    let _server = Stranger(process.parse().expect("a number"));
    for turn in 0..3 {
        let log = place.0.join(format!("log-{turn}"));
        let mut client = place.command("python3");
        client.env("ADVERB_SOCKETS_EXPLAIN", "1").env("VMA_LOG_FILE", &log);
        succeed(client.args(["-c", SPEAKER, port]));
        let numbers = format!("stat.{process}.");
        let entries = fs::read_dir(place.rings()).expect("a directory").flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        assert!(names.any(|name| name.starts_with(&numbers)), "turn {turn}");
        let said = fs::read_to_string(log).expect("a log");
        assert!(said.contains("shared memory is offered"), "turn {turn}: {said}");
    }
}

/// A process that is not a child of the test, and ends with it.
struct Stranger(u32);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = kill("KILL", &self.0.to_string());
    }
}

/// Goal: a program that connects anew for each question does without rings, which cost it more than they
/// bring, unless it insists on them.
/// Method: what becomes of forty connections; those of the beginning teach it.
#[test]
fn who_connects_for_each_question_does_without_rings() {
    let place = Place::new("short");
    for (transport, few) in [("best", 1..40), ("shm", 40..41)] {
        let port = free_port();
        let _server = Running::serve(&mut Role::Serve.command(&place, port), port);
        let mut client = Role::CallShort(40).command(&place, port);
        client.env("ADVERB_SOCKETS_EXPLAIN", "1").env("ADVERB_SOCKETS_TRANSPORT", transport);
        let lines = succeed(&mut client);
        let offers = lines.matches("shared memory is offered").count();
        let shorts = lines.matches("too short for shared memory").count();
        assert!(few.contains(&offers) && offers + shorts == 40, "{transport}:\n{lines}");
    }
}
