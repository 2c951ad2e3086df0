//! System calls, memory, locks and settings: what the machine and the user lend to all other rooms.
//!
//! Nothing here knows a socket of the program.
//!
//! ```text
//! raw, real, ppoll    system calls, and the real functions of the C library
//! address, iovec, copy        sockaddr, iovec, and copies that survive a wrong pointer
//! signal, shelter, thread, vfork      handlers, faults, what each thread and what a `vfork` child has
//! lock, forks, confined       locks, and what happens to them in a fork; `seccomp`
//! heap, few       memory, but not the program's       locals   addresses of this host
//! config, logic, log, pace    settings, lines of the log, how regular a thread's waits are
//! ```

pub(crate) mod address;
pub(crate) mod config;
pub(crate) mod confined;
pub(crate) mod copy;
pub(crate) mod few;
pub(crate) mod forks;
pub(crate) mod heap;
pub(crate) mod iovec;
pub(crate) mod locals;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod logic;
pub(crate) mod pace;
pub(crate) mod ppoll;
pub(crate) mod raw;
pub(crate) mod real;
pub(crate) mod shelter;
pub(crate) mod signal;
pub(crate) mod thread;
pub(crate) mod vfork;
pub(crate) mod yields;
