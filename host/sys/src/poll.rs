//! Poll: waiting for a handful of descriptors once, without a set to keep.
//!
//! Nothing is registered between waits, so descriptors without a waiter cost their senders
//! nothing; for many descriptors an [`Epoll`](crate::epoll::Epoll) is cheaper.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until `first` or one of `more` can be read or has failed, or for `timeout` (`None`: for
/// ever); says whether one can. A signal ends the wait early.
///
/// Of more than [`FDS_MAX`] descriptors those at the end are not looked at.
///
/// # Errors
///
/// Those of `poll(2)` other than `EINTR`.
pub fn readable<'a>(
    first: &'a impl AsFd,
    more: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    // A wait too long for the kernel's type is one without an end.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut list: [PollFd<'a>; FDS_MAX] =
        std::array::from_fn(|_| PollFd::new(first, PollFlags::IN));
    let mut used = 1;
    for (place, fd) in list.iter_mut().skip(1).zip(more) {
        *place = PollFd::from_borrowed_fd(fd, PollFlags::IN);
        used += 1;
    }
    match poll(list.get_mut(..used).unwrap_or_default(), timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The most descriptors that one wait looks at.
pub const FDS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;

    #[test]
    fn a_wait_ends_when_any_descriptor_can_be_read_and_not_before() {
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let ready = |timeout| readable(&one, std::iter::once(two.as_fd()), timeout).unwrap();
        assert!(!ready(Some(Duration::ZERO)));
        two.signal().unwrap();
        assert!(ready(None));
        two.drain().unwrap();
        one.signal().unwrap();
        assert!(ready(None));
    }

    #[test]
    fn a_list_that_is_too_long_is_cut() {
        let doorbells: Vec<_> =
            std::iter::repeat_with(|| EventFd::new().unwrap()).take(20).collect();
        doorbells[19].signal().unwrap();
        let more = doorbells.iter().map(AsFd::as_fd);
        assert!(!readable(&doorbells[0], more, Some(Duration::ZERO)).unwrap());
    }
}
