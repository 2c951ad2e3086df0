//! Epoll: waiting for many file descriptors at once.
//!
//! Level-triggered unless asked otherwise: a descriptor that is still readable is reported again, so
//! that a waiter which reads only part of what is there cannot lose the rest.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Events to wait for on one descriptor. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interest {
    /// Something to read.
    Readable,
    /// Something to read; reported once for each arrival, not while it lasts (`EPOLLET`).
    ReadableEdge,
    /// Room to write.
    Writable,
    /// Something to read, or room to write.
    Both,
}

impl Interest {
    const fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Readable => epoll::EventFlags::IN,
            Self::ReadableEdge => epoll::EventFlags::IN.union(epoll::EventFlags::ET),
            Self::Writable => epoll::EventFlags::OUT,
            Self::Both => epoll::EventFlags::IN.union(epoll::EventFlags::OUT),
        }
    }
}

/// One descriptor that has become ready.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Event {
    /// The number it was added with.
    pub token: u64,
    /// There is something to read, or the other end is gone and a read will say so.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The other end is gone, or the descriptor has failed.
    pub closed: bool,
}

impl Event {
    fn new(event: &epoll::Event) -> Self {
        let flags = event.flags; // Copied first: the kernel packs this structure.
        let closed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        Self {
            token: event.data.u64(),
            readable: closed || flags.contains(epoll::EventFlags::IN),
            writable: flags.contains(epoll::EventFlags::OUT),
            closed,
        }
    }
}

/// Room for the events of one wait, made once and used again.
#[derive(Debug)]
pub struct Events {
    list: Vec<Event>,
}

impl Events {
    /// Room for `capacity` events, 1 ..= [`EVENTS_MAX`]. More than that wait for the next call.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity.clamp(1, EVENTS_MAX)) }
    }

    /// The events that the last wait has reported.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.list.iter().copied()
    }
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    ///
    /// Those of `epoll_create1(2)`: no descriptors or no memory left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds `fd`, whose events will carry `token`.
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is in the set already, `EPERM` if it is of a kind that cannot be waited for;
    /// the set is as before.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Changes what is waited for on `fd`, and its token.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not in the set.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Takes `fd` out of the set. Closing every copy of a descriptor does the same.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits until something is ready, or for `timeout` (`None`: for ever), and returns how many
    /// events there are. A signal ends the wait early, with none.
    ///
    /// # Errors
    ///
    /// Those of `epoll_wait(2)` other than `EINTR`.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.list.clear();
        // A wait too long for the kernel's type is one without an end.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let room = room.get_mut(..events.list.capacity()).unwrap_or_default();
        match epoll::wait(&self.fd, room, timeout.as_ref()) {
            Ok((found, _)) => events.list.extend(found.iter().map(Event::new)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.list.len())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The most events that one wait reports.
pub const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;

    const NOW: Option<Duration> = Some(Duration::ZERO);
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

    fn set_of(doorbell: &EventFd, interest: Interest) -> (Epoll, Events) {
        let epoll = Epoll::new().unwrap();
        epoll.add(doorbell, u64::MAX, interest).unwrap();
        (epoll, Events::with_capacity(4))
    }

    #[test]
    fn a_silent_descriptor_is_not_reported_and_a_ringing_one_is_until_it_is_drained() {
        let doorbell = EventFd::new().unwrap();
        let (epoll, mut events) = set_of(&doorbell, Interest::Readable);
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        doorbell.signal().unwrap();
        for _ in 0..2 {
            assert_eq!(epoll.wait(&mut events, TIMEOUT).unwrap(), 1);
            let event = Event { token: u64::MAX, readable: true, writable: false, closed: false };
            assert!(events.iter().eq([event]));
        }
        doorbell.drain().unwrap();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        assert_eq!(events.iter().count(), 0);
    }

    #[test]
    fn an_edge_is_reported_once_for_each_ring() {
        let doorbell = EventFd::new().unwrap();
        let (epoll, mut events) = set_of(&doorbell, Interest::ReadableEdge);
        for _ in 0..2 {
            doorbell.signal().unwrap();
            assert_eq!(epoll.wait(&mut events, TIMEOUT).unwrap(), 1);
            assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        }
    }

    #[test]
    fn a_ring_wakes_a_waiter_on_another_thread() {
        let doorbell = EventFd::new().unwrap();
        let (epoll, mut events) = set_of(&doorbell, Interest::Readable);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || epoll.wait(&mut events, TIMEOUT).unwrap());
            doorbell.signal().unwrap();
            assert_eq!(waiter.join().unwrap(), 1);
        });
    }

    #[test]
    fn interest_and_token_can_change_and_a_descriptor_can_leave() {
        let doorbell = EventFd::new().unwrap();
        let (epoll, mut events) = set_of(&doorbell, Interest::Readable);
        epoll.modify(&doorbell, 3, Interest::Both).unwrap();
        assert_eq!(epoll.wait(&mut events, TIMEOUT).unwrap(), 1);
        let event = events.iter().next().unwrap();
        assert_eq!((event.token, event.readable, event.writable), (3, false, true));
        epoll.remove(&doorbell).unwrap();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        assert_eq!(epoll.remove(&doorbell).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_descriptor_is_in_the_set_only_once() {
        let doorbell = EventFd::new().unwrap();
        let (epoll, _) = set_of(&doorbell, Interest::Readable);
        let error = epoll.add(&doorbell, 1, Interest::Readable).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
