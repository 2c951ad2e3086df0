//! Sleepers of connections with rings: what there is to see in memory, and how an end says
//! that it sleeps, and on what.
//!
//! Not here: how it is woken (`bell.rs`), and how it sleeps (`blocking.rs`, `multiplex.rs`, `epoll.rs`).

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use crate::base::raw;
use crate::socket::state::{Route, Socket};
use crate::transport::bell::armed_by;
use crate::transport::ring::{ACCEPTED, ALONE, NEVER, ON_WORD, Segment, TOGETHER};
use crate::transport::{doorbell, fallback};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Want {
    /// Bytes, or the end.
    Read,
    /// Room for a byte.
    Write,
    /// So much room that `poll` calls it writable.
    Room,
}

/// Whether there is anything new to look at, going by memory alone. True for a socket without rings.
#[inline]
pub(crate) fn is_worth_a_look(socket: &Socket, segment: Option<&Segment>, want: Want) -> bool {
    let Some(segment) = segment else { return true };
    if segment.is_leaving() {
        return true;
    }
    match want {
        Want::Read => {
            let direction = segment.incoming(socket.end());
            let producer = &direction.direction.producer;
            let consumer = &direction.direction.consumer;
            let switched = producer.switched_at.load(Ordering::Acquire);
            direction.has_bytes()
                || producer.fin.load(Ordering::Relaxed) != 0
                || switched == NEVER
                || consumer.taken.load(Ordering::Relaxed) < switched
        }
        Want::Write | Want::Room => {
            let ring = segment.outgoing(socket.end());
            (if want == Want::Room { ring.has_much_room() } else { ring.has_room() })
                || ring.direction.consumer.sleep.gone.load(Ordering::Relaxed) != 0
                || socket.route() != Route::Rings
        }
    }
}

/// Asks the kernel whether the peer is still there.
pub(crate) fn look_at_kernel(socket: &Socket, fd: c_int) {
    let events = raw::poll_now(fd, libc::POLLIN | libc::POLLRDHUP).unwrap_or(0);
    apply_events(socket, events);
    let is_abandoned =
        |segment: &Segment| !segment.is_leaving() && segment.is_abandoned(socket.end());
    if socket.segment().is_some_and(is_abandoned) {
        socket.flags.is_peer_gone.store(true, Ordering::Release);
    }
}

/// What the kernel's events say about the peer.
pub(crate) fn apply_events(socket: &Socket, events: i16) {
    let mut grave = libc::POLLHUP | libc::POLLERR;
    if !socket.flags.is_read_shut.load(Ordering::Relaxed) {
        grave |= libc::POLLRDHUP;
    }
    if events & grave != 0 {
        socket.flags.is_peer_gone.store(true, Ordering::Release);
    }
}

/// Says that this end sleeps until it can read, or has room to write. Returns whether it may: there
/// is nothing to look at yet.
pub(crate) fn arm(socket: &Socket, segment: &Segment, want: Want) -> bool {
    let bell = match want {
        Want::Read => &segment.incoming(socket.end()).direction.consumer.sleep.armed,
        Want::Write | Want::Room => &segment.outgoing(socket.end()).direction.writer.armed,
    };
    if bell.load(Ordering::Relaxed) != ALONE {
        // From now on bells are in the kernel's stream, for a thread that sleeps on something else as well.
        match bell.swap(ALONE, Ordering::AcqRel) {
            ON_WORD => raw::wake(bell),
            TOGETHER if want == Want::Read => {
                doorbell::notify_alone(armed_by(segment.incoming(socket.end()).direction));
            }
            _ => {}
        }
    }
    fence(Ordering::SeqCst);
    // As long as the kernel's stream still matters, it is what the sleeper sleeps on.
    if segment.is_leaving() && socket.route() != Route::Leaving {
        return false;
    }
    match want {
        Want::Read => {
            let ring = segment.incoming(socket.end());
            !ring.has_bytes() && ring.direction.producer.fin.load(Ordering::Relaxed) == 0
        }
        Want::Write | Want::Room => {
            !is_worth_a_look(socket, Some(segment), want) || socket.route() != Route::Rings
        }
    }
}

/// Sleeps on the ring's own word until there is something to read, for a moment: to wake a sleeper
/// there takes less than to send a bell. Only the peer wakes it, and not if it is killed: a thread that has
/// slept in vain sleeps in the kernel next. Returns whether it is worth looking.
pub(crate) fn sleep_on_word(socket: &Socket, segment: &Segment, left_ns: Option<u64>) -> bool {
    let armed = &segment.incoming(socket.end()).direction.consumer.sleep.armed;
    let is_settled = socket.route() == Route::Rings
        && socket.waiting.watchers.load(Ordering::SeqCst) == 0
        && segment.outgoing(socket.end()).direction.consumer.sleep.gone.load(Ordering::Relaxed)
            == 0
        && !socket.flags.is_peer_gone.load(Ordering::Relaxed)
        && !is_worth_a_look(socket, Some(segment), Want::Read);
    if !is_settled {
        return false;
    }
    let (o, r) = (Ordering::SeqCst, Ordering::Relaxed);
    let is_only_one = || socket.waiting.sleepers.load(Ordering::SeqCst) <= 1;
    let is_ours = match armed.load(Ordering::Relaxed) {
        // It was armed by a poll that is over.
        TOGETHER => is_only_one() && armed.compare_exchange(TOGETHER, ON_WORD, o, r).is_ok(),
        _ => matches!(armed.compare_exchange(0, ON_WORD, o, r), Ok(_) | Err(ON_WORD)),
    };
    if !is_ours {
        return false;
    }
    fence(Ordering::SeqCst);
    let is_shut = || socket.flags.is_read_shut.load(Ordering::Relaxed);
    if is_worth_a_look(socket, Some(segment), Want::Read) || is_shut() {
        return true;
    }
    let most_ns = left_ns.unwrap_or(u64::MAX).min(MOMENT_NS);
    !raw::sleep_on(armed, ON_WORD, i64::try_from(most_ns).unwrap_or(i64::MAX))
}

/// Whether nothing can happen to this connection, short of the peer's being killed, that is not seen in
/// memory: a reader need not sleep on the kernel's stream.
pub(crate) fn is_in_memory(socket: &Socket, segment: &Segment) -> bool {
    socket.route() == Route::Rings
        && !segment.is_leaving()
        && kernel_speaks(socket, segment) == (false, false)
        && segment.outgoing(socket.end()).direction.consumer.sleep.gone.load(Ordering::Relaxed) == 0
        && !socket.flags.is_peer_gone.load(Ordering::Relaxed)
}

/// Says that the sleeper with that doorbell looks here when a bell has come. Returns false if another
/// sleeps on this connection as well, or may. A full fence has to follow.
/// `polls`: the caller is a sleeper on this connection, rather than the instance that watches it.
pub(crate) fn arm_together(socket: &Socket, segment: &Segment, number: u32, polls: bool) -> bool {
    let consumer = &segment.incoming(socket.end()).direction.consumer;
    let is_alone = socket.waiting.watchers.load(Ordering::SeqCst) > u32::from(!polls)
        || socket.waiting.sleepers.load(Ordering::SeqCst) > u32::from(polls)
        || consumer.sleep.armed.load(Ordering::Relaxed) == ALONE;
    if is_alone || number == 0 {
        return false;
    }
    if consumer.sleep.doorbell.load(Ordering::Relaxed) != number {
        consumer.sleep.doorbell.store(number, Ordering::Release);
    }
    let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
    match consumer.sleep.armed.compare_exchange(0, TOGETHER, o, r) {
        Ok(_) => true,
        Err(armed) => armed == TOGETHER,
    }
}

/// The sleeper with the doorbell looks here no longer: the next bell is for this connection alone.
pub(crate) fn part_together(socket: &Socket, segment: &Segment) {
    let armed = &segment.incoming(socket.end()).direction.consumer.sleep.armed;
    let _ = armed.compare_exchange(TOGETHER, ALONE, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether this end has bytes to send again, as soon as the kernel takes them.
pub(crate) fn has_to_resend(socket: &Socket) -> bool {
    socket.route() == Route::Leaving
        && socket.mapped().is_some_and(|segment| !fallback::has_resent(segment, socket.end()))
}

/// A thread that sleeps, or is about to: bells may be for it.
#[derive(Debug)]
pub(crate) struct Sleeper<'a> {
    socket: &'a Socket,
    is_writer: bool,
}

impl<'a> Sleeper<'a> {
    /// Before anything is armed.
    pub(crate) fn new(socket: &'a Socket, is_writer: bool) -> Self {
        socket.waiting.sleepers.fetch_add(1, Ordering::SeqCst);
        if is_writer {
            socket.waiting.writers.fetch_add(1, Ordering::SeqCst);
        }
        Self { socket, is_writer }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if self.is_writer {
            self.socket.waiting.writers.fetch_sub(1, Ordering::SeqCst);
        }
        self.socket.waiting.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How long a sleeper sleeps that the kernel cannot wake.
pub(crate) const MOMENT_NS: u64 = 20_000_000;

/// Whether the kernel has not been asked about a connection for so long that it had better be.
#[inline]
pub(crate) fn is_look_due(socket: &Socket, now_ns: u64) -> bool {
    now_ns.saturating_sub(socket.waiting.looked_ns.load(Ordering::Relaxed)) > KERNEL_LOOK_NS
}

/// Whether there is something to read of a connection with rings, or an end, going by memory alone.
#[inline]
pub(crate) fn has_news(socket: &Socket, segment: &Segment) -> bool {
    let incoming = segment.incoming(socket.end());
    incoming.has_bytes()
        || incoming.direction.producer.fin.load(Ordering::Relaxed) != 0
        || socket.flags.is_peer_gone.load(Ordering::Relaxed)
        || segment.is_leaving()
}

/// What `poll` would say about a connection with rings, asking memory alone.
pub(crate) fn readiness(socket: &Socket, segment: &Segment) -> i16 {
    let mut events = 0;
    let incoming = segment.incoming(socket.end());
    let outgoing = segment.outgoing(socket.end());
    let fin = incoming.direction.producer.fin.load(Ordering::Acquire) != 0;
    let gone = socket.flags.is_peer_gone.load(Ordering::Acquire);
    let read_shut = socket.flags.is_read_shut.load(Ordering::Relaxed);
    let write_shut = socket.flags.is_write_shut.load(Ordering::Relaxed);
    if incoming.has_bytes() || fin || gone || read_shut {
        events |= libc::POLLIN | libc::POLLRDNORM;
    }
    if fin || gone || read_shut {
        events |= libc::POLLRDHUP;
    }
    if (fin || gone || read_shut) && write_shut {
        events |= libc::POLLHUP;
    }
    let void = gone || outgoing.direction.consumer.sleep.gone.load(Ordering::Relaxed) != 0;
    if outgoing.has_much_room() || void || write_shut {
        events |= libc::POLLOUT | libc::POLLWRNORM;
    }
    events
}

/// Whether a connection with rings has come to an end that only the kernel tells from another one: the peer is gone, or
/// this end is shut both ways.
pub(crate) fn is_at_end(socket: &Socket, segment: &Segment) -> bool {
    let flags = &socket.flags;
    let is_shut =
        flags.is_read_shut.load(Ordering::Relaxed) && flags.is_write_shut.load(Ordering::Relaxed);
    let outgoing = segment.outgoing(socket.end()).direction;
    is_shut
        || flags.is_peer_gone.load(Ordering::Relaxed)
        || outgoing.consumer.sleep.gone.load(Ordering::Relaxed) != 0
}

/// A sleeper has woken up: as long as it is awake, it need not be notified.
pub(crate) fn disarm(socket: &Socket, segment: &Segment) {
    let armed = &segment.incoming(socket.end()).direction.consumer.sleep.armed;
    if armed.load(Ordering::Relaxed) == ALONE
        && socket.waiting.sleepers.load(Ordering::SeqCst) == 0
        && socket.waiting.watchers.load(Ordering::SeqCst) <= 1
    {
        armed.store(0, Ordering::Relaxed);
    }
}

/// Whether the kernel's own events still speak for the bytes of this connection: as long as some
/// are on their way there, or may be.
pub(crate) fn kernel_speaks(socket: &Socket, segment: &Segment) -> (bool, bool) {
    if socket.route() == Route::Leaving {
        return (true, true);
    }
    let direction = segment.incoming(socket.end()).direction;
    let switched = direction.producer.switched_at.load(Ordering::Acquire);
    let reading = switched == NEVER || direction.consumer.taken.load(Ordering::Relaxed) < switched;
    let accepted = segment.header().state.load(Ordering::Acquire) == ACCEPTED;
    (reading, !accepted)
}

/// Reads that find nothing and do not wait, and polls of what is in memory, look at the kernel no more often
/// than this.
const KERNEL_LOOK_NS: u64 = 20_000_000;
