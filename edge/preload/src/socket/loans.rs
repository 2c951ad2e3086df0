//! Loans: bytes that the program reads where they lie, and gives back when it is done.
//!
//! What was received through shared memory is lent there; what came through the kernel is lent from memory of
//! ours. Room in a ring comes back in the order of the ring, whatever order loans come back in: a loan that is
//! not given back holds all room behind it, until the sender has none. A loan keeps its socket's memory mapped,
//! also when the descriptor is closed.
//!
//! The bytes of a loan that lie in shared memory can be changed by the sender at any time. Where the pieces lie
//! and how long they are was computed and checked once, in this process, and is not read again.
//!
//! # Safety
//!
//! A buffer's length is set to no more than what has been received into it.
//!
//! Not here: taking bytes out of a ring (`ring.rs`) or a mailbox (`records.rs`), and giving room back there
//! (`exports/lending.rs`).

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::ptr;

use adverb_shm::alive;

use crate::base::lock::{Guarded, Lock};

/// Pieces of one loan: a ring has a seam, and another one where it has grown.
pub(crate) const PIECES_MAX: usize = 3;

/// The most that one loan of a stream lends.
pub(crate) const STREAM_MAX: usize = 1 << 16;

/// No bytes.
pub(crate) const NO_PIECE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// A socket whose memory can be kept.
pub(crate) trait Keep: Debug {
    /// By which its loans are known.
    fn key(&self) -> usize;
    /// Its memory stays as long as this is there.
    fn keep(&self) -> Box<dyn Any + Send>;
}

/// What has been lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// By which it is given back; never 0.
    pub(crate) id: u64,
    pub(crate) pieces: [libc::iovec; PIECES_MAX],
    pub(crate) count: usize,
}

/// Pieces that have been taken: how many, how many bytes, and the position of the first.
pub(crate) type Taken = (usize, usize, u64);

/// A wish to be lent what comes, and what has come of it.
#[derive(Debug)]
pub(crate) struct Loan<'a> {
    of: &'a dyn Keep,
    /// The most bytes of a stream.
    pub(crate) most: Cell<usize>,
    /// The most pieces, up to [`PIECES_MAX`].
    pub(crate) pieces: usize,
    /// What is shorter than this is copied instead.
    pub(crate) least: usize,
    /// Where it lies is all that is wanted: it stays there, and is not lent.
    pub(crate) shows: bool,
    /// The number under which it is lent, if the program knows it already: see [`reserve`].
    reserved: Option<u64>,
    lent: Cell<Option<Lent>>,
}

impl<'a> Loan<'a> {
    pub(crate) fn new(of: &'a dyn Keep, most: usize, pieces: usize) -> Self {
        let (most, pieces) = (Cell::new(most.min(STREAM_MAX)), pieces.min(PIECES_MAX));
        Self { of, most, pieces, least: 0, shows: false, reserved: None, lent: Cell::new(None) }
    }

    /// Lends under a number that the program knows already: see [`reserve`].
    pub(crate) fn reserved(of: &'a dyn Keep, id: u64, most: usize, pieces: usize) -> Self {
        Self { reserved: Some(id), ..Self::new(of, most, pieces) }
    }

    /// Says where the next packet lies, of a stream or a mailbox, and does not take it.
    pub(crate) fn showing(of: &'a dyn Keep) -> Self {
        Self { shows: true, ..Self::new(of, STREAM_MAX, PIECES_MAX) }
    }

    /// What has been lent, if anything.
    pub(crate) fn lent(&self) -> Option<Lent> {
        self.lent.get()
    }

    /// Lends what `take` takes, and returns how many bytes. What it takes from is locked. `is_whole`: a loan of
    /// no bytes is one, too.
    pub(crate) fn lend<E>(
        &self,
        is_whole: bool,
        take: impl FnOnce(&mut [libc::iovec; PIECES_MAX]) -> Result<Taken, E>,
    ) -> Result<usize, E> {
        let mut pieces = [NO_PIECE; PIECES_MAX];
        let (count, len, start) = take(&mut pieces)?;
        if len > 0 || is_whole {
            let id = match self.reserved {
                _ if self.shows => 0,
                None => enter(self.of, Some(start), Vec::new()),
                Some(id) => {
                    fill(self.of, id, Some(start), Vec::new());
                    id
                }
            };
            self.lent.set(Some(Lent { id, pieces, count }));
        }
        Ok(len)
    }
}

/// A buffer for what may come through the kernel: it is not asked for anew with each packet, nor cleared.
#[derive(Debug)]
pub(crate) struct Spare(Vec<u8>);

/// One that is not in use.
static SPARE: Guarded<Option<Vec<u8>>> = Guarded::new(None);

impl Spare {
    /// Room for [`STREAM_MAX`] bytes.
    pub(crate) fn take() -> Self {
        Self(SPARE.with(Option::take).unwrap_or_else(|| Vec::with_capacity(STREAM_MAX)))
    }

    /// The whole of it, to be received into.
    pub(crate) fn part(&mut self) -> libc::iovec {
        // What it was has been lent.
        self.0.reserve(STREAM_MAX);
        libc::iovec { iov_base: self.0.as_mut_ptr().cast(), iov_len: self.0.capacity() }
    }

    /// Where the first `len` bytes lie.
    pub(crate) fn pieces(&mut self, len: usize) -> [libc::iovec; PIECES_MAX] {
        let mut pieces = [NO_PIECE; PIECES_MAX];
        let [first, ..] = &mut pieces;
        *first = libc::iovec { iov_len: len, ..self.part() };
        pieces
    }

    /// Takes the first `len` bytes, which have been received, out of it.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let len = len.min(self.0.capacity());
        // SAFETY: room for bytes that the caller has received there; any are legal.
        unsafe { self.0.set_len(len) };
        let is_much = len >= self.0.capacity() / WORTH_COPYING;
        let bytes = if is_much { std::mem::take(&mut self.0) } else { self.0.as_slice().to_vec() };
        self.0.clear();
        bytes
    }

    /// The first `len` bytes, which have been received, where they lie.
    pub(crate) fn keep(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.0);
        // SAFETY: room for bytes that the caller has received there; any are legal.
        unsafe { bytes.set_len(len.min(bytes.capacity())) };
        bytes
    }

    /// Lends the first `len` bytes, which have been received.
    pub(crate) fn lend(&mut self, of: &dyn Keep, len: usize) -> Lent {
        let (bytes, mut pieces) = (self.bytes(len), [NO_PIECE; PIECES_MAX]);
        let [first, ..] = &mut pieces;
        *first = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        Lent { id: enter(of, None, bytes), pieces, count: 1 }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if self.0.capacity() >= STREAM_MAX {
            let mine = std::mem::take(&mut self.0);
            drop(SPARE.with(|spare| spare.replace(mine)));
        }
    }
}

/// The lock on it, for a fork.
pub(crate) fn spare() -> &'static Lock {
    SPARE.lock()
}

/// A buffer of which less than this part is full is copied from, and used again.
const WORTH_COPYING: usize = 4;

/// One loan that is out, or has come back before an earlier one.
#[derive(Debug)]
struct Entry {
    /// Its position, if it lies in shared memory.
    start: Option<u64>,
    /// The bytes, if they do not.
    bytes: Vec<u8>,
    is_out: bool,
}

impl Entry {
    fn is_shared(&self) -> bool {
        self.is_out && self.start.is_some()
    }
}

/// The loans of one socket.
#[derive(Debug)]
struct Book {
    /// Whose they are: a child does not have its parent's.
    owner: u32,
    /// The socket's memory, while anything is out.
    memory: Option<Box<dyn Any + Send>>,
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
}

impl Book {
    /// The position of the oldest loan in shared memory.
    fn oldest(&self) -> Option<u64> {
        self.entries.iter().find(|entry| entry.is_shared()).and_then(|entry| entry.start)
    }
}

/// All of this process's loans, by socket. Books stay when they are empty: there are as many as sockets at most.
#[derive(Debug)]
struct Ledger {
    books: BTreeMap<usize, Book>,
    next: u64,
}

static LEDGER: Guarded<Ledger> = Guarded::new(Ledger { books: BTreeMap::new(), next: IDS });

/// Loans of one book are numbered one after another; each book begins well behind the last one.
const IDS: u64 = 1 << 32;

/// The lock on loans, for a fork.
pub(crate) fn lock() -> &'static Lock {
    LEDGER.lock()
}

fn enter(of: &dyn Keep, start: Option<u64>, bytes: Vec<u8>) -> u64 {
    let entry = Entry { start, bytes, is_out: true };
    LEDGER.with(|ledger| {
        let (me, next) = (alive::me(), &mut ledger.next);
        let book = ledger.books.entry(of.key()).or_insert_with(|| {
            let first = *next;
            *next += IDS;
            Book { owner: me, memory: None, first, entries: VecDeque::new() }
        });
        if book.owner != me {
            // The parent's: what it held this process never had.
            std::mem::forget(book.memory.take());
            book.first += u64::try_from(book.entries.len()).unwrap_or(0);
            book.entries.clear();
            book.owner = me;
        }
        if book.memory.is_none() {
            book.memory = Some(of.keep());
        }
        book.entries.push_back(entry);
        book.first + u64::try_from(book.entries.len() - 1).unwrap_or(0)
    })
}

/// A number for what may be lent, before it is: the program gets it in either case. Nothing of the same socket may
/// be lent until it is known: loans come in the order of what they lend.
pub(crate) fn reserve(of: &dyn Keep) -> u64 {
    enter(of, None, Vec::new())
}

/// Lends under a number that was reserved: what lies there in shared memory, or bytes of ours.
pub(crate) fn fill(of: &dyn Keep, id: u64, start: Option<u64>, bytes: Vec<u8>) {
    with_entry(of.key(), id, |entry| (entry.start, entry.bytes) = (start, bytes));
}

/// Nothing is lent under a number that was reserved.
pub(crate) fn cancel(key: usize, id: u64) {
    drop(strike(key, id));
}

/// Whether a number is the program's.
pub(crate) fn is_out(key: usize, id: u64) -> bool {
    with_entry(key, id, |entry| entry.is_out).unwrap_or(false)
}

fn with_entry<T>(key: usize, id: u64, f: impl FnOnce(&mut Entry) -> T) -> Option<T> {
    LEDGER.with(|ledger| {
        let book = ledger.books.get_mut(&key).filter(|book| book.owner == alive::me())?;
        let index = id.checked_sub(book.first).and_then(|at| usize::try_from(at).ok())?;
        book.entries.get_mut(index).map(f)
    })
}

/// What has kept a socket's memory: to be dropped once the socket knows that nothing is lent any more.
#[derive(Debug)]
pub(crate) struct Memory {
    _kept: Option<Box<dyn Any + Send>>,
}

/// What has changed when a loan has come back.
#[derive(Debug)]
pub(crate) enum Returned {
    /// There is no such loan of this socket's.
    Unknown,
    /// Nothing that the socket has to know of.
    Nothing,
    /// All loans up to this position have come back, or all there were.
    UpTo { oldest: Option<u64>, _memory: Memory },
}

/// Strikes a loan out, and everything before it that has come back. What it was lent from is locked.
pub(crate) fn strike(key: usize, id: u64) -> Returned {
    LEDGER.with(|ledger| {
        let book = ledger.books.get_mut(&key).filter(|book| book.owner == alive::me());
        let Some(book) = book else { return Returned::Unknown };
        let before = book.oldest();
        let index = id.checked_sub(book.first).and_then(|at| usize::try_from(at).ok());
        let entry = index.and_then(|at| book.entries.get_mut(at)).filter(|entry| entry.is_out);
        let Some(entry) = entry else { return Returned::Unknown };
        entry.is_out = false;
        entry.bytes = Vec::new();
        while book.entries.front().is_some_and(|entry| !entry.is_out) {
            book.entries.pop_front();
            book.first += 1;
        }
        let (oldest, is_empty) = (book.oldest(), book.entries.is_empty());
        if oldest == before && !is_empty {
            return Returned::Nothing;
        }
        let _kept = is_empty.then(|| book.memory.take()).flatten();
        Returned::UpTo { oldest, _memory: Memory { _kept } }
    })
}
