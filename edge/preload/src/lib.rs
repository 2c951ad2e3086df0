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
//! sockets     what becomes of a socket        table, slot   descriptors and sockets
//! stream      bytes in and out                ring, meeting shared memory, and how ends find it
//! doors       ends in other namespaces    locals        addresses of this host
//! datagram    UDP, and its mailboxes
//! closing     FIN, reset, shutdown            patience      spin or sleep
//! epoll, multiplex, doorbell                  signal, life  handlers, forks, new programs
//! config, log, stats                          raw, real     system calls, the real functions
//! extra       time stamps, pacing
//! memberships for statistics                 family, holders  processes that share all this
//! heap        memory, but not the program's      alive     who lives
//! ```
//!
//! Not here: what rules and parameters mean (`adverb-sockconf`).
//!
//! # Safety
//!
//! The functions of `exports` are called by the program under the contracts of the C library's
//! functions of the same names; each file there says what that gives us. No panic may leave them:
//! the code below neither indexes nor unwraps, and arithmetic on what others wrote wraps or
//! saturates.

mod address;
mod alive;
mod arena;
mod bell;
mod blocking;
mod changes;
mod closing;
mod config;
mod confined;
mod copy;
mod counters;
mod datagram;
mod doorbell;
mod doors;
mod epoll;
mod exports;
mod extra;
mod family;
mod few;
mod forks;
mod habit;
mod heap;
mod holders;
mod kernel;
mod life;
mod locals;
mod lock;
mod log;
mod memberships;
mod multiplex;
mod offer;
mod own;
mod pace;
mod park;
mod parts;
mod patience;
mod policy;
mod ports;
mod ppoll;
mod raw;
mod real;
mod rendezvous;
mod retreat;
mod ring;
mod shelter;
mod signal;
mod slot;
mod sockets;
mod stats;
mod streak;
mod stream;
mod successor;
mod table;
mod thread;
