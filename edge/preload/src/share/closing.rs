//! The end of a connection: closing and shutting down, so that the peer sees what TCP would show.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use adverb_switchover::Route;

use crate::base::raw;
use crate::base::yields::Yields;
use crate::share::{processes, stats};
use crate::socket::counters::Counters;
use crate::socket::state::{Reason, Socket};
use crate::socket::{arena, history, table};
use crate::transport::ring::Segment;
use crate::transport::xdp::streams::{self, Ending};
use crate::transport::{bell, datagram, fallback, offer};
use crate::wait::epoll;

/// A descriptor is about to be closed: forgets it, and says good-bye to the peer if it was the last
/// one of its socket.
pub(crate) fn forget(fd: c_int) {
    let Some(socket) = table::clear(fd) else { return };
    let is_last = !processes::is_named(socket);
    if socket.waiters.watchers.load(Ordering::Relaxed) > 0 {
        if is_last { epoll::forget(Some(fd), socket) } else { epoll::lay(fd, socket) }
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
        if streams::is_copied(socket, fd) {
            end_in_spite_of_a_copy(socket, fd);
        }
    }
    socket.release();
}

/// Ends a connection of the kernel's as closing its last descriptor would: there is a copy, which a stopped process keeps.
fn end_in_spite_of_a_copy(socket: &Socket, fd: c_int) {
    let is_abortive = socket.flags.is_abortive.load(Ordering::Relaxed);
    if is_abortive || raw::waiting(fd).is_ok_and(|unread| unread > 0) {
        raw::disconnect(fd);
    } else {
        raw::shut(fd, libc::SHUT_RDWR);
    }
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
    let connection = segment.connection(socket);
    let is_unread = segment.incoming(socket.end()).direction.has_bytes();
    let is_abortive = is_unread || socket.flags.is_abortive.load(Ordering::Relaxed);
    if end_framed(socket, || streams::close(socket, fd, is_abortive)) == Ending::Frames {
        if !is_abortive {
            streams::await_acknowledged(socket, fd);
        }
        return offer::withdraw(socket);
    }
    let closing = connection.close(socket.flags.is_abortive.load(Ordering::Relaxed));
    bell::wake(closing.wakes);
    if closing.has_to_resend {
        fallback::send_the_rest(socket, fd);
        return offer::withdraw(socket);
    }
    let (until, mut yields) = (raw::now_ns() + NOTIFYING_NS, Yields::default());
    while connection.is_being_notified() && raw::now_ns() < until {
        // What sends it may wait for this very processor, which to give way alone may not give it.
        fallback::pause(&mut yields);
    }
    if closing.is_unread {
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = raw::set_option_as(fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
    } else if connection.incoming().is_past() {
        let mut bells = [0_u8; 512];
        while let Ok(1..) = raw::recv(fd, &mut bells, 0) {}
    }
    offer::withdraw(socket);
}

/// Ends a connection that frames may carry, with both locks held.
fn end_framed(socket: &Socket, end: impl FnOnce() -> Ending) -> Ending {
    if !streams::is_framed(socket) {
        return Ending::Kernel;
    }
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    end()
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
pub(crate) fn disconnected(socket: &Socket, fd: c_int) {
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    let _ = streams::close(socket, fd, true);
    if let Some(segment) = socket.segment() {
        bell::wake(segment.connection(socket).vanish(false));
        bell::wake(segment.incoming(socket.end()).direction.wake_at_end());
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
    if how == libc::SHUT_RD {
        let _held = socket.sending.hold();
        match socket.segment() {
            Some(segment) => shut_reading(socket, segment),
            // What the kernel says of an end of the stream would be taken for the peer's: no offer is taken any more.
            None => socket.leave_to_kernel(Reason::Feature),
        }
        return true;
    }
    let is_framed = streams::is_framed(socket);
    let ending = end_framed(socket, || streams::shut_down(socket, fd));
    let is_back = is_framed && ending == Ending::Kernel;
    if is_back || socket.segment().is_some_and(Segment::is_leaving) {
        fallback::push(socket, fd);
    }
    let _held = socket.sending.hold();
    // A stream that the kernel has ended carries no bells: no offer is taken any more.
    socket.leave_to_kernel(Reason::Feature);
    let Some(segment) = socket.segment() else { return true };
    if how == libc::SHUT_RDWR {
        shut_reading(socket, segment);
    }
    if socket.route() == Route::Leaving {
        return shut_leaving(socket, segment, fd, how);
    }
    if !segment.page().is_accepted() && offer::take_back(socket, segment, fd) {
        return true;
    }
    bell::switch(socket, segment);
    socket.flags.is_write_shut.store(true, Ordering::Release);
    let connection = segment.connection(socket);
    bell::wake(connection.shut(how != libc::SHUT_RDWR));
    if ending == Ending::Frames {
        return false;
    }
    if how == libc::SHUT_RDWR {
        return true;
    }
    if bell::wake(connection.wake_at_fin()) {
        bell::notify(socket, connection, fd);
    }
    // Where there is no peer any more, it is an error.
    socket.flags.is_peer_gone.load(Ordering::Relaxed)
}

fn shut_reading(socket: &Socket, segment: &Segment) {
    socket.flags.is_read_shut.store(true, Ordering::SeqCst);
    bell::wake(segment.incoming(socket.end()).direction.wake_at_end());
}

/// The same of one that follows its other end back to the kernel, with the lock for sending held: the end of the stream
/// comes behind what the kernel has not taken yet. The program reads no more at once.
fn shut_leaving(socket: &Socket, segment: &Segment, fd: c_int, how: c_int) -> bool {
    socket.flags.is_write_shut.store(true, Ordering::Release);
    let is_all_sent = segment.connection(socket).left_to_send() == 0;
    if !is_all_sent && how == libc::SHUT_RDWR {
        raw::shut(fd, libc::SHUT_RD);
    }
    is_all_sent
}

/// How long to wait for a bell that is being sent: that takes long where processors are busy.
const NOTIFYING_NS: u64 = 100_000_000;
