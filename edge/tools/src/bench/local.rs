//! A server for runs on one machine: this same program in a second process.

use super::rdma::DeviceChoice;
use crate::child::Child;
use crate::failure::Failure;
use crate::here;

/// A server on this machine that belongs to this process.
#[derive(Debug)]
pub(crate) struct LocalServer {
    _child: Child,
    /// Where it listens on [`here::address`].
    pub(crate) port: u16,
}

impl LocalServer {
    /// Starts this same program as a server, and waits until it listens. `path`: which way between
    /// neighbours it agrees to, if that is not to be what the environment says.
    pub(crate) fn start(choice: &DeviceChoice, path: Option<&str>) -> Result<Self, Failure> {
        let here = here::address().to_string();
        let words = ["--server", "--child", "--bind", &here, "--port", "0"];
        Self::start_as(&words, choice, path)
    }

    /// The same for a program that is told what to be by `words`, and prints its port.
    pub(crate) fn start_as(
        words: &[&str],
        choice: &DeviceChoice,
        path: Option<&str>,
    ) -> Result<Self, Failure> {
        let mut command = Child::command()?;
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
        let (child, port) = Child::listen(command)?;
        Ok(Self { _child: child, port })
    }
}
