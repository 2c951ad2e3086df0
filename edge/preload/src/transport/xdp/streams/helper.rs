//! The helper: a thread that takes steps when the program does not, so that segments are acknowledged and sent again.
//!
//! While threads of the program take steps, it looks every two milliseconds whether they still do, and no packet wakes
//! it. Otherwise it sleeps until packets come, or something is due.

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use adverb_sockconf::Level;
use adverb_sys::affinity;

use super::carrier::Carrier;
use super::{Process, step_all};
use crate::base::raw::Errno;
use crate::base::{config, log, ppoll, raw};
use crate::transport::fallback;

/// What the program's threads tell the helper.
#[derive(Debug)]
pub(super) struct Words {
    is_there: AtomicBool,
    /// 1: it naps, as the program takes steps.
    naps: AtomicU32,
    /// It sleeps until then, unless packets come.
    until_ns: AtomicU64,
    /// Wakes it from that.
    bell: AtomicI32,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            is_there: AtomicBool::new(false),
            naps: AtomicU32::new(0),
            until_ns: AtomicU64::new(0),
            bell: AtomicI32::new(-1),
        }
    }
}

/// Starts it, if it is not there, and says whether it is. A process without one goes on: its own threads take steps while they
/// wait. The lock may be held.
pub(super) fn start(process: &'static Process) -> bool {
    let words = &process.helper;
    if words.is_there.swap(true, Ordering::AcqRel) {
        wake(words);
        return true;
    }
    let is_there = try_to_start(process);
    words.is_there.store(is_there, Ordering::Release);
    is_there
}

fn try_to_start(process: &'static Process) -> bool {
    let words = &process.helper;
    let Ok(bell) = raw::eventfd_above(super::super::uplink::FD_MIN) else { return false };
    super::super::uplink::process().note_own(bell);
    words.bell.store(bell, Ordering::Release);
    let set = config::get().helper_cpuset.as_deref().and_then(open_set);
    // Signals are the program's: the new thread begins with all of them held back.
    let held = raw::hold_back_all();
    let name = "adverb-frames".to_owned();
    let started = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
        settle(set);
        help(process);
    });
    raw::set_mask(held);
    if started.is_err() {
        words.bell.store(-1, Ordering::Release);
        set.into_iter().chain([bell]).for_each(close);
    }
    started.is_ok()
}

fn warn(name: &str, error: &io::Error) {
    log::print(Level::Warning, || format!("{name}: {error}; the thread runs on any processor"));
}

fn warn_of_set(error: Errno) {
    warn("VMA_INTERNAL_THREAD_CPUSET", &io::Error::from_raw_os_error(error.0));
}

/// Opens the file by which a thread enters a set of processors. That is done in the program's call: a number of a descriptor
/// that another thread takes for a moment would be missing where the program next expects the lowest.
fn open_set(set: &str) -> Option<c_int> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let open = |name| {
        let path = CString::new(format!("{set}/{name}")).map_err(|_| Errno(libc::EINVAL))?;
        raw::open(&path, flags)
    };
    // As version 1 of control groups has it, and as version 2 does.
    let opened = open("tasks").or_else(|first| open("cgroup.threads").map_err(|_| first));
    let opened = opened.and_then(|file| {
        let own = raw::copy_above(file, super::super::uplink::FD_MIN);
        raw::close(file);
        own
    });
    let set = opened.inspect_err(|error| warn_of_set(*error)).ok()?;
    super::super::uplink::process().note_own(set);
    Some(set)
}

fn close(own: c_int) {
    super::super::uplink::process().forget_own(own);
    raw::close(own);
}

/// Goes where the program wants it to be: into a set of processors of the kernel's, and onto some of its processors.
fn settle(set: Option<c_int>) {
    if let Some(set) = set {
        let joined = raw::write(set, raw::thread_id().to_string().as_bytes());
        joined.map_or_else(warn_of_set, drop);
        close(set);
    }
    if let Some(processors) = &config::get().helper_processors {
        let pinned = affinity::pin_to_cpus(processors);
        pinned.unwrap_or_else(|error| warn("VMA_INTERNAL_THREAD_AFFINITY", &error));
    }
}

fn help(process: &'static Process) {
    let words = &process.helper;
    loop {
        let now = raw::now_ns();
        let_leave(process, now);
        let idle = now.saturating_sub(process.program_ns.load(Ordering::Relaxed));
        if idle < ACTIVE_NS {
            words.naps.store(1, Ordering::SeqCst);
            raw::sleep_on(&words.naps, 1, NAP_NS);
            words.naps.store(0, Ordering::SeqCst);
            continue;
        }
        let (mut fds, deadline) = process.carriers.with(|carriers| {
            for _ in 0..STEPS {
                if !step_all(carriers, raw::now_ns()) {
                    break;
                }
            }
            let now = raw::now_ns();
            let fds: Vec<c_int> = carriers
                .iter()
                .flat_map(|carrier| carrier.fds().map(|fd| fd.as_raw_fd()))
                .chain([words.bell.load(Ordering::Relaxed)])
                .collect();
            let deadline = carriers.iter().filter_map(|carrier| carrier.deadline_ns(now)).min();
            words.until_ns.store(deadline.unwrap_or(u64::MAX), Ordering::SeqCst);
            let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            (fds.into_iter().map(polled).collect::<Vec<_>>(), deadline)
        });
        let left = deadline.map(|deadline| deadline.saturating_sub(raw::now_ns()));
        let slept = ppoll::sleep(&mut fds, left, None);
        words.until_ns.store(0, Ordering::SeqCst);
        if slept.is_ok() && fds.last().is_some_and(|bell| bell.revents != 0) {
            raw::drain_eventfd(words.bell.load(Ordering::Relaxed));
        }
    }
}

/// Gives connections back to the kernel that frames cannot carry on, whatever the program does: it may be told by a signal that
/// something urgent has come. Each has a copy of its descriptor for so long only, and the others are served after a while.
fn let_leave(process: &Process, now_ns: u64) {
    let next = |carriers: &mut Vec<Carrier>| {
        carriers.iter_mut().find_map(|carrier| carrier.take_leaving(now_ns))
    };
    while let Some((socket, copy, why)) = process.carriers.with(next) {
        fallback::leave_at_once(&socket, copy.number(), why);
        if raw::now_ns() >= now_ns.saturating_add(LEAVES_NS) {
            break;
        }
    }
}

/// Whether it waits for frames, until a deadline that it knows.
#[inline]
pub(super) fn sleeps(process: &Process) -> bool {
    process.helper.until_ns.load(Ordering::Relaxed) != 0
}

/// Something is due then: a helper that would sleep longer is woken.
#[inline]
pub(super) fn expect(process: &Process, deadline_ns: Option<u64>) {
    if deadline_ns.is_some_and(|at| at < process.helper.until_ns.load(Ordering::Relaxed)) {
        wake(&process.helper);
    }
}

#[cold]
fn wake(words: &Words) {
    words.until_ns.store(0, Ordering::SeqCst);
    raw::signal_eventfd(words.bell.load(Ordering::Acquire));
}

/// No thread of the program takes steps for now.
pub(super) fn resume(process: &Process) {
    process.program_ns.store(0, Ordering::Relaxed);
    let words = &process.helper;
    if words.naps.swap(0, Ordering::SeqCst) == 1 {
        let _ = raw::wake(&words.naps);
    }
}

/// How long after its last step the program counts as one that takes steps.
const ACTIVE_NS: u64 = 2_000_000;
const NAP_NS: i64 = 2_000_000;
/// Steps in a row, before others may have the lock.
const STEPS: u32 = 16;
/// How long connections go back to the kernel before others are served, but for the last of them.
const LEAVES_NS: u64 = 2_000_000;
const STACK_BYTES: usize = 256 << 10;
