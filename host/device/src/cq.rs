//! Completion queues: what was posted comes back here.

use crate::port::Port;
use adverb_engine::{WcOpcode, WcStatus};
use adverb_wire::{Imm, Qpn};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A work completion. `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// What the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes that a receive, READ or atomic brought; otherwise the length of what was sent.
    pub byte_len: u32,
    /// Immediate data, if the message had some.
    pub imm: Option<Imm>,
    /// The local queue pair.
    pub qp: Qpn,
    /// The peer's queue pair, for receives.
    pub src_qp: Qpn,
    /// The buffer's number, if the poster gave one.
    pub buffer: Option<u32>,
}

impl Completion {
    /// No completion: for arrays to poll into.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WcStatus::General,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        qp: Qpn::new(0),
        src_qp: Qpn::new(0),
        buffer: None,
    };
}

/// The queue was full when a completion came: completions were lost, and its queue pairs are in
/// the error state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

/// The part of a completion queue that queue pairs share.
#[derive(Debug)]
pub(crate) struct CqShared {
    ring: Mutex<VecDeque<Completion>>,
    /// Length of the ring, so that an empty one is seen without its lock.
    len: AtomicUsize,
    capacity: usize,
    overrun: AtomicBool,
}

impl CqShared {
    /// Adds a completion; false if there was no room for it.
    #[inline]
    pub(crate) fn publish(&self, completion: Completion) -> bool {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= self.capacity {
            self.overrun.store(true, Ordering::Release);
            return false;
        }
        ring.push_back(completion);
        self.len.store(ring.len(), Ordering::Release);
        true
    }

    #[inline]
    fn take(&self, out: &mut [Completion]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        for place in out {
            let Some(completion) = ring.pop_front() else {
                break;
            };
            *place = completion;
            taken += 1;
        }
        self.len.store(ring.len(), Ordering::Release);
        taken
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    pub(crate) port: Arc<Port>,
    pub(crate) shared: Arc<CqShared>,
}

impl Cq {
    /// Completions that a queue can be made for.
    pub const CAPACITY_MAX: u32 = 1 << 22;

    pub(crate) fn new(port: Arc<Port>, capacity: u32) -> Self {
        let capacity = usize::try_from(capacity.clamp(1, Self::CAPACITY_MAX)).unwrap_or(1);
        let shared = CqShared {
            ring: Mutex::new(VecDeque::with_capacity(capacity)),
            len: AtomicUsize::new(0),
            capacity,
            overrun: AtomicBool::new(false),
        };
        Self { port, shared: Arc::new(shared) }
    }

    /// Completions that it can hold.
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Takes completions, oldest first, and says how many; drives the device if there are none.
    ///
    /// # Errors
    ///
    /// [`Overrun`], for good, once all completions from before it are taken.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut taken = self.shared.take(out);
        if taken == 0 {
            self.port.drive();
            taken = self.shared.take(out);
        }
        if taken == 0 && self.shared.overrun.load(Ordering::Acquire) {
            return Err(Overrun);
        }
        Ok(taken)
    }
}
