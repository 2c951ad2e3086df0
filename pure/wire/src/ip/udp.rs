//! The UDP header. RFC 768.

use super::error::Error;

/// A UDP header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Udp {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Checksum; 0 if the sender computed none.
    pub sum: u16,
}

impl Udp {
    /// Length of the header, in bytes.
    pub const LEN: usize = 8;

    /// Splits the header off a datagram that fills `packet`. The checksum is not looked at.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`], or [`Error::Length`] if the header's length is not that of `packet`.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (head, payload) =
            packet.split_first_chunk::<{ Self::LEN }>().ok_or(Error::Truncated)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *head;
        if usize::from(u16::from_be_bytes([l0, l1])) != packet.len() {
            return Err(Error::Length);
        }
        let src_port = u16::from_be_bytes([s0, s1]);
        let dst_port = u16::from_be_bytes([d0, d1]);
        Ok((Self { src_port, dst_port, sum: u16::from_be_bytes([c0, c1]) }, payload))
    }

    /// The header of a datagram of `len` bytes, of which the header is 8.
    pub fn emit(&self, len: u16) -> [u8; Self::LEN] {
        let ([s0, s1], [d0, d1]) = (self.src_port.to_be_bytes(), self.dst_port.to_be_bytes());
        let ([l0, l1], [c0, c1]) = (len.to_be_bytes(), self.sum.to_be_bytes());
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}
