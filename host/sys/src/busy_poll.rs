//! Busy polling by AF_XDP sockets: a receive call has the driver look for packets, which its interrupt does otherwise.

use std::io;
use std::os::fd::AsFd;

use crate::sockopt;

/// Whether calls of a socket poll.
#[must_use]
pub fn is_set(socket: impl AsFd) -> bool {
    let set = sockopt::get(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL);
    set.is_ok_and(|set| set != 0)
}

/// Makes the calls of a socket poll: each has the driver look once, and take so many packets at most (0: 8). Interrupts rest
/// meanwhile where the interface defers them (`napi_defer_hard_irqs` and `gro_flush_timeout` below `/sys/class/net`), and nowhere
/// else. Since Linux 6.13 it takes a driver that tells the kernel which of its queues is polled by what; with others, such as
/// veth, calls bring nothing. `BusyPollRxPackets` in `/proc/net/netstat` counts what they have brought.
///
/// # Errors
///
/// `EPERM` without CAP_NET_ADMIN; `ENOPROTOOPT` before Linux 5.11.
pub fn set(socket: impl AsFd, packets: u16) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
    // A time to poll for, which has to be set. Calls of such a socket never wait, and so none polls longer than for one look.
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &1)?;
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &i32::from(packets))
}
