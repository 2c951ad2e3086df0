//! Registered memory: the only place where bytes named by a peer become bytes of this process.
//!
//! A key, an address and a length that come off the wire are an *allegation*. Only a [`Pin`] can
//! act on one, and it checks it first. Keys are looked up without a lock: a slot counts its
//! users, and deregistration waits until there are none.
//!
//! Memory windows live in the same table and have their keys from it; how they are bound and
//! unbound is in `window.rs`.
//!
//! # Safety
//!
//! 1. Registered bytes are never seen through `&[u8]` or `&mut [u8]`, here or by the owner: a peer
//!    may change them at any time, and a reference would promise that none does. They are copied
//!    by pointer, or accessed as atomics.
//! 2. The caller that registers memory promises that it stays mapped until the [`Region`] is dropped, or for ever if
//!    [`Region::end`] says so (`lost.rs` is for programs that do not keep it); that of a region on demand, while it is
//!    accessed, if it was when that began. Dropping clears the slot's key and then waits until its user count is zero; a pin counts
//!    itself before it reads the key. Both sides use sequentially consistent operations, so either
//!    the pin sees the cleared key or the drop sees the pin: no pin outlives the promise.
//! 3. A pin's checks compare offsets, never pointers, so that no address outside the region is
//!    ever formed.
//! 4. A window's slot names the registration that it looks out on, by place and by serial number; no
//!    two registrations have the same. A pin through a window pins both slots, the window's first,
//!    and is refused unless that very registration is still there. So rule 2 holds for windows: a
//!    region that is being dropped waits for pins through its windows, and later ones fail.
//! 5. What a slot says of its region or window changes only while its key is 0 and after its user
//!    count was seen to be 0 since. So a thread that has pinned a slot and found its key there reads one
//!    registration, or one binding, and not parts of two.
//! 6. A thread that waits for a region's count to become 0 holds no pin, and one that waits for a window's
//!    holds none but of the region that it is to be bound to. A thread that holds a pin waits for no lock whose holder may
//!    wait for pins. So no thread waits for ever.

use crate::memory::export::{ACCESS_MAX, Exports, LAST_ACCESS_MAX, Published};
use crate::memory::{lost, window};
use crate::sync::Mutex;
use adverb_engine::{Access, AccessError, AtomicOp};
use adverb_shm::copying::{copy_short, fill_long};
use adverb_sys::memory::{fault_in, zeros};
use adverb_sys::random;
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The name of a region: the local and the remote key are the same number.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Key(pub u32);

/// Error of registering memory. The caller's fault, or the table's end.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum RegionError {
    /// Remote writing or atomics without local writing. IBTA Vol. 1 §10.6.3.1.
    AccessWithoutLocalWrite,
    /// A window is bound to it, or a stopped process of this host may access its memory.
    Bound,
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
            Self::Bound => {
                f.write_str("a window is bound to the region, or a stopped process uses it")
            }
            Self::Empty => f.write_str("a region has at least one byte"),
            Self::TooMany => {
                write!(f, "the device has at most {} regions", Regions::COUNT_MAX)
            }
        }
    }
}

impl std::error::Error for RegionError {}

/// Parameters of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// The protection domain.
    pub domain: u32,
    /// Where its first byte is.
    pub base: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
    /// The rights.
    pub access: Access,
    /// The address by which work requests and peers know the first byte.
    pub va: u64,
    /// Pages of it need not be there: each access looks first, and is refused where nothing is mapped.
    pub on_demand: bool,
}

impl Registration {
    /// All memory that the process has or will have, each byte under its own address.
    /// `ibv_reg_mr(3)`, implicit on-demand paging.
    pub fn all(domain: u32, access: Access) -> Self {
        // No page has the address 0.
        let base = NonNull::with_exposed_provenance(std::num::NonZero::<usize>::MIN);
        Self { domain, base, len: usize::MAX - 1, access, va: 1, on_demand: true }
    }

    /// What accesses are checked against.
    fn rights(&self) -> Result<u32, RegionError> {
        let on_demand = if self.on_demand { ON_DEMAND } else { 0 };
        rights_of(self.access).map(|rights| rights | on_demand)
    }
}

/// What accesses are checked against, if these rights go together.
fn rights_of(access: Access) -> Result<u32, RegionError> {
    let remote_writing = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let writes = access.bits() & remote_writing.bits() != 0;
    match writes && !access.contains(Access::LOCAL_WRITE) {
        true => Err(RegionError::AccessWithoutLocalWrite),
        false => Ok(access.transport().bits()),
    }
}

/// Names a registration, a window or a queue pair of this process, for ever.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Serial(u64);

impl Serial {
    /// One that is not in use.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A place for a [`Serial`]; 0 is none.
#[derive(Debug)]
pub(crate) struct SerialCell(AtomicU64);

impl SerialCell {
    const fn empty() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn set(&self, serial: Option<Serial>) {
        self.0.store(serial.map_or(0, |Serial(number)| number), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<Serial> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Serial(number)),
        }
    }
}

/// One region or window, or a hole where one was.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The key by which bytes can be reached here; 0 while none can.
    pub(crate) key: AtomicU32,
    /// Accesses under way.
    pub(crate) users: AtomicU32,
    pub(crate) base: AtomicPtr<u8>,
    pub(crate) len: AtomicUsize,
    /// The address by which the first byte is known.
    pub(crate) va: AtomicU64,
    pub(crate) access: AtomicU32,
    pub(crate) domain: AtomicU32,
    /// The tag of the next key: a random number, and one more for each key that this slot has had.
    pub(crate) generation: AtomicU32,
    /// Which registration or window lives here.
    pub(crate) serial: SerialCell,
    /// Windows bound to the region that lives here.
    pub(crate) windows: AtomicU32,
    /// Where the region is that a window here looks out on; 0 if a region lives here.
    pub(crate) under: AtomicU32,
    /// Which registration that is.
    pub(crate) under_serial: SerialCell,
    /// The only queue pair whose peer may use the window that lives here, if there is only one.
    pub(crate) tied_to: SerialCell,
    /// The window that lives here, bound or not. Accesses do not look at it.
    pub(crate) window: Mutex<Option<window::State>>,
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
            generation: AtomicU32::new(
                u32::try_from(random::number() & u64::from(u32::MAX)).unwrap_or(0),
            ),
            serial: SerialCell::empty(),
            windows: AtomicU32::new(0),
            under: AtomicU32::new(0),
            under_serial: SerialCell::empty(),
            tied_to: SerialCell::empty(),
            window: Mutex::new(None),
        }
    }

    /// A key that this slot, which is at `index`, has not had lately.
    pub(crate) fn next_key(&self, index: u32) -> u32 {
        let tag = self.generation.fetch_add(1, Ordering::Relaxed);
        index << Regions::TAG_BITS | tag & ((1 << Regions::TAG_BITS) - 1)
    }

    /// Puts the key away and waits until the slot is not in use: then it may change (rule 5).
    pub(crate) fn close(&self) {
        self.key.store(0, Ordering::SeqCst);
        // Pins last as long as the packets of one receive call or of one burst, or a call that does not block.
        while self.users.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
}

type Chunk = Box<[Slot]>;

/// All regions and windows of a port.
pub(crate) struct Regions {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Indices that were used and are free again, the oldest first, and the first that never was used.
    free: Mutex<(VecDeque<u32>, u32)>,
    /// Where neighbours see the regions, if they do.
    exports: Option<Arc<Exports>>,
}

impl Drop for Regions {
    fn drop(&mut self) {
        lost::forget(self);
    }
}

impl Regions {
    const CHUNK: u32 = 256;
    const CHUNKS: u32 = 4096;
    /// Regions and windows that a port can have at once.
    pub(crate) const COUNT_MAX: u32 = Self::CHUNK * Self::CHUNKS;
    /// Free indices that are not used again while there are others: a key comes back after so many registrations
    /// for each of its tags, at the earliest.
    const RESTING: usize = 64;
    /// A key is an index and a tag of this many bits.
    pub(crate) const TAG_BITS: u32 = 8;

    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..Self::CHUNKS).map(|_| OnceLock::new()).collect(),
            // Index 0 is never used, so that no key is small and zero is none.
            free: Mutex::new((VecDeque::new(), 1)),
            exports: None,
        }
    }

    /// Shows neighbours what is registered.
    pub(crate) fn with_exports(mut self, exports: Arc<Exports>) -> Self {
        self.exports = Some(exports);
        self
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> Option<&Slot> {
        let chunk = usize::try_from(index / Self::CHUNK).ok()?;
        let at = usize::try_from(index % Self::CHUNK).ok()?;
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// All that have ever been used. Takes no lock.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter())
    }

    pub(crate) fn slot_or_new(&self, index: u32) -> Option<&Slot> {
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
    /// writable if `access` allows any writing; and until then no code holds a reference to bytes
    /// of it that an access could make untrue (rule 1).
    pub(crate) unsafe fn register(
        self: &Arc<Self>,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Region, RegionError> {
        let va = match access.contains(Access::ZERO_BASED) {
            true => 0,
            false => u64::try_from(base.as_ptr().addr()).unwrap_or(u64::MAX),
        };
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.register_at(domain, base, len, access, va) }
    }

    /// Registers memory whose first byte is known by the address `va`.
    ///
    /// # Safety
    ///
    /// As [`Regions::register`].
    pub(crate) unsafe fn register_at(
        self: &Arc<Self>,
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
        va: u64,
    ) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe {
            self.register_as(Registration { domain, base, len, access, va, on_demand: false })
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// As [`Regions::register`]; if it is on demand, what is mapped when an access begins stays so until it ends.
    pub(crate) unsafe fn register_as(
        self: &Arc<Self>,
        new: Registration,
    ) -> Result<Region, RegionError> {
        let Registration { domain, base, len, access, va, .. } = new;
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.enter(domain, base, len, (access, new.rights()?), va) }
    }

    /// Registers a place that takes what is written to it and keeps nothing, and from which zeros
    /// are read: local work only.
    pub(crate) fn register_null(self: &Arc<Self>, domain: u32) -> Result<Region, RegionError> {
        let base = NonNull::from(&ZEROS).cast::<u8>();
        let rights = Access::LOCAL_WRITE.bits() | NULL;
        // SAFETY: the zeros are there for ever, and a region that is marked so is never written to
        // (`Pin::write`), nor read beyond them (`Pin::range`).
        unsafe { self.enter(domain, base, ZEROS.len(), (Access::NONE, rights), 0) }
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
        (access, rights): (Access, u32),
        va: u64,
    ) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let index = self.take_index().ok_or(RegionError::TooMany)?;
        let slot = self.slot_or_new(index).ok_or(RegionError::TooMany)?;
        let key = slot.next_key(index);
        let (table, key, ended) = (Arc::clone(self), Key(key), false);
        let region = Region { table, key, base, len, va, access, domain, ended };
        region.open(slot, rights);
        Ok(region)
    }

    pub(crate) fn take_index(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let (used, fresh) = &mut *free;
        let index = *fresh;
        if used.len() > Self::RESTING || index >= Self::COUNT_MAX {
            return used.pop_front();
        }
        *fresh += 1;
        Some(index)
    }

    /// Neighbours see no region any more.
    pub(crate) fn withdraw_all(&self) {
        if let Some(exports) = &self.exports {
            let end = self.free.lock().1;
            exports.withdraw_all(end);
        }
    }

    pub(crate) fn give_back(&self, index: u32) {
        let mut free = self.free.lock();
        free.0.push_back(index);
    }

    /// Holds the region with this key in place, for work of its owner, if it belongs to `domain`.
    /// Windows are for peers.
    #[inline(always)]
    pub(crate) fn pin_local(&self, key: u32, domain: u32) -> Result<Pin<'_>, AccessError> {
        let pin = self.hold(key, domain)?;
        match pin.slot.under.load(Ordering::Relaxed) {
            0 => Ok(pin),
            _ => Err(AccessError::UnknownKey),
        }
    }

    /// Holds the region or window with this key in place, for the peer of queue pair `qp`, if it
    /// belongs to `domain`.
    #[inline]
    pub(crate) fn pin_remote(
        &self,
        key: u32,
        domain: u32,
        qp: Serial,
    ) -> Result<Pin<'_>, AccessError> {
        let pin = self.hold(key, domain)?;
        match pin.slot.under.load(Ordering::Relaxed) {
            0 => Ok(pin),
            under => self.look_out(pin, under, qp),
        }
    }

    /// Holds the region in place that a window, which is held, looks out on (rule 4).
    #[cold] // Keeps the way of regions short: what it costs a window is little beside a packet.
    fn look_out<'a>(
        &'a self,
        window: Pin<'a>,
        under: u32,
        qp: Serial,
    ) -> Result<Pin<'a>, AccessError> {
        let tied_to = window.slot.tied_to.get();
        let registration = window.slot.under_serial.get().ok_or(AccessError::UnknownKey)?;
        if tied_to.is_some_and(|only| only != qp) {
            return Err(AccessError::UnknownKey);
        }
        let region = self.hold_registration(under, registration)?;
        let under = Some(region.slot);
        std::mem::forget(region); // `Pin::drop` releases both.
        let slot = window.slot;
        std::mem::forget(window);
        Ok(Pin { slot, under })
    }

    /// Holds what this key names.
    #[inline(always)]
    fn hold(&self, key: u32, domain: u32) -> Result<Pin<'_>, AccessError> {
        let slot = self.slot(key >> Self::TAG_BITS).ok_or(AccessError::UnknownKey)?;
        slot.users.fetch_add(1, Ordering::SeqCst);
        let pin = Pin { slot, under: None };
        let same = slot.key.load(Ordering::SeqCst) == key;
        if same && slot.domain.load(Ordering::Relaxed) == domain {
            Ok(pin)
        } else {
            Err(AccessError::UnknownKey)
        }
    }

    /// Holds a registration in place, if it has not ended.
    pub(crate) fn hold_registration(
        &self,
        index: u32,
        registration: Serial,
    ) -> Result<Pin<'_>, AccessError> {
        let slot = self.slot(index).ok_or(AccessError::UnknownKey)?;
        slot.users.fetch_add(1, Ordering::SeqCst);
        let pin = Pin { slot, under: None };
        let lives = slot.key.load(Ordering::SeqCst) != 0;
        if lives && slot.serial.get() == Some(registration) {
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
    access: Access,
    domain: u32,
    /// It is in the table no more.
    ended: bool,
}

// SAFETY: a region is an address and a length. Bytes behind it are touched only by pointer copies
// and atomics, from whatever thread (rule 1).
unsafe impl Send for Region {}
// SAFETY: as above; a shared region changes nothing but those bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Memory that a device which is not ours has registered: no peer reaches it by this region's key,
    /// and its owner reaches it as that of any other.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    ///
    /// # Safety
    ///
    /// As [`crate::Port::register`].
    pub unsafe fn foreign(
        domain: u32,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Self, RegionError> {
        static ELSEWHERE: OnceLock<Arc<Regions>> = OnceLock::new();
        let table = ELSEWHERE.get_or_init(|| Arc::new(Regions::new()));
        // SAFETY: the caller's promise is the one asked for.
        unsafe { table.register(domain, base, len, access) }
    }

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

    /// Where its first byte is.
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }

    /// It is in this table.
    pub(crate) fn is_of(&self, table: &Regions) -> bool {
        std::ptr::eq(&raw const *self.table, table)
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
    pub fn access(&self) -> Access {
        self.access
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// Windows that are bound to it. They end with it.
    pub fn windows(&self) -> u32 {
        self.slot().map_or(0, |slot| slot.windows.load(Ordering::Relaxed))
    }

    /// Where it is in its table.
    pub(crate) fn index(&self) -> u32 {
        self.key.0 >> Regions::TAG_BITS
    }

    /// Which registration it is.
    pub(crate) fn serial(&self) -> Option<Serial> {
        self.slot()?.serial.get()
    }

    pub(crate) fn table(&self) -> &Arc<Regions> {
        &self.table
    }

    fn slot(&self) -> Option<&Slot> {
        self.table.slot(self.index())
    }

    /// Makes its key good for what it is now; the slot is not in use (rule 5).
    fn open(&self, slot: &Slot, rights: u32) {
        let Self { base, len, va, domain, key: Key(key), .. } = *self;
        slot.serial.set(Some(Serial::new()));
        slot.windows.store(0, Ordering::Relaxed);
        slot.under.store(0, Ordering::Relaxed);
        slot.base.store(base.as_ptr(), Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.va.store(va, Ordering::Relaxed);
        slot.access.store(rights, Ordering::Relaxed);
        slot.domain.store(domain, Ordering::Relaxed);
        slot.key.store(key, Ordering::SeqCst);
        self.publish(rights);
    }

    /// Shows it to neighbours.
    fn publish(&self, rights: u32) {
        let Self { base, len, va, domain, key: Key(key), .. } = *self;
        if let Some(exports) = self.table.exports.as_ref().filter(|_| rights & NULL == 0) {
            let base = base.as_ptr().expose_provenance();
            exports.publish(self.index(), key, domain, Published { va, base, len, rights });
        }
    }

    /// Registers it anew under the same key. Accesses that have begun end before; those that come meanwhile are
    /// refused.
    ///
    /// # Errors
    ///
    /// [`RegionError`]; it is as before.
    ///
    /// # Safety
    ///
    /// As [`crate::Port::register_as`], of the memory that it is then.
    pub unsafe fn reregister(&mut self, new: Registration) -> Result<(), RegionError> {
        let Registration { domain, base, len, access, va, .. } = new;
        let rights = new.rights()?;
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let table = Arc::clone(&self.table);
        let slot = table.slot(self.index()).ok_or(RegionError::Bound)?;
        let old = slot.access.load(Ordering::Relaxed);
        if slot.windows.load(Ordering::Relaxed) > 0 || old & NULL != 0 {
            return Err(RegionError::Bound);
        }
        let withdraw = |exports: &Arc<Exports>| exports.withdraw(self.index(), ACCESS_MAX);
        if !table.exports.as_ref().is_none_or(withdraw) {
            self.publish(old);
            return Err(RegionError::Bound);
        }
        slot.close();
        (self.domain, self.base, self.len) = (domain, base, len);
        (self.access, self.va) = (access, va);
        self.open(slot, rights);
        Ok(())
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
        unsafe { copy_short(source.as_ptr(), target.as_mut_ptr(), target.len()) }
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
        unsafe { copy_short(bytes.as_ptr(), target.as_ptr(), bytes.len()) }
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
        unsafe { fill_long(target.as_ptr(), byte, len) }
        true
    }

    /// The memory was registered with local write access.
    pub fn is_writable(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE)
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

impl Region {
    /// Ends the registration. False if the memory must stay mapped, and unused, for ever: a process of this host
    /// was stopped while it copied to it or from it, was waited for, and may go on.
    #[must_use]
    pub fn end(mut self) -> bool {
        self.ended = true;
        self.withdraw(ACCESS_MAX)
    }

    fn withdraw(&self, timeout: Duration) -> bool {
        let Some(slot) = self.slot() else {
            return true;
        };
        let withdraw = |exports: &Arc<Exports>| exports.withdraw(self.index(), timeout);
        let left = self.table.exports.as_ref().is_none_or(withdraw);
        slot.close();
        self.table.give_back(self.index());
        left
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let may_write = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
        let is_written = self.access.bits() & may_write != 0;
        let timeout = if is_written { LAST_ACCESS_MAX } else { ACCESS_MAX };
        if !self.ended && !self.withdraw(timeout) && is_written {
            // The memory is about to be used for something else (rule 2), and would be written to.
            eprintln!(
                "adverb: a process of this host was stopped while it wrote to a memory region that ends, and may go \
                 on when its memory has another use: this process ends"
            );
            std::process::abort();
        }
    }
}

/// A region or window that stays in place for as long as this lives.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    /// Where key, bounds and rights are.
    pub(crate) slot: &'a Slot,
    /// The region, if that is a window.
    under: Option<&'a Slot>,
}

impl Pin<'_> {
    /// The bytes `va..va + len`, if they lie in the region or window and it has these rights.
    #[inline(always)]
    pub(crate) fn range(
        &self,
        va: u64,
        len: usize,
        access: Access,
    ) -> Result<*mut u8, AccessError> {
        let bits = self.slot.access.load(Ordering::Relaxed);
        let rights = Access::from_bits(bits);
        if bits & NULL != 0 {
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
        let start = base.wrapping_add(offset);
        if bits & ON_DEMAND != 0 {
            fetch(start, len, access)?;
        }
        Ok(start)
    }

    /// What is written through it goes nowhere.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.is_null()
    }

    /// It keeps nothing.
    #[inline]
    fn is_null(&self) -> bool {
        self.slot.access.load(Ordering::Relaxed) & NULL != 0
    }

    /// Zeros to read, for local work.
    #[cold]
    fn zeros(&self, len: usize, access: Access) -> Result<*mut u8, AccessError> {
        if access != Access::NONE {
            return Err(AccessError::Denied);
        }
        if len <= ZEROS.len() {
            return Ok(self.slot.base.load(Ordering::Relaxed));
        }
        static MANY: OnceLock<&[u8]> = OnceLock::new();
        let made = || zeros(MESSAGE_MAX).ok().map(|zeros| *MANY.get_or_init(|| zeros));
        let many = MANY.get().copied().or_else(made).filter(|_| len <= MESSAGE_MAX);
        many.map(|zeros| zeros.as_ptr().cast_mut()).ok_or(AccessError::OutOfBounds)
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
        unsafe { copy_short(bytes.as_ptr(), target, bytes.len()) }
        // A poller that acquires the last word must see the words before it.
        std::sync::atomic::fence(Ordering::Release);
        Ok(())
    }

    /// Runs an atomic operation on the 8 bytes at `va`.
    pub(crate) fn atomic(&self, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let word = self.word(va, Access::REMOTE_ATOMIC)?;
        Ok(match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        })
    }

    /// Writes the 8 bytes at `va` at once, as they came: no reader sees some of them. A reader that sees
    /// them sees what the peer wrote before. IBTA Vol. 1 Annex A19.
    pub(crate) fn atomic_write(&self, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        let value = u64::from_ne_bytes(bytes);
        self.word(va, Access::REMOTE_WRITE)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The 8 bytes at `va` as an atomic.
    fn word(&self, va: u64, access: Access) -> Result<&AtomicU64, AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        let at = self.range(va, size_of::<u64>(), access)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(AccessError::Misaligned); // The region itself does not start at a multiple.
        }
        // SAFETY: in bounds and pinned, for as long as `self` is borrowed; aligned, as just
        // checked; all code that shares these bytes uses atomics or copies by pointer (rule 1).
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(under) = self.under {
            under.users.fetch_sub(1, Ordering::SeqCst);
        }
        self.slot.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A hold on the region that was used last: pieces that are used in a row mostly lie in one, and
/// letting go of it waits until all that was written before is where others see it.
///
/// `K`: what was asked for, a [`LocalKey`] or a [`RemoteKey`].
#[derive(Debug)]
pub(crate) struct Grip<'a, K = LocalKey> {
    regions: &'a Regions,
    held: Option<(K, Pin<'a>)>,
}

/// A local key and its domain.
type LocalKey = (u32, u32);
/// A remote key, its domain, and the queue pair whose peer named it.
type RemoteKey = (u32, u32, Serial);

impl<'a> Grip<'a> {
    /// As [`Regions::pin_local`], but the pin lasts until another region is asked for.
    #[inline(always)]
    pub(crate) fn pin_local(&mut self, key: u32, domain: u32) -> Result<&Pin<'a>, AccessError> {
        if !self.holds(&(key, domain)) {
            self.let_go();
            self.held = Some(((key, domain), self.regions.pin_local(key, domain)?));
        }
        self.pin()
    }
}

impl<'a> Grip<'a, RemoteKey> {
    /// As [`Regions::pin_remote`], but the pin lasts until another region is asked for.
    #[inline]
    pub(crate) fn pin_remote(
        &mut self,
        key: u32,
        domain: u32,
        qp: Serial,
    ) -> Result<&Pin<'a>, AccessError> {
        if !self.holds(&(key, domain, qp)) {
            self.let_go();
            self.held = Some(((key, domain, qp), self.regions.pin_remote(key, domain, qp)?));
        }
        self.pin()
    }
}

impl<'a, K: PartialEq> Grip<'a, K> {
    pub(crate) fn new(regions: &'a Regions) -> Self {
        Self { regions, held: None }
    }

    #[inline(always)]
    fn holds(&self, asked: &K) -> bool {
        matches!(&self.held, Some((held, _)) if held == asked)
    }

    #[inline(always)]
    fn pin(&self) -> Result<&Pin<'a>, AccessError> {
        self.held.as_ref().map(|(_, pin)| pin).ok_or(AccessError::UnknownKey)
    }

    /// Ends the pin.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        self.held = None;
    }
}

/// Holds for packets in a row: those that a queue pair takes, or those that it emits in a burst. `local` is for its own
/// requests and receives, `remote` for what its peer reads and writes. They end before anything that may wait for pins, or for
/// a lock whose holder may (rule 6).
#[derive(Debug)]
pub(crate) struct Grips<'a> {
    pub(crate) local: Grip<'a>,
    pub(crate) remote: Grip<'a, RemoteKey>,
}

impl<'a> Grips<'a> {
    pub(crate) fn new(regions: &'a Regions) -> Self {
        Self { local: Grip::new(regions), remote: Grip::new(regions) }
    }

    /// Ends the pins.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        self.local.let_go();
        self.remote.let_go();
    }
}

/// Makes sure that memory of a region on demand is there, as an access would.
#[cold]
fn fetch(start: *mut u8, len: usize, access: Access) -> Result<(), AccessError> {
    let writing = Access::LOCAL_WRITE.bits() | Access::REMOTE_WRITE.bits();
    let writing = writing | Access::REMOTE_ATOMIC.bits();
    fault_in(start, len, access.bits() & writing != 0).map_err(|_| AccessError::OutOfBounds)
}

/// Marks a slot whose memory need not be there, beside the rights.
pub(crate) const ON_DEMAND: u32 = 1 << 30;
/// Marks a slot whose region keeps nothing, beside the rights.
const NULL: u32 = 1 << 31;
/// What a null region reads as: as much as a packet carries at most.
static ZEROS: [u8; 4096] = [0; 4096];
/// As much as is read of one at once.
const MESSAGE_MAX: usize = 1 << 31;

adverb_sys::debug_as_display!(RegionError);

#[cfg(test)]
mod tests;
