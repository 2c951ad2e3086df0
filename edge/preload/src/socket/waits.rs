//! Waits: what `select`, `poll` and `epoll_wait` have counted, of all processes of a family together.
//!
//! They lie in the arena in several places, of which each thread uses one, so that threads do not take one
//! another's cache lines. Not here: counters of single sockets (`counters.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::config;
use crate::base::raw::{self, Errno};
use crate::socket::counters::add;

/// Which call waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Call {
    Select,
    Poll,
    Epoll,
}

/// What the calls of one kind have counted, in the order of [`Counts::NAMES`].
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counts {
    ready_rings: AtomicU64,
    ready_os: AtomicU64,
    poll_hit: AtomicU64,
    poll_miss: AtomicU64,
    timeouts: AtomicU64,
    errors: AtomicU64,
    /// Time in which they spun, and when that was measured first; only if it is asked for.
    polling_ns: AtomicU64,
    polling_since_ns: AtomicU64,
}

impl Counts {
    pub(crate) const NAMES: &'static str =
        "ready_rings,ready_os,poll_hit,poll_miss,timeouts,errors,polling_ns,polling_since_ns";
}

/// What one thread uses, and others that have the same place.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Waits([Counts; 3]);

impl Waits {
    /// The calls, in their order there.
    pub(crate) const CALLS: &'static str = "select,poll,epoll";
}

/// How many places there are.
pub(crate) const PLACES: usize = 16;

/// One call that waits; what has come of it is counted when it ends.
#[derive(Debug)]
pub(crate) struct Waiting {
    counts: Option<&'static Counts>,
    /// When it began to spin; 0 if it does not, or that is not measured.
    spinning_ns: u64,
    has_slept: bool,
    /// How many of what was found last had something in shared memory.
    pub(crate) rings: usize,
}

impl Waiting {
    /// `waits`: where it is counted; `None` as long as no socket is known.
    #[inline]
    pub(crate) fn begin(waits: Option<&'static Waits>, call: Call) -> Self {
        let counts = waits.map(|Waits([select, poll, epoll])| match call {
            Call::Select => select,
            Call::Poll => poll,
            Call::Epoll => epoll,
        });
        let mut waiting = Self { counts, spinning_ns: 0, has_slept: false, rings: 0 };
        waiting.wakes();
        waiting
    }

    /// One of ours, which is not counted.
    pub(crate) fn uncounted() -> Self {
        Self { counts: None, spinning_ns: 0, has_slept: false, rings: 0 }
    }

    /// It is about to sleep.
    #[inline]
    pub(crate) fn sleeps(&mut self) {
        self.has_slept = true;
        self.stop();
    }

    /// It spins, or spins again.
    #[inline]
    pub(crate) fn wakes(&mut self) {
        if config::get().measures_polling {
            self.spinning_ns = raw::now_ns();
        }
    }

    #[inline]
    fn stop(&mut self) {
        if self.spinning_ns != 0
            && let Some(counts) = self.counts
        {
            let spun = raw::now_ns().saturating_sub(self.spinning_ns);
            add(&counts.polling_ns, usize::try_from(spun).unwrap_or(0));
            if counts.polling_since_ns.load(Ordering::Relaxed) == 0 {
                counts.polling_since_ns.store(self.spinning_ns, Ordering::Relaxed);
            }
            self.spinning_ns = 0;
        }
    }

    /// It ends, having found so many.
    #[inline]
    pub(crate) fn end(mut self, answer: &Result<usize, Errno>) {
        self.stop();
        let Some(counts) = self.counts else { return };
        match answer {
            Ok(0) => add(&counts.timeouts, 1),
            Ok(found) => {
                let rings = self.rings.min(*found);
                add(&counts.ready_rings, rings);
                add(&counts.ready_os, found - rings);
            }
            Err(_) => return add(&counts.errors, 1),
        }
        let is_hit = *answer != Ok(0) && !self.has_slept;
        add(if is_hit { &counts.poll_hit } else { &counts.poll_miss }, 1);
    }
}
