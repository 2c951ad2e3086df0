//! Records: datagrams in the ring of a mailbox, put there by senders and taken out by readers.
//!
//! # Safety
//!
//! Rules 2 and 3 of `mailbox.rs`: bytes of the ring are copied between bounds that are computed here, and
//! records written under the senders' lock, read and released under the readers'.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::newest::NEWEST_BYTES;
use super::word::{COMING, CURSOR_MASK, GONE, KNOCKABLE, SLEEP, SLEEPERS, SLEEPERS_SHIFT, Sleep};
use super::{
    HEADER_BYTES, Header, Mailbox, Origin, Place, Producer, Published, SENDERS_NS, Sender,
};
use adverb_shm::copying::copy_short;
use adverb_shm::line;

use crate::base::copy;
use crate::base::iovec::{Fault, IoCursor};
use crate::base::lock::Held;
use crate::base::thread::Here;
use crate::socket::loans::PIECES_MAX;

/// From where the datagram came that was last peeked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Peeked {
    Nothing,
    Ring,
    Kernel,
}

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pushed {
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Front {
    pub(super) sender: usize,
    pub(super) before: u32,
    pub(crate) len: usize,
    at: u64,
    next: u64,
    charge: u32,
    /// It was the newest when it was looked at, and short.
    is_newest: bool,
}

impl Front {
    /// Where the record begins.
    pub(crate) fn start(&self) -> u64 {
        self.at.wrapping_sub(1) & CURSOR_MASK
    }
}

/// What the kernel charges to a receive buffer for a datagram, about.
fn charge_of(len: usize) -> u32 {
    let block = len.saturating_add(384).next_power_of_two().saturating_add(256);
    u32::try_from(block).unwrap_or(u32::MAX)
}

fn distance(to: u64, from: u64) -> u64 {
    to.wrapping_sub(from) & CURSOR_MASK
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

impl Space {
    /// What there is to know of the record.
    #[inline]
    fn words(&self, sender: Place, before: u32) -> [u32; 4] {
        let index = u32::try_from(sender.index).unwrap_or(0);
        [u32::try_from(self.len).unwrap_or(0), index, before, self.charge]
    }
}

/// A mailbox whose owners do not go to sleep, and to which no other sends, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    mailbox: &'a Mailbox,
    /// `None`: it is full.
    space: Option<Space>,
    _held: Held<'a>,
}

impl Reserved<'_> {
    pub(crate) fn is_full(&self) -> bool {
        self.space.is_none()
    }

    /// Writes the datagram, if there is room for it. Returns false if it is not where the program
    /// has said.
    pub(crate) fn fill(&self, sender: Place, before: u32, mut from: IoCursor<'_>) -> bool {
        let space = self.space.as_ref();
        space.is_none_or(|space| self.mailbox.fill(space, sender, before, &mut from))
    }

    /// Publishes what has been written, and returns where it ends.
    pub(crate) fn publish(self) -> Option<u64> {
        let space = self.space?;
        let kept = GONE | SLEEPERS | KNOCKABLE | SLEEP;
        let put = |now: u64| Some(space.end << SLEEPERS_SHIFT | now & kept);
        let Header { published: Published { word, .. }, producer, .. } = self.mailbox.header();
        producer.head.store(space.end, Ordering::Release);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
        self.mailbox.charge(&space);
        Some(space.end)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let word = &self.mailbox.header().published.word;
        if word.load(Ordering::Acquire) & COMING != 0 {
            word.fetch_and(!COMING, Ordering::AcqRel);
        }
    }
}

/// Why nothing may be put into a mailbox whose word is that; `None` if it may: also if the sender has woken that sleeper.
fn refusal(word: u64, woken: Option<Sleep>) -> Option<Pushed> {
    match word & (GONE | SLEEPERS) {
        _ if woken.is_some_and(|sleep| sleep.is(word)) => None,
        0 => None,
        flags if flags & GONE != 0 => Some(Pushed::Gone),
        _ => Some(Pushed::Asleep),
    }
}

impl Mailbox {
    fn total(&self) -> u64 {
        u64::try_from(self.ring_bytes / UNIT).unwrap_or(0)
    }

    fn at(&self, cursor: u64) -> (*mut u8, usize) {
        let offset = usize::try_from(cursor & (self.total() - 1)).unwrap_or(0) * UNIT;
        // In bounds: the offset is masked by our own idea of the size (rule 2).
        (self.mapping.base().as_ptr().wrapping_add(HEADER_BYTES + offset), self.ring_bytes - offset)
    }

    /// The head of a record: the caller holds the senders' lock (rule 3), or has read a cursor that was published after it.
    fn head_words(&self, cursor: u64) -> &[AtomicU32; 4] {
        let (at, _) = self.at(cursor);
        // SAFETY: one unit at a unit's boundary inside of the ring (rule 2), mapped and aligned; any bits are legal.
        unsafe { &*at.cast::<[AtomicU32; 4]>() }
    }

    fn write_head(&self, cursor: u64, words: [u32; 4]) {
        for (place, word) in self.head_words(cursor).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    fn read_head(&self, cursor: u64) -> [u32; 4] {
        let [a, b, c, d] = self.head_words(cursor);
        [a, b, c, d].map(|word| word.load(Ordering::Relaxed))
    }

    /// A record is about to be written, most likely at this position, and then the word, which readers look at.
    #[inline]
    pub(crate) fn prepare(&self, cursor: u64) {
        line::prefetch_record_for_writing(self.at(cursor).0);
        line::prefetch_record_for_writing((&raw const self.header().published).cast());
    }

    /// The first record is about to be read: it was written by another processor, from which it takes as long to come as
    /// what there is to do before.
    #[inline]
    pub(super) fn fetch_ahead(&self, cursor: u64) {
        line::prefetch_bytes(self.at(cursor).0, SHORT_BYTES);
    }

    /// Puts a datagram of `len` bytes there. `is_eager`: the readers are awake, most likely, so it is
    /// written before it is looked whether that is so. `woken`: this sender has ended that sleep.
    pub(crate) fn push(
        &self,
        sender: Place,
        before: u32,
        from: &mut IoCursor<'_>,
        len: usize,
        is_eager: bool,
        woken: Option<Sleep>,
    ) -> Pushed {
        let Header { published: Published { word, .. }, producer, .. } = self.header();
        if !is_eager && let Some(refused) = refusal(word.load(Ordering::Acquire), woken) {
            return refused;
        }
        let Some(_held) = self.hold_senders(Here::find()) else { return Pushed::Gone };
        if self.entered(sender).is_none() {
            return Pushed::Gone;
        }
        let start = match is_eager {
            true => producer.head.load(Ordering::Relaxed),
            false => word.load(Ordering::Acquire) >> SLEEPERS_SHIFT,
        };
        let Some(space) = self.space(start, len) else {
            return refusal(word.load(Ordering::Acquire), woken).unwrap_or(Pushed::Full);
        };
        // The kernel says what there is to say about a buffer that is none.
        if !self.fill(&space, sender, before, from) {
            return Pushed::Asleep;
        }
        let end = space.end;
        let mut now = start << SLEEPERS_SHIFT | woken.map_or(0, Sleep::bits);
        // First, so that what has been published is not written over if this sender is killed in between.
        producer.head.store(end, Ordering::Release);
        loop {
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            let new = end << SLEEPERS_SHIFT | now & (SLEEPERS | KNOCKABLE | SLEEP);
            match word.compare_exchange_weak(now, new, o, r) {
                Ok(_) => break,
                Err(changed) => now = changed,
            }
            let reached = now >> SLEEPERS_SHIFT;
            // If it is not where it has been: a sender was killed in between.
            let missed = (reached != start).then_some(Pushed::Asleep);
            if let Some(refused) = refusal(now, woken).or(missed) {
                producer.head.store(reached, Ordering::Release);
                return refused;
            }
        }
        self.charge(&space);
        Pushed::At(end)
    }

    /// Puts one there that lies in one piece, in the plainest case: its readers are awake, and have been seen to get this
    /// sender's. Returns where the record ends; `None`: [`Self::push`] finds out what there is, and nothing has happened.
    #[inline]
    pub(crate) fn push_short(&self, here: Here, place: Place, part: &libc::iovec) -> Option<u64> {
        let Header { published: Published { word, .. }, producer, .. } = self.header();
        let _held = self.hold_senders(here)?;
        let sender = self.entered(place).filter(|sender| self.has_confirmed(sender))?;
        let start = producer.head.load(Ordering::Relaxed);
        let space = self.space(start, part.iov_len)?;
        if !self.fill_short(here, &space, place, sender.given(), part) {
            return None;
        }
        // As in `push`.
        producer.head.store(space.end, Ordering::Release);
        let (old, new) = (start << SLEEPERS_SHIFT, space.end << SLEEPERS_SHIFT);
        if let Err(now) = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            producer.head.store(now >> SLEEPERS_SHIFT, Ordering::Release);
            return None;
        }
        self.charge(&space);
        Some(space.end)
    }

    /// Where a datagram of `len` bytes goes, if senders have got as far as `start`; `None` if there is no
    /// room for it. The senders' lock is held.
    #[inline]
    fn space(&self, start: u64, len: usize) -> Option<Space> {
        let Producer { tail_seen, released_seen, .. } = &self.header().producer;
        let tail = tail_seen.load(Ordering::Relaxed);
        let released = released_seen.load(Ordering::Relaxed);
        let is_near = start & (self.total() - 1) < RESTART_UNITS;
        if !is_near || !self.fits(start, len, tail, released) {
            return self.space_anew(start, len);
        }
        let end = start.wrapping_add(1 + units(len)) & CURSOR_MASK;
        Some(Space { head: start, end, len, charge: charge_of(len) })
    }

    /// Whether there is room for it, if readers have got as far as that.
    #[inline]
    fn fits(&self, start: u64, len: usize, tail: u64, released: u64) -> bool {
        let Header { producer, limit, .. } = self.header();
        let charged = producer.charged.load(Ordering::Relaxed);
        distance(start, tail).saturating_add(1 + units(len)) <= self.total()
            && charged.wrapping_sub(released) <= limit.load(Ordering::Relaxed)
    }

    /// The same as [`Self::space`], by a look at how far readers have got.
    fn space_anew(&self, start: u64, len: usize) -> Option<Space> {
        let Header { producer, consumer, skipped, .. } = self.header();
        let (total, charge) = (self.total(), charge_of(len));
        let needed = 1 + units(len);
        let offset = start & (total - 1);
        let mut tail = consumer.tail.load(Ordering::Acquire);
        // What was skipped is empty, also before readers have got there.
        let skip_to = skipped.to.load(Ordering::Relaxed);
        if tail == skipped.from.load(Ordering::Relaxed)
            && distance(skip_to, tail) < distance(start, tail)
        {
            tail = skip_to;
        }
        tail = tail.wrapping_sub(consumer.held.load(Ordering::Acquire)) & CURSOR_MASK;
        let released = consumer.released.load(Ordering::Acquire);
        producer.tail_seen.store(tail, Ordering::Relaxed);
        producer.released_seen.store(released, Ordering::Relaxed);
        if !self.fits(start, len, tail, released) {
            return None;
        }
        let mut head = start;
        let rest = total - offset;
        if offset >= RESTART_UNITS && tail == start && rest + needed <= total {
            head = start.wrapping_add(rest) & CURSOR_MASK;
            skipped.from.store(start, Ordering::Relaxed);
            skipped.to.store(head, Ordering::Relaxed);
        }
        let end = head.wrapping_add(needed) & CURSOR_MASK;
        Some(Space { head, end, len, charge })
    }

    /// Writes a record. Returns false if the datagram is not where the program has said. The senders'
    /// lock is held.
    fn fill(&self, space: &Space, sender: Place, before: u32, from: &mut IoCursor<'_>) -> bool {
        let (Space { head, len, .. }, words) = (*space, space.words(sender, before));
        self.write_head(head, words);
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
        self.put_newest(space, words);
        true
    }

    /// The same of a datagram that is in one place, and short enough for a look at whether it is so in the ring to pay.
    #[inline]
    fn fill_short(
        &self,
        here: Here,
        space: &Space,
        sender: Place,
        before: u32,
        part: &libc::iovec,
    ) -> bool {
        let (target, room) = self.at(space.head.wrapping_add(1));
        if space.len > room {
            return self.fill(
                space,
                sender,
                before,
                &mut IoCursor::new(std::slice::from_ref(part)),
            );
        }
        let words = space.words(sender, before);
        self.write_head(space.head, words);
        // SAFETY: in the ring, where there is room for it (rule 2), and the lock is held (rule 3); the program's promise.
        let is_there = unsafe { copy::copy_by(here, target, part.iov_base.cast(), space.len) };
        if is_there {
            self.put_newest(space, words);
        }
        is_there
    }

    /// Has what has been written of a record beside the word as well, if it is short. The senders' lock is held.
    #[inline]
    fn put_newest(&self, space: &Space, words: [u32; 4]) {
        let (newest, Space { head, len, .. }) = (&self.header().published.newest, *space);
        let (source, room) = self.at(head.wrapping_add(1));
        if len <= NEWEST_BYTES && NEWEST_BYTES <= room {
            // SAFETY: so much lies in the ring (rule 2), and the lock is held (rule 3).
            unsafe { newest.put(head, words, source, len) };
        } else {
            newest.forget(head);
        }
    }

    fn charge(&self, space: &Space) {
        let Producer { charged, pushed, .. } = &self.header().producer;
        let now = charged.load(Ordering::Relaxed);
        charged.store(now.wrapping_add(space.charge.into()), Ordering::Relaxed);
        pushed.store(pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The same in steps, for a datagram that several mailboxes get, or none: no owner goes to sleep
    /// here until the answer is dropped. Refused if an owner sleeps, or there is none.
    pub(crate) fn reserve(&self, len: usize) -> Result<Reserved<'_>, Pushed> {
        let Header { published: Published { word, .. }, .. } = self.header();
        if let Some(refused) = refusal(word.load(Ordering::Acquire), None) {
            return Err(refused);
        }
        let held = self.hold_senders(Here::find()).ok_or(Pushed::Gone)?;
        let mut now = word.load(Ordering::Acquire);
        loop {
            if let Some(refused) = refusal(now, None) {
                return Err(refused);
            }
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match word.compare_exchange_weak(now, now | COMING, o, r) {
                Ok(_) => break,
                Err(changed) => now = changed,
            }
        }
        let space = self.space(now >> SLEEPERS_SHIFT, len);
        Ok(Reserved { mailbox: self, space, _held: held })
    }

    /// Whether a full ring is worth waiting for: its readers have read since the last wait in vain.
    pub(crate) fn moves(&self) -> bool {
        let Header { producer, consumer, .. } = self.header();
        let tail = consumer.tail.load(Ordering::Acquire);
        let was = producer.stalled_at.load(Ordering::Relaxed);
        was != tail
    }

    /// Waiting has been in vain, and a datagram of `len` bytes is dropped.
    pub(crate) fn stalls(&self, len: usize) {
        let Header { producer, consumer, .. } = self.header();
        producer.dropped.fetch_add(1, Ordering::Relaxed);
        producer.dropped_bytes.fetch_add(len.try_into().unwrap_or(0), Ordering::Relaxed);
        let tail = consumer.tail.load(Ordering::Acquire);
        producer.stalled_at.store(tail, Ordering::Relaxed);
    }

    /// Datagrams that were dropped for want of room, and their bytes.
    pub(crate) fn dropped(&self) -> (u64, u64) {
        let Producer { dropped, dropped_bytes, .. } = &self.header().producer;
        (dropped.load(Ordering::Relaxed), dropped_bytes.load(Ordering::Relaxed))
    }

    /// Bytes that wait from a record on, as they lie here.
    #[inline]
    pub(crate) fn waiting_bytes(&self, front: &Front) -> usize {
        let units = distance(self.head(), front.at.wrapping_sub(1) & CURSOR_MASK);
        usize::try_from(units).unwrap_or(0).saturating_mul(UNIT)
    }

    /// Datagrams that wait.
    pub(crate) fn waiting(&self) -> usize {
        let Header { producer, consumer, .. } = self.header();
        let taken = consumer.taken.load(Ordering::Relaxed);
        let waiting = producer.pushed.load(Ordering::Relaxed).wrapping_sub(taken);
        usize::try_from(waiting).unwrap_or(0)
    }

    /// Whether everything up to a position has been read.
    pub(crate) fn is_read(&self, position: u64) -> bool {
        let tail = self.header().consumer.tail.load(Ordering::Acquire);
        distance(tail, position) <= CURSOR_MASK / 2
    }

    /// The first record, if it is the newest one and lies beside the word. The readers' lock is held.
    #[inline]
    pub(crate) fn front_beside(&self) -> Option<Front> {
        let Header { published, consumer, .. } = self.header();
        // First: what lay there before and was not published is there no more, then.
        let head = self.head();
        let tail = consumer.tail.load(Ordering::Relaxed);
        let [len, sender, before, charge] = published.newest.head(tail)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let next = tail.wrapping_add(units(len).saturating_add(1)) & CURSOR_MASK;
        let sender = usize::try_from(sender).unwrap_or(usize::MAX);
        // Nonsense is for `front`.
        let is_it = head == next && len <= NEWEST_BYTES && self.sender(sender).is_some();
        let at = tail.wrapping_add(1);
        is_it.then_some(Front { sender, before, len, at, next, charge, is_newest: true })
    }

    /// The first record. The readers' lock is held.
    pub(crate) fn front(&self) -> Option<Front> {
        let Header { published, skipped, consumer, .. } = self.header();
        let head = published.word.load(Ordering::Acquire) >> SLEEPERS_SHIFT;
        let mut tail = consumer.tail.load(Ordering::Relaxed);
        if head == tail {
            return None;
        }
        let available = distance(head, tail);
        // What is skipped comes in addition.
        if available > 2 * self.total() || tail > CURSOR_MASK {
            self.spoil();
            return None;
        }
        if tail == skipped.from.load(Ordering::Relaxed) {
            let to = skipped.to.load(Ordering::Relaxed) & CURSOR_MASK;
            if distance(to, tail) < available {
                self.move_on(tail, to, false);
                tail = to;
            }
        }
        let newest = published.newest.head(tail);
        let [len, sender, before, charge] = newest.unwrap_or_else(|| self.read_head(tail));
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let needed = units(len).saturating_add(1);
        let sender = usize::try_from(sender).unwrap_or(usize::MAX);
        let available = distance(head, tail);
        if available > self.total() || needed > available || self.sender(sender).is_none() {
            // Nonsense, which only a process of this user can have written.
            self.spoil();
            return None;
        }
        let next = tail.wrapping_add(needed) & CURSOR_MASK;
        let is_newest = newest.is_some() && len <= NEWEST_BYTES;
        Some(Front { sender, before, len, at: tail.wrapping_add(1), next, charge, is_newest })
    }

    /// Whether a record has to wait for what its sender gave to the kernel before.
    #[inline]
    pub(crate) fn is_blocked(&self, front: &Front) -> bool {
        let missing = self.sender(front.sender).map_or(0, |sender| sender.missing(front.before));
        if missing <= 0 && self.header().consumer.blocked_ns.load(Ordering::Relaxed) != 0 {
            self.header().consumer.blocked_ns.store(0, Ordering::Relaxed);
        }
        missing > 0
    }

    /// The sender of a record.
    #[inline]
    pub(crate) fn address(&self, front: &Front) -> Option<SocketAddr> {
        self.sender(front.sender).map(Sender::address)
    }

    /// Copies a record that lies in one piece to memory of ours. False: it does not, or a page of it was missing.
    ///
    /// # Safety
    ///
    /// `into` has room for as many bytes, in whole runs (`RUN_BYTES`), which are nothing else's.
    #[inline]
    pub(crate) unsafe fn copy_short(&self, front: &Front, into: *mut u8) -> bool {
        let newest = &self.header().published.newest;
        // SAFETY: the caller's promise.
        if front.is_newest && unsafe { newest.copy(front.start(), into, front.len) } {
            return !self.is_spoilt();
        }
        let (source, room) = self.at(front.at);
        if front.len > room {
            return false;
        }
        // SAFETY: within the ring (rule 2), whose missing pages are replaced; the caller's promise.
        unsafe { copy_short(source, into, front.len) };
        !self.is_spoilt()
    }

    /// Copies a record, as much of it as there is room for. Returns how many bytes.
    pub(crate) fn copy(&self, front: &Front, into: &mut IoCursor<'_>) -> Result<usize, Fault> {
        let mut newest = [0_u64; NEWEST_BYTES / size_of::<u64>()];
        let at: *mut u8 = newest.as_mut_ptr().cast();
        if front.is_newest {
            let place = &self.header().published.newest;
            // SAFETY: it is as long as any of those.
            let is_whole = unsafe { place.copy(front.start(), at, front.len) };
            if is_whole {
                return into.fill(at, front.len);
            }
        }
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
    #[inline]
    pub(crate) fn advance(&self, front: &Front) {
        self.leave_behind(front, false);
    }

    #[inline]
    fn leave_behind(&self, front: &Front, is_lent: bool) {
        let consumer = &self.header().consumer;
        let released = consumer.released.load(Ordering::Relaxed);
        consumer.released.store(released.wrapping_add(front.charge.into()), Ordering::Relaxed);
        let taken = consumer.taken.load(Ordering::Relaxed).wrapping_add(1);
        consumer.taken.store(taken, Ordering::Relaxed);
        self.move_on(front.start(), front.next, is_lent);
    }

    /// Readers have got from one position to another. The program may have some of what lies behind, or be
    /// lent it now. In this order: senders look at the cursor first.
    #[inline]
    fn move_on(&self, from: u64, to: u64, is_lent: bool) {
        let consumer = &self.header().consumer;
        let before = consumer.held.load(Ordering::Relaxed);
        if is_lent || before != 0 {
            let held = before.wrapping_add(distance(to, from)) & CURSOR_MASK;
            consumer.held.store(held, Ordering::Release);
        }
        consumer.tail.store(to, Ordering::Release);
    }

    /// Where the first record lies, in two pieces at most. Returns how many. The readers' lock is held.
    pub(crate) fn pieces(&self, front: &Front, parts: &mut [libc::iovec; PIECES_MAX]) -> usize {
        let (mut at, mut left, mut count) = (front.at, front.len, 0);
        for part in parts.iter_mut() {
            let (source, room) = self.at(at);
            let run = room.min(left);
            if run == 0 {
                break;
            }
            *part = libc::iovec { iov_base: source.cast(), iov_len: run };
            (count, left, at) = (count + 1, left - run, at.wrapping_add(units(run)));
        }
        count
    }

    /// Lends the first record where it lies. Returns its position. The readers' lock is held. Senders can change
    /// what is lent.
    pub(crate) fn lend(&self, front: &Front) -> u64 {
        self.leave_behind(front, true);
        front.start()
    }

    /// The program has given back what it had before `oldest`, or everything. The readers' lock is held.
    pub(crate) fn take_back_loans(&self, oldest: Option<u64>) {
        let consumer = &self.header().consumer;
        let tail = consumer.tail.load(Ordering::Relaxed);
        let held = oldest.map_or(0, |oldest| distance(tail, oldest));
        consumer.held.store(held, Ordering::Release);
    }

    /// Whether it is the turn of the others, which send through the kernel.
    #[inline]
    pub(crate) fn is_others_turn(&self) -> bool {
        let turns = &self.header().consumer.turns;
        let is_theirs = self.is_others_turn_next();
        turns.store(turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        is_theirs
    }

    /// Whether that is what it is going to say next.
    #[inline]
    pub(crate) fn is_others_turn_next(&self) -> bool {
        let turns = self.header().consumer.turns.load(Ordering::Relaxed);
        turns.wrapping_add(1).is_multiple_of(OTHERS_TURN)
    }

    pub(crate) fn peeked(&self) -> Peeked {
        match self.header().consumer.peeked.load(Ordering::Relaxed) {
            1 => Peeked::Ring,
            2 => Peeked::Kernel,
            _ => Peeked::Nothing,
        }
    }

    pub(crate) fn set_peeked(&self, peeked: Peeked) {
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

    /// Takes out everything, for a socket whose mailbox is not going to be read: calls `f` with the origin of
    /// each datagram, and its bytes; those of which it returns false are dropped.
    pub(crate) fn take_all(&self, mut f: impl FnMut(Origin, &[u8]) -> bool) {
        let Some(_held) = self.hold_readers() else { return };
        for _ in 0..self.total() {
            let Some(front) = self.front() else { return };
            let mut bytes = vec![0_u8; front.len];
            let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let _ = self.copy(&front, &mut IoCursor::new(&[part]));
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
    pub(crate) fn take_back(&self, sender: Place, mut f: impl FnMut(&[u8])) {
        let Some(_held) = self.hold_readers_for(SENDERS_NS) else { return };
        for _ in 0..self.total() {
            let Some(front) = self.front() else { return };
            if front.sender == sender.index && self.entered(sender).is_some() {
                let mut bytes = vec![0_u8; front.len];
                let part =
                    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
                let _ = self.copy(&front, &mut IoCursor::new(&[part]));
                f(&bytes);
            }
            self.advance(&front);
        }
    }
}

/// Cursors count units of so many bytes.
const UNIT: usize = 16;

/// So much of a record is asked for ahead of its use: the head, and what most short ones have.
const SHORT_BYTES: usize = 2 * line::LINE_BYTES;

/// Where an empty ring begins again rather than go on, in units from its start.
const RESTART_UNITS: u64 = 512;

/// After so many datagrams from the ring those in the kernel's queue have their turn.
const OTHERS_TURN: u32 = 128;
