//! States of a connection, and what a program is told. RFC 9293 §3.3.2.

/// The states of RFC 9293, without LISTEN, which is a listener's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// There is no connection any more.
    Closed,
    /// The peer has sent its FIN; we have not.
    CloseWait,
    /// Both FINs crossed; the peer has not acknowledged ours.
    Closing,
    /// Both sides may send.
    Established,
    /// We have sent our FIN.
    FinWait1,
    /// The peer has acknowledged our FIN.
    FinWait2,
    /// Both have sent their FIN, the peer first; it has not acknowledged ours.
    LastAck,
    /// Both SYNs have been sent; the peer has not acknowledged ours.
    SynReceived,
    /// We have sent our SYN.
    SynSent,
    /// All is done; segments that are still on their way are waited for.
    TimeWait,
}

impl State {
    /// Both sides know of the connection.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynReceived | Self::SynSent)
    }

    /// We have said that we shall send no more.
    pub const fn has_sent_fin(self) -> bool {
        matches!(
            self,
            Self::Closing | Self::FinWait1 | Self::FinWait2 | Self::LastAck | Self::TimeWait
        )
    }
}

/// Why a connection ended other than by both FINs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// This side did it.
    Aborted,
    /// Nothing listens at the peer.
    Refused,
    /// The peer did it.
    Reset,
    /// The peer did not answer.
    TimedOut,
}

/// What has happened to a connection since it was last asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Events {
    /// It is established.
    pub connected: bool,
    /// There are bytes to read, or the end of the stream.
    pub readable: bool,
    /// There is room for bytes to send.
    pub writable: bool,
    /// It is over; see [`End`].
    pub closed: bool,
    /// What comes is left to another implementation: see [`super::Connection::is_left`].
    pub left: bool,
}

impl Events {
    /// Something has happened.
    pub const fn any(self) -> bool {
        let Self { connected, readable, writable, closed, left } = self;
        connected || readable || writable || closed || left
    }
}
