//! Address vectors: what is known of the path to another port.
//!
//! An address vector is made once, when a queue pair connects or an address handle is made: the socket to send
//! from, the address to send to, and the part of the ICRC that is the same for every packet. Sending
//! then looks nothing up.

use crate::link::errors::ConnectError;
use crate::link::peer_cache::LocalRoute;
use crate::link::udp::endpoint::{Endpoint, gid_of};
use crate::link::xdp::NextHop;
use adverb_engine::Gid;
use adverb_sys::udp::Destination;
use adverb_wire::{Flow, Marks};
use std::sync::Arc;

/// Address vector: what packets to one port need.
#[derive(Debug)]
pub(crate) struct AddressVector {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) destination: Destination,
    pub(crate) flow: Flow,
    /// Packets leave as frames, where they can.
    pub(crate) next_hop: Option<Box<NextHop>>,
    /// It ends in this network namespace: the destination may be a neighbour.
    pub(crate) local: Option<LocalRoute>,
}

impl AddressVector {
    /// The address vector from a local address to a GID, for packets that are marked like this.
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
        let destination = endpoint.destination(peer, marks);
        let next_hop = endpoint.next_hop(peer);
        Ok(Self { endpoint, destination, flow, next_hop, local: None })
    }

    /// How packets are to be marked.
    pub(crate) fn marks(&self) -> Marks {
        self.endpoint.marks(&self.destination)
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
