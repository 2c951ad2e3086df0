//! Next hops: where frames for an address go, as the kernel knows it.
//!
//! The kernel finds neighbours for its own packets only: a hardware address that it does not know, or is not sure of, it
//! finds out to send an empty datagram to the neighbour's discard port.
//!
//! Two tables: packets have a next hop, by the addresses that they come from and go to, and a next hop has a hardware address,
//! so that a router is sought once, whatever goes by it.

use crate::stack::CONNECTIONS_MAX;
use adverb_sys::routes::{Neighbour, Route, Routes};
use adverb_tcpip::Time;
use adverb_tcpip::ethernet::Mac;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The two ends of a packet. The route may depend on either.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Ends {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
}

/// What is known of the way between two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hop {
    /// The hardware address that frames go to.
    Known(Mac),
    /// The kernel is finding out that of this neighbour.
    Sought(IpAddr),
    /// They leave by another interface.
    Elsewhere,
    /// There is no way.
    None,
}

/// The ways to addresses that packets go to.
#[derive(Debug)]
pub(crate) struct Hops {
    interface: u32,
    routes: Routes,
    ways: HashMap<Ends, Way>,
    neighbours: HashMap<IpAddr, Entry>,
    /// The way that was found last.
    last: Option<(Ends, Way)>,
}

/// A way between two ends.
#[derive(Clone, Copy, Debug)]
struct Way {
    by: By,
    /// When the kernel is to be asked for the route again.
    route_at: Time,
    hop: Hop,
    /// When something of this is not known any more.
    until: Time,
}

/// Where packets go first.
#[derive(Clone, Copy, Debug)]
enum By {
    Group(Mac),
    Neighbour(IpAddr),
    Elsewhere,
    None,
}

/// What is known of a neighbour: the address itself, or a router.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hop: Hop,
    /// When the kernel is to be asked again.
    ask_at: Time,
    /// How often it has been asked in vain.
    asked: u32,
}

impl Hops {
    pub(crate) fn new(interface: u32, routes: Routes) -> Self {
        let (ways, neighbours) = (HashMap::new(), HashMap::new());
        Self { interface, routes, ways, neighbours, last: None }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.routes.as_fd()
    }

    /// The way between two ends.
    #[inline]
    pub(crate) fn find(&mut self, ends: Ends, now: Time) -> Hop {
        if let Some((last, way)) = self.last
            && last == ends
            && now < way.until
        {
            return way.hop;
        }
        let way = match self.ways.get(&ends) {
            Some(way) if now < way.until => *way,
            Some(_) | None => self.find_way(ends, now),
        };
        self.last = Some((ends, way));
        way.hop
    }

    /// Routes have changed: all is to be asked anew.
    pub(crate) fn forget(&mut self) {
        self.ways.clear();
        self.neighbours.clear();
        self.last = None;
    }

    #[cold]
    fn find_way(&mut self, ends: Ends, now: Time) -> Way {
        let routed = self.ways.get(&ends).filter(|way| now < way.route_at);
        let (by, route_at) = match routed {
            Some(way) => (way.by, way.route_at),
            None => self.ask_route(ends, now),
        };
        let (hop, until) = match by {
            By::Group(mac) => (Hop::Known(mac), route_at),
            By::Neighbour(ip) => {
                let Entry { hop, ask_at, .. } = self.find_neighbour(ip, now);
                (hop, ask_at.min(route_at))
            }
            By::Elsewhere => (Hop::Elsewhere, route_at),
            By::None => (Hop::None, route_at),
        };
        let way = Way { by, route_at, hop, until };
        make_room(&mut self.ways, ENTRIES_MAX, |way| now < way.route_at);
        self.ways.insert(ends, way);
        way
    }

    /// Where packets go first, and until when that counts.
    fn ask_route(&self, Ends { from, to }: Ends, now: Time) -> (By, Time) {
        if let Some(mac) = Mac::of_group(to) {
            return (By::Group(mac), now.plus(KNOWN_FOR));
        }
        match self.ask(to, Some(from)).map(|route| (self.is_by_this(&route), route)) {
            Ok((true, route)) => (By::Neighbour(route.gateway.unwrap_or(to)), now.plus(KNOWN_FOR)),
            Ok((false, route)) if route.unicast => (By::Elsewhere, now.plus(NONE_FOR)),
            Ok(_) | Err(_) => (By::None, now.plus(NONE_FOR)),
        }
    }

    fn find_neighbour(&mut self, ip: IpAddr, now: Time) -> Entry {
        let known = self.neighbours.get(&ip).copied();
        if let Some(entry) = known.filter(|entry| now < entry.ask_at) {
            return entry;
        }
        let asked = known.map_or(0, |entry| entry.asked);
        let (hop, wait, asked) = match self.ask_neighbour(ip, asked) {
            Ok(Some(mac)) => (Hop::Known(mac), KNOWN_FOR, 0),
            Ok(None) if asked < ASKED_MAX => {
                // As fast as neighbours answer at first, and then as slowly as they may.
                let wait = SOUGHT_FOR * (1 << asked.min(SLOWER_MAX));
                (Hop::Sought(ip), wait, asked + 1)
            }
            Ok(None) | Err(_) => (Hop::None, NONE_FOR, 0),
        };
        let entry = Entry { hop, ask_at: now.plus(wait), asked };
        make_room(&mut self.neighbours, ENTRIES_MAX, |entry| now < entry.ask_at);
        self.neighbours.insert(ip, entry);
        entry
    }

    /// A neighbour's hardware address, if the kernel knows it.
    fn ask_neighbour(&self, ip: IpAddr, asked: u32) -> io::Result<Option<Mac>> {
        let found = self.routes.neighbour(ip, self.interface)?;
        if !found.is_some_and(|neighbour| neighbour.fresh) && asked == 0 {
            // Best effort: without it, the kernel finds out when something else of this host's goes there.
            let _ = self.routes.seek(ip, self.interface);
        }
        Ok(found.map(|Neighbour { mac, .. }| Mac(mac)))
    }

    /// The route to an address by this interface, from whichever of its own the kernel chooses.
    pub(crate) fn route(&self, to: IpAddr, from: Option<IpAddr>) -> io::Result<Route> {
        let route = self.ask(to, from)?;
        match self.is_by_this(&route) {
            true => Ok(route),
            false => Err(io::ErrorKind::NetworkUnreachable.into()),
        }
    }

    fn ask(&self, to: IpAddr, from: Option<IpAddr>) -> io::Result<Route> {
        let scoped = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
        self.routes.route(to, from, scoped.then_some(self.interface))
    }

    const fn is_by_this(&self, route: &Route) -> bool {
        route.unicast && route.interface == self.interface
    }
}

/// Makes room for one more entry. Those that count no longer go. All go if more than half are left: entries are looked
/// through once for many that come.
fn make_room<K: Eq + Hash, V>(table: &mut HashMap<K, V>, max: usize, counts: impl Fn(&V) -> bool) {
    if table.len() < max {
        return;
    }
    table.retain(|_, entry| counts(entry));
    if table.len() > max / 2 {
        table.clear();
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
/// Ways that are known, and neighbours.
const ENTRIES_MAX: usize = 1 << 15;
/// Each connection may have a peer and a neighbour of its own: those of all that there may be do not push each other out.
const _: () = assert!(ENTRIES_MAX >= 2 * CONNECTIONS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a full table loses what counts no longer, not all; one that is full of what counts becomes empty.
    #[test]
    fn room_is_made_of_what_counts_no_longer() {
        for (len, limit, left) in [(7, 0, 7), (8, 4, 4), (8, 5, 0), (8, 0, 0)] {
            let mut table: HashMap<u32, u32> = (0..len).map(|at| (at, at)).collect();
            make_room(&mut table, 8, |entry| *entry < limit);
            assert_eq!(table.len(), left, "{len} {limit}");
        }
    }
}
