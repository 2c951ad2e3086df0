//! Ways: where datagrams of a socket go as frames, and the headers in front of them.
//!
//! What the kernel says of a route and a neighbour counts for a second. Where it does not know the neighbour, or is not
//! sure of it, a datagram goes by the kernel, which finds out; so do datagrams that do not fit a packet, and those to this
//! host, by other interfaces, and to groups that this host may be in.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adverb_sys::routes::Neighbour;
use adverb_tcpip::ethernet::Mac;
use adverb_wire::ip::{Ipv4, Ipv6, Sum, emit_udp_headers};
use adverb_wire::{Flow, Marks, Room};

use super::uplink::{UDP_BYTES, Uplink, pseudo};
use crate::base::iovec::IoCursor;
use crate::base::{address, raw};

/// The ways of one socket.
#[derive(Debug, Default)]
pub(super) struct Ways {
    known: Vec<Option<Way>>,
    /// Where it is connected to, as of that epoch.
    peer: Option<SocketAddr>,
    epoch: Option<u32>,
    room: Vec<u8>,
}

/// What is known about one destination.
#[derive(Debug)]
struct Way {
    to: SocketAddr,
    until_ns: u64,
    /// `None`: by the kernel.
    by: Option<By>,
}

#[derive(Debug)]
struct By {
    uplink: Arc<Uplink>,
    head: Head,
    payload_max: usize,
}

/// The headers of all datagrams to one destination, to which lengths and checksums are added.
#[derive(Debug)]
struct Head {
    /// Those of an empty datagram, with zeros in place of its lengths and checksums.
    bytes: Room<HEAD_BYTES_MAX>,
    is_ipv6: bool,
    /// Sums of what is there: of the header of IPv4, and of that of UDP with the pseudo header.
    ip: Sum,
    udp: Sum,
}

impl Ways {
    /// Sends a datagram; `None` if it is to go by the kernel. Besides, the interface, if it has not taken all yet.
    pub(super) fn send(
        &mut self,
        uplinks: &[Arc<Uplink>],
        fd: c_int,
        (epoch, multicast_by): (u32, u64),
        parts: &[libc::iovec],
        to: Option<SocketAddr>,
    ) -> Option<(usize, Option<Arc<Uplink>>)> {
        if self.epoch != Some(epoch) {
            self.known.clear();
            self.peer = address::name(fd, true);
            self.epoch = Some(epoch);
        }
        let to = to.or(self.peer)?;
        if self.known.is_empty() {
            self.known.resize_with(WAYS, || None);
        }
        let place = self.known.get_mut(place(to))?;
        let now = raw::coarse_now_ns();
        if place.as_ref().is_none_or(|way| way.to != to || now >= way.until_ns) {
            let (way, is_sure) = find(uplinks, fd, (to, multicast_by), self.peer.is_some(), now);
            *place = Some(way);
            if !is_sure {
                return None;
            }
        }
        let by = place.as_ref()?.by.as_ref()?;
        let mut cursor = IoCursor::new(parts);
        let len = cursor.remaining();
        if len > by.payload_max {
            return None;
        }
        self.room.resize(len, 0);
        // Where the program's memory is not there, the kernel says so.
        cursor.drain(self.room.as_mut_ptr(), len).ok().filter(|got| *got == len)?;
        let is_taken = by.send(&self.room)?;
        let stuck = by.uplink.has_unsent().then(|| Arc::clone(&by.uplink));
        if !is_taken {
            // It is down, or gone: the next one is the kernel's, which says so.
            *place = Some(Way { to, until_ns: now.saturating_add(ELSEWHERE_NS), by: None });
        }
        Some((len, stuck))
    }
}

impl By {
    /// Sends a datagram, if it is taken; says whether the interface takes more.
    fn send(&self, payload: &[u8]) -> Option<bool> {
        let head = self.head.with(payload)?;
        // Two pieces cost less than five.
        self.uplink.send(|writer| {
            writer.push(head.as_slice());
            writer.push(payload);
        })
    }
}

impl Head {
    fn new(
        macs: [u8; 12],
        (from, to): (IpAddr, IpAddr),
        flow: &Flow,
        marks: Marks,
    ) -> Option<Self> {
        let headers = emit_udp_headers(flow, 0, marks, 0);
        let (ip, udp) = headers.as_slice().split_last_chunk::<UDP_BYTES>()?;
        let is_ipv6 = flow.is_ipv6();
        let kind: u16 = if is_ipv6 { IPV6 } else { IPV4 };
        let mut bytes = Room::new();
        bytes.push(macs);
        bytes.push(kind.to_be_bytes());
        bytes.append(ip);
        let [a, b, c, d, _, _, _, _] = *udp;
        let udp = [a, b, c, d, 0, 0, 0, 0];
        bytes.push(udp);
        let [len_at, sum_at] = if is_ipv6 { [LEN_AT_V6; 2] } else { [LEN_AT_V4, SUM_AT_V4] };
        bytes.patch(len_at, [0; 2]);
        bytes.patch(sum_at, [0; 2]);
        let ip = bytes.as_slice().get(ETHERNET_BYTES..)?.split_last_chunk::<UDP_BYTES>()?.0;
        let (ip, udp) = (Sum::default().with(ip), pseudo(from, to, 0)?.with(&udp));
        Some(Self { bytes, is_ipv6, ip, udp })
    }

    /// The headers of a datagram with this payload.
    #[inline]
    fn with(&self, payload: &[u8]) -> Option<Room<HEAD_BYTES_MAX>> {
        let len = u16::try_from(UDP_BYTES + payload.len()).ok()?;
        let mut bytes = self.bytes;
        let udp_len = len.to_be_bytes();
        // The pseudo header has the length, too.
        let sum = match self.udp.with(&udp_len).with(&udp_len).with(payload).finish() {
            0 => 0xffff, // 0 says that there is none.
            sum => sum,
        };
        let ([l0, l1], [s0, s1]) = (udp_len, sum.to_be_bytes());
        if self.is_ipv6 {
            bytes.patch(LEN_AT_V6, udp_len);
            bytes.patch(ETHERNET_BYTES + Ipv6::LEN + 4, [l0, l1, s0, s1]);
        } else {
            let all = len.checked_add(IPV4_BYTES)?.to_be_bytes();
            bytes.patch(LEN_AT_V4, all);
            bytes.patch(SUM_AT_V4, self.ip.with(&all).finish().to_be_bytes());
            bytes.patch(ETHERNET_BYTES + Ipv4::LEN + 4, [l0, l1, s0, s1]);
        }
        Some(bytes)
    }
}

/// Finds the way to a destination; whether it may be used at once.
fn find(
    uplinks: &[Arc<Uplink>],
    fd: c_int,
    (to, multicast_by): (SocketAddr, u64),
    is_connected: bool,
    now: u64,
) -> (Way, bool) {
    let found = find_by(uplinks, fd, (to, multicast_by), is_connected);
    let wait_ns = match &found {
        Ok(_) => KNOWN_NS,
        Err(Unknown::Elsewhere) => ELSEWHERE_NS,
        Err(Unknown::Neighbour) => UNKNOWN_NS,
    };
    let is_sure = found.as_ref().is_ok_and(|(_, is_sure)| *is_sure);
    let by = found.ok().map(|(by, _)| by);
    (Way { to, until_ns: now.saturating_add(wait_ns), by }, is_sure)
}

/// Why there is no way by frames.
enum Unknown {
    /// The kernel is about to find out the neighbour.
    Neighbour,
    /// It is the kernel's.
    Elsewhere,
}

fn find_by(
    uplinks: &[Arc<Uplink>],
    fd: c_int,
    (to, multicast_by): (SocketAddr, u64),
    is_connected: bool,
) -> Result<(By, bool), Unknown> {
    let option = |level, name| raw::option::<c_int>(fd, level, name).unwrap_or(0);
    let own = address::name(fd, false).ok_or(Unknown::Elsewhere)?;
    let asker = uplinks.iter().find(|uplink| !uplink.has_ended()).ok_or(Unknown::Elsewhere)?;
    let (v4, v6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    let is_foreign = to.is_ipv4() && option(v6, libc::IPV6_V6ONLY) != 0;
    if to.port() == 0 || is_foreign || !is_one_host(to.ip()) && !address::is_group(to.ip()) {
        return Err(Unknown::Elsewhere);
    }
    let group = if to.ip().is_multicast() { Mac::of_group(to.ip()) } else { None };
    let (chosen, by) = match (group, to) {
        (None, _) => (None, None),
        // What comes back to this host as well is the kernel's.
        (Some(_), SocketAddr::V4(_)) if option(v4, libc::IP_MULTICAST_LOOP) != 0 => {
            return Err(Unknown::Elsewhere);
        }
        (Some(_), SocketAddr::V6(_)) if option(v6, libc::IPV6_MULTICAST_LOOP) != 0 => {
            return Err(Unknown::Elsewhere);
        }
        (Some(_), SocketAddr::V4(_)) => by_interface(uplinks, multicast_by)?,
        (Some(_), SocketAddr::V6(_)) => {
            let index = option(v6, libc::IPV6_MULTICAST_IF).cast_unsigned();
            (Some(index).filter(|index| *index != 0), None)
        }
    };
    let is_host = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
    let from = Some(own.ip()).filter(is_host).or(by);
    let route = asker.route(to.ip(), from, chosen);
    let route = route.filter(|route| route.unicast || group.is_some()).ok_or(Unknown::Elsewhere)?;
    let mut all = uplinks.iter().filter(|uplink| !uplink.has_ended());
    let uplink = all.find(|uplink| uplink.index == route.interface).ok_or(Unknown::Elsewhere)?;
    let facts = uplink.facts();
    // An address that was taken from the interface is no source any more.
    let from = from.or(route.source).filter(|from| facts.has(*from)).ok_or(Unknown::Elsewhere)?;
    let next = route.gateway.unwrap_or(to.ip());
    let (mac, fresh) = match group {
        Some(Mac(mac)) => (mac, true),
        None => {
            let Neighbour { mac, fresh } = uplink.neighbour(next).ok_or(Unknown::Neighbour)?;
            if Mac(mac).is_group() {
                return Err(Unknown::Elsewhere);
            }
            (mac, fresh)
        }
    };
    let (flow, hops, class, discovers, headers) = match (from, to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (
            Flow::v4(src.octets(), dst.octets(), own.port(), to.port()),
            option(v4, if group.is_some() { libc::IP_MULTICAST_TTL } else { libc::IP_TTL }),
            option(v4, libc::IP_TOS),
            option(v4, libc::IP_MTU_DISCOVER),
            28,
        ),
        (IpAddr::V6(src), IpAddr::V6(dst)) => (
            Flow::v6(src.octets(), dst.octets(), own.port(), to.port()),
            match group {
                Some(_) => option(v6, libc::IPV6_MULTICAST_HOPS),
                None => option(v6, libc::IPV6_UNICAST_HOPS),
            },
            option(v6, libc::IPV6_TCLASS),
            option(v6, libc::IPV6_MTU_DISCOVER),
            48,
        ),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            return Err(Unknown::Elsewhere);
        }
    };
    // What may make no hop stays on this host; and there are sockets that let routers cut their packets.
    let (Ok(hop_limit @ 1..), true) = (u8::try_from(hops), FINDS_MTU.contains(&discovers)) else {
        return Err(Unknown::Elsewhere);
    };
    let mut mtu = usize::try_from(facts.mtu).unwrap_or(0);
    if route.gateway.is_some() {
        mtu = mtu.min(PATH_MTU);
    }
    if is_connected {
        let (level, name) = if to.is_ipv4() { (v4, IP_MTU) } else { (v6, IPV6_MTU) };
        mtu = raw::option::<c_int>(fd, level, name)
            .ok()
            .and_then(|path| usize::try_from(path).ok())
            .map_or(mtu, |path| path.min(mtu));
    }
    let mut macs = [0; 12];
    macs.iter_mut().zip(mac.iter().chain(&facts.mac)).for_each(|(to, from)| *to = *from);
    let marks = Marks { traffic_class: u8::try_from(class).unwrap_or(0), hop_limit, flow_label: 0 };
    let payload_max = mtu.saturating_sub(headers);
    let head = Head::new(macs, (from, to.ip()), &flow, marks).ok_or(Unknown::Elsewhere)?;
    Ok((By { uplink: Arc::clone(uplink), head, payload_max }, fresh))
}

/// The interface by which a program has said that it sends to groups, and from which of its addresses, if it has.
fn by_interface(
    uplinks: &[Arc<Uplink>],
    by: u64,
) -> Result<(Option<u32>, Option<IpAddr>), Unknown> {
    let [i0, i1, i2, i3, a0, a1, a2, a3] = by.to_be_bytes();
    // The address is as the kernel reads it.
    let address = IpAddr::from(u32::from_be_bytes([a0, a1, a2, a3]).to_ne_bytes());
    let address = Some(address).filter(|address| !address.is_unspecified());
    match (u32::from_be_bytes([i0, i1, i2, i3]), address) {
        (0, None) => Ok((None, None)),
        (0, Some(one)) => {
            let found = uplinks.iter().find(|uplink| uplink.facts().has(one));
            found.map(|uplink| (Some(uplink.index), address)).ok_or(Unknown::Elsewhere)
        }
        // Of another program's socket it is not known.
        (u32::MAX, _) => Err(Unknown::Elsewhere),
        (index, _) => Ok((Some(index), address)),
    }
}

/// Whether an address is that of one host. Those of one link mean nothing without it.
fn is_one_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified() && !ip.is_unicast_link_local(),
    }
}

fn place(to: SocketAddr) -> usize {
    let last = match to.ip() {
        IpAddr::V4(ip) => ip.octets().last().copied(),
        IpAddr::V6(ip) => ip.octets().last().copied(),
    };
    (usize::from(to.port()) ^ usize::from(last.unwrap_or(0))) % WAYS
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Headers of Ethernet, IPv6 and UDP.
const HEAD_BYTES_MAX: usize = ETHERNET_BYTES + Ipv6::LEN + UDP_BYTES;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: u16 = 20;
// Where in them the lengths and the checksum of IP are.
const LEN_AT_V4: usize = ETHERNET_BYTES + 2;
const SUM_AT_V4: usize = ETHERNET_BYTES + 10;
const LEN_AT_V6: usize = ETHERNET_BYTES + 4;
/// Destinations of one socket that are known at a time.
const WAYS: usize = 64;
/// How long an answer of the kernel counts; how long it is not asked again about what it does not know; and about what is
/// its own. The clock moves with the kernel's ticks, so each may be one tick longer.
const KNOWN_NS: u64 = 1_000_000_000;
const UNKNOWN_NS: u64 = 1_000_000;
const ELSEWHERE_NS: u64 = 100_000_000;
/// Behind a router longer packets are the kernel's, which knows how long they may be.
const PATH_MTU: usize = 1280;
/// Values of `IP_MTU_DISCOVER` by which packets are not cut on their way: WANT, DO and PROBE, of both families.
const FINDS_MTU: [c_int; 3] = [1, 2, 3];
const IP_MTU: c_int = 14;
const IPV6_MTU: c_int = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_tcpip::frame::{Checksums, Frame};

    /// Goal: each datagram has the headers that it would have alone, of any length.
    #[test]
    fn headers_are_those_of_a_datagram_alone() {
        let marks = Marks { traffic_class: 0x2e, hop_limit: 9, flow_label: 0 };
        for is_ipv6 in [false, true] {
            let ends = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"].map(|ip| ip.parse().unwrap());
            let [v4, to_v4, v6, to_v6]: [IpAddr; 4] = ends;
            let (from, to) = if is_ipv6 { (v6, to_v6) } else { (v4, to_v4) };
            let flow = match (from, to) {
                (IpAddr::V4(from), IpAddr::V4(to)) => Flow::v4(from.octets(), to.octets(), 7, 8),
                (IpAddr::V6(from), IpAddr::V6(to)) => Flow::v6(from.octets(), to.octets(), 7, 8),
                _ => panic!("two families"),
            };
            let head = Head::new([3; 12], (from, to), &flow, marks).unwrap();
            for len in [0, 1, 2, 63, 64, 1000, 1472, 60_000] {
                let payload: Vec<u8> = (0..len).map(|at: u32| at.to_le_bytes()[0] | 1).collect();
                let bytes = head.with(&payload).unwrap();
                let bytes = bytes.as_slice();
                let alone = emit_udp_headers(&flow, 0, marks, u16::try_from(len).unwrap());
                let (alone, _) = alone.as_slice().split_last_chunk::<2>().unwrap();
                assert_eq!(&bytes[ETHERNET_BYTES..bytes.len() - 2], alone, "{len}");
                let frame = [bytes, &payload].concat();
                let found = Frame::parse(&frame, Checksums::Verified).unwrap();
                assert!(
                    matches!(found, Frame::Udp { payload, .. } if frame.len() - payload.start == payload.len())
                );
            }
            assert!(head.with(&[0; 65_536]).is_none());
        }
    }
}
