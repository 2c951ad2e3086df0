//! A server for runs on one machine: this same program in a second process.
//!
//! It never outlives this one, however this one ends: its standard input is a pipe that nobody else
//! holds, and when that closes, it exits.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::rdma::DeviceChoice;
use crate::failure::{Doing, Failure};

/// A server on this machine that belongs to this process.
#[derive(Debug)]
pub(crate) struct LocalServer {
    child: Child,
    /// Where it listens on 127.0.0.1.
    pub(crate) port: u16,
}

impl LocalServer {
    /// Starts this same program as a server, and waits until it listens. `path`: which way between
    /// neighbours it agrees to, if that is not to be what the environment says.
    pub(crate) fn start(choice: &DeviceChoice, path: Option<&str>) -> Result<Self, Failure> {
        let words = ["--server", "--child", "--bind", "127.0.0.1", "--port", "0"];
        Self::start_as(&words, choice, path)
    }

    /// The same for a program that is told what to be by `words`, and prints its port.
    pub(crate) fn start_as(
        words: &[&str],
        choice: &DeviceChoice,
        path: Option<&str>,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe().doing("looking for this program's own file")?;
        let mut command = Command::new(program);
        command.arg("bench").args(words);
        if let Some(path) = path {
            command.env("ADVERB_PATH", path);
        }
        if let Some(device) = &choice.device {
            command.args(["--device", device]);
        }
        if let Some(index) = choice.gid_index {
            command.args(["--gid-index", &index.to_string()]);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = Self { child: child.doing("starting a server process")?, port: 0 };
        let mut line = String::new();
        if let Some(stdout) = server.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).doing("waiting for the server process")?;
        }
        match line.trim().parse() {
            Ok(port) => {
                server.port = port;
                Ok(server)
            }
            // It has said why on standard error, which is also ours.
            Err(_) => Err(Failure::failed("the server process ended before it listened")),
        }
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // It ends by itself when the control connection closes; a run that failed may not have
        // opened one. Killing a process that has ended is an error that changes nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
