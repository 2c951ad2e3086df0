//! Path proofs: how the end that connected from another network namespace shows that it is the peer.
//!
//! An address means something in one namespace alone. Two pairs of namespaces may have the same ones, so
//! an offer that is found by addresses may belong to another connection, whose bytes would end in the
//! wrong program. So an offer from elsewhere is not found, it is announced along the path of the connection:
//!
//! 1. A process that listens enters its addresses in a table that all namespaces of a user share.
//! 2. A process that connects to one of them asks there for a *probe socket*, a UDP socket of the listener.
//! 3. It sends a *probe* there: a datagram with the name of its offer, and a number that only readers of the
//!    offer know, to the address that it has connected to.
//!
//! A probe that arrives from the address that the connection comes from has taken its path, and in one
//! namespace both addresses and ports of a connection name one connection. Then the offer gets a
//! second name, that of the connection in this namespace, by which the end that accepted looks for it.
//! NAT between the ends changes the addresses that one of them sees: nothing is found, and the
//! connection stays the kernel's.
//!
//! A probe socket is not opened before a process has asked for it: programs of one namespace have none.
//!

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;

use crate::base::address::{self, ip_words};
use crate::base::lock::{Lazy, Lock};
use crate::base::{config, locals, raw};
use crate::transport::rendezvous::{self, Reach, Table};

adverb_shm::layout! {
    /// One port on which a process listens.
    #[repr(align(64))]
    struct Entry {
        /// The process that listens; 0 if none does.
        owner: AtomicU32,
        /// The port on which it listens; 0 as long as the rest is not there.
        port: AtomicU32,
        /// The network namespace.
        space: AtomicU64,
        /// The port of its probe socket; 0 if it has none.
        probe_port: AtomicU32,
        /// One has been asked for.
        is_wanted: AtomicU32,
        addresses: [[AtomicU64; 2]; ADDRESSES_MAX],
    }
}

/// Ports of one user and process namespace; listeners on others are not found from elsewhere.
const ENTRIES: usize = 1024;
/// Places that are looked at for one port: so many processes may listen on it.
const PROBES: usize = 16;
/// Addresses of a listener by which it is found from elsewhere.
const ADDRESSES_MAX: usize = 8;
/// Entries of one process.
const OWN_MAX: usize = 16;

/// How a probe begins.
const PROBE: [u8; 8] = *b"adverb/1";
/// And how one does that is for a mailbox.
const DATAGRAMS: [u8; 8] = *b"adverb/2";
/// Length of a probe: that, a name of 16 bytes, and a number of 8.
const PROBE_BYTES: usize = 32;
/// Probes that are received with one look.
const PROBES_MAX: usize = 64;
/// Probe sockets have numbers that programs rarely use.
const FD_MIN: c_int = 1000;

/// This process's entries, each by its number and one, and the owner's number above it; and its probe socket:
/// a descriptor, and the kernel's number for what must lie behind it. Children have them too.
static OWN: [AtomicU64; OWN_MAX] = [const { AtomicU64::new(0) }; OWN_MAX];
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SOCKET_COOKIE: AtomicU64 = AtomicU64::new(0);
/// Held while the probe socket is opened.
pub(crate) static OPENING: Lock = Lock::new();

fn table() -> Option<&'static [Entry; ENTRIES]> {
    static TABLE: Table<[Entry; ENTRIES]> = Table::new();
    TABLE.get_or_map(|| rendezvous::shared("doors", Reach::Host))
}

/// The places where listeners on a port are.
fn places(port: u16) -> impl Iterator<Item = (u32, &'static Entry)> {
    let first = usize::from(port).wrapping_mul(61) % ENTRIES;
    let table = table();
    (0..PROBES).filter_map(move |step| {
        let number = (first + step) % ENTRIES;
        Some((u32::try_from(number).ok()?, table?.get(number)?))
    })
}

impl Entry {
    fn is_at(&self, wanted: SocketAddr) -> bool {
        let wanted_words = ip_words(wanted.ip());
        self.port.load(Ordering::Acquire) == u32::from(wanted.port())
            && self.addresses.iter().any(|[a, b]| {
                [a.load(Ordering::Relaxed), b.load(Ordering::Relaxed)] == wanted_words
            })
    }

    fn fill(&self, port: u16, space: u64, addresses: &[IpAddr]) {
        self.port.store(0, Ordering::Release);
        self.probe_port.store(0, Ordering::Relaxed);
        self.is_wanted.store(0, Ordering::Relaxed);
        self.space.store(space, Ordering::Relaxed);
        let mut addresses = addresses.iter().map(|ip| ip_words(*ip));
        for place in &self.addresses {
            for (place, word) in place.iter().zip(addresses.next().unwrap_or_default()) {
                place.store(word, Ordering::Relaxed);
            }
        }
        self.port.store(port.into(), Ordering::Release);
    }
}

/// This program listens on `at`: says so to those elsewhere.
pub(crate) fn announce(fd: c_int, at: SocketAddr) {
    if at.ip().is_loopback() || !config::get().reaches_across {
        return;
    }
    let Some(space) = rendezvous::space(fd) else { return };
    let addresses =
        if at.ip().is_unspecified() { locals::addresses(ADDRESSES_MAX) } else { vec![at.ip()] };
    let is_known = |entry: &Entry| {
        addresses.iter().all(|ip| entry.is_at(SocketAddr::new(*ip, at.port())))
            && entry.space.load(Ordering::Relaxed) == space
    };
    if addresses.is_empty() || mine().any(is_known) {
        return;
    }
    let Some(place) = OWN.iter().find(|place| place.load(Ordering::Acquire) == 0) else { return };
    let seize =
        |has_ended| places(at.port()).find(|(_, entry)| alive::seize(&entry.owner, has_ended));
    if let Some((number, entry)) = seize(alive::is_missing).or_else(|| seize(alive::has_ended)) {
        entry.fill(at.port(), space, &addresses);
        let own = u64::from(alive::me()) << 32 | u64::from(number + 1);
        place.store(own, Ordering::Release);
    }
}

/// This process's entries, and those that it has from a parent.
fn mine() -> impl Iterator<Item = &'static Entry> {
    OWN.iter().filter_map(|own| {
        let own = own.load(Ordering::Acquire);
        let number = usize::try_from(own & u64::from(u32::MAX)).ok()?.checked_sub(1)?;
        let entry = table()?.get(number)?;
        // Another process may have it by now, if the process that made it has ended.
        (u64::from(entry.owner.load(Ordering::Acquire)) == own >> 32).then_some(entry)
    })
}

/// Whether a program of this user says that it listens there, and asks for its probe socket if so. An address
/// that is another's as well costs a datagram in vain.
pub(crate) fn request(at: SocketAddr) -> bool {
    let mut is_there = false;
    if config::get().reaches_across {
        for (_, entry) in places(at.port()).filter(|(_, entry)| entry.is_at(at)) {
            entry.is_wanted.store(1, Ordering::Release);
            is_there = true;
        }
    }
    is_there
}

/// Sends the name of an offer to all probe sockets that there may be at `there`. Which of them is the right
/// one, the network decides: nothing but an address is theirs alone.
pub(crate) fn probe(here: SocketAddr, there: SocketAddr, [a, b]: [u64; 2], secret: u64) {
    let mut ports: Vec<u16> = places(there.port())
        .filter(|(_, entry)| entry.is_at(there))
        .filter_map(|(_, entry)| entry.probe_port.load(Ordering::Acquire).try_into().ok())
        .filter(|port| *port != 0)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    send(PROBE, here.ip(), there.ip(), &ports, [a, b, secret]);
}

/// Sends a probe for a mailbox from `here` to the probe socket that is said to be `there`.
pub(crate) fn probe_datagrams(here: IpAddr, there: SocketAddr, [a, b]: [u64; 2], secret: u64) {
    send(DATAGRAMS, here, there.ip(), &[there.port()], [a, b, secret]);
}

fn send(kind: [u8; 8], here: IpAddr, there: IpAddr, ports: &[u16], words: [u64; 3]) {
    if ports.is_empty() {
        return;
    }
    let [a, b, secret] = words.map(u64::to_le_bytes);
    let mut probe = [0; PROBE_BYTES];
    for (place, byte) in probe.iter_mut().zip([kind, a, b, secret].as_flattened()) {
        *place = *byte;
    }
    let domain = if there.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let Ok(fd) = raw::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) else { return };
    let (from, from_len) = address::write(SocketAddr::new(here, 0), domain);
    if raw::bind(fd, &from, from_len).is_ok() {
        for port in ports {
            let (to, to_len) = address::write(SocketAddr::new(there, *port), domain);
            let _ = raw::send_to(fd, &probe, &to, to_len);
        }
    }
    raw::close(fd);
}

/// Whether this process can be found from elsewhere.
pub(crate) fn is_announced() -> bool {
    mine().next().is_some()
}

/// Whether this process's probe socket has been asked for.
pub(crate) fn is_wanted() -> bool {
    mine().any(|entry| entry.is_wanted.load(Ordering::Acquire) != 0)
}

/// Opens the probe socket if it is wanted, and calls `accept` with what each probe says: the probe socket, the
/// name of the offer, the secret, and where it came from.
pub(crate) fn receive_probes(mut accept: impl FnMut(c_int, [u64; 2], u64, IpAddr)) {
    let Some(socket) = probe_socket() else { return };
    let mut probe = [0; PROBE_BYTES + 1];
    for _ in 0..PROBES_MAX {
        let Some((got, from)) = raw::receive_from(socket, &mut probe) else { return };
        let [words @ .., _] = &probe;
        let (words, _) = words.as_chunks::<8>();
        if got == PROBE_BYTES
            && let [kind, a, b, secret] = words
            && let Some(from) = address::read(&from)
        {
            let name = [u64::from_le_bytes(*a), u64::from_le_bytes(*b)];
            let secret = u64::from_le_bytes(*secret);
            match (*kind, FOR_DATAGRAMS.get()) {
                (PROBE, _) => accept(socket, name, secret, from.ip()),
                (DATAGRAMS, Some(accept)) => accept(name, secret, from.ip()),
                _ => {}
            }
        }
    }
}

/// Takes probes for a mailbox.
pub(crate) type Accept = fn([u64; 2], u64, IpAddr);

/// What takes probes for mailboxes, once there is one that may be reached from elsewhere.
static FOR_DATAGRAMS: Lazy<Accept> = Lazy::new();

/// From now on there is a probe socket for mailboxes as well. Returns its port.
pub(crate) fn open_for_datagrams(accept: Accept) -> Option<u16> {
    FOR_DATAGRAMS.get_or_init(|| accept);
    port()
}

/// The port of this process's probe socket, if there is to be one.
pub(crate) fn port() -> Option<u16> {
    Some(address::name(probe_socket()?, false)?.port())
}

/// The probe socket of this process, opened if need be; `None` if it is not wanted, or there can be none.
fn probe_socket() -> Option<c_int> {
    if !is_wanted() && FOR_DATAGRAMS.get().is_none() {
        return None;
    }
    // A program may have closed it, and have something else there.
    let known = || {
        let (fd, cookie) = (SOCKET.load(Ordering::Acquire), SOCKET_COOKIE.load(Ordering::Acquire));
        (fd >= 0 && cookie != 0 && rendezvous::cookie(fd) == cookie).then_some(fd)
    };
    if let Some(fd) = known() {
        return Some(fd);
    }
    // A thread that finds another one at it looks again later.
    let _held = OPENING.try_hold()?;
    if let Some(fd) = known() {
        return Some(fd);
    }
    let (fd, port) = open()?;
    SOCKET_COOKIE.store(rendezvous::cookie(fd), Ordering::Release);
    SOCKET.store(fd, Ordering::Release);
    for entry in mine() {
        entry.probe_port.store(port.into(), Ordering::Release);
    }
    Some(fd)
}

/// A UDP socket for both families, if there are two, on any port.
fn open() -> Option<(c_int, u16)> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    for (domain, any) in [
        (libc::AF_INET6, IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)),
        (libc::AF_INET, IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)),
    ] {
        let Ok(made) = raw::socket(domain, kind) else { continue };
        // Where so few descriptors are allowed, it has a number that programs may use.
        let fd = raw::copy_above(made, FD_MIN).inspect(|_| raw::close(made)).unwrap_or(made);
        if domain == libc::AF_INET6 {
            let _ = raw::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0);
        }
        let (at, len) = address::write(SocketAddr::new(any, 0), domain);
        if raw::bind(fd, &at, len).is_ok()
            && let Some(at) = address::name(fd, false)
        {
            return Some((fd, at.port()));
        }
        raw::close(fd);
    }
    None
}
