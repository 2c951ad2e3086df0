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

/// The IP identification of a datagram, which its ICRC covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Identification {
    /// It had this one.
    Known(u16),
    /// It probably had this one: another one is found from the ICRC, of which 16 bits are left to find corruption.
    Guessed(u16),
}

/// Checks a datagram that has been `parsed`: one that starts at the BTH, ends with the ICRC and came by `flow`.
///
/// The packet stays where it was parsed. It is large, and copies of it, made as soon as its fields are written, keep the
/// processor waiting for longer than the parsing takes.
///
/// # Errors
///
/// [`Dropped`] says what to count.
#[inline]
pub fn admit<'a, 'b>(
    parsed: &'a Result<Packet<'b>, ParseError>,
    datagram: &[u8],
    flow: &Flow,
    id: Identification,
) -> Result<&'a Packet<'b>, Dropped> {
    let packet = parsed.as_ref().map_err(|error| Dropped::Malformed(*error))?;
    let genuine = match id {
        Identification::Known(id) => flow.verify(datagram, id) == Some(id),
        Identification::Guessed(guess) => flow.verify(datagram, guess).is_some(),
    };
    if genuine { Ok(packet) } else { Err(Dropped::Corrupt) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::send_only;
    use alloc::vec::Vec;

    fn accept<'a>(datagram: &'a [u8], flow: &Flow, guess: u16) -> Result<Packet<'a>, Dropped> {
        admit(&Packet::parse(datagram), datagram, flow, Identification::Guessed(guess)).copied()
    }

    fn accept_known<'a>(datagram: &'a [u8], flow: &Flow, id: u16) -> Result<Packet<'a>, Dropped> {
        admit(&Packet::parse(datagram), datagram, flow, Identification::Known(id)).copied()
    }

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
