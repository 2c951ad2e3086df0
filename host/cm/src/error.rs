//! Why a call fails.

use std::fmt;
use std::io;

/// Why a call fails. Nothing has changed.
#[non_exhaustive]
pub enum Error {
    /// The port is bound already.
    AddressInUse,
    /// No device has the address, or it clashes with one that is bound, because one of the two is for all addresses.
    AddressNotAvailable,
    /// The identifier was destroyed.
    Gone,
    /// An argument makes no sense; which.
    Invalid(&'static str),
    /// There are as many connections, listeners or events as there may be.
    Full,
    /// The identifier is in a state that does not have this; which state it should be in.
    State(&'static str),
    /// The system refused something.
    System {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The private data are too long for their message.
    TooLong {
        /// How many bytes there may be.
        max: usize,
    },
    /// The port space or the transport does not have this.
    Unsupported,
}

impl Error {
    /// The error number that a call of librdmacm has for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::AddressInUse => EADDRINUSE,
            Self::AddressNotAvailable => EADDRNOTAVAIL,
            Self::Gone => ENOENT,
            Self::Full => ENOMEM,
            Self::Invalid(_) | Self::State(_) | Self::TooLong { .. } => EINVAL,
            Self::System { error, .. } => adverb_sys::process::errno(error).unwrap_or(EIO),
            Self::Unsupported => EOPNOTSUPP,
        }
    }

    pub(crate) const fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { doing, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressInUse => f.write_str("the port is bound already"),
            Self::AddressNotAvailable => f.write_str(
                "no device has the address, or the port is bound and one of the two is for all addresses",
            ),
            Self::Gone => f.write_str("the identifier was destroyed"),
            Self::Invalid(what) => write!(f, "{what} makes no sense"),
            Self::Full => f.write_str("there are as many connections or listeners as possible"),
            Self::State(wanted) => write!(f, "the identifier is not {wanted}"),
            Self::System { doing, error } => write!(f, "could not {doing}: {error}"),
            Self::TooLong { max } => write!(f, "there is room for {max} bytes of private data"),
            Self::Unsupported => f.write_str("the port space or the transport does not have this"),
        }
    }
}

adverb_sys::debug_as_display!(Error);

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { error, .. } => Some(error),
            Self::AddressInUse
            | Self::AddressNotAvailable
            | Self::Gone
            | Self::Invalid(_)
            | Self::Full
            | Self::State(_)
            | Self::TooLong { .. }
            | Self::Unsupported => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::AddressInUse => io::ErrorKind::AddrInUse,
            Error::AddressNotAvailable => io::ErrorKind::AddrNotAvailable,
            Error::Gone => io::ErrorKind::NotFound,
            Error::Full => io::ErrorKind::OutOfMemory,
            Error::Invalid(_) | Error::State(_) | Error::TooLong { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::System { error, .. } => error.kind(),
            Error::Unsupported => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

impl From<adverb_cm::Error> for Error {
    fn from(error: adverb_cm::Error) -> Self {
        match error {
            adverb_cm::Error::InUse => Self::AddressInUse,
            adverb_cm::Error::Full { .. } => Self::Full,
            adverb_cm::Error::NotFound => Self::State("connected: the peer has given up"),
            adverb_cm::Error::State => Self::State("in a state for this"),
        }
    }
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
