//! Functions of the C library that take a path, in front of them: paths of software devices lead into the tree. Those
//! with `__` are what programs call that were compiled with `_FORTIFY_SOURCE`, or against an old C library.
//!
//! In the place of `libibverbs.so.1` this library is not in front of the C library for all others: UCX is led here by its
//! import slots (`slots.rs`).
//!
//! # Safety
//!
//! 1. The functions are called under the contracts of the C library's functions of the same names. A path that is
//!    not redirected is passed on as it is, with all other arguments.
//! 2. `loader::next` gives the C library's function of that name. Its arguments are words here: as many as
//!    registers pass.
//! 3. A thread can be cancelled there, as without this library: its frames here own nothing then.

use crate::loader::next;
use crate::real;
use crate::slots::{Exchange, Slot, address};
use crate::sysfs;
use adverb_device::uncancelled;
use libc::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::sync::atomic::AtomicPtr;

/// Where a path leads, if it is redirected.
fn elsewhere(path: *const c_char) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: rule 1: it ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    if !sysfs::concerns(path.to_bytes()) {
        return None;
    }
    let redirected =
        uncancelled(|| std::panic::catch_unwind(|| sysfs::redirected(path.to_str().ok()?)));
    CString::new(redirected.ok()??).ok()
}

/// Leads UCX's calls here, if they do not lead here anyway. It lists the devices before it looks for their files.
pub(crate) fn attend() {
    // SAFETY: a name that ends with a zero.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"stat".as_ptr()) };
    if real::is_own(first) {
        return;
    }
    for slots in [FIRST, SECOND] {
        Exchange { libraries: &[b"libuct_ib", b"libucs"], slots }.make();
    }
}

/// The functions, each with its name and the C library's function of that name, once it is known. The one that is exported
/// is not the one that slots hold: its name may lead to the C library's.
macro_rules! functions {
    ($slots:ident, $kind:ident, $body:ident: $($name:ident)*) => {
        static $slots: &[Slot] = &[$(
            Slot { names: &[$name::NAME], ours: address!($name::ours as $kind), next: &$name::NEXT },
        )*];

        $(mod $name {
            use super::*;

            pub(super) const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            pub(super) static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

            $body!($name ours);
        })*
    };
}

/// The C library's function of this name, or the end of the call with `ENOSYS` if there is none.
macro_rules! real {
    ($real:ty) => {{
        let address = next(NAME, &NEXT);
        if address.is_null() {
            crate::errno::set(crate::errno::Errno(libc::ENOSYS));
            return usize::MAX;
        }
        // SAFETY: rule 2.
        unsafe { std::mem::transmute::<*mut c_void, $real>(address) }
    }};
}

type First = unsafe extern "C-unwind" fn(*const c_char, usize, usize, usize) -> usize;
type Second = unsafe extern "C-unwind" fn(usize, *const c_char, usize, usize, usize) -> usize;

/// A function whose path is its first argument.
macro_rules! first {
    ($name:ident $ours:ident) => {
        pub(super) unsafe extern "C-unwind" fn $ours(
            path: *const c_char,
            a: usize,
            b: usize,
            c: usize,
        ) -> usize {
            let real = real!(First);
            if let Some(moved) = elsewhere(path) {
                // SAFETY: rule 1.
                return uncancelled(|| unsafe { real(moved.as_ptr(), a, b, c) });
            }
            // SAFETY: rules 1 and 3.
            unsafe { real(path, a, b, c) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            a: usize,
            b: usize,
            c: usize,
        ) -> usize {
            // SAFETY: the caller's contract.
            unsafe { $ours(path, a, b, c) }
        }
    };
}

/// A function whose path is its second argument.
macro_rules! second {
    ($name:ident $ours:ident) => {
        pub(super) unsafe extern "C-unwind" fn $ours(
            first: usize,
            path: *const c_char,
            a: usize,
            b: usize,
            c: usize,
        ) -> usize {
            let real = real!(Second);
            if let Some(moved) = elsewhere(path) {
                // SAFETY: rule 1.
                return uncancelled(|| unsafe { real(first, moved.as_ptr(), a, b, c) });
            }
            // SAFETY: rules 1 and 3.
            unsafe { real(first, path, a, b, c) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            first: usize,
            path: *const c_char,
            a: usize,
            b: usize,
            c: usize,
        ) -> usize {
            // SAFETY: the caller's contract.
            unsafe { $ours(first, path, a, b, c) }
        }
    };
}

functions! {
    FIRST, First, first:
    open open64 fopen fopen64 freopen freopen64 stat stat64 lstat lstat64 access eaccess euidaccess readlink realpath
    canonicalize_file_name opendir scandir scandir64 __open_2 __open64_2 __readlink_chk __realpath_chk
}

functions! {
    SECOND, Second, second:
    openat openat64 fstatat fstatat64 faccessat readlinkat statx __xstat __xstat64 __lxstat __lxstat64 __openat_2
    __openat64_2 __readlinkat_chk
}
