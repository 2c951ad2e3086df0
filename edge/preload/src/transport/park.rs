//! Sleepers of connections with rings: what there is to see in memory, and how an end says
//! that it sleeps, and on what.
//!
//! Not here: how it is woken (`bell.rs`), and how it sleeps (`blocking.rs`, `multiplex.rs`, `epoll.rs`).

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_switchover::{ON_WORD, OnWord, Route, Want};

use crate::base::raw;
use crate::socket::state::Socket;
use crate::socket::table;
use crate::transport::bell;
use crate::transport::ring::{Ring, Segment};
use crate::transport::xdp::streams;

/// Whether there is anything new to look at, going by memory alone. True for a socket without rings.
#[inline]
pub(crate) fn is_worth_a_look(socket: &Socket, segment: Option<&Segment>, want: Want) -> bool {
    let Some(segment) = segment else { return true };
    let has_room = || has_room(segment.outgoing(socket.end()), want);
    segment.connection(socket).is_worth_a_look(want, || socket.route(), has_room)
}

#[inline]
fn has_room(ring: Ring<'_>, want: Want) -> bool {
    if want == Want::Room { ring.has_much_room() } else { ring.has_room() }
}

/// Asks the kernel whether the peer is still there.
pub(crate) fn look_at_kernel(socket: &Socket, fd: c_int) {
    let events = asked(fd);
    apply_events(socket, fd, events);
    let is_abandoned =
        |segment: &Segment| !segment.is_leaving() && segment.is_abandoned(socket.end());
    if socket.segment().is_some_and(is_abandoned) {
        socket.flags.is_peer_gone.store(true, Ordering::Release);
    }
}

/// What the kernel's events say about the peer. Returns those that hold after that.
pub(crate) fn apply_events(socket: &Socket, fd: c_int, events: i16) -> i16 {
    let mut grave = libc::POLLHUP | libc::POLLERR;
    if !socket.flags.is_read_shut.load(Ordering::Relaxed) {
        grave |= libc::POLLRDHUP;
    }
    if events & grave == 0 || !streams::is_kernels_word(socket, grave, || asked(fd)) {
        return events;
    }
    let is_peaceful = events & grave == libc::POLLRDHUP;
    let is_reset = is_peaceful && socket.segment().is_some_and(|s| reset_if_killed(socket, s, fd));
    socket.flags.is_peer_gone.store(true, Ordering::Release);
    if is_reset { asked(fd) } else { events }
}

/// The kernel's stream from the peer has ended in peace. If the peer was killed with bytes unread, that is since the kernel
/// knows nothing of those in rings: the connection is reset here, as the peer's kernel resets others. Returns whether it is,
/// which has to wait until all that came through the kernel has been read.
fn reset_if_killed(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let connection = segment.connection(socket);
    // The descriptor may be another connection's since the kernel was asked.
    let is_reset = !streams::has_ended(socket)
        && table::is_socket(fd, socket)
        && connection.is_killed_with_unread()
        && (connection.incoming().is_past() || raw::waiting(fd) == Ok(0));
    // Another thread may have seen it first.
    if is_reset && !raw::is_over(fd) {
        raw::disconnect(fd);
        // So that it does not look like one that was never connected.
        raw::shut(fd, libc::SHUT_RDWR);
    }
    is_reset
}

/// What the kernel says of the peer now.
fn asked(fd: c_int) -> i16 {
    raw::poll_now(fd, libc::POLLIN | libc::POLLRDHUP).unwrap_or(0)
}

/// Says that this end sleeps until it can read, or has room to write. Returns whether it may: there
/// is nothing to look at yet.
#[inline]
pub(crate) fn arm(socket: &Socket, segment: &Segment, want: Want) -> bool {
    let has_room = || has_room(segment.outgoing(socket.end()), want);
    let armed = segment.connection(socket).arm(want, || socket.route(), has_room);
    bell::wake(armed.wakes);
    armed.sleeps
}

/// Sleeps on the ring's own word until there is something to read, for a moment: a thread that has
/// slept in vain sleeps in the kernel next. Returns whether it is worth looking.
pub(crate) fn sleep_on_word(socket: &Socket, segment: &Segment, left_ns: Option<u64>) -> bool {
    if socket.flags.is_peer_gone.load(Ordering::Relaxed) {
        return false;
    }
    let connection = segment.connection(socket);
    let is_shut = || socket.flags.is_read_shut.load(Ordering::Relaxed);
    match connection.arm_on_word(socket.route(), is_shut) {
        OnWord::Refused => false,
        OnWord::Look => true,
        OnWord::Sleep => {
            let armed = &connection.incoming().consumer.sleep.armed;
            let most_ns = left_ns.unwrap_or(u64::MAX).min(MOMENT_NS);
            !raw::sleep_on(armed, ON_WORD, i64::try_from(most_ns).unwrap_or(i64::MAX))
        }
    }
}

/// Whether nothing can happen to this connection, short of the peer's being killed, that is not seen in
/// memory: a reader need not sleep on the kernel's stream.
pub(crate) fn is_in_memory(socket: &Socket, segment: &Segment) -> bool {
    segment.connection(socket).is_in_memory(socket.route())
        && !socket.flags.is_peer_gone.load(Ordering::Relaxed)
}

/// Whether this end has bytes to send again, as soon as the kernel takes them.
pub(crate) fn has_to_resend(socket: &Socket) -> bool {
    socket.route() == Route::Leaving
        && socket.mapped().is_some_and(|segment| segment.connection(socket).left_to_send() > 0)
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
        socket.waiters.sleepers.fetch_add(1, Ordering::SeqCst);
        if is_writer {
            socket.waiters.writers.fetch_add(1, Ordering::SeqCst);
        }
        Self { socket, is_writer }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if self.is_writer {
            self.socket.waiters.writers.fetch_sub(1, Ordering::SeqCst);
        }
        self.socket.waiters.sleepers.fetch_sub(1, Ordering::SeqCst);
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
    incoming.direction.has_bytes()
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
    let ended = fin || streams::has_fin(socket);
    let gone = socket.flags.is_peer_gone.load(Ordering::Acquire);
    let read_shut = socket.flags.is_read_shut.load(Ordering::Relaxed);
    let write_shut = socket.flags.is_write_shut.load(Ordering::Relaxed);
    if incoming.direction.has_bytes() || fin || gone || read_shut {
        events |= libc::POLLIN | libc::POLLRDNORM;
    }
    if ended || gone || read_shut {
        events |= libc::POLLRDHUP;
    }
    if (ended || gone || read_shut) && write_shut {
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

/// Whether the kernel's own events still speak for the bytes of this connection, read and written.
pub(crate) fn kernel_speaks(socket: &Socket, segment: &Segment) -> (bool, bool) {
    segment.connection(socket).kernel_speaks(socket.route())
}

/// Reads that find nothing and do not wait, and polls of what is in memory, look at the kernel no more often
/// than this.
const KERNEL_LOOK_NS: u64 = 20_000_000;
