//! The RoCE transport as state machines: packets and work requests in, packets and completions out.
//!
//! Nothing here knows a socket, a clock, a thread or a pointer. A [`Qp`] is driven by its
//! owner: posted work, packets and the time come in as arguments; packets, data and completions leave
//! through the [`Host`] that the caller lends for the length of a call. The software device is one
//! such host, the simulated network of `adverb-fabric` another.
//!
//! A queue pair has roles that never call one another. The *requester* turns work into packets,
//! the *responder* serves the peer's packets, the *completer* reads what comes back and answers
//! with a verdict, which `qp.rs` carries to the requester. Transports differ in which roles they
//! have:
//!
//! | | sends | serves |
//! |---|---|---|
//! | RC | `requester.rs`, `completer.rs` | `responder.rs` |
//! | XRC initiator | `requester.rs`, `completer.rs` | |
//! | XRC target | | `responder.rs` |
//! | UC | `streamer.rs` | `connected.rs` |
//! | UD | `streamer.rs` | `datagram.rs` |
//!
//! All of them cut messages with `packetizer.rs` and, but for datagrams, put them together with
//! `assembler.rs`.
//!
//! Read IBTA Vol. 1 §9.7 (reliable service) and §9.8 (unreliable service) before changing this
//! crate.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod arrived;
mod assembler;
mod attributes;
mod completer;
mod connected;
mod counters;
mod cutting;
mod datagram;
mod eager;
mod early;
mod host;
mod link;
mod marked;
mod packetizer;
mod port;
mod qp;
mod requester;
mod responder;
mod roles;
mod round_trip;
mod segment;
mod send_queue;
mod status;
mod streamer;
#[cfg(test)]
mod testing;
mod time;
mod transition;
mod transport;
mod window;
mod work;

pub use access::Access;
pub use attributes::{Attributes, Gid, Partition, RetryCount, RnrRetry, Settings};
pub use counters::QpCounters;
pub use eager::EagerHeader;
pub use early::EarlyBudget;
pub use host::{
    AccessError, AtomicOp, EmitError, FetchError, GRH_LEN, Host, Invalidator, Landing, LocalError,
    NoReceive, Payload, Range, Reach, Receive, ReceiveDone, SendDone, Target,
};
pub use link::Capabilities;
pub use port::{
    AckCost, AckPolicy, Acks, Aftermath, Company, Driver, Dropped, Given, Hints, Identification,
    Listing, Look, Pacing, Paths, Schedule, Seat, Seats, Surface, Waiting, admit, follow_up,
    serve_ready, set_open_deadline,
};
pub use qp::{EagerSends, Origin, Planned, Qp, QpOptions};
pub use responder::Standing;
pub use status::{Behaviour, Processing, QpEvent, QpState, WcOpcode, WcStatus};
pub use time::{AckTimeout, Time, TooLong};
pub use transition::{
    AttributeSet, ModifyError, TransitionRule, check as check_modify, transition,
};
pub use transport::{QpType, RequestOp, allowed};

pub use work::{Datagram, Request, RequestError, RequestKind, Route, To};
