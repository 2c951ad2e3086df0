//! What does not depend on a device: names of numbers, rates, forking, files of sysfs. Structures of the kernel: `marshal.rs`.
//!
//! # Safety
//!
//! As in `export.rs`. Functions that are not ours go to the real library, if there is one.

use crate::errno::INVALID;
use crate::export::{export, versioned};
use crate::real::Function;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// A function whose answer is a name.
macro_rules! names {
    ($name:ident($number:literal => $($text:literal)*; otherwise $otherwise:literal)) => {
        versioned!("IBVERBS_1.1" $name);
        unsafe extern "C" fn $name(number: c_int) -> *const c_char {
            const NAMES: &[&CStr] = &[$($text),*];
            let at = number.checked_sub($number).and_then(|at| usize::try_from(at).ok());
            at.and_then(|at| NAMES.get(at)).unwrap_or(&$otherwise).as_ptr()
        }
    };
}

names! {
    ibv_node_type_str(1 =>
        c"InfiniBand channel adapter" c"InfiniBand switch" c"InfiniBand router" c"iWARP NIC" c"usNIC" c"usNIC UDP"
        c"unspecified";
        otherwise c"unknown")
}

names! {
    ibv_port_state_str(0 =>
        c"no state change (NOP)" c"down" c"init" c"armed" c"active" c"active defer";
        otherwise c"unknown")
}

names! {
    ibv_event_type_str(0 =>
        c"CQ error" c"local work queue catastrophic error" c"invalid request local work queue error"
        c"local access violation work queue error" c"communication established" c"send queue drained"
        c"path migrated" c"path migration request error" c"local catastrophic error" c"port active" c"port error"
        c"LID change" c"P_Key change" c"SM change" c"SRQ catastrophic error" c"SRQ limit reached"
        c"last WQE reached" c"client reregistration" c"GID table change" c"WQ fatal";
        otherwise c"unknown")
}

names! {
    ibv_wc_status_str(0 =>
        c"success" c"local length error" c"local QP operation error" c"local EE context operation error"
        c"local protection error" c"Work Request Flushed Error" c"memory management operation error" c"bad response error"
        c"local access error" c"remote invalid request error" c"remote access error" c"remote operation error"
        c"transport retry counter exceeded" c"RNR retry counter exceeded" c"local RDD violation error"
        c"remote invalid RD request" c"aborted error" c"invalid EE context number" c"invalid EE context state"
        c"fatal error" c"response timeout error" c"general error" c"TM error"
        c"TM software rendezvous";
        otherwise c"unknown")
}

/// Rates: the number of `enum ibv_rate`, multiples of 2.5 Gbit/s (0: none), Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// The largest rate of a port.
const RATE_MAX: c_int = 0;

export! {
    value "IBVERBS_1.0"
    fn ibv_rate_to_mult(rate: c_int) -> c_int {
        let known = RATES.iter().find(|(number, mult, _)| *number == rate && *mult > 0);
        Ok(known.map_or(-1, |(_, mult, _)| *mult))
    }
}

export! {
    value "IBVERBS_1.0"
    fn mult_to_ibv_rate(mult: c_int) -> c_int {
        let known = RATES.iter().find(|(_, known, _)| *known == mult && mult > 0);
        Ok(known.map_or(RATE_MAX, |(number, ..)| *number))
    }
}

export! {
    value "IBVERBS_1.1"
    fn ibv_rate_to_mbps(rate: c_int) -> c_int {
        Ok(RATES.iter().find(|(number, ..)| *number == rate).map_or(-1, |(_, _, mbps)| *mbps))
    }
}

export! {
    value "IBVERBS_1.1"
    fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
        Ok(RATES.iter().find(|(_, _, known)| *known == mbps).map_or(RATE_MAX, |(number, ..)| *number))
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_fork_init() -> c_int {
        static REAL: Function<unsafe extern "C" fn() -> c_int> =
            Function::new("ibv_fork_init", "IBVERBS_1.1");
        if let Some(real) = REAL.get() {
            // Software devices need none: what it says of hardware is its own affair.
            // SAFETY: the function of this name.
            let _ = unsafe { real() };
        }
        Ok(())
    }
}

/// Forks need no preparation.
const FORK_UNNEEDED: c_int = 2;

export! {
    value "IBVERBS_1.13"
    fn ibv_is_fork_initialized() -> c_int {
        Ok(FORK_UNNEEDED)
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
        let _ = (base, size);
        Ok(())
    }
}

export! {
    code "IBVERBS_1.1"
    fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
        let _ = (base, size);
        Ok(())
    }
}

versioned!("IBVERBS_1.0" ibv_get_sysfs_path);
unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

export! {
    value "IBVERBS_1.0"
    fn ibv_read_sysfs_file(
        directory: *const c_char, file: *const c_char, to: *mut c_char, size: usize,
    ) -> c_int {
        if directory.is_null() || file.is_null() || to.is_null() || size == 0 {
            return Err(INVALID);
        }
        // SAFETY: names that end with a zero.
        let directory = unsafe { CStr::from_ptr(directory) };
        // SAFETY: as above.
        let file = unsafe { CStr::from_ptr(file) };
        let path = format!("{}/{}", directory.to_string_lossy(), file.to_string_lossy());
        let path = crate::sysfs::redirected(&path).unwrap_or(path);
        let bytes = std::fs::read(path)?;
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let len = text.len().min(size - 1);
        // SAFETY: there is room for `size` bytes.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len) };
        // SAFETY: as above.
        unsafe { to.add(len).write(0) };
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    }
}

/// What later releases have and a software device has nothing of: answered as by a device without it.
macro_rules! lacking {
    ($($style:ident $node:literal $name:ident -> $result:ty;)*) => {$(
        export! {
            $style $node
            fn $name(
                object: *mut c_void, a: usize, b: usize, c: usize, d: usize, e: usize,
            ) -> $result, of object {
                let _ = (a, b, c, d, e);
                Err(crate::errno::UNSUPPORTED)
            }
        }
    )*};
}

lacking! {
    code "IBVERBS_1.15" ibv_dealloc_dmah -> c_int;
    minus "IBVERBS_1.16" ibv_dm_export_dmabuf_fd -> c_int;
    code "IBVERBS_1.18" ibv_qp_attach_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_destroy_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_set_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_set_err_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_inc_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_inc_err_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_read_comp_cntr -> c_int;
    code "IBVERBS_1.18" ibv_read_err_comp_cntr -> c_int;
}

/// The same for functions of contexts.
macro_rules! lacking_of_context {
    ($($style:ident $node:literal $name:ident -> $result:ty;)*) => {$(
        export! {
            $style $node
            fn $name(
                context: *mut adverb_ibv::layout::Context, a: usize, b: usize, c: usize,
            ) -> $result, of context is crate::context::is_ours, {
                let _ = (a, b, c);
                Err(crate::errno::UNSUPPORTED)
            }
        }
    )*};
}

lacking_of_context! {
    pointer "IBVERBS_1.15" ibv_alloc_dmah -> *mut c_void;
    code "IBVERBS_1.18" _ibv_query_comp_cntr_caps -> c_int;
    pointer "IBVERBS_1.18" ibv_create_comp_cntr -> *mut c_void;
}
