//! Buffers: registered memory of equal blocks.
//!
//! Bytes that a peer may change are never lent as slices, so everything here copies. A [`Block`] is
//! what is posted; it keeps its buffer registered, and itself from being handed out as free.

use crate::adapter::Adapter;
use crate::error::{BlockError, BufferError};
use adverb_verbs::{Access, Mr, Rkey, Sge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tracing::info;

/// Registered memory of equal blocks, one after the other.
///
/// A handle: clones are the same memory, with the same blocks in use.
#[derive(Clone, Debug)]
pub struct Buffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mr: Mr,
    /// The region's address and key: what is posted is made of these, without asking it again.
    addr: u64,
    lkey: u32,
    /// Where its first block starts in the region.
    start: usize,
    /// It is a part of another, or the same in other blocks.
    is_part: bool,
    blocks: usize,
    block_bytes: usize,
    /// How many [`Block`]s there are of each block, of all the blocks that this is a part of.
    uses: Arc<[AtomicU32]>,
    /// Where its first block is among those.
    first: usize,
    /// Where [`Buffer::next`] looks first.
    turn: AtomicUsize,
    adapter: Adapter,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_part {
            return;
        }
        info!(addr = format_args!("{:#x}", self.mr.addr()), "buffer deregistered");
    }
}

impl Buffer {
    pub(crate) fn allocate(
        adapter: &Adapter,
        blocks: usize,
        block_bytes: usize,
        access: Access,
    ) -> Result<Self, BufferError> {
        if blocks == 0 || block_bytes == 0 {
            return Err(BufferError::Empty);
        }
        if block_bytes > Self::BLOCK_BYTES_MAX {
            return Err(BufferError::BlockTooLong {
                asked: block_bytes,
                max: Self::BLOCK_BYTES_MAX,
            });
        }
        let too_large = || BufferError::TooLarge { blocks, block_bytes };
        let len = blocks.checked_mul(block_bytes).ok_or_else(too_large)?;
        let uses = no_uses(blocks).ok_or_else(too_large)?;
        let mr = adapter.pd().allocate(len, access)?;
        info!(
            addr = format_args!("{:#x}", mr.addr()),
            blocks,
            block_bytes,
            %access,
            lkey = format_args!("{:#x}", mr.lkey()),
            rkey = format_args!("{:#x}", mr.rkey().0),
            "buffer registered"
        );
        Ok(Self {
            inner: Arc::new(Inner {
                addr: mr.addr(),
                lkey: mr.lkey(),
                mr,
                start: 0,
                is_part: false,
                blocks,
                block_bytes,
                uses,
                first: 0,
                turn: AtomicUsize::new(0),
                adapter: adapter.clone(),
            }),
        })
    }

    /// The `blocks` blocks from number `first` on, as a buffer of its own: the same memory and key, its
    /// own count of blocks. A block that is in use in one is in use in the other. A peer that is told of
    /// it learns its address and length alone, but the key opens all of the memory.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`], also for no blocks at all.
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_session::{Adapter, Config};
    ///
    /// let buffer = Adapter::open(Config::default())?.buffer(8, 64)?;
    /// let half = buffer.part(4, 4)?;
    /// let block = half.next()?;
    /// block.write(0, b"in the middle")?;
    /// assert_eq!(buffer.at(4)?.to_vec(), block.to_vec());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn part(&self, first: usize, blocks: usize) -> Result<Self, BlockError> {
        let known = self.inner.blocks;
        let fits = blocks > 0 && first.checked_add(blocks).is_some_and(|end| end <= known);
        if !fits {
            let index = first.saturating_add(blocks.saturating_sub(1)).max(known);
            return Err(BlockError::NoSuchBlock { index, blocks: known });
        }
        let start = self.inner.start + first * self.inner.block_bytes;
        let uses = (Arc::clone(&self.inner.uses), self.inner.first + first);
        Ok(self.seen_as(start, blocks, self.inner.block_bytes, uses))
    }

    /// The same memory in blocks of another length, as a buffer of its own. Bytes at the end that do not
    /// fill a block are left out. Blocks of one length do not count as uses of those of the other.
    ///
    /// # Errors
    ///
    /// [`BufferError::Empty`] for blocks of nothing, [`BufferError::BlockTooLong`] for blocks longer
    /// than all of it, [`BufferError::TooLarge`] for more than 2³² blocks.
    pub fn in_blocks_of(&self, block_bytes: usize) -> Result<Self, BufferError> {
        let len = self.len();
        let blocks = len.checked_div(block_bytes).ok_or(BufferError::Empty)?;
        if blocks == 0 {
            return Err(BufferError::BlockTooLong { asked: block_bytes, max: len });
        }
        if block_bytes > Self::BLOCK_BYTES_MAX {
            let max = Self::BLOCK_BYTES_MAX;
            return Err(BufferError::BlockTooLong { asked: block_bytes, max });
        }
        let uses = no_uses(blocks).ok_or(BufferError::TooLarge { blocks, block_bytes })?;
        Ok(self.seen_as(self.inner.start, blocks, block_bytes, (uses, 0)))
    }

    fn seen_as(
        &self,
        start: usize,
        blocks: usize,
        block_bytes: usize,
        (uses, first): (Arc<[AtomicU32]>, usize),
    ) -> Self {
        let Inner { mr, adapter, .. } = &*self.inner;
        let (mr, adapter, turn) = (mr.clone(), adapter.clone(), AtomicUsize::new(0));
        let Inner { addr, lkey, .. } = *self.inner;
        let is_part = true;
        let inner = Inner {
            mr,
            addr,
            lkey,
            start,
            is_part,
            blocks,
            block_bytes,
            uses,
            first,
            turn,
            adapter,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Bytes of the longest block: those of the longest message.
    pub const BLOCK_BYTES_MAX: usize = 1 << 31;

    /// How many blocks it has.
    pub fn blocks(&self) -> usize {
        self.inner.blocks
    }

    /// Bytes of each.
    pub fn block_bytes(&self) -> usize {
        self.inner.block_bytes
    }

    /// Bytes of all.
    pub fn len(&self) -> usize {
        self.inner.blocks * self.inner.block_bytes
    }

    /// Never true: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte, as a peer is told it.
    pub fn addr(&self) -> u64 {
        self.inner.mr.addr() + u64::try_from(self.inner.start).unwrap_or(0)
    }

    /// Key with which a peer reaches it.
    pub fn rkey(&self) -> Rkey {
        self.inner.mr.rkey()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.inner.mr.access()
    }

    /// The region that it is, or is a part of.
    pub fn mr(&self) -> &Mr {
        &self.inner.mr
    }

    /// Block number `index`, the first being 0, whether it is in use or not: to look at bytes that a
    /// peer writes, for example. It is in use from now on.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`].
    #[inline]
    pub fn at(&self, index: usize) -> Result<Block, BlockError> {
        if index >= self.inner.blocks {
            return Err(BlockError::NoSuchBlock { index, blocks: self.inner.blocks });
        }
        if let Some(uses) = self.uses(index) {
            uses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.block(index))
    }

    /// A block that is not in use: the next one in turn, and after the last the first again.
    ///
    /// A block is in use for as long as there is a [`Block`] of it: with the program, in posted work, or
    /// in the event of that work. So it is free again when the event was taken and dropped, or at once
    /// if it was not posted.
    ///
    /// # Errors
    ///
    /// [`BlockError::AllInUse`]. Take events of posted work, with [`Channel::poll`](crate::Channel::poll)
    /// or a call that waits, and drop them.
    ///
    /// # Examples
    ///
    /// ```
    /// use adverb_session::{Adapter, BlockError, Config};
    ///
    /// let buffer = Adapter::open(Config::default())?.buffer(2, 64)?;
    /// let (one, two) = (buffer.next()?, buffer.next()?);
    /// assert!(matches!(buffer.next(), Err(BlockError::AllInUse { blocks: 2 })));
    /// drop(two);
    /// assert_eq!((one.index(), buffer.next()?.index()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn next(&self) -> Result<Block, BlockError> {
        let Inner { blocks, turn, .. } = &*self.inner;
        let first = turn.load(Ordering::Relaxed);
        for index in (first..*blocks).chain(0..first) {
            if self.claim(index) {
                // Others may do so too: it says where to look, and the use alone whose block it is.
                let following = (index + 1).checked_rem(*blocks).unwrap_or(0);
                turn.store(following, Ordering::Relaxed);
                return Ok(self.block(index));
            }
        }
        Err(BlockError::AllInUse { blocks: *blocks })
    }

    /// Whether block `index` was free, and is in use now.
    #[inline]
    fn claim(&self, index: usize) -> bool {
        self.uses(index).is_some_and(|uses| {
            uses.load(Ordering::Relaxed) == 0
                // What was done with the block before it became free was done before this.
                && uses.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// The count of block `index`, of which there always is one.
    #[inline]
    fn uses(&self, index: usize) -> Option<&AtomicU32> {
        self.inner.uses.get(self.inner.first + index)
    }

    /// Block `index`, whose use has been counted.
    #[inline]
    fn block(&self, index: usize) -> Block {
        Block {
            offset: self.inner.start + index * self.inner.block_bytes,
            len: u32::try_from(self.inner.block_bytes).unwrap_or(u32::MAX),
            place: u32::try_from(self.inner.first + index).unwrap_or(u32::MAX),
            buffer: self.clone(),
        }
    }

    /// Sets all bytes to `byte`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Memory`] if it was registered without [`Access::LOCAL_WRITE`].
    pub fn fill(&self, byte: u8) -> Result<(), BlockError> {
        Ok(self.inner.mr.fill(self.inner.start, self.len(), byte)?)
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }
}

/// Counts for so many blocks, none of which is in use; `None` if there are too many to be told apart.
fn no_uses(blocks: usize) -> Option<Arc<[AtomicU32]>> {
    u32::try_from(blocks).ok().map(|blocks| (0..blocks).map(|_| AtomicU32::new(0)).collect())
}

/// A block of a buffer, or a part of one: what is posted. It keeps the buffer registered, and the block
/// in use (see [`Buffer::next`]).
#[derive(Debug)]
// Blocks are moved whole, and out of an `Option`, whose mark is the buffer. With the buffer last both are
// moves of the same 16 and 8 bytes. A load that does not match the store before it waits until that store,
// and all before it, has reached the cache.
#[repr(C)]
pub struct Block {
    /// From the start of the region.
    offset: usize,
    len: u32,
    /// Where its use is counted.
    place: u32,
    buffer: Buffer,
}

impl Clone for Block {
    fn clone(&self) -> Self {
        if let Some(uses) = self.uses() {
            uses.fetch_add(1, Ordering::Relaxed);
        }
        let Self { offset, len, place, ref buffer } = *self;
        Self { offset, len, place, buffer: buffer.clone() }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Some(uses) = self.uses() {
            // What was done with the block happens before it is claimed again.
            uses.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Block {
    #[inline]
    fn uses(&self) -> Option<&AtomicU32> {
        self.buffer.inner.uses.get(usize::try_from(self.place).ok()?)
    }

    /// The buffer that it is a block of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its number in the buffer.
    pub fn index(&self) -> usize {
        usize::try_from(self.place).unwrap_or(usize::MAX) - self.buffer.inner.first
    }

    /// Where it starts in the buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.offset - self.buffer.inner.start
    }

    /// It starts where `other` does, in the same memory.
    pub(crate) fn starts_with(&self, other: &Self) -> bool {
        self.sge().lkey == other.sge().lkey && self.sge().addr == other.sge().addr
    }

    /// Its bytes.
    #[inline]
    pub fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
    pub fn part(mut self, offset: usize, len: usize) -> Result<Self, BlockError> {
        self.offset = self.start_of(offset, len)?;
        self.len = u32::try_from(len).unwrap_or(u32::MAX);
        Ok(self)
    }

    /// Copies its bytes from `offset` on into `target`.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`]; nothing was copied then.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BlockError> {
        let start = self.start_of(offset, target.len())?;
        Ok(self.buffer.inner.mr.read(start, target)?)
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let copied = self.read(0, &mut bytes);
        debug_assert!(copied.is_ok(), "a block lies in its buffer");
        bytes
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`], or [`BlockError::Memory`] if the buffer was registered without
    /// [`Access::LOCAL_WRITE`]; nothing was copied then.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BlockError> {
        let start = self.start_of(offset, bytes.len())?;
        Ok(self.buffer.inner.mr.write(start, bytes)?)
    }

    /// Sets all its bytes to `byte`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Memory`] if the buffer was registered without [`Access::LOCAL_WRITE`].
    pub fn fill(&self, byte: u8) -> Result<(), BlockError> {
        Ok(self.buffer.inner.mr.fill(self.offset, self.len(), byte)?)
    }

    /// Reads the 8 bytes at `offset` in one go, in the machine's byte order. A reader that sees a value
    /// of a peer's request also sees what the same request wrote before it.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`], or [`BlockError::Memory`] if their place in the buffer is not a
    /// multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, BlockError> {
        let start = self.start_of(offset, size_of::<u64>())?;
        Ok(self.buffer.inner.mr.load_u64(start)?)
    }

    /// Writes the 8 bytes at `offset` in one go.
    ///
    /// # Errors
    ///
    /// As [`Block::load_u64`], and as [`Block::write`]; nothing was written then.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), BlockError> {
        let start = self.start_of(offset, size_of::<u64>())?;
        Ok(self.buffer.inner.mr.store_u64(start, value)?)
    }

    #[inline]
    fn start_of(&self, offset: usize, len: usize) -> Result<usize, BlockError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.offset + offset),
            Some(_) | None => Err(BlockError::OutOfBlock { offset, len, block: self.len() }),
        }
    }

    /// As what is posted. It lies in its region, and is no longer than the longest block.
    #[inline(always)]
    pub(crate) fn sge(&self) -> Sge {
        let Inner { addr, lkey, .. } = *self.buffer.inner;
        let start = u64::try_from(self.offset).unwrap_or(u64::MAX);
        Sge { addr: addr.wrapping_add(start), len: self.len, lkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use adverb_verbs::RangeError;
    use std::thread;

    fn adapter() -> Adapter {
        Adapter::open(Config::default()).unwrap()
    }

    #[test]
    fn blocks_follow_one_another_and_do_not_overlap() {
        let buffer = adapter().buffer(3, 10).unwrap();
        for index in 0..3_u8 {
            let block = buffer.at(usize::from(index)).unwrap();
            assert_eq!(block.index(), usize::from(index));
            block.fill(index + 1).unwrap();
        }
        let bytes = |index| buffer.at(index).unwrap().to_vec();
        assert_eq!(bytes(0), [1; 10]);
        assert_eq!(bytes(1), [2; 10]);
        assert_eq!(bytes(2), [3; 10]);
    }

    #[test]
    fn parts_share_memory_and_key_and_count_for_themselves() {
        let buffer = adapter().buffer(6, 8).unwrap();
        let part = buffer.part(2, 3).unwrap();
        assert_eq!((part.blocks(), part.len(), part.rkey()), (3, 24, buffer.rkey()));
        assert_eq!(part.addr(), buffer.addr() + 16);
        part.fill(1).unwrap();
        let bytes: Vec<_> = (0..6).map(|index| buffer.at(index).unwrap().to_vec()).collect();
        assert_eq!(bytes, [[0; 8], [0; 8], [1; 8], [1; 8], [1; 8], [0; 8]]);
        let inner = part.part(1, 2).unwrap();
        let last = inner.at(1).unwrap();
        assert_eq!((last.index(), last.offset()), (1, 8));
        last.store_u64(0, 9).unwrap();
        assert_eq!(buffer.at(4).unwrap().load_u64(0).unwrap(), 9);
        drop(buffer);
        assert_eq!(part.at(2).unwrap().load_u64(0).unwrap(), 9);
        assert!(part.at(3).is_err());
        for (first, blocks) in [(0, 4), (3, 1), (0, 0), (usize::MAX, 2)] {
            assert!(part.part(first, blocks).is_err(), "{first} {blocks}");
        }
    }

    #[test]
    fn the_same_memory_can_be_seen_in_other_blocks() {
        let buffer = adapter().buffer(3, 10).unwrap();
        let eights = buffer.in_blocks_of(8).unwrap();
        assert_eq!((eights.blocks(), eights.len()), (3, 24));
        eights.at(1).unwrap().fill(5).unwrap();
        assert_eq!(buffer.at(0).unwrap().to_vec(), [0, 0, 0, 0, 0, 0, 0, 0, 5, 5]);
        assert_eq!(buffer.in_blocks_of(30).unwrap().blocks(), 1);
        assert!(matches!(buffer.in_blocks_of(0), Err(BufferError::Empty)));
        let error = buffer.in_blocks_of(31).unwrap_err();
        assert!(matches!(error, BufferError::BlockTooLong { asked: 31, max: 30 }));
    }

    #[test]
    fn next_goes_round_and_leaves_out_what_is_in_use() {
        let buffer = adapter().buffer(3, 8).unwrap();
        for round in 0..10 {
            assert_eq!(buffer.next().unwrap().index(), round % 3);
        }
        let kept = [buffer.next().unwrap(), buffer.at(2).unwrap()];
        assert_eq!(buffer.next().unwrap().index(), 0);
        assert_eq!(buffer.next().unwrap().index(), 0);
        let last = buffer.next().unwrap().part(2, 3).unwrap();
        let error = buffer.next().unwrap_err();
        assert!(matches!(error, BlockError::AllInUse { blocks: 3 }), "{error}");
        // A clone is a use as well, and so is an attempt at a part that is not there.
        let clone = last.clone();
        drop(last);
        assert!(buffer.next().is_err());
        assert!(clone.part(0, 9).is_err());
        assert_eq!(buffer.next().unwrap().index(), 0);
        drop(kept);
        assert_eq!(buffer.next().unwrap().index(), 1);
    }

    #[test]
    fn a_block_in_use_is_in_use_in_all_parts_that_have_it() {
        let buffer = adapter().buffer(6, 8).unwrap();
        let inner = buffer.part(2, 3).unwrap().part(1, 2).unwrap();
        let block = inner.next().unwrap();
        assert_eq!((block.index(), block.offset()), (0, 0));
        let others: Vec<_> = (0..5).map(|_| buffer.next().unwrap()).collect();
        assert_eq!(others.iter().map(Block::index).collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
        assert!(buffer.next().is_err());
        assert!(inner.next().is_err());
        drop(block);
        assert_eq!(buffer.next().unwrap().index(), 3);
    }

    #[test]
    fn no_two_threads_are_given_the_same_block() {
        let buffer = adapter().buffer(3, 8).unwrap();
        let take = || {
            for mark in 0..2000_u64 {
                let Ok(block) = buffer.next() else {
                    thread::yield_now();
                    continue;
                };
                let own = block.load_u64(0).unwrap() + 1;
                block.store_u64(0, own).unwrap();
                if mark % 64 == 0 {
                    thread::yield_now();
                }
                assert_eq!(block.load_u64(0).unwrap(), own, "another thread wrote to it");
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(take);
            }
        });
        let all: Vec<_> = (0..3).map(|_| buffer.next().unwrap()).collect();
        assert!(buffer.next().is_err(), "{all:?}");
    }

    #[test]
    fn a_block_that_is_not_there_is_refused_with_the_number_there_are() {
        let error = adapter().buffer(3, 8).unwrap().at(3).unwrap_err();
        assert!(matches!(error, BlockError::NoSuchBlock { index: 3, blocks: 3 }));
        assert_eq!(error.to_string(), "there is no block 3: the buffer has 3 blocks, 0 to 2");
    }

    #[test]
    fn copies_stay_inside_the_block_even_if_the_buffer_goes_on() {
        let buffer = adapter().buffer(2, 8).unwrap();
        let block = buffer.at(0).unwrap();
        assert!(matches!(
            block.write(5, b"four").unwrap_err(),
            BlockError::OutOfBlock { offset: 5, len: 4, block: 8 }
        ));
        assert!(block.read(usize::MAX, &mut [0; 2]).is_err());
        assert!(block.clone().part(4, 5).is_err());
        block.write(4, b"four").unwrap();
        let part = block.part(2, 4).unwrap();
        assert_eq!(part.to_vec(), b"\0\0fo");
        assert!(part.write(3, b"xy").is_err());
        assert_eq!(buffer.at(1).unwrap().to_vec(), [0; 8]);
    }

    #[test]
    fn words_are_whole_and_aligned() {
        let buffer = adapter().buffer(2, 16).unwrap();
        let block = buffer.at(1).unwrap();
        block.store_u64(8, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(block.load_u64(8).unwrap(), 0x0102_0304_0506_0708);
        assert!(matches!(
            block.load_u64(4).unwrap_err(),
            BlockError::Memory(RangeError::Misaligned { offset: 20 })
        ));
        assert!(block.store_u64(9, 1).is_err());
    }

    #[test]
    fn buffers_of_nothing_or_too_much_are_refused() {
        let adapter = adapter();
        assert!(matches!(adapter.buffer(0, 8), Err(BufferError::Empty)));
        assert!(matches!(adapter.buffer(8, 0), Err(BufferError::Empty)));
        let error = adapter.buffer(1, Buffer::BLOCK_BYTES_MAX + 1).unwrap_err();
        assert!(matches!(error, BufferError::BlockTooLong { .. }));
        let error = adapter.buffer(usize::MAX, 2).unwrap_err();
        assert!(matches!(error, BufferError::TooLarge { .. }));
    }
}
