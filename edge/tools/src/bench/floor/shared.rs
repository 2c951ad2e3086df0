//! Pages that both processes have mapped, and what can be done with them and nothing in between.
//!
//! A ping-pong is a cache line that goes back and forth, with the message copied into the pages before
//! it where it does not fit the line. A stream of bytes is `memcpy` from one half of the pages to the
//! other. A stream of messages is a ring of slots as long as a line, with one that writes and one that
//! reads. The server makes the pages and passes them on over a UNIX socket.
//!
//! # Safety
//!
//! 1. [`Pages`] is a mapping of a file of fixed length: a line for each word, then two
//!    halves. [`Pages::half`] is the only way to an address, and checks what is going to be touched.
//! 2. Bytes of the halves are copied by pointer, never seen through a reference: the other process may
//!    change them at any time.

use std::io::{self, ErrorKind};
use std::iter;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_sys::memory::{Mapping, file_len, is_sealed};
use adverb_sys::poll::readable;
use adverb_sys::unix::{Listener, Stream};

use crate::bench::control::{Answer, Control, Order, Received, Watch};
use crate::bench::measure::stride;
use crate::bench::pace::Limit;
use crate::bench::stats::{Samples, per_second};
use crate::failure::{Doing, Failure};

/// Pages that both processes have mapped.
#[derive(Debug)]
pub(crate) struct Pages {
    mapping: Mapping,
    half_bytes: usize,
}

impl Pages {
    /// The client's side: asks the server for pages with two halves of this length, and touches all of
    /// them, so that none is new while we measure.
    pub(crate) fn open(half_bytes: usize, control: &mut Control) -> Result<Self, Failure> {
        let port = control.start(&Order::Share { half_bytes })?;
        let stream = Stream::connect(name(port).as_bytes()).doing(SHARING)?;
        let mut files = Vec::new();
        if !readable(&stream, iter::empty(), Some(PATIENCE)).doing(SHARING)? {
            return Err(Failure::failed("the server has passed on no pages"));
        }
        stream.recv(&mut [0; 16], &mut files).doing(SHARING)?;
        let file = files.pop().ok_or_else(|| Failure::failed("there are no pages to share"))?;
        let bytes = whole(half_bytes);
        if !is_sealed(&file) || file_len(&file).doing(SHARING)? < bytes {
            return Err(Failure::failed("these are not the pages that were asked for"));
        }
        let pages = Self { mapping: Mapping::shared(&file, bytes).doing(SHARING)?, half_bytes };
        // Not every kernel has huge pages for this; without them the floor is a little lower.
        let _ = pages.mapping.prefer_huge_pages();
        for which in [Half::Client, Half::Server] {
            let start = pages.half(which, 0, half_bytes)?;
            // SAFETY: the whole half lies within the mapping (rule 1).
            unsafe { start.write_bytes(0x5a, half_bytes) };
        }
        Ok(pages)
    }

    /// The server's side: answers a `Share` order.
    pub(crate) fn offer(half_bytes: usize, control: &mut Control) -> Result<Self, Failure> {
        if !(RING_BYTES..=HALF_BYTES_MAX).contains(&half_bytes) {
            return Err(Failure::Failed(format!("cannot share {half_bytes} bytes")));
        }
        let (mapping, file) = Mapping::memfd("adverb-bench", whole(half_bytes)).doing(SHARING)?;
        let _ = mapping.prefer_huge_pages(); // As the client's.
        let (listener, port) = by_free_name(Listener::bind).doing(SHARING)?;
        control.send(&Answer::Ready { port })?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !readable(&listener, iter::empty(), Some(PATIENCE)).doing(SHARING)? {
                break;
            }
            let client = listener.accept().doing(SHARING)?;
            if is_ours(&client) {
                client.send(b"pages", &[file.as_fd()]).doing(SHARING)?;
                return Ok(Self { mapping, half_bytes });
            }
        }
        Err(Failure::failed("no process came for the pages"))
    }

    /// A word that both sides know.
    fn word(&self, word: Word) -> Result<&AtomicU64, Failure> {
        let at = match word {
            Word::Client => 0,
            Word::Server => LINES,
            Word::Head => 2 * LINES,
            Word::Tail => 3 * LINES,
        };
        self.mapping.atomic_u64(at).ok_or_else(out_of_bounds)
    }

    /// Where `bytes` bytes at `offset` of a half begin.
    fn half(&self, which: Half, offset: usize, bytes: usize) -> Result<*mut u8, Failure> {
        let end = offset.checked_add(bytes).ok_or_else(out_of_bounds)?;
        if end > self.half_bytes || whole(self.half_bytes) > self.mapping.len() {
            return Err(out_of_bounds());
        }
        let start = match which {
            Half::Client => HEAD_BYTES,
            Half::Server => HEAD_BYTES + self.half_bytes,
        };
        Ok(self.mapping.as_ptr().as_ptr().wrapping_add(start + offset))
    }
}

/// A word with a cache line of its own.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// How many messages the client has sent.
    Client,
    /// How many the server has.
    Server,
    /// Slots written, at the ring's writer.
    Head,
    /// Slots read.
    Tail,
}

/// One half of the pages.
#[derive(Clone, Copy, Debug)]
enum Half {
    /// Where the client's messages go, and where copies come from.
    Client,
    /// Where the server's messages go, and copies.
    Server,
}

/// The passive side of a ping-pong: answers until the client says stop.
pub(super) fn answer(
    bytes: usize,
    pages: &Pages,
    control: &mut Control,
) -> Result<Received, Failure> {
    let (theirs, own) = (pages.word(Word::Client)?, pages.word(Word::Server)?);
    theirs.store(0, Ordering::Relaxed);
    own.store(0, Ordering::Relaxed);
    let message = Message::new(bytes, Half::Server, pages)?;
    control.send(&Answer::Ready { port: 0 })?;
    let mut watch = Watch::new(control);
    let mut expected = 1;
    loop {
        if theirs.load(Ordering::Acquire) == expected {
            message.send(own, expected);
            expected += 1;
            watch.busy();
        } else if watch.stop_asked()? {
            return Ok(Received::default());
        }
    }
}

/// The active side of a ping-pong.
pub(super) fn ask(
    bytes: usize,
    pages: &Pages,
    control: &mut Control,
    limit: Limit,
) -> Result<Samples, Failure> {
    let message = Message::new(bytes, Half::Client, pages)?;
    let (own, theirs) = (pages.word(Word::Client)?, pages.word(Word::Server)?);
    let mut count = 0;
    limit.time_turns(&mut Watch::new(control), |watch| {
        count += 1;
        message.send(own, count);
        while theirs.load(Ordering::Acquire) != count {
            watch.peer_lives()?;
        }
        Ok(())
    })
}

/// A message of a ping-pong, and its place in the pages; one that fits a cache line has none but the
/// word's.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    place: *mut u8,
}

impl Message {
    fn new(bytes: usize, half: Half, pages: &Pages) -> Result<Self, Failure> {
        let bytes = if bytes <= SLOT_BYTES { 0 } else { bytes };
        let place = pages.half(half, 0, bytes)?; // Before memory is taken for what is too long.
        Ok(Self { bytes: vec![0x5a; bytes], place })
    }

    #[inline]
    fn send(&self, word: &AtomicU64, count: u64) {
        // SAFETY: the place is as long as the bytes (rule 1); there is no reference to it (rule 2).
        unsafe { self.place.copy_from_nonoverlapping(self.bytes.as_ptr(), self.bytes.len()) };
        word.store(count, Ordering::Release);
    }
}

/// The passive side of copying: leaves the machine to the client.
pub(super) fn rest(control: &mut Control) -> Result<Received, Failure> {
    control.send(&Answer::Ready { port: 0 })?;
    Watch::new(control).sleep_until_stop()?;
    Ok(Received::default())
}

/// Copies from `places` places in turn, as a stream of messages does. Returns bytes a second.
pub(super) fn copy(bytes: usize, places: u32, pages: &Pages, limit: Limit) -> Result<u64, Failure> {
    let places = usize::try_from(places).doing(COPYING)?;
    pages.half(Half::Client, 0, bytes)?; // Before it is rounded up, which may not fit a number.
    let all = places.checked_mul(stride(bytes)).ok_or_else(out_of_bounds)?;
    let source = pages.half(Half::Client, 0, all)?;
    let target = pages.half(Half::Server, 0, all)?;
    let mut copied = 0;
    let mut elapsed = Duration::ZERO;
    for limit in [limit.warm_up(), limit] {
        let began = Instant::now();
        let mut pace = limit.start();
        let mut place = 0;
        copied = 0;
        loop {
            let batch = (COPY_BATCH_BYTES / bytes).max(1);
            for _ in 0..batch {
                let offset = place * stride(bytes);
                let source = std::hint::black_box(source.wrapping_add(offset).cast_const());
                // SAFETY: both lie in halves that are as long as all places (rule 1), which do not
                // overlap; there are no references to them (rule 2).
                unsafe { target.wrapping_add(offset).copy_from_nonoverlapping(source, bytes) };
                place = if place + 1 < places { place + 1 } else { 0 };
            }
            let batch = u64::try_from(batch).doing(COPYING)?;
            copied += batch;
            let now = Instant::now();
            if !pace.go_on(batch, now) {
                elapsed = now - began;
                break;
            }
        }
    }
    Ok(per_second(copied * u64::try_from(bytes).doing(COPYING)?, elapsed))
}

/// The reader of the ring, until the client says stop.
pub(super) fn take(pages: &Pages, control: &mut Control) -> Result<Received, Failure> {
    let (head, tail) = (pages.word(Word::Head)?, pages.word(Word::Tail)?);
    head.store(0, Ordering::Relaxed);
    tail.store(0, Ordering::Relaxed);
    let slots = pages.half(Half::Client, 0, RING_BYTES)?;
    control.send(&Answer::Ready { port: 0 })?;
    let mut watch = Watch::new(control);
    let mut line = [0_u8; SLOT_BYTES];
    let mut taken = 0;
    loop {
        let written = head.load(Ordering::Acquire);
        if written == taken {
            if watch.stop_asked()? {
                return Ok(Received::default());
            }
            continue;
        }
        while taken != written {
            let slot = slots.wrapping_add(slot_offset(taken)).cast_const();
            // SAFETY: the slot lies within the ring (rule 1); there is no reference to it (rule 2).
            unsafe { line.as_mut_ptr().copy_from_nonoverlapping(slot, SLOT_BYTES) };
            std::hint::black_box(&line);
            taken = taken.wrapping_add(1);
        }
        tail.store(taken, Ordering::Release);
        watch.busy();
    }
}

/// The writer of the ring, which shows the reader `list` slots at a time. Returns slots a second.
pub(super) fn put(
    list: u32,
    pages: &Pages,
    control: &mut Control,
    limit: Limit,
) -> Result<u64, Failure> {
    let (head, tail) = (pages.word(Word::Head)?, pages.word(Word::Tail)?);
    let slots = pages.half(Half::Client, 0, RING_BYTES)?;
    let list = u64::from(list).min(RING_SLOTS);
    let line = [0x5a_u8; SLOT_BYTES];
    let mut watch = Watch::new(control);
    let mut written = 0;
    let mut read = 0;
    let mut result = 0;
    for limit in [limit.warm_up(), limit] {
        let before = written;
        let began = Instant::now();
        let mut pace = limit.start();
        let mut looked = written;
        loop {
            while written + list - read > RING_SLOTS {
                read = tail.load(Ordering::Acquire);
                watch.peer_lives()?;
            }
            for at in written..written + list {
                let slot = slots.wrapping_add(slot_offset(at));
                // SAFETY: the slot lies within the ring (rule 1); there is no reference to it (rule 2).
                unsafe { slot.copy_from_nonoverlapping(line.as_ptr(), SLOT_BYTES) };
            }
            written += list;
            head.store(written, Ordering::Release);
            watch.busy();
            if written - looked >= SLOTS_PER_LOOK {
                if !pace.go_on(written - looked, Instant::now()) {
                    break;
                }
                looked = written;
            }
        }
        while tail.load(Ordering::Acquire) != written {
            watch.peer_lives()?;
        }
        result = per_second(written - before, began.elapsed());
    }
    Ok(result)
}

/// Where slot number `at` begins.
#[inline]
fn slot_offset(at: u64) -> usize {
    usize::try_from(at % RING_SLOTS).unwrap_or(0) * SLOT_BYTES
}

/// Whether the other end is a process of this process's user.
fn is_ours(stream: &Stream) -> bool {
    let own = std::fs::metadata("/proc/self").map(|found| found.uid());
    matches!((stream.peer(), own), (Ok(peer), Ok(own)) if peer.uid == own)
}

/// The abstract name that stands for a number, as a port does for TCP.
pub(super) fn name(port: u16) -> String {
    format!("adverb-bench-{port}")
}

/// Takes the first name that is free.
pub(super) fn by_free_name<T>(
    mut take: impl FnMut(&[u8]) -> io::Result<T>,
) -> io::Result<(T, u16)> {
    for port in 1..=NAMES {
        match take(name(port).as_bytes()) {
            Ok(taken) => return Ok((taken, port)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Length of a mapping with halves of this length.
const fn whole(half_bytes: usize) -> usize {
    HEAD_BYTES + 2 * half_bytes
}

/// What was asked for does not fit the pages.
fn out_of_bounds() -> Failure {
    Failure::failed("the shared pages are too short for that")
}

/// What a ping-pong carries along with the line itself, and a slot of the ring.
pub(super) const SLOT_BYTES: usize = 64;
/// Slots of the ring.
const RING_SLOTS: u64 = 1024;
/// All of them.
const RING_BYTES: usize = 64 << 10;
const _: () = assert!(RING_BYTES == SLOT_BYTES * 1024 && RING_SLOTS == 1024);
/// Slots between two looks at the clock.
const SLOTS_PER_LOOK: u64 = 256;
/// Distance of words that are not to disturb each other: two lines, because processors fetch pairs.
const LINES: usize = 128;
/// What lies before the halves: the words, and the rest of their page.
const HEAD_BYTES: usize = 4096;
/// Largest half that a server shares.
const HALF_BYTES_MAX: usize = 1 << 30;
/// Bytes between two looks at the clock.
const COPY_BATCH_BYTES: usize = 64 << 10;
/// Names that are tried: so many tests at once on one machine.
const NAMES: u16 = 999;
/// How long the other side may take to fetch or to pass on the pages.
const PATIENCE: Duration = Duration::from_secs(10);
/// What we do when it fails.
const SHARING: &str = "sharing pages for the floor";
/// What we do when it fails.
const COPYING: &str = "copying between shared pages";
