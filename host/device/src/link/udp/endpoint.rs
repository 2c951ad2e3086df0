//! One local address: its socket, and what is known about the ways to and from it.

use crate::link::udp::capture::Capture;
use crate::link::xdp::{NextHop, XdpLink};
use adverb_engine::Gid;
use adverb_sys::udp::{self, BindOptions, Destination, Socket};
use adverb_wire::{Flow, Marks, ROCE_PORT};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A socket on the RoCE port of one address.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) socket: Socket,
    pub(crate) addr: SocketAddr,
    /// The interface's number.
    interface: u32,
    pub(crate) capture: Option<Arc<Capture>>,
    /// Bursts leave in one call. Cleared for good when the route refuses one.
    gso: AtomicBool,
    /// Bursts that have left.
    bursts: AtomicU64,
    /// Packets of which nothing else is said may be marked by switches.
    ecn_capable: AtomicBool,
    /// Hop limit of packets of which nothing else is said.
    hop_limit: u8,
    /// That of the socket from the first destination on. All others need a control message with each call.
    of_socket: OnceLock<u8>,
    /// Packets to other hosts leave as frames where they can.
    frames: OnceLock<Arc<XdpLink>>,
    /// They come as frames, too.
    has_claim: AtomicBool,
}

impl Endpoint {
    /// Binds the RoCE port of `addr`, shared with other processes of this user.
    pub(crate) fn bind(
        addr: SocketAddr,
        interface: u32,
        capture: Option<Arc<Capture>>,
    ) -> io::Result<Self> {
        let mut options = BindOptions::new(addr);
        options.reuse_port = true;
        let socket = Socket::bind(&options)?;
        let gso = AtomicBool::new(socket.gso());
        let hop_limit = socket.usual_hop_limit().unwrap_or(Marks::USUAL.hop_limit);
        // An interface that knows no groups says so when one is joined.
        let _ = socket.set_multicast_interface(interface);
        let ecn_capable = AtomicBool::new(false);
        let bursts = AtomicU64::new(0);
        Ok(Self {
            socket,
            addr,
            interface,
            capture,
            gso,
            bursts,
            ecn_capable,
            hop_limit,
            of_socket: OnceLock::new(),
            frames: OnceLock::new(),
            has_claim: AtomicBool::new(false),
        })
    }

    /// From now on packets to and from other hosts go by a link of frames, if it takes them; other processes have this
    /// address, too, if it is `shared`. The socket has what that cannot carry.
    pub(crate) fn take_frames(&self, link: &Arc<XdpLink>, shared: bool) -> io::Result<()> {
        if link.claim(self.addr, self.socket.as_fd(), shared)? {
            self.frames.get_or_init(|| Arc::clone(link));
            self.has_claim.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Others turn out to have this address, too.
    pub(crate) fn yield_frames(&self) {
        if let Some(link) = self.frames.get().filter(|link| link.yields())
            && self.has_claim.swap(false, Ordering::Relaxed)
        {
            link.release(self.addr);
        }
    }

    /// Packets to it come as frames while there is an owner.
    pub(crate) fn has_claim(&self) -> bool {
        self.has_claim.load(Ordering::Relaxed)
    }

    /// An owner does not give them.
    pub(crate) fn lose_claim(&self) {
        self.has_claim.store(false, Ordering::Relaxed);
    }

    /// The way by which packets for `peer` leave as frames, if they can.
    pub(crate) fn next_hop(&self, peer: SocketAddr) -> Option<Box<NextHop>> {
        let link = self.frames.get().filter(|_| !peer.ip().is_multicast())?;
        Some(link.next_hop(self.addr.ip(), peer.ip()))
    }

    /// The address of a multicast group on an interface, as one binds and sends to it.
    pub(crate) fn group(group: Gid, interface: u32) -> SocketAddr {
        match ip_of(group) {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), ROCE_PORT),
            IpAddr::V6(ip) => std::net::SocketAddrV6::new(ip, ROCE_PORT, 0, interface).into(),
        }
    }

    pub(crate) fn gso(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    pub(crate) fn give_up_gso(&self) {
        self.gso.store(false, Ordering::Relaxed);
    }

    /// One more burst leaves.
    #[inline]
    pub(crate) fn count_burst(&self) {
        // Not a read-modify-write: what matters is that it changes, not by how much.
        self.bursts.store(self.bursts().wrapping_add(1), Ordering::Relaxed);
    }

    /// A number that changes with each burst that leaves.
    pub(crate) fn bursts(&self) -> u64 {
        self.bursts.load(Ordering::Relaxed)
    }

    /// From now on packets of which nothing else is said may be marked by switches that they meet congestion at (ECT of
    /// RFC 3168), or may not.
    pub(crate) fn set_ecn_capable(&self, capable: bool) {
        let class = if capable { Marks::ECN_CAPABLE } else { 0 };
        if self.socket.set_traffic_class(class).is_ok() {
            self.ecn_capable.store(capable, Ordering::Relaxed);
        }
    }

    /// How packets for a destination are to be marked.
    pub(crate) fn marks(&self, destination: &Destination) -> Marks {
        let udp::Marks { traffic_class, hop_limit, flow_label } = destination.marks();
        let hop_limit = match hop_limit {
            0 if destination.addr().ip().is_multicast() => GROUP_HOP_LIMIT,
            0 => self.of_socket.get().copied().unwrap_or(self.hop_limit),
            said => said,
        };
        Marks { traffic_class, hop_limit, flow_label }
    }

    /// How they leave: where nothing else is said, switches may mark them.
    pub(crate) fn as_sent(&self, destination: &Destination) -> Marks {
        let marks = self.marks(destination);
        match marks.traffic_class {
            0 if self.ecn_capable.load(Ordering::Relaxed) => {
                Marks { traffic_class: Marks::ECN_CAPABLE, ..marks }
            }
            _ => marks,
        }
    }

    /// The hop limit of the socket, which the first destination chooses.
    fn hop_limit_of_socket(&self, wanted: u8) -> u8 {
        let set = |wanted| self.socket.set_usual_hop_limit(wanted).map(|()| wanted);
        *self.of_socket.get_or_init(|| match wanted == self.hop_limit {
            true => wanted,
            false => set(wanted).unwrap_or(self.hop_limit),
        })
    }

    /// The address and port of a peer's device, as seen from this address.
    pub(crate) fn peer(&self, gid: Gid) -> SocketAddr {
        let ip = ip_of(gid);
        if ip.is_multicast() {
            return Self::group(gid, self.interface);
        }
        match (ip, self.addr) {
            (IpAddr::V6(ip), SocketAddr::V6(own)) => {
                std::net::SocketAddrV6::new(ip, ROCE_PORT, 0, own.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, ROCE_PORT),
        }
    }

    /// Where to send packets for `peer` that are marked in this way. What is marked as it would be anyway costs nothing
    /// more, nor does the hop limit of the first: a program often has one for all.
    pub(crate) fn destination(&self, peer: SocketAddr, marks: Marks) -> Destination {
        let Marks { traffic_class, hop_limit, flow_label } = marks;
        let wanted = if hop_limit == 0 { self.hop_limit } else { hop_limit };
        let hop_limit = match peer.ip().is_multicast() {
            true if hop_limit == GROUP_HOP_LIMIT => 0,
            true => hop_limit,
            false if wanted == self.hop_limit_of_socket(wanted) => 0,
            false => wanted,
        };
        Destination::new(peer).marked(udp::Marks { traffic_class, hop_limit, flow_label })
    }

    /// The flow of packets from this address to `peer`; `None` if they are of different kinds.
    pub(crate) fn flow_to(&self, peer: SocketAddr) -> Option<Flow> {
        flow(self.addr, peer)
    }

    /// The flow of packets from `source` to this address.
    pub(crate) fn flow_from(&self, source: SocketAddr) -> Option<Flow> {
        flow(source, self.addr)
    }
}

/// Packets to a group pass no router unless it is said that they may.
const GROUP_HOP_LIMIT: u8 = 1;

/// The address in a GID.
pub(crate) fn ip_of(gid: Gid) -> IpAddr {
    match gid.v4() {
        Some(v4) => IpAddr::from(v4),
        None => IpAddr::V6(Ipv6Addr::from(gid.0)),
    }
}

/// The GID of an address.
pub(crate) fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => Gid::from_v4(v4.octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

fn flow(from: SocketAddr, to: SocketAddr) -> Option<Flow> {
    match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Some(Flow::v4(src.octets(), dst.octets(), from.port(), to.port()))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Some(Flow::v6(src.octets(), dst.octets(), from.port(), to.port()))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// A sender of packets.
#[derive(Debug)]
pub(crate) struct KnownSender {
    addr: SocketAddr,
    pub(crate) gid: Gid,
    /// From there to the endpoint.
    pub(crate) flow: Flow,
}

/// Recent senders, so that a packet's GID and flow cost one comparison and not a CRC of addresses.
#[derive(Debug)]
pub(crate) struct FlowCache {
    entries: Box<[Option<KnownSender>]>,
}

impl FlowCache {
    const LEN: usize = 64;

    pub(crate) fn new() -> Self {
        Self { entries: std::iter::repeat_with(|| None).take(Self::LEN).collect() }
    }

    /// The sender of packets from `addr` to `endpoint`; `None` if such packets have no flow.
    #[inline]
    pub(crate) fn get(&mut self, addr: &SocketAddr, endpoint: &Endpoint) -> Option<&KnownSender> {
        let last = match addr.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let at = usize::from(last ^ addr.port().to_le_bytes()[0]) % Self::LEN;
        let entry = self.entries.get_mut(at)?;
        if entry.as_ref().is_none_or(|known| known.addr != *addr) {
            *entry = sender(*addr, endpoint);
        }
        entry.as_ref()
    }
}

#[inline(never)]
fn sender(addr: SocketAddr, endpoint: &Endpoint) -> Option<KnownSender> {
    endpoint.flow_from(addr).map(|flow| KnownSender { addr, gid: gid_of(addr.ip()), flow })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn marks(hop_limit: u8) -> Marks {
        Marks { hop_limit, ..Marks::default() }
    }

    /// Goal: what leaves without a control message has the hop limit of the first destination, all else its own.
    #[test]
    fn the_first_destination_chooses_the_hop_limit_of_the_socket() {
        let here = Ipv4Addr::LOCALHOST.into();
        for first in [0, 64, 255, 1] {
            // A port of its own: others of this user share that of the devices.
            let endpoint = Endpoint::bind(SocketAddr::new(here, 0), 1, None).unwrap();
            let usual = endpoint.hop_limit;
            let peer = SocketAddr::new(here, ROCE_PORT);
            let expected = if first == 0 { usual } else { first };
            for asked in [first, 0, 64, 255, 1] {
                let limit = if asked == 0 { usual } else { asked };
                let destination = endpoint.destination(peer, marks(asked));
                let said = if limit == expected { 0 } else { limit };
                assert_eq!(destination.marks().hop_limit, said, "{asked} after {first}");
                assert_eq!(endpoint.as_sent(&destination).hop_limit, limit);
            }
            assert_eq!(endpoint.socket.usual_hop_limit().unwrap(), expected);
        }
    }

    /// Goal: what is remembered of one sender is not told of another that has its place, nor once it is back.
    #[test]
    fn senders_that_share_a_place_are_told_apart() {
        let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, None).unwrap();
        let [first, second] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 9, 9, 1)]
            .map(|ip| SocketAddr::new(ip.into(), ROCE_PORT));
        let mut flows = FlowCache::new();
        for addr in [first, second, second, first] {
            let known = flows.get(&addr, &endpoint).unwrap();
            assert_eq!(known.gid, gid_of(addr.ip()));
            assert_eq!(Some(known.flow), endpoint.flow_from(addr));
        }
    }

    /// Goal: groups have a hop limit of their own, whatever that of the socket is.
    #[test]
    fn packets_to_groups_pass_no_router_unless_it_is_said() {
        let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), 1, None).unwrap();
        let group = SocketAddr::new(Ipv4Addr::new(239, 0, 0, 1).into(), ROCE_PORT);
        for (asked, said, sent) in [(0, 0, 1), (1, 0, 1), (255, 255, 255)] {
            let destination = endpoint.destination(group, marks(asked));
            assert_eq!(destination.marks().hop_limit, said);
            assert_eq!(endpoint.as_sent(&destination).hop_limit, sent);
        }
        assert_eq!(endpoint.of_socket.get(), None);
    }
}
