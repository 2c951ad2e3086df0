//! Standstill: both ends of a connection wait for room, since each sends before it reads, and more than rings hold.
//!
//! Such a wait would not end, and the kernel's queues hold some megabytes more: the connection goes back to it. Calls that wait
//! for room, asleep or spinning, look now and then. An end that finds little room in either ring at two looks, and that neither
//! end has read anything between them, says so in memory, with how much has been read. The connection stands still if the other
//! end has said the same, and says it again after that: an end that does something else meanwhile may read next.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_switchover::Route;

use crate::base::raw;
use crate::socket::state::Socket;
use crate::socket::table;
use crate::transport::fallback;
use crate::transport::ring::Segment;
use crate::transport::xdp::streams;

/// The time between two looks of one end, at least.
const LASTS_NS: u64 = 50_000_000;

/// How long a call that waits for room sleeps at most before it looks again, if both ends may be waiting.
pub(super) fn slice_ns(socket: &Socket) -> Option<u64> {
    may_be(socket).then_some(LASTS_NS)
}

/// Whether there is little room in both rings.
pub(super) fn may_be(socket: &Socket) -> bool {
    full_rings(socket).is_some()
}

/// Looks at a connection for whose room a call waits. True if it stands still: [`end`] is to be called, once no lock is held.
pub(super) fn is_due(socket: &Socket) -> bool {
    let Some(segment) = full_rings(socket) else { return false };
    let connection = segment.connection(socket);
    let (now, progress) = (raw::now_ns(), connection.progress());
    let waiting = &socket.waiting;
    if waiting.still_at.swap(progress, Ordering::Relaxed) != progress {
        waiting.still_ns.store(now, Ordering::Relaxed);
        waiting.still_count.store(0, Ordering::Relaxed);
        return false;
    }
    if now.saturating_sub(waiting.still_ns.load(Ordering::Relaxed)) < LASTS_NS {
        return false;
    }
    let Some(count) = connection.waits_in_vain(progress) else { return false };
    match waiting.still_count.load(Ordering::Relaxed) {
        0 => {
            waiting.still_count.store(count, Ordering::Relaxed);
            waiting.still_ns.store(now, Ordering::Relaxed);
            false
        }
        before => before != count,
    }
}

/// Gives a connection that stands still back to the kernel. False if nothing has happened.
pub(super) fn end(socket: &Socket, fd: c_int) -> bool {
    may_be(socket) && table::is_socket(fd, socket) && fallback::leave_for_room(socket, fd)
}

/// The rings, if there is little room in both.
fn full_rings(socket: &Socket) -> Option<&Segment> {
    let in_rings = socket.route() == Route::Rings && !streams::is_framed(socket);
    let segment = socket.mapped().filter(|_| in_rings)?;
    let (incoming, outgoing) = (segment.incoming(socket.end()), segment.outgoing(socket.end()));
    (!incoming.leaves_much_room() && !outgoing.has_much_room()).then_some(segment)
}
