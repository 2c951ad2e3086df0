//! Work in flight on one queue of a channel, and the events that come of it.
//!
//! A queue takes work in order and ends it in order, so all that is needed is a ring with three
//! marks: what was posted, what is done, and what has had its event taken. Only then is a
//! place free again, which bounds the work and the events together. There is no device here.

use crate::buffer::Block;
use crate::error::ChannelError;
use adverb_verbs::WcStatus;
use std::fmt;

/// Which queue of a channel.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Queue {
    /// Receives.
    Receive,
    /// Everything else.
    Send,
}

/// A piece of posted work.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket {
    /// The queue that it was posted to.
    pub queue: Queue,
    /// Its number there: the first one's is 0.
    pub number: u64,
}

impl Ticket {
    /// Work on a queue pair that its channel does not have yet: no ring knows it.
    pub(crate) const PROBE: Self = Self { queue: Queue::Send, number: u64::MAX >> 1 };

    /// As the number that the device gives back.
    pub(crate) const fn to_wr_id(self) -> u64 {
        match self.queue {
            Queue::Send => self.number << 1,
            Queue::Receive => self.number << 1 | 1,
        }
    }

    pub(crate) const fn from_wr_id(wr_id: u64) -> Self {
        let queue = match wr_id & 1 {
            0 => Queue::Send,
            _ => Queue::Receive,
        };
        Self { queue, number: wr_id >> 1 }
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue {
            Queue::Receive => write!(f, "receive {}", self.number),
            Queue::Send => write!(f, "work {}", self.number),
        }
    }
}

/// What was done.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Operation {
    /// A message was sent.
    Send,
    /// The peer's memory was written.
    Write,
    /// The peer's memory was read.
    Read,
    /// Something was added to a word of the peer's.
    FetchAdd,
    /// A word of the peer's was compared, and swapped if it was equal.
    CompareSwap,
    /// A message was received.
    Receive,
    /// The peer wrote to memory here, and said so with immediate data. The receive's block, which
    /// the peer did not write to, was used up for that.
    WriteReceived,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::FetchAdd => "FETCH_AND_ADD",
            Self::CompareSwap => "COMPARE_AND_SWAP",
            Self::Receive => "RECEIVE",
            Self::WriteReceived => "RECEIVE of a WRITE",
        })
    }
}

/// The end of a piece of posted work.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
// As in a block: the mark of an `Option` of it is among the last 16 bytes, and all pieces are aligned.
#[repr(C)]
pub struct Event {
    /// The local block.
    pub block: Block,
    /// Bytes that were sent, written or read; for a receive those that arrived, in the block or by
    /// the peer's WRITE.
    pub bytes: usize,
    /// What posting it returned.
    pub ticket: Ticket,
    /// What was done.
    pub operation: Operation,
    /// How it went.
    pub status: WcStatus,
    /// What came with a message or a peer's WRITE.
    pub imm: Option<u32>,
}

impl Event {
    /// The event, if the work succeeded.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Work`] if it did not.
    pub fn ok(self) -> Result<Self, ChannelError> {
        if self.status == WcStatus::Success {
            return Ok(self);
        }
        Err(ChannelError::Work { operation: self.operation, status: self.status })
    }
}

/// How a piece of work ended, as the device tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) operation: Operation,
    pub(crate) bytes: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) status: WcStatus,
}

/// What the event of a piece of work is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Claim {
    /// A poll.
    Poll,
    /// A call that waits for this very work.
    Waiter,
    /// Nothing: it is forgotten when it is done.
    Dropped,
}

#[derive(Debug)]
struct Slot {
    /// `None` when the place is free, or the work has no event.
    block: Option<Block>,
    outcome: Outcome,
    claim: Claim,
}

impl Slot {
    /// The event of its work, if that is for polls and has not been taken.
    #[inline(always)]
    fn event(&mut self, ticket: Ticket) -> Option<Event> {
        if self.claim != Claim::Poll {
            return None;
        }
        let block = self.block.take()?;
        let Outcome { operation, bytes, imm, status } = self.outcome;
        Some(Event { ticket, operation, block, bytes, imm, status })
    }
}

/// Work in flight on one queue: `free <= done <= posted <= free + depth`.
#[derive(Debug)]
pub(crate) struct Ring {
    queue: Queue,
    /// A power of two of them, so that a number's place takes no division.
    slots: Box<[Slot]>,
    depth: u32,
    /// Work before this has been taken.
    free: u64,
    /// Work before this is done.
    done: u64,
    /// The next work's number.
    posted: u64,
    /// There is, or was, work without an event: places become free when it is done.
    has_silent: bool,
}

/// What became of a piece of work.
#[derive(Debug)]
pub(crate) enum Fate {
    Pending,
    Done(Event),
    Taken,
}

impl Ring {
    pub(crate) fn new(queue: Queue, depth: u32) -> Self {
        let empty = || Slot {
            block: None,
            outcome: Outcome {
                operation: Operation::Send,
                bytes: 0,
                imm: None,
                status: WcStatus::Success,
            },
            claim: Claim::Poll,
        };
        let slots = (0..depth.next_power_of_two()).map(|_| empty()).collect();
        Self { queue, slots, depth, free: 0, done: 0, posted: 0, has_silent: false }
    }

    #[inline(always)]
    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let place = usize::try_from(number).ok()? & self.slots.len().wrapping_sub(1);
        self.slots.get_mut(place)
    }

    /// Work that can be posted now.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        u64::from(self.depth) - (self.posted - self.free)
    }

    /// Work that is not done.
    pub(crate) fn in_flight(&self) -> u64 {
        self.posted - self.done
    }

    /// Work that is done and whose event has not been taken.
    #[inline]
    pub(crate) fn untaken(&self) -> u64 {
        self.done - self.free
    }

    /// The ticket that the next work will have.
    #[inline]
    pub(crate) fn next_ticket(&self) -> Ticket {
        Ticket { queue: self.queue, number: self.posted }
    }

    /// Notes work that was posted under [`Ring::next_ticket`]. The caller has checked the room.
    /// Work without a block has no event.
    #[inline]
    pub(crate) fn post(&mut self, operation: Operation, block: Option<Block>, claim: Claim) {
        debug_assert!(self.room() > 0, "the caller checks the room");
        let bytes = block.as_ref().map_or(0, Block::len);
        let number = self.posted;
        self.has_silent |= block.is_none();
        if let Some(slot) = self.slot(number) {
            *slot = Slot {
                block,
                outcome: Outcome { operation, bytes, imm: None, status: WcStatus::Success },
                claim,
            };
        }
        self.posted += 1;
    }

    /// Work `number` is done, and all before it has succeeded. What arrived is said for receives
    /// alone. Returns what was done.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        number: u64,
        status: WcStatus,
        arrived: Option<(Operation, usize, Option<u32>)>,
    ) -> Operation {
        debug_assert!(
            (self.done..self.posted).contains(&number),
            "the device ends work in order, once"
        );
        let Some(slot) = self.slot(number) else {
            return Operation::Send; // Its place is always there.
        };
        slot.outcome.status = status;
        if let Some((operation, bytes, imm)) = arrived {
            slot.outcome = Outcome { operation, bytes, imm, status };
        }
        let operation = slot.outcome.operation;
        self.done = (number + 1).clamp(self.done, self.posted);
        if self.has_silent {
            self.advance();
        }
        operation
    }

    /// Work `number` is the oldest that is neither done nor taken, and its event for polls.
    #[inline(always)]
    pub(crate) fn is_next(&mut self, number: u64) -> bool {
        let is_oldest = number == self.free && number == self.done && number < self.posted;
        is_oldest && self.slot(number).is_some_and(|s| s.claim == Claim::Poll && s.block.is_some())
    }

    /// The work that [`Ring::is_next`] is about has succeeded. Its event, which is taken at once.
    #[inline(always)]
    pub(crate) fn finish_next(
        &mut self,
        arrived: Option<(Operation, usize, Option<u32>)>,
    ) -> Option<Event> {
        let ticket = Ticket { queue: self.queue, number: self.free };
        self.free += 1;
        self.done = self.free;
        let slot = self.slot(ticket.number)?;
        let block = slot.block.take()?;
        let Outcome { operation, bytes, .. } = slot.outcome;
        let (operation, bytes, imm) = arrived.unwrap_or((operation, bytes, None));
        Some(Event { ticket, operation, block, bytes, imm, status: WcStatus::Success })
    }

    /// Frees the places of work that was taken.
    #[inline]
    fn advance(&mut self) {
        while self.free < self.done
            && self.slot(self.free).is_some_and(|s| s.block.is_none() || s.claim == Claim::Dropped)
        {
            if let Some(slot) = self.slot(self.free) {
                slot.block = None;
            }
            self.free += 1;
        }
    }

    fn event(&mut self, number: u64) -> Option<Event> {
        let queue = self.queue;
        let slot = self.slot(number)?;
        slot.claim = Claim::Poll;
        let event = slot.event(Ticket { queue, number })?;
        self.advance();
        Some(event)
    }

    /// Takes the oldest event that no call waits for.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Event> {
        let queue = self.queue;
        for number in self.free..self.done {
            if let Some(event) = self.slot(number)?.event(Ticket { queue, number }) {
                self.advance();
                return Some(event);
            }
        }
        None
    }

    /// Takes events that no call waits for, the oldest first, as many as there is room for.
    #[inline(always)]
    pub(crate) fn take_into(&mut self, events: &mut Vec<Event>) {
        if self.free == self.done {
            return;
        }
        let queue = self.queue;
        for number in self.free..self.done {
            if events.len() == events.capacity() {
                break;
            }
            let ticket = Ticket { queue, number };
            if let Some(event) = self.slot(number).and_then(|slot| slot.event(ticket)) {
                events.push(event);
            }
        }
        self.advance();
    }

    /// [`Ring::next`] would give one.
    pub(crate) fn has_event(&mut self) -> bool {
        (self.free..self.done).any(|number| {
            self.slot(number).is_some_and(|slot| slot.block.is_some() && slot.claim == Claim::Poll)
        })
    }

    /// Something was posted that will have an event for polls.
    pub(crate) fn awaits_anything(&mut self) -> bool {
        (self.free..self.posted).any(|number| {
            self.slot(number).is_some_and(|slot| slot.block.is_some() && slot.claim == Claim::Poll)
        })
    }

    /// The oldest event is one that has to be polled for before places are free again.
    pub(crate) fn is_held_up(&mut self) -> bool {
        self.free < self.done && self.slot(self.free).is_some_and(|slot| slot.claim == Claim::Poll)
    }

    /// Takes the event of work `number`, if it is done.
    #[inline]
    pub(crate) fn take(&mut self, number: u64) -> Fate {
        if (self.done..self.posted).contains(&number) {
            return Fate::Pending;
        }
        if !(self.free..self.done).contains(&number) {
            return Fate::Taken;
        }
        self.event(number).map_or(Fate::Taken, Fate::Done)
    }

    /// Work `number` is to have no event. Its block stays until it is done.
    #[cfg(feature = "tokio")]
    pub(crate) fn abandon(&mut self, number: u64) {
        if (self.free..self.done).contains(&number) {
            drop(self.event(number));
        } else if (self.done..self.posted).contains(&number)
            && let Some(slot) = self.slot(number)
        {
            slot.claim = Claim::Dropped;
            self.has_silent = true;
        }
    }

    /// Changes whose event that of work `number` will be.
    pub(crate) fn claim(&mut self, number: u64, claim: Claim) {
        self.has_silent |= claim == Claim::Dropped;
        if (self.free..self.posted).contains(&number)
            && let Some(slot) = self.slot(number)
        {
            slot.claim = claim;
        }
    }
}

#[cfg(test)]
mod tests;
