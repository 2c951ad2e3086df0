//! A simulated network for the RoCE transport: virtual time, a seed, and real datagrams.
//!
//! A [`Net`] holds pairs of connected queue pairs, each with memory and receives of its own, and
//! the links between them. Packets are emitted byte for byte, with their ICRC, carried by a
//! [`Link`] that delays, loses, copies, reorders or damages them, and have to pass
//! [`adverb_engine::admit`] on the other side. Time jumps from one event to the next. The same
//! seed gives the same run, to the last bit; nothing here knows a clock, a socket or a thread.
//!
//! This is no part of a working device: it is where the transport is tested, here and by others.
//!
//! # Examples
//!
//! ```
//! use adverb_fabric::{A, A_TO_B, Fault, Net, Setup, Work};
//! use adverb_wire::PathMtu;
//!
//! let mut net = Net::pair(1, &Setup { path_mtu: PathMtu::B1024, ..Setup::default() });
//! net.script(A_TO_B, Fault::Drop, 2..=2);
//! let target = net.region(adverb_fabric::B, 0);
//! net.post(A, Work::write(target, vec![7; 4096]));
//! net.drive()?;
//!
//! assert_eq!(net.trace(A_TO_B), "1 2x 3 4 | 2 3 4");
//! assert_eq!(net.node(adverb_fabric::B).memory(0).get(..4096), Some([7; 4096].as_slice()));
//! # Ok::<(), adverb_fabric::Stuck>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bottleneck;
mod link;
mod memory;
mod net;
mod node;
mod random;
mod receives;
mod setup;
mod trace;
mod world;

pub use bottleneck::{Bottleneck, Passage};
pub use link::{Fault, Link};
pub use memory::{Region, Target};
pub use net::{A, A_TO_B, B, B_TO_A, LinkId, Net, NodeId, Stuck};
pub use node::{Node, Window, Work};
pub use random::Random;
pub use setup::Setup;
pub use world::{Medium, Plan, Tally, Weather, World};
