//! What goes beyond plain sockets: time stamps, packet pacing, reading without a copy.
//!
//! ```text
//! stamps      when something arrived, in control data       pacing      rates that sends keep
//! loans       bytes that the program reads where they lie
//! ```

pub(crate) mod loans;
pub(crate) mod pacing;
pub(crate) mod stamps;
