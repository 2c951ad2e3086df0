//! Posted work: what is asked for, and the rings that hold it until it is done.
//!
//! The send ring runs in step with the transport's own queue: request number *n* lives in slot
//! *n* mod capacity of both. All memory is taken when the ring is made.

use crate::link::peer_cache::{FanOut, NextHop};
use crate::link::shm::link::ShmLink;
use crate::memory::local::{BufferNumber, Local, Sge};
use crate::memory::window::Bind;
use crate::objects::ah::SendTo;
use adverb_engine::{Receive, RequestKind, Route};
use std::iter;
use std::sync::Arc;

pub use adverb_engine::RequestKind as SendKind;

/// Bytes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory, read (or, for READs and atomics, written) when the time comes.
    Gather(&'a [Sge]),
    /// Here: copied when posted, and free for reuse at once.
    Inline(&'a [u8]),
    /// There are none: [`RequestKind::BindWindow`], and nothing else, has this.
    Bind(&'a Bind),
}

/// A request for the send queue. `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWork<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Whom it is for.
    pub to: SendTo<'a>,
    /// What to do.
    pub kind: RequestKind,
    /// The local bytes.
    pub data: SendData<'a>,
    /// Report the completion even if all goes well.
    pub signaled: bool,
    /// Ask the peer for an event.
    pub solicited: bool,
    /// Wait for READs and atomics posted before.
    pub fence: bool,
    /// A number that the caller gave to the buffer; comes back with the completion.
    pub buffer: Option<BufferNumber>,
}

impl<'a> SendWork<'a> {
    /// A SEND of no bytes that is not signaled: to fill arrays with, and to build requests upon.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        to: SendTo::Peer,
        kind: RequestKind::Send { imm: None },
        data: SendData::Inline(&[]),
        signaled: false,
        solicited: false,
        fence: false,
        buffer: None,
    };

    /// The local bytes, if it has any.
    #[inline]
    pub(crate) fn local(&self) -> Local<'a> {
        match self.data {
            SendData::Gather(sges) => Local::Gather(sges),
            SendData::Inline(bytes) => Local::Inline(bytes),
            SendData::Bind(_) => Local::Inline(&[]),
        }
    }
}

/// A receive. `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_recv_wr")]
pub struct ReceiveWork<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The buffers, filled in order.
    pub sges: &'a [Sge],
    /// A number that the caller gave to the buffer; comes back with the completion.
    pub buffer: Option<BufferNumber>,
}

/// Record of a posted request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<BufferNumber>,
    sges: u32,
    inline: Option<u32>,
}

/// Rings of requests with their scatter/gather entries and inline bytes.
#[derive(Debug)]
pub(crate) struct SendRing {
    /// A power of two of them, so that finding one takes no division.
    posted: Box<[Posted]>,
    capacity: u64,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// How windows are to be bound; there once the first such request was posted.
    binds: Box<[Option<Bind>]>,
    sges_max: usize,
    inline_max: usize,
    /// Where datagrams go, a place for each request; none for other transports.
    next_hops: Box<[Option<NextHop>]>,
}

const NO_SGE: Sge = Sge { addr: 0, len: 0, lkey: 0 };

impl SendRing {
    pub(crate) fn new(capacity: u32, sges_max: u32, inline_max: u32) -> Self {
        let (sges_max, inline_max) = (size(sges_max), size(inline_max));
        let slots = size(capacity).next_power_of_two();
        Self {
            posted: iter::repeat_n(Posted::default(), slots).collect(),
            capacity: capacity.into(),
            sges: iter::repeat_n(NO_SGE, slots * sges_max).collect(),
            inline: iter::repeat_n(0, slots * inline_max).collect(),
            binds: Box::default(),
            sges_max,
            inline_max,
            next_hops: Box::default(),
        }
    }

    /// The ring of a queue pair whose requests each have a way of their own.
    #[must_use]
    pub(crate) fn with_legs(mut self) -> Self {
        self.next_hops = iter::repeat_with(|| None).take(self.posted.len()).collect();
        self
    }

    /// The way of request number `index` will be kept under this name.
    pub(crate) fn route(&self, index: u64) -> Route {
        Route(count(self.slot(index)))
    }

    /// The way that is kept under this name.
    #[inline]
    pub(crate) fn next_hop(&self, route: Route) -> Option<&NextHop> {
        self.next_hops.get(size(route.0))?.as_ref()
    }

    /// Nothing that was posted matters any more.
    pub(crate) fn clear(&mut self) {
        self.posted.fill(Posted::default());
        self.next_hops.fill_with(|| None);
    }

    pub(crate) fn sges_max(&self) -> usize {
        self.sges_max
    }

    pub(crate) fn inline_max(&self) -> usize {
        self.inline_max
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        usize::try_from(index).unwrap_or(0) & (self.posted.len() - 1)
    }

    /// Remembers request number `index`; the caller has checked the limits and that it is free.
    #[inline(always)]
    pub(crate) fn put(
        &mut self,
        index: u64,
        work: &SendWork<'_>,
        shm_link: Option<Arc<ShmLink>>,
        fan_out: Option<FanOut>,
    ) {
        let slot = self.slot(index);
        if let (SendTo::Datagram { ah, .. }, Some(place)) = (work.to, self.next_hops.get_mut(slot))
        {
            *place =
                Some(NextHop { address_vector: Arc::clone(&ah.address_vector), shm_link, fan_out });
        }
        let mut posted = Posted { wr_id: work.wr_id, buffer: work.buffer, sges: 0, inline: None };
        match work.data {
            SendData::Gather(list) => {
                let start = slot * self.sges_max;
                let room = self.sges.get_mut(start..start + list.len());
                debug_assert!(room.is_some(), "the caller checks the number of entries");
                if let Some(room) = room {
                    room.copy_from_slice(list);
                }
                posted.sges = count(list.len());
            }
            SendData::Inline(bytes) => {
                let start = slot * self.inline_max;
                let room = self.inline.get_mut(start..start + bytes.len());
                debug_assert!(room.is_some(), "the caller checks the number of bytes");
                if let Some(room) = room {
                    room.copy_from_slice(bytes);
                }
                posted.inline = Some(count(bytes.len()));
            }
            SendData::Bind(bind) => {
                if self.binds.is_empty() {
                    self.binds = iter::repeat_n(None, self.posted.len()).collect();
                }
                if let Some(place) = self.binds.get_mut(slot) {
                    *place = Some(*bind);
                }
                posted.inline = Some(0);
            }
        }
        if let Some(place) = self.posted.get_mut(slot) {
            *place = posted;
        }
    }

    /// The same for a request whose bytes are one piece, and which goes to the peer.
    #[inline(always)]
    pub(crate) fn put_one(&mut self, index: u64, work: &SendWork<'_>, sge: &Sge) {
        let slot = self.slot(index);
        if let Some(place) = self.sges.get_mut(slot * self.sges_max) {
            *place = *sge;
        }
        if let Some(place) = self.posted.get_mut(slot) {
            *place = Posted { wr_id: work.wr_id, buffer: work.buffer, sges: 1, inline: None };
        }
    }

    /// What was remembered of request number `index`.
    pub(crate) fn get(&self, index: u64) -> Posted {
        self.posted.get(self.slot(index)).copied().unwrap_or_default()
    }

    /// How request number `index`, which binds a window, is to bind it.
    pub(crate) fn bind(&self, index: u64) -> Option<Bind> {
        *self.binds.get(self.slot(index))?
    }

    /// The local bytes of request number `index`.
    #[inline]
    pub(crate) fn local(&self, index: u64) -> Local<'_> {
        let slot = self.slot(index);
        let Some(posted) = self.posted.get(slot) else {
            return Local::Inline(&[]);
        };
        match posted.inline {
            Some(len) => {
                let start = slot * self.inline_max;
                Local::Inline(self.inline.get(start..start + size(len)).unwrap_or(&[]))
            }
            None => {
                let start = slot * self.sges_max;
                Local::Gather(self.sges.get(start..start + size(posted.sges)).unwrap_or(&[]))
            }
        }
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<BufferNumber>,
    sges: u32,
    pub(crate) len: u32,
}

/// A ring of receives with their scatter entries.
///
/// `done <= taken <= tail`: those before `done` are free again; at most one is taken and not done.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    /// A power of two of them.
    waiting: Box<[Waiting]>,
    capacity: u64,
    sges: Box<[Sge]>,
    sges_max: usize,
    done: u64,
    taken: u64,
    tail: u64,
}

impl ReceiveRing {
    pub(crate) fn new(capacity: u32, sges_max: u32) -> Self {
        let (slots, sges_max) = (size(capacity).next_power_of_two(), size(sges_max));
        Self {
            waiting: iter::repeat_n(Waiting::default(), slots).collect(),
            capacity: capacity.into(),
            sges: iter::repeat_n(NO_SGE, slots * sges_max).collect(),
            sges_max,
            done: 0,
            taken: 0,
            tail: 0,
        }
    }

    pub(crate) fn sges_max(&self) -> usize {
        self.sges_max
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Receives that can be posted now.
    pub(crate) fn room(&self) -> u64 {
        self.capacity().saturating_sub(self.tail - self.done)
    }

    #[inline]
    fn slot(&self, index: u64) -> usize {
        usize::try_from(index).unwrap_or(0) & (self.waiting.len() - 1)
    }

    /// Queues a receive of `len` bytes; the caller has checked the limits and the room.
    #[inline]
    pub(crate) fn push(&mut self, work: &ReceiveWork<'_>, len: u32) {
        let slot = self.slot(self.tail);
        let start = slot * self.sges_max;
        if let Some(room) = self.sges.get_mut(start..start + work.sges.len()) {
            room.copy_from_slice(work.sges);
        }
        let (wr_id, buffer) = (work.wr_id, work.buffer);
        if let Some(place) = self.waiting.get_mut(slot) {
            *place = Waiting { wr_id, buffer, sges: count(work.sges.len()), len };
        }
        self.tail += 1;
    }

    /// Queues a receive before all others; the caller has checked that there is room and that none
    /// is taken and not done.
    pub(crate) fn push_front(&mut self, work: &ReceiveWork<'_>, len: u32) {
        let tail = self.tail;
        // Counters never go below zero: they all move up by one round instead.
        let round = u64::try_from(self.waiting.len()).unwrap_or(0);
        (self.done, self.taken) = (self.done + round - 1, self.taken + round - 1);
        self.tail = self.taken;
        self.push(work, len);
        self.tail = tail + round;
    }

    /// Receives that wait.
    pub(crate) fn len(&self) -> u64 {
        self.tail - self.taken
    }

    /// The oldest receive and its scatter entries.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<(Waiting, &[Sge])> {
        if self.taken == self.tail {
            return None;
        }
        let slot = self.slot(self.taken);
        let (waiting, start) = (*self.waiting.get(slot)?, slot * self.sges_max);
        Some((waiting, self.sges.get(start..start + size(waiting.sges))?))
    }

    /// The oldest receive is done without having been taken; nor is any other.
    #[inline]
    pub(crate) fn skip(&mut self) {
        debug_assert!(self.done == self.taken && self.taken < self.tail, "it is the next");
        self.done += 1;
        self.taken += 1;
    }

    /// Takes the oldest receive.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Receive> {
        if self.taken == self.tail {
            return None;
        }
        let slot = self.slot(self.taken);
        let len = self.waiting.get(slot)?.len;
        self.taken += 1;
        Some(Receive { token: count(slot), len })
    }

    /// The receive that was taken last is the oldest again.
    pub(crate) fn put_back(&mut self) {
        debug_assert!(self.done < self.taken, "one is taken");
        self.taken -= 1;
    }

    /// The scatter entries of a receive that was taken.
    #[inline]
    pub(crate) fn sges(&self, token: u32) -> &[Sge] {
        let slot = size(token);
        let used = self.waiting.get(slot).map_or(0, |waiting| size(waiting.sges));
        let start = slot * self.sges_max;
        self.sges.get(start..start + used).unwrap_or(&[])
    }

    /// The oldest taken receive is done: its slot is free.
    #[inline]
    pub(crate) fn finish(&mut self, token: u32) -> (u64, Option<BufferNumber>) {
        self.done += 1;
        let waiting = self.waiting.get(size(token)).copied().unwrap_or_default();
        (waiting.wr_id, waiting.buffer)
    }
}

impl ReceiveRing {
    /// Forgets all receives, and says which buffers they had. None is taken and not done.
    pub(crate) fn clear(&mut self, mut forgotten: impl FnMut(u32)) {
        debug_assert_eq!(self.done, self.taken, "what was taken was put back");
        while let Some(receive) = self.take() {
            if let (_, Some(buffer)) = self.finish(receive.token) {
                forgotten(buffer.get());
            }
        }
    }
}

fn size(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_slot_is_free_only_when_its_message_is_done() {
        let mut ring = ReceiveRing::new(2, 1);
        let sge = [Sge { addr: 16, len: 8, lkey: 1 }];
        let work = |wr_id| ReceiveWork { wr_id, sges: &sge, buffer: None };
        ring.push(&work(1), 8);
        ring.push(&work(2), 8);
        assert_eq!(ring.room(), 0);
        let first = ring.take().unwrap();
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.sges(first.token), &sge);
        assert_eq!(ring.finish(first.token), (1, None));
        assert_eq!(ring.room(), 1);
        assert_eq!(ring.take().unwrap().len, 8);
        assert!(ring.take().is_none());
    }
}
