//! Next hops: where frames for an address go, as the kernel knows it.
//!
//! The kernel finds neighbours for nobody but itself: a hardware address that it does not know, or is not sure of, it
//! finds out to send an empty datagram to the neighbour's discard port.

use adverb_sys::routes::{Neighbour, Route, Routes};
use adverb_tcpip::Time;
use adverb_tcpip::ethernet::Mac;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

/// What is known of the way to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hop {
    /// The hardware address that frames go to.
    Known(Mac),
    /// The kernel is finding it out.
    Sought,
    /// There is no way by this interface.
    None,
}

/// The ways to addresses that packets go to.
#[derive(Debug)]
pub(crate) struct Hops {
    interface: u32,
    routes: Routes,
    known: HashMap<IpAddr, Entry>,
    /// The one that was found last, of those.
    last: Option<(IpAddr, Entry)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hop: Hop,
    /// When the kernel is to be asked again.
    ask_at: Time,
    /// How often it has been asked in vain.
    asked: u32,
}

impl Hops {
    pub(crate) fn new(interface: u32) -> io::Result<Self> {
        Ok(Self { interface, routes: Routes::open()?, known: HashMap::new(), last: None })
    }

    /// The way to an address.
    #[inline]
    pub(crate) fn find(&mut self, to: IpAddr, now: Time) -> Hop {
        if let Some((last, entry)) = self.last
            && last == to
            && now < entry.ask_at
        {
            return entry.hop;
        }
        let entry = match self.known.get(&to) {
            Some(entry) if now < entry.ask_at => *entry,
            Some(_) | None => self.ask(to, now),
        };
        self.last = Some((to, entry));
        entry.hop
    }

    /// Routes have changed: all is to be asked anew.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.last = None;
    }

    #[cold]
    fn ask(&mut self, to: IpAddr, now: Time) -> Entry {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let asked = self.known.get(&to).map_or(0, |entry| entry.asked);
        let (hop, wait, asked) = match self.look_up(to, asked) {
            Ok(Some(mac)) => (Hop::Known(mac), KNOWN_FOR, 0),
            Ok(None) if asked < ASKED_MAX => {
                // As fast as neighbours answer at first, and then as slowly as they may.
                let wait = SOUGHT_FOR * (1 << asked.min(SLOWER_MAX));
                (Hop::Sought, wait, asked + 1)
            }
            Ok(None) | Err(_) => (Hop::None, NONE_FOR, 0),
        };
        let entry = Entry { hop, ask_at: now.plus(wait), asked };
        self.known.insert(to, entry);
        entry
    }

    /// The hardware address, if the kernel knows it.
    fn look_up(&self, to: IpAddr, asked: u32) -> io::Result<Option<Mac>> {
        if let Some(mac) = group_mac(to) {
            return Ok(Some(mac));
        }
        let route = self.route(to)?;
        let hop = route.gateway.unwrap_or(to);
        let found = self.routes.neighbour(hop, self.interface)?;
        if !found.is_some_and(|neighbour| neighbour.fresh) && asked == 0 {
            // Best effort: without it, the kernel finds out when something else of this host's goes there.
            let _ = self.seek(hop);
        }
        Ok(found.map(|Neighbour { mac, .. }| Mac(mac)))
    }

    /// The route to an address by this interface.
    pub(crate) fn route(&self, to: IpAddr) -> io::Result<Route> {
        let scoped = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
        let route = self.routes.route(to, scoped.then_some(self.interface))?;
        match !route.unicast || route.interface != self.interface {
            true => Err(io::ErrorKind::NetworkUnreachable.into()),
            false => Ok(route),
        }
    }

    /// Makes the kernel find out the neighbour's hardware address.
    fn seek(&self, hop: IpAddr) -> io::Result<()> {
        let (any, to): (IpAddr, _) = match hop {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), SocketAddr::new(hop, DISCARD)),
            IpAddr::V6(ip) => {
                let to = SocketAddrV6::new(ip, DISCARD, 0, self.interface);
                (Ipv6Addr::UNSPECIFIED.into(), to.into())
            }
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_nonblocking(true)?;
        socket.send_to(&[], to).map(|_| ())
    }
}

/// The hardware address of a group of hosts: RFC 1112 §6.4, RFC 2464 §7.
fn group_mac(to: IpAddr) -> Option<Mac> {
    match to {
        IpAddr::V4(to) if to.is_multicast() => {
            let [_, b, c, d] = to.octets();
            Some(Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V4(to) if to.is_broadcast() => Some(Mac::BROADCAST),
        IpAddr::V6(to) if to.is_multicast() => {
            let [.., a, b, c, d] = to.octets();
            Some(Mac([0x33, 0x33, a, b, c, d]))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// How long an answer of the kernel counts.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// How long the kernel is not asked again about what it does not know, at first; each time it is twice as long, up to
/// 2 to the power of [`SLOWER_MAX`] times; it gives up after three seconds itself.
const SOUGHT_FOR: Duration = Duration::from_micros(100);
const SLOWER_MAX: u32 = 7;
const ASKED_MAX: u32 = 240;
/// How long no packets go where there is no way.
const NONE_FOR: Duration = Duration::from_millis(500);
/// Addresses that are known.
const KNOWN_MAX: usize = 4096;
/// RFC 863.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_hardware_addresses_that_the_rfcs_say() {
        let mac = |text: &str| group_mac(text.parse().unwrap());
        assert_eq!(mac("224.129.7.8"), Some(Mac([0x01, 0x00, 0x5e, 1, 7, 8])));
        assert_eq!(mac("255.255.255.255"), Some(Mac::BROADCAST));
        assert_eq!(mac("ff02::1:ff00:1"), Some(Mac([0x33, 0x33, 0xff, 0, 0, 1])));
        assert_eq!((mac("10.0.0.1"), mac("fd00::1")), (None, None));
    }
}
