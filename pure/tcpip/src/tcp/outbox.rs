//! The send buffer: chunks that the program has handed over, until they are acknowledged.

use alloc::collections::VecDeque;

use super::piece::Piece;
use super::position::{count, length};

/// Chunks to send, or sent and not acknowledged. A chunk is dropped when all of it is acknowledged.
#[derive(Debug)]
pub(super) struct Outbox<B> {
    /// Each with the position of its first byte.
    chunks: VecDeque<(u64, Piece<B>)>,
    /// Position after the last byte.
    end: u64,
    /// Nothing comes after `end` but the FIN.
    finished: bool,
}

impl<B: AsRef<[u8]>> Outbox<B> {
    pub(super) fn new() -> Self {
        Self { chunks: VecDeque::new(), end: 1, finished: false }
    }

    /// Position after the last byte: where the FIN is, if there is one.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Position after all that there is to send, the FIN included.
    pub(super) fn end_with_fin(&self) -> u64 {
        self.end + u64::from(self.finished)
    }

    /// Chunks that are kept.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn push(&mut self, piece: Piece<B>) {
        if !piece.is_empty() {
            let start = self.end;
            self.end += count(piece.len());
            self.chunks.push_back((start, piece));
        }
    }

    /// Nothing comes any more.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// All before `position` is acknowledged.
    pub(super) fn release(&mut self, position: u64) {
        while let Some((start, piece)) = self.chunks.front() {
            if start + count(piece.len()) > position {
                return;
            }
            self.chunks.pop_front();
        }
    }

    /// Drops all chunks.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// The bytes of `from..to`, if they are in the last chunk.
    pub(super) fn slice(&self, from: u64, to: u64) -> Option<&[u8]> {
        let (start, piece) = self.chunks.back()?;
        let first = from.checked_sub(*start)?;
        piece.as_slice().get(length(first)..length(to.saturating_sub(*start)))
    }

    /// The bytes of `from..to`, in pieces.
    pub(super) fn slices(&self, from: u64, to: u64) -> impl Iterator<Item = &[u8]> + Clone {
        let first = self.chunks.partition_point(|(start, _)| *start <= from).saturating_sub(1);
        let chunks = self.chunks.range(first..).take_while(move |(start, _)| *start < to);
        chunks.filter_map(move |(start, piece)| {
            let bytes = piece.as_slice();
            let upto = length(to - start).min(bytes.len());
            bytes.get(length(from.saturating_sub(*start))..upto).filter(|bytes| !bytes.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn any_range_is_found_and_what_is_acknowledged_is_dropped() {
        let mut outbox = Outbox::new();
        for range in [0_u8..10, 10..11, 11..11, 11..30] {
            outbox.push(Piece::whole(range.collect::<Vec<_>>()));
        }
        for released in 0..30 {
            outbox.release(released + 1);
            for from in released..=30 {
                for to in from..=30 {
                    let bytes: Vec<_> =
                        outbox.slices(from + 1, to + 1).flatten().copied().collect();
                    let expected: Vec<_> = (from..to).map(|at| u8::try_from(at).unwrap()).collect();
                    assert_eq!(bytes, expected);
                    let whole = outbox.slice(from + 1, to + 1);
                    assert!(whole.is_none_or(|whole| whole == expected));
                    assert!(whole.is_some() || from < 11);
                }
            }
        }
        assert_eq!(outbox.chunks(), 1);
        outbox.release(31);
        assert_eq!(outbox.chunks(), 0);
    }
}
