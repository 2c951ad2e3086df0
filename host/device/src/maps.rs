//! What two neighbours know of one another's memory: files of the other's that are mapped here, and
//! our own that the other has mapped.
//!
//! Nothing is waited for: who needs a file asks for it, by way of the usher, and sends what it has to
//! do through the lane until the file is there. Who wants to lend a message offers the file first, and
//! lends once the other has it.

use crate::sync::Mutex;
use adverb_sys::memory::{Mapping, file_len, is_sealed};
use adverb_sys::unix::Stream;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

/// What ushers say to one another about files, each by its owner's number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// Please let me have this file of yours.
    Ask(u64),
    /// Here is this file of mine; its descriptor comes along.
    File(u64),
    /// I have mapped this file of yours.
    Mapped(u64),
    /// This file of mine is gone.
    Gone(u64),
    /// I can read your memory, wherever it is.
    Reads,
}

impl Message {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn emit(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Self::Ask(number) => (1_u64, number),
            Self::File(number) => (2, number),
            Self::Mapped(number) => (3, number),
            Self::Gone(number) => (4, number),
            Self::Reads => (5, 0),
        };
        let [a, b] = [kind.to_ne_bytes(), number.to_ne_bytes()];
        let mut bytes = [0; Self::BYTES];
        for (place, byte) in bytes.iter_mut().zip(a.into_iter().chain(b)) {
            *place = byte;
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk::<8>()?;
        let number = u64::from_ne_bytes(*rest.as_array::<8>()?);
        match u64::from_ne_bytes(*kind) {
            1 => Some(Self::Ask(number)),
            2 => Some(Self::File(number)),
            3 => Some(Self::Mapped(number)),
            4 => Some(Self::Gone(number)),
            5 => Some(Self::Reads),
            _ => None,
        }
    }
}

/// Files of a neighbour's, at once: a bound on what it can make us map.
const FILES_MAX: usize = 4096;

/// Memory of two neighbours, as one of them knows it.
#[derive(Debug)]
pub(crate) struct Maps {
    stream: OnceLock<Arc<Stream>>,
    /// The other's files; `None` if it was asked for one.
    files: Mutex<HashMap<u64, Option<Arc<Mapping>>>>,
    /// Another one when a file has gone, and for every lane: whoever remembers what he has seen of one
    /// neighbour does not take it for another's.
    version: AtomicU64,
    /// Our own files that the other was offered, and whether it has them.
    lent: Mutex<HashMap<u64, bool>>,
    /// The other process, if its memory can be read and written from here; 0 if not.
    process: AtomicU32,
    /// The other can read ours.
    is_read: AtomicBool,
}

impl Default for Maps {
    fn default() -> Self {
        Self {
            stream: OnceLock::new(),
            files: Mutex::default(),
            version: AtomicU64::new(new_version()),
            lent: Mutex::default(),
            process: AtomicU32::new(0),
            is_read: AtomicBool::new(false),
        }
    }
}

/// One that no lane of this process has had; never 0.
fn new_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Maps {
    /// Where the other side's usher listens.
    pub(crate) fn attach(&self, stream: &Arc<Stream>) {
        let _ = self.stream.set(Arc::clone(stream));
    }

    pub(crate) fn say(&self, message: Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.stream.get() {
            Some(stream) => stream.send(&message.emit(), fds),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The memory of process `pid` can be read and written from here.
    pub(crate) fn set_process(&self, pid: u32) {
        self.process.store(pid, Ordering::Release);
        let _ = self.say(Message::Reads, &[]);
    }

    pub(crate) fn process(&self) -> Option<u32> {
        match self.process.load(Ordering::Acquire) {
            0 => None,
            pid => Some(pid),
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// A file of the other's, if it is mapped here; else it is asked for, once.
    pub(crate) fn file(&self, number: u64) -> Option<Arc<Mapping>> {
        let mut files = lock(&self.files);
        if let Some(known) = files.get(&number) {
            return known.clone();
        }
        if files.len() < FILES_MAX && self.say(Message::Ask(number), &[]).is_ok() {
            files.insert(number, None);
        }
        None
    }

    /// The other has this file of ours, and can fetch what is in it. `descriptor` finds it, for an
    /// offer that was not made yet.
    pub(crate) fn has_lent(
        &self,
        number: u64,
        descriptor: impl FnOnce() -> Option<OwnedFd>,
    ) -> bool {
        if number == 0 {
            return self.is_read.load(Ordering::Acquire);
        }
        let mut lent = lock(&self.lent);
        match lent.get(&number) {
            Some(has) => *has,
            None => {
                let file = descriptor();
                let said = file.map(|file| self.say(Message::File(number), &[file.as_fd()]));
                if said.is_some_and(|said| said.is_ok()) {
                    lent.insert(number, false);
                }
                false
            }
        }
    }

    /// A file of ours is gone.
    pub(crate) fn on_own_gone(&self, number: u64) {
        lock(&self.lent).remove(&number);
        let _ = self.say(Message::Gone(number), &[]);
    }

    /// The other side says something; `descriptor` finds a file of ours.
    pub(crate) fn on_message(
        &self,
        message: Message,
        file: Option<OwnedFd>,
        descriptor: impl FnOnce(u64) -> Option<OwnedFd>,
    ) {
        match message {
            Message::Ask(number) => {
                if let Some(file) = descriptor(number) {
                    let _ = self.say(Message::File(number), &[file.as_fd()]);
                }
            }
            Message::File(number) => {
                let Some(pages) = file.and_then(|file| map(&file).ok()) else {
                    return;
                };
                let mut files = lock(&self.files);
                if files.len() < FILES_MAX || files.contains_key(&number) {
                    files.insert(number, Some(Arc::new(pages)));
                    let _ = self.say(Message::Mapped(number), &[]);
                }
            }
            Message::Mapped(number) => {
                if let Some(has) = lock(&self.lent).get_mut(&number) {
                    *has = true;
                }
            }
            Message::Gone(number) => {
                lock(&self.files).remove(&number);
                self.version.store(new_version(), Ordering::Release);
            }
            Message::Reads => self.is_read.store(true, Ordering::Release),
        }
    }
}

/// Maps all of a file whose length nobody can change.
fn map(file: &OwnedFd) -> io::Result<Mapping> {
    if !is_sealed(file) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Mapping::shared(file, file_len(file)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        let all = [
            Message::Ask(1),
            Message::File(u64::MAX),
            Message::Mapped(3),
            Message::Gone(4),
            Message::Reads,
        ];
        for message in all {
            assert_eq!(Message::parse(&message.emit()), Some(message));
        }
        for bytes in [&[][..], &[0; 16], &[9; 16], &[1; 15], &[1; 17]] {
            assert_eq!(Message::parse(bytes), None);
        }
    }

    #[test]
    fn a_file_is_mapped_until_it_is_gone_and_only_if_it_is_sealed() {
        let maps = Maps::default();
        let none = |_| None;
        let (_here, sealed) = Mapping::memfd("x", 4096).unwrap();
        let open = adverb_sys::memory::memfd("x", 4096).unwrap();
        maps.on_message(Message::File(1), Some(sealed), none);
        maps.on_message(Message::File(2), Some(open), none);
        maps.on_message(Message::File(3), None, none);
        assert_eq!(maps.file(1).unwrap().len(), 4096);
        assert!(maps.file(2).is_none() && maps.file(3).is_none());
        let version = maps.version();
        maps.on_message(Message::Gone(1), None, none);
        assert!(maps.file(1).is_none());
        assert_ne!(maps.version(), version);
    }
}
