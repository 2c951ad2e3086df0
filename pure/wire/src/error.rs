//! Parse errors: why a datagram is not a packet.

use core::fmt;

/// Error of parsing a packet. The network's or the peer's fault: the caller counts and drops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ParseError {
    /// What follows the headers has another length than the operation allows.
    Length {
        /// Bytes between the headers and the invariant CRC.
        len: usize,
        /// What the operation carries there.
        expected: usize,
    },
    /// The opcode is not one that the specification defines and RoCE carries.
    Opcode(u8),
    /// Payload and padding are not a multiple of four bytes, or there is less than the padding.
    Pad {
        /// Padding that the header announces, in bytes.
        pad: usize,
        /// Bytes between the headers and the invariant CRC.
        len: usize,
    },
    /// The acknowledgement's syndrome is reserved.
    Syndrome(u8),
    /// The datagram ends within a header.
    Truncated {
        /// Bytes that were left where the header should be.
        len: usize,
    },
    /// The header has a version that this implementation does not know.
    Version(u8),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { len, expected } => {
                write!(f, "{len} bytes follow the headers where the operation has {expected}")
            }
            Self::Opcode(code) => write!(f, "opcode {code:#04x} is not defined"),
            Self::Pad { pad, len } => {
                write!(f, "{len} bytes of payload cannot end in {pad} bytes of padding")
            }
            Self::Syndrome(code) => write!(f, "syndrome {code:#04x} is reserved"),
            Self::Truncated { len } => {
                write!(f, "the datagram ends within a header, after {len} bytes of it")
            }
            Self::Version(version) => write!(f, "transport header version {version} is not 0"),
        }
    }
}

impl core::error::Error for ParseError {}

/// Splits `N` bytes off the front.
#[inline]
pub(crate) fn take<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), ParseError> {
    bytes.split_first_chunk().ok_or(ParseError::Truncated { len: bytes.len() })
}
