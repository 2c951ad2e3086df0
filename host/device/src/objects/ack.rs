//! When to acknowledge: an acknowledgement costs as much as a message, so it should go with one,
//! or stand for several.
//!
//! While the program drives, an acknowledgement is *deferred* until its next call: if it does not
//! answer the message, that call sends the acknowledgement. If it does, two programs are having a
//! conversation; the peer, busy with the answer, rarely waits for the acknowledgement, and it is
//! *held* until a few messages need one or [`HOLD_NANOS`] have passed. A peer that does wait, as
//! some ping-pongs do, shows by its silence; then acknowledgements leave with the answers for a
//! while.
//!
//! The specification lets a responder coalesce acknowledgements as it likes: IBTA Vol. 1 §9.7.5.1.2.

use adverb_engine::Time;

/// Messages that one held acknowledgement stands for.
const MESSAGES_MAX: u32 = 4;
/// How long an acknowledgement is held.
const HOLD_NANOS: u64 = 20_000;
/// Answers that take the acknowledgement along after a peer has waited for one.
const IMPATIENT_ANSWERS: u32 = 64;

/// What is known of the acknowledgement that a queue pair owes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckPolicy {
    /// It is on the port's list of those to be looked at with the program's next call.
    deferred: bool,
    /// It is on the port's list of those held, since then.
    held: Option<Time>,
    /// Messages received that it stands for.
    messages: u32,
    /// The program has posted something since the last message.
    answered: bool,
    /// Answers left that take acknowledgements along.
    impatient: u32,
}

/// What to do with an acknowledgement that was deferred.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Deferred {
    Hold,
    Send,
}

impl AckPolicy {
    /// Messages have arrived and an acknowledgement is owed. True if it has to be put on the list
    /// of those deferred.
    pub(crate) fn on_messages(&mut self, count: u32) -> bool {
        self.messages = self.messages.saturating_add(count);
        self.answered = false;
        let waits = self.deferred || (self.held.is_some() && self.messages < MESSAGES_MAX);
        self.deferred |= !waits;
        !waits
    }

    /// The program posts something. True if what is owed should leave with it, whatever the cost.
    pub(crate) fn on_answer(&mut self) -> bool {
        self.answered = true;
        let waiting = self.deferred || self.held.is_some();
        if waiting && self.impatient > 0 {
            self.impatient -= 1;
            return true;
        }
        !waiting
    }

    /// The next call has come; it is off the list of those deferred.
    pub(crate) fn on_next_call(&mut self, now: Time) -> Deferred {
        self.deferred = false;
        if self.answered && self.impatient == 0 && self.messages < MESSAGES_MAX {
            self.held = Some(now);
            Deferred::Hold
        } else {
            Deferred::Send
        }
    }

    /// It is due if it is still the one that is held since `since`.
    pub(crate) fn is_held_since(&self, since: Time) -> bool {
        self.held == Some(since)
    }

    /// The peer has been silent for as long as an acknowledgement is held.
    pub(crate) fn on_silence(&mut self) {
        self.impatient = IMPATIENT_ANSWERS;
    }

    /// Nothing is owed any more.
    pub(crate) fn on_sent(&mut self) {
        self.held = None;
        self.messages = 0;
    }

    /// When an acknowledgement held since `since` is due.
    pub(crate) fn due(since: Time) -> Time {
        since.plus_nanos(HOLD_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1000);

    #[test]
    fn a_message_that_is_not_answered_is_acknowledged_with_the_next_call() {
        let mut policy = AckPolicy::default();
        assert!(policy.on_messages(1));
        assert!(!policy.on_messages(1)); // On the list already.
        assert_eq!(policy.on_next_call(NOW), Deferred::Send);
    }

    #[test]
    fn in_a_conversation_one_acknowledgement_stands_for_four_messages() {
        let mut policy = AckPolicy::default();
        assert!(policy.on_messages(1));
        assert!(!policy.on_answer());
        assert_eq!(policy.on_next_call(NOW), Deferred::Hold);
        for _ in 0..2 {
            assert!(!policy.on_messages(1));
            assert!(!policy.on_answer());
        }
        assert!(policy.on_messages(1));
        assert!(!policy.on_answer());
        assert_eq!(policy.on_next_call(NOW), Deferred::Send);
        policy.on_sent();
        assert!(!policy.is_held_since(NOW));
        assert!(policy.on_messages(1));
    }

    #[test]
    fn a_peer_that_waits_gets_its_acknowledgements_with_the_answers_for_a_while() {
        let mut policy = AckPolicy::default();
        assert!(policy.on_messages(1));
        assert!(!policy.on_answer());
        assert_eq!(policy.on_next_call(NOW), Deferred::Hold);
        assert!(policy.is_held_since(NOW));
        policy.on_silence();
        policy.on_sent();
        for _ in 0..IMPATIENT_ANSWERS {
            let _ = policy.on_messages(1);
            assert!(policy.on_answer());
            policy.on_sent();
            let _ = policy.on_next_call(NOW); // Nothing is owed by then.
            policy.on_sent();
        }
        assert!(policy.on_messages(1));
        assert!(!policy.on_answer());
    }

    #[test]
    fn work_that_answers_nothing_takes_along_what_is_owed() {
        assert!(AckPolicy::default().on_answer());
    }
}
