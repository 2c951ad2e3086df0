//! The assembler: puts the packets of SENDs and WRITEs together again, in receives and regions.
//!
//! It takes packets that are in sequence, and says yes or why not. What a refusal means is for the
//! responders to decide: a reliable one tells the peer, an unreliable one drops the message.
//!
//! Read IBTA Vol. 1 §9.7.4 and §9.8.2 (responder checks) before changing this file.

use crate::access::Access;
use crate::counters::QpCounters;
use crate::eager::EagerHeader;
use crate::host::{
    AccessError, FetchError, Host, Invalidator, Landing, LocalError, NoReceive, Range, Receive,
    ReceiveDone, Target,
};
use crate::packetizer::Path;
use crate::status::{WcOpcode, WcStatus};
use crate::work::Request;
use adverb_wire::{Extension, Imm, Nak, Operation, Packet, Qpn, Reth, Rkey};

/// Why a request is not served.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// The packet is as good as lost.
    Lost,
    /// No receive is posted: the peer may try again.
    NotReady,
    /// The peer is refused with this code; a receive in use ends with this status.
    Nak(Nak, WcStatus),
}

pub(crate) const INVALID: Refusal =
    Refusal::Nak(Nak::InvalidRequest, WcStatus::RemoteInvalidRequest);

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

impl From<FetchError> for Refusal {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Local(LocalError::Protection) => {
                Self::Nak(Nak::RemoteOperation, WcStatus::LocalProtection)
            }
            FetchError::Access(error) => error.into(),
            FetchError::Lost => Self::Lost,
        }
    }
}

impl From<NoReceive> for Refusal {
    fn from(error: NoReceive) -> Self {
        match error {
            NoReceive::Empty => Self::NotReady,
            NoReceive::NoSuchQueue => INVALID,
        }
    }
}

/// A receive in use, and the shared queue that its message named.
#[derive(Clone, Copy, Debug)]
struct InUse {
    receive: Receive,
    srq: Option<Qpn>,
}

/// A message of which the beginning has arrived.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    Send { into: InUse, offset: u32 },
    Write { reth: Reth, offset: u32 },
}

/// The end of a message, as far as its last packet tells it.
#[derive(Clone, Copy, Debug, Default)]
struct Ending {
    imm: Option<Imm>,
    invalidated: Option<Rkey>,
    solicited: bool,
}

/// Messages on their way in.
#[derive(Clone, Debug)]
pub(crate) struct Assembler {
    path: Path,
    access: Access,
    message: Message,
}

impl Assembler {
    pub(crate) fn new(path: Path, access: Access) -> Self {
        Self { path, access, message: Message::None }
    }

    /// Changes where packets go.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.path = Path { keeps_early: self.path.keeps_early, ..path };
    }

    /// What the peer may do to this queue pair at all.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Changes what the peer may do.
    pub(crate) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// The beginning of a message has arrived, and not its end.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// Checks that a packet has the length that its place asks for, and comes in the right place.
    pub(crate) fn check(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let bth = &packet.headers.bth;
        let operation = bth.opcode.operation();
        let idle = matches!(self.message, Message::None);
        let ours = bth.keeps_early && self.path.keeps_early && operation.is_send();
        if operation.is_start() == idle && self.fits(operation, packet.payload.len(), ours) {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    /// FIRST and MIDDLE fill the path MTU, or whole words of it in a SEND of `ours`; LAST is not empty, nothing exceeds it.
    fn fits(&self, operation: Operation, len: usize, ours: bool) -> bool {
        let mtu = usize::try_from(self.path.mtu.bytes()).unwrap_or(0);
        if !operation.has_payload() {
            len == 0
        } else if !operation.is_end() {
            len == mtu || (ours && (4..=mtu).contains(&len) && len.is_multiple_of(4))
        } else if !operation.is_start() {
            (1..=mtu).contains(&len)
        } else {
            len <= mtu
        }
    }

    /// Takes the next packet of a SEND.
    pub(crate) fn on_send(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let bth = &packet.headers.bth;
        let mut ending = Ending { solicited: bth.solicited, ..Ending::default() };
        match packet.headers.extension {
            Extension::None => {}
            Extension::Imm(imm) => ending.imm = Some(imm),
            Extension::Invalidate(ieth) => ending.invalidated = Some(ieth.rkey),
            Extension::Reth(_)
            | Extension::RethImm(..)
            | Extension::Atomic(_)
            | Extension::Flush(..)
            | Extension::Aeth(_)
            | Extension::AtomicAck(..)
            | Extension::Cnp => return Err(INVALID),
        }
        let srq = packet.headers.xrceth.map(|xrceth| xrceth.srqn);
        let (into, offset) = match self.message {
            Message::Send { into, offset } if into.srq == srq => (into, offset),
            Message::None => (InUse { receive: host.take_receive(srq)?, srq }, 0),
            Message::Send { .. } | Message::Write { .. } => return Err(INVALID),
        };
        self.message = Message::Send { into, offset };
        let len = length(packet, host);
        let end = offset.checked_add(len).filter(|&end| end <= into.receive.len);
        let Some(end) = end else {
            return Err(Refusal::Nak(Nak::InvalidRequest, WcStatus::LocalLength));
        };
        if host.by_reference().is_some() {
            host.fetch(Target::Receive(into.receive))?;
        } else if host.scatter(Landing::Receive(into.receive), offset, packet.payload).is_err() {
            return Err(Refusal::Nak(Nak::RemoteOperation, WcStatus::LocalProtection));
        }
        self.message = Message::Send { into, offset: end };
        if bth.opcode.operation().is_end() {
            if let Some(rkey) = ending.invalidated {
                host.invalidate(rkey, Invalidator::Peer)?;
            }
            self.message = Message::None;
            let (status, opcode) = (WcStatus::Success, WcOpcode::Receive);
            self.end(into, status, opcode, end, ending, counters, host);
        }
        Ok(())
    }

    /// Takes a whole SEND of `len` bytes, which the host holds, while no message has begun.
    #[inline(always)]
    pub(crate) fn on_eager(
        &mut self,
        eager: &EagerHeader,
        len: u32,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let into = InUse { receive: host.take_receive(None)?, srq: None };
        let landed = match len <= into.receive.len {
            false => Err(Refusal::Nak(Nak::InvalidRequest, WcStatus::LocalLength)),
            true => host.fetch(Target::Receive(into.receive)).map_err(Refusal::from),
        };
        if let Err(refusal) = landed {
            self.message = Message::Send { into, offset: 0 }; // For the caller to end.
            return Err(refusal);
        }
        let ending = Ending { imm: eager.imm, invalidated: None, solicited: eager.solicited };
        let (status, opcode) = (WcStatus::Success, WcOpcode::Receive);
        self.end(into, status, opcode, len, ending, counters, host);
        Ok(())
    }

    /// Takes the next packet of a WRITE.
    pub(crate) fn on_write(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if !self.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        let bth = &packet.headers.bth;
        let (start, imm) = write_parts(packet.headers.extension)?;
        let (reth, offset) = match (self.message, start) {
            (Message::None, Some(reth)) => (reth, 0),
            (Message::Write { reth, offset }, None) => (reth, offset),
            (Message::None | Message::Send { .. } | Message::Write { .. }, _) => {
                return Err(INVALID);
            }
        };
        if start.is_some() {
            check_write(reth, host)?;
        }
        let len = length(packet, host);
        let end = offset.checked_add(len).filter(|&end| end <= reth.len).ok_or(INVALID)?;
        let is_end = bth.opcode.operation().is_end();
        if is_end != (end == reth.len) {
            return Err(INVALID); // The last packet, and only the last, completes the length.
        }
        let srq = packet.headers.xrceth.map(|xrceth| xrceth.srqn);
        let into = match imm {
            Some(_) => Some(InUse { receive: host.take_receive(srq)?, srq }),
            None => None,
        };
        if len > 0 {
            let va = reth.va.wrapping_add(u64::from(offset));
            let written = match host.by_reference() {
                Some(_) => host.fetch(Target::Region { rkey: reth.rkey, va }),
                None => host.write(reth.rkey, va, packet.payload).map_err(FetchError::Access),
            };
            if let Err(error) = written {
                if let Some(into) = into {
                    self.message = Message::Send { into, offset: 0 }; // For the caller to end.
                }
                return Err(error.into());
            }
        }
        self.message = match is_end {
            true => Message::None,
            false => Message::Write { reth, offset: end },
        };
        if let Some(into) = into {
            let ending = Ending { imm, solicited: bth.solicited, ..Ending::default() };
            let (status, opcode) = (WcStatus::Success, WcOpcode::ReceiveRdmaWithImm);
            self.end(into, status, opcode, reth.len, ending, counters, host);
        }
        Ok(())
    }

    /// Ends the receive that a message was filling; true if there was one.
    pub(crate) fn abandon(
        &mut self,
        status: WcStatus,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) -> bool {
        let message = core::mem::replace(&mut self.message, Message::None);
        let Message::Send { into, offset } = message else {
            return false;
        };
        let opcode = WcOpcode::Receive;
        self.end(into, status, opcode, offset, Ending::default(), counters, host);
        true
    }

    /// Forgets a message of which the beginning has arrived, and puts its receive back; true if
    /// there was one.
    pub(crate) fn forget(&mut self, host: &mut impl Host) -> bool {
        match core::mem::replace(&mut self.message, Message::None) {
            Message::None => false,
            Message::Write { .. } => true,
            Message::Send { into, .. } => {
                host.put_back_receive(into.receive, into.srq);
                true
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one completion")]
    #[inline]
    fn end(
        &self,
        into: InUse,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
        ending: Ending,
        counters: &mut QpCounters,
        host: &mut impl Host,
    ) {
        let Ending { imm, invalidated, solicited } = ending;
        counters.note_receive(status);
        host.receive_done(ReceiveDone {
            receive: into.receive,
            status,
            opcode,
            byte_len,
            imm,
            invalidated,
            solicited,
            src_qp: self.path.remote,
            grh: false,
            pkey_index: self.path.pkey_index,
            srq: into.srq,
        });
    }
}

/// Bytes that a packet brings, or refers to.
fn length(packet: &Packet<'_>, host: &impl Host) -> u32 {
    host.by_reference().unwrap_or_else(|| u32::try_from(packet.payload.len()).unwrap_or(u32::MAX))
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
        | Extension::Flush(..)
        | Extension::Aeth(_)
        | Extension::AtomicAck(..)
        | Extension::Cnp => Err(INVALID),
    }
}

fn check_write(reth: Reth, host: &impl Host) -> Result<(), Refusal> {
    if reth.len > Request::LEN_MAX {
        return Err(INVALID);
    }
    check_remote(range_of(reth), Access::REMOTE_WRITE, host)
}

pub(crate) const fn range_of(reth: Reth) -> Range {
    Range { rkey: reth.rkey, va: reth.va, len: reth.len }
}

/// Asks the host, unless there is nothing to access: then key and address mean nothing.
/// IBTA Vol. 1 §9.7.4.1.5.
pub(crate) fn check_remote(range: Range, access: Access, host: &impl Host) -> Result<(), Refusal> {
    if range.len == 0 {
        return Ok(());
    }
    host.check(range, access).map_err(Refusal::from)
}
