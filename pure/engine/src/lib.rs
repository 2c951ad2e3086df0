//! The RoCE transport as state machines: packets and work requests in, packets and completions out.
//!
//! Nothing here knows a socket, a clock, a thread or a pointer. A [`Qp`] is driven by whoever owns
//! it: posted work, packets and the time come in as arguments; packets, data and completions leave
//! through the [`Host`] that the caller lends for the length of a call. The software device is one
//! such host, the simulated network of `adverb-fabric` another.
//!
//! A reliable queue pair has three roles that never call one another. The *requester* turns work
//! into packets, the *responder* serves the peer's packets, the *completer* reads what comes back
//! and answers with a verdict, which `qp.rs` carries to the requester.
//!
//! Read IBTA Vol. 1 §9.7 (reliable service) before changing this crate.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attributes;
mod completer;
mod counters;
mod host;
mod port;
mod qp;
mod requester;
mod responder;
mod send_queue;
mod status;
#[cfg(test)]
mod testing;
mod time;
mod window;
mod work;

pub use attributes::{
    Access, Gid, InitAttributes, RetryCount, RnrRetry, RtrAttributes, RtsAttributes,
};
pub use counters::QpCounters;
pub use host::{
    AccessError, AtomicOp, EmitError, Host, Landing, LocalError, Payload, Range, Receive,
    ReceiveDone, SendDone,
};
pub use port::{Dropped, accept};
pub use qp::{Qp, StateError};
pub use send_queue::SendQueueFull;
pub use status::{QpState, WcOpcode, WcStatus};
pub use time::{AckTimeout, Time, TooLong};
pub use work::{Request, RequestKind};
