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

use crate::file::{self, SharedFile};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// So many bits are the number: the kernel has no larger ones (`PID_MAX_LIMIT`).
const NUMBER_BITS: u32 = 22;
/// Beginnings that are told apart: one less than the rest of the word can say, since 0 is none.
const BEGINNINGS: u64 = (1 << (u32::BITS - NUMBER_BITS)) - 1;

/// This process, as long as it has that number.
static OWN: AtomicU32 = AtomicU32::new(0);
/// It must not open files any more.
static IS_BLIND: AtomicBool = AtomicBool::new(false);

/// This process.
#[inline]
pub fn me() -> u32 {
    let process = rustix::process::getpid().as_raw_pid().cast_unsigned();
    let known = OWN.load(Ordering::Relaxed);
    if number(known) == process { known } else { find_out(process) }
}

/// The same, where that has to be read: into more of the stack than a process that forks should use each time, as its child
/// gets a copy of that.
#[cold]
#[inline(never)]
fn find_out(process: u32) -> u32 {
    let new = if can_tell(process) { named(process, beginning(process)) } else { process };
    OWN.store(new, Ordering::Relaxed);
    new
}

/// The calling thread, by this number.
#[inline]
pub fn thread(thread: u32) -> u32 {
    thread | me() & !number(u32::MAX)
}

/// A process that is about to fork, and when that was: by that its child knows when it began, most of the time, without
/// having to look, which costs it a good part of its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Forking {
    parent: u32,
    ticks: u64,
}

/// To be called just before a fork, for [`after_fork`]. `None`: the child has to look.
pub fn before_fork() -> Option<Forking> {
    let own = me();
    (own >> NUMBER_BITS != 0).then(|| Forking { parent: number(own), ticks: ticks() })
}

/// In a child just forked, which may have its parent's number, in another namespace.
#[inline]
pub fn after_fork(before: Option<Forking>) {
    let own = before.and_then(|before| {
        let parent = rustix::process::getppid()?.as_raw_pid().cast_unsigned();
        let process = rustix::process::getpid().as_raw_pid().cast_unsigned();
        child(process, parent, ticks(), before)
    });
    OWN.store(own.unwrap_or(0), Ordering::Relaxed);
}

/// A child, if it began in the very tick in which its parent was about to fork. One in another namespace does not see its
/// parent, or sees another time.
#[inline]
fn child(process: u32, parent: u32, now: u64, before: Forking) -> Option<u32> {
    let is_known = parent == before.parent && now == before.ticks;
    is_known.then(|| named(process, Some(beginning_of(now))))
}

/// The time in which the kernel says when processes began.
#[inline]
fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, rest) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0) * TICKS + rest.unwrap_or(0) / (1_000_000_000 / TICKS)
}

/// A second has so many (`USER_HZ`).
const TICKS: u64 = 100;

/// From now on words are judged by their numbers, as others are not known.
pub fn confine() {
    me();
    IS_BLIND.store(true, Ordering::Relaxed);
}

/// The number that the kernel knows it by.
pub fn number(word: u32) -> u32 {
    word & ((1 << NUMBER_BITS) - 1)
}

/// Whether a process has ended, even if its parent has not taken note of that yet.
pub fn has_ended(process: u32) -> bool {
    has_ended_since(process) || is_anothers(process, Some)
}

/// The same of a process that [`has_ended`] found alive less than [`JUDGED_NS`] ago, without reading `/proc`: its number is
/// most likely still its own, as the kernel gives all others before it gives one again. Where it is not, the answer is wrong
/// until [`has_ended`] is asked again.
pub fn has_ended_since(process: u32) -> bool {
    pid(process).is_none_or(|pid| match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => is_readable(&SharedFile::from(fd)),
        Err(Errno::SRCH) => true,
        Err(_) => is_missing(process),
    })
}

/// How long the number of a process that was seen alive is taken for its own, in nanoseconds.
pub const JUDGED_NS: u64 = 50_000_000;

/// Whether there is no process of that number: what one call says. Another one may have it by now.
pub fn is_missing(process: u32) -> bool {
    // Not being allowed to signal it says that there is one.
    pid(process).is_none_or(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

/// The same of a thread.
pub fn is_thread_missing(thread: u32) -> bool {
    // A call that looks for it, and whose answer says nothing else of interest.
    pid(thread).is_none_or(|pid| rustix::thread::sched_getaffinity(Some(pid)) == Err(Errno::SRCH))
}

/// Whether a thread has ended.
pub fn has_thread_ended(thread: u32) -> bool {
    is_thread_missing(thread) || is_anothers(thread, process_of)
}

/// Takes a place in a table for this process, if it is free, or its owner another process that `has_ended`.
pub fn seize(owner: &AtomicU32, has_ended: fn(u32) -> bool) -> bool {
    let (known, me) = (owner.load(Ordering::Acquire), me());
    let is_free = known == 0 || known != me && has_ended(known);
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    is_free && owner.compare_exchange(known, me, o, r).is_ok()
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

/// As the kernel's calls take it; `None` of a word that names nothing.
fn pid(word: u32) -> Option<Pid> {
    Pid::from_raw(number(word).cast_signed())
}

/// Whether the descriptor of a process says that it has ended.
fn is_readable(file: &SharedFile) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
}

/// The process that a thread belongs to.
fn process_of(thread: u32) -> Option<u32> {
    let mut status = [0; FILE_BYTES];
    let status = read(&format!("/proc/{thread}/status"), &mut status)?;
    let mut lines = status.split(|byte| *byte == b'\n');
    number_in(lines.find_map(|line| line.strip_prefix(b"Tgid:\t"))?)?.try_into().ok()
}

/// When a process began, in the kernel's ticks: what there is room for, and never 0.
fn beginning(process: u32) -> Option<u32> {
    let mut stat = [0; FILE_BYTES];
    let stat = read(&format!("/proc/{process}/stat"), &mut stat)?;
    // Its name may be anything; behind it are numbers, the twentieth of which it is.
    let behind = stat.rsplit(|byte| *byte == b')').next()?;
    let ticks = number_in(behind.split(|byte| *byte == b' ').nth(20)?)?;
    Some(beginning_of(ticks))
}

fn beginning_of(ticks: u64) -> u32 {
    u32::try_from(ticks % BEGINNINGS + 1).unwrap_or(1)
}

/// Whether what `/proc` says is about the numbers that this process knows, and in the time of all of them.
fn can_tell(process: u32) -> bool {
    let (mut own, mut offsets) = ([0; 16], [0; FILE_BYTES]);
    if number_in(file::read_link(c"/proc/self", &mut own)) != Some(process.into()) {
        return false;
    }
    // There may be no such namespaces.
    let offsets = read("/proc/self/timens_offsets", &mut offsets).unwrap_or_default();
    let mut lines = offsets.split(|byte| *byte == b'\n');
    let since_boot = lines.find_map(|line| line.strip_prefix(b"boottime"));
    since_boot.is_none_or(|line| line.iter().all(|byte| b" \t0".contains(byte)))
}

/// The namespace that this process's number is of, as two processes of one machine know it; 0 if that cannot be seen.
pub fn namespace() -> u64 {
    let mut link = [0; 64];
    let link = file::read_link(c"/proc/self/ns/pid", &mut link);
    let digits = link.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| {
        number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
    })
}

/// Whether numbers of that namespace, as [`namespace`] has it, are those that this process knows: of no others can it say
/// whether they live. One that could not be seen is taken for its own.
pub fn is_known(other: u64) -> bool {
    other == 0 || other == namespace()
}

fn number_in(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What a file says, unless it says nothing.
fn read<'a>(path: &str, into: &'a mut [u8; FILE_BYTES]) -> Option<&'a [u8]> {
    if IS_BLIND.load(Ordering::Relaxed) {
        return None;
    }
    let file = SharedFile::read_only(&CString::new(path).ok()?).ok()?;
    Some(file.read(into)).filter(|bytes| !bytes.is_empty())
}

/// No more is read of a file.
const FILE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A process that does nothing. It ends with the test.
    struct Idle(Child);

    impl Idle {
        fn new() -> Self {
            Self(Command::new("sleep").arg("1000").spawn().unwrap())
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn own_thread() -> u32 {
        thread(rustix::thread::gettid().as_raw_pid().cast_unsigned())
    }

    /// The same number, and two beginnings, one of which is not that of its process.
    fn forged(number: u32) -> [u32; 2] {
        [number | 1 << NUMBER_BITS, number | 2 << NUMBER_BITS]
    }

    /// Goal: a process that lives is known, by its number and by when it began.
    #[test]
    fn a_number_is_its_process_s_alone() {
        let me = me();
        assert_eq!(number(me), std::process::id());
        assert!(me >> NUMBER_BITS != 0 && !has_ended(me) && !is_missing(me), "{me:x}");
        assert!(forged(std::process::id()).into_iter().any(has_ended));
        assert_ne!(namespace(), 0);

        let other = Idle::new();
        let number = other.0.id();
        assert!(!has_ended(number), "what is known is its number alone");
        assert!(forged(number).into_iter().any(has_ended));
        drop(other);
        assert!(is_missing(number));
        assert!(has_ended(number) && forged(number).into_iter().all(has_ended));
    }

    /// Goal: what a child takes for its beginning is what others read of it.
    #[test]
    fn a_child_knows_when_it_began() {
        let me = me();
        let begun = || {
            let before = before_fork().unwrap();
            let other = Idle::new();
            let id = other.0.id();
            let known = child(id, std::process::id(), ticks(), before)?;
            Some((known, named(id, beginning(id))))
        };
        let (known, read) = std::iter::repeat_with(begun).flatten().next().unwrap();
        assert_eq!(known, read);
        let before = Forking { parent: number(me), ticks: 7 };
        assert!(child(8, number(me), 7, before).is_some());
        assert!(child(8, number(me), 8, before).is_none(), "the tick is over");
        assert!(child(8, 1, 7, before).is_none(), "the parent has ended, or is elsewhere");
    }

    #[test]
    fn a_process_has_ended_before_it_is_waited_for() {
        let mut other = Idle::new();
        assert!(!has_ended_since(other.0.id()));
        other.0.kill().unwrap();
        while !has_ended(other.0.id()) {
            std::thread::yield_now();
        }
        assert!(has_ended_since(other.0.id()));
        assert!(!is_missing(other.0.id()), "its number is not free yet");
    }

    #[test]
    fn a_thread_has_a_number_until_it_ends() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(own_thread()).unwrap();
            let _ = ended.recv();
        });
        let other_thread = told.recv().unwrap();
        assert!(other_thread != own_thread());
        assert_eq!(other_thread >> NUMBER_BITS, me() >> NUMBER_BITS);
        assert!(!has_thread_ended(other_thread) && !is_thread_missing(other_thread));
        drop(end);
        other.join().unwrap();
        // It is joined before the kernel has done with it.
        while !has_thread_ended(other_thread) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_place_is_taken_once_or_from_the_dead() {
        let place = AtomicU32::new(0);
        assert!(seize(&place, has_ended));
        assert!(!seize(&place, |_| true), "this process has it");
        let other = Idle::new();
        place.store(other.0.id(), Ordering::Relaxed);
        assert!(!seize(&place, is_missing));
        drop(other);
        assert!(seize(&place, is_missing));
        assert_eq!(place.load(Ordering::Relaxed), me());
    }
}
