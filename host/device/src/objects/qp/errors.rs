//! Errors of queue pairs: of posting, of modifying, of connecting.

use adverb_engine::{QpState, QpType, RequestOp};
use std::fmt;
use std::io;

/// Error of posting a request. The caller's mistake; nothing was queued.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// Datagrams need an address, XRC requests a shared receive queue, and others neither.
    Address {
        /// The type of the queue pair.
        kind: QpType,
    },
    /// An atomic's buffer is not 8 bytes.
    AtomicLength {
        /// Its length.
        len: u32,
    },
    /// A datagram does not fit one packet.
    DatagramTooLong {
        /// Its length in bytes.
        len: u32,
        /// What is allowed: the port's MTU.
        mtu: u32,
    },
    /// The address handle is of another protection domain, or of another device.
    ForeignAddress,
    /// The memory was registered in another protection domain than the queue pair's. Of work that owns its memory;
    /// of raw requests the completion says so.
    ForeignMemory,
    /// The memory window belongs to another protection domain than the queue pair.
    ForeignWindow,
    /// READs and atomics bring data back, and an inline buffer cannot take it.
    InlineForRead,
    /// More inline bytes than the queue pair was made for.
    InlineTooLong {
        /// What was asked.
        len: usize,
        /// What is allowed.
        max: usize,
    },
    /// Queue pairs of this type have no receives.
    NoReceives {
        /// The type.
        kind: QpType,
    },
    /// What says how to bind a memory window came with another operation, or was left out.
    NotABind,
    /// The state of the queue pair does not allow posting.
    NotReady {
        /// The state.
        state: QpState,
    },
    /// Queue pairs of this type do not have the operation.
    Operation {
        /// The type of the queue pair.
        kind: QpType,
        /// What was asked.
        operation: RequestOp,
    },
    /// All slots of the queue are taken: by requests that have not ended, and by those whose completions have not been
    /// polled (IBTA Vol. 1 §10.8.5.1).
    QueueFull {
        /// How many there are.
        capacity: u64,
    },
    /// The scope that lent the memory has ended.
    ScopeEnded,
    /// The queue pair takes its receives from a shared receive queue.
    SharedReceives,
    /// READs and atomics were given no room when the queue pair was connected.
    ReadsNotAllowed,
    /// A device that is not ours refused it.
    Refused {
        /// What the system said, as `errno` has it.
        errno: i32,
    },
    /// The pieces together exceed 2 GiB.
    TooLong,
    /// As many unsignaled requests hold their memory as the queue has room for.
    TooManyUnsignaled {
        /// How many may.
        max: u32,
    },
    /// More pieces than the queue pair was made for.
    TooManySges {
        /// What was asked.
        count: usize,
        /// What is allowed.
        max: usize,
    },
}

impl fmt::Display for PostError {
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
            Self::DatagramTooLong { len, mtu } => {
                write!(f, "a datagram of {len} bytes, but the port's MTU allows {mtu}")
            }
            Self::ForeignAddress => f.write_str(
                "the address handle is of another protection domain or device than the queue pair",
            ),
            Self::Operation { kind, operation } => {
                write!(f, "queue pairs of type {kind} do not have the operation {operation}")
            }
            Self::AtomicLength { len } => {
                write!(f, "an atomic returns 8 bytes, but the buffer has {len}")
            }
            Self::ForeignMemory => {
                f.write_str("the memory was registered in another protection domain")
            }
            Self::ForeignWindow => f.write_str(
                "the memory window and the queue pair are of different protection domains",
            ),
            Self::NotABind => f.write_str(
                "binding a memory window, and nothing else, is posted with what to bind it to",
            ),
            Self::InlineForRead => {
                f.write_str("READs and atomics need a registered buffer, not inline data")
            }
            Self::InlineTooLong { len, max } => {
                write!(f, "{len} bytes inline, but the queue pair was made for {max} (max_inline)")
            }
            Self::NoReceives { kind } => {
                write!(f, "queue pairs of type {kind} have no receives of their own")
            }
            Self::NotReady { state } => {
                write!(f, "the queue pair is in {state}: connect it before posting")
            }
            Self::QueueFull { capacity } => write!(
                f,
                "all {capacity} slots of the queue are taken: poll for completions, or create the \
                 queue pair with more"
            ),
            Self::ReadsNotAllowed => f.write_str(
                "the queue pair was connected with max_rd_atomic = 0, so it cannot READ",
            ),
            Self::ScopeEnded => f.write_str("the scope that lent the memory has ended"),
            Self::SharedReceives => f.write_str(
                "the queue pair takes its receives from a shared receive queue: post them there",
            ),
            Self::Refused { errno } => {
                write!(f, "the device refused it: {}", io::Error::from_raw_os_error(*errno))
            }
            Self::TooLong => f.write_str("the buffer is longer than 2 GiB, the longest message"),
            Self::TooManyUnsignaled { max } => write!(
                f,
                "{max} unsignaled requests hold their memory until a signaled one completes: \
                 post one that is"
            ),
            Self::TooManySges { count, max } => {
                write!(f, "{count} pieces of buffer, but the queue pair was made for {max}")
            }
        }
    }
}

impl std::error::Error for PostError {}

adverb_sys::debug_as_display!(PostError);
