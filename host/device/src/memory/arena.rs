//! Arena: one file of memory that holds many small buffers, so that each does not cost a descriptor
//! here and a mapping in each neighbour.
//!
//! All buffers of an arena belong to one protection domain and one [`Class`]: a process that is given the file reaches every
//! byte of it, whatever the records of regions say. An arena that peers may not write to is sealed
//! ([`adverb_sys::memory::seal_for_readers`]): only the mapping here can write to it.
//!
//! Buffers are runs of whole pages, which read as zeros when they are taken. What is given back becomes a hole
//! again, which takes no memory; in a sealed file the kernel makes no holes, so its runs are overwritten, and their
//! memory is free when the arena goes. A neighbour that was stopped in the midst of an access is not waited for for
//! ever (`shm/link.rs`): then all arenas are retired, so that what it still writes hits no bytes in use.
//!
//! # Safety
//!
//! A run belongs to its taker until it is given back; no other code changes its bytes, but peers that
//! its owner has let at them (`region.rs`). The mapping lives as long as the arena.

use crate::memory::export::{Class, Home};
use crate::sync::Mutex;
use adverb_shm::copying::fill_long;
use adverb_sys::memory::{Mapping, page_bytes};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file with room for many buffers.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Its number among the device's files.
    number: u64,
    home: Home,
    mapping: Mapping,
    /// Runs of free bytes, none next to another: where they start, and how long they are.
    free: Mutex<BTreeMap<usize, usize>>,
    /// Nothing is taken from it any more.
    /// Nothing of it is taken. Written with the lock of `free`.
    is_free: AtomicBool,
    retired: AtomicBool,
}

impl Arena {
    /// Length in bytes.
    pub(crate) const BYTES: usize = 16 << 20;
    /// The longest buffer.
    pub(crate) const BUFFER_MAX: usize = 256 << 10;
    const _ASSERT: () = assert!(Self::BUFFER_MAX <= Self::BYTES);

    /// One with room everywhere, and its file.
    pub(crate) fn new(number: u64, home: Home) -> io::Result<(Self, OwnedFd)> {
        let (mapping, file) = home.class.file("adverb-arena", Self::BYTES)?;
        let free = Mutex::new(BTreeMap::from([(0, mapping.len())]));
        Ok((
            Self {
                number,
                home,
                mapping,
                free,
                is_free: AtomicBool::new(true),
                retired: AtomicBool::new(false),
            },
            file,
        ))
    }

    /// Whose regions it is for.
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where it starts.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Nothing is taken from it any more: a neighbour may still access bytes that are given back.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// Takes a run of whole pages of zeros; `None` if there is none as long as that.
    pub(crate) fn take(&self, len: usize) -> Option<Run> {
        let len = len.checked_next_multiple_of(page_bytes()).filter(|len| *len > 0)?;
        if self.is_retired() {
            return None;
        }
        let mut free = self.free.lock();
        let (&start, &room) = free.iter().find(|(_, room)| **room >= len)?;
        free.remove(&start);
        self.is_free.store(false, Ordering::Relaxed);
        if room > len {
            free.insert(start + len, room - len);
        }
        Some(Run { start, len })
    }

    /// Where a run's first byte is.
    pub(crate) fn place(&self, run: Run) -> NonNull<u8> {
        // SAFETY: runs lie within the mapping, of which `take` has cut them.
        unsafe { self.mapping.as_ptr().add(run.start) }
    }

    /// Nothing of it is taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_free.load(Ordering::Relaxed)
    }

    /// Makes zeros of a run that was given up; false if the kernel does not.
    fn wipe(&self, run: Run) -> bool {
        if self.home.class == Class::Open {
            // SAFETY: the run's owner has given it up, and regions in it are gone, with all that used them.
            return unsafe { self.mapping.discard(run.start, run.len) }.is_ok();
        }
        // SAFETY: within the mapping, and this process alone writes to it; others that read see either.
        unsafe { fill_long(self.place(run).as_ptr(), 0, run.len) };
        true
    }

    /// Takes a run back; true if everything is free now. If it cannot be made to read as zeros, it is lost.
    pub(crate) fn give_back(&self, run: Run) -> bool {
        if !self.wipe(run) {
            return false;
        }
        let Run { mut start, mut len } = run;
        let mut free = self.free.lock();
        if let Some((&before, &room)) = free.range(..start).next_back()
            && before + room == start
        {
            free.remove(&before);
            (start, len) = (before, room + len);
        }
        if let Some(room) = free.remove(&(start + len)) {
            len += room;
        }
        free.insert(start, len);
        let all = len == self.mapping.len();
        self.is_free.store(all, Ordering::Relaxed);
        all
    }
}

/// Pages of an arena that are in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Run {
    start: usize,
    len: usize,
}

impl Run {
    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(arena: &Arena, run: Run) -> *mut u8 {
        arena.place(run).as_ptr()
    }

    #[test]
    fn runs_do_not_overlap_and_what_was_given_back_is_zeros_again() {
        for class in [Class::Local, Class::Readable, Class::Open] {
            run_through(&Arena::new(1, Home { domain: 1, class }).unwrap().0);
        }
    }

    fn run_through(arena: &Arena) {
        let page = page_bytes();
        let mut runs: Vec<_> = (0..64).map(|n| arena.take(n % 5 * page + 1).unwrap()).collect();
        let mut places: Vec<_> = runs.iter().map(|run| (run.start, run.start + run.len)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].1 <= two[1].0));
        for run in &runs {
            // SAFETY: the run is this test's.
            unsafe { first(arena, *run).write_bytes(7, run.len) };
        }
        // In any order; the last one leaves nothing but free bytes.
        let mut n = 0;
        while !runs.is_empty() {
            n = (n * 31 + 17) % runs.len();
            let empty = arena.give_back(runs.swap_remove(n));
            assert_eq!(empty, runs.is_empty());
        }
        let all = arena.take(Arena::BYTES).unwrap();
        assert!(arena.take(1).is_none());
        for at in (0..Arena::BYTES).step_by(page / 2) {
            let byte = first(arena, all).wrapping_add(at);
            // SAFETY: within the run, which is this test's.
            assert_eq!(unsafe { byte.read_volatile() }, 0);
        }
        assert!(arena.give_back(all));
        assert!(arena.take(0).is_none() && arena.take(usize::MAX).is_none());
        arena.take(1).unwrap();
        arena.retire();
        assert!(arena.take(1).is_none());
    }
}
