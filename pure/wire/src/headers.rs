//! All headers of a packet, from the base transport header to the payload.
//!
//! Order on the wire: BTH, then DETH (datagrams) or XRCETH (XRC requests), then the extension that
//! the operation has. [`HeaderBytes`] is the room they are emitted into, without an allocation.

use crate::atomic::AtomicEth;
use crate::bth::Bth;
use crate::deth::Deth;
use crate::error::ParseError;
use crate::extension::Extension;
use crate::operation::Layout;
use crate::room::Room;
use crate::xrceth::XrcEth;

/// All headers of a packet. The opcode says which of them there are; see [`Headers::is_legal`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headers {
    /// The base transport header.
    pub bth: Bth,
    /// Where a datagram comes from: UD and nothing else.
    pub deth: Option<Deth>,
    /// The shared receive queue: XRC requests and nothing else.
    pub xrceth: Option<XrcEth>,
    /// What the operation adds.
    pub extension: Extension,
}

impl Headers {
    /// The longest headers there are, in bytes: an atomic over XRC.
    pub const MAX_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

    /// Splits the headers off the front of `packet` and returns them with the bytes after them.
    ///
    /// # Errors
    ///
    /// Any [`ParseError`] but those about the payload, [`ParseError::Length`] and
    /// [`ParseError::Pad`].
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (bth, mut rest) = Bth::parse(packet)?;
        let mut deth = None;
        let mut xrceth = None;
        if bth.opcode.has_deth() {
            let (header, tail) = Deth::parse(rest)?;
            (deth, rest) = (Some(header), tail);
        }
        if bth.opcode.has_xrceth() {
            let (header, tail) = XrcEth::parse(rest)?;
            (xrceth, rest) = (Some(header), tail);
        }
        let (extension, rest) = Extension::parse(bth.opcode.operation().rule().layout, rest)?;
        Ok((Self { bth, deth, xrceth, extension }, rest))
    }

    /// Replaces what is in `out` by these headers.
    #[inline]
    pub fn emit(&self, out: &mut HeaderBytes) {
        debug_assert!(self.is_legal(), "headers that do not belong to their opcode: {self:?}");
        out.0.clear();
        out.push(self.bth.emit());
        if let Some(deth) = &self.deth {
            out.push(deth.emit());
        }
        if let Some(xrceth) = &self.xrceth {
            out.push(xrceth.emit());
        }
        self.extension.emit(out);
    }

    /// Length on the wire, in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub const fn len(&self) -> usize {
        let mut len = Bth::LEN + self.extension.layout().len();
        if self.deth.is_some() {
            len += Deth::LEN;
        }
        if self.xrceth.is_some() {
            len += XrcEth::LEN;
        }
        len
    }

    /// Whether exactly the headers are there that the opcode asks for.
    ///
    /// What [`Headers::parse`] returns is always legal, and only legal headers may be emitted.
    pub fn is_legal(&self) -> bool {
        let opcode = self.bth.opcode;
        self.deth.is_some() == opcode.has_deth()
            && self.xrceth.is_some() == opcode.has_xrceth()
            && self.extension.layout() == opcode.operation().rule().layout
    }
}

/// Headers as bytes: room for the longest, and how much of it is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeaderBytes(Room<{ Headers::MAX_LEN }>);

impl HeaderBytes {
    /// No headers yet.
    #[inline]
    pub const fn new() -> Self {
        Self(Room::new())
    }

    /// The headers.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Appends one header. There is room for every legal combination.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, header: [u8; N]) {
        self.0.push(header);
    }
}

impl Default for HeaderBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

const _: () = assert!(Bth::LEN + XrcEth::LEN + Layout::RethImm.len() <= Headers::MAX_LEN);
const _: () = assert!(Bth::LEN + XrcEth::LEN + Layout::Flush.len() <= Headers::MAX_LEN);
const _: () = assert!(Bth::LEN + Deth::LEN + Layout::Imm.len() <= Headers::MAX_LEN);
const _: () = assert!(Bth::LEN + Layout::Cnp.len() <= Headers::MAX_LEN);
const _: () = assert!(Bth::LEN + Layout::AtomicAck.len() <= Headers::MAX_LEN);
