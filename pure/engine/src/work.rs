//! Work as the transport sees it: what to do with how many bytes, never where they are.

use crate::status::{QpState, WcOpcode};
use crate::transport::{QpType, RequestOp};
use adverb_wire::{Feth, Imm, Qkey, Qpn, Rkey};
use core::fmt;

/// A request for the send queue.
///
/// The local buffers stay with the host: the transport names a request by its index in the send
/// queue and asks the host for bytes so-and-so of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// What to do.
    pub kind: RequestKind,
    /// Whom it is for, where the queue pair does not know that by itself.
    pub to: To,
    /// Length of the local buffers together, in bytes: at most [`Request::LEN_MAX`], 8 for atomics,
    /// a path MTU for datagrams.
    pub len: u32,
    /// A completion is wanted even if all goes well.
    pub signaled: bool,
    /// The peer should raise an event for the receive that this message completes.
    pub solicited: bool,
    /// Start only when all READs and atomics before this request have completed.
    pub fence: bool,
}

impl Request {
    /// The longest message of a connected transport: 2 GiB. IBTA Vol. 1 §9.7.7.
    pub const LEN_MAX: u32 = 1 << 31;
}

/// Whom a request is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum To {
    /// The connected peer: RC and UC.
    Peer,
    /// A queue pair anywhere: UD.
    Datagram(Datagram),
    /// A shared receive queue of the connected peer: XRC.
    SharedQueue(Qpn),
}

/// Where a datagram goes. `wr.ud` of `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Datagram {
    /// The way there.
    pub route: Route,
    /// The queue pair there, or [`Qpn::MULTICAST`].
    pub remote: Qpn,
    /// The key to show there. With the highest bit set, the sending queue pair's own key is shown
    /// instead: the rule for controlled Q_Keys.
    pub qkey: Qkey,
}

impl Datagram {
    /// The bit of a Q_Key that asks for the queue pair's own.
    const CONTROLLED: u32 = 1 << 31;

    /// The key that is shown, if `own` is the queue pair's.
    pub(crate) const fn shown(&self, own: Qkey) -> Qkey {
        if self.qkey.0 & Self::CONTROLLED == 0 { self.qkey } else { own }
    }
}

/// The host's name for a way to somewhere, such as an address handle's slot. The transport carries
/// it from the request to [`crate::Host::emit`] and never looks at it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Route(pub u32);

/// What a request does, with the remote half of its arguments.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestKind {
    /// Sends a message into a receive that the peer posted.
    Send {
        /// Handed to the peer with the completion.
        imm: Option<Imm>,
    },
    /// Sends a message into a receive that the peer posted, and invalidates a key of the peer's.
    SendInvalidate {
        /// The key.
        rkey: Rkey,
    },
    /// Writes into the peer's memory.
    Write {
        /// First byte there.
        va: u64,
        /// The region there.
        rkey: Rkey,
        /// If present, consumes a receive of the peer and is handed over with its completion.
        imm: Option<Imm>,
    },
    /// Reads the peer's memory.
    Read {
        /// First byte there.
        va: u64,
        /// The region there.
        rkey: Rkey,
    },
    /// Writes `swap` if the peer's 8 bytes equal `compare`; returns what was there.
    CompareSwap {
        /// First of the 8 bytes there, aligned to 8.
        va: u64,
        /// The region there.
        rkey: Rkey,
        /// The value to find.
        compare: u64,
        /// The value to put.
        swap: u64,
    },
    /// Adds to the peer's 8 bytes, wrapping; returns what was there.
    FetchAdd {
        /// First of the 8 bytes there, aligned to 8.
        va: u64,
        /// The region there.
        rkey: Rkey,
        /// The number to add.
        add: u64,
    },
    /// Writes 8 bytes of the peer's at once, so that no reader sees some of them.
    AtomicWrite {
        /// First of the 8 bytes there, aligned to 8.
        va: u64,
        /// The region there.
        rkey: Rkey,
    },
    /// Makes sure that what was written before is there. IBTA Vol. 1 Annex A19.
    Flush {
        /// First byte there.
        va: u64,
        /// The region there.
        rkey: Rkey,
        /// How many bytes.
        len: u32,
        /// For whom, and for how much of the region.
        how: Feth,
    },
    /// Invalidates a key of this side's, when everything before is complete.
    LocalInvalidate {
        /// The key.
        rkey: Rkey,
    },
    /// Binds a memory window, as the host remembers for the request's index, when everything before
    /// has been sent.
    BindWindow,
}

impl RequestKind {
    /// What it does, without the arguments.
    pub const fn operation(&self) -> RequestOp {
        match self {
            Self::Send { imm: None } => RequestOp::Send,
            Self::Send { imm: Some(_) } => RequestOp::SendImm,
            Self::SendInvalidate { .. } => RequestOp::SendInvalidate,
            Self::Write { imm: None, .. } => RequestOp::Write,
            Self::Write { imm: Some(_), .. } => RequestOp::WriteImm,
            Self::Read { .. } => RequestOp::Read,
            Self::CompareSwap { .. } => RequestOp::CompareSwap,
            Self::FetchAdd { .. } => RequestOp::FetchAdd,
            Self::AtomicWrite { .. } => RequestOp::AtomicWrite,
            Self::Flush { .. } => RequestOp::Flush,
            Self::LocalInvalidate { .. } => RequestOp::LocalInvalidate,
            Self::BindWindow => RequestOp::BindWindow,
        }
    }

    /// What the completion will be called.
    pub const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendInvalidate { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            Self::BindWindow => WcOpcode::BindWindow,
        }
    }

    /// The request changes 8 bytes of the peer's and returns what was there.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// The request is answered with data, so an acknowledgement alone does not complete it.
    pub const fn awaits_data(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// The request is acknowledged by the answer to a READ of nothing.
    pub const fn awaits_empty_data(&self) -> bool {
        matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// The request never becomes a packet: it is carried out here, in its turn.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindWindow)
    }

    /// The one length that the local buffers may have, if there is only one.
    pub const fn fixed_len(&self) -> Option<u32> {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd { .. } | Self::AtomicWrite { .. } => Some(8),
            Self::Flush { .. } | Self::LocalInvalidate { .. } | Self::BindWindow => Some(0),
            Self::Send { .. }
            | Self::SendInvalidate { .. }
            | Self::Write { .. }
            | Self::Read { .. } => None,
        }
    }
}

/// Why a request was not posted. The caller's mistake; nothing was queued.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RequestError {
    /// A datagram needs a [`Datagram`] to say where to, XRC a shared queue, and no others may say
    /// either.
    Address {
        /// The type of the queue pair.
        kind: QpType,
    },
    /// The send queue has no free slot.
    Full,
    /// The local buffers have the wrong length.
    Length {
        /// Their length.
        len: u32,
        /// The longest that is allowed, or the only one: see [`RequestKind::fixed_len`].
        allowed: u32,
    },
    /// Queue pairs of this type do not have the operation: see [`crate::allowed`].
    Operation {
        /// The type of the queue pair.
        kind: QpType,
        /// What was asked.
        operation: RequestOp,
    },
    /// The state does not allow posting.
    State(QpState),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { kind: QpType::Ud } => {
                f.write_str("a datagram needs an address handle, a queue pair number and a Q_Key")
            }
            Self::Address { kind: QpType::XrcInitiator } => {
                f.write_str("an XRC request needs the number of a shared receive queue")
            }
            Self::Address { kind } => {
                write!(f, "a request over {kind} goes to the connected peer and nowhere else")
            }
            Self::Full => f.write_str(
                "the send queue is full: wait for completions, or create it with more slots",
            ),
            Self::Length { len, allowed } => {
                write!(f, "the request has {len} bytes, but {allowed} are allowed")
            }
            Self::Operation { kind, operation } => write!(f, "{kind} has no {operation}"),
            Self::State(state) => write!(f, "a queue pair in {state} takes no send requests"),
        }
    }
}

impl core::error::Error for RequestError {}
