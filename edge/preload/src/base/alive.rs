//! Processes and threads as words in shared memory, and whether those that have written them live.
//!
//! The kernel gives a number to another process some time after its owner has ended. So a word has beside the
//! number what little of the time has room at which the process began: one that has the number of another is
//! told from it, but for one in a thousand. What a thread writes says that of its process, so that a thread that
//! begins does not have to ask for its own.
//!
//! That time is not known where `/proc` is missing or another namespace's, in a namespace with a clock of its own,
//! and to a program that has confined itself. A word without it is judged by its number alone, and so
//! are all words by a process that does not know its own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::base::raw;

/// So many bits are the number: the kernel has no larger ones (`PID_MAX_LIMIT`).
const NUMBER_BITS: u32 = 22;
/// Beginnings that are told apart: one less than the rest of the word can say, since 0 is none.
const BEGINNINGS: u64 = (1 << (u32::BITS - NUMBER_BITS)) - 1;

/// This process, as long as it has that number.
static OWN: AtomicU32 = AtomicU32::new(0);
/// It must not open files any more.
static IS_BLIND: AtomicBool = AtomicBool::new(false);

/// This process.
pub(crate) fn me() -> u32 {
    let process = raw::process_id();
    let known = OWN.load(Ordering::Relaxed);
    if number(known) == process {
        return known;
    }
    let new = if can_tell(process) { named(process, beginning(process)) } else { process };
    OWN.store(new, Ordering::Relaxed);
    new
}

/// The calling thread, by this number.
pub(crate) fn thread(thread: u32) -> u32 {
    thread | me() & !number(u32::MAX)
}

/// In a child just forked, which may have its parent's number, in another namespace.
pub(crate) fn after_fork() {
    OWN.store(0, Ordering::Relaxed);
}

/// From now on words are judged by their numbers, as others are not known.
pub(crate) fn confine() {
    me();
    IS_BLIND.store(true, Ordering::Relaxed);
}

/// The number that the kernel knows it by.
pub(crate) fn number(word: u32) -> u32 {
    word & ((1 << NUMBER_BITS) - 1)
}

/// Whether a process has ended, even if its parent has not taken note of that yet.
pub(crate) fn has_ended(process: u32) -> bool {
    raw::has_ended(number(process)) || is_anothers(process, Some)
}

/// Whether there is no process of that number: what one call says. Another one may have it by now.
pub(crate) fn is_missing(process: u32) -> bool {
    !raw::is_process(number(process))
}

/// The same of a thread.
pub(crate) fn is_thread_missing(thread: u32) -> bool {
    !raw::is_thread(number(thread))
}

/// Whether a thread has ended.
pub(crate) fn has_thread_ended(thread: u32) -> bool {
    is_thread_missing(thread) || is_anothers(thread, process_of)
}

/// Whether the number is by now that of a process that began at another time.
fn is_anothers(word: u32, process_of: impl FnOnce(u32) -> Option<u32>) -> bool {
    let claimed = word >> NUMBER_BITS;
    if claimed == 0 || me() >> NUMBER_BITS == 0 {
        return false;
    }
    let now = process_of(number(word)).and_then(beginning);
    now.is_some_and(|now| now != claimed)
}

fn named(process: u32, beginning: Option<u32>) -> u32 {
    process | beginning.unwrap_or(0) << NUMBER_BITS
}

/// The process that a thread belongs to.
fn process_of(thread: u32) -> Option<u32> {
    let status = read(&format!("/proc/{thread}/status"))?;
    let mut lines = status.split(|byte| *byte == b'\n');
    number_in(lines.find_map(|line| line.strip_prefix(b"Tgid:\t"))?)?.try_into().ok()
}

/// When a process began, in the kernel's ticks: what there is room for, and never 0.
fn beginning(process: u32) -> Option<u32> {
    let stat = read(&format!("/proc/{process}/stat"))?;
    // Its name may be anything; behind it are numbers, the twentieth of which it is.
    let behind = stat.rsplit(|byte| *byte == b')').next()?;
    let ticks = number_in(behind.split(|byte| *byte == b' ').nth(20)?)?;
    u32::try_from(ticks % BEGINNINGS + 1).ok()
}

/// Whether what `/proc` says is about the numbers that this process knows, and in the time of all of them.
fn can_tell(process: u32) -> bool {
    let mut own = [0_u8; 16];
    let len = raw::read_link(c"/proc/self", &mut own).unwrap_or(0);
    let is_own = own.get(..len).and_then(number_in) == Some(process.into());
    // There may be no such namespaces.
    let offsets = is_own.then(|| read("/proc/self/timens_offsets").unwrap_or_default());
    offsets.is_some_and(|offsets| {
        let mut lines = offsets.split(|byte| *byte == b'\n');
        let since_boot = lines.find_map(|line| line.strip_prefix(b"boottime"));
        since_boot.is_none_or(|line| line.iter().all(|byte| b" \t0".contains(byte)))
    })
}

fn number_in(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn read(path: &str) -> Option<Vec<u8>> {
    let is_blind = IS_BLIND.load(Ordering::Relaxed);
    (!is_blind).then(|| raw::read_file(Path::new(path), FILE_BYTES))?.filter(|all| !all.is_empty())
}

/// No more is read of a file.
const FILE_BYTES: usize = 4096;
