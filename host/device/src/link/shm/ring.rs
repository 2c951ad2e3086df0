//! Ring of records in memory that two processes share: one writes, the other reads.
//!
//! A record starts at a multiple of [`LINE`] and never wraps: one that does not fit before the end
//! leaves a filler there. Its first word is its *mark*: what it is and how long. The writer clears
//! the mark of the place after a record before it sets the record's own, so that the reader, which
//! waits for one mark only, finds everything else of a record already there: a small message costs
//! one cache line's way from one processor to the other. How far the reader has come is written down
//! rarely, in a line of its own, which the writer looks at only when the ring seems full.
//!
//! Nothing in the ring is believed: a mark that makes no sense is [`Broken`], and then nothing is
//! read from the ring any more. The bytes of records are the caller's to copy; it gets places and
//! lengths that lie within the ring, whatever the other side wrote.
//!
//! The primitives come from the module's surroundings (`super::sync`), so that a model checker can
//! try every interleaving: `tests/ring_model.rs`.

use super::sync::{AtomicU64, Ordering};
use std::iter::StepBy;
use std::ops::Range;

/// Records start at multiples of this many bytes: a cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of a record's mark.
pub(crate) const MARK: usize = 8;

/// The shared words.
pub(crate) trait Memory {
    /// Bytes of records: a power of two, and many lines.
    fn size(&self) -> usize;
    /// The word at `at` bytes: `at` is a multiple of [`LINE`] and less than the size.
    fn mark(&self, at: usize) -> &AtomicU64;
    /// How far the reader has come.
    fn read_up_to(&self) -> &AtomicU64;
}

/// The other side wrote what makes no sense.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Broken;

/// A record: where its bytes are, how many, and what the writer said about them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    /// First byte after the mark.
    pub(crate) at: usize,
    /// Bytes, without the mark.
    pub(crate) len: usize,
    /// What the writer said.
    pub(crate) note: u16,
}

/// The writing side.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Bytes written since the ring was made.
    tail: u64,
    /// What the reader was last seen to have read.
    read: u64,
    /// Where a record is whose mark was not set yet, and the mark: what comes after it is not seen.
    held: Option<(u64, u64)>,
    /// The end of the place that was given out for a record.
    given: u64,
    /// Lines behind the tail, and behind the record that is being written, begin with a mark that is
    /// clear, up to this one.
    clear: u64,
    /// Lines up to this one were asked for.
    asked: u64,
}

/// The reading side.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Bytes read since the ring was made.
    head: u64,
    /// What was written down of that.
    told: u64,
}

/// A mark is a length in its low half, and above it what kind of record it is.
const RECORD: u64 = 1 << 63;
const FILLER: u64 = 1 << 62;
const NOTE_SHIFT: u32 = 32;
/// Bytes of records that are kept from the reader: with more, it should begin.
const UNSEEN_MAX: u64 = 4096;
/// A writer of many records asks for lines so many bytes before it writes to them: five records of two
/// lines.
const AHEAD: usize = 10 * LINE;
/// Marks are cleared in so many lines behind the tail, and twice as many are asked for, when no record is
/// about to be written.
const KEPT: usize = 3 * LINE;
/// The reader tells how far it is this many times a round.
const TELLS: u64 = 8;

/// Bytes that a record of `len` bytes takes.
const fn taken(len: usize) -> usize {
    const { assert!(LINE.is_power_of_two()) };
    (MARK + len + LINE - 1) & !(LINE - 1)
}

/// The longest record that a ring of `size` bytes takes: so that it fits whenever the reader has
/// read everything, wherever the writer is, and has not told the last of it.
pub(crate) const fn longest(size: usize) -> usize {
    size / 4 - LINE - MARK
}

impl Writer {
    /// Where a record of `len` bytes can be written; `None` if there is no room now. To be followed
    /// by [`Writer::commit`], or by nothing.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, memory: &impl Memory, len: usize) -> Option<usize> {
        debug_assert!(len <= longest(memory.size()), "no record is longer");
        let size = memory.size();
        let start = offset(self.tail, size);
        let left = size - start;
        let need = taken(len);
        let place = if need <= left {
            self.has_room(memory, need).then_some(start + MARK)?
        } else {
            if !self.has_room(memory, left + need) {
                return None;
            }
            self.set_mark(memory, FILLER | count(left), left);
            MARK
        };
        let end = self.tail + count(need);
        if end < self.given {
            self.clear = 0; // Bytes of a longer one that was given up may be where a mark will be.
        }
        self.given = self.given.max(end);
        Some(place)
    }

    /// Clears the marks behind small records that are yet to be written, so that nothing has to be done
    /// between their bytes and their own marks. Gives the places, modulo the ring's size, whose lines the
    /// caller should prefetch: to be cleared the next time.
    #[inline]
    pub(crate) fn prepare(&mut self, memory: &impl Memory) -> StepBy<Range<u64>> {
        let (line, size) = (count(LINE), count(memory.size()));
        let end = (self.tail + count(KEPT)).min(self.asked);
        let mut at = self.clear.max(self.tail);
        if end.wrapping_sub(self.read) < size {
            while at < end {
                at += line;
                memory.mark(offset(at, memory.size())).store(0, Ordering::Relaxed);
                self.clear = at;
            }
        }
        let from = self.asked.max(self.tail);
        self.asked = self.tail + count(2 * KEPT);
        (from + line..self.asked + line).step_by(LINE)
    }

    /// Places to ask for when many records are written in a row: those of a record some way ahead.
    pub(crate) fn places_ahead(&self) -> [u64; 2] {
        [AHEAD, AHEAD + LINE].map(|ahead| self.tail.wrapping_add(count(ahead)))
    }

    /// There is room for one record of `len` bytes at least.
    #[inline]
    pub(crate) fn can_take(&mut self, memory: &impl Memory, len: usize) -> bool {
        let left = memory.size() - offset(self.tail, memory.size());
        let need = taken(len);
        self.has_room(memory, if need <= left { need } else { left + need })
    }

    /// The record of `len` bytes for which room was reserved is written.
    #[inline]
    pub(crate) fn commit(&mut self, memory: &impl Memory, len: usize, note: u16) {
        let mark = RECORD | u64::from(note) << NOTE_SHIFT | count(len);
        self.set_mark(memory, mark, taken(len));
    }

    /// As [`Writer::commit`], but the record becomes visible with [`Writer::publish`] only, together
    /// with those that are committed until then.
    #[inline]
    pub(crate) fn commit_unseen(&mut self, memory: &impl Memory, len: usize, note: u16) {
        let Some((at, _)) = self.held else {
            let mark = RECORD | u64::from(note) << NOTE_SHIFT | count(len);
            self.clear_mark(memory, taken(len));
            self.held = Some((self.tail, mark));
            self.tail += count(taken(len));
            return;
        };
        self.commit(memory, len, note);
        if self.tail - at >= UNSEEN_MAX {
            self.publish(memory);
        }
    }

    /// Makes visible what was committed unseen.
    #[inline]
    pub(crate) fn publish(&mut self, memory: &impl Memory) {
        if let Some((at, mark)) = self.held.take() {
            memory.mark(offset(at, memory.size())).store(mark, Ordering::Release);
        }
    }

    /// Clears the mark behind a record of so many bytes. The reader does not look there before the record's own
    /// mark is set.
    #[inline]
    fn clear_mark(&mut self, memory: &impl Memory, bytes: usize) {
        let next = self.tail + count(bytes);
        if self.clear < next {
            memory.mark(offset(next, memory.size())).store(0, Ordering::Relaxed);
            self.clear = next;
        }
    }

    #[inline]
    fn set_mark(&mut self, memory: &impl Memory, mark: u64, bytes: usize) {
        self.clear_mark(memory, bytes);
        memory.mark(offset(self.tail, memory.size())).store(mark, Ordering::Release);
        self.tail += count(bytes);
    }

    /// `bytes` and the mark after them are free.
    #[inline]
    fn has_room(&mut self, memory: &impl Memory, bytes: usize) -> bool {
        let (need, size) = (count(bytes + LINE), count(memory.size()));
        if self.tail.wrapping_add(need).wrapping_sub(self.read) <= size {
            return true;
        }
        let read = memory.read_up_to().load(Ordering::Acquire);
        // A reader that claims to have read what was never written is not believed.
        if read > self.read && read <= self.tail {
            self.read = read;
        }
        self.tail.wrapping_add(need).wrapping_sub(self.read) <= size
    }
}

impl Reader {
    /// Place, modulo the ring's size, of the line behind the one that is waited for.
    pub(crate) fn place_after_next(&self) -> u64 {
        self.head + count(LINE)
    }

    /// There is something to read, or nonsense.
    #[inline]
    pub(crate) fn has_more(&self, memory: &impl Memory) -> bool {
        memory.mark(offset(self.head, memory.size())).load(Ordering::Acquire) != 0
    }

    /// The next record, if there is one. To be followed by [`Reader::release`] once its bytes are
    /// not needed any more.
    #[inline]
    pub(crate) fn next(&mut self, memory: &impl Memory) -> Result<Option<Record>, Broken> {
        let size = memory.size();
        loop {
            let start = offset(self.head, size);
            let left = size - start;
            let mark = memory.mark(start).load(Ordering::Acquire);
            if mark == 0 {
                return Ok(None);
            }
            let len = usize::try_from(mark & 0xffff_ffff).map_err(|_| Broken)?;
            if mark & RECORD != 0 {
                if len > longest(size) || taken(len) > left {
                    return Err(Broken);
                }
                let [low, high, ..] = (mark >> NOTE_SHIFT).to_le_bytes();
                let note = u16::from_le_bytes([low, high]);
                return Ok(Some(Record { at: start + MARK, len, note }));
            }
            if mark & FILLER == 0 || len != left || start == 0 {
                return Err(Broken);
            }
            self.advance(memory, left);
        }
    }

    /// The record that [`Reader::next`] gave is read: its place is the writer's again.
    #[inline]
    pub(crate) fn release(&mut self, memory: &impl Memory, record: Record) {
        self.advance(memory, taken(record.len));
    }

    #[inline]
    fn advance(&mut self, memory: &impl Memory, bytes: usize) {
        self.head += count(bytes);
        if self.head - self.told >= count(memory.size()) / TELLS {
            self.told = self.head;
            memory.read_up_to().store(self.head, Ordering::Release);
        }
    }
}

/// Where in the ring a count of bytes is.
#[inline]
fn offset(bytes: u64, size: usize) -> usize {
    debug_assert!(size.is_power_of_two(), "a ring's size is a power of two");
    usize::try_from(bytes & (count(size) - 1)).unwrap_or(0)
}

#[inline]
fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
