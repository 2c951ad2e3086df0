//! The links that a connected queue pair can have to its peer, behind one seam.
//!
//! What a queue pair does depends on what its link can do ([`Link::capabilities`]), not on which it is.
//! Another link is a folder here, an arm in this file and in `out.rs`, and a line in the port's choice
//! (`Port::link`).

use crate::data_path::DataPath;
use crate::link::Links;
use crate::link::address_vector::AddressVector;
use crate::link::out::{Out, on_shm_link, on_udp_link};
use crate::link::shm::link::ShmLink;
use crate::link::{shm, udp};
use adverb_engine::{AckCost, Capabilities};
use adverb_wire::PathMtu;
use std::sync::Arc;

/// The link of a connected queue pair to its peer.
#[derive(Debug)]
pub(crate) enum Link {
    /// RoCEv2 packets over a UDP socket.
    Udp(AddressVector),
    /// Records in memory that both processes map.
    Shm(Arc<ShmLink>),
}

impl Link {
    /// What the transport can make use of.
    pub(crate) fn capabilities(&self) -> Capabilities {
        match self {
            Self::Udp(_) => Capabilities::TRAINS,
            Self::Shm(shm_link) => shm::capabilities(shm_link.shares()),
        }
    }

    /// What an acknowledgement costs.
    pub(crate) fn ack_cost(&self) -> AckCost {
        match self {
            Self::Udp(_) => AckCost::Packets,
            Self::Shm(_) => AckCost::Records,
        }
    }

    /// Packets that may be under way to the peer.
    pub(crate) fn window_packets(&self, mtu: PathMtu) -> u32 {
        match self {
            Self::Udp(address_vector) => udp::window_packets(&address_vector.endpoint, mtu),
            Self::Shm(_) => shm::WINDOW_RECORDS,
        }
    }

    pub(crate) fn path(&self) -> DataPath {
        match self {
            Self::Udp(_) => DataPath::Udp,
            Self::Shm(shm_link) if shm_link.is_own() => DataPath::InProcess,
            Self::Shm(_) => DataPath::SharedMemory,
        }
    }

    /// What is sent may reach another process of this host than the peer's.
    pub(crate) fn can_be_misled(&self) -> bool {
        match self {
            Self::Udp(address_vector) => address_vector.stays_here(),
            Self::Shm(_) => false,
        }
    }

    /// Memory that both ends share, for what is carried out on it without the transport's packets.
    #[inline]
    pub(crate) fn shm_link(&self) -> Option<&Arc<ShmLink>> {
        match self {
            Self::Udp(_) => None,
            Self::Shm(shm_link) => Some(shm_link),
        }
    }

    /// Lends a way out with room for `budget` packets to `run`, and sends what was emitted; says how many
    /// packets there were. `None`: nothing can be sent right now.
    #[inline]
    pub(crate) fn emit<R>(
        &self,
        budget: usize,
        links: &Links,
        run: impl FnOnce(Out<'_, '_>) -> R,
    ) -> Option<(R, u64)> {
        match self {
            Self::Udp(address_vector) => on_udp_link(address_vector, budget, links, run),
            Self::Shm(shm_link) => Some(on_shm_link(shm_link.tx_batch(budget), run)),
        }
    }
}
