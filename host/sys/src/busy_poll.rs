//! Busy polling: a receive call looks for packets in the driver itself instead of waiting for its interrupt.

use std::io;
use std::os::fd::AsFd;

use crate::sockopt;

/// How a socket polls its interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BusyPoll {
    /// For how long a call polls, in microseconds.
    pub micros: u16,
    /// Packets that it takes at most.
    pub packets: u16,
}

/// Whether calls of a socket poll.
#[must_use]
pub fn is_set(socket: impl AsFd) -> bool {
    let set = sockopt::get(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL);
    set.is_ok_and(|set| set != 0)
}

/// Makes the calls of a socket poll; the interface's interrupts rest as long as there are such calls.
///
/// # Errors
///
/// `EPERM` for more packets than the system allows, or where the time is raised without CAP_NET_ADMIN.
pub fn set(socket: impl AsFd, how: BusyPoll) -> io::Result<()> {
    let BusyPoll { micros, packets } = how;
    let socket = socket.as_fd();
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &i32::from(micros))?;
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &i32::from(packets))
}
