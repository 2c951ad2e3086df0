//! Doorbells: how other processes wake this one, only while a thread sleeps, and once for each sleep.
//!
//! A thread that goes to sleep says so on the peer page ([`Doorbell::announce`]) and only then looks whether there
//! is something to do; a writer of a record looks for sleepers afterwards. Both use
//! sequentially consistent operations, so that one of the two sees the other. That a doorbell has been
//! rung is kept for each link: a process that dies while it rings silences only its own link.
//!
//! `tests/doorbell_model.rs` tries every interleaving.

use crate::memory::peer_page::PeerPage;
use crate::sync::{AtomicBool, AtomicU32, EventFd, Ordering, fence};
use std::io;
use std::sync::Arc;

/// A device's own doorbell.
#[derive(Debug)]
pub(crate) struct Doorbell {
    fd: EventFd,
    page: Arc<PeerPage>,
    /// It may have been rung since it was last silenced.
    suspect: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        let (fd, page) = (EventFd::new()?, Arc::new(PeerPage::new()?));
        Ok(Self { fd, page, suspect: AtomicBool::new(false) })
    }

    pub(crate) fn fd(&self) -> &EventFd {
        &self.fd
    }

    pub(crate) fn page(&self) -> &Arc<PeerPage> {
        &self.page
    }

    /// A thread is about to sleep, and wakes when the doorbell rings. What has come before is to be
    /// looked for now.
    pub(crate) fn announce(&self) {
        self.page.sleepers().fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread sleeps no more, and may have been woken by the doorbell.
    pub(crate) fn retire(&self) {
        self.page.sleepers().fetch_sub(1, Ordering::SeqCst);
        self.suspect.store(true, Ordering::SeqCst);
    }

    /// A thread may have been woken by it.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Ordering::SeqCst);
    }

    /// A thread may have been woken by it.
    #[inline]
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Silences the doorbell if a thread may have been woken by it; true if so. What the links remember of having
    /// rung is then to be forgotten, before they are looked at.
    #[inline]
    pub(crate) fn silence(&self) -> bool {
        if !self.is_suspect() {
            return false;
        }
        self.suspect.store(false, Ordering::SeqCst);
        let _ = self.fd.drain();
        true
    }
}

/// Another device's doorbell, rung from one link.
#[derive(Debug)]
pub(crate) struct PeerDoorbell {
    fd: EventFd,
    page: Arc<PeerPage>,
}

impl PeerDoorbell {
    pub(crate) fn new(fd: EventFd, page: Arc<PeerPage>) -> Self {
        Self { fd, page }
    }

    pub(crate) fn page(&self) -> &Arc<PeerPage> {
        &self.page
    }

    /// Something was written: wakes the device if it sleeps and `rung`, the link's memory of having
    /// done so, does not say that it was woken already.
    #[inline]
    pub(crate) fn ring(&self, rung: &AtomicU32) {
        fence(Ordering::SeqCst);
        if self.page.sleepers().load(Ordering::Relaxed) > 0 && rung.swap(1, Ordering::AcqRel) == 0 {
            let _ = self.fd.signal();
        }
    }
}

/// Forgets that a link's doorbell was rung: it rings again for what is written from now on. What was written before
/// can be seen by the caller.
pub(crate) fn forget(rung: &AtomicU32) {
    rung.swap(0, Ordering::AcqRel);
}
