//! Schedule of a port: what it has to do later, and with which of its queue pairs.

use super::agenda::Agenda;
use crate::time::Time;
use adverb_wire::Qpn;
use alloc::collections::VecDeque;

/// Deadlines, and queue pairs that have more to emit than there was room for: each of these has one turn
/// before the first has its second.
#[derive(Debug, Default)]
pub struct Schedule {
    agenda: Agenda,
    ready: VecDeque<Qpn>,
}

/// What can be said of a schedule without looking at it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Hints {
    /// The earliest deadline.
    pub deadline: Option<Time>,
    /// Some queue pair has more to emit.
    pub ready: bool,
}

impl Schedule {
    /// What can be said of it.
    pub fn hints(&self) -> Hints {
        Hints { deadline: self.agenda.next(), ready: !self.ready.is_empty() }
    }

    /// Queue pairs with a deadline, now or once, and turns that it holds: of either no more than there are queue pairs.
    pub fn lens(&self) -> (usize, usize) {
        (self.agenda.len(), self.ready.len())
    }

    /// Wakes a queue pair then, and not at the time it was to be woken before.
    pub fn arm(&mut self, qp: Qpn, at: Time) {
        self.agenda.arm(qp, at);
    }

    /// Takes one queue pair whose time has come.
    pub fn due(&mut self, now: Time) -> Option<Qpn> {
        self.agenda.due(now)
    }

    /// A queue pair has gone.
    pub fn forget(&mut self, qp: Qpn) {
        self.agenda.forget(qp);
        self.ready.retain(|ready| *ready != qp);
    }

    /// A queue pair has more to emit.
    pub(super) fn push_ready(&mut self, qp: Qpn) {
        self.ready.push_back(qp);
    }

    pub(super) fn pop_ready(&mut self) -> Option<Qpn> {
        self.ready.pop_front()
    }

    pub(super) fn turns(&self) -> usize {
        self.ready.len()
    }
}
