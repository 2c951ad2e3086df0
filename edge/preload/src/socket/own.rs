//! The identity of this process among those that share its sockets: its place in their list, its
//! number, and the namespace of that.
//!
//! Not here: the others (`processes.rs`), and which sockets each of them has (`ownership.rs`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;

use crate::base::raw;
use crate::socket::ownership::{Ownership, Place};

/// What this process knows of itself. A `vfork` child in our memory finds what its host does, for which it acts.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) place: AtomicU32,
    /// Its number, and the namespace of that; 0 if that cannot be seen.
    pub(crate) process: AtomicU32,
    pub(crate) space: AtomicU64,
}

/// In one piece: a child writes to it, and gets a page of its own for that.
pub(crate) static OWN: Own =
    Own { place: AtomicU32::new(NOWHERE), process: AtomicU32::new(0), space: AtomicU64::new(0) };
const NOWHERE: u32 = u32::MAX;

/// The place of this process, if it knows of any sockets.
#[inline]
pub(crate) fn me() -> Option<Place> {
    Some(OWN.place.load(Ordering::Relaxed)).filter(|place| *place != NOWHERE).map(Place)
}

/// This process is the first of a family, and no other knows of it yet.
pub(crate) fn found(ownership: &Ownership<'_>) {
    OWN.space.store(alive::namespace(), Ordering::Relaxed);
    OWN.process.store(raw::process_id(), Ordering::Relaxed);
    ownership.places.found(raw::process_id(), OWN.space.load(Ordering::Relaxed));
    OWN.place.store(Place::FOUNDER.0, Ordering::Release);
}
