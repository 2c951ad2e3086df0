//! The requester: turns posted requests into packets, within the window.
//!
//! It knows nothing of acknowledgements. The completer reads those; `qp.rs` carries its verdicts
//! here as [`Requester::on_progress`], [`Requester::rewind`] and [`Requester::pause`], so that
//! every decision to send again is taken in one place.
//!
//! Packets are counted by *sequence numbers* of 64 bits that start at 0 and never wrap; the 24-bit
//! PSN on the wire is the first PSN plus the sequence number. A READ takes as many sequence
//! numbers as its response has packets, and may be asked for in several pieces: each piece is an
//! ordinary READ request on the wire, and the window bounds what comes back. A piece is asked for again as
//! it was cut, though the window may have changed: a responder answers a repeated request only within what it was
//! asked before. Only of a piece that the responder is known to have executed a part is asked for again.
//!
//! Read IBTA Vol. 1 §9.7.2 to §9.7.4 before changing this file.

use crate::arrived::Arrived;
use crate::attributes::Settings;
use crate::completer::Missing;
use crate::cutting::Cutting;
use crate::early::EARLY_PACKETS_MAX;
use crate::host::{AccessError, EmitError, Host, Invalidator, Payload, Reach};
use crate::packetizer::Path;
use crate::send_queue::{Entry, NOT_STARTED, SendQueue};
use crate::status::WcStatus;
use crate::time::Time;
use crate::window::Window;
use crate::work::{Request, RequestKind};
use adverb_wire::{AtomicEth, Bth, Extension, Headers, Operation, Psn, Reth};
use alloc::collections::VecDeque;

/// What became of an attempt to emit packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Emitted {
    /// All that may be emitted now was.
    All,
    /// The host has no room for the next packet.
    NoRoom,
    /// The request at the cursor cannot be carried out.
    Broken,
}

/// What has come though data before it has not: it is not under way any more.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    packets: u64,
    /// Pieces of READs that have come whole.
    reads: usize,
}

/// The sending half of a reliable queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    path: Path,
    first_psn: Psn,
    /// Sequence number of the next packet.
    next: u64,
    /// One past the highest sequence number ever emitted.
    top: u64,
    /// Index of the request that `next` belongs to.
    cursor: u64,
    /// Ends (sequence numbers) of the pieces of READs, and of atomics, that were emitted and are not done with.
    reads: VecDeque<u64>,
    /// How many of those are under way; the rest were before the requester went back.
    reads_asked: usize,
    reads_max: u8,
    /// The limit was reached: over a link of trains, more are asked for when several can be asked for together.
    reads_full: bool,
    /// Data that came before data that should have come first.
    ahead: Ahead,
    /// Packets that the peer keeps though others before them are missing, at least.
    kept: u16,
    window: Window,
    /// Packets emitted since one asked for an acknowledgement.
    unasked: u32,
    paused_until: Option<Time>,
    /// Packets to be emitted again, before any others: from one sequence number to before the other.
    again: VecDeque<(u64, u64)>,
    /// Packets that were reported missing and emitted again, and when: no more than [`FILLS_MAX`].
    fills: VecDeque<(u64, u64, Time)>,
    /// The request at the cursor failed here, like this; nothing more is emitted.
    broken: Option<WcStatus>,
    /// Requests that have not begun have to wait.
    held: bool,
    /// Requests carried out on the peer's memory that are not counted yet.
    reached: u64,
}

impl Requester {
    pub(crate) fn new(path: Path, settings: &Settings) -> Self {
        let reads_max = usize::from(settings.max_rd_atomic);
        Self {
            path,
            first_psn: settings.first_psn,
            next: 0,
            top: 0,
            cursor: 0,
            reads: VecDeque::with_capacity(reads_max.min(READS_USUAL)),
            reads_asked: 0,
            reads_max: settings.max_rd_atomic,
            reads_full: false,
            ahead: Ahead::default(),
            kept: 0,
            window: match path.link.lossy {
                true => Window::opening(settings.window_packets, settings.window_first),
                false => Window::open(settings.window_packets),
            },
            unasked: 0,
            paused_until: None,
            again: VecDeque::new(),
            fills: VecDeque::new(),
            broken: None,
            held: false,
            reached: 0,
        }
    }

    /// Starts with the request of this index: those before it belong to an earlier life.
    pub(crate) fn start_at(mut self, cursor: u64) -> Self {
        self.cursor = cursor;
        self
    }

    /// Changes where packets go.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = Path { keeps_early: self.path.keeps_early, ..path };
    }

    /// Makes requests that have not begun wait, or lets them begin.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// READs and atomics that may be under way.
    fn reads_max(&self) -> usize {
        usize::from(self.reads_max)
    }

    /// Changes how many READs and atomics may be under way.
    pub(crate) fn set_reads_max(&mut self, reads_max: u8) {
        self.reads_max = reads_max;
        self.reads.reserve(self.reads_max().min(READS_USUAL).saturating_sub(self.reads.len()));
    }

    pub(crate) fn psn(&self, sequence: u64) -> Psn {
        // The PSN space is 2²⁴ and divides 2³², so cutting the sequence number to 32 bits is exact.
        self.first_psn.plus(low_bits(sequence))
    }

    /// Sequence number of the next packet.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Packets that may be under way, over a link that loses some, if that is more than a guess.
    pub(crate) fn window(&self) -> Option<u32> {
        self.window.known_limit().filter(|_| self.path.link.lossy)
    }

    /// One past the highest sequence number ever emitted.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Index and status of the request that cannot be carried out, if there is one.
    pub(crate) fn broken(&self) -> Option<(u64, WcStatus)> {
        Some((self.cursor, self.broken?))
    }

    /// Requests may wait to be emitted.
    pub(crate) fn has_work(&self, queue: &SendQueue) -> bool {
        let next = queue.get(self.cursor);
        next.is_some_and(|entry| !self.held || entry.has_begun()) || !self.again.is_empty()
    }

    pub(crate) fn paused_until(&self) -> Option<Time> {
        self.paused_until
    }

    /// Nothing waits to be emitted, and nothing would have to but for the window and a fence.
    #[inline]
    pub(crate) fn is_idle(&self, queue: &SendQueue) -> bool {
        let stuck = self.paused_until.is_some() || self.broken.is_some() || self.held;
        self.cursor == queue.tail() && !stuck
    }

    /// Nothing keeps a request of one packet that is posted now from being emitted now.
    #[inline]
    pub(crate) fn is_free(&self, unacked: u64, fence: bool, queue: &SendQueue) -> bool {
        let room = self.window.room(self.next.saturating_sub(unacked)) > 0;
        self.is_idle(queue) && room && (!fence || !self.awaits_data())
    }

    /// READs or atomics are under way.
    pub(crate) fn awaits_data(&self) -> bool {
        self.reads_asked > 0
    }

    /// Requests of one packet that may be emitted now, and how many of them need not ask for an
    /// acknowledgement as far as the window goes.
    #[inline]
    pub(crate) fn allowance(&self, unacked: u64) -> (u32, u32) {
        let room = self.window.room(self.next.saturating_sub(unacked));
        let quiet = self.window.ack_every().saturating_sub(self.unasked + 1);
        (room, quiet.min(room.saturating_sub(1)))
    }

    /// The number of the next packet.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.psn(self.next)
    }

    /// The next packet was made of a whole request and emitted, and `asked` for an acknowledgement.
    #[inline]
    pub(crate) fn note_eager(&mut self, asked: bool) {
        self.unasked = if asked { 0 } else { self.unasked + 1 };
        self.advance(1, self.next + 1);
    }

    /// A request that nothing was before was carried out without having been queued.
    #[inline]
    pub(crate) fn pass_one(&mut self) {
        self.cursor += 1;
    }

    /// Emits what the window, the host's room and the ordering rules allow.
    pub(crate) fn transmit(
        &mut self,
        unacked: u64,
        now: Time,
        queue: &mut SendQueue,
        host: &mut impl Host,
    ) -> (Emitted, u64) {
        debug_assert!(self.cursor >= queue.head(), "what has ended is not emitted");
        let before = self.next;
        self.on_timer(now);
        if self.paused_until.is_some() || self.broken.is_some() {
            return (Emitted::All, 0);
        }
        if !self.again.is_empty() && !self.transmit_again(unacked, queue, host) {
            return (Emitted::NoRoom, 0);
        }
        if self.gathers(unacked) {
            self.window.on_full();
            return (Emitted::All, 0);
        }
        let outcome = loop {
            let Some(entry) = queue.get_mut(self.cursor) else {
                break Emitted::All;
            };
            // Asked once: a ring's reader may make room any time, and then no call would come again.
            if !host.room() {
                break Emitted::NoRoom;
            }
            let Some(sent) = self.step(unacked, entry, host) else {
                break Emitted::All;
            };
            match sent {
                Ok(packets) => self.advance(packets, entry.end()),
                Err(status) => {
                    self.broken = Some(status);
                    break Emitted::Broken;
                }
            }
        };
        (outcome, self.next - before)
    }

    /// Emits the next packet of `entry`, for which the host has room, and returns how many sequence numbers it
    /// takes; `None` if it has to wait.
    fn step(
        &mut self,
        unacked: u64,
        entry: &mut Entry,
        host: &mut impl Host,
    ) -> Option<Result<u32, WcStatus>> {
        if !entry.has_begun() {
            if self.held {
                return None;
            }
            if entry.request.kind.is_local() {
                return self.run_local(unacked, entry, host);
            }
            if self.path.link.direct {
                let all_before = self.next == unacked;
                match self.reach(all_before, &entry.request, host) {
                    Reach::Done => {
                        (entry.start, entry.cutting) = (self.next, Cutting::NONE);
                        self.reached += 1;
                        return Some(Ok(0));
                    }
                    Reach::Later => return None,
                    Reach::Not => {}
                }
            }
            entry.by_reference =
                self.path.link.by_reference && host.goes_by_reference(self.cursor, &entry.request);
            entry.start = self.next;
            entry.cutting = match entry.by_reference {
                true => Cutting::ONE,
                false => self.cutting(&entry.request),
            };
        } else if entry.cutting.packets == 0 {
            return Some(Ok(0)); // Carried out before the requester went back.
        }
        if entry.request.fence && self.next == entry.start && self.awaits_data() {
            return None;
        }
        let allowed = self.allowed(self.next.saturating_sub(unacked));
        if allowed == 0 {
            self.window.on_full();
            return None;
        }
        let at = u32::try_from(self.next - entry.start).ok()?;
        if entry.request.kind.awaits_data() {
            self.emit_question(at, allowed, entry, host)
        } else {
            Some(self.emit_data(at, allowed, entry, host))
        }
    }

    /// Packets that may be emitted while so many are not done with. The peer keeps [`EARLY_PACKETS_MAX`] at most: what it keeps
    /// counts while fewer are under way.
    #[inline]
    fn allowed(&self, begun: u64) -> u32 {
        let ahead = match begun < u64::from(EARLY_PACKETS_MAX) {
            true => self.ahead.packets + u64::from(self.kept),
            false => self.ahead.packets,
        };
        self.window.room_behind(begun, ahead)
    }

    /// While packets are missing the peer tells of the others bit by bit: what is emitted waits for room for a train.
    fn gathers(&self, unacked: u64) -> bool {
        let begun = self.next.saturating_sub(unacked);
        self.kept > 0 && self.path.link.trains && !self.window.fits_train(self.allowed(begun))
    }

    /// How a request is cut that begins now.
    fn cutting(&self, request: &Request) -> Cutting {
        let Path { mtu, link, keeps_early, .. } = self.path;
        Cutting::of(request, mtu, link.trains, keeps_early, self.reads_max())
    }

    /// Carries out a one-sided request on the peer's memory, if the host can reach that.
    ///
    /// What was sent before must have been executed first, so that nothing overtakes it.
    fn reach(&self, all_before: bool, request: &Request, host: &mut impl Host) -> Reach {
        match self.is_one_sided(&request.kind) {
            true => host.reach(self.cursor, request, all_before),
            false => Reach::Not,
        }
    }

    /// A host that reaches the peer's memory may carry it out.
    pub(crate) fn is_one_sided(&self, kind: &RequestKind) -> bool {
        // What awaits data fails without resources, and not here.
        matches!(kind, RequestKind::Write { imm: None, .. } | RequestKind::AtomicWrite { .. })
            || kind.awaits_data() && self.reads_max() > 0
    }

    /// The longest payload of a packet, in bytes.
    #[inline]
    pub(crate) fn segment(&self) -> u32 {
        self.path.mtu.bytes()
    }

    /// How many requests were carried out on the peer's memory since the last call.
    pub(crate) fn take_reached(&mut self) -> u64 {
        core::mem::take(&mut self.reached)
    }

    /// Carries out a request that never becomes a packet; `None` if it has to wait.
    ///
    /// A key is invalidated only when all before it is complete, fence or not, so that nothing is
    /// sent again through a key that is gone: the Local Invalidate Fence, IBTA Vol. 1 §10.6.5.1.
    fn run_local(
        &mut self,
        unacked: u64,
        entry: &mut Entry,
        host: &mut impl Host,
    ) -> Option<Result<u32, WcStatus>> {
        let invalidates = matches!(entry.request.kind, RequestKind::LocalInvalidate { .. });
        let waits = match invalidates {
            true => self.next != unacked,
            false => entry.request.fence && self.awaits_data(),
        };
        if waits {
            return None;
        }
        let outcome = run_locally(self.cursor, &entry.request.kind, host);
        if outcome.is_ok() {
            (entry.start, entry.cutting) = (self.next, Cutting::NONE);
        }
        Some(outcome.map(|()| 0))
    }

    /// Emits packet number `at` of a request that carries data.
    fn emit_data(
        &mut self,
        at: u32,
        allowed: u32,
        entry: &Entry,
        host: &mut impl Host,
    ) -> Result<u32, WcStatus> {
        let mut cut = self.path.cut(at, self.psn(self.next), self.cursor, entry);
        // By reference: a copy, made as soon as the headers are written, keeps the processor waiting.
        let cut = cut.as_mut().ok_or(WcStatus::General)?;
        // Ask at the end of each message, often enough to keep the window moving, and always when
        // it closes: an acknowledgement is the only thing that opens it.
        let ask = cut.last || allowed == 1 || self.unasked + 1 >= self.window.ack_every();
        cut.headers.bth.ack_request = ask;
        host.emit(&cut.headers, cut.payload, None).map_err(status_of)?;
        self.unasked = if ask { 0 } else { self.unasked + 1 };
        Ok(1)
    }

    /// Emits a request that is answered with data: an atomic, or a READ from packet number `at` of
    /// its response on. `None` if there are too many, or the answer does not fit the window.
    fn emit_question(
        &mut self,
        at: u32,
        allowed: u32,
        entry: &Entry,
        host: &mut impl Host,
    ) -> Option<Result<u32, WcStatus>> {
        if self.reads_max() == 0 {
            return Some(Err(WcStatus::LocalQpOperation)); // It could only wait for ever.
        }
        let again = self.reads.get(self.reads_asked);
        let packets = match again {
            Some(&end) => u32::try_from(end - self.next).ok()?,
            None if entry.cutting.whole => 1,
            None => self.window.read_packets(entry.cutting.packets - at, allowed),
        };
        // What goes back as a whole is always allowed by itself.
        let fits = match again {
            Some(_) => self.window.fits_again(packets, allowed),
            None => packets > 0,
        };
        let reads = self.reads_asked.saturating_sub(self.ahead.reads);
        let many = self.reads_asked >= self.reads_max().saturating_mul(READS_AHEAD);
        let room = self.reads_max().saturating_sub(reads);
        // One request after each answer would keep trains as short as they are.
        let gathers = self.reads_full && self.path.link.trains && again.is_none();
        self.reads_full = room == 0 || gathers && room < self.reads_max() / READS_TOGETHER;
        if self.reads_full || many || !fits {
            if !fits {
                self.window.on_full();
            }
            return None;
        }
        let Some((operation, extension)) = self.question(at, packets, entry) else {
            return Some(Err(WcStatus::General));
        };
        Some(self.ask(operation, extension, packets, entry, host))
    }

    /// Opcode and extended header of a request that is answered with data.
    fn question(&self, at: u32, packets: u32, entry: &Entry) -> Option<(Operation, Extension)> {
        match entry.request.kind {
            RequestKind::Read { va, rkey } => {
                let segment = entry.cutting.segment;
                let offset = at.saturating_mul(segment);
                let left = entry.request.len.saturating_sub(offset);
                let len = left.min(packets.saturating_mul(segment));
                let reth = Reth { va: va.wrapping_add(u64::from(offset)), rkey, len };
                Some((Operation::ReadRequest, Extension::Reth(reth)))
            }
            RequestKind::CompareSwap { va, rkey, compare, swap } => {
                let operands = AtomicEth { va, rkey, swap_or_add: swap, compare };
                Some((Operation::CompareSwap, Extension::Atomic(operands)))
            }
            RequestKind::FetchAdd { va, rkey, add } => {
                let operands = AtomicEth { va, rkey, swap_or_add: add, compare: 0 };
                Some((Operation::FetchAdd, Extension::Atomic(operands)))
            }
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Write { .. }
            | RequestKind::AtomicWrite { .. }
            | RequestKind::Flush { .. }
            | RequestKind::LocalInvalidate { .. }
            | RequestKind::BindWindow => None,
        }
    }

    /// The peer keeps so many packets that came after the oldest one it has not got.
    pub(crate) fn on_kept(&mut self, packets: u64) {
        self.kept = u16::try_from(packets).unwrap_or(u16::MAX).min(EARLY_PACKETS_MAX);
    }

    /// Takes note of the data that came early.
    #[inline]
    pub(crate) fn on_arrived(&mut self, arrived: &Arrived) {
        if !arrived.is_empty() || self.ahead.packets > 0 {
            self.ahead = self.ahead_of(arrived);
        }
    }

    #[cold]
    fn ahead_of(&self, arrived: &Arrived) -> Ahead {
        let pieces = self.reads.iter().zip(self.reads.iter().skip(1)).take(self.reads_asked);
        let reads = pieces.filter(|&(&start, &end)| arrived.has_all(start, end)).count();
        Ahead { packets: arrived.packets(), reads }
    }

    /// Where the piece ends that the packet with this sequence number is of.
    fn piece_of(&self, sequence: u64) -> Option<u64> {
        self.reads.iter().copied().find(|&end| end > sequence)
    }

    /// Emits a request that is answered with `packets` packets of data.
    fn ask(
        &mut self,
        operation: Operation,
        extension: Extension,
        packets: u32,
        entry: &Entry,
        host: &mut impl Host,
    ) -> Result<u32, WcStatus> {
        let headers = self.path.headers(operation, self.psn(self.next), 0, extension);
        let mut headers = headers.ok_or(WcStatus::General)?;
        headers.bth.ack_request = true;
        headers.xrceth = entry.request.to.xrceth();
        host.emit(&headers, Payload::None, None).map_err(status_of)?;
        self.unasked = 0;
        if self.reads_asked == self.reads.len() {
            self.reads.push_back(self.next + u64::from(packets));
        }
        self.reads_asked += 1;
        Ok(packets)
    }

    fn advance(&mut self, packets: u32, end: u64) {
        self.next += u64::from(packets);
        self.top = self.top.max(self.next);
        if self.next == end {
            self.cursor += 1;
        }
    }

    /// All before `unacked` is done with, `packets` of it newly.
    #[inline]
    pub(crate) fn on_progress(&mut self, unacked: u64, packets: u64, queue: &SendQueue) {
        self.window.on_progress(packets);
        self.kept = self.kept.saturating_sub(u16::try_from(packets).unwrap_or(u16::MAX));
        while self.reads.front().is_some_and(|&end| end <= unacked) {
            self.reads.pop_front();
            self.reads_asked = self.reads_asked.saturating_sub(1);
        }
        while self.fills.front().is_some_and(|&(_, end, _)| end <= unacked) {
            self.fills.pop_front();
        }
        if !self.again.is_empty() {
            self.again.retain(|&(_, to)| to > unacked);
        }
        // A request without a packet may have ended before the cursor has come past it again.
        self.cursor = self.cursor.max(queue.head());
        // After a rewind, acknowledgements of the first attempt may overtake the second.
        if unacked > self.next {
            self.next = unacked;
            self.find_cursor(queue);
        }
    }

    /// Emits again what is to be emitted again, as far as the host has room: false if it has none. What cannot be
    /// had any more is left to the ACK time-out.
    #[cold]
    fn transmit_again(&mut self, unacked: u64, queue: &SendQueue, host: &mut impl Host) -> bool {
        while let Some((from, to)) = self.again.pop_front() {
            let (mut from, to) = (from.max(unacked), to.min(self.next));
            while from < to {
                if !host.room() {
                    self.again.push_front((from, to));
                    return false;
                }
                from += self.emit_again(from, to, queue, host).unwrap_or(1);
            }
        }
        true
    }

    /// Emits the packet with this sequence number again, or asks again for the data from there to before `to`; returns
    /// how many sequence numbers that are.
    fn emit_again(
        &mut self,
        sequence: u64,
        to: u64,
        queue: &SendQueue,
        host: &mut impl Host,
    ) -> Option<u64> {
        let (index, entry) = queue.find(sequence)?;
        let at = u32::try_from(sequence - entry.start).ok()?;
        if entry.by_reference {
            return None;
        }
        let mut numbers = 1;
        let (headers, payload) = if entry.request.kind.awaits_data() {
            let packets = u32::try_from(self.piece_of(sequence)? - sequence).ok()?;
            // A part of a piece is asked for only where it is known that the peer answers that.
            let wanted = match self.path.keeps_early {
                true => u32::try_from(to - sequence).unwrap_or(packets),
                false => packets,
            };
            let packets = packets.min(wanted);
            numbers = u64::from(packets);
            let (operation, extension) = self.question(at, packets, entry)?;
            let mut headers = self.path.headers(operation, self.psn(sequence), 0, extension)?;
            headers.xrceth = entry.request.to.xrceth();
            (headers, Payload::None)
        } else {
            let cut = self.path.cut(at, self.psn(sequence), index, entry)?;
            (cut.headers, cut.payload)
        };
        let bth = Bth { ack_request: true, ..headers.bth };
        host.emit(&Headers { bth, ..headers }, payload, None).ok()?;
        Some(numbers)
    }

    /// Sends this packet and the last one again: the first fills a hole of which the peer has told once, the
    /// other shows the peer the next one. Of data, asks again for what is missing before `to`, if it is known that
    /// the peer has executed all of that, or for whole pieces.
    pub(crate) fn probe(&mut self, first: u64, to: Option<u64>, now: Time, queue: &SendQueue) {
        let last = self.next.saturating_sub(1).max(first);
        let asks = |sequence| {
            queue.find(sequence).is_some_and(|(_, entry)| entry.request.kind.awaits_data())
        };
        let most = first + u64::from(self.window.read_packets_max());
        let to = match (asks(first), to) {
            (true, Some(to)) => to.min(most),
            (true, None) => self.piece_end(self.next.min(most), queue),
            (false, _) => first + 1,
        };
        self.again.clear();
        self.again.push_back((first, to));
        if last > first && !asks(last) {
            self.again.push_back((last, last + 1));
        }
        self.note_fill(first, to, now);
    }

    /// The peer knows what to do with requests that come early: [`Bth::keeps_early`].
    #[cold]
    pub(crate) fn learn_of_keeping(&mut self) {
        self.path.keeps_early = self.path.link.keeps_early;
    }

    /// Requests say that they may be kept if they come early.
    #[inline]
    pub(crate) fn knows_of_keeping(&self) -> bool {
        self.path.keeps_early
    }

    /// Sends what is missing again, if nothing of it was sent again in the last `late_ns` nanoseconds; true if so.
    pub(crate) fn fill(&mut self, missing: Missing, now: Time, queue: &SendQueue) -> bool {
        let Missing { from, to, executed, late_ns } = missing;
        let to = if executed { to } else { self.piece_end(to, queue) }.min(self.next);
        let recent = |&(start, end, at): &(u64, u64, Time)| {
            start < to && from < end && now < at.plus_nanos(late_ns)
        };
        if from >= to || self.fills.iter().any(recent) {
            return false;
        }
        self.note_fill(from, to, now);
        self.again.push_back((from, to));
        true
    }

    /// Where the piece ends that packet `to` is within; `to` itself, if that is where one ends. A piece that the peer
    /// may not have executed is asked for whole: otherwise the peer would have executed the beginning of it, and
    /// ignore all requests that begin there and go on to its end.
    fn piece_end(&self, to: u64, queue: &SendQueue) -> u64 {
        let Some((_, entry)) = queue.find(to) else {
            return to;
        };
        match to > entry.start && entry.request.kind.awaits_data() {
            true => self.piece_of(to - 1).unwrap_or(to),
            false => to,
        }
    }

    /// Remembers what was sent again, and when.
    fn note_fill(&mut self, from: u64, to: u64, now: Time) {
        if self.fills.len() >= FILLS_MAX {
            self.fills.pop_front();
        }
        self.fills.push_back((from, to, now));
    }

    /// A round trip has ended that took so many nanoseconds; the shortest one took `base_ns`.
    pub(crate) fn on_round_trip(&mut self, nanos: u64, base_ns: u64, unacked: u64) {
        self.window.on_round_trip(nanos, base_ns, unacked, self.top);
    }

    /// The peer has got marked packets.
    pub(crate) fn on_marks(&mut self, unacked: u64) {
        self.window.on_marks(unacked, self.top);
    }

    /// So many packets were lost.
    pub(crate) fn on_losses(&mut self, packets: u64) {
        self.window.on_losses(packets);
    }

    /// Packets were lost, and all after them, or it is not known how many.
    pub(crate) fn on_loss(&mut self, unacked: u64) {
        self.window.on_loss(unacked, self.top);
    }

    /// Goes back: the next packet is the one with this sequence number.
    pub(crate) fn rewind(&mut self, to: u64, queue: &SendQueue) {
        debug_assert!(to <= self.top, "nothing beyond the top was ever emitted");
        self.next = to;
        (self.unasked, self.kept) = (0, 0);
        self.again.clear();
        self.fills.clear();
        self.reads_asked = self.reads.iter().take_while(|&&end| end <= to).count();
        self.find_cursor(queue);
    }

    /// Lets time pass: a pause may be over.
    pub(crate) fn on_timer(&mut self, now: Time) {
        if now != Time::UNKNOWN && self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
    }

    /// Emits nothing before `until`.
    pub(crate) fn pause(&mut self, until: Time) {
        self.paused_until = Some(until);
    }

    /// Puts the cursor on the request that `next` belongs to.
    fn find_cursor(&mut self, queue: &SendQueue) {
        self.broken = None;
        self.cursor = queue.head();
        while let Some(entry) = queue.get(self.cursor) {
            if entry.start == NOT_STARTED || entry.end() > self.next {
                break;
            }
            self.cursor += 1;
        }
    }
}

/// Of the READs and atomics that may be under way at once, so many times as many may not be done with, because others
/// before them are not.
const READS_AHEAD: usize = 4;
/// Once the limit was reached, one part in so many of it is asked for together.
const READS_TOGETHER: usize = 4;
/// READs and atomics under way that there is memory for from the beginning.
const READS_USUAL: usize = 16;
/// Reports of missing packets that are remembered.
const FILLS_MAX: usize = 64;

/// Carries out a request that never becomes a packet.
pub(crate) fn run_locally(
    index: u64,
    kind: &RequestKind,
    host: &mut impl Host,
) -> Result<(), WcStatus> {
    let failed = |_: AccessError| WcStatus::MemoryWindowBind;
    match *kind {
        RequestKind::LocalInvalidate { rkey } => {
            host.invalidate(rkey, Invalidator::Owner).map_err(failed)
        }
        RequestKind::BindWindow => host.bind(index).map_err(failed),
        RequestKind::Send { .. }
        | RequestKind::SendInvalidate { .. }
        | RequestKind::Write { .. }
        | RequestKind::Read { .. }
        | RequestKind::CompareSwap { .. }
        | RequestKind::FetchAdd { .. }
        | RequestKind::AtomicWrite { .. }
        | RequestKind::Flush { .. } => Err(WcStatus::General),
    }
}

/// How a request ends whose packet could not be emitted.
pub(crate) const fn status_of(error: EmitError) -> WcStatus {
    match error {
        EmitError::Local(_) | EmitError::Remote(_) => WcStatus::LocalProtection,
    }
}

/// The low 24 bits of a sequence number.
fn low_bits(sequence: u64) -> u32 {
    u32::try_from(sequence & 0x00ff_ffff).unwrap_or(0)
}

#[cfg(test)]
mod tests;
