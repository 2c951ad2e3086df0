//! Yields to other threads, for a while: by the clock, as one may last for milliseconds where processors are busy.

use crate::base::raw;

/// A thread that waits for what another is about to have done, and has yielded since then.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    count: u32,
    until_ns: u64,
}

impl Yields {
    /// Lets another thread run. Returns false, and does nothing, if that has been tried for long enough: then the thread is to
    /// sleep for a moment.
    pub(crate) fn give_way(&mut self) -> bool {
        if self.count < PER_LOOK || self.count.is_multiple_of(PER_LOOK) {
            let now = raw::now_ns();
            if self.count == 0 {
                self.until_ns = now.saturating_add(YIELDS_NS);
            } else if now >= self.until_ns {
                return false;
            }
        }
        self.count = self.count.wrapping_add(1);
        raw::give_way();
        true
    }
}

/// For how long threads yield, and how often between two looks at the clock, after as many with one each. A lock is held for
/// some microseconds.
const YIELDS_NS: u64 = 200_000;
const PER_LOOK: u32 = 8;
