//! Another process that is told what to do: one line asks, one line answers.
//!
//! The process is this test program itself, started again to run one test that serves until its
//! input ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Marks answers among what the test program prints.
const MARK: &str = "@";

/// The other process, seen from the one that tells it what to do. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Talker {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Talker {
    /// Has `command` run the test `role`, which looks for `variable` in its environment.
    pub(crate) fn start(mut command: Command, role: &str, variable: &str) -> Self {
        command.args(["--exact", role, "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(variable, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout }
    }

    /// Tells it to do something whose answer is taken later, or never.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let len = self.stdout.read_line(&mut line).expect("it answers");
            assert!(len > 0, "the other process has ended");
            // The test program may have begun the line with something of its own.
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim().to_owned();
            }
        }
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
