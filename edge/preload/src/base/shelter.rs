//! Shared mappings that survive a page that is missing.
//!
//! A file in shared memory has no page where its file system had none left to give, or where another
//! process has cut it off: an access there raises `SIGBUS`. The handler in `signal.rs` comes here first. If the
//! page is one of ours, it is replaced by one of zeros, and the mapping is *spoilt*: what is read from it
//! is not believed. Every other fault is the program's.
//!
//! # Safety
//!
//! 1. An entry says base and length of a mapping of ours from before its first access until after its last one.
//! 2. Pages are replaced only inside of such a mapping, which holds atomics and bytes that are copied: zeros
//!    are legal there.

#![expect(clippy::as_conversions, reason = "addresses are numbers to the kernel")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use adverb_shm::file::SharedFile;
use adverb_sys::memory;

use crate::base::{raw, signal};

#[derive(Debug)]
struct Entry {
    /// 0 if the entry is free.
    base: AtomicUsize,
    len: AtomicUsize,
    is_spoilt: AtomicBool,
}

/// Mappings of one process: two for each connection between threads of its own, and a few more.
const ENTRIES: usize = 1 << 16;
const PAGE_BYTES: usize = 4096;
/// An entry that is about to be filled.
const BUSY: usize = 1;

static TABLE: [Entry; ENTRIES] = [const {
    Entry { base: AtomicUsize::new(0), len: AtomicUsize::new(0), is_spoilt: AtomicBool::new(false) }
}; ENTRIES];
/// Where a free entry is looked for next, and how many have ever been used.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

/// A file that others map too, unmapped when this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    entry: &'static Entry,
    memory: memory::Mapping,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes of a file, to read and write.
    pub(crate) fn new(file: &SharedFile, len: usize) -> Option<Self> {
        signal::guard();
        let memory = memory::Mapping::shared(file, len).ok()?;
        let entry = free_entry()?;
        entry.is_spoilt.store(false, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.base.store(memory.as_ptr().as_ptr() as usize, Ordering::Release);
        Some(Self { entry, memory, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether a page of it has been missing.
    #[inline]
    pub(crate) fn is_spoilt(&self) -> &AtomicBool {
        &self.entry.is_spoilt
    }

    /// It stays for good.
    pub(crate) fn keep(self) -> *mut u8 {
        ManuallyDrop::new(self).base().as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before it is unmapped, as its memory is dropped next.
        self.entry.base.store(0, Ordering::Release);
    }
}

fn free_entry() -> Option<&'static Entry> {
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    (0..ENTRIES).find_map(|_| {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % ENTRIES;
        let entry = TABLE.get(at)?;
        entry.base.compare_exchange(0, BUSY, o, r).ok()?;
        USED.fetch_max(at + 1, Ordering::AcqRel);
        Some(entry)
    })
}

/// A page is missing at this address. Returns whether it was one of ours, and is there now. Does nothing
/// that a handler may not do.
pub(crate) fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let is_there = |entry: &&Entry| {
        let base = entry.base.load(Ordering::Acquire);
        base > BUSY && address.wrapping_sub(base) < entry.len.load(Ordering::Relaxed)
    };
    let Some(entry) = TABLE.iter().take(used).find(is_there) else { return false };
    entry.is_spoilt.store(true, Ordering::SeqCst);
    let at = address & !(PAGE_BYTES - 1);
    // SAFETY: a page of a mapping of ours, where zeros are legal (rule 2).
    if unsafe { raw::replace_pages(at, PAGE_BYTES) } {
        return true;
    }
    // A page by itself is one mapping more than this process may have, perhaps; all of them together are not.
    let (base, len) = (entry.base.load(Ordering::Acquire), entry.len.load(Ordering::Relaxed));
    // SAFETY: the mapping is in use, as its page was touched (rule 1), and ours (rule 2).
    unsafe { raw::replace_pages(base, len) }
}
