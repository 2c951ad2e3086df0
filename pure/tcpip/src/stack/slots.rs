//! Where connections are kept: slots with a generation, so that an old identifier does not name a new connection.

use alloc::vec::Vec;

use super::ListenerId;
use super::agenda::Noted;
use crate::tcp::Connection;
use crate::tuple::Tuple;

/// Names a connection for as long as there is one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId {
    pub(super) slot: u32,
    generation: u32,
}

/// A connection, and what the stack knows of it.
#[derive(Debug)]
pub(super) struct Slot<B> {
    pub(super) tuple: Tuple,
    pub(super) connection: Connection<B>,
    pub(super) noted: Noted,
    /// It has not been accepted yet.
    pub(super) listener: Option<ListenerId>,
    /// Its place among those that wait to be accepted, once its handshake is over.
    pub(super) complete: Option<u64>,
    /// It is among those with events.
    pub(super) told: bool,
    /// Its place among those in TIME-WAIT that may go.
    pub(super) waits: Option<u64>,
}

impl<B> Slot<B> {
    pub(super) fn new(
        tuple: Tuple,
        connection: Connection<B>,
        listener: Option<ListenerId>,
    ) -> Self {
        let noted = Noted::default();
        Self { tuple, connection, noted, listener, complete: None, told: false, waits: None }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots<B> {
    /// Each with its generation.
    slots: Vec<(u32, Option<Slot<B>>)>,
    free: Vec<u32>,
    max: usize,
}

impl<B> Slots<B> {
    pub(super) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// As many as there may be.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// Puts a connection into a free slot, if there is one.
    pub(super) fn insert(&mut self, entry: Slot<B>) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let Some(slot) = self.free.pop() else {
            let slot = u32::try_from(self.slots.len()).ok()?;
            self.slots.push((0, Some(entry)));
            return Some(slot);
        };
        self.slots.get_mut(usize::try_from(slot).ok()?)?.1 = Some(entry);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Slot<B>> {
        let (generation, entry) = self.slots.get_mut(usize::try_from(slot).ok()?)?;
        let entry = entry.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
        Some(entry)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Slot<B>> {
        self.slots.get(usize::try_from(slot).ok()?)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Slot<B>> {
        self.slots.get_mut(usize::try_from(slot).ok()?)?.1.as_mut()
    }

    pub(super) fn id(&self, slot: u32) -> ConnectionId {
        let at = usize::try_from(slot).ok();
        let generation = at.and_then(|at| self.slots.get(at)).map_or(0, |(known, _)| *known);
        ConnectionId { slot, generation }
    }

    /// The connection with this identifier, if there still is one.
    pub(super) fn find(&self, id: ConnectionId) -> Option<&Slot<B>> {
        self.get(id.slot).filter(|_| self.id(id.slot) == id)
    }

    /// Connections of a listener that were not accepted.
    pub(super) fn of_listener(&self, at: ListenerId) -> Vec<u32> {
        let of = |slot: &u32| self.get(*slot).is_some_and(|entry| entry.listener == Some(at));
        (0..u32::try_from(self.slots.len()).unwrap_or(u32::MAX)).filter(of).collect()
    }
}
