//! Seats: queue pairs that a port borrows of its owner, one at a time, and what it does with each.

use super::pacing::{Acks, Aftermath, Pacing};
use super::schedule::Schedule;
use crate::qp::Qp;
use crate::time::Time;
use adverb_wire::Qpn;

/// What all queue pairs of a port share.
pub trait Surface {
    /// A queue pair's deadline is to be set by the next step that reads the clock: reading it takes as long
    /// as writing a small record. There is one place to remember it in; false if another queue pair has it.
    fn leave_open(&self, number: Qpn) -> bool;

    /// It is this queue pair's deadline that was left open.
    fn is_open(&self, number: Qpn) -> bool;

    /// Takes the queue pair whose deadline was left open.
    fn take_open(&self) -> Option<Qpn>;

    /// Lends the schedule.
    fn schedule<R>(&self, run: impl FnOnce(&mut Schedule) -> R) -> R;

    /// Something waits that has to be looked at by `at` at the latest, whichever thread drives then;
    /// [`Time::ZERO`]: as soon as the program stops to drive.
    fn notice(&self, at: Time);
}

/// A queue pair, lent with all that it takes to emit.
pub trait Seat {
    /// What the port's queue pairs share.
    type Surface: Surface;

    /// What they share.
    fn surface(&self) -> &Self::Surface;

    /// The name under which the port finds this queue pair again.
    fn number(&self) -> Qpn;

    /// The transport, and what the port knows of it.
    fn parts(&mut self) -> (&mut Qp, &mut Pacing);

    /// The time.
    fn now(&mut self) -> Time;

    /// Emits what there is to emit, with [`Pacing::on_transmit`] before and [`Pacing::on_transmitted`]
    /// after.
    fn transmit(&mut self, acks: Acks) -> Aftermath;

    /// Emits the acknowledgement that is owed, and whatever else there is to emit.
    fn acknowledge(&mut self) -> Aftermath {
        self.transmit(Acks::Now)
    }

    /// Looks at what the peer has acknowledged along with its last message ([`Pacing::late`]); says how
    /// many completions that published.
    fn settle(&mut self) -> u32;
}

/// A port's queue pairs.
pub trait Seats {
    /// What they share.
    type Surface: Surface;
    /// One of them.
    type Seat<'a>: Seat<Surface = Self::Surface>
    where
        Self: 'a;

    /// What they share.
    fn surface(&self) -> &Self::Surface;

    /// Lends the queue pair that has this name; `None` if there is none.
    fn seat(&mut self, number: Qpn) -> Option<Self::Seat<'_>>;
}

/// Notes what a queue pair wants next.
#[inline]
pub fn follow_up<S: Seat>(seat: &mut S, aftermath: Aftermath) {
    let Aftermath { deadline, more, .. } = aftermath;
    if deadline.is_none() && !more {
        return;
    }
    let number = seat.number();
    let open = deadline == Some(Time::UNKNOWN) && seat.surface().is_open(number);
    let news = deadline.is_some() && !open;
    if news || (more && !seat.parts().1.ready) {
        follow_all_up(seat, aftermath);
    }
}

#[cold]
fn follow_all_up<S: Seat>(seat: &mut S, aftermath: Aftermath) {
    let number = seat.number();
    let deadline = match aftermath.deadline {
        Some(Time::UNKNOWN) if seat.surface().leave_open(number) => {
            seat.surface().notice(Time::ZERO);
            None
        }
        Some(Time::UNKNOWN) => close(seat),
        known => known,
    };
    if let Some(deadline) = deadline {
        seat.surface().schedule(|schedule| schedule.arm(number, deadline));
        seat.surface().notice(deadline);
    }
    let (_, pacing) = seat.parts();
    if aftermath.more && !pacing.ready {
        pacing.ready = true;
        seat.surface().schedule(|schedule| schedule.push_ready(number));
        seat.surface().notice(Time::ZERO);
    }
}

/// Sets a deadline that was left open.
fn close<S: Seat>(seat: &mut S) -> Option<Time> {
    let now = seat.now();
    let (qp, pacing) = seat.parts();
    qp.on_clock(now);
    let deadline = pacing.deadline(qp);
    debug_assert!(deadline != Some(Time::UNKNOWN), "it was set");
    deadline
}

/// Sets the deadline that was left open, if there is one. For a step that has read the clock.
pub fn set_open_deadline<S: Seats>(seats: &mut S) {
    if let Some(number) = seats.surface().take_open()
        && let Some(mut seat) = seats.seat(number)
    {
        let deadline = close(&mut seat);
        follow_up(&mut seat, Aftermath { deadline, ..Aftermath::default() });
    }
}

/// Gives each queue pair that has more to emit one turn; says whether one of them got further.
pub fn serve_ready<S: Seats>(seats: &mut S) -> bool {
    let mut moved = false;
    for _ in 0..seats.surface().schedule(|schedule| schedule.turns()) {
        let Some(number) = seats.surface().schedule(Schedule::pop_ready) else {
            break;
        };
        if let Some(mut seat) = seats.seat(number) {
            seat.parts().1.ready = false;
            let aftermath = seat.transmit(Acks::Now);
            moved |= aftermath.moved || aftermath.published > 0 || !aftermath.more;
            follow_up(&mut seat, aftermath);
        }
    }
    moved
}
