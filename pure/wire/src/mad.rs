//! The header of management datagrams, which travel between general services interfaces.
//!
//! ```text
//!     +---------------+---------------+---------------+---------------+
//!  0  | base version  |    class      | class version |    method     |
//!     +---------------+---------------+---------------+---------------+
//!  4  |            status             |        class specific         |
//!     +-------------------------------+-------------------------------+
//!  8  |                       transaction id                          |
//! 12  |                                                               |
//!     +-------------------------------+-------------------------------+
//! 16  |         attribute id          |           reserved            |
//!     +-------------------------------+-------------------------------+
//! 20  |                     attribute modifier                        |
//!     +---------------------------------------------------------------+
//! ```
//!
//! 232 bytes follow, whose meaning the class and the attribute decide; `cm` has those of
//! communication management. Parsing ignores the reserved bytes.
//!
//! Read IBTA Vol. 1 §13.4 before changing this file.

use core::fmt;

/// The header of a management datagram with the base version of this specification.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mad {
    /// Which kind of management: [`Mad::COMMUNICATION`] is the one that RoCE has.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// What is asked.
    pub method: u8,
    /// How it went, in responses.
    pub status: u16,
    /// Bits of the class's own.
    pub class_specific: u16,
    /// Joins requests to their responses.
    pub transaction: u64,
    /// What the 232 bytes are.
    pub attribute: u16,
    /// Which of several.
    pub modifier: u32,
}

/// Error of parsing a management datagram. The peer's fault: the caller
/// counts it and drops the datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MadError {
    /// The class has no such attribute, or not with this method.
    Attribute(u16),
    /// Another class of management, or another version of it.
    Class {
        /// The class.
        class: u8,
        /// Its version.
        version: u8,
    },
    /// A management datagram has 256 bytes.
    Length {
        /// How many this one has.
        len: usize,
    },
    /// The class sends its messages by another method.
    Method(u8),
    /// The path MTU has no such code.
    PathMtu(u8),
    /// The message rejects or delays a message that does not exist.
    Subject(u8),
    /// The connection would be of a transport that RoCE does not have.
    TransportService(u8),
    /// The base version of the datagram is not 1.
    Version(u8),
}

impl Mad {
    /// Length of the header on the wire, in bytes.
    pub const LEN: usize = 24;

    /// Length of the data that follow it.
    pub const DATA_LEN: usize = 232;

    /// Length of a whole management datagram.
    pub const DATAGRAM_LEN: usize = Self::LEN + Self::DATA_LEN;

    /// The class of communication management. IBTA Vol. 1 §13.4.4.
    pub const COMMUNICATION: u8 = 0x07;

    /// Method: reads an attribute.
    pub const GET: u8 = 0x01;

    /// Method: writes an attribute.
    pub const SET: u8 = 0x02;

    /// Method: a message, which is not answered by the same transaction.
    pub const SEND: u8 = 0x03;

    /// Method: the answer to [`Mad::GET`] and [`Mad::SET`].
    pub const GET_RESPONSE: u8 = 0x81;

    /// Status: the combination of method and attribute is not supported.
    pub const UNSUPPORTED: u16 = 0x000c;

    /// Splits a datagram into its header and its data.
    ///
    /// # Errors
    ///
    /// [`MadError::Length`] if `datagram` does not have [`Mad::DATAGRAM_LEN`] bytes, and
    /// [`MadError::Version`] if its base version is not 1.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8; Self::DATA_LEN]), MadError> {
        let wrong = MadError::Length { len: datagram.len() };
        let (head, data) = datagram.split_first_chunk::<{ Self::LEN }>().ok_or(wrong)?;
        let data = data.try_into().ok().ok_or(wrong)?;
        let [base, class, class_version, method, s0, s1, c0, c1, rest @ ..] = *head;
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] = rest;
        if base != BASE_VERSION {
            return Err(MadError::Version(base));
        }
        let mad = Self {
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute: u16::from_be_bytes([a0, a1]),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        };
        Ok((mad, data))
    }

    /// The datagram of this header and `data`, as it stands on the wire.
    pub fn emit(&self, data: &[u8; Self::DATA_LEN]) -> [u8; Self::DATAGRAM_LEN] {
        let [s0, s1] = self.status.to_be_bytes();
        let [c0, c1] = self.class_specific.to_be_bytes();
        let [t0, t1, t2, t3, t4, t5, t6, t7] = self.transaction.to_be_bytes();
        let [a0, a1] = self.attribute.to_be_bytes();
        let [m0, m1, m2, m3] = self.modifier.to_be_bytes();
        let (class, version, method) = (self.class, self.class_version, self.method);
        let head = [
            BASE_VERSION,
            class,
            version,
            method,
            s0,
            s1,
            c0,
            c1,
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            a0,
            a1,
            0,
            0,
            m0,
            m1,
            m2,
            m3,
        ];
        let mut datagram = [0; Self::DATAGRAM_LEN];
        let bytes = head.iter().chain(data);
        datagram.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        datagram
    }

    /// The header that answers a request for an attribute which this side does not have; `None` if
    /// the datagram is no such request, and is not answered.
    #[must_use]
    pub const fn refusal(&self) -> Option<Self> {
        match self.method {
            Self::GET | Self::SET => {
                Some(Self { method: Self::GET_RESPONSE, status: Self::UNSUPPORTED, ..*self })
            }
            _ => None,
        }
    }
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(id) => write!(f, "attribute {id:#06x} is not one of the class"),
            Self::Class { class, version } => {
                write!(f, "management class {class:#04x} in version {version} is not served")
            }
            Self::Length { len } => {
                write!(f, "a management datagram has {} bytes, not {len}", Mad::DATAGRAM_LEN)
            }
            Self::Method(method) => write!(f, "method {method:#04x} is not one of the class"),
            Self::PathMtu(code) => write!(f, "path MTU code {code} is not defined"),
            Self::Subject(code) => write!(f, "there is no message with code {code}"),
            Self::TransportService(code) => write!(f, "transport service {code} is not carried"),
            Self::Version(version) => write!(f, "management base version {version} is not 1"),
        }
    }
}

impl core::error::Error for MadError {}

const BASE_VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Mad = Mad {
        class: Mad::COMMUNICATION,
        class_version: 2,
        method: Mad::GET,
        status: 0x0102,
        class_specific: 0x0304,
        transaction: 0x0506_0708_090a_0b0c,
        attribute: 0x0d0e,
        modifier: 0x0f10_1112,
    };

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let datagram = HEAD.emit(&[0xee; 232]);
        let head =
            [1, 7, 2, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 0, 15, 16, 17, 18];
        assert_eq!(datagram[..24], head);
        assert_eq!(Mad::parse(&datagram), Ok((HEAD, &[0xee; 232])));
    }

    #[test]
    fn another_length_or_version_is_refused() {
        let mut datagram = HEAD.emit(&[0; 232]).to_vec();
        for len in [0, 23, 24, 255] {
            assert_eq!(Mad::parse(&datagram[..len]), Err(MadError::Length { len }));
        }
        datagram[0] = 2;
        assert_eq!(Mad::parse(&datagram), Err(MadError::Version(2)));
        datagram.push(0);
        assert_eq!(Mad::parse(&datagram), Err(MadError::Length { len: 257 }));
    }

    #[test]
    fn only_requests_are_refused_by_an_answer() {
        let refusal = HEAD.refusal().unwrap();
        assert_eq!((refusal.method, refusal.status), (0x81, 0x0c));
        assert_eq!(refusal.transaction, HEAD.transaction);
        assert_eq!(Mad { method: Mad::SEND, ..HEAD }.refusal(), None);
        assert_eq!(refusal.refusal(), None);
    }
}
