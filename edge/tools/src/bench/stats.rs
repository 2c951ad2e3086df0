//! What a list of samples comes to: percentiles of one run, and the median over several runs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Durations of one run, in nanoseconds, three digits exact.
#[derive(Clone, Debug)]
pub(crate) struct Samples(Histogram<u64>);

impl Samples {
    /// None yet. All memory is taken here, so that recording never allocates.
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants"))
    }

    /// Adds one; anything above [`LONGEST_NS`] counts as that.
    pub(crate) fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.saturating_record(ns);
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The percentiles that people compare.
    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50: self.0.value_at_quantile(0.50),
            p99: self.0.value_at_quantile(0.99),
            p999: self.0.value_at_quantile(0.999),
        }
    }
}

/// Half, ninety-nine and 99.9 of a hundred samples were at most this long, in nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    /// The median.
    pub(crate) p50: u64,
    /// One in a hundred is longer.
    pub(crate) p99: u64,
    /// One in a thousand is longer.
    pub(crate) p999: u64,
}

impl Percentiles {
    /// Of every percentile its own median over the runs; `None` without runs.
    pub(crate) fn median(runs: &[Self]) -> Option<Self> {
        let of = |percentile: fn(&Self) -> u64| median(runs.iter().map(percentile).collect());
        Some(Self { p50: of(|p| p.p50)?, p99: of(|p| p.p99)?, p999: of(|p| p.p999)? })
    }

    /// Half of each: what one way takes, if this is there and back.
    pub(crate) fn halved(self) -> Self {
        let half = |ns: u64| ns.midpoint(0);
        Self { p50: half(self.p50), p99: half(self.p99), p999: half(self.p999) }
    }
}

/// The one in the middle; of an even number the lower of the two, so that it is one that happened.
pub(crate) fn median(mut runs: Vec<u64>) -> Option<u64> {
    runs.sort_unstable();
    runs.get(runs.len().checked_sub(1)? / 2).copied()
}

/// How many of something in a second, to the nearest whole number; 0 if no time has passed.
pub(crate) fn per_second(count: u64, elapsed: Duration) -> u64 {
    let ns = elapsed.as_nanos();
    let scaled = u128::from(count) * 1_000_000_000;
    scaled.checked_div(ns).and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0)
}

/// `ours / floor`, three decimals; `None` without a floor to compare with.
pub(crate) fn ratio(ours: u64, floor: u64) -> Option<f64> {
    let ratio = to_f64(ours) / to_f64(floor);
    ratio.is_finite().then(|| (ratio * 1000.0).round() / 1000.0)
}

/// The nearest number that a calculation can use.
pub(crate) fn to_f64(number: u64) -> f64 {
    #[expect(clippy::as_conversions, reason = "rounding is meant: there is no other way to say it")]
    let nearest = number as f64;
    nearest
}

/// The longest duration told apart from longer ones: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_one_to_ten_thousand_are_where_they_belong() {
        let mut samples = Samples::new();
        (1..=10_000).for_each(|us| samples.record(Duration::from_micros(us)));
        let Percentiles { p50, p99, p999 } = samples.percentiles();
        for (got, expected) in [(p50, 5_000_000), (p99, 9_900_000), (p999, 9_990_000)] {
            let error = to_f64(got) / to_f64(expected) - 1.0;
            assert!(error.abs() < 0.001, "{got} is not {expected}");
        }
        assert_eq!(samples.len(), 10_000);
    }

    #[test]
    fn a_duration_beyond_the_scale_is_counted_at_its_end() {
        let mut samples = Samples::new();
        samples.record(Duration::from_secs(3600));
        assert!(samples.percentiles().p50 >= LONGEST_NS);
    }

    #[test]
    fn the_median_is_a_run_that_happened_and_each_percentile_has_its_own() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![9]), Some(9));
        assert_eq!(median(vec![5, 1]), Some(1));
        assert_eq!(median(vec![5, 1, 900]), Some(5));
        let run = |p50, p99, p999| Percentiles { p50, p99, p999 };
        let runs = [run(1, 20, 300), run(2, 30, 100), run(3, 10, 200)];
        assert_eq!(Percentiles::median(&runs), Some(run(2, 20, 200)));
    }

    #[test]
    fn rates_and_ratios_survive_zero_and_large_numbers() {
        assert_eq!(per_second(10, Duration::from_millis(1)), 10_000);
        assert_eq!(per_second(10, Duration::ZERO), 0);
        assert_eq!(per_second(u64::MAX, Duration::from_secs(1)), u64::MAX);
        assert_eq!(ratio(3, 2), Some(1.5));
        assert_eq!(ratio(1, 0), None);
        assert_eq!(ratio(0, 0), None);
    }

    #[test]
    fn halves_round_down() {
        let whole = Percentiles { p50: 3, p99: 10, p999: 11 };
        assert_eq!(whole.halved(), Percentiles { p50: 1, p99: 5, p999: 5 });
    }
}
