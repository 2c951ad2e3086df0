//! A mailbox: shared memory into which others of this host put datagrams for one socket.
//!
//! It is an addition to the kernel's queue, never a replacement: senders use it only while the
//! socket's owners are awake, and have been seen to receive from that very sender through the
//! kernel. One word says how far senders have got and how many of the owners are asleep, so that a
//! datagram is published, or found to have to go through the kernel, in one step: no owner ever has to
//! be notified. Each record says how many datagrams its sender has given to the kernel before, and
//! waits until as many have been received.
//!
//! # Safety
//!
//! 1. A mailbox is mapped from `base` for `size(ring_bytes)` bytes until it is dropped. Its header
//!    is made of atomics, for which every bit pattern is legal, so a shared reference to it is
//!    sound whatever another process writes there.
//! 2. Bytes of the ring are never seen through references. They are copied, between bounds that are
//!    computed from cursors masked by this process's own idea of the size; what a record claims is
//!    checked first.
//! 3. Records are written under the senders' lock, and read and released under the readers' lock.

mod drops;
mod newest;
mod proofs;
mod records;
mod senders;
mod sleepers;
mod word;

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;
use adverb_shm::file::SharedFile;

use crate::base::lock::{Held, Lock};
use crate::base::shelter::Mapping;
use crate::base::thread::Here;
use crate::transport::rendezvous;

use newest::Newest;
pub(crate) use newest::RUN_BYTES;
use proofs::Proofs;
pub(super) use records::{Front, Peeked, Pushed, Reserved};
pub(super) use senders::{Empty, Expects, Origin, Place, Sender, Sent};
pub(super) use word::Sleep;
use word::{GONE, SLEEPERS_SHIFT};

const MAGIC: u64 = 0x000b_7872_626d_6b74;
/// Senders that one mailbox knows at a time; others use the kernel.
const SENDERS_MAX: usize = 64;
/// Processes of one family that own a mailbox; if there are more, it is not asked whether they live.
const OWNERS_MAX: usize = 8;
/// Bytes in front of the ring.
const HEADER_BYTES: usize = 16_384;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
/// How long a datagram may be about to be published, and how long to nap meanwhile: giving way alone would keep a
/// sender of lower real-time priority from its processor.
const COMING_NS: u64 = 100_000_000;
const NAP_NS: i64 = 50_000;
/// How long to wait for the lock of readers, which are of one program and its children, and for that of
/// senders, which may be any process of this user.
const READERS_NS: u64 = 200_000_000;
const SENDERS_NS: u64 = 50_000_000;
/// The loopback device, in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// The start of a mailbox.
#[derive(Debug)]
#[repr(C, align(128))]
struct Header {
    magic: AtomicU64,
    ring_bytes: AtomicU64,
    cookie: AtomicU64,
    port: AtomicU32,
    domain: AtomicU32,
    /// The kernel's other number for the socket, by which it lists it.
    inode: AtomicU64,
    /// An IPv6 socket that gets nothing of IPv4.
    is_v6_only: AtomicU32,
    /// Whether it is known of what the kernel brings to which address it was sent: [`Shows`].
    shows: AtomicU32,
    /// What may wait, in bytes as the kernel counts them: `SO_RCVBUF`.
    limit: AtomicU64,
    /// Changes when the kernel's choice of senders may have changed.
    epoch: AtomicU32,
    /// Epoll instances that know of the mailbox.
    seen: AtomicU32,
    owners: [AtomicU32; OWNERS_MAX],
    is_crowded: AtomicU32,
    /// Entries of `senders` from here on have never been used.
    used: AtomicU32,
    /// The process namespace of all numbers of processes in here.
    processes: AtomicU64,
    published: Published,
    skipped: Skipped,
    producer: Producer,
    consumer: Consumer,
    senders: [Sender; SENDERS_MAX],
    proofs: Proofs,
}

/// What readers look at all the time: the word, and with it the newest record, if that is short.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Published {
    word: AtomicU64,
    newest: Newest,
}

const _: () = assert!(size_of::<Published>() == 128);

/// From where to where senders have skipped when they last began again at the start of the ring. Readers look
/// at it with each datagram, so it lies apart from what senders change with each.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Skipped {
    from: AtomicU64,
    to: AtomicU64,
}

/// Touched by senders alone.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Producer {
    lock: Lock,
    /// How far senders have got, as the word says it, or is about to: readers look at that all the time, and
    /// a sender need not wait until it is here. Never behind.
    head: AtomicU64,
    /// What was last known of the readers' cursor, and of what they have released.
    tail_seen: AtomicU64,
    released_seen: AtomicU64,
    /// Bytes charged so far.
    charged: AtomicU64,
    /// Where the readers' cursor was when a sender last waited for room in vain.
    stalled_at: AtomicU64,
    /// Datagrams so far, and those there was no room for.
    pushed: AtomicU64,
    dropped: AtomicU64,
    dropped_bytes: AtomicU64,
}

/// Touched by readers; senders look at it now and then.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Consumer {
    tail: AtomicU64,
    /// So much behind it, as cursors count, the program still has where it lies: no room for senders.
    held: AtomicU64,
    released: AtomicU64,
    /// Datagrams so far.
    taken: AtomicU64,
    lock: Lock,
    /// From where the datagram came that was last peeked at.
    peeked: AtomicU32,
    /// A sender may not be settled; and how often that could have been looked at since one was entered.
    is_unsettled: AtomicU32,
    looks: AtomicU32,
    /// Taken from the ring since the kernel was last looked at for the sake of others.
    turns: AtomicU32,
    /// The first record waits since then for what its sender gave to the kernel.
    blocked_ns: AtomicU64,
    /// So many datagrams that the kernel has dropped are assigned to a sender or written off; and whether it has brought some
    /// that no sender here counts, since its queue was last seen to be empty. See `drops.rs`.
    drops: AtomicU32,
    is_mixed: AtomicU32,
    /// The maker's own hold; see [`Mailbox::let_senders`].
    hold: AtomicU32,
    /// The thread that reads, as long as there has been but one.
    reader: AtomicU32,
    /// There have been several: one may take what another was woken for.
    is_shared: AtomicU32,
    /// Sleeps so far that senders may knock at.
    sleeps: AtomicU32,
    /// Since when a handler has been kept from what the sleep was ended for that it has interrupted, or a call that does not
    /// wait for the end of the sleep.
    refused_ns: AtomicU64,
}

/// Whether it is known of what the kernel brings to which address it was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum Shows {
    Nothing = 0,
    /// A sender to a group wants it known.
    Wanted = 1,
    Groups = 2,
    /// It is not to be.
    Never = 3,
}

/// The socket of a mailbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    /// The kernel's numbers for it.
    pub(super) cookie: u64,
    pub(super) inode: u64,
    pub(super) port: u16,
    pub(super) domain: c_int,
    pub(super) is_v6_only: bool,
}

/// A mapped mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mapping: Mapping,
    ring_bytes: usize,
}

/// Length of a mailbox with a ring of that size.
pub(super) const fn size(ring_bytes: usize) -> usize {
    HEADER_BYTES + ring_bytes
}

/// Where a mailbox's counts lie in its file, for readers of statistics: datagrams put in and taken out,
/// and bytes of both, as the kernel would count them; datagrams there was no room for, and their bytes.
pub(crate) fn counts() -> [usize; 6] {
    let (producer, consumer) = (offset_of!(Header, producer), offset_of!(Header, consumer));
    [
        producer + offset_of!(Producer, pushed),
        consumer + offset_of!(Consumer, taken),
        producer + offset_of!(Producer, charged),
        consumer + offset_of!(Consumer, released),
        producer + offset_of!(Producer, dropped),
        producer + offset_of!(Producer, dropped_bytes),
    ]
}

/// The ring's size for a receive buffer of `limit` bytes.
pub(super) fn ring_bytes_for(limit: u64) -> usize {
    let wanted = usize::try_from(limit).unwrap_or(RING_MAX);
    wanted.clamp(RING_MIN, RING_MAX).next_power_of_two()
}

const RING_MIN: usize = 1 << 17;
const RING_MAX: usize = 1 << 23;

#[expect(clippy::as_conversions, reason = "an enumeration is stored as its number")]
fn shows_number(shows: Shows) -> u32 {
    shows as u32
}

impl Mailbox {
    /// Makes a mailbox in a file that has not been published yet. Its maker holds senders off until it
    /// says otherwise.
    pub(super) fn make(file: &SharedFile, about: &About, limit: u64) -> Option<Self> {
        let About { cookie, inode, port, domain, is_v6_only } = *about;
        let ring_bytes = ring_bytes_for(limit);
        let mailbox = Self { mapping: rendezvous::map_whole(file, size(ring_bytes))?, ring_bytes };
        let header = mailbox.header();
        header.ring_bytes.store(ring_bytes.try_into().unwrap_or(0), Ordering::Relaxed);
        header.cookie.store(cookie, Ordering::Relaxed);
        header.port.store(port.into(), Ordering::Relaxed);
        header.domain.store(domain.try_into().unwrap_or(0), Ordering::Relaxed);
        header.inode.store(inode, Ordering::Relaxed);
        header.is_v6_only.store(is_v6_only.into(), Ordering::Relaxed);
        header.processes.store(alive::namespace(), Ordering::Relaxed);
        header.limit.store(limit, Ordering::Relaxed);
        header.consumer.hold.store(1, Ordering::Relaxed);
        header.published.word.store(1, Ordering::Relaxed);
        header.published.newest.clear();
        header.producer.stalled_at.store(u64::MAX, Ordering::Relaxed);
        header.skipped.from.store(u64::MAX, Ordering::Relaxed);
        mailbox.own();
        header.magic.store(MAGIC, Ordering::Release);
        Some(mailbox)
    }

    /// A new mailbox for a test of that name, whose maker holds senders off.
    #[cfg(test)]
    pub(super) fn of_test(of: &str, cookie: u64) -> Self {
        let name = format!("adverb-mailbox-{of}-{cookie}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = std::ffi::CString::new(path.to_str().expect("a path")).expect("a path");
        let nothing = adverb_shm::file::Expect::Nothing;
        let file = SharedFile::open_own(&text, nothing, 1).expect("a file");
        let about = About { cookie, inode: 8, port: 9, domain: libc::AF_INET, is_v6_only: false };
        let made = Self::make(&file, &about, 1 << 17);
        std::fs::remove_file(path).expect("it is there");
        made.expect("a mailbox")
    }

    /// Maps the mailbox in a file, if it is what it should be.
    pub(super) fn open(file: &SharedFile, cookie: u64) -> Option<Self> {
        let len = file.size().ok()?;
        let ring_bytes = len.checked_sub(size(0))?;
        if !ring_bytes.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&ring_bytes) {
            return None;
        }
        let mailbox = Self { mapping: Mapping::new(file, len)?, ring_bytes };
        let header = mailbox.header();
        let is_it = header.magic.load(Ordering::Acquire) == MAGIC
            && header.cookie.load(Ordering::Relaxed) == cookie
            && usize::try_from(header.ring_bytes.load(Ordering::Relaxed)) == Ok(ring_bytes);
        is_it.then_some(mailbox)
    }

    /// Whether this process can say which of the processes in here live.
    pub(super) fn is_of_known(&self) -> bool {
        alive::is_known(self.header().processes.load(Ordering::Relaxed))
    }

    /// A page of it has been missing, or one of its locks was not let go of: it is not used any more, and the kernel
    /// brings everything.
    #[inline]
    pub(super) fn is_spoilt(&self) -> bool {
        self.mapping.is_spoilt().load(Ordering::Relaxed)
    }

    pub(super) fn spoil(&self) {
        self.mapping.is_spoilt().store(true, Ordering::Relaxed);
    }

    /// The readers' lock; `None` if the mailbox is spoilt.
    #[inline]
    pub(crate) fn hold_readers(&self) -> Option<Held<'_>> {
        self.hold_readers_for(READERS_NS)
    }

    /// The same, if it is not held.
    #[inline]
    pub(super) fn try_hold_readers(&self, here: Here) -> Option<Held<'_>> {
        self.header().consumer.lock.try_hold_by(here).filter(|_| !self.is_spoilt())
    }

    fn hold_readers_for(&self, most_ns: u64) -> Option<Held<'_>> {
        let held = self.header().consumer.lock.hold_within(most_ns);
        if held.is_none() {
            self.spoil();
        }
        held.filter(|_| !self.is_spoilt())
    }

    /// The senders' lock; `None` if the mailbox is spoilt.
    #[inline]
    fn hold_senders(&self, here: Here) -> Option<Held<'_>> {
        let held = self.header().producer.lock.hold_within_by(here, SENDERS_NS);
        if held.is_none() {
            self.spoil();
        }
        held.filter(|_| !self.is_spoilt())
    }

    /// Its owner does not read it any more: no process sends here.
    pub(super) fn give_up(&self) {
        self.header().published.word.fetch_or(GONE, Ordering::AcqRel);
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and made of atomics (rule 1).
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    /// By which senders of other network namespaces show that they reach it.
    pub(super) fn proofs(&self) -> &Proofs {
        &self.header().proofs
    }

    pub(super) fn cookie(&self) -> u64 {
        self.header().cookie.load(Ordering::Relaxed)
    }

    /// What a neighbour may do.
    #[cfg(test)]
    pub(super) fn set_cookie(&self, cookie: u64) {
        self.header().cookie.store(cookie, Ordering::Relaxed);
    }

    pub(super) fn port(&self) -> u16 {
        u16::try_from(self.header().port.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub(super) fn domain(&self) -> c_int {
        c_int::try_from(self.header().domain.load(Ordering::Relaxed)).unwrap_or(libc::AF_INET)
    }

    pub(super) fn inode(&self) -> u64 {
        self.header().inode.load(Ordering::Relaxed)
    }

    /// Whether the socket gets nothing of IPv4.
    pub(super) fn is_v6_only(&self) -> bool {
        self.header().is_v6_only.load(Ordering::Relaxed) != 0
    }

    pub(super) fn shows(&self) -> Shows {
        match self.header().shows.load(Ordering::Acquire) {
            0 => Shows::Nothing,
            1 => Shows::Wanted,
            2 => Shows::Groups,
            _ => Shows::Never,
        }
    }

    /// Goes over from `from` to `to`, and returns whether it was `from`.
    pub(super) fn set_shows(&self, from: Shows, to: Shows) -> bool {
        let (from, to) = (shows_number(from), shows_number(to));
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        self.header().shows.compare_exchange(from, to, o, r).is_ok()
    }

    /// Datagrams to groups come through the kernel from now on.
    pub(super) fn show_never(&self) {
        self.header().shows.store(shows_number(Shows::Never), Ordering::Release);
        self.turn();
    }

    /// Whether the maker still holds senders off.
    pub(super) fn is_held(&self) -> bool {
        self.header().consumer.hold.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.header().limit.store(limit, Ordering::Relaxed);
    }

    /// What the kernel brings here may have changed: every sender has to be seen again.
    pub(super) fn turn(&self) {
        self.header().epoch.fetch_add(1, Ordering::AcqRel);
    }

    // Owners.

    /// This process has the socket.
    pub(super) fn own(&self) {
        let (me, header) = (alive::me(), self.header());
        if header.owners.iter().any(|owner| owner.load(Ordering::Acquire) == me) {
            return;
        }
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        let take = |owner: &AtomicU32, old| owner.compare_exchange(old, me, o, r).is_ok();
        let of_dead = |owner: &AtomicU32| {
            let old = owner.load(Ordering::Acquire);
            alive::has_ended(old) && take(owner, old)
        };
        let mut owners = header.owners.iter();
        if !owners.any(|owner| take(owner, 0)) && !header.owners.iter().any(of_dead) {
            header.is_crowded.store(1, Ordering::Release);
        }
    }

    /// This process has the socket no longer. Returns whether no process has.
    pub(super) fn disown(&self) -> bool {
        let (me, header) = (alive::me(), self.header());
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        for owner in &header.owners {
            let _ = owner.compare_exchange(me, 0, o, r);
        }
        let mut owners = header.owners.iter().map(|owner| owner.load(Ordering::Acquire));
        let is_free = owners.all(|owner| owner == 0 || alive::has_ended(owner));
        let is_last = is_free && header.is_crowded.load(Ordering::Acquire) == 0;
        if is_last {
            header.published.word.fetch_or(GONE, Ordering::AcqRel);
        }
        is_last
    }

    /// Whether every process that had the socket has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead_by(alive::has_ended)
    }

    /// The same, where `has_ended` says whether a process has.
    pub(super) fn is_dead_by(&self, has_ended: fn(u32) -> bool) -> bool {
        let header = self.header();
        let word = header.published.word.load(Ordering::Acquire);
        let mut owners = header.owners.iter().map(|owner| owner.load(Ordering::Acquire));
        word & GONE != 0
            || header.is_crowded.load(Ordering::Acquire) == 0
                && owners.all(|owner| owner == 0 || has_ended(owner))
    }

    /// Another process has written nonsense into a word.
    #[cfg(test)]
    pub(super) fn scribble(&self, random: u64, value: u64) {
        let words = size_of::<Header>() / size_of::<u64>();
        let word = usize::try_from(random >> 8).unwrap_or(0) % words;
        let at = self.mapping.base().as_ptr().cast::<AtomicU64>().wrapping_add(word);
        // SAFETY: within the header, which is aligned and made of atomics (rule 1).
        unsafe { &*at }.store(value, Ordering::Relaxed);
    }

    /// Whether there is a record, blocked or not.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        let Header { published, consumer, .. } = self.header();
        let tail = consumer.tail.load(Ordering::Relaxed);
        // At once with the first line: the two take as long to come as one.
        published.newest.fetch_ahead();
        let is_there = self.head() != tail;
        if is_there && !published.newest.is_at(tail) {
            self.fetch_ahead(tail);
        }
        is_there
    }

    /// How far senders have got: changes with every datagram.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.header().published.word.load(Ordering::Acquire) >> SLEEPERS_SHIFT
    }
}
