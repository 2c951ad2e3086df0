//! Rings: shared memory between the two ends of a connection, one ring of bytes each way.
//!
//! The connection itself stays the kernel's. Its bytes travel here from a position on that the
//! sender chooses and publishes ([`Producer::switched_at`]): so many bytes have gone through the
//! kernel, and no more will. A byte in the kernel's stream behind that position is a bell, sent to
//! an end that has said it sleeps.
//!
//! Cursors count bytes from the start and never go back. A ring that is found empty well away from
//! its start may begin again there ([`Producer::skip_from`]), so that conversations stay in the
//! same few cache lines, and touch no more memory than they need. A ring that carries a
//! stream, or stays full, *grows*, once: from a position on that the sender publishes ([`Producer::grown_at`])
//! its bytes lie in a larger one behind it.
//!
//! # Safety
//!
//! 1. A segment is mapped for [`Sizes::file`] bytes until it is dropped. Its header
//!    is made of atomics, for which every bit pattern is legal, so a shared reference to it is
//!    sound whatever the other process writes there.
//! 2. Bytes of a ring are never seen through references. They are copied, between bounds that are
//!    computed from this end's own cursor and masked by this end's own idea of the sizes; what the
//!    other end claims is checked first ([`Broken`]), or cannot lead out of the ring
//!    ([`Ring::place`]).
//!
//! Positions that make no sense count as something to look at: a look finds the ring broken, and no
//! waiter waits for a word that means nothing.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use adverb_shm::copying::copy_short;
use adverb_shm::file::SharedFile;
use adverb_shm::{alive, line};
use adverb_switchover::{
    Broken, Connection, Consumer, Direction, End, Leaver, NEVER, Page, Producer, Sender,
};
use adverb_sys::memory;

use crate::base::address;
use crate::base::config::Sizes;
use crate::base::copy;
use crate::base::iovec::IoCursor;
use crate::base::shelter::Mapping;
use crate::base::thread::Here;
use crate::socket::state::{Attached, Socket};
use crate::transport::rendezvous;

/// What the header says first.
pub(crate) const MAGIC: u64 = 0x000a_6264_615f_6b73;
/// The start of a segment.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    /// What rings have at first, and what each may grow to besides, or 0.
    first_bytes: AtomicU64,
    large_bytes: AtomicU64,
    /// The process that made it.
    pub(crate) maker: AtomicU32,
    /// The kernel's number for the maker's socket.
    pub(crate) cookie: AtomicU64,
    /// The name under which it was made, and the one that a path proof has given it elsewhere.
    pub(crate) name: [AtomicU64; 2],
    pub(crate) alias: [AtomicU64; 2],
    /// A number that only readers of this know; 0 if the other end finds it by addresses. See
    /// `path_proof.rs`.
    pub(crate) secret: AtomicU64,
    /// The addresses of both ends as IPv6 has them, and their ports, the one that connected first.
    pub(crate) addresses: [[AtomicU64; 2]; 2],
    pub(crate) ports: [AtomicU32; 2],
    /// The processes at both ends, the one that connected first.
    owners: [Owner; 2],
    /// The process namespace of all numbers of processes in here.
    processes: AtomicU64,
    /// The words of both ends' protocol.
    pub(crate) page: Page,
}

/// The process at one end.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Owner {
    pub(crate) process: AtomicU32,
    /// Others may have it as well: children, or a program that it was passed to.
    pub(crate) is_shared: AtomicU32,
}

/// Why nothing has been read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// The other end has written nonsense.
    Broken,
    /// The program's buffer is none.
    Fault,
    /// There is no more memory for the ring.
    NoMemory,
}

impl From<Broken> for Trouble {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl Sizes {
    /// Length of a file with such rings.
    pub(crate) const fn file(self) -> usize {
        HEADER_BYTES + 2 * (self.first + self.large)
    }

    /// What a header says of a file of that length, if it may be so.
    fn of(header: &Header, len: usize) -> Option<Self> {
        let size = |word: &AtomicU64| usize::try_from(word.load(Ordering::Relaxed)).ok();
        let (first, large) = (size(&header.first_bytes)?, size(&header.large_bytes)?);
        let is_legal = first < len
            && large < len
            && first.is_power_of_two()
            && (large == 0 || large.is_power_of_two());
        let sizes = Self { first, large };
        (is_legal && sizes.file() == len).then_some(sizes)
    }
}

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    sizes: Sizes,
    /// Where in each of the rings this process is going to write next, most likely.
    next: [AtomicUsize; 2],
}

// SAFETY: nothing else has this place.
unsafe impl Attached for Segment {
    const PLACE: usize = 0;
}

impl Socket {
    /// The rings, if this process has mapped them. The socket must be in use by the caller.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&Segment> {
        self.attached()
    }
}

/// Bytes in front of the rings.
const HEADER_BYTES: usize = 4096;
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// Where an empty ring begins again rather than go on, in bytes from its start.
const RESTART_BYTES: u64 = 8192;

/// Where the sender's and the reader's cursors of both rings lie in a file of rings, the ring of the end
/// that connected first, for readers of statistics.
pub(crate) fn cursors() -> [usize; 4] {
    let first = offset_of!(Header, page);
    let head = offset_of!(Direction, producer) + offset_of!(Producer, head);
    let tail = offset_of!(Direction, consumer) + offset_of!(Consumer, tail);
    let second = first + size_of::<Direction>();
    [first + head, first + tail, second + head, second + tail]
}

fn store(words: &[AtomicU64; 2], values: [u64; 2]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
}

fn load([a, b]: &[AtomicU64; 2]) -> [u64; 2] {
    [a.load(Ordering::Acquire), b.load(Ordering::Acquire)]
}

impl Segment {
    /// Takes over a mapping of a file of [`Sizes::file`] bytes that has just been made, and puts memory
    /// aside for what every connection needs of it; `None` if there is not enough.
    pub(crate) fn make(file: &SharedFile, sizes: Sizes) -> Option<Self> {
        debug_assert!(sizes.first.is_power_of_two());
        let len = sizes.file();
        file.set_len(len).ok()?;
        let least = if can_populate() { LEAST_BYTES.min(sizes.first) } else { sizes.first };
        file.reserve(0, HEADER_BYTES + least).ok()?;
        file.reserve(HEADER_BYTES + sizes.first + sizes.large, least).ok()?;
        let segment = Self { mapping: Mapping::new(file, len)?, sizes, next: Default::default() };
        for direction in segment.header().page.directions() {
            direction.sender.reserved.store(word(least), Ordering::Relaxed);
        }
        Some(segment)
    }

    /// Takes over a mapping of a file that another process has made; it is gone if its header does not say that it is a
    /// segment of this length.
    pub(crate) fn open(mapping: Mapping) -> Option<Self> {
        if mapping.len() < HEADER_BYTES {
            return None;
        }
        // SAFETY: mapped, aligned to a page, made of atomics, and as long as that (rule 1).
        let header = unsafe { mapping.base().cast::<Header>().as_ref() };
        let is_segment = header.magic.load(Ordering::Acquire) == MAGIC;
        let sizes = is_segment.then(|| Sizes::of(header, mapping.len())).flatten()?;
        Some(Self { mapping, sizes, next: Default::default() })
    }

    /// What a ring has at first.
    pub(crate) fn first_bytes(&self) -> usize {
        self.sizes.first
    }

    /// Fills in the header of a segment that has not been published yet.
    pub(crate) fn prepare(&self, cookie: u64, name: [u64; 2]) {
        let header = self.header();
        store(&header.name, name);
        let Sizes { first, large } = self.sizes;
        header.first_bytes.store(first.try_into().unwrap_or(0), Ordering::Relaxed);
        header.large_bytes.store(large.try_into().unwrap_or(0), Ordering::Relaxed);
        header.maker.store(alive::me(), Ordering::Relaxed);
        header.processes.store(alive::namespace(), Ordering::Relaxed);
        header.cookie.store(cookie, Ordering::Relaxed);
        self.own(End::Client);
        header.page.prepare();
        header.magic.store(MAGIC, Ordering::Release);
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and made of atomics (rule 1).
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    /// Says which connection it is for, to ends that do not find it by its name, before any process can know
    /// it.
    pub(crate) fn address(&self, secret: u64, client: SocketAddr, server: SocketAddr) {
        let Header { addresses, ports, .. } = self.header();
        for ((words, port), end) in addresses.iter().zip(ports).zip([client, server]) {
            store(words, address::ip_words(end.ip()));
            port.store(end.port().into(), Ordering::Relaxed);
        }
        self.header().secret.store(secret, Ordering::Release);
    }

    /// The addresses that it is for, the one that connected first.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let Header { addresses: [a, b], ports: [p, q], .. } = self.header();
        let end = |words, port: &AtomicU32| {
            let [high, low] = load(words);
            let bits = u128::from(high) << 64 | u128::from(low);
            let ip = IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical();
            SocketAddr::new(ip, u16::try_from(port.load(Ordering::Relaxed)).unwrap_or(0))
        };
        (end(a, p), end(b, q))
    }

    /// The name under which it was made.
    pub(crate) fn name(&self) -> [u64; 2] {
        load(&self.header().name)
    }

    /// The name that it has elsewhere; zeros if it has none.
    pub(crate) fn alias(&self) -> [u64; 2] {
        load(&self.header().alias)
    }

    pub(crate) fn set_alias(&self, alias: [u64; 2]) {
        store(&self.header().alias, alias);
    }

    /// Which end goes back to the kernel.
    #[inline]
    pub(crate) fn leaver(&self) -> Result<Leaver, Broken> {
        if self.is_spoilt() {
            return Err(Broken);
        }
        self.page().leaver()
    }

    /// Whether a page of it has been missing.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.mapping.is_spoilt().load(Ordering::Relaxed)
    }

    /// What both ends share besides bytes.
    #[inline]
    pub(crate) fn page(&self) -> &Page {
        &self.header().page
    }

    /// The connection, as this end has it.
    #[inline]
    pub(crate) fn connection<'a>(&'a self, socket: &'a Socket) -> Connection<'a> {
        Connection { page: self.page(), waiters: &socket.waiters, me: socket.end() }
    }

    /// Whether either end goes back to the kernel.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.page().is_leaving()
    }

    /// The process at an end.
    pub(crate) fn owner(&self, end: End) -> &Owner {
        let [client, server] = &self.header().owners;
        match end {
            End::Client => client,
            End::Server => server,
        }
    }

    /// Whether the process at the other end has died and no other has inherited its end. The kernel
    /// would say so with a FIN; but that may be stuck behind bytes that are not read.
    pub(crate) fn is_abandoned(&self, end: End) -> bool {
        let Owner { process, is_shared } = self.owner(end.other());
        let process = process.load(Ordering::Acquire);
        process != 0 && is_shared.load(Ordering::Acquire) == 0 && alive::has_ended(process)
    }

    /// Whether the process at either end lives.
    pub(crate) fn has_living(&self) -> bool {
        [End::Client, End::Server].iter().any(|end| {
            let process = self.owner(*end).process.load(Ordering::Acquire);
            process != 0 && !alive::has_ended(process)
        })
    }

    /// Whether this process can say which of the processes in here live.
    pub(crate) fn is_of_known(&self) -> bool {
        alive::is_known(self.header().processes.load(Ordering::Relaxed))
    }

    /// This process, and no other, has this end.
    pub(crate) fn own(&self, end: End) {
        self.owner(end).process.store(alive::me(), Ordering::Release);
    }

    /// Others may have this end from now on.
    pub(crate) fn share(&self, end: End) {
        self.owner(end).is_shared.store(1, Ordering::Release);
    }

    /// The ring that this end sends on.
    #[inline]
    pub(crate) fn outgoing(&self, end: End) -> Ring<'_> {
        self.ring(end == End::Server)
    }

    /// The ring that this end receives from.
    #[inline]
    pub(crate) fn incoming(&self, end: End) -> Ring<'_> {
        self.ring(end == End::Client)
    }

    #[inline]
    fn ring(&self, second: bool) -> Ring<'_> {
        let [a, b] = self.page().directions();
        let Sizes { first, large } = self.sizes;
        let at = HEADER_BYTES + if second { first + large } else { 0 };
        let bytes = self.mapping.base().as_ptr().wrapping_add(at);
        let ([of_a, of_b], sizes) = (&self.next, self.sizes);
        let is_spoilt = self.mapping.is_spoilt();
        match second {
            false => Ring { direction: a, bytes, sizes, next: of_a, is_spoilt },
            true => Ring { direction: b, bytes, sizes, next: of_b, is_spoilt },
        }
    }
}

/// One of the two rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring<'a> {
    pub(crate) direction: &'a Direction,
    bytes: *mut u8,
    sizes: Sizes,
    next: &'a AtomicUsize,
    /// A page has been missing.
    is_spoilt: &'a AtomicBool,
}

/// Whether the kernel makes pages ahead of their use (Linux 5.14). If not, rings have all of their memory from
/// the start, and do not grow.
fn can_populate() -> bool {
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let answer = memory::fault_in(std::ptr::null_mut(), 0, true);
        KNOWN.store(if answer.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed) == 1
}

fn word(len: usize) -> u64 {
    len.try_into().unwrap_or(0)
}

impl Ring<'_> {
    /// From where on bytes lie in the larger ring, for the reader.
    #[inline]
    fn grown_at(&self) -> u64 {
        self.growth(&self.direction.producer.grown_at)
    }

    /// The same for the sender.
    #[inline]
    fn grows_at(&self) -> u64 {
        self.growth(&self.direction.sender.grown_at)
    }

    #[inline]
    fn growth(&self, grown_at: &AtomicU64) -> u64 {
        if self.sizes.large == 0 { NEVER } else { grown_at.load(Ordering::Acquire) }
    }

    /// Where the byte of that number lies, and how many lie behind one another from there on: whatever
    /// the numbers are, that is within the ring.
    #[inline]
    fn place(&self, cursor: u64, grown_at: u64) -> (usize, usize) {
        let Sizes { first, large } = self.sizes;
        let place = |at: u64, len: usize| usize::try_from(at & (word(len) - 1)).unwrap_or(0);
        match cursor.checked_sub(grown_at).filter(|_| large > 0) {
            Some(past) => {
                let offset = place(past, large);
                (first + offset, large - offset)
            }
            None => {
                let offset = place(cursor, first);
                let left = usize::try_from(grown_at.saturating_sub(cursor)).unwrap_or(usize::MAX);
                (offset, (first - offset).min(left))
            }
        }
    }

    /// How much room there is between those cursors, and how much there would be without them.
    #[inline]
    fn room(&self, head: u64, tail: u64, grown_at: u64) -> (u64, u64) {
        let (len, from) = if head < grown_at {
            (word(self.sizes.first), tail)
        } else {
            // What lies in the first ring takes no room in the other.
            (word(self.sizes.large), tail.max(grown_at))
        };
        // A reader that is where it cannot be has as much as there is: the next send finds that out.
        let ahead = head.wrapping_sub(from);
        let room = if self.is_possible(ahead) { len.saturating_sub(ahead) } else { len };
        (room, len)
    }

    /// Whether a sender may be so far ahead of its reader: by all there is, and by what it has skipped while the reader's program
    /// had some of what lies before.
    #[inline]
    fn is_possible(&self, ahead: u64) -> bool {
        ahead <= 2 * word(self.sizes.first + self.sizes.large)
    }

    /// What waits is no more than a sender may be ahead: else the other end has written nonsense.
    pub(crate) fn waiting_is_possible(&self) -> bool {
        self.is_possible(self.direction.waiting())
    }

    /// How far the sender has got: changes with every byte.
    pub(crate) fn head(&self) -> u64 {
        self.direction.producer.head.load(Ordering::Acquire)
    }

    /// Up to where the sender may write again: the reader's cursor, less what its program still has. In this
    /// order: the reader says first that it lends more, and then that it has got further.
    #[inline]
    fn free_to(&self, head: u64) -> u64 {
        let Consumer { tail, held, .. } = &self.direction.consumer;
        let tail = tail.load(Ordering::Acquire);
        let oldest = tail.wrapping_sub(held.load(Ordering::Acquire));
        // What was skipped takes no room, though the reader has not looked there since.
        self.direction.goes_on(oldest, head)
    }

    /// The reader has got from one position to another. If its program has some of what lies behind, it has it
    /// still.
    #[inline]
    fn advance(&self, from: u64, to: u64) {
        let Consumer { tail, held, .. } = &self.direction.consumer;
        let before = held.load(Ordering::Relaxed);
        if before != 0 {
            held.store(before.wrapping_add(to.wrapping_sub(from)), Ordering::Release);
        }
        tail.store(to, Ordering::Release);
    }

    /// Lends bytes where they lie, at most `most`, in as many pieces as there is room for in `parts`. Returns how
    /// many pieces and bytes, and the position of the first. The lock for receiving is held. `shows`: they stay,
    /// and are not lent.
    ///
    /// The sender can change what is lent, as it can change everything in the ring.
    pub(crate) fn lend(
        &self,
        most: usize,
        parts: &mut [libc::iovec],
        shows: bool,
    ) -> Result<(usize, usize, u64), Broken> {
        let (start, available) = self.readable()?;
        let grown_at = self.grown_at();
        let (mut count, mut done, mut at) = (0, 0, start);
        for part in parts {
            let (offset, room) = self.place(at, grown_at);
            let run = available.min(most).saturating_sub(done).min(room);
            if run == 0 {
                break;
            }
            // In bounds: `offset + room` is at most the ring's length (rule 2).
            let base = self.bytes.wrapping_add(offset).cast();
            *part = libc::iovec { iov_base: base, iov_len: run };
            (count, done, at) = (count + 1, done + run, at.wrapping_add(word(run)));
        }
        if done > 0 && !shows {
            self.note_lends(true);
            let Consumer { tail, held, .. } = &self.direction.consumer;
            held.fetch_add(word(done), Ordering::AcqRel);
            tail.store(at, Ordering::Release);
        }
        Ok((count, done, start))
    }

    /// The program has given back what it had before `oldest`, or everything. The lock for receiving is held.
    pub(crate) fn take_back(&self, oldest: Option<u64>) {
        let Consumer { tail, held, .. } = &self.direction.consumer;
        let tail = tail.load(Ordering::Relaxed);
        held.store(oldest.map_or(0, |oldest| tail.wrapping_sub(oldest)), Ordering::Release);
    }

    /// Whether there is room for a byte, for the sender.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        let head = self.direction.sender.head.load(Ordering::Acquire);
        let tail = self.free_to(head);
        self.room(head, tail, self.grows_at()).0 > 0
    }

    /// Whether there is so much room that it is worth waking a writer for: half of the ring. For the sender.
    #[inline]
    pub(crate) fn has_much_room(&self) -> bool {
        let head = self.direction.sender.head.load(Ordering::Acquire);
        self.is_roomy(head, self.grows_at())
    }

    /// The same for the reader.
    #[inline]
    pub(crate) fn leaves_much_room(&self) -> bool {
        let head = self.direction.producer.head.load(Ordering::Acquire);
        self.is_roomy(head, self.grown_at())
    }

    #[inline]
    fn is_roomy(&self, head: u64, grown_at: u64) -> bool {
        let tail = self.free_to(head);
        let (room, len) = self.room(head, tail, grown_at);
        room >= len / 2
    }

    /// Where the reader is, and how many bytes it can read. The lock for receiving is held.
    pub(crate) fn readable(&self) -> Result<(u64, usize), Broken> {
        let (tail, start, available) = self.look()?;
        if start != tail {
            self.advance(tail, start);
        }
        Ok((start, available))
    }

    /// How many bytes there are to read, for threads that do not read them.
    pub(crate) fn available(&self) -> usize {
        self.look().map_or(0, |(_, _, available)| available)
    }

    /// Where the reader is, where it goes on, as the sender may have begun again elsewhere, and how many bytes lie there.
    fn look(&self) -> Result<(u64, u64, usize), Broken> {
        let Direction { producer, consumer, .. } = self.direction;
        let head = producer.head.load(Ordering::Acquire);
        let tail = consumer.tail.load(Ordering::Relaxed);
        if head == tail {
            // Nothing is there, or no header.
            return if self.is_spoilt.load(Ordering::Relaxed) {
                Err(Broken)
            } else {
                Ok((tail, tail, 0))
            };
        }
        let start = self.direction.goes_on(tail, head);
        let available = head.wrapping_sub(start);
        match usize::try_from(available) {
            Ok(available) if available <= self.sizes.first + self.sizes.large => {
                Ok((tail, start, available))
            }
            Ok(_) | Err(_) => Err(Broken),
        }
    }

    /// Copies bytes out for as long as there are some and there is room for them, and returns how
    /// many. They stay in the ring if `peek`, and if a buffer is none.
    pub(crate) fn read(&self, into: &mut IoCursor<'_>, peek: bool) -> Result<usize, Trouble> {
        let start = into.clone();
        let (mut tail, mut available) = self.readable()?;
        let begin = tail;
        // After the sender's cursor: what has grown by then is known.
        let grown_at = self.grown_at();
        let mut done = 0;
        while available > 0 {
            let (offset, most) = self.place(tail, grown_at);
            let run = available.min(most);
            // In bounds: `offset + most` is at most the ring's length (rule 2).
            let Ok(copied) = into.fill(self.bytes.wrapping_add(offset), run) else {
                *into = start;
                return Err(self.trouble());
            };
            if copied == 0 {
                break;
            }
            done += copied;
            available -= copied;
            tail = tail.wrapping_add(copied.try_into().unwrap_or(0));
        }
        if self.is_spoilt.load(Ordering::Relaxed) {
            return Err(Trouble::Broken);
        }
        if done > 0 && !peek {
            self.note_lends(false);
            self.advance(begin, tail);
        }
        Ok(done)
    }

    /// Whether the reader has been lent what it has received last, or has copied it.
    #[inline]
    fn note_lends(&self, lends: bool) {
        let (word, lends) = (&self.direction.consumer.sleep.lends, u32::from(lends));
        // The sender has a copy of the line: it is written when something changes.
        if word.load(Ordering::Relaxed) != lends {
            word.store(lends, Ordering::Relaxed);
        }
    }

    /// For the sender: whether the reader leaves the bytes where they are, and has given back most of them. It does not
    /// fetch them into its cache, so that a ring that fits into the sender's is faster than a larger one.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        let Consumer { held, sleep, .. } = &self.direction.consumer;
        sleep.lends.load(Ordering::Relaxed) != 0
            && held.load(Ordering::Relaxed) < word(self.sizes.first) / 2
    }

    /// As [`Ring::read`], if all there is is a few bytes, at most `most`, that lie behind one another. They are
    /// copied to memory of ours; `None`: that is not the case, and nothing has happened.
    ///
    /// # Safety
    ///
    /// `into` has room for `most` bytes, which are nothing else's.
    #[inline]
    pub(crate) unsafe fn read_short(&self, into: *mut u8, most: usize) -> Option<usize> {
        let (tail, available) = self.readable().ok()?;
        let (offset, together) = self.place(tail, self.grown_at());
        if available == 0 || available > most.min(together) {
            return None;
        }
        // SAFETY: within the ring (rule 2), whose missing pages are replaced; the caller's promise.
        unsafe { copy_short(self.bytes.wrapping_add(offset), into, available) };
        if self.is_spoilt.load(Ordering::Relaxed) {
            return None;
        }
        self.advance(tail, tail.wrapping_add(word(available)));
        Some(available)
    }

    /// As [`Ring::read`], to one buffer of the program's, if the bytes lie behind one another; `None`: they do not, there are
    /// none, or something is wrong, and nothing has happened.
    #[inline]
    pub(crate) fn read_plain(&self, here: Here, into: *mut u8, most: usize) -> Option<usize> {
        let (tail, available) = self.readable().ok()?;
        let (offset, together) = self.place(tail, self.grown_at());
        let count = available.min(most);
        if count == 0 || count > together {
            return None;
        }
        let from = self.bytes.wrapping_add(offset);
        // SAFETY: within the ring (rule 2); the program's promise for where it receives.
        let is_done = unsafe { copy::copy_by(here, into, from, count) };
        if !is_done || self.is_spoilt.load(Ordering::Relaxed) {
            return None;
        }
        self.note_lends(false);
        self.advance(tail, tail.wrapping_add(word(count)));
        Some(count)
    }

    /// Takes bytes out again, and hands them to `take`, which says of how many it has disposed, until
    /// it has disposed of none, or of more than there can be at once. Returns whether the ring is empty.
    pub(crate) fn forward(
        &self,
        mut take: impl FnMut(*const u8, usize) -> usize,
    ) -> Result<bool, Broken> {
        let mut left = self.sizes.first + self.sizes.large;
        loop {
            let (tail, available) = self.readable()?;
            if available == 0 {
                return Ok(true);
            }
            let (offset, most) = self.place(tail, self.grown_at());
            // In bounds: `offset` and the rest of the ring from there (rule 2).
            let run = available.min(most).min(left);
            let done = take(self.bytes.wrapping_add(offset), run).min(run);
            if done == 0 {
                return Ok(false);
            }
            left -= done;
            let tail = tail.wrapping_add(done.try_into().unwrap_or(0));
            self.direction.consumer.tail.store(tail, Ordering::Release);
        }
    }

    /// Throws away up to `len` bytes, and returns how many.
    pub(crate) fn discard(&self, len: usize) -> Result<usize, Broken> {
        let (tail, available) = self.readable()?;
        let done = available.min(len);
        self.advance(tail, tail.wrapping_add(word(done)));
        Ok(done)
    }

    /// Bytes are about to be copied in. Their lines are the reader's, which does not look there yet: they come
    /// while the rest is made ready.
    #[inline]
    pub(crate) fn prepare(&self) {
        line::prefetch_record_for_writing(
            self.bytes.wrapping_add(self.next.load(Ordering::Relaxed)),
        );
    }

    /// Where a sender goes on that finds the ring empty: `None`, where it is; else at the ring's start, past its end. A stream
    /// in a ring that has grown does not begin again: the reader's cache may still have the bytes at the start.
    #[inline]
    fn restart(&self, head: u64, grown_at: u64, is_stream: bool) -> Option<u64> {
        let Sizes { first, large } = self.sizes;
        let (origin, len) = if head < grown_at { (0, first) } else { (grown_at, large) };
        let (past, mask) = (head.wrapping_sub(origin), word(len).wrapping_sub(1));
        let restarts = past & mask >= RESTART_BYTES && !(is_stream && origin > 0);
        restarts.then(|| origin.wrapping_add(past | mask).wrapping_add(1))
    }

    /// Copies bytes in for as long as there are some and there is room for them, and returns how
    /// many; none if a buffer is none, or if the reader says to be where it cannot be.
    pub(crate) fn write(&self, from: &mut IoCursor<'_>, is_stream: bool) -> Result<usize, Trouble> {
        let begin = from.clone();
        let Direction { producer, sender, .. } = self.direction;
        let mut head = sender.head.load(Ordering::Relaxed);
        let mut tail = sender.tail_seen.load(Ordering::Relaxed);
        let grown_at = self.grows_at();
        let all = from.remaining();
        let wanted = word(all);
        let (room, _) = self.room(head, tail, grown_at);
        let restart = self.restart(head, grown_at, is_stream);
        let mut skips = None;
        if room < wanted || is_far(restart, head, tail) {
            tail = self.free_to(head);
            if !self.is_possible(head.wrapping_sub(tail)) {
                return Err(Trouble::Broken);
            }
            sender.tail_seen.store(tail, Ordering::Relaxed);
            if tail == head
                && let Some(start) = restart
            {
                skips = Some((head, start));
                (head, tail) = (start, start);
            }
        }
        let mut room = usize::try_from(self.room(head, tail, grown_at).0).unwrap_or(0);
        let mut done = 0;
        while room > 0 {
            let (offset, most) = self.place(head, grown_at);
            let left = all.saturating_sub(done);
            let run = self.reserved(offset, room.min(most).min(left));
            if run == 0 && left > 0 && done == 0 {
                return Err(Trouble::NoMemory);
            }
            // In bounds: `offset + most` is at most the ring's length (rule 2).
            let Ok(copied) = from.drain(self.bytes.wrapping_add(offset), run) else {
                *from = begin;
                return Err(self.trouble());
            };
            if copied == 0 {
                break;
            }
            done += copied;
            room -= copied;
            head = head.wrapping_add(copied.try_into().unwrap_or(0));
        }
        if self.is_spoilt.load(Ordering::Relaxed) {
            return Err(Trouble::Broken);
        }
        if done > 0 {
            if let Some((from, to)) = skips {
                producer.skip_from.store(from, Ordering::Relaxed);
                producer.skip_to.store(to, Ordering::Relaxed);
                sender.tail_seen.store(to, Ordering::Relaxed);
            }
            // In this order: a sender that is killed in between has sent it.
            sender.head.store(head, Ordering::Release);
            producer.head.store(head, Ordering::Release);
            self.next.store(self.place(head, grown_at).0, Ordering::Relaxed);
        }
        Ok(done)
    }

    /// As [`Ring::write`], of a few bytes that fit behind the last ones by what the sender knows without a look at the reader.
    /// False: they do not, or something is wrong, and nothing has happened.
    #[inline]
    pub(crate) fn write_short(&self, from: *const u8, len: usize, is_stream: bool) -> bool {
        let Direction { producer, sender, .. } = self.direction;
        let head = sender.head.load(Ordering::Relaxed);
        let tail = sender.tail_seen.load(Ordering::Relaxed);
        let grown_at = self.grows_at();
        let (room, _) = self.room(head, tail, grown_at);
        let restart = self.restart(head, grown_at, is_stream);
        let (offset, together) = self.place(head, grown_at);
        let (start, known) = self.memory_of(offset);
        let is_plain = room >= word(len)
            && !is_far(restart, head, tail)
            && self.is_possible(head.wrapping_sub(tail))
            && len <= together
            && word(offset - start + len) <= known.load(Ordering::Relaxed);
        // SAFETY: the program's promise for what is sent; within the ring (rule 2).
        let is_done = is_plain && unsafe { copy::copy(self.bytes.wrapping_add(offset), from, len) };
        if !is_done || self.is_spoilt.load(Ordering::Relaxed) {
            return false;
        }
        let head = head.wrapping_add(word(len));
        // In this order, as above.
        sender.head.store(head, Ordering::Release);
        producer.head.store(head, Ordering::Release);
        self.next.store(self.place(head, grown_at).0, Ordering::Relaxed);
        true
    }

    /// What it means that a copy has found no memory: a page of the ring, or of the program's buffer.
    #[cold]
    fn trouble(&self) -> Trouble {
        match self.is_spoilt.load(Ordering::Relaxed) {
            true => Trouble::Broken,
            false => Trouble::Fault,
        }
    }

    /// The offset at which the ring begins that this offset lies in, and the word for how many of its bytes have memory.
    #[inline]
    fn memory_of(&self, offset: usize) -> (usize, &AtomicU64) {
        let Sizes { first, .. } = self.sizes;
        let Sender { reserved, reserved_large, .. } = &self.direction.sender;
        if offset < first { (0, reserved) } else { (first, reserved_large) }
    }

    /// How many of `len` bytes from `offset` on have memory; more is put aside if it has to be.
    #[inline]
    fn reserved(&self, offset: usize, len: usize) -> usize {
        let (start, known) = self.memory_of(offset);
        let has = usize::try_from(known.load(Ordering::Relaxed)).unwrap_or(0);
        if offset - start + len <= has {
            return len;
        }
        let has = self.reserve(start, known, has, offset - start + len);
        has.saturating_sub(offset - start).min(len)
    }

    /// Puts memory aside for the ring that begins at `start`, of which `has` bytes have some: in steps, as
    /// most connections need little. Returns how many have some now.
    #[cold]
    fn reserve(&self, start: usize, known: &AtomicU64, has: usize, wanted: usize) -> usize {
        let Sizes { first, large } = self.sizes;
        let (all, step) = if start == 0 { (first, STEP_BYTES) } else { (large, LARGE_STEP_BYTES) };
        let next = wanted.next_multiple_of(step).min(all);
        if has >= next || !can_populate() || !rendezvous::has_room(STEP_SHARE) {
            return has.min(all);
        }
        // In bounds: from `has` to `next` is within the ring (rule 2).
        let at = self.bytes.wrapping_add(start + has);
        if memory::fault_in(at, next - has, true).is_err() {
            return has;
        }
        known.store(word(next), Ordering::Relaxed);
        next
    }

    /// So much more has gone through a ring that is wanted larger: has it grow when that is a good deal,
    /// if there is memory. Returns whether it has grown.
    pub(crate) fn want_larger(&self, bytes: u64, has_memory: impl FnOnce() -> bool) -> bool {
        let Direction { producer, sender, .. } = self.direction;
        if self.sizes.large == 0
            || !can_populate()
            || sender.grown_at.load(Ordering::Relaxed) != NEVER
        {
            return false;
        }
        let before = sender.wanted.load(Ordering::Relaxed);
        let wanted = before.saturating_add(bytes);
        sender.wanted.store(wanted, Ordering::Relaxed);
        let due = WANTED_RINGS * word(self.sizes.first);
        if before / due == wanted / due || !has_memory() {
            return false;
        }
        // The reader learns of it with the first byte that lies there.
        let head = sender.head.load(Ordering::Relaxed);
        producer.grown_at.store(head, Ordering::Release);
        sender.grown_at.store(head, Ordering::Release);
        true
    }

    /// How far the reader has got since this was last asked.
    pub(crate) fn progress(&self) -> u64 {
        let Direction { sender, consumer, .. } = self.direction;
        let tail = consumer.tail.load(Ordering::Relaxed);
        tail.wrapping_sub(sender.full_at.swap(tail, Ordering::Relaxed))
    }
}

/// Whether a sender that may begin again looks at the reader's cursor first: once in so many bytes, as the cursor is in the
/// cache of the reader's processor. `tail` is where the sender has seen it last.
#[inline]
fn is_far(restart: Option<u64>, head: u64, tail: u64) -> bool {
    restart.is_some() && head.wrapping_sub(tail) >= RESTART_BYTES
}

/// Memory of a ring that is put aside from the start, and in steps later on.
const LEAST_BYTES: usize = 8192;
const STEP_BYTES: usize = 1 << 16;
const LARGE_STEP_BYTES: usize = 1 << 18;
/// A step is taken while more than this part of what the file system may hold is free.
const STEP_SHARE: u64 = 8;

/// A ring grows when it has been wanted larger for so many times its bytes, and is asked again whether
/// there is memory after as many more.
const WANTED_RINGS: u64 = 16;
