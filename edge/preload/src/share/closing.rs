//! The end of a connection: closing and shutting down, so that the peer sees what TCP would show.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::base::raw;
use crate::share::{processes, stats};
use crate::socket::counters::Counters;
use crate::socket::state::{Reason, Route, Socket};
use crate::socket::{arena, history, table};
use crate::transport::ring::{ACCEPTED, NEVER, Segment};
use crate::transport::{bell, datagram, fallback, offer};
use crate::wait::epoll;

/// A descriptor is about to be closed: forgets it, and says good-bye to the peer if it was the last
/// one of its socket.
pub(crate) fn forget(fd: c_int) {
    let Some(socket) = table::clear(fd) else { return };
    let is_last = !processes::is_named(socket);
    if socket.waiting.watchers.load(Ordering::Relaxed) > 0 {
        if is_last { epoll::forget(socket) } else { epoll::lay(fd, socket) }
    }
    if is_last {
        if let Some(segment) = socket.segment() {
            if socket.flags.is_adopted.load(Ordering::Relaxed) {
                fallback::send_the_rest(socket, fd);
                bell::drain_after_sleep(socket, segment, fd);
            } else {
                part(socket, segment, fd);
            }
        }
        learn(socket);
        arena::describe_wanted();
        stats::close(fd, socket);
        datagram::closing(socket);
    }
    socket.release();
}

/// Remembers whether the connection was a short one.
fn learn(socket: &Socket) {
    let destination = socket.rendezvous.destination.load(Ordering::Relaxed);
    if destination == 0 {
        return;
    }
    let counters = &socket.counters;
    let sum =
        |counts: [&AtomicU64; 4]| counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    let Counters { rx_packets, rx_os_packets, tx_packets, tx_os_packets, .. } = counters;
    let Counters { rx_bytes, rx_os_bytes, tx_bytes, tx_os_bytes, .. } = counters;
    let messages = sum([rx_packets, rx_os_packets, tx_packets, tx_os_packets]);
    let bytes = sum([rx_bytes, rx_os_bytes, tx_bytes, tx_os_bytes]);
    history::ended(destination, messages, bytes, raw::now_ns());
}

/// Says good-bye. What the kernel then sends, a FIN or a reset, is the peer's to see.
fn part(socket: &Socket, segment: &Segment, fd: c_int) {
    let incoming = segment.incoming(socket.end());
    let outgoing = segment.outgoing(socket.end()).direction;
    let is_unread = incoming.has_bytes();
    if !is_unread && !socket.flags.is_abortive.load(Ordering::Relaxed) {
        outgoing.producer.fin.store(1, Ordering::Release);
    }
    incoming.direction.consumer.sleep.gone.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    bell::wake_at_end(outgoing);
    if segment.is_leaving() {
        fallback::send_the_rest(socket, fd);
        return offer::withdraw(socket);
    }
    // From here on the peer sends no bells. Threads that are about to have a moment to finish, since a bell
    // that has not been drained turns the FIN into a reset.
    incoming.direction.consumer.sleep.armed.store(0, Ordering::SeqCst);
    outgoing.writer.armed.store(0, Ordering::SeqCst);
    let until = raw::now_ns() + NOTIFYING_NS;
    while incoming.direction.producer.notifying.load(Ordering::SeqCst) != 0 && raw::now_ns() < until
    {
        raw::give_way();
    }
    if is_unread {
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = raw::set_option_as(fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
    } else if are_bells(segment, socket) {
        let mut bells = [0_u8; 512];
        while let Ok(1..) = raw::recv(fd, &mut bells, 0) {}
    }
    offer::withdraw(socket);
}

/// Whether what waits in the kernel's queue is bells, rather than bytes that have not been read.
fn are_bells(segment: &Segment, socket: &Socket) -> bool {
    let direction = segment.incoming(socket.end()).direction;
    let switched = direction.producer.switched_at.load(Ordering::Acquire);
    switched != NEVER && direction.consumer.taken.load(Ordering::Relaxed) >= switched
}

/// The state that `TCP_INFO` shows of a connection one of whose directions is shut in the rings alone.
pub(crate) fn state_of(socket: &Socket) -> Option<State> {
    let segment = socket.segment()?;
    let has_fin =
        segment.incoming(socket.end()).direction.producer.fin.load(Ordering::Relaxed) != 0;
    match (socket.flags.is_write_shut.load(Ordering::Relaxed), has_fin) {
        (false, false) => None,
        (true, false) => Some(State::FinWait2),
        (false, true) => Some(State::CloseWait),
        (true, true) => Some(State::Close),
    }
}

/// As the kernel numbers them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum State {
    FinWait2 = 5,
    Close = 7,
    CloseWait = 8,
}

/// `connect(2)` to no address has ended a connection: the peer sees a reset, and the socket is the kernel's.
#[cold]
pub(crate) fn disconnected(socket: &Socket) {
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    if let Some(segment) = socket.segment() {
        segment.incoming(socket.end()).direction.consumer.sleep.gone.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        bell::wake_at_end(segment.outgoing(socket.end()).direction);
        bell::wake_at_end(segment.incoming(socket.end()).direction);
        socket.set_reason(Reason::Feature);
        socket.set_route(Route::Kernel);
        offer::withdraw(socket);
    }
    let flags = &socket.flags;
    for flag in [&flags.is_read_shut, &flags.is_write_shut, &flags.is_peer_gone] {
        flag.store(false, Ordering::Relaxed);
    }
    let _ = socket.take_error();
}

/// `shutdown(2)` on a connection. Returns whether the kernel is to be asked as well.
///
/// One direction alone is closed in the rings: the kernel's stream has to go on carrying bells.
pub(crate) fn shut(socket: &Socket, fd: c_int, how: c_int) -> bool {
    let Some(segment) = socket.segment() else { return true };
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        socket.flags.is_read_shut.store(true, Ordering::SeqCst);
        bell::wake_at_end(segment.incoming(socket.end()).direction);
    }
    if how == libc::SHUT_RD {
        return true;
    }
    let _held = socket.sending.hold();
    if segment.header().state.load(Ordering::Acquire) != ACCEPTED
        && offer::take_back(socket, segment, fd)
    {
        return true;
    }
    bell::switch(socket, segment);
    socket.flags.is_write_shut.store(true, Ordering::Release);
    let outgoing = segment.outgoing(socket.end()).direction;
    let producer = &outgoing.producer;
    producer.fin.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    bell::wake_at_end(outgoing);
    if how == libc::SHUT_RDWR {
        // What the peer sends now the kernel answers with a reset.
        let incoming = segment.incoming(socket.end()).direction;
        incoming.consumer.sleep.gone.store(1, Ordering::SeqCst);
        return true;
    }
    if outgoing.consumer.sleep.armed.swap(0, Ordering::AcqRel) != 0 {
        bell::notify(socket, segment, fd);
    }
    // Where there is no peer any more, it is an error.
    socket.flags.is_peer_gone.load(Ordering::Relaxed)
}

/// How long to wait for a bell that is being sent: to give way takes long where processors are busy.
const NOTIFYING_NS: u64 = 100_000_000;
