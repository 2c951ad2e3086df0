//! Forks: locks and calls that take part in them from when they are first used.
//!
//! Not here: what every process has from the start (`life.rs`).

use crate::base::lock::{Lazy, Lock};

/// What a lock guards. A thread that holds an earlier one may take a later one, and any that a process has from the
/// start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rank {
    Desks,
    Rings,
    Streams,
}

static LOCKS: [Lazy<&'static Lock>; 3] = [const { Lazy::new() }; 3];
static IN_CHILD: Lazy<fn()> = Lazy::new();

/// From now on a lock is held across a fork.
pub(crate) fn join(rank: Rank, lock: &'static Lock) {
    let place = match rank {
        Rank::Desks => 0,
        Rank::Rings => 1,
        Rank::Streams => 2,
    };
    if let Some(known) = LOCKS.get(place)
        && known.get().is_none()
    {
        known.get_or_init(|| lock);
    }
}

/// From now on a child calls this, with no lock held.
pub(crate) fn call_in_child(call: fn()) {
    if IN_CHILD.get().is_none() {
        IN_CHILD.get_or_init(|| call);
    }
}

/// Those locks, in their order.
pub(crate) fn locks() -> impl Iterator<Item = &'static Lock> {
    LOCKS.iter().filter_map(Lazy::get).copied()
}

/// In a child just forked.
pub(crate) fn in_child() {
    if let Some(call) = IN_CHILD.get() {
        call();
    }
}
