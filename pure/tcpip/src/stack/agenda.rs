//! What is due when, and what may have something to send.

use alloc::collections::{BTreeSet, VecDeque};

use crate::time::Time;

/// Slots by deadline, and slots that may have something to send.
///
/// A slot has one deadline at most. One that is put off stays where it is until it comes: then the slot is asked
/// again. So a connection whose packets come and go in time costs nothing here.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    deadlines: BTreeSet<(Time, u32)>,
    ready: VecDeque<u32>,
}

/// What the agenda knows of a slot; the slot keeps it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    at: Option<Time>,
    ready: bool,
}

impl Agenda {
    /// The slot wants to be woken at `at`, or not at all.
    pub(super) fn wake_at(&mut self, slot: u32, noted: &mut Noted, at: Option<Time>) {
        let Some(at) = at else {
            return;
        };
        if noted.at.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = noted.at.replace(at) {
            self.deadlines.remove(&(known, slot));
        }
        self.deadlines.insert((at, slot));
    }

    /// The slot may have something to send.
    pub(super) fn make_ready(&mut self, slot: u32, noted: &mut Noted) {
        if !noted.ready {
            noted.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// The slot that may have something to send and has waited the longest; it stays so.
    pub(super) fn first_ready(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// That slot, if it is the only one.
    pub(super) fn only_ready(&self) -> Option<u32> {
        self.first_ready().filter(|_| self.ready.len() == 1)
    }

    /// The first ready slot has had its turn.
    pub(super) fn rotate(&mut self) {
        self.ready.rotate_left(self.ready.len().min(1));
    }

    /// The first ready slot has nothing to send.
    pub(super) fn rest(&mut self, noted: Option<&mut Noted>) {
        self.ready.pop_front();
        if let Some(noted) = noted {
            noted.ready = false;
        }
    }

    /// The slot is gone.
    pub(super) fn forget(&mut self, slot: u32, noted: &Noted) {
        if let Some(at) = noted.at {
            self.deadlines.remove(&(at, slot));
        }
        if noted.ready {
            // Rare, and short: a slot that goes has usually just been asked.
            self.ready.retain(|ready| *ready != slot);
        }
    }

    /// When [`Agenda::due`] has something.
    pub(super) fn next(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A slot whose deadline has come.
    pub(super) fn due(&mut self, now: Time) -> Option<u32> {
        let first = self.deadlines.first().copied().filter(|(at, _)| *at <= now)?;
        self.deadlines.remove(&first);
        Some(first.1)
    }
}

impl Noted {
    /// The deadline has come.
    pub(super) fn woken(&mut self) {
        self.at = None;
    }
}
