//! Programs with the library in front of them: one alone, and pairs of server and client.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How two processes of a host may reach each other.
pub(crate) const PATHS: [&str; 2] = ["shm", "udp"];

/// How long one program may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The library, which Cargo has built beside this test.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a program has a path");
    let deps = exe.parent().expect("a directory");
    let places = [deps.join("libadverb_ibverbs.so"), deps.join("../libadverb_ibverbs.so")];
    places.into_iter().find(|path| path.exists()).expect("Cargo builds the library for this test")
}

/// A program is there; says so if it is not.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|place| place.join(program).is_file());
    if !found {
        println!("skipped: no {program}: it is not installed");
    }
    found
}

fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).env("LD_PRELOAD", library()).env("ADVERB_EXPLAIN", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a program prints that ends well.
pub(crate) fn alone(program: &str, more: &[&str], set: &[(&str, &str)]) -> String {
    let output = command(program).args(more).envs(set.iter().copied()).output().expect("it starts");
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server and a client.
pub(crate) struct Pair {
    line: String,
    path: &'static str,
}

impl Pair {
    pub(crate) fn new(program: &str, more: &[&str], path: &'static str) -> Self {
        Self { line: format!("{program} {}", more.join(" ")), path }
    }

    /// Runs both, and demands that both end well.
    pub(crate) fn run(&self) {
        let Self { line, path } = self;
        let port = port();
        let line = format!("{line} -p {port}");
        let start =
            |command: &mut Command| command.env("ADVERB_PATH", path).spawn().expect("it starts");
        let server = start(&mut command(&line));
        until_it_listens(port);
        let client = start(command(&line).arg("127.0.0.1"));
        let (client, server) = (ended(client), ended(server));
        let well = client.status.success() && server.status.success();
        assert!(well, "{line} ({path}):\nclient {}\nserver {}", text(&client), text(&server));
    }
}

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}{error}", output.status)
}

/// Waits for the end of a program, and kills one that takes too long.
fn ended(mut child: Child) -> Output {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if child.try_wait().expect("a child of ours").is_some() {
            return child.wait_with_output().expect("it has ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child of ours");
    child.wait_with_output().expect("it was killed")
}

/// A TCP port that nobody listens at.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 20_000 + u16::try_from(std::process::id() % 10_000).expect("it is small");
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 2_000;
        if !listens(port) {
            return port;
        }
    }
}

fn listens(port: u16) -> bool {
    let list = |file| std::fs::read_to_string(file).unwrap_or_default();
    let address = format!(":{port:04X} ");
    ["/proc/net/tcp", "/proc/net/tcp6"].map(list).iter().any(|list| list.contains(&address))
}

fn until_it_listens(port: u16) {
    let start = Instant::now();
    while !listens(port) && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
}
