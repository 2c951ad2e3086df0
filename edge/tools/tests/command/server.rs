//! Servers and the clients they do not expect: strangers, the dead, and those that come too late.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{Server, adverb, command, finish, stderr, until, wait};

impl Server {
    fn connect(&self) -> TcpStream {
        let port = self.port.parse::<u16>().expect("a port");
        TcpStream::connect(("127.0.0.1", port)).expect("it listens")
    }

    /// Whether a client is connected to it.
    fn has_client(&self) -> bool {
        let port = self.port.parse::<u16>().expect("a port");
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
        // "0: 0100007F:1F90 0100007F:C350 01 ...": local, remote, ESTABLISHED.
        let mut lines = sockets.lines().map(|line| line.split_whitespace().skip(1));
        lines.any(|mut fields| {
            let here = fields.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
            here && fields.nth(1) == Some("01")
        })
    }

    /// Says something to the server, and returns what it answers until it hangs up.
    fn say(&self, words: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(words.as_bytes()).expect("it reads");
        let mut answer = String::new();
        // A reset is an end too: the server may leave bytes of ours unread.
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

#[test]
fn a_server_that_is_not_there_is_a_failure_with_a_hint() {
    // Port 1 of the loopback address: nothing listens there.
    let output = adverb(&["bench", "127.0.0.1", "-p", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("adverb bench --server"), "{}", stderr(&output));
}

/// Goal: with `--connect-timeout` a client may come before its server.
/// Method: the port is taken by a listener that has gone before the server comes.
#[test]
fn a_client_that_may_wait_finds_a_server_that_comes_later() {
    let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let words = ["bench", "127.0.0.1", "-p", &port, "--connect-timeout", "60"];
    let words =
        [&words[..], &["-s", "8", "-n", "5", "--no-floor", "--no-pin", "--op", "send"]].concat();
    let client = command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let client = client.expect("a client");
    thread::sleep(Duration::from_millis(300));
    let words = ["bench", "--server", "--bind", "127.0.0.1", "-p", &port];
    let mut server = command(&words).stdout(Stdio::null()).spawn().expect("a server");
    let output = finish(client);
    server.kill().expect("it runs");
    wait(&mut server);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn strangers_are_refused_and_the_server_goes_on() {
    let server = Server::start("bench", "127.0.0.1");
    for words in [
        "GET / HTTP/1.1\r\n\r\n",
        "{\"hello\":{\"protocol\":\"something-else\",\"pin\":false}}\n",
        "\"stop\"\n",
        "{\"hello\":{\"protocol\":\"adverb-bench-3\",\"pin\":false}}\n{\"run\":{\"pattern\":\"absorb\",\"bytes\":1}}\n",
        "{\"hello\":{\"protocol\":\"adverb-bench-3\",\"pin\":false}}\n{\"floor\":{\"udp_stream\":{\"packet_bytes\":0}}}\n",
        "\u{0}\u{1}\u{2}\n",
    ] {
        let answer = server.say(words);
        assert!(answer.contains("refused"), "{words:?}: {answer:?}");
    }
    // Still there, and polite to a client that speaks its language.
    let mut stream = server.connect();
    stream.write_all(HELLO.as_bytes()).expect("it reads");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("it answers");
    assert!(answer.starts_with("{\"hello\""), "{answer}");
}

/// The floors are plain sockets: a client can be written down in a few lines.
#[test]
fn a_server_answers_datagrams_between_ready_and_stop() {
    let server = Server::start("bench", "127.0.0.1");
    let mut stream = server.connect();
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    let mut order = |line: &str| {
        stream.write_all(line.as_bytes()).expect("it reads");
        answers.next().expect("an answer").expect("a line")
    };
    order("{\"hello\":{\"protocol\":\"adverb-bench-3\",\"pin\":true}}\n");
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

#[test]
fn a_port_that_is_taken_is_a_failure_that_names_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    for subcommand in ["bench", "pingpong"] {
        let output = adverb(&[subcommand, "--server", "--bind", "127.0.0.1", "--port", &port]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(&port) && said.contains("--port"), "{said}");
    }
}

#[test]
fn an_address_that_is_not_ours_is_a_failure() {
    // Of a range that is for documentation only.
    let output = adverb(&["bench", "--server", "--bind", "203.0.113.1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("203.0.113.1"), "{}", stderr(&output));
}

#[test]
fn a_device_that_does_not_exist_is_refused_with_those_that_do() {
    for words in [
        &["bench", "-d", "soft_nowhere"][..],
        &["bench", "--server", "-d", "soft_nowhere"],
        &["bench", "--modes", "-d", "soft_nowhere"],
        &["bench", "--layers", "-d", "soft_nowhere"],
        &["pingpong", "-d", "soft_nowhere"],
        &["mesh", "--nodes", "127.0.0.1,127.0.0.1", "--rank", "0", "-d", "soft_nowhere"],
    ] {
        let output = adverb(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = stderr(&output);
        assert!(said.contains("soft_nowhere") && said.contains("soft_lo"), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "one error: {said}");
    }
    let output = adverb(&["bench", "-x", "200"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no GID at index 200"), "{}", stderr(&output));
}

/// How a client greets.
const HELLO: &str = "{\"hello\":{\"protocol\":\"adverb-bench-3\",\"pin\":false}}\n";
/// Endless for the purposes of a test, and quick to be under way.
const LONG: [&str; 9] =
    ["-D", "3600", "-s", "64K", "--test", "bandwidth", "--op", "write", "--no-floor"];

#[test]
fn a_client_whose_server_is_killed_ends_with_a_failure() {
    let mut server = Server::start("bench", "127.0.0.1");
    let client = command(&["bench", "127.0.0.1", "-p", &server.port])
        .args(LONG)
        .stderr(Stdio::piped())
        .spawn()
        .expect("a client starts");
    until("the client connects", || server.has_client());
    thread::sleep(Duration::from_millis(300)); // The test itself, most likely.
    server.child.kill().expect("it is there to be killed");
    let output = finish(client);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("other side"), "{}", stderr(&output));
}

/// Goal: a server on a busy machine may be away for some seconds, also if its address is not the client's.
#[test]
fn a_client_waits_for_a_server_that_has_no_processor() {
    let words = ["bench", "--server", "--bind", "127.0.0.2", "--port", "0", "--device", "soft_lo"];
    let mut start = command(&words);
    start.env("ADVERB_PATH", "udp");
    let server = Server::start_by(start);
    let client = command(&["bench", "127.0.0.2", "-p", &server.port, "-D", "1", "-s", "64"])
        .args(["--test", "latency", "--op", "write", "--rounds", "1", "--no-floor", "--no-pin"])
        .env("ADVERB_PATH", "udp")
        .stderr(Stdio::piped())
        .spawn()
        .expect("a client starts");
    until("the client connects", || server.has_client());
    thread::sleep(Duration::from_millis(500)); // The test itself, most likely.
    let pid = server.child.id().to_string();
    let signal = |name: &str| Command::new("kill").args([name, &pid]).status();
    assert!(signal("-STOP").expect("kill").success());
    thread::sleep(Duration::from_millis(2500));
    assert!(signal("-CONT").expect("kill").success());
    let output = finish(client);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Goal: what has failed is told as a failure, and only what went well as done; the next client is served.
#[test]
fn a_server_whose_client_is_killed_says_so_and_serves_the_next() {
    let mut start = command(&["bench", "--server", "--bind", "127.0.0.1", "--port", "0"]);
    start.stderr(Stdio::piped());
    let mut server = Server::start_by(start);
    let mut errors = BufReader::new(server.child.stderr.take().expect("a pipe"));
    let mut failure = || {
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        assert!(line.contains("the other side"), "{line}");
        line
    };
    // Between two tests, and in the midst of one.
    let greeted = server.connect();
    (&greeted).write_all(HELLO.as_bytes()).expect("it reads");
    BufReader::new(&greeted).read_line(&mut String::new()).expect("it answers");
    let address = greeted.local_addr().expect("an address").to_string();
    drop(greeted);
    assert!(failure().starts_with(&address), "{address}");
    let mut client = command(&["bench", "127.0.0.1", "-p", &server.port])
        .args(LONG)
        .spawn()
        .expect("a client starts");
    until("the client connects", || server.has_client());
    thread::sleep(Duration::from_millis(300));
    client.kill().expect("it is there to be killed");
    client.wait().expect("it is gone");
    let failure = failure();
    let output =
        adverb(&["bench", "127.0.0.1", "-p", &server.port, "-n", "10", "-s", "64", "--no-floor"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (said, killed) = (server.says(), failure.split(": ").next().expect("an address"));
    assert!(said.ends_with(" tests\n") && !said.starts_with(killed), "{said}");
}

/// Goal: the first process of a container, for which signals have no default, ends when it is told to.
#[test]
fn a_server_that_is_the_first_process_of_its_container_ends_when_told_to() {
    let words = ["pingpong", "--server", "--bind", "127.0.0.1", "--port", "0"];
    let mut unshare = Command::new("unshare");
    unshare.args(["-rpf", "--kill-child"]).arg(env!("CARGO_BIN_EXE_adverb")).args(words);
    let started = unshare.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let Ok(mut container) = started else { return eprintln!("skipped: no unshare(1)") };
    let mut line = String::new();
    let stdout = container.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    if !line.starts_with("listening") {
        wait(&mut container);
        return eprintln!("skipped: no process namespace");
    }
    let server = children(container.id()).pop().expect("a server").to_string();
    assert!(Command::new("kill").args(["-TERM", &server]).status().expect("kill").success());
    assert_eq!(wait(&mut container).code(), Some(128 + 15), "as from a program that SIGTERM ends");
}

/// The servers and nodes of a run on one machine must not outlive it, however it ends.
#[test]
fn a_run_that_is_killed_leaves_no_process_behind() {
    let bench = [&["bench"][..], &LONG].concat();
    for words in [
        &bench[..],
        &["bench", "--modes", "-D", "3600"],
        &["bench", "--layers", "-D", "3600"],
        &["pingpong", "-n", "1000000000"],
        &["mesh", "--local", "2", "-D", "3600"],
        &["allreduce", "--local", "2", "-n", "1000000000"],
    ] {
        let mut run = command(words).stdout(Stdio::null()).spawn().expect("it starts");
        let mut servants = Vec::new();
        until("another process is there", || {
            servants = children(run.id());
            !servants.is_empty()
        });
        run.kill().expect("it is there to be killed");
        wait(&mut run);
        until("no other process is there", || servants.iter().all(|servant| has_ended(*servant)));
    }
}

/// The processes that have `parent` as theirs.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("a Linux machine").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, theirs)| theirs == parent)).collect()
}

/// A process is gone, or waits for nothing but to be asked how it ended.
fn has_ended(pid: u32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == "Z" || state == "X")
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?; // The name before may contain anything.
    let mut fields = rest.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Goal: connections that say nothing keep a client from nothing, whether they have greeted or not, however many.
#[test]
fn a_server_serves_others_while_clients_are_silent() {
    let server = Server::start("bench", "127.0.0.1");
    let greeted = server.connect();
    (&greeted).write_all(HELLO.as_bytes()).expect("it reads");
    let mut answer = String::new();
    BufReader::new(&greeted).read_line(&mut answer).expect("it answers");
    let silent: Vec<_> = (0..300).map(|_| server.connect()).collect();
    let words = ["bench", "127.0.0.1", "-p", &server.port, "-n", "10", "-s", "64", "--no-floor"];
    let client = adverb(&words);
    assert_eq!(client.status.code(), Some(0), "{}", stderr(&client));
    // Those of the greeting's time limit have not been sent away when the client is served.
    let still_there = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        let looked = (&*stream).read(&mut [0; 1]);
        looked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(still_there(&greeted), "a silent client that has greeted was sent away");
    drop(silent);
}
