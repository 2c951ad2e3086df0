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

use crate::attributes::{Access, RtrAttributes};
use crate::counters::QpCounters;
use crate::host::{AccessError, AtomicOp, Host, Landing, Payload, Range, Receive, ReceiveDone};
use crate::requester::Path;
use crate::status::{WcOpcode, WcStatus};
use crate::work::Request;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Extension, Imm, Msn, Nak, Operation, Packet, Psn, Reth, RnrTimer,
    Syndrome,
};
use replies::Replies;

/// What a request did to the queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Served {
    /// It goes on.
    Fine,
    /// It cannot: the peer was refused for good, or the owner's buffers failed.
    Fatal,
}

/// A message of which the beginning has arrived.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    Send { receive: Receive, offset: u32 },
    Write { reth: Reth, offset: u32 },
}

/// The acknowledgement that is owed. All but the last name the packet that is expected when it
/// leaves, and cover everything before that.
#[derive(Clone, Copy, Debug)]
enum Owed {
    Nothing,
    Ack,
    /// The expected packet found no receive.
    NotReady,
    /// The expected packet is missing: `seen`, which comes after it, was dropped.
    Gap {
        seen: Psn,
    },
    /// The packet with this number is refused for good.
    Refusal(Psn, Nak),
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted: the peer may try again.
    NotReady,
    /// The peer is refused with this code; a receive in use ends with this status.
    Nak(Nak, WcStatus),
}

const INVALID: Refusal = Refusal::Nak(Nak::InvalidRequest, WcStatus::RemoteInvalidRequest);

impl From<AccessError> for Refusal {
    /// All access errors look the same to the peer, so that it learns nothing about the layout.
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Denied | AccessError::OutOfBounds | AccessError::UnknownKey => {
                Self::Nak(Nak::RemoteAccess, WcStatus::LocalAccess)
            }
            AccessError::Misaligned => INVALID,
        }
    }
}

/// The serving half of a reliable queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    path: Path,
    access: Access,
    rnr_timer: RnrTimer,
    expected: Psn,
    msn: Msn,
    message: Message,
    /// The peer knows, or is about to be told, that the expected packet has to come again; until it
    /// does, those after it are dropped silently.
    refused: bool,
    replies: Replies,
    owed: Owed,
}

impl Responder {
    pub(crate) fn new(path: Path, access: Access, attributes: &RtrAttributes) -> Self {
        Self {
            path,
            access,
            rnr_timer: attributes.min_rnr_timer,
            expected: attributes.expected_psn,
            msn: Msn::new(0),
            message: Message::None,
            refused: false,
            replies: Replies::new(path, usize::from(attributes.max_dest_rd_atomic)),
            owed: Owed::Nothing,
        }
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
            self.on_gap(bth.psn);
            return Served::Fine;
        }
        if ahead < 0 {
            counters.duplicate_request += 1;
            self.on_duplicate(packet, host);
            return Served::Fine;
        }
        match self.execute(packet, host) {
            Ok(packets) => {
                self.on_executed(bth, packets);
                Served::Fine
            }
            Err(refusal) => self.refuse(refusal, counters, host),
        }
    }

    /// Drops a packet because another is missing before it. The peer is told once.
    fn on_gap(&mut self, psn: Psn) {
        match self.owed {
            Owed::Gap { seen } if psn.since(seen) <= 0 => {}
            Owed::Gap { .. } => self.owed = Owed::Gap { seen: psn },
            Owed::Nothing | Owed::Ack if !self.refused => {
                self.refused = true;
                self.owed = Owed::Gap { seen: psn };
            }
            Owed::Nothing | Owed::Ack | Owed::NotReady | Owed::Refusal(..) => {}
        }
    }

    /// The expected packet was executed, and the one `packets` later is expected next.
    fn on_executed(&mut self, bth: &Bth, packets: u32) {
        let operation = bth.opcode.operation();
        self.expected = self.expected.plus(packets);
        if operation.is_end() {
            self.msn = self.msn.next();
        }
        let answered = awaits_data(operation); // With data, which acknowledge all before them.
        self.owed = match self.owed {
            // What came too early was dropped, and must come again.
            Owed::Gap { seen } if seen.since(self.expected) >= 0 => Owed::Gap { seen },
            Owed::Nothing | Owed::Ack | Owed::NotReady | Owed::Gap { .. } if answered => {
                Owed::Nothing
            }
            Owed::Ack | Owed::Gap { .. } => Owed::Ack,
            Owed::Nothing | Owed::NotReady if bth.ack_request => Owed::Ack,
            Owed::Nothing | Owed::NotReady => Owed::Nothing,
            Owed::Refusal(psn, code) => Owed::Refusal(psn, code),
        };
        self.refused = matches!(self.owed, Owed::Gap { .. });
    }

    fn refuse(
        &mut self,
        refusal: Refusal,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        match refusal {
            Refusal::NotReady => {
                counters.send_rnr_err += 1;
                self.refused = true;
                self.owed = Owed::NotReady;
                Served::Fine
            }
            Refusal::Nak(code, status) => {
                counters.send_nak_err += 1;
                self.owed = Owed::Refusal(self.expected, code);
                self.abandon(status, host);
                Served::Fatal
            }
        }
    }

    /// Ends the receive that a message was filling, if there is one.
    pub(crate) fn abandon(&mut self, status: WcStatus, host: &mut impl Host) {
        if let Message::Send { receive, offset } = self.message {
            self.end_receive(receive, status, WcOpcode::Receive, offset, None, false, host);
        }
        self.message = Message::None;
    }

    /// Executes the expected packet; says how many sequence numbers it takes.
    fn execute(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<u32, Refusal> {
        let operation = packet.headers.bth.opcode.operation();
        self.check_length(operation, packet.payload.len())?;
        let idle = matches!(self.message, Message::None);
        if operation.is_start() != idle {
            return Err(INVALID);
        }
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
            (_, extension) if operation.is_write() => self.on_write(packet, extension, host),
            (_, extension) if operation.is_send() => self.on_send(packet, extension, host),
            // What is left is defined for others, but not served by this queue pair.
            (_, _) => Err(INVALID),
        }
    }

    /// FIRST and MIDDLE fill the path MTU, LAST is not empty, nothing exceeds it.
    fn check_length(&self, operation: Operation, len: usize) -> Result<(), Refusal> {
        let mtu = usize::try_from(self.path.mtu.bytes()).unwrap_or(0);
        let fits = if !operation.has_payload() {
            len == 0
        } else if !operation.is_end() {
            len == mtu
        } else if !operation.is_start() {
            (1..=mtu).contains(&len)
        } else {
            len <= mtu
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    fn on_send(
        &mut self,
        packet: &Packet<'_>,
        extension: Extension,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let bth = &packet.headers.bth;
        let operation = bth.opcode.operation();
        let imm = match extension {
            Extension::None => None,
            Extension::Imm(imm) => Some(imm),
            // SEND with invalidate and the rest are not served here.
            Extension::Reth(_)
            | Extension::RethImm(..)
            | Extension::Invalidate(_)
            | Extension::Atomic(_)
            | Extension::Aeth(_)
            | Extension::AtomicAck(..)
            | Extension::Cnp => return Err(INVALID),
        };
        let (receive, offset) = match self.message {
            Message::Send { receive, offset } => (receive, offset),
            Message::None => (host.take_receive().ok_or(Refusal::NotReady)?, 0),
            Message::Write { .. } => return Err(INVALID),
        };
        self.message = Message::Send { receive, offset };
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let end = offset.checked_add(len).filter(|&end| end <= receive.len);
        let Some(end) = end else {
            return Err(Refusal::Nak(Nak::InvalidRequest, WcStatus::LocalLength));
        };
        if host.scatter(Landing::Receive(receive), offset, packet.payload).is_err() {
            return Err(Refusal::Nak(Nak::RemoteOperation, WcStatus::LocalProtection));
        }
        self.message = Message::Send { receive, offset: end };
        if operation.is_end() {
            self.message = Message::None;
            let solicited = bth.solicited;
            let (status, opcode) = (WcStatus::Success, WcOpcode::Receive);
            self.end_receive(receive, status, opcode, end, imm, solicited, host);
        }
        Ok(1)
    }

    fn on_write(
        &mut self,
        packet: &Packet<'_>,
        extension: Extension,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        if !self.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        let bth = &packet.headers.bth;
        let (start, imm) = write_parts(extension)?;
        let (reth, offset) = match (self.message, start) {
            (Message::None, Some(reth)) => (reth, 0),
            (Message::Write { reth, offset }, None) => (reth, offset),
            (Message::None | Message::Send { .. } | Message::Write { .. }, _) => {
                return Err(INVALID);
            }
        };
        if start.is_some() {
            self.check_write(reth, host)?;
        }
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let end = offset.checked_add(len).filter(|&end| end <= reth.len).ok_or(INVALID)?;
        let is_end = bth.opcode.operation().is_end();
        if is_end != (end == reth.len) {
            return Err(INVALID); // The last packet, and only the last, completes the length.
        }
        let receive = match imm {
            Some(_) => Some(host.take_receive().ok_or(Refusal::NotReady)?),
            None => None,
        };
        if len > 0 {
            let va = reth.va.wrapping_add(u64::from(offset));
            if let Err(error) = host.write(reth.rkey, va, packet.payload) {
                if let Some(receive) = receive {
                    self.message = Message::Send { receive, offset: 0 }; // For `abandon` to end.
                }
                return Err(error.into());
            }
        }
        self.message = match is_end {
            true => Message::None,
            false => Message::Write { reth, offset: end },
        };
        if let Some(receive) = receive {
            let (status, opcode) = (WcStatus::Success, WcOpcode::ReceiveRdmaWithImm);
            self.end_receive(receive, status, opcode, reth.len, imm, bth.solicited, host);
        }
        Ok(1)
    }

    fn check_write(&self, reth: Reth, host: &impl Host) -> Result<(), Refusal> {
        if reth.len > Request::LEN_MAX {
            return Err(INVALID);
        }
        check_remote(range_of(reth), Access::REMOTE_WRITE, host)
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one completion")]
    fn end_receive(
        &self,
        receive: Receive,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<Imm>,
        solicited: bool,
        host: &mut impl Host,
    ) {
        let src_qp = self.path.remote;
        host.receive_done(ReceiveDone {
            receive,
            status,
            opcode,
            byte_len,
            imm,
            solicited,
            src_qp,
        });
    }

    fn accept_read(&mut self, reth: Reth, host: &impl Host) -> Result<u32, Refusal> {
        if !self.access.contains(Access::REMOTE_READ) || reth.len > Request::LEN_MAX {
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
        if !self.access.contains(Access::REMOTE_ATOMIC) {
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
        match (bth.opcode.operation(), packet.headers.extension) {
            (Operation::ReadRequest, Extension::Reth(reth)) => {
                self.repeat_read(bth.psn, reth, host)
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) => {
                self.replies.repeat_atomic(bth.psn)
            }
            (_, _) => {
                if bth.ack_request && matches!(self.owed, Owed::Nothing) {
                    self.owed = Owed::Ack;
                }
            }
        }
    }

    /// Reads again from memory. A request that could not have been served before is ignored.
    fn repeat_read(&mut self, psn: Psn, reth: Reth, host: &impl Host) {
        let packets = self.path.mtu.packets(reth.len);
        let before = i64::from(self.expected.since(psn));
        let served = reth.len <= Request::LEN_MAX && i64::from(packets) <= before;
        let allowed = self.access.contains(Access::REMOTE_READ)
            && check_remote(range_of(reth), Access::REMOTE_READ, host).is_ok();
        if served && allowed {
            self.replies.repeat_read(psn, range_of(reth), self.msn);
        }
    }

    /// Owes nothing any more.
    pub(crate) fn forget_debts(&mut self) {
        self.replies.clear();
        self.owed = Owed::Nothing;
    }

    /// There is something to emit besides an acknowledgement.
    pub(crate) fn owes_data(&self) -> bool {
        !self.replies.is_empty()
    }

    /// There is an acknowledgement to emit.
    pub(crate) fn owes_ack(&self) -> bool {
        !matches!(self.owed, Owed::Nothing)
    }

    /// Emits the responses that are owed, as far as the host has room.
    pub(crate) fn transmit_data(
        &mut self,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Served {
        match self.replies.transmit(host) {
            Ok(()) => Served::Fine,
            Err(psn) => {
                // The region went away between the request and its answer.
                counters.send_nak_err += 1;
                self.replies.clear();
                self.owed = Owed::Refusal(psn, Nak::RemoteAccess);
                Served::Fatal
            }
        }
    }

    /// Emits the acknowledgement that is owed, if all data before it is out and there is room.
    pub(crate) fn transmit_ack(&mut self, host: &mut impl Host) {
        if self.owes_data() || !host.room() {
            return;
        }
        let (psn, syndrome) = match self.owed {
            Owed::Nothing => return,
            Owed::Ack => (self.expected.minus(1), Syndrome::ACK),
            Owed::NotReady => (self.expected, Syndrome::RnrNak(self.rnr_timer)),
            Owed::Gap { .. } => (self.expected, Syndrome::Nak(Nak::SequenceError)),
            Owed::Refusal(psn, code) => (psn, Syndrome::Nak(code)),
        };
        self.owed = Owed::Nothing;
        let aeth = Aeth { syndrome, msn: self.msn };
        let extension = Extension::Aeth(aeth);
        if let Some(headers) = self.path.headers(Operation::Acknowledge, psn, 0, extension) {
            let _ = host.emit(&headers, Payload::None); // Cannot fail: there is room, and no payload.
        }
    }
}

/// Answered with data instead of an acknowledgement.
const fn awaits_data(operation: Operation) -> bool {
    matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
}

/// What a WRITE's packet says besides its payload: where to, if it starts, and immediate data.
const fn write_parts(extension: Extension) -> Result<(Option<Reth>, Option<Imm>), Refusal> {
    match extension {
        Extension::None => Ok((None, None)),
        Extension::Imm(imm) => Ok((None, Some(imm))),
        Extension::Reth(reth) => Ok((Some(reth), None)),
        Extension::RethImm(reth, imm) => Ok((Some(reth), Some(imm))),
        Extension::Invalidate(_)
        | Extension::Atomic(_)
        | Extension::Aeth(_)
        | Extension::AtomicAck(..)
        | Extension::Cnp => Err(INVALID),
    }
}

const fn range_of(reth: Reth) -> Range {
    Range { rkey: reth.rkey, va: reth.va, len: reth.len }
}

/// Asks the host, unless there is nothing to access: then key and address mean nothing.
/// IBTA Vol. 1 §9.7.4.1.5.
fn check_remote(range: Range, access: Access, host: &impl Host) -> Result<(), Refusal> {
    if range.len == 0 {
        return Ok(());
    }
    host.check(range, access).map_err(Refusal::from)
}

#[cfg(test)]
mod tests;
