//! REJ and MRA: refusal, and a request for more time.
//!
//! ```text
//!     REJ                                         MRA
//!  0  local id                                 0  local id
//!  4  remote id                                4  remote id
//!  8  message (2), 0 (6),                      8  message (2), 0 (6),
//!     length of information (7), 0 (1),           service time-out (5), 0 (3)
//!     reason (16)                             10  private data
//! 12  information
//! 84  private data
//! ```
//!
//! Read IBTA Vol. 1 §12.6.6 (MRA) and §12.6.7 (REJ) before changing this file.

use super::fields::{Data, Parts};
use super::id::CommId;
use super::small::{Exponent, Small};
use crate::mad::{Mad, MadError};
use core::fmt;

/// Refuses a connection, or a step of making it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rej {
    /// The connection, as the sender names it; 0 if it has no name.
    pub local_id: CommId,
    /// The connection, as the receiver names it; 0 if the sender does not know.
    pub remote_id: CommId,
    /// What is refused.
    pub subject: Subject,
    /// How many bytes of `information` mean something.
    pub information_len: Small<7>,
    /// Why.
    pub reason: Reason,
    /// What would be acceptable, if the reason says so.
    pub information: [u8; 72],
    /// What the user adds.
    pub private: [u8; 148],
}

/// Asks for patience.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mra {
    /// The connection, as the sender names it.
    pub local_id: CommId,
    /// The connection, as the receiver names it.
    pub remote_id: CommId,
    /// What has been received and will take a while.
    pub subject: Subject,
    /// How long it may take, after the time-out that was agreed on.
    pub service_timeout: Exponent,
    /// What the user adds.
    pub private: [u8; 222],
}

/// The message that another message is about.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Subject {
    /// REQ.
    Req,
    /// REP.
    Rep,
    /// None in particular; of an MRA: LAP.
    Other,
}

/// Reason of a refusal: a number of 16 bits. IBTA Vol. 1 §12.6.7.2.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Reason(pub u16);

impl Rej {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Result<Self, MadError> {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let [subject, len] = parts.take();
        Ok(Self {
            local_id,
            remote_id,
            subject: Subject::new(subject)?,
            information_len: Small::of(len, 1),
            reason: Reason(parts.u16()),
            information: parts.take(),
            private: parts.take(),
        })
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .put([self.subject.code(), self.information_len.get() << 1])
            .put(self.reason.0.to_be_bytes())
            .put(self.information)
            .put(self.private)
            .done()
    }
}

impl Mra {
    pub(super) fn parse(data: &[u8; Mad::DATA_LEN]) -> Result<Self, MadError> {
        let mut parts = Parts::new(data);
        let (local_id, remote_id) = (CommId(parts.u32()), CommId(parts.u32()));
        let [subject, timeout] = parts.take();
        let (subject, service_timeout) = (Subject::new(subject)?, Small::of(timeout, 3));
        Ok(Self { local_id, remote_id, subject, service_timeout, private: parts.take() })
    }

    pub(super) fn emit(&self) -> [u8; Mad::DATA_LEN] {
        Data::new()
            .u32(self.local_id.0)
            .u32(self.remote_id.0)
            .put([self.subject.code(), self.service_timeout.get() << 3])
            .put(self.private)
            .done()
    }
}

impl Subject {
    /// The subject in the upper two bits of `byte`.
    const fn new(byte: u8) -> Result<Self, MadError> {
        match byte >> 6 {
            0 => Ok(Self::Req),
            1 => Ok(Self::Rep),
            2 => Ok(Self::Other),
            code => Err(MadError::Subject(code)),
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1 << 6,
            Self::Other => 2 << 6,
        }
    }
}

impl Reason {
    /// There is no queue pair to be had.
    pub const NO_QP: Self = Self(1);

    /// There are no resources to be had.
    pub const NO_RESOURCES: Self = Self(3);

    /// The sender has waited too long for an answer.
    pub const TIMEOUT: Self = Self(4);

    /// The request asks for something that is not supported.
    pub const UNSUPPORTED: Self = Self(5);

    /// The communication identifiers are of no connection.
    pub const INVALID_ID: Self = Self(6);

    /// Nothing has the service identifier.
    pub const INVALID_SERVICE_ID: Self = Self(8);

    /// The transport cannot be had there.
    pub const INVALID_TRANSPORT: Self = Self(9);

    /// The peer's queue pair is connected already, as far as the sender knows.
    pub const STALE_CONNECTION: Self = Self(10);

    /// The user of the service refuses; what it says is in the private data.
    pub const CONSUMER: Self = Self(28);

    /// What it means; `None` if the specification does not say.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "no queue pair available",
            2 => "no end-to-end context available",
            3 => "no resources available",
            4 => "time-out",
            5 => "unsupported request",
            6 => "invalid communication id",
            7 => "invalid communication instance",
            8 => "invalid service id",
            9 => "invalid transport service type",
            10 => "stale connection",
            11 => "RDC does not exist",
            12 => "primary remote port GID rejected",
            13 => "primary remote port LID rejected",
            14 => "invalid primary service level",
            15 => "invalid primary traffic class",
            16 => "invalid primary hop limit",
            17 => "invalid primary packet rate",
            18 => "alternate remote port GID rejected",
            19 => "alternate remote port LID rejected",
            20 => "invalid alternate service level",
            21 => "invalid alternate traffic class",
            22 => "invalid alternate hop limit",
            23 => "invalid alternate packet rate",
            24 => "port and CM redirection",
            25 => "port redirection",
            26 => "invalid path MTU",
            27 => "insufficient responder resources",
            28 => "consumer reject",
            29 => "RNR retry count rejected",
            30 => "duplicate local communication id",
            31 => "unsupported class version",
            32 => "invalid primary flow label",
            33 => "invalid alternate flow label",
            _ => return None,
        })
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} ({})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}
