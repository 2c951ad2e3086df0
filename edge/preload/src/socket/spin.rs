//! Spin budgets: how long a wait spins before it sleeps.
//!
//! Waking a sleeper takes the kernel tens of microseconds, spinning takes a processor. So each thread
//! has a budget. A spin that ends with what it waited for raises it to what it needed, and more. A
//! spin in vain halves it, so that an idle program costs nothing. A spin during which another thread
//! got the processor ends at once, and the next waits do not spin: there the processor is worth more
//! than time. A thread that is cancelled ends there, as it would in the kernel's sleep: so no lock is
//! held while a thread spins.
//!
//! A thread whose waits are over within twice the usual limit, nearly all of them, spins through them; see
//! `pace.rs`. It lets others run meanwhile, and gives up where they want to often.

use crate::base::pace::Pace;
use crate::base::thread::{self, Interrupts, Seen};
use crate::base::{config, confined, raw};
use crate::socket::arena;

/// One wait: spins while [`SpinBudget::goes_on_after`] says so.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    /// When the call began to wait, and when it began to spin last.
    begun_ns: u64,
    start_ns: u64,
    spin_ns: u64,
    rounds: u32,
    interrupts: u32,
    kind: Interrupts,
    /// It spins through; see `pace.rs`.
    spins_through: bool,
    /// When the clock was last looked at.
    last_ns: u64,
    /// When others were last let run.
    let_ns: u64,
    /// When the program wants to be told at the latest.
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

impl SpinBudget {
    /// A wait that starts now: it spins for at most `most_ns`, and lasts at most `limit_ns`.
    pub(crate) fn start(most_ns: u64, limit_ns: Option<u64>, kind: Interrupts) -> Self {
        let mut start_ns = raw::now_ns();
        let (spin_ns, spins_through) = budget_of(most_ns, &mut start_ns);
        if spins_through && thread::with(|thread| thread.has_woken.replace(false)) {
            // It may wait for this very processor.
            raw::give_way();
            start_ns = raw::now_ns();
        }
        Self {
            begun_ns: start_ns,
            start_ns,
            spin_ns,
            spins_through,
            rounds: 0,
            interrupts: thread::interrupts(kind),
            kind,
            last_ns: start_ns,
            let_ns: start_ns,
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
        match crate::base::signal::may_interrupt(self.kind) {
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

    /// Spins a little, after so many looks at memory, and says what to do next.
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
        arena::describe_wanted();
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
        // Another thread ran in between: the processor is wanted elsewhere, and spinning takes it away.
        let last = std::mem::replace(&mut self.last_ns, now);
        let gone_ns = now.saturating_sub(last.max(self.start_ns));
        if config.adaptive && gone_ns > CROWDED_NS {
            return self.crowded(gone_ns, now);
        }
        if self.spins_through && now.saturating_sub(self.let_ns) > LET_RUN_NS {
            return self.let_others_run(now);
        }
        Spin::Look
    }

    /// This thread has not run for so long, though it was not asleep.
    #[cold]
    fn crowded(&mut self, gone_ns: u64, now: u64) -> Spin {
        if !self.spins_through {
            thread::with(|thread| thread.spin_ns.set(0));
            return Spin::Sleep;
        }
        let preemptions = raw::preemptions();
        let before = thread::with(|thread| thread.preemptions.replace(preemptions));
        // If it was not the scheduler, the machine below did something else.
        if before == preemptions { Spin::Look } else { self.others_ran(gone_ns, now) }
    }

    /// Lets others run that wait for this processor, such as the one that this thread has just woken.
    #[cold]
    fn let_others_run(&mut self, before: u64) -> Spin {
        raw::give_way();
        let now = raw::now_ns();
        (self.let_ns, self.last_ns) = (now, now);
        let gone_ns = now.saturating_sub(before);
        if gone_ns > SWITCH_NS { self.others_ran(gone_ns, now) } else { Spin::Look }
    }

    fn others_ran(&mut self, ran_ns: u64, now: u64) -> Spin {
        learn(|pace| pace.after_others(ran_ns, now));
        let goes_on = thread::with(|thread| thread.pace.get()).spins_through(now);
        if goes_on { Spin::Look } else { Spin::Sleep }
    }

    /// The wait is over, and it has not slept: spinning pays.
    pub(crate) fn hit(&self, most_ns: u64) {
        if self.rounds < ROUNDS {
            return;
        }
        let now = raw::now_ns();
        let spun = now.saturating_sub(self.start_ns);
        learn(|pace| pace.after_wait(now.saturating_sub(self.begun_ns), limit_ns(most_ns)));
        thread::with(|thread| {
            let own = thread.spin_ns.get();
            thread.spin_ns.set(own.max(spun.saturating_mul(4)).min(most_ns));
            thread.failures.set(0);
        });
    }

    /// The wait has slept since `since_ns`, and goes on.
    pub(crate) fn slept(&mut self, since_ns: u64, most_ns: u64) {
        self.miss(since_ns, most_ns);
        self.again(most_ns);
    }

    /// The wait goes on: it spins again.
    pub(crate) fn again(&mut self, most_ns: u64) {
        arena::describe_wanted();
        self.start_ns = raw::now_ns();
        (self.spin_ns, self.spins_through) = budget_of(most_ns, &mut self.start_ns);
        self.let_ns = self.start_ns;
    }

    /// The wait has spun in vain, and slept since `since_ns`. The budget halves, but after many sleeps that were short
    /// it is tried again whether spinning pays.
    pub(crate) fn miss(&self, since_ns: u64, most_ns: u64) {
        let now = raw::now_ns();
        let slept_ns = now.saturating_sub(since_ns);
        learn(|pace| pace.after_wait(now.saturating_sub(self.begun_ns), limit_ns(most_ns)));
        thread::with(|thread| {
            let own = thread.spin_ns.get().min(most_ns);
            let mut shorts = thread.short_sleeps.get();
            shorts = if slept_ns < WAKE_NS { shorts.wrapping_add(1) } else { 0 };
            thread.short_sleeps.set(shorts);
            let failures = thread.failures.get();
            let tries = shorts > 0 && shorts.is_multiple_of(SHORT_SLEEPS << failures);
            if tries {
                thread.failures.set((failures + 1).min(FAILURES_MAX));
            }
            thread.spin_ns.set(match own {
                _ if tries => most_ns.min(TRY_NS),
                own if own <= LEAST_NS => 0,
                own => (own / 2).max(LEAST_NS),
            });
        });
    }
}

/// How long a wait spins that starts now, and whether that is through. What is asked of the machine for that takes time, which
/// is no part of the spin.
fn budget_of(most_ns: u64, now_ns: &mut u64) -> (u64, bool) {
    let config = config::get();
    if !config.adaptive {
        return (most_ns, false);
    }
    thread::with(|thread| {
        let mut pace = thread.pace.get();
        if pace.is_count_due(*now_ns) && !confined::is_confined() {
            pace = pace.after_count(is_crowded(config.processors), *now_ns);
            thread.pace.set(pace);
            *now_ns = raw::now_ns();
        }
        match pace.spins_through(*now_ns) && !confined::is_confined() {
            true => (limit_ns(most_ns), true),
            false => (most_ns.min(thread.spin_ns.get()), false),
        }
    })
}

/// Whether more threads could run than there are processors. Of a thread that is kept to some of them, this says nothing.
#[cold]
fn is_crowded(processors: u64) -> bool {
    raw::may_run_on(processors) && raw::runnable_threads().is_some_and(|count| count > processors)
}

/// Waits that are over within this are spun through, if nearly all are.
fn limit_ns(most_ns: u64) -> u64 {
    most_ns.saturating_mul(THROUGH)
}

fn learn(f: impl FnOnce(Pace) -> Pace) {
    thread::with(|thread| thread.pace.set(f(thread.pace.get())));
}

/// The longest sleep of one that may have missed something.
pub(crate) const SLICE_NS: u64 = 250_000_000;
/// Looks at memory between two looks at the clock.
const ROUNDS: u32 = 64;
/// A look at the kernel takes as long as so many at memory.
pub(crate) const LOOKS_OF_KERNEL: u32 = ROUNDS / 4;
/// A spin this young does not let others run yet.
const GIVE_WAY_AFTER_NS: u64 = 1_500;
/// Between two looks at the clock lies less, unless another thread ran.
const CROWDED_NS: u64 = 50_000;
/// A spin lets others run so often.
const LET_RUN_NS: u64 = 8_000;
/// To let others run takes less if there are none.
const SWITCH_NS: u64 = 2_000;
/// How many times the usual limit a thread spins that spins through.
const THROUGH: u64 = 2;
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
