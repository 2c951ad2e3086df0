//! The extra functions that the manual describes, reached by its way: an option of socket -1.
//!
//! Some do something; those that have no meaning here say so, and their bits are not set in the
//! mask by which a program asks what there is.
//!
//! # Safety
//!
//! The table has the layout of the manual's header: packed, in this order. Functions of the table
//! are called by the program with arguments of the types given there; those that do nothing take
//! none, which the C calling convention allows.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::raw::{self, Errno};
use crate::sockets::{Wish, wish};
use crate::{config, log};

/// The option by which the table is asked for.
pub(super) const GET_API: c_int = 2800;

type Nothing = extern "C" fn() -> c_int;

/// The table.
#[repr(C, packed)]
struct Api {
    register_recv_callback: Nothing,
    recvfrom_zcopy: Nothing,
    free_packets: Nothing,
    add_conf_rule: unsafe extern "C-unwind" fn(*const c_char) -> c_int,
    thread_offload: extern "C" fn(c_int, libc::pthread_t) -> c_int,
    socketxtreme_poll: Nothing,
    get_socket_rings_num: Nothing,
    get_socket_rings_fds: Nothing,
    get_socket_tx_ring_fd: Nothing,
    socketxtreme_free_vma_packets: Nothing,
    socketxtreme_ref_vma_buff: Nothing,
    socketxtreme_free_vma_buff: Nothing,
    dump_fd_stats: extern "C" fn(c_int, c_int) -> c_int,
    vma_add_ring_profile: Nothing,
    get_socket_network_header: Nothing,
    get_ring_direct_descriptors: Nothing,
    register_memory_on_ring: Nothing,
    deregister_memory_on_ring: Nothing,
    vma_modify_ring: Nothing,
    supported: u64,
    ioctl: Nothing,
}

/// Bits of the functions that do something: those at places 3, 4 and 12 of the table.
const SUPPORTED: u64 = 1 << 3 | 1 << 4 | 1 << 12;

static API: Api = Api {
    register_recv_callback: nothing,
    recvfrom_zcopy: nothing,
    free_packets: nothing,
    add_conf_rule,
    thread_offload,
    socketxtreme_poll: nothing,
    get_socket_rings_num: nothing,
    get_socket_rings_fds: nothing,
    get_socket_tx_ring_fd: nothing,
    socketxtreme_free_vma_packets: nothing,
    socketxtreme_ref_vma_buff: nothing,
    socketxtreme_free_vma_buff: nothing,
    dump_fd_stats,
    vma_add_ring_profile: nothing,
    get_socket_network_header: nothing,
    get_ring_direct_descriptors: nothing,
    register_memory_on_ring: nothing,
    deregister_memory_on_ring: nothing,
    vma_modify_ring: nothing,
    supported: SUPPORTED,
    ioctl: nothing,
};

extern "C" fn nothing() -> c_int {
    raw::set_errno(Errno(libc::EOPNOTSUPP));
    -1
}

unsafe extern "C-unwind" fn add_conf_rule(line: *const c_char) -> c_int {
    if line.is_null() {
        raw::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the manual's promise: a text that ends with a zero.
    let line = unsafe { CStr::from_ptr(line) };
    match config::get().add_rule(&line.to_string_lossy()) {
        Ok(()) => 0,
        Err(error) => {
            log::print(adverb_sockconf::Level::Warning, || format!("add_conf_rule: {error}"));
            raw::set_errno(Errno(libc::EINVAL));
            -1
        }
    }
}

extern "C" fn thread_offload(offload: c_int, thread: libc::pthread_t) -> c_int {
    let wanted = match offload {
        0 => Wish::Off,
        1 => Wish::On,
        _ => {
            raw::set_errno(Errno(libc::EINVAL));
            return -1;
        }
    };
    wish(thread, wanted);
    0
}

extern "C" fn dump_fd_stats(fd: c_int, level: c_int) -> c_int {
    let level = adverb_sockconf::Level::of(i64::from(level));
    let is_there = crate::stats::describe(fd, level);
    if is_there || fd == 0 { 0 } else { -1 }
}

/// Answers the option: the address of the table.
///
/// # Safety
///
/// `value` has room for a pointer if `len` says so.
pub(super) unsafe fn get_api(value: *mut c_void, len: *mut libc::socklen_t) -> c_int {
    if value.is_null() || len.is_null() {
        raw::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the caller's promise.
    if (unsafe { len.read() } as usize) < size_of::<*const Api>() {
        raw::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the caller's promise: room for a pointer.
    unsafe { value.cast::<*const Api>().write_unaligned(&raw const API) };
    0
}
