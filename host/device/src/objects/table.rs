//! The table from queue pair numbers to queue pairs: found without a lock, used under one.
//!
//! A slot holds the queue pair's own lock, so that finding it takes nothing else. Chunks of slots
//! are made when the process claims their numbers and stay until the port goes.

use crate::futex_mutex::{FutexGuard, FutexMutex};
use crate::objects::qp::QpInner;
use crate::registry::{BLOCK_BITS, Block};
use adverb_wire::Qpn;
use std::sync::{Arc, OnceLock};

/// Slot of one queue pair, if the number is in use.
pub(crate) type Slot = FutexMutex<Option<Box<QpInner>>>;

type Chunk = Arc<[Slot]>;
type Group = Box<[OnceLock<Chunk>]>;

/// A slot that a caller uses again and again, and so does not look up every time.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    chunk: Chunk,
    at: usize,
}

impl Place {
    /// From now on this queue pair lives there.
    pub(crate) fn fill(&self, inner: QpInner) {
        if let Some(slot) = self.chunk.get(self.at) {
            *slot.lock() = Some(Box::new(inner));
        }
    }

    /// The queue pair there, locked.
    #[inline]
    pub(crate) fn lock(&self) -> Option<FutexGuard<'_, Option<Box<QpInner>>>> {
        locked(self.chunk.get(self.at)?)
    }
}

#[inline]
fn locked(slot: &Slot) -> Option<FutexGuard<'_, Option<Box<QpInner>>>> {
    let guard = slot.lock();
    guard.is_some().then_some(guard)
}

/// All queue pairs of a port.
#[derive(Debug)]
pub(crate) struct QpTable {
    groups: Box<[OnceLock<Group>]>,
}

/// Bits of a queue pair number. IBTA Vol. 1 §3.5.10.
const QPN_BITS: u32 = 24;
/// Blocks are found in two steps of this many bits each.
const STEP_BITS: u32 = (QPN_BITS - BLOCK_BITS) / 2;
const STEP: usize = 1 << STEP_BITS;
const BLOCK: usize = 1 << BLOCK_BITS;
const _: () = assert!(STEP_BITS * 2 + BLOCK_BITS == QPN_BITS);

impl QpTable {
    pub(crate) fn new() -> Self {
        Self { groups: (0..STEP).map(|_| OnceLock::new()).collect() }
    }

    fn place(qp: Qpn) -> (usize, usize, usize) {
        let number = usize::try_from(qp.get()).unwrap_or(0);
        let block = number >> BLOCK_BITS;
        (block >> STEP_BITS, block % STEP, number % BLOCK)
    }

    /// The slot of a number that this process has claimed.
    #[inline]
    pub(crate) fn slot(&self, qp: Qpn) -> Option<&Slot> {
        let (group, chunk, at) = Self::place(qp);
        self.groups.get(group)?.get()?.get(chunk)?.get()?.get(at)
    }

    /// The queue pair with this number, locked.
    #[inline]
    pub(crate) fn lock(&self, qp: Qpn) -> Option<FutexGuard<'_, Option<Box<QpInner>>>> {
        locked(self.slot(qp)?)
    }

    /// Runs this on the queue pair with this number, if there is one.
    #[inline]
    pub(crate) fn with<R>(&self, qp: Qpn, run: impl FnOnce(&mut QpInner) -> R) -> Option<R> {
        Some(run(self.lock(qp)?.as_mut()?))
    }

    /// Where the queue pair with this number lives, if this process has claimed that.
    pub(crate) fn place_of(&self, qp: Qpn) -> Option<Place> {
        let (group, chunk, at) = Self::place(qp);
        let chunk = self.groups.get(group)?.get()?.get(chunk)?.get()?;
        Some(Place { chunk: Arc::clone(chunk), at })
    }

    /// All queue pairs, each locked when its turn comes.
    pub(crate) fn each(&self) -> impl Iterator<Item = FutexGuard<'_, Option<Box<QpInner>>>> {
        let chunks = self.groups.iter().filter_map(OnceLock::get).flatten();
        let slots = chunks.filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        slots.map(|slot| slot.lock()).filter(|slot| slot.is_some())
    }

    /// Makes slots for a block of numbers.
    pub(crate) fn add_block(&self, block: Block) {
        let (group, chunk, _) = Self::place(block.first());
        let Some(group) = self.groups.get(group) else {
            return;
        };
        let group = group.get_or_init(|| (0..STEP).map(|_| OnceLock::new()).collect());
        if let Some(chunk) = group.get(chunk) {
            chunk.get_or_init(|| (0..BLOCK).map(|_| FutexMutex::new(None)).collect());
        }
    }
}
