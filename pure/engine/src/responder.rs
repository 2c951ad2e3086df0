//! The responder: serves the peer's requests and owes it answers.
//!
//! Requests are executed in order, each once; duplicates of READs are read again, duplicates of
//! atomics answered from memory, duplicates of the rest acknowledged. What is owed is kept in two
//! places: a bounded queue of READ and atomic responses, and one acknowledgement, which covers all
//! before it and therefore always goes out last.
//!
//! Read IBTA Vol. 1 §9.7.4 (responder checks) and §9.9.3 (responder errors) before changing this
//! file.

mod replies;

use crate::access::Access;
use crate::assembler::{Assembler, INVALID, Refusal, check_remote, range_of};
use crate::attributes::Settings;
use crate::counters::QpCounters;
use crate::eager::EagerHeader;
use crate::early::{Early, EarlyBudget, Keeping};
use crate::host::{AccessError, AtomicOp, Host, Payload, Range};
use crate::packetizer::Path;
use crate::status::QpEvent;
use crate::work::Request;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Extension, Feth, Msn, Nak, Operation, Packet, Psn, Reth, RnrTimer,
    Syndrome,
};
use replies::Replies;

/// What a request did to the queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Served {
    /// It goes on.
    Fine,
    /// It cannot: the peer was refused for good, or the owner's buffers failed. The event is for
    /// what no completion tells.
    Fatal(Option<QpEvent>),
}

/// How far a responder has come: what another needs to know to go on in its place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Standing {
    /// Sequence number of the packet that is expected.
    pub expected: Psn,
    /// Messages that were completed.
    pub msn: Msn,
}

/// The acknowledgement that is owed. All that carry no number name the packet that is expected when it
/// leaves, and cover everything before that.
#[derive(Clone, Copy, Debug)]
enum Owed {
    Nothing,
    Ack,
    /// A packet came again that is older than the READs and atomics executed last: an acknowledgement up to this
    /// number, which is before theirs. One with the number of an answer that was lost would pass for it.
    AckUpTo(Psn),
    /// The last packet that was executed is an ATOMIC WRITE, and the acknowledgement is the answer
    /// to a READ of nothing. IBTA Vol. 1 Annex A19.
    Written,
    /// The expected packet found no receive.
    NotReady,
    /// The expected packet is missing: `seen`, which comes after it, was dropped.
    Gap {
        seen: Psn,
    },
    /// The packet with this number is refused for good.
    Refusal(Psn, Nak),
}

/// The serving half of a reliable queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    path: Path,
    assembler: Assembler,
    rnr_timer: RnrTimer,
    expected: Psn,
    msn: Msn,
    /// First number of the READs and atomics that were executed last, one after the other, and the one after them.
    answered: [Psn; 2],
    /// The peer knows, or is about to be told, that the expected packet has to come again; until it
    /// does, those after it are dropped silently.
    refused: bool,
    replies: Replies,
    owed: Owed,
    /// The peer waits for the acknowledgement that is owed: it has asked for it in the midst of a message, or again.
    awaited: bool,
    /// There was no room for the acknowledgement that is owed: it goes before requests, next time.
    overdue: bool,
    /// Requests that came before their turn.
    early: Early,
}

impl Responder {
    pub(crate) fn new(path: Path, settings: &Settings) -> Self {
        Self {
            path,
            assembler: Assembler::new(path, settings.access),
            rnr_timer: settings.min_rnr_timer,
            expected: settings.expected_psn,
            msn: Msn::new(0),
            answered: [settings.expected_psn; 2],
            refused: false,
            replies: Replies::new(path, usize::from(settings.max_dest_rd_atomic)),
            owed: Owed::Nothing,
            awaited: false,
            overdue: false,
            early: Early::default(),
        }
    }

    /// Requests that come early take memory from this budget.
    pub(crate) fn with_budget(self, budget: &EarlyBudget) -> Self {
        Self { early: Early::new(budget.clone()), ..self }
    }

    /// How far it has come.
    pub(crate) fn standing(&self) -> Standing {
        Standing { expected: self.expected, msn: self.msn }
    }

    /// Goes on where another has come to. A message of which it has the beginning is forgotten, and so
    /// is what it owes.
    pub(crate) fn resume(&mut self, standing: Standing, host: &mut impl Host) {
        self.assembler.forget(host);
        self.forget_debts();
        self.early.clear();
        self.refused = false;
        (self.expected, self.msn) = (standing.expected, standing.msn);
    }

    /// Sequence numbers that a request takes.
    pub(crate) fn span(&self, packet: &Packet<'_>) -> u32 {
        match (packet.headers.bth.opcode.operation(), packet.headers.extension) {
            (Operation::ReadRequest, Extension::Reth(reth)) => self.path.mtu.packets(reth.len),
            (_, _) => 1,
        }
    }

    pub(crate) fn assembler(&self) -> &Assembler {
        &self.assembler
    }

    pub(crate) fn assembler_mut(&mut self) -> &mut Assembler {
        &mut self.assembler
    }

    /// Changes where packets go.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = Path { keeps_early: self.path.keeps_early, ..path };
        self.replies.set_path(self.path);
    }

    /// Changes how long the peer is told to wait when no receive is posted.
    pub(crate) fn set_rnr_timer(&mut self, timer: RnrTimer) {
        self.rnr_timer = timer;
    }

    /// Changes how many READs and atomics are remembered at once.
    pub(crate) fn set_reads_max(&mut self, reads_max: u8) {
        self.replies.set_max(usize::from(reads_max));
    }

    /// Serves one request packet.
    pub(crate) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        let bth = &packet.headers.bth;
        let ahead = bth.psn.since(self.expected);
        if ahead > 0 {
            counters.out_of_seq_request += 1;
            self.on_early(packet);
            return Served::Fine;
        }
        if ahead < 0 {
            counters.duplicate_request += 1;
            self.on_duplicate(packet, host);
            return Served::Fine;
        }
        match self.execute(packet, counters, host) {
            Ok(packets) => {
                self.on_executed(bth, packets);
                match self.early.is_empty() {
                    true => Served::Fine,
                    false => self.serve_early(counters, host),
                }
            }
            Err(refusal) => self.refuse(refusal, counters, host),
        }
    }

    /// Keeps a packet that others are missing before, if the peer knows that it may be kept.
    #[cold]
    fn on_early(&mut self, packet: &Packet<'_>) {
        let bth = &packet.headers.bth;
        if !bth.keeps_early || !self.path.keeps_early || self.refused {
            return self.on_gap(bth.psn);
        }
        let span = self.span(packet);
        match self.early.keep(packet, span, self.expected) {
            Keeping::Kept => {}
            Keeping::Known if bth.ack_request => self.early.ask(),
            Keeping::Known => {}
            Keeping::NoRoom => self.on_gap(bth.psn),
        }
    }

    /// Serves the requests that came early and have their turn now.
    #[cold]
    fn serve_early(&mut self, counters: &mut QpCounters, host: &mut impl Host) -> Served {
        while let Some(kept) = self.early.next(self.expected) {
            match self.execute(&kept.packet(), counters, host) {
                Ok(packets) => self.on_executed(&kept.packet().headers.bth, packets),
                Err(refusal) => return self.refuse(refusal, counters, host),
            }
        }
        self.early.on_filled();
        Served::Fine
    }

    /// The next packet is this one, and nothing unusual is going on.
    #[inline]
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        let usual = matches!(self.owed, Owed::Nothing | Owed::Ack) && !self.refused;
        psn == self.expected && usual && !self.assembler.is_busy()
    }

    /// Serves the SEND of an eager header that [`Responder::awaits`]. Its acknowledgement is owed.
    ///
    /// # Errors
    ///
    /// What refusing it has led to.
    #[inline(always)]
    pub(crate) fn on_eager(
        &mut self,
        eager: &EagerHeader,
        len: u32,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<(), Served> {
        let landed = self.assembler.on_eager(eager, len, counters, host);
        landed.map_err(|refusal| self.refuse(refusal, counters, host))?;
        self.note_eager();
        Ok(())
    }

    /// The SEND that was expected next was served. Its acknowledgement is owed.
    #[inline]
    pub(crate) fn note_eager(&mut self) {
        (self.expected, self.msn) = (self.expected.plus(1), self.msn.next());
        self.owed = Owed::Ack;
    }

    /// What is owed, if anything, is an acknowledgement that can ride on a request.
    #[inline]
    pub(crate) fn owes_little(&self) -> bool {
        matches!(self.owed, Owed::Nothing | Owed::Ack) && !self.owes_data() && !self.early.is_due()
    }

    /// What is owed is an acknowledgement of what went well.
    #[inline]
    pub(crate) fn owes_plain_ack(&self) -> bool {
        matches!(self.owed, Owed::Ack) && !self.early.is_due()
    }

    /// The peer may have to wait for the acknowledgement that is owed before it goes on.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// The message sequence number of what was executed.
    #[inline]
    pub(crate) fn received(&self) -> Msn {
        self.msn
    }

    /// The number up to which everything was executed, if that is owed and nothing else.
    #[inline]
    pub(crate) fn plain_ack(&self) -> Option<Psn> {
        self.owes_plain_ack().then(|| self.expected.minus(1))
    }

    /// What [`Responder::plain_ack`] says is on its way.
    #[inline]
    pub(crate) fn note_ack(&mut self) {
        debug_assert!(matches!(self.owed, Owed::Nothing | Owed::Ack), "nothing else is owed");
        (self.owed, self.overdue, self.awaited) = (Owed::Nothing, false, false);
    }

    /// Drops a packet because another is missing before it. The peer is told once.
    fn on_gap(&mut self, psn: Psn) {
        match self.owed {
            Owed::Gap { seen } if psn.since(seen) <= 0 => {}
            Owed::Gap { .. } => self.owed = Owed::Gap { seen: psn },
            Owed::Nothing | Owed::Ack | Owed::AckUpTo(_) | Owed::Written if !self.refused => {
                self.refused = true;
                self.owed = Owed::Gap { seen: psn };
            }
            Owed::Nothing
            | Owed::Ack
            | Owed::AckUpTo(_)
            | Owed::Written
            | Owed::NotReady
            | Owed::Refusal(..) => {}
        }
    }

    /// The expected packet was executed, and the one `packets` later is expected next.
    fn on_executed(&mut self, bth: &Bth, packets: u32) {
        let operation = bth.opcode.operation();
        let before = self.expected;
        self.expected = before.plus(packets);
        if operation.is_end() {
            self.msn = self.msn.next();
        }
        let answered = awaits_data(operation); // With data, which acknowledge all before them.
        let answered_empty = matches!(operation, Operation::AtomicWrite | Operation::Flush);
        if answered || answered_empty {
            let [first, end] = self.answered;
            self.answered = [if end == before { first } else { before }, self.expected];
        }
        self.owed = match self.owed {
            // What came too early was dropped, and must come again.
            Owed::Gap { seen } if seen.since(self.expected) >= 0 => Owed::Gap { seen },
            Owed::Refusal(psn, code) => Owed::Refusal(psn, code),
            _ if answered => Owed::Nothing,
            _ if answered_empty => Owed::Written,
            Owed::Ack | Owed::AckUpTo(_) | Owed::Written | Owed::Gap { .. } => Owed::Ack,
            Owed::Nothing | Owed::NotReady if bth.ack_request => Owed::Ack,
            Owed::Nothing | Owed::NotReady => Owed::Nothing,
        };
        let asked = self.awaited || bth.ack_request && !operation.is_end();
        self.awaited = asked && matches!(self.owed, Owed::Ack);
        self.refused = matches!(self.owed, Owed::Gap { .. });
    }

    #[cold]
    fn refuse(
        &mut self,
        refusal: Refusal,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        self.early.clear(); // The peer goes back to what is refused, or gives up.
        match refusal {
            Refusal::Lost => {
                self.assembler.forget(host);
                Served::Fine
            }
            Refusal::NotReady => {
                counters.send_rnr_err += 1;
                self.refused = true;
                self.owed = Owed::NotReady;
                Served::Fine
            }
            Refusal::Nak(code, status) => {
                counters.note_refusal(code);
                self.owed = Owed::Refusal(self.expected, code);
                let told = self.assembler.abandon(status, counters, host);
                Served::Fatal(if told { None } else { event_of(code) })
            }
        }
    }

    /// Executes the expected packet; says how many sequence numbers it takes.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let operation = packet.headers.bth.opcode.operation();
        self.assembler.check(packet)?;
        match (operation, packet.headers.extension) {
            (Operation::ReadRequest, Extension::Reth(reth)) => self.accept_read(reth, host),
            (Operation::CompareSwap, Extension::Atomic(operands)) => {
                let op =
                    AtomicOp::CompareSwap { compare: operands.compare, swap: operands.swap_or_add };
                self.run_atomic(operands, op, host)
            }
            (Operation::FetchAdd, Extension::Atomic(operands)) => {
                self.run_atomic(operands, AtomicOp::FetchAdd { add: operands.swap_or_add }, host)
            }
            (Operation::AtomicWrite, Extension::Reth(reth)) => {
                self.write_at_once(reth, packet.payload, host)
            }
            (Operation::Flush, Extension::Flush(feth, reth)) => self.flush(feth, reth, host),
            (_, _) if operation.is_write() => {
                self.assembler.on_write(packet, counters, host).map(|()| 1)
            }
            (_, _) if operation.is_send() => {
                self.assembler.on_send(packet, counters, host).map(|()| 1)
            }
            // What is left is defined for others, but not served by this queue pair.
            (_, _) => Err(INVALID),
        }
    }

    fn write_at_once(
        &mut self,
        reth: Reth,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let bytes = <[u8; 8]>::try_from(payload).map_err(|_| INVALID)?;
        if !self.access().contains(Access::REMOTE_WRITE) || reth.len != 8 {
            return Err(INVALID);
        }
        host.atomic_write(reth.rkey, reth.va, bytes)?;
        Ok(1)
    }

    /// What was written before is there already: bytes are in memory when their packet was served. What is left is
    /// whether the peer may write there. Nothing here outlives a loss of power.
    fn flush(&self, feth: Feth, reth: Reth, host: &impl Host) -> Result<u32, Refusal> {
        let known = matches!(feth.placement, Feth::GLOBAL | Feth::PERSISTENT | Feth::BOTH)
            && matches!(feth.selectivity, Feth::RANGE | Feth::REGION);
        if !known || !self.access().contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        if feth.placement != Feth::GLOBAL {
            return Err(AccessError::Denied.into());
        }
        match feth.selectivity {
            Feth::RANGE => check_remote(range_of(reth), Access::REMOTE_WRITE, host)?,
            // Of the whole region, whatever the range says.
            _ => match host.check(Range { len: 0, ..range_of(reth) }, Access::REMOTE_WRITE) {
                Ok(()) | Err(AccessError::OutOfBounds) => {}
                Err(error) => return Err(error.into()),
            },
        }
        Ok(1)
    }

    fn access(&self) -> Access {
        self.assembler.access()
    }

    fn accept_read(&mut self, reth: Reth, host: &impl Host) -> Result<u32, Refusal> {
        if !self.access().contains(Access::REMOTE_READ) || reth.len > Request::LEN_MAX {
            return Err(INVALID);
        }
        self.check_resources()?;
        check_remote(range_of(reth), Access::REMOTE_READ, host)?;
        let (psn, range, msn) = (self.expected, range_of(reth), self.msn.next());
        self.replies.push_read(psn, range, msn);
        Ok(self.path.mtu.packets(reth.len))
    }

    fn run_atomic(
        &mut self,
        operands: AtomicEth,
        op: AtomicOp,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        if !self.access().contains(Access::REMOTE_ATOMIC) {
            return Err(INVALID);
        }
        self.check_resources()?;
        let value = host.atomic(operands.rkey, operands.va, op)?;
        let (psn, msn) = (self.expected, self.msn.next());
        self.replies.push_atomic(psn, value, msn);
        Ok(1)
    }

    /// The two sides have agreed on how many READs and atomics there may be at once.
    fn check_resources(&self) -> Result<(), Refusal> {
        if self.replies.has_room() { Ok(()) } else { Err(INVALID) }
    }

    /// A request that was served before: the answer got lost, or the network made a copy.
    fn on_duplicate(&mut self, packet: &Packet<'_>, host: &impl Host) {
        let bth = &packet.headers.bth;
        if bth.ack_request {
            self.early.ask();
        }
        match (bth.opcode.operation(), packet.headers.extension) {
            (Operation::ReadRequest, Extension::Reth(reth)) => self.repeat_read(bth, reth, host),
            (Operation::CompareSwap | Operation::FetchAdd, _) => {
                self.replies.repeat_atomic(bth.psn)
            }
            (Operation::AtomicWrite | Operation::Flush, _) if bth.psn.plus(1) == self.expected => {
                if matches!(self.owed, Owed::Nothing) {
                    self.owed = Owed::Written;
                }
            }
            (_, _) => {
                if bth.ack_request && matches!(self.owed, Owed::Nothing) {
                    self.owed = self.acknowledgement_of(bth.psn);
                }
                self.awaited |= bth.ack_request && matches!(self.owed, Owed::Ack);
            }
        }
    }

    /// What tells the peer most of a packet with this number that came again.
    fn acknowledgement_of(&self, psn: Psn) -> Owed {
        let [first, end] = self.answered;
        match end == self.expected && psn.since(first) < 0 {
            true => Owed::AckUpTo(first.minus(1)),
            false => Owed::Ack,
        }
    }

    /// Reads again from memory. A request that could not have been served before is ignored.
    fn repeat_read(&mut self, bth: &Bth, reth: Reth, host: &impl Host) {
        let psn = bth.psn;
        let packets = self.path.mtu.packets(reth.len);
        let before = i64::from(self.expected.since(psn));
        let served = reth.len <= Request::LEN_MAX && i64::from(packets) <= before;
        let allowed = self.access().contains(Access::REMOTE_READ)
            && check_remote(range_of(reth), Access::REMOTE_READ, host).is_ok();
        match (served && allowed, bth.keeps_early && self.path.keeps_early) {
            (true, true) => self.replies.fill_read(psn, range_of(reth), self.msn),
            (true, false) => self.replies.repeat_read(psn, range_of(reth), self.msn),
            (false, _) => {}
        }
    }

    /// Owes nothing any more.
    pub(crate) fn forget_debts(&mut self) {
        self.replies.clear();
        (self.owed, self.awaited) = (Owed::Nothing, false);
        self.early.clear();
    }

    /// There is something to emit besides an acknowledgement.
    pub(crate) fn owes_data(&self) -> bool {
        !self.replies.is_empty()
    }

    /// There is an acknowledgement to emit.
    pub(crate) fn owes_ack(&self) -> bool {
        !matches!(self.owed, Owed::Nothing) || self.early.is_due()
    }

    /// Emits the responses that are owed, and an acknowledgement that is overdue, as far as the host has
    /// room.
    pub(crate) fn transmit_data(
        &mut self,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        match self.replies.transmit(host) {
            Ok(()) => {
                if self.overdue {
                    self.transmit_ack(host);
                }
                Served::Fine
            }
            Err(psn) => {
                // The region went away between the request and its answer.
                counters.note_refusal(Nak::RemoteAccess);
                self.replies.clear();
                self.owed = Owed::Refusal(psn, Nak::RemoteAccess);
                Served::Fatal(Some(QpEvent::QpAccessErr))
            }
        }
    }

    /// Emits the acknowledgement that is owed, if all data before it is out and there is room.
    pub(crate) fn transmit_ack(&mut self, host: &mut impl Host) {
        self.overdue = self.owes_ack() && (self.owes_data() || !host.room());
        if self.overdue {
            return;
        }
        if self.early.is_due() && self.report_holes(host) {
            return;
        }
        let (psn, syndrome) = match self.owed {
            Owed::Nothing => return,
            Owed::Ack | Owed::Written => (self.expected.minus(1), Syndrome::ACK),
            Owed::AckUpTo(psn) => (psn, Syndrome::ACK),
            Owed::NotReady => (self.expected, Syndrome::RnrNak(self.rnr_timer)),
            Owed::Gap { .. } => (self.expected, Syndrome::Nak(Nak::SequenceError)),
            Owed::Refusal(psn, code) => (psn, Syndrome::Nak(code)),
        };
        let operation = match self.owed {
            Owed::Written => Operation::ReadResponseOnly,
            Owed::Nothing
            | Owed::Ack
            | Owed::AckUpTo(_)
            | Owed::NotReady
            | Owed::Gap { .. }
            | Owed::Refusal(..) => Operation::Acknowledge,
        };
        (self.owed, self.awaited) = (Owed::Nothing, false);
        let aeth = Aeth { syndrome, msn: self.msn };
        if let Some(mut headers) = self.path.headers(operation, psn, 0, Extension::Aeth(aeth)) {
            headers.bth.keeps_early &= matches!(syndrome, Syndrome::Ack { .. });
            let _ = host.emit(&headers, Payload::None, None); // Cannot fail: there is room, and no payload.
        }
    }

    /// Reports what is missing, as far as the host has room; true if that says all that is owed.
    #[cold]
    fn report_holes(&mut self, host: &mut impl Host) -> bool {
        let mut told = false;
        for hole in self.early.report(self.expected) {
            if !host.room() {
                break; // The rest is told with the next report.
            }
            let aeth = Aeth { syndrome: Syndrome::Nak(Nak::SequenceError), msn: hole.to_msn() };
            let extension = Extension::Aeth(aeth);
            let headers = self.path.headers(Operation::Acknowledge, self.expected, 0, extension);
            if let Some(headers) = headers {
                let _ = host.emit(&headers, Payload::None, None); // Cannot fail, as above.
                told = true;
            }
        }
        match self.owed {
            Owed::Ack | Owed::AckUpTo(_) if told => {
                (self.owed, self.awaited) = (Owed::Nothing, false);
            }
            Owed::Nothing
            | Owed::Ack
            | Owed::AckUpTo(_)
            | Owed::Written
            | Owed::NotReady
            | Owed::Gap { .. }
            | Owed::Refusal(..) => {}
        }
        matches!(self.owed, Owed::Nothing) || !host.room()
    }
}

/// Answered with data instead of an acknowledgement.
const fn awaits_data(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
}

/// What the owner hears of a refusal.
const fn event_of(code: Nak) -> Option<QpEvent> {
    match code {
        Nak::InvalidRequest => Some(QpEvent::QpReqErr),
        Nak::RemoteAccess => Some(QpEvent::QpAccessErr),
        Nak::RemoteOperation => Some(QpEvent::QpFatal),
        Nak::SequenceError | Nak::InvalidRdRequest => None,
    }
}

#[cfg(test)]
mod tests;
