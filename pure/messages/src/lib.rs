//! What the two sides of a session say to each other, without sockets, queue pairs, memory or threads.
//!
//! [`frame`] has what connectors say over TCP or connection management; [`Flow`] is the flow control of messages over a
//! queue pair:
//!
//! Both sides post as many receives as they told the other of, and a side sends no more than it has been granted: no
//! message ever finds the peer without a receive. A receive is granted anew when the program has done with the message in
//! it. A message that does not fit a receive is offered: the receiver READs it, and counts it as taken. Grants and takes
//! are counts in the [`Header`] of whatever goes the other way; if nothing does, a message of counts goes by itself when
//! half of the grants are owed, or a take is. Its receive is one that is never granted: a side has at most
//! [`COUNTS_MAX`] such messages on their way, because to owe another half it must be sent messages that an earlier one
//! has allowed, and one more for each offer that the other side waits for. Places of the send queue are kept for them
//! too ([`SENDS_KEPT`]), so that they pass when both sides are stuck with data.
//!
//! A [`Flow`] has the counts of one side. Its owner asks it what may be sent, has it write each header, and tells it
//! what has come.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod flow;
pub mod frame;
mod header;

pub use self::flow::{
    COUNTS_MAX, FACTS_BYTES, Facts, Flow, OFFERS_MAX, RECEIVES_KEPT, SENDS_KEPT, Unruly,
};
pub use self::header::{HEADER_BYTES, Header, Kind, OFFER_BYTES};
