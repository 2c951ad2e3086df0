//! Address handles: where datagrams go.

use crate::link::Links;
use crate::link::address_vector::AddressVector;
use crate::link::gid::GidEntry;
use crate::objects::progress::Progress;
use adverb_engine::Gid;
use adverb_wire::{Marks, Qkey, Qpn};
use std::fmt;
use std::sync::Arc;

/// Attributes of an address handle. `struct ibv_ah_attr` with its `struct ibv_global_route`.
///
/// RoCE has no local identifiers, service levels of its own or static rates, so those are no fields
/// here. Every address is global.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_ah_attr")]
#[doc(alias = "ibv_global_route")]
pub struct AhAttr {
    /// The port there, or a multicast group.
    pub gid: Gid,
    /// Place of the source address in the GID table; `None` is the first of the family of `gid`.
    pub gid_index: Option<u8>,
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
    /// To `gid`, from the first address of its family, the rest as the system does it.
    pub const fn new(gid: Gid) -> Self {
        Self { gid, gid_index: None, flow_label: 0, traffic_class: 0, hop_limit: 0 }
    }

    adverb_sys::setters! {
        /// Says where in the GID table the address is from which packets go.
        fn gid_index(index: u8) => self.gid_index = Some(index);
        /// Sets the flow label, 20 bits.
        fn flow_label(label: u32) => self.flow_label = label;
        /// Sets the traffic class.
        fn traffic_class(class: u8) => self.traffic_class = class;
        /// Sets how many routers packets may pass.
        fn hop_limit(hops: u8) => self.hop_limit = hops;
    }

    /// Place of the address from which packets go, in a table with these entries.
    pub fn place(&self, gids: &[GidEntry]) -> u8 {
        self.gid_index.unwrap_or_else(|| GidEntry::usual(gids, Some(self.gid)))
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
    pub(crate) address_vector: Arc<AddressVector>,
    port: Arc<dyn Progress>,
    domain: u32,
    attr: AhAttr,
}

impl Ah {
    pub(crate) fn new(
        address_vector: Arc<AddressVector>,
        port: Arc<dyn Progress>,
        domain: u32,
        attr: AhAttr,
    ) -> Self {
        Self { address_vector, port, domain, attr }
    }

    /// It is a way of this device, for queue pairs of this protection domain.
    pub(crate) fn is_for(&self, links: &Links, domain: u32) -> bool {
        self.domain == domain && std::ptr::eq(self.port.links(), links)
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
