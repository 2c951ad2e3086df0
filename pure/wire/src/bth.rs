//! The base transport header, which every packet starts with.
//!
//! ```text
//!      0               1               2               3
//!      7 6 5 4 3 2 1 0 7 6 5 4 3 2 1 0 7 6 5 4 3 2 1 0 7 6 5 4 3 2 1 0
//!     +---------------+-+-+---+-------+-------------------------------+
//!  0  |    opcode     |S|M|pad| TVer  |        partition key          |
//!     +-+-+-----------+-+-+---+-------+-------------------------------+
//!  4  |F|B| reserved  |           destination queue pair              |
//!     +-+-+-----------+-----------------------------------------------+
//!  8  |A|K| reserved  |           packet sequence number              |
//!     +-+-+-----------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M migrated, F and B forward and backward congestion notification, A
//! acknowledge request. K is a reserved bit that only Adverb sets: in acknowledgements it says that the responder
//! keeps requests that arrive early, in requests that the requester knows. Other receivers ignore it, as they have
//! to. Parsing ignores the reserved bits, and emitting clears them.
//!
//! Read IBTA Vol. 1 §9.2 before changing this file.

use crate::error::{ParseError, take};
use crate::key::Pkey;
use crate::opcode::Opcode;
use crate::pad::Pad;
use crate::psn::Psn;
use crate::qpn::Qpn;

/// A base transport header whose every field is legal: a `Bth` that exists can be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bth {
    /// What the packet does, and which extended headers follow.
    pub opcode: Opcode,
    /// The responder should raise an event for the completion this packet causes.
    pub solicited: bool,
    /// The path has not moved, or the move is complete.
    pub migrated: bool,
    /// Bytes that fill the payload to a multiple of four.
    pub pad: Pad,
    /// The partition.
    pub pkey: Pkey,
    /// A switch on the way was congested.
    pub fecn: bool,
    /// The sender has been told of congestion in the other direction.
    pub becn: bool,
    /// The queue pair at the receiver.
    pub dest_qp: Qpn,
    /// The responder should acknowledge this packet.
    pub ack_request: bool,
    /// Of an acknowledgement: the responder keeps requests that arrive early, so that only missing ones have to be
    /// sent again. Of a request: the requester knows that.
    pub keeps_early: bool,
    /// The packet's place in the stream, or the one that an answer answers.
    pub psn: Psn,
}

impl Bth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 12;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Bth::LEN`];
    /// [`ParseError::Version`] and [`ParseError::Opcode`] if a field has a value this version of
    /// the protocol does not define.
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [opcode, flags, k0, k1, ecn, q0, q1, q2, ack, p0, p1, p2] = *head;
        if flags & TVER != 0 {
            return Err(ParseError::Version(flags & TVER));
        }
        let bth = Self {
            opcode: Opcode::new(opcode).ok_or(ParseError::Opcode(opcode))?,
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pad: Pad::from_bits(flags >> PAD_SHIFT),
            pkey: Pkey(u16::from_be_bytes([k0, k1])),
            fecn: ecn & FECN != 0,
            becn: ecn & BECN != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & ACK_REQUEST != 0,
            keeps_early: ack & KEEPS_EARLY != 0,
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
        };
        Ok((bth, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let flags = bit(self.solicited, SOLICITED)
            | bit(self.migrated, MIGRATED)
            | (self.pad.bits() << PAD_SHIFT);
        let ecn = bit(self.fecn, FECN) | bit(self.becn, BECN);
        let ack = bit(self.ack_request, ACK_REQUEST) | bit(self.keeps_early, KEEPS_EARLY);
        let [k0, k1] = self.pkey.0.to_be_bytes();
        let marked_qp = u32::from_be_bytes([ecn, 0, 0, 0]) | self.dest_qp.get();
        let asked_psn = u32::from_be_bytes([ack, 0, 0, 0]) | self.psn.get();
        let [q0, q1, q2, q3] = marked_qp.to_be_bytes();
        let [p0, p1, p2, p3] = asked_psn.to_be_bytes();
        [self.opcode.code(), flags, k0, k1, q0, q1, q2, q3, p0, p1, p2, p3]
    }
}

const fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const TVER: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
const KEEPS_EARLY: u8 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Transport};

    const BYTES: [u8; 12] = [0x64, 0xb0, 0x12, 0x34, 0x40, 1, 2, 3, 0xc0, 0xab, 0xcd, 0xef];

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let expected = Bth {
            opcode: Opcode::of(Transport::Ud, Operation::SendOnly).unwrap(),
            solicited: true,
            migrated: false,
            pad: Pad::for_len(1),
            pkey: Pkey(0x1234),
            fecn: false,
            becn: true,
            dest_qp: Qpn::new(0x01_0203),
            ack_request: true,
            keeps_early: true,
            psn: Psn::new(0xab_cdef),
        };
        assert_eq!(Bth::parse(&BYTES), Ok((expected, &[][..])));
        assert_eq!(expected.emit(), BYTES);
    }

    #[test]
    fn reserved_bits_are_ignored_and_cleared() {
        let mut bytes = BYTES;
        bytes[4] |= 0x3f;
        bytes[8] |= 0x3f;
        assert_eq!(Bth::parse(&bytes).unwrap().0.emit(), BYTES);
    }

    #[test]
    fn short_headers_other_versions_and_unknown_opcodes_are_refused() {
        assert_eq!(Bth::parse(&BYTES[..11]), Err(ParseError::Truncated { len: 11 }));
        let mut bytes = BYTES;
        bytes[1] |= 2;
        assert_eq!(Bth::parse(&bytes), Err(ParseError::Version(2)));
        let mut bytes = BYTES;
        bytes[0] = 0xff;
        assert_eq!(Bth::parse(&bytes), Err(ParseError::Opcode(0xff)));
    }
}
