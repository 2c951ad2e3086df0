//! Pacing: segments leave at a rate, not in bursts.

use core::time::Duration;

use crate::time::Time;

/// When the next segment may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    /// Bytes a second.
    rate: Option<u64>,
    next: Time,
    /// A segment has been held back.
    waits: bool,
}

impl Pacer {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.filter(|rate| *rate > 0), next: Time::ZERO, waits: false }
    }

    /// From now on the rate is this one.
    pub(super) fn set(&mut self, rate: Option<u64>) {
        let new = Self::new(rate);
        // The same rate once more is no reason for a burst, and what was due to another says nothing of this one.
        if new.rate != self.rate {
            *self = new;
        }
    }

    /// Nothing may leave yet. If so, [`Pacer::deadline`] says when.
    pub(super) fn waits(&mut self, now: Time) -> bool {
        self.waits = self.rate.is_some() && now < self.next;
        self.waits
    }

    /// A segment of so many bytes leaves.
    pub(super) fn sent(&mut self, bytes: u64, now: Time) {
        if let Some(rate) = self.rate {
            let nanos = bytes.saturating_mul(1_000_000_000) / rate;
            let begin = Time::from_nanos(now.nanos().saturating_sub(LATE_MAX_NS));
            self.next = self.next.max(begin).plus(Duration::from_nanos(nanos));
        }
    }

    /// When a segment that was held back may leave.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waits.then_some(self.next)
    }

    pub(super) fn on_time(&mut self, now: Time) {
        self.waits &= now < self.next;
    }
}

/// How late a clock may be without making the rate lower.
const LATE_MAX_NS: u64 = 1_000_000;
