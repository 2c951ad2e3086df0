//! Memberships of sockets in multicast groups, for readers of statistics.
//!
//! The kernel lists groups by interface, not by socket; so what the program says is remembered here, in
//! the file of statistics, behind the sockets. What does not fit is not shown, and means nothing else.
//!
//! # Safety
//!
//! The list lies in the arena of sockets (`socket.rs`), which is mapped for good; it is made of atomics, for
//! which every bit pattern is legal.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::address::ip_words;
use crate::socket::arena;
use crate::socket::state::Socket;

/// Memberships of all sockets that are shown.
pub(crate) const COUNT: usize = 4096;
/// Places that are looked at for one socket: as many groups can be shown of it.
const PROBES: usize = 64;

/// One membership.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Membership {
    /// The socket's number and one; 0 if this place is free.
    socket: AtomicU32,
    /// By which interface, in the program's words.
    by: AtomicU32,
    /// The group, as IPv6 has it.
    group: [AtomicU64; 2],
}

/// What the program has done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Change {
    Joins,
    /// One of the sources, of which the last takes the group with it.
    LeavesSource,
    Leaves,
}

/// The kernel has done what the program wanted: remembers it if it was about a group.
pub(crate) fn option_set(socket: &Socket, level: c_int, name: c_int, value: &[u8]) {
    let Some((change, group, by)) = read(level, name, value) else { return };
    if change == Change::Joins {
        socket.datagrams.has_joined.store(true, Ordering::Relaxed);
    }
    let words = ip_words(group);
    let mut places = places(socket);
    let mine = |place: &&Membership| place.is(socket) && place.is_about(words, by);
    match change {
        Change::Joins => {
            let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
            let number = socket.index() + 1;
            let free = places.find(|place| place.socket.compare_exchange(0, number, o, r).is_ok());
            if let Some(place) = free {
                place.by.store(by, Ordering::Relaxed);
                for (word, value) in place.group.iter().zip(words) {
                    word.store(value, Ordering::Release);
                }
            }
        }
        Change::LeavesSource => places.find(mine).map(Membership::clear).unwrap_or(()),
        Change::Leaves => places.filter(mine).for_each(Membership::clear),
    }
}

/// The groups that a socket has joined, by whatever interface.
pub(crate) fn of(socket: &Socket) -> Vec<IpAddr> {
    let mine = places(socket).filter(|place| place.is(socket));
    let mut groups: Vec<_> = mine.map(|place| place.group()).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// A socket begins anew.
pub(crate) fn forget(socket: &Socket) {
    places(socket).filter(|place| place.is(socket)).for_each(Membership::clear);
}

fn places(socket: &Socket) -> impl Iterator<Item = &'static Membership> {
    let first = usize::try_from(socket.index()).unwrap_or(0).wrapping_mul(61);
    let all = arena::memberships();
    (0..PROBES).filter_map(move |step| all?.get((first + step) % COUNT))
}

impl Membership {
    fn is(&self, socket: &Socket) -> bool {
        self.socket.load(Ordering::Acquire) == socket.index() + 1
    }

    fn is_about(&self, [a, b]: [u64; 2], by: u32) -> bool {
        let [high, low] = &self.group;
        (high.load(Ordering::Relaxed), low.load(Ordering::Relaxed)) == (a, b)
            && self.by.load(Ordering::Relaxed) == by
    }

    fn group(&self) -> IpAddr {
        let [high, low] = self.group.each_ref().map(|word| word.load(Ordering::Acquire));
        let [a, b, c, d, e, f, g, h] = high.to_be_bytes();
        let [i, j, k, l, m, n, o, p] = low.to_be_bytes();
        IpAddr::from([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]).to_canonical()
    }

    fn clear(&self) {
        for word in &self.group {
            word.store(0, Ordering::Relaxed);
        }
        self.socket.store(0, Ordering::Release);
    }
}

/// What an option means: which group is joined or left, and by which interface.
fn read(level: c_int, name: c_int, value: &[u8]) -> Option<(Change, IpAddr, u32)> {
    let word =
        |at: usize| value.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes);
    let v4 = |at: usize| {
        let octets: [u8; 4] = value.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    };
    let v6 = |at: usize| {
        let octets: [u8; 16] = value.get(at..at.checked_add(16)?)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let of_any_family = |change| {
        let [a, b, ..] = value.get(GROUP_AT..)? else { return None };
        let group = match c_int::from(u16::from_ne_bytes([*a, *b])) {
            libc::AF_INET => v4(GROUP_AT + 4)?,
            libc::AF_INET6 => v6(GROUP_AT + 8)?,
            _ => return None,
        };
        Some((change, group, word(0)?))
    };
    // The interface by its address, its index, or both.
    let by = || word(4).map(|address| address ^ word(8).unwrap_or(0));
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => Some((Change::Joins, v4(0)?, by()?)),
        (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => Some((Change::Leaves, v4(0)?, by()?)),
        (libc::IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP) => {
            Some((Change::Joins, v4(0)?, word(4)?))
        }
        (libc::IPPROTO_IP, libc::IP_DROP_SOURCE_MEMBERSHIP) => {
            Some((Change::LeavesSource, v4(0)?, word(4)?))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP) => Some((Change::Joins, v6(0)?, word(16)?)),
        (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP) => {
            Some((Change::Leaves, v6(0)?, word(16)?))
        }
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_JOIN_GROUP | MCAST_JOIN_SOURCE_GROUP) => {
            of_any_family(Change::Joins)
        }
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_LEAVE_GROUP) => of_any_family(Change::Leaves),
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_LEAVE_SOURCE_GROUP) => {
            of_any_family(Change::LeavesSource)
        }
        _ => None,
    }
}

/// So much of an option is looked at.
pub(crate) const OPTION_BYTES: usize = 64;
/// Where the group is in options that carry whole addresses, behind the interface.
const GROUP_AT: usize = 8;
const MCAST_JOIN_GROUP: c_int = 42;
const MCAST_LEAVE_GROUP: c_int = 45;
const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
const MCAST_LEAVE_SOURCE_GROUP: c_int = 47;
