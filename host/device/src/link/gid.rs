//! Devices and their GID tables.
//!
//! A device is a network interface that is up and has an address: `soft_<interface>`. The GID
//! table keeps the places that users of RoCE expect: 0 is the link-local address where there is
//! one, 1 the first IPv4 address, and the rest follows. The table of an open device follows its
//! interface: an address keeps its place as long as it is there, and a new one takes the first
//! that is free.

use crate::link::udp::endpoint::gid_of;
use crate::sync::Mutex;
use adverb_engine::Gid;
use adverb_sys::netdev::{self, Address, Interface};
use adverb_sys::netns;
use adverb_wire::PathMtu;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// A device that can be opened.
#[derive(Clone, Debug, Eq, PartialEq)]
#[doc(alias = "ibv_device")]
#[doc(alias = "ibv_get_device_name")]
#[doc(alias = "ibv_get_device_guid")]
#[doc(alias = "ibv_get_device_index")]
#[non_exhaustive]
pub struct Device {
    /// `soft_` and the interface's name; of a device that is not ours, the kernel's.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// The interface's number.
    pub index: u32,
    /// The node's identifier: made from the hardware address, or for an interface without one from
    /// its number.
    pub guid: u64,
    /// Largest IP packet of the interface, in bytes.
    pub interface_mtu: u32,
    /// The interface has a carrier.
    pub active: bool,
    /// The interface leads back to this host.
    pub loopback: bool,
    /// The GID table.
    pub gids: Vec<GidEntry>,
    /// What is behind it.
    pub provider: Provider,
}

/// Provider of a device: software or hardware.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Provider {
    /// This crate.
    Soft,
    /// The system's libibverbs: RDMA hardware, or a driver of the kernel's.
    Hw(Nature),
}

impl Provider {
    /// `soft` or `hw`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Hw(_) => "hw",
        }
    }
}

/// Attributes that a hardware device reports of itself.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub struct Nature {
    /// What kind of node it is.
    pub node_type: NodeType,
    /// The largest path MTU that its first port takes now.
    pub active_mtu: PathMtu,
}

impl Nature {
    /// What a node of this kind reports, whose first port takes this path MTU.
    pub const fn new(node_type: NodeType, active_mtu: PathMtu) -> Self {
        Self { node_type, active_mtu }
    }
}

/// A place in a GID table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidEntry {
    /// The place.
    pub index: u8,
    /// The identifier.
    pub gid: Gid,
    /// What packets from there look like.
    pub kind: GidKind,
    /// The address to bind: with the interface's number where IPv6 asks for it.
    pub(crate) addr: SocketAddr,
}

impl GidEntry {
    /// Place of the address that is meant unless it is said: the first IPv4 address of the table, or of the family
    /// of `remote`; if there is none, the first of all.
    pub fn usual(gids: &[Self], remote: Option<Gid>) -> u8 {
        let v4 = remote.is_none_or(|remote| remote.v4().is_some());
        let found = gids.iter().find(|entry| entry.gid.v4().is_some() == v4);
        found.or(gids.first()).map_or(0, |entry| entry.index)
    }
}

/// Kind of packets from a GID table entry. `enum ibv_gid_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[doc(alias = "ibv_gid_type")]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE over Ethernet alone.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}

impl std::fmt::Display for GidKind {
    /// As `ibv_devinfo` has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ib => "IB/RoCE v1",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

impl GidEntry {
    /// A place in the table of a device that is not ours.
    pub fn foreign(index: u8, gid: Gid, kind: GidKind) -> Self {
        let ip = match gid.v4() {
            Some(octets) => IpAddr::from(octets),
            None => IpAddr::from(gid.0),
        };
        Self { index, gid, kind, addr: SocketAddr::new(ip, adverb_wire::ROCE_PORT) }
    }

    /// The address.
    pub fn ip(&self) -> IpAddr {
        self.addr.ip()
    }
}

/// Node type of a device. `enum ibv_node_type`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_node_type")]
#[doc(alias = "ibv_node_type_str")]
pub enum NodeType {
    /// A channel adapter, of InfiniBand or RoCE.
    Ca,
    /// An iWARP adapter.
    Rnic,
    /// Its driver does not say.
    Unspecified,
}

impl std::fmt::Display for NodeType {
    /// As `ibv_node_type_str` has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ca => "InfiniBand channel adapter",
            Self::Rnic => "iWARP NIC",
            Self::Unspecified => "unspecified",
        })
    }
}

impl Device {
    /// A device that is not ours, of which nothing more is known: not active, and without addresses.
    pub const fn foreign(name: String, guid: u64, nature: Nature) -> Self {
        Self {
            name,
            interface: String::new(),
            index: 0,
            guid,
            interface_mtu: 0,
            active: false,
            loopback: false,
            gids: Vec::new(),
            provider: Provider::Hw(nature),
        }
    }

    /// What kind of node it is: RoCE devices are channel adapters.
    pub const fn node_type(&self) -> NodeType {
        match self.provider {
            Provider::Soft => NodeType::Ca,
            Provider::Hw(nature) => nature.node_type,
        }
    }

    /// Places of the GID table up to the last that is not empty.
    pub fn gid_places(&self) -> usize {
        self.gids.iter().map(|entry| usize::from(entry.index) + 1).max().unwrap_or(0)
    }

    /// The place of the GID table that has the local address of a connection, as `getsockname(2)` gives
    /// it. On the loopback interface each loopback address stands for the one of its family.
    pub fn entry_at(&self, local: SocketAddr) -> Option<&GidEntry> {
        let ip = local.ip().to_canonical();
        let is_loopback = self.loopback && ip.is_loopback();
        self.gids.iter().find(|entry| {
            let (ours, theirs) = (zone(entry.addr), zone(local));
            let same_zone = ours == theirs || ours == 0 || theirs == 0;
            let stands_for = is_loopback && entry.ip().is_ipv4() == ip.is_ipv4();
            (entry.ip() == ip && same_zone) || (stands_for && entry.ip().is_loopback())
        })
    }

    /// Bytes that IPv6, UDP and the longest RoCE headers with the ICRC take of a packet.
    const OVERHEAD_BYTES: u32 = 40 + 8 + 12 + 28 + 4;

    /// The largest path MTU that fits the interface's packets.
    ///
    /// An interface that cannot carry even the smallest gets that; its packets will not pass. A device
    /// that is not ours says itself what it takes.
    pub fn active_mtu(&self) -> PathMtu {
        if let Provider::Hw(nature) = self.provider {
            return nature.active_mtu;
        }
        let payload = self.interface_mtu.saturating_sub(Self::OVERHEAD_BYTES);
        PathMtu::largest_below(payload).unwrap_or(PathMtu::B256)
    }

    /// An interface that is up and has an address.
    fn of(interface: &Interface) -> Option<Self> {
        Some(Self::like(interface)).filter(|device| interface.up && !device.gids.is_empty())
    }

    /// What an interface is like as a device, whether or not it can be used as one now.
    fn like(interface: &Interface) -> Self {
        let gids = table(&interface.addresses);
        let guid = match interface.mac {
            // EUI-64 with the universal bit flipped, as IPv6 makes it. RFC 4291, appendix A.
            Some([a, b, c, d, e, f]) => u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
            None => u64::from(interface.index) | 0x0200_0000_0000_0000,
        };
        Self {
            name: format!("{PREFIX}{}", interface.name),
            interface: interface.name.clone(),
            index: interface.index,
            guid,
            interface_mtu: interface.mtu,
            active: interface.up && interface.running,
            loopback: interface.loopback,
            gids,
            provider: Provider::Soft,
        }
    }
}

/// The interface's number that an address carries, or 0.
fn zone(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

/// Prefix of the names of software devices.
pub(crate) const PREFIX: &str = "soft_";

/// Entries that a GID table can have.
const GIDS_MAX: usize = 128;
/// Places of an open device's GID table, at least.
const PLACES_MIN: usize = 16;
/// Places for addresses that come while a device is open, at least.
const PLACES_SPARE: usize = 8;
const _: () = assert!(GIDS_MAX + PLACES_SPARE < 256, "a place is a byte");

/// The devices of this network namespace, in the kernel's order.
///
/// # Errors
///
/// Those of `getifaddrs(3)`.
pub fn devices() -> io::Result<Vec<Device>> {
    Ok(netdev::interfaces()?.iter().filter_map(Device::of).collect())
}

/// Name and MTU of the interface with this number.
pub fn interface_name(index: u32) -> Option<(String, u32)> {
    let all = netdev::interfaces().ok()?;
    let found = all.into_iter().find(|interface| interface.index == index)?;
    Some((found.name, found.mtu))
}

/// The GID table of an open device.
#[derive(Debug)]
pub(crate) struct GidTable {
    /// The network that the device was opened in; `None` where the kernel does not say.
    network: Option<u64>,
    /// Places, empty ones included: none is added while the device is open.
    places: usize,
    entries: Mutex<Vec<GidEntry>>,
    /// The device as of the last look at its interface, but the table. Held during a look, so that none is overtaken by one that
    /// saw less; the receive path waits for the entries alone.
    last: Mutex<Device>,
}

impl GidTable {
    /// That of a device which is being opened.
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            network: netns::current_id().ok(),
            places: (device.gids.len() + PLACES_SPARE).max(PLACES_MIN),
            entries: Mutex::new(device.gids.clone()),
            last: Mutex::new(Device { gids: Vec::new(), ..device.clone() }),
        }
    }

    /// Places, empty ones included.
    pub(crate) const fn places(&self) -> usize {
        self.places
    }

    /// What is in it, as of the last look.
    pub(crate) fn entries(&self) -> Vec<GidEntry> {
        self.entries.lock().clone()
    }

    /// It has this address, as of the last look.
    pub(crate) fn has(&self, gid: Gid) -> bool {
        self.entries.lock().iter().any(|entry| entry.gid == gid)
    }

    /// What is at this place. Where nothing was at the last look, it looks again.
    pub(crate) fn at(&self, index: u8) -> Option<GidEntry> {
        let find =
            |entries: &[GidEntry]| entries.iter().find(|entry| entry.index == index).copied();
        let known = find(&self.entries.lock());
        known.or_else(|| find(&self.look().ok()??.gids))
    }

    /// What the interface is like now, with this table, which follows; `None` if it has gone: the table stays as it is then. A
    /// thread that has gone to another network does not see the interface, and gets what was seen last.
    ///
    /// # Errors
    ///
    /// Those of `getifaddrs(3)`; the table stays as it is then.
    pub(crate) fn look(&self) -> io::Result<Option<Device>> {
        self.look_by(netns::current_id().ok(), netdev::interfaces)
    }

    fn look_by(
        &self,
        network: Option<u64>,
        interfaces: impl FnOnce() -> io::Result<Vec<Interface>>,
    ) -> io::Result<Option<Device>> {
        let mut last = self.last.lock();
        if network == self.network {
            let all = interfaces()?;
            let found = all.iter().find(|interface| interface.index == last.index);
            let Some(mut now) = found.map(Device::like) else {
                return Ok(None);
            };
            let addresses = std::mem::take(&mut now.gids);
            follow(&mut self.entries.lock(), &addresses, self.places);
            *last = now;
        }
        Ok(Some(Device { gids: self.entries(), ..last.clone() }))
    }
}

/// Takes out what has gone, and gives what came the first free place that it may have: 0 is for IPv6, 1 for IPv4, as in
/// the table of a device that is opened. What finds none is left out, until one is free.
fn follow(entries: &mut Vec<GidEntry>, now: &[GidEntry], places: usize) {
    entries.retain(|entry| now.iter().any(|found| found.addr == entry.addr));
    for found in now {
        if entries.iter().any(|entry| entry.addr == found.addr) {
            continue;
        }
        let suits = |index: u8| match index {
            0 => found.addr.is_ipv6(),
            1 => found.addr.is_ipv4(),
            _ => true,
        };
        let is_free = |index: u8| entries.iter().all(|entry| entry.index != index);
        let mut all = (0..u8::MAX).take(places);
        if let Some(index) = all.find(|index| suits(*index) && is_free(*index)) {
            entries.push(GidEntry { index, ..*found });
        }
    }
    entries.sort_unstable_by_key(|entry| entry.index);
}

fn table(addresses: &[Address]) -> Vec<GidEntry> {
    let is_link_local = |address: &&Address| match address.ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let link_local = addresses.iter().find(is_link_local);
    let first_v4 = addresses.iter().find(|address| address.ip.is_ipv4());
    let rest = addresses
        .iter()
        .filter(|address| Some(*address) != link_local && Some(*address) != first_v4);
    let mut rest = rest.peekable();
    // Without a link-local address another IPv6 address takes its place, so that IPv4 stays at 1.
    let zero = link_local.or_else(|| rest.next_if(|address| address.ip.is_ipv6()));
    let fixed = [(0, zero), (1, first_v4)];
    let fixed = fixed.into_iter().filter_map(|(index, address)| Some((index, address?)));
    fixed
        .chain((2..).zip(rest))
        .take(GIDS_MAX)
        .map(|(index, address)| GidEntry {
            index,
            gid: gid_of(address.ip),
            kind: GidKind::RoceV2,
            addr: match address.ip {
                IpAddr::V4(ip) => SocketAddr::new(ip.into(), adverb_wire::ROCE_PORT),
                IpAddr::V6(ip) => {
                    let port = adverb_wire::ROCE_PORT;
                    std::net::SocketAddrV6::new(ip, port, 0, address.scope_id).into()
                }
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str) -> Address {
        Address { ip: ip.parse().unwrap(), prefix: 24, scope_id: 0 }
    }

    fn places(addresses: &[&str]) -> Vec<(u8, String)> {
        let addresses: Vec<_> = addresses.iter().map(|ip| address(ip)).collect();
        table(&addresses).iter().map(|e| (e.index, e.ip().to_string())).collect()
    }

    fn want(places: &[(u8, &str)]) -> Vec<(u8, String)> {
        places.iter().map(|(i, ip)| (*i, (*ip).to_owned())).collect()
    }

    #[test]
    fn link_local_is_0_ipv4_is_1_and_the_rest_follows() {
        assert_eq!(
            places(&["192.0.2.2", "192.0.2.3", "fd00::2", "fe80::1"]),
            want(&[(0, "fe80::1"), (1, "192.0.2.2"), (2, "192.0.2.3"), (3, "fd00::2")])
        );
    }

    #[test]
    fn ipv4_stays_at_1_without_a_link_local_address() {
        assert_eq!(places(&["127.0.0.1", "::1"]), want(&[(0, "::1"), (1, "127.0.0.1")]));
        assert_eq!(places(&["127.0.0.1"]), want(&[(1, "127.0.0.1")]));
    }

    /// A table that was opened with the first addresses, once the interface has each of the next in turn.
    fn followed(opened: &[&str], then: &[&[&str]], places: usize) -> Vec<(u8, String)> {
        let table = |ips: &[&str]| table(&ips.iter().map(|ip| address(ip)).collect::<Vec<_>>());
        let mut entries = table(opened);
        then.iter().for_each(|now| follow(&mut entries, &table(now), places));
        entries.iter().map(|entry| (entry.index, entry.ip().to_string())).collect()
    }

    #[test]
    fn an_address_keeps_its_place_while_others_come_and_go() {
        let (one, two, three) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
        let opened = ["fe80::1", one];
        assert_eq!(
            followed(&opened, &[&["fe80::1", one, two]], 16),
            want(&[(0, "fe80::1"), (1, one), (2, two)])
        );
        assert_eq!(
            followed(&opened, &[&["fe80::1", one, two], &["fe80::1", two]], 16),
            want(&[(0, "fe80::1"), (2, two)])
        );
        assert_eq!(
            followed(&opened, &[&["fe80::1", one, two], &["fe80::1", two, three]], 16),
            want(&[(0, "fe80::1"), (1, three), (2, two)])
        );
        assert_eq!(followed(&opened, &[&[], &opened], 16), want(&[(0, "fe80::1"), (1, one)]));
    }

    #[test]
    fn a_new_ipv4_address_does_not_take_the_place_of_the_link_local_one() {
        let (one, two) = ("192.0.2.1", "192.0.2.2");
        assert_eq!(followed(&[one], &[&[one, two]], 16), want(&[(1, one), (2, two)]));
        assert_eq!(
            followed(&[one], &[&[one, two], &["fe80::1", one, two]], 16),
            want(&[(0, "fe80::1"), (1, one), (2, two)])
        );
    }

    #[test]
    fn what_finds_no_place_has_none_until_one_is_free() {
        let (one, two, three) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
        let all = [one, two, three];
        assert_eq!(followed(&[one], &[&all], 3), want(&[(1, one), (2, two)]));
        assert_eq!(followed(&[one], &[&all, &[one, three]], 3), want(&[(1, one), (2, three)]));
    }

    /// A device of the interface 7 with these addresses.
    fn device(loopback: bool, addresses: &[&str]) -> Device {
        Device::like(&interface("x", loopback, addresses))
    }

    fn interface(name: &str, loopback: bool, addresses: &[&str]) -> Interface {
        let address = |ip: &&str| Address {
            scope_id: if ip.starts_with("fe80") { 7 } else { 0 },
            ..address(ip)
        };
        Interface {
            name: name.to_owned(),
            index: 7,
            mtu: 1500,
            up: true,
            running: true,
            loopback,
            mac: None,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    /// Addresses and places, by a look that finds these interfaces.
    fn seen(
        table: &GidTable,
        network: Option<u64>,
        found: Vec<Interface>,
    ) -> Option<Vec<(u8, String)>> {
        let device = table.look_by(network, || Ok(found)).unwrap()?;
        assert_eq!(device.gids, table.entries());
        Some(device.gids.iter().map(|entry| (entry.index, entry.ip().to_string())).collect())
    }

    /// Goal: an interface that is not found takes no address along, and one of another network that has its number none either.
    #[test]
    fn a_look_that_does_not_find_the_interface_leaves_the_table_alone() {
        let here = netns::current_id().ok();
        let there = here.map(|id| id + 1);
        let (one, two) = ("192.0.2.1", "192.0.2.2");
        let table = GidTable::new(&device(false, &[one, two]));
        let both = || Some(want(&[(1, one), (2, two)]));
        assert_eq!(seen(&table, here, Vec::new()), None);
        assert_eq!(table.entries().len(), 2);
        assert_eq!(seen(&table, there, vec![interface("y", false, &["198.51.100.1"])]), both());
        assert_eq!(seen(&table, there, Vec::new()), both());
        assert_eq!(seen(&table, here, vec![interface("renamed", false, &[one, two])]), both());
        let left = seen(&table, here, vec![interface("x", false, &[two])]);
        assert_eq!(left, Some(want(&[(2, two)])));
        assert_eq!(table.look_by(there, || Ok(Vec::new())).unwrap().unwrap().gid_places(), 3);
    }

    /// Goal: the receive path does not wait for the system's list of interfaces.
    #[test]
    fn the_table_can_be_read_during_a_look() {
        let table = GidTable::new(&device(false, &["192.0.2.1"]));
        let gid = table.entries().first().unwrap().gid;
        let looked = table.look_by(table.network, || {
            let entries = table.entries.try_lock().expect("the receive path would wait");
            drop(entries);
            assert!(table.has(gid));
            Ok(Vec::new())
        });
        assert_eq!(looked.unwrap(), None);
    }

    #[test]
    fn a_connection_finds_the_place_of_its_local_address() {
        let eth = device(false, &["192.0.2.2", "fd00::2", "fe80::1"]);
        let lo = device(true, &["127.0.0.1", "::1", "192.0.2.9"]);
        for (device, local, index) in [
            (&eth, "192.0.2.2:1", Some(1)),
            (&eth, "[::ffff:192.0.2.2]:1", Some(1)),
            (&eth, "[fd00::2]:1", Some(2)),
            (&eth, "[fe80::1%7]:1", Some(0)),
            (&eth, "[fe80::1%8]:1", None),
            (&eth, "127.0.0.1:1", None),
            (&lo, "127.0.0.1:1", Some(1)),
            (&lo, "127.3.2.1:1", Some(1)),
            (&lo, "[::1]:1", Some(0)),
            (&lo, "192.0.2.9:1", Some(2)),
            (&lo, "192.0.2.2:1", None),
        ] {
            let found = device.entry_at(local.parse().unwrap()).map(|entry| entry.index);
            assert_eq!(found, index, "{local} on {}", device.name);
        }
    }

    #[test]
    fn the_loopback_interface_is_a_device() {
        let devices = devices().unwrap();
        let lo = devices.iter().find(|device| device.name == "soft_lo").unwrap();
        assert!(lo.loopback);
        assert_eq!(lo.active_mtu(), PathMtu::B4096);
        assert!(lo.gids.iter().any(|entry| entry.index == 1 && entry.ip().is_loopback()));
    }
}
