//! Which datagram a reader gets next: the mailbox's first one, or the kernel's.
//!
//! Each sender's come in the order in which it has sent them: a record waits for what its sender gave to the kernel
//! before. Senders that have no mailbox here have their turn. What was peeked at is what is received.
//!
//! The kernel's queue is a parameter, so a simulation can run the same decisions (`simulation.rs`).

use std::net::SocketAddr;

use super::mailbox::{Front, Mailbox, Peeked, Sent};
use crate::base::raw::Errno;

/// The kernel's queue of a socket. No call waits.
pub(super) trait KernelQueue {
    /// A datagram out of it.
    type Arrival;

    /// Receives, as the program's call says.
    fn receive(&mut self) -> Result<Self::Arrival, Errno>;

    /// Whether there is nothing in it.
    fn is_empty(&mut self) -> bool;

    /// Whether it begins with a datagram of a sender that does not use the mailbox.
    fn begins_with_stranger(&mut self, mailbox: &Mailbox) -> bool;

    /// How many datagrams it has dropped for want of room. An error if it is not the socket's any more.
    fn drops(&mut self) -> Result<u32, Errno>;

    /// The time, in nanoseconds.
    fn now_ns(&mut self) -> u64;
}

/// The next datagram.
pub(super) enum Next<A> {
    /// The first record, which is still there.
    Record(Front),
    /// Received from the kernel.
    Kernel(A),
}

/// The mailbox first, the kernel's queue when it is empty, or has to wait for what is there. `peeks`: the program's call
/// leaves the datagram where it is. The readers' lock is held.
#[inline]
pub(super) fn next<K: KernelQueue>(
    mailbox: &Mailbox,
    peeks: bool,
    kernel: &mut K,
) -> Result<Next<K::Arrival>, Errno> {
    let front = mailbox.front();
    let peeked = mailbox.peeked();
    let kernel_first = peeked == Peeked::Kernel;
    if let Some(front) = front
        && !kernel_first
        && !mailbox.is_blocked(&front)
    {
        let is_promised = peeks || peeked == Peeked::Ring;
        if is_promised || !mailbox.is_others_turn() || !kernel.begins_with_stranger(mailbox) {
            return Ok(Next::Record(front));
        }
    }
    match kernel.receive() {
        Ok(arrival) => return Ok(Next::Kernel(arrival)),
        Err(Errno::AGAIN) => settle(mailbox, || kernel.is_empty().then(|| kernel.now_ns())),
        Err(error) => return Err(error),
    }
    if kernel_first {
        // Another thread has taken what was peeked at.
        mailbox.set_peeked(Peeked::Nothing);
    }
    let Some(front) = mailbox.front() else { return Err(Errno::AGAIN) };
    if !mailbox.is_blocked(&front) || mailbox.unblock(&front, kernel.drops()?, kernel.now_ns()) {
        return Ok(Next::Record(front));
    }
    Err(Errno::AGAIN)
}

/// Sees to it that senders may use the mailbox that have begun by sending through the kernel. `empty_ns`: the time, if its
/// queue is empty by now. The readers' lock is held.
#[inline]
pub(super) fn settle(mailbox: &Mailbox, empty_ns: impl FnOnce() -> Option<u64>) {
    if mailbox.wants_to_settle() {
        mailbox.settle(empty_ns);
    }
}

/// The program's call has the first record. The readers' lock is held.
#[inline]
pub(super) fn taken(mailbox: &Mailbox, peeks: bool, front: &Front) {
    if peeks {
        return mailbox.set_peeked(Peeked::Ring);
    }
    mailbox.advance(front);
    mailbox.set_peeked(Peeked::Nothing);
}

/// The kernel has brought a datagram; returns whether its sender is known in the mailbox. `empty_ns`: the time, if its
/// queue is empty by now. The readers' lock is held.
pub(super) fn note(
    mailbox: &Mailbox,
    peeks: bool,
    from: Option<SocketAddr>,
    sent: Sent,
    empty_ns: impl FnOnce() -> Option<u64>,
) -> bool {
    if peeks {
        mailbox.set_peeked(Peeked::Kernel);
        return true;
    }
    mailbox.set_peeked(Peeked::Nothing);
    let is_known = from.is_none_or(|from| mailbox.note(from, sent));
    settle(mailbox, empty_ns);
    is_known
}
