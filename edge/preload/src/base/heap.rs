//! The heap of this library: pages of its own, cut into blocks, and no lock.
//!
//! The functions that this library stands in front of may be called in a handler that has interrupted the program's
//! `malloc` (signal-safety(7)), and by a child that was forked in the middle of it. So nothing here comes
//! from there. Blocks have sizes that are powers of two, each size has a list of free blocks, and a block goes to
//! the list and comes from it by one exchange of a word: a handler, a fork or the end of a thread at any
//! instant costs one block at most. What is longer than the longest block is mapped by itself.
//!
//! # Safety
//!
//! 1. Pages of blocks are never unmapped, so that every address made from a block's number is good.
//! 2. A number is in a list, or its block is in use, never both: what takes a number from a list is the only
//!    one to do so, since each exchange changes the count beside it.
//! 3. Nothing is ever written to a free block: the lists lie beside the blocks.

#![expect(clippy::as_conversions, reason = "addresses and numbers of blocks")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::base::raw;

/// What Rust's collections allocate from, in this library.
#[global_allocator]
static HEAP: Heap = Heap;

#[derive(Debug)]
struct Heap;

/// Blocks of one size, in chunks of which each has twice as many as the one before.
#[derive(Debug)]
struct Size {
    bytes: usize,
    /// How many changes there have been, and one more than the number of the first free block, 0 if there is none.
    free: AtomicU64,
    /// Blocks that have been in use.
    used: AtomicU32,
    chunks: [AtomicPtr<u8>; CHUNKS],
}

/// The shortest block.
const LEAST_BYTES: usize = 16;
const SIZES: usize = 13;
/// A block of at least that is aligned to that.
const PAGE_BYTES: usize = 4096;
/// Blocks of a size in its first chunk.
const FIRST: u32 = 16;
/// No size has more chunks: that is as many blocks as 32 bits can number.
const CHUNKS: usize = 27;
/// One in the upper half of a list's first word.
const CHANGE: u64 = 1 << 32;

static BLOCKS: [Size; SIZES] = [
    Size::new(LEAST_BYTES),
    Size::new(LEAST_BYTES << 1),
    Size::new(LEAST_BYTES << 2),
    Size::new(LEAST_BYTES << 3),
    Size::new(LEAST_BYTES << 4),
    Size::new(LEAST_BYTES << 5),
    Size::new(LEAST_BYTES << 6),
    Size::new(LEAST_BYTES << 7),
    Size::new(LEAST_BYTES << 8),
    Size::new(LEAST_BYTES << 9),
    Size::new(LEAST_BYTES << 10),
    Size::new(LEAST_BYTES << 11),
    Size::new(LEAST_BYTES << 12),
];

/// Blocks that are needed soon may not be mapped then: each size gets another chunk, if it has not one to spare.
pub(crate) fn provide() {
    for size in &BLOCKS {
        let next = Place::of(size.used.load(Ordering::Relaxed).saturating_add(FIRST));
        let _ = size.chunk(next.chunk);
    }
}

/// Where the block of a number is.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: usize,
    at: usize,
}

impl Place {
    fn of(number: u32) -> Self {
        let chunk = (number / FIRST).saturating_add(1).ilog2();
        let at = number.saturating_sub(first_of(chunk));
        Self { chunk: chunk as usize, at: at as usize }
    }
}

/// The number of the first block of a chunk.
const fn first_of(chunk: u32) -> u32 {
    FIRST * ((1 << chunk) - 1)
}

/// How many blocks a chunk has.
const fn len_of(chunk: usize) -> usize {
    (FIRST as usize) << chunk
}

impl Size {
    const fn new(bytes: usize) -> Self {
        Self {
            bytes,
            free: AtomicU64::new(0),
            used: AtomicU32::new(0),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
        }
    }

    /// The blocks of that layout; `None` if it is longer than any.
    #[inline]
    fn of(layout: Layout) -> Option<&'static Self> {
        let bytes = layout.size().max(layout.align()).max(LEAST_BYTES);
        let doublings =
            bytes.checked_next_power_of_two()?.ilog2().checked_sub(LEAST_BYTES.ilog2())?;
        BLOCKS.get(doublings as usize)
    }

    /// A chunk, which is mapped if need be: blocks, and behind them the word of each of them in the list.
    fn chunk(&self, number: usize) -> Option<NonNull<u8>> {
        let chunk = self.chunks.get(number)?;
        if let Some(known) = NonNull::new(chunk.load(Ordering::Acquire)) {
            return Some(known);
        }
        let bytes = len_of(number).checked_mul(self.bytes + size_of::<AtomicU32>())?;
        let new = raw::map_zeros(bytes, false).ok()?;
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if chunk.compare_exchange(ptr::null_mut(), new, o, r).is_err() {
            // SAFETY: another thread was faster, and these have not been published.
            unsafe { raw::unmap(new, bytes) };
        }
        NonNull::new(chunk.load(Ordering::Acquire))
    }

    /// What is behind a block in the list, as in `free`.
    fn next(&self, block: u32) -> Option<&AtomicU32> {
        let Place { chunk, at } = Place::of(block);
        let base = self.chunk(chunk)?;
        let words = base.as_ptr().wrapping_add(len_of(chunk) * self.bytes).cast::<AtomicU32>();
        // SAFETY: behind the blocks of a chunk are as many words (rule 1), and zeros are legal ones.
        Some(unsafe { &*words.wrapping_add(at) })
    }

    /// A block that is free.
    #[inline]
    fn take(&self) -> Option<NonNull<u8>> {
        let block = self.take_free().or_else(|| self.take_new())?;
        let Place { chunk, at } = Place::of(block);
        NonNull::new(self.chunk(chunk)?.as_ptr().wrapping_add(at * self.bytes))
    }

    #[inline]
    fn take_free(&self) -> Option<u32> {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let mut first = self.free.load(r);
        loop {
            let block = u32::try_from(first % CHANGE).unwrap_or(0).checked_sub(1)?;
            // If another thread has taken it meanwhile, this is nonsense, and the exchange fails.
            let next = u64::from(self.next(block)?.load(Ordering::Relaxed));
            let new = (first - first % CHANGE).wrapping_add(CHANGE) | next;
            match self.free.compare_exchange_weak(first, new, o, r) {
                Ok(_) => return Some(block),
                Err(other) => first = other,
            }
        }
    }

    #[cold]
    fn take_new(&self) -> Option<u32> {
        let o = Ordering::Relaxed;
        let is_there = |block: u32| self.chunk(Place::of(block).chunk).map(|_| block + 1);
        self.used.fetch_update(o, o, is_there).ok()
    }

    /// A block is free again.
    fn give_back(&self, at: NonNull<u8>) {
        let Some(block) = self.number(at) else { return };
        let Some(next) = self.next(block) else { return };
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        let mut first = self.free.load(r);
        loop {
            next.store((first % CHANGE) as u32, Ordering::Relaxed);
            let new = (first - first % CHANGE).wrapping_add(CHANGE) | (u64::from(block) + 1);
            match self.free.compare_exchange_weak(first, new, o, r) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }

    /// The number of a block.
    fn number(&self, at: NonNull<u8>) -> Option<u32> {
        self.chunks.iter().zip(0..).find_map(|(base, chunk)| {
            let offset = at.addr().get().checked_sub(base.load(Ordering::Acquire).addr())?;
            let block = offset / self.bytes;
            let is_here = block < len_of(chunk as usize);
            is_here.then_some(first_of(chunk).wrapping_add(block as u32))
        })
    }
}

// SAFETY: a block has one owner until it is given back (rule 2), is as long as its layout says, and aligned
// to its own length, or to a page; so is a mapping. Neither is anywhere else.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Size::of(layout) {
            _ if layout.align() > PAGE_BYTES => ptr::null_mut(),
            Some(size) => size.take().map_or(ptr::null_mut(), NonNull::as_ptr),
            None => raw::map_zeros(layout.size(), false).unwrap_or(ptr::null_mut()),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match (Size::of(layout), NonNull::new(at)) {
            (Some(size), Some(at)) => size.give_back(at),
            // SAFETY: it was mapped for this, with this length, and is its owner's no more.
            _ => unsafe { raw::unmap(at, layout.size()) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(len, layout.align()) else { return ptr::null_mut() };
        if let (Some(now), Some(then)) = (Size::of(layout), Size::of(new))
            && ptr::eq(now, then)
        {
            return at;
        }
        // SAFETY: the caller's promise: the length is not 0, and not too long for its alignment.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: two blocks, or mappings, of which both have so many bytes.
            unsafe { ptr::copy_nonoverlapping(at, to, layout.size().min(len)) };
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(at, layout) };
        }
        to
    }
}
