//! One line on a terminal that says how far a run is, and is gone when it is over.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The line. Does nothing where standard error is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    began: Instant,
    /// Steps that were begun.
    begun: u32,
    total: u32,
    /// What follows takes as long as so many steps.
    later: u32,
}

impl Progress {
    /// A run of so many steps, and what follows it, which takes as long as so many.
    pub(crate) fn new((total, later): (u32, u32)) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { shown, began: Instant::now(), begun: 0, total, later }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: impl Display) {
        self.begun += 1;
        if self.shown {
            let Self { begun, total, .. } = &*self;
            let left = match self.left(self.began.elapsed()) {
                Some(left) => format!(", {} s left", left.as_secs() + 1),
                None => String::new(),
            };
            write(&format!("\r\x1b[K[{begun}/{total}{left}] {what}"));
        }
    }

    /// So many steps are left out.
    pub(crate) const fn skip(&mut self, steps: u32) {
        self.total = self.total.saturating_sub(steps);
    }

    /// How long the rest will take, by what was done in this time.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let done = self.begun.checked_sub(1).filter(|&done| done > 0)?;
        let rest = self.total.saturating_sub(done).saturating_add(self.later);
        elapsed.checked_mul(rest).map(|all| all / done)
    }

    /// Makes room for other output.
    pub(crate) fn clear(&self) {
        if self.shown {
            write("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// In one piece, so that the line does not flicker. A run does not fail for a line that cannot be written.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_steps_that_are_done() {
        let second = Duration::from_secs(1);
        let mut progress =
            Progress { shown: false, began: Instant::now(), begun: 0, total: 8, later: 4 };
        assert_eq!(progress.left(second), None);
        progress.step("the first");
        assert_eq!(progress.left(second), None);
        progress.step("the second");
        assert_eq!(progress.left(second), Some(11 * second));
        progress.skip(4);
        assert_eq!(progress.left(second), Some(7 * second));
        progress.total = 8;
        progress.begun = 9;
        assert_eq!(progress.left(8 * second), Some(4 * second));
    }
}
