//! What keeps an identifier or a membership alive: its number, and whether it is held.

use crate::service;

/// An identifier: destroyed with the last of its handles.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) u64);

/// A membership of a multicast group: left with the last of its handles.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) id: u64,
    pub(crate) number: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        service::destroy(self.0);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        service::leave(self.id, self.number);
    }
}
