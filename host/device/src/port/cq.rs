//! Completion queues that programs hold: a poll takes steps of the device.

use crate::objects::completion::{Completion, Overrun, PollBuffer};
use crate::objects::cq::CompletionQueue;
use crate::progress::Port;
use std::ops::Deref;
use std::sync::Arc;

/// A completion queue that can be polled. `struct ibv_cq`.
#[derive(Clone, Debug)]
pub struct Cq {
    pub(crate) port: Arc<Port>,
    queue: CompletionQueue,
}

impl Deref for Cq {
    type Target = CompletionQueue;

    fn deref(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl Cq {
    pub(crate) const fn new(port: Arc<Port>, queue: CompletionQueue) -> Self {
        Self { port, queue }
    }

    /// Takes completions, oldest first, and says how many; drives the device if there are none.
    ///
    /// # Errors
    ///
    /// [`Overrun`], for good, once all completions from before it are taken.
    #[inline(always)]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        let queue = &self.queue.shared.queue;
        let mut taken = queue.take(out);
        if taken == 0 {
            let mut poll_buffer = PollBuffer::new(&self.queue.shared, out);
            self.port.drive_for(&mut poll_buffer);
            taken = poll_buffer.taken();
            taken += queue.take(out.get_mut(taken..).unwrap_or_default());
        }
        if taken == 0 && queue.has_overrun() {
            return Err(Overrun);
        }
        Ok(taken)
    }

    /// Takes completions that are in the queue, oldest first, and says how many. The device is not driven.
    #[inline]
    pub fn take(&self, out: &mut [Completion]) -> usize {
        self.queue.shared.queue.take(out)
    }
}
