//! What has come for one socket, and the gate by which it comes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::uplink::Uplink;
use crate::base::lock::Guarded;

/// A datagram, and where it comes from.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Datagrams of one socket, as many as its receive buffer may hold.
#[derive(Debug)]
pub(crate) struct Queue {
    gate: u32,
    limit: usize,
    waiting: Guarded<Waiting>,
    /// How many wait, for looks without the lock.
    len: AtomicUsize,
    /// Datagrams so far, and those for which there was no room.
    count: AtomicU64,
    dropped: AtomicU64,
    door: Guarded<Door>,
    /// The kernel may have earlier ones.
    is_kernel_first: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
}

/// Why the gate is shut, or not.
#[derive(Debug)]
struct Door {
    uplinks: Vec<Arc<Uplink>>,
    /// It is open while there are none.
    holds: u64,
}

impl Queue {
    /// An empty one, whose gate is shut until it is released.
    pub(super) const fn new(gate: u32, limit: usize) -> Self {
        let waiting = Waiting { datagrams: VecDeque::new(), bytes: 0 };
        Self {
            gate,
            limit,
            waiting: Guarded::new(waiting),
            len: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            door: Guarded::new(Door { uplinks: Vec::new(), holds: 1 }),
            is_kernel_first: AtomicBool::new(true),
        }
    }

    pub(super) const fn gate(&self) -> u32 {
        self.gate
    }

    /// A datagram has come.
    pub(super) fn push(&self, from: SocketAddr, bytes: &[u8]) {
        self.waiting.with(|waiting| {
            if waiting.bytes + charge(bytes) > self.limit {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            waiting.bytes += charge(bytes);
            waiting.datagrams.push_back(Datagram { from, bytes: bytes.to_vec() });
            self.len.store(waiting.datagrams.len(), Ordering::Release);
            self.count.fetch_add(1, Ordering::AcqRel);
        });
    }

    /// Calls `f` with the first datagram, and takes it out if `f` says so.
    pub(crate) fn front<T>(&self, f: impl FnOnce(&Datagram) -> (bool, T)) -> Option<T> {
        self.waiting.with(|waiting| {
            let (is_taken, answer) = f(waiting.datagrams.front()?);
            if is_taken && let Some(taken) = waiting.datagrams.pop_front() {
                waiting.bytes -= charge(&taken.bytes);
                self.len.store(waiting.datagrams.len(), Ordering::Release);
            }
            Some(answer)
        })
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Datagrams for which there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether the kernel may have datagrams that came before those here.
    pub(crate) fn is_kernel_first(&self) -> bool {
        self.is_kernel_first.load(Ordering::Acquire)
    }

    /// It has none.
    pub(crate) fn follows_kernel(&self) {
        self.is_kernel_first.store(false, Ordering::Release);
    }

    /// The gate is in these interfaces' tables.
    pub(super) fn use_gates(&self, uplinks: &[Arc<Uplink>]) {
        self.door.with(|door| {
            door.uplinks = uplinks.to_vec();
            self.move_gate(door);
        });
    }

    /// The kernel brings what comes from now on.
    pub(crate) fn shut(&self) {
        self.door.with(|door| {
            door.holds += 1;
            self.move_gate(door);
        });
    }

    /// One hold fewer: without any, frames come.
    pub(crate) fn open(&self) {
        self.door.with(|door| {
            // Those for good are more than there ever are others.
            door.holds = door.holds.saturating_sub(1);
            // What the kernel has got meanwhile is earlier.
            self.is_kernel_first.store(true, Ordering::Release);
            self.move_gate(door);
        });
    }

    /// The hold of the beginning ends.
    pub(super) fn release(&self) {
        self.open();
    }

    /// The kernel brings what comes.
    pub(super) fn is_shut(&self) -> bool {
        self.door.with(|door| door.holds > 0)
    }

    pub(super) fn is_over(&self) -> bool {
        self.door.with(|door| door.holds >= FOR_GOOD)
    }

    pub(super) fn shut_for_good(&self) {
        self.door.with(|door| {
            door.holds = 2 * FOR_GOOD;
            self.move_gate(door);
        });
    }

    fn move_gate(&self, door: &Door) {
        door.uplinks.iter().for_each(|uplink| uplink.set_gate(self.gate, door.holds == 0));
    }
}

/// What a datagram counts for, as the kernel counts its own, about.
fn charge(bytes: &[u8]) -> usize {
    bytes.len() + OVERHEAD_BYTES
}

const OVERHEAD_BYTES: usize = 512;
/// More holds than there ever are.
const FOR_GOOD: u64 = 1 << 62;
