//! Errors of opening a device and of connecting a queue pair.

use crate::link::gid::PREFIX;
use adverb_engine::{Gid, ModifyError};
use adverb_wire::Qpn;
use std::fmt;
use std::io;

/// Error of connecting a queue pair.
#[non_exhaustive]
pub enum ConnectError {
    /// An attribute has a value that does not exist here.
    Attribute {
        /// Which one, as the verbs spell it.
        what: &'static str,
        /// What was asked.
        asked: u32,
        /// What is allowed, at least and at most.
        allowed: (u32, u32),
    },
    /// No entry of the GID table has this index.
    NoSuchGid {
        /// What was asked.
        index: u8,
    },
    /// The peer's address is of another kind than the local one.
    OtherFamily {
        /// The local address.
        local: Gid,
        /// The peer's.
        remote: Gid,
    },
    /// The RoCE port of the local address could not be opened.
    Socket {
        /// The local address.
        local: Gid,
        /// What the system said.
        error: io::Error,
    },
    /// Shared memory was asked for, and the peer is not a device of this host that uses it.
    NoSharedMemory {
        /// The peer's address.
        remote: Gid,
        /// Its queue pair.
        qp: Qpn,
    },
    /// A device that is not ours refused it.
    Refused {
        /// Its name.
        device: String,
        /// What was asked of it.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The state does not allow it.
    State(ModifyError),
    /// The system refused memory or descriptors for the way to a neighbour.
    System(io::Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute { what, asked, allowed: (least, most) } => {
                write!(f, "{what} = {asked}, but it must be from {least} to {most}")
            }
            Self::NoSuchGid { index } => {
                write!(f, "the port has no GID with index {index}: `adverb devices` lists them")
            }
            Self::OtherFamily { local, remote } => write!(
                f,
                "the local GID {local} and the remote GID {remote} are not both IPv4 or both IPv6: \
                 choose another gid_index"
            ),
            Self::Socket { local, error } if error.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "UDP port 4791 of {local} is taken: by the kernel's own RoCE driver (unload \
                 rdma_rxe, or use another network namespace) or by a program of another user"
            ),
            Self::Socket { local, error } => {
                write!(f, "cannot open UDP port 4791 of {local}: {error}")
            }
            Self::NoSharedMemory { remote, qp } => write!(
                f,
                "{} asks for shared memory, but queue pair {:#x} at {remote} is not of a device of \
                 this host and user that lends any",
                crate::link::path::VARIABLE,
                qp.get()
            ),
            Self::Refused { device, doing, error } => {
                write!(f, "{device} refused to {doing}: {error}")?;
                if error.kind() != io::ErrorKind::TimedOut {
                    return Ok(());
                }
                f.write_str(
                    " (the remote GID does not answer: is it routable from this gid_index?)",
                )
            }
            Self::State(error) => fmt::Display::fmt(error, f),
            Self::System(error) => write!(f, "cannot make a link to the peer's process: {error}"),
        }
    }
}

adverb_sys::caused! {
    ConnectError: error in
    Self::Refused { error, .. },
    Self::Socket { error, .. },
    Self::System(error),
    Self::State(error),
}

adverb_sys::wraps!(ConnectError: State(ModifyError));

/// Error of opening a device.
#[non_exhaustive]
pub enum OpenError {
    /// There is no such device.
    NotFound {
        /// What was asked.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The system refused something.
    System {
        /// What we were doing.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { name, known } if known.is_empty() => write!(
                f,
                "there is no device {name}, nor another: no network interface that is up has an address"
            ),
            Self::NotFound { name, known } => {
                write!(f, "there is no device {name}; there are: {}", known.join(", "))?;
                match known.iter().find(|known| known.strip_prefix(PREFIX) == Some(name)) {
                    Some(meant) => write!(f, "; the device of the interface {name} is {meant}"),
                    None => Ok(()),
                }
            }
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
        }
    }
}

adverb_sys::caused!(OpenError: error in Self::System { error, .. });

adverb_sys::debug_as_display!(ConnectError, OpenError);
