//! What a device has in common with its neighbours on the host: memory in files that they can map,
//! and the records of its regions, which it takes back only when nobody is at them any more.
//!
//! # Safety
//!
//! [`Pages`] lends the address of its mapping, whose rules are those of `adverb_sys::memory`.

use crate::arena::{Arena, Run};
use crate::lane::Lane;
use crate::port::Port;
use crate::shelf::Shelf;
use crate::sync::Mutex;
use adverb_sys::memory::Mapping;
use adverb_sys::process::descriptors_max;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Memory for buffers: whole pages, which neighbours can map where that is possible.
#[derive(Debug)]
pub struct Pages {
    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    /// Nobody else's.
    Private(Mapping),
    /// A file of its own, by its number among the device's.
    Whole { mapping: Mapping, file: u64, commons: Arc<Commons> },
    /// A part of one.
    Part { arena: Arc<Arena>, run: Run, commons: Arc<Commons> },
}

impl Pages {
    /// Takes `len` bytes of zeros from the system, rounded up to whole pages, which no neighbour maps.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn private(len: usize) -> io::Result<Self> {
        Ok(Self { hold: Hold::Private(Mapping::anonymous(len)?) })
    }

    /// Where they start.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        match &self.hold {
            Hold::Private(mapping) | Hold::Whole { mapping, .. } => mapping.as_ptr(),
            Hold::Part { arena, run, .. } => arena.place(*run),
        }
    }

    /// Length in bytes: what was asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        match &self.hold {
            Hold::Private(mapping) | Hold::Whole { mapping, .. } => mapping.len(),
            Hold::Part { run, .. } => run.len(),
        }
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match &self.hold {
            Hold::Private(_) => {}
            Hold::Whole { mapping, file, commons } => commons.close(*file, mapping.as_ptr()),
            Hold::Part { arena, run, commons } => commons.give_back(arena, *run),
        }
    }
}

impl Port {
    /// Takes `len` bytes of zeros from the system, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn allocate(&self, len: usize) -> io::Result<Pages> {
        match self.commons() {
            Some(commons) => Commons::allocate(commons, len),
            None => Pages::private(len),
        }
    }
}

/// A file that others can map.
#[derive(Debug)]
struct Shared {
    number: u64,
    len: usize,
    file: OwnedFd,
    /// It holds many buffers.
    arena: Option<Arc<Arena>>,
}

/// What this device has in common with others.
#[derive(Debug)]
pub(crate) struct Commons {
    shelf: Arc<Shelf>,
    /// Memory is shown to neighbours, and theirs is looked at.
    shares: bool,
    files: Mutex<BTreeMap<usize, Shared>>,
    /// Files at once: each costs a descriptor.
    files_max: usize,
    next_file: AtomicU64,
    serials: AtomicU64,
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Held while neighbours are waited for.
    waiting: Mutex<()>,
}

/// Files at once, and which part of the descriptors that the process may have: the others are the
/// program's. Arenas leave some for large buffers, and those leave some for arenas.
const FILES_MAX: usize = 1024;
const FILES_SHARE: usize = 4;

impl Commons {
    pub(crate) fn new(shelf: Arc<Shelf>, shares: bool) -> Self {
        Self {
            shelf,
            shares,
            files: Mutex::default(),
            files_max: FILES_MAX.min(descriptors_max() / FILES_SHARE),
            next_file: AtomicU64::new(1),
            serials: AtomicU64::new(1),
            lanes: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Memory is shown to neighbours, and theirs is looked at; otherwise everything goes through rings.
    #[inline]
    pub(crate) fn shares(&self) -> bool {
        self.shares
    }

    /// Whoever is at the other end may use what is published here.
    pub(crate) fn add_lane(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).iter().filter_map(Weak::upgrade).filter(|lane| !lane.is_own()).collect()
    }

    fn allocate(commons: &Arc<Self>, len: usize) -> io::Result<Pages> {
        let shared = match (commons.shares, len <= Arena::BUFFER_MAX) {
            (false, _) => None,
            (true, true) => commons.take_run(len).map(|(arena, run)| {
                let commons = Arc::clone(commons);
                Hold::Part { arena, run, commons }
            }),
            (true, false) => commons.take_file(len).map(|(mapping, file)| {
                let commons = Arc::clone(commons);
                Hold::Whole { mapping, file, commons }
            }),
        };
        // Or no descriptors are left: neighbours reach it in other ways.
        shared.map_or_else(|| Pages::private(len), |hold| Ok(Pages { hold }))
    }

    /// A file of its own for a buffer.
    fn take_file(&self, len: usize) -> Option<(Mapping, u64)> {
        let mut files = lock(&self.files);
        let own = files.values().filter(|file| file.arena.is_none()).count();
        if own >= self.files_max / 2 {
            return None;
        }
        let (mapping, file) = Mapping::memfd("adverb", len).ok()?;
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let (base, len) = (mapping.as_ptr().addr().get(), mapping.len());
        files.insert(base, Shared { number, len, file, arena: None });
        Some((mapping, number))
    }

    /// A part of a file that holds many buffers.
    fn take_run(&self, len: usize) -> Option<(Arc<Arena>, Run)> {
        let mut files = lock(&self.files);
        let mut arenas = files.values().filter_map(|file| file.arena.as_ref());
        let found = arenas.clone().find_map(|arena| Some((Arc::clone(arena), arena.take(len)?)));
        if found.is_some() || arenas.by_ref().count() >= self.files_max / 2 {
            return found;
        }
        let (arena, file) = Arena::new(self.next_file.fetch_add(1, Ordering::Relaxed)).ok()?;
        let run = arena.take(len)?;
        let (base, arena) = (arena.base().addr().get(), Arc::new(arena));
        let (number, len) = (arena.number(), arena.len());
        files.insert(base, Shared { number, len, file, arena: Some(Arc::clone(&arena)) });
        Some((arena, run))
    }

    /// Takes a part of a file back. One without buffers stays only if it is the last.
    fn give_back(&self, arena: &Arena, run: Run) {
        let mut files = lock(&self.files);
        let last = files.values().filter(|file| file.arena.is_some()).count() == 1;
        if !arena.give_back(run) || (last && !arena.is_retired()) {
            return;
        }
        let gone = files.remove(&arena.base().addr().get());
        drop(files);
        if gone.is_some() {
            self.lanes().iter().for_each(|lane| lane.maps().on_own_gone(arena.number()));
        }
    }

    fn close(&self, number: u64, base: NonNull<u8>) {
        lock(&self.files).remove(&base.addr().get());
        self.lanes().iter().for_each(|lane| lane.maps().on_own_gone(number));
    }

    /// Which file these bytes lie in, and where.
    fn find(&self, base: usize, len: usize) -> Option<(u64, u64)> {
        let files = lock(&self.files);
        let (start, file) = files.range(..=base).next_back()?;
        let offset = base - start;
        let inside = offset.checked_add(len).is_some_and(|end| end <= file.len);
        inside.then(|| (file.number, u64::try_from(offset).unwrap_or(u64::MAX)))
    }

    /// A copy of the descriptor of a file.
    pub(crate) fn descriptor(&self, number: u64) -> Option<OwnedFd> {
        let files = lock(&self.files);
        let file = files.values().find(|file| file.number == number)?;
        file.file.as_fd().try_clone_to_owned().ok()
    }

    /// Shows neighbours a region.
    pub(crate) fn publish(&self, index: u32, key: u32, domain: u32, region: Published) {
        if !self.shares {
            return;
        }
        let Published { va, base, len, rights } = region;
        let (file, offset) = self.find(base, len).unwrap_or((0, 0));
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let Some(record) = self.shelf.region(index) else {
            return;
        };
        for (word, value) in [
            (record.va, va),
            (record.len, number(len)),
            (record.rights, u64::from(rights)),
            (record.base, number(base)),
            (record.file, file),
            (record.offset, offset),
            (record.serial, serial),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        record.key.store(u64::from(domain) << 32 | u64::from(key), Ordering::SeqCst);
    }

    /// Takes a region back; afterwards no neighbour is at it.
    pub(crate) fn withdraw(&self, index: u32) {
        if let Some(record) = self.shelf.region(index)
            && record.key.swap(0, Ordering::SeqCst) != 0
        {
            self.wait_for_neighbours();
        }
    }

    /// Waits until no neighbour is at something that was there before the call.
    pub(crate) fn wait_for_neighbours(&self) {
        let lanes = self.lanes();
        if lanes.is_empty() {
            return;
        }
        let _waiting = lock(&self.waiting);
        // Each is waited for, whatever became of those before.
        let cut_off = lanes.iter().filter(|lane| !lane.wait_for_peer()).count();
        if cut_off > 0 {
            let files = lock(&self.files);
            files.values().filter_map(|file| file.arena.as_ref()).for_each(|arena| arena.retire());
        }
    }
}

/// What neighbours are shown of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    pub(crate) va: u64,
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) rights: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commons() -> Arc<Commons> {
        Arc::new(Commons::new(Arc::new(Shelf::new().unwrap()), true))
    }

    fn file_of(commons: &Commons, pages: &Pages) -> Option<(u64, u64)> {
        commons.find(pages.as_ptr().addr().get(), pages.len())
    }

    /// Goal: thousands of buffers can be mapped by neighbours, and cost few descriptors.
    #[test]
    fn small_buffers_share_files_and_no_two_share_a_page() {
        let commons = commons();
        let all: Vec<_> = (0..5000).map(|_| Commons::allocate(&commons, 8192).unwrap()).collect();
        let mut places: Vec<_> =
            all.iter().map(|pages| file_of(&commons, pages).expect("in a file")).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), all.len());
        let files = lock(&commons.files).len();
        assert!(files <= 5000 * 8192 / Arena::BYTES + 1, "{files}");
        drop(all);
        assert_eq!(lock(&commons.files).len(), 1, "the last one stays");
    }

    #[test]
    fn large_buffers_have_files_of_their_own_up_to_a_bound() {
        let commons = commons();
        let len = Arena::BUFFER_MAX + 1;
        let most = commons.files_max / 2;
        let all: Vec<_> =
            (0..most + 10).map(|_| Commons::allocate(&commons, len).unwrap()).collect();
        let shared = all.iter().filter(|pages| file_of(&commons, pages).is_some()).count();
        assert_eq!(shared, most);
        drop(all);
        assert_eq!(lock(&commons.files).len(), 0);
        let again = Commons::allocate(&commons, len).unwrap();
        assert!(file_of(&commons, &again).is_some());
    }

    #[test]
    fn an_arena_that_is_retired_goes_with_its_last_buffer() {
        let commons = commons();
        let before = Commons::allocate(&commons, 1).unwrap();
        let (old, _) = file_of(&commons, &before).unwrap();
        lock(&commons.files).values().filter_map(|file| file.arena.as_ref()).for_each(|arena| {
            arena.retire();
        });
        let after = Commons::allocate(&commons, 1).unwrap();
        assert_ne!(file_of(&commons, &after).unwrap().0, old);
        drop(before);
        assert!(commons.descriptor(old).is_none());
        assert_eq!(lock(&commons.files).len(), 1);
    }
}
