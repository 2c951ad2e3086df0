//! Messages of communication management: how two sides make a connection and end it.
//!
//! ```text
//!     active side          passive side             either side         the other
//!        REQ  ------------->                           DREQ ------------->
//!             <-------------  (MRA) REP, or REJ             <-------------  DREP
//!        RTU  ------------->
//!                                                   datagrams:
//!                                                      SIDR_REQ ---------->
//!                                                               <----------  SIDR_REP
//! ```
//!
//! A [`Message`] is what the 232 bytes after the header of a management datagram ([`Mad`]) say.
//! Every one that exists is legal and can be sent. Reserved fields, and those of reliable
//! datagrams, which RoCE does not have, are ignored and sent as zeros. Which message may follow
//! which is the connection manager's to know.
//!
//! Read IBTA Vol. 1 §12.6 and §12.11 (messages), and Annex A11 (IP addressing) before changing
//! this folder.

mod addressing;
mod connect;
mod disconnect;
mod fields;
mod id;
mod path;
mod record;
mod reject;
mod sidr;
mod small;

pub use self::addressing::{Addressing, PortSpace, ServiceId};
pub use self::connect::{Rep, Req, Rtu, Service};
pub use self::disconnect::{Drep, Dreq};
pub use self::id::CommId;
pub use self::path::{Apr, Lap, Path};
pub use self::record::ConnectionRecord;
pub use self::reject::{Mra, Reason, Rej, Subject};
pub use self::sidr::{SidrRep, SidrReq, SidrStatus};
pub use self::small::{Exponent, Small};

use crate::mad::{Mad, MadError};

/// A message, and the transaction that it belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Datagram {
    /// Joins requests to their answers. Chosen by the side that asks.
    pub transaction: u64,
    /// What is said.
    pub message: Message,
}

/// Message of one side to the other about a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message {
    /// Answers [`Message::Lap`].
    Apr(Apr),
    /// Agrees to the end.
    Drep(Drep),
    /// Ends a connection.
    Dreq(Dreq),
    /// Offers an alternate path.
    Lap(Lap),
    /// Asks for patience.
    Mra(Mra),
    /// Refuses a connection.
    Rej(Rej),
    /// Accepts a connection.
    Rep(Rep),
    /// Asks for a connection.
    Req(Req),
    /// Says that the connection can be used.
    Rtu(Rtu),
    /// Says which queue pair serves, or that none does.
    SidrRep(SidrRep),
    /// Asks which queue pair serves.
    SidrReq(SidrReq),
}

impl Datagram {
    /// Reads a management datagram.
    ///
    /// # Errors
    ///
    /// [`MadError`] if it is none, is not of communication management, or says something that
    /// cannot be meant.
    pub fn parse(datagram: &[u8]) -> Result<Self, MadError> {
        let (mad, data) = Mad::parse(datagram)?;
        let Mad { class, class_version, method, attribute, transaction, .. } = mad;
        if class != Mad::COMMUNICATION || class_version != CLASS_VERSION {
            return Err(MadError::Class { class, version: class_version });
        }
        if method != Mad::SEND {
            return Err(MadError::Method(method));
        }
        Ok(Self { transaction, message: Message::parse(attribute, data)? })
    }

    /// The management datagram, as it stands on the wire.
    pub fn emit(&self) -> [u8; Mad::DATAGRAM_LEN] {
        let mad = Mad {
            class: Mad::COMMUNICATION,
            class_version: CLASS_VERSION,
            method: Mad::SEND,
            status: 0,
            class_specific: 0,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            modifier: 0,
        };
        mad.emit(&self.message.emit())
    }
}

impl Message {
    /// Reads the data of `attribute`.
    ///
    /// # Errors
    ///
    /// [`MadError`] if there is no such attribute, or a field has a value that means nothing.
    pub fn parse(attribute: u16, data: &[u8; Mad::DATA_LEN]) -> Result<Self, MadError> {
        Ok(match attribute {
            REQ => Self::Req(Req::parse(data)?),
            MRA => Self::Mra(Mra::parse(data)?),
            REJ => Self::Rej(Rej::parse(data)?),
            REP => Self::Rep(Rep::parse(data)),
            RTU => Self::Rtu(Rtu::parse(data)),
            DREQ => Self::Dreq(Dreq::parse(data)),
            DREP => Self::Drep(Drep::parse(data)),
            SIDR_REQ => Self::SidrReq(SidrReq::parse(data)),
            SIDR_REP => Self::SidrRep(SidrRep::parse(data)),
            LAP => Self::Lap(Lap::parse(data)),
            APR => Self::Apr(Apr::parse(data)),
            _ => return Err(MadError::Attribute(attribute)),
        })
    }

    /// The data, as they stand on the wire.
    pub fn emit(&self) -> [u8; Mad::DATA_LEN] {
        match self {
            Self::Apr(apr) => apr.emit(),
            Self::Drep(drep) => drep.emit(),
            Self::Dreq(dreq) => dreq.emit(),
            Self::Lap(lap) => lap.emit(),
            Self::Mra(mra) => mra.emit(),
            Self::Rej(rej) => rej.emit(),
            Self::Rep(rep) => rep.emit(),
            Self::Req(req) => req.emit(),
            Self::Rtu(rtu) => rtu.emit(),
            Self::SidrRep(rep) => rep.emit(),
            Self::SidrReq(req) => req.emit(),
        }
    }

    /// The number of the attribute. IBTA Vol. 1 §12.6.1.
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => REQ,
            Self::Mra(_) => MRA,
            Self::Rej(_) => REJ,
            Self::Rep(_) => REP,
            Self::Rtu(_) => RTU,
            Self::Dreq(_) => DREQ,
            Self::Drep(_) => DREP,
            Self::SidrReq(_) => SIDR_REQ,
            Self::SidrRep(_) => SIDR_REP,
            Self::Lap(_) => LAP,
            Self::Apr(_) => APR,
        }
    }
}

const CLASS_VERSION: u8 = 2;

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;
const LAP: u16 = 0x19;
const APR: u16 = 0x1a;

#[cfg(test)]
mod tests;
