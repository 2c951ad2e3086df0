//! Connection management: how queue pairs of two hosts meet and part.
//!
//! A [`Manager`] is one host's side of the protocol of IBTA Vol. 1 §12, without sockets, clock or
//! threads: commands, datagrams and the time go in; datagrams, [`Event`]s and the next deadline
//! come out. It knows neither queue pairs nor addresses of devices: its owner sends its
//! datagrams from queue pair 1, and moves queue pairs as the events say.
//!
//! ```text
//!     connect() -> ReqSent -> RepReceived -> ready() -> Established -> disconnect() -> DreqSent
//!                                                           |                             |
//!     REQ -> ReqReceived -> accept() -> RepSent ------------+---- DREQ ---> TimeWait <----+
//!
//!     resolve() -> Asking -> (answer)          SIDR_REQ -> Asked -> answer() -> TimeWait
//! ```
//!
//! A lost message is sent again by the side that waits for its answer; a repeated one is answered
//! as before. A message changes a connection only if it comes from the address of its peer and
//! names it by both identifiers; other ones are counted and dropped.
//!
//! Read IBTA Vol. 1 §12.9 (states) before changing this crate.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod arrivals;
mod connection;
mod event;
mod manager;
mod request;

pub use self::event::{Counters, Event};
pub use self::manager::{Config, Manager, Transmit};
pub use self::request::{Accept, Answer, Connect, Error, Gid, ListenerId, Resolve};
