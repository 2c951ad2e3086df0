//! Buffers: registered memory of equal blocks.
//!
//! Bytes that a peer may change are never lent as slices, so everything here copies. A [`Block`] is
//! what is posted; it keeps its buffer registered.

use crate::adapter::Adapter;
use crate::error::{BlockError, BufferError};
use adverb_verbs::{Access, Mr, RangeError, Rkey, Sge};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::info;

/// Registered memory of equal blocks, one after the other.
///
/// A handle: clones are the same memory, with the same round robin.
#[derive(Clone, Debug)]
pub struct Buffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mr: Mr,
    blocks: usize,
    block_bytes: usize,
    turns: Turns,
    adapter: Adapter,
}

impl Drop for Inner {
    fn drop(&mut self) {
        info!(addr = format_args!("{:#x}", self.mr.addr()), "buffer deregistered");
    }
}

/// Whose turn it is, of so many.
#[derive(Debug, Default)]
pub(crate) struct Turns(AtomicUsize);

impl Turns {
    /// The next one's index, below `count`, which is not 0.
    pub(crate) fn next(&self, count: usize) -> usize {
        let following = |turn: usize| (turn + 1).checked_rem(count);
        let turn = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following);
        turn.unwrap_or(0)
    }

    /// The index that `next` gave last; the last of all if it has given none.
    pub(crate) fn last(&self, count: usize) -> usize {
        let turn = self.0.load(Ordering::Relaxed);
        (turn + count.saturating_sub(1)).checked_rem(count).unwrap_or(0)
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
        let too_large = BufferError::TooLarge { blocks, block_bytes };
        let len = blocks.checked_mul(block_bytes).ok_or(too_large)?;
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
                mr,
                blocks,
                block_bytes,
                turns: Turns::default(),
                adapter: adapter.clone(),
            }),
        })
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
        self.inner.mr.len()
    }

    /// Never true: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.inner.mr.is_empty()
    }

    /// Address of the first byte, as a peer is told it.
    pub fn addr(&self) -> u64 {
        self.inner.mr.addr()
    }

    /// Key with which a peer reaches it.
    pub fn rkey(&self) -> Rkey {
        self.inner.mr.rkey()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.inner.mr.access()
    }

    /// The region that it is.
    pub fn mr(&self) -> &Mr {
        &self.inner.mr
    }

    /// Block number `index`, the first being 0.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`].
    #[inline]
    pub fn at(&self, index: usize) -> Result<Block, BlockError> {
        if index >= self.inner.blocks {
            return Err(BlockError::NoSuchBlock { index, blocks: self.inner.blocks });
        }
        Ok(self.block(index))
    }

    /// The next block in turn: 0, 1, … and from the last to 0 again.
    #[inline]
    pub fn next(&self) -> Block {
        self.block(self.inner.turns.next(self.inner.blocks))
    }

    /// The block that [`Buffer::next`] gave last; the buffer's last if it has given none.
    #[inline]
    pub fn last(&self) -> Block {
        self.block(self.inner.turns.last(self.inner.blocks))
    }

    fn block(&self, index: usize) -> Block {
        Block {
            offset: index * self.inner.block_bytes,
            len: self.inner.block_bytes,
            buffer: self.clone(),
        }
    }

    /// Sets all bytes to `byte`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Memory`] if it was registered without [`Access::LOCAL_WRITE`].
    pub fn fill(&self, byte: u8) -> Result<(), BlockError> {
        Ok(self.inner.mr.fill(0, self.len(), byte)?)
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }
}

/// A block of a buffer, or a part of one: what is posted. It keeps the buffer registered.
#[derive(Clone, Debug)]
pub struct Block {
    buffer: Buffer,
    /// From the start of the buffer.
    offset: usize,
    len: usize,
}

impl Block {
    /// The buffer that it is a block of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its number in the buffer.
    pub fn index(&self) -> usize {
        let block_bytes = self.buffer.block_bytes();
        self.offset.checked_div(block_bytes).unwrap_or(0)
    }

    /// Where it starts in the buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
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
    pub fn part(self, offset: usize, len: usize) -> Result<Self, BlockError> {
        let start = self.place(offset, len)?;
        Ok(Self { offset: start, len, buffer: self.buffer })
    }

    /// Copies its bytes from `offset` on into `target`.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`]; nothing was copied then.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BlockError> {
        let start = self.place(offset, target.len())?;
        Ok(self.buffer.inner.mr.read(start, target)?)
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
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
        let start = self.place(offset, bytes.len())?;
        Ok(self.buffer.inner.mr.write(start, bytes)?)
    }

    /// Sets all its bytes to `byte`.
    ///
    /// # Errors
    ///
    /// [`BlockError::Memory`] if the buffer was registered without [`Access::LOCAL_WRITE`].
    pub fn fill(&self, byte: u8) -> Result<(), BlockError> {
        Ok(self.buffer.inner.mr.fill(self.offset, self.len, byte)?)
    }

    /// Reads the 8 bytes at `offset` in one go, in the machine's byte order. Whoever sees a value
    /// that a peer wrote also sees what the same request wrote before it.
    ///
    /// # Errors
    ///
    /// [`BlockError::OutOfBlock`], or [`BlockError::Memory`] if their place in the buffer is not a
    /// multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, BlockError> {
        let start = self.place(offset, size_of::<u64>())?;
        Ok(self.buffer.inner.mr.load_u64(start)?)
    }

    /// Writes the 8 bytes at `offset` in one go.
    ///
    /// # Errors
    ///
    /// As [`Block::load_u64`], and as [`Block::write`]; nothing was written then.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), BlockError> {
        let start = self.place(offset, size_of::<u64>())?;
        Ok(self.buffer.inner.mr.store_u64(start, value)?)
    }

    #[inline]
    fn place(&self, offset: usize, len: usize) -> Result<usize, BlockError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            Some(_) | None => Err(BlockError::OutOfBlock { offset, len, block: self.len }),
        }
    }

    #[inline]
    pub(crate) fn sge(&self) -> Result<Sge, RangeError> {
        self.buffer.inner.mr.sge(self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
    fn next_goes_round_and_last_is_the_one_before() {
        let buffer = adapter().buffer(3, 8).unwrap();
        assert_eq!(buffer.last().index(), 2);
        for round in 0..10 {
            assert_eq!(buffer.next().index(), round % 3);
            assert_eq!(buffer.last().index(), round % 3);
        }
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
