//! Which datagram a reader gets next: the mailbox's first one, or the kernel's.
//!
//! Each sender's come in the order in which it has sent them: a record waits for what its sender gave to the kernel
//! before. Senders that have no mailbox here have their turn. What was peeked at is what is received.
//!
//! The kernel's queue is a parameter, so a simulation can run the same decisions (`simulation.rs`).

use std::net::SocketAddr;

use super::mailbox::{Empty, Front, Mailbox, Peeked, Sent};
use crate::base::raw::Errno;

/// The kernel's queue of a socket. No call waits.
pub(super) trait KernelQueue {
    /// A datagram out of it.
    type Arrival;

    /// Receives, as the program's call says.
    fn receive(&mut self) -> Result<Self::Arrival, Errno>;

    /// It, if there is nothing in it.
    fn empty(&mut self) -> Option<Empty>;

    /// The sender of its first datagram, and how many had been dropped when that was queued. `None` if there is nothing in it.
    fn first(&mut self) -> Option<(SocketAddr, u32)>;

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
        && (!mailbox.is_blocked(&front) || passes(mailbox, &front, kernel)?)
    {
        let is_promised = peeks || peeked == Peeked::Ring;
        let mut is_strangers = || kernel.first().is_some_and(|(from, _)| !mailbox.knows(from));
        if is_promised || !mailbox.is_others_turn() || !is_strangers() {
            return Ok(Next::Record(front));
        }
    }
    match kernel.receive() {
        Ok(arrival) => return Ok(Next::Kernel(arrival)),
        Err(Errno::AGAIN) => {
            if front.is_none()
                && mailbox.is_mixed()
                && let Some(empty) = kernel.empty()
            {
                mailbox.unmix(empty);
            }
            settle(mailbox, || kernel.empty());
        }
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

/// Whether a record that is blocked was sent before the first datagram of the kernel's queue, since all was dropped that it
/// waits for.
#[cold]
pub(super) fn passes<K: KernelQueue>(
    mailbox: &Mailbox,
    front: &Front,
    kernel: &mut K,
) -> Result<bool, Errno> {
    if !mailbox.has_fresh(kernel.drops()?) {
        return Ok(false);
    }
    Ok(kernel.first().is_some_and(|(from, drops)| mailbox.passes(front, from, drops)))
}

/// Sees to it that senders may use the mailbox that have begun by sending through the kernel. `empty`: its queue, if that
/// is empty by now. The readers' lock is held.
#[inline]
pub(super) fn settle(mailbox: &Mailbox, empty: impl FnOnce() -> Option<Empty>) {
    if mailbox.wants_to_settle() {
        mailbox.settle(empty);
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

/// The kernel has brought a datagram; returns whether its sender is known in the mailbox. `sent`: where to. `drops` had been
/// dropped before. `empty`: its queue, if that is empty by now. The readers' lock is held.
pub(super) fn note(
    mailbox: &Mailbox,
    peeks: bool,
    from: Option<SocketAddr>,
    (sent, drops): (Sent, u32),
    empty: impl FnOnce() -> Option<Empty>,
) -> bool {
    if peeks {
        mailbox.set_peeked(Peeked::Kernel);
        return true;
    }
    mailbox.set_peeked(Peeked::Nothing);
    let is_known = from.is_none_or(|from| mailbox.note(from, sent, drops));
    settle(mailbox, empty);
    is_known
}
