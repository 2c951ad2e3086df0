//! Functions of the C library that take a path, in front of them: paths of software devices lead into the tree. Those
//! with `__` are what programs call that were compiled with `_FORTIFY_SOURCE`, or against an old C library.
//!
//! # Safety
//!
//! 1. The functions are called under the contracts of the C library's functions of the same names. A path that is
//!    not redirected is passed on as it is, with all other arguments.
//! 2. `dlsym(RTLD_NEXT, name)` gives the C library's function of that name. Its arguments are words here: as many as
//!    registers pass.
//! 3. A thread can be cancelled there, as without this library: its frames here own nothing then.

use crate::sysfs;
use adverb_device::uncancelled;
use libc::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering};

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

/// A function of the C library.
fn next(name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    let known = found.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a name that ends with a zero (rule 2).
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    found.store(address, Ordering::Release);
    address
}

/// The C library's function of this name, or the end of the call with `ENOSYS` if there is none.
macro_rules! real {
    ($name:ident as $real:ty) => {{
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        const NAME: &CStr =
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
        let address = next(NAME, &NEXT);
        if address.is_null() {
            crate::errno::set(crate::errno::Errno(libc::ENOSYS));
            return usize::MAX;
        }
        // SAFETY: rule 2.
        unsafe { std::mem::transmute::<*mut c_void, $real>(address) }
    }};
}

/// Functions whose path is their first argument.
macro_rules! first {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, a: usize, b: usize, c: usize) -> usize {
            type Real = unsafe extern "C-unwind" fn(*const c_char, usize, usize, usize) -> usize;
            let real = real!($name as Real);
            if let Some(moved) = elsewhere(path) {
                // SAFETY: rule 1.
                return uncancelled(|| unsafe { real(moved.as_ptr(), a, b, c) });
            }
            // SAFETY: rules 1 and 3.
            unsafe { real(path, a, b, c) }
        }
    )*};
}

/// Functions whose path is their second argument.
macro_rules! second {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(first: usize, path: *const c_char, a: usize, b: usize, c: usize) -> usize {
            type Real = unsafe extern "C-unwind" fn(usize, *const c_char, usize, usize, usize) -> usize;
            let real = real!($name as Real);
            if let Some(moved) = elsewhere(path) {
                // SAFETY: rule 1.
                return uncancelled(|| unsafe { real(first, moved.as_ptr(), a, b, c) });
            }
            // SAFETY: rules 1 and 3.
            unsafe { real(first, path, a, b, c) }
        }
    )*};
}

first! {
    open open64 fopen fopen64 freopen freopen64 stat stat64 lstat lstat64 access eaccess euidaccess readlink realpath
    canonicalize_file_name opendir scandir scandir64 __open_2 __open64_2 __readlink_chk __realpath_chk
}

second! {
    openat openat64 fstatat fstatat64 faccessat readlinkat statx __xstat __xstat64 __lxstat __lxstat64 __openat_2
    __openat64_2 __readlinkat_chk
}
