//! Queues of events, as programs hold them.

use crate::event::Event;
use crate::id::{Id, Membership};
use crate::service;
use crate::waiting::Waiting;
use adverb_device::wait_readable;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where events of identifiers wait for the program. `struct rdma_event_channel`.
///
/// A handle: clones are the same queue. The descriptor ([`AsFd`]) can be read while events wait: poll
/// it, and leave reading it to the queue.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone)]
pub struct EventQueue(pub(crate) Arc<Waiting>);

impl EventQueue {
    /// An empty queue.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Waiting::new()?)))
    }

    /// Takes the oldest event, if there is one.
    pub fn try_next(&self) -> Option<Event> {
        let taken = service::take(&self.0)?;
        Some(Event {
            id: Id::of(taken.id),
            listener: taken.listener.map(Id::of),
            membership: taken.membership.map(Membership::of),
            kind: taken.kind,
            status: taken.status,
            param: taken.param,
        })
    }

    /// Waits for an event, at most for `timeout` (`None`: for ever). A signal does not end the wait.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<Option<Event>> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.try_next() {
                return Ok(Some(event));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            wait_readable(self.as_fd(), left)?;
        }
    }

    /// Whether both are the same queue.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("waiting", &self.0.len()).finish()
    }
}
