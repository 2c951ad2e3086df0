//! Registered memory: the only place where bytes named by a peer become bytes of this process.
//!
//! A key, an address and a length that come off the wire are an *allegation*. Only a [`Pin`] can
//! act on one, and it checks it first. Keys are looked up without a lock: a slot counts who is
//! using it, and deregistration waits until nobody does.
//!
//! # Safety
//!
//! 1. Registered bytes are never seen through `&[u8]` or `&mut [u8]`, here or by the owner: a peer
//!    may change them at any time, and a reference would promise that nobody does. They are copied
//!    by pointer, or accessed as atomics.
//! 2. Whoever registers memory promises that it stays mapped until the [`Region`] is dropped.
//!    Dropping clears the slot's key and then waits until its user count is zero; a pin counts
//!    itself before it reads the key. Both sides use sequentially consistent operations, so either
//!    the pin sees the cleared key or the drop sees the pin: no pin outlives the promise.
//! 3. A pin's checks compare offsets, never pointers, so that no address outside the region is
//!    ever formed.

use crate::access::Access as Rights;
use adverb_engine::{Access, AccessError, AtomicOp};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The name of a region: the local and the remote key are the same number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key(pub u32);

/// Why memory was not registered. The caller's fault, or the table's end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RegionError {
    /// Remote writing or atomics without local writing. IBTA Vol. 1 §10.6.3.1.
    AccessWithoutLocalWrite,
    /// The range is empty.
    Empty,
    /// All slots are taken: the device has 1,048,576.
    TooMany,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AccessWithoutLocalWrite => {
                f.write_str("remote write and remote atomic access need local write access as well")
            }
            Self::Empty => f.write_str("a region has at least one byte"),
            Self::TooMany => {
                write!(f, "the device has at most {} regions", Regions::COUNT_MAX)
            }
        }
    }
}

impl std::error::Error for RegionError {}

/// One region, or a hole where one was.
#[derive(Debug)]
struct Slot {
    /// The key of the region that lives here; 0 while none does.
    key: AtomicU32,
    /// Accesses under way.
    users: AtomicU32,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    /// The address by which the first byte is known.
    va: AtomicU64,
    access: AtomicU32,
    domain: AtomicU32,
    /// Keys this slot has had: the tag of the next one.
    generation: AtomicU32,
}

impl Slot {
    fn empty() -> Self {
        Self {
            key: AtomicU32::new(0),
            users: AtomicU32::new(0),
            base: AtomicPtr::new(std::ptr::null_mut()),
            len: AtomicUsize::new(0),
            va: AtomicU64::new(0),
            access: AtomicU32::new(0),
            domain: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        }
    }
}

type Chunk = Box<[Slot]>;

/// All regions of a port.
pub(crate) struct Regions {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Indices that were used and are free again, and the first that never was.
    free: crate::sync::Mutex<(Vec<u32>, u32)>,
}

impl Regions {
    const CHUNK: u32 = 256;
    const CHUNKS: u32 = 4096;
    /// Regions that a port can have at once.
    pub(crate) const COUNT_MAX: u32 = Self::CHUNK * Self::CHUNKS;
    /// A key is an index and a tag of this many bits.
    const TAG_BITS: u32 = 8;

    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..Self::CHUNKS).map(|_| OnceLock::new()).collect(),
            // Index 0 is never used, so that no key is small and zero is none.
            free: crate::sync::Mutex::new((Vec::new(), 1)),
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        let chunk = usize::try_from(index / Self::CHUNK).ok()?;
        let at = usize::try_from(index % Self::CHUNK).ok()?;
        self.chunks.get(chunk)?.get()?.get(at)
    }

    fn slot_or_new(&self, index: u32) -> Option<&Slot> {
        let chunk = usize::try_from(index / Self::CHUNK).ok()?;
        let new = || (0..Self::CHUNK).map(|_| Slot::empty()).collect();
        self.chunks.get(chunk)?.get_or_init(new);
        self.slot(index)
    }

    /// Registers `len` bytes at `base` for protection domain `domain`.
    ///
    /// # Safety
    ///
    /// `base..base + len` stays mapped until the returned region is dropped, readable, and
    /// writable if `access` allows any writing; and until then nobody holds a reference to bytes
    /// of it that an access could make untrue (rule 1).
    pub(crate) unsafe fn register(
        self: &Arc<Self>,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Rights,
    ) -> Result<Region, RegionError> {
        let remote_writing = Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let writes = access.bits() & remote_writing.bits() != 0;
        if writes && !access.contains(Rights::LOCAL_WRITE) {
            return Err(RegionError::AccessWithoutLocalWrite);
        }
        let va = match access.contains(Rights::ZERO_BASED) {
            true => 0,
            false => u64::try_from(base.as_ptr().addr()).unwrap_or(u64::MAX),
        };
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.enter(domain, base, len, (access, access.transport().bits()), va) }
    }

    /// Registers a place that takes what is written to it and keeps nothing, and from which zeros
    /// are read: local work only.
    pub(crate) fn register_null(self: &Arc<Self>, domain: u32) -> Result<Region, RegionError> {
        let base = NonNull::from(&ZEROS).cast::<u8>();
        let rights = Rights::LOCAL_WRITE.bits() | NULL;
        // SAFETY: the zeros are there for ever, and a region that is marked so is never written to
        // (`Pin::write`), nor read beyond them (`Pin::range`).
        unsafe { self.enter(domain, base, ZEROS.len(), (Rights::NONE, rights), 0) }
    }

    /// Enters a region into the table.
    ///
    /// # Safety
    ///
    /// As [`Regions::register`].
    unsafe fn enter(
        self: &Arc<Self>,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        (access, rights): (Rights, u32),
        va: u64,
    ) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let index = self.take_index().ok_or(RegionError::TooMany)?;
        let slot = self.slot_or_new(index).ok_or(RegionError::TooMany)?;
        let tag = slot.generation.fetch_add(1, Ordering::Relaxed) & ((1 << Self::TAG_BITS) - 1);
        let key = index << Self::TAG_BITS | tag;
        slot.base.store(base.as_ptr(), Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.va.store(va, Ordering::Relaxed);
        slot.access.store(rights, Ordering::Relaxed);
        slot.domain.store(domain, Ordering::Relaxed);
        slot.key.store(key, Ordering::SeqCst);
        Ok(Region { table: Arc::clone(self), key: Key(key), base, len, va, access, domain })
    }

    fn take_index(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (used, fresh) = &mut *free;
        if let Some(index) = used.pop() {
            return Some(index);
        }
        let index = *fresh;
        if index >= Self::COUNT_MAX {
            return None;
        }
        *fresh += 1;
        Some(index)
    }

    fn give_back(&self, index: u32) {
        let mut free = self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        free.0.push(index);
    }

    /// Holds the region with this key in place, if it belongs to `domain`.
    #[inline]
    pub(crate) fn pin(&self, key: u32, domain: u32) -> Result<Pin<'_>, AccessError> {
        let slot = self.slot(key >> Self::TAG_BITS).ok_or(AccessError::UnknownKey)?;
        slot.users.fetch_add(1, Ordering::SeqCst);
        let pin = Pin { slot };
        let same = slot.key.load(Ordering::SeqCst) == key;
        if same && slot.domain.load(Ordering::Relaxed) == domain {
            Ok(pin)
        } else {
            Err(AccessError::UnknownKey)
        }
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").finish_non_exhaustive()
    }
}

/// A registration: memory that the device may touch until this is dropped.
#[derive(Debug)]
pub struct Region {
    table: Arc<Regions>,
    key: Key,
    base: NonNull<u8>,
    len: usize,
    va: u64,
    access: Rights,
    domain: u32,
}

// SAFETY: a region is an address and a length. Bytes behind it are touched only by pointer copies
// and atomics, from whatever thread (rule 1).
unsafe impl Send for Region {}
// SAFETY: as above; a shared region changes nothing but those bytes.
unsafe impl Sync for Region {}

impl Region {
    /// The local and remote key.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }

    /// Address of the first byte, for work requests and peers: 0 if the region is zero-based.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.va
    }

    /// It is in the table of `port`.
    pub fn is_of(&self, port: &crate::Port) -> bool {
        std::ptr::eq(&raw const *self.table, port.regions())
    }

    /// Registers the same memory once more, for another domain or with other rights.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    ///
    /// # Safety
    ///
    /// The promise under which this region was registered holds for the new rights too, until the
    /// new region is dropped.
    pub unsafe fn again(&self, domain: u32, access: Rights) -> Result<Self, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.table.register(domain, self.base, self.len, access) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Rights {
        self.access
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// Where `offset` is, if `len` bytes from there lie in the region.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset <= end <= self.len`, so the address is in the region or one past it
        // (rule 3).
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// Copies bytes from `offset` on into `target`; false, and nothing done, if they do not fit.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> bool {
        let Some(source) = self.at(offset, target.len()) else {
            return false;
        };
        // SAFETY:
        // - In bounds: `at` has checked `offset + target.len() <= self.len`.
        // - Mapped and readable: the promise of `Regions::register`, while `self` lives (rule 2).
        // - Disjoint: `target` is a reference, and there are none to registered bytes (rule 1).
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), target.len()) }
        true
    }

    /// Copies `bytes` to `offset`; false, and nothing done, if they do not fit.
    ///
    /// The owner may do this whatever the rights are, as long as the memory is writable: see
    /// [`Region::is_writable`].
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(target) = self.at(offset, bytes.len()).filter(|_| self.is_writable()) else {
            return false;
        };
        // SAFETY:
        // - In bounds: `at` has checked `offset + bytes.len() <= self.len`.
        // - Mapped and writable: the promise of `Regions::register`, and `is_writable` (rule 2).
        // - Disjoint: `bytes` is a reference, and there are none to registered bytes (rule 1).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) }
        true
    }

    /// Sets `len` bytes from `offset` on; false, and nothing done, if they do not fit.
    #[inline]
    #[must_use]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> bool {
        let Some(target) = self.at(offset, len).filter(|_| self.is_writable()) else {
            return false;
        };
        // SAFETY: in bounds, mapped and writable as in `write`.
        unsafe { std::ptr::write_bytes(target.as_ptr(), byte, len) }
        true
    }

    /// The memory was registered with local write access.
    pub fn is_writable(&self) -> bool {
        self.access.contains(Rights::LOCAL_WRITE)
    }

    /// The 8 bytes at `offset` as an atomic, if they lie in the region and are aligned to 8.
    #[inline]
    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(offset, size_of::<u64>())?.cast::<u64>();
        // SAFETY: in bounds (`at`), aligned (just checked), mapped while `self` lives (rule 2),
        // and an atomic may be shared with any other atomic access or plain copy that the device
        // makes on behalf of a peer, whose order is the application's affair.
        at.is_aligned().then(|| unsafe { AtomicU64::from_ptr(at.as_ptr()) })
    }

    /// Reads the 8 bytes at `offset` in one go, in the machine's byte order, and all that peers
    /// wrote before them; `None` if they do not fit or are not aligned to 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        self.word(offset).map(|word| word.load(Ordering::Acquire))
    }

    /// Writes the 8 bytes at `offset` in one go; false if they do not fit, are not aligned to 8,
    /// or the region is not writable.
    #[inline]
    #[must_use]
    pub fn store_u64(&self, offset: usize, value: u64) -> bool {
        let word = self.word(offset).filter(|_| self.is_writable());
        word.map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Reads the byte at `offset`, and all that peers wrote before it; `None` if there is none.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Option<u8> {
        let at = self.at(offset, 1)?;
        // SAFETY: in bounds (`at`), mapped while `self` lives (rule 2); a byte is always aligned.
        let byte = unsafe { std::sync::atomic::AtomicU8::from_ptr(at.as_ptr()) };
        Some(byte.load(Ordering::Acquire))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let index = self.key.0 >> Regions::TAG_BITS;
        let Some(slot) = self.table.slot(index) else {
            return;
        };
        slot.key.store(0, Ordering::SeqCst);
        // Accesses last as long as a copy or a system call that does not block.
        while slot.users.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        self.table.give_back(index);
    }
}

/// A region that stays in place for as long as this lives.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    slot: &'a Slot,
}

impl Pin<'_> {
    /// The bytes `va..va + len`, if they lie in the region and it has these rights.
    #[inline]
    pub(crate) fn range(
        &self,
        va: u64,
        len: usize,
        access: Access,
    ) -> Result<*mut u8, AccessError> {
        let rights = Access::from_bits(self.slot.access.load(Ordering::Relaxed));
        if self.is_null() {
            return self.zeros(len, access);
        }
        if !rights.contains(access) {
            return Err(AccessError::Denied);
        }
        let base = self.slot.base.load(Ordering::Relaxed);
        let offset = va.checked_sub(self.slot.va.load(Ordering::Relaxed));
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or(AccessError::OutOfBounds)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfBounds)?;
        if end > self.slot.len.load(Ordering::Relaxed) {
            return Err(AccessError::OutOfBounds);
        }
        // SAFETY: `offset <= end <= len` of a region that is mapped while pinned (rules 2 and 3).
        Ok(unsafe { base.add(offset) })
    }

    /// It keeps nothing.
    #[inline]
    fn is_null(&self) -> bool {
        self.slot.access.load(Ordering::Relaxed) & NULL != 0
    }

    /// Zeros to read, for local work.
    fn zeros(&self, len: usize, access: Access) -> Result<*mut u8, AccessError> {
        if access != Access::NONE {
            return Err(AccessError::Denied);
        }
        if len > ZEROS.len() {
            return Err(AccessError::OutOfBounds);
        }
        Ok(self.slot.base.load(Ordering::Relaxed))
    }

    /// Copies `bytes` to `va`.
    #[inline]
    pub(crate) fn write(&self, va: u64, bytes: &[u8], access: Access) -> Result<(), AccessError> {
        if self.is_null() && access == Access::LOCAL_WRITE {
            return Ok(());
        }
        let target = self.range(va, bytes.len(), access)?;
        // SAFETY:
        // - In bounds: `range` has checked `bytes.len()` bytes from `va`.
        // - Mapped and writable: pinned (rule 2), and `access` names a right to write.
        // - Disjoint: `bytes` is a reference, and there are none to registered bytes (rule 1).
        // - Ordered: the owner may look only after the completion that reports this write, which
        //   the completion queue publishes under its lock, or through `Region::load_u64`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
        // A poller that acquires the last word must see the words before it.
        std::sync::atomic::fence(Ordering::Release);
        Ok(())
    }

    /// Runs an atomic operation on the 8 bytes at `va`.
    pub(crate) fn atomic(&self, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        let at = self.range(va, size_of::<u64>(), Access::REMOTE_ATOMIC)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(AccessError::Misaligned); // The region itself does not start at a multiple.
        }
        // SAFETY: in bounds and pinned; aligned, as just checked;
        // everybody who shares these bytes uses atomics or copies by pointer (rule 1).
        let word = unsafe { AtomicU64::from_ptr(at) };
        Ok(match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        })
    }

    /// Gives up the pin without dropping it; [`Unpin::unpin`] has to follow.
    pub(crate) fn into_raw(self) -> RawPin {
        let raw = RawPin(std::ptr::from_ref(self.slot));
        std::mem::forget(self);
        raw
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pin without a lifetime, for lists that outlive a borrow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawPin(*const Slot);

impl RawPin {
    /// Ends the pin.
    ///
    /// # Safety
    ///
    /// The table it came from still exists, and this is called once for each [`Pin::into_raw`].
    pub(crate) unsafe fn unpin(self) {
        // SAFETY: slots live as long as their table, which exists (the caller's promise).
        let slot = unsafe { &*self.0 };
        drop(Pin { slot });
    }
}

/// Marks a slot whose region keeps nothing, beside the rights.
const NULL: u32 = 1 << 31;
/// What a null region reads as: as much as a packet carries at most.
static ZEROS: [u8; 4096] = [0; 4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_based_region_starts_at_0_and_ends_at_its_length() {
        let table = table();
        let mut memory = [0_u64; 4];
        let region = region(&table, &mut memory, Rights::ALL | Rights::ZERO_BASED);
        assert_eq!(region.addr(), 0);
        let pin = table.pin(region.key().0, 7).unwrap();
        pin.write(24, &[5; 8], Access::REMOTE_WRITE).unwrap();
        assert_eq!(region.load_u64(24), Some(u64::from_ne_bytes([5; 8])));
        for (va, len) in [(25, 8), (32, 1), (u64::MAX, 1)] {
            assert_eq!(pin.range(va, len, Access::REMOTE_WRITE), Err(AccessError::OutOfBounds));
        }
    }

    #[test]
    fn an_atomic_needs_memory_that_is_aligned_and_not_only_an_address() {
        let table = table();
        let mut memory = [0_u64; 4];
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: one byte into four words.
        let base = unsafe { base.add(1) };
        // SAFETY: the memory outlives the region, and nobody looks at it meanwhile.
        let region = unsafe { table.register(7, base, 24, Rights::ALL | Rights::ZERO_BASED) };
        let region = region.unwrap();
        let pin = table.pin(region.key().0, 7).unwrap();
        let add = AtomicOp::FetchAdd { add: 1 };
        assert_eq!(pin.atomic(0, add), Err(AccessError::Misaligned));
    }

    #[test]
    fn a_null_region_takes_everything_and_reads_as_zeros() {
        let table = table();
        let region = table.register_null(7).unwrap();
        let pin = table.pin(region.key().0, 7).unwrap();
        assert_eq!(pin.write(u64::MAX, &[1; 9], Access::LOCAL_WRITE), Ok(()));
        assert!(pin.range(12345, 4096, Access::NONE).is_ok());
        assert_eq!(pin.range(0, 4097, Access::NONE), Err(AccessError::OutOfBounds));
        for access in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(pin.range(0, 1, access), Err(AccessError::Denied));
        }
        assert_eq!(pin.write(0, &[1], Access::REMOTE_WRITE), Err(AccessError::Denied));
        assert!(ZEROS.iter().all(|byte| *byte == 0));
    }

    fn table() -> Arc<Regions> {
        Arc::new(Regions::new())
    }

    fn region(table: &Arc<Regions>, memory: &mut [u64], access: Rights) -> Region {
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: the tests keep `memory` until the region is gone and look at it only afterwards.
        unsafe { table.register(7, base, size_of_val(memory), access) }.unwrap()
    }

    #[test]
    fn a_claim_is_checked_for_key_domain_rights_and_bounds() {
        let table = table();
        let mut memory = [0_u64; 4];
        let access = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let region = region(&table, &mut memory, access);
        let (key, va) = (region.key().0, region.addr());

        assert_eq!(table.pin(key ^ 1, 7).unwrap_err(), AccessError::UnknownKey);
        assert_eq!(table.pin(u32::MAX, 7).unwrap_err(), AccessError::UnknownKey);
        assert_eq!(table.pin(key, 8).unwrap_err(), AccessError::UnknownKey);
        let pin = table.pin(key, 7).unwrap();
        assert_eq!(pin.range(va, 1, Access::REMOTE_READ), Err(AccessError::Denied));
        let write = Access::REMOTE_WRITE;
        assert!(pin.range(va, 32, write).is_ok());
        assert!(pin.range(va + 32, 0, write).is_ok());
        for (start, len) in [(va - 1, 1), (va, 33), (va + 32, 1), (0, 1), (u64::MAX, 2)] {
            assert_eq!(pin.range(start, len, write), Err(AccessError::OutOfBounds));
        }
    }

    #[test]
    fn a_dropped_region_has_no_key_and_its_slot_gets_another() {
        let table = table();
        let mut memory = [0_u64; 1];
        let first = region(&table, &mut memory, Rights::NONE);
        let key = first.key();
        drop(first);
        assert_eq!(table.pin(key.0, 7).unwrap_err(), AccessError::UnknownKey);
        let second = region(&table, &mut memory, Rights::NONE);
        assert_ne!(second.key(), key);
    }

    #[test]
    fn dropping_a_region_waits_for_accesses_under_way() {
        let table = table();
        let mut memory = [0_u64; 1];
        let region = region(&table, &mut memory, Rights::NONE);
        let key = region.key().0;
        let pin = table.pin(key, 7).unwrap();
        std::thread::scope(|scope| {
            let dropping = scope.spawn(move || drop(region));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!dropping.is_finished());
            drop(pin);
            dropping.join().unwrap();
        });
    }

    #[test]
    fn remote_writing_needs_local_writing() {
        let table = table();
        let mut memory = [0_u64; 1];
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: nothing is registered: the call fails.
        let result = unsafe { table.register(7, base, 8, Rights::REMOTE_WRITE) };
        assert_eq!(result.unwrap_err(), RegionError::AccessWithoutLocalWrite);
    }

    #[test]
    fn atomics_change_aligned_words_and_return_what_was_there() {
        let table = table();
        let mut memory = [5_u64, 0];
        let region = region(&table, &mut memory, Rights::ALL);
        let pin = table.pin(region.key().0, 7).unwrap();
        let va = region.addr();
        assert_eq!(pin.atomic(va, AtomicOp::FetchAdd { add: 2 }), Ok(5));
        let swap = AtomicOp::CompareSwap { compare: 7, swap: 9 };
        assert_eq!(pin.atomic(va, swap), Ok(7));
        assert_eq!(pin.atomic(va, swap), Ok(9));
        assert_eq!(pin.atomic(va + 1, swap), Err(AccessError::Misaligned));
        assert_eq!(region.load_u64(0), Some(9));
    }
}
