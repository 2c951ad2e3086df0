//! Ways to other ports, and address handles, which name them.
//!
//! A way is found once, when a queue pair connects or an address handle is made: the socket to send
//! from, the address to send to, and the part of the ICRC that is the same for every packet. Sending
//! then looks nothing up.

use crate::link::udp::endpoint::{Endpoint, gid_of, ip_of};
use crate::link::vicinity::Near;
use crate::objects::qp::ConnectError;
use crate::progress::Port;
use adverb_engine::Gid;
use adverb_sys::udp::Destination;
use adverb_wire::{Flow, Marks, Qkey, Qpn};
use std::fmt;
use std::sync::Arc;

/// The way to a port.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) destination: Destination,
    pub(crate) flow: Flow,
    /// How packets are marked when they leave.
    pub(crate) marks: Marks,
    /// It ends in this network namespace: whoever is there may be near.
    pub(crate) near: Option<Near>,
}

impl Way {
    /// The way from a local address to a GID, for packets that are marked like this.
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        remote: Gid,
        marks: Marks,
    ) -> Result<Self, ConnectError> {
        check(marks)?;
        let peer = endpoint.peer(remote);
        let flow = endpoint.flow_to(peer).ok_or_else(|| ConnectError::OtherFamily {
            local: gid_of(endpoint.addr.ip()),
            remote,
        })?;
        let (destination, marks) = endpoint.destination(peer, marks);
        Ok(Self { endpoint, destination, flow, marks, near: None })
    }

    /// It ends on this host, at the address where it begins.
    pub(crate) fn stays_here(&self) -> bool {
        self.destination.addr().ip() == self.endpoint.addr.ip()
    }
}

/// Says whether packets can be marked like this.
pub(crate) fn check(marks: Marks) -> Result<(), ConnectError> {
    let (what, asked, most) = ("flow_label", marks.flow_label, Marks::FLOW_LABEL_MAX);
    match asked <= most {
        true => Ok(()),
        false => Err(ConnectError::Attribute { what, asked, allowed: (0, most) }),
    }
}

/// Where datagrams go. `struct ibv_ah_attr` with its `struct ibv_global_route`.
///
/// RoCE has no local identifiers, service levels of its own or static rates, so those are no fields
/// here. Every address is global.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(alias = "ibv_ah_attr")]
#[doc(alias = "ibv_global_route")]
pub struct AhAttr {
    /// The port there, or a multicast group.
    pub gid: Gid,
    /// Place of the source address in the GID table.
    pub gid_index: u8,
    /// The flow label of IPv6, 20 bits; 0 leaves it to the system. IPv4 has none.
    pub flow_label: u32,
    /// The traffic class of IPv6, the type of service of IPv4: the differentiated services code point
    /// in the upper six bits; the lower two are for routers that tell of congestion.
    pub traffic_class: u8,
    /// How many routers packets may pass; 0 leaves it to the system: 64 mostly, and 1 to a multicast
    /// group.
    pub hop_limit: u8,
}

impl AhAttr {
    /// To `gid`, from the address at place 1 of the GID table, the rest as the system does it.
    pub const fn new(gid: Gid) -> Self {
        Self { gid, gid_index: 1, flow_label: 0, traffic_class: 0, hop_limit: 0 }
    }

    /// How packets are to be marked.
    pub const fn marks(&self) -> Marks {
        let Self { flow_label, traffic_class, hop_limit, .. } = *self;
        Marks { traffic_class, hop_limit, flow_label }
    }

    /// The same place, for packets that are marked like this.
    #[must_use]
    pub const fn marked(self, marks: Marks) -> Self {
        let Marks { traffic_class, hop_limit, flow_label } = marks;
        Self { flow_label, traffic_class, hop_limit, ..self }
    }
}

/// An address handle: a way to a port or a multicast group. `struct ibv_ah`.
///
/// A handle: clones are the same way.
#[derive(Clone)]
pub struct Ah {
    // In this order: the last socket of a port goes before the port.
    pub(crate) way: Arc<Way>,
    pub(crate) port: Arc<Port>,
    pub(crate) domain: u32,
    attr: AhAttr,
}

impl Ah {
    pub(crate) fn new(port: Arc<Port>, domain: u32, attr: AhAttr) -> Result<Self, ConnectError> {
        let mut way = Way::new(port.endpoint(attr.gid_index)?, attr.gid, attr.marks())?;
        let source = gid_of(way.endpoint.addr.ip());
        way.near = match ip_of(attr.gid).is_multicast() {
            true => port.near_group(source, attr.gid, way.marks),
            false => port.near(source, attr.gid, way.marks),
        };
        let way = Arc::new(way);
        Ok(Self { way, port, domain, attr })
    }

    /// What it was made of.
    pub fn attr(&self) -> AhAttr {
        self.attr
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ah").field(&self.attr).finish()
    }
}

/// Whom a send request is for.
#[derive(Clone, Copy, Debug)]
pub enum SendTo<'a> {
    /// The connected peer: RC and UC.
    Peer,
    /// A queue pair anywhere: UD. `wr.ud` of `struct ibv_send_wr`.
    Datagram {
        /// The way there.
        ah: &'a Ah,
        /// The queue pair there; [`Qpn::MULTICAST`] for a multicast group.
        remote: Qpn,
        /// The key to show there. With the highest bit set, the sending queue pair's own is shown
        /// instead: the rule for controlled Q_Keys.
        qkey: Qkey,
    },
    /// A shared receive queue of the connected peer, by its number: XRC. `qp_type.xrc.remote_srqn`.
    SharedQueue(u32),
}
