//! Eager header: sixteen bytes in place of the headers of a whole small SEND between two queue pairs of one host,
//! an acknowledgement, or both.
//!
//! Most records between neighbours are SENDs of one packet, in order, with nothing else under way.
//! Their headers always say the same, so such a record carries this instead: sixteen bytes, which
//! take an acknowledgement of the other direction along. One that finds no SEND goes alone. Whatever
//! an eager header cannot say goes as headers, and an eager header that comes at an unusual moment is treated as the
//! packet that it stands for (`qp/eager.rs`).
//!
//! ```text
//!  0  destination queue pair, 24 bits | PSN, 24 bits | P_Key, 16 bits
//!  8  acknowledged PSN, 24 bits | flags, 8 bits | immediate data, 32 bits
//! ```
//!
//! Two words, lowest bits first: only this machine reads them.

use adverb_wire::{
    Bth, Extension, Headers, Imm, Opcode, Operation, Packet, Pad, Pkey, Psn, Qpn, Transport,
};

/// A whole SEND without its bytes, an acknowledgement, or both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EagerHeader {
    /// The queue pair that it is for.
    pub dest_qp: Qpn,
    /// The number of the SEND, if there is one.
    pub psn: Option<Psn>,
    /// The sender's partition.
    pub pkey: Pkey,
    /// A completion waits for the acknowledgement. Without this it is owed all the same, and may be late.
    pub ack_request: bool,
    /// The receiver should raise an event.
    pub solicited: bool,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// Everything of the other direction up to this number was executed.
    pub acked: Option<Psn>,
}

const ASKS: u64 = 1;
const SOLICITED: u64 = 1 << 1;
const IMM: u64 = 1 << 2;
const ACKED: u64 = 1 << 3;
const SENDS: u64 = 1 << 4;
const KNOWN: u64 = ASKS | SOLICITED | IMM | ACKED | SENDS;
const FLAGS_SHIFT: u32 = 24;
const LOW_24: u64 = 0x00ff_ffff;

impl EagerHeader {
    /// Length in a record, in bytes.
    pub const LEN: usize = 16;

    /// The value of words that were written; `None` if they make no sense.
    #[inline(always)]
    pub fn parse([to, back]: [u64; 2]) -> Option<Self> {
        let flags = back >> FLAGS_SHIFT & 0xff;
        let has = |flag| flags & flag != 0;
        let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
        if flags & !KNOWN != 0 {
            return None;
        }
        Some(Self {
            dest_qp: Qpn::new(half(to & LOW_24)),
            psn: has(SENDS).then(|| Psn::new(half(to >> 24 & LOW_24))),
            pkey: Pkey(u16::try_from(to >> 48).unwrap_or(0)),
            ack_request: has(ASKS),
            solicited: has(SOLICITED),
            imm: has(IMM).then(|| Imm(half(back >> 32))),
            acked: has(ACKED).then(|| Psn::new(half(back & LOW_24))),
        })
    }

    /// The words of a record.
    ///
    /// Words and not bytes: a processor that reads a word which it has just written as bytes waits
    /// until all it wrote before is where others see it.
    #[inline]
    pub fn emit(&self) -> [u64; 2] {
        let [to, acked] = [to(self.dest_qp, self.pkey), acked(self.acked)];
        match self.psn {
            None => [to, acked | says(self.ack_request, self.solicited, self.imm)],
            Some(psn) => send(to, psn, acked | says(self.ack_request, self.solicited, self.imm)),
        }
    }

    /// The packet that an eager header with the SEND numbered `psn` stands for, its bytes still where they are.
    pub fn packet(&self, psn: Psn) -> Option<Packet<'static>> {
        let (operation, extension) = match self.imm {
            None => (Operation::SendOnly, Extension::None),
            Some(imm) => (Operation::SendOnlyImm, Extension::Imm(imm)),
        };
        let bth = Bth {
            opcode: Opcode::of(Transport::Rc, operation)?,
            solicited: self.solicited,
            migrated: true,
            pad: Pad::for_len(0),
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qp: self.dest_qp,
            ack_request: true,
            keeps_early: false,
            psn,
        };
        let headers = Headers { bth, deth: None, xrceth: None, extension };
        Some(Packet { headers, payload: &[] })
    }
}

/// The first word, but the PSN.
#[inline]
pub(crate) fn to(dest_qp: Qpn, pkey: Pkey) -> u64 {
    u64::from(dest_qp.get()) | u64::from(pkey.0) << 48
}

/// What the second word says of the other direction.
#[inline]
pub(crate) fn acked(psn: Option<Psn>) -> u64 {
    psn.map_or(0, |psn| u64::from(psn.get()) | ACKED << FLAGS_SHIFT)
}

/// What the second word says of a SEND besides.
#[inline(always)]
pub(crate) fn says(ack_request: bool, solicited: bool, imm: Option<Imm>) -> u64 {
    const { assert!(ASKS == 1 && SOLICITED == 2) };
    let flags = u64::from(ack_request) | u64::from(solicited) << 1;
    let imm = imm.map_or(0, |imm| u64::from(imm.0) << 32 | IMM << FLAGS_SHIFT);
    flags << FLAGS_SHIFT | imm
}

/// The words of the SEND with this number.
#[inline]
pub(crate) fn send(to: u64, psn: Psn, back: u64) -> [u64; 2] {
    [to | u64::from(psn.get()) << 24, back | SENDS << FLAGS_SHIFT]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eager_header_is_read_as_it_was_written() {
        let whole = EagerHeader {
            dest_qp: Qpn::new(0x12_3456),
            psn: Some(Psn::new(0xff_fffe)),
            pkey: Pkey(0x8001),
            ack_request: true,
            solicited: true,
            imm: Some(Imm(0x0102_0304)),
            acked: Some(Psn::new(0xab_cdef)),
        };
        let one_less = [
            whole,
            EagerHeader { ack_request: false, ..whole },
            EagerHeader { solicited: false, ..whole },
            EagerHeader { imm: None, ..whole },
            EagerHeader { acked: None, ..whole },
            EagerHeader { psn: None, ..whole },
        ];
        for eager in one_less {
            assert_eq!(EagerHeader::parse(eager.emit()), Some(eager));
        }
    }

    #[test]
    fn unknown_flags_are_not_read_over() {
        for flags in 0..=u8::MAX {
            let words = [0, u64::from(flags) << 24];
            assert_eq!(EagerHeader::parse(words).is_some(), flags < 32, "{flags}");
        }
    }
}
