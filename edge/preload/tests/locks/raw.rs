//! What locks ask the kernel for, by the C library.
//!
//! # Safety
//!
//! The calls take numbers, or memory that is borrowed for their length.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;

pub(crate) fn process_id() -> u32 {
    std::process::id()
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }.cast_unsigned()
}

pub(crate) fn is_process(number: u32) -> bool {
    // SAFETY: signal 0 is none.
    unsafe { libc::kill(number.cast_signed(), 0) == 0 }
}

pub(crate) fn is_thread(number: u32) -> bool {
    // SAFETY: signal 0 is none.
    unsafe { libc::syscall(libc::SYS_tkill, number, 0) == 0 }
}

pub(crate) fn has_ended(number: u32) -> bool {
    !is_process(number)
}

pub(crate) fn read_link(path: &CStr, into: &mut [u8]) -> Result<usize, ()> {
    let link = std::fs::read_link(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())));
    let link = link.map_err(|_| ())?.into_os_string();
    let place = into.get_mut(..link.len()).ok_or(())?;
    place.copy_from_slice(link.as_bytes());
    Ok(link.len())
}

pub(crate) fn read_file(path: &Path, most: usize) -> Option<Vec<u8>> {
    let mut all = std::fs::read(path).ok()?;
    all.truncate(most);
    Some(all)
}

pub(crate) fn give_way() {
    std::thread::yield_now();
}

pub(crate) fn sleep_on(shared: &AtomicU32, value: u32, nanoseconds: i64) -> bool {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let (at, wait) = (shared.as_ptr(), libc::FUTEX_WAIT);
    // SAFETY: the kernel looks at the word, and reads one structure of ours.
    unsafe { libc::syscall(libc::SYS_futex, at, wait, value, &raw const time) == 0 }
}

pub(crate) fn let_through(_signals: u64) {}

pub(crate) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
