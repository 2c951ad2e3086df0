//! Asynchronous events: what happens without being asked for.

use crate::provider::{Events, Port};
use adverb_device::AsyncEvent;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The asynchronous events of a context, oldest first.
///
/// A handle: clones are the same events, each of which is taken once.
#[derive(Clone)]
pub struct AsyncEvents {
    queue: Events,
    /// Keeps the device open while a listener exists.
    _port: Port,
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

impl AsyncEvents {
    pub(crate) fn new(queue: Events, port: Port) -> Self {
        Self { queue, _port: port }
    }

    /// Waits for an event. Dropping the event acknowledges it. IBTA Vol. 1 §11.6.3.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn get(&self) -> io::Result<AsyncEvent> {
        loop {
            if let Some(event) = self.queue.get(None)? {
                return Ok(event);
            }
        }
    }

    /// Waits for an event, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn get_timeout(&self, timeout: Duration) -> io::Result<Option<AsyncEvent>> {
        self.queue.get(Some(timeout))
    }

    /// Takes an event if there is one. Does not wait.
    pub fn try_get(&self) -> Option<AsyncEvent> {
        self.queue.try_get()
    }

    /// Events that were lost because too many waited to be taken.
    pub fn lost(&self) -> u64 {
        self.queue.lost()
    }
}

impl AsFd for AsyncEvents {
    /// A descriptor that can be read while there are events: for `epoll` and its like. Never read
    /// it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.watch()
    }
}
