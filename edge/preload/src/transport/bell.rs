//! Bells of a connection: bytes in the kernel's stream that wake an end that sleeps, sent and drained.
//!
//! What is to be woken, and which bytes are bells, `adverb-switchover` says. An end that sleeps on many connections is
//! woken by its doorbell instead (`doorbell.rs`).

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;

use adverb_switchover::{Bells, Connection, Direction, Route, Wake};

use crate::base::raw::{self, Errno};
use crate::base::thread;
use crate::socket::counters::add;
use crate::socket::state::{Reason, Socket};
use crate::transport::doorbell;
use crate::transport::ring::Segment;
use crate::transport::xdp::discard;

/// After reading: notifies a writer that waits for room, once there is a good deal of it.
#[inline]
pub(crate) fn notify_of_room(socket: &Socket, segment: &Segment, fd: c_int) {
    let connection = segment.connection(socket);
    let has_room = || segment.incoming(socket.end()).leaves_much_room();
    if wake(connection.wake_writer(has_room)) {
        notify_writer(socket, segment, fd);
    }
}

/// A writer of the other end waits for room, and sleeps in the kernel.
#[cold]
fn notify_writer(socket: &Socket, segment: &Segment, fd: c_int) {
    let connection = segment.connection(socket);
    if !connection.outgoing().is_switched() {
        // From here on bytes in the kernel's stream are bells.
        let _held = socket.sending.hold();
        switch(socket, segment);
    }
    notify(socket, connection, fd);
}

/// Wakes a sleeper that sleeps on a word or on its doorbell alone. Returns whether there is one that the
/// caller has to notify.
#[inline]
pub(crate) fn wake(wake: Wake<'_>) -> bool {
    match wake {
        Wake::Nothing => {}
        Wake::Word(word) => _ = wake_word(word),
        Wake::Doorbell(number) => doorbell::notify_alone(number),
        Wake::Bell => return true,
    }
    false
}

/// Wakes what sleeps on a word. Returns whether anything has.
fn wake_word(word: &AtomicU32) -> bool {
    let is_woken = raw::wake(word);
    thread::note_woken();
    is_woken
}

/// Bytes have been written to the ring: wakes what reads them, if it sleeps.
#[inline]
pub(crate) fn wake_reader(socket: &Socket, connection: Connection<'_>, fd: c_int) {
    match connection.wake_reader() {
        Wake::Doorbell(number) if doorbell::is_asleep(number) => {
            let is_notified =
                || doorbell::notify(number).then(|| add(&socket.counters.bells_rung, 1));
            let is_done = || !doorbell::claim(number) || is_notified().is_some();
            notify_unless(socket, connection, fd, is_done);
        }
        Wake::Doorbell(_) => {}
        // One that was killed in its sleep: a bell has its kernel say so.
        Wake::Word(word) => {
            if !wake_word(word) && raw::poll_now(fd, libc::POLLRDHUP) != Ok(0) {
                notify(socket, connection, fd);
            }
        }
        sleeper @ (Wake::Nothing | Wake::Bell) => {
            if wake(sleeper) {
                notify(socket, connection, fd);
            }
        }
    }
}

/// Sends a bell, unless the other end has closed or leaves: both wait for threads that are about to.
pub(crate) fn notify(socket: &Socket, connection: Connection<'_>, fd: c_int) {
    notify_unless(socket, connection, fd, || false);
}

/// The same, unless at the last moment it `is_done` or needless.
fn notify_unless(
    socket: &Socket,
    connection: Connection<'_>,
    fd: c_int,
    is_done: impl FnOnce() -> bool,
) {
    let Some(bell) = connection.bell() else { return };
    if !is_done() {
        bell.send(|| raw::send(fd, &[0]).is_ok());
        add(&socket.counters.bells_rung, 1);
        thread::note_woken();
    }
}

/// From here on this end's bytes travel through its ring. The lock for sending is held.
#[inline]
pub(crate) fn switch(socket: &Socket, segment: &Segment) {
    // A process that was killed in between has switched, and not said so.
    if segment.outgoing(socket.end()).direction.switch() || socket.route() == Route::Offered {
        socket.set_reason(Reason::Rings);
        socket.set_route(Route::Rings);
    }
}

/// Takes the pending bells out of the kernel's queue, unless another thread may be waiting for them.
#[inline]
pub(crate) fn drain_pending(connection: Connection<'_>, fd: c_int) {
    let pending = connection.pending_after_read();
    if pending > 0 {
        take_bells(connection.incoming(), fd, pending);
    }
}

/// Receives bells, and nothing but bells: the lock for receiving is held, and everything that was
/// sent through the kernel has been read. Returns false if there were fewer.
fn take_bells(incoming: &Direction, fd: c_int, count: u64) -> bool {
    let mut left = usize::try_from(count).unwrap_or(0).min(BELLS_MAX);
    let mut bells = [0_u8; 64];
    while left > 0 {
        let most = left.min(bells.len());
        let got = match raw::recv(fd, bells.get_mut(..most).unwrap_or(&mut []), 0) {
            // Of a socket in repair, nothing is received.
            Err(Errno(libc::EPERM)) => discard::swallow(fd, left),
            got => got,
        };
        let Ok(got @ 1..) = got else { return false };
        left = left.saturating_sub(got);
        incoming.drained(got.try_into().unwrap_or(0));
    }
    true
}

/// More bells than this are not waiting at once.
const BELLS_MAX: usize = 1 << 16;

/// Takes bells out of the kernel's queue, so that a sleeper sleeps. Returns whether the queue is
/// empty now.
pub(crate) fn drain(socket: &Socket, segment: &Segment, fd: c_int, is_writer: bool) -> bool {
    let connection = segment.connection(socket);
    if let Some(bells) = connection.looks_for_bells(is_writer) {
        return bells == Bells::None;
    }
    let _held = socket.receiving.hold();
    match connection.bells_to_take() {
        Bells::None => true,
        Bells::Take(pending) => take_bells(connection.incoming(), fd, pending),
        Bells::Leave => false,
        Bells::Data => raw::waiting(fd).unwrap_or(0) == 0,
    }
}

/// After a sleep: takes the bell out of the kernel's queue at once. A program that ends with a bell
/// pending would reset the connection where it should end it.
pub(crate) fn drain_after_sleep(socket: &Socket, segment: &Segment, fd: c_int) {
    let _held = socket.receiving.hold();
    let connection = segment.connection(socket);
    if connection.incoming().is_past() {
        drain_pending(connection, fd);
    }
}
