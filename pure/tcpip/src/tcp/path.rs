//! How long packets of a path may be: what routers say, and what is supposed when none says anything. RFC 1191, RFC 4821.
//!
//! Silence after long packets may be a router that swallows them, or a path that takes nothing for a while. Short packets
//! are a hypothesis, then: longer ones are tried again and again, one at a time, more and more rarely.

use core::time::Duration;

use crate::time::{Time, is_due};

/// The length of packets, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// Longer ones are not sent, except for one to try.
    mtu: u16,
    /// Longer ones are not tried: the interface or a router says so.
    most: u16,
    /// When a longer one is tried.
    try_at: Option<Time>,
    /// How many have been tried since the last that arrived.
    tried: u32,
}

impl PathMtu {
    pub(super) fn new(mtu: u16) -> Self {
        Self { mtu, most: mtu, try_at: None, tried: 0 }
    }

    pub(super) fn bytes(self) -> u16 {
        self.mtu
    }

    /// A router takes no longer ones. Says whether some on the way may be too long.
    pub(super) fn limit(&mut self, mtu: u16) -> bool {
        let less = mtu < self.most;
        self.most = self.most.min(mtu);
        self.mtu = self.mtu.min(mtu);
        less
    }

    /// What is shorter by a step than what leaves unanswered, after so many time-outs.
    pub(super) fn shorter(self, time_outs: u32, least: u16) -> Option<u16> {
        let steps = SHORTER.iter().filter(|(after, _)| time_outs >= *after);
        steps.map(|(_, mtu)| (*mtu).max(least)).filter(|mtu| *mtu < self.mtu).min()
    }

    /// Longer ones are supposed to be swallowed.
    pub(super) fn suppose(&mut self, mtu: u16) {
        self.mtu = mtu;
        self.try_at = None;
    }

    /// One of this length has arrived.
    pub(super) fn carried(&mut self, mtu: u16) {
        self.mtu = mtu.clamp(self.mtu, self.most);
        (self.try_at, self.tried) = (None, 0);
    }

    /// Packets arrive. Says how long one to try is, if it is time for one.
    pub(super) fn on_progress(&mut self, now: Time) -> Option<u16> {
        if self.mtu == self.most {
            return None;
        }
        let pause = PAUSE * (1 << self.tried.min(RARER_MAX));
        let try_at = *self.try_at.get_or_insert(now.plus(pause));
        if !is_due(Some(try_at), now) {
            return None;
        }
        self.tried = self.tried.saturating_add(1);
        self.try_at = None;
        let steps = SHORTER.iter().map(|(_, mtu)| *mtu).filter(|mtu| *mtu > self.mtu);
        Some(steps.fold(self.most, u16::min))
    }
}

/// After how many time-outs packets are supposed to arrive that have so many bytes at most: what all IPv6 links take, and
/// what all hosts of IPv4.
const SHORTER: [(u32, u16); 2] = [(2, 1280), (4, 576)];
/// Before the first that is tried; before each further one it is twice as long, up to 2 to the power of [`RARER_MAX`] times.
const PAUSE: Duration = Duration::from_secs(1);
const RARER_MAX: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: longer packets are tried step by step, each failure makes the next attempt rarer, and what a router says holds.
    #[test]
    fn what_is_supposed_is_tried_again_and_what_a_router_says_is_not() {
        let mut path = PathMtu::new(9000);
        let mut now = Time::ZERO;
        assert_eq!(path.on_progress(now), None);
        assert_eq!(
            (path.shorter(1, 0), path.shorter(2, 0), path.shorter(4, 0)),
            (None, Some(1280), Some(576))
        );
        path.suppose(576);
        assert_eq!(path.shorter(9, 0), None);
        for (second, tried) in [(0, None), (1, Some(1280)), (2, None), (3, None), (4, Some(1280))] {
            now = Time::ZERO.plus(Duration::from_secs(second));
            assert_eq!(path.on_progress(now), tried, "{second}");
        }
        path.carried(1280);
        assert_eq!((path.bytes(), path.on_progress(now)), (1280, None));
        assert_eq!(path.on_progress(now.plus(PAUSE)), Some(9000));
        assert!(path.limit(4000) && !path.limit(5000));
        path.carried(9000);
        assert_eq!((path.bytes(), path.on_progress(now)), (4000, None));
    }
}
