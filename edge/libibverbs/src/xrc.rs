//! XRC domains.
//!
//! # Safety
//!
//! As in `export.rs` and `boxed.rs`.

use crate::boxed::{Boxed, Plain};
use crate::context;
use crate::errno::{Answer, INVALID};
use crate::export::entry;
use crate::memory::{Use, free};
use adverb_device::OpenXrcd;
use adverb_ibv::layout::{self, value};
use libc::c_int;
use std::os::fd::BorrowedFd;

/// What is ours of an XRC domain.
pub(crate) struct XrcdInner {
    pub(crate) xrcd: adverb_device::Xrcd,
    pub(crate) uses: Use,
}

pub(crate) type Xrcd = Boxed<layout::Xrcd, XrcdInner>;

/// The domain behind a program's pointer.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn xrcd_of<'a>(xrcd: *mut layout::Xrcd) -> Answer<&'a Xrcd> {
    // SAFETY: the caller's promise.
    unsafe { Xrcd::checked(xrcd) }
}

entry! {
    pointer
    fn open_xrcd(
        context: *mut layout::Context,
        attr: *mut layout::XrcdInitAttr,
    ) -> *mut layout::Xrcd {
        // SAFETY: one of ours, or null.
        let inner = unsafe { context::of(context) }?;
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        let known = value::XRCD_INIT_ATTR_FD | value::XRCD_INIT_ATTR_OFLAGS;
        let flags = libc::O_CREAT | libc::O_EXCL;
        if attr.comp_mask != known || attr.oflags & !flags != 0 {
            return Err(INVALID);
        }
        let xrcd = match attr.fd {
            -1 if attr.oflags & libc::O_CREAT == 0 => return Err(INVALID),
            -1 => inner.port.create_xrcd(),
            fd if fd < 0 => return Err(INVALID),
            fd => {
                let how =
                    match (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0) {
                        (true, true) => OpenXrcd::CreateNew,
                        (true, false) => OpenXrcd::Create,
                        (false, _) => OpenXrcd::Existing,
                    };
                // SAFETY: the program's descriptor, for the length of the call.
                let file = unsafe { BorrowedFd::borrow_raw(fd) };
                inner.port.open_xrcd(file, how)?
            }
        };
        let mut c = layout::Xrcd::zeroed();
        c.context = context;
        Ok(Xrcd::give(c, XrcdInner { xrcd, uses: Use::default() }))
    }
}

entry! {
    code
    fn close_xrcd(xrcd: *mut layout::Xrcd) -> c_int {
        // SAFETY: one of ours, or null.
        free(&unsafe { xrcd_of(xrcd) }?.uses)?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { Xrcd::take(xrcd) });
        Ok(())
    }
}
