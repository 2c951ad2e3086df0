//! How much memory may be locked: the kernel counts the frames of a UMEM (`RLIMIT_MEMLOCK`).
//!
//! It counts them for the real user of the process that registers the UMEM, together with what else that user's processes
//! have locked, until the last socket of the UMEM is closed. A process with CAP_IPC_LOCK has nothing counted and no limit.
//! Kernels before 5.11 count maps (`adverb_sys::bpf`), too, whatever the process may.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::io;

/// A UMEM that was not registered, as its user would have had more memory locked than it may.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemlockError {
    /// Bytes of the UMEM.
    pub asked_bytes: u64,
    /// Bytes that may be locked, all in all.
    pub limit_bytes: u64,
}

impl fmt::Display for MemlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [asked, limit] = [self.asked_bytes, self.limit_bytes].map(|bytes| bytes / KIB);
        write!(
            f,
            "{asked} KiB of memory for frames cannot be locked, as the limit is {limit} KiB for all that this user locks \
             (RLIMIT_MEMLOCK): it takes CAP_IPC_LOCK, or a higher limit (LimitMEMLOCK= of a unit, ulimit -l)"
        )
    }
}

impl std::error::Error for MemlockError {}

/// What the kernel's answer to the registration of so many bytes means.
pub(crate) fn explain(error: Errno, asked_bytes: u64) -> io::Error {
    match getrlimit(Resource::Memlock).current {
        Some(limit_bytes) if error == Errno::NOBUFS => {
            io::Error::new(io::ErrorKind::QuotaExceeded, MemlockError { asked_bytes, limit_bytes })
        }
        Some(_) | None => error.into(),
    }
}

/// Makes the soft limit of this process as high as the hard one. Where that fails, the registration says what is missing.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
    if current != maximum {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

const KIB: u64 = 1024;
