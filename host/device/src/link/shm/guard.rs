//! Access guards: they count accesses of one process to another one's memory, so that the owner can wait for them
//! before it releases memory.
//!
//! An accessing thread counts itself in, looks whether what it wants is still published, uses it, and counts itself
//! out. The owner takes back what it has published, then waits until all accesses have ended that may have seen it.
//! There are two counters, and a phase that says which one newcomers use: the owner changes it, so that newcomers do
//! not prolong the wait. It changes it twice, for an accessing thread may read the phase long before it counts itself
//! in.
//!
//! `tests/guard_model.rs` tries every interleaving.

use crate::sync::{AtomicU32, Ordering};

/// Counters of one side's accesses.
pub(crate) trait Counters<'a>: Copy {
    /// Which of two counters newcomers use: the lowest bit. The owner's to change.
    fn phase(self) -> &'a AtomicU32;

    /// Accesses under way that have begun in a phase.
    fn accesses(self, phase: bool) -> &'a AtomicU32;
}

/// An access: what was published when it began stays until it ends.
#[derive(Debug)]
pub(crate) struct AccessGuard<'a> {
    accesses: Option<&'a AtomicU32>,
}

impl<'a> AccessGuard<'a> {
    /// One that no owner waits for.
    pub(crate) const UNCOUNTED: Self = Self { accesses: None };

    #[inline]
    pub(crate) fn begin(counters: impl Counters<'a>) -> Self {
        let phase = counters.phase().load(Ordering::Relaxed) & 1 != 0;
        let accesses = counters.accesses(phase);
        accesses.fetch_add(1, Ordering::SeqCst);
        Self { accesses: Some(accesses) }
    }
}

impl Drop for AccessGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(accesses) = self.accesses {
            accesses.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Waits until every access has ended that has begun before the call; one call at a time. `goes_on` is called
/// between looks; false as soon as that is.
pub(crate) fn wait<'a>(counters: impl Counters<'a>, mut goes_on: impl FnMut() -> bool) -> bool {
    (0..2).all(|_| {
        let old = counters.phase().fetch_xor(1, Ordering::SeqCst) & 1 != 0;
        let accesses = counters.accesses(old);
        while accesses.load(Ordering::SeqCst) != 0 {
            if !goes_on() {
                return false;
            }
        }
        true
    })
}

/// No access is under way.
pub(crate) fn is_vacant<'a>(counters: impl Counters<'a>) -> bool {
    [false, true].iter().all(|phase| counters.accesses(*phase).load(Ordering::SeqCst) == 0)
}
