//! Listeners: how many connections may come at once, and how often. RFC 9293 §3.10.7.2, RFC 4987.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::tcp::Config;
use crate::time::Time;

/// What a program chooses for its listener.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Of the connections.
    pub config: Config,
    /// Connections that wait to be accepted, at most.
    pub backlog: usize,
    /// Connections whose handshake is not over, at most.
    pub half_open_max: usize,
    /// Connections a second, at most.
    pub syn_rate: Option<u32>,
}

/// A listener's connections.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) listen: Listen,
    half_open: usize,
    /// Slots that wait to be accepted, by ticket: the one that has waited the longest is first.
    complete: BTreeMap<u64, u32>,
    bucket: Bucket,
    /// It is among those with a connection to accept.
    pub(super) told: bool,
}

/// Connections that may still come.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    filled: Time,
}

impl Listener {
    pub(super) fn new(listen: Listen, now: Time) -> Self {
        let left = listen.syn_rate.unwrap_or(0);
        let bucket = Bucket { left, filled: now };
        Self { listen, half_open: 0, complete: BTreeMap::new(), bucket, told: false }
    }

    /// A SYN may be answered.
    pub(super) fn admits(&mut self, now: Time) -> bool {
        let room =
            self.half_open < self.listen.half_open_max && self.complete.len() < self.listen.backlog;
        room && self.listen.syn_rate.is_none_or(|rate| self.bucket.take(rate, now))
    }

    /// A SYN has been answered.
    pub(super) fn begin(&mut self) {
        self.half_open += 1;
    }

    /// A handshake is over.
    pub(super) fn complete(&mut self, ticket: u64, slot: u32) {
        self.half_open = self.half_open.saturating_sub(1);
        self.complete.insert(ticket, slot);
    }

    /// A connection has ended before it was accepted; it has a ticket if its handshake was over.
    pub(super) fn lose(&mut self, ticket: Option<u64>) {
        match ticket {
            Some(ticket) => _ = self.complete.remove(&ticket),
            None => self.half_open = self.half_open.saturating_sub(1),
        }
    }

    /// The connection that has waited the longest.
    pub(super) fn accept(&mut self) -> Option<u32> {
        self.complete.pop_first().map(|(_, slot)| slot)
    }

    /// Connections that wait to be accepted.
    pub(super) fn waiting(&self) -> usize {
        self.complete.len()
    }
}

impl Bucket {
    fn take(&mut self, rate: u32, now: Time) -> bool {
        let nanos = now.since(self.filled).as_nanos();
        let more = nanos.saturating_mul(rate.into()) / SECOND;
        if more > 0 {
            // The part of a connection that is left over counts the next time.
            let used = (more * SECOND).div_ceil(rate.into());
            self.filled =
                self.filled.plus(Duration::from_nanos(u64::try_from(used).unwrap_or(u64::MAX)));
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(rate);
        }
        let can = self.left > 0;
        self.left = self.left.saturating_sub(1);
        can
    }
}

/// In nanoseconds.
const SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_at_its_rate_however_often_it_is_asked() {
        for (rate, every_ms) in [(10, 60), (10, 1), (3, 100), (7, 13), (1, 999)] {
            let mut bucket = Bucket { left: 0, filled: Time::ZERO };
            let asks = 100_000 / every_ms;
            let taken = (1..=asks).filter(|ask| {
                bucket.take(rate, Time::ZERO.plus(Duration::from_millis(ask * every_ms)))
            });
            let taken = u64::try_from(taken.count()).unwrap();
            let expected = u64::from(rate) * asks * every_ms / 1000;
            assert!((expected - 1..=expected).contains(&taken), "{rate} {every_ms}: {taken}");
        }
    }

    #[test]
    fn a_bucket_holds_a_second() {
        let mut bucket = Bucket { left: 0, filled: Time::ZERO };
        let late = Time::ZERO.plus(Duration::from_secs(1000));
        assert_eq!((0..100).filter(|_| bucket.take(10, late)).count(), 10);
        assert!(!(0..100).any(|_| bucket.take(0, late)));
    }
}
