//! Errors as C has them, by what the device says.
//!
//! # Safety
//!
//! The only pointer is that to `errno`, which the C library gives.

#![expect(clippy::wildcard_enum_match_arm, reason = "all other mistakes are one number")]

use adverb_device::uncancelled;
use adverb_device::{
    BindError, ConnectError, GroupError, OpenError, PostError, RegionError, ResizeError, SrqError,
};
use libc::c_int;
use std::fmt::Display;
use std::io::{self, Write};

/// An error number of `<errno.h>`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Errno(pub(crate) c_int);

/// What a function answers.
pub(crate) type Answer<T> = Result<T, Errno>;

/// A wrong argument.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// Something that this device does not have.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// Something that is in use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);

/// An object of the process that this one was forked by.
pub(crate) const INHERITED: Errno = Errno(libc::ENODEV);

/// Sets the thread's `errno`.
pub(crate) fn set(Errno(number): Errno) {
    // SAFETY: the C library's own place for this thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; it is aligned and lives as long as the thread.
    unsafe { place.write(number) };
}

/// Tells the user; where there is no standard error, nothing.
fn say(error: &dyn Display) {
    uncancelled(|| {
        let _ = writeln!(io::stderr(), "adverb: {error}");
    });
}

/// Says why a call is refused, if `ADVERB_EXPLAIN` asks for it.
fn explain(error: &dyn Display) {
    if std::env::var_os("ADVERB_EXPLAIN").is_some_and(|value| !value.is_empty() && value != "0") {
        say(error);
    }
}

fn of_system(error: &io::Error, otherwise: c_int) -> Errno {
    Errno(adverb_device::errno(error).unwrap_or(match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AlreadyExists => libc::EEXIST,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::PermissionDenied => libc::EPERM,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => otherwise,
    }))
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        explain(&error);
        of_system(&error, libc::EIO)
    }
}

impl From<adverb_rdmacm::Error> for Errno {
    fn from(error: adverb_rdmacm::Error) -> Self {
        explain(&error);
        Self(error.errno())
    }
}

/// A device that is there and does not open is told to the user without being asked: its number alone (`EIO` for processes
/// of another version, `EADDRINUSE` for those of another user) explains nothing.
impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::System { error: ref cause, .. } => {
                say(&error);
                of_system(cause, libc::EIO)
            }
            _ => {
                explain(&error);
                Self(libc::ENODEV)
            }
        }
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Self {
        explain(&error);
        match error {
            ConnectError::Socket { error, .. }
            | ConnectError::System(error)
            | ConnectError::Refused { error, .. } => of_system(&error, libc::EIO),
            ConnectError::NoSharedMemory { .. } => Self(libc::EHOSTUNREACH),
            _ => INVALID,
        }
    }
}

impl From<GroupError> for Errno {
    fn from(error: GroupError) -> Self {
        explain(&error);
        match error {
            GroupError::System { error, .. } => of_system(&error, libc::EIO),
            GroupError::TooManyGroups { .. } | GroupError::TooManyMembers { .. } => {
                Self(libc::ENOMEM)
            }
            _ => INVALID,
        }
    }
}

impl From<RegionError> for Errno {
    fn from(error: RegionError) -> Self {
        explain(&error);
        match error {
            RegionError::Bound => BUSY,
            RegionError::TooMany => Self(libc::ENOMEM),
            _ => INVALID,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull { .. } => Self(libc::ENOMEM),
            _ => {
                explain(&error);
                INVALID
            }
        }
    }
}

impl From<BindError> for Errno {
    fn from(error: BindError) -> Self {
        explain(&error);
        INVALID
    }
}

impl From<ResizeError> for Errno {
    fn from(error: ResizeError) -> Self {
        explain(&error);
        INVALID
    }
}

impl From<SrqError> for Errno {
    fn from(error: SrqError) -> Self {
        explain(&error);
        INVALID
    }
}
