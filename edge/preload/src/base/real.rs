//! The functions we stand in front of: found once each, by name, behind us in the link order.
//!
//! Other libraries' constructors call `close` or `read` before ours has run, so each is looked up
//! when it is first needed, and again if two threads meet; both find the same.
//!
//! Those that wait are cancellation points: a thread that is cancelled there ends by unwinding, through
//! us as well. So whatever a sleep must not leave behind is a value that is dropped.
//!
//! # Safety
//!
//! 1. `dlsym(RTLD_NEXT, name)` gives the function of that name that the program would have called
//!    without us, whose type is the C library's for that name.
//! 2. `dlsym` looks at its return address to know who asks: it must not be called in tail position.
//!    The result is stored before it is returned, so that it never is.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function of the C library.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if there is none.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string; not in tail position (rule 2).
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the C library's function of the given name and type with the given arguments. Answers -1
/// with `ENOSYS` if this C library does not have it.
macro_rules! real {
    ($name:literal as fn($($type:ty),* $(,)?) -> $answer:ty, $($argument:expr),* $(,)?) => {{
        static NEXT: $crate::base::real::Next = $crate::base::real::Next::new($name);
        let address = NEXT.address();
        if address.is_null() {
            $crate::base::raw::set_errno($crate::base::raw::Errno(libc::ENOSYS));
            -1
        } else {
            // SAFETY: the function of that name has this type in the C library (rule 1 of `real`).
            let call = unsafe {
                std::mem::transmute::<
                    *mut std::ffi::c_void,
                    unsafe extern "C-unwind" fn($($type),*) -> $answer,
                >(address)
            };
            // SAFETY: the arguments are those the program gave us for this very function.
            unsafe { call($($argument),*) }
        }
    }};
}

pub(crate) use real;
