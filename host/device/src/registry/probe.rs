//! Probes: datagrams that ask which process's socket has a place in an address's group.
//!
//! The kernel fills the place of a socket that was closed with the group's last. When several
//! processes die at once the order is unknown, and steering goes wrong: nothing is lost, for
//! packets are passed on, but that is slow. A process that has to pass on many takes a census: one probe
//! for each place, answered in the registry by the process that gets it.
//!
//! ```text
//! | magic (4) | 0 (1) | destination queue pair: probe block, place (3) | nonce (4) |
//! ```
//!
//! The first byte of the magic is an opcode that does not exist, so that nothing takes a probe for a
//! packet.

use crate::registry::Block;

const MAGIC: [u8; 4] = *b"advp";

/// The probe for a place.
pub(crate) fn emit(place: u8, nonce: u32) -> [u8; 12] {
    let [_, b0, b1, _] = Block::PROBE.first().get().to_be_bytes();
    let [m0, m1, m2, m3] = MAGIC;
    let [n0, n1, n2, n3] = nonce.to_be_bytes();
    [m0, m1, m2, m3, 0, b0, b1, place, n0, n1, n2, n3]
}

/// The place and the nonce of a probe, if it is one.
pub(crate) fn parse(datagram: &[u8]) -> Option<(u8, u32)> {
    let [m0, m1, m2, m3, _, b0, b1, place, n0, n1, n2, n3] = *datagram else {
        return None;
    };
    let nonce = u32::from_be_bytes([n0, n1, n2, n3]);
    let probe = emit(place, nonce);
    (probe == [m0, m1, m2, m3, 0, b0, b1, place, n0, n1, n2, n3]).then_some((place, nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_no_packet_and_a_packet_no_probe() {
        let probe = emit(7, 0x0102_0304);
        assert_eq!(parse(&probe), Some((7, 0x0102_0304)));
        assert!(adverb_wire::Packet::parse(&probe).is_err());
        assert_eq!(parse(&[4; 12]), None);
        assert_eq!(parse(&probe[..11]), None);
    }
}
