//! What is known of one identifier.

use crate::error::Error;
use crate::handle::{Handle, Seat};
use crate::parameters::{PathInfo, Space, Transport};
use crate::ports::Place;
use crate::waiting::Waiting;
use adverb_cm::ListenerId;
use adverb_device::{AhAttr, BoundService, Gid, Psn};
use adverb_wire::cm::{CommId, Rep, Req};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// One identifier.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) user: u64,
    pub(crate) queue: Arc<Waiting>,
    pub(crate) space: Space,
    pub(crate) transport: Transport,
    /// Nothing, of a request whose event was not taken yet.
    pub(crate) handle: Weak<Handle>,
    pub(crate) stage: Stage,
    /// Its connection or search, as the protocol names it.
    pub(crate) connection: Option<CommId>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) place: Option<Place>,
    /// The port, if it was bound and not only chosen.
    pub(crate) bound: Option<BoundService>,
    pub(crate) options: Options,
    /// Number of the first packet that the peer sends.
    pub(crate) psn: Psn,
    /// What the peer has asked for.
    pub(crate) request: Option<Req>,
    /// What the peer has answered.
    pub(crate) reply: Option<Rep>,
    /// What this side has said.
    pub(crate) said: Said,
    /// Groups that it has joined.
    pub(crate) seats: BTreeMap<u64, Member>,
    /// Events that wait.
    pub(crate) queued: usize,
}

/// A multicast group that was joined.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) seat: Weak<Seat>,
    pub(crate) gid: Gid,
    pub(crate) user: u64,
}

/// What the program has asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) reuse: bool,
    pub(crate) ipv6_only: bool,
    pub(crate) ack_timeout: Option<u8>,
}

/// What this side has proposed or accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
}

/// How far an identifier is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// This side has accepted.
    Accepted,
    /// The address of the peer is known.
    AddressResolved,
    /// It has an address.
    Bound,
    /// This side has asked for a connection, or for a queue pair of datagrams.
    Connecting,
    /// It can be used.
    Established,
    /// Nothing was done with it.
    Idle,
    /// It waits for requests.
    Listening(ListenerId),
    /// It was connected, or should have been.
    Over,
    /// The peer has asked.
    Requested,
    /// The peer has accepted.
    Responded,
    /// The path is known.
    RouteResolved,
}

impl State {
    pub(crate) fn new(queue: Arc<Waiting>, space: Space, transport: Transport, user: u64) -> Self {
        Self {
            user,
            queue,
            space,
            transport,
            handle: Weak::new(),
            stage: Stage::Idle,
            connection: None,
            local: None,
            peer: None,
            place: None,
            bound: None,
            options: Options::default(),
            psn: adverb_device::random_psn(),
            request: None,
            reply: None,
            said: Said::default(),
            seats: BTreeMap::new(),
            queued: 0,
        }
    }

    pub(crate) fn place(&self) -> Result<&Place, Error> {
        self.place.as_ref().ok_or(Error::State("bound to a device"))
    }

    /// How long acknowledgements take: what the program says, what the peer says, or the usual.
    pub(crate) fn ack_timeout(&self) -> u8 {
        let asked = self.request.map(|request| request.primary.ack_timeout.get());
        self.options.ack_timeout.or(asked).unwrap_or(ACK_TIMEOUT)
    }

    /// Traffic class of packets.
    pub(crate) fn traffic_class(&self) -> u8 {
        self.request.map_or(self.options.tos, |request| request.primary.traffic_class)
    }

    /// The path to the peer, once it is known.
    pub(crate) fn path(&self) -> Option<PathInfo> {
        if matches!(self.stage, Stage::Idle | Stage::Bound | Stage::Listening(_)) {
            return None;
        }
        let place = self.place.as_ref()?;
        let mtu = self.request.map_or(place.port.device().active_mtu(), |req| req.path_mtu);
        Some(PathInfo {
            local: place.gid,
            peer: gid_of(self.peer?),
            mtu,
            pkey: 0xffff,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class(),
            flow_label: 0,
            ack_timeout: self.ack_timeout(),
        })
    }

    /// Where packets to the peer go.
    pub(crate) fn ah(&self) -> Option<AhAttr> {
        let path = self.path()?;
        let attr = AhAttr::new(path.peer).gid_index(self.place.as_ref()?.gid_index);
        let attr = attr.flow_label(path.flow_label).traffic_class(path.traffic_class);
        Some(attr.hop_limit(path.hop_limit))
    }
}

/// The GID of an address.
pub(crate) fn gid_of(address: SocketAddr) -> Gid {
    match address {
        SocketAddr::V4(v4) => Gid::from_v4(v4.ip().octets()),
        SocketAddr::V6(v6) => Gid(v6.ip().octets()),
    }
}

/// How long acknowledgements may take, if nothing is said: half a second.
const ACK_TIMEOUT: u8 = 17;
const HOP_LIMIT: u8 = 64;
