//! Locks that the kernel gives back when their holder dies.
//!
//! Both kinds belong to an *open file description*: they end when its last descriptor closes, in
//! whatever way the process ends. A child made by `fork` shares the description; one made by `exec`
//! does not, because the descriptors close.
//!
//! # Safety
//!
//! `fcntl(2)` with an `F_OFD_*` command reads and writes one `struct flock`, which `ofd` passes
//! as a reference to a local.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Exclusive use of a file, by `flock(2)`, until dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Opens `path`, makes it if it is missing, and waits until no other process holds it.
    ///
    /// # Errors
    ///
    /// Those of opening the file.
    pub fn acquire(path: &Path) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Self::lock(file)
    }

    /// Waits until no other process holds `file`.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn lock(file: File) -> io::Result<Self> {
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self { file }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until no other process holds `file`, but not for longer than `timeout`: the holder may be
    /// stopped.
    ///
    /// # Errors
    ///
    /// `TimedOut`; nothing is locked then.
    pub fn lock_within(file: &File, timeout: Duration) -> io::Result<Self> {
        let until = Instant::now() + timeout;
        let mut pause = PAUSE_MIN;
        loop {
            if let Some(lock) = Self::try_lock(file.try_clone()?)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Locks `file`, or returns `None` at once if another process holds it.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The file that is locked.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing would do, were it not for a child that has inherited the descriptor.
        let result = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        debug_assert!(result.is_ok(), "a lock could not be released: {result:?}");
    }
}

/// How long to wait before the next attempt at a lock that may never be given back.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Locks byte `n` of `file` for as long as its open file description lives. Returns whether it is
/// now ours; `false` if another open file description has it. The byte need not exist.
///
/// A second open of the same path, even in the same process, counts as another.
///
/// # Errors
///
/// `EBADF` if the file is not open for writing, `EINVAL` if `n` is more than 2⁶³ − 1.
pub fn lock_byte(file: impl AsFd, n: u64) -> io::Result<bool> {
    match ofd(&file, libc::F_OFD_SETLK, libc::F_WRLCK, n) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            Some(_) | None => Err(error),
        },
    }
}

/// Gives byte `n` back before the file is closed. No error if it was not ours.
///
/// # Errors
///
/// `EINVAL` if `n` is more than 2⁶³ − 1.
pub fn unlock_byte(file: impl AsFd, n: u64) -> io::Result<()> {
    ofd(&file, libc::F_OFD_SETLK, libc::F_UNLCK, n).map(|_| ())
}

/// Whether another open file description holds byte `n`. Our own lock does not count.
///
/// # Errors
///
/// `EINVAL` if `n` is more than 2⁶³ − 1.
pub fn is_byte_locked(file: impl AsFd, n: u64) -> io::Result<bool> {
    let answer = ofd(&file, libc::F_OFD_GETLK, libc::F_WRLCK, n)?;
    Ok(c_int::from(answer.l_type) != libc::F_UNLCK)
}

/// One `fcntl` on the lock of one byte, and the kernel's answer.
fn ofd(file: impl AsFd, command: c_int, kind: c_int, n: u64) -> io::Result<libc::flock> {
    let short = |n: c_int| i16::try_from(n).map_err(io::Error::other);
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let mut lock = libc::flock {
        l_type: short(kind)?,
        l_whence: short(libc::SEEK_SET)?,
        l_start: libc::off_t::try_from(n).map_err(invalid)?,
        l_len: 1,
        l_pid: 0, // Required by the OFD commands.
    };
    // SAFETY: the command takes a pointer to a `flock`, which `lock` is, and writes at most that.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// One test at a time: a child that another test starts shares every open file until it has
    /// become its own program, and holds the locks for that moment.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A file to lock, gone after the test.
    struct Scratch(
        PathBuf,
        #[expect(dead_code, reason = "held, not used")] MutexGuard<'static, ()>,
    );

    impl Scratch {
        fn new(name: &str) -> Self {
            let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let name = format!("adverb-lock-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name), guard)
        }

        fn open(&self) -> File {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).open(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_has_one_holder_at_a_time() {
        let scratch = Scratch::new("one");
        let lock = FileLock::acquire(&scratch.0).unwrap();
        assert!(FileLock::try_lock(scratch.open()).unwrap().is_none());
        drop(lock);
        assert!(FileLock::try_lock(scratch.open()).unwrap().is_some());
    }

    #[test]
    fn a_wait_that_is_too_long_is_an_error() {
        let scratch = Scratch::new("timeout");
        let lock = FileLock::acquire(&scratch.0).unwrap();
        let timeout = Duration::from_millis(5);
        let refused = FileLock::lock_within(&scratch.open(), timeout).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(lock);
        FileLock::lock_within(&scratch.open(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_waiter_gets_the_lock_when_it_is_given_back() {
        let scratch = Scratch::new("wait");
        let lock = FileLock::acquire(&scratch.0).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| FileLock::acquire(&scratch.0).map(drop));
            drop(lock);
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn bytes_are_held_one_by_one_by_open_files_and_not_by_processes() {
        let scratch = Scratch::new("bytes");
        let (a, b) = (scratch.open(), scratch.open());
        assert!(lock_byte(&a, 3).unwrap());
        assert!(lock_byte(&a, 3).unwrap(), "a lock that is ours already is ours");
        assert!(!lock_byte(&b, 3).unwrap());
        assert!(lock_byte(&b, 4).unwrap());
        assert!(is_byte_locked(&b, 3).unwrap() && is_byte_locked(&a, 4).unwrap());
        assert!(!is_byte_locked(&a, 3).unwrap() && !is_byte_locked(&b, 5).unwrap());
        unlock_byte(&a, 3).unwrap();
        assert!(lock_byte(&b, 3).unwrap());
    }

    #[test]
    fn closing_a_file_gives_its_bytes_back() {
        let scratch = Scratch::new("close");
        let (a, b) = (scratch.open(), scratch.open());
        let copy = a.try_clone().unwrap();
        assert!(lock_byte(&a, 0).unwrap());
        drop(a);
        assert!(is_byte_locked(&b, 0).unwrap(), "a copy of the descriptor keeps the lock");
        drop(copy);
        // Other tests of this crate start children too.
        while is_byte_locked(&b, 0).unwrap() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_byte_past_the_kernels_range_is_refused() {
        let scratch = Scratch::new("range");
        let error = lock_byte(scratch.open(), u64::MAX).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    /// Goal: a process that is killed gives back what it holds.
    /// Method: the lock lives in a child's standard input only, and the child is killed.
    #[test]
    fn a_killed_process_holds_nothing() {
        let scratch = Scratch::new("killed");
        let file = scratch.open();
        assert!(lock_byte(&file, 9).unwrap());
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::from(file)).spawn().unwrap();
        let here = scratch.open();
        assert!(is_byte_locked(&here, 9).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_byte_locked(&here, 9).unwrap());
    }
}
