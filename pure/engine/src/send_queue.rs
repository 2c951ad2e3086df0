//! The send queue: requests from posting until they are acknowledged, in order.
//!
//! Indices count from the queue's creation and never wrap in practice (2⁶⁴ requests), so that an
//! index names one request for ever; the slot behind it is reused.

use crate::work::Request;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The queue has no free slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendQueueFull;

impl core::fmt::Display for SendQueueFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the send queue is full: wait for completions, or create it with more slots")
    }
}

impl core::error::Error for SendQueueFull {}

/// A posted request and the packets it became.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    /// Sequence number (see `requester`) of the first packet; meaningful once started.
    pub(crate) start: u64,
    /// Sequence numbers that the request takes.
    pub(crate) packets: u32,
}

impl Entry {
    /// One past the last sequence number.
    pub(crate) fn end(&self) -> u64 {
        self.start.wrapping_add(u64::from(self.packets))
    }
}

/// A ring of entries: `head..tail` are outstanding.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[Option<Entry>]>,
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        let len = usize::try_from(capacity).unwrap_or(usize::MAX);
        let slots: Vec<Option<Entry>> = core::iter::repeat_n(None, len).collect();
        Self { slots: slots.into_boxed_slice(), head: 0, tail: 0 }
    }

    /// Index of the oldest outstanding request.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Index that the next request will have.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Requests outstanding.
    pub(crate) fn len(&self) -> u64 {
        self.tail - self.head
    }

    fn slot(&self, index: u64) -> Option<usize> {
        let len = u64::try_from(self.slots.len()).ok()?;
        usize::try_from(index.checked_rem(len)?).ok()
    }

    pub(crate) fn push(&mut self, entry: Entry) -> Result<u64, SendQueueFull> {
        let full = usize::try_from(self.len()).is_ok_and(|n| n >= self.slots.len());
        if full {
            return Err(SendQueueFull);
        }
        let index = self.tail;
        let slot = self.slot(index).and_then(|at| self.slots.get_mut(at)).ok_or(SendQueueFull)?;
        *slot = Some(entry);
        self.tail += 1;
        Ok(index)
    }

    /// The request with this index, if it is outstanding.
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        if index < self.head || index >= self.tail {
            return None;
        }
        self.slots.get(self.slot(index)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u64) -> Option<&mut Entry> {
        if index < self.head || index >= self.tail {
            return None;
        }
        let at = self.slot(index)?;
        self.slots.get_mut(at)?.as_mut()
    }

    /// Takes the oldest request off.
    pub(crate) fn pop(&mut self) -> Option<(u64, Entry)> {
        let index = self.head;
        let entry = *self.get(index)?;
        self.head += 1;
        Some((index, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SEND, request};

    fn entry(len: u32) -> Entry {
        Entry { request: request(SEND, len), start: 0, packets: 1 }
    }

    #[test]
    fn slots_are_used_again_and_indices_are_not() {
        let mut queue = SendQueue::with_capacity(3);
        for index in 0..10 {
            let len = u32::try_from(index).unwrap();
            assert_eq!(queue.push(entry(len)), Ok(index));
            if index >= 2 {
                assert_eq!(queue.push(entry(0)).err(), Some(SendQueueFull));
                let (oldest, entry) = queue.pop().unwrap();
                assert_eq!((oldest, u64::from(entry.request.len)), (index - 2, index - 2));
                assert!(queue.get(oldest).is_none(), "an index names one request for ever");
            }
        }
        assert_eq!((queue.head(), queue.tail(), queue.len()), (8, 10, 2));
    }

    #[test]
    fn a_queue_without_slots_is_always_full() {
        let mut queue = SendQueue::with_capacity(0);
        assert_eq!(queue.push(entry(0)), Err(SendQueueFull));
        assert!(queue.pop().is_none());
    }
}
