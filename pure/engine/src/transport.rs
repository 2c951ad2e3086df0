//! Types of queue pairs, and which of them can do what: the one table of operations × transports.
//!
//! `wire` has a table of its own, of packets; this one is of work requests, some of which never
//! become a packet.
//!
//! Read IBTA Vol. 1 §9.2 (what each transport carries) and §10.8 (work requests) before changing
//! it.

use adverb_wire::Transport;
use core::fmt;

/// The type of a queue pair: its transport and, for XRC, its end of it. `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending end of an extended reliable connection; it receives answers only.
    XrcInitiator,
    /// The receiving end of an extended reliable connection; nothing can be posted to it.
    XrcTarget,
}

impl QpType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcInitiator, Self::XrcTarget];

    /// The transport that its packets name.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::XrcInitiator | Self::XrcTarget => Transport::Xrc,
        }
    }

    /// Requests are acknowledged, and sent again until they are.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        match self {
            Self::Rc | Self::XrcInitiator | Self::XrcTarget => true,
            Self::Uc | Self::Ud => false,
        }
    }

    /// It has one peer, chosen once.
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// It can send requests.
    #[inline]
    pub const fn sends(self) -> bool {
        !matches!(self, Self::XrcTarget)
    }

    /// It serves a peer's requests.
    #[inline]
    pub const fn serves(self) -> bool {
        !matches!(self, Self::XrcInitiator)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcInitiator => "XRC initiator",
            Self::XrcTarget => "XRC target",
        })
    }
}

/// What a work request asks for, without its arguments. `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[doc(alias = "ibv_wr_opcode")]
pub enum RequestOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that invalidates a key of the receiver's.
    SendInvalidate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// COMPARE AND SWAP.
    CompareSwap,
    /// FETCH AND ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Invalidation of a key of this side's; no packet.
    LocalInvalidate,
    /// Binding of a memory window; no packet.
    BindWindow,
}

impl RequestOp {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Send,
        Self::SendImm,
        Self::SendInvalidate,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
        Self::Flush,
        Self::LocalInvalidate,
        Self::BindWindow,
    ];
}

impl fmt::Display for RequestOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate data",
            Self::SendInvalidate => "SEND with invalidate",
            Self::Write => "RDMA WRITE",
            Self::WriteImm => "RDMA WRITE with immediate data",
            Self::Read => "RDMA READ",
            Self::CompareSwap => "COMPARE AND SWAP",
            Self::FetchAdd => "FETCH AND ADD",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "FLUSH",
            Self::LocalInvalidate => "local invalidate",
            Self::BindWindow => "bind memory window",
        })
    }
}

/// Whether queue pairs of this type have the operation. Usable at compile time.
///
/// | | RC, XRC initiator | UC | UD | XRC target |
/// |---|---|---|---|---|
/// | SEND, SEND with immediate | yes | yes | yes | |
/// | SEND with invalidate | yes | | | |
/// | WRITE, WRITE with immediate | yes | yes | | |
/// | READ, atomics, ATOMIC WRITE, FLUSH | yes | | | |
/// | local invalidate, bind window | yes | yes | | |
pub const fn allowed(kind: QpType, operation: RequestOp) -> bool {
    match kind {
        QpType::Rc | QpType::XrcInitiator => true,
        QpType::Uc => matches!(
            operation,
            RequestOp::Send
                | RequestOp::SendImm
                | RequestOp::Write
                | RequestOp::WriteImm
                | RequestOp::LocalInvalidate
                | RequestOp::BindWindow
        ),
        QpType::Ud => matches!(operation, RequestOp::Send | RequestOp::SendImm),
        QpType::XrcTarget => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::kind_of;
    use adverb_wire::{Opcode, Operation};

    /// The opcode of a one-packet request.
    fn only(operation: RequestOp) -> Option<Operation> {
        match operation {
            RequestOp::Send => Some(Operation::SendOnly),
            RequestOp::SendImm => Some(Operation::SendOnlyImm),
            RequestOp::SendInvalidate => Some(Operation::SendOnlyInvalidate),
            RequestOp::Write => Some(Operation::WriteOnly),
            RequestOp::WriteImm => Some(Operation::WriteOnlyImm),
            RequestOp::Read => Some(Operation::ReadRequest),
            RequestOp::CompareSwap => Some(Operation::CompareSwap),
            RequestOp::FetchAdd => Some(Operation::FetchAdd),
            RequestOp::AtomicWrite => Some(Operation::AtomicWrite),
            RequestOp::Flush => Some(Operation::Flush),
            RequestOp::LocalInvalidate | RequestOp::BindWindow => None,
        }
    }

    /// The table of packets, made for another purpose, is the second source.
    #[test]
    fn what_becomes_a_packet_is_allowed_where_the_packet_exists() {
        for kind in QpType::ALL.into_iter().filter(|kind| kind.sends()) {
            for operation in RequestOp::ALL {
                let Some(packet) = only(operation) else {
                    continue;
                };
                let exists = Opcode::of(kind.transport(), packet).is_some();
                assert_eq!(allowed(kind, operation), exists, "{operation} over {kind}");
            }
        }
    }

    #[test]
    fn what_becomes_no_packet_needs_a_connection_that_sends() {
        for kind in QpType::ALL {
            for operation in [RequestOp::LocalInvalidate, RequestOp::BindWindow] {
                let expected = kind.is_connected() && kind.sends();
                assert_eq!(allowed(kind, operation), expected, "{operation} over {kind}");
            }
        }
    }

    #[test]
    fn every_operation_is_that_of_some_request() {
        for operation in RequestOp::ALL {
            assert_eq!(kind_of(operation).operation(), operation);
        }
    }
}
