//! Packets of a network interface in user space, by AF_XDP, on any Linux interface.
//!
//! ```text
//! interface   the owner's end: program, maps, groups, members
//! steering    which packets are whose: keys, the program in the kernel
//! gate        words by which members let packets through, or not
//! assembler   eBPF instructions
//! owner       hands sockets to other processes, and looks after what they leave
//! inspector   looks at descriptors that members send, and closes them
//! member      another process's end: asks an owner for sockets
//! grant       messages between the two
//! socket      a member's end: one AF_XDP socket on one queue
//! umem        memory of frames, and a record of which is whose
//! memlock     how much of that may be locked
//! ring        the kernel's rings
//! ```
//!
//! A program on the interface looks each packet up by its addresses and ports. Those that are in the table go to the
//! AF_XDP socket of the member and of the queue on which they came, all others to the kernel, as if nothing were there:
//! fragments, packets with options, of other protocols, for other ports. Each member keeps an ordinary socket beside,
//! which holds the port. A member that sleeps on that socket shuts the *gate* of its packets meanwhile: they are the
//! kernel's, which wakes it.
//!
//! # Owner and members
//!
//! It takes privilege to put a program on an interface and to make AF_XDP sockets (CAP_NET_ADMIN, CAP_BPF,
//! CAP_NET_RAW), but not to use one. So one process, the *owner*, has the [`Interface`], and hands sockets to others,
//! the *members*, which need no privilege; a program that has it itself is owner and member at once. All descriptors
//! that keep the program on the interface are the owner's: when it ends, however it ends, packets take the kernel's way
//! again. The kernel counts the owner's UMEMs as locked memory, unless it has CAP_IPC_LOCK ([`MemlockError`]).
//!
//! The kernel gives a queue to one memory of frames (UMEM) with one ring of frames to be filled and one of frames that
//! have been sent. All members on a queue share these. A [`Group`](interface::Group) is a UMEM and its queues;
//! its members lock the UMEM for as long as it takes to move a batch of frames from one place to another, and a lock
//! whose holder has been killed is taken over. The owner gives back what a member had when it ended.
//!
//! # What a member can do
//!
//! Members of a group trust each other: each can read and change every packet of the others, and keep them from
//! receiving. So a group is one user's. A member of one group has no access to the memory of another. But
//! **each member can send any Ethernet frame** under any address, as a process with CAP_NET_RAW can: an owner that
//! serves others has to know that it trusts them with that. What members write to shared memory cannot make the owner
//! or another member fail: each frame number, length and ring position is checked where it is read. Nor does the owner
//! wait for a member: what takes as long as a member wants waits with others of its user. A member that gives nothing
//! back keeps its queues busy until it ends, also when it has left.

pub mod assembler;
pub mod gate;
#[cfg(feature = "hostile")]
pub mod grant;
#[cfg(not(feature = "hostile"))]
mod grant;
mod inspector;
pub mod interface;
pub mod member;
pub mod memlock;
pub mod owner;
mod ring;
pub mod socket;
pub mod steering;
pub mod umem;

pub use interface::{Config, Interface};
pub use member::Membership;
pub use memlock::MemlockError;
pub use owner::Owner;
pub use socket::Socket;
pub use steering::Key;
