//! Completion queues: filled by the device, drained by `poll`.

use crate::objects::channel::CompChannel;
use crate::objects::completion::{Alert, CqShared, Timestamps};
use crate::objects::events::{Affiliation, Element, EventQueue};
use crate::objects::notice::Notice;
use crate::objects::notify::{Arm, Queue};
use crate::registry::counters::Counters;
use adverb_wire::Qpn;
use std::fmt;
use std::sync::Arc;

/// Parameters of a completion queue.
#[derive(Clone, Debug, Default)]
pub struct CqConfig {
    /// Completions it holds, 1 to [`CompletionQueue::CAPACITY_MAX`].
    pub capacity: u32,
    /// Comes back with its events.
    pub context: u64,
    /// Where it says that it has something, if it was armed.
    pub channel: Option<CompChannel>,
    /// Where it says that it has overrun.
    pub events: Option<Arc<EventQueue>>,
    /// The clock.
    pub timestamps: Timestamps,
}

/// Error of resizing a completion queue. The caller's mistake; nothing has changed.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum ResizeError {
    /// The completions in the queue do not fit.
    InUse {
        /// What was asked.
        asked: u32,
        /// Completions in the queue.
        used: usize,
    },
    /// The size is outside its bounds.
    OutOfRange {
        /// What was asked.
        asked: u32,
        /// The most that is allowed.
        max: u32,
    },
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { asked, used } => {
                write!(f, "{used} completions are in the queue, and {asked} would not hold them")
            }
            Self::OutOfRange { asked, max } => {
                write!(f, "a completion queue holds 1 to {max} completions, not {asked}")
            }
        }
    }
}

impl std::error::Error for ResizeError {}

/// A completion queue, as its queue pairs see it. A handle: clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    /// Completions that a queue can be made for.
    pub const CAPACITY_MAX: u32 = 1 << 22;

    pub(crate) fn new(config: &CqConfig, counters: &Arc<Counters>) -> Self {
        let capacity = config.capacity.clamp(1, Self::CAPACITY_MAX);
        let capacity = usize::try_from(capacity).unwrap_or(1);
        let alert = config.channel.as_ref().map(|channel| {
            channel.shared.attach();
            let notice = Arc::new(Notice::new(config.context));
            Alert { channel: Arc::clone(&channel.shared), notice }
        });
        let element = Element::Cq { context: config.context };
        let shared = CqShared {
            queue: Queue::new(capacity),
            alert,
            affiliation: Affiliation::new(config.events.clone(), element),
            timestamps: config.timestamps,
            counters: Arc::clone(counters),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Completions that it can hold.
    pub fn capacity(&self) -> usize {
        self.shared.queue.capacity()
    }

    /// Changes how many completions it can hold; those that are there stay.
    ///
    /// # Errors
    ///
    /// [`ResizeError`].
    pub fn resize(&self, capacity: u32) -> Result<(), ResizeError> {
        let max = Self::CAPACITY_MAX;
        let asked = capacity;
        let size = usize::try_from(capacity).ok().filter(|_| (1..=max).contains(&capacity));
        let size = size.ok_or(ResizeError::OutOfRange { asked, max })?;
        self.shared.queue.resize(size).map_err(|used| ResizeError::InUse { asked, used })
    }

    /// Forgets completions of this queue pair, which has ended or been reset.
    pub fn forget(&self, qp: Qpn) {
        self.shared.queue.retain(|completion| completion.qp != qp);
    }

    /// What its channel calls it, if it has one.
    pub fn notice(&self) -> Option<&Notice> {
        Some(&*self.shared.alert.as_ref()?.notice)
    }

    /// Asynchronous events of this queue that were not acknowledged.
    pub fn unacknowledged_async(&self) -> u32 {
        self.shared.affiliation.unacknowledged()
    }

    /// Asks for an event when the next completion comes; false if the queue has no channel.
    #[inline]
    #[must_use]
    pub fn arm(&self, arm: Arm) -> bool {
        let Some(Alert { channel, .. }) = &self.shared.alert else {
            return false;
        };
        if self.shared.queue.arm(arm) {
            channel.armed();
        }
        true
    }
}

adverb_sys::debug_as_display!(ResizeError);
