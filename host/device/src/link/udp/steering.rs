//! Steering of packets to processes: the kernel is told the queue pair numbers that each has.

use crate::link::udp::endpoint::{Endpoint, gid_of};
use crate::registry::{BLOCK_BITS, Block, CONNECTION_PREFIX_BITS, Registry, SlotId};
use adverb_sys::udp::steering;
use std::io;
use std::net::SocketAddr;

/// From now on packets to the address of this socket go to the socket of the process that has their queue pair, or
/// their connection, and all others to that of the process that serves the address: `members` are the devices whose
/// sockets receive for the address, by their place in the group.
pub(crate) fn steer(
    endpoint: &Endpoint,
    registry: &Registry,
    members: &[SlotId],
) -> io::Result<()> {
    let connections: Vec<_> = (0..)
        .zip(members)
        .map(|(index, slot)| steering::Route { block: slot.number(), index })
        .collect();
    let routes: Vec<_> = registry
        .routes(members)
        .map(|(block, index)| steering::Route { block: block.index(), index })
        .take(steering::ROUTES_MAX.saturating_sub(connections.len()))
        .collect();
    let connections =
        steering::Connections { prefix_bits: CONNECTION_PREFIX_BITS, routes: &connections };
    let others =
        registry.place_of_server(gid_of(endpoint.addr.ip()).0, scope(endpoint.addr), members);
    let program =
        steering::program(BLOCK_BITS, Block::PROBE.index(), &routes, &connections, others)?;
    endpoint.socket.attach_reuseport_filter(&program)
}

/// What the registry tells apart addresses of links by.
pub(crate) fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}
