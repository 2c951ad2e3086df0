//! The kernel's stream between the two ends: bytes both ways, with little room, that arrive a while later.
//!
//! Each byte says whether it is a bell, which only the tests see.

use std::collections::{BTreeSet, VecDeque};

/// A bell. Everything else is data.
pub(crate) const BELL: u16 = 0xbe11;
/// What the kernel holds in one direction.
const ROOM: usize = 24;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Error {
    Again,
    Reset,
    Pipe,
}

#[derive(Default)]
struct Direction {
    wire: VecDeque<u16>,
    queue: VecDeque<u16>,
    is_shut: bool,
    has_fin: bool,
}

/// Both directions: the first is what the first end sends.
#[derive(Default)]
pub(crate) struct Kernel {
    directions: [Direction; 2],
    /// Which processes have which end.
    holders: [BTreeSet<usize>; 2],
    is_reset: bool,
    /// Ends that have been told so.
    is_told: [bool; 2],
    deliveries: u64,
}

impl Kernel {
    pub(crate) fn open(&mut self, process: usize, end: usize) {
        self.holders[end].insert(process);
    }

    pub(crate) fn has(&self, process: usize, end: usize) -> bool {
        self.holders[end].contains(&process)
    }

    fn incoming(&self, end: usize) -> &Direction {
        &self.directions[1 - end]
    }

    pub(crate) fn is_readable(&self, end: usize) -> bool {
        let incoming = self.incoming(end);
        self.is_reset || incoming.has_fin || !incoming.queue.is_empty()
    }

    /// As `poll` says it: at least a third is free.
    pub(crate) fn is_writable(&self, end: usize) -> bool {
        let Direction { wire, queue, .. } = &self.directions[end];
        self.is_reset || 3 * (wire.len() + queue.len()) <= 2 * ROOM
    }

    /// `POLLHUP`, `POLLERR` or `POLLRDHUP`.
    pub(crate) fn is_over(&self, end: usize) -> bool {
        self.is_reset || self.incoming(end).has_fin
    }

    pub(crate) fn waiting(&self, end: usize) -> usize {
        self.incoming(end).queue.len()
    }

    pub(crate) fn recv(&mut self, end: usize, most: usize, peek: bool) -> Result<Vec<u16>, Error> {
        let incoming = &mut self.directions[1 - end];
        let got = most.min(incoming.queue.len());
        if got > 0 {
            return Ok(if peek {
                incoming.queue.iter().take(got).copied().collect()
            } else {
                incoming.queue.drain(..got).collect()
            });
        }
        if self.is_reset && !self.is_told[end] {
            self.is_told[end] = true;
            return Err(Error::Reset);
        }
        if self.is_reset || incoming.has_fin || most == 0 {
            Ok(Vec::new())
        } else {
            Err(Error::Again)
        }
    }

    pub(crate) fn send(&mut self, end: usize, bytes: &[u16]) -> Result<usize, Error> {
        if self.is_reset || self.directions[end].is_shut {
            return Err(Error::Pipe);
        }
        if self.holders[1 - end].is_empty() {
            self.is_reset = true;
            return Ok(bytes.len());
        }
        let outgoing = &mut self.directions[end];
        let room = ROOM.saturating_sub(outgoing.wire.len() + outgoing.queue.len());
        let sent = room.min(bytes.len());
        outgoing.wire.extend(&bytes[..sent]);
        if sent == 0 && !bytes.is_empty() { Err(Error::Again) } else { Ok(sent) }
    }

    pub(crate) fn shut(&mut self, end: usize) {
        self.directions[end].is_shut = true;
    }

    /// An end resets the connection: it reads no more.
    pub(crate) fn reset(&mut self, end: usize) {
        self.is_reset = true;
        self.is_told[end] = true;
        let incoming = &mut self.directions[1 - end];
        incoming.wire.clear();
        incoming.queue.clear();
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// A process closes its descriptor.
    pub(crate) fn close(&mut self, process: usize, end: usize) {
        if self.holders[end].remove(&process) && self.holders[end].is_empty() {
            let incoming = self.incoming(end);
            if incoming.queue.is_empty() && incoming.wire.is_empty() {
                self.directions[end].is_shut = true;
            } else {
                self.is_reset = true;
            }
        }
    }

    /// A process is no more.
    pub(crate) fn end_of(&mut self, process: usize) {
        (0..2).for_each(|end| self.close(process, end));
    }

    /// Something arrives, if there is something.
    pub(crate) fn deliver(&mut self) {
        self.deliveries += 1;
        let direction = &mut self.directions[usize::from(self.deliveries.is_multiple_of(2))];
        match direction.wire.pop_front() {
            Some(byte) => direction.queue.push_back(byte),
            None => direction.has_fin |= direction.is_shut,
        }
    }

    pub(crate) fn deliver_all(&mut self) {
        (0..4 * ROOM).for_each(|_| self.deliver());
    }
}
