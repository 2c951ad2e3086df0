//! Work as the transport sees it: what to do with how many bytes, never where they are.

use crate::status::WcOpcode;
use adverb_wire::{Imm, Rkey};

/// A request for the send queue.
///
/// The local buffers stay with the host: the transport names a request by its index in the send
/// queue and asks the host for bytes so-and-so of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// What to do.
    pub kind: RequestKind,
    /// Length of the local buffers together, in bytes: at most [`Request::LEN_MAX`], 8 for atomics.
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

/// What a request does, with the remote half of its arguments.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestKind {
    /// Sends a message into a receive that the peer posted.
    Send {
        /// Handed to the peer with the completion.
        imm: Option<Imm>,
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
}

impl RequestKind {
    /// What the completion will be called.
    pub const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }

    /// The request changes 8 bytes of the peer's and returns what was there.
    pub const fn is_atomic(&self) -> bool {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => true,
            Self::Send { .. } | Self::Write { .. } | Self::Read { .. } => false,
        }
    }

    /// The request is answered with data, so an acknowledgement alone does not complete it.
    pub const fn awaits_data(&self) -> bool {
        match self {
            Self::Send { .. } | Self::Write { .. } => false,
            Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. } => true,
        }
    }
}
