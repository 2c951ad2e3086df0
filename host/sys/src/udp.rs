//! An unconnected UDP socket that sends and receives whole bursts of datagrams in one call.
//!
//! A burst that leaves is cut into datagrams of one size by the kernel (`UDP_SEGMENT`); a burst that arrives may be handed over in one piece
//! (`UDP_GRO`), with the size of its segments. Nothing here knows what the datagrams mean.
//!
//! The socket is never connected, and always sends with the *don't fragment* bit
//! (`IP_PMTUDISC_DO`): only then does Linux give every IPv4 packet the identification 0, and the
//! segments of a burst 0, 1, 2, …; a sender that computes a checksum over the IP header relies on it.
//!
//! # Safety
//!
//! 1. The kernel reads what a message header points to during the call and keeps no pointer. Every
//!    header here is a local, and what it points to outlives the call: locals, or borrows.
//! 2. Sending and receiving calls are made without the C library's wrappers, which would make each a
//!    point where a thread can be cancelled; the arguments are the same.
//! 3. Bytes received go into a `&mut [u8]`, and the kernel is told its length.

mod address;
mod control;
pub mod steering;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub use self::address::Destination;
use self::address::Name;
use self::control::{Message, Orders, Tidings};
use self::steering::SockFilter;
use crate::fork::KeptFd;
use crate::sockopt;

/// Options of a new socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BindOptions {
    /// The local address and port. Port 0 lets the kernel choose one.
    pub addr: SocketAddr,
    /// Share the port with other sockets of the same user that ask for this too.
    pub reuse_port: bool,
    /// How many bytes the socket should hold for us until we read them. The kernel may give less.
    pub recv_buffer_bytes: usize,
    /// How many bytes the socket should hold for the network. The kernel may give less.
    pub send_buffer_bytes: usize,
    /// Accept bursts in one piece. Where the kernel cannot, datagrams arrive one by one.
    pub gro: bool,
}

impl BindOptions {
    /// The usual choice for `addr`: port not shared, 8 MiB of buffer each way, bursts in one piece.
    #[must_use]
    pub const fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            reuse_port: false,
            recv_buffer_bytes: BUFFER_BYTES,
            send_buffer_bytes: BUFFER_BYTES,
            gro: true,
        }
    }
}

/// How packets are to be treated on their way, as their IP header says it. 0 is what the system
/// would put there: no traffic class, its own hop limit, and a flow label of its choice.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Marks {
    /// Traffic class of IPv6, type of service of IPv4: DSCP in the upper six bits, ECN below.
    pub traffic_class: u8,
    /// Hop limit of IPv6, time to live of IPv4.
    pub hop_limit: u8,
    /// Flow label of IPv6, 20 bits. Where a process of the network namespace has reserved labels
    /// exclusively, Linux wants all of them reserved: packets then go without.
    pub flow_label: u32,
}

impl Marks {
    /// The largest flow label.
    pub const FLOW_LABEL_MAX: u32 = 0xf_ffff;
}

/// Result of [`Socket::recv`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Received {
    /// Bytes at the front of the buffer that are now the sender's.
    pub len: usize,
    /// Their sender.
    pub source: SocketAddr,
    /// If several datagrams came in one piece: the length of each but the last, which may be
    /// shorter. `None` for a single datagram. Never 0.
    pub segment: Option<usize>,
    /// The buffer was too small, and the rest is lost.
    pub truncated: bool,
}

/// A UDP socket; not blocking, not connected, of this process alone: closed on exec, and kept out of children.
#[derive(Debug)]
pub struct Socket {
    fd: KeptFd,
    local: SocketAddr,
    gro: bool,
    gso: bool,
}

impl Socket {
    /// Opens a socket and binds it.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the port is taken by a socket that does not share it, or by the kernel;
    /// `AddrNotAvailable` if the address is not one of this machine's. Buffers that are smaller
    /// than wished and a missing GRO are no errors: ask [`Socket::recv_buffer_bytes`],
    /// [`Socket::send_buffer_bytes`] and [`Socket::gro`].
    pub fn bind(options: &BindOptions) -> io::Result<Self> {
        let family = match options.addr {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = KeptFd::new(socket_with(family, SocketType::DGRAM, flags, None)?)?;
        never_fragment(&fd, options.addr)?;
        if options.reuse_port {
            sockopt::set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &ON)?;
        }
        enlarge(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.recv_buffer_bytes)?;
        enlarge(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer_bytes)?;
        if options.addr.is_ipv6() {
            // Others leave the checksum out: what they send has a better one. RFC 6936.
            sockopt::set(&fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, &ON)?;
        }
        let gro = options.gro && sockopt::set(&fd, libc::SOL_UDP, libc::UDP_GRO, &ON).is_ok();
        let gso = sockopt::get(&fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        rustix::net::bind(&fd, &options.addr)?;
        let local = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        Ok(Self { fd, local, gro, gso })
    }

    /// The address and port it is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether bursts arrive in one piece.
    #[must_use]
    pub const fn gro(&self) -> bool {
        self.gro
    }

    /// Whether this kernel can cut a burst into datagrams. A route may still refuse it.
    #[must_use]
    pub const fn gso(&self) -> bool {
        self.gso
    }

    /// How much the kernel will hold for us until we read it, in bytes of its own book-keeping
    /// (about twice the payload).
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn recv_buffer_bytes(&self) -> io::Result<usize> {
        let bytes = sockopt::get(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        usize::try_from(bytes).map_err(io::Error::other)
    }

    /// How much the kernel will hold for the network, in bytes of its own book-keeping.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn send_buffer_bytes(&self) -> io::Result<usize> {
        let bytes = sockopt::get(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        usize::try_from(bytes).map_err(io::Error::other)
    }

    /// Sends to multicast groups by way of the interface with this number.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` if there is no such interface.
    pub fn set_multicast_interface(&self, interface: u32) -> io::Result<()> {
        let index = c_int::try_from(interface).map_err(io::Error::other)?;
        match self.local {
            SocketAddr::V4(_) => {
                let request = on_interface(Ipv4Addr::UNSPECIFIED, index);
                sockopt::set(&self.fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
            }
            SocketAddr::V6(_) => {
                sockopt::set(&self.fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index)
            }
        }
    }

    /// Makes a socket that is bound to a multicast group receive what comes for it at the interface
    /// with this number, or no longer. It receives nothing of groups that others have joined.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` if it does already, `EADDRNOTAVAIL` if it did not, `EINVAL` if it is not bound
    /// to a group, `ENODEV` without such an interface, `ENOBUFS` if the system allows no more.
    pub fn set_joined(&self, interface: u32, joined: bool) -> io::Result<()> {
        let index = c_int::try_from(interface).map_err(io::Error::other)?;
        match self.local {
            SocketAddr::V4(group) => {
                let request = on_interface(*group.ip(), index);
                let name = if joined { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
                sockopt::set(&self.fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &OFF)?;
                sockopt::set(&self.fd, libc::IPPROTO_IP, name, &request)
            }
            SocketAddr::V6(group) => {
                let multiaddr = libc::in6_addr { s6_addr: group.ip().octets() };
                let request =
                    libc::ipv6_mreq { ipv6mr_multiaddr: multiaddr, ipv6mr_interface: interface };
                let name =
                    if joined { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
                sockopt::set(&self.fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, &OFF)?;
                sockopt::set(&self.fd, libc::IPPROTO_IPV6, name, &request)
            }
        }
    }

    /// Makes `program` decide which socket of this socket's reuse-port group gets a datagram. It
    /// replaces the program of the whole group. See [`steering::program`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the socket does not share its port, or the program is empty, too long or unsound.
    pub fn attach_reuseport_filter(&self, program: &[SockFilter]) -> io::Result<()> {
        let too_long = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let descriptor = libc::sock_fprog {
            len: u16::try_from(program.len()).map_err(too_long)?,
            filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
        };
        // The kernel copies the program during the call and writes to nothing; `program` is borrowed
        // for that long, and a `SockFilter` has the layout of the C structure.
        sockopt::set(&self.fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &descriptor)
    }

    /// Leaves the reuse-port group: no more datagrams come, and those that have come can still be taken.
    ///
    /// A socket that is closed while datagrams come takes some along: for a moment the kernel finds it although it is in
    /// no group any more. One that is bound to an interface that does not exist is found no more, and leaves its group.
    ///
    /// # Errors
    ///
    /// `EPERM` if it is bound to an interface, as one with a link-local address is, and the process has no right to
    /// change that; nothing has changed then.
    pub fn leave_group(&self) -> io::Result<()> {
        sockopt::set(&self.fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &NO_INTERFACE)
    }

    /// Sends `bytes` to `dest`, and returns how many there were.
    ///
    /// With a `segment` the kernel cuts them into datagrams of that many bytes, the last of which
    /// may be shorter; without, they are one datagram. At most [`SEGMENTS_MAX`] segments and
    /// [`BURST_BYTES_MAX`] bytes. All of a burst is accepted, or nothing.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the socket's buffer is full: wait until it is writable. `ENOBUFS` if the
    /// interface's queue is: there is nothing to wait for but time. `EMSGSIZE` if a
    /// datagram is larger than the path allows. `EINVAL` if there are more segments than the kernel
    /// takes, `EIO` or `EINVAL` if the route cannot segment: send the datagrams one by one. Nothing
    /// has been sent then.
    #[inline]
    pub fn send(
        &self,
        bytes: &[u8],
        dest: &Destination,
        segment: Option<u16>,
    ) -> io::Result<usize> {
        if dest.is_marked() {
            return self.send_marked(bytes, dest, segment);
        }
        let name = dest.name();
        let Some(segment) = segment else {
            // SAFETY: the address and the bytes are borrows, and the kernel writes nothing (rule 1).
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    self.fd.as_raw_fd(),
                    bytes.as_ptr(),
                    bytes.len(),
                    SEND_FLAGS,
                    ptr::from_ref(&name.raw),
                    name.len,
                )
            };
            return usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        };
        let mut control = Message::to_cut(segment);
        let mut vector = vector_of(bytes);
        let mut message = empty_message();
        message.msg_name = ptr::from_ref(&name.raw).cast_mut().cast();
        message.msg_namelen = name.len;
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Message>();
        // SAFETY: the header, the address, the bytes and the control message are locals and borrows (rule 1); the kernel
        // writes to none of them when sending.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmsg, self.fd.as_raw_fd(), &raw const message, SEND_FLAGS)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Sends a burst whose packets are marked: [`Socket::send`].
    #[inline(never)] // Keeps the way of the others short.
    fn send_marked(
        &self,
        bytes: &[u8],
        dest: &Destination,
        segment: Option<u16>,
    ) -> io::Result<usize> {
        let marks = dest.marks();
        let sent = self.send_with(bytes, dest, Orders::new(dest.is_v6(), marks, segment));
        let labelled = dest.is_v6() && marks.flow_label != 0;
        let refused = |error: &io::Error| labelled && error.raw_os_error() == Some(libc::EINVAL);
        if !sent.as_ref().is_err_and(refused) {
            return sent;
        }
        let marks = Marks { flow_label: 0, ..marks };
        self.send_with(bytes, dest, Orders::new(true, marks, segment))
    }

    fn send_with(&self, bytes: &[u8], dest: &Destination, orders: Orders) -> io::Result<usize> {
        let (control, control_bytes) = orders.as_raw();
        let name = dest.name();
        let mut message = empty_message();
        message.msg_name = ptr::from_ref(&name.raw).cast_mut().cast();
        message.msg_namelen = name.len;
        let mut vector = vector_of(bytes);
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        if control_bytes > 0 {
            message.msg_control = control.cast_mut().cast();
            message.msg_controllen = control_bytes;
        }
        // SAFETY: the header, the address, the bytes and the control messages are locals and borrows (rule 1); the kernel
        // writes to none of them when sending.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmsg, self.fd.as_raw_fd(), &raw const message, SEND_FLAGS)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// What was sent and has not left this machine yet, as far as the socket knows: bytes of the kernel's book-keeping.
    /// 0 if it cannot be told.
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        let known = sockopt::get_all::<MEMINFO_WORDS>(&self.fd, libc::SOL_SOCKET, libc::SO_MEMINFO);
        let [_, _, unsent, ..] = known.unwrap_or_default();
        u64::try_from(unsent).unwrap_or(0)
    }

    /// From now on [`Socket::send`] tells with `ENOBUFS` that the interface's queue had no room for a burst, or no longer.
    /// While it does, what routers say of earlier packets may be the error of a send or a receive: try again.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn tell_of_full_queues(&self, tell: bool) -> io::Result<()> {
        let (level, name) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        sockopt::set(&self.fd, level, name, &c_int::from(tell))
    }

    /// Waits until the socket takes bytes again, at most for `timeout`; returns whether it does.
    ///
    /// # Errors
    ///
    /// `Interrupted` by a signal.
    pub fn wait_writable(&self, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        Ok(rustix::event::poll(&mut fds, Some(&timeout))? > 0)
    }

    /// Takes the next datagram, or the next burst of one sender, out of the socket.
    ///
    /// Give it [`BURST_BYTES_MAX`] bytes and nothing is ever lost.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut control = Message::EMPTY;
        let mut source = Name::EMPTY;
        let mut vector =
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut message = empty_message();
        message.msg_name = (&raw mut source.raw).cast();
        message.msg_namelen = source.len;
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Message>();
        // SAFETY: everything that the header points to is a local, of plain integers, or `buffer`,
        // with its length (rules 1 and 4).
        let len = unsafe {
            libc::syscall(libc::SYS_recvmsg, self.fd.as_raw_fd(), &raw mut message, RECV_FLAGS)
        };
        let Ok(len) = usize::try_from(len) else {
            return Err(io::Error::last_os_error());
        };
        Ok(Received {
            len,
            source: source.addr()?,
            segment: control.segment().filter(|&size| size < len),
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

/// Words of `SO_MEMINFO`.
const MEMINFO_WORDS: usize = 9;

/// A group, or none, on an interface.
fn on_interface(group: Ipv4Addr, index: c_int) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: index,
    }
}

/// An error of [`Socket::send`] that says that there is no memory, or that the interface's queue is full.
#[must_use]
pub fn lacks_buffers(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// An error of [`Socket::send`] that may be of earlier packets, which a host or router could not deliver:
/// [`Socket::tell_of_full_queues`].
#[must_use]
pub fn tells_of_others(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let codes = [libc::EPROTO, libc::ENOPROTOOPT, libc::EOPNOTSUPP, libc::EACCES, libc::EHOSTDOWN];
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
        || error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// An error of [`Socket::send`] that says that the route cannot cut bursts: it will not change its
/// mind, and the datagrams have to be sent one by one.
#[must_use]
pub fn refuses_bursts(error: &io::Error) -> bool {
    let refusals = [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOPROTOOPT];
    error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

impl Socket {
    /// Accepts bursts in one piece, or does not. What has arrived before stays as it is.
    ///
    /// # Errors
    ///
    /// `ENOPROTOOPT` where the kernel cannot.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        sockopt::set(&self.fd, libc::SOL_UDP, libc::UDP_GRO, &c_int::from(on))
    }

    /// Shows how packets are marked that are taken with [`Socket::recv_marked`] from now on.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn show_marks(&self) -> io::Result<()> {
        let (level, name) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        };
        self.show_traffic_class()?;
        sockopt::set(&self.fd, level, name, &ON)
    }

    /// Shows the traffic class, and with it congestion, of packets that are taken with [`Socket::recv_marked`] from
    /// now on.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn show_traffic_class(&self) -> io::Result<()> {
        let (level, name) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            // Traffic class and flow label together.
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO),
        };
        sockopt::set(&self.fd, level, name, &ON)
    }

    /// Sets the traffic class of packets of which nothing else is said.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        let (level, name) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        sockopt::set(&self.fd, level, name, &c_int::from(class))
    }

    /// [`Socket::recv`] that also says how the packets were marked when they arrived, all of a burst
    /// alike, once [`Socket::show_marks`] was called.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing.
    pub fn recv_marked(&self, buffer: &mut [u8]) -> io::Result<(Received, Marks)> {
        let mut source = Name::EMPTY;
        let mut tidings: Tidings = control::NO_TIDINGS;
        let mut vector =
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut message = empty_message();
        message.msg_name = (&raw mut source.raw).cast();
        message.msg_namelen = source.len;
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = tidings.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Tidings>();
        // SAFETY: everything that the header points to is a local, of plain integers, or `buffer`,
        // with its length (rules 1 and 4).
        let len = unsafe {
            libc::syscall(libc::SYS_recvmsg, self.fd.as_raw_fd(), &raw mut message, RECV_FLAGS)
        };
        let Ok(len) = usize::try_from(len) else {
            return Err(io::Error::last_os_error());
        };
        // What the kernel has not written says nothing, and costs as much to read.
        let told = tidings.get(..message.msg_controllen / size_of::<Message>());
        let (segment, marks) = control::read(told.unwrap_or(&tidings));
        let segment = segment.filter(|&size| size < len);
        let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
        Ok((Received { len, source: source.addr()?, segment, truncated }, marks))
    }

    /// How many routers packets of which nothing else is said may pass.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn usual_hop_limit(&self) -> io::Result<u8> {
        let (level, name) = self.hop_limit_option();
        u8::try_from(sockopt::get(&self.fd, level, name)?).map_err(io::Error::other)
    }

    /// The same from now on; packets to multicast groups are not meant.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is 0.
    pub fn set_usual_hop_limit(&self, hop_limit: u8) -> io::Result<()> {
        let (level, name) = self.hop_limit_option();
        sockopt::set(&self.fd, level, name, &c_int::from(hop_limit))
    }

    const fn hop_limit_option(&self) -> (c_int, c_int) {
        match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        }
    }

    /// Takes the next datagram out of a socket that accepts no bursts: cheaper than
    /// [`Socket::recv`], and blind to where the datagrams of a burst begin.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing.
    #[inline]
    pub fn recv_single(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut source = Name::EMPTY;
        // SAFETY: the buffer, the address and its length are a borrow with its length, and locals
        // (rules 1 and 4).
        let len = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
                RECV_FLAGS | libc::MSG_TRUNC,
                &raw mut source.raw,
                &raw mut source.len,
            )
        };
        let Ok(len) = usize::try_from(len) else {
            return Err(io::Error::last_os_error());
        };
        let truncated = len > buffer.len();
        let len = len.min(buffer.len());
        Ok(Received { len, source: source.addr()?, segment: None, truncated })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where these bytes are, as the kernel wants it: it only reads them.
fn vector_of(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// A header that points nowhere.
#[inline]
const fn empty_message() -> libc::msghdr {
    // SAFETY: the structure is integers and raw pointers, for all of which zero is a value.
    unsafe { mem::zeroed() }
}

/// Makes packets leave with the *don't fragment* bit, whatever has been learnt about the path.
fn never_fragment(fd: &KeptFd, addr: SocketAddr) -> io::Result<()> {
    match addr {
        SocketAddr::V4(_) => {
            sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)
        }
        SocketAddr::V6(_) => {
            sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &ON)?;
            let policy = &libc::IPV6_PMTUDISC_DO;
            sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, policy)
        }
    }
}

/// Asks for a buffer of `bytes`: past the administrator's limit if we may, else up to it.
fn enlarge(fd: &KeptFd, force: c_int, plain: c_int, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
    sockopt::set(fd, libc::SOL_SOCKET, force, &bytes)
        .or_else(|_| sockopt::set(fd, libc::SOL_SOCKET, plain, &bytes))
}

/// The most segments in a burst that every kernel with `UDP_SEGMENT` accepts.
pub const SEGMENTS_MAX: usize = 64;

/// The most bytes in a burst: what fits one IPv4 packet, whose length field counts all headers.
pub const BURST_BYTES_MAX: usize = 65_535 - 20 - 8;

const BUFFER_BYTES: usize = 8 << 20;
const OFF: c_int = 0;
/// Interfaces are numbered from 1 upwards.
const NO_INTERFACE: c_int = c_int::MAX;
const ON: c_int = 1;
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
const RECV_FLAGS: c_int = libc::MSG_DONTWAIT;
