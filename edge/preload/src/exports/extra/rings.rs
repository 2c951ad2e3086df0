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

/// The rings of this process: what they are for, and their descriptors.
static RINGS: Guarded<Vec<(Key, c_int)>> = Guarded::new(Vec::new());
/// There has been one: closing descriptors means something.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// The ring of a socket; `None` if it has none yet, for want of an address, or is the kernel's alone.
pub(crate) fn of(socket: &SocketRef, fd: c_int) -> Option<c_int> {
    let known = socket.completions.ring.load(Ordering::Acquire);
    if let Some(ring) = number(known).filter(|ring| is_ring(*ring)) {
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
    let word = u32::try_from(ring).ok()?.checked_add(1)?;
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    match socket.completions.ring.compare_exchange(known, word, o, r) {
        Ok(_) => Some(ring),
        Err(first) => number(first),
    }
}

/// The descriptor that a socket's word for its ring stands for; 0 for none.
fn number(word: u32) -> Option<c_int> {
    c_int::try_from(word.checked_sub(1)?).ok()
}

/// The ring for that; a new one, unless there are as many as there may be.
fn of_key(key: Key) -> Option<c_int> {
    forks::join(Rank::Rings, RINGS.lock());
    let most = config::get().rings_max;
    RINGS.with(|rings| {
        if let Some((_, fd)) = rings.iter().find(|(known, _)| *known == key) {
            return Some(*fd);
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
            return rings.get(turn % rings.len()).map(|(_, fd)| *fd);
        }
        let fd = raw::new_epoll().ok()?;
        rings.push((key, fd));
        HAS_ANY.store(true, Ordering::Release);
        Some(fd)
    })
}

/// In a child just forked: its rings are its own, under the numbers that the program knows.
pub(crate) fn after_fork() {
    RINGS.with(|rings| {
        for (_, fd) in rings {
            if let Ok(new) = raw::new_epoll() {
                let _ = raw::replace(new, *fd);
                raw::close(new);
            }
        }
    });
}

/// Descriptors are about to be closed: the rings among them are gone, and other files may have their numbers. Returns
/// whether there are any.
pub(crate) fn closes(fds: &RangeInclusive<c_int>) -> bool {
    HAS_ANY.load(Ordering::Acquire)
        && RINGS.with(|rings| {
            let before = rings.len();
            rings.retain(|(_, fd)| !fds.contains(fd));
            rings.len() < before
        })
}

/// Whether a descriptor is that of a ring.
pub(crate) fn is_ring(fd: c_int) -> bool {
    RINGS.with(|rings| rings.iter().any(|(_, known)| *known == fd))
}

/// Addresses of sockets differ by at least so much.
const SLOT_BYTES: usize = 64;
