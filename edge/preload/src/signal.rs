//! Signal handlers: a wait that spins has to end when one has run, as a sleep in the kernel would.
//!
//! The program's handlers are called through one of ours, which counts. A handler that comes while
//! this thread holds one of our locks waits until it has released it, since the handler may send on
//! the very connection. What the program reads back is what it has set.
//!
//! # Safety
//!
//! 1. A handler that the program has given to `sigaction` is a function of one or three arguments;
//!    calling it with three is right for both in the C calling convention of the machines we know.
//! 2. [`on_signal`] does nothing but atomics, thread-local numbers and what the program's handler
//!    does, so that it may run at any instant.

#![expect(clippy::as_conversions, reason = "handlers are numbers to the kernel")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::real::real;
use crate::{raw, thread};

const SIGNALS: usize = 65;

/// What the program has set for each signal: handler and flags.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];
/// The process whose handlers these are: in a child of `vfork`, which shares our memory but not
/// our handlers, it is another.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// This process is whose memory this is, from now on.
pub(crate) fn settle_in() {
    PROCESS.store(raw::process_id(), Ordering::Relaxed);
}

/// Whether this is a process that borrows another's memory, until it executes something.
pub(crate) fn is_guest() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != raw::process_id()
}

/// What the kernel calls.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(index) = usize::try_from(signal).ok().filter(|index| *index < SIGNALS) else { return };
    let of =
        |table: &[AtomicI32; SIGNALS]| table.get(index).map(|flag| flag.load(Ordering::Relaxed));
    let restarts = of(&FLAGS).is_some_and(|flags| flags & libc::SA_RESTART != 0);
    // The faults of the thread itself cannot wait.
    let is_fault =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP].contains(&signal);
    if !is_fault && thread::defer(signal) {
        return;
    }
    thread::count_interrupt(restarts);
    let handler = HANDLERS.get(index).map_or(0, |handler| handler.load(Ordering::Acquire));
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    // SAFETY: the program has given this address to `sigaction` as its handler (rule 1).
    let call: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
        unsafe { std::mem::transmute(handler) };
    call(signal, info, context);
}

fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    real!(
        c"sigaction" as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
        signal,
        new,
        old
    )
}

/// `sigaction(2)`.
pub(crate) fn sigaction(
    signal: c_int,
    new: Option<&libc::sigaction>,
    old: Option<&mut libc::sigaction>,
) -> c_int {
    let null = std::ptr::null();
    let index = usize::try_from(signal).ok().filter(|index| (1..SIGNALS).contains(index));
    let (Some(index), false) = (index, is_guest()) else {
        let new = new.map_or(null, std::ptr::from_ref);
        return next_sigaction(signal, new, old.map_or(std::ptr::null_mut(), std::ptr::from_mut));
    };
    let (Some(handler), Some(flags)) = (HANDLERS.get(index), FLAGS.get(index)) else { return -1 };
    let before = (handler.load(Ordering::Acquire), flags.load(Ordering::Acquire));
    let ours = on_signal as *const () as usize;
    // SAFETY: all zeros is a legal value of this structure.
    let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
    let answer = match new {
        None => next_sigaction(signal, null, &raw mut was),
        Some(new) if [libc::SIG_DFL, libc::SIG_IGN].contains(&new.sa_sigaction) => {
            next_sigaction(signal, new, &raw mut was)
        }
        Some(new) => {
            let mut passed = *new;
            passed.sa_sigaction = ours;
            passed.sa_flags |= libc::SA_SIGINFO;
            // The new handler has to be there when the kernel first calls us for it.
            handler.store(new.sa_sigaction, Ordering::Release);
            flags.store(new.sa_flags, Ordering::Release);
            let answer = next_sigaction(signal, &raw const passed, &raw mut was);
            if answer != 0 {
                handler.store(before.0, Ordering::Release);
                flags.store(before.1, Ordering::Release);
            }
            answer
        }
    };
    if answer == 0
        && let Some(old) = old
    {
        *old = was;
        if was.sa_sigaction == ours {
            old.sa_sigaction = before.0;
            old.sa_flags = (was.sa_flags & !libc::SA_SIGINFO) | (before.1 & libc::SA_SIGINFO);
        }
    }
    answer
}

/// `signal(2)`, with the flags of one of its flavours.
pub(crate) fn signal(signal: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: all zeros is a legal value of this structure: an empty mask.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    let mut old = new;
    if sigaction(signal, Some(&new), Some(&mut old)) == 0 {
        old.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}
