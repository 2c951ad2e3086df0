//! The arena: the memory that the slots of a family lie in, which its processes share.
//!
//! It is a file that others may look at, or nameless memory; which, and what the file says first, is in
//! `stats.rs`. Behind a head lie the slots, the memberships, and the bits that say which process has which slot.
//!
//! # Safety
//!
//! 1. The arena is mapped once, by the first process, and never unmapped. It holds atomics alone,
//!    for which every bit pattern, zeros above all, is legal.

#![expect(clippy::as_conversions, reason = "a number of bits is a constant")]

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;

use crate::base::lock::Lazy;
use crate::base::shelter::Mapping;
use crate::base::{log, raw, thread};
use crate::socket::counters::Counters;
use crate::socket::memberships::{self, Membership};
use crate::socket::own;
use crate::socket::ownership::{self, Allocation, Bits, Ownership, Place, Places, Vacancies};
use crate::socket::state::{self, Local, Socket};
use crate::socket::waits::{self, Counts, Waits};

/// The most sockets that are known at a time; others are the kernel's.
pub(crate) const SLOTS_MAX: usize = 1 << 18;

#[derive(Debug)]
#[repr(C, align(64))]
struct Arena {
    /// What the file is, how to read it, and whose it is; see `stats.rs`.
    about: About,
    /// Slots from here on have never been used.
    fresh: AtomicU32,
    /// Below this word no other is free.
    low: AtomicU32,
    wanted_log: log::Wanted,
    /// The socket that they want described in the log: its descriptor and one, and above it the level and
    /// one. 0: none.
    subject: AtomicU64,
    /// The process after which the file is named, and some of those that have it.
    holder: AtomicU32,
    processes: [AtomicU32; PROCESSES_MAX],
    /// What sockets that are closed had counted.
    closed: Counters,
    waits: [Waits; waits::PLACES],
    /// The processes that have slots. What a child of few touches is on one page with all of the above.
    places: Places,
    free: [AtomicU64; SLOTS_MAX / u64::BITS as usize],
}

/// Processes of a family that can go on with its file when the one ends that has made it.
const PROCESSES_MAX: usize = 16;

/// What lies in front of the bits of ownership: the arena's head, the slots, and the memberships behind them.
const HEAD_BYTES: usize = size_of::<Arena>()
    + SLOTS_MAX * size_of::<Socket>()
    + memberships::COUNT * size_of::<Membership>();
const _: () = assert!(HEAD_BYTES.is_multiple_of(align_of::<Bits>()));
/// What of the arena is put aside from the start: its head, and the first slots.
pub(crate) const HEAD_PAGES: usize = size_of::<Arena>() + 64 * size_of::<Socket>();
/// Length of the arena. Only what has been touched is there.
const ARENA_BYTES: usize = HEAD_BYTES + BITS_COUNT * size_of::<Bits>();
const BITS_COUNT: usize = (ownership::WORDS - 1) * SLOTS_MAX;
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(ptr::null_mut());
static LOCALS: AtomicPtr<Local> = AtomicPtr::new(ptr::null_mut());

/// Length of the text in front of the file.
pub(crate) const ABOUT_BYTES: usize = 4096;

/// The text in front of the file: version, process, layout, command. Zeros behind it.
#[repr(C, align(64))]
pub(crate) struct About([u8; ABOUT_BYTES]);

impl std::fmt::Debug for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("About").finish_non_exhaustive()
    }
}

/// Memory for slots: unmapped if it is dropped, and there for good once it is kept.
#[derive(Debug)]
pub(crate) enum Mapped {
    File(Mapping),
    Nameless { base: *mut u8, len: usize },
}

impl Mapped {
    pub(crate) fn base(&self) -> *mut u8 {
        match self {
            Self::File(mapping) => mapping.base().as_ptr(),
            Self::Nameless { base, .. } => *base,
        }
    }

    /// It stays for good.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Self::Nameless { base, len } = *self {
            // SAFETY: mapped by `stats::map`; it was not kept, so it is not used.
            unsafe { raw::unmap(base, len) };
        }
    }
}

/// The arena, if there is one.
#[inline]
fn existing() -> Option<&'static Arena> {
    let at = NonNull::new(ARENA.load(Ordering::Acquire))?;
    // SAFETY: mapped for good, zeros are legal (rule 1).
    Some(unsafe { at.as_ref() })
}

/// Whether there is an arena.
#[inline]
pub(crate) fn is_there() -> bool {
    existing().is_some()
}

/// Makes the arena of memory that `map` gives, which is told its length, unless another thread is faster.
/// Returns whether it is that memory; `None` if there is none. `describe` is called by [`describe_wanted`].
#[cold]
pub(crate) fn set_up(
    map: impl FnOnce(usize) -> Option<Mapped>,
    describe: fn(c_int, i64),
) -> Option<bool> {
    let _errno = raw::KeptErrno::new();
    let locals_len = SLOTS_MAX * size_of::<Local>();
    let locals = raw::map_zeros(locals_len, false).ok()?;
    let mapped = map(ARENA_BYTES)?;
    let base = mapped.base();
    // SAFETY: mapped for good unless another thread is faster, and zeros are legal (rule 1).
    own::found(&ownership_of(unsafe { &*base.cast::<Arena>() }));
    let null = ptr::null_mut();
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    if let Err(other) = LOCALS.compare_exchange(null, locals.cast(), o, r) {
        // SAFETY: the mapping lost the race, and has not been published.
        unsafe { raw::unmap(locals, locals_len) };
        debug_assert!(!other.is_null());
    }
    DESCRIBE.get_or_init(|| describe);
    let is_ours = ARENA.compare_exchange(ptr::null_mut(), base.cast(), o, r).is_ok();
    if is_ours {
        mapped.keep();
        log::follow(&existing()?.wanted_log);
    }
    Some(is_ours) // If not, ours has not been published, and goes.
}

static DESCRIBE: Lazy<fn(c_int, i64)> = Lazy::new();

/// Describes what readers of statistics want described. Called by calls that wait, and where connections come
/// and go.
#[inline]
pub(crate) fn describe_wanted() {
    if let Some((fd, level)) = wanted_subject()
        && let Some(describe) = DESCRIBE.get()
    {
        let errno = raw::errno();
        describe(fd, level);
        raw::set_errno(errno);
    }
}

/// What this process alone knows about a slot.
#[inline]
pub(crate) fn local(socket: &Socket) -> Option<&'static Local> {
    let locals = NonNull::new(LOCALS.load(Ordering::Acquire))?;
    let at = locals.as_ptr().wrapping_add(usize::try_from(index_of(socket)).ok()?);
    // SAFETY: as many as slots, mapped for good, and zeros are legal (rule 1).
    Some(unsafe { &*at })
}

/// The number of a slot.
#[inline]
pub(crate) fn index_of(socket: &Socket) -> u32 {
    let Some(arena) = existing() else { return 0 };
    let first = ptr::from_ref(arena).wrapping_add(1).addr();
    u32::try_from((ptr::from_ref(socket).addr() - first) / size_of::<Socket>()).unwrap_or(0)
}

/// Where the fields of a slot lie, and slots, the log's settings and memberships, for readers of statistics.
pub(crate) fn layout() -> String {
    use std::mem::offset_of;
    let text = state::fields();
    let fresh = offset_of!(Arena, fresh);
    let (level, details) =
        (offset_of!(Arena, wanted_log.level), offset_of!(Arena, wanted_log.details));
    let (arena, slot) = (size_of::<Arena>(), size_of::<Socket>());
    let (members, member) = (arena + SLOTS_MAX * slot, size_of::<Membership>());
    let (count, subject) = (memberships::COUNT, offset_of!(Arena, subject));
    format!("{text}| {arena} {slot} {fresh} {level} {details} {members} {member} {count} {subject}")
}

/// Where what closed sockets had counted lies, and what calls that wait have counted.
pub(crate) fn sums() -> String {
    use std::mem::offset_of;
    let (closed, at) = (offset_of!(Arena, closed), offset_of!(Arena, waits));
    let (stride, count) = (size_of::<Waits>(), waits::PLACES);
    let (calls, names) = (Waits::CALLS, Counts::NAMES);
    format!("closed={closed} waits={at}:{stride}:{count}:{calls}:{names}")
}

/// What closed sockets had counted.
pub(crate) fn closed() -> Option<&'static Counters> {
    existing().map(|arena| &arena.closed)
}

/// Where the calling thread counts what it waits for.
#[inline]
pub(crate) fn waits() -> Option<&'static Waits> {
    let place = own::me()?.0.wrapping_mul(5).wrapping_add(thread::id());
    existing()?.waits.get(usize::try_from(place).unwrap_or(0) % waits::PLACES)
}

/// The descriptor of which readers of statistics want a description in the log, 0 for all, and at which
/// level. It is asked for once, of the process after which the file is named.
#[inline]
fn wanted_subject() -> Option<(c_int, i64)> {
    let subject = &existing()?.subject;
    if subject.load(Ordering::Relaxed) == 0 || holder() != Some(raw::process_id()) {
        return None;
    }
    let (fd, level) = ownership::halves(subject.swap(0, Ordering::AcqRel));
    Some((c_int::try_from(fd.checked_sub(1)?).ok()?, i64::from(level.checked_sub(1)?)))
}

/// The file is named after that process.
pub(crate) fn hold(process: u32) {
    if let Some(arena) = existing() {
        arena.holder.store(process, Ordering::Release);
    }
}

/// The process after which the file is named.
pub(crate) fn holder() -> Option<u32> {
    existing().map(|arena| arena.holder.load(Ordering::Acquire)).filter(|holder| *holder != 0)
}

/// That process has the arena too.
pub(crate) fn add_process(process: u32) {
    let Some(arena) = existing() else { return };
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    if let Some((place, known)) = known_as(arena, process) {
        // Its parent knows its number only.
        if alive::number(process) != process {
            let _ = place.compare_exchange(known, process, o, r);
        }
        return;
    }
    let take = |has_ended: fn(u32) -> bool| {
        arena.processes.iter().any(|place| {
            let known = place.load(Ordering::Acquire);
            let is_free = known == 0 || has_ended(known);
            is_free && place.compare_exchange(known, process, o, r).is_ok()
        })
    };
    // Every fork comes here: the kernel is asked about others only where there is no room without.
    let _ = take(|_| false) || take(alive::has_ended);
}

/// It has it no longer.
pub(crate) fn remove_process() {
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    if let Some(arena) = existing()
        && let Some((place, known)) = known_as(arena, raw::process_id())
    {
        let _ = place.compare_exchange(known, 0, o, r);
    }
}

/// The place of a process of that number.
fn known_as(arena: &Arena, process: u32) -> Option<(&AtomicU32, u32)> {
    let mut known = arena.processes.iter().map(|place| (place, place.load(Ordering::Acquire)));
    known.find(|(_, known)| alive::number(*known) == alive::number(process))
}

/// The number of another process that has it.
pub(crate) fn other_process() -> Option<u32> {
    let me = raw::process_id();
    let mut processes = existing()?.processes.iter().map(|place| place.load(Ordering::Acquire));
    let is_other = |other: &u32| ![0, me].contains(&alive::number(*other));
    processes.find(|other| is_other(other) && !alive::has_ended(*other)).map(alive::number)
}

/// The memberships of all sockets.
pub(crate) fn memberships() -> Option<&'static [Membership; memberships::COUNT]> {
    let slots = ptr::from_ref(existing()?).wrapping_add(1).cast::<Socket>();
    let at = slots.wrapping_add(SLOTS_MAX).cast::<[Membership; memberships::COUNT]>();
    // SAFETY: behind the slots, inside of the mapping, which is for good, and made of atomics (rule 1).
    Some(unsafe { &*at })
}

/// Calls `f` with the ownership of slots, and the place of this process, if it has one.
pub(crate) fn with<T>(f: impl FnOnce(&Ownership<'static>, Place) -> T) -> Option<T> {
    Some(f(&ownership()?, own::me()?))
}

/// Which process has which slots, if there is an arena.
pub(crate) fn ownership() -> Option<Ownership<'static>> {
    existing().map(ownership_of)
}

fn ownership_of(arena: &Arena) -> Ownership<'_> {
    let at = ptr::from_ref(arena).cast::<u8>().wrapping_add(HEAD_BYTES).cast::<Bits>();
    // SAFETY: behind the memberships, inside of the mapping, and made of atomics (rule 1).
    let bits = unsafe { std::slice::from_raw_parts(at, BITS_COUNT) };
    let vacancies = Vacancies { bits: &arena.free, low: &arena.low };
    Ownership { places: &arena.places, slot: allocation, bits, slots_max: SLOTS_MAX, vacancies }
}

fn allocation(index: u32) -> Option<&'static Allocation> {
    slot(index).map(|slot| &slot.allocation)
}

/// Slots from here on have never been used.
pub(crate) fn fresh() -> u32 {
    existing().map_or(0, |arena| arena.fresh.load(Ordering::Acquire))
}

/// Where the arena is mapped.
pub(crate) fn arena_address() -> Option<usize> {
    existing().map(|arena| ptr::from_ref(arena).addr())
}

/// The slot of that number.
pub(crate) fn slot(index: u32) -> Option<&'static Socket> {
    let arena = existing()?;
    let index = usize::try_from(index).ok().filter(|index| *index < SLOTS_MAX)?;
    let slots = ptr::from_ref(arena).wrapping_add(1).cast::<Socket>();
    // SAFETY: inside of the mapping, which is for good, and made of atomics (rule 1).
    Some(unsafe { &*slots.wrapping_add(index) })
}

/// The number of a slot that has never been used, unless there are `SLOTS_MAX` already.
pub(crate) fn take_fresh() -> Option<u32> {
    let (o, r) = (Ordering::Relaxed, Ordering::Relaxed);
    let more = |count| usize::try_from(count).is_ok_and(|count| count < SLOTS_MAX);
    existing()?.fresh.fetch_update(o, r, |count| more(count).then(|| count + 1)).ok()
}
