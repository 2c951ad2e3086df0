//! Faults of this process's own accesses, `SIGSEGV` and `SIGBUS`: one function sees them first and may mend what was missing.
//! Every other fault has the effect that it would have without it.
//!
//! # Safety
//!
//! 1. A handler that was there before is a function of one or three arguments; calling it with three is right for both in
//!    the C calling convention of the machines we know.
//! 2. [`on_fault`] does nothing but atomics, system calls, and what the mending function and the handler before do: it may run
//!    at any instant.

#![expect(clippy::as_conversions, reason = "handlers are numbers to the kernel")]

use libc::{c_int, c_void, siginfo_t};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What was missing at the address of a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping does not allow the access.
    Protected,
    /// The file that is mapped there has been cut short.
    Truncated,
}

/// Mends a fault at an address, or says false. It runs as a signal handler: no locks, no memory from the heap, no panics.
pub type Mend = fn(usize, Fault) -> bool;

static MEND: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// What was there before, for [`SIGNALS`]: handlers and flags.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(libc::SIG_DFL) }; 2];
static FLAGS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// From now on `mend` sees faults first: that of the first call. A handler that the program sets later takes its place.
pub fn watch(mend: Mend) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        MEND.store(mend as *mut (), Ordering::Release);
        SIGNALS.into_iter().zip(HANDLERS.iter().zip(&FLAGS)).for_each(
            |(signal, (handler, flags))| {
                let mut was = MaybeUninit::<libc::sigaction>::uninit();
                // SAFETY: a place for the answer; nothing is changed.
                if unsafe { libc::sigaction(signal, ptr::null(), was.as_mut_ptr()) } != 0 {
                    return;
                }
                // SAFETY: filled by the call.
                let mut action = unsafe { was.assume_init() };
                handler.store(action.sa_sigaction, Ordering::Relaxed);
                flags.store(action.sa_flags, Ordering::Release);
                action.sa_sigaction = on_fault as *const () as usize;
                // Its own stack, if the thread has one: that of the thread may be what has ended.
                action.sa_flags =
                    action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO | libc::SA_ONSTACK;
                // SAFETY: a handler (rule 2), and what else the program has asked for.
                unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
            },
        );
    });
}

/// What the kernel calls.
extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: what the kernel says about a signal, or null.
    let real = unsafe { info.as_ref() }.filter(|info| info.si_code > 0);
    let fault = real.and_then(|info| match (signal, info.si_code) {
        (libc::SIGSEGV, SEGV_MAPERR) => Some(Fault::Unmapped),
        (libc::SIGSEGV, SEGV_ACCERR) => Some(Fault::Protected),
        (libc::SIGBUS, BUS_ADRERR) => Some(Fault::Truncated),
        _ => None,
    });
    if let (Some(info), Some(fault)) = (real, fault) {
        // SAFETY: the kernel says of these where the fault is.
        let address = unsafe { info.si_addr() }.addr();
        let mend = MEND.load(Ordering::Acquire);
        // SAFETY: errno of this thread, which the call below may change.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { errno.read() };
        // SAFETY: stored by `watch`.
        let mended = !mend.is_null()
            && unsafe { std::mem::transmute::<*mut (), Mend>(mend) }(address, fault);
        // SAFETY: as above.
        unsafe { errno.write(before) };
        if mended {
            return;
        }
    }
    pass_on(signal, info, context, real.is_some());
}

/// Has the effect that the signal would have had.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
    let place = SIGNALS.iter().position(|one| *one == signal).unwrap_or(0);
    let (Some(handler), Some(flags)) = (HANDLERS.get(place), FLAGS.get(place)) else { return };
    let resets = flags.load(Ordering::Acquire) & libc::SA_RESETHAND != 0;
    let address = match resets {
        true => handler.swap(libc::SIG_DFL, Ordering::AcqRel),
        false => handler.load(Ordering::Acquire),
    };
    match address {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is a legal value of this structure: the default, and an empty mask.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the default effect. The fault comes again when this handler returns.
            unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
            if !is_fault {
                // SAFETY: a number; the signal comes when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        address => {
            // SAFETY: the handler that was there (rule 1).
            let call: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(address) };
            call(signal, info, context);
        }
    }
}

/// `asm-generic/siginfo.h`.
const SEGV_MAPERR: c_int = 1;
const SEGV_ACCERR: c_int = 2;
const BUS_ADRERR: c_int = 2;

/// Puts a page that nothing knows of at the page of `address`, in which there is nothing, or what a fault has said is lost.
/// May be called in a signal handler.
pub fn put_page(address: usize, replaces: bool) -> bool {
    let flags = if replaces { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let wanted: *mut c_void = ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
    // SAFETY: a page of which the kernel has said that its contents are lost; or one that is not mapped, which the kernel
    // sees to, or an older one puts it elsewhere.
    let page = unsafe {
        libc::mmap(
            wanted,
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return false;
    }
    if page != wanted {
        // SAFETY: the page just mapped, which nothing knows.
        unsafe { libc::munmap(page, PAGE) };
    }
    page == wanted
}

/// Lets the page of `address` be read and written. May be called in a signal handler.
///
/// # Safety
///
/// The process has promised that it may be.
pub unsafe fn open_page(address: usize) -> bool {
    let page: *mut c_void = ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// The least page that a kernel has: of those that have larger ones, the calls fail.
const PAGE: usize = 4096;
