//! Lines of the log: to the standard error, or to the file that `VMA_LOG_FILE` names.
//!
//! # Safety
//!
//! What readers of statistics want is mapped for good, and made of atomics.

use std::ffi::{CStr, CString, c_int};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use adverb_sockconf::Level;

use crate::base::config;
use crate::base::raw::{self, Errno};

/// What readers of statistics want of the log: a level, and details, each one more than it is.
/// 0: nothing.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Wanted {
    pub(crate) level: AtomicU32,
    pub(crate) details: AtomicU32,
}

static WANTED: AtomicPtr<Wanted> = AtomicPtr::new(std::ptr::null_mut());

/// From now on this is what readers of statistics want.
pub(crate) fn follow(wanted: &'static Wanted) {
    WANTED.store(std::ptr::from_ref(wanted).cast_mut(), Ordering::Release);
}

/// What they want of one of the two, if anything.
fn wanted(word: impl Fn(&Wanted) -> &AtomicU32) -> Option<i64> {
    let at = NonNull::new(WANTED.load(Ordering::Acquire))?;
    // SAFETY: stored by `follow`, which was given a reference for good.
    let wanted = word(unsafe { at.as_ref() }).load(Ordering::Relaxed);
    i64::from(wanted).checked_sub(1).filter(|wanted| *wanted >= 0)
}

/// How lines look and where they go.
#[derive(Debug)]
pub(crate) struct Log {
    /// The least important level that is printed; `None`: nothing is.
    pub(crate) level: Option<Level>,
    /// 0 to 3: how much is said about the thread that prints.
    pub(crate) details: i64,
    pub(crate) colours: bool,
    /// The file; the standard error if there is none.
    pub(crate) file: Option<CString>,
    pub(crate) started_ns: u64,
}

impl Log {
    fn line(&self, level: Level, text: &str) -> String {
        let details = wanted(|wanted| &wanted.details).unwrap_or(self.details);
        let origin = match details {
            0 => String::new(),
            1 => format!("Tid: {} ", raw::thread_id()),
            2 => format!("Pid: {} Tid: {} ", raw::process_id(), raw::thread_id()),
            _ => {
                let ms = raw::now_ns().saturating_sub(self.started_ns) / 1_000_000;
                format!("Time: {ms} Pid: {} Tid: {} ", raw::process_id(), raw::thread_id())
            }
        };
        let line = format!("{origin}VMA {}: {text}", level.word());
        match level {
            Level::Panic | Level::Error | Level::Warning if self.colours => {
                format!("\x1b[31m{line}\x1b[0m\n")
            }
            Level::Fine | Level::Finer if self.colours => format!("\x1b[2m{line}\x1b[0m\n"),
            Level::Panic
            | Level::Error
            | Level::Warning
            | Level::Info
            | Level::Details
            | Level::Debug
            | Level::Fine
            | Level::Finer => line + "\n",
        }
    }

    /// The least important level that is printed now: a reader of statistics may want another one.
    fn most(&self) -> Option<Level> {
        match wanted(|wanted| &wanted.level) {
            Some(wanted) => Some(Level::of(wanted)),
            None => self.level,
        }
    }

    /// Prints a line, if its level is wanted.
    pub(crate) fn print(&self, level: Level, text: &str) {
        if self.most().is_none_or(|most| level > most) {
            return;
        }
        let line = self.line(level, text);
        match &self.file {
            Some(path) => append(path, &line),
            None => {
                let _ = raw::write(libc::STDERR_FILENO, line.as_bytes());
            }
        }
    }
}

/// Calls `f` with a descriptor of where lines go. It makes plain system calls alone, once the settings are known.
pub(crate) fn with_descriptor(f: impl FnOnce(c_int)) {
    match config::get().log.file.as_deref().map(open) {
        None => f(libc::STDERR_FILENO),
        Some(Ok(fd)) => {
            f(fd);
            raw::close(fd);
        }
        Some(Err(_)) => {}
    }
}

/// Whether lines of that level are printed.
pub(crate) fn is_on(level: Level) -> bool {
    config::get().log.most().is_some_and(|most| level <= most)
}

/// Prints a line, if its level is wanted. The text is made only then.
pub(crate) fn print(level: Level, text: impl FnOnce() -> String) {
    if is_on(level) {
        config::get().log.print(level, &text());
    }
}

/// Opens a file to add to its end. A FIFO that nothing reads is an error, instead of a wait.
pub(crate) fn open(path: &CStr) -> Result<c_int, Errno> {
    let flags =
        libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NONBLOCK;
    raw::open(path, flags)
}

/// Adds to the end of a file. One that cannot be opened has been warned of at the start (`config.rs`).
pub(crate) fn append(path: &CStr, text: &str) {
    if let Ok(fd) = open(path) {
        let _ = raw::write(fd, text.as_bytes());
        raw::close(fd);
    }
}
