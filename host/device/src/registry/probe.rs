//! Probes: datagrams that ask which process's socket has a place in an address's group.
//!
//! The kernel fills the place of a socket that was closed with the group's last. When several
//! processes die at once the order is unknown, and steering goes wrong: nothing is lost, for
//! packets are passed on, but that is slow. A process that has to pass on many takes a census: one probe
//! for each place and one more, answered in the registry by the process that gets it.
//!
//! ```text
//! | magic (4) | 0 (1) | destination queue pair: probe block, place (3) | nonce (4) |
//! ```
//!
//! A question has the destination queue pair 1 and, further behind, the attribute of a request for a connection: it goes
//! where those go, and is answered by the process that serves the address (`serving.rs`).
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

/// The question whether requests are taken.
pub(crate) fn question(nonce: u32) -> [u8; QUESTION_BYTES] {
    let [n0, n1, n2, n3] = nonce.to_be_bytes();
    let [m0, m1, m2, m3] = MAGIC;
    let start = [m0, m1, m2, m3, 0, 0, 0, 1, n0, n1, n2, n3];
    let mut question = [0; QUESTION_BYTES];
    question.iter_mut().zip(start).for_each(|(place, byte)| *place = byte);
    let [.., high, low] = &mut question;
    [*high, *low] = REQUEST;
    question
}

/// The nonce of a question, if it is one.
pub(crate) fn parse_question(datagram: &[u8]) -> Option<u32> {
    let (nonce, _) = datagram.get(NONCE_OFFSET..)?.split_first_chunk()?;
    let nonce = u32::from_be_bytes(*nonce);
    (datagram == question(nonce)).then_some(nonce)
}

/// It is either, and no packet.
pub(crate) fn is_own(datagram: &[u8]) -> bool {
    parse(datagram).is_some() || parse_question(datagram).is_some()
}

const NONCE_OFFSET: usize = 8;
/// Up to the end of the attribute, behind the transport headers of a datagram and a part of that of management.
const QUESTION_BYTES: usize = 38;
/// The attribute of a REQ. IBTA Vol. 1 §12.6.5.
const REQUEST: [u8; 2] = [0, 0x10];

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
        let question = question(0x0102_0304);
        assert_eq!((parse(&question), parse_question(&probe)), (None, None));
        assert_eq!(parse_question(&question), Some(0x0102_0304));
        assert!(adverb_wire::Packet::parse(&question).is_err());
        assert_eq!(parse_question(&question[..37]), None);
    }
}
