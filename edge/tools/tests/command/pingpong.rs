//! `adverb pingpong`: every byte is right, whatever the length.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use super::{adverb, command, stderr, stdout};

/// A server of connection tests.
struct Tester {
    child: Child,
    port: String,
    stdout: BufReader<ChildStdout>,
}

impl Tester {
    fn start() -> Self {
        let words = ["pingpong", "--server", "--bind", "127.0.0.1", "--port", "0"];
        let mut child = command(&words).stdout(Stdio::piped()).spawn().expect("a server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let (listening, _) = line.split_once(';').expect("what to do about it");
        let (_, port) = listening.rsplit_once(':').expect("an address with a port");
        Self { child, port: port.to_owned(), stdout }
    }
}

impl Drop for Tester {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn both_ends_on_one_machine() {
    for bytes in ["1", "4097", "1M"] {
        let output = adverb(&["pingpong", "-s", bytes, "-n", "20"]);
        assert_eq!(output.status.code(), Some(0), "{bytes}: {}", stderr(&output));
        let text = stdout(&output);
        for said in ["connected to 127.0.0.1", "hello from the server", "every byte right"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}

#[test]
fn one_server_answers_client_after_client() {
    let mut server = Tester::start();
    for mtu in ["256", "4096"] {
        let words = ["pingpong", "127.0.0.1", "-p", &server.port, "-n", "20", "-m", mtu];
        let output = adverb(&words);
        assert_eq!(output.status.code(), Some(0), "{mtu}: {}", stderr(&output));
        assert!(stdout(&output).contains(&format!("path MTU {mtu}")), "{}", stdout(&output));
        let mut line = String::new();
        server.stdout.read_line(&mut line).expect("a line");
        assert!(line.contains("20 rounds, every byte right"), "{line}");
    }
}

/// Goal: the class and the hops that are asked for are those of both ends' adapters.
#[test]
fn both_ends_have_the_traffic_class_that_is_asked_for() {
    let words = ["pingpong", "-n", "1", "--tclass", "0x68", "--hop-limit", "9"];
    let output = command(&words).env("ADVERB_LOG", "info").output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stderr(&output).matches("traffic_class=104 hop_limit=9").count();
    assert_eq!(told, 2, "{}", stderr(&output));
}

#[test]
fn a_server_that_is_not_there_is_a_failure() {
    let output = adverb(&["pingpong", "127.0.0.1", "-p", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("connecting to 127.0.0.1 port 1"), "{}", stderr(&output));
}
