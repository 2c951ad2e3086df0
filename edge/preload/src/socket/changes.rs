//! A log of sockets that have come to travel otherwise than before: the last few of them, in turn.
//!
//! A thread that changes a socket writes its number here, whatever locks it holds. An instance reads
//! on from where it was, under its own lock, and looks at its registrations of those sockets alone;
//! one that has fallen too far behind looks at all of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Changes that are remembered.
const LEN: usize = 4096;

/// The number of the next change. None has number 0.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// The number of a change, its lower half, and below it the socket's.
static LOG: [AtomicU64; LEN] = [const { AtomicU64::new(0) }; LEN];

/// What there is to look at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Since {
    /// The sockets that were named, and from this number on the next time.
    Named(u64),
    /// Everything, and from this number on the next time.
    Everything(u64),
}

/// The socket of that number travels otherwise than before.
pub(crate) fn note(socket: u32) {
    let number = NEXT.fetch_add(1, Ordering::AcqRel);
    if let Some(place) = place(number) {
        place.store(tag(number) << 32 | u64::from(socket), Ordering::Release);
    }
}

/// Names the sockets that have changed since number `seen`, which is 0 for one that has seen nothing.
#[inline]
pub(crate) fn since(seen: u64, mut name: impl FnMut(u32)) -> Since {
    let next = NEXT.load(Ordering::Acquire);
    if seen == next {
        return Since::Named(next);
    }
    if seen == 0 || is_lost(seen, next) {
        return Since::Everything(next);
    }
    for number in seen..next {
        let word = place(number).map_or(0, |place| place.load(Ordering::Acquire));
        if word >> 32 != tag(number) {
            // Not written yet: it will be, and is read then. Unless it has been written over by now.
            let is_lost = is_lost(number, NEXT.load(Ordering::Acquire));
            return if is_lost { Since::Everything(next) } else { Since::Named(number) };
        }
        name(u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0));
    }
    Since::Named(next)
}

/// Whether another may have been written over that one, when this is the next.
fn is_lost(number: u64, next: u64) -> bool {
    usize::try_from(next.saturating_sub(number)).is_ok_and(|count| count > LEN)
}

fn place(number: u64) -> Option<&'static AtomicU64> {
    LOG.get(usize::try_from(number).ok()? % LEN)
}

/// What of a number is remembered.
fn tag(number: u64) -> u64 {
    number & u64::from(u32::MAX)
}
