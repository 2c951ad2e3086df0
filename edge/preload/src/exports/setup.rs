//! Sockets made, connected, accepted, and their options.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names:
//! addresses, option values and lengths that it passes are valid for as long as the call lasts.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use super::{bytes, extra};
use crate::base::raw::{self, Errno};
use crate::base::real::real;
use crate::base::{address, config, copy};
use crate::exports::extra::xtreme;
use crate::share::{closing, sockets, stats};
use crate::socket::policy::{self, is_plain};
use crate::socket::state::{Kind, Socket};
use crate::socket::table::{self, SocketRef};
use crate::socket::{memberships, pacing};
use crate::transport::xdp::streams;
use crate::transport::{datagram, fallback, kernel, park, stream};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = real!(socket(domain, kind, protocol));
    // Multipath TCP and others of the same domain and kind are not what we know.
    if fd >= 0 && [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP].contains(&protocol) {
        sockets::made(fd, domain, kind);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(
    fd: c_int,
    to: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    raw::cancellation_point();
    let socket = table::socket(fd).filter(|_| !crate::base::vfork::is_child());
    // SAFETY: an integer, of which any is legal.
    let family = unsafe { copy::read(to.cast::<libc::sa_family_t>()) };
    let is_none = family.map(c_int::from) == Some(libc::AF_UNSPEC);
    // Of one that has been reset here the kernel would make another connection.
    let is_over = |socket: &SocketRef| socket.segment().is_some() && raw::is_over(fd);
    if family.is_some() && !is_none && socket.as_ref().is_some_and(is_over) {
        raw::set_errno(Errno(libc::EISCONN));
        return -1;
    }
    if let Some(socket) = &socket {
        // SAFETY: the program's promise about the address.
        let peer = unsafe { address::given(to, len) };
        sockets::connecting(socket, fd, peer);
    }
    let on_its_way = socket.as_deref().map(|socket| OnItsWay { socket, fd });
    let answer = real!(connect(fd, to, len));
    std::mem::forget(on_its_way);
    if let Some(socket) = socket {
        let errno = raw::errno();
        let ended = if answer == 0 { 0 } else { errno.0 };
        if is_none && answer == 0 && socket.kind() == Kind::Stream {
            closing::disconnected(&socket, fd);
        }
        sockets::connected(&socket, fd, ended);
        xtreme::attach(&socket, fd);
        raw::set_errno(errno);
    }
    answer
}

/// A connection is being made: if the thread is cancelled meanwhile, it goes on, as after an interruption.
#[derive(Debug)]
struct OnItsWay<'a> {
    socket: &'a Socket,
    fd: c_int,
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        sockets::connected(self.socket, self.fd, libc::EINTR);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(
    fd: c_int,
    to: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    let answer = real!(bind(fd, to, len));
    if let Some(socket) = table::socket(fd).filter(|_| answer == 0) {
        if socket.kind() == Kind::Datagram {
            policy::judge(&socket, fd, adverb_sockconf::Role::UdpReceiver, None);
            datagram::bound(&socket, fd);
        }
        xtreme::attach(&socket, fd);
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let answer = real!(listen(fd, backlog));
    if let Some(socket) = table::socket(fd).filter(|_| answer == 0) {
        sockets::listening(&socket, fd);
        xtreme::attach(&socket, fd);
    }
    answer
}

/// The program's promises hold for `from` and `len`, where `call` has the kernel put the peer's address.
unsafe fn accept_with(
    fd: c_int,
    flags: c_int,
    (from, len): (*const libc::sockaddr, *const libc::socklen_t),
    call: impl FnOnce() -> c_int,
) -> c_int {
    let listener = table::socket(fd).filter(|socket| socket.kind() == Kind::Listener);
    let Some(listener) = listener else { return call() };
    if !is_plain(&listener)
        && let Err(error) = kernel::spin_until_readable(&listener, fd)
    {
        raw::set_errno(error);
        return -1;
    }
    let new = call();
    if new >= 0 {
        let errno = raw::errno();
        // Whatever had this number before was closed behind our back.
        table::clear(new).map(Socket::release).unwrap_or(());
        // SAFETY: where there is an address, the kernel has just written its length.
        let len = if from.is_null() { None } else { unsafe { len.as_ref() } };
        // SAFETY: the kernel has just written there; of a shorter buffer the rest means nothing, and costs rings at most.
        let peer = len.and_then(|len| unsafe { address::given(from, *len) });
        let is_near = peer.is_some_and(|peer| peer.ip().is_loopback());
        sockets::accepted(&listener, new, flags, is_near);
        raw::set_errno(errno);
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    from: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let call = || real!(accept(fd, from, len));
    // SAFETY: the program's own promises.
    unsafe { accept_with(fd, 0, (from, len), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    let call = || real!(accept4(fd, from, len, flags));
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return call();
    }
    // SAFETY: the program's own promises.
    unsafe { accept_with(fd, flags, (from, len), call) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let kernel = || real!(shutdown(fd, how));
    let Some(socket) = table::socket(fd) else { return kernel() };
    datagram::keep_to_kernel(&socket, fd);
    fallback::advance(&socket, fd);
    let known = [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR].contains(&how);
    if known && closing::state_of(&socket) == Some(closing::State::Close) {
        raw::set_errno(Errno(libc::ENOTCONN));
        return -1;
    }
    if !known || socket.kind() != Kind::Stream || closing::shut(&socket, fd, how) {
        return kernel();
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let state = table::socket(fd).and_then(|socket| closing::state_of(&socket));
    if state == Some(closing::State::Close) {
        raw::set_errno(Errno(libc::ENOTCONN));
        return -1;
    }
    real!(getpeername(fd, to, len))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    bytes::warm_by_name(fd);
    real!(getsockname(fd, to, len))
}

/// `SO_VMA_SHUTDOWN_RX`: as `shutdown(2)` in that direction.
pub(super) fn stop_receiving(fd: c_int) -> c_int {
    // SAFETY: plain numbers.
    unsafe { shutdown(fd, libc::SHUT_RD) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let call = |value: *const c_void| real!(setsockopt(fd, level, name, value, len));
    let Some(socket) = table::socket(fd) else { return call(value) };
    if level == libc::SOL_SOCKET {
        // SAFETY: the program's promise about the value.
        let ours = unsafe { extra::set_option(fd, &socket, name, value, len as usize) };
        if let Some(answer) = ours {
            return super::int(answer);
        }
    }
    let needs_kernel = (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP);
    if needs_kernel {
        sockets::give_back(&socket, fd);
    }
    let filters =
        [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_DETACH_FILTER, libc::SO_LOCK_FILTER];
    // While frames carry a connection, its socket has a filter of this library's.
    if level == libc::SOL_SOCKET && filters.contains(&name) && !sockets::may_filter(&socket, fd) {
        raw::set_errno(Errno(libc::EBUSY));
        return -1;
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) {
        let call = |value: *const c_void, len: libc::socklen_t| {
            real!(setsockopt(fd, level, name, value, len))
        };
        // SAFETY: the program's promise about the value.
        let answer = unsafe { pacing::set(&socket.paced, value, len as usize, call) };
        if answer == 0 {
            sockets::option_set(&socket, fd, level, name);
        }
        return answer;
    }
    let is_buffer = (level, name) == (libc::SOL_SOCKET, libc::SO_RCVBUF);
    let answer = if is_buffer && len as usize >= size_of::<c_int>() && !value.is_null() {
        // SAFETY: the program's promise: `len` bytes, which is at least an integer; any is legal.
        match unsafe { copy::read(value.cast::<c_int>()) } {
            Some(wanted) => {
                let least = wanted.max(config::get().receive_buffer_min);
                call((&raw const least).cast())
            }
            None => call(value),
        }
    } else {
        call(value)
    };
    if answer == 0 {
        if socket.kind() == Kind::Datagram && !value.is_null() {
            let mut bytes = [0; memberships::OPTION_BYTES];
            let len = bytes.len().min(len as usize);
            // SAFETY: the program's promise, and the kernel has just read so many bytes there.
            if unsafe { copy::copy(bytes.as_mut_ptr(), value.cast(), len) } {
                memberships::option_set(&socket, level, name, bytes.get(..len).unwrap_or(&[]));
            }
        }
        if (level, name) == (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) {
            // SAFETY: the kernel has just read so many bytes there.
            let by = unsafe { interface(value, len as usize) };
            socket.datagrams.multicast_by.store(by, Ordering::Relaxed);
        }
        sockets::option_set(&socket, fd, level, name);
    }
    answer
}

/// The interface that `IP_MULTICAST_IF` names: an address, and an index above it. It comes in three
/// forms, by length.
///
/// # Safety
///
/// `value` points to `len` readable bytes, at least four.
unsafe fn interface(value: *const c_void, len: usize) -> u64 {
    let word = |at: usize| {
        // SAFETY: the caller's promise; the forms of that length have a word there.
        unsafe { value.cast::<u32>().wrapping_add(at).read_unaligned() }
    };
    let (addr, index) = match len {
        12.. => (word(1), word(2)),
        8.. => (word(1), 0),
        _ => (word(0), 0),
    };
    u64::from(addr) | u64::from(index) << 32
}

/// Changes an option's value, as far as the program has room for it.
///
/// # Safety
///
/// The kernel has just written the value and its length.
unsafe fn amend(value: *mut c_void, len: *const libc::socklen_t, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    let count = unsafe { len.read_unaligned() } as usize;
    // SAFETY: the caller's promise: there is room for so many bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), count.min(bytes.len())) };
}

/// `TCP_ESTABLISHED`: what the kernel says of a connection one of whose directions is shut in the rings.
const ESTABLISHED: u8 = 1;
/// By which the daemon has the dead cleaned up after.
const CLEAN_UP: c_int = 2899;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    if (fd, level, name) == (-1, libc::SOL_SOCKET, extra::GET_API) {
        // SAFETY: the program's promise: room for a pointer, and a length.
        return unsafe { extra::get_api(value, len) };
    }
    if (fd, level, name) == (-1, libc::SOL_SOCKET, CLEAN_UP) {
        stats::tidy_up(true);
        return 0;
    }
    if level == libc::SOL_SOCKET
        && let Some(socket) = table::socket(fd)
    {
        // SAFETY: the program's promise about the value and its length.
        if let Some(answer) = unsafe { extra::option(fd, &socket, name, value, len) } {
            return super::int(answer);
        }
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(socket) = table::socket(fd).filter(|socket| socket.segment().is_some())
    {
        park::look_at_kernel(&socket, fd);
    }
    let answer = real!(getsockopt(fd, level, name, value, len));
    let Some(socket) = table::socket(fd).filter(|_| answer == 0) else { return answer };
    if datagram::is_hidden(&socket, fd, level, name) {
        // SAFETY: the kernel has just written both.
        unsafe { amend(value, len, &[0]) };
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) && socket.mapped().is_some() {
        // Bells need it on; the program sees what it has set.
        let bytes = c_int::from(socket.flags.nodelay.load(Ordering::Relaxed)).to_ne_bytes();
        // SAFETY: the kernel has just written both.
        unsafe { amend(value, len, &bytes) };
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_KEEPALIVE)
        && let Some(on) = streams::keeps_alive(&socket)
    {
        // SAFETY: the kernel has just written both.
        unsafe { amend(value, len, &c_int::from(on).to_ne_bytes()) };
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && let Some(state) = closing::state_of(&socket)
    {
        // SAFETY: the kernel has just written at least a byte, if the program has asked for one.
        let kernels = unsafe { copy::read(value.cast::<u8>()) };
        if kernels == Some(ESTABLISHED) || state == closing::State::Close {
            // SAFETY: the kernel has just written both.
            unsafe { amend(value, len, &[state as u8]) };
        }
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && socket.segment().is_some() {
        // SAFETY: the kernel has just written an integer there, or a part of one.
        let error = unsafe { copy::read(value.cast::<c_int>()) }.filter(|error| *error > 0);
        if let Some(error) = error {
            let bytes = stream::told(&socket, Errno(error)).0.to_ne_bytes();
            // SAFETY: the kernel has just written both.
            unsafe { amend(value, len, &bytes) };
        }
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        socket.note_error_taken();
        if let Some(error) = stream::take_error(&socket, fd) {
            // SAFETY: the kernel has just written both.
            unsafe { amend(value, len, &error.0.to_ne_bytes()) };
        }
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && socket.kind() == Kind::Connecting {
        fallback::advance(&socket, fd);
    }
    answer
}
