//! Bells of a connection: bytes in the kernel's stream that wake an end that sleeps, sent and drained.
//!
//! An end that sleeps says so in memory first, and on what (`park.rs`). An end that sleeps on many connections is
//! woken by its doorbell instead (`doorbell.rs`).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::base::{raw, thread};
use crate::socket::counters::add;
use crate::socket::state::{Reason, Route, Socket};
use crate::transport::doorbell;
use crate::transport::ring::{Direction, NEVER, ON_WORD, Ring, Segment, TOGETHER};

/// After reading: notifies a writer that waits for room, once there is a good deal of it.
pub(crate) fn notify_of_room(socket: &Socket, ring: Ring<'_>, fd: c_int) {
    fence(Ordering::SeqCst);
    let writer = &ring.direction.writer;
    if writer.armed.load(Ordering::Relaxed) == 0
        || !ring.leaves_much_room()
        || !wants_bell(&writer.armed)
    {
        return;
    }
    let Some(segment) = socket.mapped() else { return };
    let outgoing = segment.outgoing(socket.end()).direction;
    if outgoing.producer.switched_at.load(Ordering::Relaxed) == NEVER {
        // From here on bytes in the kernel's stream are bells.
        let _held = socket.sending.hold();
        switch(socket, segment);
    }
    notify(socket, segment, fd);
}

/// Wakes a sleeper that has armed `bell` and sleeps on that very word. Returns whether there is one that the
/// caller has to notify.
pub(crate) fn wants_bell(bell: &AtomicU32) -> bool {
    match bell.swap(0, Ordering::AcqRel) {
        0 => false,
        ON_WORD => {
            raw::wake(bell);
            thread::note_woken();
            false
        }
        _ => true,
    }
}

/// Sends a bell, unless the other end has closed or leaves: both wait for threads that are about to.
pub(crate) fn notify(socket: &Socket, segment: &Segment, fd: c_int) {
    notify_unless(socket, segment, fd, || false);
}

/// The same, unless at the last moment it `is_done` or needless.
pub(crate) fn notify_unless(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    is_done: impl FnOnce() -> bool,
) {
    let outgoing = segment.outgoing(socket.end()).direction;
    outgoing.producer.notifying.fetch_add(1, Ordering::SeqCst);
    let is_listening =
        outgoing.consumer.sleep.gone.load(Ordering::SeqCst) == 0 && !segment.is_leaving();
    if is_listening && !is_done() {
        outgoing.producer.bells.fetch_add(1, Ordering::SeqCst);
        if raw::send(fd, &[0]).is_err() {
            outgoing.producer.bells.fetch_sub(1, Ordering::AcqRel);
        }
        add(&socket.counters.bells_rung, 1);
        thread::note_woken();
    }
    outgoing.producer.notifying.fetch_sub(1, Ordering::SeqCst);
}

/// From here on this end's bytes travel through its ring. The lock for sending is held.
pub(crate) fn switch(socket: &Socket, segment: &Segment) {
    if segment.outgoing(socket.end()).switch() {
        socket.set_reason(Reason::Rings);
        socket.set_route(Route::Rings);
    }
}

/// Takes the pending bells out of the kernel's queue, unless another thread may be waiting for them.
pub(crate) fn drain_pending(socket: &Socket, ring: Ring<'_>, fd: c_int) {
    let pending = ring.pending();
    if pending > 0
        && socket.waiting.sleepers.load(Ordering::SeqCst) == 0
        && socket.waiting.watchers.load(Ordering::SeqCst) == 0
    {
        take_bells(ring, fd, pending);
    }
}

/// Receives bells, and nothing but bells: the lock for receiving is held, and everything that was
/// sent through the kernel has been read. Returns false if there were fewer.
fn take_bells(ring: Ring<'_>, fd: c_int, count: usize) -> bool {
    let mut left = count;
    let mut bells = [0_u8; 64];
    while left > 0 {
        let most = left.min(bells.len());
        let Ok(got @ 1..) = raw::recv(fd, bells.get_mut(..most).unwrap_or(&mut []), 0) else {
            return false;
        };
        left -= got;
        let drained = &ring.direction.consumer.drained;
        drained.fetch_add(got.try_into().unwrap_or(0), Ordering::AcqRel);
    }
    true
}

/// Takes bells out of the kernel's queue, so that a sleeper sleeps. Returns whether the queue is
/// empty now.
///
/// Only bells whose bytes have been read: other threads that sleep on this connection must find the
/// rest. So they are counted first, and the ring looked at after that. A bell may also be for a thread
/// that waits for room: as long as there is another than the caller, all are left.
pub(crate) fn drain(socket: &Socket, segment: &Segment, fd: c_int, is_writer: bool) -> bool {
    let ring = segment.incoming(socket.end());
    let is_past = || {
        let switched = ring.direction.producer.switched_at.load(Ordering::Acquire);
        switched != NEVER && ring.direction.consumer.taken.load(Ordering::Relaxed) >= switched
    };
    if is_past() && ring.pending() == 0 {
        return true;
    }
    if socket.waiting.writers.load(Ordering::SeqCst) > u32::from(is_writer) {
        return false;
    }
    let _held = socket.receiving.hold();
    if !is_past() {
        return raw::waiting(fd).unwrap_or(0) == 0;
    }
    // Between the count of bells and the look at the ring lies all that makes this right.
    let pending = ring.pending();
    if ring.has_bytes() {
        return false;
    }
    take_bells(ring, fd, pending)
}

/// Wakes a thread that sleeps to read in this direction, and not on the kernel's stream: it has come to an end.
pub(crate) fn wake_at_end(direction: &Direction) {
    let armed = &direction.consumer.sleep.armed;
    let (o, r) = (Ordering::SeqCst, Ordering::Relaxed);
    match armed.compare_exchange(ON_WORD, 0, o, r) {
        Ok(_) => raw::wake(armed),
        Err(TOGETHER) => doorbell::notify_alone(armed_by(direction)),
        Err(_) => {}
    }
}

/// The doorbell of the sleeper that reads in this direction.
pub(crate) fn armed_by(direction: &Direction) -> u32 {
    direction.consumer.sleep.doorbell.load(Ordering::Acquire)
}

/// After a sleep: takes the bell out of the kernel's queue at once. A program that ends with a bell
/// pending would reset the connection where it should end it.
pub(crate) fn drain_after_sleep(socket: &Socket, segment: &Segment, fd: c_int) {
    let _held = socket.receiving.hold();
    let ring = segment.incoming(socket.end());
    let switched = ring.direction.producer.switched_at.load(Ordering::Acquire);
    if switched != NEVER && ring.direction.consumer.taken.load(Ordering::Relaxed) >= switched {
        drain_pending(socket, ring, fd);
    }
}
