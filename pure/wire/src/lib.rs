//! RoCEv2 packets: bytes to values and back.
//!
//! A datagram that arrived on UDP port 4791 becomes a [`Packet`] whose every field is legal, or a
//! [`ParseError`] to count; [`Flow`] checks and computes the invariant CRC over it. Nothing here
//! knows a queue pair, a region or a socket: the engine decides what a legal packet means, and the
//! device carries the bytes.
//!
//! One file per header, and one table, in [`Operation`], that says which headers follow which
//! opcode. Read IBTA Vol. 1 §9.2 (transport headers), §9.4 (what each operation carries) and
//! Annex A17 (RoCEv2) before changing anything.
//!
//! # Examples
//!
//! ```
//! use adverb_wire::{Bth, Extension, Flow, Headers, Opcode, Operation, Packet, Transport};
//! use adverb_wire::{Pad, Pkey, Psn, Qpn, ROCE_PORT};
//!
//! let opcode = Opcode::of(Transport::Rc, Operation::SendOnly).expect("RC can send");
//! let bth = Bth {
//!     opcode,
//!     solicited: false,
//!     migrated: true,
//!     pad: Pad::for_len(5),
//!     pkey: Pkey::DEFAULT,
//!     fecn: false,
//!     becn: false,
//!     dest_qp: Qpn::new(0x12),
//!     ack_request: true,
//!     keeps_early: false,
//!     psn: Psn::new(0xff_ffff),
//! };
//! let headers = Headers { bth, deth: None, xrceth: None, extension: Extension::None };
//! let packet = Packet { headers, payload: b"hello" };
//!
//! let flow = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, ROCE_PORT);
//! let mut datagram = Vec::new();
//! packet.emit_into(&flow, 7, &mut datagram);
//!
//! assert_eq!(Packet::parse(&datagram), Ok(packet));
//! assert_eq!(flow.verify(&datagram, 0), Some(7)); // The identification was found, not told.
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod aeth;
mod atomic;
mod bth;
pub mod cm;
mod crc;
mod deth;
mod error;
mod extension;
mod feth;
mod grh;
mod headers;
mod icrc;
mod ieth;
mod imm;
pub mod ip;
mod key;
mod mad;
mod msn;
mod mtu;
mod opcode;
mod operation;
mod packet;
mod pad;
pub mod pcap;
mod psn;
mod qpn;
mod reth;
mod rnr;
mod room;
mod transport;
mod xrceth;

pub use self::aeth::{Aeth, Nak, Syndrome};
pub use self::atomic::AtomicEth;
pub use self::bth::Bth;
pub use self::deth::Deth;
pub use self::error::ParseError;
pub use self::extension::Extension;
pub use self::feth::Feth;
pub use self::grh::Grh;
pub use self::headers::{HeaderBytes, Headers};
pub use self::icrc::{Flow, ICRC_LEN, Icrc};
pub use self::ieth::Ieth;
pub use self::imm::Imm;
pub use self::ip::{Marks, ROCE_PORT};
pub use self::key::{Pkey, Qkey, Rkey};
pub use self::mad::{Mad, MadError};
pub use self::msn::Msn;
pub use self::mtu::PathMtu;
pub use self::opcode::Opcode;
pub use self::operation::Operation;
pub use self::packet::Packet;
pub use self::pad::Pad;
pub use self::psn::Psn;
pub use self::qpn::Qpn;
pub use self::reth::Reth;
pub use self::rnr::RnrTimer;
pub use self::room::Room;
pub use self::transport::Transport;
pub use self::xrceth::XrcEth;
