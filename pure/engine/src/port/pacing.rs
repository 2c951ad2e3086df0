//! Pacing state of a port for one queue pair, besides the transport's state.

use super::acks::{AckCost, AckPolicy};
use super::company::Company;
use crate::eager::EagerHeader;
use crate::qp::Qp;
use crate::time::Time;

/// When an acknowledgement that is owed goes out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Acks {
    /// With this call.
    Now,
    /// With this call if it makes a burst anyway. A lone packet that an acknowledgement joins
    /// becomes a burst, which costs the kernel, and the receiver, more than a packet.
    WithCompany,
}

/// What a call on a queue pair leaves for the port to do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Aftermath {
    /// There is more to emit.
    pub more: bool,
    /// Something was emitted.
    pub moved: bool,
    /// Wake it then; [`Time::UNKNOWN`]: the deadline was left open.
    pub deadline: Option<Time>,
    /// Completions published.
    pub published: u32,
}

/// When a queue pair sends, and acknowledges.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacing {
    /// The acknowledgement that is owed.
    pub acks: AckPolicy,
    /// Posted since packets were last emitted.
    pub company: Company,
    /// The piggybacked acknowledgement of the peer's last message that is still to be handled.
    pub late: Option<EagerHeader>,
    /// The deadline that the port's schedule holds for this queue pair.
    armed: Option<Time>,
    /// It is on the schedule's list of those that have more to emit.
    pub(super) ready: bool,
}

impl Pacing {
    /// The link to the peer is known, or another one: what an acknowledgement costs there.
    pub fn set_ack_cost(&mut self, ack_cost: AckCost) {
        if self.acks.ack_cost() != ack_cost {
            self.acks = AckPolicy::new(ack_cost);
        }
    }

    /// The queue pair has begun anew.
    pub fn reset(&mut self) {
        let Self { ready, .. } = *self;
        *self = Self { ready, ..Self::default() };
    }

    /// What was posted may wait for the next post or poll.
    pub fn may_wait(&self, qp: &Qp) -> bool {
        self.acks.ack_cost() == AckCost::Packets && self.company.can_wait(qp.outstanding())
    }

    /// The queue pair begins to emit.
    #[inline]
    pub fn on_transmit(&mut self) {
        self.company = Company::default();
    }

    /// It has emitted what it could, `sent_before` packets having been sent before.
    #[inline]
    pub fn on_transmitted(
        &mut self,
        qp: &Qp,
        sent_before: u64,
        more: bool,
        published: u32,
    ) -> Aftermath {
        if !qp.owes_ack() {
            self.acks.on_sent();
        }
        let moved = qp.counters().sent_pkts > sent_before;
        Aftermath { more, moved, deadline: self.deadline(qp), published }
    }

    /// It emits nothing for now.
    #[inline]
    pub fn put_off(&mut self, qp: &Qp) -> Aftermath {
        Aftermath { more: qp.has_more(), deadline: self.deadline(qp), ..Aftermath::default() }
    }

    /// The deadline, if the schedule does not hold one that is early enough.
    #[inline(always)]
    pub fn deadline(&mut self, qp: &Qp) -> Option<Time> {
        let deadline = qp.next_deadline()?;
        if deadline == Time::UNKNOWN {
            return Some(deadline); // The port sets it.
        }
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return None;
        }
        self.armed = Some(deadline);
        Some(deadline)
    }

    /// The schedule knows that there is more to emit.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// The deadline that the schedule held has passed. If the queue pair's own is later by now, or there is none, and there
    /// is nothing to emit, this is what it wants next; otherwise [`Qp::on_timer`] is to be called, and then it emits.
    pub fn on_due(&mut self, qp: &Qp, now: Time) -> Option<Aftermath> {
        self.armed = None;
        let is_due = qp.next_deadline().is_some_and(|deadline| deadline <= now);
        (!is_due && !qp.has_more()).then(|| self.put_off(qp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::QpOptions;
    use crate::testing::{Desk, PEER, SEND, ack, connect, request};
    use adverb_wire::{Qpn, Syndrome};

    const START: Time = Time::from_nanos(1_000_000);

    /// Goal: a deadline that an acknowledgement has moved is set anew when the old one has passed, and nothing else is
    /// done; one that counts is acted on.
    #[test]
    fn a_deadline_that_has_moved_is_no_reason_to_act() {
        let mut qp = connected();
        let (mut pacing, mut desk) = (Pacing::default(), Desk::with_receives(0, 0));
        let mut post = |qp: &mut Qp, at| {
            qp.post(request(SEND, 8)).unwrap();
            qp.transmit(at, true, &mut desk);
        };
        let acknowledge = |qp: &mut Qp, number, at| {
            qp.on_packet(&ack(number, Syndrome::ACK), PEER, at, &mut Desk::with_receives(0, 0));
        };
        post(&mut qp, START);
        acknowledge(&mut qp, 0, START.plus_nanos(1_000)); // The wait before a probe is shorter from now on.
        post(&mut qp, START.plus_nanos(2_000));
        let first = pacing.deadline(&qp).unwrap();
        post(&mut qp, START.plus_nanos(3_000));
        acknowledge(&mut qp, 1, START.plus_nanos(4_000));
        assert_eq!(pacing.deadline(&qp), None, "the schedule holds one that is early enough");

        let second = qp.next_deadline().unwrap();
        assert!(second > first, "{second:?} {first:?}");
        let aftermath = pacing.on_due(&qp, first).unwrap();
        assert_eq!((aftermath.deadline, aftermath.more), (Some(second), false));
        assert_eq!(pacing.on_due(&qp, second), None);

        // Without a deadline there is nothing to do either, unless there is something to emit.
        acknowledge(&mut qp, 2, second);
        assert_eq!(pacing.on_due(&qp, second), Some(Aftermath::default()));
        qp.post(request(SEND, 8)).unwrap();
        assert_eq!(pacing.on_due(&qp, second), None);
    }

    fn connected() -> Qp {
        let mut qp = Qp::new(QpOptions::rc(Qpn::new(0x11), 8));
        connect(&mut qp);
        qp
    }
}
