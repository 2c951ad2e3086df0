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
    /// Others may bind the port too that say the same, while none of them listens.
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

    /// It is what a request to `address` asks for.
    fn fits(&self, address: [u8; 16]) -> bool {
        match self.address {
            own if own == address => true,
            ANY_V4 => is_v4(address),
            ANY_V6 => !self.ipv6_only || !is_v4(address),
            _ => false,
        }
    }

    /// Why it cannot be bound beside `known`, by the rules of the kernel's manager: an unspecified address clashes
    /// with all addresses, unless each of the two is of one family alone, and these differ.
    fn clash(&self, known: &Self) -> Option<io::ErrorKind> {
        let same = (self.protocol, self.port) == (known.protocol, known.port);
        let [family, other] = [self.family(), known.family()];
        let apart = family.is_some() && other.is_some() && family != other;
        let is_any = |address| matches!(address, ANY_V4 | ANY_V6);
        if !same || apart || self.reuse && known.reuse {
            None
        } else if is_any(self.address) || is_any(known.address) {
            Some(io::ErrorKind::AddrNotAvailable)
        } else {
            (self.address == known.address).then_some(io::ErrorKind::AddrInUse)
        }
    }

    /// The family that it is of alone: 4 or 6.
    fn family(&self) -> Option<u8> {
        match is_v4(self.address) {
            true => Some(4),
            false => self.ipv6_only.then_some(6),
        }
    }
}

impl Registry {
    /// Binds a port for this device.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another living device of the host, or this one, has bound the port at the address;
    /// `AddrNotAvailable` if one of the two is for all addresses; the table is full.
    pub(crate) fn bind_service(&self, service: &ServicePort) -> io::Result<DomainClaim> {
        self.claim_domain(service.name(), |_| self.check(service, None))
    }

    /// Has a port that was bound for this device to itself from now on, as one that listens must.
    ///
    /// # Errors
    ///
    /// As of [`Registry::bind_service`], whether or not others let the port be bound again.
    pub(crate) fn own_service(&self, claim: DomainClaim, service: &ServicePort) -> io::Result<()> {
        let own = ServicePort { reuse: false, ..*service };
        self.rename_claim(claim, own.name(), || self.check(&own, Some(claim)))
    }

    /// Whether nothing that is bound, but for a claim of this device, clashes with a service.
    fn check(&self, service: &ServicePort, but: Option<DomainClaim>) -> io::Result<()> {
        let others = self.claims().filter(|(place, ..)| but != Some(DomainClaim(*place)));
        let mut clashes = others.filter_map(|(_, owner, name)| {
            let kind = service.clash(&ServicePort::of(name)?)?;
            self.is_alive(owner?).then_some(kind)
        });
        clashes.next().map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// The living device that has bound what a request to `address` asks for.
    pub(crate) fn service(&self, protocol: u8, port: u16, address: [u8; 16]) -> Option<SlotId> {
        let mut owners = self.claims().filter_map(|(_, owner, name)| {
            let service = ServicePort::of(name)?;
            let asked = (service.protocol, service.port) == (protocol, port);
            owner.filter(|owner| asked && service.fits(address) && self.is_alive(*owner))
        });
        owners.next()
    }
}

fn is_v4(address: [u8; 16]) -> bool {
    address.starts_with(&V4_PREFIX)
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
        let refused = second.bind_service(&at(HERE)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        second.bind_service(&at(V6)).unwrap();
        second.bind_service(&ServicePort { protocol: 17, ..at(HERE) }).unwrap();
        assert_eq!(second.service(6, 7471, HERE), Some(first.slot()));
        assert_eq!(second.service(6, 7472, HERE), None);
        first.release_domain(claim);
        second.bind_service(&at(HERE)).unwrap();
        drop(second);
        first.bind_service(&at(HERE)).unwrap();
    }

    /// The second source: what `rdma_bind_addr` of Linux answers to each pair, one after the other.
    #[test]
    fn addresses_clash_as_they_do_in_the_kernel() {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable};
        let (there, only) = ([0xfd; 16], ServicePort { ipv6_only: true, ..at(ANY_V6) });
        for (one, other, clash) in [
            (at(HERE), at(HERE), Some(AddrInUse)),
            (at(V6), at(V6), Some(AddrInUse)),
            (at(V6), at(there), None),
            (at(V6), at(HERE), None),
            (at(ANY_V4), at(HERE), Some(AddrNotAvailable)),
            (at(ANY_V4), at(ANY_V4), Some(AddrNotAvailable)),
            (at(ANY_V4), at(ANY_V6), Some(AddrNotAvailable)),
            (at(ANY_V6), at(HERE), Some(AddrNotAvailable)),
            (at(ANY_V6), at(V6), Some(AddrNotAvailable)),
            // One of IPv6 stands for IPv4, too, if it does not say otherwise, although it is one address.
            (at(ANY_V4), at(V6), Some(AddrNotAvailable)),
            (at(ANY_V4), only, None),
            (at(HERE), only, None),
            (at(V6), only, Some(AddrNotAvailable)),
            (at(HERE), ServicePort { port: 7472, ..at(HERE) }, None),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                assert_eq!(one.clash(&other), clash, "{one:?} {other:?}");
                let shared = |service| ServicePort { reuse: true, ..service };
                assert_eq!(one.clash(&shared(other)), clash, "{one:?} {other:?}");
                assert_eq!(shared(one).clash(&shared(other)), None, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_port_that_is_shared_is_listened_to_by_one_that_is_alone_with_it() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        let shared = ServicePort { reuse: true, ..at(HERE) };
        let [one, other] = [&first, &second].map(|device| device.bind_service(&shared).unwrap());
        assert_eq!(first.own_service(one, &shared).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        second.release_domain(other);
        first.own_service(one, &shared).unwrap();
        assert_eq!(second.bind_service(&shared).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!((second.service(6, 7471, HERE), first.mend()), (Some(first.slot()), 0));
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
