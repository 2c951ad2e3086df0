//! What a device has in common with its neighbours on the host: memory in files that they can map,
//! and the records of its regions, which it takes back only when nobody is at them any more.
//!
//! # Safety
//!
//! [`Pages`] lends the address of its mapping, whose rules are those of `adverb_sys::memory`.

use crate::lane::Lane;
use crate::port::Port;
use crate::shelf::{Field, Shelf};
use crate::sync::Mutex;
use adverb_sys::memory::Mapping;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Memory for buffers: whole pages, which neighbours can map where that is possible.
#[derive(Debug)]
pub struct Pages {
    mapping: Mapping,
    /// Its number among the device's files.
    file: Option<u64>,
    commons: Option<Arc<Commons>>,
}

impl Pages {
    /// Takes `len` bytes of zeros from the system, rounded up to whole pages, which no neighbour maps.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn private(len: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::anonymous(len)?, file: None, commons: None })
    }

    /// Where they start.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    /// Length in bytes: what was asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// Asks for huge pages.
    ///
    /// # Errors
    ///
    /// The kernel has none for this kind of memory; everything is as before.
    pub fn prefer_huge_pages(&self) -> io::Result<()> {
        self.mapping.prefer_huge_pages()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let (Some(file), Some(commons)) = (self.file, &self.commons) {
            commons.close(file, self.mapping.as_ptr());
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
}

/// What this device has in common with others.
#[derive(Debug)]
pub(crate) struct Commons {
    shelf: Arc<Shelf>,
    /// Memory is shown to neighbours, and theirs is looked at.
    shares: bool,
    files: Mutex<BTreeMap<usize, Shared>>,
    next_file: AtomicU64,
    serials: AtomicU64,
    lanes: Mutex<Vec<Weak<Lane>>>,
    /// Held while neighbours are waited for.
    waiting: Mutex<()>,
}

/// Files at once: each costs a descriptor. Small buffers leave some for large ones.
const FILES_MAX: usize = 256;
const SMALL_FILES_MAX: usize = 128;
const SMALL_BYTES: usize = 64 << 10;

impl Commons {
    pub(crate) fn new(shelf: Arc<Shelf>, shares: bool) -> Self {
        Self {
            shelf,
            shares,
            files: Mutex::default(),
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
        let mut files = lock(&commons.files);
        let most = if len < SMALL_BYTES { SMALL_FILES_MAX } else { FILES_MAX };
        let shared = if commons.shares && files.len() < most {
            Mapping::memfd("adverb", len).ok()
        } else {
            None
        };
        let Some((mapping, file)) = shared else {
            // Or no descriptors are left: neighbours reach it in other ways.
            return Ok(Pages { mapping: Mapping::anonymous(len)?, file: None, commons: None });
        };
        let number = commons.next_file.fetch_add(1, Ordering::Relaxed);
        let (base, len) = (mapping.as_ptr().addr().get(), mapping.len());
        files.insert(base, Shared { number, len, file });
        Ok(Pages { mapping, file: Some(number), commons: Some(Arc::clone(commons)) })
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
        for (field, value) in [
            (Field::Va, va),
            (Field::Len, number(len)),
            (Field::Rights, u64::from(rights)),
            (Field::Base, number(base)),
            (Field::File, file),
            (Field::Offset, offset),
            (Field::Serial, serial),
        ] {
            if let Some(word) = self.shelf.region(index, field) {
                word.store(value, Ordering::Relaxed);
            }
        }
        if let Some(word) = self.shelf.region(index, Field::Key) {
            word.store(u64::from(domain) << 32 | u64::from(key), Ordering::SeqCst);
        }
    }

    /// Takes a region back; afterwards no neighbour is at it.
    pub(crate) fn withdraw(&self, index: u32) {
        if let Some(word) = self.shelf.region(index, Field::Key)
            && word.swap(0, Ordering::SeqCst) != 0
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
        lanes.iter().for_each(|lane| lane.wait_for_peer());
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
