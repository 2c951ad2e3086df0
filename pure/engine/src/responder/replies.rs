//! Answers that carry data, READ responses and atomics, until there is room to emit them.
//!
//! A repeated READ is read from memory again, a repeated atomic answered with the value that was
//! found when it was executed. Both sides have agreed on how many there may be at once; that many
//! new ones and as many repetitions are kept, so that a peer that repeats itself is no danger to
//! one that does not, and memory does not grow.

use crate::host::{Host, Payload, Range};
use crate::packetizer::Path;
use adverb_wire::{Aeth, Extension, Msn, Operation, Psn, Syndrome};
use alloc::collections::VecDeque;

/// Answers that are owed, and what is needed to give some of them again.
#[derive(Clone, Debug)]
pub(super) struct Replies {
    path: Path,
    /// New answers at once, and repeated ones, and atomics that are remembered.
    each_max: usize,
    owed: VecDeque<Reply>,
    atomics: VecDeque<Saved>,
}

/// A response that is owed.
#[derive(Clone, Copy, Debug)]
struct Reply {
    /// First packet that is still to be emitted.
    psn: Psn,
    msn: Msn,
    /// The peer has asked before.
    again: bool,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// READ response packets: what is left to read, and whether that is all.
    Read { range: Range, first: bool },
    /// The value that an atomic found.
    Atomic { value: u64 },
}

/// An atomic that was executed, kept to answer duplicates.
#[derive(Clone, Copy, Debug)]
struct Saved {
    psn: Psn,
    value: u64,
    msn: Msn,
}

impl Replies {
    /// Answers at once, of each kind, that there is memory for from the beginning.
    const USUAL: usize = 16;

    pub(super) fn new(path: Path, each_max: usize) -> Self {
        let mut replies =
            Self { path, each_max: 0, owed: VecDeque::new(), atomics: VecDeque::new() };
        replies.set_max(each_max);
        replies
    }

    /// Changes where packets go.
    pub(super) fn set_path(&mut self, path: Path) {
        self.path = path;
    }

    /// Changes how many answers there may be at once; what is owed already stays.
    pub(super) fn set_max(&mut self, each_max: usize) {
        self.each_max = each_max;
        // More memory is taken only by a peer that asks for so many at once.
        let usual = each_max.min(Self::USUAL);
        self.owed.reserve(usual.saturating_mul(2).saturating_sub(self.owed.len()));
        self.atomics.reserve(usual.saturating_sub(self.atomics.len()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Owes nothing any more.
    pub(super) fn clear(&mut self) {
        self.owed.clear();
    }

    /// A new request may be accepted.
    pub(super) fn has_room(&self) -> bool {
        self.count(false) < self.each_max
    }

    fn count(&self, again: bool) -> usize {
        self.owed.iter().filter(|reply| reply.again == again).count()
    }

    /// Owes the bytes of `range`; there is room.
    pub(super) fn push_read(&mut self, psn: Psn, range: Range, msn: Msn) {
        debug_assert!(self.has_room(), "the caller asked");
        let body = Body::Read { range, first: true };
        self.owed.push_back(Reply { psn, msn, again: false, body });
    }

    /// Owes the value that an atomic found, and remembers it; there is room.
    pub(super) fn push_atomic(&mut self, psn: Psn, value: u64, msn: Msn) {
        debug_assert!(self.has_room(), "the caller asked");
        if self.atomics.len() >= self.each_max {
            self.atomics.pop_front();
        }
        self.atomics.push_back(Saved { psn, value, msn });
        let body = Body::Atomic { value };
        self.owed.push_back(Reply { psn, msn, again: false, body });
    }

    /// Owes the bytes of `range` once more.
    pub(super) fn repeat_read(&mut self, psn: Psn, range: Range, msn: Msn) {
        let body = Body::Read { range, first: true };
        self.repeat(Reply { psn, msn, again: true, body });
    }

    /// Owes the bytes of `range` once more, before all that was not asked for again: to a peer that keeps the data
    /// behind them, and waits for nothing else. If they are still owed, that is enough; what is owed besides, stays.
    pub(super) fn fill_read(&mut self, psn: Psn, range: Range, msn: Msn) {
        let reply = Reply { psn, msn, again: true, body: Body::Read { range, first: true } };
        let path = self.path;
        if self.owed.iter().any(|other| other.covers(&reply, &path)) {
            return;
        }
        self.owed.retain(|other| !reply.covers(other, &path));
        if self.count(true) < self.each_max {
            let at = self.owed.iter().take_while(|other| other.again).count();
            self.owed.insert(at, reply);
        }
    }

    /// Owes the answer to an atomic once more, if it is remembered.
    pub(super) fn repeat_atomic(&mut self, psn: Psn) {
        let saved = self.atomics.iter().find(|saved| saved.psn == psn);
        if let Some(&Saved { psn, value, msn }) = saved {
            self.repeat(Reply { psn, msn, again: true, body: Body::Atomic { value } });
        }
    }

    /// Owes a response instead of what is still owed of it. A requester that asks for more at once
    /// than was agreed on has to ask again.
    fn repeat(&mut self, reply: Reply) {
        let path = self.path;
        self.owed.retain(|other| !other.overlaps(&reply, &path));
        if self.count(true) < self.each_max {
            self.owed.push_back(reply);
        }
    }

    /// Emits what is owed, as far as the host has room. Fails with the packet whose bytes cannot
    /// be had any more, unless the peer had asked before: a first answer may have reached it since, and
    /// its owner may have given the region back.
    pub(super) fn transmit(&mut self, host: &mut impl Host) -> Result<(), Psn> {
        while host.room() {
            let Some(reply) = self.owed.front_mut() else {
                break;
            };
            let emitted = reply.emit_next(&self.path, host);
            match emitted {
                Ok(false) => {}
                Err(psn) if !reply.again => return Err(psn),
                Ok(true) | Err(_) => {
                    self.owed.pop_front();
                }
            }
        }
        Ok(())
    }
}

impl Reply {
    /// How many packets are still to be emitted.
    const fn packets(&self, path: &Path) -> u32 {
        match self.body {
            Body::Atomic { .. } => 1,
            Body::Read { range, .. } => path.mtu.packets(range.len),
        }
    }

    /// Some packet is still to be emitted by both.
    fn overlaps(&self, other: &Self, path: &Path) -> bool {
        let ahead = i64::from(other.psn.since(self.psn));
        -i64::from(other.packets(path)) < ahead && ahead < i64::from(self.packets(path))
    }

    /// All that is still to be emitted of the other is still to be emitted of this one.
    fn covers(&self, other: &Self, path: &Path) -> bool {
        let ahead = i64::from(other.psn.since(self.psn));
        let end = ahead + i64::from(other.packets(path));
        ahead >= 0 && end <= i64::from(self.packets(path))
    }

    /// Emits the next packet; true if it was the last. Fails with the packet that had no data.
    fn emit_next(&mut self, path: &Path, host: &mut impl Host) -> Result<bool, Psn> {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        let (operation, extension, payload, last) = match &mut self.body {
            Body::Atomic { value } => {
                let extension = Extension::AtomicAck(aeth, *value);
                (Operation::AtomicAcknowledge, extension, Payload::None, true)
            }
            Body::Read { range, first } => {
                let len = range.len.min(path.mtu.bytes());
                let last = len == range.len;
                let (operation, extension) = read_headers(*first, last, aeth);
                let payload = match len {
                    0 => Payload::None,
                    _ => Payload::Region(Range { len, ..*range }),
                };
                range.va = range.va.wrapping_add(u64::from(len));
                range.len -= len;
                *first = false;
                (operation, extension, payload, last)
            }
        };
        let headers = path.headers(operation, self.psn, payload.len(), extension);
        debug_assert!(headers.is_some(), "a reliable connection has all of these");
        if let Some(headers) = headers {
            host.emit(&headers, payload, None).map_err(|_| self.psn)?;
        }
        self.psn = self.psn.plus(1);
        Ok(last)
    }
}

/// Opcode and extended header of one packet of a READ's response.
const fn read_headers(first: bool, last: bool, aeth: Aeth) -> (Operation, Extension) {
    match (first, last) {
        (true, true) => (Operation::ReadResponseOnly, Extension::Aeth(aeth)),
        (true, false) => (Operation::ReadResponseFirst, Extension::Aeth(aeth)),
        (false, true) => (Operation::ReadResponseLast, Extension::Aeth(aeth)),
        (false, false) => (Operation::ReadResponseMiddle, Extension::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Desk, FIRST, PATH, RKEY, VA};
    use alloc::vec::Vec;

    /// Goal: nothing that a peer repeats makes the queues grow.
    #[test]
    fn what_is_owed_has_a_bound() {
        let mut desk = Desk { room: 0, ..Desk::new() };
        let mut replies = Replies::new(PATH, 3);
        let capacities = (replies.owed.capacity(), replies.atomics.capacity());
        let msn = Msn::new(0);
        for round in 0..100_u32 {
            if replies.has_room() {
                replies.push_atomic(FIRST.plus(round), 7, msn);
            }
            replies.repeat_atomic(FIRST.plus(round / 2));
            let len = 10 + 700 * (round % 3);
            let range = Range { rkey: RKEY, va: VA, len };
            replies.repeat_read(FIRST.plus(100 + round * 5 % 17), range, msn);
            assert!(replies.owed.len() <= 6 && replies.atomics.len() <= 3, "round {round}");
        }
        assert_eq!((replies.owed.capacity(), replies.atomics.capacity()), capacities);
        desk.room = usize::MAX;
        assert_eq!(replies.transmit(&mut desk), Ok(()));
        assert!(replies.is_empty());
    }

    #[test]
    fn replies_overlap_if_they_share_a_packet() {
        let reply = |at: u32, len| Reply {
            psn: FIRST.plus(at),
            msn: Msn::new(0),
            again: false,
            body: Body::Read { range: Range { rkey: RKEY, va: VA, len }, first: true },
        };
        let four = reply(10, 1000); // Packets 10 to 13.
        for (at, len, shares) in [(9, 1, false), (9, 257, true), (13, 1, true), (14, 1, false)] {
            assert_eq!(four.overlaps(&reply(at, len), &PATH), shares, "{at}");
            assert_eq!(reply(at, len).overlaps(&four, &PATH), shares, "{at}");
        }
    }

    /// Goal: what a peer misses that keeps the rest goes before everything else, and cancels nothing of that.
    /// Method: of two READs of four packets, two packets are out, and the first was lost.
    #[test]
    fn a_filler_goes_first_and_leaves_what_is_owed() {
        let mut desk = Desk { room: 2, ..Desk::new() };
        let mut replies = Replies::new(PATH, 3);
        let (msn, range) = (Msn::new(0), |at: u64, packets: u32| Range {
            rkey: RKEY,
            va: VA + 256 * at,
            len: 256 * packets,
        });
        replies.push_read(FIRST, range(0, 4), msn);
        replies.push_read(FIRST.plus(4), range(4, 4), msn);
        assert_eq!(replies.transmit(&mut desk), Ok(()));
        replies.fill_read(FIRST, range(0, 1), msn);
        replies.fill_read(FIRST.plus(5), range(5, 2), msn); // Still owed.
        replies.fill_read(FIRST.plus(1), range(1, 2), msn); // The half of it is.
        desk.room = usize::MAX;
        assert_eq!(replies.transmit(&mut desk), Ok(()));
        let numbers: Vec<i32> = desk.operations().into_iter().map(|(_, at)| at).collect();
        assert_eq!(numbers, [0, 1, 0, 1, 2, 2, 3, 4, 5, 6, 7]);
    }
}
