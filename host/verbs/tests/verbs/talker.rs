//! Another process that is told what to do: one line asks, one line answers.
//!
//! The process is this test program itself, started again to run one test that serves until its
//! input ends.

use crate::pair::FOREVER;
use adverb_sys::poll;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Marks answers among what the test program prints.
const MARK: &str = "@";
/// How long an answer may take, from the question to its last byte: what the other process waits for takes
/// [`FOREVER`] at most.
const ANSWER_MAX: Duration = FOREVER.saturating_mul(2);

/// The other process, seen from the one that tells it what to do. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Talker {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// What it has printed, as far as it is read and not yet taken.
    said: Vec<u8>,
}

impl Talker {
    /// Has `command` run the test `role`, which looks for `variable` in its environment.
    pub(crate) fn start(mut command: Command, role: &str, variable: &str) -> Self {
        command.args(["--exact", role, "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(variable, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        Self { child, stdin, stdout, said: Vec::new() }
    }

    /// Tells it to do something whose answer is taken later, or never.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    pub(crate) fn answer(&mut self) -> String {
        self.answer_within(ANSWER_MAX).expect("the other process answers")
    }

    /// The next answer, if it is complete in time, however much else the process prints.
    fn answer_within(&mut self, most: Duration) -> io::Result<String> {
        let until = Instant::now() + most;
        loop {
            let Some(line) = self.line() else {
                self.read_until(until)?;
                continue;
            };
            // The test program may have begun the line with something of its own.
            if let Some((_, answer)) = line.split_once(MARK) {
                return Ok(answer.trim().to_owned());
            }
        }
    }

    /// Takes a line that is complete.
    fn line(&mut self) -> Option<String> {
        let end = self.said.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.said.drain(..=end).collect();
        Some(String::from_utf8(line).expect("it prints text"))
    }

    fn read_until(&mut self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if poll::readable(&self.stdout, std::iter::empty(), Some(left))? {
            let mut bytes = [0; 4096];
            let len = self.stdout.read(&mut bytes)?;
            if len == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
            }
            self.said.extend(bytes.iter().take(len));
        }
        Ok(())
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as `-STOP`.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it is dead");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal, such as `-STOP`, to any process.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.expect("kill").success());
}

/// Answers, in the other process.
pub(crate) fn reply(answer: &str) {
    println!("{MARK}{answer}");
}

/// Goal: a process that does not answer fails its test, which would wait for ever otherwise. Method: one is silent,
/// one prints lines that are no answer, one a line that never ends, one ends; the time is for all reads together.
#[test]
fn answers_have_a_time_limit_in_total() {
    let within = |script: &str, most| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Talker::start(command, "", "ADVERB_TEST_TALKER").answer_within(most)
    };
    let silent = "read line";
    let trickle = "while sleep 0.01; do echo no answer; done";
    let endless = "while sleep 0.01; do printf x; done";
    for script in [silent, trickle, endless] {
        let ended = within(script, Duration::from_millis(200));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut, "{script}");
    }
    assert_eq!(within("exit", FOREVER).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let slow = "printf 'no answer\\nfirst @an'; sleep 0.05; echo swer";
    assert_eq!(within(slow, FOREVER).unwrap(), "answer");
}
