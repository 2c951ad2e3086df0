//! The acknowledge extended header: how a responder answers.
//!
//! ```text
//!     +-+---+---------+-----------------------------------------------+
//!  0  |0|typ| value   |          message sequence number              |
//!     +-+---+---------+-----------------------------------------------+
//!
//!     typ  meaning      value
//!     00   ACK          credits, encoded; 31 = the responder gives none
//!     01   RNR NAK      timer code
//!     10   reserved
//!     11   NAK          reason, 0 to 4
//! ```
//!
//! Nothing is forgiven: a reserved syndrome is no answer that could be acted on.
//!
//! Read IBTA Vol. 1 §9.7.5 before changing this file.

use crate::error::{ParseError, take};
use crate::msn::Msn;
use crate::rnr::RnrTimer;

/// ACK extended header: the answer of a responder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aeth {
    /// Acknowledgement or refusal.
    pub syndrome: Syndrome,
    /// How many requests the responder has completed.
    pub msn: Msn,
}

/// Acknowledgement or refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Syndrome {
    /// Everything up to and including this packet has arrived.
    Ack {
        /// How many receives are posted, as a code of 5 bits; see [`Syndrome::NO_CREDITS`].
        credits: u8,
    },
    /// No receive was posted: ask again after this time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(Nak),
}

/// NAK code: why a responder refuses.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Nak {
    /// A packet is missing; the answer names the one that was expected.
    SequenceError,
    /// The request makes no sense here.
    InvalidRequest,
    /// The key, the range or the access is not permitted.
    RemoteAccess,
    /// The responder could not carry it out.
    RemoteOperation,
    /// Reliable datagrams only.
    InvalidRdRequest,
}

impl Syndrome {
    /// An acknowledgement that leaves flow control to RNR NAK.
    pub const ACK: Self = Self::Ack { credits: Self::NO_CREDITS };

    /// The credit code of a responder that does not count receives.
    pub const NO_CREDITS: u8 = 31;

    /// The syndrome with this code; `None` if it is reserved.
    #[inline]
    pub const fn new(code: u8) -> Option<Self> {
        let value = code & VALUE;
        match code & !VALUE {
            ACK => Some(Self::Ack { credits: value }),
            RNR_NAK => Some(Self::RnrNak(RnrTimer::new(value))),
            NAK => match Nak::new(value) {
                Some(nak) => Some(Self::Nak(nak)),
                None => None,
            },
            _ => None,
        }
    }

    /// The code on the wire. Credits are cut to 5 bits.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack { credits } => ACK | (credits & VALUE),
            Self::RnrNak(timer) => RNR_NAK | timer.code(),
            Self::Nak(nak) => NAK | nak.code(),
        }
    }
}

impl Nak {
    /// The reason with this code; `None` if it is reserved.
    #[inline]
    pub const fn new(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::SequenceError),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperation),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }

    /// The code on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::SequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperation => 3,
            Self::InvalidRdRequest => 4,
        }
    }
}

impl Aeth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Splits a header off the front of `packet` and returns it with the bytes after it.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`] if `packet` is shorter than [`Aeth::LEN`];
    /// [`ParseError::Syndrome`] if the syndrome is reserved.
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (head, rest) = take::<{ Self::LEN }>(packet)?;
        let [code, m0, m1, m2] = *head;
        let aeth = Self {
            syndrome: Syndrome::new(code).ok_or(ParseError::Syndrome(code))?,
            msn: Msn::new(u32::from_be_bytes([0, m0, m1, m2])),
        };
        Ok((aeth, rest))
    }

    /// The header as it stands on the wire.
    #[inline]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome.code(), m0, m1, m2]
    }
}

const VALUE: u8 = 0x1f;
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legal_syndrome_has_one_code_and_a_reserved_one_is_refused() {
        for code in 0..=u8::MAX {
            let legal = matches!(code, 0x00..=0x3f | 0x60..=0x64);
            match Syndrome::new(code) {
                Some(syndrome) => assert!(legal && syndrome.code() == code, "code {code:#x}"),
                None => assert!(!legal, "code {code:#x}"),
            }
            let refused = Aeth::parse(&[code, 0, 0, 1]) == Err(ParseError::Syndrome(code));
            assert_eq!(refused, !legal, "code {code:#x}");
        }
    }

    #[test]
    fn every_field_is_where_the_book_draws_it() {
        let nak = Aeth { syndrome: Syndrome::Nak(Nak::RemoteAccess), msn: Msn::new(0x01_0203) };
        assert_eq!(nak.emit(), [0x62, 1, 2, 3]);
        assert_eq!(Aeth::parse(&[0x62, 1, 2, 3, 4]), Ok((nak, &[4][..])));
        assert_eq!(Aeth::parse(&[0x62, 1, 2]), Err(ParseError::Truncated { len: 3 }));
        assert_eq!(Syndrome::ACK.code(), 0x1f);
        assert_eq!(Syndrome::RnrNak(RnrTimer::new(20)).code(), 0x34);
    }
}
