//! This same program in another process: the other end of a test, or one of many nodes.
//!
//! It never outlives this one, however this one ends: its standard input is a pipe that nothing else
//! holds, and when that closes, it exits ([`end_with_parent`]).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::failure::{Doing, Failure};

/// This program as a child. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Child {
    /// The command that starts this program.
    pub(crate) fn command() -> Result<Command, Failure> {
        std::env::current_exe().doing("looking for this program's own file").map(Command::new)
    }

    /// Starts it; `what` it is, for the error.
    pub(crate) fn start(mut command: Command, what: &str) -> Result<Self, Failure> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.doing(format_args!("starting {what}"))?;
        let stdout = process.stdout.take().map(BufReader::new);
        Ok(Self { process, stdout })
    }

    /// Starts a server, and waits until it listens: its first line is its port.
    pub(crate) fn listen(command: Command) -> Result<(Self, u16), Failure> {
        let mut server = Self::start(command, "a server process")?;
        if let Ok(port) = server.line()?.trim().parse() {
            return Ok((server, port));
        }
        // Why is on standard error, which is also ours, unless it was killed.
        Err(match server.wait().is_ok_and(|status| status.code().is_some_and(|code| code != 0)) {
            true => Failure::Told,
            false => Failure::failed("the server process did not listen"),
        })
    }

    /// The next line that it prints; an empty one if it has ended.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout.read_line(&mut line).doing("waiting for a child process")?;
        }
        Ok(line)
    }

    /// What it prints, to be read elsewhere. Nothing if it was taken before.
    pub(crate) fn take_stdout(&mut self) -> Option<BufReader<ChildStdout>> {
        self.stdout.take()
    }

    /// Asks it to come to an end, if it listens: [`stop_with_parent`]. A child that has ended hears nothing.
    pub(crate) fn stop(&mut self) {
        if let Some(stdin) = &mut self.process.stdin {
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Waits until it has ended by itself. This closes the pipe that keeps it alive.
    pub(crate) fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Kills it. One that has ended by itself cannot be killed, which changes nothing.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait();
    }
}

/// Ends this process, a child, when its parent ends: the pipe on standard input closes then.
pub(crate) fn end_with_parent() -> Result<(), Failure> {
    stop_with_parent(&Arc::default())
}

/// The same, and sets `stop` when the parent asks for an end: [`Child::stop`].
pub(crate) fn stop_with_parent(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let stop = Arc::clone(stop);
    let wait = move || {
        while let Ok(1..) = std::io::stdin().read(&mut [0]) {
            stop.store(true, Ordering::Relaxed);
        }
        std::process::exit(1);
    };
    let thread = thread::Builder::new().name("parent-watch".to_owned()).spawn(wait);
    thread.map(drop).doing("starting a thread")
}
