//! Which process gets a packet: the kernel is told the numbers that each has.

use crate::link::udp::endpoint::Endpoint;
use crate::registry::{BLOCK_BITS, Block};
use adverb_sys::udp::steering;
use std::io;
use std::net::SocketAddr;

/// From now on packets to the address of this socket go to the socket of the process that has their queue pair.
pub(crate) fn steer(
    endpoint: &Endpoint,
    routes: impl Iterator<Item = (Block, u32)>,
) -> io::Result<()> {
    let routes: Vec<_> = routes
        .map(|(block, index)| steering::Route { block: block.index(), index })
        .take(steering::ROUTES_MAX)
        .collect();
    let program = steering::program(BLOCK_BITS, Block::PROBE.index(), &routes)?;
    endpoint.socket.attach_reuseport_filter(&program)
}

/// What the registry tells apart addresses of links by.
pub(crate) fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}
