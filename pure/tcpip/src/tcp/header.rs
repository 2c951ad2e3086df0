//! The TCP header. RFC 9293 §3.1.
//!
//! ```text
//!     +---------------+---------------+
//!  0  | source port   | destination   |
//!  4  |       sequence number         |
//!  8  |    acknowledgement number     |
//! 12  |len| |  flags  |    window     |
//! 16  | check sum     | urgent        |
//!     +---------------+---------------+
//! 20  |       options, padded         |
//! ```

use super::options::Options;
use super::seq::Seq;
use adverb_wire::Room;
use adverb_wire::ip::Sum;
use core::ops::BitOr;

/// A TCP header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tcp {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The next sequence number that the sender expects, if [`Flags::ACK`] is set.
    pub ack: Seq,
    /// What the segment does.
    pub flags: Flags,
    /// Bytes that the sender takes beyond `ack`, in units that the handshake agreed upon.
    pub window: u16,
    /// Offset of the byte after urgent data, if [`Flags::URG`] is set.
    pub urgent: u16,
    /// What follows the fixed part.
    pub options: Options,
}

/// A set of TCP's control bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags(u8);

impl Flags {
    /// The sender has no more to send.
    pub const FIN: Self = Self(0x01);
    /// The connection begins: sequence numbers are made known.
    pub const SYN: Self = Self(0x02);
    /// The connection does not exist, or is to end at once.
    pub const RST: Self = Self(0x04);
    /// The receiver should hand over what it has.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number means something.
    pub const ACK: Self = Self(0x10);
    /// The urgent offset means something.
    pub const URG: Self = Self(0x20);
    /// Congestion experienced: RFC 3168.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced: RFC 3168.
    pub const CWR: Self = Self(0x80);

    /// The set with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// All of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Tcp {
    /// Length of the header without options, in bytes.
    pub const LEN: usize = 20;
    /// Length of the longest header, in bytes.
    pub const LEN_MAX: usize = Self::LEN + Options::LEN_MAX;

    /// Splits the header off a segment and returns it with the payload; `None` if it is cut. The checksum is not
    /// looked at.
    pub fn parse(segment: &[u8]) -> Option<(Self, &[u8])> {
        let (head, _) = segment.split_first_chunk::<{ Self::LEN }>()?;
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, len, flags, w0, w1, _, _, u0, u1] =
            *head;
        let len = usize::from(len >> 4) * 4;
        let options = Options::parse(segment.get(Self::LEN..len)?);
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: Seq::new(u32::from_be_bytes([q0, q1, q2, q3])),
            ack: Seq::new(u32::from_be_bytes([a0, a1, a2, a3])),
            flags: Flags(flags),
            window: u16::from_be_bytes([w0, w1]),
            urgent: u16::from_be_bytes([u0, u1]),
            options,
        };
        Some((header, segment.get(len..)?))
    }

    /// The header with this checksum; [`Tcp::emit_sum`] computes it.
    pub fn emit(&self, sum: u16) -> Room<{ Self::LEN_MAX }> {
        let mut room = Room::new();
        if let Some(stamps) = self.options.stamps_alone() {
            room.push(self.fixed(sum, stamps.len()));
            room.push(stamps);
            return room;
        }
        let options = self.options.emit();
        room.push(self.fixed(sum, options.as_slice().len()));
        let (words, _) = options.as_slice().as_chunks::<4>();
        for word in words {
            room.push(*word);
        }
        room
    }

    /// The fixed part before so many bytes of options.
    #[inline]
    fn fixed(&self, sum: u16, options_bytes: usize) -> [u8; Self::LEN] {
        let words = u8::try_from((Self::LEN + options_bytes) / 4).unwrap_or_default();
        let ([s0, s1], [d0, d1]) = (self.src_port.to_be_bytes(), self.dst_port.to_be_bytes());
        let [q0, q1, q2, q3] = self.seq.bits().to_be_bytes();
        let [a0, a1, a2, a3] = self.ack.bits().to_be_bytes();
        let ([w0, w1], [c0, c1]) = (self.window.to_be_bytes(), sum.to_be_bytes());
        let ([u0, u1], len, flags) = (self.urgent.to_be_bytes(), words << 4, self.flags.0);
        [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, len, flags, w0, w1, c0, c1, u0, u1]
    }

    /// Puts the checksum over `pseudo`, a header that has none yet, and the pieces of the payload into the header.
    pub fn put_sum<'a>(
        header: &mut Room<{ Self::LEN_MAX }>,
        pseudo: Sum,
        payload: impl Iterator<Item = &'a [u8]>,
    ) {
        let sum = payload.fold(pseudo.with(header.as_slice()), Sum::with);
        header.patch(SUM_AT, sum.finish().to_be_bytes());
    }

    /// The header with the checksum over `pseudo`, itself and the pieces of the payload.
    pub fn emit_sum<'a>(
        &self,
        pseudo: Sum,
        payload: impl Iterator<Item = &'a [u8]>,
    ) -> Room<{ Self::LEN_MAX }> {
        let mut header = self.emit(0);
        Self::put_sum(&mut header, pseudo, payload);
        header
    }
}

/// Where in a header its checksum is.
const SUM_AT: usize = 16;
