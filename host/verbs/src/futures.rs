//! Futures: waiting for events in a tokio runtime.
//!
//! Both kinds of waiter take an event in the same call that returns it, so that a future which is
//! dropped while it waits has taken nothing.
//!
//! # Safety
//!
//! The runtime asks that a descriptor it was given stays the same and open while it has it. It is
//! given an [`OwnedFd`], by value, which no other code can close.

use crate::channel::{CompChannel, CqEvent};
use crate::cq::{Cq, WorkCompletion};
use crate::error::PollError;
use crate::events::AsyncEvents;
use adverb_device::AsyncEvent;
use adverb_rdmacm::{Event, EventQueue};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A completion channel that tasks wait on.
///
/// ```
/// use adverb_verbs::{AsyncCompChannel, CqConfig, Work, WorkCompletion};
/// # use adverb_verbs::{Context, QpConfig};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let context = Context::open("soft_lo")?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_with(&CqConfig::new(16).channel(&channel))?;
/// let channel = AsyncCompChannel::new(channel)?;
/// # let pd = context.alloc_pd();
/// # let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
/// # a.connect(b.address()?)?;
/// # b.connect(a.address()?)?;
/// b.post(Work::recv(pd.buffer(8)?))?;
/// a.post(Work::send(pd.buffer(8)?).unsignaled())?;
/// let mut completions = [WorkCompletion::EMPTY; 4];
/// assert_eq!(channel.poll(&cq, &mut completions).await?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncCompChannel {
    channel: CompChannel,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncCompChannel {
    /// Lets tasks of the current runtime wait on `channel`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(channel: CompChannel) -> io::Result<Self> {
        let fd = channel.poll_fd()?.try_clone_to_owned()?;
        Ok(Self { channel, fd: register(fd)? })
    }

    /// The channel.
    pub fn channel(&self) -> &CompChannel {
        &self.channel
    }

    /// Waits for an event, and drives the device when packets arrive. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The runtime is shutting down.
    pub async fn event(&self) -> io::Result<CqEvent> {
        loop {
            if let Some(event) = self.channel.try_get_event() {
                return Ok(event);
            }
            let mut ready = self.fd.readable().await?;
            if let Some(event) = self.channel.try_get_event() {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }

    /// Waits until `cq` has completions and takes them, as many as `out` has room for; says how
    /// many. Of several tasks that wait for queues of one channel, each may be woken for another's:
    /// give each queue that is waited for in this way a channel of its own. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`PollError`] as an [`io::Error`], if the queue has overrun; the runtime is shutting down;
    /// the queue has no channel.
    pub async fn poll(&self, cq: &Cq, out: &mut [WorkCompletion]) -> io::Result<usize> {
        let overrun = |error: PollError| io::Error::other(error);
        loop {
            cq.req_notify(false).map_err(io::Error::other)?;
            let taken = cq.poll(out).map_err(overrun)?;
            if taken > 0 || out.is_empty() {
                return Ok(taken);
            }
            drop(self.event().await?);
        }
    }
}

/// Asynchronous events that tasks wait for.
///
/// [`AsyncCompChannel`] shows how tasks wait.
#[derive(Debug)]
pub struct AsyncEventStream {
    events: AsyncEvents,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncEventStream {
    /// Lets tasks of the current runtime wait for `events`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(events: AsyncEvents) -> io::Result<Self> {
        let fd = events.as_fd().try_clone_to_owned()?;
        Ok(Self { events, fd: register(fd)? })
    }

    /// Waits for an event. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The runtime is shutting down.
    pub async fn next(&self) -> io::Result<AsyncEvent> {
        loop {
            if let Some(event) = self.events.try_get() {
                return Ok(event);
            }
            let mut ready = self.fd.readable().await?;
            if let Some(event) = self.events.try_get() {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}

/// Events of connection management that tasks wait for.
///
/// [`AsyncCompChannel`] shows how tasks wait.
#[derive(Debug)]
pub struct AsyncEventQueue {
    queue: EventQueue,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncEventQueue {
    /// Lets tasks of the current runtime wait for events of `queue`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(queue: EventQueue) -> io::Result<Self> {
        let fd = queue.as_fd().try_clone_to_owned()?;
        Ok(Self { queue, fd: register(fd)? })
    }

    /// The queue.
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Waits for an event. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The runtime is shutting down.
    pub async fn next(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.queue.try_next() {
                return Ok(event);
            }
            let mut ready = self.fd.readable().await?;
            if let Some(event) = self.queue.try_next() {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}

/// Gives a descriptor to the current runtime.
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the runtime owns the only handle of an open descriptor, and an `OwnedFd` names the same
    // one for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
