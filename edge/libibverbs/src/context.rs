//! Contexts: a device that a program has opened, with the tables of functions that the header calls.
//!
//! # Safety
//!
//! 1. As in `export.rs`.
//! 2. A context is the last member of a [`layout::VerbsContext`], which is the first member of a [`Whole`]; the
//!    program's pointer is to the member. `abi_compat` says so, and `private` that it is ours.
//! 3. Functions of the real library that do not know us call what they find behind `private`. There is a function at
//!    every place, which says so and ends the program.

use crate::descriptor::Descriptor;
use crate::errno::{Answer, Errno, INHERITED, INVALID};
use crate::export::export;
use adverb_device::{EventQueue, Generation, Port};
use adverb_ibv::layout;
use libc::{c_int, c_void};
use std::fs;
use std::mem::offset_of;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// A context with what is ours.
#[repr(C)]
struct Whole {
    verbs: layout::VerbsContext,
    inner: Inner,
}

/// What is ours of a context.
pub(crate) struct Inner {
    pub(crate) generation: Generation,
    pub(crate) port: Arc<Port>,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) async_fd: Descriptor,
    /// Names the device to those that the descriptor is given to.
    #[expect(dead_code, reason = "held until the context is closed")]
    pub(crate) command: OwnedFd,
}

/// What the real library would take for a provider's functions (rule 3).
static NOT_A_PROVIDER: [unsafe extern "C" fn(); 512] = [reached; 512];

unsafe extern "C" fn reached() {
    const WHY: &[u8] = b"adverb: a function of the system's libibverbs that Adverb does not know was called with an \
        object of a software device\n";
    // SAFETY: bytes of ours. It is not `eprintln`, which panics where there is no standard error.
    unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
    std::process::abort();
}

fn mark() -> *mut c_void {
    (&raw const NOT_A_PROVIDER).cast_mut().cast()
}

/// The context is one of ours; null is, and is refused there.
///
/// # Safety
///
/// It is a context that lives, or null.
pub(crate) unsafe fn is_ours(context: *mut layout::Context) -> bool {
    if context.is_null() {
        return true;
    }
    // SAFETY: every context has this field.
    let compat = unsafe { (&raw const (*context).abi_compat).read() };
    if compat.addr() != usize::MAX {
        return false;
    }
    let verbs = verbs_of(context);
    // SAFETY: a context with this mark is the member of a `VerbsContext`, ours or another's.
    let extensions = unsafe { &raw const (*verbs).extensions };
    // SAFETY: as above.
    unsafe { (&raw const (*extensions).private).read() == mark() }
}

fn verbs_of(context: *mut layout::Context) -> *mut layout::VerbsContext {
    context.wrapping_byte_sub(offset_of!(layout::VerbsContext, context)).cast()
}

/// What is ours of a context.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn of<'a>(context: *mut layout::Context) -> Answer<&'a Inner> {
    // SAFETY: the caller's promise.
    let inner = unsafe { own_or_inherited(context) }?;
    if inner.generation.is_inherited() {
        return Err(INHERITED);
    }
    Ok(inner)
}

/// The same, also of one that this process was forked with. Of that it may look at what does not change: locks may have
/// been held when the process was forked, and the rest is its parent's.
///
/// # Safety
///
/// It is one of ours, or null.
pub(crate) unsafe fn own_or_inherited<'a>(context: *mut layout::Context) -> Answer<&'a Inner> {
    if context.is_null() {
        return Err(INVALID);
    }
    let whole: *const Whole = verbs_of(context).cast();
    // SAFETY: rule 2.
    Ok(unsafe { &(*whole).inner })
}

/// Refuses objects of another context: the kernel looks for them among those of this one. Null is none.
///
/// # Safety
///
/// Each is an object that lives, or null.
pub(crate) unsafe fn own_all<const N: usize>(
    context: *mut layout::Context,
    objects: [*mut c_void; N],
) -> Answer<()> {
    let is_own = |object: &*mut c_void| {
        // SAFETY: the caller's promise; each object begins with its context (rule 3 of `export.rs`).
        object.is_null() || unsafe { object.cast::<*mut layout::Context>().read() } == context
    };
    if objects.iter().all(is_own) { Ok(()) } else { Err(INVALID) }
}

/// Makes a context, which is the program's from now on.
pub(crate) fn give(mut verbs: layout::VerbsContext, inner: Inner) -> *mut layout::Context {
    verbs.extensions.private = mark();
    let whole = Box::into_raw(Box::new(Whole { verbs, inner }));
    // SAFETY: within what was just made (rule 2).
    unsafe { &raw mut (*whole).verbs.context }
}

/// A file that is named after a device.
pub(crate) fn named_file(device: &str) -> Answer<OwnedFd> {
    let name = std::ffi::CString::new(format!("{FILE}{device}")).map_err(|_| INVALID)?;
    // SAFETY: a name that ends with a zero.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor, not shared yet.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The device whose command descriptor this is.
pub(crate) fn name_behind(fd: c_int) -> Option<String> {
    let target = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let target = target.to_str()?;
    let name = target.strip_prefix("/memfd:")?.strip_prefix(FILE)?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

const FILE: &str = "adverb-device-";

export! {
    minus "IBVERBS_1.1"
    fn ibv_close_device(context: *mut layout::Context) -> c_int, of context is is_ours, {
        if context.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let whole: *mut Whole = verbs_of(context).cast();
        // SAFETY: made by `open` (rule 2), and the program does not use it any more.
        let Whole { inner: Inner { port, .. }, .. } = *unsafe { Box::from_raw(whole) };
        port.close();
        Ok(())
    }
}
