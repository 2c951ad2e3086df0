//! The port: decides when each of its queue pairs sends and acknowledges, and which one has its turn.
//!
//! A port has many queue pairs, each perhaps under a lock of its own, so it does not own them: the
//! owner lends one at a time as a [`Seat`], and all of a port's decisions are made with what is
//! lent. What is left to decide later is kept in three places:
//!
//! - [`Pacing`], beside each queue pair and under its lock: the acknowledgement that is owed, requests
//!   that wait for company, the deadline that is armed;
//! - [`Waiting`], which belongs to the thread that receives: queue pairs whose acknowledgements wait;
//! - [`Schedule`], shared by all threads: deadlines, and queue pairs that have more to emit than there
//!   was room for.
//!
//! The time is an argument here as everywhere in this crate, and bytes, sockets and memory are the
//! owner's. The software device is one owner, the simulated hosts of `adverb-fabric` another.

mod acks;
mod admission;
mod agenda;
mod company;
mod pacing;
mod paths;
mod schedule;
mod seat;
mod waiting;

pub use acks::{AckCost, AckPolicy, Listing};
pub use admission::{Dropped, Identification, admit};
pub use company::Company;
pub use pacing::{Acks, Aftermath, Pacing};
pub use paths::Paths;
pub use schedule::{Hints, Schedule};
pub use seat::{Seat, Seats, Surface, follow_up, serve_ready, set_open_deadline};
pub use waiting::{Given, Look, Waiting};

/// What drives a port: what is polite for a thread of the program is not for the helper.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Driver {
    /// A thread of the program: it gets its completions first, and acknowledgements leave with its next
    /// call.
    Program,
    /// The helper: everything at once.
    Helper,
}
