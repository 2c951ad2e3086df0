//! Streaks: receptions in a row, with nothing sent in between, which tell a stream from a conversation.

use std::sync::atomic::Ordering;

use crate::socket::state::Socket;

/// Something has been received; the lock for that is held.
#[inline]
pub(crate) fn note_run(socket: &Socket) {
    socket.traffic.rx_streak.store(
        socket.traffic.rx_streak.load(Ordering::Relaxed).saturating_add(1),
        Ordering::Relaxed,
    );
}

/// Something has been sent: this is no stream in one direction.
#[inline]
pub(crate) fn end_run(socket: &Socket) {
    if socket.traffic.rx_streak.load(Ordering::Relaxed) != 0 {
        socket.traffic.rx_streak.store(0, Ordering::Relaxed);
    }
}

/// A stream of small messages is read faster if several are taken at a time: while this end does not
/// look, the other writes to memory that it has for itself. So an end that only receives leaves it alone for
/// some hundred nanoseconds, if so little is there.
#[inline]
pub(crate) fn gather(socket: &Socket) {
    if socket.traffic.rx_streak.load(Ordering::Relaxed) < RUN_MIN {
        return;
    }
    let Some(segment) = socket.segment() else {
        // A sender that fills the kernel's queue waits for those that look into it.
        (0..QUEUE_ROUNDS).for_each(|_| std::hint::spin_loop());
        return;
    };
    if (1..GATHER_BYTES).contains(&segment.incoming(socket.end()).direction.waiting()) {
        (0..GATHER_ROUNDS).for_each(|_| std::hint::spin_loop());
    }
}

/// After so many receptions in a row, without anything sent in between, a connection is a stream.
const RUN_MIN: u32 = 64;
/// Less than this is little.
const GATHER_BYTES: u64 = 512;
/// How long it is left alone.
const GATHER_ROUNDS: u32 = 40;
/// The same for the kernel's queue, where every byte costs more.
const QUEUE_ROUNDS: u32 = 400;
