//! The verbs over the software device, on the real network stack of this machine.
//!
//! | file | is about |
//! |---|---|
//! | `operations.rs` | what works: every operation, size, path MTU and way of posting |
//! | `longest.rs` | messages of 2 GiB |
//! | `set_up.rs` | mistakes before there is a connection, and what they are called |
//! | `statuses.rs` | what fails, and with which status |
//! | `rogue.rs` | the same, where it takes a peer that breaks the rules |
//! | `hostile.rs` | datagrams from strangers |
//! | `fork.rs` | a process that forks in the middle of traffic |
//! | `fallback.rs` | routes that refuse bursts |
//! | `processes.rs` | several processes on one address, wrong steering, sudden death |
//! | `passive.rs` | programs that do not poll, and what they cost |
//! | `capture.rs` | `ADVERB_PCAP` |
//! | `counters.rs` | what is counted, and which processes can see it |
//! | `neighbours.rs` | shared memory between processes: order, dropped regions, sudden death |
//! | `crowded.rs` | many processes, and few processors |
//! | `frozen.rs` | processes that are stopped in the midst of something |
//! | `scribbler.rs` | a hostile process of the same user: nonsense in shared memory and at the rendezvous |
//! | `isolation.rs` | what a process can do to another's memory without our code |
//! | `huge.rs` | huge pages, where the system has them |
//! | `users.rs` | processes of another user: packets, and no memory |
//! | `containers.rs` | processes of one address in containers of their own |
//! | `namespaces.rs` | two hosts, as far as the network can tell |
//! | `frames.rs` | the same, where packets go past the kernel's sockets |
//! | `speaker.rs` | unreliable transports of such hosts, and what they lose |
//! | `path.rs` | the paths that each test of a transport runs over |
//! | `pair.rs`, `agent.rs`, `talker.rs`, `alone.rs`, `stranger.rs` | what the tests are made of |
//!
//! Traffic stays on the loopback interface and in namespaces that the tests make.

mod agent;
mod alone;
mod capture;
mod containers;
mod counters;
mod crowded;
mod fallback;
#[path = "../../../netstack/tests/kernel/faults.rs"]
mod faults;
mod fork;
mod frames;
mod frozen;
mod hostile;
mod huge;
mod isolation;
mod longest;
mod namespaces;
mod neighbours;
mod operations;
mod pair;
mod passive;
mod path;
mod processes;
mod rogue;
mod scribbler;
mod set_up;
mod speaker;
mod statuses;
mod stranger;
mod talker;
mod users;
