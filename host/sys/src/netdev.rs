//! The network interfaces of the calling thread's namespace, and their addresses.
//!
//! # Safety
//!
//! 1. `getifaddrs(3)` returns a list that is ours until `freeifaddrs(3)`; `List` frees it when it
//!    is dropped, and lends its entries for no longer than it lives.
//! 2. The family of a socket address says which structure it is; only after looking at it is a
//!    pointer read as that structure, unaligned, because the C library packs them as it likes.
//! 3. An `ifreq` is plain integers in a union; which member is meaningful is decided by the request.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sockopt;

/// One network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its number, counted from 1.
    pub index: u32,
    /// It was switched on.
    pub up: bool,
    /// It is on and has a carrier.
    pub running: bool,
    /// It leads back to this machine.
    pub loopback: bool,
    /// The largest IP packet it carries, in bytes.
    pub mtu: u32,
    /// Its hardware address, if it has one of six bytes that are not all zero.
    pub mac: Option<[u8; 6]>,
    /// Its IP addresses, in the kernel's order; IPv4 before IPv6.
    pub addresses: Vec<Address>,
}

/// One IP address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// How many leading bits it shares with its neighbours: 0 ..= 32, or 0 ..= 128.
    pub prefix: u8,
    /// The interface that a link-local IPv6 address belongs to; 0 for other addresses.
    pub scope_id: u32,
}

/// The interface that a socket is bound to; 0: none.
///
/// # Errors
///
/// A descriptor that is no socket; a kernel older than 5.1.
pub fn of_socket(socket: impl AsFd) -> io::Result<u32> {
    sockopt::get(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).map(c_int::cast_unsigned)
}

/// Whether a socket has all that comes by an interface for a group: it has joined it there, and refuses no source.
#[must_use]
pub fn has_group(socket: impl AsFd, group: IpAddr, interface: u32) -> bool {
    // `group_filter`: the interface, a gap, the group as 128 bytes, the mode, and the number of sources.
    let mut words = [0; 36];
    let word = |bytes: [u8; 4]| c_int::from_ne_bytes(bytes);
    let family = |family: c_int| {
        let [a, b] = u16::try_from(family).unwrap_or(0).to_ne_bytes();
        word([a, b, 0, 0])
    };
    let (level, name): (_, Vec<c_int>) = match group {
        IpAddr::V4(ip) => (libc::IPPROTO_IP, vec![family(libc::AF_INET), word(ip.octets())]),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let address = octets.as_chunks().0.iter().map(|chunk| word(*chunk));
            (libc::IPPROTO_IPV6, [family(libc::AF_INET6), 0].into_iter().chain(address).collect())
        }
    };
    let asked = [interface.cast_signed(), 0].into_iter().chain(name);
    words.iter_mut().zip(asked).for_each(|(to, from)| *to = from);
    let answer = sockopt::ask(socket, level, MCAST_MSFILTER, words);
    answer.is_ok_and(|words| matches!(words, [.., MCAST_EXCLUDE, 0]))
}

const MCAST_MSFILTER: c_int = 48;
const MCAST_EXCLUDE: c_int = 0;

/// All interfaces, in the kernel's order.
///
/// # Errors
///
/// Those of `getifaddrs(3)`: no memory or no descriptors left. An interface that goes away while
/// we look is left out.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    let list = List::new()?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    for entry in list.iter() {
        let name = entry.name();
        let Some(link) = entry.link() else { continue };
        let Some(mtu) = mtu(&socket, &name) else {
            continue;
        };
        found.push(Interface {
            index: link.index,
            up: entry.has(libc::IFF_UP),
            running: entry.has(libc::IFF_RUNNING),
            loopback: entry.has(libc::IFF_LOOPBACK),
            mtu,
            mac: link.mac,
            addresses: list
                .iter()
                .filter(|a| a.name() == name)
                .filter_map(Entry::address)
                .collect(),
            name,
        });
    }
    Ok(found)
}

/// Link-layer facts of an interface.
struct Link {
    index: u32,
    mac: Option<[u8; 6]>,
}

/// The C library's list of interfaces and addresses: one entry for each link, then one for each
/// address.
struct List {
    first: *mut libc::ifaddrs,
}

impl List {
    fn new() -> io::Result<Self> {
        let mut first = ptr::null_mut();
        // SAFETY: the pointer is to a local, which the call sets to the first entry or leaves null.
        let result = unsafe { libc::getifaddrs(&raw mut first) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { first }) }
    }

    fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        // SAFETY: the list is ours until `self` is dropped, and no code writes to it (rule 1); every
        // entry is valid, and the last points nowhere.
        let borrow = |entry: *mut libc::ifaddrs| unsafe { entry.as_ref() };
        std::iter::successors(borrow(self.first), move |entry| borrow(entry.ifa_next)).map(Entry)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `getifaddrs`, and all entries borrow from `self` (rule 1).
        unsafe { libc::freeifaddrs(self.first) };
    }
}

/// One entry of the list.
#[derive(Clone, Copy)]
struct Entry<'a>(&'a libc::ifaddrs);

impl Entry<'_> {
    fn name(self) -> String {
        // SAFETY: `getifaddrs` gives every entry a name that ends with a zero byte (rule 1).
        let name = unsafe { CStr::from_ptr(self.0.ifa_name) };
        name.to_string_lossy().into_owned()
    }

    fn has(self, flag: c_int) -> bool {
        u32::try_from(flag).is_ok_and(|flag| self.0.ifa_flags & flag != 0)
    }

    /// Index and hardware address, if this is the entry of a link.
    fn link(self) -> Option<Link> {
        let raw: libc::sockaddr_ll = self.addr()?;
        let mac = raw.sll_addr.first_chunk::<6>().copied();
        Some(Link {
            index: u32::try_from(raw.sll_ifindex).ok()?,
            mac: mac.filter(|&mac| raw.sll_halen == 6 && mac != [0; 6]),
        })
    }

    /// IP address and prefix, if this is the entry of an address.
    fn address(self) -> Option<Address> {
        if let Some(raw) = self.addr::<libc::sockaddr_in>() {
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            let mask = self.mask::<libc::sockaddr_in>();
            let prefix = mask.map_or(32, |mask| mask.sin_addr.s_addr.count_ones());
            return Some(Address {
                ip: ip.into(),
                prefix: u8::try_from(prefix).ok()?,
                scope_id: 0,
            });
        }
        let raw = self.addr::<libc::sockaddr_in6>()?;
        let mask = self.mask::<libc::sockaddr_in6>();
        let ones =
            |mask: libc::sockaddr_in6| mask.sin6_addr.s6_addr.map(u8::count_ones).iter().sum();
        Some(Address {
            ip: Ipv6Addr::from(raw.sin6_addr.s6_addr).into(),
            prefix: u8::try_from(mask.map_or(128, ones)).ok()?,
            scope_id: raw.sin6_scope_id,
        })
    }

    fn addr<T: SocketName>(self) -> Option<T> {
        // SAFETY: the C library has put an address there, or nothing (rule 1).
        unsafe { read_as(self.0.ifa_addr) }
    }

    fn mask<T: SocketName>(self) -> Option<T> {
        // SAFETY: the C library has put a mask there, in the form of an address, or nothing (rule 1).
        unsafe { read_as(self.0.ifa_netmask) }
    }
}

/// A socket address of one family, as C lays it out.
///
/// # Safety
///
/// Any bytes are a value of it, and an address of this family has at least its length.
unsafe trait SocketName: Copy {
    const FAMILY: c_int;
}

// SAFETY: plain integers; the kernel never makes one shorter.
unsafe impl SocketName for libc::sockaddr_in {
    const FAMILY: c_int = libc::AF_INET;
}
// SAFETY: plain integers; the kernel never makes one shorter.
unsafe impl SocketName for libc::sockaddr_in6 {
    const FAMILY: c_int = libc::AF_INET6;
}
// SAFETY: plain integers; the C library makes each as long as its longest kind.
unsafe impl SocketName for libc::sockaddr_ll {
    const FAMILY: c_int = libc::AF_PACKET;
}

/// What `addr` points to, if it is of the family that `T` stands for.
///
/// # Safety
///
/// `addr` is null, or points to a socket address as long as its family says.
unsafe fn read_as<T: SocketName>(addr: *const libc::sockaddr) -> Option<T> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: not null, so that there is an address, which begins with its family (rule 2).
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    if c_int::from(family) != T::FAMILY {
        return None;
    }
    // SAFETY: the family is the one that `T` is the structure of (rule 2).
    Some(unsafe { addr.cast::<T>().read_unaligned() })
}

/// The largest packet of the interface called `name`, or `None` if it has gone away.
fn mtu(socket: &OwnedFd, name: &str) -> Option<u32> {
    let mut request = request(name)?;
    let fd = socket.as_raw_fd();
    // SAFETY: the request reads a name that ends with a zero byte, and writes the member that holds
    // the answer (rule 3).
    let result = unsafe { libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request) };
    if result < 0 {
        return None;
    }
    // SAFETY: this request's answer is in this member (rule 3).
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).ok()
}

/// How many queues the interface called `name` receives by; `None` if it has gone away, or its driver does not say. Any socket
/// will do to ask.
#[must_use]
pub fn receive_queues(socket: impl AsFd, name: &str) -> Option<u32> {
    let socket = socket.as_fd();
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request reads a name that ends with a zero byte, and writes the structure that is pointed to (rule 3).
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (result >= 0).then(|| channels.receive.saturating_add(channels.combined))
}

/// `struct ethtool_channels` of `linux/ethtool.h`: how many there may be, and are, of each kind.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// Of `linux/ethtool.h`.
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Of `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// A request about the interface with this name.
fn request(name: &str) -> Option<libc::ifreq> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 },
    };
    let (_end, room) = request.ifr_name.split_last_mut()?;
    for (to, from) in room.iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    Some(request)
}

const _: () = assert!(mem::offset_of!(libc::sockaddr, sa_family) == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_with_its_address() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.loopback).unwrap();
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!((lo.name.as_str(), lo.mac, lo.up), ("lo", None, true));
        assert!(lo.mtu >= 1500, "{}", lo.mtu);
        assert!(lo.addresses.contains(&Address { ip, prefix: 8, scope_id: 0 }), "{lo:?}");
    }

    /// The kernel's own tables are the second source.
    #[test]
    fn interfaces_are_those_of_the_kernels_table_in_its_order() {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
        let mut expected: Vec<String> = names.map(|(name, _)| name.trim().to_owned()).collect();
        let all = interfaces().unwrap();
        assert!(all.is_sorted_by_key(|interface| interface.index), "{all:?}");
        let mut found: Vec<String> = all.into_iter().map(|interface| interface.name).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn link_local_addresses_name_their_interface() {
        for interface in interfaces().unwrap() {
            for address in interface.addresses {
                match address.ip {
                    IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                        assert_eq!((address.scope_id, address.prefix), (interface.index, 64));
                    }
                    IpAddr::V6(_) | IpAddr::V4(_) => assert_eq!(address.scope_id, 0),
                }
            }
        }
    }

    #[test]
    fn an_interface_that_does_not_exist_has_no_mtu() {
        let kind = (AddressFamily::INET, SocketType::DGRAM);
        let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(mtu(&socket, "no-such-device"), None);
        assert!(mtu(&socket, "lo").is_some());
    }
}
