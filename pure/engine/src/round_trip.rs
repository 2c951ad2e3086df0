//! Round-trip estimate of acknowledgements: smoothed round trips, and when to ask after what is late.
//!
//! One packet at a time is timed. A packet that was sent again is not, since its acknowledgement may be that
//! of either copy (Karn's algorithm). The arithmetic is that of RFC 6298, in integers; the wait it leads to
//! is no retransmission time-out but that of a *probe*: a packet or two that make the peer say where it is.
//! The ACK time-out of the verbs is what the caller has set, doubled where it runs out, and alone spends the retries.

use crate::time::Time;

/// Round trips of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    /// Zero: there was no sample yet.
    smoothed_ns: u64,
    variation_ns: u64,
    /// The shortest one of late, or zero.
    base_ns: u64,
    /// The packet that is timed, and when it was sent.
    timed: Option<(u64, Time)>,
    /// How often the shortest wait before a probe is doubled, because probes turned out to be needless.
    floor_doublings: u32,
    /// Samples since that was last changed.
    calm: u32,
    /// Probes since the last sample: as long as none comes, the wait may be too short for this path.
    probes: u32,
    /// Packets before this sequence number were sent again, and it is not known which copies have arrived.
    unclear_until: u64,
}

impl RoundTrip {
    /// The shortest wait before a probe, in nanoseconds. A software peer answers when its thread runs, so
    /// less would probe peers that only were not scheduled.
    const WAIT_MIN_NS: u64 = 250_000;
    /// The wait before a probe while no round trip is known, in nanoseconds.
    const WAIT_FIRST_NS: u64 = 1_000_000;
    /// A sample longer than this counts as this, in nanoseconds: the sum below cannot overflow.
    const SAMPLE_MAX_NS: u64 = 1 << 40;
    /// By this share of itself the shortest round trip grows with each that is longer.
    const BASE_DRIFT: u64 = 1 << 14;
    /// Doublings of the wait, and how many are left when the peer makes progress, once a round trip is known.
    const DOUBLINGS_MAX: u32 = 16;
    const DOUBLINGS_KEPT: u32 = 1;
    /// Doublings of the shortest wait, at most: 16 ms, which a busy machine takes to schedule a process.
    const FLOOR_DOUBLINGS_MAX: u32 = 6;
    /// After so many round trips without a needless probe the shortest wait is halved again.
    const CALM_SAMPLES: u32 = 256;

    /// A packet is sent of which no other copy can be acknowledged: for the first time, or after a refusal that says
    /// that the peer does not have it.
    #[inline]
    pub(crate) fn on_emit(&mut self, sequence: u64, now: Time) {
        if self.timed.is_none() && now != Time::UNKNOWN && sequence >= self.unclear_until {
            self.timed = Some((sequence, now));
        }
    }

    /// Everything before `unacked` has been acknowledged, some of it newly. If that ends a round trip, says how long
    /// it took and how long the shortest one did, in nanoseconds.
    #[inline]
    pub(crate) fn on_progress(&mut self, unacked: u64, now: Time) -> Option<(u64, u64)> {
        if self.smoothed_ns != 0 {
            self.probes = self.probes.min(Self::DOUBLINGS_KEPT);
        }
        let (sequence, sent) = self.timed?;
        if sequence >= unacked {
            return None;
        }
        self.timed = None;
        if now == Time::UNKNOWN {
            return None;
        }
        let nanos = now.nanos().saturating_sub(sent.nanos()).clamp(1, Self::SAMPLE_MAX_NS);
        self.sample(nanos);
        Some((nanos, self.base_ns))
    }

    /// What is on its way is sent again, because the peer does not have it.
    pub(crate) fn on_resend(&mut self) {
        self.timed = None;
    }

    /// Of the packets on their way, those from one sequence number to before the other are sent again.
    pub(crate) fn on_fill(&mut self, from: u64, to: u64) {
        self.timed = self.timed.filter(|&(sequence, _)| !(from..to).contains(&sequence));
    }

    /// The packet with this sequence number is answered, though others before it are not. Says the same as
    /// [`RoundTrip::on_progress`].
    #[cold]
    pub(crate) fn on_early(&mut self, sequence: u64, now: Time) {
        if self.timed.is_some_and(|(timed, _)| timed == sequence) {
            let _ = self.on_progress(sequence + 1, now);
        }
    }

    /// What is on its way, up to this sequence number, is sent again, because nothing was heard of it.
    pub(crate) fn on_silence(&mut self, top: u64) {
        (self.timed, self.unclear_until) = (None, top);
    }

    /// The first and the last packet under way are sent again.
    pub(crate) fn on_probe(&mut self, first: u64, last: u64) {
        self.timed = self.timed.filter(|&(sequence, _)| sequence != first && sequence != last);
        self.probes = (self.probes + 1).min(Self::DOUBLINGS_MAX);
    }

    /// The answer to a probe has come that was sent `at`, and not only that to what was asked before.
    #[cold]
    pub(crate) fn on_probe_answered(&mut self, at: Time, now: Time) {
        if now != Time::UNKNOWN {
            self.sample(now.nanos().saturating_sub(at.nanos()).clamp(1, Self::SAMPLE_MAX_NS));
        }
    }

    /// Of `probes` that were sent one after the other without an answer, the last was needless: what it asked for was
    /// on its way, and has come before. The peer was not scheduled for so long.
    #[cold]
    pub(crate) fn on_needless_probe(&mut self, probes: u32) {
        (self.floor_doublings, self.calm) =
            ((self.floor_doublings + probes).min(Self::FLOOR_DOUBLINGS_MAX), 0);
    }

    /// Probes that were sent since the last answer.
    pub(crate) fn probes(&self) -> u32 {
        self.probes
    }

    /// A round trip without a needless probe.
    #[cold]
    fn calm_down(&mut self) {
        self.calm += 1;
        if self.calm >= Self::CALM_SAMPLES {
            (self.floor_doublings, self.calm) = (self.floor_doublings - 1, 0);
        }
    }

    /// RFC 6298 §2.2 and §2.3: gains of an eighth and a quarter.
    fn sample(&mut self, nanos: u64) {
        self.probes = 0;
        if self.floor_doublings > 0 {
            self.calm_down();
        }
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns, self.base_ns) = (nanos, nanos / 2, nanos);
            return;
        }
        let off = self.smoothed_ns.abs_diff(nanos);
        self.variation_ns = (3 * self.variation_ns + off) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + nanos) / 8).max(1);
        // It rises slowly, for the way may have become longer.
        self.base_ns = nanos.min(self.base_ns + self.base_ns / Self::BASE_DRIFT);
    }

    /// The shortest round trip of late, in nanoseconds.
    pub(crate) fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// How long a round trip may take, in nanoseconds.
    pub(crate) fn round_ns(&self) -> u64 {
        match self.smoothed_ns {
            0 => Self::WAIT_FIRST_NS,
            smoothed => smoothed + (4 * self.variation_ns).max(smoothed / 4),
        }
    }

    /// After this long, in nanoseconds, an answer is late.
    pub(crate) fn late_after_ns(&self) -> u64 {
        self.round_ns().max(Self::WAIT_MIN_NS)
    }

    /// After this long without progress, in nanoseconds, what was sent again may be lost again.
    pub(crate) fn refill_after_ns(&self) -> u64 {
        self.round_ns() << self.probes
    }

    /// After this long without progress, in nanoseconds, a probe is due.
    pub(crate) fn probe_after_ns(&self) -> u64 {
        self.round_ns().max(Self::WAIT_MIN_NS << self.floor_doublings) << self.probes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    fn with_samples(micros: &[u64]) -> RoundTrip {
        let mut trip = RoundTrip::default();
        for (sequence, &sample) in (0..).zip(micros) {
            trip.on_emit(sequence, at(1_000));
            let _ = trip.on_progress(sequence + 1, at(1_000 + sample));
        }
        trip
    }

    /// The second source is RFC 6298 §2: R = 800 gives SRTT 800 and RTTVAR 400, then R' = 1600 gives RTTVAR
    /// 3/4 · 400 + 1/4 · 800 = 500 and SRTT 7/8 · 800 + 1/8 · 1600 = 900.
    #[test]
    fn the_wait_is_that_of_rfc_6298() {
        assert_eq!(RoundTrip::default().late_after_ns(), RoundTrip::WAIT_FIRST_NS);
        assert_eq!(with_samples(&[800]).late_after_ns(), (800 + 4 * 400) * 1000);
        assert_eq!(with_samples(&[800, 1600]).late_after_ns(), (900 + 4 * 500) * 1000);
        assert_eq!(with_samples(&[5; 40]).late_after_ns(), RoundTrip::WAIT_MIN_NS);
    }

    #[test]
    fn what_was_sent_again_is_no_sample() {
        let mut trip = RoundTrip::default();
        trip.on_emit(0, at(0));
        trip.on_resend();
        let _ = trip.on_progress(1, at(900_000));
        assert_eq!(trip.late_after_ns(), RoundTrip::WAIT_FIRST_NS);
        for (first, last) in [(1, 5), (0, 1)] {
            trip.on_emit(1, at(0));
            trip.on_probe(first, last);
            assert_eq!(trip.on_progress(2, at(900_000)), None);
        }
        trip.on_emit(1, at(0));
        trip.on_silence(10);
        trip.on_emit(9, at(0));
        assert_eq!(trip.on_progress(10, at(900_000)), None);
        trip.on_emit(10, at(0));
        trip.on_probe(9, 11); // It was between the two.
        assert_eq!(trip.on_progress(11, at(900)), Some((900_000, 900_000)));
    }

    #[test]
    fn each_probe_doubles_the_wait_until_there_is_a_sample() {
        let mut trip = with_samples(&[800]);
        let wait = trip.probe_after_ns();
        trip.on_probe(0, 0);
        trip.on_probe(0, 0);
        assert_eq!(trip.probe_after_ns(), 4 * wait);
        (0..100).for_each(|_| trip.on_probe(0, 0));
        trip.on_emit(5, at(0));
        trip.on_probe(3, 5);
        assert_eq!(trip.on_progress(6, at(800)), None, "either copy may have been acknowledged");
        assert!(trip.probe_after_ns() > wait);
        trip.on_emit(6, at(0));
        assert!(trip.on_progress(7, at(800)).is_some());
        assert!(trip.probe_after_ns() <= wait);
    }

    /// Goal: a peer that is slow to be scheduled is waited for longer, up to a bound, and no longer than it is slow.
    #[test]
    fn needless_probes_make_the_shortest_wait_longer_for_a_while() {
        let mut trip = with_samples(&[5; 40]);
        let least = trip.probe_after_ns();
        trip.on_needless_probe(2);
        assert_eq!(trip.probe_after_ns(), 4 * least);
        let trips = |trip: &mut RoundTrip, count: u32| {
            for _ in 0..count {
                trip.on_emit(99, at(1_000));
                assert!(trip.on_progress(100, at(1_005)).is_some());
            }
        };
        trips(&mut trip, RoundTrip::CALM_SAMPLES);
        assert_eq!(trip.probe_after_ns(), 2 * least);
        trips(&mut trip, 2 * RoundTrip::CALM_SAMPLES);
        assert_eq!(trip.probe_after_ns(), least);
        (0..9).for_each(|_| trip.on_needless_probe(16));
        assert_eq!(trip.probe_after_ns(), least << RoundTrip::FLOOR_DOUBLINGS_MAX);
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let mut trip = RoundTrip::default();
        trip.on_emit(0, at(5));
        let _ = trip.on_progress(1, Time::UNKNOWN);
        trip.on_emit(1, at(5));
        let _ = trip.on_progress(2, at(4)); // The clock went back.
        trip.on_emit(2, Time::ZERO);
        let _ = trip.on_progress(3, Time::from_nanos(u64::MAX - 1));
        (0..100).for_each(|_| trip.on_probe(0, 0));
        assert!(Time::from_nanos(5).plus_nanos(trip.probe_after_ns()) > at(5));
    }
}
