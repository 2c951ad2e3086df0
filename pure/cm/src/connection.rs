//! One connection or search, as its manager keeps it.

use crate::request::{Gid, ListenerId};
use adverb_wire::Qpn;
use adverb_wire::cm::{CommId, Message, ServiceId};
use core::time::Duration;

/// One connection or search.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) local: Gid,
    pub(crate) peer: Gid,
    pub(crate) transaction: u64,
    pub(crate) state: State,
    /// What the peer calls it, once that is known.
    pub(crate) remote_id: Option<CommId>,
    /// The queue pair of this side, once it has one.
    pub(crate) qpn: Option<Qpn>,
    /// That of the other side.
    pub(crate) remote_qpn: Option<Qpn>,
    /// What is sent again when no answer comes, or when the peer repeats itself.
    pub(crate) last: Option<Message>,
    pub(crate) deadline: Option<Duration>,
    /// How often `last` may be sent again.
    pub(crate) tries: u8,
    /// How often the peer may ask for patience.
    pub(crate) patience: u8,
    /// How often it may still be asked again after it has said that nothing listens.
    pub(crate) knocks: u8,
    /// What it was asked for with; of no meaning for what this side asks for.
    pub(crate) service: ServiceId,
    /// The listener in whose backlog it has a place.
    pub(crate) backlog: Option<ListenerId>,
    /// Traffic class of its messages.
    pub(crate) traffic_class: u8,
    /// How long an answer of the peer may take, and how often it is asked for again.
    pub(crate) wait: Duration,
    pub(crate) retries: u8,
    /// Events that its user has not taken yet. It exists until they are.
    pub(crate) undelivered: u8,
    /// Its user has let go of it: there are no more events.
    pub(crate) deaf: bool,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// A search of the peer's waits for the user.
    Asked,
    /// A search waits for the peer.
    Asking,
    /// The end was announced, and waits for the peer's agreement.
    DreqSent,
    /// It can be used.
    Established,
    /// It exists only for events that were not taken yet.
    Gone,
    /// The peer has accepted; the user has to say that it is ready.
    RepReceived,
    /// The user has accepted; the peer has to say that it is ready.
    RepSent,
    /// The peer asks; the user has to accept or reject.
    ReqReceived,
    /// The user asks; the peer has to accept or reject.
    ReqSent,
    /// Over, but messages or packets of it may still be on their way.
    TimeWait,
}
