//! What locks ask the kernel for, by the C library.
//!
//! # Safety
//!
//! The calls take numbers, or memory that is borrowed for their length.

use std::sync::atomic::AtomicU32;

pub(crate) fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }.cast_unsigned()
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
