//! Transports: how the bytes of a socket travel, without waiting.
//!
//! ```text
//! stream      connections, in and out         kernel      receiving from the kernel, spinning first
//! ring        bytes in shared memory          rendezvous, ports, offer    how two ends find one another
//! path_proof  ends in other namespaces        fallback    back to the kernel
//! park, bell, doorbell        ends that sleep, and what wakes them        streak  receptions in a row
//! datagram    UDP, and its mailboxes           xdp     UDP, past the kernel
//! ```

pub(crate) mod bell;
pub(crate) mod datagram;
pub(crate) mod doorbell;
pub(crate) mod fallback;
pub(crate) mod kernel;
pub(crate) mod offer;
pub(crate) mod park;
pub(crate) mod path_proof;
pub(crate) mod ports;
pub(crate) mod rendezvous;
pub(crate) mod ring;
pub(crate) mod streak;
pub(crate) mod stream;
pub(crate) mod xdp;
