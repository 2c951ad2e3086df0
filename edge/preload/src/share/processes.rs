//! Processes of a family: this one, those that it was forked from, and those that were forked from it, which
//! share what is known about sockets.
//!
//! Here is which they are, and which of them have ended; which sockets each of them has is in `ownership.rs`.
//! Sockets are taken from the dead when a process needs places or slots, or closes a socket that only
//! a dead one has besides: never while bytes move.
//!
//! A process is known by its number, and its number by the namespace that it is from; a process in
//! another one does not judge it. That a number is another process's by now shows in that one's memory:
//! what the family shares is not mapped there. The same shows of a process that has become another
//! program.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_shm::alive;

use crate::base::{confined, raw, thread};
use crate::share::stats;
use crate::socket::ownership::{EntryState, Place, Reserved, Suspect};
use crate::socket::state::{Kind, Socket};
use crate::socket::{arena, own};
use crate::transport::{datagram, doorbell, offer};

fn now_s() -> u32 {
    u32::try_from(raw::now_ns() / 1_000_000_000 % u64::from(u32::MAX)).unwrap_or(0)
}

/// A new socket, with one user; `None` if there are too many.
pub(crate) fn create(kind: Kind) -> Option<&'static Socket> {
    stats::provide().then_some(())?;
    doorbell::make_room_once();
    Socket::create(kind, || {
        let is_thorough = may_be_thorough();
        if is_thorough {
            sweep(true);
        }
        is_thorough
    })
}

/// A place for a child that is about to be forked; `None` if nothing is shared yet.
pub(crate) fn reserve() -> Option<Reserved> {
    let space = own::OWN.space.load(Ordering::Relaxed);
    arena::with(|ownership, me| ownership.places.reserve(me, space).unwrap_or(Reserved::UNTRACKED))
}

/// A child is about to have this socket, and a descriptor of it.
pub(crate) fn give(reserved: Reserved, socket: &Socket) {
    arena::with(|ownership, _| {
        ownership.get(reserved.place, socket.index());
        ownership.name(reserved.place, socket.index());
    });
}

/// The child has not come into being, and has no such socket.
pub(crate) fn take_away(reserved: Reserved, socket: &Socket) {
    arena::with(|ownership, _| {
        ownership.unname(reserved.place, socket.index());
        ownership.give_back(reserved.place, socket.index());
    });
}

/// The child has not come into being.
pub(crate) fn cancel(reserved: Reserved) {
    arena::with(|ownership, _| ownership.places.cancel(reserved));
}

/// The parent knows its child.
pub(crate) fn confirm(reserved: Reserved, child: u32) {
    arena::with(|ownership, _| ownership.places.confirm(reserved, child));
}

/// The parent does not know whether it has one.
pub(crate) fn doubt(reserved: Reserved) {
    arena::with(|ownership, _| ownership.places.doubt(reserved, now_s()));
}

/// The child has started. Returns false if that has taken so long that it has been given up.
pub(crate) fn start(reserved: Reserved) -> bool {
    let me = raw::process_id();
    let parent = own::OWN.process.swap(me, Ordering::Relaxed);
    let mut is_at_home = true;
    if raw::parent_id() != parent {
        // The parent has ended, or is in another namespace.
        let space = alive::namespace();
        is_at_home = space != 0 && own::OWN.space.swap(space, Ordering::Relaxed) == space;
    }
    own::OWN.place.store(reserved.place.0, Ordering::Release);
    if reserved == Reserved::UNTRACKED {
        return true;
    }
    let Some(ownership) = arena::ownership() else { return true };
    let is_believed = ownership.places.start(reserved, is_at_home.then_some(me)).is_ok();
    if !is_believed {
        untrack();
    }
    is_believed
}

/// The child may not find out its place: it has what all have that are not told apart.
pub(crate) fn untrack() {
    own::OWN.place.store(Place::UNTRACKED.0, Ordering::Release);
}

/// This process is about to become another program, or goes on after all.
pub(crate) fn set_exec(is_leaving: bool) {
    arena::with(|ownership, me| ownership.places.set_exec(me, raw::process_id(), is_leaving));
}

/// This process is about to become another program: it has a socket no more that others have. Returns
/// what it takes to have it again.
pub(crate) fn suspend(socket: &Socket) -> Option<u32> {
    let is_shared = others_name(socket);
    is_shared.then(|| arena::with(|ownership, me| ownership.suspend(me, socket.index())))??
}

/// It goes on after all. Returns false if the slot is another process's by now.
pub(crate) fn resume(socket: &Socket, since: u32) -> bool {
    arena::with(|ownership, me| ownership.resume(me, socket.index(), since)).unwrap_or(false)
}

/// Whether any descriptor stands for a socket, of any process.
pub(crate) fn is_named(socket: &Socket) -> bool {
    socket.is_named_here()
        || socket.identity.strangers.load(Ordering::Acquire) != 0
        || others_name(socket)
}

/// Whether another process has a descriptor of a socket. If only dead ones have, they are swept away.
fn others_name(socket: &Socket) -> bool {
    let answer = arena::with(|ownership, me| {
        let mut has_dead = false;
        for other in ownership.others(me, socket.index()) {
            if is_parent(ownership.places.state_of(other))
                || !ownership.places.is_gone(other, &|suspect| has_ended(suspect, false))
            {
                return (true, has_dead);
            }
            has_dead = true;
        }
        (false, has_dead)
    });
    let (is_named, has_dead) = answer.unwrap_or_default();
    if has_dead {
        sweep(false);
    }
    is_named
}

/// Whether it lives for sure, and cheaply so: the parent of this process, in the same namespace, still is.
fn is_parent(state_of: EntryState) -> bool {
    state_of == EntryState::Live(raw::parent_id())
}

/// Whether a process of the family has ended. If it is worth more effort, so has one whose number is
/// another process's.
fn has_ended(suspect: Suspect, is_thorough: bool) -> bool {
    let Suspect { process, space, is_leaving } = suspect;
    let is_near = space != 0 && space == own::OWN.space.load(Ordering::Relaxed);
    is_near
        && !confined::is_confined()
        && process != own::OWN.process.load(Ordering::Relaxed)
        && (raw::is_waited_for(process).unwrap_or_else(|| alive::has_ended(process))
            || (is_thorough || is_leaving) && is_stranger(process))
}

/// Whether what the family shares is not mapped in a process. A process that may not look does not say so.
fn is_stranger(process: u32) -> bool {
    let Some(own) = maps("self") else { return false };
    let Some(file) = arena::arena_address().and_then(|address| file_at(&own, address)) else {
        return false;
    };
    // A process that is about to end has nothing mapped.
    let Some(maps) = maps(&process.to_string()).filter(|maps| !maps.is_empty()) else {
        return false;
    };
    maps.split(|byte| *byte == b'\n').all(|line| file_of(line) != Some(file))
}

fn maps(process: &str) -> Option<Vec<u8>> {
    let maps = raw::read_file(Path::new(&format!("/proc/{process}/maps")), MAPS_BYTES)?;
    (maps.len() < MAPS_BYTES).then_some(maps)
}

/// So much of what the kernel says about the memory of a process is read; of what is longer nothing is
/// concluded.
const MAPS_BYTES: usize = 1 << 22;

/// Device and number of the file in a line of `maps`.
fn file_of(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut words = line.split(|byte| *byte == b' ').skip(3);
    Some((words.next()?, words.next()?))
}

fn file_at(maps: &[u8], address: usize) -> Option<(&[u8], &[u8])> {
    let start = format!("{address:x}-");
    let is_it = |line: &&[u8]| line.trim_ascii_start().starts_with(start.as_bytes());
    maps.split(|byte| *byte == b'\n').find(is_it).and_then(file_of)
}

/// Before a fork: if many places are taken, perhaps many are those of the dead.
pub(crate) fn sweep_if_due() {
    let due = arena::with(|ownership, _| ownership.places.is_due());
    if let Some((true, is_short)) = due {
        sweep(is_short && may_be_thorough());
    }
}

/// Whether this process has not taken that effort for about a second.
pub(crate) fn may_be_thorough() -> bool {
    let now = now_s();
    LAST_S.swap(now, Ordering::Relaxed) != now
}

static LAST_S: AtomicU32 = AtomicU32::new(0);

/// Takes from the dead what they had.
pub(crate) fn sweep(is_thorough: bool) {
    // A handler may have interrupted a call that is about to use what is swept away.
    if thread::is_in_handler() || confined::is_confined() {
        return;
    }
    let errno = raw::errno();
    let _stays = raw::Uncancelled::new();
    // Handlers wait: they might fork.
    thread::enter();
    arena::with(|ownership, me| {
        let judge = |suspect| has_ended(suspect, is_thorough);
        let mut clear = |index| arena::slot(index).map_or((), clear_away);
        ownership.sweep(me, arena::fresh(), now_s(), &judge, &mut clear);
    });
    thread::leave();
    raw::set_errno(errno);
}

/// Only dead processes had a socket: what it has left at the rendezvous will not be looked for.
fn clear_away(socket: &Socket) {
    let key = socket.rendezvous.key.load(Ordering::Acquire);
    if key == 0
        || socket.flags.is_adopted.load(Ordering::Relaxed)
        || socket.identity.strangers.load(Ordering::Acquire) != 0
    {
        return;
    }
    match socket.kind() {
        Kind::Datagram => {
            datagram::withdraw_of_dead(key, socket.rendezvous.cookie.load(Ordering::Relaxed));
        }
        Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => {
            offer::withdraw_of_dead(socket, key);
        }
    }
}
