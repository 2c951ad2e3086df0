//! Two sides over queues that keep the order and nothing else, with programs that do anything they may.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

/// A side: its flow, its queues, and what its program has on its hands.
struct Side {
    flow: Flow,
    /// Places of the send queue, and those that are in use.
    depth: u32,
    used: u32,
    /// Receives that are posted.
    posted: u32,
    /// What is on its way to this side: a header, and the number of a message or an offer.
    coming: VecDeque<(Header, u64)>,
    /// What is in a receive, and was not looked at yet.
    events: VecDeque<(Header, u64)>,
    /// What has come and has not been asked for: true for an offer.
    inbox: VecDeque<(bool, u64)>,
    /// The offer that is first in the inbox is being read.
    reads: bool,
    /// Messages that the program holds.
    held: u32,
    sent: u64,
    next: u64,
    /// Offers that were seen to be taken.
    taken: u32,
}

impl Side {
    /// The counts begin at `ours` for what this side counts, and at `theirs` for what the peer does.
    fn new(receives: u32, peer: u32, depth: u32, ours: u32, theirs: u32) -> Self {
        let flow = Flow {
            sent: ours,
            granted_by_peer: ours,
            offered: ours,
            taken_by_peer: ours,
            granted: theirs,
            granted_told: theirs,
            heard: theirs,
            taken: theirs,
            taken_told: theirs,
            ..Flow::new(receives, peer)
        };
        let (coming, inbox) = (VecDeque::new(), VecDeque::new());
        let posted = receives + RECEIVES_KEPT;
        Self {
            flow,
            depth,
            used: 0,
            posted,
            coming,
            events: VecDeque::new(),
            inbox,
            reads: false,
            held: 0,
            sent: 0,
            next: 0,
            taken: 0,
        }
    }

    fn room(&self) -> u32 {
        self.depth - self.used
    }

    fn post(&mut self, other: &mut Self, kind: Kind) {
        let header = self.flow.send(kind);
        assert!(self.used < self.depth, "there is a place for it");
        self.used += 1;
        other.coming.push_back((header, self.sent));
        self.sent += u64::from(kind != Kind::Counts);
    }

    /// What a messenger does after each change.
    fn tell(&mut self, other: &mut Self) {
        if self.flow.owes_counts() && self.room() > 0 {
            self.post(other, Kind::Counts);
        }
    }

    /// Sends or offers something, if it may.
    fn send(&mut self, other: &mut Self, offers: bool) -> bool {
        let may = match offers {
            true => self.flow.next_offer().is_some(),
            false => self.flow.credit() > 0,
        };
        if may && self.room() > SENDS_KEPT {
            self.post(other, if offers { OFFER } else { Kind::Data });
            return true;
        }
        false
    }

    /// The next of what is on its way is in a receive, and its place is free again.
    fn arrive(&mut self, other: &mut Self) -> bool {
        let Some(message) = self.coming.pop_front() else { return false };
        other.used -= 1;
        assert!(self.posted > 0, "a message finds no receive");
        self.posted -= 1;
        self.events.push_back(message);
        true
    }

    /// The program's call looks at the next that has come.
    fn note(&mut self, other: &mut Self) -> bool {
        let Some((header, number)) = self.events.pop_front() else { return false };
        self.taken += self.flow.receive(header).expect("the peer keeps the rules");
        match header.kind {
            Kind::Counts => self.posted += 1,
            Kind::Data => self.inbox.push_back((false, number)),
            Kind::Offer { .. } => {
                self.posted += 1;
                self.flow.grant();
                self.inbox.push_back((true, number));
            }
        }
        self.tell(other);
        true
    }

    /// The program asks for the next message, or its READ ends.
    fn take(&mut self, other: &mut Self) -> bool {
        let Some((offer, number)) = self.inbox.front().copied() else { return false };
        if offer && !self.reads {
            if self.room() <= COUNTS_MAX {
                return false;
            }
            self.used += 1;
            self.reads = true;
            return true;
        }
        self.inbox.pop_front();
        assert_eq!(number, self.next, "messages keep their order");
        self.next += 1;
        if offer {
            self.reads = false;
            self.used -= 1;
            self.flow.take();
            self.tell(other);
        } else {
            self.held += 1;
        }
        true
    }

    /// The program has done with a message.
    fn release(&mut self, other: &mut Self) -> bool {
        if self.held == 0 {
            return false;
        }
        self.held -= 1;
        self.posted += 1;
        self.flow.grant();
        self.tell(other);
        true
    }

    fn step(&mut self, other: &mut Self, action: u8) -> bool {
        match action {
            0 | 1 => self.send(other, false),
            2 => self.send(other, true),
            3 | 4 => self.arrive(other),
            5 | 6 => self.note(other),
            7 | 8 => self.take(other),
            _ => self.release(other),
        }
    }
}

const OFFER: Kind = Kind::Offer { addr: 1, len: 2, rkey: 3 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 2000 }))]

    /// Goal: every message finds a receive, in order, whatever the programs do; and when they go on receiving, nothing
    /// stays behind, and both may send again.
    #[test]
    fn every_message_finds_a_receive_and_none_is_stuck(
        receives in (2_u32..12, 2_u32..12),
        depths in (SENDS_KEPT + 1..SENDS_KEPT + 8, SENDS_KEPT + 1..SENDS_KEPT + 8),
        starts in (any::<u32>(), prop_oneof![Just(0), Just(u32::MAX - 3), any::<u32>()]),
        steps in prop::collection::vec((any::<bool>(), 0_u8..10), 0..600),
    ) {
        let mut one = Side::new(receives.0, receives.1, depths.0, starts.0, starts.1);
        let mut two = Side::new(receives.1, receives.0, depths.1, starts.1, starts.0);
        for (first, action) in steps {
            match first {
                true => one.step(&mut two, action),
                false => two.step(&mut one, action),
            };
            prop_assert!(one.flow.credit() <= receives.1 && two.flow.credit() <= receives.0);
        }
        let mut moves = true;
        while moves {
            moves = (3..10).any(|action| one.step(&mut two, action) | two.step(&mut one, action));
        }
        for (side, other) in [(&one, &two), (&two, &one)] {
            prop_assert_eq!(other.next, side.sent);
            prop_assert_eq!((side.flow.offers(), side.used), (0, 0));
            prop_assert!(side.flow.credit() > 0);
        }
        prop_assert!(one.send(&mut two, true) && two.send(&mut one, true));
    }

    /// Goal: whatever a peer says, what it may be sent and what it may offer stay bounded.
    #[test]
    fn a_peer_that_says_anything_gets_no_more_than_it_may(
        peer in 2_u32..12,
        headers in prop::collection::vec((0_u8..4, 0_u32..16, 0_u32..16, any::<u32>()), 0..100),
    ) {
        let mut flow = Flow::new(4, peer);
        let mut heard = 0;
        for (action, granted, taken, wild) in headers {
            let (kind, granted) = match action {
                0 => (OFFER, granted),
                1 => (Kind::Data, granted),
                2 => (Kind::Counts, wild),
                _ => {
                    if flow.next_offer().is_some() {
                        flow.send(OFFER);
                    }
                    continue;
                }
            };
            let before = flow.clone();
            match flow.receive(Header { kind, granted, taken }) {
                Ok(taken) => {
                    heard += u32::from(kind == OFFER);
                    prop_assert_eq!(before.offers() - taken, flow.offers());
                }
                Err(Unruly(_)) => prop_assert_eq!(format_of(&before), format_of(&flow)),
            }
            prop_assert!(flow.credit() <= peer && flow.offers() <= OFFERS_MAX && heard <= OFFERS_MAX);
        }
    }

    #[test]
    fn facts_survive_the_wire(receives in 2_u32.., block in 64_usize.., max in any::<usize>()) {
        let facts = Facts { receives, block_bytes: block, message_max: max };
        prop_assert_eq!(Facts::parse(&facts.emit(), 64), Ok(facts));
        let few = Facts { receives: 1, ..facts };
        prop_assert!(Facts::parse(&few.emit(), 64).is_err());
    }
}

fn format_of(flow: &Flow) -> std::string::String {
    std::format!("{flow:?}")
}

/// Goal: offers have numbers of their own, and each is taken once.
#[test]
fn the_oldest_offer_is_taken_first() {
    let mut flow = Flow::new(4, 4);
    let numbers: Vec<_> = (0..3)
        .map(|_| {
            let number = flow.next_offer().expect("there is a grant");
            flow.send(OFFER);
            number
        })
        .collect();
    assert_eq!(flow.receive(Header { kind: Kind::Counts, granted: 3, taken: 2 }), Ok(2));
    let taken: Vec<_> = numbers.iter().map(|number| flow.is_taken(*number)).collect();
    assert_eq!(taken, [true, true, false]);
}
