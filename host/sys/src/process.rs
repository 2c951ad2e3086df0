//! Resources of this process: what it has used so far, and may use.
//!
//! # Safety
//!
//! 1. `getrusage(2)` fills one `struct rusage`, all of whose fields are plain integers.
//! 2. `atexit(3)` keeps a function, which lives as long as the object that it is in: the C library calls it before it
//!    unloads that.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Resources used by this process, all of its threads together, since it started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// Processor time in this program's own code.
    pub user: Duration,
    /// Processor time in the kernel on its behalf.
    pub system: Duration,
    /// The most physical memory it has ever had at one time, in bytes.
    pub peak_memory_bytes: u64,
}

impl Usage {
    /// Processor time in all.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.user.saturating_add(self.system)
    }
}

/// What this process has used so far.
///
/// # Errors
///
/// None in practice.
pub fn usage() -> io::Result<Usage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a local of the type that the call fills.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes were zero, which is a valid `rusage`, before the kernel wrote its own.
    let usage = unsafe { usage.assume_init() };
    Ok(Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(KIB),
    })
}

/// Has `run` called when this process ends by `exit(3)` or by returning from `main`, or when the shared object that
/// calls this is unloaded. It shall not panic.
///
/// # Errors
///
/// No memory left for handlers.
pub fn at_exit(run: extern "C" fn()) -> io::Result<()> {
    // SAFETY: rule 2.
    match unsafe { libc::atexit(run) } {
        0 => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

/// Descriptors that this process may have open at once.
#[must_use]
pub fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Bytes that a file of this process may have (`ulimit -f`); `None` if there is no limit. To make one longer ends the
/// process by `SIGXFSZ`, unless it is ready for that: shared memory is in files, too.
#[must_use]
pub fn file_bytes_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Whether this process may make a file as long as this.
///
/// # Errors
///
/// `EFBIG` if it may not.
pub fn may_make(file_bytes: u64) -> rustix::io::Result<()> {
    match file_bytes_max() {
        Some(limit) if file_bytes > limit => Err(rustix::io::Errno::FBIG),
        Some(_) | None => Ok(()),
    }
}

/// The error of a call that takes no right, with its name if it was refused all the same: a filter of system calls or
/// a setting of the kernel forbids it. [`errno`] tells its number.
pub(crate) fn forbidden(call: &'static str, error: io::Error) -> io::Error {
    let kind = error.kind();
    let is_forbidden = matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported);
    match error.raw_os_error().filter(|_| is_forbidden) {
        Some(number) => io::Error::new(kind, Forbidden { call, number }),
        None => error,
    }
}

/// The number of an error of the system, as [`io::Error::raw_os_error`] gives it, also of one that names its call.
#[must_use]
pub fn errno(error: &io::Error) -> Option<i32> {
    let forbidden = || error.get_ref()?.downcast_ref::<Forbidden>();
    error.raw_os_error().or_else(|| forbidden().map(|forbidden| forbidden.number))
}

/// A call that this process may not make.
#[derive(Debug)]
struct Forbidden {
    call: &'static str,
    number: i32,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, number } = self;
        let error = io::Error::from_raw_os_error(*number);
        write!(f, "{call}(2) is forbidden to this process, as by seccomp or sysctl: {error}")
    }
}

impl std::error::Error for Forbidden {}

/// Whether the process of this number is stopped, by a signal or by a tracer; false if there is none.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state comes after the name, which may have anything in it.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The user that this process acts for, as its own user namespace numbers it.
#[must_use]
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a process that runs this file gets capabilities by it (`capabilities(7)`).
#[must_use]
pub fn has_capabilities(file: impl std::os::fd::AsFd) -> bool {
    // `struct vfs_cap_data` has 24 bytes at most.
    rustix::fs::fgetxattr(file, "security.capability", &mut [0_u8; 64]).is_ok_and(|bytes| bytes > 0)
}

/// The same user, as the user namespace around this process's own numbers it: the same number in all user
/// namespaces that a user has made.
#[must_use]
pub fn user_outside() -> u32 {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(&map, user()).unwrap_or_else(user)
}

/// What `user` is outside of a namespace with this map: lines of the first number inside, the first one outside, and
/// how many.
fn outside(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let numbers: Vec<u32> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [inside, outside, count] = *numbers else { return None };
        let place = user.checked_sub(inside).filter(|place| *place < count)?;
        outside.checked_add(place)
    })
}

/// The kernel never reports a negative time; if it did, it would count as none.
fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds.saturating_add(Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
}

const KIB: u64 = 1024; // The unit of `ru_maxrss`.

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// This thread may not make this call any more.
    fn forbid(call: libc::c_long) {
        let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
        let mut lines = [
            line(0x20, 0, 0), // The number of the call,
            line(0x15, 1, u32::try_from(call).unwrap()),
            line(0x06, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
            line(0x06, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: lines.as_mut_ptr() };
        // SAFETY: numbers alone.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        let filter = (&raw const program).cast::<libc::c_void>();
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: a program of four lines that lives during the call.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, filter) }, 0);
    }

    /// Goal: where a filter of system calls lacks one that is needed, the error says which.
    #[test]
    fn a_call_that_is_forbidden_is_named() {
        type Attempt = fn() -> io::Result<()>;
        let attempts: [(_, _, Attempt); 2] = [
            (libc::SYS_memfd_create, "memfd_create", || crate::memory::memfd("x", 1).map(drop)),
            (libc::SYS_eventfd2, "eventfd2", || crate::eventfd::EventFd::new().map(drop)),
        ];
        for (call, name, attempt) in attempts {
            attempt().unwrap();
            let confined = std::thread::spawn(move || {
                forbid(call);
                attempt().unwrap_err()
            });
            let error = confined.join().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(errno(&error), Some(libc::EPERM));
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn capabilities_of_a_file_are_seen() {
        let path = std::env::temp_dir().join(format!("adverb-capable-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let is_capable = || has_capabilities(std::fs::File::open(&path).unwrap());
        assert!(!is_capable());
        // `struct vfs_cap_data` of version 2: CAP_NET_RAW is permitted (`linux/capability.h`).
        let words = [0x0200_0000_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes);
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(&path, "security.capability", &words.concat(), flags);
        match set {
            Ok(()) => assert!(is_capable()),
            Err(error) => println!("skipped: capabilities of files cannot be set: {error}"),
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn work_shows_up_as_processor_time() {
        let before = usage().unwrap().cpu();
        let mut n: u64 = 1;
        while usage().unwrap().cpu() == before {
            n = black_box(n.wrapping_mul(3));
        }
        assert!(usage().unwrap().cpu() > before);
    }

    #[test]
    fn a_process_is_stopped_until_it_goes_on() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let signal = |name: &str| {
            let pid = child.id().to_string();
            assert!(
                std::process::Command::new("kill").args([name, &pid]).status().unwrap().success()
            );
        };
        for _ in 0..2 {
            assert!(!is_stopped(child.id()));
            signal("-STOP");
            while !is_stopped(child.id()) {
                std::thread::yield_now();
            }
            signal("-CONT");
            while is_stopped(child.id()) {
                std::thread::yield_now();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(child.id()));
    }

    #[test]
    fn users_have_the_numbers_outside_that_the_map_says() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        for (inside, expected) in
            [(0, Some(1000)), (1, Some(100_000)), (65_536, Some(165_535)), (65_537, None)]
        {
            assert_eq!(outside(map, inside), expected);
        }
        assert_eq!(outside("0 0 4294967295\n", 7), Some(7));
        assert_eq!(outside("nonsense\n1 2", 7), None);
    }

    #[test]
    fn touched_memory_shows_up_in_the_peak() {
        let before = usage().unwrap().peak_memory_bytes;
        let len = usize::try_from(before).unwrap() + (16 << 20);
        let memory = black_box(vec![1_u8; len]);
        assert!(usage().unwrap().peak_memory_bytes > before, "{}", memory.len());
    }
}
