//! What goes beyond plain sockets: time stamps, packet pacing, reading without a copy, rings.
//!
//! ```text
//! stamps      when something arrived, in control data       pacing      rates that sends keep
//! loans       bytes that the program reads where they lie      rings    what sockets are polled together by
//! ```

pub(crate) mod loans;
pub(crate) mod pacing;
pub(crate) mod rings;
pub(crate) mod stamps;
