//! Admission of datagrams: one becomes a packet that can be believed, or a counted drop.
//!
//! Finding the queue pair is left to the caller, which owns the table and its locks.

use adverb_wire::{Flow, Packet, ParseError};

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dropped {
    /// The ICRC does not fit: bytes were changed on the way, or never made for this port.
    Corrupt,
    /// The headers say something that does not exist.
    Malformed(ParseError),
}

/// Checks and parses one datagram, which starts at the BTH and ends with the ICRC.
///
/// `flow` is the datagram's way here, `guess` the IP ID that it probably had; returns the packet.
///
/// # Errors
///
/// [`Dropped`] says what to count.
pub fn accept<'a>(datagram: &'a [u8], flow: &Flow, guess: u16) -> Result<Packet<'a>, Dropped> {
    let packet = Packet::parse(datagram).map_err(Dropped::Malformed)?;
    match flow.verify(datagram, guess) {
        Some(_) => Ok(packet),
        None => Err(Dropped::Corrupt),
    }
}

/// As [`accept`], of a datagram that had the IP ID `id`: then all 32 bits of the ICRC count.
///
/// # Errors
///
/// [`Dropped`] says what to count.
pub fn accept_known<'a>(datagram: &'a [u8], flow: &Flow, id: u16) -> Result<Packet<'a>, Dropped> {
    let packet = Packet::parse(datagram).map_err(Dropped::Malformed)?;
    match flow.verify(datagram, id) == Some(id) {
        true => Ok(packet),
        false => Err(Dropped::Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::send_only;
    use alloc::vec::Vec;

    #[test]
    fn only_whole_packets_come_in() {
        let flow = Flow::v6([1; 16], [2; 16], 0xc000, adverb_wire::ROCE_PORT);
        let packet = send_only(0);
        let mut datagram = Vec::new();
        packet.emit_into(&flow, 0, &mut datagram);
        assert_eq!(accept(&datagram, &flow, 0), Ok(packet));

        datagram[20] ^= 1;
        assert_eq!(accept(&datagram, &flow, 0), Err(Dropped::Corrupt));
        assert!(matches!(accept(&datagram[..10], &flow, 0), Err(Dropped::Malformed(_))));
        assert!(matches!(accept(&[], &flow, 0), Err(Dropped::Malformed(_))));
    }

    #[test]
    fn an_identification_that_is_known_has_to_fit() {
        let flow = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, adverb_wire::ROCE_PORT);
        let packet = send_only(0);
        let mut datagram = Vec::new();
        packet.emit_into(&flow, 7, &mut datagram);
        assert_eq!(accept(&datagram, &flow, 8), Ok(packet));
        assert_eq!(accept_known(&datagram, &flow, 7), Ok(packet));
        assert_eq!(accept_known(&datagram, &flow, 8), Err(Dropped::Corrupt));
        assert!(matches!(accept_known(&[], &flow, 0), Err(Dropped::Malformed(_))));
    }
}
