//! Management datagrams that wait for the one that manages the connections of this process.
//!
//! Ports put them in, whichever of them they came to; what finds no room is the sender's to send again.

use crate::sync::Mutex;
use adverb_engine::Gid;
use adverb_sys::eventfd::EventFd;
use adverb_wire::Mad;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// A management datagram that has arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagementDatagram {
    /// Address that it was sent to.
    pub local: Gid,
    /// Address that it came from.
    pub peer: Gid,
    /// What it says.
    pub bytes: [u8; Mad::DATAGRAM_LEN],
}

/// Management datagrams for this process.
#[derive(Debug)]
pub struct Inbox {
    waiting: Mutex<VecDeque<ManagementDatagram>>,
    doorbell: EventFd,
}

impl Inbox {
    /// How many wait at most: 2 MiB of them.
    pub const WAITING_MAX: usize = 8192;

    /// An empty one.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), doorbell: EventFd::new()? })
    }

    /// Takes all that wait, in the order in which they came.
    pub fn take(&self) -> VecDeque<ManagementDatagram> {
        let _ = self.doorbell.drain(); // Before the queue is looked at: what comes later rings again.
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Wakes whatever waits for the descriptor.
    pub fn ring(&self) {
        let _ = self.doorbell.signal();
    }

    /// False if there is no room.
    pub(crate) fn put(&self, datagram: ManagementDatagram) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= Self::WAITING_MAX {
            return false;
        }
        waiting.push_back(datagram);
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            self.ring();
        }
        true
    }
}

impl AsFd for Inbox {
    /// Readable while datagrams wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_comes_out_in_order() {
        let inbox = Inbox::new().unwrap();
        let datagram = |n: usize| {
            let mut bytes = [0; Mad::DATAGRAM_LEN];
            bytes[..8].copy_from_slice(&n.to_ne_bytes());
            ManagementDatagram { local: Gid([1; 16]), peer: Gid([2; 16]), bytes }
        };
        assert!((0..Inbox::WAITING_MAX).all(|n| inbox.put(datagram(n))));
        assert!(!inbox.put(datagram(0)));
        let taken = inbox.take();
        assert!(taken.into_iter().eq((0..Inbox::WAITING_MAX).map(datagram)));
        assert!(inbox.take().is_empty() && inbox.put(datagram(1)));
    }
}
