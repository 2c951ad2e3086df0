//! Ways through the network as the kernel knows them: the route to an address, and the hardware address of a neighbour.
//!
//! One question, one answer, over rtnetlink (RFC 3549). [`netlink`](crate::netlink) tells when to ask again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, sendto,
    socket_with,
};

/// How packets to an address leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// The number of the interface.
    pub interface: u32,
    /// The router that they go to; `None` if they go to the address itself.
    pub gateway: Option<IpAddr>,
    /// The address that they come from unless their sender says otherwise.
    pub source: Option<IpAddr>,
    /// They go to one other host: the address is not this host's, nor that of a group or of all, nor one that is refused.
    pub unicast: bool,
}

/// What is known of a neighbour's hardware address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// The hardware address.
    pub mac: [u8; 6],
    /// It was found out, or proved right, a short while ago, or is not to be doubted. One that is not fresh may be wrong,
    /// and a packet that the kernel sends makes it find out.
    pub fresh: bool,
}

/// A socket to ask by.
#[derive(Debug)]
pub struct Routes {
    socket: OwnedFd,
    /// Requests that were sent: the number of the last of them.
    asked: AtomicU32,
}

impl AsFd for Routes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Routes {
    /// Asks about the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// No descriptors or memory left.
    pub fn open() -> io::Result<Self> {
        // No protocol is protocol 0, which is that of links, addresses and routes.
        let kind = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket, asked: AtomicU32::new(0) })
    }

    /// The same, by a descriptor whose number is not below `least`.
    ///
    /// # Errors
    ///
    /// Those of [`Routes::open`] and `fcntl(2)`.
    pub fn open_above(least: RawFd) -> io::Result<Self> {
        let Self { socket, asked } = Self::open()?;
        Ok(Self { socket: rustix::io::fcntl_dupfd_cloexec(&socket, least)?, asked })
    }

    /// Makes the kernel find out the hardware address of a neighbour on an interface: sends it an empty datagram.
    ///
    /// # Errors
    ///
    /// There is no way to there; no descriptors left.
    pub fn seek(&self, neighbour: IpAddr, interface: u32) -> io::Result<()> {
        let (family, to) = match neighbour {
            IpAddr::V4(ip) => (AddressFamily::INET, SocketAddr::new(ip.into(), DISCARD)),
            IpAddr::V6(ip) => {
                let to = SocketAddrV6::new(ip, DISCARD, 0, interface);
                (AddressFamily::INET6, to.into())
            }
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        sendto(&socket, &[], SendFlags::empty(), &to)?;
        Ok(())
    }

    /// The route to an address, on one interface if that is said. Rules may have another one for packets that come `from` an
    /// address of this host; `None`: the source is still to be chosen.
    ///
    /// # Errors
    ///
    /// `NetworkUnreachable` and its like if there is none, or if this host does not have a source of IPv4; `InvalidInput` if the
    /// addresses are of two families.
    pub fn route(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        interface: Option<u32>,
    ) -> io::Result<Route> {
        if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut request = Request::new(RTM_GETROUTE);
        let prefix = if to.is_ipv4() { 32 } else { 128 };
        let source_prefix = if from.is_some() { prefix } else { 0 };
        // `rtmsg`: family, destination and source prefix, type of service; table, protocol, scope, type; flags.
        request.push(&[family(to), prefix, source_prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.attribute_of(RTA_DST, to);
        if let Some(from) = from {
            request.attribute_of(RTA_SRC, from);
        }
        if let Some(interface) = interface {
            request.attribute(RTA_OIF, &interface.to_ne_bytes());
        }
        let mut route = Route { interface: 0, gateway: None, source: from, unicast: false };
        self.ask(request, RTM_NEWROUTE, |message| {
            let (head, attributes) = message.split_first_chunk::<12>()?;
            let [_, _, _, _, _, _, _, kind, ..] = *head;
            route.unicast = kind == RTN_UNICAST;
            for (name, value) in Attributes(attributes) {
                match name {
                    RTA_OIF => route.interface = u32::from_ne_bytes(*value.first_chunk()?),
                    RTA_GATEWAY => route.gateway = address(value),
                    // Behind two bytes of family: a router of the other family.
                    RTA_VIA => route.gateway = address(value.get(2..)?),
                    RTA_PREFSRC if from.is_none() => route.source = address(value),
                    _ => {}
                }
            }
            Some(route)
        })
    }

    /// The hardware address of a neighbour on an interface; `None` if the kernel does not know it.
    ///
    /// # Errors
    ///
    /// No memory left; a kernel older than 5.0, which cannot be asked for one.
    pub fn neighbour(&self, of: IpAddr, interface: u32) -> io::Result<Option<Neighbour>> {
        let mut request = Request::new(RTM_GETNEIGH);
        request.push(&[family(of), 0, 0, 0]); // `ndmsg`: family; index; state, flags, type.
        request.push(&interface.to_ne_bytes());
        request.push(&[0; 4]);
        request.attribute_of(NDA_DST, of);
        let answer = self.ask(request, RTM_NEWNEIGH, |message| {
            let (head, attributes) = message.split_first_chunk::<12>()?;
            let [.., s0, s1, _, _] = *head;
            let state = u16::from_ne_bytes([s0, s1]);
            let (_, mac) = Attributes(attributes).find(|(name, _)| *name == NDA_LLADDR)?;
            let fresh = state & (NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP) != 0;
            let usable = fresh || state & (NUD_STALE | NUD_DELAY | NUD_PROBE) != 0;
            Some(Neighbour { mac: mac.try_into().ok()?, fresh }).filter(|_| usable)
        });
        match answer {
            Ok(neighbour) => Ok(Some(neighbour)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and reads the one message that answers it.
    fn ask<T>(
        &self,
        request: Request,
        kind: u16,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<T> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        send(&self.socket, &request.finish(number), SendFlags::empty())?;
        let mut answer = [0; ANSWER_BYTES];
        let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
        let answer = self.receive(number, &mut answer)?;
        let (head, body) = answer.split_first_chunk::<HEAD_BYTES>().ok_or_else(nonsense)?;
        let [_, _, _, _, k0, k1, ..] = *head;
        match u16::from_ne_bytes([k0, k1]) {
            NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                Err(if code == 0 { nonsense() } else { io::Error::from_raw_os_error(-code) })
            }
            found if found == kind => read(body).ok_or_else(nonsense),
            _ => Err(nonsense()),
        }
    }

    /// The answer to the request with this number; those that came too late for theirs are dropped.
    fn receive<'a>(&self, number: u32, answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            let (_, len) = recv(&self.socket, &mut *answer, RecvFlags::empty())?;
            if answer.get(..len).and_then(|answer| answer.get(8..12)) == Some(&number.to_ne_bytes())
            {
                return Ok(answer.get(..len).unwrap_or_default());
            }
        }
    }
}

/// A message to the kernel.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16) -> Self {
        // `nlmsghdr`: length, written at the end; kind; flags; the request's number, written at the end, too; port number.
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(NLM_F_REQUEST.to_ne_bytes());
        bytes.extend([0; 8]);
        Self(bytes)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn attribute(&mut self, name: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.push(&len.to_ne_bytes());
        self.push(&name.to_ne_bytes());
        self.push(value); // Addresses and numbers: multiples of four bytes.
    }

    fn attribute_of(&mut self, name: u16, address: IpAddr) {
        match address {
            IpAddr::V4(ip) => self.attribute(name, &ip.octets()),
            IpAddr::V6(ip) => self.attribute(name, &ip.octets()),
        }
    }

    fn finish(mut self, number: u32) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        for (at, value) in [(0, len), (8, number)] {
            for (to, from) in self.0.iter_mut().skip(at).zip(value.to_ne_bytes()) {
                *to = from;
            }
        }
        self.0
    }
}

/// Attributes of a message, as names and values; they end where they make no sense.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [l0, l1, n0, n1] = *self.0.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([n0, n1]) & NLA_TYPE_MASK, value))
    }
}

fn family(of: IpAddr) -> u8 {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    u8::try_from(family.as_raw()).unwrap_or_default()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
}

/// RFC 863.
const DISCARD: u16 = 9;

/// How long to wait for the kernel, which answers at once.
const PATIENCE: Duration = Duration::from_secs(1);
const ANSWER_BYTES: usize = 4096;
const HEAD_BYTES: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLA_TYPE_MASK: u16 = 0x3fff;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTN_UNICAST: u8 = 1;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::interfaces;

    #[test]
    fn the_way_to_this_host_is_its_loopback_interface() {
        let lo = interfaces().unwrap().into_iter().find(|interface| interface.loopback).unwrap();
        let routes = Routes::open().unwrap();
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            if !lo.addresses.iter().any(|address| address.ip == ip) {
                continue;
            }
            let route = routes.route(ip, None, None).unwrap();
            assert_eq!((route.interface, route.gateway, route.unicast), (lo.index, None, false));
        }
    }

    #[test]
    fn a_neighbour_that_does_not_exist_is_not_known() {
        let lo = interfaces().unwrap().into_iter().find(|interface| interface.loopback).unwrap();
        let nobody = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(Routes::open().unwrap().neighbour(nobody, lo.index).unwrap(), None);
    }

    #[test]
    fn a_late_answer_is_not_taken_for_one_to_another_question() {
        let routes = Routes::open().unwrap();
        let late = Request::new(RTM_GETROUTE).finish(0);
        send(&routes.socket, &late, SendFlags::empty()).unwrap();
        let to = Ipv4Addr::LOCALHOST.into();
        assert_eq!(
            routes.route(to, None, None).unwrap(),
            Routes::open().unwrap().route(to, None, None).unwrap()
        );
    }

    #[test]
    fn packets_come_from_an_address_of_this_host_and_of_one_family() {
        let routes = Routes::open().unwrap();
        let [to, foreign] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 1)].map(IpAddr::from);
        let route = |from| routes.route(to, Some(from), None).map_err(|error| error.kind());
        assert_eq!(route(to).unwrap().source, Some(to));
        assert!(route(foreign).is_err());
        assert_eq!(route(Ipv6Addr::LOCALHOST.into()), Err(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn attributes_that_make_no_sense_end_the_list() {
        let name = 7_u16.to_ne_bytes();
        let of = |len: u16| [len.to_ne_bytes(), name].concat();
        let good = [of(6), vec![1, 2, 0, 0], of(4)].concat();
        let found: Vec<_> = Attributes(&good).collect();
        assert_eq!(found, [(7, &[1, 2][..]), (7, &[][..])]);
        for bad in [of(3), of(0), of(5), vec![4, 0]] {
            assert_eq!(Attributes(&bad).count(), 0, "{bad:?}");
        }
    }
}
