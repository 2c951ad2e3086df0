//! How long to spin before going to sleep.
//!
//! Waking a sleeper takes the kernel tens of microseconds, spinning takes a processor. A wait that
//! ended soon after it went to sleep should have spun on; one that slept for long should have slept
//! at once. Each thread remembers which it was: its patience is all or nothing at the ends, and
//! halves with each long sleep in between, so that an idle program costs nothing.

use crate::thread::{self, Interrupts};
use crate::{config, raw};

/// One wait: spins while [`Patience::goes_on`].
#[derive(Debug)]
pub(crate) struct Patience {
    start_ns: u64,
    spin_ns: u64,
    rounds: u32,
    interrupts: u32,
    kind: Interrupts,
    /// When the program wants to hear of it at the latest.
    deadline_ns: Option<u64>,
}

/// Why a spin has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Spin {
    /// Look again.
    Look,
    /// It is time to sleep.
    Sleep,
    /// A signal handler has run that interrupts the wait.
    Interrupted,
    /// The program's time limit has passed.
    TimedOut,
}

impl Patience {
    /// A wait that starts now: it spins for at most `most_ns`, and lasts at most `limit_ns`.
    pub(crate) fn start(most_ns: u64, limit_ns: Option<u64>, kind: Interrupts) -> Self {
        let config = config::get();
        let own = thread::with(|thread| thread.patience_ns.get());
        let spin_ns = if config.adaptive { most_ns.min(own) } else { most_ns };
        let start_ns = raw::now_ns();
        Self {
            start_ns,
            spin_ns,
            rounds: 0,
            interrupts: thread::interrupts(kind),
            kind,
            deadline_ns: limit_ns.map(|limit| start_ns.saturating_add(limit)),
        }
    }

    /// Whether a handler has run since the start that interrupts this wait.
    pub(crate) fn is_interrupted(&self) -> bool {
        thread::interrupts(self.kind) != self.interrupts
    }

    /// Whether the program's time limit has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline_ns.is_some_and(|deadline| raw::now_ns() >= deadline)
    }

    /// How much of the program's time limit is left.
    pub(crate) fn left_ns(&self) -> Option<u64> {
        self.deadline_ns.map(|deadline| deadline.saturating_sub(raw::now_ns()))
    }

    /// Spins a little, and says what to do next. `cheap`: what is looked at is memory.
    #[inline]
    pub(crate) fn goes_on(&mut self, cheap: bool) -> Spin {
        self.rounds = self.rounds.wrapping_add(1);
        if cheap {
            std::hint::spin_loop();
            if !self.rounds.is_multiple_of(ROUNDS) {
                return Spin::Look;
            }
        } else if !self.rounds.is_multiple_of(4) {
            return if self.spin_ns == 0 { Spin::Sleep } else { Spin::Look };
        }
        self.look_up()
    }

    fn look_up(&mut self) -> Spin {
        if self.is_interrupted() {
            return Spin::Interrupted;
        }
        let now = raw::now_ns();
        if self.deadline_ns.is_some_and(|deadline| now >= deadline) {
            return Spin::TimedOut;
        }
        let spun = now.saturating_sub(self.start_ns);
        if spun >= self.spin_ns {
            return Spin::Sleep;
        }
        if config::get().gives_way && spun > GIVE_WAY_AFTER_NS {
            raw::give_way();
            // Somebody else needed the processor for so long that spinning on is no use to anyone.
            if raw::now_ns().saturating_sub(now) > CROWDED_NS && self.spin_ns != u64::MAX {
                return Spin::Sleep;
            }
        }
        Spin::Look
    }

    /// The wait has slept from `since_ns` until now: learns from it, and may spin again.
    pub(crate) fn slept(&mut self, since_ns: u64, most_ns: u64) {
        let now = raw::now_ns();
        learn(now.saturating_sub(since_ns), most_ns);
        self.start_ns = now;
    }
}

/// A sleep has lasted so long: was it worth it?
pub(crate) fn learn(slept_ns: u64, most_ns: u64) {
    thread::with(|thread| {
        let own = thread.patience_ns.get().min(most_ns);
        let new = if slept_ns < most_ns.saturating_mul(2).max(WAKE_NS) {
            most_ns
        } else {
            (own / 2).max(LEAST_NS.min(most_ns))
        };
        thread.patience_ns.set(new);
    });
}

/// Looks at memory between two looks at the clock.
const ROUNDS: u32 = 64;
/// A spin this young does not let others run yet.
const GIVE_WAY_AFTER_NS: u64 = 1_500;
/// Letting others run took so long: the processor is wanted elsewhere.
const CROWDED_NS: u64 = 200_000;
/// What waking a sleeper costs, about.
const WAKE_NS: u64 = 100_000;
/// Even an idle thread spins for so long.
const LEAST_NS: u64 = 2_000;
