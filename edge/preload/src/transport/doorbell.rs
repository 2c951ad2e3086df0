//! Doorbells: one word for each epoll instance or thread that sleeps, for all of its connections.
//!
//! A sleeper that looks at many connections when it wakes needs one bell, however many of them have
//! something for it by then. So it says of each only that it is armed together with others, and here
//! that it sleeps. The first thread that has something for it takes that word back and sends a bell. All
//! others see that it is awake or about to be, and send none. On a crowded machine that makes one call
//! of a whole batch.
//!
//! A bell is an empty datagram to a socket that the sleeper has for nothing else, by a name that no file
//! has: that takes the kernel a third less than a byte by TCP, which is answered besides. Where there is
//! no such socket, as in another network namespace, the byte is the bell. A program that closes
//! descriptors which it has not opened may close these as well, and have something else by their
//! numbers. So what lies there is looked at before anything is received, and an empty datagram with an address
//! does nothing to whatever else it may be.
//!
//! A thread that waits for nothing but bytes in rings sleeps on the bell alone, for a moment, and is notified when
//! a connection ends, too: the kernel has one descriptor to look at rather than all of them.
//!
//! The words lie at the rendezvous, in memory that all processes of a user share, in whatever network
//! namespace they are. No process is trusted: a word that is wrong costs a bell too many, or the slice of time after
//! which every sleeper looks for itself.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::base::lock::Lock;
use adverb_shm::alive;
use adverb_sys::random;

use crate::base::{address, confined, raw, thread, vfork};
use crate::transport::rendezvous::{self, Reach, Table};

adverb_shm::layout! {
    /// One doorbell, with a cache line for itself.
    #[repr(align(64))]
    struct Entry {
        /// The process that has it; 0 if it is free.
        owner: AtomicU32,
        /// The number of a [`Sleeping`].
        sleeper: AtomicU32,
        /// The name of the socket for bells; 0 if there is none.
        bell: AtomicU64,
        /// The network namespace that it is in.
        space: AtomicU64,
    }
}

/// Whether a thread sleeps there, and on what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sleeping {
    Awake,
    /// On the bell, and on all that the kernel knows of.
    InKernel,
    /// On the bell alone: it is to be notified of the end of a connection as well.
    OnBell,
}

impl Sleeping {
    const fn number(self) -> u32 {
        match self {
            Self::Awake => 0,
            Self::InKernel => 1,
            Self::OnBell => 2,
        }
    }
}

/// Doorbells of one user. A sleeper that gets none is notified by each connection.
const COUNT: usize = 1 << 14;
/// Places that are looked at for a free one.
const PROBES: u32 = 64;
/// Bells that are left in the kernel's queue, where there may be no room for more than ten.
const LEFT_MAX: u32 = 4;
/// Bells that are taken out of it at once.
const BELLS_MAX: usize = 16;
/// Sockets of ours have numbers that programs rarely use.
const FD_MIN: c_int = 1000;

fn entry(number: u32) -> Option<&'static Entry> {
    static TABLE: Table<[Entry; COUNT]> = Table::new();
    let at = usize::try_from(number).ok().filter(|number| *number != 0)?;
    TABLE.get_or_map(|| rendezvous::shared("doorbells", Reach::Host))?.get(at)
}

/// A socket of this process for bells.
#[derive(Debug)]
struct Socket {
    /// -1 if there is none.
    fd: AtomicI32,
    /// The kernel's number for what must lie behind the descriptor.
    cookie: AtomicU64,
}

impl Socket {
    const fn new() -> Self {
        Self { fd: AtomicI32::new(-1), cookie: AtomicU64::new(0) }
    }

    /// The descriptor, if there is one, and it has not become something else's.
    fn get(&self) -> Option<c_int> {
        let fd = self.fd.load(Ordering::Acquire);
        (fd >= 0 && rendezvous::cookie(fd) == self.cookie.load(Ordering::Acquire)).then_some(fd)
    }

    /// The same, if it is looked at for the so many-th time: what lies there is asked for now and then only,
    /// as most programs that close it say so.
    fn get_at(&self, turn: u32) -> Option<c_int> {
        if turn.is_multiple_of(LOOK_EVERY) {
            return self.get();
        }
        Some(self.fd.load(Ordering::Acquire)).filter(|fd| *fd >= 0)
    }

    /// These descriptors are being closed, or become something else.
    fn closes(&self, fds: &RangeInclusive<c_int>) {
        let fd = self.fd.load(Ordering::Relaxed);
        if fds.contains(&fd) {
            let _ = self.fd.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn set(&self, fd: c_int) {
        self.cookie.store(rendezvous::cookie(fd), Ordering::Release);
        self.fd.store(fd, Ordering::Release);
    }

    fn close(&self) {
        self.get().map(raw::close).unwrap_or(());
        self.fd.store(-1, Ordering::Release);
    }

    /// Opens one, with a number that programs rarely use, or none.
    fn open() -> Option<c_int> {
        if confined::is_confined() {
            return None;
        }
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let made = raw::socket(libc::AF_UNIX, kind).ok()?;
        let fd = raw::copy_above(made, FD_MIN);
        raw::close(made);
        fd.ok()
    }
}

/// Has the kernel make room for descriptors of such numbers, while this process has one thread. Later it would wait
/// for all processors to have passed a quiescent state (`synchronize_rcu`): milliseconds, and seconds on a machine
/// that is short of processors, in the midst of a program's call.
pub(crate) fn make_room() {
    if let Some(fd) = Socket::open() {
        raw::close(fd);
    }
    HAS_ROOM.store(true, Ordering::Relaxed);
}

/// The same in a child, when it makes its first thread or its first socket, whichever comes first: one that serves a
/// connection of its parent's and ends, as servers have one for each, goes without.
#[inline]
pub(crate) fn make_room_once() {
    if !HAS_ROOM.load(Ordering::Relaxed) {
        make_room();
    }
}

static HAS_ROOM: AtomicBool = AtomicBool::new(false);

/// The doorbell of a sleeper: none at first.
#[derive(Debug)]
pub(crate) struct Doorbell {
    number: AtomicU32,
    socket: Socket,
    /// Bells that have been drained.
    drained: AtomicU32,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    pub(crate) const fn new() -> Self {
        Self { number: AtomicU32::new(0), socket: Socket::new(), drained: AtomicU32::new(0) }
    }

    /// The number by which others find it; 0 if there is none.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The descriptor that becomes readable when a bell comes.
    #[inline]
    pub(crate) fn fd(&self) -> Option<c_int> {
        let fd = self.socket.fd.load(Ordering::Relaxed);
        (fd >= 0).then_some(fd)
    }

    /// Takes one for this process, if there is one that is free. No other thread does so for the same sleeper.
    pub(crate) fn take(&self) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let me = alive::me();
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let first = me.wrapping_mul(0x9e37_79b9).wrapping_add(turn);
        let count = u32::try_from(COUNT).unwrap_or(1);
        let find = |has_ended| {
            let mut numbers = (0..PROBES).map(|step| first.wrapping_add(step) % count);
            numbers.find_map(|number| {
                let entry = entry(number)?;
                alive::seize(&entry.owner, has_ended).then_some((number, entry))
            })
        };
        let found = find(alive::is_missing).or_else(|| find(alive::has_ended));
        let Some((number, entry)) = found else { return };
        entry.sleeper.store(Sleeping::Awake.number(), Ordering::Relaxed);
        entry.bell.store(0, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        let Some(fd) = Socket::open() else { return };
        let name = random::number();
        let (at, len) = address::unfiled(name);
        if raw::bind(fd, &at, len).is_err() {
            return raw::close(fd);
        }
        self.socket.set(fd);
        entry.space.store(rendezvous::space(fd).unwrap_or(0), Ordering::Relaxed);
        entry.bell.store(name, Ordering::Release);
    }

    /// Says on what a thread is about to sleep. Before it sleeps, a full fence follows, and a look at
    /// everything.
    #[inline]
    pub(crate) fn set(&self, sleeper: Sleeping) {
        if let Some(entry) = entry(self.number()) {
            entry.sleeper.store(sleeper.number(), Ordering::Relaxed);
        }
    }

    /// A bell has come. Takes it out of the kernel's queue.
    pub(crate) fn drain(&self) {
        let turn = self.drained.fetch_add(1, Ordering::Relaxed);
        self.take_out(self.socket.get_at(turn), 1);
    }

    /// The same for a sleeper that is told of each bell once, whether it is taken out or not: some are left.
    pub(crate) fn drain_some(&self) {
        let drained = self.drained.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if drained.is_multiple_of(LEFT_MAX) {
            self.take_out(self.socket.get(), BELLS_MAX);
        }
    }

    fn take_out(&self, fd: Option<c_int>, most: usize) {
        let Some(fd) = fd else {
            // It has been closed: from now on each connection notifies.
            if let Some(entry) = entry(self.number()) {
                entry.bell.store(0, Ordering::Relaxed);
            }
            return self.socket.fd.store(-1, Ordering::Release);
        };
        let _ = (0..most).try_for_each(|_| raw::recv(fd, &mut [], 0).map(|_| ()));
    }

    /// Gives it back. Where there is none, nothing is written: memory that a forked child writes to is copied.
    #[inline]
    pub(crate) fn give_back(&self) {
        if self.is_any() {
            self.end();
        }
    }

    #[inline(never)]
    fn end(&self) {
        if let Some(entry) = entry(self.number.swap(0, Ordering::Relaxed)) {
            entry.bell.store(0, Ordering::Relaxed);
            let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = entry.owner.compare_exchange(alive::me(), 0, o, r);
        }
        self.socket.close();
    }

    fn is_any(&self) -> bool {
        self.number() != 0 || self.fd().is_some()
    }

    /// It is the parent's, in a child just forked. Where there was none, nothing is written.
    pub(crate) fn after_fork(&self) {
        if self.is_any() {
            self.number.store(0, Ordering::Relaxed);
            self.socket.close();
        }
    }
}

/// Whether a thread sleeps there. A full fence lies between what there is to be seen and this.
#[inline]
pub(crate) fn is_asleep(number: u32) -> bool {
    let awake = Sleeping::Awake.number();
    entry(number).is_none_or(|entry| entry.sleeper.load(Ordering::Relaxed) != awake)
}

/// Notifies a thread that sleeps on the bell alone, if there is one.
pub(crate) fn notify_alone(number: u32) {
    let Some(entry) = entry(number) else { return };
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    let (alone, awake) = (Sleeping::OnBell.number(), Sleeping::Awake.number());
    if entry.sleeper.compare_exchange(alone, awake, o, r).is_ok() {
        notify(number);
    }
}

/// The caller is about to send a bell. Returns false if another thread has, or is about to.
#[inline]
pub(crate) fn claim(number: u32) -> bool {
    let awake = Sleeping::Awake.number();
    entry(number).is_none_or(|entry| entry.sleeper.swap(awake, Ordering::AcqRel) != awake)
}

/// The socket by which this process sends bells.
static SENDER: Socket = Socket::new();
/// The network namespace that it is in.
static SENDER_SPACE: AtomicU64 = AtomicU64::new(0);
/// Bells that it has sent.
static SENT: AtomicU32 = AtomicU32::new(0);
/// Only each so many times it is looked whether a socket of ours is still there.
const LOOK_EVERY: u32 = 16;

/// Sends a bell. Returns false if there is no socket for it there, or no way to it.
pub(crate) fn notify(number: u32) -> bool {
    let Some(entry) = entry(number) else { return false };
    let name = entry.bell.load(Ordering::Acquire);
    if name == 0 {
        return false;
    }
    let turn = SENT.fetch_add(1, Ordering::Relaxed);
    let fd = SENDER.get_at(turn).or_else(|| turn.is_multiple_of(LOOK_EVERY).then(open_sender)?);
    if entry.space.load(Ordering::Relaxed) != SENDER_SPACE.load(Ordering::Relaxed) {
        return false;
    }
    let (at, len) = address::unfiled(name);
    thread::note_woken();
    fd.is_some_and(|fd| raw::send_to(fd, &[], &at, len).is_ok())
}

/// These descriptors are being closed, or become something else: perhaps the one by which this process
/// sends bells, or gets them.
#[inline]
pub(crate) fn closes(fds: RangeInclusive<c_int>) {
    if *fds.end() >= FD_MIN && !vfork::is_child() {
        SENDER.closes(&fds);
        SPARES.iter().for_each(|spare| spare.bell.socket.closes(&fds));
    }
}

#[cold]
fn open_sender() -> Option<c_int> {
    let _held = OPENING.try_hold()?;
    let fd = Socket::open()?;
    SENDER_SPACE.store(rendezvous::space(fd).unwrap_or(1), Ordering::Relaxed);
    SENDER.set(fd);
    Some(fd)
}

/// Held while the socket to send bells by is opened.
pub(crate) static OPENING: Lock = Lock::new();

/// A doorbell that threads borrow while they sleep in `poll`.
#[derive(Debug)]
struct Spare {
    is_taken: AtomicBool,
    bell: Doorbell,
}

static SPARES: [Spare; SPARES_MAX] =
    [const { Spare { is_taken: AtomicBool::new(false), bell: Doorbell::new() } }; SPARES_MAX];
/// Threads of one process that sleep in `poll` at once and have a doorbell.
const SPARES_MAX: usize = 64;

/// A doorbell for as long as one sleeps.
#[derive(Debug)]
pub(crate) struct Borrowed(&'static Spare);

impl Borrowed {
    /// The one that the calling thread had last, if it is free, so that connections know it.
    pub(crate) fn take() -> Option<Self> {
        let hint = thread::with(|thread| thread.doorbell.get());
        let is_free = |spare: &Spare| {
            !spare.is_taken.load(Ordering::Relaxed) && !spare.is_taken.swap(true, Ordering::AcqRel)
        };
        let found = (hint..SPARES_MAX).chain(0..hint).find_map(|at| {
            let spare = SPARES.get(at)?;
            is_free(spare).then_some((at, spare))
        });
        let (at, spare) = found?;
        thread::with(|thread| thread.doorbell.set(at));
        if spare.bell.number() == 0 {
            spare.bell.take();
        }
        Some(Self(spare))
    }
}

impl std::ops::Deref for Borrowed {
    type Target = Doorbell;

    fn deref(&self) -> &Doorbell {
        &self.0.bell
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.0.bell.set(Sleeping::Awake);
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// In a child just forked: the sleepers are in the parent.
pub(crate) fn after_fork() {
    HAS_ROOM.store(false, Ordering::Relaxed);
    for spare in &SPARES {
        spare.bell.after_fork();
        if spare.is_taken.load(Ordering::Relaxed) {
            spare.is_taken.store(false, Ordering::Release);
        }
    }
}
