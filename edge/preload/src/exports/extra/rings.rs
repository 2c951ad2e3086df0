//! Rings as programs see them: a descriptor for the sockets that share one, by the logic of the manual.
//!
//! Bytes travel through shared memory that each connection has for itself, whatever ring its socket is said to
//! have: a ring is what sockets are polled together by (`xtreme.rs`). Its descriptor is that of an epoll
//! instance of the kernel's, which the program neither fills nor reads. A socket gets its ring when it has an
//! address, and keeps it. Rings stay for as long as the process, unless the program closes their descriptors.
//!
//! # Safety
//!
//! Calls of the kernel's with numbers alone.

use std::ffi::c_int;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::forks::{self, Rank};
use crate::base::lock::Guarded;
use crate::base::logic::Logic;
use crate::base::{address, config, raw};
use crate::socket::loans::Keep;
use crate::socket::policy::is_plain;
use crate::socket::table::SocketRef;

/// What the sockets of a ring have in common. All interfaces are one: packets do not go through any.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Key {
    Interface,
    Address(IpAddr),
    Socket(usize, u32),
    User(u32),
    Thread(u32),
    Core(u32),
}

/// A ring: what it is for, its descriptor, and which one it is, as another may get its descriptor after it.
#[derive(Clone, Copy, Debug)]
struct Ring {
    key: Key,
    fd: c_int,
    turn: u32,
}

impl Ring {
    /// As its sockets know it: never 0.
    fn word(self) -> u64 {
        (u64::from(self.turn) << u32::BITS) + u64::from(self.fd.cast_unsigned()) + 1
    }
}

/// The rings of this process.
#[derive(Debug)]
struct Rings {
    all: Vec<Ring>,
    /// How many there have been.
    turns: u32,
}

static RINGS: Guarded<Rings> = Guarded::new(Rings { all: Vec::new(), turns: 0 });
/// There has been one: closing descriptors means something.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// The ring of a socket; `None` if it has none yet, for want of an address, or is the kernel's alone.
pub(crate) fn of(socket: &SocketRef, fd: c_int) -> Option<c_int> {
    let known = socket.completions.ring.load(Ordering::Acquire);
    if let Some(ring) = number(known) {
        return Some(ring);
    }
    if is_plain(socket) {
        return None;
    }
    let own = address::name(fd, false).filter(|own| own.port() != 0)?;
    let logic = Logic::of_word(socket.completions.ring_logic.load(Ordering::Relaxed));
    let key = match logic.unwrap_or(config::get().ring_logic) {
        Logic::Interface => Key::Interface,
        Logic::Address => Key::Address(own.ip().to_canonical()),
        Logic::Socket => Key::Socket(socket.key(), socket.life.load(Ordering::Relaxed)),
        Logic::User(user) => Key::User(user),
        Logic::Thread => Key::Thread(raw::thread_id()),
        Logic::Core => Key::Core(raw::processor()),
    };
    let ring = of_key(key)?;
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    match socket.completions.ring.compare_exchange(known, ring.word(), o, r) {
        Ok(_) => Some(ring.fd),
        Err(first) => number(first),
    }
}

/// The descriptor of the ring that a socket's word stands for; `None` if that one is gone, or there has been none.
fn number(word: u64) -> Option<c_int> {
    let is_it = |ring: &&Ring| ring.word() == word;
    (word != 0).then(|| RINGS.with(|rings| rings.all.iter().find(is_it).map(|ring| ring.fd)))?
}

/// The ring for that; a new one, unless there are as many as there may be.
fn of_key(key: Key) -> Option<Ring> {
    forks::join(Rank::Rings, RINGS.lock());
    let most = config::get().rings_max;
    RINGS.with(|Rings { all: rings, turns }| {
        if let Some(ring) = rings.iter().find(|ring| ring.key == key) {
            return Some(*ring);
        }
        if most > 0 && rings.len() >= most {
            // Sockets beyond the limit share those that there are, in turn.
            let turn = match key {
                Key::Interface | Key::Address(_) => 0,
                Key::Socket(key, life) => key / SLOT_BYTES + usize::try_from(life).unwrap_or(0),
                Key::User(number) | Key::Thread(number) | Key::Core(number) => {
                    usize::try_from(number).unwrap_or(0)
                }
            };
            return rings.get(turn % rings.len()).copied();
        }
        let ring = Ring { key, fd: raw::new_epoll().ok()?, turn: *turns };
        *turns = turns.wrapping_add(1);
        rings.push(ring);
        HAS_ANY.store(true, Ordering::Release);
        Some(ring)
    })
}

/// In a child just forked: its rings are its own, under the numbers that the program knows.
pub(crate) fn after_fork() {
    RINGS.with(|rings| {
        for ring in &rings.all {
            if let Ok(new) = raw::new_epoll() {
                let _ = raw::replace(new, ring.fd);
                raw::close(new);
            }
        }
    });
}

/// Whether there have been any.
#[inline]
pub(crate) fn are_any() -> bool {
    HAS_ANY.load(Ordering::Acquire)
}

/// Descriptors are about to be closed: the rings among them are gone, and other files may have their numbers. Returns
/// whether there are any.
pub(crate) fn closes(fds: &RangeInclusive<c_int>) -> bool {
    RINGS.with(|Rings { all: rings, .. }| {
        let before = rings.len();
        rings.retain(|ring| !fds.contains(&ring.fd));
        rings.len() < before
    })
}

/// Whether a descriptor is that of a ring.
pub(crate) fn is_ring(fd: c_int) -> bool {
    RINGS.with(|rings| rings.all.iter().any(|ring| ring.fd == fd))
}

/// Addresses of sockets differ by at least so much.
const SLOT_BYTES: usize = 64;
