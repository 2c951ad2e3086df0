//! A whole packet: headers and payload, from and to one UDP datagram.
//!
//! ```text
//!     BTH | DETH or XRCETH | extension | payload | pad, 0 to 3 bytes | ICRC, 4 bytes
//! ```
//!
//! Parsing does not look at the ICRC: [`Flow::verify`] does, and should run first. It ignores the
//! value of padding, and leaves it to the engine, which knows the path MTU, to judge the length of
//! a payload that may have any.

use alloc::vec::Vec;

use crate::error::ParseError;
use crate::headers::{HeaderBytes, Headers};
use crate::icrc::{Flow, ICRC_LEN};
use crate::operation::Payload;
use crate::pad::Pad;

/// One packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Packet<'a> {
    /// The headers.
    pub headers: Headers,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the payload of a UDP datagram, from the base transport header to the ICRC.
    ///
    /// # Errors
    ///
    /// A [`ParseError`] that says what is wrong with it. The caller counts and drops.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let Some((packet, _icrc)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            return Err(ParseError::Truncated { len: datagram.len() });
        };
        let (headers, body) = Headers::parse(packet)?;
        let payload = body_of(&headers, body)?;
        Ok(Self { headers, payload })
    }

    /// Appends the packet to `out` as the payload of a UDP datagram, with padding and ICRC.
    ///
    /// `id` is the identification of the IPv4 header that it will travel under; IPv6 has none. For
    /// tests and tools: the device gathers headers and payload without copying them together.
    ///
    /// # Panics
    ///
    /// If the payload does not fit a UDP datagram.
    pub fn emit_into(&self, flow: &Flow, id: u16, out: &mut Vec<u8>) {
        debug_assert!(
            self.headers.bth.pad == Pad::for_len(self.payload.len()),
            "padding does not fit a payload of {} bytes",
            self.payload.len()
        );
        let mut headers = HeaderBytes::new();
        self.headers.emit(&mut headers);
        let headers = headers.as_slice();
        let padding = [0; 3];
        let padding = padding.get(..self.headers.bth.pad.len()).unwrap_or_default();

        let len = headers.len() + self.payload.len() + padding.len() + ICRC_LEN;
        let len = u16::try_from(len).expect("the payload fits a UDP datagram");
        let mut icrc = flow.icrc(len, id);
        icrc.headers(headers);
        icrc.update(self.payload);
        icrc.update(padding);

        out.reserve(usize::from(len));
        out.extend_from_slice(headers);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(padding);
        out.extend_from_slice(&icrc.finish());
    }
}

/// The payload of a packet with these headers, of which `body` is what follows them.
#[inline]
fn body_of<'a>(headers: &Headers, body: &'a [u8]) -> Result<&'a [u8], ParseError> {
    let len = body.len();
    let pad = headers.bth.pad.len();
    let expected = match headers.bth.opcode.operation().rule().payload {
        Payload::Any => len,
        Payload::Empty => 0,
        Payload::Eight => 8,
    };
    if len != expected {
        return Err(ParseError::Length { len, expected });
    }
    let fixed = headers.bth.opcode.operation().rule().payload != Payload::Any;
    if !len.is_multiple_of(4) || (fixed && pad != 0) {
        return Err(ParseError::Pad { pad, len });
    }
    let payload = len.checked_sub(pad).and_then(|end| body.get(..end));
    payload.ok_or(ParseError::Pad { pad, len })
}
