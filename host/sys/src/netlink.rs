//! Netlink: notice that the network interfaces of a namespace, their addresses or its routes have changed.
//!
//! Only *that* something changed is heard here, not what: messages can be lost when there are many,
//! and a look at [`interfaces`](crate::netdev::interfaces) afterwards misses nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use crate::fork::KeptFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// A subscription to changes of links and addresses: readable when there was one.
#[derive(Debug)]
pub struct Changes {
    socket: KeptFd,
}

impl Changes {
    /// Subscribes to the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// Those of `socket(2)` and `bind(2)`: no descriptors or no memory left.
    pub fn subscribe() -> io::Result<Self> {
        Self::of(LINK | IPV4_ADDRESS | IPV6_ADDRESS)
    }

    /// The same, and to changes of routes.
    ///
    /// # Errors
    ///
    /// As for [`Changes::subscribe`].
    pub fn subscribe_with_routes() -> io::Result<Self> {
        Self::of(LINK | IPV4_ADDRESS | IPV6_ADDRESS | IPV4_ROUTE | IPV6_ROUTE)
    }

    /// The same, by a descriptor whose number is not below `least`.
    ///
    /// # Errors
    ///
    /// As for [`Changes::subscribe`].
    pub fn subscribe_above(least: RawFd) -> io::Result<Self> {
        let Self { socket } = Self::subscribe_with_routes()?;
        Ok(Self { socket: KeptFd::new(rustix::io::fcntl_dupfd_cloexec(&socket, least)?)? })
    }

    fn of(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol is protocol 0, which is that of links, addresses and routes.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket: KeptFd::new(socket)? })
    }

    /// Takes all messages there are; says whether there were any.
    ///
    /// # Errors
    ///
    /// None in practice: messages that were lost count as messages.
    pub fn drain(&self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            let mut message = [0; MESSAGE_BYTES];
            match recv(&self.socket, &mut message[..], RecvFlags::TRUNC) {
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::AGAIN) => return Ok(changed),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// Groups of `rtnetlink(7)`, as bits.
const LINK: u32 = 1;
const IPV4_ADDRESS: u32 = 0x10;
const IPV4_ROUTE: u32 = 0x40;
const IPV6_ADDRESS: u32 = 0x100;
const IPV6_ROUTE: u32 = 0x400;
/// What does not fit is not read either.
const MESSAGE_BYTES: usize = 64;
