//! How long to spin before going to sleep.
//!
//! Waking a sleeper takes the kernel tens of microseconds, spinning takes a processor. So each thread
//! has patience: a spin that ends with what it waited for gives it as much as it needed, and more; a
//! spin in vain halves it, so that an idle program costs nothing. A spin during which somebody else
//! got the processor ends at once, and the next waits do not spin: there the processor is worth more
//! than time. A thread that is cancelled ends there, as it would in the kernel's sleep: so whoever spins
//! holds no lock.

use crate::thread::{self, Interrupts, Seen};
use crate::{config, raw, stats};

/// One wait: spins while [`Patience::goes_on`].
#[derive(Debug)]
pub(crate) struct Patience {
    start_ns: u64,
    spin_ns: u64,
    rounds: u32,
    interrupts: u32,
    kind: Interrupts,
    /// When the clock was last looked at.
    last_ns: u64,
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
            last_ns: start_ns,
            deadline_ns: limit_ns.map(|limit| start_ns.saturating_add(limit)),
        }
    }

    /// When it started.
    pub(crate) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// What interrupts it.
    pub(crate) fn kind(&self) -> Interrupts {
        self.kind
    }

    /// Whether a handler has run since the start that interrupts this wait.
    pub(crate) fn is_interrupted(&self) -> bool {
        thread::interrupts(self.kind) != self.interrupts
    }

    /// The same wait, of a call that began when so many handlers had run.
    pub(crate) fn since(self, seen: Seen) -> Self {
        Self { interrupts: seen.of(self.kind), ..self }
    }

    /// How long to sleep at most before looking whether a handler has run.
    pub(crate) fn slice_ns(&self) -> Option<u64> {
        let left = self.left_ns();
        match crate::signal::may_interrupt(self.kind) {
            true => Some(left.unwrap_or(u64::MAX).min(SLICE_NS)),
            false => left,
        }
    }

    /// Whether the program's time limit has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline_ns.is_some_and(|deadline| raw::now_ns() >= deadline)
    }

    /// How much of the program's time limit is left.
    pub(crate) fn left_ns(&self) -> Option<u64> {
        self.deadline_ns.map(|deadline| deadline.saturating_sub(raw::now_ns()))
    }

    /// Whether it spins at all.
    pub(crate) fn spins(&self) -> bool {
        self.spin_ns > 0
    }

    /// Spins a little, and says what to do next. `cheap`: what is looked at is memory.
    #[inline]
    pub(crate) fn goes_on(&mut self, cheap: bool) -> Spin {
        self.goes_on_after(if cheap { 1 } else { ROUNDS / 4 })
    }

    /// The same, after so many looks at memory.
    #[inline]
    pub(crate) fn goes_on_after(&mut self, looks: u32) -> Spin {
        let before = self.rounds / ROUNDS;
        self.rounds = self.rounds.wrapping_add(looks);
        if self.spin_ns == 0 || before != self.rounds / ROUNDS {
            return self.look_up();
        }
        std::hint::spin_loop();
        Spin::Look
    }

    fn look_up(&mut self) -> Spin {
        raw::cancellation_point();
        stats::heed();
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
        let config = config::get();
        if config.gives_way && spun > GIVE_WAY_AFTER_NS {
            raw::give_way();
        }
        // Somebody else ran in between: the processor is wanted elsewhere, and spinning takes it away.
        let last = std::mem::replace(&mut self.last_ns, now);
        if config.adaptive && now.saturating_sub(last.max(self.start_ns)) > CROWDED_NS {
            thread::with(|thread| thread.patience_ns.set(0));
            return Spin::Sleep;
        }
        Spin::Look
    }

    /// The wait is over, and it has not slept: spinning pays.
    pub(crate) fn hit(&self, most_ns: u64) {
        if self.rounds < ROUNDS {
            return;
        }
        let spun = raw::now_ns().saturating_sub(self.start_ns);
        thread::with(|thread| {
            let own = thread.patience_ns.get();
            thread.patience_ns.set(own.max(spun.saturating_mul(4)).min(most_ns));
            thread.failures.set(0);
        });
    }

    /// The wait has slept since `since_ns`, and goes on.
    pub(crate) fn slept(&mut self, since_ns: u64, most_ns: u64) {
        miss(raw::now_ns().saturating_sub(since_ns), most_ns);
        self.again(most_ns);
    }

    /// The wait goes on: it spins again.
    pub(crate) fn again(&mut self, most_ns: u64) {
        stats::heed();
        self.start_ns = raw::now_ns();
        if config::get().adaptive {
            self.spin_ns = most_ns.min(thread::with(|thread| thread.patience_ns.get()));
        }
    }
}

/// A wait has spun in vain and slept so long. Patience halves, but after many sleeps that were short
/// it is tried again whether spinning pays.
pub(crate) fn miss(slept_ns: u64, most_ns: u64) {
    thread::with(|thread| {
        let own = thread.patience_ns.get().min(most_ns);
        let mut shorts = thread.short_sleeps.get();
        shorts = if slept_ns < WAKE_NS { shorts.wrapping_add(1) } else { 0 };
        thread.short_sleeps.set(shorts);
        let failures = thread.failures.get();
        let tries = shorts > 0 && shorts.is_multiple_of(SHORT_SLEEPS << failures);
        if tries {
            thread.failures.set((failures + 1).min(FAILURES_MAX));
        }
        thread.patience_ns.set(match own {
            _ if tries => most_ns.min(TRY_NS),
            own if own <= LEAST_NS => 0,
            own => (own / 2).max(LEAST_NS),
        });
    });
}

/// The longest sleep of one that may have missed something.
pub(crate) const SLICE_NS: u64 = 250_000_000;
/// Looks at memory between two looks at the clock.
const ROUNDS: u32 = 64;
/// A spin this young does not let others run yet.
const GIVE_WAY_AFTER_NS: u64 = 1_500;
/// Between two looks at the clock lies less, unless somebody else ran.
const CROWDED_NS: u64 = 50_000;
/// A sleep shorter than this might have been a spin.
const WAKE_NS: u64 = 100_000;
/// After so many of them it is tried.
const SHORT_SLEEPS: u32 = 16;
/// After twice as many the next time, if that was in vain, but no more often than this.
const FAILURES_MAX: u32 = 5;
/// For so long.
const TRY_NS: u64 = 20_000;
/// Less than this is not worth it.
const LEAST_NS: u64 = 2_000;
