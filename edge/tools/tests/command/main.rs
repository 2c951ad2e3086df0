//! The `adverb` command as a user types it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn adverb(words: &[&str]) -> Output {
    command(words).output().expect("the command runs")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(words).stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server in a process of its own, on a free port.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let words = ["bench", "--server", "--bind", "127.0.0.1", "--port", "0"];
        let mut child = command(&words).stdout(Stdio::piped()).spawn().expect("a server starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let (_, rest) = line.split_once("127.0.0.1:").expect("an address");
        let port = rest.split(';').next().and_then(|port| port.parse().ok()).expect("a port");
        Self { child, port }
    }

    /// Says something to the server, and returns what it answers until it hangs up.
    fn say(&self, words: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.write_all(words.as_bytes()).expect("it reads");
        let mut answer = String::new();
        // A reset is an end too: the server may leave bytes of ours unread.
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_version_is_printed() {
    let output = adverb(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("adverb "), "{output:?}");
}

#[test]
fn help_names_every_subcommand_and_none_of_the_hidden_options() {
    let help = stdout(&adverb(&["--help"]));
    for word in ["bench", "devices", "pingpong"] {
        assert!(help.contains(word), "{help}");
    }
    assert!(!stdout(&adverb(&["bench", "--help"])).contains("--child"));
}

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_allowed() {
    for (words, hint) in [
        (&[][..], "bench"),
        (&["bnech"], "bench"),
        (&["bench", "--no-such-flag"], "--help"),
        (&["bench", "-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["bench", "-s", "0"], "1 to 1024M"),
        (&["bench", "-n", "x"], "invalid value 'x'"),
        (&["bench", "-n", "5", "-D", "1"], "cannot be used with"),
        (&["bench", "--op", "atomic"], "send, write, read"),
        (&["bench", "-l", "200"], "1 to 128"),
        (&["bench", "-t", "8", "-Q", "9"], "1 to 8"),
        (&["bench", "--bind", "127.0.0.1"], "--server"),
        (&["bench", "--server", "--bind", "nowhere"], "invalid value 'nowhere'"),
        (&["bench", "-p", "65536"], "0..=65535"),
        (&["pingpong", "-s", "-1"], "--help"),
        (&["devices", "soft_lo"], "--help"),
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_server_that_is_not_there_is_a_failure_with_a_hint() {
    // Port 1 of the loopback address: nobody listens there.
    let output = adverb(&["bench", "127.0.0.1", "-p", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("adverb bench --server"), "{}", stderr(&output));
}

#[test]
fn a_file_that_cannot_be_written_is_noticed_before_anything_is_measured() {
    let output = adverb(&["bench", "-o", "/no/such/directory/file.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("creating /no/such/directory/file.json"), "{output:?}");
}

#[test]
fn strangers_are_refused_and_the_server_goes_on() {
    let server = Server::start();
    for words in [
        "GET / HTTP/1.1\r\n\r\n",
        "{\"hello\":{\"protocol\":\"something-else\",\"pin\":false}}\n",
        "\"stop\"\n",
        "{\"hello\":{\"protocol\":\"adverb-bench-1\",\"pin\":false}}\n{\"run\":{\"pattern\":\"absorb\",\"bytes\":1}}\n",
        "{\"hello\":{\"protocol\":\"adverb-bench-1\",\"pin\":false}}\n{\"floor\":{\"udp_stream\":{\"packet_bytes\":0}}}\n",
        "\u{0}\u{1}\u{2}\n",
    ] {
        let answer = server.say(words);
        assert!(answer.contains("refused"), "{words:?}: {answer:?}");
    }
    // Still there, and polite to whoever speaks its language.
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
    let hello = "{\"hello\":{\"protocol\":\"adverb-bench-1\",\"pin\":false}}\n";
    stream.write_all(hello.as_bytes()).expect("it reads");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("it answers");
    assert!(answer.starts_with("{\"hello\""), "{answer}");
}

/// The floors are plain sockets: a client can be written down in a few lines.
#[test]
fn a_server_answers_datagrams_between_ready_and_stop() {
    let server = Server::start();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    let mut order = |line: &str| {
        stream.write_all(line.as_bytes()).expect("it reads");
        answers.next().expect("an answer").expect("a line")
    };
    order("{\"hello\":{\"protocol\":\"adverb-bench-1\",\"pin\":true}}\n");
    let ready = order("{\"floor\":{\"udp_pingpong\":{\"bytes\":5,\"reply_bytes\":9}}}\n");
    let port = ready.trim_start_matches("{\"ready\":{\"port\":").trim_end_matches("}}");
    let port: u16 = port.parse().expect(&ready);

    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
    for _ in 0..3 {
        socket.send_to(b"hello", ("127.0.0.1", port)).expect("it leaves");
        let mut buffer = [0; 64];
        assert_eq!(socket.recv(&mut buffer).expect("an answer"), 9);
    }
    assert!(order("\"stop\"\n").starts_with("{\"done\""));
}
