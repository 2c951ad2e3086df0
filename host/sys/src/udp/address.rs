//! Socket addresses as the kernel reads and writes them.
//!
//! An IPv4 and an IPv6 socket address begin alike, and the IPv4 address lies where the other has its
//! flow label. One structure, the larger, therefore holds both, and no pointer needs to be cast on
//! the data path. The assertions at the end of the file say that this is so.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::Marks;

/// An address to send to, in the form that the kernel wants: made once, used for every burst.
#[derive(Clone, Copy)]
pub struct Destination {
    name: Name,
    /// How packets that go there are marked.
    marks: Marks,
    /// Somehow, that is.
    marked: bool,
}

impl Destination {
    /// Prepares `addr`; packets are marked as the system does it.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        let mut name = Name::EMPTY;
        name.raw.sin6_port = addr.port().to_be();
        match addr {
            SocketAddr::V4(addr) => {
                name.raw.sin6_family = INET;
                name.raw.sin6_flowinfo = u32::from_ne_bytes(addr.ip().octets());
                name.len = INET_LEN;
            }
            SocketAddr::V6(addr) => {
                name.raw.sin6_family = INET6;
                name.raw.sin6_flowinfo = addr.flowinfo().to_be();
                name.raw.sin6_addr.s6_addr = addr.ip().octets();
                name.raw.sin6_scope_id = addr.scope_id();
            }
        }
        Self { name, marks: Marks::default(), marked: false }
    }

    /// The same address, with packets marked in this way.
    #[must_use]
    pub fn marked(self, marks: Marks) -> Self {
        Self { marks, marked: marks != Marks::default(), ..self }
    }

    /// How packets are marked.
    #[must_use]
    pub const fn marks(&self) -> Marks {
        self.marks
    }

    /// They are not marked as the system does it.
    #[inline]
    pub(super) const fn is_marked(&self) -> bool {
        self.marked
    }

    pub(super) const fn is_v6(&self) -> bool {
        self.name.raw.sin6_family == INET6
    }

    /// The address that was prepared.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.name.addr().unwrap_or_else(|_| unreachable!("made from an address"))
    }

    /// What the kernel wants to know.
    #[inline]
    pub(super) const fn name(&self) -> &Name {
        &self.name
    }
}

impl From<SocketAddr> for Destination {
    fn from(addr: SocketAddr) -> Self {
        Self::new(addr)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({})", self.addr())
    }
}

/// An IPv4 or IPv6 socket address and its length.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) raw: libc::sockaddr_in6,
    pub(super) len: libc::socklen_t,
}

impl Name {
    /// No address yet, and room for either kind.
    pub(super) const EMPTY: Self = Self {
        raw: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
        len: INET6_LEN,
    };

    /// The address that was written.
    ///
    /// # Errors
    ///
    /// `InvalidData` if its family is neither IPv4 nor IPv6, which the kernel never does to us.
    #[inline]
    pub(super) fn addr(&self) -> io::Result<SocketAddr> {
        let raw = &self.raw;
        let port = u16::from_be(raw.sin6_port);
        match raw.sin6_family {
            INET => {
                let ip = Ipv4Addr::from(raw.sin6_flowinfo.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, port).into())
            }
            INET6 => {
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let flow = u32::from_be(raw.sin6_flowinfo);
                Ok(SocketAddrV6::new(ip, port, flow, raw.sin6_scope_id).into())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[expect(clippy::as_conversions, reason = "small constants, and no other conversion is const")]
mod constants {
    pub(super) const INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
    pub(super) const INET6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;
    pub(super) const INET_LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    pub(super) const INET6_LEN: libc::socklen_t =
        size_of::<libc::sockaddr_in6>() as libc::socklen_t;
}
use constants::{INET, INET_LEN, INET6, INET6_LEN};

const _: () = {
    type V4 = libc::sockaddr_in;
    type V6 = libc::sockaddr_in6;
    assert!(offset_of!(V4, sin_family) == offset_of!(V6, sin6_family));
    assert!(offset_of!(V4, sin_port) == offset_of!(V6, sin6_port));
    assert!(offset_of!(V4, sin_addr) == offset_of!(V6, sin6_flowinfo));
    assert!(size_of::<V4>() <= size_of::<V6>());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_to_the_kernel_and_back() {
        for addr in ["127.0.0.1:4791", "255.1.2.3:1", "[::1]:65535", "[fe80::1%7]:80"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(Destination::new(addr).addr(), addr);
        }
    }

    #[test]
    fn a_name_without_a_family_is_no_address() {
        assert_eq!(Name::EMPTY.addr().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
