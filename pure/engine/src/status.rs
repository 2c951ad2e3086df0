//! How work ends, and the states a queue pair is in.

/// How a work request ended. The names are those of `enum ibv_wc_status`; IBTA Vol. 1 §11.6.2.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WcStatus {
    /// The work is done.
    Success,
    /// A receive was too short for its message, or a request too long for the transport.
    LocalLength,
    /// The queue pair was not fit for the work (internal consistency).
    LocalQpOperation,
    /// A local buffer is not covered by a region with the rights needed.
    LocalProtection,
    /// The work was not done, because the queue pair was in the error state.
    WorkRequestFlushed,
    /// A memory window could not be bound.
    MemoryWindowBind,
    /// The peer answered with something that does not fit the request.
    BadResponse,
    /// The region does not allow the access that the peer's message asked for.
    LocalAccess,
    /// The peer does not support the request, or found it malformed.
    RemoteInvalidRequest,
    /// The peer's region does not allow the access.
    RemoteAccess,
    /// The peer could not complete the request.
    RemoteOperation,
    /// No acknowledgement came, however often the request was sent.
    RetryExceeded,
    /// The peer had no receive posted, however often the request was sent.
    RnrRetryExceeded,
    /// Anything else.
    General,
}

impl WcStatus {
    /// The number of this status in `enum ibv_wc_status`.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::LocalLength => 1,
            Self::LocalQpOperation => 2,
            Self::LocalProtection => 4,
            Self::WorkRequestFlushed => 5,
            Self::MemoryWindowBind => 6,
            Self::BadResponse => 7,
            Self::LocalAccess => 8,
            Self::RemoteInvalidRequest => 9,
            Self::RemoteAccess => 10,
            Self::RemoteOperation => 11,
            Self::RetryExceeded => 12,
            Self::RnrRetryExceeded => 13,
            Self::General => 21,
        }
    }
}

impl core::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::WorkRequestFlushed => "work request flushed",
            Self::MemoryWindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
            Self::General => "general error",
        })
    }
}

/// What a completion reports. The names are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND, with or without immediate data.
    Send,
    /// An RDMA WRITE, with or without immediate data.
    RdmaWrite,
    /// An RDMA READ.
    RdmaRead,
    /// A COMPARE AND SWAP.
    CompareSwap,
    /// A FETCH AND ADD.
    FetchAdd,
    /// A message arrived in a posted receive.
    Receive,
    /// A peer's WRITE with immediate data consumed a posted receive.
    ReceiveRdmaWithImm,
}

/// The states of a queue pair. IBTA Vol. 1 §10.3.1; `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QpState {
    /// Just made: nothing can be posted, packets are dropped.
    Reset,
    /// Receives can be posted, packets are dropped.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send and receive.
    Rts,
    /// The send queue starts nothing new.
    Sqd,
    /// The send queue has failed; the receive queue works.
    Sqe,
    /// All work is flushed.
    Err,
}

impl QpState {
    /// Packets are taken and answered in this state.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl core::fmt::Display for QpState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}
