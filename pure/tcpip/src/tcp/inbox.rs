//! The receive buffer: payloads in order for the program, and those that came before the ones they follow.
//!
//! Payloads stay in their packets. What bounds them are the window, in bytes, and two numbers of packets: of those
//! that are ready, more are copied together; of early ones, the last are dropped.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::piece::{Piece, Received};
use super::position::{count, length};

/// Payloads that the program has not read.
#[derive(Debug)]
pub(super) struct Inbox<B> {
    /// In order.
    ready: VecDeque<Received<B>>,
    /// Bytes of the first of them that the program has read.
    read: usize,
    /// Bytes in `ready` that it has not read.
    ready_bytes: u64,
    /// By position; they do not overlap, and all are beyond `next`.
    early: VecDeque<(u64, Piece<B>)>,
    /// Position of the next byte that is not ready.
    next: u64,
    ready_max: usize,
    early_max: usize,
}

/// What became of a payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Placed {
    /// There was no room for it, or what was early from this position on had to go for it.
    Dropped {
        /// The first position that is not kept.
        from: u64,
    },
    /// It waits for what it follows.
    Early,
    /// It is ready, and perhaps early ones with it.
    Ready,
    /// All of it had arrived before.
    Twice,
}

impl<B: AsRef<[u8]>> Inbox<B> {
    pub(super) fn new(ready_max: usize, early_max: usize) -> Self {
        let (ready, early) = (VecDeque::new(), VecDeque::new());
        Self { ready, read: 0, ready_bytes: 0, early, next: 1, ready_max, early_max }
    }

    /// Position of the next byte that is not ready.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes that are ready.
    pub(super) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Packets are kept that came early.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// No packet is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.early.is_empty()
    }

    /// The program has so many more bytes, which are not kept: nothing is.
    pub(super) fn pass(&mut self, bytes: u64) {
        self.next += bytes;
    }

    /// The next bytes for the program.
    pub(super) fn take(&mut self) -> Option<Received<B>> {
        let mut received = self.ready.pop_front()?;
        received.skip(core::mem::take(&mut self.read));
        self.ready_bytes -= count(received.as_ref().len());
        Some(received)
    }

    /// Copies the next bytes for the program, from the one on that follows `skip` others, and says how many.
    pub(super) fn peek(&self, skip: usize, to: &mut [u8]) -> usize {
        let (mut skip, mut copied) = (self.read.saturating_add(skip), 0);
        for received in &self.ready {
            let bytes = received.as_ref();
            let from = bytes.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(bytes.len());
            let room = to.get_mut(copied..).unwrap_or_default();
            let part = from.len().min(room.len());
            let (Some(room), Some(from)) = (room.get_mut(..part), from.get(..part)) else { break };
            room.copy_from_slice(from);
            copied += part;
            if copied == to.len() {
                break;
            }
        }
        copied
    }

    /// The program has read so many bytes.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.ready_bytes = self.ready_bytes.saturating_sub(count(bytes));
        self.read += bytes;
        while let Some(first) = self.ready.front().map(|first| first.as_ref().len())
            && self.read >= first
        {
            self.read -= first;
            self.ready.pop_front();
        }
    }

    /// Takes a payload that is not empty and begins at `start`.
    pub(super) fn insert(&mut self, start: u64, mut piece: Piece<B>) -> Placed {
        if start <= self.next {
            piece.skip(length(self.next - start));
            if piece.is_empty() {
                return Placed::Twice;
            }
            self.append(piece);
            self.join();
            return Placed::Ready;
        }
        self.insert_early(start, piece)
    }

    fn append(&mut self, piece: Piece<B>) {
        let len = count(piece.len());
        self.next += len;
        self.ready_bytes += len;
        if self.ready.len() < self.ready_max {
            self.ready.push_back(Received::Packet(piece));
            return;
        }
        match self.ready.back_mut() {
            Some(Received::Copied(bytes)) if bytes.len() < COPIED_MAX => {
                bytes.extend_from_slice(piece.as_slice());
            }
            Some(Received::Copied(_) | Received::Packet(_)) | None => {
                let mut bytes = Vec::with_capacity(piece.len());
                bytes.extend_from_slice(piece.as_slice());
                self.ready.push_back(Received::Copied(bytes));
            }
        }
    }

    /// Early payloads that follow now become ready.
    fn join(&mut self) {
        while let Some((start, mut piece)) = self.early.pop_front() {
            if start > self.next {
                self.early.push_front((start, piece));
                return;
            }
            piece.skip(length(self.next - start));
            if !piece.is_empty() {
                self.append(piece);
            }
        }
    }

    fn insert_early(&mut self, mut start: u64, mut piece: Piece<B>) -> Placed {
        let at = self.early.partition_point(|(other, _)| *other <= start);
        let end = start + count(piece.len());
        if let Some((before, other)) = at.checked_sub(1).and_then(|at| self.early.get(at)) {
            let covered = (before + count(other.len())).saturating_sub(start);
            piece.skip(length(covered));
            start += covered;
        }
        if piece.is_empty() {
            return Placed::Twice;
        }
        // Of later ones, those within this one go, and this one ends where the next begins.
        while let Some((after, other)) = self.early.get(at) {
            if *after >= end {
                break;
            }
            if *after + count(other.len()) > end {
                piece.truncate(length(*after - start));
                break;
            }
            self.early.remove(at);
        }
        if piece.is_empty() {
            return Placed::Twice;
        }
        self.early.insert(at, (start, piece));
        if self.early.len() <= self.early_max {
            return Placed::Early;
        }
        let from = self.early.pop_back().map_or(start, |(from, _)| from);
        Placed::Dropped { from }
    }
}

/// Bytes of copied payloads after which others are copied elsewhere.
const COPIED_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec;

    fn piece(range: core::ops::Range<u8>) -> Piece<Vec<u8>> {
        Piece::whole(range.collect())
    }

    fn all(inbox: &mut Inbox<Vec<u8>>) -> Vec<u8> {
        let mut bytes = vec![];
        while let Some(received) = inbox.take() {
            bytes.extend_from_slice(received.as_ref());
        }
        bytes
    }

    #[test]
    fn early_payloads_join_whatever_they_overlap() {
        let mut inbox = Inbox::new(8, 8);
        assert_eq!(inbox.insert(10, piece(10..20)), Placed::Early);
        assert_eq!(inbox.insert(12, piece(12..18)), Placed::Twice);
        assert_eq!(inbox.insert(30, piece(30..40)), Placed::Early);
        assert_eq!(inbox.insert(5, piece(5..35)), Placed::Early);
        assert_eq!(inbox.insert(1, piece(1..6)), Placed::Ready);
        assert_eq!(inbox.next(), 40);
        assert_eq!(inbox.insert(20, piece(20..40)), Placed::Twice);
        assert_eq!(inbox.insert(39, piece(39..42)), Placed::Ready);
        assert_eq!(all(&mut inbox), (1..42).collect::<Vec<_>>());
        assert_eq!((inbox.ready_bytes(), inbox.has_early()), (0, false));
    }

    /// Goal: bytes that are read in any portions are those that came, whether packets are taken between or not.
    #[test]
    fn bytes_can_be_read_in_any_portions() {
        for portion in 1..40 {
            let mut inbox = Inbox::new(2, 2); // The third packet is copied, and the fourth with it.
            for at in 0..4 {
                inbox.insert(1 + 10 * u64::from(at), piece(10 * at..10 * at + 10));
            }
            let (mut bytes, mut room) = (vec![], vec![0; portion]);
            let mut take = false;
            while inbox.ready_bytes() > 0 {
                if take {
                    bytes.extend_from_slice(inbox.take().unwrap().as_ref());
                } else {
                    let peeked = inbox.peek(1, &mut room);
                    let next = room.first().copied();
                    let len = inbox.peek(0, &mut room);
                    assert!(peeked == 0 || portion == 1 || next == room.get(1).copied());
                    inbox.consume(len);
                    bytes.extend_from_slice(&room[..len]);
                }
                take = !take && portion % 3 == 0;
                assert_eq!(usize::try_from(inbox.ready_bytes()).unwrap() + bytes.len(), 40);
            }
            assert_eq!(bytes, (0..40).collect::<Vec<_>>(), "{portion}");
            assert!(inbox.take().is_none() && inbox.peek(0, &mut room) == 0);
        }
    }

    #[test]
    fn nothing_is_beyond_the_end_of_numbers() {
        let mut inbox = Inbox::new(2, 2);
        inbox.insert(1, piece(1..10));
        inbox.consume(1);
        assert_eq!(inbox.peek(usize::MAX, &mut [0]), 0);
    }

    #[test]
    fn too_many_early_packets_cost_the_last_of_them() {
        let mut inbox = Inbox::new(8, 2);
        assert_eq!(inbox.insert(10, piece(10..11)), Placed::Early);
        assert_eq!(inbox.insert(20, piece(20..21)), Placed::Early);
        assert_eq!(inbox.insert(30, piece(30..31)), Placed::Dropped { from: 30 });
        assert_eq!(inbox.insert(15, piece(15..16)), Placed::Dropped { from: 20 });
    }

    #[test]
    fn too_many_small_packets_are_copied_together() {
        let mut inbox = Inbox::new(2, 2);
        for at in 1..100 {
            assert_eq!(inbox.insert(u64::from(at), piece(at..at + 1)), Placed::Ready);
        }
        assert_eq!(inbox.ready.len(), 3);
        assert_eq!(all(&mut inbox), (1..100).collect::<Vec<_>>());
    }
}
