//! Completions, and the queues that queue pairs publish them to.

use crate::memory::local::BufferNumber;
use crate::objects::events::{Affiliation, EventKind};
use crate::objects::notice::{ChannelShared, Notice};
use crate::objects::notify::Queue;
use crate::registry::counters::Counters;
use adverb_engine::{WcOpcode, WcStatus};
use adverb_sys::clock;
use adverb_wire::{Imm, Nak, Qpn, Rkey, Syndrome};
use std::fmt;
use std::sync::Arc;

/// A work completion. `struct ibv_wc`.
///
/// Three of its fields are missing because RoCE leaves them at zero: `slid`, `sl` and
/// `dlid_path_bits`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// What the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes that a receive, READ or atomic brought, the network header of a datagram included;
    /// otherwise the length of what was sent.
    pub byte_len: u32,
    /// Immediate data, if the message had some.
    pub imm: Option<Imm>,
    /// The key that the message invalidated, if it did. `IBV_WC_WITH_INV`.
    pub invalidated: Option<Rkey>,
    /// The first [`crate::GRH_LEN`] bytes of the buffers are the network header: UD.
    /// `IBV_WC_GRH`.
    pub grh: bool,
    /// That header is of IPv6, and not of IPv4.
    pub ipv6: bool,
    /// Place of the message's partition in the port's table.
    pub pkey_index: u16,
    /// The local queue pair.
    pub qp: Qpn,
    /// The peer's queue pair, for receives.
    pub src_qp: Qpn,
    /// The buffer's number, if the poster gave one.
    pub buffer: Option<BufferNumber>,
    /// The shared receive queue that the receive came from.
    pub srq: Option<u32>,
    /// When the work completed, by the clock that the queue was made with: see [`Timestamps`].
    pub timestamp_ns: u64,
}

impl Completion {
    /// No completion: for arrays to poll into.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::General,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        grh: false,
        ipv6: false,
        pkey_index: 0,
        qp: Qpn::new(0),
        src_qp: Qpn::new(0),
        buffer: None,
        srq: None,
        timestamp_ns: 0,
    };

    /// What went wrong, as a number of this device: 0 for work that succeeded, the syndrome of the
    /// peer's refusal (IBTA Vol. 1 §9.7.5.2.8) if there was one, otherwise that of the status.
    pub fn vendor_err(&self) -> u32 {
        let refusals = [
            (WcStatus::RemoteInvalidRequest, Nak::InvalidRequest),
            (WcStatus::RemoteAccess, Nak::RemoteAccess),
            (WcStatus::RemoteOperation, Nak::RemoteOperation),
        ];
        let refusal = refusals.into_iter().find(|(status, _)| *status == self.status);
        let code = refusal.map_or(self.status.code(), |(_, nak)| Syndrome::Nak(nak).code());
        u32::from(code)
    }
}

/// The queue was full when a completion came: completions were lost, and its queue pairs are in
/// the error state.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Overrun;

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the completion queue was too small for the work of its queue pairs: completions were \
             lost; create it with at least as many entries as requests can be outstanding",
        )
    }
}

impl std::error::Error for Overrun {}

/// Clock of a queue's completion timestamps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Timestamps {
    /// None: stamps are 0.
    #[default]
    None,
    /// Nanoseconds since an arbitrary start, never going back (`CLOCK_MONOTONIC`).
    Monotonic,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    WallClock,
}

impl Timestamps {
    #[inline(always)]
    fn now(self) -> u64 {
        if self == Self::None { 0 } else { self.read() }
    }

    #[cold]
    fn read(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Monotonic => clock::now_ns(),
            Self::WallClock => clock::unix_ns(),
        }
    }
}

/// Channel and notice of a completion queue.
#[derive(Debug)]
pub(crate) struct Alert {
    pub(crate) channel: Arc<ChannelShared>,
    pub(crate) notice: Arc<Notice>,
}

/// The part of a completion queue that queue pairs share.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) queue: Queue<Completion>,
    pub(crate) alert: Option<Alert>,
    pub(crate) affiliation: Arc<Affiliation>,
    pub(crate) timestamps: Timestamps,
    pub(crate) counters: Arc<Counters>,
}

impl CqShared {
    /// Adds a completion; false if there was no room for it. `solicited`: its sender asked for an
    /// event.
    #[inline(always)]
    pub(crate) fn publish(&self, mut completion: Completion, solicited: bool) -> bool {
        completion.timestamp_ns = self.timestamps.now();
        let urgent = solicited || completion.status != WcStatus::Success;
        let published = self.queue.publish(completion, urgent);
        if published.first_overrun {
            self.counters.num_cqovf.add(1);
            self.affiliation.raise(EventKind::CqErr);
        }
        if let Some(Alert { channel, notice }) = self.alert.as_ref().filter(|_| published.wake) {
            channel.fire(notice);
        }
        published.stored
    }
}

/// Lets a poll return completions that it caused without going through the queue.
///
/// Its holder drives the device, so no other thread brings messages meanwhile. A completion goes here
/// only while the queue is empty: so none overtakes another of its queue pair, whose lock is held.
#[derive(Debug)]
pub(crate) struct PollBuffer<'a> {
    queue: &'a CqShared,
    places: &'a mut [Completion],
    taken: usize,
}

impl<'a> PollBuffer<'a> {
    pub(crate) fn new(queue: &'a CqShared, places: &'a mut [Completion]) -> Self {
        Self { queue, places, taken: 0 }
    }

    /// Completions that were put here.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// A completion of this queue can be put here.
    #[inline]
    pub(crate) fn takes(&self, queue: &CqShared) -> bool {
        std::ptr::eq(self.queue, queue)
            && queue.alert.is_none()
            && self.taken < self.places.len()
            && queue.queue.is_empty()
    }

    /// Puts one here, of which [`PollBuffer::takes`] says that it can be.
    #[inline(always)]
    pub(crate) fn put(&mut self, completion: Completion) {
        debug_assert!(self.taken < self.places.len(), "the caller has asked");
        if let Some(place) = self.places.get_mut(self.taken) {
            *place = completion;
            place.timestamp_ns = self.queue.timestamps.now();
            self.taken += 1;
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.affiliation.retire();
        if let Some(Alert { channel, notice }) = &self.alert {
            channel.detach(notice, self.queue.disarm());
        }
    }
}

adverb_sys::debug_as_display!(Overrun);
