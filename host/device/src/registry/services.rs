//! Ports of connection management: which process of the host has bound which, and where requests go.
//!
//! A bound port is a name in the table of `mod.rs`, claimed by a device of the process that has it, so that it is
//! free again when that process dies. Queue pair 1 belongs to an address and not to a process: any process of the
//! address may get a request, and finds here whose it is.

use super::{DomainClaim, DomainName, Registry, SlotId};
use std::io;

/// A port of connection management, bound to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServicePort {
    /// The protocol of the port space: 6 or 17. IBTA Vol. 1 Annex A11.
    pub protocol: u8,
    /// The port.
    pub port: u16,
    /// The address, IPv6 or IPv4-mapped; the unspecified one of IPv4 or IPv6 for all of them.
    pub address: [u8; 16],
    /// The unspecified address of IPv6 does not stand for those of IPv4.
    pub ipv6_only: bool,
    /// Others may bind the port too that say the same.
    pub reuse: bool,
}

impl ServicePort {
    fn name(&self) -> DomainName {
        let flags = flag(self.ipv6_only, IPV6_ONLY) | flag(self.reuse, REUSE);
        let port = u32::from(self.protocol) << 16 | u32::from(self.port);
        let mut words = DomainName::of_group(0, self.address).words();
        let [first, ..] = &mut words;
        *first = SERVICE | flags | port;
        DomainName::from_words(words)
    }

    fn of(name: DomainName) -> Option<Self> {
        let [first, words @ ..] = name.words();
        if first & KIND != SERVICE {
            return None;
        }
        let mut address = [0; 16];
        let bytes = words.into_iter().flat_map(u32::to_ne_bytes);
        address.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        let [_, protocol, p0, p1] = first.to_be_bytes();
        let port = u16::from_be_bytes([p0, p1]);
        let (ipv6_only, reuse) = (first & IPV6_ONLY != 0, first & REUSE != 0);
        Some(Self { protocol, port, address, ipv6_only, reuse })
    }

    /// How exactly it is what a request to `address` asks for; `None` if it is not.
    fn fits(&self, address: [u8; 16]) -> Option<u8> {
        let is_v4 = |address: [u8; 16]| address.starts_with(&V4_PREFIX);
        match self.address {
            own if own == address => Some(2),
            ANY_V4 if is_v4(address) => Some(1),
            ANY_V6 if !self.ipv6_only || !is_v4(address) => Some(0),
            _ => None,
        }
    }

    fn clashes(&self, other: &Self) -> bool {
        let same = (self.protocol, self.port) == (other.protocol, other.port);
        let overlap = self.fits(other.address).is_some() || other.fits(self.address).is_some();
        same && overlap && !(self.reuse && other.reuse)
    }
}

impl Registry {
    /// Binds a port for this device.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another living device of the host, or this one, has bound a port that overlaps with it; the table
    /// is full.
    pub(crate) fn bind_service(&self, service: &ServicePort) -> io::Result<DomainClaim> {
        let clashes = |known| ServicePort::of(known).is_some_and(|known| known.clashes(service));
        self.claim_unless(service.name(), clashes, |taken| match taken {
            true => Err(io::ErrorKind::AddrInUse.into()),
            false => Ok(()),
        })
    }

    /// The living device that has bound what a request to `address` asks for; of several the one that has bound the
    /// most specific address.
    pub(crate) fn service(&self, protocol: u8, port: u16, address: [u8; 16]) -> Option<SlotId> {
        let candidates = self.claims().filter_map(|(_, owner, name)| {
            let service =
                ServicePort::of(name).filter(|s| (s.protocol, s.port) == (protocol, port))?;
            Some((service.fits(address)?, owner?))
        });
        let alive = candidates.filter(|(_, owner)| self.is_alive(*owner));
        alive.max_by_key(|(rank, _)| *rank).map(|(_, owner)| owner)
    }
}

const fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

/// Bits of a name that say what it is of: numbers of interfaces have neither.
const KIND: u32 = 3 << 30;
const SERVICE: u32 = 1 << 30;
const IPV6_ONLY: u32 = 1 << 29;
const REUSE: u32 = 1 << 28;
const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const ANY_V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
const ANY_V6: [u8; 16] = [0; 16];

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    const HERE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    const V6: [u8; 16] = [0xfe; 16];

    fn at(address: [u8; 16]) -> ServicePort {
        ServicePort { protocol: 6, port: 7471, address, ipv6_only: false, reuse: false }
    }

    #[test]
    fn a_name_is_read_as_what_was_bound() {
        for reuse in [false, true] {
            for address in [HERE, V6, ANY_V4, ANY_V6] {
                let service = ServicePort {
                    protocol: 17,
                    port: 0xffff,
                    ipv6_only: !reuse,
                    reuse,
                    ..at(address)
                };
                assert_eq!(ServicePort::of(service.name()), Some(service));
            }
        }
        assert_eq!(ServicePort::of(DomainName::of_group(7, V6)), None);
        assert_eq!(ServicePort::of(DomainName::from_words([7, 1, 2, 3, 4])), None);
    }

    #[test]
    fn a_port_is_bound_once_until_its_device_goes() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        let claim = first.bind_service(&at(HERE)).unwrap();
        for address in [HERE, ANY_V4, ANY_V6] {
            let refused = second.bind_service(&at(address)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{address:?}");
        }
        second.bind_service(&at(V6)).unwrap();
        second.bind_service(&ServicePort { protocol: 17, ..at(HERE) }).unwrap();
        assert_eq!(second.service(6, 7471, HERE), Some(first.slot()));
        assert_eq!(second.service(6, 7472, HERE), None);
        first.release_domain(claim);
        second.bind_service(&at(HERE)).unwrap();
        drop(second);
        first.bind_service(&at(HERE)).unwrap();
    }

    #[test]
    fn the_most_specific_address_gets_the_request() {
        let scratch = Scratch::new();
        let [v6, v4, here] = [(); 3].map(|()| scratch.join().unwrap());
        let shared = |address| ServicePort { reuse: true, ..at(address) };
        v6.bind_service(&shared(ANY_V6)).unwrap();
        assert_eq!(v4.service(6, 7471, HERE), Some(v6.slot()));
        v4.bind_service(&shared(ANY_V4)).unwrap();
        assert_eq!(v4.service(6, 7471, HERE), Some(v4.slot()));
        here.bind_service(&shared(HERE)).unwrap();
        assert_eq!(v4.service(6, 7471, HERE), Some(here.slot()));
        assert_eq!(v4.service(6, 7471, V6), Some(v6.slot()));
        drop(here);
        assert_eq!(v4.service(6, 7471, HERE), Some(v4.slot()));
    }

    #[test]
    fn an_address_of_ipv6_only_leaves_ipv4_to_others() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        first.bind_service(&ServicePort { ipv6_only: true, ..at(ANY_V6) }).unwrap();
        second.bind_service(&at(ANY_V4)).unwrap();
        assert_eq!(first.service(6, 7471, HERE), Some(second.slot()));
    }
}
