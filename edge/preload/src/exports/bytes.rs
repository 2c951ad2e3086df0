//! Bytes in and out: `read` to `sendmmsg`.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names:
//! buffers, arrays and structures that it passes are valid for as long as the call lasts. We pass
//! them on to the real function or to the kernel, or copy as many bytes as it has said there are.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use adverb_sockconf::Load;

use super::{answer, int, size};
use crate::base::iovec::IoCursor;
use crate::base::raw::{self, Answer, Errno};
use crate::base::real::real;
use crate::base::{address, config, copy};
use crate::share::{exec_target, life};
use crate::socket::counters::add;
use crate::socket::pacing::{Granted, MayWait};
use crate::socket::policy::{self, is_plain, may_ring};
use crate::socket::stamps::Control;
use crate::socket::state::Kind;
use crate::socket::table::{self, SocketRef};
use crate::transport::datagram::{self, Arrival, Request};
use crate::transport::stream::{self, Receive};
use crate::transport::{fallback, kernel, park, streak};
use crate::wait::blocking::{self, Send};
use crate::wait::filters;

/// One buffer as a list of buffers.
fn one(base: *const c_void, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast_mut(), iov_len: len }
}

/// A list of buffers as a slice; `None` if there is none, or one that the kernel refuses.
///
/// # Safety
///
/// If anything is there, `parts` points to `count` buffers.
unsafe fn list<'a>(parts: *const libc::iovec, count: usize) -> Option<&'a [libc::iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    let is_there = parts.is_aligned() && copy::is_readable(parts.cast(), count * PART_BYTES);
    // SAFETY: the caller's promise; aligned, and not null, where nothing is readable.
    let list = is_there.then(|| unsafe { std::slice::from_raw_parts(parts, count) });
    list.filter(|list| list.iter().all(|part| isize::try_from(part.iov_len).is_ok()))
}

const PART_BYTES: usize = size_of::<libc::iovec>();

/// A socket that is not to be left alone.
fn ours(fd: c_int) -> Option<SocketRef> {
    table::socket(fd).filter(|socket| !is_plain(socket))
}

/// With these the kernel's call waits for more than something that can be read, or for nothing.
const OWN_WAITS: c_int = libc::MSG_WAITALL | libc::MSG_ERRQUEUE | libc::MSG_OOB;

const RECEIVE_FLAGS: c_int = libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_WAITFORONE
    | libc::MSG_CMSG_CLOEXEC;

/// Receives on a connection that has rings or may get them; `None` if this is not one, or the flags
/// ask for what only the kernel has.
fn receive(socket: &SocketRef, fd: c_int, parts: &[libc::iovec], flags: c_int) -> Option<Answer> {
    let is_filtered = filters::has(socket) && socket.kind() != Kind::Datagram;
    if !may_ring(socket) && !is_filtered {
        return None;
    }
    if flags & libc::MSG_OOB != 0 {
        // Rings have no urgent bytes: an end that sends one gives them up, and it lies in the kernel's queue, whatever is
        // still to be read before it.
        fallback::advance(socket, fd);
        return None;
    }
    let has_rings = socket.segment().is_some();
    if flags & libc::MSG_ERRQUEUE != 0 || (flags & !RECEIVE_FLAGS != 0 && !has_rings) {
        return None;
    }
    let how = Receive {
        peek: flags & libc::MSG_PEEK != 0,
        all: flags & libc::MSG_WAITALL != 0,
        discard: flags & libc::MSG_TRUNC != 0,
        now: flags & libc::MSG_DONTWAIT != 0,
        loan: None,
        looked: false,
    };
    Some(match is_filtered {
        false => blocking::receive(socket, fd, parts, how),
        true => filters::receive(socket, fd, parts, how),
    })
}

/// Sends on a connection that has rings or may get them; `None` if this is not one.
fn send_parts(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    flags: c_int,
) -> Option<Answer> {
    if !may_ring(socket) {
        return None;
    }
    if flags & libc::MSG_FASTOPEN != 0 {
        socket.segment()?;
        // SAFETY: all zeros is a legal value of this structure of integers and pointers.
        let nothing = unsafe { std::mem::zeroed() };
        // Which error it is depends on the kernel's settings.
        if let Err(refused) = ask(socket, fd, &nothing, flags) {
            return Some(Err(refused));
        }
    }
    let how = Send {
        now: flags & libc::MSG_DONTWAIT != 0,
        more: flags & libc::MSG_MORE != 0,
        quiet: flags & libc::MSG_NOSIGNAL != 0,
    };
    if flags & libc::MSG_OOB != 0 {
        let may_wait = !how.now && !socket.flags.is_nonblocking.load(Ordering::Relaxed);
        let is_left = match fallback::leave_now(socket, fd, may_wait) {
            Ok(is_left) => is_left,
            Err(busy) => return Some(Err(busy)),
        };
        if is_left && !park::has_to_resend(socket) {
            return None;
        }
        // The kernel gets first what was sent before, and nothing while frames carry the connection.
        return match blocking::send(socket, fd, &[], how) {
            Ok(_) if is_left => None,
            Ok(_) => Some(Err(Errno::AGAIN)),
            Err(refused) => Some(Err(refused)),
        };
    }
    Some(blocking::send(socket, fd, parts, how))
}

/// Receives a datagram on a socket that has a mailbox or may get one; `None` if this is not one, or
/// the flags ask for what only the kernel has.
fn arrival(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    control: (*mut c_void, usize),
    flags: c_int,
) -> Option<Result<Arrival, Errno>> {
    if !is_letters(socket) || flags & libc::MSG_ERRQUEUE != 0 {
        return None;
    }
    let (control, control_len) = control;
    let request = Request { parts, control, control_len, flags, loan: None };
    Some(match filters::has(socket) {
        false => datagram::receive_one(socket, fd, request),
        true => filters::receive_one(socket, fd, request),
    })
}

/// Whether datagrams of a socket come by way of [`arrival`].
#[inline]
fn is_letters(socket: &SocketRef) -> bool {
    datagram::may_use_mailbox(socket) || filters::has(socket) && socket.kind() == Kind::Datagram
}

/// Whether bytes of a socket come by way of [`receive`].
#[inline]
fn is_bytes(socket: &SocketRef) -> bool {
    may_ring(socket) || filters::has(socket) && socket.kind() != Kind::Datagram
}

/// The same, for calls that want neither address nor control data.
fn datagram(socket: &SocketRef, fd: c_int, parts: &[libc::iovec], flags: c_int) -> Option<Answer> {
    let arrival = arrival(socket, fd, parts, NO_CONTROL, flags)?;
    Some(arrival.map(|arrival| arrival.len))
}

const NO_CONTROL: (*mut c_void, usize) = (std::ptr::null_mut(), 0);

/// Writes an address for the program, as much of it as there is room for. Returns false if there is
/// none.
///
/// # Safety
///
/// `from` is null, or has room for `room` bytes if anything is there.
unsafe fn put_address(from: *mut c_void, room: libc::socklen_t, arrival: &Arrival) -> bool {
    let count = room.min(arrival.from_len) as usize;
    let source = (&raw const arrival.from).cast::<u8>();
    // SAFETY: the caller's promise for the target; an address is no longer than its storage.
    from.is_null() || unsafe { copy::copy(from.cast::<u8>(), source, count) }
}

/// Where a call wants an address and its length.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) from: *mut libc::sockaddr,
    pub(super) len: *mut libc::socklen_t,
}

impl Wanted {
    /// Fills both in; as the kernel does, after something has been received.
    ///
    /// # Safety
    ///
    /// If anything is there, both are what the program has promised.
    pub(super) unsafe fn fill(self, arrival: &Arrival) -> Result<(), Errno> {
        if self.from.is_null() {
            return Ok(());
        }
        // SAFETY: an integer, of which any is legal.
        let room = unsafe { copy::read(self.len) }.ok_or(Errno::FAULT)?;
        if c_int::try_from(room).is_err() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's promise about the address.
        let is_there = unsafe { put_address(self.from.cast(), room, arrival) };
        // SAFETY: the caller's promise about the length.
        if is_there && unsafe { copy::write(self.len, arrival.from_len) } {
            return Ok(());
        }
        Err(Errno::FAULT)
    }
}

/// Sends, whatever the socket is; `call` is the real function.
fn send_any(
    fd: c_int,
    parts: &[libc::iovec],
    to: impl FnOnce() -> Destination,
    flags: c_int,
    call: impl FnOnce() -> libc::ssize_t,
) -> libc::ssize_t {
    if is_dummy(flags) {
        return size(dummy(fd, parts, to()));
    }
    let Some(socket) = table::socket(fd) else { return call() };
    // A way of its own from the start: what is asked below is about connections, and was a part of what a short datagram
    // took 2,079 instructions for, there and back, rather than 1,610.
    if socket.kind() == Kind::Datagram {
        return send_datagram(&socket, fd, parts, to, flags, call);
    }
    if let [part] = parts
        && (1..=SHORT).contains(&part.iov_len)
        && flags & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) == 0
        && !is_plain(&socket)
        && may_ring(&socket)
    {
        raw::cancellation_point();
        if stream::try_send_short(&socket, fd, part.iov_base.cast(), part.iov_len) {
            return part.iov_len.cast_signed();
        }
    }
    if is_plain(&socket) {
        return sent(&socket, call());
    }
    match send_parts(&socket, fd, parts, flags) {
        Some(answer) => size(answer),
        None => sent_of(&socket, parts, call()),
    }
}

/// Sends a datagram when its rate allows that, if it has one.
fn send_datagram(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    to: impl FnOnce() -> Destination,
    flags: c_int,
    call: impl FnOnce() -> libc::ssize_t,
) -> libc::ssize_t {
    match pace(socket, fd, parts, flags) {
        Ok(granted) => charged(socket, granted, send_unpaced(socket, fd, parts, to, flags, call)),
        Err(error) => size(Err(error)),
    }
}

/// Sends it by the way that its socket has.
fn send_unpaced(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    to: impl FnOnce() -> Destination,
    flags: c_int,
    call: impl FnOnce() -> libc::ssize_t,
) -> libc::ssize_t {
    if is_plain(socket) {
        return sent(socket, call());
    }
    if !datagram::may_use_mailbox(socket) {
        return sent_of(socket, parts, call());
    }
    if flags & libc::MSG_MORE != 0 {
        datagram::keep_to_kernel(socket, fd);
    }
    // The kernel looks up the route, and sends nothing: the receiver must not wait for it.
    if flags & MSG_PROBE != 0 {
        return call();
    }
    let to = to();
    let known = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
    // The kernel refuses an address of the other family.
    let is_foreign = to.is_v6 && socket.datagrams.is_v4.load(Ordering::Relaxed);
    let is_special = flags & !known != 0 || to.is_special || is_foreign;
    let waits = flags & libc::MSG_DONTWAIT == 0;
    size(datagram::send(socket, fd, parts, to.addr, is_special, waits, || answer(call())))
}

/// So few bytes of a connection may go by a shorter way, which asks at once all that makes it the plainest case. For a
/// datagram the receiver's mailbox has one, behind the way that all of them go.
const SHORT: usize = 512;

/// `VMA_SND_FLAGS_DUMMY`: everything is made ready, and nothing is sent. To the kernel the flag means nothing, nor does
/// it for a program that has not asked for the extra functions.
fn is_dummy(flags: c_int) -> bool {
    flags & DUMMY != 0 && policy::knows_extras()
}

const DUMMY: c_int = 0x400;

const MSG_PROBE: c_int = 0x10;

/// Goes the way of a send as far as the memory that it would write to, so that what it takes is near the
/// processor. Only where shared memory is that way.
fn dummy(fd: c_int, parts: &[libc::iovec], to: Destination) -> Answer {
    let socket = table::socket(fd).filter(|socket| !is_plain(socket));
    let is_warm = socket.is_some_and(|socket| warm(&socket, fd, to.addr));
    let is_there = parts.iter().all(|part| copy::is_readable(part.iov_base, part.iov_len));
    match (is_warm, is_there) {
        (true, true) => Ok(IoCursor::new(parts).remaining()),
        (true, false) => Err(Errno::FAULT),
        (false, _) => Err(Errno(libc::EINVAL)),
    }
}

/// Goes the way of a send as far as memory. Returns whether memory is that way.
fn warm(socket: &SocketRef, fd: c_int, to: Option<SocketAddr>) -> bool {
    let is_warm = match may_ring(socket) {
        true => stream::warm(socket, fd),
        false => datagram::may_use_mailbox(socket) && datagram::warm(socket, fd, to),
    };
    if is_warm {
        add(&socket.counters.tx_dummies, 1);
    }
    is_warm
}

/// The program asks for its socket's name, by which it may want its way to the peer warmed.
#[inline]
pub(super) fn warm_by_name(fd: c_int) {
    if config::get().warms_by_name
        && let Some(socket) = ours(fd)
    {
        let _errno = raw::KeptErrno::new();
        warm(&socket, fd, None);
    }
}

/// Before a datagram is sent: waits until its socket's rate allows it, if it has one. The bytes of a connection are
/// paced where they are written.
#[inline]
fn pace(
    socket: &SocketRef,
    fd: c_int,
    parts: &[libc::iovec],
    flags: c_int,
) -> Result<Option<Granted>, Errno> {
    if !socket.paced.is_on() {
        return Ok(None);
    }
    let now =
        flags & libc::MSG_DONTWAIT != 0 || socket.flags.is_nonblocking.load(Ordering::Relaxed);
    let load = Load::Datagram(u64::try_from(IoCursor::new(parts).remaining()).unwrap_or(u64::MAX));
    let limit_ns = socket.options.send_limit_ns.load(Ordering::Relaxed);
    let is_still = || table::still(fd, socket);
    socket.paced.admit(load, MayWait::of(now, false), limit_ns, is_still).map(Some)
}

/// After it: a datagram that was not sent costs nothing.
#[inline]
fn charged(socket: &SocketRef, granted: Option<Granted>, answer: libc::ssize_t) -> libc::ssize_t {
    if let Some(granted) = granted.filter(|_| answer < 0) {
        socket.paced.give_back(granted, granted.bytes);
    }
    answer
}

/// Where a datagram goes, if the call says so, and whether it asks for what only the kernel has.
#[derive(Clone, Copy, Debug, Default)]
struct Destination {
    addr: Option<SocketAddr>,
    is_special: bool,
    is_v6: bool,
}

impl Destination {
    /// # Safety
    ///
    /// `to` is null or has `len` bytes.
    unsafe fn given(to: *const libc::sockaddr, len: libc::socklen_t) -> Self {
        // SAFETY: the caller's promise.
        let addr = unsafe { address::given(to, len) };
        // SAFETY: an address begins with its family, and any bytes are one.
        let family = unsafe { copy::read(to.cast::<libc::sa_family_t>()) };
        let is_v6 = addr.is_some() && family.map(c_int::from) == Some(libc::AF_INET6);
        Self { addr, is_special: !to.is_null() && addr.is_none(), is_v6 }
    }
}

/// Receives one buffer from a socket of the kernel's, spinning first.
///
/// # Safety
///
/// `buffer` has room for `len` bytes.
unsafe fn from_kernel(
    socket: &SocketRef,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    block: impl FnOnce() -> libc::ssize_t,
) -> Answer {
    let args = |flags: c_int| [fd as isize as usize, buffer as usize, len, flags as usize, 0, 0];
    // SAFETY: the caller's promise about the buffer.
    let attempt = || unsafe { raw::syscall(libc::SYS_recvfrom, args(flags | libc::MSG_DONTWAIT)) };
    kernel::receive(socket, fd, flags & libc::MSG_DONTWAIT != 0, attempt, || answer(block()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
) -> libc::ssize_t {
    let block = || real!(read(fd, buffer, len));
    let Some(socket) = ours(fd).filter(|_| len > 0) else { return block() };
    if let Some(answer) = receive(&socket, fd, &[one(buffer, len)], 0) {
        return size(answer);
    }
    match datagram(&socket, fd, &[one(buffer, len)], 0) {
        Some(Err(Errno(libc::ENOTSOCK))) => return block(),
        Some(answer) => return size(answer),
        None => {}
    }
    // SAFETY: the program's promise about the buffer.
    match unsafe { from_kernel(&socket, fd, buffer, len, 0, block) } {
        // Closed behind our back, and the number given to something else.
        Err(Errno(libc::ENOTSOCK)) => block(),
        answer => size(answer),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
) -> libc::ssize_t {
    // SAFETY: the program's promise; no more than there is room for.
    unsafe { read(fd, buffer, len.min(room)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
) -> libc::ssize_t {
    let block = || real!(recv(fd, buffer, len, flags));
    let Some(socket) = ours(fd) else { return block() };
    if let Some(answer) = receive(&socket, fd, &[one(buffer, len)], flags) {
        return size(answer);
    }
    if let Some(answer) = datagram(&socket, fd, &[one(buffer, len)], flags) {
        return size(answer);
    }
    if flags & OWN_WAITS != 0 {
        return block();
    }
    // SAFETY: the program's promise about the buffer.
    size(unsafe { from_kernel(&socket, fd, buffer, len, flags, block) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
) -> libc::ssize_t {
    // SAFETY: the program's promise; no more than there is room for.
    unsafe { recv(fd, buffer, len.min(room), flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_len: *mut libc::socklen_t,
) -> libc::ssize_t {
    let block = || real!(recvfrom(fd, buffer, len, flags, from, from_len));
    let Some(socket) = ours(fd) else { return block() };
    let wanted = Wanted { from, len: from_len };
    if let Some(answer) = receive(&socket, fd, &[one(buffer, len)], flags) {
        // TCP fills in nothing, but where it would have to be room.
        let fill = |got| {
            // SAFETY: the program's promise: with `from` comes a length.
            unsafe { wanted.fill(&Arrival::empty()) }.map(|()| got)
        };
        return size(answer.and_then(fill));
    }
    if let Some(arrival) = arrival(&socket, fd, &[one(buffer, len)], NO_CONTROL, flags) {
        let fill = |arrival: Arrival| {
            // SAFETY: the program's promise: with `from` comes a length.
            unsafe { wanted.fill(&arrival) }.map(|()| arrival.len)
        };
        return size(arrival.and_then(fill));
    }
    if flags & OWN_WAITS != 0 {
        return block();
    }
    let args = [
        fd as isize as usize,
        buffer as usize,
        len,
        (flags | libc::MSG_DONTWAIT) as usize,
        from as usize,
        from_len as usize,
    ];
    // SAFETY: the program's promise about all of these.
    let attempt = || unsafe { raw::syscall(libc::SYS_recvfrom, args) };
    let now = flags & libc::MSG_DONTWAIT != 0;
    size(kernel::receive(&socket, fd, now, attempt, || answer(block())))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_len: *mut libc::socklen_t,
) -> libc::ssize_t {
    // SAFETY: the program's promise; no more than there is room for.
    unsafe { recvfrom(fd, buffer, len.min(room), flags, from, from_len) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> libc::ssize_t {
    let block = || real!(readv(fd, parts, count));
    let (Some(socket), Ok(number @ 1..=1024)) = (ours(fd), usize::try_from(count)) else {
        return block();
    };
    // SAFETY: the program's promise about the array.
    let Some(list) = (unsafe { list(parts, number) }) else { return block() };
    if let Some(answer) = receive(&socket, fd, list, 0) {
        return size(answer);
    }
    if IoCursor::new(list).remaining() > 0 {
        match datagram(&socket, fd, list, 0) {
            Some(Err(Errno(libc::ENOTSOCK))) => return block(),
            Some(answer) => return size(answer),
            None => {}
        }
    }
    // SAFETY: all zeros is a legal value of this structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.cast_mut();
    message.msg_iovlen = number;
    // SAFETY: the program's promise about the array and its buffers.
    let attempt = || unsafe { raw::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
    match kernel::receive(&socket, fd, false, attempt, || answer(block())) {
        Err(Errno(libc::ENOTSOCK)) => block(),
        answer => size(answer),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> libc::ssize_t {
    let block = || real!(recvmsg(fd, message, flags));
    let Some(socket) = ours(fd) else {
        let got = block();
        if got >= 0 {
            // SAFETY: the real function has just filled the header in.
            unsafe { take_in(message) };
        }
        return got;
    };
    if is_bytes(&socket) && !message.is_null() {
        // SAFETY: a header is numbers and pointers.
        let header = unsafe { copy::read(message) };
        let header = header.filter(|header| header.msg_iovlen <= PARTS_KERNEL_MAX);
        let Some(mut header) = header else { return block() };
        // SAFETY: the program's promise about the array.
        let list = unsafe { list(header.msg_iov, header.msg_iovlen) };
        let Some(list) = list else { return block() };
        if let Some(answer) = receive(&socket, fd, list, flags) {
            let Ok(got) = answer else { return size(answer) };
            let mut control = Control::new(header.msg_control, header.msg_controllen);
            if got > 0 {
                control.stamp(socket.options.stamps.load(Ordering::Relaxed));
            }
            (header.msg_namelen, header.msg_controllen) = (0, control.len);
            header.msg_flags = control.flags | flags & libc::MSG_CMSG_CLOEXEC;
            // SAFETY: the program's promise: a valid header.
            let is_there = unsafe { copy::write(message, header) };
            return size(if is_there { Ok(got) } else { Err(Errno::FAULT) });
        }
    }
    if is_letters(&socket) && !message.is_null() {
        // SAFETY: a header is numbers and pointers.
        let header = unsafe { copy::read(message) };
        let header = header.filter(|header| header.msg_iovlen <= PARTS_KERNEL_MAX);
        let Some(mut header) = header else { return block() };
        // SAFETY: the program's promise about the array.
        let list = unsafe { list(header.msg_iov, header.msg_iovlen) };
        let Some(list) = list else { return block() };
        let control = (header.msg_control, header.msg_controllen);
        if c_int::try_from(header.msg_namelen).is_ok()
            && let Some(arrival) = arrival(&socket, fd, list, control, flags)
        {
            if let Ok(arrival) = &arrival {
                // SAFETY: the program's promise about the address.
                let mut is_there =
                    unsafe { put_address(header.msg_name, header.msg_namelen, arrival) };
                if !header.msg_name.is_null() {
                    header.msg_namelen = arrival.from_len;
                }
                header.msg_controllen = arrival.control_len;
                header.msg_flags = arrival.flags;
                // SAFETY: the program's promise: a valid header.
                is_there &= unsafe { copy::write(message, header) };
                if !is_there {
                    return size(Err(Errno::FAULT));
                }
            }
            return size(arrival.map(|arrival| arrival.len));
        }
    }
    if flags & OWN_WAITS != 0 {
        return block();
    }
    // SAFETY: the program's promise about the header.
    let attempt = || unsafe { raw::recvmsg(fd, message, flags | libc::MSG_DONTWAIT) };
    let now = flags & libc::MSG_DONTWAIT != 0;
    size(kernel::receive(&socket, fd, now, attempt, || answer(block())))
}

/// Descriptors that have come in a message may be connections with rings.
///
/// # Safety
///
/// `message` is a header that the kernel has filled in.
unsafe fn take_in(message: *const libc::msghdr) {
    let adopt = |fd| {
        if table::socket(fd).is_none() {
            life::adopt(fd);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { each_passed(message, adopt) };
}

/// Calls `f` with every descriptor that a message carries.
///
/// # Safety
///
/// `message` is a valid header.
unsafe fn each_passed(message: *const libc::msghdr, mut f: impl FnMut(c_int)) {
    // SAFETY: the caller's promise.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: not null, and within the control data.
        let header = unsafe { control.read() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(control) };
            let bytes = header.cmsg_len.saturating_sub(data.addr() - control.addr());
            for index in 0..bytes / size_of::<c_int>() {
                let at = data.cast::<c_int>().wrapping_add(index);
                // SAFETY: inside of the data, whose length the header gives.
                f(unsafe { at.read_unaligned() });
            }
        }
        // SAFETY: the header and one of its control messages.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut libc::timespec,
) -> c_int {
    let block = || real!(recvmmsg(fd, messages, count, flags, limit));
    let Some(socket) = ours(fd) else { return block() };
    if is_bytes(&socket) {
        // SAFETY: the program's promise about the array and the time.
        return unsafe { each(fd, messages, count, flags, limit) };
    }
    if is_letters(&socket) && flags & libc::MSG_ERRQUEUE == 0 {
        // Without a mailbox, the kernel's own call moves many at a time; but the senders have to be
        // looked at now and then.
        let has_mailbox = filters::has(&socket) || datagram::store(&socket, fd).is_some();
        let looks = socket.traffic.kernel_count.fetch_add(1, Ordering::Relaxed) & 63 == 0;
        if has_mailbox || count == 1 || looks {
            // SAFETY: the program's promise about the array and the time.
            return unsafe { each(fd, messages, count, flags, limit) };
        }
    }
    let args = [
        fd as isize as usize,
        messages as usize,
        count as usize,
        (flags | libc::MSG_DONTWAIT) as usize,
        0,
        0,
    ];
    // SAFETY: the program's promise about the array.
    let attempt = || unsafe { raw::syscall(libc::SYS_recvmmsg, args) };
    if flags & libc::MSG_WAITFORONE == 0 && count > 1 {
        return block();
    }
    let now = flags & (libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) != 0 || !limit.is_null();
    if !limit.is_null() {
        return block();
    }
    int(kernel::receive(&socket, fd, now, attempt, || answer(block() as libc::ssize_t)))
}

/// Says of one of several messages how long it was. Returns false if there is no room for that.
fn put_len(message: *mut libc::mmsghdr, len: libc::ssize_t) -> bool {
    let at = message.wrapping_byte_add(std::mem::offset_of!(libc::mmsghdr, msg_len));
    // SAFETY: the program's promise: a header, in which we have no references.
    let is_there = unsafe { copy::write(at.cast(), len as c_uint) };
    if !is_there {
        raw::set_errno(Errno::FAULT);
    }
    is_there
}

/// Receives messages one by one, as `recvmmsg(2)` would all together.
///
/// # Safety
///
/// `messages` are `count` headers, `limit` is null or a time.
unsafe fn each(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut libc::timespec,
) -> c_int {
    // SAFETY: two integers, of which any are legal.
    let given = unsafe { copy::read(limit) };
    if given.is_none() && !limit.is_null() {
        raw::set_errno(Errno::FAULT);
        return -1;
    }
    let mut limit_ns = None;
    if let Some(limit) = given {
        let (seconds, ns) = (u64::try_from(limit.tv_sec), u64::try_from(limit.tv_nsec));
        let (Ok(seconds), Ok(ns @ 0..1_000_000_000)) = (seconds, ns) else {
            raw::set_errno(Errno(libc::EINVAL));
            return -1;
        };
        limit_ns = Some(seconds.saturating_mul(1_000_000_000).saturating_add(ns));
    }
    let start = raw::now_ns();
    let mut done = 0;
    while done < count {
        let one = flags & libc::MSG_WAITFORONE != 0 && done > 0;
        let now = if one { libc::MSG_DONTWAIT } else { 0 };
        // A thread that is cancelled takes no message with it.
        let _stays = one.then(raw::Uncancelled::new);
        let message = messages.wrapping_add(done as usize);
        let flags = flags & !libc::MSG_WAITFORONE | now;
        // SAFETY: the caller's promise: `count` headers, each the first field of its structure.
        let got = unsafe { recvmsg(fd, message.cast(), flags) };
        if got < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        if !put_len(message, got) {
            return if done > 0 { done as c_int } else { -1 };
        }
        done += 1;
        if limit_ns.is_some_and(|limit| raw::now_ns().saturating_sub(start) >= limit) {
            break;
        }
    }
    done as c_int
}

/// The most buffers that the kernel takes in one message.
const PARTS_KERNEL_MAX: usize = 1024;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
) -> libc::ssize_t {
    send_any(fd, &[one(bytes, len)], Destination::default, 0, || real!(write(fd, bytes, len)))
}

/// Counts what the kernel has sent for a socket of ours.
fn sent(socket: &SocketRef, count: libc::ssize_t) -> libc::ssize_t {
    if let Ok(count) = usize::try_from(count) {
        streak::end_run(socket);
        add(&socket.counters.tx_os_packets, 1);
        add(&socket.counters.tx_os_bytes, count);
    }
    count
}

/// The same, of these buffers: if not all of them went, there was no room.
fn sent_of(socket: &SocketRef, parts: &[libc::iovec], count: libc::ssize_t) -> libc::ssize_t {
    match usize::try_from(count).map_err(|_| raw::errno()) {
        Ok(count) if count == IoCursor::new(parts).remaining() => {}
        Ok(_) | Err(Errno::AGAIN) => socket.want_room(),
        Err(_) => socket.note_error_taken(),
    }
    sent(socket, count)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> libc::ssize_t {
    let call = || real!(writev(fd, parts, count));
    let Ok(number @ 1..=1024) = usize::try_from(count) else { return call() };
    // SAFETY: the program's promise about the array.
    let Some(list) = (unsafe { list(parts, number) }) else { return call() };
    send_any(fd, list, Destination::default, 0, call)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> libc::ssize_t {
    send_any(fd, &[one(bytes, len)], Destination::default, flags, || {
        real!(send(fd, bytes, len, flags))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> libc::ssize_t {
    let call = || real!(sendto(fd, bytes, len, flags, to, to_len));
    // SAFETY: the program's promise about the address.
    let destination = || unsafe { Destination::given(to, to_len) };
    send_any(fd, &[one(bytes, len)], destination, flags, call)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> libc::ssize_t {
    let call = || real!(sendmsg(fd, message, flags));
    if message.is_null() {
        return call();
    }
    // SAFETY: a header is numbers and pointers.
    let Some(header) = (unsafe { copy::read(message) }) else { return call() };
    let socket = table::socket(fd);
    let is_ours =
        socket.as_ref().is_some_and(|socket| may_ring(socket) || datagram::may_use_mailbox(socket));
    if !is_ours && is_dummy(flags) {
        return size(Err(Errno(libc::EINVAL)));
    }
    if !is_ours {
        let is_there = copy::is_readable(header.msg_control, header.msg_controllen);
        if !header.msg_control.is_null() && is_there {
            // SAFETY: the program's promise: a valid header, and what it points to is there.
            unsafe { each_passed(message, |passed| exec_target::hand_over(fd, passed)) };
        }
    }
    if let Some(socket) = socket.filter(|_| is_ours && header.msg_controllen > 0) {
        // It may be the size of segments: then one call is many datagrams.
        datagram::keep_to_kernel(&socket, fd);
        if socket.segment().is_some()
            && let Err(refused) = ask(&socket, fd, &header, flags & !libc::MSG_FASTOPEN)
        {
            return size(Err(refused));
        }
    }
    if header.msg_iovlen > PARTS_KERNEL_MAX {
        return call();
    }
    // SAFETY: the program's promise about the array.
    let list = unsafe { list(header.msg_iov, header.msg_iovlen) };
    let Some(list) = list else { return call() };
    // SAFETY: the program's promise about the address.
    let to = || unsafe { Destination::given(header.msg_name.cast(), header.msg_namelen) };
    send_any(fd, list, to, flags, call)
}

/// What the kernel says to control data and flags of a send on a connection with rings: they are passed to it without the
/// bytes. It says then as well, and never again, that the connection has been reset.
fn ask(socket: &SocketRef, fd: c_int, header: &libc::msghdr, flags: c_int) -> Result<(), Errno> {
    let (msg_iov, msg_iovlen) = (std::ptr::null_mut(), 0);
    let empty = libc::msghdr { msg_iov, msg_iovlen, msg_namelen: 0, ..*header };
    let asked = flags & libc::MSG_FASTOPEN | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the program's promise about its control data; there is nothing else.
    let error = match unsafe { raw::sendmsg(fd, &raw const empty, asked) } {
        Ok(_) | Err(Errno::AGAIN) => return Ok(()),
        Err(error) => stream::told(socket, error),
    };
    if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
        raw::raise(libc::SIGPIPE);
    }
    Err(error)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let is_ours = |socket: &SocketRef| {
        may_ring(socket) || datagram::may_use_mailbox(socket) || socket.paced.is_on()
    };
    if !is_dummy(flags) && !table::socket(fd).is_some_and(|socket| is_ours(&socket)) {
        return real!(sendmmsg(fd, messages, count, flags));
    }
    let mut done = 0;
    while done < count {
        let message = messages.wrapping_add(done as usize);
        // SAFETY: the program's promise: `count` headers, each the first field of its structure.
        let sent = unsafe { sendmsg(fd, message.cast_const().cast(), flags) };
        if sent < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        if !put_len(message, sent) {
            return if done > 0 { done as c_int } else { -1 };
        }
        done += 1;
    }
    done as c_int
}

/// A position that says: where the descriptor is. Of a socket that is the only one.
const AS_IT_IS: i64 = -1;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> libc::ssize_t {
    if at == AS_IT_IS && flags == 0 && ours(fd).is_some() {
        // SAFETY: the program's promise about the array.
        return unsafe { readv(fd, parts, count) };
    }
    real!(preadv2(fd, parts, count, at, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> libc::ssize_t {
    // SAFETY: the program's own arguments; both positions are 64 bits wide.
    unsafe { preadv2(fd, parts, count, at, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> libc::ssize_t {
    if at == AS_IT_IS && flags == 0 && ours(fd).is_some() {
        // SAFETY: the program's promise about the array.
        return unsafe { writev(fd, parts, count) };
    }
    real!(pwritev2(fd, parts, count, at, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> libc::ssize_t {
    // SAFETY: the program's own arguments; both positions are 64 bits wide.
    unsafe { pwritev2(fd, parts, count, at, flags) }
}
