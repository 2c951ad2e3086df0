//! TCP over the frames of a network interface, without the kernel's network stack.
//!
//! ```text
//! Netstack    takes steps: frames in, frames out, time
//! link        frames that leave, and those that wait for a hardware address
//! hops        the next hop to an address, as the kernel knows it
//! packet      headers of packets that leave
//! ```
//!
//! [`Netstack`] joins the sockets of an interface ([`adverb_xdp`]), the connections of [`adverb_tcpip`], and the kernel's
//! routes, addresses and neighbours. It has no thread and no clock: its owner calls [`Netstack::step`] when a descriptor
//! can be read, when [`Netstack::next_deadline`] has come, and after it has given connections something to do.
//!
//! It decides nothing about the interface's steering: its owner claims the keys of listeners and connections
//! ([`adverb_xdp::Key`]), each with a kernel's socket beside that holds the port. Packets that are not claimed, and ICMP, stay
//! the kernel's. When the process ends, so does the steering, and the kernel answers segments of its connections with
//! resets, for it knows none of them.

mod hops;
mod link;
mod packet;
mod stack;

pub use stack::{Counters, Limits, Netstack};
