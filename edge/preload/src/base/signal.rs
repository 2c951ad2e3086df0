//! Signal handlers: a wait that spins has to end when one has run, as a sleep in the kernel would.
//!
//! The program's handlers are called through one of ours, which counts. A handler that comes while
//! this thread holds one of our locks waits until it has released it, since the handler may send on
//! the very connection: its signal goes back to the kernel, with all that is known about it, and is held
//! back there. What the program reads back is what it has set.
//!
//! Faults are ours first: one in the middle of a copy from or to the program's buffers ends the copy,
//! not the program (`copy.rs`), and one on shared memory of ours that is missing is mended (`shelter.rs`). Every other has the effect it would have without us.
//!
//! # Safety
//!
//! 1. A handler that the program has given to `sigaction` is a function of one or three arguments;
//!    calling it with three is right for both in the C calling convention of the machines we know.
//! 2. [`on_signal`] does nothing but atomics, thread-local numbers, plain system calls and what the
//!    program's handler does, so that it may run at any instant.
//! 3. What the kernel gives to a handler is there until it returns: the context of what it has interrupted,
//!    which it may change, and what is known about the signal.
//! 4. The C library's trace of calls writes as many addresses as it is told that there is room for, and, once it
//!    has been called before, may be called in a handler.

#![expect(clippy::as_conversions, reason = "handlers are numbers to the kernel")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::base::real::real;
use crate::base::thread::{self, Handler, Interrupts};
use crate::base::{copy, log, raw, shelter, vfork};

const SIGNALS: usize = 65;

/// What the program has set for each signal: handler and flags.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];
/// Whether the program has handlers, and whether it has any that end calls for good.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);
static HAS_HARD_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Whether a handler may come that interrupts waits of this kind. Between the last look at what has
/// come and the kernel's sleep it would be missed: so such sleeps are cut into slices.
pub(crate) fn may_interrupt(kind: Interrupts) -> bool {
    match kind {
        Interrupts::All => HAS_HANDLERS.load(Ordering::Relaxed),
        Interrupts::Hard => HAS_HARD_HANDLERS.load(Ordering::Relaxed),
    }
}

/// What the kernel calls.
extern "C-unwind" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(index) = usize::try_from(signal).ok().filter(|index| *index < SIGNALS) else { return };
    let of =
        |table: &[AtomicI32; SIGNALS]| table.get(index).map(|flag| flag.load(Ordering::Relaxed));
    let has_flag = |flag| of(&FLAGS).is_some_and(|flags| flags & flag != 0);
    // SAFETY: what the kernel says about a signal, or null.
    let is_real = unsafe { info.as_ref() }.is_some_and(|info| info.si_code > 0);
    // SAFETY: what the kernel says about a signal, or null.
    let fault = unsafe { info.as_ref() }.filter(|_| signal == libc::SIGBUS && is_real);
    // SAFETY: the kernel says of this signal where the fault is.
    if fault.is_some_and(|info| shelter::replace(unsafe { info.si_addr() }.addr())) {
        return;
    }
    // SAFETY: the kernel's own context, and this handler returns next.
    if GUARDED.contains(&signal) && is_real && unsafe { copy::land(context) } {
        return;
    }
    // The faults of the thread itself cannot wait.
    let is_fault =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
            .contains(&signal);
    // SAFETY: the kernel's own, and this handler returns next (rule 3).
    if !is_fault && thread::holds_locks() && unsafe { put_off(signal, info, context) } {
        return;
    }
    thread::count_interrupt(has_flag(libc::SA_RESTART));
    let handler = HANDLERS.get(index).map_or(0, |handler| handler.load(Ordering::Acquire));
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        let is_given_up = has_flag(libc::SA_RESETHAND);
        let is_ours = GUARDED.contains(&signal);
        if is_ours && is_real || (is_ours || is_given_up) && handler == libc::SIG_DFL {
            end_by(signal, is_real && is_fault);
        }
        return;
    }
    if has_flag(libc::SA_RESETHAND)
        && let Some(handler) = HANDLERS.get(index)
    {
        handler.store(libc::SIG_DFL, Ordering::Release);
        if !GUARDED.contains(&signal) {
            set_default(signal);
        }
    }
    // SAFETY: the program has given this address to `sigaction` as its handler (rule 1).
    let call: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
        unsafe { std::mem::transmute(handler) };
    // SAFETY: the kernel's own (rule 3).
    let is_outermost = thread::begin_handler(unsafe { place_of(context) });
    call(signal, info, context);
    if is_outermost {
        thread::end_handler();
    }
}

/// Where a handler runs.
///
/// # Safety
///
/// `context` is what the kernel gave to it, or null.
unsafe fn place_of(context: *mut c_void) -> Handler {
    // SAFETY: the caller's promise.
    let interrupted = unsafe { context.cast::<libc::ucontext_t>().as_ref() };
    let alternate = interrupted.map_or((0, 0), |context| {
        let stack = &context.uc_stack;
        (stack.ss_sp.addr(), stack.ss_size)
    });
    Handler { context: context.addr(), alternate }
}

/// The signals of a copy that finds no memory.
const GUARDED: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
static IS_GUARDED: AtomicBool = AtomicBool::new(false);

/// The C library's own flag, as its functions report it.
const SA_RESTORER: c_int = 0x0400_0000;

/// Sends a signal back to where it came from, to come again when this thread has released its locks.
///
/// # Safety
///
/// Both are what the kernel gave to the handler, or null, and the handler returns next.
unsafe fn put_off(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    let Some(bit) = u32::try_from(signal - 1).ok().and_then(|place| 1_u64.checked_shl(place))
    else {
        return false;
    };
    if context.is_null() {
        return false;
    }
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the context of what was interrupted (rule 3).
    let mask = unsafe { &raw mut (*context).uc_sigmask }.cast::<u64>();
    // SAFETY: the kernel's part of that mask, 64 bits.
    let before = unsafe { mask.read() };
    // A signal that was let in for the time of a wait only is held back by its program's own mask.
    if before & bit == 0 {
        thread::defer(bit);
    }
    // It must not come at once, which it would if it does not hold itself back.
    raw::hold_back(bit);
    // SAFETY: as above; what was interrupted goes on with this mask.
    unsafe { mask.write(before | bit) };
    // SAFETY: what the kernel has said about the signal, or null.
    unsafe { raw::raise_again(signal, info) };
    true
}

/// The next signal of this kind has its default effect.
fn set_default(signal: c_int) {
    // SAFETY: all zeros is a legal value of this structure: the default, and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    next_sigaction(signal, &raw const default, std::ptr::null_mut());
}

/// A segmentation fault that ends the program is traced in the log, once.
static TRACES: AtomicBool = AtomicBool::new(false);
/// Calls in a trace, at most.
const CALLS_MAX: usize = 64;

/// From now on a fault that ends the program says in the log in which calls it came.
#[cold]
pub(crate) fn trace_faults() {
    let mut none = std::ptr::null_mut();
    // SAFETY: room for one address (rule 4). What it takes is loaded now, rather than in a handler.
    unsafe { libc::backtrace(&raw mut none, 1) };
    guard();
    TRACES.store(true, Ordering::Release);
}

/// Writes down in which calls the calling thread is.
fn trace() {
    let mut calls = [std::ptr::null_mut(); CALLS_MAX];
    let room = c_int::try_from(calls.len()).unwrap_or(0);
    // SAFETY: room for so many addresses (rule 4).
    let count = unsafe { libc::backtrace(calls.as_mut_ptr(), room) };
    log::with_descriptor(|fd| {
        let _ =
            raw::write(fd, b"VMA ERROR: segmentation fault, in these calls, the last one first:\n");
        // SAFETY: so many of them are there (rule 4).
        unsafe { libc::backtrace_symbols_fd(calls.as_ptr(), count, fd) };
    });
}

/// A signal without a handler ends the program, as if we had not been there.
fn end_by(signal: c_int, is_fault: bool) {
    if is_fault && signal == libc::SIGSEGV && TRACES.swap(false, Ordering::AcqRel) {
        trace();
    }
    set_default(signal);
    // A fault comes again as soon as this handler returns; a signal that was sent does not.
    if !is_fault {
        raw::raise(signal);
    }
}

/// From here on, faults in copies are survived.
#[inline]
pub(crate) fn guard() {
    if !IS_GUARDED.load(Ordering::Acquire) {
        guard_now();
    }
}

#[cold]
fn guard_now() {
    if IS_GUARDED.swap(true, Ordering::AcqRel) {
        return;
    }
    let ours = on_signal as *const () as usize;
    for signal in GUARDED {
        // SAFETY: all zeros is a legal value of this structure.
        let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
        if next_sigaction(signal, std::ptr::null(), &raw mut was) == 0 && was.sa_sigaction != ours {
            sigaction(signal, Some(&was), None);
        }
    }
}

/// Flags that the kernel is told otherwise than the program has said.
const PASSED_FLAGS: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;

/// What the kernel is told when the program sets a handler, or none, for a signal that is guarded.
fn guarded(new: &libc::sigaction) -> libc::sigaction {
    let mut passed = *new;
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&new.sa_sigaction) {
        passed.sa_flags |= libc::SA_ONSTACK;
    }
    passed
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
    let (Some(index), false) = (index, vfork::is_child()) else {
        let new = new.map_or(null, std::ptr::from_ref);
        return next_sigaction(signal, new, old.map_or(std::ptr::null_mut(), std::ptr::from_mut));
    };
    let (Some(handler), Some(flags)) = (HANDLERS.get(index), FLAGS.get(index)) else { return -1 };
    let before = (handler.load(Ordering::Acquire), flags.load(Ordering::Acquire));
    let ours = on_signal as *const () as usize;
    let is_guarded = GUARDED.contains(&signal) && IS_GUARDED.load(Ordering::Acquire);
    // SAFETY: all zeros is a legal value of this structure.
    let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
    let answer = match new {
        None => next_sigaction(signal, null, &raw mut was),
        Some(new) if [libc::SIG_DFL, libc::SIG_IGN].contains(&new.sa_sigaction) && !is_guarded => {
            next_sigaction(signal, new, &raw mut was)
        }
        Some(new) => {
            let mut passed = if is_guarded { guarded(new) } else { *new };
            passed.sa_sigaction = ours;
            passed.sa_flags |= libc::SA_SIGINFO;
            // A handler is given up when it runs, which may be later than we hear of the signal.
            passed.sa_flags &= !libc::SA_RESETHAND;
            if ![libc::SIG_DFL, libc::SIG_IGN].contains(&new.sa_sigaction) {
                HAS_HANDLERS.store(true, Ordering::Relaxed);
                let is_hard = new.sa_flags & libc::SA_RESTART == 0;
                HAS_HARD_HANDLERS.fetch_or(is_hard, Ordering::Relaxed);
            }
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
            old.sa_flags = match is_guarded {
                true if [libc::SIG_DFL, libc::SIG_IGN].contains(&before.0) => before.1,
                true => before.1 | (was.sa_flags & SA_RESTORER),
                false => (was.sa_flags & !PASSED_FLAGS) | (before.1 & PASSED_FLAGS),
            };
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
