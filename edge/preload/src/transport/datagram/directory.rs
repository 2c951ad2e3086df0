//! The directory of mailboxes: a table in shared memory for each user, network namespace and process
//! namespace; and one of the host, for those that may be reached from other network namespaces, which has keys,
//! made of addresses, where the others have ports.
//!
//! For each UDP port it has a number that changes whenever something happens to sockets of ours on
//! that port, so that a sender that has looked once need not look again; and a list of mailboxes. Nothing
//! in it is taken on trust: a mailbox that is found is a candidate, and whether datagrams would reach
//! it through the kernel, by routes, firewall and other sockets on the port, is found out by sending
//! them there.

use std::ffi::{CString, c_int};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use adverb_shm::alive;
use adverb_shm::file::Expect;

use super::mailbox::{About, Mailbox};
use crate::base::address::ip_words;
use crate::base::lock::Lazy;
use crate::base::{config, raw};
use crate::transport::rendezvous::{self, Table};

const PORTS: usize = 65_536;
/// Mailboxes of one namespace and user; others stay with the kernel.
const LISTED_MAX: usize = 4096;
/// Places that are looked at for one port.
const PROBES: usize = 32;
/// A place that a process is about to fill.
const BUSY: u64 = 1;

adverb_shm::layout! {
    #[derive(Debug)]
    pub(super) struct Directory {
        generations: [AtomicU32; PORTS],
        listed: [Listed; LISTED_MAX],
    }

    /// One mailbox.
    #[derive(Debug)]
    struct Listed {
        /// The kernel's number for its socket; 0 if the place is free.
        cookie: AtomicU64,
        /// Port, or key, and process above it.
        about: AtomicU64,
        /// The network namespace that it is in.
        network: AtomicU64,
    }
}

/// The number of the network namespace that a socket is in.
pub(super) fn network(fd: c_int) -> Option<u64> {
    raw::option::<u64>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok()
}

/// The namespaces that a socket is in, as a part of file names.
fn spaces(network: u64) -> String {
    static PROCESSES: Lazy<u64> = Lazy::new();
    let processes = PROCESSES.get_or_init(alive::namespace);
    format!("{network:x}-2.{processes}")
}

const SO_NETNS_COOKIE: c_int = 71;

/// The kernel's number for a socket.
pub(super) fn cookie(fd: c_int) -> Option<u64> {
    let cookie = raw::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
    (cookie > BUSY).then_some(cookie)
}

/// The table of the namespaces that a socket is in; mapped if need be. A process knows one.
pub(super) fn of(fd: c_int) -> Option<&'static Directory> {
    static TABLE: Table<Directory> = Table::new();
    static SPACE: Lazy<u64> = Lazy::new();
    let here = network(fd)?;
    if *SPACE.get_or_init(|| here) != here {
        return None;
    }
    TABLE.get_or_map(|| {
        let path = rendezvous::path(&format!("udp.{}", spaces(here)))?;
        rendezvous::open_own(&path, Expect::FileOrNothing)
    })
}

/// The network namespace that the host's table is named after. There is none of that number.
const HOST: u64 = 0;
static HOST_TABLE: Table<Directory> = Table::new();

fn host_as(expect: Expect) -> Option<&'static Directory> {
    config::get().reaches_across.then_some(())?;
    HOST_TABLE.get_or_map(|| {
        rendezvous::open_own(&rendezvous::path(&format!("udp.{}", spaces(HOST)))?, expect)
    })
}

/// The table of the host, if there is one.
pub(super) fn host() -> Option<&'static Directory> {
    host_as(Expect::File)
}

/// The table of the host, which is made if need be.
pub(super) fn host_or_new() -> Option<&'static Directory> {
    host_as(Expect::FileOrNothing)
}

/// The table of the host, if this process has looked at it.
#[inline]
pub(super) fn host_if_known() -> Option<&'static Directory> {
    HOST_TABLE.get()
}

/// What an address and a port are in the table of the host. Others may be the same there.
#[inline]
pub(super) fn key(addr: SocketAddr) -> u16 {
    let [a, b] = ip_words(addr.ip());
    let mixed =
        (a ^ b.rotate_left(32) ^ u64::from(addr.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u16::try_from(mixed >> 48).unwrap_or(0)
}

/// Digits of a socket's number in the name of its mailbox.
const COOKIE_DIGITS: usize = 16;

fn file_name(network: u64, cookie: u64) -> String {
    format!("udp.{}.{cookie:0COOKIE_DIGITS$x}", spaces(network))
}

fn path(network: u64, cookie: u64) -> Option<CString> {
    rendezvous::path(&file_name(network, cookie))
}

impl Directory {
    /// What has happened on a port: 0 if nothing ever has.
    #[inline]
    pub(super) fn generation(&self, port: u16) -> u32 {
        let generation = self.generations.get(usize::from(port));
        generation.map_or(0, |generation| generation.load(Ordering::Acquire))
    }

    /// A socket of ours sends from that port.
    pub(super) fn announce(&self, port: u16) {
        if self.generation(port) == 0 {
            self.change(port);
        }
    }

    /// Something has happened on that port.
    pub(super) fn change(&self, port: u16) {
        if let Some(generation) = self.generations.get(usize::from(port))
            && generation.fetch_add(1, Ordering::AcqRel) == u32::MAX
        {
            generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn places(&self, port: u16) -> impl Iterator<Item = &Listed> {
        let first = usize::from(port).wrapping_mul(61) % LISTED_MAX;
        (0..PROBES).filter_map(move |step| self.listed.get((first + step) % LISTED_MAX))
    }

    /// Enters a mailbox.
    pub(super) fn enter(&self, port: u16, cookie: u64, network: u64) -> bool {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        let about = u64::from(port) | u64::from(alive::me()) << 32;
        for place in self.places(port) {
            let known = place.cookie.load(Ordering::Acquire);
            let process = u32::try_from(place.about.load(Ordering::Acquire) >> 32).unwrap_or(0);
            let is_free = known == 0 || known != BUSY && alive::has_ended(process);
            if is_free && place.cookie.compare_exchange(known, BUSY, o, r).is_ok() {
                place.about.store(about, Ordering::Release);
                place.network.store(network, Ordering::Relaxed);
                place.cookie.store(cookie, Ordering::Release);
                self.change(port);
                return true;
            }
        }
        false
    }

    /// Removes a mailbox.
    pub(super) fn remove(&self, port: u16, cookie: u64) {
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        for place in self.places(port) {
            let _ = place.cookie.compare_exchange(cookie, 0, o, r);
        }
        self.change(port);
    }

    /// Removes a mailbox from all places.
    pub(super) fn remove_all(&self, cookie: u64) {
        for place in &self.listed {
            let about = place.about.load(Ordering::Acquire);
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            if place.cookie.compare_exchange(cookie, 0, o, r).is_ok() {
                self.change(u16::try_from(about & 0xffff).unwrap_or(0));
            }
        }
    }

    /// Mailboxes of a port, each with its network namespace; `None` if there are more than `MOST`.
    pub(super) fn find<const MOST: usize>(&self, port: u16) -> Option<([Found; MOST], usize)> {
        let (mut found, mut count) = ([Found::default(); MOST], 0);
        for place in self.places(port) {
            let cookie = place.cookie.load(Ordering::Acquire);
            let of_port = place.about.load(Ordering::Acquire) & 0xffff == u64::from(port);
            if cookie > BUSY && of_port {
                let network = place.network.load(Ordering::Relaxed);
                *found.get_mut(count)? = Found { cookie, network };
                count += 1;
            }
        }
        Some((found, count))
    }
}

/// A mailbox that is in a directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) cookie: u64,
    pub(super) network: u64,
}

/// Makes a mailbox for a socket, and enters it.
pub(super) fn make(
    directory: &Directory,
    fd: c_int,
    port: u16,
    domain: c_int,
    limit: u64,
) -> Option<(Mailbox, CString)> {
    let (cookie, inode) = (cookie(fd)?, raw::inode(fd)?);
    let only = raw::option::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).unwrap_or(0);
    let about = About { cookie, inode, port, domain, is_v6_only: only != 0 };
    if !rendezvous::has_room(rendezvous::MAKE_SHARE) {
        return None;
    }
    let network = network(fd)?;
    let path = path(network, cookie)?;
    let file = rendezvous::open_own(&path, Expect::Nothing)?;
    let made = Mailbox::make(&file, &about, limit);
    let made = made.filter(|_| directory.enter(port, cookie, network));
    match made {
        Some(mailbox) => Some((mailbox, path)),
        None => {
            raw::unlink(&path);
            None
        }
    }
}

/// Opens a mailbox in the namespaces of a socket.
pub(super) fn open(fd: c_int, cookie: u64) -> Option<(Mailbox, CString)> {
    open_in(network(fd)?, cookie)
}

/// Opens a mailbox in a network namespace.
pub(super) fn open_in(network: u64, cookie: u64) -> Option<(Mailbox, CString)> {
    let path = path(network, cookie)?;
    let mailbox = Mailbox::open(&rendezvous::open_own(&path, Expect::File)?, cookie)?;
    Some((mailbox, path))
}

/// Removes the mailbox of a socket that only dead processes had, of the family. One that was
/// killed while it made one has left a blank file.
pub(crate) fn withdraw_of_dead(network: u64, cookie: u64) {
    let Some(path) = path(network, cookie) else { return };
    let Some(file) = rendezvous::open_own(&path, Expect::File) else { return };
    let mailbox = Mailbox::open(&file, cookie);
    if mailbox.map_or_else(|| rendezvous::is_blank(&path), |mailbox| mailbox.is_dead()) {
        raw::unlink(&path);
    }
}

/// The kernel's number for the socket whose mailbox has this name; `None` if it is another file's, as a directory's own.
fn cookie_of(name: &str) -> Option<u64> {
    let (spaces, cookie) = name.strip_prefix("udp.")?.rsplit_once('.')?;
    let is_one = cookie.len() == COOKIE_DIGITS && spaces.contains('.');
    is_one.then(|| u64::from_str_radix(cookie, 16).ok())?
}

/// Removes a mailbox that processes have left behind that were killed.
pub(crate) fn tidy_up(name: &str) {
    let (Some(cookie), Some(path)) = (cookie_of(name), rendezvous::path(name)) else { return };
    let Some(file) = rendezvous::open_own(&path, Expect::File) else { return };
    let mailbox = Mailbox::open(&file, cookie);
    let is_dead = |mailbox: Mailbox| mailbox.is_of_known() && mailbox.is_dead();
    if mailbox.map_or_else(|| rendezvous::is_stillborn(&path), is_dead) {
        raw::unlink(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: mailboxes are told from directories, whose names end in a number as well.
    #[test]
    fn only_a_mailbox_has_the_number_of_a_socket_in_its_name() {
        let (network, cookie) = (3, 0x3_daba);
        let of_network = format!("udp.{}", spaces(network));
        assert_eq!(cookie_of(&of_network), None, "{of_network}");
        assert_eq!(cookie_of(&format!("udp.{}", spaces(HOST))), None);
        assert_eq!(cookie_of(&file_name(network, cookie)), Some(cookie));
    }
}
