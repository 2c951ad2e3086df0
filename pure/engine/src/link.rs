//! Capabilities of a link between two ports, as far as a queue pair makes use of them.

/// Capabilities of the link to a connected queue pair's peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities {
    /// The longest payload of a packet, in bytes; 0: the path MTU.
    pub segment: u32,
    /// A message can go by reference: one packet, whatever its length, whose bytes the receiver copies from
    /// where they are ([`crate::Host::goes_by_reference`], [`crate::Host::fetch`]).
    pub by_reference: bool,
    /// One-sided requests can be carried out on the peer's memory ([`crate::Host::reach`]).
    pub direct: bool,
    /// A SEND of one packet can have a header of sixteen bytes ([`crate::EagerHeader`]).
    pub eager: bool,
    /// Packets get lost on the way: what is late is asked after long before the ACK time-out.
    pub lossy: bool,
    /// Packets of one length travel together, as a train, for less than each by itself: WRITEs and short READs
    /// are cut into messages of one packet, whose lengths are equal.
    pub trains: bool,
    /// Requests that arrive early are kept, and a peer that does so too is sent again only what is missing. For
    /// reliable connections.
    pub keeps_early: bool,
}

impl Capabilities {
    /// Those of a network: packets.
    pub const PACKETS: Self = Self {
        segment: 0,
        by_reference: false,
        direct: false,
        eager: false,
        lossy: true,
        trains: false,
        keeps_early: false,
    };
    /// Those of a network that takes packets of one length in trains, and may reorder them.
    pub const TRAINS: Self = Self { trains: true, keeps_early: true, ..Self::PACKETS };
}
