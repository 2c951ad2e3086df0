//! Descriptors that programs wait on.
//!
//! # Safety
//!
//! System calls with descriptors that are open and places that live.

use crate::errno::Answer;
use libc::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor that can be read while another one can, and whose flags are the program's: the device's own never
/// waits.
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(crate) fn watching(other: BorrowedFd<'_>) -> Answer<Self> {
        // SAFETY: a system call without pointers.
        let new = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if new < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // SAFETY: a new descriptor, not shared yet.
        let new = unsafe { OwnedFd::from_raw_fd(new) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
        let (set, other) = (new.as_raw_fd(), other.as_raw_fd());
        // SAFETY: two descriptors that are open, and an event.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, other, &raw mut event) } {
            0 => Ok(Self(new)),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    pub(crate) fn number(&self) -> c_int {
        self.0.as_raw_fd()
    }

    /// Lets the program not wait from the start.
    pub(crate) fn set_non_blocking(&self) -> Answer<()> {
        // SAFETY: it sets the flags of a descriptor.
        match unsafe { libc::fcntl(self.number(), libc::F_SETFL, libc::O_NONBLOCK) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// The program does not want to wait.
    pub(crate) fn is_non_blocking(&self) -> bool {
        // SAFETY: it asks for the flags of a descriptor.
        let flags = unsafe { libc::fcntl(self.number(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK != 0
    }
}
