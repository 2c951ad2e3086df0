//! Descriptors closed, copied and asked about.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names.
//! `fcntl` and `ioctl` take one argument more, whose type depends on the command; on the machines we
//! know it is passed like a third word, and is passed on as it came.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::Ordering;

use adverb_switchover::{Route, Source};

use crate::base::raw::{self, Errno};
use crate::base::real::real;
use crate::base::{copy, vfork};
use crate::exports::extra::xtreme;
use crate::share::{closing, exec_target, sockets};
use crate::socket::table;
use crate::transport::{datagram, doorbell, xdp};
use crate::wait::epoll;

/// Before a descriptor is closed, however that comes.
fn closes(fd: c_int) {
    doorbell::closes(fd..=fd);
    xtreme::closes(&(fd..=fd));
    if (table::socket(fd).is_some() || epoll::of(fd).is_some()) && !vfork::is_child() {
        let errno = raw::errno();
        xtreme::leaves(fd);
        closing::forget(fd);
        raw::set_errno(errno);
    }
}

/// A descriptor has been made that stands for what another does.
fn copied(old: c_int, new: c_int) {
    if new < 0 || new == old || vfork::is_child() {
        return;
    }
    table::clear(new).map(crate::socket::state::Socket::release).unwrap_or(());
    if let Some(socket) = table::socket(old) {
        socket.retain();
        table::set_socket(new, socket.socket());
    } else if let Some(epoll) = epoll::of(old) {
        epoll::set(new, epoll);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // A thread that has been cancelled leaves it open, or closes it altogether.
    raw::cancellation_point();
    let _stays = raw::Uncancelled::new();
    if xdp::owns(&(fd..=fd)) {
        // To the program there is none.
        raw::set_errno(Errno(libc::EBADF));
        return -1;
    }
    closes(fd);
    real!(close(fd))
}

/// The name service closes its sockets by this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __res_iclose(state: *mut std::ffi::c_void, free: c_int) -> c_int {
    // Its sockets are made within the C library, and are not known here.
    real!(__res_iclose(state, free))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    let new = real!(dup(old));
    copied(old, new);
    new
}

/// Whether a descriptor is open.
fn is_open(fd: c_int) -> bool {
    raw::file_flags(fd).is_ok()
}

/// The first three descriptors are those that streams and programs use which do not know us.
fn standard(old: c_int, new: c_int) {
    if (libc::STDIN_FILENO..=libc::STDERR_FILENO).contains(&new) {
        exec_target::prepare_standard(old);
    }
}

/// A number that nothing can be put in the place of: what lies there is this library's own.
fn is_occupied(new: c_int) -> Option<c_int> {
    xdp::owns(&(new..=new)).then(|| {
        raw::set_errno(Errno(libc::EBUSY));
        -1
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if let Some(refused) = is_occupied(new) {
        return refused;
    }
    if old != new && is_open(old) {
        closes(new);
        standard(old, new);
    }
    let got = real!(dup2(old, new));
    copied(old, got);
    got
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if let Some(refused) = is_occupied(new) {
        return refused;
    }
    if old != new && is_open(old) && flags & !libc::O_CLOEXEC == 0 {
        closes(new);
        standard(old, new);
    }
    let got = real!(dup3(old, new, flags));
    copied(old, got);
    got
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let (cloexec, unshare) =
        (libc::CLOSE_RANGE_CLOEXEC as c_int, libc::CLOSE_RANGE_UNSHARE as c_int);
    // A wrong call closes nothing.
    let closes_all = flags & cloexec == 0 && flags & !unshare == 0 && first <= last;
    let number = |fd| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let others_keep_theirs = flags & unshare != 0 && raw::has_threads();
    if closes_all {
        doorbell::closes(number(first)..=number(last));
        if !others_keep_theirs {
            xtreme::closes(&(number(first)..=number(last)));
        }
    }
    if closes_all && !vfork::is_child() {
        let each = if others_keep_theirs { exec_target::prepare_standard } else { closes };
        table::each(first as usize, last as usize, each);
    }
    if !closes_all || !xdp::owns(&(number(first)..=number(last))) {
        return real!(close_range(first, last, flags));
    }
    let mut answer = 0;
    xdp::without_own(number(first)..=number(last), |first, last| {
        let last = if last == c_int::MAX { c_uint::MAX } else { last.cast_unsigned() };
        answer |= real!(close_range(first.cast_unsigned(), last, flags));
    });
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: plain numbers.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// Signals of a socket come from the kernel.
fn signals(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        datagram::keep_to_kernel(&socket, fd);
    }
}

/// `O_ASYNC`: the same, of connections too.
fn signals_all(fd: c_int) {
    signals(fd);
    if let Some(socket) = table::socket(fd) {
        sockets::give_back(&socket, fd);
    }
}

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

fn control(fd: c_int, command: c_int, argument: usize, call: impl FnOnce() -> c_int) -> c_int {
    let answer = call();
    if answer < 0 {
        return answer;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, answer),
        libc::F_SETOWN | F_SETOWN_EX | F_SETSIG => signals(fd),
        libc::F_SETFL => {
            if argument as c_int & libc::O_ASYNC != 0 {
                signals_all(fd);
            }
            if let Some(socket) = table::socket(fd) {
                let on = argument as c_int & libc::O_NONBLOCK != 0;
                socket.flags.is_nonblocking.store(on, Ordering::Relaxed);
            }
        }
        _ => {}
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument, || real!(fcntl(fd, command, argument)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    control(fd, command, argument, || real!(fcntl64(fd, command, argument)))
}

const SIOCGSTAMP: c_ulong = 0x8906;
const SIOCGSTAMPNS: c_ulong = 0x8907;
const SIOCGSTAMP_NEW: c_ulong = 0x8010_8906;
const SIOCGSTAMPNS_NEW: c_ulong = 0x8010_8907;

/// Answers with a number, where the program wants it.
fn put(target: *mut c_int, number: c_int) -> c_int {
    // SAFETY: the program's promise: room for an integer; if it is not kept, that is an error.
    if unsafe { copy::write(target, number) } {
        return 0;
    }
    raw::set_errno(Errno::FAULT);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let call = || real!(ioctl(fd, request, argument));
    let Some(socket) = table::socket(fd) else { return call() };
    let target = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
    match request {
        libc::FIONBIO => {
            let answer = call();
            if answer == 0 {
                // SAFETY: the kernel has just read an integer there.
                let on = unsafe { target.read() } != 0;
                socket.flags.is_nonblocking.store(on, Ordering::Relaxed);
            }
            answer
        }
        libc::FIOASYNC => {
            signals_all(fd);
            call()
        }
        // When the last datagram came: only what the kernel brings has a time there.
        SIOCGSTAMP | SIOCGSTAMPNS | SIOCGSTAMP_NEW | SIOCGSTAMPNS_NEW => {
            datagram::keep_to_kernel(&socket, fd);
            call()
        }
        libc::FIONREAD if datagram::may_use_mailbox(&socket) => {
            let Some(len) = datagram::next_len(&socket, fd) else { return call() };
            put(target, c_int::try_from(len).unwrap_or(c_int::MAX))
        }
        libc::FIONREAD if socket.segment().is_some() => {
            let Some(segment) = socket.segment() else { return call() };
            let ring = segment.incoming(socket.end()).available();
            let connection = segment.connection(&socket);
            let waiting = || raw::waiting(fd).unwrap_or(0);
            let at_most = |most: u64| usize::try_from(most).unwrap_or(usize::MAX);
            // Bells are no bytes of the program's.
            let kernel = match connection.source() {
                Source::Queue => waiting(),
                Source::Kernel(most) => waiting().min(at_most(most)),
                Source::Ring if socket.route() == Route::Leaving => {
                    waiting().saturating_sub(at_most(connection.incoming().pending_bells()))
                }
                Source::Ring => 0,
            };
            let count = c_int::try_from(ring.saturating_add(kernel)).unwrap_or(c_int::MAX);
            put(target, count)
        }
        libc::TIOCOUTQ if socket.segment().is_some() => {
            let answer = call();
            let Some(segment) = socket.segment().filter(|_| answer == 0) else { return answer };
            // What the peer has room for it has, as far as the kernel's count goes.
            let ring = segment.outgoing(socket.end());
            match ring.has_much_room() {
                true => answer,
                false => put(target, c_int::try_from(ring.available()).unwrap_or(c_int::MAX)),
            }
        }
        _ => call(),
    }
}
