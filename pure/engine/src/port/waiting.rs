//! Queue pairs whose acknowledgements wait, for what `acks.rs` says.

use super::Driver;
use super::acks::{AckCost, AckPolicy, Due};
use super::pacing::{Acks, Aftermath};
use super::seat::{Seat, Seats, Surface, follow_up};
use crate::qp::Qp;
use crate::time::Time;
use adverb_wire::Qpn;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Queue pairs whose acknowledgements wait at once.
const LISTED_MAX: usize = 1024;

/// Queue pairs whose acknowledgements wait.
#[derive(Debug)]
pub struct Waiting {
    /// For the program's next call, or for a quiet moment.
    listed: Vec<Qpn>,
    /// One of them does not wait for a quiet moment.
    pressing: bool,
    /// One of them owes a packet.
    packets: bool,
    /// For more messages, or for time to pass; the longest first.
    held: VecDeque<(Qpn, Time)>,
    /// The helper may hold acknowledgements, too: the program is at work.
    patient: bool,
}

/// What has come of the messages that a queue pair was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    /// Completions published.
    pub published: u32,
    /// They were of receives, and nothing else has happened but that an acknowledgement is owed, or may be
    /// waiting to be looked at.
    pub only_served: bool,
}

/// Why a port looks at its list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    /// The program has made a call, or nothing arrives.
    Usual,
    /// The program has stopped calling: nothing is held any longer.
    Everything,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            listed: Vec::with_capacity(LISTED_MAX),
            pressing: false,
            packets: false,
            held: VecDeque::with_capacity(LISTED_MAX),
            patient: false,
        }
    }
}

impl Waiting {
    /// What is owed can be put off: the program calls again, or the helper comes.
    #[inline]
    pub fn takes(&self, driver: Driver) -> bool {
        driver == Driver::Program && self.listed.len() < LISTED_MAX
    }

    /// The helper may hold acknowledgements of what it delivers, or may not: the program is at work and may answer.
    pub fn set_patient(&mut self, patient: bool) {
        self.patient = patient;
    }

    /// As [`Waiting::set_patient`] has it.
    pub fn is_patient(&self) -> bool {
        self.patient
    }

    /// Nothing is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// This queue pair is listed, or its acknowledgement held.
    pub fn has(&self, number: Qpn) -> bool {
        self.listed.contains(&number) || self.held.iter().any(|(held, _)| *held == number)
    }

    /// A packet is owed, now or later.
    pub fn owes_packets(&self) -> bool {
        self.packets || !self.held.is_empty()
    }

    /// The list is to be looked at with the program's next call.
    #[inline]
    pub fn is_pressing(&self) -> bool {
        self.pressing
    }

    /// A packet is owed with the program's next call.
    #[inline]
    pub fn has_packets(&self) -> bool {
        self.packets
    }

    /// When the acknowledgement is due that is held the longest.
    pub fn due(&self) -> Option<Time> {
        self.held.front().map(|(_, since)| AckPolicy::due(*since))
    }

    /// The acknowledgement that is held the longest should have left a while ago.
    pub fn is_overdue(&self, now: Time) -> bool {
        self.due().is_some_and(|due| AckPolicy::due(due) <= now)
    }

    /// Lets a queue pair answer what it was given; says how many completions that published.
    ///
    /// The program shall have its completion before its peer has an answer: often it has one of its own,
    /// and then both leave together.
    #[inline(always)]
    pub fn release<S: Seat>(&mut self, seat: &mut S, given: Given, driver: Driver) -> u32 {
        let can_wait = self.takes(driver);
        let aftermath = match (can_wait, given.published) {
            (true, 1..) if given.only_served => Aftermath::default(),
            (true, 0) if !has_lone_ack(seat) => seat.transmit(Acks::WithCompany),
            (true, _) => {
                let (qp, pacing) = seat.parts();
                pacing.put_off(qp)
            }
            (false, 0) if self.patient && self.hold(seat) => seat.transmit(Acks::WithCompany),
            (false, _) => seat.transmit(Acks::Now),
        };
        if can_wait {
            self.list(seat, given.published.max(1));
        }
        follow_up(seat, aftermath);
        aftermath.published
    }

    /// Holds the acknowledgement of what the helper has delivered, if the program may answer it.
    fn hold<S: Seat>(&mut self, seat: &mut S) -> bool {
        let (qp, pacing) = seat.parts();
        let patient = qp.owes_patient_ack() && self.held.len() < LISTED_MAX;
        if !patient || !pacing.acks.on_delivered(qp.received()) {
            return false;
        }
        if !pacing.acks.is_held() {
            let (number, now) = (seat.number(), seat.now());
            seat.parts().1.acks.on_hold(now);
            self.held.push_back((number, now));
        }
        true
    }

    /// Remembers a queue pair that has put something off, if it has.
    #[inline(always)]
    fn list<S: Seat>(&mut self, seat: &mut S, messages: u32) {
        let (qp, pacing) = seat.parts();
        if !qp.owes_ack() && pacing.late.is_none() {
            return;
        }
        let listing = pacing.acks.on_owed(messages, leisure(qp, &pacing.acks), qp.received());
        self.pressing |= listing.pressing;
        if listing.list {
            if pacing.acks.ack_cost() == AckCost::Packets {
                self.packets = true;
                qp.count_deferred();
            }
            self.listed.push(seat.number());
            // If the program never calls again, the helper has to send it; it may be asleep.
            seat.surface().notice(Time::ZERO);
        }
    }

    /// Looks at the list: acknowledgements leave, or are held. True if that completed work.
    #[inline]
    pub fn acknowledge<S: Seats>(&mut self, seats: &mut S, look: Look) -> bool {
        (self.pressing, self.packets) = (false, false);
        let mut published = false;
        while let Some(number) = self.listed.pop() {
            let Some(mut seat) = seats.seat(number) else {
                continue;
            };
            let late = seat.parts().1.late.is_some();
            published |= late && seat.settle() > 0;
            let (qp, pacing) = seat.parts();
            let leaves = pacing.acks.on_look(look == Look::Everything, leisure(qp, &pacing.acks));
            let aftermath = match (qp.owes_ack(), leaves) {
                (true, true) => seat.acknowledge(),
                (true, false) => {
                    let now = seat.now();
                    seat.parts().1.acks.on_hold(now);
                    self.held.push_back((number, now));
                    continue;
                }
                (false, _) => {
                    pacing.acks.on_sent();
                    if !late {
                        continue;
                    }
                    pacing.put_off(qp)
                }
            };
            published |= aftermath.published > 0;
            follow_up(&mut seat, aftermath);
        }
        published
    }

    /// Sends acknowledgements that have been held for long enough.
    #[inline]
    pub fn acknowledge_held<S: Seats>(&mut self, seats: &mut S, now: Time, look: Look) {
        while let Some(&(number, since)) = self.held.front() {
            if AckPolicy::due(since) > now && look == Look::Usual {
                break;
            }
            self.held.pop_front();
            let Some(mut seat) = seats.seat(number) else {
                continue;
            };
            let (qp, pacing) = seat.parts();
            let held = pacing.acks.is_held_since(since);
            if held
                && look == Look::Usual
                && let Due::Again(since) = pacing.acks.on_due(since, now, qp.owes_patient_ack())
            {
                // Others may have been held since.
                let place = self.held.partition_point(|(_, other)| *other <= since);
                self.held.insert(place, (number, since));
                continue;
            }
            if !qp.owes_ack() {
                pacing.acks.on_sent();
            } else if held {
                let aftermath = seat.transmit(Acks::Now);
                follow_up(&mut seat, aftermath);
            }
        }
    }

    /// Sends what a queue pair owes, whether it waits or not.
    pub fn pay<S: Seat>(seat: &mut S) {
        if seat.parts().0.owes_ack() {
            let aftermath = seat.transmit(Acks::Now);
            follow_up(seat, aftermath);
        }
    }
}

/// The acknowledgement can wait, as far as this queue pair knows: as a packet if the peer can go on without it, as a record if
/// it is one of what went well.
#[inline(always)]
fn leisure(qp: &Qp, acks: &AckPolicy) -> bool {
    match acks.ack_cost() {
        AckCost::Packets => qp.owes_patient_ack(),
        AckCost::Records => qp.owes_plain_ack(),
    }
}

/// All that could be emitted is an acknowledgement as a packet of its own: with [`Acks::WithCompany`] nothing would leave.
#[inline(always)]
fn has_lone_ack<S: Seat>(seat: &mut S) -> bool {
    let (qp, pacing) = seat.parts();
    pacing.acks.ack_cost() == AckCost::Packets && qp.owes_plain_ack() && !qp.has_more()
}

#[cfg(test)]
mod tests;
