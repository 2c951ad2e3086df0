//! What a peer has advertised: buffers of its own, as seen from here.
//!
//! Everything in this file is the peer's word. Its own device checks each access against what it
//! really registered, so a lie costs the liar's request and nothing else.

use crate::error::BlockError;
use crate::frame::Advertisement;
use adverb_verbs::{RemoteSlice, Rkey};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A buffer of the peer's.
///
/// A handle: clones are the same buffer, with the same round robin.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Debug)]
pub struct RemoteBuffer {
    first: RemoteSlice,
    link: u32,
    blocks: usize,
    block_bytes: usize,
    /// Whose turn it is.
    turn: Arc<AtomicUsize>,
}

impl RemoteBuffer {
    /// A buffer of which the program has learnt by other means: `blocks` blocks of `block_bytes`
    /// bytes from `addr` on. Whether it is there shows when it is used. At least one block is
    /// assumed.
    pub fn from_raw(addr: u64, rkey: Rkey, blocks: usize, block_bytes: usize) -> Self {
        Self {
            first: RemoteSlice { addr, rkey },
            link: ANY_LINK,
            blocks: blocks.max(1),
            block_bytes,
            turn: Arc::default(),
        }
    }

    /// What was advertised over the link with this number.
    pub(crate) fn new(advertisement: &Advertisement, link: u32) -> Self {
        let buffer = Self::from_raw(
            advertisement.addr,
            advertisement.rkey,
            usize::try_from(advertisement.blocks).unwrap_or(usize::MAX),
            usize::try_from(advertisement.block_bytes).unwrap_or(usize::MAX),
        );
        Self { link, ..buffer }
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of each.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Address of the first byte, there.
    pub fn addr(&self) -> u64 {
        self.first.addr
    }

    /// Key of the region, there.
    pub fn rkey(&self) -> Rkey {
        self.first.rkey
    }

    /// The `blocks` blocks from number `first` on, as a buffer with a round robin of its own.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`], also for no blocks at all.
    pub fn part(&self, first: usize, blocks: usize) -> Result<Self, BlockError> {
        let fits = blocks > 0 && first.checked_add(blocks).is_some_and(|end| end <= self.blocks);
        if !fits {
            let index = first.saturating_add(blocks.saturating_sub(1)).max(self.blocks);
            return Err(BlockError::NoSuchBlock { index, blocks: self.blocks });
        }
        Ok(Self { first: self.block(first).start, blocks, turn: Arc::default(), ..self.clone() })
    }

    /// Block number `index`, the first being 0.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`].
    #[inline]
    pub fn at(&self, index: usize) -> Result<RemoteBlock, BlockError> {
        if index >= self.blocks {
            return Err(BlockError::NoSuchBlock { index, blocks: self.blocks });
        }
        Ok(self.block(index))
    }

    /// The next block in turn: 0, 1, … and from the last to 0 again.
    ///
    /// Unlike [`Buffer::next`](crate::Buffer::next) it has no look at what is in use. That a WRITE is done
    /// does not say that the peer has read what is there, and only the peer knows: let it say how many
    /// blocks it has done with, by messages or by a count that it writes.
    #[inline]
    pub fn next(&self) -> RemoteBlock {
        let following = |turn: usize| (turn + 1).checked_rem(self.blocks);
        let turn = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following);
        self.block(turn.unwrap_or(0))
    }

    fn block(&self, index: usize) -> RemoteBlock {
        let offset = index.saturating_mul(self.block_bytes);
        RemoteBlock {
            start: self.first.plus(u64::try_from(offset).unwrap_or(u64::MAX)),
            len: self.block_bytes,
            link: self.link,
        }
    }
}

/// A block of a peer's buffer, or a part of one.
///
/// [`Channel`](crate::Channel) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteBlock {
    start: RemoteSlice,
    len: usize,
    link: u32,
}

impl RemoteBlock {
    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is, there.
    pub fn start(&self) -> RemoteSlice {
        self.start
    }

    /// It is a buffer that the peer of the link with this number has now.
    #[inline]
    pub(crate) fn is_of(&self, link: u32) -> bool {
        self.link == link || self.link == ANY_LINK
    }

    /// Its first `len` bytes.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`].
    #[inline]
    pub fn first(self, len: usize) -> Result<Self, BlockError> {
        self.part(0, len)
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`].
    #[inline]
    pub fn part(self, offset: usize, len: usize) -> Result<Self, BlockError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                let start = self.start.plus(u64::try_from(offset).unwrap_or(u64::MAX));
                Ok(Self { start, len, ..self })
            }
            Some(_) | None => Err(BlockError::OutOfBlock { offset, len, block: self.len }),
        }
    }
}

/// The link of buffers that were not advertised: links count from 1.
const ANY_LINK: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_where_the_peer_said() {
        let buffer = RemoteBuffer::from_raw(1000, Rkey(5), 3, 64);
        let block = buffer.at(2).unwrap();
        let (addr, rkey) = (1128, Rkey(5));
        assert_eq!(block.start(), RemoteSlice { addr, rkey });
        assert_eq!(block.part(60, 4).unwrap().start().addr, 1188);
        assert!(block.part(60, 5).is_err());
        assert!(buffer.at(3).is_err());
        let part = buffer.part(1, 2).unwrap();
        assert_eq!((part.addr(), part.blocks()), (1064, 2));
        assert!(buffer.part(2, 2).is_err());
        let turns: Vec<_> = (0..4).map(|_| buffer.next().start().addr).collect();
        assert_eq!(turns, [1000, 1064, 1128, 1000]);
    }
}
