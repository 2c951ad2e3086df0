//! Faults of this library's own accesses, `SIGSEGV` and `SIGBUS`: one function may mend what was missing.
//!
//! A fault is the library's own if the instruction is in the object that this code is in, or in the C library and called from
//! there, as a copy is. Every other fault, and every signal that was sent, has the effect that it would have without this.
//!
//! # Safety
//!
//! 1. A handler that was there before is a function of one or three arguments; calling it with three is right for both in
//!    the C calling convention of the machines we know.
//! 2. The handler does nothing but atomics, system calls, and what the mending function and the handler before do: it may run
//!    at any instant. No other signal comes while it looks.
//! 3. What the kernel gives to a handler is there until it returns.

#![expect(clippy::as_conversions, reason = "handlers are numbers to the kernel")]

use crate::memory::page_bytes;
use libc::{c_int, c_void, siginfo_t};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// What was missing at the address of a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping does not allow the access.
    Protected,
    /// The file that is mapped there has no such page any more, or cannot give it.
    Truncated,
}

/// Mends a fault at an address, or says false. It runs as a signal handler: no locks, no memory from the heap, no panics.
pub type Mend = fn(usize, Fault) -> bool;

static MEND: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// What was there before, for [`SIGNALS`]: handlers, flags, and signals that they hold back.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(libc::SIG_DFL) }; 2];
static FLAGS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
static MASKS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// Where this object's code is, and the C library's.
static OWN: Code = Code::none();
static COPIES: Code = Code::none();
/// The kernel's page, in bytes.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// From now on `mend` sees faults of this library's accesses: that of the first call. A handler that the program sets later takes
/// the place of this.
pub fn watch(mend: Mend) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        MEND.store(mend as *mut (), Ordering::Release);
        PAGE.store(page_bytes(), Ordering::Relaxed);
        OWN.find(on_fault as *const () as usize);
        COPIES.find(libc::memcpy as *const () as usize);
        for (place, signal) in SIGNALS.into_iter().enumerate() {
            let Some(was) = exchange(signal, None) else { continue };
            keep(place, &was);
            let mut action = was;
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = was.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
            if [libc::SIG_DFL, libc::SIG_IGN].contains(&was.sa_sigaction) {
                // Calls go on after a signal that nothing comes of, and the stack of the thread may be what has ended.
                action.sa_flags |= libc::SA_RESTART | libc::SA_ONSTACK;
            }
            // SAFETY: a set.
            unsafe { libc::sigfillset(&raw mut action.sa_mask) };
            // Another thread may have set one since.
            exchange(signal, Some(&action)).iter().for_each(|was| keep(place, was));
        }
    });
}

/// Sets what a signal does, if that is given, and says what it did.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut was = MaybeUninit::<libc::sigaction>::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: a handler (rule 2) or none, and a place for the answer.
    let done = unsafe { libc::sigaction(signal, new, was.as_mut_ptr()) } == 0;
    // SAFETY: filled by the call.
    done.then(|| unsafe { was.assume_init() })
}

fn keep(place: usize, was: &libc::sigaction) {
    // SAFETY: the kernel's part of the set, 64 bits.
    let mask = unsafe { (&raw const was.sa_mask).cast::<u64>().read() };
    MASKS.get(place).into_iter().for_each(|kept| kept.store(mask, Ordering::Relaxed));
    FLAGS.get(place).into_iter().for_each(|kept| kept.store(was.sa_flags, Ordering::Relaxed));
    let handlers = HANDLERS.get(place).into_iter();
    handlers.for_each(|kept| kept.store(was.sa_sigaction, Ordering::Release));
}

/// The code of a loaded object.
#[derive(Debug)]
struct Code {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Code {
    const fn none() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    /// That of the object that has this address.
    fn find(&self, address: usize) {
        let mut range = (address, 0, 0);
        // SAFETY: the function below, with a place that lives for the length of the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut range).cast()) };
        self.start.store(range.1, Ordering::Relaxed);
        self.end.store(range.2, Ordering::Release);
    }

    fn has(&self, address: usize) -> bool {
        address < self.end.load(Ordering::Acquire) && address >= self.start.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, range: *mut c_void) -> c_int {
    // SAFETY: the argument of `Code::find`.
    let (address, start, end) = unsafe { &mut *range.cast::<(usize, usize, usize)>() };
    // SAFETY: the dynamic linker describes an object that is loaded.
    let info = unsafe { &*info };
    // SAFETY: so many headers, which stay.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        let is_code = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        let from = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let to = from.wrapping_add(header.p_memsz as usize);
        if is_code && (from..to).contains(address) {
            (*start, *end) = (from, to);
            return 1;
        }
    }
    0
}

/// The access is this library's.
///
/// # Safety
///
/// `context` is what the kernel gave to the handler, or null.
unsafe fn is_own(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise (rule 3).
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else {
        return false;
    };
    let machine = &context.uc_mcontext;
    #[cfg(target_arch = "x86_64")]
    let (at, callers) = {
        let register = |name| machine.gregs.get(name as usize).map_or(0, |word| *word as usize);
        let stack: *const usize = ptr::with_exposed_provenance(register(libc::REG_RSP));
        // SAFETY: the stack of code that runs: the C library's copies keep nothing there but, at most, what they save.
        let read = |word: usize| unsafe { stack.wrapping_add(word).read() };
        let at = register(libc::REG_RIP);
        (at, if COPIES.has(at) { [read(0), read(1)] } else { [0; 2] })
    };
    #[cfg(target_arch = "aarch64")]
    let (at, callers) = (machine.pc as usize, [machine.regs[30] as usize; 2]);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (at, callers) = {
        let _ = machine;
        (0, [0; 2])
    };
    OWN.has(at) || COPIES.has(at) && callers.into_iter().any(|caller| OWN.has(caller))
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
    // SAFETY: the kernel's own.
    if let (Some(info), Some(fault), true) = (real, fault, unsafe { is_own(context) }) {
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
    pass_on(signal, info, context, real.map(|info| info.si_code));
}

/// Has the effect that the signal would have had; `code` is a fault's.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, code: Option<c_int>) {
    let place = SIGNALS.iter().position(|one| *one == signal).unwrap_or(0);
    let (Some(handler), Some(flags), Some(mask)) =
        (HANDLERS.get(place), FLAGS.get(place), MASKS.get(place))
    else {
        return;
    };
    let resets = flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0;
    let address = match resets {
        true => handler.swap(libc::SIG_DFL, Ordering::AcqRel),
        false => handler.load(Ordering::Acquire),
    };
    match address {
        libc::SIG_IGN if code.is_none() => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is a legal value of this structure: the default, and an empty mask.
            exchange(signal, Some(&unsafe { std::mem::zeroed() }));
            // A fault comes again when this handler returns, but for these.
            if code.is_none_or(|code| [SI_KERNEL, BUS_MCEERR_AO].contains(&code)) {
                // SAFETY: a number; the signal comes when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        address => {
            // SAFETY: the kernel's own (rule 3), and the handler's.
            unsafe { hold_back(signal, context, mask.load(Ordering::Relaxed), flags) };
            // SAFETY: the handler that was there (rule 1).
            let call: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(address) };
            call(signal, info, context);
        }
    }
}

/// Holds back what the kernel would hold back while the program's handler runs.
///
/// # Safety
///
/// `context` is what the kernel gave to the handler, or null.
unsafe fn hold_back(signal: c_int, context: *mut c_void, mask: u64, flags: &AtomicI32) {
    if context.is_null() {
        return;
    }
    // SAFETY: the mask of what was interrupted (rule 3).
    let before = unsafe { &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    // SAFETY: the kernel's part of it, 64 bits.
    let before = unsafe { before.cast::<u64>().read() };
    let is_deferred = flags.load(Ordering::Relaxed) & libc::SA_NODEFER == 0;
    let own = if is_deferred { 1_u64 << (signal - 1) } else { 0 };
    let all = before | mask | own;
    // SAFETY: a set of the kernel's length.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
}

/// `asm-generic/siginfo.h`.
const SEGV_MAPERR: c_int = 1;
const SEGV_ACCERR: c_int = 2;
const BUS_ADRERR: c_int = 2;
const BUS_MCEERR_AO: c_int = 5;
const SI_KERNEL: c_int = 0x80;

/// Puts a page without contents where one is missing, or opens one that is protected, also to writing if it `writes`. Says whether the
/// access may be tried again. May be called in a signal handler.
///
/// # Safety
///
/// The program has allowed a device to access the page at `address` so, and a fault has just said what it says.
pub unsafe fn give_page(address: usize, fault: Fault, writes: bool) -> bool {
    match fault {
        // SAFETY: the caller's promise.
        Fault::Protected => unsafe { open_page(address, writes) },
        // SAFETY: the caller's promise.
        Fault::Unmapped | Fault::Truncated => unsafe {
            put_page(address, fault == Fault::Truncated)
        },
    }
}

/// Puts a page of zeros at the page of `address`, in which there is nothing; or in the place of one of a file if it `replaces`. Says
/// whether something is there now.
///
/// # Safety
///
/// If it replaces, a fault has just said that the mapping there has no such page. What the program maps there at that very moment is
/// lost.
unsafe fn put_page(address: usize, replaces: bool) -> bool {
    let flags = if replaces { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let bytes = PAGE.load(Ordering::Relaxed);
    let wanted: *mut c_void = ptr::with_exposed_provenance_mut(address & !(bytes - 1));
    // SAFETY: the caller's promise; or a place that is free, and where it is not, the mapping that is there stays.
    let page = unsafe {
        libc::mmap(
            wanted,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        // Another thread has been faster.
        return std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
    }
    if page != wanted {
        // SAFETY: the page just mapped, by a kernel that does not know the flag and found the place taken; nothing knows it.
        unsafe { libc::munmap(page, bytes) };
    }
    true
}

/// Lets the page of `address` be read, and written if it `writes`.
///
/// # Safety
///
/// The program has allowed that to devices.
unsafe fn open_page(address: usize, writes: bool) -> bool {
    let bytes = PAGE.load(Ordering::Relaxed);
    let page: *mut c_void = ptr::with_exposed_provenance_mut(address & !(bytes - 1));
    let access = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
    // SAFETY: the caller's promise.
    unsafe { libc::mprotect(page, bytes, access) == 0 }
}
