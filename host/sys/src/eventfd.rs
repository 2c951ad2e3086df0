//! Eventfd: a doorbell between threads or processes that an [`Epoll`](crate::epoll::Epoll) can wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A counter in the kernel: readable while it is not zero.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A doorbell that was not rung, not blocking, closed on exec.
    ///
    /// # Errors
    ///
    /// Those of `eventfd(2)`: no descriptors or no memory left; one that names the call if a filter of system calls
    /// forbids it.
    pub fn new() -> io::Result<Self> {
        let made =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        Ok(Self { fd: made.map_err(|error| crate::process::forbidden("eventfd2", error))? })
    }

    /// Rings. A waiter on the descriptor wakes up, now or at its next wait.
    ///
    /// # Errors
    ///
    /// None in practice: a counter that is full is as readable as it can be, and counts as rung.
    pub fn signal(&self) -> io::Result<()> {
        match rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Silences the doorbell and returns how often it has been rung since the last time: 0 if not.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn drain(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes over an event descriptor that another process has handed to this one.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<EventFd> for OwnedFd {
    fn from(doorbell: EventFd) -> Self {
        doorbell.fd
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_counts_its_rings_until_it_is_drained() {
        let doorbell = EventFd::new().unwrap();
        assert_eq!(doorbell.drain().unwrap(), 0);
        doorbell.signal().unwrap();
        doorbell.signal().unwrap();
        assert_eq!(doorbell.drain().unwrap(), 2);
        assert_eq!(doorbell.drain().unwrap(), 0);
    }

    #[test]
    fn a_doorbell_that_can_count_no_further_still_rings() {
        let doorbell = EventFd::new().unwrap();
        rustix::io::write(&doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        doorbell.signal().unwrap();
        assert_eq!(doorbell.drain().unwrap(), u64::MAX - 1);
    }
}
