//! Congestion control: how many bytes may be in the network. RFC 5681.

mod cubic;

use core::time::Duration;

use super::config::Algorithm;
use crate::time::Time;
use cubic::Cubic;

/// The congestion window, and what makes it grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Congestion {
    growth: Growth,
    /// Bytes that may be in the network.
    window: u64,
    /// Below this the window grows by what is acknowledged: slow start.
    threshold: u64,
    /// Bytes of a full segment.
    segment: u64,
}

/// How the window grows above the threshold.
#[derive(Clone, Copy, Debug)]
enum Growth {
    Cubic(Cubic),
    /// A segment for each window that is acknowledged; what is acknowledged of the present one.
    NewReno {
        acked: u64,
    },
    /// There is no window.
    Unlimited,
}

impl Congestion {
    pub(super) fn new(algorithm: Algorithm, segment: u64) -> Self {
        let (growth, window) = match algorithm {
            Algorithm::Cubic => (Growth::Cubic(Cubic::default()), initial_window(segment)),
            Algorithm::NewReno => (Growth::NewReno { acked: 0 }, initial_window(segment)),
            Algorithm::None => (Growth::Unlimited, u64::MAX),
        };
        Self { growth, window, threshold: u64::MAX, segment }
    }

    /// Bytes that may be in the network.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// The window grows by another algorithm from now on. It stays as it is, where both have one.
    pub(super) fn set_algorithm(&mut self, algorithm: Algorithm) {
        let fresh = Self::new(algorithm, self.segment);
        if fresh.window == u64::MAX || self.window == u64::MAX {
            *self = fresh;
        } else if core::mem::discriminant(&self.growth) != core::mem::discriminant(&fresh.growth) {
            self.growth = fresh.growth;
        }
    }

    /// Segments have another length now.
    pub(super) fn set_segment(&mut self, segment: u64) {
        if self.window == initial_window(self.segment) {
            self.window = initial_window(segment);
        }
        self.segment = segment;
    }

    /// `acked` bytes have arrived, of `in_flight` that were in the network before.
    pub(super) fn on_ack(&mut self, acked: u64, in_flight: u64, rtt: Duration, now: Time) {
        // A window that was not used says nothing about the network: RFC 7661.
        let slow_start = self.window < self.threshold;
        let used = in_flight.saturating_add(self.segment);
        if if slow_start { used.saturating_mul(2) } else { used } < self.window {
            self.pause(now);
            return;
        }
        match (&mut self.growth, slow_start) {
            (Growth::Unlimited, _) => {}
            (Growth::Cubic(_) | Growth::NewReno { .. }, true) => {
                self.window = (self.window + acked).min(self.threshold.max(self.window));
            }
            (Growth::Cubic(cubic), false) => {
                self.window = cubic.grow(self.window, acked, self.segment, rtt, now);
            }
            (Growth::NewReno { acked: sum }, false) => {
                *sum += acked;
                if *sum >= self.window {
                    *sum -= self.window;
                    self.window += self.segment;
                }
            }
        }
    }

    /// Something was lost of `in_flight` bytes: the window of the recovery, and after it.
    pub(super) fn on_loss(&mut self, in_flight: u64) {
        self.lower_threshold(in_flight);
        if !matches!(self.growth, Growth::Unlimited) {
            self.window = self.threshold;
        }
    }

    /// There was no answer: begins anew. `first` says that the last time-out was for other bytes.
    pub(super) fn on_timeout(&mut self, in_flight: u64, first: bool) {
        if first {
            self.lower_threshold(in_flight);
        }
        if !matches!(self.growth, Growth::Unlimited) {
            self.window = self.segment;
        }
    }

    /// Nothing was sent for longer than a time-out: RFC 5681 §4.1.
    pub(super) fn on_idle(&mut self, now: Time) {
        self.pause(now);
        if !matches!(self.growth, Growth::Unlimited) {
            self.window = self.window.min(initial_window(self.segment));
        }
    }

    fn pause(&mut self, now: Time) {
        match &mut self.growth {
            Growth::Cubic(cubic) => cubic.pause(now),
            Growth::NewReno { .. } | Growth::Unlimited => {}
        }
    }

    fn lower_threshold(&mut self, in_flight: u64) {
        let used = in_flight.min(self.window);
        let lower = match &mut self.growth {
            Growth::Cubic(cubic) => cubic.lower(self.window, used),
            Growth::NewReno { acked } => {
                *acked = 0;
                used / 2
            }
            Growth::Unlimited => return,
        };
        self.threshold = lower.max(2 * self.segment);
    }
}

/// RFC 6928 §2.
fn initial_window(segment: u64) -> u64 {
    (10 * segment).min((2 * segment).max(14_600))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Rounds of a window each, in which everything arrives.
    fn rounds(congestion: &mut Congestion, from: u64, count: u64) {
        for round in from..from + count {
            let now = Time::ZERO.plus(RTT * u32::try_from(round).unwrap());
            let window = congestion.window();
            for _ in 0..window / 1000 {
                congestion.on_ack(1000, congestion.window(), RTT, now);
            }
        }
    }

    #[test]
    fn reno_doubles_then_halves_then_adds_a_segment_a_round() {
        let mut reno = Congestion::new(Algorithm::NewReno, 1000);
        assert_eq!(reno.window(), 10_000);
        rounds(&mut reno, 0, 1);
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(20_000);
        assert_eq!(reno.window(), 10_000);
        rounds(&mut reno, 1, 5);
        assert!((14_000..=15_000).contains(&reno.window()), "{}", reno.window());
        reno.on_timeout(14_000, true);
        assert_eq!(reno.window(), 1000);
        rounds(&mut reno, 6, 2);
        assert_eq!(reno.window(), 4000);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
            let mut congestion = Congestion::new(algorithm, 1000);
            for _ in 0..100 {
                congestion.on_ack(1000, 1000, RTT, Time::ZERO);
            }
            assert_eq!(congestion.window(), 10_000);
        }
    }

    /// RFC 9438 §4.2: after K = ∛(W·0.3 / 0.4) seconds the window is what it was before the loss.
    #[test]
    fn cubic_is_back_after_the_time_that_the_rfc_says() {
        let mut cubic = Congestion::new(Algorithm::Cubic, 1000);
        cubic.window = 1_000_000;
        cubic.on_loss(1_000_000);
        assert_eq!(cubic.window(), 700_000);
        // ∛(1000 · 0.75) = 9.09 seconds.
        rounds(&mut cubic, 0, 45);
        assert!((900_000..980_000).contains(&cubic.window()), "{}", cubic.window());
        rounds(&mut cubic, 45, 46);
        assert!((990_000..1_010_000).contains(&cubic.window()), "{}", cubic.window());
        rounds(&mut cubic, 91, 60);
        assert!(cubic.window() > 1_080_000, "{}", cubic.window());
    }

    /// RFC 9438 §5.8.
    #[test]
    fn cubic_does_not_count_the_time_in_which_the_window_is_not_used() {
        let mut cubic = Congestion::new(Algorithm::Cubic, 1000);
        cubic.window = 1_000_000;
        cubic.on_loss(1_000_000);
        rounds(&mut cubic, 0, 90);
        let before = cubic.window();
        let mut idle = cubic;
        // 1000 seconds with little to send: the same as without them.
        for round in 90..10_090 {
            idle.on_ack(1000, 1000, RTT, Time::ZERO.plus(RTT * round));
        }
        assert_eq!(idle.window(), before);
        rounds(&mut idle, 10_090, 20);
        rounds(&mut cubic, 90, 20);
        assert!(idle.window().abs_diff(cubic.window()) < 2000, "{idle:?} {cubic:?}");
        assert!(cubic.window() > before);
        // 1000 seconds with nothing to send.
        idle.on_idle(Time::ZERO.plus(RTT * 20_109));
        idle.window = cubic.window();
        rounds(&mut idle, 20_110, 20);
        rounds(&mut cubic, 110, 20);
        assert!(idle.window().abs_diff(cubic.window()) < 2000, "{idle:?} {cubic:?}");
    }

    /// Goal: each name is of the algorithm that answers a loss as its RFC says.
    #[test]
    fn algorithms_have_names() {
        let after_loss = |name| {
            let algorithm = Algorithm::named(name)?;
            let mut congestion = Congestion::new(algorithm, 1000);
            congestion.on_loss(10_000);
            Some(congestion.window())
        };
        let expected = [
            ("reno", Some(5000)),
            ("newreno", Some(5000)),
            ("cubic", Some(7000)),
            ("none", Some(u64::MAX)),
            ("bbr", None),
            ("", None),
        ];
        for (name, window) in expected {
            assert_eq!(after_loss(name), window, "{name}");
        }
    }

    #[test]
    fn another_algorithm_goes_on_with_the_window_if_it_has_one() {
        let mut congestion = Congestion::new(Algorithm::Cubic, 1000);
        rounds(&mut congestion, 0, 1);
        congestion.set_algorithm(Algorithm::NewReno);
        assert_eq!(congestion.window(), 20_000);
        congestion.on_loss(20_000);
        assert_eq!(congestion.window(), 10_000, "as NewReno has it");
        congestion.set_algorithm(Algorithm::None);
        assert_eq!(congestion.window(), u64::MAX);
        congestion.set_algorithm(Algorithm::Cubic);
        assert_eq!(congestion.window(), 10_000, "a first window");
        congestion.on_loss(10_000);
        assert_eq!(congestion.window(), 7000, "as CUBIC has it");
    }

    #[test]
    fn none_has_no_window() {
        let mut none = Congestion::new(Algorithm::None, 1000);
        none.on_loss(5000);
        none.on_timeout(5000, true);
        none.on_idle(Time::ZERO);
        assert_eq!(none.window(), u64::MAX);
    }
}
