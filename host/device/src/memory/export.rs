//! Exported memory: files that neighbours on the host can map, and the records of regions, which are taken back
//! only when no neighbour accesses them any more.
//!
//! A neighbour that has mapped a file can do to all of it what the file allows, whether or not it runs our code. So
//! a file holds buffers of one protection domain and one [`Class`] of rights, and what no file can hold to, rights
//! to write without rights to read, is in none: neighbours use system calls or the ring.
//!
//! # Safety
//!
//! [`Pages`] lends the address of its mapping, whose rules are those of `adverb_sys::memory`.

use crate::memory::arena::{Arena, Run};
use crate::memory::peer_page::PeerPage;
use crate::sync::Mutex;
use adverb_engine::Access;
use adverb_shm::copying::copy_long;
use adverb_sys::memory::Mapping;
use adverb_sys::process::descriptors_max;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Class of rights of a file: what neighbours that were given it can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Class {
    /// Buffers that no peer has rights to: neighbours can map them for reading once a message in them was sent by
    /// reference.
    Local,
    /// Peers may READ: neighbours can map them for reading.
    Readable,
    /// Peers may READ and WRITE, or run atomics.
    Open,
}

impl Class {
    /// That of regions with these rights; `None` if no mapping allows just that.
    fn of(access: Access) -> Option<Self> {
        let [read, write, atomic] =
            [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC]
                .map(|right| access.contains(right));
        match (read, write, atomic) {
            (false, false, false) => Some(Self::Local),
            (true, false, false) => Some(Self::Readable),
            (false, true, false) => None,
            // An atomic operation reads and writes any word.
            (true, true, false) | (_, _, true) => Some(Self::Open),
        }
    }

    /// The peer of a queue pair that allows this may be given such files when it asks.
    pub(crate) fn allows(self, peer: Access) -> bool {
        let has = |right| peer.contains(right);
        match self {
            Self::Local => false,
            Self::Readable => has(Access::REMOTE_READ),
            Self::Open => {
                has(Access::REMOTE_ATOMIC) || has(Access::REMOTE_READ) && has(Access::REMOTE_WRITE)
            }
        }
    }

    /// A file for such buffers.
    pub(crate) fn file(self, name: &str, len: usize) -> io::Result<(Mapping, OwnedFd)> {
        match self {
            Self::Local | Self::Readable => Mapping::memfd_for_readers(name, len),
            Self::Open => Mapping::memfd(name, len),
        }
    }
}

/// Whose regions a file is for: those of one protection domain and one class of rights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Home {
    pub(crate) domain: u32,
    pub(crate) class: Class,
}

impl Home {
    fn of(domain: u32, access: Access) -> Option<Self> {
        Class::of(access).map(|class| Self { domain, class })
    }
}

/// Memory for buffers: whole pages, which neighbours can map where that is possible.
#[derive(Debug)]
pub struct Pages {
    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    /// Of this process alone.
    Private(Mapping),
    /// A file of its own, by its number among the device's.
    Whole { mapping: Mapping, file: u64, home: Home, exports: Arc<Exports> },
    /// A part of one.
    Part { arena: Arc<Arena>, run: Run, exports: Arc<Exports> },
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

    /// Takes `len` bytes of zeros from the system, rounded up to whole pages, for a region of this domain with
    /// these rights.
    pub(crate) fn new(
        exports: &Arc<Exports>,
        len: usize,
        domain: u32,
        access: Access,
    ) -> io::Result<Self> {
        match Home::of(domain, access) {
            Some(home) => Exports::allocate(exports, len, home),
            None => Self::private(len),
        }
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

    /// Regions of this domain with these rights may lie in them: neighbours that can map the pages have no more
    /// rights than the peers of those.
    pub fn suit(&self, domain: u32, access: Access) -> bool {
        let home = match &self.hold {
            Hold::Private(_) => return true,
            Hold::Whole { home, .. } => *home,
            Hold::Part { arena, .. } => arena.home(),
        };
        Home::of(domain, access) == Some(home)
    }

    /// Copies the bytes of other pages, as many as there is room for.
    pub fn copy_from(&mut self, other: &Self) {
        let len = self.len().min(other.len());
        // SAFETY: both mappings have `len` bytes and are not the same; these pages have no other user as long as
        // they are borrowed mutably, and those may change meanwhile.
        unsafe { copy_long(other.as_ptr().as_ptr(), self.as_ptr().as_ptr(), len) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match &self.hold {
            Hold::Private(_) => {}
            Hold::Whole { mapping, file, exports, .. } => exports.close(*file, mapping.as_ptr()),
            Hold::Part { arena, run, exports } => exports.give_back(arena, *run),
        }
    }
}

/// A file that others can map.
#[derive(Debug)]
struct Shared {
    number: u64,
    home: Home,
    len: usize,
    file: OwnedFd,
    /// It holds many buffers.
    arena: Option<Arc<Arena>>,
}

/// Another process that may access this one's memory.
pub(crate) trait Neighbour: fmt::Debug + Send + Sync {
    /// Waits until it accesses nothing that was there before the call. False if it may still do so after that time:
    /// it is stopped.
    fn wait(&self, timeout: Duration) -> bool;

    /// This file is no more.
    fn file_is_gone(&self, number: u64);
}

/// The memory that this device exports, and the devices that may use it.
#[derive(Debug)]
pub(crate) struct Exports {
    page: Arc<PeerPage>,
    /// Memory is shown to neighbours, and theirs is looked at.
    shares: bool,
    files: Mutex<BTreeMap<usize, Shared>>,
    /// Files at once: each costs a descriptor.
    files_max: usize,
    next_file: AtomicU64,
    serials: AtomicU64,
    neighbours: Mutex<Vec<Weak<dyn Neighbour>>>,
    /// Held while neighbours are waited for.
    waiting: Mutex<()>,
    /// The device ended while a neighbour that was stopped may have accessed its memory.
    deserted: AtomicBool,
}

/// Files at once, and which part of the descriptors that the process may have: the others are the
/// program's. Arenas leave some for large buffers, and those leave some for arenas.
const FILES_MAX: usize = 1024;
const FILES_SHARE: usize = 4;

/// Arenas without buffers that are kept: each may have 16 MiB.
const EMPTY_MAX: usize = 4;

impl Exports {
    pub(crate) fn new(page: Arc<PeerPage>, shares: bool) -> Self {
        Self {
            page,
            shares,
            files: Mutex::default(),
            files_max: FILES_MAX.min(descriptors_max() / FILES_SHARE),
            next_file: AtomicU64::new(1),
            serials: AtomicU64::new(1),
            neighbours: Mutex::default(),
            waiting: Mutex::default(),
            deserted: AtomicBool::new(false),
        }
    }

    pub(crate) fn page(&self) -> &PeerPage {
        &self.page
    }

    /// Memory is shown to neighbours, and theirs is looked at; otherwise everything goes through rings.
    #[inline]
    pub(crate) fn shares(&self) -> bool {
        self.shares
    }

    /// It may use what is published here.
    pub(crate) fn add_neighbour(&self, neighbour: Weak<dyn Neighbour>) {
        let mut neighbours = self.neighbours.lock();
        neighbours.retain(|known| known.strong_count() > 0);
        neighbours.push(neighbour);
    }

    fn neighbours(&self) -> Vec<Arc<dyn Neighbour>> {
        self.neighbours.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn allocate(exports: &Arc<Self>, len: usize, home: Home) -> io::Result<Pages> {
        let shared = match (exports.shares, len <= Arena::BUFFER_MAX) {
            (false, _) => None,
            (true, true) => exports.take_run(len, home).map(|(arena, run)| {
                let exports = Arc::clone(exports);
                Hold::Part { arena, run, exports }
            }),
            (true, false) => exports.take_file(len, home).map(|(mapping, file)| {
                let exports = Arc::clone(exports);
                Hold::Whole { mapping, file, home, exports }
            }),
        };
        // Or the kernel cannot seal files for readers, or no descriptors are left: neighbours reach it in other ways.
        shared.map_or_else(|| Pages::private(len), |hold| Ok(Pages { hold }))
    }

    /// A file of its own for a buffer.
    fn take_file(&self, len: usize, home: Home) -> Option<(Mapping, u64)> {
        let mut files = self.files.lock();
        let own = files.values().filter(|file| file.arena.is_none()).count();
        if own >= self.files_max / 2 {
            return None;
        }
        let (mapping, file) = home.class.file("adverb", len).ok()?;
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let (base, len) = (mapping.as_ptr().addr().get(), mapping.len());
        files.insert(base, Shared { number, home, len, file, arena: None });
        Some((mapping, number))
    }

    /// A part of a file that holds many buffers.
    fn take_run(&self, len: usize, home: Home) -> Option<(Arc<Arena>, Run)> {
        let mut files = self.files.lock();
        let arenas = files.values().filter_map(|file| file.arena.as_ref());
        let mut of_home = arenas.clone().filter(|arena| arena.home() == home);
        let found = of_home.find_map(|arena| Some((Arc::clone(arena), arena.take(len)?)));
        if found.is_some() || arenas.count() >= self.files_max / 2 {
            return found;
        }
        let (arena, file) =
            Arena::new(self.next_file.fetch_add(1, Ordering::Relaxed), home).ok()?;
        let run = arena.take(len)?;
        let (base, arena) = (arena.base().addr().get(), Arc::new(arena));
        let (number, len) = (arena.number(), arena.len());
        files.insert(base, Shared { number, home, len, file, arena: Some(Arc::clone(&arena)) });
        Some((arena, run))
    }

    /// Takes a part of a file back. Some files without buffers stay, for programs that take and give back in turn.
    fn give_back(&self, arena: &Arena, run: Run) {
        let mut files = self.files.lock();
        if !arena.give_back(run) {
            return;
        }
        let number = arena.number();
        let empty = files.iter().filter_map(|(base, file)| {
            let arena = file.arena.as_ref().filter(|other| other.is_empty())?;
            Some((arena.is_retired(), arena.number() != number, *base))
        });
        let retired = empty.clone().filter(|(retired, ..)| *retired).count();
        let count = empty.clone().count().saturating_sub(EMPTY_MAX).max(retired);
        if count == 0 {
            return;
        }
        // Those that are retired go first, this one last.
        let mut empty: Vec<_> = empty.collect();
        empty.sort_unstable_by_key(|(retired, other, base)| (!retired, !other, *base));
        let gone = empty.into_iter().take(count);
        let gone: Vec<_> =
            gone.filter_map(|(.., base)| Some(files.remove(&base)?.number)).collect();
        drop(files);
        for number in gone {
            self.neighbours().iter().for_each(|neighbour| neighbour.file_is_gone(number));
        }
    }

    fn close(&self, number: u64, base: NonNull<u8>) {
        self.files.lock().remove(&base.addr().get());
        self.neighbours().iter().for_each(|neighbour| neighbour.file_is_gone(number));
    }

    /// Which file for regions of this kind these bytes lie in, and where.
    fn find(&self, base: usize, len: usize, home: Option<Home>) -> Option<(u64, u64)> {
        let files = self.files.lock();
        let (start, file) = files.range(..=base).next_back()?;
        let offset = base - start;
        let inside = offset.checked_add(len).is_some_and(|end| end <= file.len);
        let found = inside && home == Some(file.home);
        found.then(|| (file.number, u64::try_from(offset).unwrap_or(0)))
    }

    /// Whose regions a file is for, and a copy of its descriptor.
    pub(crate) fn descriptor(&self, number: u64) -> Option<(Home, OwnedFd)> {
        let files = self.files.lock();
        let file = files.values().find(|file| file.number == number)?;
        Some((file.home, file.file.as_fd().try_clone_to_owned().ok()?))
    }

    /// Shows neighbours a region.
    pub(crate) fn publish(&self, index: u32, key: u32, domain: u32, region: Published) {
        if !self.shares {
            return;
        }
        let Published { va, base, len, rights } = region;
        let home = Home::of(domain, Access::from_bits(rights));
        let (file, offset) = self.find(base, len, home).unwrap_or((0, 0));
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let Some(record) = self.page.region(index) else {
            return;
        };
        for (word, value) in [
            (&record.va, va),
            (&record.len, number(len)),
            (&record.rights, u64::from(rights)),
            (&record.base, number(base)),
            (&record.file, file),
            (&record.offset, offset),
            (&record.serial, serial),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        record.key.store(u64::from(domain) << 32 | u64::from(key), Ordering::SeqCst);
    }

    /// Takes a region back; afterwards no neighbour accesses it. False if one that was stopped may, and what it
    /// writes does not go to a file, which it hits without harm ([`Exports::wait_for_neighbours`]); then it was waited
    /// for as long as `timeout` says.
    #[must_use]
    pub(crate) fn withdraw(&self, index: u32, timeout: Duration) -> bool {
        let Some(record) = self.page.region(index) else {
            return true;
        };
        let timeout = if record.file.load(Ordering::Relaxed) == 0 { timeout } else { ACCESS_MAX };
        let left = match record.key.swap(0, Ordering::SeqCst) {
            0 => !self.deserted.load(Ordering::Acquire),
            _ => self.wait_for_neighbours(timeout),
        };
        left || record.file.load(Ordering::Relaxed) != 0
    }

    /// Takes back all regions up to this index, before the device loses sight of its neighbours.
    pub(crate) fn withdraw_all(&self, end: u32) {
        let records = (0..end).map_while(|index| self.page.region(index));
        let shown = records.filter(|record| record.key.swap(0, Ordering::SeqCst) != 0);
        let in_files = shown.map(|record| record.file.load(Ordering::Relaxed) != 0);
        let timeout =
            in_files.map(|in_file| if in_file { ACCESS_MAX } else { LAST_ACCESS_MAX }).max();
        if timeout.is_some_and(|timeout| !self.wait_for_neighbours(timeout)) {
            self.deserted.store(true, Ordering::Release);
        }
    }

    /// Waits until no neighbour accesses what was there before the call. False if one that was stopped
    /// may: then nothing is taken from the files that it may write to.
    pub(crate) fn wait_for_neighbours(&self, timeout: Duration) -> bool {
        let neighbours = self.neighbours();
        if neighbours.is_empty() {
            return true;
        }
        let _waiting = self.waiting.lock();
        // Each is waited for, whatever became of those before.
        let stalled = neighbours.iter().filter(|neighbour| !neighbour.wait(timeout)).count();
        if stalled > 0 {
            let files = self.files.lock();
            files.values().filter_map(|file| file.arena.as_ref()).for_each(|arena| arena.retire());
        }
        stalled == 0
    }
}

/// Published record of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    pub(crate) va: u64,
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) rights: u32,
}

/// How long a neighbour that accesses memory is waited for: many times what it copies within one access takes, also by
/// a process that has lost its processor.
pub(crate) const ACCESS_MAX: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_millis(500),
};
/// The same where the memory is about to have another use, so that this process would have to end.
pub(crate) const LAST_ACCESS_MAX: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_secs(10),
};

#[cfg(test)]
mod tests {
    use super::*;

    fn exports() -> Arc<Exports> {
        Arc::new(Exports::new(Arc::new(PeerPage::new().unwrap()), true))
    }

    const HOME: Home = Home { domain: 1, class: Class::Open };

    fn allocate(exports: &Arc<Exports>, len: usize) -> Pages {
        Exports::allocate(exports, len, HOME).unwrap()
    }

    fn file_of(exports: &Exports, pages: &Pages) -> Option<(u64, u64)> {
        exports.find(pages.as_ptr().addr().get(), pages.len(), Some(HOME))
    }

    /// Goal: a file that a neighbour is given holds nothing of another domain, nor of other rights; and only one
    /// that peers may write to can be mapped for writing.
    #[test]
    fn a_file_is_of_one_domain_and_one_class_and_only_open_ones_can_be_written_to() {
        let exports = exports();
        for len in [100, Arena::BUFFER_MAX + 1] {
            let mut numbers = Vec::new();
            let mut kept = Vec::new();
            for domain in 1..4 {
                for class in [Class::Local, Class::Readable, Class::Open] {
                    let home = Home { domain, class };
                    let pages = Exports::allocate(&exports, len, home).unwrap();
                    let base = pages.as_ptr().addr().get();
                    let (number, _) = exports.find(base, pages.len(), Some(home)).unwrap();
                    let (found, file) = exports.descriptor(number).unwrap();
                    assert_eq!(found, home);
                    let writable = Mapping::shared(&file, 4096).is_ok();
                    assert_eq!(writable, class == Class::Open, "{home:?}, {len} bytes");
                    assert!(Mapping::shared_for_reading(&file, 4096).is_ok());
                    numbers.push(number);
                    kept.push(pages);
                }
            }
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), kept.len());
        }
    }

    #[test]
    fn memory_that_peers_may_only_write_to_is_in_no_file() {
        let all = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        for bits in 0..8 {
            let chosen = |n: usize| bits >> n & 1 == 1;
            let rights = all.iter().enumerate().filter(|(n, _)| chosen(*n));
            let access = rights.fold(Access::LOCAL_WRITE, |access, (_, right)| access | *right);
            let class = Class::of(access | Access::MW_BIND);
            let expected = match bits {
                0b000 => Some(Class::Local),
                0b001 => Some(Class::Readable),
                0b010 => None,
                _ => Some(Class::Open),
            };
            assert_eq!(class, expected, "{access}");
            // A peer with rights to a region may be given its file.
            if let Some(class) = class {
                assert_eq!(class.allows(access.transport()), class != Class::Local, "{access}");
            }
        }
    }

    /// Goal: thousands of buffers can be mapped by neighbours, and cost few descriptors.
    #[test]
    fn small_buffers_share_files_and_no_two_share_a_page() {
        let exports = exports();
        let all: Vec<_> = (0..5000).map(|_| allocate(&exports, 8192)).collect();
        let mut places: Vec<_> =
            all.iter().map(|pages| file_of(&exports, pages).expect("in a file")).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), all.len());
        let files = exports.files.lock().len();
        assert!(files <= 5000 * 8192 / Arena::BYTES + 1, "{files}");
        drop(all);
        assert!(exports.files.lock().len() <= EMPTY_MAX, "some stay");
    }

    #[test]
    fn large_buffers_have_files_of_their_own_up_to_a_bound() {
        let exports = exports();
        let len = Arena::BUFFER_MAX + 1;
        let most = exports.files_max / 2;
        let all: Vec<_> = (0..most + 10).map(|_| allocate(&exports, len)).collect();
        let shared = all.iter().filter(|pages| file_of(&exports, pages).is_some()).count();
        assert_eq!(shared, most);
        drop(all);
        assert_eq!(exports.files.lock().len(), 0);
        let again = allocate(&exports, len);
        assert!(file_of(&exports, &again).is_some());
    }

    #[test]
    fn an_arena_that_is_retired_goes_with_its_last_buffer() {
        let exports = exports();
        let before = allocate(&exports, 1);
        let (old, _) = file_of(&exports, &before).unwrap();
        exports.files.lock().values().filter_map(|file| file.arena.as_ref()).for_each(|arena| {
            arena.retire();
        });
        let after = allocate(&exports, 1);
        assert_ne!(file_of(&exports, &after).unwrap().0, old);
        drop(before);
        assert!(exports.descriptor(old).is_none());
        assert_eq!(exports.files.lock().len(), 1);
    }
}
