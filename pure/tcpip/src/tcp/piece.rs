//! Bytes of buffers that were made elsewhere: frames of a ring, memory of a program.

use alloc::vec::Vec;
use core::ops::Range;

/// Some bytes of an owned buffer. The buffer is dropped with its last piece, which gives it back.
#[derive(Clone, Debug)]
pub struct Piece<B> {
    buffer: B,
    range: Range<usize>,
}

impl<B: AsRef<[u8]>> Piece<B> {
    /// The bytes `range` of `buffer`, as far as there are any.
    pub fn new(buffer: B, range: Range<usize>) -> Self {
        let end = range.end.min(buffer.as_ref().len());
        Self { range: range.start.min(end)..end, buffer }
    }

    /// All bytes of `buffer`.
    pub fn whole(buffer: B) -> Self {
        let len = buffer.as_ref().len();
        Self { buffer, range: 0..len }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.as_ref().get(self.range.clone()).unwrap_or_default()
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Leaves out the first `count` bytes.
    pub fn skip(&mut self, count: usize) {
        self.range.start = self.range.start.saturating_add(count).min(self.range.end);
    }

    /// Leaves out all but the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.range.end = self.range.start.saturating_add(len).min(self.range.end);
    }
}

/// Bytes that have arrived in order.
#[derive(Clone, Debug)]
pub enum Received<B> {
    /// Copied out of their packets, because there were too many small ones.
    Copied(Vec<u8>),
    /// Still in the packet that brought them.
    Packet(Piece<B>),
}

impl<B: AsRef<[u8]>> Received<B> {
    /// Leaves out the first `count` bytes.
    pub(super) fn skip(&mut self, count: usize) {
        match self {
            Self::Copied(bytes) => _ = bytes.drain(..count.min(bytes.len())),
            Self::Packet(piece) => piece.skip(count),
        }
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Received<B> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Packet(piece) => piece.as_slice(),
        }
    }
}
