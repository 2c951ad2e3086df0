//! Admission of datagrams: one becomes a packet that can be believed, or a counted drop.
//!
//! Finding the queue pair is left to the caller, which owns the table and its locks.

use adverb_wire::{Bth, Flow, ICRC_LEN, Packet, ParseError};

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

/// The length of all packets but the last of a train: several of one sender, each behind the last one and none shorter but
/// the last, in one datagram that was not cut on its way. `None` if `datagram` is none. The first had the IP ID `id`.
pub fn train(datagram: &[u8], flow: &Flow, id: u16) -> Option<usize> {
    let (first, _) = datagram.split_first_chunk::<TOLD_APART>()?;
    let [opcode, _, pkey @ ..] = *first;
    let is_begun = |at: usize| {
        let (second, _) = datagram.get(at..)?.split_first_chunk::<TOLD_APART>()?;
        let [other, _, others @ ..] = *second;
        Some(other & TRANSPORT == opcode & TRANSPORT && others == pkey)
    };
    let lengths = (Bth::LEN + ICRC_LEN..datagram.len()).step_by(4);
    let mut begun = lengths.filter(|at| is_begun(*at) == Some(true)).take(GUESSES_MAX);
    begun.find(|at| datagram.get(..*at).is_some_and(|one| flow.verify(one, id) == Some(id)))
}

/// Bytes of a packet's beginning, by which one is told apart from payload: the opcode, and the partition behind flags.
const TOLD_APART: usize = 4;
/// Bits of an opcode that are the transport's.
const TRANSPORT: u8 = 0xe0;
/// Sums that are computed at most for one datagram that may be damaged.
const GUESSES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::send_only;
    use alloc::vec::Vec;

    /// Goal: packets that come uncut are told apart, whatever their length and number, and what is one packet, or damaged, is not.
    #[test]
    fn a_train_is_known_by_its_first_packet() {
        let flow = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, adverb_wire::ROCE_PORT);
        for count in 1..5_u16 {
            let mut datagram = Vec::new();
            (7..7 + count).for_each(|id| send_only(0).emit_into(&flow, id, &mut datagram));
            let len = datagram.len() / usize::from(count);
            assert_eq!(train(&datagram, &flow, 7), (count > 1).then_some(len), "{count}");
            assert_eq!(train(&datagram, &flow, 8), None);
            for (id, one) in (7..).zip(datagram.chunks(len)) {
                assert!(accept_known(one, &flow, id).is_ok());
            }
            datagram[len - 1] ^= 1;
            assert_eq!(train(&datagram, &flow, 7), None);
        }
        assert_eq!(train(&[0; 3], &flow, 7), None);
        assert_eq!(train(&[0; 4000], &flow, 7), None);
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
