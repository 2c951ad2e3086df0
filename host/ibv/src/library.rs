//! The library itself: which one is opened, and the functions of it that are used.
//!
//! # Safety
//!
//! 1. The types of the functions are those of the library's public header, for the version that each
//!    is asked for by: the interface that all its releases keep.
//! 2. The library is never closed, so that its functions can be called for ever.
//! 3. Loading runs the library's constructors. It is the system's own, or the one that the program's
//!    environment names, which decides on the program's libraries anyway.

use crate::layout::{
    Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd,
    PortAttr, Qp, QpAttr, QpInitAttr, Srq, SrqAttr, SrqInitAttr,
};
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// Names the library to open in the environment; `off` means none.
pub const VARIABLE: &str = "ADVERB_IBVERBS";

/// The name that every release has.
const NAME: &str = "libibverbs.so.1";

macro_rules! functions {
    (
        needed { $($name:ident $version:literal: fn($($argument:ty),*) -> $result:ty;)* }
        optional { $($extra:ident $since:literal: fn($($input:ty),*) -> $output:ty;)* }
    ) => {
        /// The functions that are used.
        #[derive(Debug)]
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(crate) $extra: Option<unsafe extern "C" fn($($input),*) -> $output>,)*
        }

        impl Library {
            /// Finds the functions; `None` if one is missing without which nothing works.
            fn find(handle: Handle) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let found = handle.symbol(stringify!($name), $version)?;
                        // SAFETY: a function of this type, by its name and version (rule 1), that
                        // is never unloaded (rule 2).
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(found)
                        }
                    },)*
                    $($extra: handle.symbol(stringify!($extra), $since).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($input),*) -> $output,
                            >(found)
                        }
                    }),)*
                })
            }
        }
    };
}

functions! {
    needed {
        ibv_get_device_list "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list "IBVERBS_1.1": fn(*mut *mut Device) -> ();
        ibv_get_device_guid "IBVERBS_1.1": fn(*mut Device) -> u64;
        ibv_open_device "IBVERBS_1.1": fn(*mut Device) -> *mut Context;
        ibv_close_device "IBVERBS_1.1": fn(*mut Context) -> c_int;
        ibv_query_device "IBVERBS_1.1": fn(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_query_port "IBVERBS_1.1": fn(*mut Context, u8, *mut PortAttr) -> c_int;
        ibv_query_gid "IBVERBS_1.1": fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
        ibv_alloc_pd "IBVERBS_1.1": fn(*mut Context) -> *mut Pd;
        ibv_dealloc_pd "IBVERBS_1.1": fn(*mut Pd) -> c_int;
        ibv_reg_mr "IBVERBS_1.1": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr "IBVERBS_1.1": fn(*mut Mr) -> c_int;
        ibv_create_comp_channel "IBVERBS_1.0": fn(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel "IBVERBS_1.0": fn(*mut CompChannel) -> c_int;
        ibv_create_cq "IBVERBS_1.1":
            fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_resize_cq "IBVERBS_1.1": fn(*mut Cq, c_int) -> c_int;
        ibv_destroy_cq "IBVERBS_1.1": fn(*mut Cq) -> c_int;
        ibv_get_cq_event "IBVERBS_1.1":
            fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events "IBVERBS_1.1": fn(*mut Cq, c_uint) -> ();
        ibv_create_srq "IBVERBS_1.1": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        ibv_modify_srq "IBVERBS_1.1": fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
        ibv_query_srq "IBVERBS_1.1": fn(*mut Srq, *mut SrqAttr) -> c_int;
        ibv_destroy_srq "IBVERBS_1.1": fn(*mut Srq) -> c_int;
        ibv_create_qp "IBVERBS_1.1": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        ibv_modify_qp "IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
        ibv_query_qp "IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        ibv_destroy_qp "IBVERBS_1.1": fn(*mut Qp) -> c_int;
        ibv_create_ah "IBVERBS_1.1": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
        ibv_destroy_ah "IBVERBS_1.1": fn(*mut Ah) -> c_int;
        ibv_attach_mcast "IBVERBS_1.1": fn(*mut Qp, *const [u8; 16], u16) -> c_int;
        ibv_detach_mcast "IBVERBS_1.1": fn(*mut Qp, *const [u8; 16], u16) -> c_int;
        ibv_get_async_event "IBVERBS_1.1": fn(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event "IBVERBS_1.1": fn(*mut AsyncEvent) -> ();
    }
    optional {
        _ibv_query_gid_table "IBVERBS_1.11":
            fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
        ibv_reg_mr_iova2 "IBVERBS_1.8": fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
    }
}

/// An open library.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    /// Opens a library; `None` if there is none.
    fn open(name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: a name that ends with a zero; rule 3.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// The function of this name and version, or of no version in libraries that have none.
    fn symbol(self, name: &str, version: &str) -> Option<*mut c_void> {
        let (name, version) = (CString::new(name).ok()?, CString::new(version).ok()?);
        let found = self.versioned(&name, &version);
        if !found.is_null() {
            return Some(found);
        }
        // SAFETY: an open library (rule 2) and a name that ends with a zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    #[cfg(target_env = "gnu")]
    fn versioned(self, name: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: an open library (rule 2) and names that end with a zero.
        unsafe { dlvsym(self.0, name.as_ptr(), version.as_ptr()) }
    }

    #[cfg(not(target_env = "gnu"))]
    fn versioned(self, _name: &CStr, _version: &CStr) -> *mut c_void {
        std::ptr::null_mut()
    }
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The library, opened when first asked for; `None` if there is none that can be used.
pub(crate) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let load = || match std::env::var(VARIABLE) {
        Ok(off) if off == "off" => None,
        Ok(path) if !path.is_empty() => Library::find(Handle::open(&path)?),
        Ok(_) | Err(_) => Library::find(Handle::open(NAME)?),
    };
    LIBRARY.get_or_init(load).as_ref()
}

/// The environment names a library, or none.
pub(crate) fn is_named() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_none_and_one_without_the_functions_neither() {
        assert!(Handle::open("libno-such-thing.so.1").is_none());
        let other = Handle::open("libc.so.6");
        assert!(other.is_none_or(|handle| Library::find(handle).is_none()));
    }
}
