//! Standstill: both ends of a connection wait for room, since each sends before it reads, and more than rings hold.
//!
//! Such a wait would not end, and the kernel's queues hold some megabytes more: the connection goes back to it. That is known
//! by what lies in memory: there is little room in either ring, the other end has gone to sleep until there is more, and neither
//! has read anything for a while. Calls that block see to it; those that wait by `poll` or `epoll`, or spin for ever, do not.

use std::ffi::c_int;

use adverb_switchover::Route;

use crate::base::raw;
use crate::socket::state::Socket;
use crate::transport::fallback;
use crate::transport::ring::Segment;
use crate::transport::xdp::streams;

/// How long it has to last.
const LASTS_NS: u64 = 50_000_000;

/// What a call that waits for room knows of it.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// Since when, and how far the two ends had read by then.
    since: Option<(u64, [u64; 2])>,
}

impl Standstill {
    /// How long to sleep at most before looking again, if the other end of a connection waits for room as well.
    pub(super) fn slice_ns(socket: &Socket) -> Option<u64> {
        rings(socket).map(|_| LASTS_NS)
    }

    /// Looks again after a sleep. True if the connection has gone back to the kernel.
    pub(super) fn is_over(&mut self, socket: &Socket, fd: c_int) -> bool {
        let Some(segment) = rings(socket) else { return false };
        let (now, tails) = (raw::now_ns(), segment.connection(socket).tails());
        if let Some((since, before)) = self.since
            && before == tails
        {
            return now.saturating_sub(since) >= LASTS_NS && fallback::leave_for_room(socket, fd);
        }
        self.since = Some((now, tails));
        false
    }
}

/// The rings, if there is little room in both and the other end waits for more.
fn rings(socket: &Socket) -> Option<&Segment> {
    let in_rings = socket.route() == Route::Rings && !streams::is_framed(socket);
    let segment = socket.mapped().filter(|_| in_rings)?;
    let (incoming, outgoing) = (segment.incoming(socket.end()), segment.outgoing(socket.end()));
    let is_full = !incoming.leaves_much_room() && !outgoing.has_much_room();
    (is_full && segment.connection(socket).is_waited_for()).then_some(segment)
}
