//! UMEM: memory that is cut into frames, and a record of which is whose.
//!
//! Beside the frames lies a second piece of memory that all members map: a lock, a stack of free frames, and for each
//! frame a word that says whose it is. The words are the truth; the stack is made anew from them when the holder of the
//! lock has been killed in the midst of a change. A frame that is the kernel's is in a fill ring, on its way in or out,
//! in a completion ring, or in a receive ring.
//!
//! The lock holds the number of a process. Mappings of one file in one process share a turn, which comes before the
//! lock, and an owner and its members are of one process namespace, where the number of a process that lives is no
//! other's.
//!
//! Every number that is read there may be nonsense, for other members write it: one that names no frame, or a frame
//! that is not what it should be, is dropped and counted. What that costs the group is a frame.
//!
//! # Safety
//!
//! 1. The memory of frames is one mapping that lives as long as the [`Umem`]; bytes are reached only through addresses
//!    that `Umem::frame_of` or a frame's number has shown to lie within.
//! 2. Bytes of a UMEM that other processes map are copied and never borrowed. Those of a private one are borrowed only
//!    in a frame that is this member's, which the kernel does not write until it is given back.
//! 3. A frame is written only by the member that has it.

use adverb_shm::copying::copy_short;
use adverb_shm::{alive, line};
use adverb_sys::fork::{KeptFd, PerProcess};
use adverb_sys::memory::{self, Mapping};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// How a UMEM is cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Frames in it.
    pub frames: u32,
    /// Bytes of a frame: 2048 or 4096. The kernel keeps 256 of them.
    pub frame_bytes: u32,
}

impl Shape {
    /// For an interface that carries IP packets of at most `mtu` bytes.
    ///
    /// # Errors
    ///
    /// `Unsupported` if its packets do not fit the largest frames.
    pub fn for_mtu(mtu: u32) -> io::Result<Self> {
        match mtu {
            0..=1750 => Ok(Self { frames: FRAMES, frame_bytes: 2048 }),
            1751..=3800 => Ok(Self { frames: FRAMES, frame_bytes: 4096 }),
            _ => {
                let message = format!("packets of {mtu} bytes do not fit frames of 4096");
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
        }
    }

    /// The longest packet that fits a frame, in bytes.
    pub(crate) const fn packet_bytes_max(self) -> u32 {
        self.frame_bytes - HEADROOM_BYTES
    }

    /// It is one that the kernel takes, and has as many frames as there may be.
    fn check(self) -> io::Result<Self> {
        let right =
            matches!(self.frame_bytes, 2048 | 4096) && (1..=FRAMES_MAX).contains(&self.frames);
        if right { Ok(self) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn bytes(self) -> usize {
        to_usize(self.frames) * to_usize(self.frame_bytes)
    }

    fn record_bytes(self) -> usize {
        STACK + 8 * to_usize(self.frames)
    }
}

/// Whose a frame is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Holder {
    Free,
    Kernel,
    Member(u32),
}

impl Holder {
    const fn word(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Kernel => 1,
            Self::Member(place) => place.saturating_add(2),
        }
    }
}

/// A UMEM.
#[derive(Debug)]
pub struct Umem {
    shape: Shape,
    frames: Mapping,
    record: Mapping,
    /// Other processes map it.
    shared: bool,
    /// This process's threads take turns, over all of its mappings, before it takes its turn among the others.
    turn: Arc<Mutex<()>>,
    /// This process, as the lock has it.
    me: u32,
    nonsense: AtomicU64,
    /// Queues into which frames of it come.
    queues: AtomicU32,
    /// Closed once it is not mapped any more, here or because another program has taken this process over.
    tie: Option<KeptFd>,
}

/// Descriptors by which others map a UMEM.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) frames: OwnedFd,
    pub(crate) record: OwnedFd,
}

impl Umem {
    /// One that is this process's alone.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a shape that is none; no memory left.
    pub(crate) fn private(shape: Shape) -> io::Result<Self> {
        let shape = shape.check()?;
        let frames = Mapping::anonymous(shape.bytes())?;
        let record = Mapping::anonymous(shape.record_bytes())?;
        let umem = Self::of(shape, frames, record, None);
        umem.begin();
        Ok(umem)
    }

    /// One for others to map, too.
    pub(crate) fn shared(shape: Shape) -> io::Result<(Self, Files)> {
        let shape = shape.check()?;
        let (frames, frames_file) = Mapping::memfd("adverb-xdp-frames", shape.bytes())?;
        let (record, record_file) = Mapping::memfd("adverb-xdp-record", shape.record_bytes())?;
        let umem = Self::of(shape, frames, record, Some(turn_of(&record_file)?));
        umem.begin();
        Ok((umem, Files { frames: frames_file, record: record_file }))
    }

    /// Maps the one that an owner has made. `InvalidData` if its files are too short, or could be cut short later.
    pub(crate) fn open(shape: Shape, files: &Files) -> io::Result<Self> {
        let shape = shape.check()?;
        let map = |file: &OwnedFd, len| match memory::is_sealed(file) {
            true if memory::file_len(file)? >= len => Mapping::shared(file.as_fd(), len),
            true | false => Err(io::ErrorKind::InvalidData.into()),
        };
        let frames = map(&files.frames, shape.bytes())?;
        let record = map(&files.record, shape.record_bytes())?;
        Ok(Self::of(shape, frames, record, Some(turn_of(&files.record)?)))
    }

    /// One that others map, too, has their `turn`.
    fn of(shape: Shape, frames: Mapping, record: Mapping, turn: Option<Arc<Mutex<()>>>) -> Self {
        // Best effort: a child that has the mapping does not use it.
        for mapping in [&frames, &record] {
            let _ = mapping.leave_zeros_to_children().or_else(|_| mapping.keep_from_children());
        }
        let (shared, me) = (turn.is_some(), alive::me());
        let turn = turn.unwrap_or_default();
        let (nonsense, queues) = (AtomicU64::new(0), AtomicU32::new(1));
        Self { shape, frames, record, shared, turn, me, nonsense, queues, tie: None }
    }

    /// Frames come into so many queues.
    pub(crate) fn set_queues(&self, queues: u32) {
        self.queues.store(queues.max(1), Ordering::Relaxed);
    }

    /// How many frames the kernel has of a queue for packets that come: a quarter of all is left for those that leave.
    pub(crate) fn filled_max(&self) -> u32 {
        let each = self.shape.frames / 4 * 3 / self.queues.load(Ordering::Relaxed);
        each.clamp(1, FILLED_MAX)
    }

    /// Holds a descriptor for as long as it is mapped.
    pub(crate) fn hold(&mut self, tie: KeptFd) {
        self.tie = Some(tie);
    }

    pub(crate) fn tie(&self) -> Option<BorrowedFd<'_>> {
        self.tie.as_ref().map(AsFd::as_fd)
    }

    fn begin(&self) {
        (Locked { umem: self, _turn: self.turn() }).rebuild();
    }

    /// How it is cut.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Numbers, lengths and positions that made no sense.
    #[must_use]
    pub fn nonsense(&self) -> u64 {
        self.nonsense.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn count_nonsense(&self) {
        self.nonsense.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes a word of the record, as another member could: any but the lock.
    #[cfg(any(test, feature = "hostile"))]
    pub(crate) fn scribble(&self, at: usize, word: u32) {
        let words = (self.shape.record_bytes() - COUNT) / 4;
        self.record.half(COUNT + 4 * (at % words)).store(word, Ordering::Relaxed);
    }

    pub(crate) fn start(&self) -> u64 {
        // The kernel takes the address as a number.
        u64::try_from(self.frames.as_ptr().as_ptr().expose_provenance()).unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.shape.bytes()).unwrap_or_default()
    }

    /// Where a frame begins.
    #[inline]
    pub(crate) fn address_of(&self, frame: u32) -> u64 {
        u64::from(frame) * u64::from(self.shape.frame_bytes)
    }

    /// The frame in which an address lies.
    #[inline]
    pub(crate) fn frame_at(&self, addr: u64) -> Option<u32> {
        // A frame's length is a power of two.
        let frame = addr >> self.shape.frame_bytes.trailing_zeros();
        u32::try_from(frame).ok().filter(|frame| *frame < self.shape.frames)
    }

    /// The frame in which all of these bytes lie.
    #[inline]
    pub(crate) fn frame_of(&self, addr: u64, len: u32) -> Option<u32> {
        let offset = addr & u64::from(self.shape.frame_bytes - 1);
        let fits = offset + u64::from(len) <= u64::from(self.shape.frame_bytes);
        self.frame_at(addr).filter(|_| fits)
    }

    /// Lends the bytes of a frame that is this member's; of a shared UMEM a copy, for which there is `room`. `None` if
    /// they are not in one frame.
    #[inline]
    pub(crate) fn lend<R>(
        &self,
        addr: u64,
        len: u32,
        room: &mut Vec<u8>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.frame_of(addr, len)?;
        let len = to_usize(len);
        let start = self.frames.as_ptr().as_ptr().wrapping_add(usize::try_from(addr).ok()?);
        if !self.shared {
            // SAFETY: within the mapping (rule 1), of a private UMEM, in a frame that is this member's (rule 2).
            return Some(take(unsafe { std::slice::from_raw_parts(start, len) }));
        }
        room.clear();
        room.resize(len, 0);
        // SAFETY: within the mapping (rule 1), and copied (rule 2) to as many bytes of this process.
        unsafe { copy_short(start, room.as_mut_ptr(), len) };
        Some(take(room))
    }

    /// Asks for the lines of a short packet that the kernel is about to put into the frame at `addr`, whatever that is: another
    /// member may have written it.
    #[inline]
    pub(crate) fn prefetch(&self, addr: u64) {
        let at = usize::try_from(addr).unwrap_or(0).wrapping_add(to_usize(HEADROOM_BYTES));
        line::prefetch_bytes(self.frames.as_ptr().as_ptr().wrapping_add(at), SHORT_BYTES);
    }

    /// A frame that is this member's, to write to.
    #[inline]
    pub(crate) fn writer(&self, frame: u32) -> Writer<'_> {
        debug_assert!(frame < self.shape.frames, "a frame of this UMEM");
        let at = usize::try_from(self.address_of(frame)).unwrap_or_default();
        let start = self.frames.as_ptr().as_ptr().wrapping_add(at);
        Writer {
            umem: PhantomData,
            start,
            room: to_usize(self.shape.frame_bytes),
            len: 0,
            whole: true,
        }
    }

    #[inline]
    pub(crate) fn is_held_by(&self, frame: u32, holder: Holder) -> bool {
        self.holder(frame).load(Ordering::Relaxed) == holder.word()
    }

    #[inline]
    pub(crate) fn give(&self, frame: u32, to: Holder) {
        self.holder(frame).store(to.word(), Ordering::Relaxed);
    }

    /// Locks the record; `None` if another process does not let go.
    pub(crate) fn lock(&self) -> Option<Locked<'_>> {
        let turn = self.turn();
        for spins in 0..SPINS_MAX {
            let Err(holder) = self.take_from(0) else {
                return Some(Locked { umem: self, _turn: turn });
            };
            let look = holder == self.me || spins % SPINS == SPINS - 1;
            if look && self.succeed(holder) {
                return Some(self.rebuilt(turn));
            }
            std::thread::yield_now();
        }
        self.count_nonsense();
        None
    }

    /// Locks the record if it can be had at once.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match self.take_from(0) {
            Ok(_) => Some(Locked { umem: self, _turn: turn }),
            Err(holder) => self.succeed(holder).then(|| self.rebuilt(turn)),
        }
    }

    fn take_from(&self, holder: u32) -> Result<u32, u32> {
        let word = self.record.half(LOCK);
        word.compare_exchange(holder, self.me, Ordering::Acquire, Ordering::Relaxed)
    }

    /// Takes the lock over if its holder has ended: as one has that had this process's number, for it is this process's
    /// turn, and nothing else in it has the lock.
    fn succeed(&self, holder: u32) -> bool {
        (holder == self.me || alive::has_ended(holder)) && self.take_from(holder).is_ok()
    }

    /// The record, which has been left in the midst of a change.
    fn rebuilt<'a>(&'a self, turn: MutexGuard<'a, ()>) -> Locked<'a> {
        let mut locked = Locked { umem: self, _turn: turn };
        locked.rebuild();
        locked
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holder(&self, frame: u32) -> &AtomicU32 {
        self.record.half(STACK + 4 * to_usize(self.shape.frames) + 4 * to_usize(frame))
    }
}

/// The record of a UMEM, locked.
pub(crate) struct Locked<'a> {
    umem: &'a Umem,
    _turn: MutexGuard<'a, ()>,
}

impl Locked<'_> {
    /// Takes a free frame for `to`.
    pub(crate) fn take(&mut self, to: Holder) -> Option<u32> {
        let umem = self.umem;
        loop {
            let count = self.count().checked_sub(1)?;
            let frame = self.slot(count).load(Ordering::Relaxed);
            self.set_count(count);
            if frame < umem.shape.frames && umem.is_held_by(frame, Holder::Free) {
                umem.give(frame, to);
                return Some(frame);
            }
            umem.count_nonsense();
        }
    }

    /// Makes a frame free.
    pub(crate) fn put_back(&mut self, frame: u32) {
        let count = self.count();
        if count < self.umem.shape.frames {
            self.slot(count).store(frame, Ordering::Relaxed);
            self.set_count(count + 1);
            self.umem.give(frame, Holder::Free);
        } else {
            self.umem.count_nonsense();
        }
    }

    /// Takes back what a member had in its hands. For the owner.
    pub(crate) fn reclaim(&mut self, place: u32) {
        for frame in 0..self.umem.shape.frames {
            if self.umem.is_held_by(frame, Holder::Member(place)) {
                self.put_back(frame);
            }
        }
    }

    /// Makes the stack of what the words say.
    fn rebuild(&mut self) {
        let mut count = 0;
        for frame in 0..self.umem.shape.frames {
            if self.umem.is_held_by(frame, Holder::Free) {
                self.slot(count).store(frame, Ordering::Relaxed);
                count += 1;
            }
        }
        self.set_count(count);
    }

    /// How many frames are on the stack.
    pub(crate) fn count(&self) -> u32 {
        let count = self.umem.record.half(COUNT).load(Ordering::Relaxed);
        if count <= self.umem.shape.frames { count } else { 0 }
    }

    fn set_count(&self, count: u32) {
        self.umem.record.half(COUNT).store(count, Ordering::Relaxed);
    }

    /// A slot of the stack, below the number of frames.
    fn slot(&self, at: u32) -> &AtomicU32 {
        self.umem.record.half(STACK + 4 * to_usize(at))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.umem.record.half(LOCK).store(0, Ordering::Release);
    }
}

/// The turn of this process with a file: one for all of its mappings.
fn turn_of(record: &OwnedFd) -> io::Result<Arc<Mutex<()>>> {
    let file = File::from(record.try_clone()?).metadata()?;
    let mut turns = TURNS.get().lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| turn.strong_count() > 0);
    let known = turns.entry((file.dev(), file.ino())).or_default();
    if let Some(turn) = known.upgrade() {
        return Ok(turn);
    }
    let turn = Arc::default();
    *known = Arc::downgrade(&turn);
    Ok(turn)
}

/// By the file of the record. A file keeps its number as long as it is mapped. A child begins anew: a thread of its parent's
/// may have had a turn, and ends it there.
static TURNS: PerProcess<Mutex<Turns>> = PerProcess::new();
type Turns = HashMap<(u64, u64), Weak<Mutex<()>>>;

/// Writes one frame, from its beginning on.
#[derive(Debug)]
pub struct Writer<'a> {
    /// Lives as long.
    umem: PhantomData<&'a Umem>,
    start: *mut u8,
    room: usize,
    len: usize,
    /// Everything has fitted so far.
    whole: bool,
}

impl Writer<'_> {
    /// Adds bytes. A frame that they do not fit is not sent.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        // SAFETY: a slice can be read.
        unsafe { self.push_raw(bytes.as_ptr(), bytes.len()) };
    }

    /// Adds bytes of memory that others may write meanwhile.
    ///
    /// # Safety
    ///
    /// `len` bytes at `from` can be read, and are none of this UMEM.
    #[inline]
    pub unsafe fn push_raw(&mut self, from: *const u8, len: usize) {
        if self.room - self.len < len {
            self.whole = false;
            return;
        }
        let to = self.start.wrapping_add(self.len);
        // SAFETY: readable by the caller's promise; the frame is this member's (rule 3) and has room.
        unsafe { copy_short(from, to, len) };
        self.len += len;
    }

    /// Bytes written.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Nothing was written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes over bytes that were written before: those from `at` on. Nothing happens if they are not all there.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        if at.checked_add(bytes.len()).is_some_and(|end| end <= self.len) {
            let to = self.start.wrapping_add(at);
            // SAFETY: a slice can be read; the frame is this member's (rule 3), and has as many bytes there.
            unsafe { copy_short(bytes.as_ptr(), to, bytes.len()) };
        }
    }

    /// Adds up what was written from `at` on, for a checksum.
    pub fn fold<T>(&self, mut at: usize, mut sum: T, mut add: impl FnMut(T, &[u8]) -> T) -> T {
        let mut block = [0; 256];
        while at < self.len {
            let part = (self.len - at).min(block.len());
            let from = self.start.wrapping_add(at);
            // SAFETY: bytes of this member's frame (rule 3) that were written; a block of this process has room for them.
            unsafe { copy_short(from, block.as_mut_ptr(), part) };
            sum = add(sum, block.get(..part).unwrap_or_default());
            at += part;
        }
        sum
    }

    /// Its length, if everything has fitted.
    pub(crate) fn finish(self) -> Option<u32> {
        let Self { umem: _, start: _, room: _, len, whole } = self;
        u32::try_from(len).ok().filter(|len| whole && *len > 0)
    }
}

#[inline]
pub(crate) fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// What the kernel keeps at the front of each frame that it fills.
const HEADROOM_BYTES: u32 = 256;
/// A short packet, as far as it is asked for ahead of its use: 64 bytes by TCP.
const SHORT_BYTES: usize = 192;
/// Frames that the kernel has of one queue at most.
const FILLED_MAX: u32 = 1024;
/// Frames of a UMEM unless its maker says otherwise.
const FRAMES: u32 = 8192;
/// Frames that one may have.
const FRAMES_MAX: u32 = 1 << 18;
// The record: lock, number of free frames; on a line of its own the stack; behind it the frames' holders.
const LOCK: usize = 0;
const COUNT: usize = 4;
const STACK: usize = 64;
/// Attempts to lock between two looks at whether the holder has ended, and in all: a process that keeps the lock for
/// that long has been stopped, or means harm.
const SPINS: u32 = 64;
const SPINS_MAX: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { frames: 8, frame_bytes: 2048 };
    const ME: Holder = Holder::Member(0);

    #[test]
    fn each_frame_is_taken_once_and_can_come_back() {
        let umem = Umem::private(SHAPE).unwrap();
        let mut locked = umem.lock().unwrap();
        let mut taken: Vec<_> = std::iter::from_fn(|| locked.take(ME)).collect();
        locked.put_back(taken.pop().unwrap());
        taken.extend(locked.take(ME));
        taken.sort_unstable();
        assert_eq!(taken, (0..8).collect::<Vec<_>>());
        drop(locked);
        umem.lock().unwrap().reclaim(1);
        assert_eq!(umem.lock().unwrap().count(), 0);
        umem.lock().unwrap().reclaim(0);
        assert_eq!(umem.lock().unwrap().count(), 8);
    }

    /// Goal: a member killed with the lock loses the others nothing but what it had in its hands.
    /// Method: the number of a process that has ended holds the lock, and the stack is nonsense.
    #[test]
    fn a_lock_whose_holder_has_ended_is_taken_over_and_the_stack_made_anew() {
        let (umem, files) = Umem::shared(SHAPE).unwrap();
        let other = Umem::open(SHAPE, &files).unwrap();
        assert_eq!(other.lock().unwrap().take(Holder::Member(1)), Some(7));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        umem.record.half(LOCK).store(gone, Ordering::Relaxed);
        umem.record.half(COUNT).store(u32::MAX, Ordering::Relaxed);
        let mut locked = umem.lock().unwrap();
        assert_eq!(locked.count(), 7);
        assert_eq!(locked.take(ME), Some(6));
        drop(locked);
        umem.record.half(LOCK).store(umem.me, Ordering::Relaxed); // One that had this number.
        assert_eq!(umem.lock().unwrap().count(), 6);
    }

    /// Goal: two mappings of one file in one process, as two memberships have, take turns.
    #[test]
    fn mappings_of_one_process_do_not_take_the_lock_from_each_other() {
        let (umem, files) = Umem::shared(SHAPE).unwrap();
        let other = Umem::open(SHAPE, &files).unwrap();
        let locked = umem.lock().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.lock().map(|mut locked| locked.take(ME)));
            for _ in 0..100 {
                std::thread::sleep(std::time::Duration::from_millis(1));
                assert!(!waits.is_finished(), "it has the lock, too");
            }
            drop(locked);
            assert_eq!(waits.join().unwrap(), Some(Some(7)));
        });
    }

    /// Goal: a child does not wait for a turn that a thread of its parent's had when it forked.
    #[test]
    fn a_child_of_a_process_whose_thread_has_the_lock_takes_it_itself() {
        let (umem, files) = Umem::shared(SHAPE).unwrap();
        let locked = umem.lock().unwrap();
        // SAFETY: the child uses memory of its own and what it maps here, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointer: it ends if it waits.
            unsafe { libc::alarm(5) };
            let own = Umem::open(SHAPE, &files).unwrap();
            let taken = (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                own.lock().is_some()
            });
            // SAFETY: no pointer.
            unsafe { libc::_exit(i32::from(!taken)) };
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(locked); // The word is the group's.
        let mut status = -1;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn what_was_written_can_be_summed_and_patched_and_more_does_not_fit() {
        let umem = Umem::private(SHAPE).unwrap();
        let mut writer = umem.writer(1);
        writer.push(&[1; 301]);
        writer.patch(299, &[2, 3]);
        writer.patch(300, &[9, 9]); // One too many.
        let count =
            |sum, bytes: &[u8]| sum + bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        assert_eq!((writer.len(), writer.fold(299, 0, count)), (301, 5));
        assert_eq!(writer.fold(0, 0, count), 299 + 5);
        assert_eq!(writer.finish(), Some(301));
        let lent = umem.lend(2048 + 298, 3, &mut Vec::new(), <[u8]>::to_vec);
        assert_eq!(lent.unwrap(), [1, 2, 3]);
        let mut writer = umem.writer(0);
        writer.push(&[0; 2049]);
        assert_eq!(writer.finish(), None);
        assert_eq!(umem.writer(0).finish(), None);
    }

    #[test]
    fn a_lock_that_is_not_let_go_is_not_waited_for_for_ever() {
        let umem = Umem::private(SHAPE).unwrap();
        umem.record.half(LOCK).store(1, Ordering::Relaxed); // A process that lives.
        assert!(umem.lock().is_none() && umem.try_lock().is_none());
    }

    #[test]
    fn files_that_are_short_or_may_become_so_are_refused() {
        let (_umem, files) = Umem::shared(SHAPE).unwrap();
        let larger = Shape { frames: 4096, ..SHAPE };
        assert_eq!(Umem::open(larger, &files).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let unsealed = || memory::memfd("test", SHAPE.bytes()).unwrap();
        let files = Files { frames: unsealed(), record: unsealed() };
        assert_eq!(Umem::open(SHAPE, &files).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let odd = Shape { frame_bytes: 3000, ..SHAPE };
        assert_eq!(Umem::private(odd).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    proptest! {
        /// Bytes are lent exactly if they lie in one frame, in numbers that cannot overflow.
        #[test]
        fn any_descriptor_lends_bytes_of_one_frame_or_none(
            addr in prop_oneof![0..40_000_u64, any::<u64>()],
            len in prop_oneof![0..5000_u32, any::<u32>()],
        ) {
            let umem = Umem::private(SHAPE).unwrap();
            let (start, end) = (u128::from(addr), u128::from(addr) + u128::from(len));
            let inside = start < 8 * 2048 && end <= (start / 2048 + 1) * 2048;
            let lent = umem.lend(addr, len, &mut Vec::new(), <[u8]>::len);
            prop_assert_eq!(lent, inside.then(|| usize::try_from(len).unwrap()));
        }

        /// Goal: nothing that members write to the record makes the others leave it, or hands a frame out twice.
        #[test]
        fn any_record_hands_out_frames_that_exist_once(
            words in proptest::collection::vec(prop_oneof![0..12_u32, any::<u32>()], 17),
        ) {
            let umem = Umem::private(SHAPE).unwrap();
            umem.record.half(COUNT).store(words[0], Ordering::Relaxed);
            for (at, word) in words[1..].iter().enumerate() {
                umem.record.half(STACK + 4 * at).store(*word, Ordering::Relaxed);
            }
            let mut locked = umem.lock().unwrap();
            let mut taken: Vec<_> = std::iter::from_fn(|| locked.take(ME)).collect();
            taken.sort_unstable();
            let count = taken.len();
            taken.dedup();
            prop_assert!(taken.len() == count && taken.iter().all(|frame| *frame < 8));
            for frame in taken {
                locked.put_back(frame);
            }
        }
    }
}
