//! How long a test goes on: a number of iterations, a time, or whichever ends first.

use std::time::{Duration, Instant};

use super::control::Watch;
use super::stats::Samples;
use crate::failure::Failure;

/// The end of a test, as the user or the plan wants it. At least one of the two is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    /// Stop after so many.
    pub(crate) iters: Option<u64>,
    /// Stop after so long.
    pub(crate) duration: Option<Duration>,
}

impl Limit {
    /// Stop after so long.
    pub(crate) const fn time(duration: Duration) -> Self {
        Self { iters: None, duration: Some(duration) }
    }

    /// A tenth of the time or of the iterations, not counted, before the test itself.
    pub(crate) fn warm_up(self) -> Self {
        Self {
            iters: self.iters.map(|iters| (iters / 10).max(1)),
            duration: self.duration.map(|duration| duration / 10),
        }
    }

    /// Starts the clock.
    pub(crate) fn start(self) -> Pace {
        let now = Instant::now();
        Pace { left: self.iters, until: self.duration.and_then(|d| now.checked_add(d)) }
    }

    /// Takes turns, the first few to warm up, and times each of the others from the end of the one
    /// before.
    #[inline]
    pub(crate) fn time_turns(
        self,
        watch: &mut Watch<'_>,
        mut turn: impl FnMut(&mut Watch<'_>) -> Result<(), Failure>,
    ) -> Result<Samples, Failure> {
        self.warm_up().start().time_turns(watch, &mut turn)?;
        self.start().time_turns(watch, &mut turn)
    }

    /// The time that floors take beside a test with this limit: its own, or a short one where only
    /// iterations were asked for.
    pub(crate) fn for_floor(self) -> Self {
        Self { iters: self.iters, duration: self.duration.or(Some(FLOOR_TIME_MAX)) }
    }

    /// The same by time alone: a stream over sockets needs a while until it flows, however few
    /// iterations were asked for.
    pub(crate) fn by_time(self) -> Self {
        Self::time(self.duration.unwrap_or(FLOOR_TIME_MAX))
    }
}

/// A test that is running.
#[derive(Debug)]
pub(crate) struct Pace {
    left: Option<u64>,
    until: Option<Instant>,
}

impl Pace {
    #[inline]
    fn time_turns(
        mut self,
        watch: &mut Watch<'_>,
        turn: &mut impl FnMut(&mut Watch<'_>) -> Result<(), Failure>,
    ) -> Result<Samples, Failure> {
        let mut samples = Samples::new();
        let mut began = Instant::now();
        loop {
            turn(watch)?;
            watch.busy();
            let now = Instant::now();
            samples.record(now.duration_since(began));
            began = now;
            if !self.go_on(1, now) {
                return Ok(samples);
            }
        }
    }

    /// `done` more iterations are over at `now`: whether the test goes on.
    #[inline]
    pub(crate) fn go_on(&mut self, done: u64, now: Instant) -> bool {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(done);
            if *left == 0 {
                return false;
            }
        }
        self.until.is_none_or(|until| now < until)
    }
}

/// Longest time for one floor where the user asked for iterations.
const FLOOR_TIME_MAX: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_end_a_test_exactly() {
        let mut pace = Limit { iters: Some(3), duration: None }.start();
        let now = Instant::now();
        assert_eq!([1, 1, 1].map(|done| pace.go_on(done, now)), [true, true, false]);
    }

    #[test]
    fn time_ends_a_test_whatever_the_iterations() {
        let mut pace = Limit { iters: Some(3), duration: Some(Duration::from_secs(9)) }.start();
        let now = Instant::now();
        assert!(pace.go_on(1, now));
        assert!(!pace.go_on(1, now + Duration::from_secs(10)));
    }

    #[test]
    fn a_warm_up_is_a_tenth_and_never_nothing() {
        let limit = Limit { iters: Some(5), duration: Some(Duration::from_secs(1)) };
        let tenth = Limit { iters: Some(1), duration: Some(Duration::from_millis(100)) };
        assert_eq!(limit.warm_up(), tenth);
    }
}
