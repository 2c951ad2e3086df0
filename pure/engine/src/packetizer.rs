//! The packetizer: cuts requests into packets. What a packet says and which bytes it carries, for
//! every transport; never when it leaves, or whether it leaves again.
//!
//! Read IBTA Vol. 1 §9.4 (operations) before changing this file.

use crate::cutting::Cutting;
use crate::host::Payload;
use crate::link::Capabilities;
use crate::segment::Segment;
use crate::send_queue::Entry;
use crate::work::{RequestKind, To};
use adverb_wire::{
    Bth, Extension, Headers, Ieth, Imm, Opcode, Operation, Pad, Pkey, Psn, Qpn, Reth, Transport,
    XrcEth,
};

/// Where packets go, and how they are cut: the same for both roles of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) transport: Transport,
    pub(crate) remote: Qpn,
    pub(crate) pkey: Pkey,
    /// Index of `pkey` in the port's table, for completions.
    pub(crate) pkey_index: u16,
    pub(crate) mtu: Segment,
    pub(crate) link: Capabilities,
    /// Packets say that early ones are kept, or known to be: [`Bth::keeps_early`].
    pub(crate) keeps_early: bool,
}

/// One packet of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) headers: Headers,
    pub(crate) payload: Payload,
    /// It is the last one of its request.
    pub(crate) last: bool,
}

impl Path {
    /// Headers of a packet with `len` bytes of payload; `None` if the transport has no such packet.
    pub(crate) fn headers(
        &self,
        operation: Operation,
        psn: Psn,
        len: u32,
        extension: Extension,
    ) -> Option<Headers> {
        let bth = Bth {
            opcode: Opcode::of(self.transport, operation)?,
            solicited: false,
            migrated: true,
            pad: Pad::for_len(usize::try_from(len).ok()?),
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qp: self.remote,
            ack_request: false,
            keeps_early: self.keeps_early,
            psn,
        };
        Some(Headers { bth, deth: None, xrceth: None, extension })
    }

    /// Headers of a congestion notification: BECN, and nothing of the stream. IBTA Vol. 1 Annex A17.
    pub(crate) fn notification(&self) -> Option<Headers> {
        let path = Self { transport: Transport::Cnp, ..*self };
        let headers = path.headers(Operation::Cnp, Psn::new(0), 0, Extension::Cnp)?;
        Some(Headers { bth: Bth { becn: true, ..headers.bth }, ..headers })
    }

    /// Packet number `at` of a request that carries data, which has this index.
    pub(crate) fn cut(&self, at: u32, psn: Psn, index: u64, entry: &Entry) -> Option<Cut> {
        let request = &entry.request;
        let Cutting { packets, segment, whole } = entry.cutting;
        // An offset is below the request's length, so neither product nor difference overflows.
        let offset = at.saturating_mul(segment);
        let len = request.len.saturating_sub(offset).min(segment);
        let last = at + 1 == packets;
        let (operation, extension) = match whole {
            true => data_headers(&from(request.kind, offset), len, Place::Only),
            false => data_headers(&request.kind, request.len, Place::of(at == 0, last)),
        };
        let mut headers = self.headers(operation, psn, len, extension)?;
        headers.bth.solicited = last && request.solicited && operation.needs_receive();
        headers.xrceth = request.to.xrceth();
        let payload = match len {
            0 => Payload::None,
            _ => Payload::Request { index, offset, len },
        };
        Some(Cut { headers, payload, last })
    }
}

impl To {
    /// The header that names a shared queue, if a request is for one.
    pub(crate) const fn xrceth(&self) -> Option<XrcEth> {
        match *self {
            Self::SharedQueue(srqn) => Some(XrcEth { srqn }),
            Self::Peer | Self::Datagram(_) => None,
        }
    }
}

/// Where in its message a packet is.
#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    const fn of(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// The request for the bytes from `offset` on, as a message of its own.
fn from(kind: RequestKind, offset: u32) -> RequestKind {
    match kind {
        RequestKind::Write { va, rkey, imm } => {
            RequestKind::Write { va: va.wrapping_add(u64::from(offset)), rkey, imm }
        }
        RequestKind::Send { .. }
        | RequestKind::SendInvalidate { .. }
        | RequestKind::Read { .. }
        | RequestKind::CompareSwap { .. }
        | RequestKind::FetchAdd { .. }
        | RequestKind::AtomicWrite { .. }
        | RequestKind::Flush { .. }
        | RequestKind::LocalInvalidate { .. }
        | RequestKind::BindWindow => kind,
    }
}

/// Opcode and extended header of a packet that carries a request's data.
fn data_headers(kind: &RequestKind, len: u32, place: Place) -> (Operation, Extension) {
    match *kind {
        RequestKind::Write { va, rkey, imm } => {
            let reth = Reth { va, rkey, len };
            match (place, imm) {
                (Place::First, _) => (Operation::WriteFirst, Extension::Reth(reth)),
                (Place::Middle, _) => (Operation::WriteMiddle, Extension::None),
                (Place::Last, None) => (Operation::WriteLast, Extension::None),
                (Place::Last, Some(imm)) => (Operation::WriteLastImm, Extension::Imm(imm)),
                (Place::Only, None) => (Operation::WriteOnly, Extension::Reth(reth)),
                (Place::Only, Some(imm)) => {
                    (Operation::WriteOnlyImm, Extension::RethImm(reth, imm))
                }
            }
        }
        RequestKind::AtomicWrite { va, rkey } => {
            (Operation::AtomicWrite, Extension::Reth(Reth { va, rkey, len }))
        }
        RequestKind::Flush { va, rkey, len, how } => {
            (Operation::Flush, Extension::Flush(how, Reth { va, rkey, len }))
        }
        RequestKind::SendInvalidate { rkey } => {
            let ieth = Extension::Invalidate(Ieth { rkey });
            match place {
                Place::First => (Operation::SendFirst, Extension::None),
                Place::Middle => (Operation::SendMiddle, Extension::None),
                Place::Last => (Operation::SendLastInvalidate, ieth),
                Place::Only => (Operation::SendOnlyInvalidate, ieth),
            }
        }
        RequestKind::Send { imm } => send_headers(imm, place),
        // Requests without data of their own never come here.
        RequestKind::Read { .. }
        | RequestKind::CompareSwap { .. }
        | RequestKind::FetchAdd { .. }
        | RequestKind::LocalInvalidate { .. }
        | RequestKind::BindWindow => send_headers(None, place),
    }
}

fn send_headers(imm: Option<Imm>, place: Place) -> (Operation, Extension) {
    match (place, imm) {
        (Place::First, _) => (Operation::SendFirst, Extension::None),
        (Place::Middle, _) => (Operation::SendMiddle, Extension::None),
        (Place::Last, None) => (Operation::SendLast, Extension::None),
        (Place::Last, Some(imm)) => (Operation::SendLastImm, Extension::Imm(imm)),
        (Place::Only, None) => (Operation::SendOnly, Extension::None),
        (Place::Only, Some(imm)) => (Operation::SendOnlyImm, Extension::Imm(imm)),
    }
}
