//! Congestion notifications of a receiver: when marked packets are reported to the peer.
//!
//! A switch marks packets that it has to queue (RFC 3168). The receiver answers with a CNP, a packet of its
//! own that goes back at once, and the requester there closes its window (`window.rs`). RoCEv2 leaves open how
//! often; IBTA Vol. 1 Annex A17 §A17.9.

use crate::time::Time;

/// Marks that one queue pair has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marked {
    owed: bool,
    /// When the last notification was owed.
    last: Option<Time>,
}

impl Marked {
    /// Nanoseconds between two notifications, at least: those of DCQCN.
    const INTERVAL_NS: u64 = 50_000;

    /// A marked packet has come.
    pub(crate) fn on_mark(&mut self, now: Time) {
        let due = self.last.is_none_or(|last| last.plus_nanos(Self::INTERVAL_NS) <= now);
        if due && now != Time::UNKNOWN {
            (self.owed, self.last) = (true, Some(now));
        }
    }

    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.owed
    }

    /// The notification that is owed leaves.
    pub(crate) fn on_sent(&mut self) {
        self.owed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_at_once_and_then_once_in_a_while() {
        let mut marked = Marked::default();
        for (nanos, owed) in [(7, true), (8, false), (50_006, false), (50_007, true)] {
            marked.on_mark(Time::from_nanos(nanos));
            assert_eq!(marked.is_owed(), owed, "{nanos}");
            marked.on_sent();
        }
        marked.on_mark(Time::UNKNOWN);
        assert!(!marked.is_owed());
    }
}
