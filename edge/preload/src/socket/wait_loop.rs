//! The wait loop: calls that wait look, spin while that is worth it, sleep, and look again.
//!
//! What a call looks at and what wakes it differ; the order of the steps, time limits and signals are the same for all.
//! How long a wait spins is in `spin.rs`.

use std::sync::atomic::Ordering;

use crate::base::raw::{self, Errno};
use crate::base::thread::{Interrupts, Seen};
use crate::socket::spin::{Spin, SpinBudget};
use crate::socket::state::Socket;

/// How long a call may spin and last, and which signals end it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) spin_ns: u64,
    pub(crate) limit_ns: Option<u64>,
    pub(crate) kind: Interrupts,
}

impl Limits {
    /// Those of a call that receives. A time limit (`SO_RCVTIMEO`) makes every handler end it, as in the kernel.
    pub(crate) fn of_receiver(socket: &Socket, spin_ns: u64) -> Self {
        Self::of_option(spin_ns, socket.options.receive_limit_ns.load(Ordering::Relaxed))
    }

    /// Those of a call that sends.
    pub(crate) fn of_sender(socket: &Socket, spin_ns: u64) -> Self {
        Self::of_option(spin_ns, socket.options.send_limit_ns.load(Ordering::Relaxed))
    }

    fn of_option(spin_ns: u64, limit_ns: u64) -> Self {
        match limit_ns {
            0 => Self { spin_ns, limit_ns: None, kind: Interrupts::Hard },
            limit_ns => Self { spin_ns, limit_ns: Some(limit_ns), kind: Interrupts::All },
        }
    }

    /// The budget of a wait that begins now.
    pub(crate) fn start(self) -> SpinBudget {
        SpinBudget::start(self.spin_ns, self.limit_ns, self.kind)
    }
}

/// The spin budget of one call. It starts with the first look in vain, so that a call that finds something at once asks
/// for no time.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    seen: Seen,
    started: Option<SpinBudget>,
}

impl Budget {
    /// That of a call that began when so many handlers had run.
    pub(crate) fn new(limits: Limits, seen: Seen) -> Self {
        Self { limits, seen, started: None }
    }

    pub(crate) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    pub(crate) fn start(&mut self) -> &mut SpinBudget {
        let (limits, seen) = (self.limits, self.seen);
        self.started.get_or_insert_with(|| limits.start().since(seen))
    }
}

/// What a look has found.
#[derive(Debug)]
pub(crate) enum Look<A> {
    Found(A),
    /// Nothing; the look took as long as so many looks at memory.
    Nothing(u32),
}

/// What became of a sleep.
#[derive(Debug)]
pub(crate) enum Rest<A> {
    /// It has slept; [`Wait::woken`] looks what for.
    Slept,
    /// It has slept until there was an answer.
    Answered(A),
    /// It has not slept: the answer was there, or the caller sleeps elsewhere.
    Found(A),
    /// It has not slept: something is there, or about to be.
    Barred,
}

/// A call that waits.
pub(crate) trait Wait {
    /// What ends the call.
    type Answer;

    /// Looks once.
    fn look(&mut self, budget: &mut Budget) -> Look<Self::Answer>;

    /// Says that it sleeps, to whatever has to wake it, and sleeps for at most as long as the budget says.
    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Self::Answer>;

    /// Looks after a sleep. `None`: it spins again, unless time or a signal ends the call.
    fn woken(&mut self) -> Option<Self::Answer> {
        None
    }

    /// The time limit has passed: a look at what the last one left out.
    fn last_look(&mut self) -> Option<Self::Answer> {
        None
    }
}

/// What has ended a call that found nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ended {
    Interrupted,
    TimedOut,
}

impl From<Ended> for Errno {
    /// As `recv(2)` and `send(2)` say it.
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Interrupted => Self::INTR,
            Ended::TimedOut => Self::AGAIN,
        }
    }
}

/// Waits until there is an answer, or time or a signal ends the call.
#[inline]
pub(crate) fn wait<W: Wait>(mut budget: Budget, call: &mut W) -> Result<W::Answer, Ended> {
    let most_ns = budget.limits.spin_ns;
    loop {
        let looks = match call.look(&mut budget) {
            Look::Found(answer) => {
                budget.started.iter().for_each(|spin| spin.hit(most_ns));
                return Ok(answer);
            }
            Look::Nothing(looks) => looks,
        };
        let spin = budget.start();
        match spin.goes_on_after(looks) {
            Spin::Look => continue,
            Spin::Interrupted => return Err(Ended::Interrupted),
            Spin::TimedOut => return call.last_look().ok_or(Ended::TimedOut),
            Spin::Sleep => {}
        }
        let since_ns = raw::now_ns();
        match call.sleep(spin) {
            Rest::Slept => {}
            Rest::Answered(answer) => {
                spin.miss(since_ns, most_ns);
                return Ok(answer);
            }
            Rest::Found(answer) => return Ok(answer),
            Rest::Barred => continue,
        }
        spin.slept(since_ns, most_ns);
        if let Some(answer) = call.woken() {
            return Ok(answer);
        }
        if spin.is_interrupted() {
            return Err(Ended::Interrupted);
        }
        if spin.is_over() {
            return call.last_look().ok_or(Ended::TimedOut);
        }
    }
}
