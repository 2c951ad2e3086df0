//! Extended headers: what follows the base transport header, as one value.
//!
//! The opcode decides which variant a packet has; the table is in `operation.rs`. Two bodies that
//! are too small for a file are read here: the original value of an atomic's answer, eight bytes
//! after its [`Aeth`], and the sixteen reserved bytes of a congestion notification.

use crate::aeth::Aeth;
use crate::atomic::AtomicEth;
use crate::error::{ParseError, take};
use crate::feth::Feth;
use crate::headers::HeaderBytes;
use crate::ieth::Ieth;
use crate::imm::Imm;
use crate::operation::Layout;
use crate::reth::Reth;

/// The extended headers of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Extension {
    /// None.
    None,
    /// A range of the receiver's memory: READ, atomic write, start of a WRITE.
    Reth(Reth),
    /// A range and immediate data: a WRITE in one packet.
    RethImm(Reth, Imm),
    /// Immediate data.
    Imm(Imm),
    /// A key to forget.
    Invalidate(Ieth),
    /// What to do to eight bytes.
    Atomic(AtomicEth),
    /// What to flush.
    Flush(Feth, Reth),
    /// An acknowledgement: alone, or before the data of a READ.
    Aeth(Aeth),
    /// An acknowledgement and the value that an atomic found.
    AtomicAck(Aeth, u64),
    /// The reserved bytes of a congestion notification, which are ignored and sent as zeros.
    Cnp,
}

impl Extension {
    /// Splits what `layout` says off the front of `packet`.
    ///
    /// Always inlined, as the parsers that call it are: else the value is copied from one result
    /// into the next while it is still being written, which makes parsing three times as slow.
    #[inline(always)]
    pub(crate) fn parse(layout: Layout, packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        Ok(match layout {
            Layout::None => (Self::None, packet),
            Layout::Reth => {
                let (reth, rest) = Reth::parse(packet)?;
                (Self::Reth(reth), rest)
            }
            Layout::RethImm => {
                let (reth, rest) = Reth::parse(packet)?;
                let (imm, rest) = Imm::parse(rest)?;
                (Self::RethImm(reth, imm), rest)
            }
            Layout::Imm => {
                let (imm, rest) = Imm::parse(packet)?;
                (Self::Imm(imm), rest)
            }
            Layout::Invalidate => {
                let (ieth, rest) = Ieth::parse(packet)?;
                (Self::Invalidate(ieth), rest)
            }
            Layout::Atomic => {
                let (atomic, rest) = AtomicEth::parse(packet)?;
                (Self::Atomic(atomic), rest)
            }
            Layout::Flush => {
                let (feth, rest) = Feth::parse(packet)?;
                let (reth, rest) = Reth::parse(rest)?;
                (Self::Flush(feth, reth), rest)
            }
            Layout::Aeth => {
                let (aeth, rest) = Aeth::parse(packet)?;
                (Self::Aeth(aeth), rest)
            }
            Layout::AtomicAck => {
                let (aeth, rest) = Aeth::parse(packet)?;
                let (original, rest) = take::<ORIGINAL_LEN>(rest)?;
                (Self::AtomicAck(aeth, u64::from_be_bytes(*original)), rest)
            }
            Layout::Cnp => {
                let (_reserved, rest) = take::<CNP_LEN>(packet)?;
                (Self::Cnp, rest)
            }
        })
    }

    /// Appends the headers to `out`.
    #[inline]
    pub(crate) fn emit(&self, out: &mut HeaderBytes) {
        match self {
            Self::None => {}
            Self::Reth(reth) => out.push(reth.emit()),
            Self::RethImm(reth, imm) => {
                out.push(reth.emit());
                out.push(imm.emit());
            }
            Self::Imm(imm) => out.push(imm.emit()),
            Self::Invalidate(ieth) => out.push(ieth.emit()),
            Self::Atomic(atomic) => out.push(atomic.emit()),
            Self::Flush(feth, reth) => {
                out.push(feth.emit());
                out.push(reth.emit());
            }
            Self::Aeth(aeth) => out.push(aeth.emit()),
            Self::AtomicAck(aeth, original) => {
                out.push(aeth.emit());
                out.push(original.to_be_bytes());
            }
            Self::Cnp => out.push([0; CNP_LEN]),
        }
    }

    /// The layout that this is a value of.
    pub(crate) const fn layout(&self) -> Layout {
        match self {
            Self::None => Layout::None,
            Self::Reth(_) => Layout::Reth,
            Self::RethImm(..) => Layout::RethImm,
            Self::Imm(_) => Layout::Imm,
            Self::Invalidate(_) => Layout::Invalidate,
            Self::Atomic(_) => Layout::Atomic,
            Self::Flush(..) => Layout::Flush,
            Self::Aeth(_) => Layout::Aeth,
            Self::AtomicAck(..) => Layout::AtomicAck,
            Self::Cnp => Layout::Cnp,
        }
    }
}

impl Layout {
    /// Length on the wire, in bytes.
    #[inline]
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Reth => Reth::LEN,
            Self::RethImm => Reth::LEN + Imm::LEN,
            Self::Imm => Imm::LEN,
            Self::Invalidate => Ieth::LEN,
            Self::Atomic => AtomicEth::LEN,
            Self::Flush => Feth::LEN + Reth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AtomicAck => Aeth::LEN + ORIGINAL_LEN,
            Self::Cnp => CNP_LEN,
        }
    }
}

const ORIGINAL_LEN: usize = 8;
const CNP_LEN: usize = 16;
