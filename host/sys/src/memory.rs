//! Mappings: memory straight from the kernel, whole pages, at an address that does not move.
//!
//! A [`Mapping`] hands out a pointer and never a reference, because its pages may be registered for
//! a peer, or mapped by another process, and change at any time.
//!
//! # Safety
//!
//! 1. A `Mapping` is the only owner of its address range: nothing else in this crate unmaps or
//!    remaps it, so `base..base + len` stays mapped until the `Mapping` is dropped.
//! 2. The user of the pointer answers for not using it afterwards, for races on the bytes, and for
//!    leaving alone the words that others use as atomics.
//! 3. Pages of a file that has been cut short raise `SIGBUS` when they are touched. Code that maps a
//!    descriptor from a stranger first checks its seals ([`is_sealed`]).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A range of whole pages, readable and writable, mapped for as long as this value lives.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range belongs to this value and to no thread in particular; unmapping it on another
// thread than the one that mapped it is allowed (rule 1).
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` gives out its address and length and changes neither; what is done
// with the pointer is the user's answer (rule 2).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeros that only this process sees, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is 0, `ENOMEM` if there is no room for it.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel is free to choose the address, so that no mapping in use is replaced.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        Self::adopt(base.cast(), len)
    }

    /// The first `len` bytes of `file`, shared with all that map it; rounded up to whole
    /// pages, of which those past the end of the file must not be touched.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is 0, `EACCES` if the descriptor is not open for reading and writing or is
    /// sealed against writing, `ENOMEM` if there is no room.
    pub fn shared(file: impl AsFd, len: usize) -> io::Result<Self> {
        Self::shared_at(file, 0, len)
    }

    /// Like [`Mapping::shared`], from `offset` on, which is a multiple of the page size.
    ///
    /// # Errors
    ///
    /// Those of [`Mapping::shared`]; `EINVAL` if `offset` is not a multiple of the page size.
    pub fn shared_at(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED;
        // SAFETY: the kernel is free to choose the address, so that no mapping in use is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, file, offset) }?;
        Self::adopt(base.cast(), len)
    }

    /// Like [`Mapping::shared`], for looking only: a write to it is answered by the kernel with SIGSEGV.
    ///
    /// # Errors
    ///
    /// Those of [`Mapping::shared`]; a descriptor that is open for reading will do.
    pub fn shared_for_reading(file: impl AsFd, len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel is free to choose the address, so that no mapping in use is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, flags, file, 0) }?;
        Self::adopt(base.cast(), len)
    }

    /// `len` bytes of zeros in a file of their own that others can map too, and its descriptor. The
    /// file can neither grow nor shrink.
    ///
    /// # Errors
    ///
    /// Those of [`memfd`], [`seal`] and [`Mapping::shared`].
    pub fn memfd(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let len = whole_pages(len)?;
        let file = memfd(name, len)?;
        seal(&file)?;
        Ok((Self::shared(&file, len)?, file))
    }

    /// As [`Mapping::memfd`], but only this mapping can write to the file: others can map it for reading
    /// ([`seal_for_readers`]).
    ///
    /// # Errors
    ///
    /// Those of [`memfd`], [`seal_for_readers`] and [`Mapping::shared`].
    pub fn memfd_for_readers(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let len = whole_pages(len)?;
        let file = memfd(name, len)?;
        let mapping = Self::shared(&file, len)?;
        seal_for_readers(&file)?;
        Ok((mapping, file))
    }

    /// `len` rounded up to whole pages: what a mapping of `len` bytes has.
    #[must_use]
    pub fn whole(len: usize) -> usize {
        whole_pages(len).unwrap_or(len)
    }

    /// Where the range starts: aligned to a page.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes: what was asked for, rounded up to whole pages.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never true: a range has at least one page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The 32-bit word at `offset` bytes, for the sharers of the memory to agree on; `None` if it is
    /// not aligned or not inside. Use such a word through this method only, never by pointer.
    #[inline]
    #[must_use]
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        let word = self.place::<u32>(offset)?;
        // SAFETY: inside, aligned and mapped for as long as the borrow of `self` (rule 1); only
        // atomic accesses, which users of the pointer answer for (rule 2).
        Some(unsafe { AtomicU32::from_ptr(word) })
    }

    /// The 32-bit word at this place of a layout, which lies within the mapping: its maker has seen to that.
    ///
    /// # Panics
    ///
    /// If it does not.
    #[inline]
    #[must_use]
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        self.atomic_u32(offset).unwrap_or_else(|| beyond(offset))
    }

    /// The 64-bit word at this place of a layout, like [`Mapping::half`].
    ///
    /// # Panics
    ///
    /// As [`Mapping::half`].
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.atomic_u64(offset).unwrap_or_else(|| beyond(offset))
    }

    /// The 64-bit word at `offset` bytes, like [`Mapping::atomic_u32`].
    #[inline]
    #[must_use]
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.place::<u64>(offset)?;
        // SAFETY: inside, aligned and mapped for as long as the borrow of `self` (rule 1); only
        // atomic accesses, which users of the pointer answer for (rule 2).
        Some(unsafe { AtomicU64::from_ptr(word) })
    }

    /// Where the `T` at `offset` bytes would be, if it is aligned and inside.
    #[inline]
    fn place<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        let inside = end <= self.len && offset.is_multiple_of(align_of::<T>());
        inside.then(|| self.base.as_ptr().wrapping_add(offset).cast())
    }

    /// Asks for huge pages, which make large ranges cheaper to touch. Best before the first touch.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the kernel has no huge pages for this kind of memory; the range works as before.
    pub fn prefer_huge_pages(&self) -> io::Result<()> {
        prefer_huge_pages(self.base, self.len)
    }

    /// Makes a hole of whole pages of a file that this process shares: they read as zeros, for all,
    /// and take no memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the pages are not of a shared file, or not inside; `EPERM` if the file is sealed against
    /// writing; they are as before.
    ///
    /// # Safety
    ///
    /// No code relies on what those bytes are, by a reference or otherwise.
    pub unsafe fn discard(&self, start: usize, len: usize) -> io::Result<()> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let base = self.base.as_ptr().wrapping_add(start);
        // SAFETY: the range is ours (rule 1), as just checked, and its bytes are not in use (the caller's
        // promise).
        unsafe { rustix::mm::madvise(base.cast(), len, Advice::LinuxRemove) }?;
        Ok(())
    }

    /// Keeps the range out of children: after `fork`, they do not have it.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn keep_from_children(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is ours (rule 1), and what the bytes are does not change.
        unsafe { rustix::mm::madvise(base, self.len, Advice::LinuxDontFork) }?;
        Ok(())
    }

    /// The same for a range that a handler may interrupt the use of: a child that goes on there finds zeros
    /// ([`put_zeros_for_kept`]).
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if this process has as many such ranges as can be noted: children have this one.
    pub fn leave_zeros_to_children(&self) -> io::Result<()> {
        let base = self.base.as_ptr().expose_provenance();
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        let claims = |kept: &Kept| kept.base.compare_exchange(0, Kept::CLAIMED, o, r).is_ok();
        let (at, kept) = KEPT
            .iter()
            .enumerate()
            .find(|(_, kept)| claims(kept))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        KEPT_USED.fetch_max(at + 1, o);
        kept.len.store(self.len, r);
        kept.base.store(base, Ordering::Release);
        self.keep_from_children()
    }

    fn adopt(base: *mut u8, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base, len })
    }
}

/// A range that children have zeros in place of.
struct Kept {
    /// 0: none.
    base: AtomicUsize,
    len: AtomicUsize,
}

impl Kept {
    const fn none() -> Self {
        Self { base: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    /// No address: being filled in.
    const CLAIMED: usize = 1;
}

/// Those of this process, and how many entries have ever been used.
static KEPT: [Kept; 2048] = [const { Kept::none() }; 2048];
static KEPT_USED: AtomicUsize = AtomicUsize::new(0);

/// The entries that may say something.
#[inline]
fn kept() -> impl Iterator<Item = &'static Kept> {
    KEPT.iter().take(KEPT_USED.load(Ordering::Acquire))
}

/// In a child just forked: puts zeros where the parent has ranges that it leaves zeros for
/// ([`Mapping::leave_zeros_to_children`]). A child that goes on in the midst of code that uses them, as that of a signal
/// handler does, would fault there. Safe in a signal handler.
pub fn put_zeros_for_kept() {
    for Kept { base, len } in kept() {
        let (base, len) = (base.load(Ordering::Acquire), len.load(Ordering::Relaxed));
        if base > Kept::CLAIMED {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: it is mapped where nothing is, or not at all.
            let _ = unsafe {
                rustix::mm::mmap_anonymous(
                    ptr::with_exposed_provenance_mut(base),
                    len,
                    access,
                    flags,
                )
            };
        }
    }
}

/// In a child just forked: the ranges of its parent are not its own, and its children have none of them. Safe in a signal
/// handler.
#[inline]
pub fn forget_kept() {
    kept().for_each(|kept| kept.base.store(0, Ordering::Release));
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().addr();
        let own = kept().find(|kept| kept.base.load(Ordering::Relaxed) == base);
        own.into_iter().for_each(|kept| kept.base.store(0, Ordering::Release));
        // SAFETY: the range came from `mmap` with this length and is ours (rule 1); no code uses
        // pointers into it any more (rule 2).
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "a mapping could not be unmapped: {result:?}");
    }
}

/// A file of `len` zero bytes that lives in memory and has no path; `name` is for `/proc` only.
///
/// # Errors
///
/// No descriptors or no memory left, or a name of more than 249 bytes; `EFBIG` if no file may be as long (`ulimit -f`);
/// one that names the call if a filter of system calls forbids it.
pub fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let len = u64::try_from(len).map_err(io::Error::other)?;
    crate::process::may_make(len)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create(name, flags).map_err(io::Error::from);
    let file = made.map_err(|error| crate::process::forbidden("memfd_create", error))?;
    rustix::fs::ftruncate(&file, len)?;
    Ok(file)
}

/// Opens a file in memory once more, by its path in `/proc/PID/fd`, also to write to it. Whatever may be there by
/// now, opening it does not wait.
///
/// # Errors
///
/// Those of `open(2)`.
pub fn open_again(path: &Path, write: bool) -> io::Result<File> {
    File::options().read(true).write(write).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Makes the first `len` bytes of `file` take memory now: touching them later cannot fail for want of it, which would
/// be `SIGBUS`.
///
/// # Errors
///
/// `ENOSPC` or `ENOMEM` if there is not as much; `EOPNOTSUPP` if the file system cannot tell.
pub fn reserve(file: impl AsFd, len: usize) -> io::Result<()> {
    let len = u64::try_from(len).map_err(io::Error::other)?;
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)?)
}

/// Fixes the length of a file made by [`memfd`], for all and for good.
///
/// # Errors
///
/// `EINVAL` if the file is not of that kind, `EPERM` if its seals can no longer change.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, FIXED_LENGTH | SealFlags::SEAL)?)
}

/// As [`seal`], and the file can only be written to through mappings that are there.
///
/// # Errors
///
/// Those of [`seal`]; `EINVAL` where the kernel is older than 5.1.
pub fn seal_for_readers(file: impl AsFd) -> io::Result<()> {
    let seals = FIXED_LENGTH | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Whether the length of `file` cannot be changed any more: touching what is mapped of it within
/// its length is safe, whatever other processes hold it. False for files that know no seals.
#[must_use]
pub fn is_sealed(file: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(FIXED_LENGTH))
}

/// Length of `file` in bytes.
///
/// # Errors
///
/// Those of `fstat(2)`.
pub fn file_len(file: impl AsFd) -> io::Result<usize> {
    usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(io::Error::other)
}

/// Asks for huge pages behind these bytes, however they were mapped, as far as they are whole pages: those
/// touched from now on may be huge, and those there already may be merged later.
///
/// # Errors
///
/// `EINVAL` if the kernel has no huge pages for this kind of memory, `ENOMEM` if some of it is not
/// mapped; all bytes are as before.
pub fn prefer_huge_pages(start: NonNull<u8>, len: usize) -> io::Result<()> {
    let skip = start.as_ptr().align_offset(page_bytes());
    let len = len.saturating_sub(skip) / page_bytes() * page_bytes();
    let first = start.as_ptr().wrapping_add(skip).cast();
    // SAFETY: this advice leaves the bytes and the rights to them as they are, whatever is mapped there.
    unsafe { rustix::mm::madvise(first, len, Advice::LinuxHugepage) }?;
    Ok(())
}

/// Makes memory present as an access would, for reading or also for writing.
///
/// # Errors
///
/// `EFAULT`: some of it is not mapped, or may not be accessed so. `EINVAL`: it is memory of a device, or the kernel is
/// older than 5.14.
pub fn fault_in(start: *mut u8, len: usize, writing: bool) -> io::Result<()> {
    let (first, len) = pages_of(start, len)?;
    let how = if writing { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: it makes pages present as an access would, and changes nothing in them.
    match unsafe { rustix::mm::madvise(first.cast(), len, how) } {
        Err(error) if error != rustix::io::Errno::INVAL => Err(fault()),
        done => Ok(done?),
    }
}

/// Says whether all of a range is mapped, whatever for.
#[must_use]
pub fn is_mapped(start: *mut u8, len: usize) -> bool {
    let Ok((first, len)) = pages_of(start, len) else {
        return false;
    };
    // SAFETY: it writes to files what is due anyway.
    unsafe { rustix::mm::msync(first.cast(), len, rustix::mm::MsyncFlags::ASYNC) }.is_ok()
}

/// The pages that a range lies in.
fn pages_of(start: *mut u8, len: usize) -> io::Result<(*mut u8, usize)> {
    let page = page_bytes();
    let first = start.addr() & !(page - 1);
    let end = start.addr().checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok((start.with_addr(first), end.ok_or_else(fault)? - first))
}

fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

/// So many zeros to read, for as long as the process lives. They take no memory but that of page tables.
///
/// # Errors
///
/// Those of `mmap(2)`.
pub fn zeros(len: usize) -> io::Result<&'static [u8]> {
    let (access, flags) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: the kernel is free to choose the address, so that no mapping in use is replaced.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }?;
    // SAFETY: so many bytes, which stay, and to which nothing can be written.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}

/// The size of a page in bytes.
#[must_use]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// `len` rounded up to whole pages; refuses 0 and what does not fit.
fn whole_pages(len: usize) -> io::Result<usize> {
    match len.checked_next_multiple_of(page_bytes()) {
        None => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        Some(0) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        Some(len) => Ok(len),
    }
}

const FIXED_LENGTH: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK);

#[cold]
fn beyond(offset: usize) -> ! {
    panic!("offset {offset} of a layout does not lie within its mapping")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn get(mapping: &Mapping, at: usize) -> u8 {
        assert!(at < mapping.len());
        // SAFETY: within the mapping, as just checked.
        let place = unsafe { mapping.as_ptr().add(at) };
        // SAFETY: mapped, and only this test writes to it.
        unsafe { place.read_volatile() }
    }

    fn put(mapping: &Mapping, at: usize, value: u8) {
        assert!(at < mapping.len());
        // SAFETY: within the mapping, as just checked.
        let place = unsafe { mapping.as_ptr().add(at) };
        // SAFETY: mapped, and only this test touches it.
        unsafe { place.write_volatile(value) };
    }

    #[test]
    fn a_mapping_is_whole_pages_of_zeros() {
        let mapping = Mapping::anonymous(page_bytes() + 1).unwrap();
        assert_eq!(mapping.len(), 2 * page_bytes());
        assert!(mapping.as_ptr().addr().get().is_multiple_of(page_bytes()));
        assert!((0..mapping.len()).all(|at| get(&mapping, at) == 0));
        put(&mapping, mapping.len() - 1, 7);
        assert_eq!(get(&mapping, mapping.len() - 1), 7);
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused() {
        for (len, errno) in [(0, libc::EINVAL), (usize::MAX, libc::ENOMEM)] {
            assert_eq!(Mapping::anonymous(len).unwrap_err().raw_os_error(), Some(errno));
            assert_eq!(Mapping::memfd("x", len).unwrap_err().raw_os_error(), Some(errno));
        }
    }

    #[test]
    fn a_write_through_one_mapping_of_a_file_is_seen_through_another() {
        let (here, file) = Mapping::memfd("shared", 1).unwrap();
        let there = Mapping::shared(&file, file_len(&file).unwrap()).unwrap();
        assert_ne!(here.as_ptr(), there.as_ptr());
        put(&here, 5, 42);
        assert_eq!(get(&there, 5), 42);
    }

    #[test]
    fn discarded_pages_are_zeros_for_all_and_the_others_stay() {
        let (here, file) = Mapping::memfd("holes", 3 * page_bytes()).unwrap();
        let there = Mapping::shared(&file, here.len()).unwrap();
        (0..3).for_each(|page| put(&here, page * page_bytes(), 9));
        // SAFETY: only this test looks at the bytes.
        unsafe { here.discard(page_bytes(), page_bytes()) }.unwrap();
        assert_eq!([0, 1, 2].map(|page| get(&there, page * page_bytes())), [9, 0, 9]);
        // SAFETY: as above.
        let beyond = unsafe { here.discard(page_bytes(), 3 * page_bytes()) };
        assert_eq!(beyond.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn words_are_shared_between_mappings_and_refused_where_they_do_not_fit() {
        let (here, file) = Mapping::memfd("words", 4096).unwrap();
        let there = Mapping::shared(&file, 4096).unwrap();
        let end = here.len();
        here.atomic_u32(end - 4).unwrap().store(0x0102_0304, Ordering::Relaxed);
        let word = there.atomic_u64(end - 8).unwrap().load(Ordering::Relaxed).to_ne_bytes();
        assert_eq!(word[4..], 0x0102_0304_u32.to_ne_bytes());
        for refused in [1, 2, end - 2, end, usize::MAX, usize::MAX - 3] {
            assert!(here.atomic_u32(refused).is_none(), "{refused}");
        }
        assert!(here.atomic_u64(4).is_none() && here.atomic_u64(end - 4).is_none());
    }

    #[test]
    fn a_sealed_file_keeps_its_length() {
        let file = memfd("seal", 4096).unwrap();
        assert!(!is_sealed(&file));
        rustix::fs::ftruncate(&file, 8192).unwrap();
        seal(&file).unwrap();
        assert!(is_sealed(&file));
        assert!(rustix::fs::ftruncate(&file, 4096).is_err());
        assert!(rustix::fs::ftruncate(&file, 16384).is_err());
        assert_eq!(file_len(&file).unwrap(), 8192);
    }

    #[test]
    fn what_is_sealed_for_readers_is_written_through_the_old_mapping_alone() {
        let (mine, file) = Mapping::memfd_for_readers("readers", 4096).unwrap();
        assert!(is_sealed(&file));
        assert!(Mapping::shared(&file, 4096).is_err());
        let theirs = Mapping::shared_for_reading(&file, 4096).unwrap();
        mine.atomic_u64(8).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(theirs.atomic_u64(8).unwrap().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_file_on_disk_knows_no_seals() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(!is_sealed(&file));
        assert!(seal(&file).is_err());
    }

    /// Goal: dropping gives the memory back. Method: ten times more than one address space holds.
    #[test]
    fn a_dropped_mapping_gives_its_range_back() {
        for _ in 0..80 {
            let (_mapping, _file) = Mapping::memfd("large", 1 << 44).unwrap();
        }
    }

    #[test]
    fn advice_leaves_the_bytes_alone() {
        let mapping = Mapping::anonymous(4 << 20).unwrap();
        put(&mapping, 0, 9);
        assert!(!is_advised(&mapping, "hg") && !is_advised(&mapping, "dc"));
        // Kernels built without huge pages refuse, which is fine too.
        let huge = mapping.prefer_huge_pages().is_ok();
        let _ = prefer_huge_pages(NonNull::from(&mut [0; 9]).cast(), 9);
        mapping.keep_from_children().unwrap();
        assert_eq!(is_advised(&mapping, "hg"), huge);
        assert!(is_advised(&mapping, "dc"), "children would have it");
        assert_eq!(get(&mapping, 0), 9);
    }

    /// What a child says by its status.
    fn said_by_child(child: impl FnOnce() -> u8) -> u8 {
        // SAFETY: the child calls what a handler may call, and ends.
        let id = unsafe { libc::fork() };
        if id == 0 {
            let said = child();
            // SAFETY: no pointer.
            unsafe { libc::_exit(said.into()) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        u8::try_from(libc::WEXITSTATUS(status)).unwrap()
    }

    /// Goal: a child that goes on in the midst of what uses a range that it does not have finds zeros there, however many
    /// others are kept from it, and its parent's bytes stay; its own children have the range no more. A range that cannot be
    /// noted is the child's, too.
    #[test]
    fn a_child_can_have_zeros_where_it_has_nothing() {
        let others: Vec<_> = (0..2 * KEPT.len()).map(|_| Mapping::anonymous(1).unwrap()).collect();
        others.iter().for_each(|other| other.keep_from_children().unwrap());
        let mapping = Mapping::anonymous(9000).unwrap();
        put(&mapping, 0, 9);
        mapping.leave_zeros_to_children().unwrap();
        let zeros = || {
            put_zeros_for_kept();
            get(&mapping, 0)
        };
        assert_eq!(said_by_child(zeros), 0);
        let grandchild = || {
            forget_kept();
            said_by_child(|| {
                put_zeros_for_kept();
                is_mapped(mapping.as_ptr().as_ptr(), 1).into()
            })
        };
        assert_eq!(said_by_child(grandchild), 0, "it is the parent's");
        put_zeros_for_kept();
        assert_eq!(get(&mapping, 0), 9, "nothing in use is replaced");
        let (noted, refused): (Vec<_>, Vec<_>) =
            others.iter().partition(|other| other.leave_zeros_to_children().is_ok());
        assert_eq!((noted.len(), refused.len()), (KEPT.len() - 1, KEPT.len() + 1));
        let late = Mapping::anonymous(1).unwrap();
        put(&late, 0, 9);
        assert_eq!(late.leave_zeros_to_children().unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(said_by_child(|| get(&late, 0)), 9);
        drop(others);
        late.leave_zeros_to_children().unwrap();
    }

    /// The kernel has this flag (proc_pid_smaps(5)) for the mapping.
    fn is_advised(mapping: &Mapping, flag: &str) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = mapping.as_ptr().addr().get();
        let holds = |line: &str| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let bound = |text| usize::from_str_radix(text, 16).ok();
            Some((bound(start)?..bound(end)?).contains(&at))
        };
        let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        flags.split_whitespace().any(|known| known == flag)
    }
}
