//! System calls without the C library: no `errno`, no cancellation, nothing that could be ours.
//!
//! The C library's wrappers are the functions this library stands in front of. What it needs from
//! the kernel for itself it asks here, so that it never meets itself.
//!
//! # Safety
//!
//! 1. A system call touches no memory of this process but what its arguments point to. Functions
//!    here that take pointers are `unsafe`, and hand that duty to their caller; those that are safe
//!    take numbers, or references that outlive the call.
//! 2. The assembly names every register that the kernel changes.

#![expect(clippy::as_conversions, reason = "the kernel's arguments and answers are machine words")]

use std::ffi::{CStr, CString, OsStr, OsString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// What the kernel answered: a number, or the number of an error.
pub(crate) type Answer = Result<usize, Errno>;

/// The number of an error, as `errno` has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const INTR: Self = Self(libc::EINTR);
    pub(crate) const PIPE: Self = Self(libc::EPIPE);
    pub(crate) const CONNRESET: Self = Self(libc::ECONNRESET);
}

/// One system call.
///
/// # Safety
///
/// What the kernel does with the arguments is all right (rule 1).
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 6]) -> Answer {
    let [a, b, c, d, e, f] = args;
    let mut answer = number as isize;
    // SAFETY: the calling convention of the kernel: arguments in these registers, `rcx` and `r11`
    // changed (rule 2); the caller answers for what the call does.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    decode(answer)
}

/// One system call.
///
/// # Safety
///
/// What the kernel does with the arguments is all right (rule 1).
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 6]) -> Answer {
    let [a, b, c, d, e, f] = args;
    let mut answer = a as isize;
    // SAFETY: the calling convention of the kernel: arguments in these registers, nothing else
    // changed (rule 2); the caller answers for what the call does.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    decode(answer)
}

#[inline]
fn decode(answer: isize) -> Answer {
    if (-4095..0).contains(&answer) { Err(Errno(-answer as c_int)) } else { Ok(answer as usize) }
}

/// A descriptor as an argument.
#[inline]
fn word(fd: c_int) -> usize {
    fd as isize as usize
}

/// `recvmsg(2)`.
///
/// # Safety
///
/// `message` and what it points to may be written (rule 1).
pub(crate) unsafe fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_recvmsg, [word(fd), message as usize, word(flags), 0, 0, 0]) }
}

/// `sendmsg(2)`.
///
/// # Safety
///
/// `message` and what it points to may be read (rule 1).
pub(crate) unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_sendmsg, [word(fd), message as usize, word(flags), 0, 0, 0]) }
}

/// Receives into a buffer of ours, without waiting.
pub(crate) fn recv(fd: c_int, buffer: &mut [u8], flags: c_int) -> Answer {
    let (base, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    let flags = word(flags | libc::MSG_DONTWAIT);
    // SAFETY: the buffer is borrowed for the length of the call, and the kernel fills at most `len`.
    unsafe { syscall(libc::SYS_recvfrom, [word(fd), base, len, flags, 0, 0]) }
}

/// Sends bytes of ours, without waiting and without a signal.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> Answer {
    let (base, len) = (bytes.as_ptr() as usize, bytes.len());
    let flags = word(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the bytes are borrowed for the length of the call, and the kernel reads only them.
    unsafe { syscall(libc::SYS_sendto, [word(fd), base, len, flags, 0, 0]) }
}

/// Sends bytes that another process may change meanwhile, as [`send`] does.
///
/// # Safety
///
/// `base` points to `len` readable bytes (rule 1).
pub(crate) unsafe fn send_from(fd: c_int, base: *const u8, len: usize) -> Answer {
    let flags = word(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_sendto, [word(fd), base as usize, len, flags, 0, 0]) }
}

/// Sends a datagram of ours, without waiting and without a signal.
pub(crate) fn send_to(
    fd: c_int,
    bytes: &[u8],
    to: &libc::sockaddr_storage,
    to_len: libc::socklen_t,
) -> Answer {
    let (base, len) = (bytes.as_ptr() as usize, bytes.len());
    let flags = word(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    let to = std::ptr::from_ref(to) as usize;
    let args = [word(fd), base, len, flags, to, to_len as usize];
    // SAFETY: bytes and address are borrowed for the length of the call, and the kernel reads only
    // them.
    unsafe { syscall(libc::SYS_sendto, args) }
}

/// Receives a datagram of ours, without waiting, and says whence.
pub(crate) fn receive_from(
    fd: c_int,
    buffer: &mut [u8],
) -> Option<(usize, libc::sockaddr_storage)> {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut from: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut from_len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let (base, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    let (at, at_len) = (&raw mut from as usize, &raw mut from_len as usize);
    let args = [word(fd), base, len, word(libc::MSG_DONTWAIT), at, at_len];
    // SAFETY: buffer and address are borrowed for the length of the call, and the kernel fills at
    // most what they have room for.
    let got = unsafe { syscall(libc::SYS_recvfrom, args) }.ok()?;
    Some((got, from))
}

/// A second descriptor for what a descriptor of ours stands for, at least of that number.
pub(crate) fn copy_above(fd: c_int, least: c_int) -> Result<c_int, Errno> {
    let args = [word(fd), libc::F_DUPFD_CLOEXEC as usize, word(least), 0, 0, 0];
    // SAFETY: this command has no pointer.
    let copy = unsafe { syscall(libc::SYS_fcntl, args) }?;
    Ok(copy as c_int)
}

/// Makes an epoll instance for ourselves.
pub(crate) fn new_epoll() -> Result<c_int, Errno> {
    let args = [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0];
    // SAFETY: no pointer.
    let fd = unsafe { syscall(libc::SYS_epoll_create1, args) }?;
    Ok(fd as c_int)
}

/// Changes what an epoll instance of ours watches.
pub(crate) fn epoll_control(epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
    let event = libc::epoll_event { events, u64: data };
    let args = [word(epfd), word(op), word(fd), &raw const event as usize, 0, 0];
    // SAFETY: the kernel reads one event, which is ours.
    unsafe { syscall(libc::SYS_epoll_ctl, args) }
}

/// What an epoll instance has to say now. Returns how many events.
pub(crate) fn epoll_now(epfd: c_int, events: &mut [libc::epoll_event]) -> usize {
    let args = [word(epfd), events.as_mut_ptr() as usize, events.len(), 0, 0, 8];
    // SAFETY: the kernel writes at most so many events, which are borrowed; there is no signal mask.
    unsafe { syscall(libc::SYS_epoll_pwait, args) }.unwrap_or(0)
}

/// Accepts a connection.
pub(crate) fn accept(fd: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointer: the address is asked for elsewhere.
    let new = unsafe { syscall(libc::SYS_accept4, [word(fd), 0, 0, 0, 0, 0]) }?;
    Ok(new as c_int)
}

/// Makes a socket for ourselves.
pub(crate) fn socket(domain: c_int, kind: c_int) -> Result<c_int, Errno> {
    // SAFETY: no pointer.
    let fd = unsafe { syscall(libc::SYS_socket, [word(domain), word(kind), 0, 0, 0, 0]) }?;
    Ok(fd as c_int)
}

/// Connects a socket of ours.
pub(crate) fn connect(fd: c_int, to: &libc::sockaddr_storage, len: libc::socklen_t) -> Answer {
    let args = [word(fd), std::ptr::from_ref(to) as usize, len as usize, 0, 0, 0];
    // SAFETY: the address is borrowed for the length of the call.
    unsafe { syscall(libc::SYS_connect, args) }
}

/// Binds a socket of ours.
pub(crate) fn bind(fd: c_int, to: &libc::sockaddr_storage, len: libc::socklen_t) -> Answer {
    let args = [word(fd), std::ptr::from_ref(to) as usize, len as usize, 0, 0, 0];
    // SAFETY: the address is borrowed for the length of the call.
    unsafe { syscall(libc::SYS_bind, args) }
}

/// What `poll(2)` says about one descriptor, now.
pub(crate) fn poll_now(fd: c_int, events: i16) -> Result<i16, Errno> {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [&raw mut polled as usize, 1, &raw const zero as usize, 0, 0, 0];
    // SAFETY: both structures are ours and live; the kernel writes `revents` alone.
    unsafe { syscall(libc::SYS_ppoll, args) }?;
    Ok(polled.revents)
}

/// How many bytes wait in the kernel's receive queue.
pub(crate) fn waiting(fd: c_int) -> Answer {
    let mut count: c_int = 0;
    let args = [word(fd), libc::FIONREAD as usize, &raw mut count as usize, 0, 0, 0];
    // SAFETY: the kernel writes one integer, which is ours.
    unsafe { syscall(libc::SYS_ioctl, args) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Whether a TCP connection is over: neither end can send any more, as after a reset.
pub(crate) fn is_over(fd: c_int) -> bool {
    // The state is the first byte.
    let state = option::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    state.is_ok_and(|state| state == TCP_CLOSE)
}

/// As the kernel numbers the states of connections.
const TCP_CLOSE: u8 = 7;

/// The kernel's name for a question of sockets (`sockatmark(3)`).
const SIOCATMARK: usize = 0x8905;

/// Whether what is received next of a connection is, or was, urgent.
pub(crate) fn is_at_mark(fd: c_int) -> bool {
    let mut mark: c_int = 0;
    let args = [word(fd), SIOCATMARK, &raw mut mark as usize, 0, 0, 0];
    // SAFETY: the kernel writes one integer, which is ours.
    let asked = unsafe { syscall(libc::SYS_ioctl, args) };
    asked.is_ok() && mark != 0
}

/// The flags of an open file: `O_NONBLOCK` and the like.
pub(crate) fn file_flags(fd: c_int) -> Result<c_int, Errno> {
    // SAFETY: this command has no pointer.
    let flags =
        unsafe { syscall(libc::SYS_fcntl, [word(fd), libc::F_GETFL as usize, 0, 0, 0, 0]) }?;
    Ok(flags as c_int)
}

/// Whether a descriptor is closed when this process becomes another program.
pub(crate) fn ends_with_program(fd: c_int) -> bool {
    // SAFETY: this command has no pointer.
    let flags = unsafe { syscall(libc::SYS_fcntl, [word(fd), libc::F_GETFD as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize != 0)
}

/// Puts what `old` stands for in the place of `new`, which was open.
pub(crate) fn replace(old: c_int, new: c_int) -> Answer {
    let flags = if ends_with_program(new) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no pointer; the caller owns both.
    unsafe { syscall(libc::SYS_dup3, [word(old), word(new), word(flags), 0, 0, 0]) }
}

/// Sets the flags of an open file: `O_NONBLOCK` and the like.
pub(crate) fn set_file_flags(fd: c_int, flags: c_int) {
    let args = [word(fd), libc::F_SETFL as usize, word(flags), 0, 0, 0];
    // SAFETY: this command has no pointer.
    let _ = unsafe { syscall(libc::SYS_fcntl, args) };
}

/// `shutdown(2)`.
pub(crate) fn shut(fd: c_int, how: c_int) {
    // SAFETY: no pointer.
    let _ = unsafe { syscall(libc::SYS_shutdown, [word(fd), word(how), 0, 0, 0, 0]) };
}

/// Waits until a descriptor has one of these events, at most so many milliseconds.
pub(crate) fn poll_for(fd: c_int, events: i16, milliseconds: u64) -> Result<i16, Errno> {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    let mut time = libc::timespec {
        tv_sec: (milliseconds / 1000) as i64,
        tv_nsec: (milliseconds % 1000) as i64 * 1_000_000,
    };
    let args = [&raw mut polled as usize, 1, &raw mut time as usize, 0, 0, 0];
    // SAFETY: both structures are ours and live; the kernel writes `revents`, and what is left of
    // the time.
    unsafe { syscall(libc::SYS_ppoll, args) }?;
    Ok(polled.revents)
}

/// Closes a descriptor.
pub(crate) fn close(fd: c_int) {
    // SAFETY: no pointer; the caller owns the descriptor.
    let _ = unsafe { syscall(libc::SYS_close, [word(fd), 0, 0, 0, 0, 0]) };
}

/// Sets a socket option that is one integer.
pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Answer {
    set_option_as(fd, level, name, &value)
}

/// Sets a socket option.
pub(crate) fn set_option_as<T>(fd: c_int, level: c_int, name: c_int, value: &T) -> Answer {
    let value = std::ptr::from_ref(value) as usize;
    let args = [word(fd), word(level), word(name), value, size_of::<T>(), 0];
    // SAFETY: the kernel reads one `T`, which is borrowed.
    unsafe { syscall(libc::SYS_setsockopt, args) }
}

/// Reads a socket option that is any plain structure of integers.
pub(crate) fn option<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let args =
        [word(fd), word(level), word(name), &raw mut value as usize, &raw mut len as usize, 0];
    // SAFETY: the kernel writes at most `len` bytes of a `T`, whose every bit pattern is legal by
    // the choice of the callers: integers, and pairs of them.
    unsafe { syscall(libc::SYS_getsockopt, args) }?;
    Ok(value)
}

/// An option of a socket is as it was before when this is dropped, if that could be read.
#[derive(Debug)]
pub(crate) struct Restored {
    fd: c_int,
    level: c_int,
    name: c_int,
    value: Option<c_int>,
}

impl Restored {
    /// As it is now.
    pub(crate) fn after(fd: c_int, level: c_int, name: c_int) -> Self {
        Self { fd, level, name, value: option(fd, level, name).ok() }
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let Self { fd, level, name, value } = *self;
        let _ = value.map(|value| set_option(fd, level, name, value));
    }
}

/// What a program wants to be told of room (`TCP_NOTSENT_LOWAT`) keeps no bytes out of the kernel's queue until this is
/// dropped.
pub(crate) fn lift_low_water(fd: c_int) -> Restored {
    let before = Restored::after(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    // As the kernel has it if there is none.
    let _ = set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, -1);
    before
}

/// Reads a socket option into a structure whose first fields say what is asked.
pub(crate) fn read_option<T>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: &mut T,
) -> Result<(), Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_mut(value) as usize;
    let args = [word(fd), word(level), word(name), value, &raw mut len as usize, 0];
    // SAFETY: the kernel writes at most `len` bytes of a `T`, whose every bit pattern is legal by
    // the choice of the callers: integers, and addresses.
    unsafe { syscall(libc::SYS_getsockopt, args) }.map(|_| ())
}

/// The address of one end of a socket: its own, or its peer's, as the kernel writes it.
pub(crate) fn name(fd: c_int, of_peer: bool) -> Option<libc::sockaddr_storage> {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let number = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let args = [word(fd), &raw mut storage as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes of the storage.
    unsafe { syscall(number, args) }.ok()?;
    Some(storage)
}

/// The number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// The number of this process.
pub(crate) fn process_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// The process that has had this one; 0 if it is in another namespace.
pub(crate) fn parent_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getppid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// Whether a thread of that number is one of this process.
pub(crate) fn is_own_thread(thread: u32) -> bool {
    let (process, thread) = (process_id() as usize, thread as usize);
    // SAFETY: no pointer; no signal is sent.
    unsafe { syscall(libc::SYS_tgkill, [process, thread, 0, 0, 0, 0]) }.is_ok()
}

/// Sends a signal to the calling thread.
pub(crate) fn raise(signal: c_int) {
    let (process, thread) = (process_id() as usize, thread_id() as usize);
    // SAFETY: no pointer. What a signal does is the program's own choice.
    let _ = unsafe { syscall(libc::SYS_tgkill, [process, thread, word(signal), 0, 0, 0]) };
}

/// Sends the calling thread a signal once more that has come to it; without what is known about it, if the
/// kernel does not take that.
///
/// # Safety
///
/// `info` is null, or what the kernel has said about the signal.
pub(crate) unsafe fn raise_again(signal: c_int, info: *const libc::siginfo_t) {
    let (process, thread) = (process_id() as usize, thread_id() as usize);
    let args = [process, thread, word(signal), info as usize, 0, 0];
    // SAFETY: the caller's promise.
    if unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, args) }.is_err() {
        raise(signal);
    }
}

/// The calling thread holds these signals back, one bit each.
pub(crate) fn hold_back(signals: u64) {
    change_mask(libc::SIG_BLOCK, signals);
}

/// The calling thread lets these signals through; those that wait come at once.
pub(crate) fn let_through(signals: u64) {
    change_mask(libc::SIG_UNBLOCK, signals);
}

fn change_mask(how: c_int, signals: u64) {
    let args = [word(how), (&raw const signals) as usize, 0, size_of_val(&signals), 0, 0];
    // SAFETY: the kernel reads a mask of 64 bits, which is ours.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
}

/// The calling thread holds all signals back that it can; the mask that it had.
pub(crate) fn hold_back_all() -> u64 {
    let (mask, mut before) = (u64::MAX, 0_u64);
    let (new, old) = ((&raw const mask) as usize, (&raw mut before) as usize);
    let args = [word(libc::SIG_BLOCK), new, old, size_of_val(&mask), 0, 0];
    // SAFETY: the kernel reads one mask of 64 bits and fills another, which are ours.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    before
}

/// The calling thread has a mask again that it had before.
pub(crate) fn set_mask(mask: u64) {
    change_mask(libc::SIG_SETMASK, mask);
}

/// Moves bytes of a socket into a pipe, without waiting.
pub(crate) fn splice(fd: c_int, pipe: c_int, most: usize) -> Answer {
    let flags = (libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK) as usize;
    // SAFETY: no pointers but null ones.
    unsafe { syscall(libc::SYS_splice, [word(fd), 0, word(pipe), 0, most, flags]) }
}

/// `read(2)` into a buffer of ours.
pub(crate) fn read(fd: c_int, buffer: &mut [u8]) -> Answer {
    let (base, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: the buffer is borrowed for the length of the call, and the kernel fills at most `len`.
    unsafe { syscall(libc::SYS_read, [word(fd), base, len, 0, 0, 0]) }
}

/// A pipe of ours that does not wait, by descriptors that are not below `least`: the end to read from, and the other.
pub(crate) fn pipe_above(least: c_int) -> Result<[c_int; 2], Errno> {
    let mut ends = [0 as c_int; 2];
    let flags = word(libc::O_CLOEXEC | libc::O_NONBLOCK);
    let args = [(&raw mut ends) as usize, flags, 0, 0, 0, 0];
    // SAFETY: the kernel fills two integers, which are ours.
    unsafe { syscall(libc::SYS_pipe2, args) }?;
    let copies = ends.map(|end| copy_above(end, least));
    ends.into_iter().for_each(close);
    let [reader, writer] = copies;
    Ok([reader?, writer?])
}

/// An eventfd of ours that does not wait, by a descriptor that is not below `least`.
pub(crate) fn eventfd_above(least: c_int) -> Result<c_int, Errno> {
    let flags = word(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
    // SAFETY: no pointer.
    let made = unsafe { syscall(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }?;
    let made = c_int::try_from(made).map_err(|_| Errno::AGAIN)?;
    let copy = copy_above(made, least);
    close(made);
    copy
}

/// Signals an eventfd.
pub(crate) fn signal_eventfd(fd: c_int) {
    let _ = write(fd, &1_u64.to_ne_bytes());
}

/// Takes its signals back.
pub(crate) fn drain_eventfd(fd: c_int) {
    let _ = read(fd, &mut [0; 8]);
}

/// Bytes that the kernel has been given, and that the peer has not acknowledged.
pub(crate) fn unsent(fd: c_int) -> Answer {
    let mut count: c_int = 0;
    let args = [word(fd), libc::TIOCOUTQ as usize, (&raw mut count) as usize, 0, 0, 0];
    // SAFETY: the kernel fills one integer, which is ours.
    unsafe { syscall(libc::SYS_ioctl, args) }?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Ends a connection at once, for all processes that have it.
pub(crate) fn disconnect(fd: c_int) {
    let nowhere = [0_u8; 16];
    let args = [word(fd), nowhere.as_ptr() as usize, nowhere.len(), 0, 0, 0];
    // SAFETY: the kernel reads an address of 16 bytes, which is ours.
    let _ = unsafe { syscall(libc::SYS_connect, args) };
}

/// Lets others run.
pub(crate) fn give_way() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// How often the scheduler has taken the processor away from the calling thread; `getrusage(2)`.
pub(crate) fn preemptions() -> u64 {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let args = [libc::RUSAGE_THREAD as usize, &raw mut usage as usize, 0, 0, 0, 0];
    // SAFETY: the kernel fills one structure, which is ours.
    let _ = unsafe { syscall(libc::SYS_getrusage, args) };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Whether the calling thread may run on so many processors; `sched_getaffinity(2)`.
pub(crate) fn may_run_on(processors: u64) -> bool {
    let mut mask = [0_u64; 128];
    let args = [0, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel fills at most so many bytes of ours.
    let is_known = unsafe { syscall(libc::SYS_sched_getaffinity, args) }.is_ok();
    is_known && mask.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() >= processors
}

/// How many threads of the machine run or could run now; the fourth field of `/proc/loadavg`, proc(5). The file stays open, by
/// a number that programs rarely use: only its content says that the number is still ours, and `pread` takes nothing out of
/// a file of the program's. A machine that shows no such file is not asked again.
pub(crate) fn runnable_threads() -> Option<u64> {
    static FILE: AtomicI32 = AtomicI32::new(NOT_OPEN);
    let known = FILE.load(Ordering::Relaxed);
    if known == NOT_THERE {
        return None;
    }
    if let count @ Some(_) = runnable_by(known) {
        return count;
    }
    let file = open_above(c"/proc/loadavg", FILE_MIN);
    let count = file.and_then(runnable_by);
    let word = file.filter(|_| count.is_some()).unwrap_or(NOT_THERE);
    let is_kept = FILE.compare_exchange(known, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if let Some(file) = file.filter(|file| !is_kept || *file != word) {
        close(file);
    }
    count
}

const NOT_OPEN: c_int = -1;
const NOT_THERE: c_int = -2;
const FILE_MIN: c_int = 1000;

fn runnable_by(loadavg: c_int) -> Option<u64> {
    let mut text = [0_u8; 64];
    let args = [word(loadavg), text.as_mut_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: the kernel fills at most so many bytes of ours.
    let len = unsafe { syscall(libc::SYS_pread64, args) }.ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    let (count, _) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
    count.parse().ok()
}

/// Opens a file to read, by a number of at least `least`.
fn open_above(path: &CStr, least: c_int) -> Option<c_int> {
    let made = open(path, libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    let file = copy_above(made, least);
    close(made);
    file.ok()
}

/// Sleeps for so many nanoseconds, less if a signal comes.
pub(crate) fn nap(nanoseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the kernel reads one structure, which is ours.
    let _ = unsafe { syscall(libc::SYS_nanosleep, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps for so many nanoseconds, as long as a word that processes share has this value; less if
/// it is woken, or a signal comes. Returns whether the time is over.
pub(crate) fn sleep_on(shared: &AtomicU32, value: u32, nanoseconds: i64) -> bool {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let (at, wait) = (shared.as_ptr() as usize, libc::FUTEX_WAIT as usize);
    let args = [at, wait, value as usize, &raw const time as usize, 0, 0];
    // SAFETY: the kernel looks at the word, which is borrowed, and reads one structure of ours.
    let slept = unsafe { syscall(libc::SYS_futex, args) };
    slept == Err(Errno(libc::ETIMEDOUT))
}

/// Wakes all threads that sleep on a word. Returns whether there are any.
pub(crate) fn wake(shared: &AtomicU32) -> bool {
    let (at, wake) = (shared.as_ptr() as usize, libc::FUTEX_WAKE as usize);
    // SAFETY: the kernel takes the address as a name.
    let woken = unsafe { syscall(libc::SYS_futex, [at, wake, i32::MAX as usize, 0, 0, 0]) };
    woken.is_ok_and(|woken| woken > 0)
}

/// Nanoseconds since an arbitrary start.
pub(crate) fn now_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC)
}

/// The same, up to 10 ms late: as it was at the kernel's last tick, which takes a fraction of the time to read.
#[inline]
pub(crate) fn coarse_now_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn time_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills one structure, which is ours. It is not one that we stand in front of.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The system's clock: seconds, and nanoseconds beyond them.
pub(crate) fn real_time() -> (i64, i64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    (time.tv_sec, time.tv_nsec)
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the function has no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: it returns the address of the calling thread's own variable.
    unsafe { at.write(errno.0) };
}

/// Reads `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: the function has no preconditions.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: it returns the address of the calling thread's own variable.
    Errno(unsafe { at.read() })
}

/// As long as this lives, calls of ours into the C library leave `errno` as it was when it is dropped.
#[derive(Debug)]
pub(crate) struct KeptErrno(Errno);

impl KeptErrno {
    pub(crate) fn new() -> Self {
        Self(errno())
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// Maps `len` bytes of zeros, pages of which come into being when they are touched.
pub(crate) fn map_zeros(len: usize, shared: bool) -> Result<*mut u8, Errno> {
    let visibility = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let flags = visibility | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the kernel chooses the address, so that nothing in use is replaced.
    let base = unsafe { syscall(libc::SYS_mmap, [0, len, access, word(flags), usize::MAX, 0]) }?;
    Ok(base as *mut u8)
}

/// Puts zeros in the place of pages of which one is missing, which children share. Returns whether it has.
///
/// # Safety
///
/// The pages are of a mapping of the caller's, in which zeros are legal.
pub(crate) unsafe fn replace_pages(at: usize, len: usize) -> bool {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = word(libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_mmap, [at, len, access, flags, usize::MAX, 0]) }.is_ok()
}

/// Unmaps what one of the two functions above has mapped.
///
/// # Safety
///
/// It is not touched any more.
pub(crate) unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall(libc::SYS_munmap, [base as usize, len, 0, 0, 0, 0]) };
}

/// Opens a file; one that is made is for its owner alone.
pub(crate) fn open(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    let here = libc::AT_FDCWD as isize as usize;
    let args = [here, path.as_ptr() as usize, word(flags), 0o600, 0, 0];
    // SAFETY: the path is a C string, borrowed for the length of the call.
    let fd = unsafe { syscall(libc::SYS_openat, args) }?;
    Ok(fd as c_int)
}

/// Removes a file, if it is there.
pub(crate) fn unlink(path: &CStr) {
    let here = libc::AT_FDCWD as isize as usize;
    // SAFETY: the path is a C string, borrowed for the length of the call.
    let _ = unsafe { syscall(libc::SYS_unlinkat, [here, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Gives a file a second name, which is free.
pub(crate) fn link(path: &CStr, second: &CStr) -> Answer {
    let here = libc::AT_FDCWD as isize as usize;
    let (old, new) = (path.as_ptr() as usize, second.as_ptr() as usize);
    // SAFETY: the paths are C strings, borrowed for the length of the call.
    unsafe { syscall(libc::SYS_linkat, [here, old, here, new, 0, 0]) }
}

/// Reads at most `most` bytes of a file. Without the C library, whose `read` is ours: a `vfork` child in our
/// memory has other descriptors than we know.
pub(crate) fn read_file(path: &Path, most: usize) -> Option<Vec<u8>> {
    let path = path.as_os_str().as_bytes();
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    read_pieces(&CString::new(path).ok()?, PIECE_BYTES, most, &mut bytes, &mut ends)?;
    Some(bytes)
}

/// The same, into memory that is there already, and emptied first; `ends` says where each call of `read`
/// has ended, the first of which asks for `first` bytes, and each other one for [`PIECE_BYTES`].
pub(crate) fn read_pieces(
    path: &CStr,
    first: usize,
    most: usize,
    bytes: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) -> Option<()> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    read_open(file, first, most, bytes, ends);
    close(file);
    Some(())
}

/// The same, of a file that is open.
pub(crate) fn read_open(
    file: c_int,
    first: usize,
    most: usize,
    bytes: &mut Vec<u8>,
    ends: &mut Vec<usize>,
) {
    bytes.clear();
    ends.clear();
    let mut piece = [0_u8; PIECE_BYTES];
    while bytes.len() < most {
        let len = if ends.is_empty() { first.min(piece.len()) } else { piece.len() };
        let args = [word(file), piece.as_mut_ptr() as usize, len, 0, 0, 0];
        // SAFETY: the buffer is ours, and the kernel fills at most its length.
        match unsafe { syscall(libc::SYS_read, args) } {
            Ok(got @ 1..) => {
                bytes.extend_from_slice(piece.get(..got).unwrap_or(&[]));
                ends.push(bytes.len());
            }
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    bytes.truncate(most);
}

/// At most so many names in a directory. Without the C library, which asks the program's `malloc` for a buffer.
pub(crate) fn names(path: &Path, most: usize) -> Option<Vec<OsString>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let directory = open(&path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC).ok()?;
    let (mut names, mut piece) = (Vec::new(), [0_u8; PIECE_BYTES]);
    while names.len() < most {
        let args = [word(directory), piece.as_mut_ptr() as usize, piece.len(), 0, 0, 0];
        // SAFETY: the buffer is ours, and the kernel fills at most its length.
        let Ok(got @ 1..) = (unsafe { syscall(libc::SYS_getdents64, args) }) else { break };
        let mut rest = piece.get(..got).unwrap_or(&[]);
        // Two numbers, the length of all of it, a kind, and a name with its end.
        while let Some(&[low, high]) = rest.get(16..18) {
            let len = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, next)) = rest.split_at_checked(len).filter(|_| len > 0) else { break };
            let name = entry.get(19..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            let name = name.map_or(&b""[..], CStr::to_bytes);
            if ![&b""[..], b".", b".."].contains(&name) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
            rest = next;
        }
    }
    close(directory);
    names.truncate(most);
    Some(names)
}

/// The descriptors of a process, by its number or `self`; `None` if they cannot be listed.
pub(crate) fn descriptors_of(process: &str) -> Option<Vec<c_int>> {
    let names = names(Path::new(&format!("/proc/{process}/fd")), usize::MAX)?;
    Some(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// What is read of a file at a time.
pub(crate) const PIECE_BYTES: usize = 4096;

/// The number by which the kernel lists a socket.
pub(crate) fn inode(fd: c_int) -> Option<u64> {
    about(fd).map(|about| about.st_ino)
}

/// What the kernel knows of an open file.
pub(crate) fn about(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for an answer.
    unsafe { syscall(libc::SYS_fstat, [word(fd), &raw mut about as usize, 0, 0, 0, 0]) }.ok()?;
    Some(about)
}

/// Writes bytes of ours.
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Answer {
    // SAFETY: the bytes are borrowed for the length of the call, and the kernel reads only them.
    unsafe { syscall(libc::SYS_write, [word(fd), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// The user that this process acts for.
pub(crate) fn user_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// Ends the calling thread, by unwinding, if it has been cancelled: as the kernel's calls would that we
/// take the place of.
#[inline]
pub(crate) fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: the function has no preconditions; what it unwinds is built for that.
    unsafe { pthread_testcancel() };
}

/// As long as this lives, the calling thread is not cancelled: for calls of the C library where it must
/// not end, or could not.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: room for the answer.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: what it was before, and room for the answer.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Whether this process has more threads than the calling one.
pub(crate) fn has_threads() -> bool {
    names(Path::new("/proc/self/task"), 2).is_some_and(|threads| threads.len() > 1)
}

/// Whether a child of this process has ended, and has not been waited for; `None` if it is none.
pub(crate) fn is_waited_for(child: u32) -> Option<bool> {
    // SAFETY: all zeros is a legal value of this structure.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = word(libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
    let args = [libc::P_PID as usize, child as usize, (&raw mut info) as usize, how, 0, 0];
    // SAFETY: the kernel fills one structure, which is ours.
    unsafe { syscall(libc::SYS_waitid, args) }.ok()?;
    // SAFETY: zeros, or what the kernel says of a child.
    Some(unsafe { info.si_pid() } != 0)
}

/// A descriptor of a process, as long as there is one of that number.
pub(crate) fn open_process(number: u32) -> Option<c_int> {
    // SAFETY: no pointer.
    let fd = unsafe { syscall(libc::SYS_pidfd_open, [number as usize, 0, 0, 0, 0, 0]) }.ok()?;
    Some(fd as c_int)
}

/// A descriptor of what another process's descriptor stands for, if the kernel lets us have it.
pub(crate) fn copy_from(process: c_int, fd: c_int) -> Option<c_int> {
    // SAFETY: no pointer.
    let copy =
        unsafe { syscall(libc::SYS_pidfd_getfd, [word(process), word(fd), 0, 0, 0, 0]) }.ok()?;
    Some(copy as c_int)
}

/// The processor that the calling thread runs on.
pub(crate) fn processor() -> u32 {
    // SAFETY: the function has no preconditions.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// How many processors there are.
pub(crate) fn processors() -> u64 {
    // SAFETY: the function has no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(u64::MAX)
}
