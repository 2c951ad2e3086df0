//! What goes beyond plain sockets: time stamps, packet pacing, receive callbacks, reading without a copy, rings.
//!
//! ```text
//! stamps      when something arrived, in control data       pacing      rates that sends keep
//! filters     what the program looks at before it is received
//! loans       bytes that the program reads where they lie      rings    what sockets are polled together by
//! ```

pub(crate) mod filters;
pub(crate) mod loans;
pub(crate) mod pacing;
pub(crate) mod rings;
pub(crate) mod stamps;
