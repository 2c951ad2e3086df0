//! Protection domains, memory regions, memory windows, memory of the device.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`.
//! 2. A program that registers memory promises what `ibv_reg_mr(3)` asks for: it stays mapped until the region is
//!    deregistered, or, on demand, for the length of an access to it. Whether it is mapped with the rights that are asked for is checked when it is registered.
//!    References of Rust to it there are none: the program is C's.
//! 3. Memory of the device lives as long as an object that refers to it.

use crate::boxed::{Boxed, Plain};
use crate::context;
use crate::errno::{Answer, BUSY, Errno, INVALID, UNSUPPORTED};
use crate::export::{entry, export};
use crate::query::DM_MAX;
use adverb_device::locks::Mutex;
use adverb_device::{
    Access, AccessError, Pages, Port, Region, Registration, Sge, Window, WindowKind, fault_in,
    is_mapped, page_bytes, prefer_huge_pages,
};
use adverb_ibv::layout::{self, value};
use libc::{c_int, c_uint, c_void};
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Something that others refer to: it is in use while there is another handle.
pub(crate) type Use = Arc<()>;

/// No other object refers to it.
pub(crate) fn free(used: &Use) -> Answer<()> {
    if Arc::strong_count(used) > 1 { Err(BUSY) } else { Ok(()) }
}

/// A protection domain.
pub(crate) struct PdInner {
    pub(crate) port: Arc<Port>,
    /// Its number.
    pub(crate) domain: u32,
    pub(crate) uses: Use,
    /// What a parent domain is made of.
    _of: Vec<Use>,
    /// It was made by this process by that name, and not imported.
    original: bool,
}

pub(crate) type Pd = Boxed<layout::Pd, PdInner>;

/// What other contexts of this process can import, by handle.
enum Shared {
    Pd,
    Mr { length: usize, lkey: u32, rkey: u32 },
    Dm(Arc<Dm>),
}

static SHARED: Mutex<BTreeMap<(Kind, u32), Shared>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    Pd,
    Mr,
    Dm,
}

/// The domain behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn pd_of<'a>(pd: *mut layout::Pd) -> Answer<&'a Pd> {
    // SAFETY: the caller's promise.
    unsafe { Pd::checked(pd) }
}

fn give_pd(
    context: *mut layout::Context,
    port: &Arc<Port>,
    domain: u32,
    of: Vec<Use>,
    original: bool,
) -> *mut layout::Pd {
    let mut c = layout::Pd::zeroed();
    (c.context, c.handle) = (context, domain);
    let uses = Use::default();
    Pd::give(c, PdInner { port: Arc::clone(port), domain, uses, _of: of, original })
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_alloc_pd(context: *mut layout::Context) -> *mut layout::Pd, of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        let domain = inner.port.new_domain();
        SHARED.lock().insert((Kind::Pd, domain), Shared::Pd);
        Ok(give_pd(context, &inner.port, domain, Vec::new(), true))
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_dealloc_pd(pd: *mut layout::Pd) -> c_int, of pd {
        // SAFETY: one of ours.
        let inner = unsafe { pd_of(pd) }?;
        free(&inner.uses)?;
        if inner.original {
            SHARED.lock().remove(&(Kind::Pd, inner.domain));
        }
        // SAFETY: nothing uses it any more.
        drop(unsafe { Pd::take(pd) });
        Ok(())
    }
}

export! {
    pointer "IBVERBS_1.10"
    fn ibv_import_pd(context: *mut layout::Context, handle: u32) -> *mut layout::Pd,
    of context is context::is_ours, {
        // SAFETY: one of ours.
        let inner = unsafe { context::of(context) }?;
        if !SHARED.lock().contains_key(&(Kind::Pd, handle)) {
            return Err(Errno(libc::ENOENT));
        }
        Ok(give_pd(context, &inner.port, handle, Vec::new(), false))
    }
}

export! {
    value "IBVERBS_1.10"
    fn ibv_unimport_pd(pd: *mut layout::Pd) -> (), of pd {
        // SAFETY: one of ours.
        let imported = unsafe { pd_of(pd) }?;
        if !imported.original {
            // SAFETY: the program does not use it any more.
            drop(unsafe { Pd::take(pd) });
        }
        Ok(())
    }
}

/// A thread domain.
type Td = Boxed<layout::Td, Use>;

entry! {
    pointer
    fn alloc_td(
        context: *mut layout::Context,
        attr: *mut layout::TdInitAttr,
    ) -> *mut layout::Td {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        if attr.comp_mask != 0 {
            return Err(INVALID);
        }
        let mut c = layout::Td::zeroed();
        c.context = context;
        Ok(Td::give(c, Use::default()))
    }
}

entry! {
    code
    fn dealloc_td(td: *mut layout::Td) -> c_int {
        // SAFETY: one of ours, or null.
        free(unsafe { Td::checked(td) }?)?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { Td::take(td) });
        Ok(())
    }
}

/// With functions of the program's own for memory, which are not called, and with a context of its own.
const PARENT_DOMAIN_KNOWN: u32 =
    value::PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | value::PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;

entry! {
    pointer
    fn alloc_parent_domain(
        context: *mut layout::Context,
        attr: *mut layout::ParentDomainInitAttr,
    ) -> *mut layout::Pd {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        if attr.comp_mask & !PARENT_DOMAIN_KNOWN != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: one of ours, or null.
        let pd = unsafe { pd_of(attr.pd) }?;
        let mut of = vec![Arc::clone(&pd.uses)];
        if !attr.td.is_null() {
            // SAFETY: one of ours.
            of.push(Arc::clone(unsafe { Td::of(attr.td) }));
        }
        Ok(give_pd(context, &pd.port, pd.domain, of, false))
    }
}

/// A memory region.
pub(crate) struct MrInner {
    /// Goes before what it looks at.
    pub(crate) region: Option<Region>,
    /// What it lies in, if that is not the program's own.
    _within: Option<Within>,
    /// The domain.
    _pd: Use,
    imported: bool,
}

/// Memory that lives as long as regions of it: the device's, or a buffer.
pub(crate) type Within = Arc<dyn Any + Send + Sync>;

pub(crate) type Mr = Boxed<layout::Mr, MrInner>;

/// The rights that a program asks for.
fn rights(access: c_uint) -> Answer<Access> {
    let rights = Access::from_bits(access);
    let unknown = access & !rights.bits() & !value::ACCESS_OPTIONAL_RANGE;
    // Nothing here outlives a loss of power.
    let persists = rights.contains(Access::FLUSH_PERSISTENT);
    if unknown == 0 && !persists { Ok(rights) } else { Err(INVALID) }
}

/// Memory is mapped with the rights that are needed, and present.
fn prepare(start: NonNull<u8>, len: usize, access: Access) -> Answer<()> {
    const FAULT: Errno = Errno(libc::EFAULT);
    if len >= HUGE_PAGE_BYTES {
        let _ = prefer_huge_pages(start, len);
    }
    let start = start.as_ptr();
    let fault_in = |writing| fault_in(start, len, writing).map_err(|error| error.raw_os_error());
    match fault_in(access.contains(Access::LOCAL_WRITE)) {
        Ok(()) => Ok(()),
        // What can be read cannot be written to, or it is memory of a device, or the kernel is old.
        Err(Some(libc::EINVAL)) if fault_in(false).is_err() && is_mapped(start, len) => Ok(()),
        Err(_) => Err(FAULT),
    }
}

/// Memory of this length may have a huge page in it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What a program's memory is registered as, under this address.
fn registration(
    pd: &Pd,
    addr: *mut c_void,
    len: usize,
    va: u64,
    access: c_uint,
) -> Answer<Registration> {
    let access = rights(access)?;
    let on_demand = access.contains(Access::ON_DEMAND);
    let domain = pd.domain;
    match NonNull::new(addr.cast::<u8>()) {
        _ if len == 0 => Err(INVALID),
        None if on_demand && len == usize::MAX && va == 0 => Ok(Registration::all(domain, access)),
        None => Err(Errno(libc::EFAULT)),
        Some(base) => {
            if !on_demand {
                prepare(base, len, access)?;
            }
            let va = if access.contains(Access::ZERO_BASED) { 0 } else { va };
            let last = u64::try_from(len - 1).map_err(|_| INVALID)?;
            va.checked_add(last).ok_or(INVALID)?;
            Ok(Registration { domain, base, len, access, va, on_demand })
        }
    }
}

fn give_mr(
    pd: *mut layout::Pd,
    of: &Pd,
    region: Region,
    addr: *mut c_void,
    length: usize,
    within: Option<Within>,
) -> *mut layout::Mr {
    let key = region.key().0;
    let mut c = layout::Mr::zeroed();
    // SAFETY: one of ours.
    c.context = unsafe { (*pd).context };
    (c.pd, c.addr, c.length, c.handle, c.lkey, c.rkey) = (pd, addr, length, key, key, key);
    SHARED.lock().insert((Kind::Mr, key), Shared::Mr { length, lkey: key, rkey: key });
    let inner = MrInner {
        region: Some(region),
        _within: within,
        _pd: Arc::clone(&of.uses),
        imported: false,
    };
    Mr::give(c, inner)
}

pub(crate) fn new_mr(
    pd: *mut layout::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
    within: Option<Within>,
) -> Answer<*mut layout::Mr> {
    // SAFETY: one of ours, or null.
    let of = unsafe { pd_of(pd) }?;
    let memory = registration(of, addr, length, iova, access)?;
    of.port.survive_lost_memory();
    // SAFETY: rule 2.
    let region = unsafe { of.port.register_as(memory) }?;
    Ok(give_mr(pd, of, region, addr, length, within))
}

pub(crate) fn own_address(addr: *mut c_void) -> u64 {
    u64::try_from(addr.expose_provenance()).unwrap_or(0)
}

export! {
    pointer "IBVERBS_1.1"
    fn ibv_reg_mr(pd: *mut layout::Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut layout::Mr,
    of pd {
        new_mr(pd, addr, length, own_address(addr), access.cast_unsigned(), None)
    }
}

export! {
    pointer "IBVERBS_1.7"
    fn ibv_reg_mr_iova(
        pd: *mut layout::Pd, addr: *mut c_void, length: usize, iova: u64, access: c_int,
    ) -> *mut layout::Mr, of pd {
        new_mr(pd, addr, length, iova, access.cast_unsigned(), None)
    }
}

export! {
    pointer "IBVERBS_1.8"
    fn ibv_reg_mr_iova2(
        pd: *mut layout::Pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut layout::Mr, of pd {
        new_mr(pd, addr, length, iova, access, None)
    }
}

export! {
    pointer "IBVERBS_1.12"
    fn ibv_reg_dmabuf_mr(
        pd: *mut layout::Pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> *mut layout::Mr, of pd {
        let _ = (offset, length, iova, fd, access);
        Err(UNSUPPORTED)
    }
}

/// The region behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn mr_of<'a>(mr: *mut layout::Mr) -> Answer<&'a Mr> {
    // SAFETY: the caller's promise.
    unsafe { Mr::checked(mr) }
}

export! {
    value "IBVERBS_1.1"
    fn ibv_rereg_mr(
        mr: *mut layout::Mr,
        flags: c_int,
        pd: *mut layout::Pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int, of mr {
        rereg(mr, flags, pd, addr, length, access)
    }
}

fn rereg(
    mr: *mut layout::Mr,
    flags: c_int,
    pd: *mut layout::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Answer<c_int> {
    // SAFETY: one of ours, or null.
    let old = unsafe { mr_of(mr) }?;
    let changes = |flag| flags & flag != 0;
    let known = value::REREG_MR_CHANGE_TRANSLATION
        | value::REREG_MR_CHANGE_PD
        | value::REREG_MR_CHANGE_ACCESS;
    let region = old.region.as_ref().ok_or(INVALID)?;
    if flags == 0 || flags & !known != 0 {
        return Err(INVALID);
    }
    let c = old.c();
    // SAFETY: a field of a region that lives.
    let pd = if changes(value::REREG_MR_CHANGE_PD) { pd } else { unsafe { (*c).pd } };
    // SAFETY: one of ours, or null.
    let of = unsafe { pd_of(pd) }?;
    // SAFETY: of ours.
    unsafe { context::own_all((*c).context, [pd.cast()]) }?;
    // SAFETY: as above.
    let before = unsafe { ((*c).addr, (*c).length) };
    let moves = changes(value::REREG_MR_CHANGE_TRANSLATION);
    let (addr, length) = if moves { (addr, length) } else { before };
    let access = match changes(value::REREG_MR_CHANGE_ACCESS) {
        true => access.cast_unsigned(),
        false => region.access().bits(),
    };
    // SAFETY: the program does not use the region while it is registered anew.
    let whole = unsafe { Mr::of_mut(mr) };
    let inner = whole.ours_mut();
    let region = inner.region.as_mut().ok_or(INVALID)?;
    let va = if moves { own_address(addr) } else { region.addr() };
    let new = registration(of, addr, length, va, access)?;
    // SAFETY: rule 2.
    unsafe { region.reregister(new) }?;
    let key = region.key().0;
    inner._pd = Arc::clone(&of.uses);
    SHARED.lock().insert((Kind::Mr, key), Shared::Mr { length, lkey: key, rkey: key });
    // SAFETY: as above.
    let c = unsafe { &mut *c };
    (c.pd, c.addr, c.length) = (pd, addr, length);
    Ok(0)
}

export! {
    code "IBVERBS_1.1"
    fn ibv_dereg_mr(mr: *mut layout::Mr) -> c_int, of mr {
        // SAFETY: one of ours, or null.
        let inner = unsafe { mr_of(mr) }?;
        if let Some(region) = &inner.region {
            if region.windows() > 0 {
                return Err(BUSY);
            }
            SHARED.lock().remove(&(Kind::Mr, region.key().0));
        }
        // SAFETY: the program does not use it any more.
        drop(unsafe { Mr::take(mr) });
        Ok(())
    }
}

export! {
    pointer "IBVERBS_1.10"
    fn ibv_import_mr(pd: *mut layout::Pd, handle: u32) -> *mut layout::Mr, of pd {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        let shared = SHARED.lock();
        let Some(Shared::Mr { length, lkey, rkey }) = shared.get(&(Kind::Mr, handle)) else {
            return Err(Errno(libc::ENOENT));
        };
        let mut c = layout::Mr::zeroed();
        // SAFETY: one of ours.
        c.context = unsafe { (*pd).context };
        (c.pd, c.length, c.handle, c.lkey, c.rkey) = (pd, *length, handle, *lkey, *rkey);
        let inner = MrInner { region: None, _within: None, _pd: Arc::clone(&of.uses), imported: true };
        Ok(Mr::give(c, inner))
    }
}

export! {
    value "IBVERBS_1.10"
    fn ibv_unimport_mr(mr: *mut layout::Mr) -> (), of mr {
        // SAFETY: one of ours, or null.
        if unsafe { mr_of(mr) }?.imported {
            // SAFETY: the program does not use it any more.
            drop(unsafe { Mr::take(mr) });
        }
        Ok(())
    }
}

entry! {
    pointer
    fn alloc_null_mr(pd: *mut layout::Pd) -> *mut layout::Mr {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        let region = of.port.register_null(of.domain)?;
        Ok(give_mr(pd, of, region, std::ptr::null_mut(), usize::MAX, None))
    }
}

/// Whether pages are asked for that can be written to; `None` if there is no such advice.
fn prefetches_for_writing(advice: c_int) -> Option<bool> {
    match advice {
        value::ADVISE_MR_PREFETCH | value::ADVISE_MR_PREFETCH_NO_FAULT => Some(false),
        value::ADVISE_MR_PREFETCH_WRITE => Some(true),
        _ => None,
    }
}

entry! {
    code
    fn advise_mr(
        pd: *mut layout::Pd,
        advice: c_int,
        flags: u32,
        list: *mut layout::Sge,
        count: u32,
    ) -> c_int {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        let writing = prefetches_for_writing(advice).ok_or(UNSUPPORTED)?;
        if flags & !value::ADVISE_MR_FLAG_FLUSH != 0 || list.is_null() || count == 0 {
            return Err(INVALID);
        }
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        // SAFETY: the program's list.
        for piece in unsafe { std::slice::from_raw_parts(list, count) } {
            let piece = Sge { addr: piece.addr, len: piece.length, lkey: piece.lkey };
            of.port.prefetch(of.domain, &piece, writing).map_err(|error| match error {
                AccessError::Denied => Errno(libc::EPERM),
                AccessError::OutOfBounds => Errno(libc::EFAULT),
                AccessError::Misaligned | AccessError::UnknownKey | _ => INVALID,
            })?;
        }
        Ok(())
    }
}

/// Memory of the device: pages of this process, which no peer reaches but through regions of them.
struct Dm {
    pages: Pages,
    len: usize,
}

impl Dm {
    /// Where a part of it is.
    fn part(&self, offset: u64, len: usize) -> Answer<NonNull<u8>> {
        let offset = usize::try_from(offset).map_err(|_| INVALID)?;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(INVALID);
        }
        // SAFETY: within the pages, as was just checked.
        Ok(unsafe { self.pages.as_ptr().add(offset) })
    }

    /// Where a part of whole words is: copies go by words. (The pages begin with one.)
    fn words(&self, offset: u64, len: usize) -> Answer<NonNull<u8>> {
        let start = self.part(offset, len)?;
        let whole = start.addr().get().is_multiple_of(WORD) && len.is_multiple_of(WORD);
        if whole { Ok(start) } else { Err(INVALID) }
    }
}

/// Bytes of a word of copies.
const WORD: usize = 4;

type DmBox = Boxed<layout::Dm, DmInner>;

struct DmInner {
    dm: Arc<Dm>,
    /// By which it can be imported, if this is what was allocated.
    shared_as: Option<u32>,
    imported: bool,
}

fn give_dm(context: *mut layout::Context, handle: u32, inner: DmInner) -> *mut layout::Dm {
    let mut c = layout::Dm::zeroed();
    (c.context, c.handle) = (context, handle);
    c.memcpy_to_dm = Some(memcpy_to_dm);
    c.memcpy_from_dm = Some(memcpy_from_dm);
    DmBox::give(c, inner)
}

/// The last handle of memory of the device.
static DM_HANDLES: AtomicU32 = AtomicU32::new(0);

entry! {
    pointer
    fn alloc_dm(
        context: *mut layout::Context,
        attr: *mut layout::AllocDmAttr,
    ) -> *mut layout::Dm {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::own_or_inherited(context) }?;
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        let page = page_bytes().trailing_zeros();
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > page {
            return Err(INVALID);
        }
        if u64::try_from(attr.length).unwrap_or(u64::MAX) > DM_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        let dm = Arc::new(Dm { pages: Pages::private(attr.length)?, len: attr.length });
        let handle = DM_HANDLES.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // A forked child that has it of its parent's context shares it with none: the table may have been locked when the
        // process was forked.
        let shared_as = (!inner.generation.is_inherited()).then_some(handle);
        if shared_as.is_some() {
            SHARED.lock().insert((Kind::Dm, handle), Shared::Dm(Arc::clone(&dm)));
        }
        Ok(give_dm(context, handle, DmInner { dm, shared_as, imported: false }))
    }
}

unsafe fn dm_of<'a>(dm: *mut layout::Dm) -> Answer<&'a DmBox> {
    // SAFETY: the caller's promise.
    unsafe { DmBox::checked(dm) }
}

entry! {
    code
    fn free_dm(dm: *mut layout::Dm) -> c_int {
        // SAFETY: one of ours, or null.
        let inner = unsafe { dm_of(dm) }?;
        // One handle is the program's; one may be in the table.
        let known = 1 + usize::from(inner.shared_as.is_some());
        if !inner.imported && Arc::strong_count(&inner.dm) > known {
            return Err(BUSY);
        }
        if let Some(handle) = inner.shared_as {
            SHARED.lock().remove(&(Kind::Dm, handle));
        }
        // SAFETY: the program does not use it any more.
        drop(unsafe { DmBox::take(dm) });
        Ok(())
    }
}

export! {
    pointer "IBVERBS_1.13"
    fn ibv_import_dm(context: *mut layout::Context, handle: u32) -> *mut layout::Dm,
    of context is context::is_ours, {
        // SAFETY: one of ours, or null.
        unsafe { context::of(context) }?;
        let shared = SHARED.lock();
        match shared.get(&(Kind::Dm, handle)) {
            Some(Shared::Dm(dm)) => {
                let dm = Arc::clone(dm);
                Ok(give_dm(context, handle, DmInner { dm, shared_as: None, imported: true }))
            }
            Some(Shared::Pd | Shared::Mr { .. }) | None => Err(Errno(libc::ENOENT)),
        }
    }
}

export! {
    value "IBVERBS_1.13"
    fn ibv_unimport_dm(dm: *mut layout::Dm) -> (), of dm {
        // SAFETY: one of ours, or null.
        if unsafe { dm_of(dm) }?.imported {
            // SAFETY: the program does not use it any more.
            drop(unsafe { DmBox::take(dm) });
        }
        Ok(())
    }
}

entry! {
    code
    fn memcpy_to_dm(
        dm: *mut layout::Dm,
        offset: u64,
        from: *const c_void,
        len: usize,
    ) -> c_int {
        // SAFETY: one of ours, or null.
        let to = unsafe { dm_of(dm) }?.dm.words(offset, len)?;
        if from.is_null() {
            return Err(INVALID);
        }
        // SAFETY: so many bytes are the program's, and within the pages (`Dm::words`), to which there are no references.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.as_ptr(), len) };
        Ok(())
    }
}

entry! {
    code
    fn memcpy_from_dm(
        to: *mut c_void,
        dm: *mut layout::Dm,
        offset: u64,
        len: usize,
    ) -> c_int {
        // SAFETY: one of ours, or null.
        let from = unsafe { dm_of(dm) }?.dm.words(offset, len)?;
        if to.is_null() {
            return Err(INVALID);
        }
        // SAFETY: as in `memcpy_to_dm`.
        unsafe { std::ptr::copy(from.as_ptr(), to.cast::<u8>(), len) };
        Ok(())
    }
}

entry! {
    pointer
    fn reg_dm_mr(
        pd: *mut layout::Pd,
        dm: *mut layout::Dm,
        offset: u64,
        length: usize,
        access: c_uint,
    ) -> *mut layout::Mr {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        // SAFETY: one of ours, or null.
        let dm = &unsafe { dm_of(dm) }?.dm;
        let start = dm.part(offset, length)?;
        let access = rights(access)?;
        if !access.contains(Access::ZERO_BASED) {
            return Err(INVALID);
        }
        // What has no bytes is in a domain of which there is no queue pair.
        let domain = if length == 0 { of.port.new_domain() } else { of.domain };
        // SAFETY: the pages stay for as long as the region has a handle of them (rule 3).
        let region = unsafe { of.port.register(domain, start, length.max(1), access) }?;
        Ok(give_mr(pd, of, region, std::ptr::null_mut(), length, Some(Arc::<Dm>::clone(dm))))
    }
}

/// A memory window.
pub(crate) struct MwInner {
    pub(crate) window: Window,
    _pd: Use,
}

pub(crate) type Mw = Boxed<layout::Mw, MwInner>;

entry! {
    pointer
    fn alloc_mw(pd: *mut layout::Pd, kind: c_int) -> *mut layout::Mw {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        let window_kind = match kind {
            value::MW_TYPE_1 => WindowKind::Type1,
            value::MW_TYPE_2 => WindowKind::Type2,
            _ => return Err(INVALID),
        };
        let window = of.port.alloc_window(of.domain, window_kind)?;
        let mut c = layout::Mw::zeroed();
        // SAFETY: one of ours.
        c.context = unsafe { (*pd).context };
        (c.pd, c.rkey, c.handle, c.kind) = (pd, window.key().0, window.key().0, kind);
        Ok(Mw::give(c, MwInner { window, _pd: Arc::clone(&of.uses) }))
    }
}

entry! {
    code
    fn dealloc_mw(mw: *mut layout::Mw) -> c_int {
        // SAFETY: one of ours, or null.
        unsafe { Mw::checked(mw) }?;
        // SAFETY: the program does not use it any more.
        drop(unsafe { Mw::take(mw) });
        Ok(())
    }
}
