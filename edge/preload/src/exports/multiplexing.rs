//! Many descriptors at once: `select` to `epoll_pwait2`.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names:
//! arrays have as many elements as it says, sets as many bits, and times and masks are valid or
//! null.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::c_int;

use super::int;
use crate::epoll::Epoll;
use crate::multiplex::{self, Sets};
use crate::raw::Errno;
use crate::real::real;
use crate::{datagram, raw, table};

/// Milliseconds, of which fewer than none are for ever.
fn milliseconds(count: c_int) -> Option<u64> {
    u64::try_from(count).ok().map(|count| count * 1_000_000)
}

/// A time; `None` if there is none, an error if it is not a time.
///
/// # Safety
///
/// `time` is null or points to one.
unsafe fn time(time: *const libc::timespec) -> Result<Option<u64>, Errno> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let libc::timespec { tv_sec, tv_nsec } = unsafe { time.read() };
    match (u64::try_from(tv_sec), u64::try_from(tv_nsec)) {
        (Ok(seconds), Ok(rest @ 0..=999_999_999)) => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, limit: c_int) -> c_int {
    let number = count as usize;
    if fds.is_null() || number == 0 || number > MANY {
        return real!(
            c"poll" as fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
            fds,
            count,
            limit
        );
    }
    // SAFETY: the program's promise about the array.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, number) };
    int(multiplex::poll(fds, milliseconds(limit), None))
}

/// More descriptors than the kernel lets anybody poll at once by default.
const MANY: usize = 1 << 20;

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: c_int,
    _room: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { poll(fds, count, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let number = count as usize;
    // SAFETY: the program's promise about the time.
    let time = unsafe { time(limit) };
    let (false, Ok(limit_ns)) = (fds.is_null() || number == 0 || number > MANY, time) else {
        return real!(
            c"ppoll"
                as fn(
                    *mut libc::pollfd,
                    libc::nfds_t,
                    *const libc::timespec,
                    *const libc::sigset_t,
                ) -> c_int,
            fds,
            count,
            limit,
            mask
        );
    };
    // SAFETY: the program's promise about the array.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, number) };
    // SAFETY: the program's promise: null, or a mask.
    int(multiplex::poll(fds, limit_ns, unsafe { mask.as_ref() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
    _room: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { ppoll(fds, count, limit, mask) }
}

/// One set of `select`, as words.
///
/// # Safety
///
/// `set` is null or has `count` bits, in whole words.
unsafe fn words<'a>(set: *mut libc::fd_set, count: usize) -> Option<&'a mut [u64]> {
    if set.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; a set is an array of words.
    Some(unsafe { std::slice::from_raw_parts_mut(set.cast::<u64>(), count.div_ceil(64)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *mut libc::timeval,
) -> c_int {
    let call = || {
        real!(
            c"select"
                as fn(
                    c_int,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut libc::timeval,
                ) -> c_int,
            count,
            read,
            write,
            except,
            limit
        )
    };
    let Ok(number @ 1..=MANY) = usize::try_from(count) else { return call() };
    // SAFETY: the program's promise about its sets.
    let sets = unsafe { sets(number, read, write, except) };
    if !multiplex::knows_any(number, &sets) {
        return call();
    }
    let limit_ns = if limit.is_null() {
        None
    } else {
        // SAFETY: the program's promise: null, or a time.
        let libc::timeval { tv_sec, tv_usec } = unsafe { limit.read() };
        let (Ok(seconds), Ok(micros)) = (u64::try_from(tv_sec), u64::try_from(tv_usec)) else {
            return call();
        };
        Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1000)))
    };
    let start = raw::now_ns();
    let answer = multiplex::select(number, sets, limit_ns, None);
    if let Some(limit_ns) = limit_ns {
        // Linux leaves there what is left.
        let left = limit_ns.saturating_sub(raw::now_ns().saturating_sub(start)) / 1000;
        let left =
            libc::timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
        // SAFETY: the program's promise: not null, so room for a time.
        unsafe { limit.write(left) };
    }
    int(answer)
}

/// The three sets of a call.
///
/// # Safety
///
/// Each is null or has `count` bits, in whole words, and no two are the same.
unsafe fn sets<'a>(
    count: usize,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
) -> Sets<'a> {
    // SAFETY: the caller's promise.
    let read = unsafe { words(read, count) };
    // SAFETY: the caller's promise.
    let write = unsafe { words(write, count) };
    // SAFETY: the caller's promise.
    let except = unsafe { words(except, count) };
    Sets { read, write, except }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let call = || {
        real!(
            c"pselect"
                as fn(
                    c_int,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *mut libc::fd_set,
                    *const libc::timespec,
                    *const libc::sigset_t,
                ) -> c_int,
            count,
            read,
            write,
            except,
            limit,
            mask
        )
    };
    // SAFETY: the program's promise about the time.
    let (Ok(number @ 1..=MANY), Ok(limit_ns)) = (usize::try_from(count), unsafe { time(limit) })
    else {
        return call();
    };
    // SAFETY: the program's promise about its sets.
    let sets = unsafe { sets(number, read, write, except) };
    if !multiplex::knows_any(number, &sets) {
        return call();
    }
    // SAFETY: the program's promise: null, or a mask.
    int(multiplex::select(number, sets, limit_ns, unsafe { mask.as_ref() }))
}

fn created(epfd: c_int) -> c_int {
    if epfd >= 0 {
        table::set_epoll(epfd, Epoll::create());
    }
    epfd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    created(real!(c"epoll_create" as fn(c_int) -> c_int, size))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    created(real!(c"epoll_create1" as fn(c_int) -> c_int, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let Some(epoll) = table::epoll(epfd).filter(|_| !event.is_null() || op == libc::EPOLL_CTL_DEL)
    else {
        // An instance that is not known here wakes its sleepers by the kernel's events alone.
        if let Some(slot) = table::socket(fd) {
            datagram::keep_to_kernel(&slot, fd);
        }
        return real!(
            c"epoll_ctl" as fn(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
            epfd,
            op,
            fd,
            event
        );
    };
    let event = if event.is_null() {
        libc::epoll_event { events: 0, u64: 0 }
    } else {
        // SAFETY: the program's promise: not null, so an event.
        unsafe { event.read() }
    };
    int(epoll.control(epfd, op, fd, event))
}

fn wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit_ns: Option<u64>,
    mask: *const libc::sigset_t,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(epoll), Ok(most @ 1..)) = (table::epoll(epfd), usize::try_from(most)) else {
        return call();
    };
    if events.is_null() {
        return call();
    }
    // SAFETY: the program's promise: room for so many events.
    let events = unsafe { std::slice::from_raw_parts_mut(events, most) };
    // SAFETY: the program's promise: null, or a mask.
    int(epoll.wait(epfd, events, limit_ns, unsafe { mask.as_ref() }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: c_int,
) -> c_int {
    wait(epfd, events, most, milliseconds(limit), std::ptr::null(), || {
        real!(
            c"epoll_wait" as fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
            epfd,
            events,
            most,
            limit
        )
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    wait(epfd, events, most, milliseconds(limit), mask, || {
        real!(
            c"epoll_pwait"
                as fn(c_int, *mut libc::epoll_event, c_int, c_int, *const libc::sigset_t) -> c_int,
            epfd,
            events,
            most,
            limit,
            mask
        )
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let call = || {
        real!(
            c"epoll_pwait2"
                as fn(
                    c_int,
                    *mut libc::epoll_event,
                    c_int,
                    *const libc::timespec,
                    *const libc::sigset_t,
                ) -> c_int,
            epfd,
            events,
            most,
            limit,
            mask
        )
    };
    // SAFETY: the program's promise about the time.
    let Ok(limit_ns) = (unsafe { time(limit) }) else { return call() };
    wait(epfd, events, most, limit_ns, mask, call)
}
