//! Completion queues of hardware, and what is remembered of outstanding work.
//!
//! C gives a request one number, which comes back with its completion. Ours have two, the program's
//! and that of the memory which the request owns, so each queue keeps a book of what was posted to it,
//! and C's number is the book's name and a place in it.

use super::Port;
use adverb_device::locks::Mutex;
use adverb_device::{
    BufferNumber, Completion, Imm, Overrun, Qpn, ResizeError, Rkey, WcOpcode, WcStatus,
};
use adverb_ibv::layout::{Wc, value};
use adverb_ibv::{Ah, Channel};
use std::io;
use std::sync::Arc;

/// An address handle that a request holds.
pub(crate) type Held = Option<Arc<Ah>>;

/// Record of a request.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<BufferNumber>,
    pub(crate) opcode: WcOpcode,
    pub(crate) len: u32,
    /// Lives until the request has ended: some devices look at it when they send.
    #[expect(dead_code, reason = "held until the request has ended")]
    pub(crate) ah: Held,
}

/// Requests that end in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: Box<[Option<Entry>]>,
    /// The oldest that has not ended, and the next.
    oldest: u64,
    next: u64,
}

impl Ring {
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(0);
        let entries = std::iter::repeat_with(|| None).take(capacity).collect();
        Self { entries, oldest: 0, next: 0 }
    }

    pub(crate) fn capacity(&self) -> u64 {
        u64::try_from(self.entries.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.next - self.oldest
    }

    fn slot(&mut self, index: u64) -> Option<&mut Option<Entry>> {
        let at = index.checked_rem(self.capacity())?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// Remembers a request under the number that is returned; `None` if there is no room.
    #[inline]
    pub(crate) fn put(&mut self, entry: Entry) -> Option<u32> {
        if self.outstanding() >= self.capacity() {
            return None;
        }
        let index = self.next;
        *self.slot(index)? = Some(entry);
        self.next += 1;
        Some(low(index))
    }

    /// Forgets the newest request: it was not posted.
    pub(crate) fn take_back(&mut self) {
        self.next -= 1;
        let index = self.next;
        if let Some(slot) = self.slot(index) {
            *slot = None;
        }
    }

    /// The request with this number has ended, and so have those before it; `None` if it is not
    /// outstanding.
    #[inline]
    fn end(&mut self, number: u32) -> Option<Entry> {
        let ahead = u64::from(number.wrapping_sub(low(self.oldest)));
        if ahead >= self.outstanding() {
            return None;
        }
        let index = self.oldest + ahead;
        for before in self.oldest..index {
            if let Some(slot) = self.slot(before) {
                *slot = None;
            }
        }
        self.oldest = index + 1;
        self.slot(index)?.take()
    }

    /// All requests vanish: tells the memory that they owned.
    pub(crate) fn clear(&mut self, mut forgotten: impl FnMut(u32)) {
        self.entries
            .iter_mut()
            .filter_map(Option::take)
            .filter_map(|e| e.buffer.map(BufferNumber::get))
            .for_each(&mut forgotten);
        self.oldest = self.next;
    }
}

fn low(index: u64) -> u32 {
    u32::try_from(index & u64::from(u32::MAX)).unwrap_or(0)
}

/// Requests that end in any order.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Stock {
    /// Makes room for `capacity` requests, and never for less than before.
    pub(crate) fn grow(&mut self, capacity: u32) {
        let used = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let size = usize::try_from(capacity).unwrap_or(0).max(self.entries.len());
        self.entries.resize(size, None);
        self.free.reserve(size);
        self.free.extend((used..capacity).rev());
    }

    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.entries.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn put(&mut self, entry: Entry) -> Option<u32> {
        let number = self.free.pop()?;
        *self.entries.get_mut(usize::try_from(number).ok()?)? = Some(entry);
        Some(number)
    }

    pub(crate) fn end(&mut self, number: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(usize::try_from(number).ok()?)?.take()?;
        self.free.push(number);
        Some(entry)
    }
}

/// Records of the requests of a queue.
#[derive(Debug)]
pub(crate) enum Book {
    /// A send queue.
    Sends(Mutex<Ring>),
    /// A receive queue.
    Receives(Mutex<Ring>),
    /// A shared receive queue, by its number.
    Shared(u32, Mutex<Stock>),
}

impl Book {
    #[inline]
    fn end(&self, number: u32) -> Option<Entry> {
        match self {
            Self::Sends(ring) | Self::Receives(ring) => ring.lock().end(number),
            Self::Shared(_, stock) => stock.lock().end(number),
        }
    }
}

/// C's number for a request.
#[inline]
pub(crate) fn wr_id(book: u32, number: u32) -> u64 {
    u64::from(book) << 32 | u64::from(number)
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    raw: Arc<adverb_ibv::Cq>,
    port: Arc<Port>,
    name: u32,
    has_channel: bool,
    /// The books of the queues whose requests complete here, by name, which only grows.
    books: Mutex<Vec<(u32, Arc<Book>)>>,
}

/// Completions that one call asks the device for.
const BATCH: usize = 16;

impl Cq {
    pub(crate) fn new(
        port: &Arc<Port>,
        cqe: u32,
        context: u64,
        channel: Option<&Arc<Channel>>,
        vector: u32,
    ) -> io::Result<Self> {
        let name = port.name(context);
        let made = adverb_ibv::Cq::new(port.context(), cqe, name.into(), channel, vector);
        let raw = made.inspect_err(|_| port.forget(name))?;
        let has_channel = channel.is_some();
        Ok(Self {
            raw: Arc::new(raw),
            port: Arc::clone(port),
            name,
            has_channel,
            books: Mutex::default(),
        })
    }

    pub(crate) fn raw(&self) -> &Arc<adverb_ibv::Cq> {
        &self.raw
    }

    /// Its name in events of its channel.
    pub(crate) fn name(&self) -> u64 {
        self.name.into()
    }

    /// Requests of this book complete here from now on.
    pub(crate) fn enter(&self, name: u32, book: &Arc<Book>) {
        let mut books = self.books.lock();
        books.retain(|(_, book)| Arc::strong_count(book) > 1); // Those of shared queues that have gone.
        if let Err(at) = books.binary_search_by_key(&name, |(name, _)| *name) {
            books.insert(at, (name, Arc::clone(book)));
        }
    }

    /// No requests of this book complete here any more.
    pub(crate) fn leave(&self, name: u32) {
        self.books.lock().retain(|(known, _)| *known != name);
    }

    pub(crate) fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), ResizeError> {
        let max = self.port.attr().max_cqe;
        if !(1..=max).contains(&cqe) {
            return Err(ResizeError::OutOfRange { asked: cqe, max });
        }
        // The device says no more than that it does not do it.
        let used = self.capacity();
        self.raw.resize(cqe).map_err(|_| ResizeError::InUse { asked: cqe, used })
    }

    /// Asks for an event; false if there is no channel.
    #[inline]
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        self.has_channel && self.raw.arm(solicited_only).is_ok()
    }

    /// Takes completions, oldest first; says how many.
    #[inline(never)] // Keeps the software device's way short, which shares a match with it.
    pub(crate) fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut taken = 0;
        while let Some(room) = out.get_mut(taken..).filter(|room| !room.is_empty()) {
            let mut raw = [Wc::default(); BATCH];
            let wanted = room.len().min(BATCH);
            let got = self.raw.poll(raw.get_mut(..wanted).unwrap_or_default());
            let got = match got {
                Ok(0) => break,
                Ok(got) => got,
                Err(_) if taken > 0 => break,
                Err(_) => return Err(Overrun),
            };
            let books = self.books.lock();
            let mut places = room.iter_mut();
            for wc in raw.iter().take(got) {
                let number = |bits: u64| u32::try_from(bits).unwrap_or(0);
                let name = number(wc.wr_id >> 32);
                let at = books.binary_search_by_key(&name, |(name, _)| *name);
                // Others are of queues that have gone, or were posted before a way to RESET.
                let book = at.ok().and_then(|at| books.get(at)).map(|(_, book)| book);
                let entry = book.and_then(|book| Some((book, book.end(low(wc.wr_id))?)));
                if let (Some((book, entry)), Some(place)) = (entry, places.next()) {
                    *place = completion(wc, book, &entry);
                    taken += 1;
                }
            }
            if got < wanted {
                break;
            }
        }
        Ok(taken)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.port.forget(self.name);
    }
}

fn completion(wc: &Wc, book: &Book, entry: &Entry) -> Completion {
    let status = status(wc.status);
    let done = status == WcStatus::Success;
    let has = |flag| done && wc.wc_flags & flag != 0;
    let (receive, srq) = match book {
        Book::Sends(_) => (false, None),
        Book::Receives(_) => (true, None),
        Book::Shared(number, _) => (true, Some(*number)),
    };
    let opcode = match wc.opcode {
        value::WC_RECV_RDMA_WITH_IMM if receive && done => WcOpcode::ReceiveRdmaWithImm,
        _ => entry.opcode,
    };
    Completion {
        wr_id: entry.wr_id,
        status,
        opcode,
        byte_len: match (receive, done) {
            (true, true) => wc.byte_len,
            (true, false) => 0,
            (false, _) => entry.len,
        },
        imm: has(value::WC_FLAG_WITH_IMM).then(|| Imm(u32::from_be(wc.imm_data))),
        invalidated: has(value::WC_FLAG_WITH_INV).then_some(Rkey(wc.imm_data)),
        grh: receive && has(value::WC_FLAG_GRH),
        ipv6: false,
        pkey_index: wc.pkey_index,
        qp: Qpn::new(wc.qp_num),
        src_qp: Qpn::new(if receive && done { wc.src_qp } else { 0 }),
        buffer: entry.buffer,
        srq,
        timestamp_ns: 0,
    }
}

/// The status with this number of `enum ibv_wc_status`.
fn status(code: i32) -> WcStatus {
    let same = |status: &&WcStatus| i32::from(status.code()) == code;
    STATUSES.iter().find(same).copied().unwrap_or(WcStatus::General)
}

/// What completions can say here.
const STATUSES: [WcStatus; 13] = [
    WcStatus::Success,
    WcStatus::WorkRequestFlushed,
    WcStatus::LocalLength,
    WcStatus::LocalQpOperation,
    WcStatus::LocalProtection,
    WcStatus::MemoryWindowBind,
    WcStatus::BadResponse,
    WcStatus::LocalAccess,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperation,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64) -> Entry {
        Entry { wr_id, buffer: None, opcode: WcOpcode::Send, len: 0, ah: None }
    }

    /// Goal: an end retires what was posted before it, and numbers that mean nothing retire nothing.
    /// Method: numbers straddle the wrap of 32 bits.
    #[test]
    fn a_request_that_ends_ends_those_before_it() {
        let start = u64::from(u32::MAX) - 1;
        let mut ring = Ring { oldest: start, next: start, ..Ring::new(3) };
        let numbers: Vec<_> = (1..=3).map(|wr_id| ring.put(entry(wr_id)).unwrap()).collect();
        assert_eq!(numbers, [u32::MAX - 1, u32::MAX, 0]);
        assert!(ring.put(entry(4)).is_none());
        assert!(ring.end(1).is_none() && ring.end(u32::MAX - 2).is_none());
        assert_eq!(ring.end(u32::MAX).unwrap().wr_id, 2);
        assert_eq!(ring.outstanding(), 1);
        assert!(ring.end(u32::MAX - 1).is_none());
        assert_eq!(ring.end(0).unwrap().wr_id, 3);
        assert_eq!(ring.put(entry(4)), Some(1));
    }

    #[test]
    fn a_request_that_was_not_posted_is_forgotten() {
        let mut ring = Ring::new(1);
        let number = ring.put(entry(1)).unwrap();
        ring.take_back();
        assert!(ring.end(number).is_none());
        assert_eq!(ring.put(entry(2)), Some(number));
        assert_eq!(ring.end(number).unwrap().wr_id, 2);
    }

    #[test]
    fn a_stock_gives_places_back_in_any_order_and_grows() {
        let mut stock = Stock::default();
        stock.grow(2);
        let (one, two) = (stock.put(entry(1)).unwrap(), stock.put(entry(2)).unwrap());
        assert!(stock.put(entry(3)).is_none());
        assert_eq!(stock.end(two).unwrap().wr_id, 2);
        assert!(stock.end(two).is_none());
        stock.grow(3);
        assert_eq!(stock.used(), 1);
        assert!(stock.put(entry(3)).is_some() && stock.put(entry(4)).is_some());
        assert_eq!(stock.end(one).unwrap().wr_id, 1);
    }

    #[test]
    fn every_status_has_its_number_and_others_are_general() {
        for known in STATUSES {
            assert_eq!(status(known.code().into()), known);
        }
        assert_eq!(status(3), WcStatus::General);
        assert_eq!(status(-1), WcStatus::General);
    }
}
