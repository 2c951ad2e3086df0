//! Events that wait for the program.
//!
//! An entry names identifiers by number, and keeps none of them alive; the handles are made when it
//! is taken. The table of identifiers is locked meanwhile (`service.rs`), so that none is destroyed.

use crate::kind::{EventKind, Param};
use adverb_sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    entries: Mutex<VecDeque<Entry>>,
    bell: EventFd,
}

/// An event, and which identifiers it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The identifier that it belongs to: of a request the one that listens.
    pub(crate) owner: u64,
    /// Of a request: the new identifier.
    pub(crate) child: Option<u64>,
    pub(crate) membership: Option<u64>,
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    pub(crate) param: Param,
}

impl Waiting {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { entries: Mutex::default(), bell: EventFd::new()? })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, entry: Entry) {
        let mut entries = self.entries();
        entries.push_back(entry);
        if entries.len() == 1 {
            let _ = self.bell.signal();
        }
    }

    pub(crate) fn pop(&self) -> Option<Entry> {
        let mut entries = self.entries();
        let entry = entries.pop_front();
        if entries.is_empty() {
            let _ = self.bell.drain();
        }
        entry
    }

    /// Takes out the events that belong to an identifier.
    pub(crate) fn take_of(&self, owner: u64) -> VecDeque<Entry> {
        let mut entries = self.entries();
        if !entries.iter().any(|entry| entry.owner == owner) {
            return VecDeque::new();
        }
        let (taken, left): (VecDeque<_>, VecDeque<_>) =
            entries.drain(..).partition(|entry: &Entry| entry.owner == owner);
        *entries = left;
        if entries.is_empty() {
            let _ = self.bell.drain();
        }
        taken
    }

    /// Forgets the events of a membership.
    pub(crate) fn forget_membership(&self, membership: u64) {
        let mut entries = self.entries();
        entries.retain(|entry| entry.membership != Some(membership));
        if entries.is_empty() {
            let _ = self.bell.drain();
        }
    }
}

impl AsFd for Waiting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
