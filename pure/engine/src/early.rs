//! Requests that have come early: kept until those before them have come, too.
//!
//! The specification lets a responder drop what comes after a hole, and then everything after the hole is sent
//! again. Ours keeps it, if the requester says that it knows that ([`Bth::keeps_early`]): what was overtaken by
//! up to [`OVERTAKEN_MAX`] packets is waited for, and what seems lost is *reported*, hole by hole, so that only that
//! is sent again. Where too few packets follow to tell, and one of them asks for an acknowledgement, the hole is
//! reported as *suspected*: the requester then waits a little before it sends again. Kept requests are served in order, as if
//! they had come in order: nothing of them is looked at before.
//!
//! A report is a NAK for a sequence error, marked with the same bit. Like any NAK it names the expected packet and
//! acknowledges those before; in place of the MSN it says where the hole is ([`Hole`]), or how many packets are kept, which the
//! requester may replace by others.
//!
//! Memory is bounded: for a queue pair by [`EARLY_PACKETS_MAX`], for all that share an [`EarlyBudget`] by that.
//! What is not kept is dropped, as the specification has it.
//!
//! [`Bth::keeps_early`]: adverb_wire::Bth::keeps_early

use adverb_wire::{Headers, Msn, Packet, Psn};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Packets that may overtake another before that one counts as lost.
pub(crate) const OVERTAKEN_MAX: usize = 8;
/// Packets that one queue pair keeps: as many as two windows have over a path that is not long.
pub(crate) const EARLY_PACKETS_MAX: u16 = 2048;
/// How far ahead a kept packet may be, so that a hole can be named.
const AHEAD_MAX: i32 = 1 << 16;
/// Holes that one report names, at most: the latest.
const HOLES_MAX: usize = 16;
/// Packets of a hole that one report names, at most.
const HOLE_PACKETS_MAX: u32 = 0x7f;

/// How many bytes the queue pairs that share it may keep.
#[derive(Clone, Debug)]
pub struct EarlyBudget {
    left: Arc<AtomicUsize>,
}

impl EarlyBudget {
    /// Bytes that a port keeps, at most, if nothing else is said.
    pub const BYTES_MAX: usize = 32 << 20;

    /// So many bytes.
    pub fn of(bytes: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// Bytes that may still be kept.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Default for EarlyBudget {
    fn default() -> Self {
        Self::of(Self::BYTES_MAX)
    }
}

/// Packets that are missing: `packets` of them, the first `ahead` of the expected one. If none is missing, the report
/// says that `ahead` packets are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Hole {
    pub(crate) ahead: u32,
    pub(crate) packets: u32,
    /// They may only have been overtaken.
    pub(crate) suspected: bool,
}

impl Hole {
    const PACKETS_BITS: u32 = 8;
    const SUSPECTED: u32 = 0x80;

    /// Says how many packets are kept.
    fn of_kept(kept: usize) -> Self {
        Self { ahead: u32::try_from(kept).unwrap_or(0), packets: 0, suspected: false }
    }

    /// As a report carries it, in place of the MSN.
    pub(crate) fn to_msn(self) -> Msn {
        let packets = self.packets.min(HOLE_PACKETS_MAX);
        let suspected = if self.suspected { Self::SUSPECTED } else { 0 };
        Msn::new(self.ahead << Self::PACKETS_BITS | suspected | packets)
    }

    /// What a report says.
    pub(crate) fn from_msn(msn: Msn) -> Self {
        let bits = msn.get();
        let (ahead, packets) = (bits >> Self::PACKETS_BITS, bits & HOLE_PACKETS_MAX);
        Self { ahead, packets, suspected: bits & Self::SUSPECTED != 0 }
    }
}

/// A request that has come early.
#[derive(Debug)]
pub(crate) struct Kept {
    psn: Psn,
    /// Sequence numbers that it takes.
    span: u32,
    headers: Headers,
    payload: Vec<u8>,
}

impl Kept {
    /// The packet as it came.
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet { headers: self.headers, payload: &self.payload }
    }

    /// Bytes that it takes of a budget.
    fn cost(&self) -> usize {
        size_of::<Self>() + self.payload.len()
    }
}

/// What became of a request that has come early.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Keeping {
    /// It is kept.
    Kept,
    /// It was kept already, or shares numbers with one that is.
    Known,
    /// There is no room for it.
    NoRoom,
}

/// Requests that have come early, in order.
#[derive(Debug, Default)]
pub(crate) struct Early {
    kept: VecDeque<Kept>,
    budget: EarlyBudget,
    /// Holes before this one were reported.
    told: Option<Psn>,
    /// A report is to be made, and of what.
    due: Due,
}

/// The report that is to be made.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum Due {
    #[default]
    Nothing,
    /// Much is kept: the first hole is reported, and no other.
    First,
    /// The first hole may be no more than a packet that was overtaken.
    Suspicion,
    /// There are holes that count as lost.
    Holes,
}

impl Early {
    pub(crate) fn new(budget: EarlyBudget) -> Self {
        Self { kept: VecDeque::new(), budget, told: None, due: Due::Nothing }
    }

    /// Nothing is kept, and nothing is to be reported.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A report is to be made.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due != Due::Nothing
    }

    /// Asks for a report, if something is missing: the requester seems not to know.
    pub(crate) fn ask(&mut self) {
        if !self.is_empty() {
            self.due = Due::Holes;
        }
    }

    /// Keeps a request that takes so many sequence numbers and comes after `expected`.
    pub(crate) fn keep(&mut self, packet: &Packet<'_>, span: u32, expected: Psn) -> Keeping {
        let psn = packet.headers.bth.psn;
        let at = self.kept.iter().rev().take_while(|kept| kept.psn.since(psn) > 0).count();
        let at = self.kept.len() - at;
        let before = at.checked_sub(1).and_then(|before| self.kept.get(before));
        let far = psn.since(expected) >= AHEAD_MAX || span > AHEAD_MAX.unsigned_abs();
        if self.kept.len() >= usize::from(EARLY_PACKETS_MAX) || far {
            return Keeping::NoRoom;
        }
        let overlaps = before.is_some_and(|before| before.psn.plus(before.span).since(psn) > 0)
            || self.kept.get(at).is_some_and(|after| psn.plus(span).since(after.psn) > 0);
        if overlaps {
            return Keeping::Known;
        }
        let cost = size_of::<Kept>() + packet.payload.len();
        if !self.budget.take(cost) {
            return Keeping::NoRoom;
        }
        let payload = packet.payload.to_vec();
        self.kept.insert(at, Kept { psn, span, headers: packet.headers, payload });
        if packet.headers.bth.ack_request {
            self.due = self.due.max(self.first());
        }
        self.look(expected);
        Keeping::Kept
    }

    /// The packets before this one, in the queue, count as lost if they have not come.
    fn edge(&self) -> Option<usize> {
        self.kept.len().checked_sub(OVERTAKEN_MAX + 1)
    }

    /// What there is to report of the first hole.
    fn first(&self) -> Due {
        self.edge().map_or(Due::Suspicion, |_| Due::First)
    }

    /// Looks whether one more hole counts as lost.
    fn look(&mut self, expected: Psn) {
        let Some(at) = self.edge() else {
            return;
        };
        let Some(edge) = self.kept.get(at) else {
            return;
        };
        let before = at.checked_sub(1).and_then(|before| self.kept.get(before));
        let start = before.map_or(expected, |before| before.psn.plus(before.span));
        let news = self.told.is_none_or(|told| edge.psn.since(told) > 0);
        if news && start != edge.psn {
            self.due = Due::Holes;
        }
    }

    /// The request that is `expected`, if it was kept; requests before it are dropped.
    pub(crate) fn next(&mut self, expected: Psn) -> Option<Kept> {
        loop {
            let ahead = self.kept.front()?.psn.since(expected);
            if ahead > 0 {
                return None;
            }
            let kept = self.kept.pop_front()?;
            self.budget.give(kept.cost());
            if ahead == 0 {
                return Some(kept);
            }
        }
    }

    /// A hole has been filled, at least in part: if there is another one, the requester is told of it again, for the
    /// report of it may have got lost.
    pub(crate) fn on_filled(&mut self) {
        self.due = match (self.kept.is_empty(), self.edge()) {
            (true, _) => Due::Nothing,
            (false, _) => self.due.max(self.first()),
        };
        if self.kept.is_empty() {
            (self.kept, self.told) = (VecDeque::new(), None); // Many queue pairs keep nothing.
        }
    }

    /// The holes to report; they are reported then. Where more is kept than may overtake a packet, the report says last how
    /// much: so many packets are under way no longer.
    pub(crate) fn report(&mut self, expected: Psn) -> impl Iterator<Item = Hole> + use<> {
        let suspected = self.due == Due::Suspicion;
        let edge = self.edge().filter(|_| self.due == Due::Holes).unwrap_or(0);
        let mut holes: [Option<Hole>; HOLES_MAX] = [None; HOLES_MAX];
        let mut start = expected;
        for kept in self.kept.iter().take(edge + 1) {
            if let Ok(packets @ 1..) = u32::try_from(kept.psn.since(start)) {
                let ahead = u32::try_from(start.since(expected)).unwrap_or(0);
                holes.rotate_left(1);
                if let Some(last) = holes.last_mut() {
                    *last = Some(Hole { ahead, packets, suspected });
                }
            }
            start = kept.psn.plus(kept.span);
            if self.due == Due::Holes {
                self.told = Some(kept.psn);
            }
        }
        self.due = Due::Nothing;
        let kept = self.edge().map(|_| Hole::of_kept(self.kept.len()));
        holes.into_iter().flatten().chain(kept)
    }

    /// Drops what is kept.
    pub(crate) fn clear(&mut self) {
        for kept in core::mem::take(&mut self.kept) {
            self.budget.give(kept.cost());
        }
        (self.due, self.told) = (Due::Nothing, None);
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A copy has kept nothing.
impl Clone for Early {
    fn clone(&self) -> Self {
        Self::new(self.budget.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FIRST, asking, send_only};

    /// Keeps packets with these numbers, counted from the expected one.
    fn keep(early: &mut Early, numbers: impl IntoIterator<Item = i32>) {
        for number in numbers {
            let mut packet = send_only(number);
            packet.payload = &[7; 100];
            assert_eq!(early.keep(&packet, 1, FIRST), Keeping::Kept, "{number}");
        }
    }

    fn report(early: &mut Early) -> Vec<(u32, u32)> {
        early
            .report(FIRST)
            .map(|Hole { ahead, packets, suspected }| {
                assert!(!suspected);
                (ahead, packets)
            })
            .collect()
    }

    #[test]
    fn a_hole_is_reported_once_more_packets_have_come_after_it_than_may_overtake_one() {
        let mut early = Early::default();
        keep(&mut early, 1..9);
        assert!(!early.is_due());
        keep(&mut early, [9]);
        assert!(early.is_due());
        assert_eq!(report(&mut early), [(0, 1), (9, 0)], "nine are kept");
        keep(&mut early, 10..30);
        assert!(!early.is_due(), "it is known");
        keep(&mut early, 33..42);
        assert!(early.is_due());
        assert_eq!(report(&mut early), [(0, 1), (30, 3), (38, 0)]);
    }

    #[test]
    fn where_few_packets_follow_and_one_asks_the_hole_is_suspected() {
        let mut early = Early::default();
        keep(&mut early, 2..4);
        assert!(!early.is_due());
        assert_eq!(early.keep(&asking(send_only(5)), 1, FIRST), Keeping::Kept);
        let hole = Hole { ahead: 0, packets: 2, suspected: true };
        assert_eq!(early.report(FIRST).collect::<Vec<_>>(), [hole]);
        assert!(!early.is_due());
        early.ask();
        assert_eq!(report(&mut early), [(0, 2)]);
    }

    #[test]
    fn what_comes_late_fills_its_place_and_is_taken_in_order() {
        let mut early = Early::default();
        keep(&mut early, [5, 2, 4, 1, 3]);
        assert_eq!(early.keep(&send_only(3), 1, FIRST), Keeping::Known);
        assert_eq!(early.keep(&send_only(2), 2, FIRST), Keeping::Known);
        assert!(early.next(FIRST).is_none());
        for number in 1..6_u32 {
            let kept = early.next(FIRST.plus(number)).unwrap();
            assert_eq!(kept.packet().headers.bth.psn, FIRST.plus(number));
        }
        assert!(early.is_empty());
    }

    #[test]
    fn what_is_kept_has_bounds() {
        let budget = EarlyBudget::of(10_000);
        let mut early = Early::new(budget.clone());
        let outcomes: Vec<_> =
            (1..1000).map(|number| early.keep(&send_only(number), 1, FIRST)).collect();
        assert!(outcomes.contains(&Keeping::NoRoom) && budget.left() < 1000);
        early.clear();
        assert_eq!(budget.left(), 10_000);
        keep(&mut early, [1]);
        drop(early);
        assert_eq!(budget.left(), 10_000);

        let mut early = Early::default();
        let most = i32::from(EARLY_PACKETS_MAX);
        keep(&mut early, (1..=most).map(|at| 2 * at));
        assert_eq!(early.keep(&send_only(1), 1, FIRST), Keeping::NoRoom);
        let reported = report(&mut early);
        assert_eq!(reported.len(), HOLES_MAX + 1);
        assert_eq!(reported.last(), Some(&(u32::try_from(most).unwrap(), 0)));
        assert_eq!(early.keep(&send_only(1 << 20), 1, FIRST), Keeping::NoRoom);
    }

    #[test]
    fn a_hole_is_told_as_it_is() {
        for (ahead, packets, suspected) in [(0, 1, false), (0xffff, 0x7f, true)] {
            let hole = Hole { ahead, packets, suspected };
            assert_eq!(Hole::from_msn(hole.to_msn()), hole);
        }
        let long = Hole { ahead: 1, packets: 300, suspected: false };
        assert_eq!(Hole::from_msn(long.to_msn()).packets, HOLE_PACKETS_MAX);
    }
}
