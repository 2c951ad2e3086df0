//! Sockets of unmodified programs, accelerated: `LD_PRELOAD=libadverb_sockets.so`.
//!
//! This library stands in front of the C library's socket functions. Every socket stays the
//! kernel's: address, connection, firewall, end. What changes is how bytes wait and travel. A wait
//! *spins* for a while before it sleeps. A connection whose peer is on this host and accelerated
//! too moves its bytes through *rings* in shared memory. Whatever cannot be accelerated is the
//! kernel's as before, and the reason is recorded; nothing fails because of us.
//!
//! ```text
//! exports/    the functions, as the C library has them: convert, call, answer
//! share/      processes that share sockets: forks, new programs, ends
//! wait/       calls that spin and sleep
//! transport/  how bytes travel: the kernel's sockets, rings, mailboxes
//! socket/     what is known of each socket
//! base/       system calls, memory, locks, settings
//! ```
//!
//! A room uses those below it, and none above.
//!
//! Not here: what rules and parameters mean (`adverb-sockconf`), and what it takes to share memory (`adverb-shm`).
//!
//! # Safety
//!
//! The functions of `exports` are called by the program under the contracts of the C library's
//! functions of the same names; each file there says what that gives us. No panic may leave them:
//! the code below neither indexes nor unwraps, and arithmetic on what others wrote wraps or
//! saturates.

mod base;
mod exports;
mod share;
mod socket;
mod transport;
mod wait;
