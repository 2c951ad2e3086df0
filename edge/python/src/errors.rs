//! Exceptions: the text of the library's errors, in classes that programs tell apart.
//!
//! The classes are those of `python/adverb/_errors.py`, because two of them have two bases.

use adverb::session::{
    AcceptError, AdapterError, BindError, BlockError, BufferError, ChannelError, ConnectError,
    ExchangeError, MessageError, NoSuchChannel,
};
use adverb::verbs::{
    AllocateError, ConnectError as QpConnectError, CreateError, OpenError, ParseRemoteError,
    PollError, RangeError, Rejected, WorkError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::fmt::Display;
use std::time::Duration;

/// What programs tell apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// The peer has gone.
    Gone,
    /// Neither of the others.
    Other,
    /// It took too long.
    Timeout,
}

/// An error of the library.
pub(crate) trait Fault: Display {
    /// Which class it becomes.
    fn kind(&self) -> Kind {
        Kind::Other
    }
}

/// An error of something that waits.
pub(crate) trait Patient: Fault {
    /// The error of a wait of this length.
    fn after(waited: Duration) -> Self;
}

/// The exception.
pub(crate) fn raise(fault: impl Fault) -> PyErr {
    exception(fault.kind(), fault.to_string())
}

/// An exception that no error of the library is behind.
pub(crate) fn other(text: String) -> PyErr {
    exception(Kind::Other, text)
}

fn exception(kind: Kind, text: String) -> PyErr {
    static GONE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static OTHER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static TIMEOUT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (cell, name) = match kind {
        Kind::Gone => (&GONE, "PeerGone"),
        Kind::Other => (&OTHER, "Error"),
        Kind::Timeout => (&TIMEOUT, "Timeout"),
    };
    Python::attach(|py| match cell.import(py, "adverb._errors", name) {
        Ok(class) => PyErr::from_type(class.clone(), text),
        Err(error) => error,
    })
}

macro_rules! plain {
    ($($error:ty),*) => { $(impl Fault for $error {})* };
}

plain!(
    AdapterError,
    AllocateError,
    BindError,
    BlockError,
    BufferError,
    ConnectError,
    CreateError,
    NoSuchChannel,
    OpenError,
    ParseRemoteError,
    PollError,
    QpConnectError,
    RangeError,
    Rejected,
    WorkError,
    std::io::Error
);

impl Fault for AcceptError {
    fn kind(&self) -> Kind {
        if matches!(self, Self::Timeout { .. }) { Kind::Timeout } else { Kind::Other }
    }
}

impl Patient for AcceptError {
    fn after(waited: Duration) -> Self {
        Self::Timeout { waited }
    }
}

impl Fault for ChannelError {
    fn kind(&self) -> Kind {
        match (matches!(self, Self::PeerGone(_)), matches!(self, Self::Timeout { .. })) {
            (true, _) => Kind::Gone,
            (false, true) => Kind::Timeout,
            (false, false) => Kind::Other,
        }
    }
}

impl Patient for ChannelError {
    fn after(waited: Duration) -> Self {
        Self::Timeout { waited }
    }
}

impl Fault for ExchangeError {
    fn kind(&self) -> Kind {
        match (matches!(self, Self::PeerGone(_)), matches!(self, Self::Timeout { .. })) {
            (true, _) => Kind::Gone,
            (false, true) => Kind::Timeout,
            (false, false) => Kind::Other,
        }
    }
}

impl Fault for MessageError {
    fn kind(&self) -> Kind {
        if let Self::Channel(error) = self {
            return error.kind();
        }
        if matches!(self, Self::Timeout { .. }) { Kind::Timeout } else { Kind::Other }
    }
}

impl Patient for MessageError {
    fn after(waited: Duration) -> Self {
        Self::Timeout { waited }
    }
}
