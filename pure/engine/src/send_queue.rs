//! The send queue: requests from posting until they are acknowledged, in order.
//!
//! Indices count from the queue's creation and never wrap in practice (2⁶⁴ requests), so that an
//! index names one request for ever; the slot behind it is reused.

use crate::cutting::Cutting;
use crate::host::{Host, SendDone};
use crate::status::WcStatus;
use crate::work::{Request, RequestError};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// [`Entry::start`] of a request that has not begun.
pub(crate) const NOT_STARTED: u64 = u64::MAX;

/// A posted request and the packets it became.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    /// Sequence number (see `requester`) of the first packet; meaningful once started.
    pub(crate) start: u64,
    /// The packets; meaningful once started.
    pub(crate) cutting: Cutting,
    /// Its bytes go by reference, and the peer fetches them: one packet, however many there are.
    pub(crate) by_reference: bool,
}

impl Entry {
    /// A request that has not begun.
    pub(crate) fn new(request: Request) -> Self {
        Self { request, start: NOT_STARTED, cutting: Cutting::NONE, by_reference: false }
    }

    /// Some of it was emitted, or it was carried out.
    pub(crate) fn has_begun(&self) -> bool {
        self.start != NOT_STARTED
    }

    /// One past the last sequence number.
    pub(crate) fn end(&self) -> u64 {
        self.start.wrapping_add(u64::from(self.cutting.packets))
    }
}

/// A ring of entries: `head..tail` are outstanding.
#[derive(Clone, Debug)]
pub(crate) struct SendQueue {
    /// A power of two of them, so that finding one takes no division; as many as `capacity` are used.
    slots: Box<[Option<Entry>]>,
    capacity: u64,
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        let len = usize::try_from(capacity).unwrap_or(usize::MAX).next_power_of_two();
        let slots: Vec<Option<Entry>> = core::iter::repeat_n(None, len).collect();
        Self { slots: slots.into_boxed_slice(), capacity: capacity.into(), head: 0, tail: 0 }
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

    #[inline]
    fn slot(&self, index: u64) -> usize {
        usize::try_from(index).unwrap_or(0) & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> Result<u64, RequestError> {
        if self.is_full() {
            return Err(RequestError::Full);
        }
        let index = self.tail;
        let at = self.slot(index);
        *self.slots.get_mut(at).ok_or(RequestError::Full)? = Some(entry);
        self.tail += 1;
        Ok(index)
    }

    /// The request with this index, if it is outstanding.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        if index < self.head || index >= self.tail {
            return None;
        }
        self.slots.get(self.slot(index))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u64) -> Option<&mut Entry> {
        if index < self.head || index >= self.tail {
            return None;
        }
        let at = self.slot(index);
        self.slots.get_mut(at)?.as_mut()
    }

    /// The request that the packet with this sequence number belongs to, and its index.
    pub(crate) fn find(&self, sequence: u64) -> Option<(u64, &Entry)> {
        let (mut low, mut high) = (self.head, self.tail);
        // Ends grow with indices; what has not begun comes last, and requests without packets end where they start.
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.get(middle)?;
            if entry.has_begun() && entry.end() <= sequence {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = self.get(low)?;
        (entry.has_begun() && entry.start <= sequence).then_some((low, entry))
    }

    /// Takes the oldest request off.
    pub(crate) fn pop(&mut self) -> Option<(u64, Entry)> {
        let index = self.head;
        let entry = *self.get(index)?;
        self.head += 1;
        Some((index, entry))
    }
}

impl SendQueue {
    /// All slots are taken.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Slots that are free.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.len())
    }

    /// Requests to post until half of the slots are taken.
    #[inline]
    pub(crate) fn room_to_half(&self) -> u64 {
        self.capacity.div_ceil(2).saturating_sub(self.len())
    }

    /// A request was carried out that was never queued, while the queue was empty.
    #[inline]
    pub(crate) fn pass(&mut self, request: &Request, host: &mut impl Host) {
        debug_assert_eq!(self.head, self.tail, "nothing is outstanding");
        let index = self.tail;
        (self.head, self.tail) = (index + 1, index + 1);
        host.send_done(SendDone {
            index,
            status: WcStatus::Success,
            opcode: request.kind.wc_opcode(),
            byte_len: request.len,
            report: request.signaled,
        });
    }

    /// Ends the oldest request.
    #[inline(always)]
    pub(crate) fn retire(&mut self, status: WcStatus, host: &mut impl Host) {
        let index = self.head;
        let Some(Entry { request, .. }) = self.get(index) else {
            return;
        };
        let flushed = status == WcStatus::WorkRequestFlushed;
        let done = SendDone {
            index,
            status,
            opcode: request.kind.wc_opcode(),
            byte_len: if flushed { 0 } else { request.len },
            report: request.signaled || status != WcStatus::Success,
        };
        self.head += 1;
        host.send_done(done);
    }

    /// No request is outstanding that has begun.
    pub(crate) fn is_drained(&self) -> bool {
        self.get(self.head).is_none_or(|entry| !entry.has_begun())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SEND, request};

    fn entry(len: u32) -> Entry {
        Entry { start: 0, ..Entry::new(request(SEND, len)) }
    }

    #[test]
    fn slots_are_used_again_and_indices_are_not() {
        let mut queue = SendQueue::with_capacity(3);
        for index in 0..10 {
            let len = u32::try_from(index).unwrap();
            assert_eq!(queue.push(entry(len)), Ok(index));
            if index >= 2 {
                assert_eq!(queue.push(entry(0)).err(), Some(RequestError::Full));
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
        assert_eq!(queue.push(entry(0)), Err(RequestError::Full));
        assert!(queue.pop().is_none());
    }
}
