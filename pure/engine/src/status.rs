//! Statuses of work, and states of queue pairs.

/// How a work request ended. The names are those of `enum ibv_wc_status`; IBTA Vol. 1 §11.6.2.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_wc_status")]
#[doc(alias = "ibv_wc_status_str")]
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
    /// Anything else. Every failure here has a status above, and posting refuses what the transport
    /// has no packet for, so no completion has this one; it fills those that say nothing yet.
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
#[doc(alias = "ibv_wc_opcode")]
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
    /// An ATOMIC WRITE.
    AtomicWrite,
    /// A FLUSH.
    Flush,
    /// The invalidation of a local key.
    LocalInvalidate,
    /// The binding of a memory window.
    BindWindow,
    /// A message arrived in a posted receive.
    Receive,
    /// A peer's WRITE with immediate data consumed a posted receive.
    ReceiveRdmaWithImm,
}

/// The states of a queue pair. IBTA Vol. 1 §10.3.1; `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[doc(alias = "ibv_qp_state")]
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

/// What happens to work of one queue in a state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Processing {
    /// It cannot be there, or waits.
    None,
    /// It is carried out.
    All,
    /// What has begun is carried out; the rest waits.
    Begun,
    /// It ends at once, flushed.
    Flushed,
}

/// What a state does to posting, to work and to packets: one row of the table of states.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Behaviour {
    /// Receives can be posted.
    pub post_receive: bool,
    /// Requests can be posted.
    pub post_send: bool,
    /// What happens to receives.
    pub receives: Processing,
    /// What happens to requests.
    pub sends: Processing,
    /// Packets are handled and answered; otherwise they are dropped silently.
    pub incoming: bool,
    /// Requests are emitted.
    pub outgoing: bool,
}

impl QpState {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The table of states. Columns: receives and requests can be posted, what happens to either,
    /// packets come in, requests go out. IBTA Vol. 1 §10.3.1.
    #[inline]
    #[rustfmt::skip]
    pub const fn behaviour(self) -> Behaviour {
        use Processing::{All, Begun, Flushed, None};
        match self {
            Self::Reset => row(false, false, None,    None,    false, false),
            Self::Init  => row(true,  false, None,    None,    false, false),
            Self::Rtr   => row(true,  false, All,     None,    true,  false),
            Self::Rts   => row(true,  true,  All,     All,     true,  true),
            Self::Sqd   => row(true,  true,  All,     Begun,   true,  true),
            Self::Sqe   => row(true,  true,  All,     Flushed, true,  false),
            Self::Err   => row(true,  true,  Flushed, Flushed, false, false),
        }
    }

    /// Packets are taken and answered in this state.
    #[inline]
    pub const fn receives(self) -> bool {
        self.behaviour().incoming
    }
}

/// Writes one row in one line.
const fn row(
    post_receive: bool,
    post_send: bool,
    receives: Processing,
    sends: Processing,
    incoming: bool,
    outgoing: bool,
) -> Behaviour {
    Behaviour { post_receive, post_send, receives, sends, incoming, outgoing }
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

/// Something that happened to a queue pair and that no completion tells. `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum QpEvent {
    /// The queue pair cannot go on, and could not say so by a completion.
    QpFatal,
    /// A peer sent a request that makes no sense, and was refused.
    QpReqErr,
    /// A peer asked for memory that it may not access, and was refused.
    QpAccessErr,
    /// The first packet came, before the queue pair was told that the connection stands.
    CommEst,
    /// Every request that had begun before the state became SQD has ended.
    SqDrained,
    /// The queue pair will take no more receives from its shared queue.
    LastWqeReached,
}

impl QpEvent {
    /// The number of this event in `enum ibv_event_type`.
    pub const fn code(self) -> u8 {
        match self {
            Self::QpFatal => 1,
            Self::QpReqErr => 2,
            Self::QpAccessErr => 3,
            Self::CommEst => 4,
            Self::SqDrained => 5,
            Self::LastWqeReached => 16,
        }
    }
}

impl core::fmt::Display for QpEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::QpFatal => "the queue pair has failed for a reason of its surroundings",
            Self::QpReqErr => "a request that makes no sense was refused",
            Self::QpAccessErr => "a request was refused access to memory",
            Self::CommEst => "the first packet came before the connection was confirmed",
            Self::SqDrained => "the send queue has drained",
            Self::LastWqeReached => "no more receives will be taken from the shared queue",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Column = fn(Behaviour) -> char;

    /// The table as people print it, a column a line, states from RESET to ERR: `+` yes, `-` no,
    /// `.` not processed, `p` processed, `b` only what has begun, `f` flushed.
    const PRINTED: [(&str, Column); 6] = [
        ("-++++++", |row| yes(row.post_receive)),
        ("---++++", |row| yes(row.post_send)),
        ("..ppppf", |row| letter(row.receives)),
        ("...pbff", |row| letter(row.sends)),
        ("--++++-", |row| yes(row.incoming)),
        ("---++--", |row| yes(row.outgoing)),
    ];

    fn yes(yes: bool) -> char {
        if yes { '+' } else { '-' }
    }

    fn letter(processing: Processing) -> char {
        match processing {
            Processing::None => '.',
            Processing::All => 'p',
            Processing::Begun => 'b',
            Processing::Flushed => 'f',
        }
    }

    #[test]
    fn every_cell_of_the_table_of_states_is_as_printed() {
        for (line, column) in PRINTED {
            for (state, expected) in QpState::ALL.into_iter().zip(line.chars()) {
                assert_eq!(column(state.behaviour()), expected, "{line} in {state}");
            }
        }
    }
}
