//! What goes beyond plain sockets: time stamps, packet pacing.
//!
//! ```text
//! stamps      when something arrived, in control data       pacing      rates that sends keep
//! ```

pub(crate) mod pacing;
pub(crate) mod stamps;
