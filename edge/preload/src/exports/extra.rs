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

mod buffers;
pub(super) mod returning;
pub(super) mod rings;
pub(super) mod xtreme;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use self::buffers::{Buffer, Pool};
use self::xtreme::Completion;
use super::lending;
use crate::base::logic::Logic;
use crate::base::raw::{self, Answer, Errno};
use crate::base::{address, config, copy, log};
use crate::socket::policy::{self, Wish, is_plain, wish};
use crate::socket::state::Socket;
use crate::socket::table;
use crate::wait::filters::{self, Callback};

/// The option by which the table is asked for.
pub(super) const GET_API: c_int = 2800;

type Nothing = extern "C" fn() -> c_int;

/// The table.
#[repr(C, packed)]
struct Api {
    register_recv_callback:
        unsafe extern "C-unwind" fn(c_int, Option<Callback>, *mut c_void) -> c_int,
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
    socketxtreme_poll: unsafe extern "C-unwind" fn(c_int, *mut Completion, c_uint, c_int) -> c_int,
    get_socket_rings_num: extern "C" fn(c_int) -> c_int,
    get_socket_rings_fds: unsafe extern "C-unwind" fn(c_int, *mut c_int, c_int) -> c_int,
    get_socket_tx_ring_fd: extern "C" fn(c_int) -> c_int,
    socketxtreme_free_vma_packets: unsafe extern "C-unwind" fn(*const Packet, c_int) -> c_int,
    socketxtreme_ref_vma_buff: extern "C" fn(*const Buffer) -> c_int,
    socketxtreme_free_vma_buff: extern "C" fn(*const Buffer) -> c_int,
    dump_fd_stats: extern "C" fn(c_int, c_int) -> c_int,
    vma_add_ring_profile: unsafe extern "C-unwind" fn(*const RingType, *mut c_int) -> c_int,
    get_socket_network_header: extern "C" fn(c_int) -> c_int,
    get_ring_direct_descriptors: Nothing,
    register_memory_on_ring: Nothing,
    deregister_memory_on_ring: Nothing,
    vma_modify_ring: Nothing,
    supported: u64,
    ioctl: Nothing,
}

/// The functions that do something, as `vma_extra_api_mask` of `vma_extra.h` has them: not the places in the
/// table.
const REGISTER_RECV_CALLBACK: u64 = 1 << 0;
const RECVFROM_ZCOPY: u64 = 1 << 1;
const FREE_PACKETS: u64 = 1 << 2;
const ADD_CONF_RULE: u64 = 1 << 3;
const THREAD_OFFLOAD: u64 = 1 << 4;
const DUMP_FD_STATS: u64 = 1 << 5;
/// SocketXtreme's four: poll, free packets, ref and free buffers.
const XTREME: u64 = 0b1111 << 6;
const RINGS_NUM: u64 = 1 << 10;
const RINGS_FDS: u64 = 1 << 11;
const TX_RING_FD: u64 = 1 << 12;
const ADD_RING_PROFILE: u64 = 1 << 16;
const SUPPORTED: u64 = REGISTER_RECV_CALLBACK
    | RECVFROM_ZCOPY
    | FREE_PACKETS
    | ADD_CONF_RULE
    | THREAD_OFFLOAD
    | DUMP_FD_STATS
    | RINGS_NUM
    | RINGS_FDS
    | TX_RING_FD
    | ADD_RING_PROFILE;

static API: Api = api(SUPPORTED);
/// The same where the program has asked for SocketXtreme.
static API_XTREME: Api = api(SUPPORTED | XTREME);

const fn api(supported: u64) -> Api {
    Api {
        register_recv_callback,
        recvfrom_zcopy: lending::recvfrom_zcopy,
        free_packets: lending::free_packets,
        add_conf_rule,
        thread_offload,
        socketxtreme_poll: xtreme_poll,
        get_socket_rings_num: rings_num,
        get_socket_rings_fds: rings_fds,
        get_socket_tx_ring_fd: tx_ring_fd,
        socketxtreme_free_vma_packets: xtreme_free_packets,
        socketxtreme_ref_vma_buff: xtreme_ref,
        socketxtreme_free_vma_buff: xtreme_free,
        dump_fd_stats,
        vma_add_ring_profile: add_ring_profile,
        get_socket_network_header: network_header,
        get_ring_direct_descriptors: nothing,
        register_memory_on_ring: nothing,
        deregister_memory_on_ring: nothing,
        vma_modify_ring: nothing,
        supported,
        ioctl: nothing,
    }
}

extern "C" fn nothing() -> c_int {
    fails(libc::EOPNOTSUPP)
}

fn fails(error: c_int) -> c_int {
    raw::set_errno(Errno(error));
    -1
}

/// Has the program look at what comes to a socket; with no function, no longer.
unsafe extern "C-unwind" fn register_recv_callback(
    fd: c_int,
    callback: Option<Callback>,
    context: *mut c_void,
) -> c_int {
    let Some(socket) = table::socket(fd).filter(|socket| !is_plain(socket)) else {
        return fails(libc::EINVAL);
    };
    filters::register(&socket, callback, context);
    0
}

/// The ring of a socket, whatever the descriptor is.
fn ring_of(fd: c_int) -> Option<c_int> {
    let _errno = raw::KeptErrno::new();
    let socket = table::socket(fd)?;
    let ring = rings::of(&socket, fd);
    if ring.is_some() {
        xtreme::attach(&socket, fd);
    }
    ring
}

extern "C" fn rings_num(fd: c_int) -> c_int {
    c_int::from(ring_of(fd).is_some())
}

/// Fills in the descriptors of a socket's rings, of which there is one at most.
unsafe extern "C-unwind" fn rings_fds(fd: c_int, into: *mut c_int, room: c_int) -> c_int {
    if into.is_null() || room <= 0 {
        return fails(libc::EINVAL);
    }
    match ring_of(fd) {
        None => 0,
        // SAFETY: the program's promise: room for an integer.
        Some(ring) if unsafe { copy::write(into, ring) } => 1,
        Some(_) => fails(libc::EFAULT),
    }
}

/// What has happened at a ring.
unsafe extern "C-unwind" fn xtreme_poll(
    ring: c_int,
    into: *mut Completion,
    room: c_uint,
    _flags: c_int,
) -> c_int {
    if !config::get().socketxtreme {
        return fails(libc::EOPNOTSUPP);
    }
    // SAFETY: the program's promise.
    super::int(unsafe { xtreme::poll(ring, into, room as usize) })
}

/// `struct vma_packet_desc_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Packet {
    count: usize,
    len: u16,
    buffers: *const Buffer,
    hardware: [i64; 2],
}

unsafe extern "C-unwind" fn xtreme_free_packets(packets: *const Packet, count: c_int) -> c_int {
    if !config::get().socketxtreme {
        return fails(libc::EOPNOTSUPP);
    }
    if packets.is_null() {
        return fails(libc::EINVAL);
    }
    let is_done = xtreme::with_buffers(|pool| {
        (0..usize::try_from(count).unwrap_or(0)).all(|at| {
            // SAFETY: the program's promise: so many of them, wherever they lie.
            let packet = unsafe { packets.wrapping_add(at).read_unaligned() };
            pool.free_packet(packet.buffers).is_some()
        })
    });
    if is_done { 0 } else { fails(libc::EINVAL) }
}

/// Counts references to a buffer, if there are any.
fn counted(change: impl FnOnce(&mut Pool) -> Option<u32>) -> c_int {
    if !config::get().socketxtreme {
        return fails(libc::EOPNOTSUPP);
    }
    let count = xtreme::with_buffers(change).and_then(|count| c_int::try_from(count).ok());
    count.unwrap_or_else(|| fails(libc::EINVAL))
}

extern "C" fn xtreme_ref(buffer: *const Buffer) -> c_int {
    counted(|pool| pool.refer(buffer))
}

extern "C" fn xtreme_free(buffer: *const Buffer) -> c_int {
    counted(|pool| pool.free(buffer))
}

/// The ring that a socket sends by, whatever it sends to: the one that it receives by.
extern "C" fn tx_ring_fd(fd: c_int) -> c_int {
    if table::socket(fd).filter(|socket| !is_plain(socket)).is_none() {
        return fails(libc::EINVAL);
    }
    ring_of(fd).unwrap_or_else(|| fails(libc::ENODATA))
}

/// There are no network headers: says whether a socket is one that could have some.
extern "C" fn network_header(fd: c_int) -> c_int {
    if table::socket(fd).filter(|socket| !is_plain(socket)).is_none() {
        return fails(libc::EINVAL);
    }
    fails(if address::name(fd, true).is_some() { libc::EOPNOTSUPP } else { libc::ENOTCONN })
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
    let is_there = crate::share::stats::describe(fd, level);
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
    socket: &Socket,
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
                    socket.completions.user_data.store(data, Ordering::Relaxed);
                    socket.completions.has_user_data.store(true, Ordering::Release);
                    Ok(0)
                }
                None => Err(Errno::FAULT),
            }
        }
        RING_ALLOC_LOGIC if len >= size_of::<RingLogic>() => {
            // SAFETY: integers, of which any are legal.
            match unsafe { copy::read(value.cast::<RingLogic>()) } {
                Some(logic) => match ring_logic(logic) {
                    Some(logic) => {
                        socket.completions.ring_logic.store(logic, Ordering::Relaxed);
                        Ok(0)
                    }
                    None => invalid,
                },
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

/// The logic by which a socket is to receive; 0 if only sending was spoken of. `None` if it makes no sense.
fn ring_logic([mask, logic, profile, user, ways]: RingLogic) -> Option<u64> {
    let last = u32::try_from(PROFILES.load(Ordering::Relaxed)).unwrap_or(0);
    let is_profile = mask & MASK_PROFILE == 0 || (1..=last).contains(&profile);
    let is_named = logic != PER_USER || mask & MASK_USER != 0;
    let logic = Logic::of(logic.into(), user)?;
    let is_legal = mask <= MASK_ALL && is_profile && is_named;
    let receives = mask & (MASK_INGRESS | MASK_EGRESS) != MASK_EGRESS
        && (mask & MASK_INGRESS == 0 || ways & INGRESS != 0);
    is_legal.then(|| if receives { logic.word() } else { 0 })
}

/// `vma_ring_alloc_logic_attr_comp_mask`, and the first bit of the directions.
const MASK_PROFILE: u32 = 1 << 0;
const MASK_USER: u32 = 1 << 1;
const MASK_INGRESS: u32 = 1 << 2;
const MASK_EGRESS: u32 = 1 << 3;
const MASK_ALL: u32 = MASK_PROFILE | MASK_USER | MASK_INGRESS | MASK_EGRESS;
const INGRESS: u32 = 1 << 0;
const PER_USER: u32 = 11;

/// The value of an option that only this library knows; `None` if it is none.
///
/// # Safety
///
/// `value` and `len` are what the program has passed.
pub(super) unsafe fn option(
    fd: c_int,
    socket: &Socket,
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
    let is_there = unsafe { copy::write(value.cast::<u64>(), socket.user_data_or(fd)) };
    // SAFETY: the program's promise about the length.
    let is_there = is_there && unsafe { copy::write(len, 8) };
    Some(if is_there { Ok(0) } else { Err(Errno::FAULT) })
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
    let api = if config::get().socketxtreme { &raw const API_XTREME } else { &raw const API };
    // SAFETY: the caller's promise: room for a pointer.
    unsafe { value.cast::<*const Api>().write_unaligned(api) };
    policy::note_extras();
    0
}
