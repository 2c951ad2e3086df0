//! The kernel's `rdma_cm` character device, for librdmacm as it is: what it opens, writes and closes leads here.
//!
//! librdmacm speaks to the kernel through one file: commands are written, and an answer is put where the command says.
//! Its import slots for the C library's functions are exchanged (`../slots.rs`); a descriptor of the device is an epoll set
//! that is readable while there are events (`channel.rs`); commands are carried out on the connection manager of
//! this process (`commands.rs`).
//!
//! # Safety
//!
//! The functions here are called by librdmacm in the place of the C library's, under their contracts. Whatever does
//! not concern a descriptor of ours is passed on with all arguments.

mod channel;
mod commands;
mod memory;
mod table;
mod translate;

use crate::cq::AGAIN;
use crate::device;
use crate::errno::{self, Answer, Errno};
use crate::export::guarded;
use crate::slots::{Exchange, Slot, address};
use crate::waiting::{self, Attempt};
use adverb_ibv::rdma_cm::{Command, Request};
use channel::Channel;
use libc::{c_char, c_int, c_void};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> isize;
type Close = unsafe extern "C-unwind" fn(c_int) -> c_int;
type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;

static OPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FSTAT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// What is exchanged in librdmacm.
static SLOTS: [Slot; 4] = [
    Slot { names: &[c"open", c"open64"], ours: address!(open as Open), next: &OPEN },
    Slot { names: &[c"write"], ours: address!(write as Write), next: &WRITE },
    Slot { names: &[c"close"], ours: address!(close as Close), next: &CLOSE },
    Slot { names: &[c"fstat", c"fstat64"], ours: address!(fstat as Fstat), next: &FSTAT },
];

/// Puts itself under every librdmacm that is loaded. librdmacm lists devices before it opens its own.
pub(crate) fn attend() {
    Exchange { libraries: &[b"librdmacm.so"], slots: &SLOTS }.make();
}

/// The C library's function that was in a slot.
macro_rules! next {
    ($slot:ident as $kind:ty) => {{
        let address = $slot.load(Ordering::Acquire);
        // SAFETY: what was in the slot of this function, before it was exchanged.
        unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(address) }
    }};
}

const FAILED: c_int = -1;

unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's contract.
    let is_device = !path.is_null() && unsafe { CStr::from_ptr(path) } == DEVICE;
    // The kernel's is wanted if the program sees a device of the kernel's first, or none of ours.
    if is_device && guarded(|| Ok(device::software_comes_first())) == Ok(true) {
        return guarded(|| channel::open(flags)).unwrap_or_else(failed);
    }
    let Some(next) = next!(OPEN as Open) else {
        return failed(Errno(libc::ENOSYS));
    };
    // SAFETY: the caller's contract.
    unsafe { next(path, flags, mode) }
}

unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if channel::is_ours(fd) {
        let waits_at = Cell::new(0);
        // SAFETY: the caller's contract.
        return match waiting::until(&|| unsafe { attempt(fd, (bytes, len), &waits_at) }) {
            Ok(()) => isize::try_from(len).unwrap_or(isize::MAX),
            Err(error) => {
                errno::set(error);
                -1
            }
        };
    }
    let Some(next) = next!(WRITE as Write) else {
        errno::set(Errno(libc::ENOSYS));
        return -1;
    };
    // SAFETY: the caller's contract.
    unsafe { next(fd, bytes, len) }
}

unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if channel::is_ours(fd) {
        let ended = guarded(|| {
            let channel = channel::remove(fd).ok_or(Errno(libc::EBADF))?;
            commands::end_all(&channel);
            Ok(())
        });
        return ended.map_or_else(failed, |()| 0);
    }
    let Some(next) = next!(CLOSE as Close) else {
        return failed(Errno(libc::ENOSYS));
    };
    // SAFETY: the caller's contract.
    unsafe { next(fd) }
}

unsafe extern "C" fn fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    let Some(next) = next!(FSTAT as Fstat) else {
        return failed(Errno(libc::ENOSYS));
    };
    // SAFETY: the caller's contract.
    let answer = unsafe { next(fd, status) };
    if answer == 0 && channel::is_ours(fd) && !status.is_null() {
        let device = channel::kernel_device();
        // SAFETY: the place that was just filled.
        let status = unsafe { &mut *status };
        status.st_mode = (status.st_mode & !libc::S_IFMT) | libc::S_IFCHR;
        status.st_rdev = device;
    }
    answer
}

fn failed(error: Errno) -> c_int {
    errno::set(error);
    FAILED
}

/// The bytes of a command: as many as there can be, for the rest means nothing.
///
/// # Safety
///
/// As for `write`.
unsafe fn command(bytes: *const c_void, len: usize) -> Vec<u8> {
    if bytes.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len.min(COMMAND_MAX)) }.to_vec()
}

/// Carries out what was written to a descriptor of ours, or says that it has to wait for an event: as in the kernel, for good
/// if the descriptor is closed meanwhile. `waits_at` is the opening of the channel where it has waited, or 0.
///
/// # Safety
///
/// As for `write`.
unsafe fn attempt(
    fd: c_int,
    (bytes, len): (*const c_void, usize),
    waits_at: &Cell<u64>,
) -> Answer<Attempt> {
    let is_it = |channel: &Arc<Channel>| [0, channel.opening].contains(&waits_at.get());
    let Some(channel) = channel::find(fd).filter(is_it) else {
        return if waits_at.get() > 0 { Ok(Attempt::Waits(NONE)) } else { Err(Errno(libc::EBADF)) };
    };
    // SAFETY: the caller's promise.
    let bytes = unsafe { command(bytes, len) };
    let Request { command, place } =
        Request::parse(&bytes).map_err(|error| Errno(error.errno()))?;
    let waits = matches!(command, Command::GetEvent) && channel.waits();
    let answer = match commands::carry_out(&channel, command, place.len, &memory::read) {
        Err(AGAIN) if waits => {
            waits_at.set(channel.opening);
            return Ok(Attempt::Waits(fd));
        }
        other => other?,
    };
    let len = answer.len().min(place.len);
    if let Some(answer @ [_, ..]) = answer.get(..len) {
        memory::write(place.address, answer)?;
    }
    Ok(Attempt::Done)
}

/// No descriptor: `poll` leaves it out.
const NONE: c_int = -1;

/// The kernel's device.
const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

/// A header, and as much as its 16 bits of length can say.
const COMMAND_MAX: usize = 8 + 0xffff;
