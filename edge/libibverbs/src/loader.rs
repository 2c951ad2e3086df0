//! Programs that load libibverbs themselves: `dlopen("libibverbs.so.1")` gives them this library.
//!
//! A handle of the real library would lead past us: `dlsym` looks there alone. In the drop-in's place, where this
//! file is `libibverbs.so.1`, there is nothing to do.
//!
//! # Safety
//!
//! 1. [`dlopen`] keeps the program's arguments, calls [`redirected`], and jumps to the C library's function unless
//!    there is an answer: that looks at its return address to know the caller.
//! 2. `dlsym(RTLD_NEXT, name)` gives the C library's function of that name, whose type is that of its header; where the
//!    C library comes before this one, as with a program that librdmacm alone leads here, `RTLD_DEFAULT` does.

use crate::real;
use adverb_device::uncancelled;
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's function, for the jump.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's function of this name, which `known` keeps.
pub(crate) fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = known.load(Ordering::Acquire);
    if !found.is_null() {
        return found;
    }
    // SAFETY: a name that ends with a zero (rule 2).
    let find = |place| unsafe { libc::dlsym(place, name.as_ptr()) };
    let after = find(libc::RTLD_NEXT);
    let found = if after.is_null() { find(libc::RTLD_DEFAULT) } else { after };
    let found = if real::is_own(found) { std::ptr::null_mut() } else { found }; // The C library has none.
    known.store(found, Ordering::Release);
    found
}

/// The C library's `dlopen`.
pub(crate) fn open(path: &CStr, flags: c_int) -> *mut c_void {
    let next = next(c"dlopen", &NEXT);
    if next.is_null() {
        return next;
    }
    // SAFETY: rule 2.
    let call = unsafe { std::mem::transmute::<*mut c_void, Dlopen>(next) };
    // SAFETY: a path that ends with a zero.
    unsafe { call(path.as_ptr(), flags) }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {redirected}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {next}]",
        "2:",
        "ret",
        redirected = sym redirected,
        next = sym NEXT,
    )
}

/// A handle of this library, if its name in the world is asked for; null otherwise.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn redirected(name: *const c_char) -> *mut c_void {
    next(c"dlopen", &NEXT);
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the program's name ends with a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    match last {
        b"libibverbs.so" | b"libibverbs.so.1" => {
            let handle = uncancelled(|| std::panic::catch_unwind(own_handle));
            handle.unwrap_or(std::ptr::null_mut())
        }
        _ => std::ptr::null_mut(),
    }
}

/// A handle of this library; null if it is `libibverbs.so.1` itself.
fn own_handle() -> *mut c_void {
    static OWN: OnceLock<usize> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let path = real::own_path().unwrap_or_default();
        if path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"libibverbs.so")) {
            return 0;
        }
        let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        open(&path, libc::RTLD_NOW).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*own)
}
