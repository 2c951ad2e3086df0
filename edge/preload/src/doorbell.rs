//! Doorbells: one word for each epoll instance that sleeps, for all of its connections.
//!
//! A sleeper that looks at many connections when it wakes needs one bell, however many of them have
//! something for it by then. So it says of each only that it is armed together with others, and here
//! that it sleeps; the first who has something for it takes that word back and rings, and everybody
//! else, knowing that it is awake or about to be, does not. On a crowded machine that makes one call
//! of a whole batch.
//!
//! The words lie in the meeting place, in memory that all processes of a user share, in whatever network
//! namespace they are.
//! Nobody has to be believed: a word that is wrong costs a bell too many, or the slice of time after
//! which every sleeper looks for itself.
//!
//! # Safety
//!
//! The file is mapped once, for good, for its whole length. It is made of atomics, for which every
//! bit pattern is legal.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::meeting::{self, Reach};
use crate::raw;

/// One doorbell, with a cache line for itself.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    /// The process that has it; 0 if nobody has.
    owner: AtomicU32,
    is_asleep: AtomicU32,
}

/// Doorbells of one user. Who gets none is rung for by each connection.
const COUNT: usize = 1 << 14;
/// Places that are looked at for a free one.
const PROBES: u32 = 64;

fn entry(number: u32) -> Option<&'static Entry> {
    static MAP: AtomicPtr<[Entry; COUNT]> = AtomicPtr::new(ptr::null_mut());
    let mut at = MAP.load(Ordering::Acquire);
    if at.is_null() {
        at = meeting::map_shared("doorbells", Reach::Host, size_of::<[Entry; COUNT]>())?.cast();
        MAP.store(at, Ordering::Release);
    }
    // SAFETY: mapped for good, of this length, and made of atomics.
    let all = unsafe { &*at };
    all.get(usize::try_from(number).ok().filter(|number| *number != 0)?)
}

/// A doorbell of this process's own; 0 if there is none.
pub(crate) fn take() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let me = raw::process_id();
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    let first = me.wrapping_mul(0x9e37_79b9).wrapping_add(turn);
    let count = u32::try_from(COUNT).unwrap_or(1);
    let mut numbers = (0..PROBES).map(|step| first.wrapping_add(step) % count);
    let is_mine = |number: &u32| {
        let Some(entry) = entry(*number) else { return false };
        let owner = entry.owner.load(Ordering::Acquire);
        let is_free = owner == 0 || owner != me && !raw::is_process(owner);
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        is_free && entry.owner.compare_exchange(owner, me, o, r).is_ok()
    };
    numbers.find(is_mine).inspect(|number| set(*number, false)).unwrap_or(0)
}

/// Gives a doorbell back.
pub(crate) fn give_back(number: u32) {
    if let Some(entry) = entry(number) {
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = entry.owner.compare_exchange(raw::process_id(), 0, o, r);
    }
}

/// Says whether somebody sleeps who wants to be rung for. Before it sleeps, a full fence follows, and
/// a look at everything.
#[inline]
pub(crate) fn set(number: u32, is_asleep: bool) {
    if let Some(entry) = entry(number) {
        entry.is_asleep.store(is_asleep.into(), Ordering::Relaxed);
    }
}

/// Whether somebody sleeps there. A full fence lies between what there is to be seen and this.
#[inline]
pub(crate) fn is_asleep(number: u32) -> bool {
    entry(number).is_none_or(|entry| entry.is_asleep.load(Ordering::Relaxed) != 0)
}

/// The caller is about to ring. Returns false if somebody else has, or is about to.
#[inline]
pub(crate) fn rouse(number: u32) -> bool {
    entry(number).is_none_or(|entry| entry.is_asleep.swap(0, Ordering::AcqRel) != 0)
}
