//! Programs that run beside a test, and how they end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::Place;

/// A program that runs until this is dropped, with all that it starts.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Starts a program that leads a process group.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).stdin(Stdio::null()).spawn().expect("a program"))
    }

    /// Starts a program, and waits until a process listens on `port`.
    pub(crate) fn serve(command: &mut Command, port: u16) -> Self {
        let running = Self::start(command.stdout(Stdio::null()));
        until("a process listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        running
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends the process a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.id());
    }

    /// The lines that it prints; its standard output has to be a pipe.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let stdout = self.0.stdout.take().expect("a pipe");
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    /// How it has ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a program")
    }

    /// Waits for it to end by itself.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        until("the program ends", || {
            ended = self.has_ended();
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once it has been waited for, its number may be another process's.
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        kill("KILL", &format!("-{}", self.0.id()));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has a program write down what becomes of its sockets, in a file that [`ringed`] reads.
pub(crate) fn explain<'a>(place: &Place, command: &'a mut Command) -> &'a mut Command {
    let file = File::options().append(true).create(true).open(explained(place)).expect("a file");
    command.env("ADVERB_SOCKETS_EXPLAIN", "1").stderr(file)
}

/// The file of [`explain`].
pub(crate) fn explained(place: &Place) -> PathBuf {
    place.0.join("explained")
}

/// How many connections have been accepted so far that have rings, and mailboxes been opened.
pub(crate) fn ringed(place: &Place) -> usize {
    let lines = fs::read(explained(place)).expect("a file");
    String::from_utf8_lossy(&lines).matches("shared memory with the peer").count()
}

/// Sends a process a signal.
pub(crate) fn signal(name: &str, process: u32) {
    assert!(kill(name, &process.to_string()), "{name} to {process}");
}

/// The shell's own `kill`: not every system has one as a program.
pub(crate) fn kill(name: &str, target: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("kill -{name} {target}")]).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// Waits until something is so; a minute is for ever.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < A_MINUTE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Longer than anything here takes, however busy the machine is.
pub(crate) const A_MINUTE: Duration = Duration::from_secs(60);

/// Runs a program to its end, which has to be a good one and come within two minutes, and returns what
/// it has printed, whatever it is.
pub(crate) fn output(command: &mut Command) -> Output {
    let command = command.process_group(0).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program");
    let group = format!("-{}", child.id());
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if is_done.recv_timeout(A_MINUTE * 2) == Err(mpsc::RecvTimeoutError::Timeout) {
            kill("KILL", &group);
        }
    });
    let output = child.wait_with_output().expect("a program");
    drop(done);
    let Output { status, stdout, stderr } = &output;
    let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    output
}

/// Runs a program like [`output`], and returns its text, and its complaints after it.
pub(crate) fn succeed(command: &mut Command) -> String {
    let Output { stdout, stderr, .. } = output(command);
    format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
}

/// Whether all of these programs are there; if not, says which is not.
pub(crate) fn are_installed(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let found = found.is_ok_and(|output| output.status.success());
        if !found {
            eprintln!("skipped: {program} is not installed");
        }
        found
    })
}
