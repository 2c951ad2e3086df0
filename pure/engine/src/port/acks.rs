//! When to acknowledge: an acknowledgement costs as much as a message, so it should go with one,
//! or stand for several.
//!
//! While the program drives, the acknowledgement of what has completed work is mostly *listed* until the
//! program's next call, so that the program has its completion before its peer has an answer. What
//! happens then depends on what an acknowledgement costs on the link ([`AckCost`]):
//!
//! - As a packet it costs both sides a system call. If the program has answered the message, two
//!   programs are having a conversation; the peer, busy with the answer, rarely waits for the
//!   acknowledgement, and it is *held* until a few messages need one or [`HOLD_NANOS`] have passed, and for as
//!   long again if messages have come in that time. A peer from which none has come, several times in a row, is taken to
//!   wait for it, as some ping-pongs do: acknowledgements leave with the answers for a while. A train of answer and
//!   acknowledgement costs more than the answer alone, so this is not for peers that go on.
//! - As a record in memory it costs the cache lines that it is in. It waits for a moment in which
//!   nothing arrives, or for the program's own next record, unless the peer asks for it or many
//!   messages need one. What the peer asks for leaves before the program has its completion in two cases, if it is for a short
//!   message that a poll takes: the last eight left alone, and this side has written nothing else into the link meanwhile; or
//!   the program itself waits for acknowledgements before it looks for messages.
//!
//! The specification lets a responder coalesce acknowledgements as it likes: IBTA Vol. 1 §9.7.5.1.2.

use crate::time::Time;
use adverb_wire::Msn;

/// Messages that one held acknowledgement stands for, as a packet.
const PACKET_MESSAGES_MAX: u8 = 8;
/// Messages that an acknowledgement stands for that the peer does not ask for, as a record.
const RECORD_MESSAGES_MAX: u8 = 32;
/// Polls in a row for acknowledgements alone that show a program that waits for each. Queues that are polled in turn,
/// under load, bring some in a row by chance.
const WAITS_ALONE_MIN: u8 = 8;
/// How long an acknowledgement is held, and once more if messages have come meanwhile.
const HOLD_NANOS: u64 = 25_000;
/// Holds in a row that have ended in silence, after which the peer is taken to wait. After fewer it may have had no processor
/// for a moment.
const SILENCES_MIN: u8 = 3;
/// Answers that take the acknowledgement along after a peer has waited for one.
const IMPATIENT_ANSWERS: u8 = 128;
/// Messages whose acknowledgements the helper does not hold after one that was not answered in time.
const UNANSWERED_MESSAGES: u8 = 64;

/// What an acknowledgement costs on a link, and so how it waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AckCost {
    /// A packet.
    #[default]
    Packets,
    /// A record in memory.
    Records,
}

/// What is known of the acknowledgement that a queue pair owes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckPolicy {
    ack_cost: AckCost,
    /// The queue pair is on the port's list.
    listed: bool,
    /// It is among those held, since then.
    held: Option<Time>,
    /// It is held for the second time.
    held_again: bool,
    /// Messages received that it stands for.
    messages: u8,
    /// Of them, those that had come when it was held.
    messages_held: u8,
    /// How many messages were executed when those of a link of packets were counted, modulo 2²⁴.
    counted: Msn,
    /// The peer waits for it.
    asked: bool,
    /// Polls in a row that have brought an acknowledgement and looked for no messages.
    waits_alone: u8,
    /// The program has posted something since the last message.
    answered: bool,
    /// Holds of answered messages in a row that have ended in silence: no message came in the last [`HOLD_NANOS`].
    silences: u8,
    /// Answers left that take acknowledgements along.
    impatient: u8,
    /// Messages left whose acknowledgements the helper does not hold.
    unanswered: u8,
}

/// What becomes of an acknowledgement that has been held for as long as it may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Due {
    /// It leaves.
    Now,
    /// It is held as if since this time.
    Again(Time),
}

/// What becomes of a queue pair that owes an acknowledgement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[must_use]
pub struct Listing {
    /// It has to be put on the port's list.
    pub list: bool,
    /// The list is to be looked at with the program's next call, and not in a quiet moment.
    pub pressing: bool,
}

impl AckPolicy {
    /// Nothing is owed, over a link of this kind.
    pub fn new(ack_cost: AckCost) -> Self {
        Self { ack_cost, ..Self::default() }
    }

    /// How acknowledgements wait on its link.
    pub fn ack_cost(&self) -> AckCost {
        self.ack_cost
    }

    /// A message has come; the peer has `asked` for its acknowledgement.
    #[inline(always)]
    pub fn on_message(&mut self, asked: bool) {
        self.asked |= asked;
        self.messages = self.messages.saturating_add(1);
    }

    /// A program's poll has brought an acknowledgement: `alone`, if it looks for those and for no messages.
    #[inline(always)]
    pub fn on_wait(&mut self, alone: bool) {
        self.waits_alone = if alone { self.waits_alone.saturating_add(1) } else { 0 };
    }

    /// The acknowledgement should leave before the program has the message. Two programs that wait for each request
    /// before they look for the answer would otherwise have all that an acknowledgement costs between the answer and
    /// the next request: the program is one of them, and so, probably, is the peer's. And where this side is `silent`, having
    /// written nothing but acknowledgements for a while, no answer is to be waited for.
    #[inline]
    pub fn is_urgent(&self, silent: impl FnOnce() -> bool) -> bool {
        self.asked && (self.waits_alone >= WAITS_ALONE_MIN || silent())
    }

    /// Something has arrived that completed `count` requests or receives; an acknowledgement is owed, and the peer can go
    /// on without it if there is `leisure`. `msn` messages have been executed, modulo 2²⁴.
    #[inline(always)]
    pub fn on_owed(&mut self, count: u32, leisure: bool, msn: Msn) -> Listing {
        match self.ack_cost {
            AckCost::Packets => {
                let _ = self.count(count, msn);
                let holds = leisure && self.held.is_some() && self.messages < PACKET_MESSAGES_MAX;
                let list = !self.listed && !holds;
                self.listed |= list;
                Listing { list, pressing: list }
            }
            AckCost::Records => {
                // Those messages were noted as they came.
                let pressing = self.asked || self.messages >= RECORD_MESSAGES_MAX || !leisure;
                let list = !self.listed;
                self.listed = true;
                Listing { list, pressing }
            }
        }
    }

    /// Counts messages that have arrived together and have completed `count` requests or receives; `msn` have been executed.
    /// True if there were any. The number is a guess: a WRITE that was cut into several for the sake of trains counts as one,
    /// but as more if requests of this side have completed with it.
    fn count(&mut self, count: u32, msn: Msn) -> bool {
        let new = msn.since(self.counted);
        if new > 0 {
            let together = u8::try_from(count.clamp(1, new)).unwrap_or(u8::MAX);
            self.messages = self.messages.saturating_add(together);
            self.counted = msn;
            self.answered = false;
        }
        new > 0
    }

    /// The helper has delivered messages that complete nothing, to a program that is at work and may answer them; `msn` have
    /// been executed. True if the acknowledgement may be held.
    pub fn on_delivered(&mut self, msn: Msn) -> bool {
        if self.ack_cost != AckCost::Packets || self.listed {
            return false;
        }
        if self.count(1, msn) && self.unanswered > 0 {
            self.unanswered -= 1;
            return false;
        }
        self.messages < PACKET_MESSAGES_MAX
    }

    /// It is held already.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The program posts something. True if what is owed should leave with it, whatever the cost.
    #[inline]
    pub fn on_answer(&mut self) -> bool {
        self.answered = true;
        let waiting = self.listed || self.held.is_some();
        if waiting && self.impatient > 0 {
            self.impatient -= 1;
            return true;
        }
        !waiting
    }

    /// The port looks at its list, and takes the queue pair off it. True if the acknowledgement leaves
    /// now, or else it is to be held, if there is `leisure`; `everything` leaves now.
    #[inline]
    pub fn on_look(&mut self, everything: bool, leisure: bool) -> bool {
        self.listed = false;
        if self.messages >= PACKET_MESSAGES_MAX {
            self.silences = 0;
        }
        let holds = self.ack_cost == AckCost::Packets
            && !everything
            && leisure
            && self.answered
            && self.impatient == 0
            && self.messages < PACKET_MESSAGES_MAX;
        !holds
    }

    /// It is held from now on.
    pub fn on_hold(&mut self, now: Time) {
        (self.held, self.held_again, self.messages_held) = (Some(now), false, self.messages);
    }

    /// It is held since `since`, which is long enough, and looked at now. The caller holds it again if that is the answer, or
    /// else sends it; there is `leisure` as in [`AckPolicy::on_owed`].
    pub fn on_due(&mut self, since: Time, now: Time, leisure: bool) -> Due {
        let silent = self.messages == self.messages_held;
        let again = Self::due(since);
        // A look that comes late says nothing of the peer: the program has been at other work.
        let late = now >= Self::due(again);
        if !late && !silent && !self.held_again && leisure {
            (self.held, self.held_again, self.messages_held) = (Some(again), true, self.messages);
            return Due::Again(again);
        }
        self.held = None;
        if !silent {
            self.silences = 0;
        } else if !late && self.answered {
            self.silences = self.silences.saturating_add(1);
            if self.silences >= SILENCES_MIN {
                self.impatient = IMPATIENT_ANSWERS;
            }
        } else if !late {
            // What the peer waits for may be the answer.
            self.unanswered = UNANSWERED_MESSAGES;
        }
        Due::Now
    }

    /// It is due if it is still the one that is held since `since`.
    pub fn is_held_since(&self, since: Time) -> bool {
        self.held == Some(since)
    }

    /// Nothing is owed any more.
    #[inline(always)]
    pub fn on_sent(&mut self) {
        (self.held, self.messages, self.asked) = (None, 0, false);
    }

    /// When an acknowledgement held since `since` is due.
    pub const fn due(since: Time) -> Time {
        since.plus_nanos(HOLD_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1000);
    const LATER: Time = AckPolicy::due(NOW);

    /// The hold that began at [`NOW`] ends.
    fn silence(policy: &mut AckPolicy) -> Due {
        policy.on_due(NOW, LATER, true)
    }

    fn look(policy: &mut AckPolicy) -> bool {
        let leaves = policy.on_look(false, true);
        if !leaves {
            policy.on_hold(NOW);
        }
        leaves
    }

    /// The message with this number, the first being 1, has arrived and completed a receive.
    fn owed(policy: &mut AckPolicy, number: u32) -> Listing {
        policy.on_owed(1, true, Msn::new(number))
    }

    #[test]
    fn a_message_that_is_not_answered_is_acknowledged_with_the_next_call() {
        let mut policy = AckPolicy::default();
        assert_eq!(owed(&mut policy, 1), Listing { list: true, pressing: true });
        assert_eq!(owed(&mut policy, 2), Listing::default()); // On the list already.
        assert!(look(&mut policy));
    }

    #[test]
    fn in_a_conversation_one_acknowledgement_stands_for_eight_messages() {
        let mut policy = AckPolicy::default();
        assert!(owed(&mut policy, 1).list);
        assert!(!policy.on_answer());
        assert!(!look(&mut policy));
        for number in 2..u32::from(PACKET_MESSAGES_MAX) {
            assert!(!owed(&mut policy, number).list);
            assert!(!policy.on_answer());
        }
        assert!(owed(&mut policy, PACKET_MESSAGES_MAX.into()).list);
        assert!(!policy.on_answer());
        assert!(look(&mut policy));
        policy.on_sent();
        assert!(!policy.is_held_since(NOW));
        assert!(owed(&mut policy, u32::from(PACKET_MESSAGES_MAX) + 1).list);
    }

    /// Goal: what arrives besides messages does not hasten the acknowledgement.
    #[test]
    fn acknowledgements_of_the_peer_are_not_messages() {
        let mut policy = AckPolicy::default();
        assert!(
            policy.on_owed(3, true, Msn::new(1)).list,
            "one message, and two requests complete"
        );
        assert!(!policy.on_answer() && !look(&mut policy));
        for _ in 0..10 * PACKET_MESSAGES_MAX {
            assert_eq!(policy.on_owed(2, true, Msn::new(1)), Listing::default());
        }
        // A WRITE in sixteen packets that a poll takes together.
        assert_eq!(policy.on_owed(0, true, Msn::new(17)), Listing::default());
        assert_eq!(policy.messages, 2);
        assert_eq!(
            policy.on_owed(9, true, Msn::new(17 + 6)),
            Listing { list: true, pressing: true }
        );
        assert_eq!(policy.messages, 8);
    }

    #[test]
    fn a_refusal_is_not_held() {
        let mut policy = AckPolicy::default();
        assert!(owed(&mut policy, 1).list);
        assert!(!policy.on_answer() && !look(&mut policy));
        assert!(policy.on_owed(0, false, Msn::new(1)).list);
        assert!(policy.on_look(false, false));
    }

    /// Has messages with these numbers arrive and be answered, of which the first is held.
    fn converse(policy: &mut AckPolicy, numbers: core::ops::RangeInclusive<u32>) {
        for number in numbers {
            let _ = owed(policy, number);
            assert!(!policy.on_answer());
            if policy.listed {
                assert!(!look(policy));
            }
        }
    }

    #[test]
    fn a_peer_that_sends_on_does_not_wait() {
        let mut policy = AckPolicy::default();
        converse(&mut policy, 1..=2);
        assert_eq!(silence(&mut policy), Due::Again(LATER));
        assert!(!policy.is_held_since(NOW) && policy.is_held_since(LATER));
        converse(&mut policy, 3..=3);
        let _ = owed(&mut policy, 4); // The program has not answered yet.
        assert_eq!(
            policy.on_due(LATER, AckPolicy::due(LATER), true),
            Due::Now,
            "no longer than twice"
        );
        assert!(!policy.is_held());
        policy.on_sent();
        converse(&mut policy, 5..=5);
        assert!(policy.on_delivered(Msn::new(6)), "the helper holds");
    }

    /// Goal: a peer whose send queue is full, or that sends two messages at once and waits, is found to wait.
    #[test]
    fn a_peer_that_has_sent_several_messages_and_then_nothing_waits() {
        let mut policy = AckPolicy::default();
        for turn in 0..u32::from(SILENCES_MIN) {
            converse(&mut policy, 4 * turn + 1..=4 * turn + 4);
            assert_eq!(silence(&mut policy), Due::Again(LATER));
            assert_eq!(policy.on_due(LATER, AckPolicy::due(LATER), true), Due::Now);
            policy.on_sent();
        }
        let _ = owed(&mut policy, 1000);
        assert!(policy.on_answer(), "it takes the acknowledgement along");

        let mut policy = AckPolicy::default();
        for turn in 1..=u32::from(SILENCES_MIN) {
            let _ = policy.on_owed(2, true, Msn::new(2 * turn));
            assert!(!policy.on_answer() && !look(&mut policy));
            assert_eq!(silence(&mut policy), Due::Now);
            policy.on_sent();
        }
        let _ = owed(&mut policy, 1000);
        assert!(policy.on_answer());
    }

    /// Goal: a peer that is silent now and then, as it has no processor, does not count as one that waits.
    #[test]
    fn a_peer_that_is_silent_at_times_does_not_wait() {
        let mut policy = AckPolicy::default();
        let mut number = 0;
        for _ in 0..100 {
            for _ in 0..2 {
                number += 1;
                converse(&mut policy, number..=number);
                assert_eq!(silence(&mut policy), Due::Now);
                policy.on_sent();
            }
            converse(&mut policy, number + 1..=number + 2);
            number += 2;
            assert_eq!(silence(&mut policy), Due::Again(LATER));
            converse(&mut policy, number + 1..=number + 1);
            number += 1;
            assert_eq!(policy.on_due(LATER, AckPolicy::due(LATER), true), Due::Now);
            policy.on_sent();
        }
        assert_eq!(policy.impatient, 0);
    }

    /// Goal: nor does one that mostly sends so fast that no hold ends by time.
    #[test]
    fn a_peer_that_is_fast_and_silent_at_times_does_not_wait() {
        let mut policy = AckPolicy::default();
        for turn in 0..10 {
            let first = 1 + turn * (u32::from(PACKET_MESSAGES_MAX) + 2);
            for number in [first, first + 1] {
                converse(&mut policy, number..=number);
                assert_eq!(silence(&mut policy), Due::Now);
                policy.on_sent();
            }
            let last = first + 1 + u32::from(PACKET_MESSAGES_MAX);
            converse(&mut policy, first + 2..=last - 1);
            let _ = owed(&mut policy, last);
            assert!(!policy.on_answer() && look(&mut policy));
            policy.on_sent();
        }
        assert_eq!(policy.impatient, 0);
    }

    #[test]
    fn a_look_that_comes_late_ends_the_hold_and_says_nothing_of_the_peer() {
        for messages in [1, 3] {
            let mut policy = AckPolicy::default();
            converse(&mut policy, 1..=messages);
            assert_eq!(policy.on_due(NOW, AckPolicy::due(LATER), true), Due::Now);
            policy.on_sent();
            let _ = owed(&mut policy, 4);
            assert!(!policy.on_answer(), "the answer goes alone");
        }
    }

    #[test]
    fn what_the_peer_waits_for_is_not_held_again() {
        let mut policy = AckPolicy::default();
        converse(&mut policy, 1..=2);
        assert_eq!(policy.on_due(NOW, LATER, false), Due::Now);
    }

    #[test]
    fn the_helper_holds_nothing() {
        let mut policy = AckPolicy::default();
        assert!(owed(&mut policy, 1).list);
        assert!(!policy.on_answer());
        assert!(policy.on_look(true, true));
    }

    /// Goal: what the helper holds leaves with the answers that come, and nothing is held where none come.
    #[test]
    fn the_helper_holds_acknowledgements_of_what_the_program_answers() {
        let mut policy = AckPolicy::default();
        let mut numbers = (1..).map(Msn::new);
        let mut delivered = |policy: &mut AckPolicy| policy.on_delivered(numbers.next().unwrap());
        for _ in 0..SILENCES_MIN {
            assert!(delivered(&mut policy));
            policy.on_hold(NOW);
            assert!(policy.is_held() && !policy.on_answer());
            assert_eq!(silence(&mut policy), Due::Now); // The peer has waited for it.
            policy.on_sent();
        }
        for _ in 0..IMPATIENT_ANSWERS {
            assert!(delivered(&mut policy));
            policy.on_hold(NOW);
            assert!(policy.on_answer());
            policy.on_sent();
        }
        assert!(delivered(&mut policy));
        policy.on_hold(NOW);
        assert_eq!(silence(&mut policy), Due::Now); // There was no answer.
        policy.on_sent();
        for _ in 0..UNANSWERED_MESSAGES {
            assert!(!delivered(&mut policy));
            policy.on_sent();
        }
        (1..PACKET_MESSAGES_MAX).for_each(|_| assert!(delivered(&mut policy)));
        assert!(!delivered(&mut policy), "many messages need one");
        assert!(!AckPolicy::new(AckCost::Records).on_delivered(Msn::new(1)));
    }

    #[test]
    fn a_peer_that_waits_gets_its_acknowledgements_with_the_answers_for_a_while() {
        let mut policy = AckPolicy::default();
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for holds in [SILENCES_MIN, 1, 1] {
            for _ in 0..holds {
                assert!(owed(&mut policy, next()).list);
                assert!(!policy.on_answer());
                assert!(!look(&mut policy));
                assert!(policy.is_held_since(NOW));
                assert_eq!(silence(&mut policy), Due::Now);
                policy.on_sent();
            }
            for _ in 0..IMPATIENT_ANSWERS {
                let _ = owed(&mut policy, next());
                assert!(policy.on_answer());
                policy.on_sent();
                let _ = look(&mut policy); // Nothing is owed by then.
                policy.on_sent();
            }
        }
        assert!(owed(&mut policy, 1000).list);
        assert!(!policy.on_answer());
    }

    #[test]
    fn work_that_answers_nothing_takes_along_what_is_owed() {
        assert!(AckPolicy::default().on_answer());
    }

    #[test]
    fn it_is_urgent_if_the_peer_asks_and_the_program_waits_for_acknowledgements_alone() {
        let mut policy = AckPolicy::new(AckCost::Records);
        policy.on_message(true);
        for _ in 0..WAITS_ALONE_MIN {
            assert!(!policy.is_urgent(|| false));
            policy.on_wait(true);
        }
        assert!(policy.is_urgent(|| false));
        policy.on_sent();
        assert!(!policy.is_urgent(|| false), "nothing is owed");
        policy.on_message(false);
        assert!(!policy.is_urgent(|| false), "the peer does not ask");
        policy.on_message(true);
        assert!(policy.is_urgent(|| false));
        (0..=u8::MAX).for_each(|_| policy.on_wait(true));
        assert!(policy.is_urgent(|| false), "it waits for long");
        policy.on_wait(false);
        assert!(!policy.is_urgent(|| false));
    }

    #[test]
    fn it_is_urgent_if_the_peer_asks_and_this_side_is_silent() {
        let mut policy = AckPolicy::new(AckCost::Records);
        assert!(!policy.is_urgent(|| true), "nothing is owed");
        policy.on_message(false);
        assert!(!policy.is_urgent(|| true), "the peer does not ask");
        policy.on_message(true);
        assert!(policy.is_urgent(|| true) && !policy.is_urgent(|| false));
    }

    /// Goal: a stream both ways whose acknowledgements come with messages has none of its own. Method: one queue and
    /// the other in turn, and one of them some times in a row.
    #[test]
    fn nothing_is_urgent_where_queues_are_polled_in_turn() {
        let mut policy = AckPolicy::new(AckCost::Records);
        for alone in (0..1000).flat_map(|turn| [true, turn % 3 != 0, turn % 5 != 0, false]) {
            policy.on_message(true);
            policy.on_wait(alone);
            assert!(!policy.is_urgent(|| false));
        }
    }

    #[test]
    fn as_a_record_it_waits_for_a_quiet_moment_unless_the_peer_asks_or_many_messages_need_it() {
        let mut policy = AckPolicy::new(AckCost::Records);
        policy.on_message(false);
        assert_eq!(
            policy.on_owed(1, true, Msn::default()),
            Listing { list: true, pressing: false }
        );
        assert_eq!(policy.on_owed(1, true, Msn::default()), Listing::default());
        assert!(policy.on_owed(1, false, Msn::default()).pressing, "a refusal is waited for");
        policy.on_message(true);
        assert!(policy.on_owed(1, true, Msn::default()).pressing);
        assert!(look(&mut policy), "it is never held");
        policy.on_sent();
        (1..RECORD_MESSAGES_MAX).for_each(|_| policy.on_message(false));
        assert!(!policy.on_owed(1, true, Msn::default()).pressing);
        policy.on_message(false);
        assert!(policy.on_owed(1, true, Msn::default()).pressing);
    }
}
