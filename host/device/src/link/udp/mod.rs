//! Packets over UDP sockets.

pub(crate) mod burst;
pub(crate) mod capture;
pub(crate) mod endpoint;
pub(crate) mod multicast;
pub(crate) mod reception;
pub(crate) mod steering;

use self::endpoint::Endpoint;
use adverb_wire::PathMtu;

/// Packets that may be under way to one peer: what its socket's buffer holds for sure, if it is like
/// ours. The kernel charges up to twice the payload; half is left to other peers.
pub(crate) fn window_packets(endpoint: &Endpoint, mtu: PathMtu) -> u32 {
    let buffer = endpoint.socket.recv_buffer_bytes().unwrap_or(WINDOW_BYTES_MAX);
    let bytes = (buffer / 4).min(WINDOW_BYTES_MAX);
    let packets = u32::try_from(bytes).unwrap_or(u32::MAX) / mtu.bytes();
    packets.clamp(WINDOW_PACKETS.0, WINDOW_PACKETS.1)
}

/// Bytes under way to one peer, at most: more does not fit the cache.
const WINDOW_BYTES_MAX: usize = 4 << 20;
/// Packets under way to one peer, at least and at most.
const WINDOW_PACKETS: (u32, u32) = (16, 1024);
