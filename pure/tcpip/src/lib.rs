//! TCP/IP without sockets: headers, and TCP as state machines.
//!
//! Frames of a network interface become a [`Frame`](frame::Frame): a TCP segment, a UDP datagram, an ICMP error or
//! what finds neighbours, each with only legal fields; or a [`Refused`](frame::Refused), which says whether the kernel
//! should have the frame or nothing should. Everything that is rare is the kernel's: VLANs, fragments, extension
//! headers, IGMP.
//!
//! Nothing here knows an interface, a clock or a thread: packets, calls and the time go in; packets, events and
//! the next deadline come out.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arp;
pub mod ethernet;
pub mod frame;
pub mod icmp;
pub mod neighbour;
pub mod stack;
pub mod tcp;
mod time;
pub mod tuple;

pub use self::time::Time;
