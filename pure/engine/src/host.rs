//! Host trait: what a queue pair borrows from its surroundings: memory, receives, an output.
//!
//! The transport names memory by key and address, or by "bytes so-and-so of request number n", and
//! never sees a pointer. The host checks every such claim; its refusals become NAKs and statuses.

use crate::status::{QpEvent, WcOpcode, WcStatus};
use crate::work::{Request, Route};
use adverb_wire::{Headers, Imm, Qpn, Rkey};
use core::fmt;

/// A claim on registered memory that came off the wire; nothing has been checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Range {
    /// The region.
    pub rkey: Rkey,
    /// First byte.
    pub va: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The two operations that change memory and return what was there. IBTA Vol. 1 §9.4.5.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// Put `swap` where `compare` is found.
    CompareSwap {
        /// The value to find.
        compare: u64,
        /// The value to put.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
}

/// Where the bytes behind a packet's headers come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Payload {
    /// Nowhere: the packet is all headers.
    None,
    /// Bytes `offset .. offset + len` of the local buffers of a request.
    Request {
        /// The request's index in the send queue, counted from the queue's creation.
        index: u64,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Bytes of registered memory that the peer reads: taken in one go, so that a writer at work cannot spoil the answer.
    Region(Range),
}

impl Payload {
    /// Number of bytes.
    pub const fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Request { len, .. } => *len,
            Self::Region(range) => range.len,
        }
    }

    /// There are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Local buffers that take bytes from the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Landing {
    /// Those of a posted receive.
    Receive(Receive),
    /// Those of the READ or atomic request with this index.
    Request(u64),
}

/// A receive that was taken off its queue and awaits its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Receive {
    /// The host's name for it.
    pub token: u32,
    /// Length of its buffers together, in bytes.
    pub len: u32,
}

/// Why there is no receive for a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoReceive {
    /// The queue is empty.
    Empty,
    /// There is no such shared receive queue, or this queue pair may not use it.
    NoSuchQueue,
}

/// Source of a request to invalidate a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Invalidator {
    /// The owner of the queue pair, by a request.
    Owner,
    /// The peer, by a SEND with invalidate.
    Peer,
}

/// Why local buffers could not be used. The owner's fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LocalError {
    /// No region covers the buffer, or not with the rights needed.
    Protection,
}

/// Why a peer may not do what it asks for. The peer's fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AccessError {
    /// The region was not registered for this kind of access.
    Denied,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
    /// Some byte lies outside the region.
    OutOfBounds,
    /// There is no such region, or it belongs to another protection domain.
    UnknownKey,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Denied => "the region is not registered for this kind of access",
            Self::Misaligned => "an atomic's address must be a multiple of 8",
            Self::OutOfBounds => "the range does not fit the region",
            Self::UnknownKey => "no region of this protection domain has this key",
        })
    }
}

impl core::error::Error for AccessError {}

/// Why a packet was not emitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EmitError {
    /// The bytes of [`Payload::Request`] are not covered by local regions.
    Local(LocalError),
    /// The bytes of [`Payload::Region`] cannot be read any more.
    Remote(AccessError),
}

/// What became of a one-sided request that the host was asked to carry out by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Reach {
    /// It is done, completely.
    Done,
    /// It can be done once all requests before it are complete.
    Later,
    /// It has to be sent. The peer is then the one to refuse what is to be refused.
    Not,
}

/// Where the bytes of a message by reference go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// Into a posted receive.
    Receive(Receive),
    /// Into registered memory, where the peer alleges it may write.
    Region {
        /// The region.
        rkey: Rkey,
        /// First byte.
        va: u64,
    },
}

/// Why the bytes of a message by reference were not fetched; some may have been.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FetchError {
    /// The receive's buffers are not covered by local regions.
    Local(LocalError),
    /// The peer may not write there.
    Access(AccessError),
    /// The sender's bytes cannot be had (any more): as if the packet had got lost.
    Lost,
}

/// How a request of the send queue ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendDone {
    /// The request's index in the send queue.
    pub index: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes moved by a READ or atomic; otherwise the request's length.
    pub byte_len: u32,
    /// The owner wants to know: it asked to, or the work failed.
    pub report: bool,
}

/// How a receive ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceiveDone {
    /// Which one.
    pub receive: Receive,
    /// How it ended.
    pub status: WcStatus,
    /// What arrived.
    pub opcode: WcOpcode,
    /// Bytes that arrived.
    pub byte_len: u32,
    /// Immediate data, if the message had some.
    pub imm: Option<Imm>,
    /// The key that the message invalidated, if it did.
    pub invalidated: Option<Rkey>,
    /// The sender asked for an event.
    pub solicited: bool,
    /// The sender's queue pair.
    pub src_qp: Qpn,
    /// The first [`GRH_LEN`] bytes of the buffers, which `byte_len` counts, are the network header.
    pub grh: bool,
    /// Index of the partition in the port's table.
    pub pkey_index: u16,
    /// The shared receive queue that the message named: XRC.
    pub srq: Option<Qpn>,
}

/// Bytes in front of every datagram in its receive: the global routing header. IBTA Vol. 1
/// §11.4.1.2; for RoCEv2 the IP header, at the end of them.
pub const GRH_LEN: u32 = 40;

/// The surroundings that drive a queue pair, for the length of one call.
pub trait Host {
    /// There is room for one more packet.
    fn room(&mut self) -> bool;

    /// Takes one packet: for the connected peer, or by the `route` of its request.
    ///
    /// Called only after [`Host::room`] said yes.
    ///
    /// # Errors
    ///
    /// [`EmitError`] if the payload cannot be had; nothing was taken then.
    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        route: Option<Route>,
    ) -> Result<(), EmitError>;

    /// Takes the oldest receive off its queue: of the queue pair's own, of the shared one that it
    /// was made with, or (XRC) of the one that `srq` names.
    ///
    /// # Errors
    ///
    /// [`NoReceive`] says why there is none.
    fn take_receive(&mut self, srq: Option<Qpn>) -> Result<Receive, NoReceive>;

    /// Puts a receive back that was the last one taken: it is the next to be taken. Its message
    /// came to nothing, and some bytes of it may have been scattered.
    fn put_back_receive(&mut self, receive: Receive, srq: Option<Qpn>);

    /// The network header of the packet that is being handed over, as it goes in front of a
    /// datagram; see [`adverb_wire::Grh::emit`]. Asked for by datagram queue pairs only.
    fn grh(&self) -> [u8; 40];

    /// Copies bytes off the wire into local buffers, `offset` bytes from their start.
    ///
    /// # Errors
    ///
    /// [`LocalError::Protection`] if some byte has no home there; earlier bytes may have been
    /// written.
    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError>;

    /// Says whether the peer may access a range.
    ///
    /// # Errors
    ///
    /// The first [`AccessError`] that applies.
    fn check(&self, range: Range, access: crate::Access) -> Result<(), AccessError>;

    /// Writes a peer's bytes to `va` of a region.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the peer may not; nothing was written then.
    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Runs an atomic operation on the 8 bytes at `va` and returns what was there.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the peer may not; nothing was changed then.
    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError>;

    /// Writes 8 bytes to `va` of a region at once, so that no reader sees some of them.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the peer may not write there, or the address is not a multiple of 8;
    /// nothing was written then.
    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError>;

    /// Makes a key mean nothing: from now on every access by it is refused.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if there is no such key, or `by` may not invalidate it: a peer may only
    /// invalidate windows of type 2.
    fn invalidate(&mut self, rkey: Rkey, by: Invalidator) -> Result<(), AccessError>;

    /// Binds a memory window, as was said when the request with this index was posted.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the window, the region or the range do not fit one another; the window is
    /// what it was then.
    fn bind(&mut self, index: u64) -> Result<(), AccessError>;

    /// Carries out a one-sided request, the one with this index, on the peer's memory. `all_before`:
    /// every request before it has been executed. Asked only where the peer is on this host.
    fn reach(&mut self, index: u64, request: &Request, all_before: bool) -> Reach {
        let _ = (index, request, all_before);
        Reach::Not
    }

    /// The bytes of the request with this index can go by reference: they go as one packet that
    /// says where they are. Asked only where the peer is on this host.
    fn goes_by_reference(&self, index: u64, request: &Request) -> bool {
        let _ = (index, request);
        false
    }

    /// Length of the message being handed over, if it came by reference: the packet's
    /// payload is empty then.
    fn by_reference(&self) -> Option<u32> {
        None
    }

    /// Copies the bytes of the message by reference that is being handed over.
    ///
    /// # Errors
    ///
    /// [`FetchError`].
    fn fetch(&mut self, to: Target) -> Result<(), FetchError> {
        let _ = to;
        Err(FetchError::Lost)
    }

    /// Something has happened that no completion tells.
    fn event(&mut self, event: QpEvent);

    /// A request has ended; called once for each, in the order of posting.
    fn send_done(&mut self, done: SendDone);

    /// A receive has ended; called once for each that was taken and not put back.
    fn receive_done(&mut self, done: ReceiveDone);
}
