//! Requests to a manager.

use adverb_wire::cm::{Exponent, Path, PortSpace, Req, Service, ServiceId, SidrStatus, Small};
use adverb_wire::{PathMtu, Psn, Qkey, Qpn};
use core::fmt;

/// An address: IPv6, or IPv4-mapped.
pub type Gid = [u8; 16];

/// A listener of a manager.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ListenerId(pub(crate) u64);

/// A connection that is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Connect {
    /// Address of this side.
    pub local: Gid,
    /// Address of the other side.
    pub peer: Gid,
    /// With what.
    pub service_id: ServiceId,
    /// Of what transport.
    pub service: Service,
    /// The queue pair of this side.
    pub qpn: Qpn,
    /// Number of the first packet that this side expects.
    pub psn: Psn,
    /// How many READs and atomics of the peer this side serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics this side has outstanding at once.
    pub initiator_depth: u8,
    /// How often to send a packet again.
    pub retries: Small<3>,
    /// How often to ask again while no receive is posted; 7 is for ever.
    pub rnr_retries: Small<3>,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Hop limit of packets.
    pub hop_limit: u8,
    /// How long to wait for acknowledgements.
    pub ack_timeout: Exponent,
    /// What the peer's user gets.
    pub private: [u8; 92],
}

/// A connection that is accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Accept {
    /// The queue pair of this side.
    pub qpn: Qpn,
    /// Number of the first packet that this side expects.
    pub psn: Psn,
    /// How many READs and atomics of the peer this side serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics this side has outstanding at once.
    pub initiator_depth: u8,
    /// How often to ask again while no receive is posted; 7 is for ever.
    pub rnr_retries: Small<3>,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// What the peer's user gets.
    pub private: [u8; 196],
}

/// A queue pair of datagrams that is looked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resolve {
    /// Address of this side.
    pub local: Gid,
    /// Address of the other side.
    pub peer: Gid,
    /// Traffic class of the search.
    pub traffic_class: u8,
    /// What is looked for.
    pub service_id: ServiceId,
    /// What the peer's user gets.
    pub private: [u8; 216],
}

/// The answer to a search for a queue pair of datagrams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// Whether there is one.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// The key that datagrams to it must show.
    pub qkey: Qkey,
    /// What the peer's user gets.
    pub private: [u8; 136],
}

/// Error of a command. Nothing has changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// The service has a listener already.
    InUse,
    /// There are as many connections or listeners as there may be.
    Full {
        /// How many there may be.
        max: usize,
    },
    /// There is no such connection or listener.
    NotFound,
    /// The connection is in a state that does not have this.
    State,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the service has a listener already"),
            Self::Full { max } => write!(f, "there are {max} already, and may not be more"),
            Self::NotFound => f.write_str("there is no such connection or listener"),
            Self::State => f.write_str("the connection is not in a state for this"),
        }
    }
}

impl core::error::Error for Error {}

impl Connect {
    /// A reliable connection to a port of the peer, with nothing said that has a usual value.
    pub const fn new(local: Gid, peer: Gid, port: u16, qpn: Qpn, psn: Psn) -> Self {
        Self {
            local,
            peer,
            service_id: ServiceId::of_port(PortSpace::Tcp, port),
            service: Service::Rc,
            qpn,
            psn,
            responder_resources: 1,
            initiator_depth: 1,
            retries: Small::MAX,
            rnr_retries: Small::MAX,
            srq: false,
            path_mtu: PathMtu::B1024,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: Exponent::saturating(19),
            private: [0; 92],
        }
    }

    /// The path that the request describes.
    pub(crate) const fn path(&self) -> Path {
        Path {
            local_lid: Path::NO_LID,
            remote_lid: Path::NO_LID,
            local_gid: self.local,
            remote_gid: self.peer,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ack_timeout: self.ack_timeout,
            ..Path::NONE
        }
    }
}

impl Accept {
    /// Agrees to `request` with a queue pair: the peer's depths become the other's limits.
    pub const fn new(request: &Req, qpn: Qpn, psn: Psn) -> Self {
        Self {
            qpn,
            psn,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            rnr_retries: Small::MAX,
            srq: false,
            private: [0; 196],
        }
    }
}
