//! Buffers that the library allocates for a program, and registration by attributes: `ibv_alloc_buf`, `ibv_reg_mr_ex`.
//!
//! # Safety
//!
//! 1. As in `export.rs` and `boxed.rs`.
//! 2. A buffer begins with a [`layout::Buf`], whose domain says whose it is. The pages of one of ours stay until it is
//!    freed and no region lies in it.

use crate::boxed::Boxed;
use crate::errno::{Answer, Errno, INVALID, UNSUPPORTED};
use crate::export::{self, export};
use crate::memory::{Use, Within, new_mr, own_address, pd_of};
use adverb_device::Pages;
use adverb_ibv::layout::{self, MrInitAttr, value};
use libc::{c_int, c_void};
use std::sync::Arc;

struct BufInner {
    pages: Arc<Pages>,
    _pd: Use,
}

type Buf = Boxed<layout::Buf, BufInner>;

/// The buffer is one of ours; null is, and is refused there.
///
/// # Safety
///
/// Rules 1 and 2.
unsafe fn is_ours(buf: *mut layout::Buf) -> bool {
    if buf.is_null() {
        return true;
    }
    // SAFETY: a field of a buffer that lives.
    let pd = unsafe { (*buf).pd };
    // SAFETY: its domain, which outlives it.
    unsafe { export::is_ours(pd) }
}

/// The buffer behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
unsafe fn buf_of<'a>(buf: *mut layout::Buf) -> Answer<&'a Buf> {
    // SAFETY: the caller's promise.
    unsafe { Buf::checked(buf) }
}

export! {
    pointer "IBVERBS_1.17"
    fn ibv_alloc_buf(
        pd: *mut layout::Pd, size: usize, buf: Option<&mut *mut layout::Buf>,
    ) -> *mut c_void, of pd {
        // SAFETY: one of ours, or null.
        let of = unsafe { pd_of(pd) }?;
        let place = buf.ok_or(INVALID)?;
        if size == 0 {
            return Err(INVALID);
        }
        let pages = Pages::private(size).map_err(|_| Errno(libc::ENOMEM))?;
        let addr = pages.as_ptr().as_ptr().cast();
        let c = layout::Buf { addr, size, pd, dmabuf_fd: -1 };
        *place = Buf::give(c, BufInner { pages: Arc::new(pages), _pd: Arc::clone(&of.uses) });
        Ok(addr)
    }
}

export! {
    value "IBVERBS_1.17"
    fn ibv_free_buf(buf: *mut layout::Buf) -> (), of buf is is_ours, {
        // SAFETY: one of ours, or null.
        unsafe { buf_of(buf) }?;
        // SAFETY: the program does not use it any more.
        drop(unsafe { Buf::take(buf) });
        Ok(())
    }
}

export! {
    minus "IBVERBS_1.18"
    fn ibv_export_buf_dmabuf_fd(buf: *mut layout::Buf) -> c_int, of buf is is_ours, {
        // SAFETY: one of ours, or null.
        unsafe { buf_of(buf) }?;
        Err(Errno(libc::ENODATA)) // What is the answer for ordinary memory.
    }
}

export! {
    pointer "IBVERBS_1.17"
    fn ibv_reg_buf_mr(
        pd: *mut layout::Pd, buf: *mut layout::Buf, addr: *mut c_void, length: usize, access: c_int,
    ) -> *mut layout::Mr, of pd {
        let within = within(pd, buf, addr, length)?;
        new_mr(pd, addr, length, own_address(addr), access.cast_unsigned(), Some(within))
    }
}

/// The pages of a buffer of this domain, if these bytes lie in it.
fn within(
    pd: *mut layout::Pd,
    buf: *mut layout::Buf,
    addr: *mut c_void,
    length: usize,
) -> Answer<Within> {
    // SAFETY: one of ours, or null, if its domain is that of the call.
    let found = unsafe { buf_of(buf) }?;
    // SAFETY: fields that do not change.
    let (of, start, size) = unsafe { ((*buf).pd, (*buf).addr, (*buf).size) };
    let offset = addr.addr().checked_sub(start.addr());
    let fits =
        offset.and_then(|offset| size.checked_sub(offset)).is_some_and(|room| length <= room);
    if of != pd || !fits {
        return Err(INVALID);
    }
    Ok(Arc::<Pages>::clone(&found.pages))
}

/// What a registration can say here.
const KNOWN: u64 = value::REG_MR_MASK_IOVA | value::REG_MR_MASK_ADDR | value::REG_MR_MASK_BUF;
/// What it can say of devices that have a use for it.
const OTHERS: u64 = value::REG_MR_MASK_FD | value::REG_MR_MASK_FD_OFFSET | value::REG_MR_MASK_DMAH;

export! {
    pointer "IBVERBS_1.15"
    fn ibv_reg_mr_ex(pd: *mut layout::Pd, attr: *mut MrInitAttr) -> *mut layout::Mr, of pd {
        if attr.is_null() {
            return Err(INVALID);
        }
        // Before there were buffers, the structure was shorter: a field is read if the mask has it.
        // SAFETY: fields of the program's structure, which are read if the mask has them.
        let (mask, length, access) = unsafe { ((*attr).comp_mask, (*attr).length, (*attr).access) };
        let given = |flag| mask & flag != 0;
        if given(OTHERS) || mask & !KNOWN != 0 {
            return Err(UNSUPPORTED);
        }
        if !given(value::REG_MR_MASK_ADDR) {
            return Err(INVALID);
        }
        // SAFETY: as above.
        let addr = unsafe { (*attr).addr };
        // SAFETY: as above.
        let iova = if given(value::REG_MR_MASK_IOVA) { unsafe { (*attr).iova } } else { own_address(addr) };
        let within = match given(value::REG_MR_MASK_BUF) {
            // SAFETY: as above.
            true => Some(within(pd, unsafe { (*attr).buf }, addr, length)?),
            false => None,
        };
        new_mr(pd, addr, length, iova, access.cast_unsigned(), within)
    }
}
