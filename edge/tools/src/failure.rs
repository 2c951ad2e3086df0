//! Why a subcommand did not succeed, and the exit code that says so.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::process::ExitCode;

/// Why a subcommand did not succeed. The text is for a person and says what to change.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something did not work: exit code 1.
    Failed(String),
    /// The program that was to take this process's place has not started: exit code 127 if there is none, else 126.
    NotStarted {
        /// What was tried, and why it failed.
        what: String,
        /// There is such a file.
        is_there: bool,
    },
    /// A child has failed, and has said why: exit code 1.
    Told,
    /// It worked, and a result is worse than a limit that the user set: exit code 3.
    LimitNotMet(String),
    /// This machine lacks what the test needs: exit code 77.
    Skipped(String),
    /// The command line asks for something that does not exist: exit code 2.
    Usage(String),
}

impl Failure {
    /// Something did not work.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }

    /// This program has not taken this process's place.
    pub(crate) fn not_started(program: &OsStr, error: &io::Error) -> Self {
        Self::NotStarted {
            what: format!("starting {}: {error}", program.display()),
            is_there: error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The command line asks for something that does not exist.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::Usage(what.into())
    }

    /// The same, with what was going on in front.
    pub(crate) fn during(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("{what}: {why}")),
            other @ (Self::NotStarted { .. }
            | Self::Told
            | Self::LimitNotMet(_)
            | Self::Skipped(_)
            | Self::Usage(_)) => other,
        }
    }

    /// It did work, but the reader of the output has gone.
    pub(crate) fn is_closed_output(&self) -> bool {
        match self {
            Self::Failed(what) => what.starts_with("printing") && what.ends_with(BROKEN_PIPE),
            Self::NotStarted { .. }
            | Self::Told
            | Self::LimitNotMet(_)
            | Self::Skipped(_)
            | Self::Usage(_) => false,
        }
    }

    /// `adverb doctor` looks at what this is about, and knows a cure.
    pub(crate) fn is_for_the_doctor(&self) -> bool {
        match self {
            Self::Failed(what) | Self::Skipped(what) => {
                DOCTORS.iter().any(|part| what.contains(part))
            }
            Self::NotStarted { .. } | Self::Told | Self::LimitNotMet(_) | Self::Usage(_) => false,
        }
    }

    /// What the process answers to its parent.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed(_) | Self::Told => 1,
            Self::Usage(_) => 2,
            Self::LimitNotMet(_) => 3,
            Self::Skipped(_) => 77,
            Self::NotStarted { is_there: true, .. } => 126,
            Self::NotStarted { is_there: false, .. } => 127,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(what) | Self::NotStarted { what, .. } => f.write_str(what),
            Self::Told => f.write_str("a process that was started has failed"),
            Self::LimitNotMet(what) => write!(f, "limit not met: {what}"),
            Self::Skipped(what) => write!(f, "skipped: {what}"),
            Self::Usage(what) => write!(f, "{what}\nFor more information, try '--help'."),
        }
    }
}

/// Adds to an error what we were doing when it happened.
pub(crate) trait Doing<T> {
    /// Turns an error into a [`Failure`] that begins with `what`, e.g. `"binding 127.0.0.1:1"`.
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Failed(format!("{what}: {error}")))
    }
}

/// What errors of the library say where the cause is one that `adverb doctor` looks for.
const DOCTORS: [&str; 7] = [
    "UDP port 4791",
    "transport retry counter exceeded",
    "no network interface that is up has an address",
    "Too many open files",
    "File too large",
    "/dev/shm",
    "librdmacm",
];
/// How the standard library prints `EPIPE`.
const BROKEN_PIPE: &str = "Broken pipe (os error 32)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_is_named_where_it_looks_for_the_cause_and_not_elsewhere() {
        let taken = "opening soft_lo: UDP port 4791 of 127.0.0.1 is taken";
        assert!(Failure::failed(taken).is_for_the_doctor());
        assert!(!Failure::failed("no server at 127.0.0.1:1").is_for_the_doctor());
        assert!(!Failure::usage("UDP port 4791").is_for_the_doctor());
    }
}
