//! TCP connections of the kernel's that are taken out of its hands, and put back (`TCP_REPAIR`, tcp(7)).
//!
//! A socket *in repair* is quiet: it sends nothing, ends nothing when it is closed, and says where its connection is. The
//! switch needs `CAP_NET_ADMIN`; whatever has the socket may do the rest.
//!
//! # Safety
//!
//! Lengths and pointers that are passed to the kernel are those of the same locals, or of a static, and descriptors are
//! lent for the length of the call. Addresses are given back as they came.

use crate::sockopt;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

/// What the kernel knows of a connection that is established.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// The next sequence number to be sent.
    pub next: u32,
    /// The next that is expected of the peer.
    pub expected: u32,
    /// Bytes that the peer takes.
    pub peer_window: u32,
    /// Bytes that the peer was allowed to send.
    pub window: u32,
    /// The largest window that the peer has ever had.
    pub window_max: u32,
    /// Windows count units of two to the power of this many bytes: the peer's, and ours. `None` without scaling.
    pub scales: Option<(u8, u8)>,
    /// The longest payload that the peer takes.
    pub segment: u16,
    /// Selective acknowledgements are understood.
    pub sack: bool,
    /// What our time stamps are, if there are any.
    pub stamp: Option<u32>,
}

/// Takes a socket out of the kernel's hands. The kernel drops all packets for it from then on, by whatever way they come, and
/// counts them: it would acknowledge them, and nothing would read them. The peer sends them again. One that is in repair stays
/// as it is: to say so again would have the kernel forget which queue is filled by hand.
///
/// # Errors
///
/// `EPERM` without the privilege, or if it listens, or its filters are locked.
pub fn begin(socket: impl AsFd) -> io::Result<()> {
    let fd = socket.as_fd();
    if sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR)? == 1 {
        return Ok(());
    }
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &1_i32)?;
    let program = FilterProgram { count: 2, filter: ALL_OUT.as_ptr() };
    // Attaching a filter to a TCP socket takes the privilege, too.
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).inspect_err(|_| {
        let _ = end(fd);
    })
}

/// Puts it back. The peer is asked where it is.
///
/// # Errors
///
/// `EPERM` without the privilege.
pub fn end(socket: impl AsFd) -> io::Result<()> {
    let_in(socket.as_fd());
    sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, &0_i32)
}

/// Whether there is a filter for the packets of a socket (`SO_ATTACH_FILTER`, socket(7)): that of [`begin`], or one of the
/// program's.
#[must_use]
pub fn has_filter(socket: impl AsFd) -> bool {
    filter_of(socket, &mut []).is_none_or(|count| count > 0)
}

/// Removes the filter that [`begin`] has attached: the kernel takes packets again. One of the program's stays.
pub fn let_in(socket: impl AsFd) {
    let mut found = [Filter::default(); 2];
    if filter_of(socket.as_fd(), &mut found) == Some(2) && found == ALL_OUT {
        let _ = sockopt::set(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32);
    }
}

/// How many packets for a socket the kernel has dropped so far, modulo two to the power of 32.
///
/// # Errors
///
/// None but that of a descriptor that is no socket.
pub fn dropped(socket: impl AsFd) -> io::Result<u32> {
    let [.., dropped] = sockopt::get_all::<9>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(dropped.cast_unsigned())
}

/// The smoothed round trip of a connection as the kernel has measured it, in microseconds; 0 if it has not.
///
/// # Errors
///
/// None but that of a descriptor that is no TCP socket.
pub fn round_trip_us(socket: impl AsFd) -> io::Result<u32> {
    // `tcpi_rtt` of `struct tcp_info`.
    let [.., rtt] = sockopt::get_all::<18>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(rtt.cast_unsigned())
}

/// Reads the filter of a socket as far as there is room for all of it, or else none; how many instructions it has. `None` if it
/// has more than there is room for, or is no classic one.
fn filter_of(socket: impl AsFd, room: &mut [Filter]) -> Option<u32> {
    // Of this option the kernel counts instructions, not bytes.
    let mut count = libc::socklen_t::try_from(room.len()).ok()?;
    let (fd, place) = (socket.as_fd().as_raw_fd(), room.as_mut_ptr().cast());
    let name = libc::SO_ATTACH_FILTER; // `SO_GET_FILTER` is the same number.
    // SAFETY: there is room for as many as `count` says, and any bytes are valid instructions.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, place, &raw mut count) };
    (got == 0).then_some(count)
}

/// `struct sock_filter` of `linux/filter.h`: an instruction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
struct Filter {
    code: u16,
    jumps: [u8; 2],
    operand: u32,
}

/// `struct sock_fprog`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FilterProgram {
    count: u16,
    filter: *const Filter,
}

/// Loads a number by which the filter is known, and takes nothing of any packet.
static ALL_OUT: [Filter; 2] = [
    Filter { code: 0x00, jumps: [0; 2], operand: 0x6164_7662 },
    Filter { code: 0x06, jumps: [0; 2], operand: 0 },
];

/// Ends the connection of a socket in repair, of which nothing knows any more where it is; what its peer is to be told, if
/// there was one.
///
/// # Errors
///
/// `EPERM` without the privilege; it is not connected.
pub fn reset(socket: impl AsFd) -> io::Result<Option<Farewell>> {
    let fd = socket.as_fd();
    if sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR)? == 0 {
        return Ok(None);
    }
    let peer = rustix::net::getpeername(fd)?.ok_or(io::ErrorKind::NotConnected)?;
    let [own, peer] = [rustix::net::getsockname(fd)?, peer].map(SocketAddr::try_from);
    let [own, peer] = [own?, peer?].map(plain);
    Name::nowhere().connect(fd)?;
    Ok(Some(Farewell { own, peer }))
}

/// What the peer of a connection is told that is no more.
#[derive(Clone, Copy, Debug)]
pub struct Farewell {
    own: SocketAddr,
    peer: SocketAddr,
}

impl Farewell {
    /// Sends the peer a SYN, which it answers with where it is (RFC 5961 §4), and that the kernel answers with a reset, as
    /// there is no connection: so the packets of this one have to be the kernel's. Nothing tells whether it has arrived; one
    /// that a peer gets which has been reset ends the same way.
    ///
    /// # Errors
    ///
    /// `EPERM` without the privilege, which is `CAP_NET_RAW`; there is no way to the peer.
    pub fn say(&self) -> io::Result<()> {
        let Self { own, peer } = *self;
        let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let (kind, protocol) = (SocketType::RAW, Some(ipproto::TCP));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let raw = rustix::net::socket_with(family, kind, flags, protocol)?;
        rustix::net::bind(&raw, &with_port(own, 0))?;
        rustix::net::sendto(&raw, &syn(own, peer), SendFlags::empty(), &with_port(peer, 0))?;
        Ok(())
    }
}

/// A socket of IPv6 may have a connection of IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

const fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// A SYN as if for a new connection of these names: RFC 9293 §3.1.
fn syn(own: SocketAddr, peer: SocketAddr) -> [u8; SYN_BYTES] {
    let header = |sum: u16| {
        let [a, b] = own.port().to_be_bytes();
        let [c, d] = peer.port().to_be_bytes();
        let [e, f] = sum.to_be_bytes();
        [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, FLAG_SYN, 0, 0, e, f, 0, 0]
    };
    let bytes = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let summed = [bytes(own), bytes(peer), header(0).to_vec()].concat();
    let words = summed.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    // The rest of the pseudo header: the protocol and the length.
    let sum: u32 = words.sum::<u32>() + 6 + 20;
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header(!u16::try_from(folded).unwrap_or(0))
}

/// Where a connection is whose socket is in repair.
///
/// # Errors
///
/// It is not in repair; `NotConnected` if it is not connected, or one end has ended its stream.
pub fn look(socket: impl AsFd) -> io::Result<Snapshot> {
    let fd = socket.as_fd();
    let tcp = |name| sockopt::get(fd, libc::IPPROTO_TCP, name).map(c_int::cast_unsigned);
    let expected = queue_seq(fd, RECEIVE_QUEUE)?;
    let next = queue_seq(fd, SEND_QUEUE)?;
    set(fd, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
    let [_, peer_window, window_max, own, from] =
        sockopt::get_all::<5>(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW)?
            .map(c_int::cast_unsigned);
    let [first, ..] = sockopt::get_all::<4>(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let [state, _, _, _, _, options, scales, _] = info_bytes(fd, first)?;
    if state != ESTABLISHED {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let has = |bit: u8| options & bit != 0;
    Ok(Snapshot {
        next,
        expected,
        peer_window,
        window: own.saturating_sub(expected.wrapping_sub(from)),
        window_max,
        scales: has(WITH_SCALE).then_some((scales & 15, scales >> 4)),
        segment: u16::try_from(tcp(libc::TCP_MAXSEG)?).unwrap_or(u16::MAX),
        sack: has(WITH_SACK),
        stamp: if has(WITH_STAMPS) { Some(tcp(libc::TCP_TIMESTAMP)?) } else { None },
    })
}

/// The first bytes of `TCP_INFO`, of which the first is the state, the sixth says which options there are, and the seventh the scales.
fn info_bytes(socket: impl AsFd, first: c_int) -> io::Result<[u8; 8]> {
    let [_, second, ..] = sockopt::get_all::<4>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    Ok([a, b, c, d, e, f, g, h])
}

fn queue_seq(socket: impl AsFd, queue: c_int) -> io::Result<u32> {
    set(&socket, libc::TCP_REPAIR_QUEUE, queue)?;
    sockopt::get(&socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ).map(c_int::cast_unsigned)
}

fn set(socket: impl AsFd, name: c_int, value: c_int) -> io::Result<()> {
    sockopt::set(socket, libc::IPPROTO_TCP, name, &value)
}

/// The next sequence number that is expected of the peer: what had come by another way before it is in the queue.
///
/// # Errors
///
/// It is not in repair.
pub fn expected(socket: impl AsFd) -> io::Result<u32> {
    queue_seq(socket, RECEIVE_QUEUE)
}

/// What is put into a socket's queues from now on is taken for received.
///
/// # Errors
///
/// It is not in repair.
pub fn receive_by_hand(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)
}

/// What is put into its queues from now on is taken for sent.
///
/// # Errors
///
/// It is not in repair.
pub fn send_by_hand(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)
}

/// Wakes what waits for a socket that has something to read.
///
/// # Errors
///
/// It is no socket.
pub fn wake_readers(socket: impl AsFd) -> io::Result<()> {
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1_i32)
}

/// Whether the calling thread may bind this address, as [`set_up`] does: ports may be privileged
/// (`ip_unprivileged_port_start`, ip(7)).
#[must_use]
pub fn may_bind(own: SocketAddr) -> bool {
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    // That it is in use is said after that.
    socket.is_ok_and(|socket| rustix::net::bind(&socket, &own) != Err(rustix::io::Errno::ACCESS))
}

/// Sets up a connection as `snapshot` has it, on a socket in repair, whose connection there was is forgotten: the
/// queues are empty, and begin there. It stays in repair.
///
/// # Errors
///
/// What the kernel says against it: there is no connection then.
pub fn set_up(socket: impl AsFd, snapshot: &Snapshot) -> io::Result<()> {
    let fd = socket.as_fd();
    let (own, peer) = (Name::of(fd, false)?, Name::of(fd, true)?);
    set(fd, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
    Name::nowhere().connect(fd)?;
    // It is said that there was one.
    let _ = sockopt::get(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    for (queue, seq) in [(RECEIVE_QUEUE, snapshot.expected), (SEND_QUEUE, snapshot.next)] {
        set(fd, libc::TCP_REPAIR_QUEUE, queue)?;
        set(fd, libc::TCP_QUEUE_SEQ, seq.cast_signed())?;
    }
    set(fd, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
    // What was bound by the program stays so.
    match own.bind(fd) {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // The kernel computes the length of segments here, of 536 bytes if it knows none. The option below says what the peer
    // takes, and computes nothing.
    let segment = snapshot.segment.min(USER_SEGMENT_MAX);
    let _ = set(fd, libc::TCP_MAXSEG, segment.into());
    peer.connect(fd)?;
    let _ = set(fd, libc::TCP_MAXSEG, 0);
    let mut options = vec![[OPTION_MSS, u32::from(snapshot.segment)]];
    if let Some((peers, ours)) = snapshot.scales {
        options.push([OPTION_SCALE, u32::from(peers) | u32::from(ours) << 16]);
    }
    if snapshot.sack {
        options.push([OPTION_SACK, 0]);
    }
    if let Some(stamp) = snapshot.stamp {
        options.push([OPTION_STAMPS, 0]);
        set(fd, libc::TCP_TIMESTAMP, stamp.cast_signed())?;
    }
    for option in options {
        sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &option)?;
    }
    Ok(())
}

/// Says how much both ends take, after the queues have been filled: the numbers of `snapshot` count from there.
///
/// # Errors
///
/// The kernel does not believe it: it asks the peer then.
pub fn set_windows(socket: impl AsFd, snapshot: &Snapshot) -> io::Result<()> {
    let window = [
        snapshot.expected.wrapping_sub(1),
        snapshot.peer_window,
        snapshot.window_max.max(snapshot.peer_window),
        snapshot.window,
        snapshot.expected,
    ];
    sockopt::set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window)
}

/// A name of a socket, as the kernel has it.
struct Name {
    bytes: [u8; NAME_BYTES],
    len: libc::socklen_t,
}

impl Name {
    fn nowhere() -> Self {
        Self { bytes: [0; NAME_BYTES], len: 16 }
    }

    fn of(socket: impl AsFd, of_peer: bool) -> io::Result<Self> {
        let mut name = Self::nowhere();
        name.len = libc::socklen_t::try_from(NAME_BYTES).map_err(io::Error::other)?;
        let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
        let (fd, at) = (socket.as_fd().as_raw_fd(), name.bytes.as_mut_ptr());
        // SAFETY: a local of that length, and an open descriptor. A library may stand in front of the function.
        let done = unsafe { libc::syscall(call, fd, at, &raw mut name.len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(name) }
    }

    fn bind(&self, socket: impl AsFd) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: a local of that length, and an open descriptor. The system call: a library may stand in front of it.
        let done = unsafe { libc::syscall(libc::SYS_bind, fd, self.bytes.as_ptr(), self.len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn connect(&self, socket: impl AsFd) -> io::Result<()> {
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: as above.
        let done = unsafe { libc::syscall(libc::SYS_connect, fd, self.bytes.as_ptr(), self.len) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// `sockaddr_in6` is the longest.
const NAME_BYTES: usize = 28;
const SYN_BYTES: usize = 20;
const FLAG_SYN: u8 = 2;
const NO_QUEUE: c_int = 0;
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;
/// The most that `TCP_MAXSEG` takes.
const USER_SEGMENT_MAX: u16 = 32_767;
/// One of `tcpi_state`.
const ESTABLISHED: u8 = 1;
/// Bits of `tcpi_options`.
const WITH_STAMPS: u8 = 1;
const WITH_SACK: u8 = 2;
const WITH_SCALE: u8 = 4;
/// Kinds of options, as segments have them.
const OPTION_MSS: u32 = 2;
const OPTION_SCALE: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_STAMPS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// Goal: nothing reaches a socket in repair, all of it comes later, and a filter of the program's stays.
    #[test]
    fn what_comes_to_a_socket_in_repair_comes_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        assert!(!has_filter(&near));
        if begin(&near).is_err() {
            return println!("skipped: no privilege");
        }
        assert!(has_filter(&near));
        let (before, at) = (dropped(&near).unwrap(), expected(&near).unwrap());
        far.write_all(b"late").unwrap();
        let since = std::time::Instant::now();
        while dropped(&near).unwrap() == before {
            assert!(since.elapsed().as_secs() < 20, "nothing is dropped");
            std::thread::yield_now();
        }
        assert_eq!(expected(&near).unwrap(), at);
        end(&near).unwrap();
        assert!(!has_filter(&near));
        let mut room = [0; 4];
        near.read_exact(&mut room).unwrap();
        assert_eq!(&room, b"late");

        begin(&near).unwrap();
        let all_in = [Filter { code: 0x06, operand: u32::MAX, ..Filter::default() }; 2];
        let program = FilterProgram { count: 2, filter: all_in.as_ptr() };
        sockopt::set(&near, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
        begin(&near).unwrap();
        end(&near).unwrap();
        assert!(has_filter(&near));
    }

    /// Goal: a connection that is taken out of the kernel's hands and put back goes on: what was put into its queues
    /// arrives, and what comes after it, both ways.
    #[test]
    fn a_connection_goes_on_after_it_was_put_back() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut near, _) = listener.accept().unwrap();
            far.write_all(b"one").unwrap();
            let mut room = [0; 3];
            near.read_exact(&mut room).unwrap();
            if begin(&near).is_err() {
                return println!("skipped: no privilege");
            }
            let found = look(&near).unwrap();
            assert_eq!(expected(&near).unwrap(), found.expected);
            assert!(found.window > 0 && found.peer_window > 0 && found.segment > 500, "{found:?}");
            let segment = |socket: &TcpStream| {
                sockopt::get(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap()
            };
            // What has been sent and not arrived, and what has come and not been read.
            let put = Snapshot { expected: found.expected.wrapping_sub(3), ..found };
            set_up(&near, &put).unwrap();
            receive_by_hand(&near).unwrap();
            near.write_all(b"one").unwrap();
            send_by_hand(&near).unwrap();
            near.write_all(b"two").unwrap();
            set_windows(&near, &found).unwrap();
            end(&near).unwrap();
            // Without time stamps, and as far as the kernel lets one say it.
            let whole = i32::from(found.segment.min(USER_SEGMENT_MAX));
            assert!((whole - 12..=whole).contains(&segment(&near)), "{} {whole}", segment(&near));
            near.read_exact(&mut room).unwrap();
            assert_eq!(&room, b"one");
            far.read_exact(&mut room).unwrap();
            assert_eq!(&room, b"two");
            far.write_all(b"six").unwrap();
            near.read_exact(&mut room).unwrap();
            near.write_all(&room).unwrap();
            drop(near);
            let mut rest = Vec::new();
            far.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"six");
        }
    }

    /// Goal: to take a socket that is in repair out of the kernel's hands once more leaves it as it is: what is put into its
    /// queues is taken for received, as before.
    #[test]
    fn what_is_in_repair_stays_as_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        if begin(&near).is_err() {
            return println!("skipped: no privilege");
        }
        receive_by_hand(&near).unwrap();
        begin(&near).unwrap();
        near.write_all(b"x").unwrap();
        assert_eq!(near.peek(&mut [0]).unwrap(), 1);
    }

    /// Goal: a connection one of whose streams has ended is not taken for one that is established.
    #[test]
    fn a_connection_that_ends_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
        if begin(&near).is_err() {
            return println!("skipped: no privilege");
        }
        let said = look(&near).map_err(|error| error.kind());
        assert_eq!(said, Err(io::ErrorKind::NotConnected));
        end(&near).unwrap();
    }

    /// Goal: a peer learns of the end of a connection, wherever that was by then; one that is the kernel's stays.
    #[test]
    fn a_peer_that_is_silent_has_a_reset() {
        let any = TcpListener::bind("[::]:0").unwrap();
        let mapped = SocketAddr::new([127, 0, 0, 1].into(), any.local_addr().unwrap().port());
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0").unwrap();
        let at = |listener: &TcpListener| listener.local_addr().unwrap();
        let all = [(&any, mapped), (&plain, at(&plain)), (&six, at(&six))];
        for ((listener, to), sent) in all
            .into_iter()
            .flat_map(|one| [0, 1, 100_000, u32::MAX, 1 << 31].map(|sent| (one, sent)))
        {
            let mut far = TcpStream::connect(to).unwrap();
            let (near, _) = listener.accept().unwrap();
            if begin(&near).is_err() {
                return println!("skipped: no privilege");
            }
            // As if another implementation had sent so much meanwhile.
            let found = look(&near).unwrap();
            let old = Snapshot { next: found.next.wrapping_sub(sent), ..found };
            set_up(&near, &old).unwrap();
            reset(&near).unwrap().unwrap().say().unwrap();
            far.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            let said = far.read(&mut [0; 9]).map_err(|error| error.kind());
            assert_eq!(said, Err(io::ErrorKind::ConnectionReset), "{to} {sent}");
        }
        let mut far = TcpStream::connect(at(&plain)).unwrap();
        let (mut near, _) = plain.accept().unwrap();
        assert!(reset(&near).unwrap().is_none());
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
    }
}
