//! Standstill: both ends of a connection wait for room, since each sends before it reads, and more than rings hold.
//!
//! Such a wait would not end, and the kernel's queues hold some megabytes more: the connection goes back to it. Every call that
//! waits for room, asleep or spinning, looks now and then. Where there is little room in either ring, and neither end has read
//! anything for a while, it says so in memory, with how much has been read; the connection stands still once both ends have
//! said the same.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_switchover::Route;

use crate::base::raw;
use crate::socket::state::Socket;
use crate::socket::table;
use crate::transport::fallback;
use crate::transport::ring::Segment;
use crate::transport::xdp::streams;

/// How long it has to last.
const LASTS_NS: u64 = 50_000_000;

/// How long a call that waits for room sleeps at most before it looks again, if both ends may be waiting.
pub(super) fn slice_ns(socket: &Socket) -> Option<u64> {
    full_rings(socket).map(|_| LASTS_NS)
}

/// Looks at a connection for whose room a call waits. True if it stands still, and has done so for long enough: [`end`] is to
/// be called, once no lock is held. The first look begins the time.
pub(super) fn is_due(socket: &Socket) -> bool {
    let Some(segment) = full_rings(socket) else { return false };
    let connection = segment.connection(socket);
    let (now, progress) = (raw::now_ns(), connection.progress());
    let waiting = &socket.waiting;
    if waiting.still_at.swap(progress, Ordering::Relaxed) != progress {
        waiting.still_ns.store(now, Ordering::Relaxed);
        return false;
    }
    let lasts_ns = now.saturating_sub(waiting.still_ns.load(Ordering::Relaxed));
    lasts_ns >= LASTS_NS && connection.agrees_to_stand_still(progress)
}

/// Gives a connection that stands still back to the kernel. False if nothing has happened.
pub(super) fn end(socket: &Socket, fd: c_int) -> bool {
    let is_still = full_rings(socket).is_some() && table::is_socket(fd, socket);
    is_still && fallback::leave_for_room(socket, fd)
}

/// The rings, if there is little room in both.
fn full_rings(socket: &Socket) -> Option<&Segment> {
    let in_rings = socket.route() == Route::Rings && !streams::is_framed(socket);
    let segment = socket.mapped().filter(|_| in_rings)?;
    let (incoming, outgoing) = (segment.incoming(socket.end()), segment.outgoing(socket.end()));
    (!incoming.leaves_much_room() && !outgoing.has_much_room()).then_some(segment)
}
