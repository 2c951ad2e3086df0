//! A mailbox: shared memory into which others of this host put datagrams for one socket.
//!
//! It is an addition to the kernel's queue, never a replacement: senders use it only while the
//! socket's owners are awake, and have been seen to receive from that very sender through the
//! kernel. One word says how far senders have got and how many of the owners are asleep, so that a
//! datagram is published, or found to have to go through the kernel, in one step: nobody ever has to
//! be rung for. Each record says how many datagrams its sender has given to the kernel before, and
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

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::lock::{Held, Lock};
use crate::parts::{Cursor, Fault};
use crate::raw;

const MAGIC: u64 = 0x0002_7872_626d_6b73;
/// Senders that one mailbox knows at a time; others use the kernel.
const SENDERS_MAX: usize = 64;
/// Processes of one family that own a mailbox; if there are more, nobody asks whether they live.
const OWNERS_MAX: usize = 8;
/// Bytes in front of the ring.
const HEADER_BYTES: usize = 16_384;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);
/// Cursors count units of so many bytes.
const UNIT: usize = 16;
/// Where an empty ring begins again rather than go on, in units from its start.
const RESTART_UNITS: u64 = 512;
/// Cursors have so many bits; the others of the word count sleepers.
const CURSOR_BITS: u32 = 48;
const CURSOR_MASK: u64 = (1 << CURSOR_BITS) - 1;
const SLEEPERS_SHIFT: u32 = 16;
const SLEEPERS: u64 = 0x3fff;
/// In the word: a datagram for several mailboxes is about to be published, and nobody goes to sleep.
const COMING: u64 = 0x4000;
/// In the word: the socket is closed.
const GONE: u64 = 0x8000;
/// The length of a record that says where the next one is.
const SKIP: u32 = u32::MAX;
/// A sender's name for which nothing can be told.
const AMBIGUOUS: u32 = u32::MAX;
/// More datagrams than were sent, before that counts as ambiguous.
const EXCESS_MAX: u32 = 16;
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
    word: Line<AtomicU64>,
    producer: Producer,
    consumer: Consumer,
    senders: [Sender; SENDERS_MAX],
}

/// A value that has its cache lines for itself.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line<T>(T);

/// Touched by senders alone.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Producer {
    lock: Lock,
    /// What was last known of the readers' cursor, and of what they have released.
    tail_seen: AtomicU64,
    released_seen: AtomicU64,
    /// Bytes charged so far.
    charged: AtomicU64,
    /// Where the readers' cursor was when somebody last waited for room in vain.
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
    released: AtomicU64,
    /// Datagrams so far.
    taken: AtomicU64,
    lock: Lock,
    /// From where the datagram came that was last peeked at.
    peeked: AtomicU32,
    /// Taken from the ring since the kernel was last looked at for the sake of others.
    turns: AtomicU32,
    /// The first record waits since then for what its sender gave to the kernel.
    blocked_ns: AtomicU64,
    /// Datagrams that the kernel had dropped when that was last looked at.
    drops: AtomicU32,
    /// The maker's own hold; see [`Mailbox::let_senders`].
    hold: AtomicU32,
}

/// One sender, as this socket sees it; and further entries for the groups to which it sends, which say
/// what is known of those, while what is counted is counted in the first.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Sender {
    /// The kernel's number for its socket; 0 if the entry is free.
    cookie: AtomicU64,
    process: AtomicU32,
    /// Family and port of its address.
    port: AtomicU32,
    addr: [AtomicU64; 2],
    /// Datagrams it has given to the kernel for this socket, and how many have come of them.
    given: AtomicU32,
    taken: AtomicU32,
    /// One more than the epoch in which the kernel was last seen to bring its datagrams here.
    confirmed: AtomicU32,
    excess: AtomicU32,
    /// The multicast group that this entry is about; zeros if it is about the socket's own address.
    group: [AtomicU64; 2],
    /// The interface by which the group's datagrams were last seen to come.
    interface: AtomicU32,
    /// Whether the group's datagrams that come by loopback are for this socket: [`Expects`].
    expects: AtomicU32,
    /// How many of the sender's ways lead here.
    users: AtomicU32,
}

impl Sender {
    fn matches(&self, from: SocketAddr) -> bool {
        let (port, [a, b]) = split(from);
        self.port.load(Ordering::Relaxed) == port
            && self.addr[0].load(Ordering::Relaxed) == a
            && self.addr[1].load(Ordering::Relaxed) == b
            && self.cookie.load(Ordering::Acquire) != 0
    }

    fn is_about(&self, group: Option<IpAddr>) -> bool {
        let [a, b] = group.map_or([0, 0], |group| split(SocketAddr::new(group, 0)).1);
        self.group[0].load(Ordering::Relaxed) == a && self.group[1].load(Ordering::Relaxed) == b
    }

    /// Whether this entry is that socket's.
    pub(super) fn is(&self, cookie: u64) -> bool {
        self.cookie.load(Ordering::Relaxed) == cookie
    }

    /// The interface by which the group's datagrams were last seen to come.
    pub(super) fn interface(&self) -> u32 {
        self.interface.load(Ordering::Relaxed)
    }

    fn address(&self) -> SocketAddr {
        let port = self.port.load(Ordering::Relaxed);
        let [a, b] = &self.addr;
        let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
        let number = u16::try_from(port & 0xffff).unwrap_or(0);
        let ip = if port & V6 != 0 {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b)))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(b).unwrap_or(0)))
        };
        SocketAddr::new(ip, number)
    }

    fn origin(&self) -> Origin {
        Origin {
            cookie: self.cookie.load(Ordering::Relaxed),
            process: self.process.load(Ordering::Relaxed),
            from: self.address(),
        }
    }

    /// The sender is about to give a datagram to the kernel.
    pub(super) fn gives(&self) {
        self.given.fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel has not taken so many, or they were not for this socket.
    pub(super) fn gave_not(&self, count: u32) {
        if count > 0 {
            self.given.fetch_sub(count, Ordering::AcqRel);
        }
    }

    pub(super) fn expects(&self) -> Expects {
        match self.expects.load(Ordering::Acquire) {
            1 => Expects::Nothing,
            2 => Expects::All,
            _ => Expects::Unknown,
        }
    }

    pub(super) fn given(&self) -> u32 {
        self.given.load(Ordering::Acquire)
    }

    /// The sender no longer trusts that the kernel brings its datagrams here.
    pub(super) fn doubt(&self) {
        if self.confirmed.load(Ordering::Relaxed) != AMBIGUOUS {
            self.confirmed.store(0, Ordering::Release);
        }
    }
}

const V6: u32 = 1 << 16;

fn split(addr: SocketAddr) -> (u32, [u64; 2]) {
    let port = u32::from(addr.port());
    match addr.ip() {
        IpAddr::V4(ip) => (port, [0, u64::from(ip.to_bits())]),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, rest @ ..] = ip.octets();
            let high = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
            (port | V6, [high, u64::from_be_bytes(rest)])
        }
    }
}

/// Where the kernel says that a datagram was sent to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    /// It does not say.
    Somewhere,
    /// To an address of this socket's.
    Here,
    /// To a group, by way of an interface.
    Group(IpAddr, u32),
}

/// Whether a group's datagrams are for a socket, as its owner says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum Expects {
    Unknown = 0,
    Nothing = 1,
    All = 2,
}

/// Whether it is known of what the kernel brings to which address it was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum Shows {
    Nothing = 0,
    /// Somebody who sends to a group wants it known.
    Wanted = 1,
    Groups = 2,
    /// It is not to be.
    Never = 3,
}

/// From where the datagram came that was last peeked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Peeked {
    Nothing,
    Ring,
    Kernel,
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pushed {
    /// It is there; the record ends at this position.
    At(u64),
    /// There is no room, as a full receive buffer has none.
    Full,
    /// An owner sleeps: the kernel has to bring it.
    Asleep,
    /// The socket is closed.
    Gone,
}

/// The first record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    sender: usize,
    before: u32,
    pub(super) len: usize,
    at: u64,
    next: u64,
    charge: u32,
}

/// Whence a datagram is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The kernel's number for the socket that sent it, and the process that has it; 0 if it is closed.
    pub(super) cookie: u64,
    pub(super) process: u32,
    pub(super) from: SocketAddr,
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
    base: NonNull<u8>,
    ring_bytes: usize,
}

// SAFETY: the mapping is nobody's in particular, and everything in it is atomics, or bytes that are
// copied under a lock (rules 1 to 3).
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

/// Length of a mailbox with a ring of that size.
pub(super) const fn size(ring_bytes: usize) -> usize {
    HEADER_BYTES + ring_bytes
}

/// The ring's size for a receive buffer of `limit` bytes.
pub(super) fn ring_bytes_for(limit: u64) -> usize {
    let wanted = usize::try_from(limit).unwrap_or(RING_MAX);
    wanted.clamp(RING_MIN, RING_MAX).next_power_of_two()
}

const RING_MIN: usize = 1 << 17;
const RING_MAX: usize = 1 << 23;

/// What the kernel charges to a receive buffer for a datagram, about.
fn charge_of(len: usize) -> u32 {
    let block = len.saturating_add(384).next_power_of_two().saturating_add(256);
    u32::try_from(block).unwrap_or(u32::MAX)
}

#[expect(clippy::as_conversions, reason = "an enumeration is stored as its number")]
fn expects_number(expects: Expects) -> u32 {
    expects as u32
}

#[expect(clippy::as_conversions, reason = "an enumeration is stored as its number")]
fn shows_number(shows: Shows) -> u32 {
    shows as u32
}

fn distance(to: u64, from: u64) -> u64 {
    to.wrapping_sub(from) & CURSOR_MASK
}

/// The earlier of two counts that wrap.
fn earlier(a: u32, b: u32) -> u32 {
    if a.wrapping_sub(b).cast_signed() < 0 { a } else { b }
}

fn units(len: usize) -> u64 {
    u64::try_from(len.div_ceil(UNIT)).unwrap_or(u64::MAX)
}

/// Where a record is going to be.
#[derive(Clone, Copy, Debug)]
struct Space {
    head: u64,
    end: u64,
    len: usize,
    charge: u32,
}

/// A mailbox in which nobody goes to sleep, nor sends, until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved<'a> {
    mailbox: &'a Mailbox,
    /// `None`: it is full.
    space: Option<Space>,
    _held: Held<'a>,
}

impl Reserved<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.space.is_none()
    }

    /// Writes the datagram, if there is room for it. Returns false if it is not where the program
    /// has said.
    pub(super) fn fill(&self, sender: usize, before: u32, mut from: Cursor<'_>) -> bool {
        let space = self.space.as_ref();
        space.is_none_or(|space| self.mailbox.fill(space, sender, before, &mut from))
    }

    /// Publishes what has been written, and returns where it ends.
    pub(super) fn publish(self) -> Option<u64> {
        let space = self.space?;
        let put = |now: u64| Some(space.end << SLEEPERS_SHIFT | now & (GONE | SLEEPERS));
        let word = &self.mailbox.header().word.0;
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
        self.mailbox.charge(&space);
        Some(space.end)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let word = &self.mailbox.header().word.0;
        if word.load(Ordering::Acquire) & COMING != 0 {
            word.fetch_and(!COMING, Ordering::AcqRel);
        }
    }
}

/// Why nothing may be put into a mailbox whose word is that; `None` if it may.
fn refusal(word: u64) -> Option<Pushed> {
    match word & (GONE | SLEEPERS) {
        0 => None,
        flags if flags & GONE != 0 => Some(Pushed::Gone),
        _ => Some(Pushed::Asleep),
    }
}

impl Mailbox {
    /// Takes over a mapping of `size(ring_bytes)` bytes; `ring_bytes` is a power of two.
    ///
    /// # Safety
    ///
    /// The mapping is readable, writable, shared, and nobody else unmaps it.
    unsafe fn adopt(base: NonNull<u8>, ring_bytes: usize) -> Self {
        debug_assert!(ring_bytes.is_power_of_two());
        Self { base, ring_bytes }
    }

    /// Makes a mailbox in a file that nobody has seen yet. Its maker holds senders off until it
    /// says otherwise.
    pub(super) fn make(file: c_int, about: &About, limit: u64) -> Option<Self> {
        let About { cookie, inode, port, domain, is_v6_only } = *about;
        let ring_bytes = ring_bytes_for(limit);
        raw::set_size(file, size(ring_bytes)).ok()?;
        let base = NonNull::new(raw::map_file(file, size(ring_bytes)).ok()?)?;
        // SAFETY: mapped just now, shared, of this size, and handed over.
        let mailbox = unsafe { Self::adopt(base, ring_bytes) };
        let header = mailbox.header();
        header.ring_bytes.store(ring_bytes.try_into().unwrap_or(0), Ordering::Relaxed);
        header.cookie.store(cookie, Ordering::Relaxed);
        header.port.store(port.into(), Ordering::Relaxed);
        header.domain.store(domain.try_into().unwrap_or(0), Ordering::Relaxed);
        header.inode.store(inode, Ordering::Relaxed);
        header.is_v6_only.store(is_v6_only.into(), Ordering::Relaxed);
        header.limit.store(limit, Ordering::Relaxed);
        header.consumer.hold.store(1, Ordering::Relaxed);
        header.word.0.store(1, Ordering::Relaxed);
        header.producer.stalled_at.store(u64::MAX, Ordering::Relaxed);
        mailbox.own();
        header.magic.store(MAGIC, Ordering::Release);
        Some(mailbox)
    }

    /// Maps the mailbox in a file, if it is what it should be.
    pub(super) fn open(file: c_int, cookie: u64) -> Option<Self> {
        let len = raw::file_size(file).ok()?;
        let ring_bytes = len.checked_sub(size(0))?;
        if !ring_bytes.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&ring_bytes) {
            return None;
        }
        let base = NonNull::new(raw::map_file(file, len).ok()?)?;
        // SAFETY: mapped just now, shared, of this size, and handed over.
        let mailbox = unsafe { Self::adopt(base, ring_bytes) };
        let header = mailbox.header();
        let is_it = header.magic.load(Ordering::Acquire) == MAGIC
            && header.cookie.load(Ordering::Relaxed) == cookie
            && usize::try_from(header.ring_bytes.load(Ordering::Relaxed)) == Ok(ring_bytes);
        is_it.then_some(mailbox)
    }

    fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and made of atomics (rule 1).
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    pub(super) fn cookie(&self) -> u64 {
        self.header().cookie.load(Ordering::Relaxed)
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
        let (me, header) = (raw::process_id(), self.header());
        if header.owners.iter().any(|owner| owner.load(Ordering::Acquire) == me) {
            return;
        }
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        let mut places = header.owners.iter();
        if !places.any(|owner| owner.compare_exchange(0, me, o, r).is_ok()) {
            header.is_crowded.store(1, Ordering::Release);
        }
    }

    /// This process has the socket no longer. Returns whether nobody has.
    pub(super) fn disown(&self) -> bool {
        let (me, header) = (raw::process_id(), self.header());
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        for owner in &header.owners {
            let _ = owner.compare_exchange(me, 0, o, r);
        }
        let is_free = header.owners.iter().all(|owner| owner.load(Ordering::Acquire) == 0);
        let is_last = is_free && header.is_crowded.load(Ordering::Acquire) == 0;
        if is_last {
            header.word.0.fetch_or(GONE, Ordering::AcqRel);
        }
        is_last
    }

    /// Whether every process that had the socket has ended.
    pub(super) fn is_dead(&self) -> bool {
        let header = self.header();
        let word = header.word.0.load(Ordering::Acquire);
        let mut owners = header.owners.iter().map(|owner| owner.load(Ordering::Acquire));
        word & GONE != 0
            || header.is_crowded.load(Ordering::Acquire) == 0
                && owners.all(|owner| owner == 0 || raw::has_ended(owner))
    }

    // Sleep.

    /// Whether there is a record, blocked or not.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        self.head() != self.header().consumer.tail.load(Ordering::Relaxed)
    }

    /// How far senders have got: changes with every datagram.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.header().word.0.load(Ordering::Acquire) >> SLEEPERS_SHIFT
    }

    /// The caller is about to sleep: from now on the kernel brings what comes. Refused if there is
    /// a record already, or about to be one.
    pub(crate) fn doze(&self) -> bool {
        let Header { word, consumer, .. } = self.header();
        let mut now = word.0.load(Ordering::Acquire);
        loop {
            if now & COMING != 0 {
                self.forget_the_dead();
                return false;
            }
            let is_empty = now >> SLEEPERS_SHIFT == consumer.tail.load(Ordering::Acquire);
            if !is_empty || now & SLEEPERS == SLEEPERS {
                return false;
            }
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match word.0.compare_exchange_weak(now, now + 1, o, r) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
    }

    /// From now on the kernel brings what comes, whatever is here already. What is about to be here
    /// is waited for.
    pub(crate) fn hold(&self) {
        let up = |now: u64| (now & (SLEEPERS | COMING) < SLEEPERS).then_some(now + 1);
        let word = &self.header().word.0;
        let mut rounds = 0_u32;
        while let Err(now) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, up) {
            if now & COMING == 0 {
                return;
            }
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(1024) {
                self.forget_the_dead();
            }
            raw::give_way();
        }
    }

    /// A sender has died between two steps: what it was about to publish does not come.
    fn forget_the_dead(&self) {
        let Header { word, producer, .. } = self.header();
        if producer.lock.is_abandoned() {
            word.0.fetch_and(!COMING, Ordering::AcqRel);
        }
    }

    /// A sleeper has woken up, or a hold has ended.
    pub(crate) fn rouse(&self) {
        let down = |now: u64| (now & SLEEPERS > 0).then(|| now - 1);
        let _ = self.header().word.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, down);
    }

    /// Ends the maker's hold, once nobody can be asleep who does not know of the mailbox:
    /// `strangers` of them sleep in calls, and `watchers` epoll instances know the socket.
    pub(super) fn let_senders(&self, strangers: u32, watchers: u32) {
        let header = self.header();
        if header.consumer.hold.load(Ordering::Relaxed) != 0
            && strangers == 0
            && header.seen.load(Ordering::SeqCst) >= watchers
            && header.consumer.hold.swap(0, Ordering::AcqRel) != 0
        {
            self.rouse();
        }
    }

    /// An epoll instance has got to know of the mailbox, or knows of it no longer.
    pub(crate) fn seen(&self, is_new: bool) {
        let seen = &self.header().seen;
        if is_new {
            seen.fetch_add(1, Ordering::SeqCst);
        } else {
            let down = |count: u32| count.checked_sub(1);
            let _ = seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, down);
        }
    }

    // Senders.

    pub(super) fn sender(&self, index: usize) -> Option<&Sender> {
        self.header().senders.get(index)
    }

    /// Enters a sender; finds it if it is there already. Refused if another one uses the same
    /// address, or if there are too many.
    pub(super) fn enter(
        &self,
        cookie: u64,
        from: SocketAddr,
        group: Option<IpAddr>,
    ) -> Option<usize> {
        let header = self.header();
        let _held = header.producer.lock.hold();
        let is_empty = !self.has_record();
        let mut free = None;
        for (index, sender) in header.senders.iter().enumerate() {
            let known = sender.cookie.load(Ordering::Acquire);
            let is_same = sender.matches(from) && sender.is_about(group);
            if known == cookie && is_same {
                sender.process.store(raw::process_id(), Ordering::Relaxed);
                sender.users.fetch_add(1, Ordering::Relaxed);
                return Some(index);
            }
            let process = sender.process.load(Ordering::Relaxed);
            let is_free = known == 0 || is_empty && (process == 0 || raw::has_ended(process));
            if !is_free && is_same {
                return None;
            }
            if is_free {
                sender.cookie.store(0, Ordering::Release);
                free = free.or(Some(index));
            }
            if known == 0 && index >= usize::try_from(header.used.load(Ordering::Relaxed)).ok()? {
                break;
            }
        }
        let index = free?;
        let sender = header.senders.get(index)?;
        let (port, [a, b]) = split(from);
        sender.port.store(port, Ordering::Relaxed);
        sender.addr[0].store(a, Ordering::Relaxed);
        sender.addr[1].store(b, Ordering::Relaxed);
        let [a, b] = group.map_or([0, 0], |group| split(SocketAddr::new(group, 0)).1);
        sender.group[0].store(a, Ordering::Relaxed);
        sender.group[1].store(b, Ordering::Relaxed);
        let Sender { given, taken, confirmed, excess, interface, .. } = sender;
        for count in [given, taken, confirmed, excess, interface, &sender.expects] {
            count.store(0, Ordering::Relaxed);
        }
        sender.users.store(1, Ordering::Relaxed);
        sender.process.store(raw::process_id(), Ordering::Relaxed);
        header.used.fetch_max(u32::try_from(index + 1).unwrap_or(0), Ordering::AcqRel);
        sender.cookie.store(cookie, Ordering::Release);
        Some(index)
    }

    /// A sender has closed its socket. Its address is needed for as long as records are here.
    pub(super) fn leave(&self, index: usize) {
        let _held = self.header().producer.lock.hold();
        if let Some(sender) = self.sender(index) {
            let users = sender.users.load(Ordering::Relaxed).saturating_sub(1);
            sender.users.store(users, Ordering::Relaxed);
            if users > 0 {
                return;
            }
            sender.process.store(0, Ordering::Relaxed);
            if !self.has_record() {
                sender.cookie.store(0, Ordering::Release);
            }
        }
    }

    /// Whether the kernel has been seen to bring this sender's datagrams to this socket.
    #[inline]
    pub(super) fn is_confirmed(&self, index: usize, cookie: u64) -> bool {
        let Some(sender) = self.sender(index) else { return false };
        sender.confirmed.load(Ordering::Acquire)
            == self.header().epoch.load(Ordering::Relaxed).wrapping_add(1)
            && sender.cookie.load(Ordering::Relaxed) == cookie
    }

    /// The kernel has brought a datagram. Returns whether it came from a sender that is known here.
    pub(super) fn note(&self, from: SocketAddr, sent: Sent) -> bool {
        let header = self.header();
        let used = usize::try_from(header.used.load(Ordering::Acquire)).unwrap_or(0);
        let known = header.senders.iter().take(used).filter(|sender| sender.matches(from));
        let about = |group| known.clone().find(|sender| sender.is_about(group));
        let Some(sender) = about(None) else { return known.clone().next().is_some() };
        let (proven, interface) = match sent {
            Sent::Here => (Some(sender), 0),
            // If it sends to groups too, it is not known what this proves.
            Sent::Somewhere if known.clone().nth(1).is_some() => (None, 0),
            Sent::Somewhere => (Some(sender), 0),
            Sent::Group(group, interface) => (about(Some(group)), interface),
        };
        if let (Some(proven), Sent::Group(..)) = (proven, sent) {
            proven.interface.store(interface, Ordering::Relaxed);
        }
        if interface > LOOPBACK {
            // Senders do not count what goes by way of the network.
            return true;
        }
        let (given, taken) = (sender.given(), sender.taken.load(Ordering::Relaxed));
        if taken == given {
            // More than it has sent: somebody else sends under the same address, or it is late.
            if sender.excess.fetch_add(1, Ordering::Relaxed) > EXCESS_MAX {
                sender.confirmed.store(AMBIGUOUS, Ordering::Release);
            }
            return true;
        }
        sender.taken.store(taken.wrapping_add(1), Ordering::Release);
        let is_ambiguous = sender.confirmed.load(Ordering::Relaxed) == AMBIGUOUS;
        if let Some(proven) = proven.filter(|_| !is_ambiguous) {
            let now = header.epoch.load(Ordering::Acquire).wrapping_add(1);
            proven.confirmed.store(now, Ordering::Release);
        }
        true
    }

    /// Remembers of every group that senders send to what `f` says of a sender and a group: whether
    /// its datagrams are for this socket; `None` if that is not known.
    pub(super) fn expect(&self, f: impl Fn(SocketAddr, IpAddr) -> Option<bool>) {
        let used = usize::try_from(self.header().used.load(Ordering::Acquire)).unwrap_or(0);
        for sender in self.header().senders.iter().take(used) {
            let is_used = sender.cookie.load(Ordering::Acquire) != 0;
            let (from, [a, b]) = (sender.address(), &sender.group);
            let (a, b) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
            if !is_used || (a, b) == (0, 0) {
                continue;
            }
            let group = if from.is_ipv6() {
                IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 64 | u128::from(b)))
            } else {
                IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(b).unwrap_or(0)))
            };
            let expects = match f(from, group) {
                None => Expects::Unknown,
                Some(false) => Expects::Nothing,
                Some(true) => Expects::All,
            };
            sender.expects.store(expects_number(expects), Ordering::Release);
        }
    }

    /// Whether a sender of that address is known here.
    pub(super) fn knows(&self, from: SocketAddr) -> bool {
        let used = usize::try_from(self.header().used.load(Ordering::Acquire)).unwrap_or(0);
        self.header().senders.iter().take(used).any(|sender| sender.matches(from))
    }

    // Records.

    fn total(&self) -> u64 {
        units(self.ring_bytes)
    }

    fn at(&self, cursor: u64) -> (*mut u8, usize) {
        let offset = usize::try_from(cursor & (self.total() - 1)).unwrap_or(0) * UNIT;
        // In bounds: the offset is masked by our own idea of the size (rule 2).
        (self.base.as_ptr().wrapping_add(HEADER_BYTES + offset), self.ring_bytes - offset)
    }

    fn write_head(&self, cursor: u64, words: [u32; 4]) {
        let (target, _) = self.at(cursor);
        // SAFETY: one unit at a unit's boundary inside of the ring (rule 2); the page is mapped and
        // aligned, and the senders' lock is held (rule 3).
        unsafe { target.cast::<[u32; 4]>().write(words) };
    }

    fn read_head(&self, cursor: u64) -> [u32; 4] {
        let (source, _) = self.at(cursor);
        // SAFETY: one unit at a unit's boundary inside of the ring (rule 2), published before the
        // cursor that the caller has read; any bits are legal.
        unsafe { source.cast::<[u32; 4]>().read() }
    }

    /// Puts a datagram of `len` bytes there.
    pub(super) fn push(
        &self,
        sender: usize,
        before: u32,
        from: &mut Cursor<'_>,
        len: usize,
    ) -> Pushed {
        let Header { word, producer, .. } = self.header();
        if let Some(refused) = refusal(word.0.load(Ordering::Acquire)) {
            return refused;
        }
        let _held = producer.lock.hold();
        let Some(space) = self.space(len) else { return Pushed::Full };
        // The kernel says what there is to say about a buffer that is none.
        if !self.fill(&space, sender, before, from) {
            return Pushed::Asleep;
        }
        let end = space.end;
        let mut now = word.0.load(Ordering::Acquire);
        loop {
            if let Some(refused) = refusal(now) {
                return refused;
            }
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match word.0.compare_exchange_weak(now, end << SLEEPERS_SHIFT, o, r) {
                Ok(_) => break,
                Err(changed) => now = changed,
            }
        }
        self.charge(&space);
        Pushed::At(end)
    }

    /// Where a datagram of `len` bytes goes; `None` if there is no room for it. The senders' lock is
    /// held.
    fn space(&self, len: usize) -> Option<Space> {
        let Header { word, producer, consumer, limit, .. } = self.header();
        let start = word.0.load(Ordering::Acquire) >> SLEEPERS_SHIFT;
        let (total, charge) = (self.total(), charge_of(len));
        let needed = 1 + units(len);
        let limit = limit.load(Ordering::Relaxed);
        let charged = producer.charged.load(Ordering::Relaxed);
        let fits = |tail: u64, released: u64| {
            distance(start, tail).saturating_add(needed) <= total
                && charged.wrapping_sub(released) <= limit
        };
        let mut tail = producer.tail_seen.load(Ordering::Relaxed);
        let released = producer.released_seen.load(Ordering::Relaxed);
        let offset = start & (total - 1);
        if offset >= RESTART_UNITS || !fits(tail, released) {
            tail = consumer.tail.load(Ordering::Acquire);
            let released = consumer.released.load(Ordering::Acquire);
            producer.tail_seen.store(tail, Ordering::Relaxed);
            producer.released_seen.store(released, Ordering::Relaxed);
            if !fits(tail, released) {
                return None;
            }
        }
        let mut head = start;
        let rest = total - offset;
        if offset >= RESTART_UNITS && tail == start && rest + needed <= total {
            self.write_head(start, [SKIP, u32::try_from(rest).unwrap_or(0), 0, 0]);
            head = start.wrapping_add(rest) & CURSOR_MASK;
        }
        let end = head.wrapping_add(needed) & CURSOR_MASK;
        Some(Space { head, end, len, charge })
    }

    /// Writes a record. Returns false if the datagram is not where the program has said. The senders'
    /// lock is held.
    fn fill(&self, space: &Space, sender: usize, before: u32, from: &mut Cursor<'_>) -> bool {
        let Space { head, len, charge, .. } = *space;
        let index = u32::try_from(sender).unwrap_or(0);
        self.write_head(head, [u32::try_from(len).unwrap_or(0), index, before, charge]);
        let (mut at, mut left) = (head.wrapping_add(1), len);
        while left > 0 {
            let (target, room) = self.at(at);
            let Ok(copied) = from.drain(target, room.min(left)) else { return false };
            if copied == 0 {
                break;
            }
            left -= copied;
            at = at.wrapping_add(units(copied));
        }
        true
    }

    fn charge(&self, space: &Space) {
        let Producer { charged, pushed, .. } = &self.header().producer;
        let now = charged.load(Ordering::Relaxed);
        charged.store(now.wrapping_add(space.charge.into()), Ordering::Relaxed);
        pushed.store(pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The same in steps, for a datagram that several mailboxes get, or none: nobody goes to sleep
    /// here until the answer is dropped. Refused if somebody sleeps, or nobody is there.
    pub(super) fn reserve(&self, len: usize) -> Result<Reserved<'_>, Pushed> {
        let Header { word, producer, .. } = self.header();
        if let Some(refused) = refusal(word.0.load(Ordering::Acquire)) {
            return Err(refused);
        }
        let held = producer.lock.hold();
        let mut now = word.0.load(Ordering::Acquire);
        loop {
            if let Some(refused) = refusal(now) {
                return Err(refused);
            }
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match word.0.compare_exchange_weak(now, now | COMING, o, r) {
                Ok(_) => break,
                Err(changed) => now = changed,
            }
        }
        Ok(Reserved { mailbox: self, space: self.space(len), _held: held })
    }

    /// Whether a full ring is worth waiting for: its readers have read since the last wait in vain.
    pub(super) fn moves(&self) -> bool {
        let Header { producer, consumer, .. } = self.header();
        let tail = consumer.tail.load(Ordering::Acquire);
        let was = producer.stalled_at.load(Ordering::Relaxed);
        was != tail
    }

    /// Waiting has been in vain, and a datagram of `len` bytes is dropped.
    pub(super) fn stalls(&self, len: usize) {
        let Header { producer, consumer, .. } = self.header();
        producer.dropped.fetch_add(1, Ordering::Relaxed);
        producer.dropped_bytes.fetch_add(len.try_into().unwrap_or(0), Ordering::Relaxed);
        let tail = consumer.tail.load(Ordering::Acquire);
        producer.stalled_at.store(tail, Ordering::Relaxed);
    }

    /// Datagrams that were dropped for want of room, and their bytes.
    pub(super) fn dropped(&self) -> (u64, u64) {
        let Producer { dropped, dropped_bytes, .. } = &self.header().producer;
        (dropped.load(Ordering::Relaxed), dropped_bytes.load(Ordering::Relaxed))
    }

    /// Bytes that wait from a record on, as they lie here.
    #[inline]
    pub(super) fn waiting_bytes(&self, front: &Front) -> usize {
        let units = distance(self.head(), front.at.wrapping_sub(1) & CURSOR_MASK);
        usize::try_from(units).unwrap_or(0).saturating_mul(UNIT)
    }

    /// Datagrams that wait.
    pub(super) fn waiting(&self) -> usize {
        let Header { producer, consumer, .. } = self.header();
        let taken = consumer.taken.load(Ordering::Relaxed);
        let waiting = producer.pushed.load(Ordering::Relaxed).wrapping_sub(taken);
        usize::try_from(waiting).unwrap_or(0)
    }

    /// Whether everything up to a position has been read.
    pub(super) fn is_read(&self, position: u64) -> bool {
        let tail = self.header().consumer.tail.load(Ordering::Acquire);
        distance(tail, position) <= CURSOR_MASK / 2
    }

    /// The lock of those who read.
    pub(super) fn readers(&self) -> &Lock {
        &self.header().consumer.lock
    }

    /// The first record. The readers' lock is held.
    pub(super) fn front(&self) -> Option<Front> {
        let Header { word, consumer, .. } = self.header();
        let head = word.0.load(Ordering::Acquire) >> SLEEPERS_SHIFT;
        let mut tail = consumer.tail.load(Ordering::Relaxed);
        if head == tail {
            return None;
        }
        let mut words = self.read_head(tail);
        let available = distance(head, tail);
        if let [SKIP, rest, ..] = words
            && u64::from(rest) < available
        {
            tail = tail.wrapping_add(rest.into()) & CURSOR_MASK;
            consumer.tail.store(tail, Ordering::Release);
            words = self.read_head(tail);
        }
        let [len, sender, before, charge] = words;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let needed = units(len).saturating_add(1);
        let sender = usize::try_from(sender).unwrap_or(usize::MAX);
        if needed > distance(head, tail) || self.sender(sender).is_none() {
            // Nonsense, which only a process of this user can have written: forget all of it.
            consumer.tail.store(head, Ordering::Release);
            return None;
        }
        let next = tail.wrapping_add(needed) & CURSOR_MASK;
        Some(Front { sender, before, len, at: tail.wrapping_add(1), next, charge })
    }

    /// Whether a record has to wait for what its sender gave to the kernel before.
    pub(super) fn is_blocked(&self, front: &Front) -> bool {
        let Some(sender) = self.sender(front.sender) else { return false };
        let due = earlier(front.before, sender.given());
        let missing = due.wrapping_sub(sender.taken.load(Ordering::Acquire)).cast_signed();
        if missing <= 0 && self.header().consumer.blocked_ns.load(Ordering::Relaxed) != 0 {
            self.header().consumer.blocked_ns.store(0, Ordering::Relaxed);
        }
        missing > 0
    }

    /// A record is blocked, and the kernel has nothing: it goes on if what is missing was dropped,
    /// or has not come for a long time. `drops` is the kernel's count for this socket.
    pub(super) fn unblock(&self, front: &Front, drops: u32, now_ns: u64) -> bool {
        let consumer = &self.header().consumer;
        let since = consumer.blocked_ns.load(Ordering::Relaxed);
        if since == 0 {
            consumer.blocked_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
        let is_old = since != 0 && now_ns.saturating_sub(since) > BLOCKED_MAX_NS;
        let is_dropped = consumer.drops.swap(drops, Ordering::Relaxed) != drops;
        if !is_old && !is_dropped {
            return false;
        }
        if let Some(sender) = self.sender(front.sender) {
            sender.taken.store(earlier(front.before, sender.given()), Ordering::Release);
        }
        consumer.blocked_ns.store(0, Ordering::Relaxed);
        true
    }

    /// Who sent a record.
    pub(super) fn address(&self, front: &Front) -> Option<SocketAddr> {
        self.sender(front.sender).map(Sender::address)
    }

    /// Copies a record, as much of it as there is room for. Returns how many bytes.
    pub(super) fn copy(&self, front: &Front, into: &mut Cursor<'_>) -> Result<usize, Fault> {
        let (mut at, mut left, mut done) = (front.at, front.len, 0);
        while left > 0 {
            let (source, room) = self.at(at);
            let run = room.min(left);
            let copied = into.fill(source, run)?;
            done += copied;
            left -= copied;
            at = at.wrapping_add(units(copied));
            if copied < run {
                break;
            }
        }
        Ok(done)
    }

    /// The first record has been read. The readers' lock is held.
    pub(super) fn advance(&self, front: &Front) {
        let consumer = &self.header().consumer;
        let released = consumer.released.load(Ordering::Relaxed);
        consumer.released.store(released.wrapping_add(front.charge.into()), Ordering::Relaxed);
        let taken = consumer.taken.load(Ordering::Relaxed).wrapping_add(1);
        consumer.taken.store(taken, Ordering::Relaxed);
        consumer.tail.store(front.next, Ordering::Release);
    }

    /// Whether it is the others' turn, who send through the kernel.
    pub(super) fn is_others_turn(&self) -> bool {
        let turns = &self.header().consumer.turns;
        let now = turns.load(Ordering::Relaxed).wrapping_add(1);
        turns.store(now, Ordering::Relaxed);
        now.is_multiple_of(OTHERS_TURN)
    }

    pub(super) fn peeked(&self) -> Peeked {
        match self.header().consumer.peeked.load(Ordering::Relaxed) {
            1 => Peeked::Ring,
            2 => Peeked::Kernel,
            _ => Peeked::Nothing,
        }
    }

    pub(super) fn set_peeked(&self, peeked: Peeked) {
        let number = match peeked {
            Peeked::Nothing => 0,
            Peeked::Ring => 1,
            Peeked::Kernel => 2,
        };
        let place = &self.header().consumer.peeked;
        if place.load(Ordering::Relaxed) != number {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Takes out everything, for a socket whose mailbox nobody is going to read: calls `f` with whence
    /// each datagram is, and its bytes; those of which it returns false are dropped.
    pub(super) fn take_all(&self, mut f: impl FnMut(Origin, &[u8]) -> bool) {
        let _held = self.readers().hold();
        while let Some(front) = self.front() {
            let mut bytes = vec![0_u8; front.len];
            let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let _ = self.copy(&front, &mut Cursor::new(&[part]));
            let origin = self.sender(front.sender).map(Sender::origin);
            if !origin.is_some_and(|origin| f(origin, &bytes)) {
                let Producer { dropped, dropped_bytes, .. } = &self.header().producer;
                dropped.fetch_add(1, Ordering::Relaxed);
                dropped_bytes.fetch_add(front.len.try_into().unwrap_or(0), Ordering::Relaxed);
            }
            self.advance(&front);
        }
    }

    /// Takes out what a sender has put here, for a mailbox whose owners are dead: calls `f` with
    /// each datagram of its.
    pub(super) fn take_back(&self, sender: usize, mut f: impl FnMut(&[u8])) {
        let _held = self.readers().hold();
        while let Some(front) = self.front() {
            if front.sender == sender {
                let mut bytes = vec![0_u8; front.len];
                let part =
                    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
                let _ = self.copy(&front, &mut Cursor::new(&[part]));
                f(&bytes);
            }
            self.advance(&front);
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours (rule 1), and whoever drops a mailbox was its last user.
        unsafe { raw::unmap(self.base.as_ptr(), size(self.ring_bytes)) };
    }
}

/// How long a record waits for what the kernel does not bring.
const BLOCKED_MAX_NS: u64 = 20_000_000;
/// After so many datagrams from the ring those in the kernel's queue have their turn.
const OTHERS_TURN: u32 = 128;
