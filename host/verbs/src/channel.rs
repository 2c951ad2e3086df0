//! Completion channels: where a program sleeps until one of its completion queues has something.

use crate::cq::{Cq, Inner};
use crate::provider::{self, Port, Wake};
use adverb_device::Notice;
use adverb_device::locks::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A completion channel, for any number of completion queues. `struct ibv_comp_channel`.
///
/// A handle: clones are the same channel.
///
/// The way to sleep without missing anything: arm, poll until the queue is empty, and only then wait
/// for the event; after it, arm again before polling.
///
/// ```
/// use adverb_verbs::{Context, CqConfig, QpConfig, Work, WorkCompletion};
///
/// let context = Context::open("soft_lo")?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq_with(&CqConfig::new(16).channel(&channel))?;
/// let pd = context.alloc_pd();
/// let (a, b) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
/// a.connect(b.address()?)?;
/// b.connect(a.address()?)?;
///
/// cq.req_notify(false)?;
/// b.post(Work::recv(pd.buffer(8)?))?;
/// a.post(Work::send(pd.buffer(8)?))?;
/// let mut completions = [WorkCompletion::EMPTY; 4];
/// let mut seen = 0;
/// while seen < 2 {
///     let event = channel.get_event()?;
///     event.cq().req_notify(false)?;
///     seen += event.cq().poll(&mut completions)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
pub struct CompChannel {
    inner: provider::CompChannel,
    port: Port,
    queues: Arc<Mutex<HashMap<u64, Weak<Inner>>>>,
}

impl fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompChannel").finish_non_exhaustive()
    }
}

impl CompChannel {
    pub(crate) fn create(port: &Port) -> io::Result<Self> {
        let (inner, port) = (port.create_comp_channel()?, port.clone());
        Ok(Self { inner, port, queues: Arc::default() })
    }

    pub(crate) fn belongs_to(&self, port: &Port) -> bool {
        self.port.is_same(port)
    }

    pub(crate) fn device(&self) -> &provider::CompChannel {
        &self.inner
    }

    pub(crate) fn remember(&self, id: u64, queue: &Arc<Inner>) {
        self.queues.lock().insert(id, Arc::downgrade(queue));
    }

    pub(crate) fn forget(&self, id: u64) {
        self.queues.lock().remove(&id);
    }

    /// The event that a wake-up stands for, unless its queue has gone.
    fn event(&self, wake: Wake) -> Option<CqEvent> {
        let cq = self.queues.lock().get(&wake.id).and_then(Cq::upgrade)?;
        Some(CqEvent { cq, notice: wake.notice })
    }

    /// Waits for an event, and drives the device meanwhile. IBTA Vol. 1 §11.5.1.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self) -> io::Result<CqEvent> {
        loop {
            let wake = self.inner.get(None)?;
            if let Some(event) = wake.and_then(|wake| self.event(wake)) {
                return Ok(event);
            }
        }
    }

    /// Waits for an event, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn get_event_timeout(&self, timeout: Duration) -> io::Result<Option<CqEvent>> {
        let start = Instant::now();
        loop {
            // An event of a queue that is gone takes its time, and gives no more.
            let left = timeout.saturating_sub(start.elapsed());
            let Some(wake) = self.inner.get(Some(left))? else {
                return Ok(None);
            };
            if let Some(event) = self.event(wake) {
                return Ok(Some(event));
            }
        }
    }

    /// The descriptor of [`AsFd`], or why there is none.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn poll_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.watch()
    }

    /// A descriptor that can be read exactly while there are events, so that a program can sleep on
    /// it and then call [`CompChannel::get_event`] without waiting. A helper thread drives the device
    /// for threads that sleep so, and keeps a processor awake for that; the descriptor of [`AsFd`] needs
    /// none. Never read it.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.watch_events()
    }

    /// Takes an event if there is one. Does not wait.
    pub fn try_get_event(&self) -> Option<CqEvent> {
        loop {
            let wake = self.inner.try_get()?;
            if let Some(event) = self.event(wake) {
                return Some(event);
            }
        }
    }
}

impl AsFd for CompChannel {
    /// A descriptor that can be read while there are events, and also when a packet has come that
    /// may bring one: for `epoll` and its like. After each wake-up take events with
    /// [`CompChannel::try_get_event`] until there are none, which also serves the device, on the
    /// thread that has woken; [`CompChannel::get_event`] would wait if the packet brought none. Never
    /// read the descriptor.
    ///
    /// Where no descriptors are left, that of [`CompChannel::event_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll_fd().unwrap_or_else(|_| self.event_fd())
    }
}

/// A completion queue had something for its owner since it was armed.
///
/// Dropping it acknowledges it.
///
/// [`CompChannel`] has an example.
#[derive(Debug)]
pub struct CqEvent {
    cq: Cq,
    notice: Option<Arc<Notice>>,
}

impl CqEvent {
    /// The queue.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The number that the queue's maker gave it.
    pub fn context(&self) -> u64 {
        self.cq.context()
    }

    /// The queue, without an acknowledgement: many events can be acknowledged at once with
    /// [`Cq::ack_events`].
    pub fn keep(mut self) -> Cq {
        self.notice = None;
        self.cq.clone()
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if let Some(notice) = &self.notice {
            notice.acknowledge(1);
        }
    }
}
