//! Programs beside a test, which do what lines tell them and say what has come of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that is killed when the test is over, and its log removed.
pub(crate) struct Running {
    pub(crate) child: Child,
    said: BufReader<ChildStdout>,
    pub(crate) log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

impl Running {
    /// Starts one that says when it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut running = Self::begin(command);
        running.await_line("ready");
        running
    }

    /// Starts one that may not.
    pub(crate) fn begin(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, said, log: PathBuf::new() }
    }

    /// Waits for a line with this in it, and returns that from there on.
    pub(crate) fn await_line(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            let got = self.said.read_line(&mut line).expect("a line");
            assert!(got > 0, "it ended before it said {what}: {}", self.explained());
            if let Some(found) = line.find(what).and_then(|at| line.get(at..)) {
                return found.trim_end().to_owned();
            }
        }
    }

    /// Tells it something, and returns what it answers.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.await_line("said ")
    }

    pub(crate) fn tell(&mut self, what: &str) {
        let to = self.child.stdin.as_mut().expect("a pipe");
        writeln!(to, "{what}").expect("a line");
    }

    /// What the library says has become of its sockets.
    pub(crate) fn explained(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.explained().contains("frames of the interface, past the kernel")
    }

    /// Sends it a signal, by name. One that stops it has done so.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args([format!("-{name}"), self.child.id().to_string()]);
        assert!(kill.status().expect("a program").success(), "{kill:?}");
        soon(name, || name != "STOP" || self.is_stopped());
    }

    /// Whether all its threads are.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process");
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    }

    /// How often its own thread has slept so far, and not the library's.
    pub(crate) fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("a process");
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        number.expect("a number")
    }
}

/// Waits until it is so.
pub(crate) fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A counter of `protocol` that the kernel of this namespace has, of both families; snmp(8) has its names.
pub(crate) fn by_kernel(protocol: &str, name: &str) -> u64 {
    let table = |name| fs::read_to_string(format!("/proc/self/net/{name}")).expect("a table");
    let (both, new) = (table("snmp"), table("snmp6"));
    let first = format!("{protocol}:");
    let mut lines = both.lines().filter_map(|line| line.strip_prefix(&first));
    let [names, values] = [(); 2].map(|()| lines.next().expect("a line").split(' '));
    let value = names.zip(values).find_map(|(one, value)| (one == name).then_some(value));
    // That of TCP is of both.
    let name = format!("{protocol}6{name}");
    let of_new = new.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0");
    let number = |text: &str| text.trim().parse::<u64>().expect("a number");
    number(value.expect("a column")) + number(of_new)
}
