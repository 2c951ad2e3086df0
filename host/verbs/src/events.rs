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
///
/// ```
/// use adverb_verbs::{EventKind, SrqConfig, Work};
/// # use adverb_verbs::{Context, QpConfig};
/// # let context = Context::open("soft_lo")?;
/// # let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
/// # let a = pd.create_qp(&QpConfig::new(&cq))?;
/// # let b = pd.create_qp(&QpConfig::new(&cq))?;
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// let events = context.async_events()?;
/// let srq = pd.create_srq(&SrqConfig::new(4))?;
/// let c = pd.create_qp(&QpConfig::new(&cq).srq(&srq))?;
/// # let d = pd.create_qp(&QpConfig::new(&cq))?;
/// # c.connect(d.address()?)?;
/// # d.connect(c.address()?)?;
/// srq.post(Work::recv(pd.buffer(8)?))?;
/// srq.arm_limit(1)?; // Tell when there is less.
/// d.post(Work::send(pd.buffer(8)?))?;
/// let event = events.get()?;
/// assert_eq!(event.kind, EventKind::SrqLimitReached);
/// event.acknowledge();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
