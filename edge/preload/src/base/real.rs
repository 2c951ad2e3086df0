//! The C library's functions behind ours: found once each, by name, behind us in the link order.
//!
//! Other libraries' constructors call `close` or `read` before ours has run, so each is looked up
//! when it is first needed, and again if two threads meet; both find the same. Before a program that forks again and
//! again does so, all are ([`find_all`]): else each child would look for what it is the first to call.
//!
//! Those that wait are cancellation points: a thread that is cancelled there ends by unwinding, through
//! us as well. So whatever a sleep must not leave behind is a value that is dropped.
//!
//! # Safety
//!
//! 1. `dlsym(RTLD_NEXT, name)` gives the function of that name that the program would have called
//!    without us, whose type is the C library's for that name.
//! 2. `dlsym` looks at its return address to know its caller: it must not be called in tail position.
//!    The result is stored before it is returned, so that it never is.
//! 3. The section `adverb_next` has nothing but values of [`Next`], one behind the other, as its alignment is its length; that
//!    they are `used` keeps the compiler from taking them apart.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function of the C library.
#[derive(Debug)]
#[repr(align(32))]
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

const _: () = assert!(size_of::<Next>() == align_of::<Next>());

unsafe extern "C" {
    /// The linker's names for both ends of the section.
    static __start_adverb_next: u8;
    static __stop_adverb_next: u8;
}

/// Looks up what this library may ever call, unless it has been.
#[cold]
pub(crate) fn find_all() {
    let (first, end) = (&raw const __start_adverb_next, &raw const __stop_adverb_next);
    let count = (end.addr() - first.addr()) / size_of::<Next>();
    // SAFETY: the section is made of such values, and aligned as they are (rule 3).
    unsafe { std::slice::from_raw_parts(first.cast::<Next>(), count) }.iter().for_each(|next| {
        next.address();
    });
}

/// Calls the C library's function of the given name and type with the given arguments. Answers -1
/// with `ENOSYS` if this C library does not have it.
///
/// `real!(function(arguments))` calls the one that a function of ours of that name stands in front of, which
/// has its type.
macro_rules! real {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
            concat!(stringify!($function), "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zero within"),
        };
        #[used]
        #[unsafe(link_section = "adverb_next")]
        static NEXT: $crate::base::real::Next = $crate::base::real::Next::new(NAME);
        let ours: unsafe extern "C-unwind" fn($($crate::base::real::real!(@any $argument)),*) -> _ = $function;
        // SAFETY: our function of that name has the type that the C library's has (rule 1 of `real`).
        match unsafe { $crate::base::real::like(NEXT.address(), ours) } {
            // SAFETY: the arguments are those the program gave us for this very function.
            Some(call) => unsafe { call($($argument),*) },
            None => {
                $crate::base::raw::set_errno($crate::base::raw::Errno(libc::ENOSYS));
                -1
            }
        }
    }};
    (@any $argument:expr) => { _ };
    ($name:literal as fn($($type:ty),* $(,)?) -> $answer:ty, $($argument:expr),* $(,)?) => {{
        #[used]
        #[unsafe(link_section = "adverb_next")]
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

/// The function at an address, of the type of another one; `None` if there is none.
///
/// # Safety
///
/// `F` is a type of functions, and the one at `address` has it.
pub(crate) unsafe fn like<F: Copy>(address: *mut c_void, _of: F) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller's promise; a pointer to a function is as long as the address.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

pub(crate) use real;
