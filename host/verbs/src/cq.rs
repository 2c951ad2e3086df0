//! Completion queues, and the table of memory that outstanding work owns.

use crate::error::{PollError, WorkError};
use crate::memory::Memory;
use adverb_device::{Port, WcStatus};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A work completion. `struct ibv_wc`; IBTA Vol. 1 §11.4.2.1.
#[doc(alias = "ibv_wc")]
pub type WorkCompletion = adverb_device::Completion;

/// Memory of outstanding work, by number.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    slots: Vec<Option<Memory>>,
    free: Vec<u32>,
}

impl Owned {
    /// Makes room, so that posting never has to.
    fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
        // Whatever is free or taken fits, so that giving back never has to either.
        self.free.reserve(self.slots.capacity().saturating_sub(self.free.len()));
    }

    fn put(&mut self, memory: Memory) -> u32 {
        let free = self.free.pop();
        let slot = free.and_then(|number| usize::try_from(number).ok());
        if let (Some(number), Some(slot)) = (free, slot.and_then(|at| self.slots.get_mut(at))) {
            *slot = Some(memory);
            return number;
        }
        self.slots.push(Some(memory));
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    fn take(&mut self, number: u32) -> Option<Memory> {
        let memory = self.slots.get_mut(usize::try_from(number).ok()?)?.take()?;
        self.free.push(number);
        Some(memory)
    }
}

/// A completion queue. `struct ibv_cq`; IBTA Vol. 1 §11.2.8.
///
/// A handle: clones are the same queue.
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct Cq {
    inner: adverb_device::Cq,
    port: Arc<Port>,
    owned: Arc<Mutex<Owned>>,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn new(inner: adverb_device::Cq, port: Arc<Port>) -> Self {
        Self { inner, port, owned: Arc::default() }
    }

    pub(crate) fn device(&self) -> &adverb_device::Cq {
        &self.inner
    }

    pub(crate) fn belongs_to(&self, port: &Arc<Port>) -> bool {
        Arc::ptr_eq(&self.port, port)
    }

    pub(crate) fn reserve(&self, more: u32) {
        self.lock().reserve(usize::try_from(more).unwrap_or(0));
    }

    pub(crate) fn put(&self, memory: Memory) -> u32 {
        self.lock().put(memory)
    }

    pub(crate) fn take_back(&self, number: u32) -> Option<Memory> {
        self.lock().take(number)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completions that it can hold.
    pub fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    /// Takes completions, oldest first, as many as there are and `out` has room for; says how many.
    /// Drives the device if there are none.
    ///
    /// A completion of [`crate::Qp::post`] says in `buffer` what [`Cq::take`] gives back.
    ///
    /// # Errors
    ///
    /// [`PollError`] once the queue has overrun and all completions from before are taken.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.inner.poll(out).map_err(PollError)
    }

    /// Gives back the memory of work that has completed.
    pub fn take(&self, completion: &WorkCompletion) -> Option<Memory> {
        self.take_back(completion.buffer?)
    }

    /// Takes one completion and the memory that comes back with it.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn next(&self) -> Result<Option<Completion>, PollError> {
        let mut one = [WorkCompletion::EMPTY];
        if self.poll(&mut one)? == 0 {
            return Ok(None);
        }
        let [wc] = one;
        let memory = self.take(&wc);
        Ok(Some(Completion { wc, memory }))
    }

    /// Polls until there is a completion: the fastest way to wait, and the dearest.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub fn wait(&self) -> Result<Completion, PollError> {
        loop {
            if let Some(completion) = self.next()? {
                return Ok(completion);
            }
            std::hint::spin_loop();
        }
    }

    /// Takes the completions that there are, one after the other.
    pub fn completions(&mut self) -> Completions<'_> {
        Completions { cq: self }
    }
}

/// A completion with the memory that comes back.
#[derive(Debug)]
pub struct Completion {
    /// How the work ended.
    pub wc: WorkCompletion,
    /// What it owned.
    pub memory: Option<Memory>,
}

impl Completion {
    /// The completion, if the work succeeded.
    ///
    /// # Errors
    ///
    /// [`WorkError`] if it did not; the memory is dropped then.
    pub fn ok(self) -> Result<Self, WorkError> {
        if self.wc.status == WcStatus::Success { Ok(self) } else { Err(WorkError(self.wc)) }
    }
}

/// Completions of a queue, until it is empty.
#[derive(Debug)]
pub struct Completions<'a> {
    cq: &'a Cq,
}

impl Iterator for Completions<'_> {
    type Item = Result<Completion, PollError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cq.next().transpose()
    }
}
