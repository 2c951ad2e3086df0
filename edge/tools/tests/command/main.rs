//! The `adverb` command as a user types it: the real program, over the loopback interface.
//!
//! Nothing here asserts how long something takes or how fast it is: the machine may be busy. Every
//! wait has a limit that only a hang reaches.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod bench;
mod borders;
mod daemon;
mod devices;
mod devinfo;
mod doctor;
mod hosts;
mod interfaces;
mod mesh;
mod pingpong;
mod run;
mod schema;
mod server;
mod sockets;
mod stat;
mod usage;

/// Runs the command to its end.
fn adverb(words: &[&str]) -> Output {
    let piped = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finish(piped.expect("the command starts"))
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Waits for the end of a command whose output goes to pipes.
fn finish(mut child: Child) -> Output {
    let stdout = child.stdout.take().map(gather);
    let stderr = child.stderr.take().map(gather);
    let status = wait(&mut child);
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.map(|reader| reader.join().expect("the reader ends")).unwrap_or_default()
    };
    Output { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Reads until the other end closes.
fn gather(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

/// Waits for the end of a process; a process that hangs is killed, which is a status like any other.
fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        if Instant::now() >= deadline {
            child.kill().expect("a child of ours");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
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
    port: String,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(subcommand: &str, address: &str) -> Self {
        let words = [subcommand, "--server", "--bind", address, "--port", "0"];
        Self::start_by(command(&words))
    }

    fn start_by(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let (listening, _) = line.split_once(';').expect("what to do about it");
        let (_, port) = listening.rsplit_once(':').expect("an address with a port");
        Self { child, port: port.to_owned(), stdout }
    }

    /// Waits for what it says about its next client that went well.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longer than anything takes that does not hang, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
