//! Registered memory: shared with peers and only copied, or local and lent as slices.
//!
//! # Safety
//!
//! 1. The memory behind an [`Mr`] or a [`Buf`] lives in the same value as its registration, a [`Registered`], which
//!    gives it back after the registration has ended; never if the device says that it may still be used.
//! 2. An [`Mr`] never gives out a reference to its bytes.
//! 3. A [`Buf`] is registered for local access only, and its key is known to this crate alone. It
//!    is posted by value: while work is outstanding it lies in a completion queue's table, where
//!    no peer can reach it. Other processes can map its pages for reading at most, those of a hostile neighbour
//!    included (`Class::Local` of the device). So its owner has it alone.

use crate::context::Pd;
use crate::error::{AllocateError, RangeError};
use crate::provider::{Domain, Port, Region};
use crate::trace;
use adverb_device::locks::Mutex;
use adverb_device::{Access, Mapping, Pages, PostError, Rkey, Sge, page_bytes};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Backing that keeps registered memory mapped.
#[derive(Debug)]
enum Backing {
    /// Pages of our own.
    Pages(Pages),
    /// Pages of a file of the caller's.
    File(#[expect(dead_code, reason = "held until the region is gone")] Mapping),
    /// A vector that the caller gave away.
    Vector(#[expect(dead_code, reason = "held until the region is gone")] Vec<u8>),
    /// Memory whose owner has promised to keep it.
    Promise,
    /// Memory of the device.
    Device(#[expect(dead_code, reason = "held until the region is gone")] Dm),
}

/// A registration, and the memory behind it.
#[derive(Debug)]
struct Registered {
    region: ManuallyDrop<Region>,
    backing: ManuallyDrop<Backing>,
}

impl Registered {
    fn new(region: Region, backing: Backing) -> Self {
        Self { region: ManuallyDrop::new(region), backing: ManuallyDrop::new(backing) }
    }

    fn into_parts(self) -> (Region, Backing) {
        let mut whole = ManuallyDrop::new(self);
        // SAFETY: taken once, out of a value that is dropped and used no more.
        let region = unsafe { ManuallyDrop::take(&mut whole.region) };
        // SAFETY: as above.
        (region, unsafe { ManuallyDrop::take(&mut whole.backing) })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: taken once, and nothing uses it after `drop`.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        // SAFETY: as above.
        let backing = unsafe { ManuallyDrop::take(&mut self.backing) };
        if matches!(backing, Backing::Promise) {
            drop(region); // What the owner does with it next cannot be prevented: the process ends if need be.
        } else if !region.end() {
            std::mem::forget(backing);
        }
    }
}

/// A memory region. `struct ibv_mr`; IBTA Vol. 1 §10.6.
///
/// A handle: clones are the same region, which goes when the last of them is dropped and no work
/// that was posted with it is outstanding.
///
/// ```
/// use adverb_verbs::{Access, Context, RemoteSlice};
///
/// let pd = Context::open("soft_lo")?.alloc_pd();
/// let table = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// table.write(8, b"a value")?;
/// table.store_u64(0, 1)?; // In one go, for readers that look at the same time.
/// let tell = RemoteSlice { addr: table.addr(), rkey: table.rkey() }.to_string();
/// assert_eq!(tell.parse::<RemoteSlice>()?.addr, table.addr());
///
/// let own = pd.register_vec(vec![7; 4096], Access::LOCAL_WRITE)?; // Memory of the program's.
/// assert_eq!((own.load_u8(4095)?, own.slice(0, 64)?.len()), (7, 64));
/// assert!(own.slice(4090, 64).is_err());
/// own.deregister()?; // Refused while work or a window uses it.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct Mr {
    inner: Arc<Registered>,
}

impl Mr {
    fn of(region: Region, backing: Backing) -> Self {
        let mr = Self { inner: Arc::new(Registered::new(region, backing)) };
        trace::registered(&mr);
        mr
    }

    pub(crate) fn allocate(
        domain: &Domain,
        len: usize,
        access: Access,
    ) -> Result<Self, AllocateError> {
        let pages = pages(domain, len, access)?;
        // SAFETY: the pages stay mapped for as long as `Backing::Pages` holds them, which is
        // dropped after the region (rule 1); no code gets a reference to them (rule 2).
        let region = unsafe { domain.register(pages.as_ptr(), len, access) }?;
        Ok(Self::of(region, Backing::Pages(pages)))
    }

    pub(crate) fn from_vec(
        domain: &Domain,
        mut bytes: Vec<u8>,
        access: Access,
    ) -> Result<Self, AllocateError> {
        let len = bytes.len();
        let start = NonNull::from(bytes.as_mut_slice()).cast::<u8>();
        // SAFETY: the vector's memory does not move and is freed after the region is gone (rule 1);
        // no code gets a reference to it any more (rule 2).
        let region = unsafe { domain.register(start, len, access) }?;
        Ok(Self::of(region, Backing::Vector(bytes)))
    }

    /// # Safety
    ///
    /// As [`crate::Pd::register`].
    pub(crate) unsafe fn from_raw(
        domain: &Domain,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Self, AllocateError> {
        // SAFETY: the caller's promise.
        let region = unsafe { domain.register(start, len, access) }?;
        Ok(Self::of(region, Backing::Promise))
    }

    /// Maps `len` bytes of `file` from `offset` on. The caller has checked that they are there.
    pub(crate) fn from_file(
        domain: &Domain,
        file: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, AllocateError> {
        let page = u64::try_from(page_bytes()).unwrap_or(4096);
        let skip = offset % page;
        let skip_bytes = usize::try_from(skip).unwrap_or(0);
        let whole = len.saturating_add(skip_bytes);
        let mapped = Mapping::shared_at(file, offset - skip, whole);
        let pages = mapped.map_err(|error| AllocateError::Memory { len, error })?;
        // SAFETY: `skip_bytes` is less than the mapping's length, which is `len` more.
        let start = unsafe { pages.as_ptr().add(skip_bytes) };
        // SAFETY: the pages stay mapped for as long as `Backing::File` holds them (rule 1), and
        // no code gets a reference to them (rule 2).
        let region = unsafe { domain.register(start, len, access) }?;
        Ok(Self::of(region, Backing::File(pages)))
    }

    /// Registers a part of the device's memory.
    pub(crate) fn from_dm(
        domain: &Domain,
        dm: &Dm,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Self, AllocateError> {
        let memory = dm.len();
        if offset.checked_add(len).is_none_or(|end| end > memory) {
            return Err(AllocateError::Range(RangeError::OutOfBounds { offset, len, memory }));
        }
        // SAFETY: `offset` lies in the memory, as just checked.
        let start = unsafe { dm.inner.region.start().add(offset) };
        let access = access | Access::ZERO_BASED;
        // SAFETY: the pages stay mapped for as long as `Backing::Device` holds them (rule 1), and
        // no code gets a reference to them (rule 2).
        let region = unsafe { domain.register(start, len, access) }?;
        Ok(Self::of(region, Backing::Device(dm.clone())))
    }

    /// Ends the registration, or says why it cannot end yet. Dropping the last handle does so without
    /// asking, and ends the windows that are bound to it: their keys are dead from then on.
    /// IBTA Vol. 1 §10.6.
    ///
    /// # Errors
    ///
    /// [`DeregisterError`], with the region as it was: if other handles, slices or outstanding work
    /// use it, or windows are bound to it.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<(), DeregisterError> {
        match self.in_use() {
            Some(why) => Err(DeregisterError { mr: self, why }),
            None => Ok(()),
        }
    }

    /// Windows that are bound to it.
    pub fn windows(&self) -> u32 {
        self.inner.region.windows()
    }

    fn in_use(&self) -> Option<AllocateError> {
        let handles = Arc::strong_count(&self.inner).saturating_sub(1);
        let windows = self.windows();
        if handles > 0 {
            return Some(AllocateError::InUse { handles });
        }
        (windows > 0).then_some(AllocateError::WindowsBound { windows })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.inner.region
    }

    /// Registers the same memory anew: in another domain, with other rights. Its keys change. Memory of
    /// [`crate::Pd::allocate`] moves, so that [`Mr::addr`] changes, too: peers of this host may have mapped it with
    /// the old rights. IBTA Vol. 1 §10.6.
    ///
    /// # Errors
    ///
    /// [`ReregisterError`], with the region as it was: if other handles, slices or outstanding work
    /// use it, windows are bound to it, or the device refuses the rights.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(self, pd: &Pd, access: Access) -> Result<Self, ReregisterError> {
        let failed = |mr, why| Err(ReregisterError { mr, why });
        if !pd.domain().is_of_the_same_device(&self.inner.region) {
            return failed(self, AllocateError::ForeignDevice);
        }
        if let Some(why) = self.in_use() {
            return failed(self, why);
        }
        let registered = match Arc::try_unwrap(self.inner) {
            Ok(registered) => registered,
            Err(inner) => {
                let handles = Arc::strong_count(&inner).saturating_sub(1);
                return failed(Self { inner }, AllocateError::InUse { handles });
            }
        };
        let domain = pd.domain();
        let len = registered.region.len();
        let moved = match &*registered.backing {
            Backing::Pages(old) if !domain.suits(old, access) => {
                pages(domain, len, access).map(Some)
            }
            Backing::Pages(_)
            | Backing::File(_)
            | Backing::Vector(_)
            | Backing::Promise
            | Backing::Device(_) => Ok(None),
        };
        let again = moved.and_then(|moved| {
            let start = moved.as_ref().map_or(registered.region.start(), Pages::as_ptr);
            // SAFETY: the backing keeps its promise until the new region is gone too, because it moves
            // to the new registration (rule 1), as do pages that take its place; memory that was a promise
            // was promised for as long as the handle lives, and for whatever rights: `Pd::register` says so.
            Ok((unsafe { domain.register(start, len, access) }?, moved))
        });
        let (region, moved) = match again {
            Ok(again) => again,
            Err(error) => return failed(Self { inner: Arc::new(registered) }, error),
        };
        let (old, backing) = registered.into_parts();
        let ended = old.end();
        let backing = match (moved, backing) {
            (Some(mut pages), Backing::Pages(old)) => {
                pages.copy_from(&old);
                if !ended {
                    std::mem::forget(old);
                }
                Backing::Pages(pages)
            }
            // A neighbour that may still access it is waited for again when the new region ends.
            (_, backing) => backing,
        };
        Ok(Self::of(region, backing))
    }

    /// Address of the first byte: what a peer has to be told, with [`Mr::rkey`].
    #[inline]
    pub fn addr(&self) -> u64 {
        self.inner.region.addr()
    }

    /// Where its first byte is in this process, for other languages. Nothing but copies by raw pointers may use it, and
    /// only while a handle is there: a peer that has the right to write does so at any time.
    ///
    /// ```
    /// use adverb_verbs::{Access, Context};
    ///
    /// let mr = Context::open("soft_lo")?.alloc_pd().allocate(64, Access::LOCAL_WRITE)?;
    /// assert_eq!(mr.as_ptr().addr().get(), usize::try_from(mr.addr())?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.inner.region.start()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.region.len()
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.inner.region.is_empty()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.inner.region.access()
    }

    /// The local key, for raw requests.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.inner.region.lkey()
    }

    /// The remote key: what a peer has to be told, with the address.
    #[inline]
    pub fn rkey(&self) -> Rkey {
        Rkey(self.inner.region.rkey())
    }

    fn out_of_bounds(&self, offset: usize, len: usize) -> RangeError {
        match self.fits(offset, len) {
            true => RangeError::ReadOnly,
            false => RangeError::OutOfBounds { offset, len, memory: self.len() },
        }
    }

    fn fits(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Copies bytes from `offset` on into `target`.
    ///
    /// What a peer writes meanwhile may be seen in part: look after the completion or the
    /// immediate that announces it, or poll with [`Mr::load_u64`].
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`]; nothing was copied then.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), RangeError> {
        match self.inner.region.read(offset, target) {
            true => Ok(()),
            false => Err(self.out_of_bounds(offset, target.len())),
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`] or [`RangeError::ReadOnly`]; nothing was copied then.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        match self.inner.region.write(offset, bytes) {
            true => Ok(()),
            false => Err(self.out_of_bounds(offset, bytes.len())),
        }
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`] or [`RangeError::ReadOnly`]; nothing was changed then.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), RangeError> {
        match self.inner.region.fill(offset, len, byte) {
            true => Ok(()),
            false => Err(self.out_of_bounds(offset, len)),
        }
    }

    /// Reads the 8 bytes at `offset` in one go, in the machine's byte order. A reader that sees a value
    /// that a peer wrote also sees what the same request wrote before it.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`] or [`RangeError::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, RangeError> {
        self.inner.region.load_u64(offset).ok_or_else(|| self.word_error(offset))
    }

    /// Writes the 8 bytes at `offset` in one go.
    ///
    /// # Errors
    ///
    /// All of [`RangeError`]; nothing was written then.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), RangeError> {
        match self.inner.region.store_u64(offset, value) {
            true => Ok(()),
            false => Err(self.word_error(offset)),
        }
    }

    /// Reads the byte at `offset`, ordered like [`Mr::load_u64`].
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`].
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8, RangeError> {
        self.inner.region.load_u8(offset).ok_or_else(|| self.out_of_bounds(offset, 1))
    }

    fn word_error(&self, offset: usize) -> RangeError {
        if self.fits(offset, size_of::<u64>()) && !offset.is_multiple_of(size_of::<u64>()) {
            return RangeError::Misaligned { offset };
        }
        self.out_of_bounds(offset, size_of::<u64>())
    }

    /// The `len` bytes from `offset` on, for posting.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`], also for 4 GiB and more.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<MrSlice, RangeError> {
        let short = u32::try_from(len).ok().filter(|_| self.fits(offset, len));
        let len = short.ok_or_else(|| self.out_of_bounds(offset, len))?;
        Ok(MrSlice { mr: self.clone(), offset, len })
    }

    /// The `len` bytes from `offset` on as a raw scatter/gather entry.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`], also for more than 4 GiB.
    #[inline]
    pub fn sge(&self, offset: usize, len: usize) -> Result<Sge, RangeError> {
        let short = u32::try_from(len).ok().filter(|_| self.fits(offset, len));
        let len = short.ok_or_else(|| self.out_of_bounds(offset, len))?;
        let start = u64::try_from(offset).unwrap_or(u64::MAX);
        Ok(Sge { addr: self.addr().wrapping_add(start), len, lkey: self.lkey() })
    }
}

/// Error of deregistering, with the region as it was.
pub struct DeregisterError {
    /// The region.
    pub mr: Mr,
    /// Why.
    pub why: AllocateError,
}

impl fmt::Display for DeregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.why, f)
    }
}

impl std::error::Error for DeregisterError {}

/// Error of registering a region anew, with the region as it was.
pub struct ReregisterError {
    /// The region.
    pub mr: Mr,
    /// Why.
    pub why: AllocateError,
}

impl fmt::Display for ReregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.why, f)
    }
}

impl std::error::Error for ReregisterError {}

/// Memory of the device itself. `struct ibv_dm`.
///
/// A handle: clones are the same memory. It can be copied to and from, and registered with
/// [`crate::Pd::register_dm`]. The software device has no memory that would be nearer to it than
/// the program's own; this is for programs that want to use such memory where there is some.
///
/// ```
/// use adverb_verbs::{Access, Context};
///
/// let context = Context::open("soft_lo")?;
/// let memory = context.alloc_dm(4096)?;
/// memory.write(0, b"near")?;
/// let region = context.alloc_pd().register_dm(&memory, 0, 64, Access::REMOTE_READ)?;
/// assert_eq!((memory.len(), region.len()), (4096, 64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ibv_dm")]
#[doc(alias = "ibv_free_dm")]
pub struct Dm {
    /// In a domain that no queue pair is of.
    inner: Arc<Registered>,
}

impl Dm {
    pub(crate) fn allocate(port: &Port, len: usize) -> Result<Self, AllocateError> {
        port.soft("memory of its own for programs")?;
        let domain = port.new_domain();
        let access = Access::LOCAL_WRITE;
        let pages = pages(&domain, len, access)?;
        // SAFETY: the pages stay mapped until after the region is gone (rule 1), and no code gets a
        // reference to them.
        let region = unsafe { domain.register(pages.as_ptr(), len, access) }?;
        Ok(Self { inner: Arc::new(Registered::new(region, Backing::Pages(pages))) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.region.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.inner.region.is_empty()
    }

    fn out_of_bounds(&self, offset: usize, len: usize) -> RangeError {
        RangeError::OutOfBounds { offset, len, memory: self.len() }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`]; nothing was copied then.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        match self.inner.region.write(offset, bytes) {
            true => Ok(()),
            false => Err(self.out_of_bounds(offset, bytes.len())),
        }
    }

    /// Copies bytes from `offset` on into `target`.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`]; nothing was copied then.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), RangeError> {
        match self.inner.region.read(offset, target) {
            true => Ok(()),
            false => Err(self.out_of_bounds(offset, target.len())),
        }
    }
}

/// A place for bytes that are not wanted: local work can write to it without end, and reads zeros.
///
/// ```
/// # let pd = adverb_verbs::Context::open("soft_lo")?.alloc_pd();
/// let nowhere = pd.null_mr()?;
/// let rest = nowhere.sge(1 << 20); // A piece of a raw request: see `Qp::post_send`.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NullMr {
    region: adverb_device::Region,
}

impl NullMr {
    pub(crate) fn allocate(domain: &Domain) -> Result<Self, AllocateError> {
        Ok(Self { region: domain.register_null()? })
    }

    /// The local key, for raw requests.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn lkey(&self) -> u32 {
        self.region.key().0
    }

    /// `len` bytes of it as a raw scatter/gather entry: in front of, between or behind others, to
    /// skip a part of a message.
    pub fn sge(&self, len: u32) -> Sge {
        Sge { addr: 0, len, lkey: self.lkey() }
    }
}

/// A part of a memory region, which it keeps registered.
///
/// [`Work`](crate::Work) has an example.
#[derive(Clone, Debug)]
pub struct MrSlice {
    mr: Mr,
    offset: usize,
    len: u32,
}

impl MrSlice {
    /// The region it is a part of.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Where it starts in the region, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn sge(&self) -> Sge {
        let start = u64::try_from(self.offset).unwrap_or(u64::MAX);
        let addr = self.mr.addr().wrapping_add(start);
        Sge { addr, len: self.len, lkey: self.mr.lkey() }
    }
}

/// A local buffer: registered, but no peer can reach it, so it can be had as a slice.
///
/// Posting it gives it away; its completion gives it back.
///
/// The example of the [crate](crate) has one.
pub struct Buf {
    inner: Registered,
    len: usize,
}

impl Buf {
    pub(crate) fn allocate(domain: &Domain, len: usize) -> Result<Self, AllocateError> {
        let pages = pages(domain, len.max(1), Access::LOCAL_WRITE)?;
        let start = pages.as_ptr();
        // SAFETY: the pages stay mapped until after the region is gone (rule 1). The device touches
        // them only for work that is outstanding, while no code can reach the `Buf` (rule 3).
        let region = unsafe { domain.register(start, len.max(1), Access::LOCAL_WRITE) }?;
        Ok(Self { inner: Registered::new(region, Backing::Pages(pages)), len })
    }

    /// Shortens it to `len` bytes, or lengthens it again, at most to what was allocated.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfBounds`]; the length has not changed then.
    pub fn resize(&mut self, len: usize) -> Result<(), RangeError> {
        if len > self.inner.region.len() {
            let memory = self.inner.region.len();
            return Err(RangeError::OutOfBounds { offset: 0, len, memory });
        }
        self.len = len;
        Ok(())
    }

    fn sge(&self) -> Sge {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        Sge { addr: self.inner.region.addr(), len, lkey: self.inner.region.lkey() }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped (rule 1) and initialised (fresh pages are zero), and as
        // long as `self` is borrowed no code writes to them (rule 3).
        unsafe { std::slice::from_raw_parts(self.inner.region.start().as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably, so that no code reads either.
        unsafe { std::slice::from_raw_parts_mut(self.inner.region.start().as_ptr(), self.len) }
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mr");
        shown.field("addr", &self.addr()).field("len", &self.len());
        shown.field("rkey", &self.rkey()).field("access", &self.access()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Memory that is lent for the length of a [`Scope`](crate::Scope). Work takes it like any other memory, and gives
/// it back with its completion.
///
/// [`Pd::scope`](crate::Pd::scope) has an example.
#[derive(Clone)]
pub struct Lent {
    inner: Arc<LentInner>,
}

struct LentInner {
    sge: Sge,
    domain: u32,
    /// `None` once the scope has ended.
    region: Mutex<Option<Region>>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.inner.sge.len).finish_non_exhaustive()
    }
}

impl Lent {
    pub(crate) fn new(sge: Sge, domain: u32, region: Region) -> Self {
        Self { inner: Arc::new(LentInner { sge, domain, region: Mutex::new(Some(region)) }) }
    }

    /// Its protection domain, while it is lent.
    fn domain(&self) -> Result<u32, PostError> {
        let region = self.inner.region.lock();
        region.as_ref().map(|_| self.inner.domain).ok_or(PostError::ScopeEnded)
    }

    /// The scope ends.
    pub(crate) fn end(&self) {
        let mut region = self.inner.region.lock();
        *region = None;
    }
}

/// What can be given to work: [`Buf`], [`MrSlice`], [`Lent`], and [`Memory`] that came back from other work.
///
/// [`Work`](crate::Work) has an example. Memory of the program's that is not registered is not of these:
///
/// ```compile_fail,E0277
/// adverb_verbs::Work::send(vec![0; 8]);
/// ```
#[diagnostic::on_unimplemented(
    message = "work cannot take `{Self}`, which is no registered memory",
    label = "not memory of a protection domain",
    note = "a buffer to fill: `Pd::buffer`; a vector to keep: `Pd::register_vec(vec, access)?.slice(0, len)?`; \
            memory to lend: `Pd::scope`"
)]
pub trait IntoMemory: Into<Memory> {}

impl IntoMemory for Buf {}
impl IntoMemory for Lent {}
impl IntoMemory for Memory {}
impl IntoMemory for MrSlice {}

/// Memory that work owns while it is outstanding.
///
/// [`Work`](crate::Work) has an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// A local buffer.
    Buf(Buf),
    /// Memory of the program's own, lent for a while.
    Lent(Lent),
    /// None: of work that becomes no packet.
    Nothing,
    /// A part of a region.
    Slice(MrSlice),
}

impl Memory {
    pub(crate) fn sge(&self) -> Sge {
        match self {
            Self::Buf(buf) => buf.sge(),
            Self::Lent(lent) => lent.inner.sge,
            Self::Nothing => Sge { addr: 0, len: 0, lkey: 0 },
            Self::Slice(slice) => slice.sge(),
        }
    }

    /// Says why queue pairs of this protection domain may not use it.
    #[inline]
    pub(crate) fn check(&self, domain: u32) -> Result<(), PostError> {
        let own = match self {
            Self::Buf(buf) => buf.inner.region.domain(),
            Self::Lent(lent) => lent.domain()?,
            Self::Nothing => domain,
            Self::Slice(slice) => slice.mr.inner.region.domain(),
        };
        if own == domain { Ok(()) } else { Err(PostError::ForeignMemory) }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// The local buffer, if it is one.
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Self::Buf(buf) => Some(buf),
            Self::Lent(_) | Self::Nothing | Self::Slice(_) => None,
        }
    }
}

adverb_device::wraps!(Memory: Buf(Buf), Lent(Lent), Slice(MrSlice));

fn pages(domain: &Domain, len: usize, access: Access) -> Result<Pages, AllocateError> {
    domain.pages(len, access).map_err(|error| AllocateError::Memory { len, error })
}

adverb_device::debug_as_display!(DeregisterError, ReregisterError);
