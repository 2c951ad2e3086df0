//! Datagrams that the kernel has dropped for want of room: a record does not wait for them, and what was sent after it does
//! not pass it.
//!
//! The kernel says of each datagram how many it had dropped before it queued that (`SO_RXQ_OVFL`, socket(7)), but not of
//! which sender they were. They are taken for one sender's if no other sender has lost any, as far as the counts say, nothing has come
//! that no sender here counts, and the counts agree with that. A few of a stranger's that were dropped before any of its came
//! can be taken for a sender's, while that sender has more in the queue: then a record passes one of those.

use std::sync::atomic::Ordering;

use super::{Empty, Front, Mailbox, Sender};

impl Mailbox {
    /// How many datagrams have been dropped, of `drops` in all, that are neither assigned to a sender nor written off.
    fn fresh(&self, drops: u32) -> u32 {
        let known = self.header().consumer.drops.load(Ordering::Relaxed);
        u32::try_from(drops.wrapping_sub(known).cast_signed()).unwrap_or(0)
    }

    /// How many datagrams senders have given to the kernel that have not come. `left_out` is not counted. `None` if any other
    /// sender is unsettled.
    fn outstanding(&self, left_out: Option<&Sender>) -> Option<u32> {
        let header = self.header();
        let used = usize::try_from(header.used.load(Ordering::Acquire)).unwrap_or(0);
        let mut senders = header.senders.iter().take(used).filter(|sender| {
            sender.is_used() && left_out.is_none_or(|left_out| !std::ptr::eq(left_out, *sender))
        });
        senders.try_fold(0_u32, |sum, sender| {
            let missing = u32::try_from(sender.missing(sender.given())).unwrap_or(0);
            (!sender.is_unsettled()).then(|| sum.saturating_add(missing))
        })
    }

    /// What the first record waits for has come to nothing, of which `count` datagrams were dropped.
    fn skip(&self, front: &Front, count: u32) {
        let consumer = &self.header().consumer;
        if let Some(sender) = self.sender(front.sender) {
            sender.skip(front.before);
        }
        let known = consumer.drops.load(Ordering::Relaxed).wrapping_add(count);
        consumer.drops.store(known, Ordering::Relaxed);
        consumer.blocked_ns.store(0, Ordering::Relaxed);
    }

    /// Of `drops` dropped in all, no more were senders' than have not come: the others are written off.
    pub(super) fn write_off(&self, drops: u32) {
        let fresh = self.fresh(drops);
        if fresh == 0 {
            return;
        }
        let Some(outstanding) = self.outstanding(None) else { return };
        let known = drops.wrapping_sub(fresh.min(outstanding));
        self.header().consumer.drops.store(known, Ordering::Relaxed);
    }

    /// Whether some have been dropped, of `drops` in all, for which a record may wait.
    pub(crate) fn has_fresh(&self, drops: u32) -> bool {
        self.fresh(drops) > 0
    }

    /// The first record is blocked, and the kernel's queue begins with a datagram from `from`, before which `drops` in all had
    /// been dropped. Returns whether it is known that the record was sent before that one: then all that it waits for has
    /// been dropped, and it waits no longer. The readers' lock is held.
    pub(crate) fn passes(&self, front: &Front, from: std::net::SocketAddr, drops: u32) -> bool {
        let Some(sender) = self.sender(front.sender).filter(|sender| sender.matches(from)) else {
            return false;
        };
        let missing = |before| u32::try_from(sender.missing(before)).unwrap_or(0);
        let (outstanding, missing) = (missing(sender.given()), missing(front.before));
        let fresh = self.fresh(drops);
        let of_others = self.outstanding(Some(sender)).filter(|_| !self.is_mixed());
        let is_dropped = of_others.is_some_and(|of_others| {
            // The first datagram has not come either.
            fresh < of_others.saturating_add(outstanding)
                && fresh.checked_sub(of_others).is_some_and(|own| own >= missing)
        });
        if is_dropped {
            self.skip(front, missing);
        }
        is_dropped
    }

    /// A record is blocked, and the kernel has nothing: it goes on if what is missing was dropped, or has not come for a long
    /// time. `drops` is the kernel's count for this socket. The readers' lock is held.
    pub(crate) fn unblock(&self, front: &Front, drops: u32, now_ns: u64) -> bool {
        let consumer = &self.header().consumer;
        let since = consumer.blocked_ns.load(Ordering::Relaxed);
        if since == 0 {
            consumer.blocked_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
        // A time that is still to come was never written by a reader.
        let is_old = since != 0 && (since > now_ns || now_ns - since > BLOCKED_MAX_NS);
        let missing = self.sender(front.sender).map_or(0, |sender| sender.missing(front.before));
        let missing = u32::try_from(missing).unwrap_or(0);
        let fresh = self.fresh(drops);
        if !is_old && fresh < missing {
            return false;
        }
        self.skip(front, missing.min(fresh));
        true
    }

    /// The kernel's queue is empty: what senders have given to it that has not come was dropped, and no more. The readers' lock is
    /// held.
    pub(crate) fn unmix(&self, empty: Empty) {
        self.header().consumer.is_mixed.store(0, Ordering::Relaxed);
        self.write_off(empty.drops);
    }

    /// Whether the kernel has brought something that no sender here counts, since its queue was last seen to be empty.
    #[inline]
    pub(crate) fn is_mixed(&self) -> bool {
        self.header().consumer.is_mixed.load(Ordering::Relaxed) != 0
    }

    /// The kernel has brought something that no sender here counts.
    pub(super) fn mix(&self) {
        self.header().consumer.is_mixed.store(1, Ordering::Relaxed);
    }
}

/// How long a record waits for what the kernel does not bring.
const BLOCKED_MAX_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::{Pushed, Sent};
    use super::*;
    use crate::base::iovec::IoCursor;

    fn from(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
    }

    fn empty(drops: u32) -> Empty {
        Empty { now_ns: 1, drops }
    }

    /// A mailbox with a settled sender, which has given `given` datagrams to the kernel before a record, and `later` after it.
    fn blocked(of: &str, given: u32, later: u32) -> (Mailbox, Front) {
        let mailbox = Mailbox::of_test(of, 7);
        mailbox.let_senders(0, 0);
        let place = mailbox.enter(1, from(1), None).expect("a place");
        mailbox.settle(|| Some(empty(0)));
        let sender = mailbox.entered(place).expect("an entry");
        (0..given).for_each(|_| _ = sender.gives());
        let pushed = mailbox.push(place, sender.given(), &mut IoCursor::new(&[]), 0, true, None);
        assert!(matches!(pushed, Pushed::At(_)));
        (0..later).for_each(|_| _ = sender.gives());
        let front = mailbox.front().expect("a record");
        (mailbox, front)
    }

    /// Goal: a record goes before what its sender gave to the kernel after it where all before it was dropped, and waits where
    /// one of those is still to come.
    #[test]
    fn a_record_waits_for_what_is_in_the_queue_and_not_for_what_was_dropped() {
        let (mailbox, front) = blocked("dropped", 3, 2);
        assert!(!mailbox.passes(&front, from(1), 2), "the first in the queue is before it");
        mailbox.note(from(1), Sent::Here, 0);
        assert!(mailbox.is_blocked(&front) && mailbox.passes(&front, from(1), 2));
        assert!(!mailbox.is_blocked(&front) && !mailbox.has_fresh(2));
    }

    /// Goal: what may be another's loss is not taken for the sender's.
    #[test]
    fn what_another_may_have_lost_counts_for_none() {
        let (mailbox, front) = blocked("others", 1, 1);
        assert!(!mailbox.passes(&front, from(2), 1), "that is not the sender's");
        let other = mailbox.enter(2, from(2), None).expect("a place");
        assert!(!mailbox.passes(&front, from(1), 1), "the other one is not settled");
        mailbox.settle(|| Some(empty(0)));
        mailbox.entered(other).expect("an entry").gives();
        assert!(!mailbox.passes(&front, from(1), 1), "it may be the other's");
        mailbox.note(from(3), Sent::Here, 0);
        assert!(mailbox.is_mixed() && !mailbox.passes(&front, from(1), 2), "or a stranger's");
        // With an empty queue what both have given was dropped: the one before the record, the one behind it, and the other's.
        mailbox.unmix(empty(9));
        assert!(!mailbox.is_mixed() && mailbox.has_fresh(7) && !mailbox.has_fresh(6));
        assert!(mailbox.unblock(&front, 9, 1));
    }

    /// Goal: what no sender can have lost that is there is written off. Method: one that has lost some leaves, or a stranger
    /// has lost some, of which none has come.
    #[test]
    fn what_was_lost_by_one_that_has_left_counts_for_none() {
        let (mailbox, front) = blocked("left", 1, 0);
        assert!(!mailbox.passes(&front, from(1), 5), "the first in the queue is the one");
        mailbox.note(from(1), Sent::Here, 5);
        assert!(!mailbox.is_blocked(&front) && !mailbox.has_fresh(5));
    }

    /// Goal: with an empty queue a record waits for as many as were not dropped, and not for long.
    #[test]
    fn a_record_does_not_wait_for_what_was_dropped_before_an_empty_queue() {
        let (mailbox, front) = blocked("empty", 2, 0);
        assert!(!mailbox.unblock(&front, 1, 5));
        assert!(mailbox.unblock(&front, 2, 6));
        let (mailbox, front) = blocked("lost", 2, 0);
        assert!(!mailbox.unblock(&front, 1, 5));
        assert!(mailbox.unblock(&front, 1, 6 + BLOCKED_MAX_NS) && !mailbox.has_fresh(1));
    }
}
