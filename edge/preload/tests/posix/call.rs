//! The C library's socket functions as tests want them: numbers or the name of an error.
//!
//! # Safety
//!
//! Every pointer passed on is to a local or to a borrowed slice, of the type and length that the
//! function wants.

#![expect(clippy::as_conversions, reason = "C integers meet us here")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "a test may fork and exit in one go")]

use std::ffi::{c_int, c_void};
use std::mem::zeroed;

/// A number, or the name of an error.
pub(crate) type Answer = Result<i64, String>;

fn answer(value: i64) -> Answer {
    if value >= 0 { Ok(value) } else { Err(name(std::io::Error::last_os_error())) }
}

fn name(error: std::io::Error) -> String {
    let number = error.raw_os_error().unwrap_or(0);
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBADF, "EBADF"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EISCONN, "EISCONN"),
        (libc::ENOENT, "ENOENT"),
        (libc::EFAULT, "EFAULT"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ENOTSOCK, "ENOTSOCK"),
        (libc::EPIPE, "EPIPE"),
        (libc::EDESTADDRREQ, "EDESTADDRREQ"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::ELOOP, "ELOOP"),
        (libc::EPERM, "EPERM"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EADDRINUSE, "EADDRINUSE"),
        (libc::ENOPROTOOPT, "ENOPROTOOPT"),
    ];
    let found = known.iter().find(|(known, _)| *known == number);
    found.map_or_else(|| format!("E{number}"), |(_, name)| (*name).to_owned())
}

pub(crate) fn socket(domain: c_int, kind: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::socket(domain, kind, 0) }
}

/// Long enough for the kernel to have carried what was sent, a FIN or a reset among it, across the loopback
/// device.
pub(crate) fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(30));
    // A busy machine may leave it in a queue for longer. Each processor has its own, and keeps to its order.
    // SAFETY: zeros are a legal set.
    let mut allowed: libc::cpu_set_t = unsafe { zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: room for an answer.
    unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) };
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: within the set.
        if unsafe { libc::CPU_ISSET(cpu, &allowed) } {
            // SAFETY: zeros are a legal set.
            let mut only: libc::cpu_set_t = unsafe { zeroed() };
            // SAFETY: within the set, which is a local.
            unsafe {
                libc::CPU_SET(cpu, &mut only);
                libc::sched_setaffinity(0, size, &raw const only);
            }
            carry();
        }
    }
    // SAFETY: a local.
    unsafe { libc::sched_setaffinity(0, size, &raw const allowed) };
}

/// Sends a datagram by loopback and waits for it, between sockets that only the kernel knows of.
fn carry() {
    let (from, to) = (unseen_socket(), unseen_socket());
    let mut address = any(libc::AF_INET, [127, 0, 0, 1], 0);
    let mut len = SOCKADDR_LEN;
    let (at, room) = (&raw mut address, &raw mut len);
    let mut byte = 0_u8;
    // SAFETY: locals, of the types and lengths that the kernel wants.
    let got = unsafe {
        libc::syscall(libc::SYS_bind, to, at, len);
        libc::syscall(libc::SYS_getsockname, to, at, room);
        libc::syscall(libc::SYS_sendto, from, &raw const byte, 1, 0, at, len);
        loop {
            let null = std::ptr::null_mut::<c_void>();
            let got = libc::syscall(libc::SYS_recvfrom, to, &raw mut byte, 1, 0, null, null);
            if got >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break got;
            }
        }
    };
    assert_eq!(got, 1);
    // SAFETY: no pointers.
    unsafe {
        libc::syscall(libc::SYS_close, from);
        libc::syscall(libc::SYS_close, to);
    }
}

/// A UDP socket that comes from the kernel by number, so that no library knows of it.
pub(crate) fn unseen_socket() -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0) };
    c_int::try_from(fd).unwrap()
}

fn loopback(domain: c_int, port: u16) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: zeros are a legal address; the casts are to structures that fit into the storage.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        if domain == libc::AF_INET {
            let v4 = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
            v4.sin_family = libc::AF_INET as u16;
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
            (storage, size_of::<libc::sockaddr_in>() as u32)
        } else {
            let v6 = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_port = port.to_be();
            v6.sin6_addr.s6_addr = std::net::Ipv6Addr::LOCALHOST.octets();
            (storage, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

pub(crate) fn bind(fd: c_int, domain: c_int, port: u16) -> Answer {
    let (addr, len) = loopback(domain, port);
    // SAFETY: a local address.
    answer(unsafe { libc::bind(fd, (&raw const addr).cast(), len) }.into())
}

fn any(family: c_int, address: [u8; 4], port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: family as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes(address).to_be() },
        sin_zero: [0; 8],
    }
}

const SOCKADDR_LEN: u32 = size_of::<libc::sockaddr_in>() as u32;

/// Binds to every address.
pub(crate) fn bind_any(fd: c_int, port: u16) -> Answer {
    let addr = any(libc::AF_INET, [0; 4], port);
    // SAFETY: a local address.
    answer(unsafe { libc::bind(fd, (&raw const addr).cast(), SOCKADDR_LEN) }.into())
}

/// Binds to an IPv4 address.
pub(crate) fn bind_to(fd: c_int, address: [u8; 4], port: u16) -> Answer {
    let addr = any(libc::AF_INET, address, port);
    // SAFETY: a local address.
    answer(unsafe { libc::bind(fd, (&raw const addr).cast(), SOCKADDR_LEN) }.into())
}

/// Connects to an IPv4 address.
pub(crate) fn connect_to(fd: c_int, address: [u8; 4], port: u16) -> Answer {
    let addr = any(libc::AF_INET, address, port);
    // SAFETY: a local address.
    answer(unsafe { libc::connect(fd, (&raw const addr).cast(), SOCKADDR_LEN) }.into())
}

/// Sends to an IPv4 address what is not there.
pub(crate) fn sendto_nothing(fd: c_int, group: [u8; 4], port: u16) -> Answer {
    let addr = any(libc::AF_INET, group, port);
    let (base, to) = (std::ptr::without_provenance(64), (&raw const addr).cast());
    // SAFETY: the kernel, and a library in front of it, answers that the address is bad.
    answer(unsafe { libc::sendto(fd, base, 64, 0, to, SOCKADDR_LEN) } as i64)
}

/// Undoes a `connect`.
pub(crate) fn unconnect(fd: c_int) -> Answer {
    let addr = any(libc::AF_UNSPEC, [0; 4], 0);
    // SAFETY: a local address.
    answer(unsafe { libc::connect(fd, (&raw const addr).cast(), SOCKADDR_LEN) }.into())
}

/// Sends to a port of the loopback address.
pub(crate) fn sendto(fd: c_int, bytes: &[u8], domain: c_int, port: u16) -> Answer {
    let (addr, len) = loopback(domain, port);
    let (base, count) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: a borrowed slice and a local address.
    answer(unsafe { libc::sendto(fd, base, count, 0, (&raw const addr).cast(), len) } as i64)
}

/// What each call that takes an address says to one of this host, if it is that of IPv4, as IPv6 writes it or as itself:
/// `sendto`, `sendmsg`, `sendmmsg`, and `connect`.
pub(crate) fn to_v4(fd: c_int, is_mapped: bool, port: u16) -> [Answer; 4] {
    let (mut addr, len) = loopback(if is_mapped { libc::AF_INET6 } else { libc::AF_INET }, port);
    if is_mapped {
        let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        // SAFETY: the storage holds this structure.
        unsafe { (*(&raw mut addr).cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr = mapped };
    }
    let mut part = libc::iovec { iov_base: b"x".as_ptr().cast_mut().cast(), iov_len: 1 };
    let to = &raw mut addr;
    // SAFETY: zeros are a legal header; it, and the calls, get locals.
    unsafe {
        let mut message: libc::mmsghdr = zeroed();
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
        message.msg_hdr.msg_name = to.cast();
        message.msg_hdr.msg_namelen = len;
        [
            answer(libc::sendto(fd, part.iov_base, 1, 0, to.cast(), len) as i64),
            answer(libc::sendmsg(fd, &raw const message.msg_hdr, 0) as i64),
            answer(libc::sendmmsg(fd, &raw mut message, 1, 0).into()),
            answer(libc::connect(fd, to.cast(), len).into()),
        ]
    }
}

/// Sends to an IPv4 address.
pub(crate) fn sendto_group(fd: c_int, bytes: &[u8], group: [u8; 4], port: u16) -> Answer {
    let addr = any(libc::AF_INET, group, port);
    let (base, count, to) = (bytes.as_ptr().cast(), bytes.len(), (&raw const addr).cast());
    // SAFETY: a borrowed slice and a local address.
    answer(unsafe { libc::sendto(fd, base, count, 0, to, SOCKADDR_LEN) } as i64)
}

/// What came, and the port that it came from.
pub(crate) fn recvfrom(fd: c_int, len: usize) -> Result<(String, u16), String> {
    let mut buffer = vec![b'?'; len];
    // SAFETY: a local buffer and a local address; both kinds have the port in the same place.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut from_len = size_of::<libc::sockaddr_storage>() as u32;
        let from = (&raw mut storage).cast();
        let got = libc::recvfrom(fd, buffer.as_mut_ptr().cast(), len, 0, from, &raw mut from_len);
        let port = u16::from_be((*(&raw const storage).cast::<libc::sockaddr_in>()).sin_port);
        Ok((text(&buffer, got as i64)?, port))
    }
}

pub(crate) fn listen(fd: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::listen(fd, 128) }.into())
}

pub(crate) fn connect(fd: c_int, domain: c_int, port: u16) -> Answer {
    let (addr, len) = loopback(domain, port);
    // SAFETY: a local address.
    answer(unsafe { libc::connect(fd, (&raw const addr).cast(), len) }.into())
}

pub(crate) fn accept(fd: c_int, flags: c_int) -> Answer {
    let null = std::ptr::null_mut();
    // SAFETY: null pointers are allowed.
    answer(unsafe { libc::accept4(fd, null, null.cast(), flags) }.into())
}

pub(crate) fn port(fd: c_int) -> u16 {
    // SAFETY: zeros are a legal address, and the kernel fills at most its length; both kinds have
    // the port in the same place.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as u32;
        libc::getsockname(fd, (&raw mut storage).cast(), &raw mut len);
        u16::from_be((*(&raw const storage).cast::<libc::sockaddr_in>()).sin_port)
    }
}

pub(crate) fn peer_port(fd: c_int) -> Result<u16, String> {
    // SAFETY: as in `port`.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as u32;
        answer(libc::getpeername(fd, (&raw mut storage).cast(), &raw mut len).into())?;
        Ok(u16::from_be((*(&raw const storage).cast::<libc::sockaddr_in>()).sin_port))
    }
}

pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Answer {
    // SAFETY: a borrowed slice.
    answer(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) } as i64)
}

pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Answer {
    // SAFETY: a borrowed slice.
    answer(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } as i64)
}

/// What was received as a text, or the name of an error.
pub(crate) type Text = Result<String, String>;

fn text(buffer: &[u8], got: i64) -> Text {
    let got = answer(got)?;
    Ok(String::from_utf8_lossy(buffer.get(..got as usize).unwrap_or(&[])).into_owned())
}

pub(crate) fn recv(fd: c_int, len: usize, flags: c_int) -> Text {
    let mut buffer = vec![b'?'; len];
    // SAFETY: a local buffer.
    let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), len, flags) };
    text(&buffer, got as i64)
}

pub(crate) fn read(fd: c_int, len: usize) -> Text {
    let mut buffer = vec![b'?'; len];
    // SAFETY: a local buffer.
    let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), len) };
    text(&buffer, got as i64)
}

/// Receives into a buffer, and returns how many bytes came.
pub(crate) fn recv_into(fd: c_int, buffer: &mut [u8], flags: c_int) -> Answer {
    // SAFETY: a borrowed slice.
    answer(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) } as i64)
}

/// Reads into a buffer, from whatever it is.
pub(crate) fn read_into(fd: c_int, buffer: &mut [u8]) -> Answer {
    // SAFETY: a borrowed buffer.
    answer(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } as i64)
}

/// What the kernel says of an option to programs with so much room, from none to more than it takes, and what of the
/// room is as it was.
pub(crate) fn option_in_rooms(fd: c_int, level: c_int, name: c_int) -> Vec<(Answer, u32, [u8; 8])> {
    let rooms = 0..8;
    rooms
        .map(|room| {
            let (mut value, mut len) = ([0xaa_u8; 8], room);
            // SAFETY: a local buffer, which is longer than is said.
            let done = unsafe {
                libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len)
            };
            (answer(done.into()), len, value)
        })
        .collect()
}

/// Calls with lengths of which some are none, in parts and in messages, before anything has come and after.
pub(crate) fn odd_lengths(from: c_int, to: c_int) -> Vec<Answer> {
    let mut buffer = [0_u8; 16];
    let part =
        |len: usize| libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: len };
    let (huge, mut some) = ([part(usize::MAX), part(4)], [part(4), part(0)]);
    // SAFETY: all zeros is a legal value of these structures.
    let mut messages: [libc::mmsghdr; 2] = unsafe { zeroed() };
    for message in &mut messages {
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (some.as_mut_ptr(), 2);
    }
    let mut never = libc::timespec { tv_sec: -1, tv_nsec: 0 };
    let (now, first) = (libc::MSG_DONTWAIT, libc::MSG_WAITFORONE);
    let mut answers = Vec::new();
    let mut see = |value: i64| answers.push(answer(value));
    // SAFETY: local buffers and headers; the kernel refuses what is longer than they are.
    unsafe {
        see(libc::recv(to, buffer.as_mut_ptr().cast(), 0, now) as i64);
        see(libc::readv(to, huge.as_ptr(), 2) as i64);
        see(libc::writev(from, huge.as_ptr(), 2) as i64);
        see(libc::recvmmsg(to, messages.as_mut_ptr(), 2, now, &raw mut never).into());
        see(libc::recvmmsg(to, messages.as_mut_ptr(), 2, now, std::ptr::null_mut()).into());
        see(libc::send(from, c"12345678".as_ptr().cast(), 8, 0) as i64);
        settle();
        see(libc::recv(to, buffer.as_mut_ptr().cast(), 0, now) as i64);
        let header = &raw mut messages[0].msg_hdr;
        see(libc::recvmsg(to, header, libc::MSG_CMSG_CLOEXEC) as i64);
        see(messages[0].msg_hdr.msg_flags.into());
        see(libc::recvmmsg(to, messages.as_mut_ptr(), 2, first, std::ptr::null_mut()).into());
        see(libc::recvmsg(to, header, now) as i64);
    }
    answers
}

pub(crate) fn readv(fd: c_int, lens: &[usize]) -> Result<Vec<String>, String> {
    let mut buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![b'?'; *len]).collect();
    let parts: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
        .collect();
    // SAFETY: local buffers.
    let got = answer(unsafe { libc::readv(fd, parts.as_ptr(), parts.len() as c_int) } as i64)?;
    let mut left = got as usize;
    Ok(buffers
        .iter()
        .map(|b| {
            let count = left.min(b.len());
            left -= count;
            String::from_utf8_lossy(&b[..count]).into_owned()
        })
        .collect())
}

pub(crate) fn writev(fd: c_int, texts: &[&str]) -> Answer {
    let parts: Vec<libc::iovec> = texts
        .iter()
        .map(|t| libc::iovec { iov_base: t.as_ptr().cast_mut().cast(), iov_len: t.len() })
        .collect();
    // SAFETY: borrowed slices.
    answer(unsafe { libc::writev(fd, parts.as_ptr(), parts.len() as c_int) } as i64)
}

/// Sends a text, and perhaps a descriptor with it.
pub(crate) fn sendmsg(fd: c_int, text: &str, passed: Option<c_int>) -> Answer {
    send_beside(fd, text, passed.map(|passed| (libc::SCM_RIGHTS, passed)))
}

/// The capabilities of this thread: a header and the sets, of two words each.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Rights([[u32; 3]; 2]);

const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];

/// Takes from this thread what it may do, until that is given back.
pub(crate) fn without_rights() -> Rights {
    let mut rights = Rights([[0; 3]; 2]);
    let mut header = CAPABILITIES;
    // SAFETY: a header and room for the sets of its version, which are locals.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut rights) };
    assert_eq!(got, 0);
    with_rights(Rights(rights.0.map(|[_, permitted, inherited]| [0, permitted, inherited])));
    rights
}

pub(crate) fn with_rights(rights: Rights) {
    let header = CAPABILITIES;
    // SAFETY: a header and the sets of its version, which are locals.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const rights) };
    assert_eq!(set, 0);
}

/// Sends a text, and perhaps control data with it: of what kind, and a number.
pub(crate) fn send_beside(fd: c_int, text: &str, beside: Option<(c_int, c_int)>) -> Answer {
    let mut part = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    let mut control = [0_u64; 8];
    // SAFETY: a header of locals; the control buffer is large and aligned enough for one number.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some((kind, number)) = beside {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(number);
        }
        answer(libc::sendmsg(fd, &raw const message, 0) as i64)
    }
}

/// What one message has brought.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) text: String,
    pub(crate) flags: c_int,
    pub(crate) name_len: u32,
    pub(crate) passed: Option<c_int>,
}

pub(crate) fn recvmsg(fd: c_int, len: usize, flags: c_int) -> Result<Message, String> {
    let mut buffer = vec![b'?'; len];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
    let mut control = [0_u64; 8];
    // SAFETY: a header of locals.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut message: libc::msghdr = zeroed();
        message.msg_name = (&raw mut storage).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 64;
        let got = libc::recvmsg(fd, &raw mut message, flags) as i64;
        let text = text(&buffer, got)?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let passed =
            (!header.is_null()).then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned());
        Ok(Message { text, flags: message.msg_flags, name_len: message.msg_namelen, passed })
    }
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::shutdown(fd, how) }.into())
}

pub(crate) fn close(fd: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::close(fd) }.into())
}

pub(crate) fn dup(fd: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::dup(fd) }.into())
}

pub(crate) fn dup2(old: c_int, new: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::dup2(old, new) }.into())
}

pub(crate) fn dup3(old: c_int, new: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::dup3(old, new, libc::O_CLOEXEC) }.into())
}

pub(crate) fn close_range(first: c_int, last: c_int) -> Answer {
    // SAFETY: no pointers.
    answer(unsafe { libc::close_range(first as u32, last as u32, 0) }.into())
}

pub(crate) fn fcntl(fd: c_int, command: c_int, value: c_int) -> Answer {
    // SAFETY: these commands take an integer.
    answer(unsafe { libc::fcntl(fd, command, value) }.into())
}

pub(crate) fn set_nonblocking(fd: c_int, on: bool) {
    let flags = fcntl(fd, libc::F_GETFL, 0).unwrap() as c_int;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, flags).unwrap();
}

/// `ioctl` that reads or writes one integer.
pub(crate) fn ioctl(fd: c_int, request: libc::c_ulong, mut value: c_int) -> Answer {
    // SAFETY: a local integer.
    answer(unsafe { libc::ioctl(fd, request, &raw mut value) }.into())?;
    Ok(value.into())
}

pub(crate) fn set_option<T>(fd: c_int, level: c_int, name: c_int, value: T) -> Answer {
    let len = size_of::<T>() as u32;
    // SAFETY: a local value.
    answer(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) }.into())
}

pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Answer {
    let mut value: c_int = 0;
    let mut len = 4_u32;
    let at = (&raw mut value).cast::<c_void>();
    // SAFETY: a local integer.
    answer(unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) }.into())?;
    Ok(value.into())
}

/// Has the kernel drop whatever comes to a socket, or no longer, so that no library hears of that.
pub(crate) fn drop_all(fd: c_int, on: bool) {
    let mut nothing = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    let name = if on { libc::SO_ATTACH_FILTER } else { libc::SO_DETACH_FILTER };
    let (level, at, len) = (libc::SOL_SOCKET, &raw const program, size_of_val(&program));
    // SAFETY: a local, of the length that is said, whose only instruction is a local too.
    let done = unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, at, len) };
    assert_eq!(done, 0);
}

/// A filter's instruction that ends it with a constant: how many bytes are let through.
const RETURN: u16 = 6;

/// The events of each descriptor, in order, or the name of an error.
pub(crate) fn poll(fds: &[(c_int, i16)], limit_ms: c_int) -> Result<Vec<i16>, String> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 })
        .collect();
    // SAFETY: a local array.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, limit_ms) };
    answer(count.into())?;
    let ready = polled.iter().filter(|fd| fd.revents != 0).count();
    assert_eq!(ready, count as usize, "the count is that of what is ready");
    Ok(polled.iter().map(|fd| fd.revents).collect())
}

/// Which of the descriptors are readable, and which are writable.
pub(crate) fn select(
    read: &[c_int],
    write: &[c_int],
    limit_ms: i64,
) -> Result<(Vec<c_int>, Vec<c_int>), String> {
    select_all([read, write, &[]], limit_ms).map(|[read, write, _]| (read, write))
}

/// The same, and which have something urgent.
pub(crate) fn select_all(fds: [&[c_int]; 3], limit_ms: i64) -> Result<[Vec<c_int>; 3], String> {
    // SAFETY: zeros are an empty set; all are locals.
    unsafe {
        let mut sets: [libc::fd_set; 3] = zeroed();
        for (set, fds) in sets.iter_mut().zip(fds) {
            for fd in fds {
                libc::FD_SET(*fd, set);
            }
        }
        let highest = fds.concat().into_iter().max().unwrap() + 1;
        let mut limit = libc::timeval { tv_sec: limit_ms / 1000, tv_usec: limit_ms % 1000 * 1000 };
        let [r, w, e] = sets.each_mut().map(std::ptr::from_mut);
        answer(libc::select(highest, r, w, e, &raw mut limit).into())?;
        let pick = |at: usize| {
            fds[at].iter().copied().filter(|fd| libc::FD_ISSET(*fd, &raw const sets[at])).collect()
        };
        Ok([0, 1, 2].map(pick))
    }
}

/// `select` for bytes, without waiting, on a set that ends with its page; asks about `count` numbers.
pub(crate) fn select_far(fd: c_int, count: c_int) -> (c_int, bool) {
    let (page, none) = (4096, std::ptr::null_mut());
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: fresh pages, of which the second is taken away; the set is in the first, and has room for `fd`.
    unsafe {
        let at = libc::mmap(none, 2 * page, access, flags, -1, 0);
        libc::munmap(at.wrapping_byte_add(page), page);
        let set = at.wrapping_byte_add(page - size_of::<libc::fd_set>()).cast::<libc::fd_set>();
        libc::FD_SET(fd, set);
        let mut none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let (null, limit) = (std::ptr::null_mut(), &raw mut none);
        let found = libc::select(count, set, null, null, limit);
        let is_set = libc::FD_ISSET(fd, set);
        libc::munmap(at, page);
        (found, is_set)
    }
}

/// Writes and reads at the position where the descriptor is.
pub(crate) fn at_no_position(from: c_int, to: c_int) -> (Answer, Answer) {
    let mut bytes = *b"at";
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 2 };
    // SAFETY: a local array.
    let wrote = answer(unsafe { libc::pwritev2(from, &raw const part, 1, -1, 0) } as i64);
    settle();
    // SAFETY: a local array.
    let read = answer(unsafe { libc::preadv2(to, &raw const part, 1, -1, 0) } as i64);
    (wrote, read)
}

/// A connection's state as `TCP_INFO` has it, the two that wait for the peer to end taken for one.
pub(crate) fn tcp_state(fd: c_int) -> u8 {
    let (mut info, mut len) = ([0_u8; 8], 8);
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: locals, with their length.
    unsafe { libc::getsockopt(fd, level, name, info.as_mut_ptr().cast(), &raw mut len) };
    if info[0] == 4 { 5 } else { info[0] }
}

pub(crate) fn epoll_create() -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

pub(crate) fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> Answer {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: a local event.
    answer(unsafe { libc::epoll_ctl(epfd, op, fd, &raw mut event) }.into())
}

/// Data and events, in the order of the data.
pub(crate) fn epoll_wait(epfd: c_int, limit_ms: c_int) -> Result<Vec<(u64, u32)>, String> {
    // SAFETY: zeros are legal events; a local array.
    let mut events: [libc::epoll_event; 16] = unsafe { zeroed() };
    // SAFETY: a local array of this length.
    let count = unsafe { libc::epoll_wait(epfd, events.as_mut_ptr(), 16, limit_ms) };
    let count = answer(count.into())? as usize;
    let mut found: Vec<(u64, u32)> =
        events[..count].iter().map(|event| (event.u64, event.events)).collect();
    found.sort_unstable();
    Ok(found)
}

/// Waits for at most `most` events, into memory that ends after `room` of them. Returns the answer, and
/// the data of the events.
pub(crate) fn epoll_wait_in(epfd: c_int, room: usize, most: c_int) -> (Answer, Vec<u64>) {
    const PAGE: usize = 4096;
    let bytes = room * size_of::<libc::epoll_event>();
    let (protection, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of two pages, the second of which may not be touched from here on.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, kind, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        libc::mprotect(base.wrapping_byte_add(PAGE), PAGE, libc::PROT_NONE);
        let events = base.wrapping_byte_add(PAGE - bytes).cast::<libc::epoll_event>();
        let found = answer(libc::epoll_wait(epfd, events, most, 10_000).into());
        let count = found.as_ref().map_or(0, |count| *count as usize);
        let data = (0..count).map(|at| events.wrapping_add(at).read_unaligned().u64).collect();
        libc::munmap(base, 2 * PAGE);
        (found, data)
    }
}

/// Two connected sockets of the Unix kind.
pub(crate) fn socketpair() -> (c_int, c_int) {
    let mut pair = [0; 2];
    // SAFETY: a local array of two.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) };
    assert_eq!(made, 0);
    (pair[0], pair[1])
}

/// The two ends of a pipe: to read from, to write to.
pub(crate) fn pipe() -> (c_int, c_int) {
    let mut pair = [0; 2];
    // SAFETY: a local array of two.
    assert_eq!(unsafe { libc::pipe(pair.as_mut_ptr()) }, 0);
    (pair[0], pair[1])
}

pub(crate) fn eventfd() -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::eventfd(0, 0) }
}

/// Runs `child` in a child of this process, which then ends without further ado.
pub(crate) fn fork(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child does what a single thread may do, and ends by `_exit`.
    unsafe {
        match libc::fork() {
            0 => {
                child();
                libc::_exit(0)
            }
            pid => pid,
        }
    }
}

/// Like [`fork`], by way of a function of the C library that forks within.
pub(crate) fn forkpty(child: impl FnOnce()) -> libc::pid_t {
    let null = std::ptr::null_mut();
    let mut terminal = 0;
    // SAFETY: a local integer and null pointers; the child ends by `_exit`.
    unsafe {
        match libc::forkpty(&raw mut terminal, null, null.cast(), null.cast()) {
            0 => {
                child();
                libc::_exit(0)
            }
            pid => {
                if pid > 0 {
                    libc::close(terminal);
                }
                pid
            }
        }
    }
}

/// Waits for a child, and returns how it ended.
pub(crate) fn wait(pid: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: a local integer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

pub(crate) fn kill(pid: libc::pid_t) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

extern "C" fn nothing(_: c_int) {}

/// Gives a signal a handler that does nothing.
pub(crate) fn handle(signal: c_int, flags: c_int) {
    // SAFETY: zeros are a legal action; the handler is a function of one integer.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// Whether what is set for a signal is what `handle` has set, and its flags.
pub(crate) fn handled(signal: c_int) -> (bool, c_int) {
    // SAFETY: zeros are a legal action.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        let flags = action.sa_flags & (libc::SA_RESTART | libc::SA_SIGINFO);
        (action.sa_sigaction == nothing as *const () as usize, flags)
    }
}

pub(crate) fn ignore(signal: c_int, ignored: bool) {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no pointers.
    unsafe { libc::signal(signal, action) };
}

/// Sends the calling thread a signal again and again from another, until dropped.
#[derive(Debug)]
pub(crate) struct Pester {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pester {
    pub(crate) fn start(signal: c_int) -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&stop);
        // SAFETY: no preconditions.
        let me = unsafe { libc::pthread_self() } as usize;
        let thread = std::thread::spawn(move || {
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5));
                // SAFETY: the thread lives as long as this one is not joined.
                unsafe { libc::pthread_kill(me as libc::pthread_t, signal) };
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Pester {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) fn sendfile(to: c_int, from: c_int, count: usize) -> Answer {
    // SAFETY: null is allowed.
    answer(unsafe { libc::sendfile(to, from, std::ptr::null_mut(), count) } as i64)
}

pub(crate) fn splice(from: c_int, to: c_int, count: usize) -> Answer {
    let null = std::ptr::null_mut();
    // SAFETY: null is allowed.
    answer(unsafe { libc::splice(from, null, to, null, count, 0) } as i64)
}

/// Writes a line and reads one through a stream of the C library.
pub(crate) fn through_stream(fd: c_int, line: &str) -> String {
    let line = std::ffi::CString::new(line).unwrap();
    let mut buffer = [0_u8; 100];
    // SAFETY: C strings and a local buffer; the stream owns a copy of the descriptor.
    unsafe {
        let file = libc::fdopen(libc::dup(fd), c"r+".as_ptr());
        assert!(!file.is_null());
        libc::fputs(line.as_ptr(), file);
        libc::fflush(file);
        let got = libc::fgets(buffer.as_mut_ptr().cast(), 100, file);
        let got = if got.is_null() {
            String::new()
        } else {
            std::ffi::CStr::from_ptr(got).to_string_lossy().into_owned()
        };
        libc::fclose(file);
        got
    }
}

/// Sends or receives several messages at once; returns how many, and how long each is.
pub(crate) fn many(fd: c_int, lens: &[usize], is_send: bool) -> Result<Vec<u32>, String> {
    let mut buffers: Vec<Vec<u8>> = lens.iter().map(|len| vec![b'm'; *len]).collect();
    let mut parts: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: zeros are a legal header.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    let count = messages.len() as u32;
    // SAFETY: headers of locals.
    let done = unsafe {
        if is_send {
            libc::sendmmsg(fd, messages.as_mut_ptr(), count, 0)
        } else {
            let null = std::ptr::null_mut();
            libc::recvmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_WAITFORONE, null)
        }
    };
    let done = answer(done.into())? as usize;
    Ok(messages[..done].iter().map(|message| message.msg_len).collect())
}

/// What `send`, `recv` and their kin say to buffers that are not there.
pub(crate) fn bad_buffers(from: c_int, to: c_int) -> Vec<Answer> {
    let bad = std::ptr::with_exposed_provenance_mut::<c_void>(16);
    let mut good = [0_u8; 4];
    let one = |base, len| libc::iovec { iov_base: base, iov_len: len };
    let good_part = one(good.as_mut_ptr().cast(), 4);
    let mixed = [good_part, one(bad, 4)];
    // SAFETY: the kernel, or a library in front of it, looks at the buffers before it uses them.
    unsafe {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = mixed.as_ptr().cast_mut();
        header.msg_iovlen = 2;
        let mut listless: libc::msghdr = zeroed();
        listless.msg_iov = bad.cast();
        listless.msg_iovlen = 1;
        let unmapped = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        let mut answers = Vec::new();
        let mut see = |value: libc::ssize_t| answers.push(answer(value as i64));
        see(libc::send(from, bad, 4, libc::MSG_NOSIGNAL));
        see(libc::write(from, unmapped, 4));
        see(libc::writev(from, mixed.as_ptr(), 2));
        see(libc::writev(from, bad.cast(), 1));
        see(libc::sendmsg(from, &raw const header, 0));
        see(libc::sendmsg(from, &raw const listless, 0));
        see(libc::sendmsg(from, bad.cast(), 0));
        see(libc::send(from, c"12345678".as_ptr().cast(), 8, 0));
        settle();
        see(libc::recv(to, bad, 4, 0));
        see(libc::recv(to, unmapped, 8, libc::MSG_PEEK));
        see(libc::read(to, unmapped, 8));
        see(libc::readv(to, mixed.as_ptr(), 2));
        see(libc::readv(to, bad.cast(), 1));
        see(libc::recvmsg(to, &raw mut header, 0));
        see(libc::recvmsg(to, &raw mut listless, 0));
        see(libc::recvmsg(to, bad.cast(), 0));
        see(libc::recv(to, good.as_mut_ptr().cast(), 4, 0));
        see(i64::from(u32::from_ne_bytes(good) == u32::from_ne_bytes(*b"1234")) as libc::ssize_t);
        libc::munmap(unmapped, 8192);
        answers
    }
}

/// Asks for an `io_uring`, whatever comes of it.
pub(crate) fn ask_for_uring() {
    let mut params = [0_u64; 16];
    // SAFETY: a local of the length of its structure, which is all zeros.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if let Ok(fd) = c_int::try_from(fd)
        && fd >= 0
    {
        close(fd).unwrap();
    }
}

/// Reads so that no library in front of the C library sees it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn plain_read(fd: c_int) -> String {
    let mut buffer = [0_u8; 100];
    let got: i64;
    // SAFETY: the calling convention of the kernel, and a local buffer.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_read => got,
            in("rdi") i64::from(fd), in("rsi") buffer.as_mut_ptr(), in("rdx") 100,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    text(&buffer, got).unwrap()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn plain_read(fd: c_int) -> String {
    recv(fd, 100, 0).unwrap()
}

/// A line sent and received by the numbers of the calls, and a descriptor copied and closed by them.
pub(crate) fn by_number(from: c_int, to: c_int) -> Vec<Answer> {
    let (mut first, mut second) = ([0_u8; 3], [0_u8; 4]);
    let line = c"by number".as_ptr();
    let mut parts = [
        libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: 3 },
        libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 4 },
    ];
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: locals, and a header of locals.
    unsafe {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = 2;
        let mut answers = Vec::new();
        let mut see = |value: i64| answers.push(answer(value));
        see(libc::syscall(libc::SYS_write, from, line, 9));
        see(libc::syscall(libc::SYS_sendto, from, line, 9, 0, null, 0));
        see(libc::syscall(libc::SYS_writev, from, parts.as_ptr(), 2));
        see(libc::syscall(libc::SYS_sendmsg, from, &raw const header, 0));
        let copy = libc::syscall(libc::SYS_dup, from);
        see(libc::syscall(libc::SYS_write, copy, line, 9));
        see(libc::syscall(libc::SYS_close, copy));
        settle();
        see(libc::syscall(libc::SYS_read, to, first.as_mut_ptr(), 3));
        see(libc::syscall(libc::SYS_readv, to, parts.as_ptr(), 2));
        see(libc::syscall(libc::SYS_recvmsg, to, &raw mut header, 0));
        see(libc::syscall(libc::SYS_recvfrom, to, second.as_mut_ptr(), 2, 0, null, null));
        see(libc::syscall(libc::SYS_read, -1, null, 3));
        see(libc::syscall(libc::SYS_gettid).min(1));
        see(u32::from_ne_bytes(second).into());
        answers
    }
}

/// What calls say to places that are not there: addresses, sets, masks and events. `fd` has something to
/// read, three times.
pub(crate) fn bad_places(fd: c_int) -> Vec<Answer> {
    let bad = std::ptr::with_exposed_provenance_mut::<c_void>(16);
    let mut buffer = [0_u8; 4];
    let base = buffer.as_mut_ptr().cast();
    // SAFETY: the kernel, or a library in front of it, looks at places before it uses them.
    unsafe {
        let mut part = libc::iovec { iov_base: base, iov_len: 4 };
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_name = bad;
        header.msg_namelen = 16;
        let e = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut set: libc::fd_set = zeroed();
        libc::FD_SET(fd, &raw mut set);
        let (none, never) = (std::ptr::null_mut(), std::ptr::null_mut::<libc::timeval>());
        let mut answers = Vec::new();
        let mut see = |value: c_int| answers.push(answer(value.into()));
        see(libc::poll(bad.cast(), 1, 0));
        see(libc::ppoll(&raw mut asked, 1, std::ptr::null(), bad.cast()));
        see(libc::select(fd + 1, bad.cast(), none, none, never));
        see(libc::select(fd + 1, &raw mut set, none, bad.cast(), never));
        see(libc::epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, bad.cast()));
        see(libc::epoll_wait(e, bad.cast(), 4, 0));
        see(libc::epoll_ctl(e, libc::EPOLL_CTL_ADD, fd, &raw mut event));
        see(libc::epoll_wait(e, bad.cast(), 4, 1000));
        see(libc::epoll_wait(e, &raw mut event, 1, 1000));
        see(libc::epoll_ctl(e, libc::EPOLL_CTL_DEL, fd, bad.cast()));
        see(libc::close(e));
        see(libc::ioctl(fd, libc::FIONREAD, bad));
        see(libc::getsockname(fd, bad.cast(), bad.cast()));
        see(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bad, 4));
        see(libc::connect(fd, bad.cast(), 16));
        let mut see = |value: libc::ssize_t| answers.push(answer(value as i64));
        let mut len = 16;
        see(libc::recvfrom(fd, base, 4, 0, buffer.as_mut_ptr().cast(), bad.cast()));
        see(libc::recvfrom(fd, base, 4, 0, bad.cast(), &raw mut len));
        see(libc::recvmsg(fd, &raw mut header, 0));
        answers
    }
}

/// What the program has set for a signal, and how a child ends that a signal is sent to, and one that
/// touches what is not there.
pub(crate) fn faults() -> (usize, i32, Vec<c_int>) {
    // SAFETY: zeros are a legal action; the children touch nothing but what ends them.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut action);
        let ends = [
            fork(|| {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }),
            fork(|| {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                std::ptr::with_exposed_provenance_mut::<u8>(16).write_volatile(1);
            }),
            fork(|| {
                libc::signal(libc::SIGSEGV, libc::SIG_IGN);
                libc::raise(libc::SIGSEGV);
            }),
        ];
        let ends = ends.map(|pid| {
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            status
        });
        (usize::from(action.sa_sigaction > 1), action.sa_flags, ends.to_vec())
    }
}

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const std::ffi::c_char, ...) -> c_int;
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const std::ffi::c_char, ...) -> c_int;
}

/// Calls a function that prints, with more arguments than there are registers, of both kinds.
macro_rules! print_all {
    ($print:ident($($first:expr),*)) => {
        $print(
            $($first,)*
            c"%d %s %.2f %d %.1f %d %d %d %s %.3f %.3f %.3f %.3f %.3f %.3f %.3f %.3f %ld|".as_ptr(),
            1,
            c"text".as_ptr(),
            2.25,
            3,
            4.5,
            5,
            6,
            7,
            c"more".as_ptr(),
            0.125,
            1.125,
            2.125,
            3.125,
            4.125,
            5.125,
            6.125,
            7.125,
            1_i64 << 40,
        )
    };
}

/// Prints, in all the ways that a compiler may have chosen.
pub(crate) fn print(fd: c_int) -> [c_int; 3] {
    // SAFETY: as many arguments as the format wants, of the types it wants.
    unsafe {
        [
            print_all!(dprintf(fd)),
            print_all!(__dprintf_chk(fd, 1)),
            dprintf(fd, c"plain\n".as_ptr()),
        ]
    }
}

pub(crate) fn close_range_with(first: c_int, last: c_int, flags: impl TryInto<c_int>) -> Answer {
    let flags = flags.try_into().unwrap_or(0);
    // SAFETY: no pointers.
    answer(unsafe { libc::close_range(first as u32, last as u32, flags) }.into())
}

/// What a handler has been told: how often it ran, and how often it was told what it should not be.
static TOLD: [std::sync::atomic::AtomicI32; 2] =
    [const { std::sync::atomic::AtomicI32::new(0) }; 2];

extern "C" fn told(signal: c_int, info: *const libc::siginfo_t, _: *const c_void) {
    use std::sync::atomic::Ordering::Relaxed;
    let number = TOLD[0].load(Relaxed);
    // SAFETY: what the kernel says about a signal.
    let (code, process) = unsafe { ((*info).si_code, (*info).si_pid()) };
    let is_right = signal == libc::SIGRTMIN() + 3 && code == SI_QUEUE && process == MARK;
    TOLD[1].fetch_add(i32::from(!is_right), Relaxed);
    TOLD[0].store(number + 1, Relaxed);
}

const SI_QUEUE: c_int = -1;
/// Stands where the kernel says which process has sent a signal.
const MARK: libc::pid_t = 7777;

/// Queues a thread `count` signals, two at a time, and returns what the handler made of them. It moves
/// bytes in both directions meanwhile.
pub(crate) fn queue_signals(from: c_int, to: c_int, count: i32) -> (i32, i32) {
    use std::sync::atomic::Ordering::Relaxed;
    TOLD.iter().for_each(|told| told.store(0, Relaxed));
    let signal = libc::SIGRTMIN() + 3;
    // SAFETY: an action of this process, with a handler that has what it needs.
    let (process, thread) = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = told as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        (libc::getpid(), libc::gettid())
    };
    let sender = std::thread::spawn(move || {
        for _ in 0..count / 2 {
            for _ in 0..2 {
                let info = [signal, 0, SI_QUEUE, 0, MARK, 0, 0, 0].map(i32::to_ne_bytes);
                let mut bytes = [0_u8; 128];
                bytes[..32].copy_from_slice(info.as_flattened());
                let call = libc::SYS_rt_tgsigqueueinfo;
                // SAFETY: a structure of 128 bytes, laid out as the kernel wants it.
                unsafe { libc::syscall(call, process, thread, signal, bytes.as_ptr()) };
            }
            std::thread::sleep(std::time::Duration::from_micros(30));
        }
    });
    let mut bytes = vec![1; 60_000];
    let start = std::time::Instant::now();
    while TOLD[0].load(Relaxed) < count && start.elapsed().as_secs() < 20 {
        send(from, &bytes, 0).unwrap();
        let mut got = 0;
        while got < bytes.len() as i64 {
            got += recv_into(to, &mut bytes, 0).unwrap();
        }
    }
    sender.join().unwrap();
    (TOLD[0].load(Relaxed), TOLD[1].load(Relaxed))
}

/// How many of `count` handlers that are for one signal only run, while bytes are moved.
pub(crate) fn handle_once(from: c_int, to: c_int, count: i32) -> i32 {
    // SAFETY: no preconditions.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    let mut bytes = vec![1; 60_000];
    let mut ran = 0;
    for _ in 0..count {
        handle(libc::SIGUSR2, libc::SA_RESETHAND | libc::SA_RESTART);
        let sender = std::thread::spawn(move || {
            // SAFETY: no pointer.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
        });
        while handled(libc::SIGUSR2).0 {
            send(from, &bytes, 0).unwrap();
            let mut got = 0;
            while got < bytes.len() as i64 {
                got += recv_into(to, &mut bytes, 0).unwrap();
            }
        }
        sender.join().unwrap();
        ran += 1;
    }
    ran
}
