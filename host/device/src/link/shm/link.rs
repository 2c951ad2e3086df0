//! Shared-memory link between two devices of one host: a ring for each direction.
//!
//! A record is what would be a packet on the network: headers as `adverb-wire` emits them and a
//! payload, without addresses, padding and checksums. A message may also go *by reference*: then the record
//! says where its bytes are, and the receiver fetches them (`direct.rs`). A link whose other end has
//! died, or writes nonsense, is *cut*: what is sent into it is lost, as in a cable.
//!
//! # Safety
//!
//! 1. The rings lie within a mapping that the link holds. Places and lengths come from `ring.rs`,
//!    which keeps them within the ring; they are checked once more before bytes are copied.
//! 2. Bytes in a ring may change at any time, if the other side is malicious: they are copied by
//!    pointer, to memory of our own or to the receive that they are for, before they are
//!    examined, and never borrowed.
//! 3. A record's bytes are written between `reserve` and `commit`, under the writer's lock, and read
//!    between `next` and `release`, under the port's receive lock: honest sides never touch the same
//!    bytes at once.
//! 4. A ring's address is within the page that it holds.

use crate::futex_mutex::{FutexGuard, FutexMutex};
use crate::link::peer_cache::{Addresses, FULL_MAX_NANOS};
use crate::link::shm::SEGMENT_BYTES;
use crate::link::shm::doorbell::{PeerDoorbell, forget};
use crate::link::shm::guard::{self, AccessGuard, Counters};
use crate::link::shm::ring::{Broken, LINE, MARK, Memory, Reader, Record, Writer, longest};
use crate::memory::export::{Exports, Neighbour};
use crate::memory::import::Imports;
use crate::memory::local::{Sge, Source};
use crate::memory::peer_page::{PeerPage, QpWord};
use crate::memory::region::{Grip, Grips, Regions};
use crate::registry::SlotId;
use adverb_engine::{Access, AccessError, EagerHeader};
use adverb_shm::copying::{copy_short, read_word};
use adverb_shm::line::{prefetch, prefetch_for_writing};
use adverb_shm::page::{Bytes, Page, Writers};
use adverb_sys::udp::BURST_BYTES_MAX;
use adverb_sys::vm::{self, Direction, Piece};
use adverb_wire::{HeaderBytes, Headers, Qpn};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a ring's records.
const RING_BYTES: usize = 256 << 10;

adverb_shm::layout! {
    /// What a segment's memory holds. A change of any of it is a change of [`VERSION`](crate::memory::peer_page::VERSION).
    #[derive(Debug)]
    struct Layout {
        /// The one that the maker of the segment writes to comes first.
        sides: [Side; 2],
        /// Counters of each side's accesses to the other's memory (`guard.rs`): a line each.
        accesses: [Accesses; 2],
    }

    /// A ring, and the words of its two ends.
    #[derive(Debug)]
    struct Side {
        reader: ReaderEnd,
        /// The reader was woken.
        rung: Flag,
        /// The writer has given the link up.
        left: Flag,
        records: Bytes<RING_BYTES>,
    }

    #[derive(Debug)]
    #[repr(align(128))]
    struct ReaderEnd {
        /// How far the reader has come.
        read_up_to: AtomicU64,
    }

    #[derive(Debug)]
    #[repr(align(64))]
    struct Flag {
        word: AtomicU32,
    }

    #[derive(Debug)]
    struct Accesses {
        phase: Count,
        active: [Count; 2],
    }

    #[derive(Debug)]
    #[repr(align(128))]
    struct Count {
        word: AtomicU32,
    }
}

/// Bytes of a record that are asked for as soon as it is seen.
const FETCHED_MAX: usize = 8 * LINE;

/// The longest record: headers, and a payload or the pieces of a message by reference.
pub(crate) const RECORD_MAX: usize = Headers::MAX_LEN + PAYLOAD_MAX;
#[expect(clippy::as_conversions, reason = "a constant that fits")]
const PAYLOAD_MAX: usize = SEGMENT_BYTES as usize;
const _: () = assert!(RECORD_MAX <= longest(RING_BYTES));
/// Whatever the other end writes fits the buffer of a step: a record that did not would be looked at for ever.
const _: () = assert!(longest(RING_BYTES) <= BURST_BYTES_MAX);
const _: () = assert!(EagerHeader::LEN <= Headers::MAX_LEN);

/// What a record's note says: the length of its headers, and of which kind it is.
const NOTE_LEN: u16 = 63;
const NOTE_BY_REFERENCE: u16 = 1 << 15;
/// Its headers end with addresses (`peer_cache.rs`).
const NOTE_ADDRESSED: u16 = 1 << 14;
/// It has an eager header in the place of headers.
const NOTE_EAGER: u16 = 1 << 13;
const _: () = assert!(Headers::MAX_LEN <= 63 && DATAGRAM_HEAD_MAX <= 63);
/// Headers of a datagram are no longer: those of transport and datagram, and an immediate.
const DATAGRAM_HEAD_MAX: usize = 12 + 8 + 4 + Addresses::LEN;

/// A device of this host, as long as it lives: another in its slot is another peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PeerId {
    pub(crate) slot: SlotId,
    pub(crate) nonce: u64,
}

/// One ring within a link's memory.
#[derive(Debug)]
struct Ring {
    /// What `side` lies in.
    #[expect(dead_code, reason = "held, not used: it keeps the memory")]
    memory: Arc<Page<Layout>>,
    side: NonNull<Side>,
}

// SAFETY: an address within the page, which any thread may use: see rules 1 to 4.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// The one that a side writes to.
    fn new(memory: &Arc<Page<Layout>>, writer: Maker) -> Self {
        Self { memory: Arc::clone(memory), side: NonNull::from(writer.of(&memory.sides)) }
    }

    #[inline]
    fn side(&self) -> &Side {
        // SAFETY: within the page (rule 4), which lives as long as this borrow.
        unsafe { self.side.as_ref() }
    }

    fn rung(&self) -> &AtomicU32 {
        &self.side().rung.word
    }

    fn left(&self) -> &AtomicU32 {
        &self.side().left.word
    }

    /// The `len` bytes of records from `at` on; `None` if they are not all in the ring.
    #[inline]
    fn bytes(&self, at: usize, len: usize) -> Option<*mut u8> {
        if at.checked_add(len).is_none_or(|end| end > RING_BYTES) {
            return None;
        }
        Some(self.side().records.as_ptr().wrapping_add(at))
    }
}

impl Ring {
    /// Asks for the line at this place, to read it.
    #[inline]
    fn fetch_soon(&self, at: u64) {
        let at = usize::try_from(at).unwrap_or(0) % RING_BYTES;
        if let Some(line) = self.bytes(at, 1) {
            prefetch(line);
        }
    }

    /// Asks for the lines at these places, to write to them soon.
    #[inline]
    fn fetch(&self, places: impl IntoIterator<Item = u64>) {
        for at in places {
            let at = usize::try_from(at).unwrap_or(0) % RING_BYTES;
            if let Some(line) = self.bytes(at, 1) {
                prefetch_for_writing(line);
            }
        }
    }
}

/// Asks for the lines of a record behind its first, which starts so close before `start`, as far as the
/// processor would not by itself. The writer may have had the second one since it was asked for.
#[inline]
fn fetch_rest(start: *mut u8, len: usize) {
    let end = len.min(FETCHED_MAX) + MARK;
    let mut at = LINE;
    while at < end {
        prefetch(start.wrapping_add(at - MARK));
        at += LINE;
    }
}

impl Memory for Ring {
    #[inline]
    fn size(&self) -> usize {
        RING_BYTES
    }

    #[inline]
    fn mark(&self, at: usize) -> &AtomicU64 {
        let word = self.side().records.as_ptr().wrapping_add(at % RING_BYTES / LINE * LINE).cast();
        // SAFETY: a line of the ring, whole and within the mapping (rule 4), which lives as long as
        // this borrow; marks are changed as atomics, but by records where none is looked for (rule 3).
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn read_up_to(&self) -> &AtomicU64 {
        &self.side().reader.read_up_to
    }
}

/// Which end of a link has made its segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Maker {
    This,
    Other,
}

impl Maker {
    /// The same, as the other end sees it.
    const fn seen_from_there(self) -> Self {
        match self {
            Self::This => Self::Other,
            Self::Other => Self::This,
        }
    }

    /// That of two which is this end's.
    #[inline]
    const fn of<T>(self, [makers, others]: &[T; 2]) -> &T {
        match self {
            Self::This => makers,
            Self::Other => others,
        }
    }
}

/// Memory for both directions.
#[derive(Debug)]
pub(crate) struct Segment {
    memory: Arc<Page<Layout>>,
    /// Which side this is.
    side: Maker,
    /// Both ends are this device: one ring is enough.
    own: bool,
}

impl Segment {
    /// For a device and itself.
    pub(crate) fn own() -> io::Result<Self> {
        Ok(Self { memory: Arc::new(Page::anonymous()?), side: Maker::This, own: true })
    }

    /// For this device and another, which gets the descriptor.
    pub(crate) fn create() -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = Page::create("adverb-segment", Writers::All)?;
        Ok((Self { memory: Arc::new(memory), side: Maker::This, own: false }, file))
    }

    /// From the other device's descriptor.
    pub(crate) fn open(file: impl AsFd) -> io::Result<Self> {
        let memory = Arc::new(Page::open(file, Writers::All)?);
        Ok(Self { memory, side: Maker::Other, own: false })
    }
}

/// A link, seen from one end.
#[derive(Debug)]
pub(crate) struct ShmLink {
    peer: PeerId,
    segment: Segment,
    outgoing: Ring,
    incoming: Ring,
    writer: FutexMutex<Writer>,
    /// Batches of records that were begun. Only the writer's holder changes it.
    batches: AtomicU64,
    /// Requests carried out on the other end's memory, about: some that begin at the same time may be lost.
    acts: AtomicU64,
    /// Acknowledgements in a row that this process has written with nothing else between them, about, and [`ShmLink::calls`] with
    /// the last one.
    lone_acks: AtomicU32,
    lone_acks_at: AtomicU64,
    /// Long copies to or from the other end's memory that are under way. The counters of accesses lie in memory that the
    /// other end writes to as well.
    copies: AtomicU32,
    peer_doorbell: PeerDoorbell,
    cut: AtomicBool,
    /// The other end is no more: it does not access our memory.
    gone: AtomicBool,
    /// How long the other end was waited for without success, in nanoseconds: it accessed our memory still.
    stalled_ns: AtomicU64,
    /// Since when datagrams have found it full, in nanoseconds; 0 if they have not.
    full_since: AtomicU64,
    exports: Arc<Exports>,
    imports: Imports,
}

impl ShmLink {
    pub(crate) fn new(
        peer: PeerId,
        segment: Segment,
        peer_doorbell: PeerDoorbell,
        exports: &Arc<Exports>,
    ) -> Self {
        let there = if segment.own { segment.side } else { segment.side.seen_from_there() };
        let outgoing = Ring::new(&segment.memory, segment.side);
        let incoming = Ring::new(&segment.memory, there);
        Self {
            peer,
            segment,
            outgoing,
            incoming,
            writer: FutexMutex::default(),
            batches: AtomicU64::new(0),
            acts: AtomicU64::new(0),
            lone_acks: AtomicU32::new(0),
            lone_acks_at: AtomicU64::new(0),
            copies: AtomicU32::new(0),
            peer_doorbell,
            cut: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            stalled_ns: AtomicU64::new(0),
            full_since: AtomicU64::new(0),
            exports: Arc::clone(exports),
            imports: Imports::default(),
        }
    }

    /// What is known of the memory of either side.
    pub(crate) fn imports(&self) -> &Imports {
        &self.imports
    }

    /// What the other end publishes.
    #[inline]
    pub(crate) fn peer_page(&self) -> &PeerPage {
        self.peer_doorbell.page()
    }

    /// What the other end says of one of its queue pairs.
    pub(crate) fn peer_word(&self, qp: Qpn) -> QpWord {
        let word = self.peer_page().qp(qp).map(|word| word.load(Ordering::SeqCst));
        word.map_or(QpWord::CLOSED, QpWord::from_bits)
    }

    /// The other end's page, to be kept.
    pub(crate) fn keep_peer_page(&self) -> Arc<PeerPage> {
        Arc::clone(self.peer_doorbell.page())
    }

    /// What this end publishes.
    pub(crate) fn own_page(&self) -> &PeerPage {
        self.exports.page()
    }

    /// Memory is used besides the ring, as far as this end is asked.
    #[inline]
    pub(crate) fn shares(&self) -> bool {
        self.exports.shares()
    }

    /// A queue pair of this end allows its peer at the other this, in this domain, until the grant is dropped.
    pub(crate) fn grant(self: &Arc<Self>, qp: Qpn, domain: u32, access: Access) -> Grant {
        self.imports.grant(qp, domain, access);
        Grant { shm_link: Arc::clone(self), qp }
    }

    /// The other end can fetch what lies in this file of ours.
    pub(crate) fn can_fetch(&self, file: u64) -> bool {
        self.imports.can_fetch(file, || self.exports.descriptor(file))
    }

    /// Finds out whether the other process's memory can be read and written from here.
    pub(crate) fn probe(&self, pid: u32) {
        if !self.shares() {
            return;
        }
        let (address, expected) = self.peer_page().probe();
        let mut found = [0; 8];
        let here = [Piece { start: found.as_mut_ptr(), len: found.len() }];
        // SAFETY: the piece is an array of our own that no other code uses meanwhile.
        let read = unsafe { vm::copy(pid, Direction::Read, &here, address) };
        if pid != 0 && read.is_ok() && u64::from_ne_bytes(found) == expected {
            self.imports.set_process(pid);
        }
    }

    /// Goes to look at the other's memory: what is published there now stays until the access ends.
    #[inline]
    pub(crate) fn begin(&self) -> AccessGuard<'_> {
        match self.segment.own {
            true => AccessGuard::UNCOUNTED, // Pins do it.
            false => AccessGuard::begin(self.accesses(self.segment.side)),
        }
    }

    /// Those of this side at the other's memory.
    #[inline]
    fn accesses(&self, side: Maker) -> &Accesses {
        side.of(&self.segment.memory.accesses)
    }

    /// Waits until every access of the other end that has begun before the call has ended; one call
    /// at a time.
    ///
    /// An end that is stopped in the midst of an access for `timeout` is cut off, and is waited for no longer than
    /// that in all; false as long as it may access it still.
    pub(crate) fn wait_for_peer(&self, timeout: Duration) -> bool {
        let waited = Duration::from_nanos(self.stalled_ns.load(Ordering::Relaxed));
        let timeout = timeout.saturating_sub(waited);
        let until = Instant::now() + timeout;
        let waits = || {
            std::thread::yield_now();
            !self.gone.load(Ordering::Acquire) && Instant::now() < until
        };
        let accesses = self.accesses(self.segment.side.seen_from_there());
        if guard::wait(accesses, waits) || self.gone.load(Ordering::Acquire) {
            return true;
        }
        let all = u64::try_from((waited + timeout).as_nanos()).unwrap_or(u64::MAX);
        self.stalled_ns.store(all, Ordering::Relaxed);
        self.cut();
        false
    }

    /// Writes to the other end's counters as if it were in the midst of an access.
    #[cfg(test)]
    pub(crate) fn hold_accesses(&self) {
        let counters = self.accesses(self.segment.side.seen_from_there());
        counters.accesses(false).store(1, Ordering::SeqCst);
    }

    /// Writes what makes no sense where the other end reads next, if nothing was written before.
    #[cfg(test)]
    pub(crate) fn spoil(&self) {
        self.outgoing.mark(0).store(1, Ordering::Release);
    }

    /// The device at the other end.
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Both ends are this device.
    pub(crate) fn is_own(&self) -> bool {
        self.segment.own
    }

    /// Nothing arrives at the other end any more.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.outgoing.left().store(1, Ordering::Release);
    }

    /// The other end is no more.
    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
        self.cut();
    }

    /// As [`ShmLink::is_cut`], or the other end has cut it: not to be used for new connections.
    pub(crate) fn is_given_up(&self) -> bool {
        if self.incoming.left().load(Ordering::Acquire) != 0 {
            self.cut();
        }
        self.is_cut()
    }

    /// A number that changes with each batch of records that this process begins to write, and each request that it carries
    /// out on the other end's memory.
    pub(crate) fn calls(&self) -> u64 {
        self.batches.load(Ordering::Relaxed).wrapping_add(self.acts.load(Ordering::Relaxed))
    }

    /// This process has written an acknowledgement, in a batch of its own.
    #[inline]
    pub(crate) fn note_lone_ack(&self) {
        let (calls, before) = (self.calls(), self.lone_acks_at.load(Ordering::Relaxed));
        let is_next = calls == before.wrapping_add(1);
        let lone_acks =
            if is_next { self.lone_acks.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.lone_acks.store(lone_acks, Ordering::Relaxed);
        self.lone_acks_at.store(calls, Ordering::Relaxed);
    }

    /// This process has written nothing but acknowledgements for a while: its programs answer nothing.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.lone_acks.load(Ordering::Relaxed) >= LONE_ACKS_MIN
    }

    /// A request is about to be carried out on the other end's memory.
    #[inline]
    pub(crate) fn note_act(&self) {
        self.acts.store(self.acts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A thread of this process copies a good deal to or from the other end's memory.
    pub(crate) fn is_copying(&self) -> bool {
        self.copies.load(Ordering::Relaxed) != 0
    }

    /// So many bytes are about to be copied to or from there: a copy that is long is under way until it is dropped.
    #[inline]
    pub(crate) fn begin_copy(&self, bytes: u32) -> Option<Copying<'_>> {
        (bytes >= LONG_BYTES).then(|| Copying::begin(&self.copies))
    }

    /// The other end is not at our memory.
    pub(crate) fn is_vacant(&self) -> bool {
        guard::is_vacant(self.accesses(self.segment.side.seen_from_there()))
    }

    /// There is room for datagrams, or there is not; says for how many nanoseconds it has been so.
    pub(crate) fn note_full(&self, full: bool, now: u64) -> u64 {
        let since = self.full_since.load(Ordering::Relaxed);
        match (full, since) {
            (false, 0) => 0,
            (false, _) => {
                self.full_since.store(0, Ordering::Relaxed);
                0
            }
            (true, 0) => {
                self.full_since.store(now.max(1), Ordering::Relaxed);
                0
            }
            (true, since) => now.saturating_sub(since),
        }
    }

    /// Says that this end has seen its doorbell ring.
    pub(crate) fn forget_ringing(&self) {
        forget(self.incoming.rung());
    }

    /// Whether a datagram of many may be written, or else is lost: a link is not waited for for long.
    pub(crate) fn takes(&self, now: u64) -> Takes {
        let full = !self.has_room();
        match (self.note_full(full, now), full) {
            (_, false) => Takes::It,
            (since, true) if since > FULL_MAX_NANOS => Takes::Nothing,
            (_, true) => Takes::ItSoon,
        }
    }

    /// A record may be written, for now.
    pub(crate) fn has_room(&self) -> bool {
        self.is_cut() || self.writer.lock().can_take(&self.outgoing, RECORD_MAX)
    }

    /// Begins to write records, `budget` at most; others of this process wait.
    #[inline]
    pub(crate) fn tx_batch(&self, budget: usize) -> TxBatch<'_> {
        let writer = self.writer.lock();
        let batches = self.batches.load(Ordering::Relaxed);
        self.batches.store(batches.wrapping_add(1), Ordering::Relaxed);
        TxBatch { shm_link: self, writer, budget, emitted: 0, sinks: false }
    }
}

/// Acknowledgements in a row that show a process that answers nothing.
const LONE_ACKS_MIN: u32 = 8;
/// A copy of fewer bytes takes less than a look of the helper (`helper.rs`).
pub(super) const LONG_BYTES: u32 = 1 << 15;

/// A long copy that is under way.
#[derive(Debug)]
pub(crate) struct Copying<'a>(&'a AtomicU32);

impl<'a> Copying<'a> {
    fn begin(copies: &'a AtomicU32) -> Self {
        copies.fetch_add(1, Ordering::Relaxed);
        Self(copies)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of one side's accesses, in the memory of a link.
impl<'a> Counters<'a> for &'a Accesses {
    #[inline]
    fn phase(self) -> &'a AtomicU32 {
        &self.phase.word
    }

    #[inline]
    fn accesses(self, phase: bool) -> &'a AtomicU32 {
        let [first, second] = &self.active;
        &if phase { second } else { first }.word
    }
}

/// Rights that a queue pair grants its peer at the other end.
#[derive(Debug)]
pub(crate) struct Grant {
    shm_link: Arc<ShmLink>,
    qp: Qpn,
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.shm_link.imports.revoke(self.qp);
    }
}

/// Whether a link takes a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Takes {
    /// There is room.
    It,
    /// There is none now.
    ItSoon,
    /// It is lost.
    Nothing,
}

/// A message that is being handed over, whose bytes are where the sender has put them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageBytes<'a> {
    /// In the sender's memory.
    ByReference {
        shm_link: &'a ShmLink,
        /// Bytes in all.
        total: u32,
        /// The record's list of pieces, [`PIECE_BYTES`] each.
        pieces: &'a [u8],
    },
    /// In the ring.
    InRing(InRing<'a>),
}

/// A record with an eager header, which stays in the ring until it is given to [`ShmReceiver::release`].
#[derive(Debug)]
pub(crate) struct EagerRecord {
    record: Record,
    start: *mut u8,
    len: u32,
}

impl EagerRecord {
    /// The bytes behind the eager header.
    #[inline(always)]
    pub(crate) const fn near(&self) -> InRing<'_> {
        InRing { start: self.start, len: self.len, record: PhantomData }
    }
}

/// The bytes of a record that is being handed over: in the ring, and the sender's to change if it is
/// malicious (rule 2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct InRing<'r> {
    start: *mut u8,
    len: u32,
    record: PhantomData<&'r EagerRecord>,
}

impl InRing<'_> {
    #[inline]
    pub(crate) const fn start(self) -> *mut u8 {
        self.start
    }

    #[inline]
    pub(crate) const fn len(self) -> u32 {
        self.len
    }
}

impl<'a> MessageBytes<'a> {
    pub(crate) fn parse(shm_link: &'a ShmLink, bytes: &'a [u8]) -> Option<Self> {
        let (total, pieces) = bytes.split_first_chunk::<TOTAL_BYTES>()?;
        let total = u32::try_from(u64::from_ne_bytes(*total)).ok()?;
        Some(Self::ByReference { shm_link, total, pieces })
    }

    /// Bytes in all.
    #[inline]
    pub(crate) const fn total(&self) -> u32 {
        match self {
            Self::ByReference { total, .. } => *total,
            Self::InRing(near) => near.len,
        }
    }

    pub(crate) fn piece(bytes: &[u8]) -> Option<Sge> {
        let (first, rest) = bytes.split_first_chunk::<8>()?;
        let both = u64::from_ne_bytes(*first);
        let addr = u64::from_ne_bytes(*rest.first_chunk::<8>()?);
        let lkey = u32::try_from(both >> 32).ok()?;
        let len = u32::try_from(both & 0xffff_ffff).ok()?;
        Some(Sge { addr, len, lkey })
    }
}

/// Write batch: records that become visible to the peer together.
#[derive(Debug)]
pub(crate) struct TxBatch<'a> {
    shm_link: &'a ShmLink,
    writer: FutexGuard<'a, Writer>,
    budget: usize,
    emitted: u64,
    /// What is emitted is lost.
    sinks: bool,
}

/// Bytes behind an eager header that are in the line of its mark.
const FIRST_BYTES: usize = LINE - MARK - EagerHeader::LEN;

/// Form of a reserved record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Its bytes say where those of the message are: [`reference_words`].
    pub(crate) by_reference: bool,
    /// More records are about to come.
    pub(crate) more: bool,
}

/// What the record of a message by reference in one piece says.
#[inline]
pub(crate) fn reference_words(sge: &Sge) -> [u64; 3] {
    let Sge { addr, len, lkey } = *sge;
    [u64::from(len), u64::from(lkey) << 32 | u64::from(len), addr]
}

/// A place for a record, and the bytes that go into it behind an eager header.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    start: *mut u8,
    bytes: *const u8,
    len: usize,
    /// Keeps the bytes in place: a borrow of them, or of a pin if they are registered.
    _kept: PhantomData<&'a [u8]>,
}

/// Payload behind a record's headers.
#[derive(Clone, Copy, Debug)]
enum PayloadSource<'a> {
    /// The bytes of its message.
    Bytes(&'a Source<'a>),
    /// Where all bytes of a request are, for the peer to fetch them.
    ByReference { sges: &'a [Sge], len: u32 },
}

impl<'a> TxBatch<'a> {
    /// One more record may be written.
    #[inline]
    pub(crate) fn room(&mut self) -> bool {
        self.budget > 0
            && (self.sinks
                || self.shm_link.is_cut()
                || self.writer.can_take(&self.shm_link.outgoing, RECORD_MAX))
    }

    pub(crate) fn shm_link(&self) -> &'a ShmLink {
        self.shm_link
    }

    /// From now on what is emitted gets lost.
    pub(crate) fn sink(&mut self) {
        self.sinks = true;
    }

    /// Writes one record.
    #[inline]
    pub(crate) fn emit(
        &mut self,
        headers: &Headers,
        source: &Source<'_>,
        regions: &Regions,
    ) -> Result<(), AccessError> {
        let mut bytes = HeaderBytes::default();
        headers.emit(&mut bytes);
        self.write(bytes.as_slice(), 0, PayloadSource::Bytes(source), regions)
    }

    /// Writes the record of a message of `len` bytes by reference.
    pub(crate) fn emit_by_reference(
        &mut self,
        headers: &Headers,
        sges: &[Sge],
        len: u32,
        regions: &Regions,
    ) -> Result<(), AccessError> {
        let mut bytes = HeaderBytes::default();
        headers.emit(&mut bytes);
        self.write(bytes.as_slice(), 0, PayloadSource::ByReference { sges, len }, regions)
    }

    /// Writes the record of one datagram.
    pub(crate) fn emit_to(
        &mut self,
        addresses: Addresses,
        headers: &Headers,
        source: &Source<'_>,
        regions: &Regions,
    ) -> Result<(), AccessError> {
        let mut bytes = HeaderBytes::default();
        headers.emit(&mut bytes);
        let mut head = [0; DATAGRAM_HEAD_MAX];
        let addresses = addresses.emit();
        let parts = bytes.as_slice().iter().chain(&addresses).copied().enumerate();
        let mut len = 0;
        for (place, (at, byte)) in head.iter_mut().zip(parts) {
            (*place, len) = (byte, at + 1);
        }
        self.write(
            head.get(..len).unwrap_or_default(),
            NOTE_ADDRESSED,
            PayloadSource::Bytes(source),
            regions,
        )
    }

    /// Writes a record with these headers, of this kind.
    #[inline]
    fn write(
        &mut self,
        head: &[u8],
        kind: u16,
        source: PayloadSource<'_>,
        regions: &Regions,
    ) -> Result<(), AccessError> {
        let payload = source.len();
        let ring = &self.shm_link.outgoing;
        self.budget = self.budget.saturating_sub(1);
        self.emitted += 1;
        let total = head.len() + payload;
        let at = match self.sinks || self.shm_link.is_cut() || total > RECORD_MAX {
            true => None,
            false => self.writer.reserve(ring, total),
        };
        let Some(target) = at.and_then(|at| ring.bytes(at, total)) else {
            return source.check(&mut Grips::new(regions)); // Lost on the way; but not every mistake with it.
        };
        // SAFETY: room for `total` bytes, which is more (rules 1 and 3).
        unsafe { copy_short(head.as_ptr(), target, head.len()) };
        // SAFETY: `head.len() <= total` (rule 1).
        let target = unsafe { target.add(head.len()) };
        // SAFETY: what is left of `total` bytes is that (rule 1), and this end alone writes to its ring (rule 3).
        unsafe { source.copy_to(target, &mut Grips::new(regions)) }?;
        let by_reference =
            if matches!(source, PayloadSource::ByReference { .. }) { NOTE_BY_REFERENCE } else { 0 };
        let note = u16::try_from(head.len()).unwrap_or(0) | by_reference | kind;
        self.writer.commit(ring, total, note);
        Ok(())
    }

    /// Makes sure that an eager header can be written with these bytes behind it: `None` if not. Nothing has
    /// happened then, and with the reservation neither.
    #[inline]
    pub(crate) fn reserve<'r>(&mut self, bytes: &'r [u8]) -> Option<Reservation<'r>> {
        // SAFETY: a slice, which is borrowed as long.
        unsafe { self.reserve_for(bytes.as_ptr(), bytes.len()) }
    }

    /// The same, of registered bytes.
    #[inline]
    pub(crate) fn reserve_registered<'g>(
        &mut self,
        sge: &Sge,
        domain: u32,
        grip: &'g mut Grip<'_>,
    ) -> Option<Reservation<'g>> {
        let pin = grip.pin_local(sge.lkey, domain).ok()?;
        let len = usize::try_from(sge.len).ok()?;
        let bytes = pin.range(sge.addr, len, Access::NONE).ok()?;
        // SAFETY: `len` bytes, pinned as long as the grip is borrowed.
        unsafe { self.reserve_for(bytes.cast_const(), len) }
    }

    /// The same, of words.
    #[inline]
    pub(crate) fn reserve_words<'r>(&mut self, words: &'r [u64]) -> Option<Reservation<'r>> {
        // SAFETY: a slice, which is borrowed as long.
        unsafe { self.reserve_for(words.as_ptr().cast(), size_of_val(words)) }
    }

    /// The same, of bytes by their place.
    ///
    /// # Safety
    ///
    /// `len` bytes can be read there for `'r`.
    #[inline(always)]
    unsafe fn reserve_for<'r>(&mut self, bytes: *const u8, len: usize) -> Option<Reservation<'r>> {
        let total = EagerHeader::LEN + len;
        if self.budget == 0 || total > RECORD_MAX || self.shm_link.is_cut() {
            return None;
        }
        let ring = &self.shm_link.outgoing;
        let start = ring.bytes(self.writer.reserve(ring, total)?, total)?;
        Some(Reservation { start, bytes, len, _kept: PhantomData })
    }

    /// Writes the record that was reserved last: with the bytes of its message, or with where they are. If
    /// more is about to come, others see it with [`TxBatch::send`] only.
    #[inline(always)]
    pub(crate) fn commit(&mut self, reservation: Reservation<'_>, eager: [u64; 2], form: Form) {
        let Form { by_reference, more } = form;
        let note = if by_reference { NOTE_EAGER | NOTE_BY_REFERENCE } else { NOTE_EAGER };
        let Reservation { start, bytes, len, .. } = reservation;
        // SAFETY: `EagerHeader::LEN` bytes lie within the reservation's (rule 1).
        let body = unsafe { start.add(EagerHeader::LEN) };
        let write_header = || {
            for (at, word) in eager.into_iter().enumerate() {
                let place = start.cast::<AtomicU64>().wrapping_add(at);
                // SAFETY: the reservation begins with room for the eager header (rules 1 and 3), right behind a mark, with
                // which a line begins.
                unsafe { &*place }.store(word, Ordering::Relaxed);
            }
        };
        match len.checked_sub(FIRST_BYTES) {
            None => {
                write_header();
                // SAFETY: `len` bytes are borrowed or pinned, and the reservation has room for them; what is
                // registered never lies in a ring (rules 1 and 3).
                unsafe { copy_short(bytes, body, len) };
            }
            // The first line comes last. The reader waits for its mark, and takes the line away as soon as it can; bytes
            // of later lines may have to wait until those lines are here.
            Some(rest) => {
                let (from, to) = (bytes.wrapping_add(FIRST_BYTES), body.wrapping_add(FIRST_BYTES));
                // SAFETY: as above, of those behind the first.
                unsafe { copy_short(from, to, rest) };
                write_header();
                // SAFETY: as above, of the first.
                unsafe { copy_short(bytes, body, FIRST_BYTES) };
            }
        }
        self.budget -= 1;
        self.emitted += 1;
        let ring = &self.shm_link.outgoing;
        if more {
            ring.fetch(self.writer.places_ahead());
        }
        match more {
            true => self.writer.commit_unseen(ring, EagerHeader::LEN + len, note),
            false => self.writer.commit(ring, EagerHeader::LEN + len, note),
        }
    }

    /// Wakes the other end if need be; says how many records there were.
    #[inline]
    pub(crate) fn send(self) -> u64 {
        let Self { shm_link, mut writer, emitted, .. } = self;
        writer.publish(&shm_link.outgoing);
        if emitted > 0 {
            // The next record's lines are the reader's from a round ago. They come while nothing
            // waits for them.
            shm_link.outgoing.fetch(writer.prepare(&shm_link.outgoing));
        }
        drop(writer);
        if emitted > 0 {
            shm_link.peer_doorbell.ring(shm_link.outgoing.rung());
        }
        emitted
    }
}

/// Bytes of one piece of a message by reference, as a record says it: key, length, address.
pub(crate) const PIECE_BYTES: usize = 16;
/// Bytes before them: the length of all.
const TOTAL_BYTES: usize = 8;

impl PayloadSource<'_> {
    fn len(self) -> usize {
        match self {
            Self::Bytes(source) => source.len(),
            Self::ByReference { sges, .. } => TOTAL_BYTES + PIECE_BYTES * sges.len(),
        }
    }

    /// Says whether the bytes are there to be copied.
    fn check(self, grips: &mut Grips<'_>) -> Result<(), AccessError> {
        match self {
            Self::Bytes(source) => source.each_piece(grips, |_, _| Ok(())),
            Self::ByReference { .. } => Ok(()),
        }
    }

    /// Copies what there is to `target`.
    ///
    /// # Safety
    ///
    /// It has room for [`PayloadSource::len`] bytes, which no other thread writes to.
    #[inline]
    unsafe fn copy_to(self, mut target: *mut u8, grips: &mut Grips<'_>) -> Result<(), AccessError> {
        let mut put = |start: *const u8, len: usize| {
            // SAFETY: the piece is on the stack, a borrowed slice, or registered memory that is pinned during the
            // call; the target has room for all pieces, and no piece lies in the ring (rules 1 and 3).
            unsafe { copy_short(start, target, len) };
            target = target.wrapping_add(len);
        };
        match self {
            Self::Bytes(source) => source.each_piece(grips, |start, len| {
                put(start, len);
                Ok(())
            }),
            Self::ByReference { sges, len } => {
                let mut word = |word: u64| put(word.to_ne_bytes().as_ptr(), size_of_val(&word));
                word(u64::from(len));
                for Sge { addr, len, lkey } in sges {
                    word(u64::from(*lkey) << 32 | u64::from(*len));
                    word(*addr);
                }
                Ok(())
            }
        }
    }
}

/// The receiving end, under the port's receive lock.
#[derive(Debug)]
pub(crate) struct ShmReceiver<P> {
    pub(crate) shm_link: Arc<ShmLink>,
    reader: Reader,
    /// Batch size. 1 while messages come singly, because probing the next slot steals the line the peer is writing;
    /// doubled under load.
    pub(crate) batch: usize,
    /// Messages to multicast groups have come.
    pub(crate) has_multicast: bool,
    /// The other end has written nonsense.
    pub(crate) broken: bool,
    /// The queue pair that most records are for lately, and the one of the last that was not.
    last_qp: Option<(Qpn, P)>,
    other: Qpn,
}

impl Neighbour for ShmLink {
    fn wait(&self, timeout: Duration) -> bool {
        self.wait_for_peer(timeout)
    }

    fn file_is_gone(&self, number: u64) {
        self.imports.on_own_gone(number);
    }
}

/// What was found at the place of the next record.
#[derive(Debug)]
pub(crate) enum Seen {
    /// Nothing, and there may be something any time.
    Nothing,
    /// An eager header with its bytes behind it; to be given back with [`ShmReceiver::release`], or to be taken.
    Eager(EagerHeader, EagerRecord),
    /// Something to be taken, or nothing ever again.
    Other,
}

/// A record that was taken.
#[derive(Debug)]
pub(crate) enum Taken {
    /// What it says, if that makes sense, and its bytes; to be given back with [`ShmReceiver::release`].
    Eager { eager: Option<EagerHeader>, held: EagerRecord },
    /// It is in the buffer.
    Copied(Copied),
}

/// A record in the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Copied {
    /// How long its headers are and all of it.
    Packet {
        head: usize,
        len: usize,
        /// Behind the headers it says where its bytes are.
        by_reference: bool,
        /// Its headers end with addresses.
        addressed: bool,
    },
    /// What it says, if that makes sense; where its bytes are is in the buffer, so long.
    EagerByReference { eager: Option<EagerHeader>, len: usize },
}

impl<P> ShmReceiver<P> {
    pub(crate) fn new(shm_link: Arc<ShmLink>) -> Self {
        let (reader, last_qp, other) = (Reader::default(), None, Qpn::new(0));
        Self { shm_link, reader, batch: 1, has_multicast: false, broken: false, last_qp, other }
    }

    /// Hands out the queue pair's place if it is the one that most records are for: to be given back.
    /// `look_up` says where one lives that has come twice in a row.
    #[inline]
    pub(crate) fn take_last_qp(
        &mut self,
        qp: Qpn,
        look_up: impl FnOnce() -> Option<P>,
    ) -> Option<(Qpn, P)> {
        if self.last_qp.as_ref().is_some_and(|(known, _)| *known == qp) {
            return self.last_qp.take();
        }
        let twice = std::mem::replace(&mut self.other, qp) == qp;
        if twice { Some((qp, look_up()?)) } else { None }
    }

    /// Takes it back.
    #[inline]
    pub(crate) fn give_back(&mut self, last_qp: Option<(Qpn, P)>) {
        if last_qp.is_some() {
            self.last_qp = last_qp;
        }
    }

    /// There may be something to take.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.reader.has_more(&self.shm_link.incoming)
    }

    /// Looks at the place where the next record will be.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Seen {
        let Self { shm_link, reader, .. } = self;
        let ring = &shm_link.incoming;
        // Two lines on their way at once: most messages take no more.
        ring.fetch_soon(reader.place_after_next());
        let Record { at, len, note } = match reader.next(ring) {
            Ok(None) if !shm_link.is_cut() => return Seen::Nothing,
            Ok(None) | Err(Broken) => return Seen::Other,
            Ok(Some(record)) => record,
        };
        if note & NOTE_EAGER == 0 || note & NOTE_BY_REFERENCE != 0 || len < EagerHeader::LEN {
            return Seen::Other;
        }
        let Some(source) = ring.bytes(at, len) else {
            return Seen::Other;
        };
        fetch_rest(source, len);
        // SAFETY: an eager header's bytes within the record's, copied to words of our own (rules 1 and 2).
        let words = [0, 8].map(|at| unsafe { read_word(source.wrapping_add(at)) });
        let start = source.wrapping_add(EagerHeader::LEN);
        match (EagerHeader::parse(words), u32::try_from(len - EagerHeader::LEN)) {
            (Some(eager), Ok(size)) => Seen::Eager(
                eager,
                EagerRecord { record: Record { at, len, note }, start, len: size },
            ),
            (_, _) => Seen::Other,
        }
    }

    /// Takes the next record into `buffer`.
    #[inline]
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        let Self { shm_link, reader, broken, .. } = self;
        let ring = &shm_link.incoming;
        // Two lines on their way at once: most messages take no more.
        ring.fetch_soon(reader.place_after_next());
        let record = match reader.next(ring) {
            Ok(record) => record?,
            Err(Broken) => {
                *broken = true;
                shm_link.cut(); // And nothing is read from it any more.
                return None;
            }
        };
        let Record { at, len, note } = record;
        let source = ring.bytes(at, len).filter(|_| len <= buffer.len())?;
        if note & NOTE_EAGER != 0 && len >= EagerHeader::LEN {
            fetch_rest(source, len);
            // SAFETY: an eager header's bytes within the record's, copied to words of our own (rules 1 and 2).
            let words = [0, 8].map(|at| unsafe { read_word(source.wrapping_add(at)) });
            let start = source.wrapping_add(EagerHeader::LEN);
            if note & NOTE_BY_REFERENCE != 0 {
                let len = len - EagerHeader::LEN;
                // SAFETY: so many bytes are left of the record's, and fewer than in the buffer, which
                // is our own (rules 1 and 2).
                unsafe { copy_short(start, buffer.as_mut_ptr(), len) };
                reader.release(ring, record);
                return Some(Taken::Copied(Copied::EagerByReference {
                    eager: EagerHeader::parse(words),
                    len,
                }));
            }
            let held =
                EagerRecord { record, start, len: u32::try_from(len - EagerHeader::LEN).ok()? };
            return Some(Taken::Eager { eager: EagerHeader::parse(words), held });
        }
        // SAFETY: `len` bytes within the ring, as just checked, and within the buffer, which is our
        // own (rules 1 and 2).
        unsafe { copy_short(source, buffer.as_mut_ptr(), len) };
        reader.release(ring, record);
        let head = usize::from(note & NOTE_LEN);
        let (by_reference, addressed) = (note & NOTE_BY_REFERENCE != 0, note & NOTE_ADDRESSED != 0);
        Some(Taken::Copied(Copied::Packet { head, len, by_reference, addressed }))
    }

    /// An eager header that was taken is done with.
    #[inline]
    pub(crate) fn release(&mut self, held: EagerRecord) {
        self.reader.release(&self.shm_link.incoming, held.record);
    }
}
