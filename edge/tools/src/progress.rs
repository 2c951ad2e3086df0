//! How far a run is: on a terminal one line that is gone when it is over, elsewhere a line now and then.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// What is said of a run on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    began: Instant,
    /// When something was said last.
    said: Instant,
    /// Steps that were begun.
    begun: u64,
    total: u64,
    /// What follows takes as long as so many steps.
    later: u64,
}

impl Progress {
    /// A run of so many steps, and what follows it, which takes as long as so many.
    pub(crate) fn new((total, later): (u64, u64)) -> Self {
        let (terminal, now) = (std::io::stderr().is_terminal(), Instant::now());
        Self { terminal, began: now, said: now, begun: 0, total, later }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: impl Display) {
        self.begun += 1;
        self.say(what);
    }

    /// The next of many short steps begins: what is said of each would cost more than the step.
    pub(crate) fn short_step(&mut self, what: impl Display) {
        self.begun += 1;
        if self.said.elapsed() >= OFTEN {
            self.say(what);
        }
    }

    fn say(&mut self, what: impl Display) {
        if !self.terminal && self.said.elapsed() < NOW_AND_THEN {
            return;
        }
        self.said = Instant::now();
        let Self { begun, total, .. } = &*self;
        let left = match self.left(self.began.elapsed()) {
            Some(left) => format!(", {} s left", left.as_secs() + 1),
            None => String::new(),
        };
        write(&match self.terminal {
            // A line that is too long for the terminal is cut, not broken.
            true => format!("\r\x1b[K\x1b[?7l[{begun}/{total}{left}] {what}\x1b[?7h"),
            false => format!("adverb: [{begun}/{total}{left}] {what}\n"),
        });
    }

    /// So many steps are left out.
    pub(crate) fn skip(&mut self, steps: u32) {
        self.total = self.total.saturating_sub(steps.into());
    }

    /// How long the rest will take, by what was done in this time.
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let done = self.begun.checked_sub(1).filter(|&done| done > 0)?;
        let rest = self.total.saturating_sub(done).saturating_add(self.later);
        let ns = elapsed.as_nanos().checked_mul(rest.into())? / u128::from(done);
        u64::try_from(ns).ok().map(Duration::from_nanos)
    }

    /// Makes room for other output.
    pub(crate) fn clear(&self) {
        if self.terminal && self.begun > 0 {
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

/// Between lines where no terminal is: a log should not be full of them.
pub(crate) const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// Between what is said of short steps.
const OFTEN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_steps_that_are_done() {
        let (second, now) = (Duration::from_secs(1), Instant::now());
        let mut progress =
            Progress { terminal: false, began: now, said: now, begun: 0, total: 8, later: 4 };
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
        progress.total = u64::MAX;
        assert_eq!(progress.left(Duration::MAX), None, "too long to say");
    }
}
