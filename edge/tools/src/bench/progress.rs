//! One line on a terminal that says how far a run is, and is gone when it is over.

use std::io::{IsTerminal, Write};

/// The line. Does nothing where standard error is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    done: usize,
    total: usize,
}

impl Progress {
    /// A run of `total` steps.
    pub(crate) fn new(total: usize) -> Self {
        Self { shown: std::io::stderr().is_terminal(), done: 0, total }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: impl std::fmt::Display) {
        self.done += 1;
        if self.shown {
            let Self { done, total, .. } = self;
            // Nobody is worse off for a line that could not be written.
            let _ = write!(std::io::stderr(), "\r\x1b[K[{done}/{total}] {what}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
