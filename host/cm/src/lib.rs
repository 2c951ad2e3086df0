//! Connection management of a process: identifiers, and queues of what happens to them.
//!
//! An [`Id`] is what librdmacm calls one: it is bound to an address, finds a peer or listens for
//! peers, and connects. What comes of it is an [`Event`] in the [`EventQueue`] of the identifier.
//! The program makes its queue pairs itself; [`Id::qp_attributes`] says what to set on them, for
//! each transition. Devices are chosen by address.
//!
//! ```text
//!     Id, EventQueue          what programs hold
//!     service                 the table of identifiers, one for the process, and its thread
//!     adverb-cm               the protocol
//!     adverb-device           queue pair 1: management datagrams over UDP, also on one host
//! ```
//!
//! Semantics are those of the kernel's rdma_cm where a program can see them; rdma_cm(7) and the
//! pages that it names describe them.
//!
//! [`Id`] has an example.

#![forbid(unsafe_code)]

mod attributes;
mod commands;
mod ends;
mod error;
mod event;
mod handle;
mod id;
mod kind;
mod news;
mod parameters;
mod peers;
mod ports;
mod queue;
mod service;
mod state;
mod waiting;

pub use self::attributes::QpAttributes;
pub use self::error::Error;
pub use self::event::Event;
pub use self::id::{Id, Membership};
pub use self::kind::{EventKind, Param};
pub use self::parameters::{
    BoundDevice, DatagramParameters, Parameters, PathInfo, Private, Space, Transport,
};
pub use self::ports::source;
pub use self::queue::EventQueue;
pub use self::service::counters;
pub use adverb_cm::Counters;
