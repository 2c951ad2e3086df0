//! What goes beyond plain sockets: time stamps, packet pacing, receive callbacks, reading without a copy, rings.
//!
//! ```text
//! stamps      when something arrived, in control data       pacing      rates that sends keep
//! filters     what the program looks at before it is received   returning   loans that come back
//! xtreme      packets and events of all sockets of a ring       buffers     their pieces
//! loans       bytes that the program reads where they lie      rings    what sockets are polled together by
//! ```

pub(crate) mod buffers;
pub(crate) mod filters;
pub(crate) mod loans;
pub(crate) mod logic;
pub(crate) mod pacing;
pub(crate) mod returning;
pub(crate) mod rings;
pub(crate) mod stamps;
pub(crate) mod xtreme;
