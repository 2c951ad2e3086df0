//! Addresses as the kernel writes them.
//!
//! # Safety
//!
//! `sockaddr_storage` is large and aligned enough for every address structure; which one it holds
//! is in its family, and all of their fields are integers.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::base::{copy, raw};

/// Room for an IPv4 or an IPv6 address, and for no other: a fifth of what there is for all, as it is moved for each datagram.
pub(crate) type Name = libc::sockaddr_in6;

/// Reads an IPv4 or IPv6 address; `None` if it is of another family. An IPv4 address in IPv6
/// clothing is read as what it is.
pub(crate) fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the storage is larger, and all of its bytes are there.
    read_name(&unsafe { std::ptr::from_ref(storage).cast::<Name>().read() })
}

/// The same, of an address for which there was no more room.
pub(crate) fn read_name(name: &Name) -> Option<SocketAddr> {
    let at = std::ptr::from_ref(name);
    match i32::from(name.sin6_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is this structure, and there is room for it.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read() };
            let addr = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(addr), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            let addr = IpAddr::V6(Ipv6Addr::from(name.sin6_addr.s6_addr)).to_canonical();
            Some(SocketAddr::new(addr, u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

/// The address of one end of a socket: its own, or its peer's.
pub(crate) fn name(fd: c_int, of_peer: bool) -> Option<SocketAddr> {
    read(&raw::name(fd, of_peer)?)
}

/// Whether an address is that of a group by itself: those of one link or host are only together with it.
pub(crate) fn is_group(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast() && ip.octets()[1] & 0xf > LINK_SCOPE,
    }
}

const LINK_SCOPE: u8 = 2;

/// Writes an address as a socket of that domain has it, and returns its length.
pub(crate) fn write(addr: SocketAddr, domain: c_int) -> (libc::sockaddr_storage, libc::socklen_t) {
    let (name, len) = write_name(addr, domain);
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for it.
    unsafe { (&raw mut storage).cast::<Name>().write(name) };
    (storage, len)
}

/// The same, where there is no room for addresses of other families.
pub(crate) fn write_name(addr: SocketAddr, domain: c_int) -> (Name, libc::socklen_t) {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut name: Name = unsafe { std::mem::zeroed() };
    let at = &raw mut name;
    let len = match addr.ip() {
        IpAddr::V4(ip) if domain == libc::AF_INET => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET.try_into().unwrap_or(0),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: ip.to_bits().to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: there is room for it.
            unsafe { at.cast::<libc::sockaddr_in>().write(v4) };
            size_of::<libc::sockaddr_in>()
        }
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => {
            let octets = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            name = Name {
                sin6_family: libc::AF_INET6.try_into().unwrap_or(0),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: octets },
                sin6_scope_id: 0,
            };
            size_of::<Name>()
        }
    };
    (name, len.try_into().unwrap_or(0))
}

/// Whether an address is one of the namespace that a socket is in.
pub(crate) fn is_here(fd: c_int, addr: SocketAddr) -> bool {
    if addr.ip().is_loopback() || name(fd, false).is_some_and(|own| own.ip() == addr.ip()) {
        return true;
    }
    let domain = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let Ok(probe) = raw::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) else {
        return false;
    };
    let (storage, len) = write(SocketAddr::new(addr.ip(), 0), domain);
    let is_here = raw::bind(probe, &storage, len).is_ok();
    raw::close(probe);
    is_here
}

/// An address as IPv6 has it, in two words.
pub(crate) fn ip_words(ip: IpAddr) -> [u64; 2] {
    let octets = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = octets;
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes([i, j, k, l, m, n, o, p])]
}

/// The address of a UNIX socket of ours that has a name of its network namespace, and no file.
pub(crate) fn unfiled(name: u64) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut unix: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    unix.sun_family = libc::AF_UNIX.try_into().unwrap_or(0);
    let digits = name.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.map(|digit| if digit < 10 { b'0' + digit } else { b'a' - 10 + digit });
    let letters = UNFILED.into_iter().chain(digits);
    for (place, letter) in unix.sun_path.iter_mut().zip(letters) {
        *place = letter.cast_signed();
    }
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for it.
    unsafe { (&raw mut storage).cast::<libc::sockaddr_un>().write(unix) };
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + UNFILED.len() + 16;
    (storage, len.try_into().unwrap_or(0))
}

/// What the kernel wants of an IPv6 address, which may lack its scope.
const IN6_BYTES_MIN: usize = 24;
/// How such a name begins.
const UNFILED: [u8; 8] = *b"\0adverb/";

/// Reads an address that the program has given us; `None` if it is too short, of another family, or not
/// there.
///
/// # Safety
///
/// `address` is null or points to `len` readable bytes.
pub(crate) unsafe fn given(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Option<SocketAddr> {
    let len = usize::try_from(len).ok()?;
    if address.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: all zeros is a legal value of this structure of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = len.min(size_of::<libc::sockaddr_storage>());
    // SAFETY: the storage has room for `len` bytes, and is not shared.
    let is_there = unsafe { copy::copy((&raw mut storage).cast(), address.cast(), len) };
    let is_v6 = i32::from(storage.ss_family) == libc::AF_INET6;
    if is_there && (!is_v6 || len >= IN6_BYTES_MIN) { read(&storage) } else { None }
}
