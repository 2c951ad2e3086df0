//! Signals of a thread, and waits that they end.
//!
//! A wait of the C library such as `read` ends when a signal has had its handler run, unless that handler asks for a
//! restart (`SA_RESTART`). For a wait that is made of several calls that is to be true of all of it: signals are held back
//! meanwhile ([`Held`]) and let in where it sleeps, in the same call.
//!
//! # Safety
//!
//! System calls with places that live for the length of the call: sets of signals, an array of descriptors, a time.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::poll::FDS_MAX;

/// Signals of this thread are held back until the value is dropped, but for those that its own mistakes bring.
pub struct Held {
    /// What was held back before.
    before: libc::sigset_t,
    /// The value is of this thread.
    thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Held {
    /// Holds the signals of this thread back from now on.
    #[expect(clippy::new_without_default, reason = "it changes the thread")]
    pub fn new() -> Self {
        let mut held = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: a set to fill.
        unsafe { libc::sigfillset(held.as_mut_ptr()) };
        for signal in MISTAKES {
            // SAFETY: a set that was filled.
            unsafe { libc::sigdelset(held.as_mut_ptr(), signal) };
        }
        // SAFETY: two sets. It cannot fail: the first argument is one of those that there are.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: filled by the call.
        Self { before: unsafe { before.assume_init() }, thread: PhantomData }
    }

    /// Waits until `first` or one of `more` can be read or has failed, or for `timeout` (`None`: for ever); says whether one
    /// can. Signals come in meanwhile, also if the timeout is zero.
    ///
    /// Of more than [`FDS_MAX`] descriptors those at the end are not looked at.
    ///
    /// # Errors
    ///
    /// `Interrupted` if a signal came whose handler asks for no restart; those of `ppoll(2)`.
    pub fn readable<'a>(
        &self,
        first: BorrowedFd<'a>,
        more: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        let mut list =
            [const { libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 } }; FDS_MAX];
        let mut used = 0;
        for (place, fd) in list.iter_mut().zip(std::iter::once(first).chain(more)) {
            place.fd = fd.as_raw_fd();
            used += 1;
        }
        wait(&mut list, used, timeout, &self.before)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: a set. It cannot fail, as above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Starts a thread that takes no signals of its process: programs hold back in their own threads what they want to take by
/// `sigwait` or a descriptor, and know of no others.
///
/// The thread runs when this returns. Until then it gets its memory from the C library, which maps pages for it; libraries
/// such as UCX and Open MPI write their own hooks over the code of `mmap(2)` right after they have opened a device, and a
/// thread that is in that code would fault.
///
/// # Errors
///
/// Those of `pthread_create(3)`.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _held = Held::new(); // What is held back is inherited.
    let (begun, begins) = mpsc::channel::<()>();
    let run = move || {
        drop(begun);
        run();
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    let _ = begins.recv(); // Nothing is sent.
    Ok(thread)
}

/// Waits for the first `used` of `list`, with the signals of `mask` held back.
///
/// The call is made without the C library's function for it, at which threads can be cancelled: they would be unwound through
/// frames that must not be.
fn wait(
    list: &mut [libc::pollfd],
    used: usize,
    timeout: Option<Duration>,
    mask: &libc::sigset_t,
) -> io::Result<bool> {
    // A wait too long for the kernel's type is one without an end.
    let timeout = timeout.and_then(|timeout| {
        let tv_sec = timeout.as_secs().try_into().ok()?;
        Some(libc::timespec { tv_sec, tv_nsec: timeout.subsec_nanos().into() })
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = ptr::from_ref(mask);
    let (list, used) = (list.as_mut_ptr(), used.min(list.len()));
    // SAFETY: an array of at least so many descriptors, a time or none, and a set of the kernel's length.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, list, used, timeout, mask, SET_BYTES) };
    if found >= 0 {
        return Ok(found > 0);
    }
    let error = io::Error::last_os_error();
    let goes_on = error.kind() == io::ErrorKind::Interrupted && all_restart();
    if goes_on { Ok(false) } else { Err(error) }
}

/// All handlers that this process has ask for a restart. The kernel does not say which one has run.
pub fn all_restart() -> bool {
    (1..=SIGNAL_MAX).filter(|signal| !MISTAKES.contains(signal)).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a place for the answer; nothing is changed.
        if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            return true; // The C library's own.
        }
        // SAFETY: filled by the call.
        let action = unsafe { action.assume_init() };
        let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !has_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// What a thread brings upon itself. Handlers of runtimes for these ask for no restart, and never end a wait.
const MISTAKES: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// The kernel's last signal, and the bytes of its sets.
const SIGNAL_MAX: libc::c_int = 64;
const SET_BYTES: usize = 8;
