//! Round trips, and how long to wait for one. RFC 6298.

use core::time::Duration;

use super::config::Config;
use crate::time::Time;

/// What is known of the time that an answer takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Smoothed time, and its variation, in nanoseconds, if one has been measured.
    measured: Option<(u64, u64)>,
    /// The shortest in some minutes, in nanoseconds, and when it was measured.
    shortest: Option<(u64, Time)>,
    /// Time-outs since the last answer.
    backoff: u32,
    initial_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl RoundTrip {
    pub(super) fn new(config: &Config) -> Self {
        let Config { rto_initial, rto_min, rto_max, .. } = *config;
        Self {
            measured: None,
            shortest: None,
            backoff: 0,
            initial_ns: nanoseconds(rto_initial),
            min_ns: nanoseconds(rto_min),
            max_ns: nanoseconds(rto_max),
        }
    }

    /// A segment that was sent once has been answered after `sample`.
    pub(super) fn measure(&mut self, sample: Duration, now: Time) {
        let sample = nanoseconds(sample);
        self.measured = Some(match self.measured {
            None => (sample, sample / 2),
            Some((smooth, variation)) => {
                let differs = smooth.abs_diff(sample);
                let variation = variation.saturating_mul(3).saturating_add(differs) / 4;
                (smooth.saturating_mul(7).saturating_add(sample) / 8, variation)
            }
        });
        let kept = self
            .shortest
            .filter(|(shortest, at)| *shortest < sample && now.since(*at) < SHORTEST_KEPT);
        self.shortest = Some(kept.unwrap_or((sample, now)));
    }

    /// The smoothed time, if one has been measured.
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.measured.map(|(smooth, _)| Duration::from_nanos(smooth))
    }

    /// The shortest time in the last minutes, if one has been measured.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest.map(|(shortest, _)| Duration::from_nanos(shortest))
    }

    /// How long to wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        let base = match self.measured {
            None => self.initial_ns,
            // At least a fixed time above the smoothed one, as a peer may hold its answer for as long.
            Some((smooth, variation)) => {
                smooth.saturating_add(variation.saturating_mul(4).max(self.min_ns))
            }
        };
        let doubled = base.saturating_mul(1_u64 << self.backoff.min(BACKOFF_MAX));
        Duration::from_nanos(doubled.min(self.max_ns))
    }

    /// There was no answer in time.
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Time-outs since the last answer.
    pub(super) fn time_outs(&self) -> u32 {
        self.backoff
    }

    /// There was an answer.
    pub(super) fn answered(&mut self) {
        self.backoff = 0;
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How long the shortest round trip is believed. RFC 8985 §6.2.
const SHORTEST_KEPT: Duration = Duration::from_secs(300);

/// Doublings after which the longest time-out is reached anyway.
const BACKOFF_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298 §2, worked out by hand for samples of 100 ms and 200 ms.
    #[test]
    fn the_time_out_follows_the_samples_and_doubles() {
        let millis = Duration::from_millis;
        let config = Config { rto_min: millis(10), ..Config::default() };
        let mut trip = RoundTrip::new(&config);
        assert_eq!(trip.timeout(), millis(1000));
        trip.measure(millis(100), Time::ZERO);
        assert_eq!(trip.timeout(), millis(300));
        trip.measure(millis(200), Time::ZERO);
        // Variation (3 × 50 + 100) / 4 = 62.5; smoothed (7 × 100 + 200) / 8 = 112.5.
        assert_eq!(trip.timeout(), Duration::from_micros(112_500 + 4 * 62_500));
        trip.back_off();
        assert_eq!(trip.timeout(), Duration::from_micros(2 * 362_500));
        for _ in 0..100 {
            trip.back_off();
        }
        assert_eq!(trip.timeout(), config.rto_max);
        assert_eq!(trip.shortest(), Some(millis(100)));
    }
}
