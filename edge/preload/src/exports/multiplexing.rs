//! Many descriptors at once: `select` to `epoll_pwait2`.
//!
//! # Safety
//!
//! The program calls these under the contracts of the C library's functions of the same names:
//! arrays have as many elements as it says, sets as many bits, and times and masks are valid or
//! null.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]

use std::ffi::c_int;
use std::path::Path;

use super::int;
use crate::base::raw::{self, Errno};
use crate::base::real::real;
use crate::base::{confined, copy};
use crate::socket::table;
use crate::socket::waits::Call;
use crate::transport::datagram;
use crate::wait::epoll::{self, Epoll};
use crate::wait::multiplex::{self, Sets};

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
    // SAFETY: two integers, of which any are legal.
    let Some(time) = (unsafe { copy::read(time) }) else { return Err(Errno::FAULT) };
    let libc::timespec { tv_sec, tv_nsec } = time;
    match (u64::try_from(tv_sec), u64::try_from(tv_nsec)) {
        (Ok(seconds), Ok(rest @ 0..=999_999_999)) => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: c_int,
) -> c_int {
    let number = count as usize;
    if fds.is_null() || number == 0 || number > MANY || confined::is_passthrough() {
        return real!(poll(fds, count, limit));
    }
    // SAFETY: the program's promise about the array.
    int(unsafe { poll_copied(fds, number, milliseconds(limit), None) })
}

/// Polls a copy of the program's array, since it may not be there, and need not be meanwhile.
///
/// # Safety
///
/// If anything is there, `fds` points to `count` elements.
unsafe fn poll_copied(
    fds: *mut libc::pollfd,
    count: usize,
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let (mut few, mut many) = ([nothing; FEW], Vec::new());
    let copied = match few.get_mut(..count) {
        Some(few) => few,
        None => {
            many.resize(count, nothing);
            &mut many[..]
        }
    };
    let bytes = size_of_val(copied);
    // SAFETY: as many bytes of ours; any are legal.
    if !unsafe { copy::copy(copied.as_mut_ptr().cast(), fds.cast(), bytes) } {
        return Err(Errno::FAULT);
    }
    let answer = multiplex::poll(Call::Poll, copied, limit_ns, mask)?;
    // SAFETY: as many bytes of ours, and the program's array, to which we have no references. Only what
    // happened is new, and no other thread may be writing there.
    let is_there = unsafe { copy::copy(fds.cast(), copied.as_ptr().cast(), bytes) };
    if is_there { Ok(answer) } else { Err(Errno::FAULT) }
}

/// Descriptors for a copy of which no memory is asked for.
const FEW: usize = 32;

/// A mask of signals; an error if it is not there.
///
/// # Safety
///
/// `mask` is null, or points to a mask if to anything.
unsafe fn mask_of<'a>(mask: *const libc::sigset_t) -> Result<Option<&'a libc::sigset_t>, Errno> {
    if !mask.is_null() && !copy::is_readable(mask.cast(), MASK_BYTES) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise: null, or a mask.
    Ok(unsafe { mask.as_ref() })
}

/// So much of a mask the kernel reads.
const MASK_BYTES: usize = 8;

/// More descriptors than the kernel lets a process poll at once by default.
const MANY: usize = 1 << 20;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: c_int,
    _room: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { poll(fds, count, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let number = count as usize;
    // SAFETY: the program's promise about the time.
    let time = unsafe { time(limit) };
    // SAFETY: the program's promise about the mask.
    let known_mask = unsafe { mask_of(mask) };
    let (false, Ok(limit_ns), Ok(known_mask)) = (
        fds.is_null() || number == 0 || number > MANY || confined::is_passthrough(),
        time,
        known_mask,
    ) else {
        return real!(ppoll(fds, count, limit, mask));
    };
    // SAFETY: the program's promise about the array.
    int(unsafe { poll_copied(fds, number, limit_ns, known_mask) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
    _room: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { ppoll(fds, count, limit, mask) }
}

/// The sets of `select`, copied: the program's may not be there.
struct Copied {
    /// The words of all three, one set behind the other.
    few: [u64; 3 * FEW_WORDS],
    many: Vec<u64>,
    /// Words of one set.
    words: usize,
    theirs: [*mut libc::fd_set; 3],
}

/// Words of a set for a copy of which no memory is asked for: as many as `fd_set` has.
const FEW_WORDS: usize = 16;

impl Copied {
    /// # Safety
    ///
    /// Each set is null, or has `count` bits in whole words if anything is there.
    unsafe fn new(count: usize, theirs: [*mut libc::fd_set; 3]) -> Result<Self, Errno> {
        let words = count.div_ceil(64);
        let mut copied = Self { few: [0; 3 * FEW_WORDS], many: Vec::new(), words, theirs };
        if words > FEW_WORDS {
            copied.many.resize(3 * words, 0);
        }
        for (ours, theirs) in copied.each().into_iter().zip(theirs) {
            let bytes = size_of_val(ours);
            // SAFETY: as many bytes of ours; any are legal.
            let mut is_there =
                || unsafe { copy::copy(ours.as_mut_ptr().cast(), theirs.cast(), bytes) };
            if !theirs.is_null() && !is_there() {
                return Err(Errno::FAULT);
            }
        }
        Ok(copied)
    }

    fn each(&mut self) -> [&mut [u64]; 3] {
        let all = if self.many.is_empty() { &mut self.few[..] } else { &mut self.many[..] };
        let (first, rest) = all.split_at_mut(self.words);
        let (second, rest) = rest.split_at_mut(self.words);
        let (third, _) = rest.split_at_mut(self.words);
        [first, second, third]
    }

    fn sets(&mut self) -> Sets<'_> {
        let [has_read, has_write, has_except] = self.theirs.map(|set| !set.is_null());
        let [read, write, except] = self.each();
        Sets {
            read: has_read.then_some(read),
            write: has_write.then_some(write),
            except: has_except.then_some(except),
        }
    }

    /// Gives the program what has become of its sets.
    fn give_back(mut self) -> Result<(), Errno> {
        let theirs = self.theirs;
        for (ours, theirs) in self.each().into_iter().zip(theirs) {
            let bytes = size_of_val(ours);
            // SAFETY: as many bytes of ours, and the program's set, to which we have no references.
            let is_there = || unsafe { copy::copy(theirs.cast(), ours.as_ptr().cast(), bytes) };
            if !theirs.is_null() && !is_there() {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }
}

/// `select` on copies of the program's sets; `None` if it is for the kernel alone.
///
/// # Safety
///
/// Each set is null, or has `count` bits in whole words if anything is there.
unsafe fn select_copied(
    count: c_int,
    theirs: [*mut libc::fd_set; 3],
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<Result<usize, Errno>> {
    let Ok(number @ 1..=SETS_MAX) = usize::try_from(count) else { return None };
    let number = within_table(number);
    // SAFETY: the caller's promise.
    let mut copied = unsafe { Copied::new(number, theirs) }.ok()?;
    if !multiplex::knows_any(number, &copied.sets()) {
        return None;
    }
    let answer = multiplex::select(number, copied.sets(), limit_ns, mask);
    Some(answer.and_then(|answer| copied.give_back().map(|()| answer)))
}

/// Numbers that `select` is asked about, as far as there are descriptors: programs give the most that there may ever be,
/// and the kernel looks at no more of their sets than its table of descriptors is long.
fn within_table(count: usize) -> usize {
    let last = || c_int::try_from(count - 1).unwrap_or(c_int::MAX);
    if count <= FEW_WORDS * 64 || raw::file_flags(last()).is_ok() {
        return count;
    }
    let names = raw::names(Path::new("/proc/self/fd"), SETS_MAX).unwrap_or_default();
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse::<usize>().ok());
    let end = numbers.max().map_or(0, |last| last + 1);
    count.min(end.max(FEW_WORDS * 64))
}

/// More descriptors than there can be.
const SETS_MAX: usize = c_int::MAX as usize;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *mut libc::timeval,
) -> c_int {
    let call = || real!(select(count, read, write, except, limit));
    let limit_ns = if limit.is_null() {
        None
    } else {
        // SAFETY: two integers, of which any are legal.
        let Some(time) = (unsafe { copy::read(limit) }) else { return call() };
        let libc::timeval { tv_sec, tv_usec } = time;
        let (Ok(seconds), Ok(micros)) = (u64::try_from(tv_sec), u64::try_from(tv_usec)) else {
            return call();
        };
        Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1000)))
    };
    let start = raw::now_ns();
    // SAFETY: the program's promise about its sets.
    let answer = unsafe { select_copied(count, [read, write, except], limit_ns, None) };
    let Some(answer) = answer else { return call() };
    if let Some(limit_ns) = limit_ns {
        // Linux leaves there what is left.
        let left = limit_ns.saturating_sub(raw::now_ns().saturating_sub(start)) / 1000;
        let left =
            libc::timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
        // SAFETY: the program's promise: not null, so room for a time. If there is none, so be it.
        let _ = unsafe { copy::write(limit, left) };
    }
    int(answer)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let call = || real!(pselect(count, read, write, except, limit, mask));
    // SAFETY: the program's promise about the time.
    let limit_ns = unsafe { time(limit) };
    // SAFETY: the program's promise about the mask.
    let known_mask = unsafe { mask_of(mask) };
    let (Ok(limit_ns), Ok(known_mask)) = (limit_ns, known_mask) else { return call() };
    // SAFETY: the program's promise about its sets.
    let answer = unsafe { select_copied(count, [read, write, except], limit_ns, known_mask) };
    answer.map_or_else(call, int)
}

fn created(epfd: c_int) -> c_int {
    if epfd >= 0 && !confined::is_passthrough() {
        epoll::set(epfd, Epoll::create());
    }
    epfd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    created(real!(epoll_create(size)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    created(real!(epoll_create1(flags)))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let Some(epoll) = epoll::of(epfd).filter(|_| !event.is_null() || op == libc::EPOLL_CTL_DEL)
    else {
        // An instance that is not known here wakes its sleepers by the kernel's events alone.
        if let Some(socket) = table::socket(fd) {
            datagram::keep_to_kernel(&socket, fd);
        }
        return real!(epoll_ctl(epfd, op, fd, event));
    };
    let nothing = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: two integers, of which any are legal.
    let event = match unsafe { copy::read(event) } {
        None if op != libc::EPOLL_CTL_DEL => {
            raw::set_errno(Errno::FAULT);
            return -1;
        }
        event => event.unwrap_or(nothing),
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
    let (Some(epoll), Ok(most @ 1..)) = (epoll::of(epfd), usize::try_from(most)) else {
        return call();
    };
    // SAFETY: the program's promise about the mask.
    let Ok(mask) = (unsafe { mask_of(mask) }) else { return call() };
    let end = most.checked_mul(EVENT_BYTES).and_then(|bytes| events.addr().checked_add(bytes));
    if most > MOST_EVENTS || end.is_none_or(|end| end > USERS_END) {
        return call();
    }
    if !copy::is_writable(events.cast(), EVENT_BYTES) {
        // That shows when there is something to write.
        let mut one = [libc::epoll_event { events: 0, u64: 0 }];
        let answer = epoll.wait(epfd, &mut one, limit_ns, mask);
        return int(answer.and_then(|count| if count > 0 { Err(Errno::FAULT) } else { Ok(0) }));
    }
    // SAFETY: the program's promise: room for so many events. Behind the first, it is looked at before
    // anything is written there.
    let events = unsafe { std::slice::from_raw_parts_mut(events, most) };
    int(epoll.wait(epfd, events, limit_ns, mask))
}

const EVENT_BYTES: usize = size_of::<libc::epoll_event>();
/// More events than that the kernel refuses to give at once.
const MOST_EVENTS: usize = c_int::MAX as usize / EVENT_BYTES;
/// Where memory begins that no program has.
const USERS_END: usize = 1 << 47;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: c_int,
) -> c_int {
    wait(epfd, events, most, milliseconds(limit), std::ptr::null(), || {
        real!(epoll_wait(epfd, events, most, limit))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    wait(epfd, events, most, milliseconds(limit), mask, || {
        real!(epoll_pwait(epfd, events, most, limit, mask))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let call = || real!(epoll_pwait2(epfd, events, most, limit, mask));
    // SAFETY: the program's promise about the time.
    let Ok(limit_ns) = (unsafe { time(limit) }) else { return call() };
    wait(epfd, events, most, limit_ns, mask, call)
}
