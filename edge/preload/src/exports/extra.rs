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
use std::sync::atomic::{AtomicI32, Ordering};

use super::lending;
use crate::raw::{self, Answer, Errno};
use crate::slot::Slot;
use crate::sockets::{Wish, wish};
use crate::{config, copy, log};

/// The option by which the table is asked for.
pub(super) const GET_API: c_int = 2800;

type Nothing = extern "C" fn() -> c_int;

/// The table.
#[repr(C, packed)]
struct Api {
    register_recv_callback: Nothing,
    recvfrom_zcopy: unsafe extern "C-unwind" fn(
        c_int,
        *mut c_void,
        usize,
        *mut c_int,
        *mut libc::sockaddr,
        *mut libc::socklen_t,
    ) -> c_int,
    free_packets: unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> c_int,
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
    vma_add_ring_profile: unsafe extern "C-unwind" fn(*const RingType, *mut c_int) -> c_int,
    get_socket_network_header: Nothing,
    get_ring_direct_descriptors: Nothing,
    register_memory_on_ring: Nothing,
    deregister_memory_on_ring: Nothing,
    vma_modify_ring: Nothing,
    supported: u64,
    ioctl: Nothing,
}

/// The functions that do something, as `vma_extra_api_mask` of `vma_extra.h` has them: not the places in the
/// table.
const RECVFROM_ZCOPY: u64 = 1 << 1;
const FREE_PACKETS: u64 = 1 << 2;
const ADD_CONF_RULE: u64 = 1 << 3;
const THREAD_OFFLOAD: u64 = 1 << 4;
const DUMP_FD_STATS: u64 = 1 << 5;
const ADD_RING_PROFILE: u64 = 1 << 16;
const SUPPORTED: u64 = RECVFROM_ZCOPY
    | FREE_PACKETS
    | ADD_CONF_RULE
    | THREAD_OFFLOAD
    | DUMP_FD_STATS
    | ADD_RING_PROFILE;

static API: Api = Api {
    register_recv_callback: nothing,
    recvfrom_zcopy: lending::recvfrom_zcopy,
    free_packets: lending::free_packets,
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
    vma_add_ring_profile: add_ring_profile,
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

/// The start of `struct vma_ring_type_attr`: which fields count, and what kind of ring it is.
type RingType = [u32; 2];

/// Kinds of rings. One of packets is what there is; memory of the program's, and buffers that wrap, are not.
const RING_PACKET: u32 = 0;

/// Profiles that the program has added: the last one's key.
static PROFILES: AtomicI32 = AtomicI32::new(0);

unsafe extern "C-unwind" fn add_ring_profile(profile: *const RingType, key: *mut c_int) -> c_int {
    // SAFETY: two integers, of which any are legal.
    let error = match unsafe { copy::read(profile) } {
        None => libc::EINVAL,
        Some([_, RING_PACKET]) => {
            let new = PROFILES.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            // SAFETY: an integer of the program's.
            if unsafe { copy::write(key, new) } {
                return 0;
            }
            libc::EINVAL
        }
        Some(_) => libc::EOPNOTSUPP,
    };
    raw::set_errno(Errno(error));
    -1
}

/// An option of the program's that only this library knows; `None` if it is none.
///
/// # Safety
///
/// `value` is what the program has passed: `len` bytes, if anything is there.
pub(super) unsafe fn set_option(
    fd: c_int,
    slot: &Slot,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> Option<Answer> {
    let invalid = Err(Errno(libc::EINVAL));
    Some(match name {
        USER_DATA if len == size_of::<u64>() => {
            // SAFETY: an integer, of which any is legal.
            match unsafe { copy::read(value.cast::<u64>()) } {
                Some(data) => {
                    slot.user_data.store(data, Ordering::Relaxed);
                    slot.has_user_data.store(true, Ordering::Release);
                    Ok(0)
                }
                None => Err(Errno::FAULT),
            }
        }
        RING_ALLOC_LOGIC if len >= size_of::<RingLogic>() => {
            // SAFETY: integers, of which any are legal.
            match unsafe { copy::read(value.cast::<RingLogic>()) } {
                Some(logic) if is_legal(logic) => Ok(0),
                Some(_) => invalid,
                None => Err(Errno::FAULT),
            }
        }
        // SAFETY: an integer, of which any is legal.
        FLOW_TAG if len >= 4 => match unsafe { copy::read(value.cast::<u32>()) } {
            Some(_) => Ok(0),
            None => Err(Errno::FAULT),
        },
        SHUTDOWN_RX => super::answer(super::setup::stop_receiving(fd) as libc::ssize_t),
        RING_USER_MEMORY => Err(Errno(libc::EOPNOTSUPP)),
        USER_DATA | RING_ALLOC_LOGIC | FLOW_TAG => invalid,
        _ => return None,
    })
}

const USER_DATA: c_int = 2801;
const RING_ALLOC_LOGIC: c_int = 2810;
const RING_USER_MEMORY: c_int = 2811;
const FLOW_TAG: c_int = 2820;
const SHUTDOWN_RX: c_int = 2821;

/// The start of `struct vma_ring_alloc_logic_attr`: which fields count, the logic, a profile's key, the user's
/// number, and directions.
type RingLogic = [u32; 5];

/// Whether a socket's wish for rings makes sense. Each connection has rings of its own, and each UDP socket a
/// mailbox: nothing else comes of it.
fn is_legal([mask, logic, profile, ..]: RingLogic) -> bool {
    let has_profile = mask & 1 != 0;
    let is_profile = || {
        let last = u32::try_from(PROFILES.load(Ordering::Relaxed)).unwrap_or(0);
        (1..=last).contains(&profile)
    };
    mask <= 0xf && [0, 1, 10, 11, 20, 30, 31].contains(&logic) && (!has_profile || is_profile())
}

/// The value of an option that only this library knows; `None` if it is none.
///
/// # Safety
///
/// `value` and `len` are what the program has passed.
pub(super) unsafe fn option(
    fd: c_int,
    slot: &Slot,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> Option<Answer> {
    if name != USER_DATA {
        return None;
    }
    // SAFETY: an integer, of which any is legal.
    let Some(room) = (unsafe { copy::read(len) }) else { return Some(Err(Errno::FAULT)) };
    if (room as usize) < size_of::<u64>() {
        return Some(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the program's promise about the value.
    let is_there = unsafe { copy::write(value.cast::<u64>(), user_data(slot, fd)) };
    // SAFETY: the program's promise about the length.
    let is_there = is_there && unsafe { copy::write(len, 8) };
    Some(if is_there { Ok(0) } else { Err(Errno::FAULT) })
}

/// What the program has said of a socket for completions: by default its descriptor.
pub(super) fn user_data(slot: &Slot, fd: c_int) -> u64 {
    match slot.has_user_data.load(Ordering::Acquire) {
        true => slot.user_data.load(Ordering::Relaxed),
        false => u64::try_from(fd).unwrap_or(0),
    }
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
