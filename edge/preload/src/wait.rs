//! Waiting: calls that spin and sleep until sockets have something.
//!
//! ```text
//! blocking    on one connection       multiplex   `poll` and `select`       epoll   instances
//! filters     what the program looks at before it is received
//! standstill  both ends wait for room
//! ```

pub(crate) mod blocking;
pub(crate) mod epoll;
pub(crate) mod filters;
pub(crate) mod multiplex;
mod standstill;
