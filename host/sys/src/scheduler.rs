//! Scheduler: priorities of threads, and how busy the machine is.
//!
//! # Safety
//!
//! 1. `sched_getattr(2)` and `sched_setattr(2)` fill and read one `struct sched_attr` of the calling thread, all of whose
//!    fields are plain integers; its size is passed along.
//! 2. `prctl(PR_SET_TIMERSLACK)` takes one number, and sets a property of the calling thread.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::thread;

/// The shortest slice that Linux gives, in nanoseconds (`sched_setattr(2)`, from Linux 6.12 on).
const SLICE_NANOS: u64 = 100_000;

/// Asks for short slices for the calling thread: when it wakes it runs before threads with longer ones, and is
/// asked to leave the processor sooner. Kernels before 6.12 go on as before, and so does a thread of a real-time,
/// batch or idle class.
///
/// # Errors
///
/// Those of `sched_getattr(2)` and `sched_setattr(2)`; nothing has changed.
pub fn ask_for_short_slices() -> io::Result<()> {
    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0);
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: a place for the answer, and its size (rule 1).
    let got =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes were zero, which is a valid value, before the kernel wrote its own.
    let mut attributes = unsafe { attributes.assume_init() };
    if attributes.sched_policy != u32::try_from(libc::SCHED_OTHER).unwrap_or(0) {
        return Ok(());
    }
    attributes.sched_runtime = SLICE_NANOS;
    // SAFETY: what the kernel has given a moment ago, with another slice (rule 1).
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks for timers of the calling thread that are as exact as the machine's clock: by default the kernel may be 50 µs late.
///
/// # Errors
///
/// Those of `prctl(2)`; nothing has changed.
pub fn ask_for_exact_timers() -> io::Result<()> {
    let nanos: libc::c_ulong = 1;
    // SAFETY: it takes a number (rule 2).
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How many threads of the whole machine want to run, from `/proc/loadavg`.
#[derive(Debug)]
pub struct Load {
    file: Option<File>,
    processors: usize,
}

impl Load {
    /// Opens the file; a machine without it is never crowded.
    pub fn new() -> Self {
        let file = File::open("/proc/loadavg").ok();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self { file, processors }
    }

    /// More threads want to run, the calling one included, than there are processors that it may use.
    pub fn is_crowded(&self) -> bool {
        let mut text = [0; 64];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = read.and_then(|len| str::from_utf8(text.get(..len)?).ok());
        text.and_then(running).is_some_and(|running| running > self.processors)
    }
}

impl Default for Load {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of threads that want to run: what is before the slash in `0.20 0.18 0.12 3/80 11206`.
fn running(text: &str) -> Option<usize> {
    let (before, _) = text.split_once('/')?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_want_to_run_are_read_from_the_file() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for text in ["", "0.20", "0.20 x/80", "/"] {
            assert_eq!(running(text), None, "{text}");
        }
    }

    #[test]
    fn a_machine_is_crowded_if_more_threads_spin_than_it_has_processors() {
        let load = Load::new();
        let stop = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..=load.processors {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while !load.is_crowded() {
                thread::yield_now();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_thread_that_asks_for_short_slices_keeps_its_niceness() {
        let niceness = || {
            // SAFETY: it only answers.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = niceness();
        ask_for_short_slices().unwrap();
        assert_eq!(niceness(), before);
    }
}
