//! Imported memory: files of a neighbour's that are mapped here, and
//! our own that the other has mapped.
//!
//! Nothing is waited for: a device that needs a file asks for it through the handshake thread, and sends records
//! until the file is there. A message goes by reference only when the other side has the file, which
//! is offered first.
//!
//! A file is handed out when it is asked for only if a queue pair on the link grants its peer the rights that the file
//! gives ([`Imports::grant`]). One that peers may write to is not sent from by reference either, without such a grant.

use crate::memory::export::{Class, Home};
use crate::sync::Mutex;
use adverb_engine::Access;
use adverb_sys::memory::{Mapping, file_len, is_sealed};
use adverb_sys::unix::Stream;
use adverb_wire::Qpn;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Message between handshake threads about a file, named by its owner's number.
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
pub(crate) struct Imports {
    stream: OnceLock<Arc<Stream>>,
    /// The other's files; `None` if it was asked for one.
    files: Mutex<HashMap<u64, Option<Arc<ImportedFile>>>>,
    /// Changes when a peer's file goes away and differs between links, so cached mappings can be validated.
    version: AtomicU64,
    /// Our own files, as far as they are given to the other.
    given: Mutex<Given>,
    /// The other process, if its memory can be read and written from here; 0 if not.
    process: AtomicU32,
    /// The other can read ours.
    is_read: AtomicBool,
}

/// A file of the other's, mapped here.
#[derive(Debug)]
pub(crate) struct ImportedFile {
    pub(crate) pages: Mapping,
    /// The mapping is not for reading only.
    pub(crate) is_writable: bool,
}

/// Files of ours that the other side has, and those that it may have.
#[derive(Debug, Default)]
struct Given {
    files: HashMap<u64, Offer>,
    /// Files that it has asked for and may not have.
    refused: BTreeSet<u64>,
    /// What queue pairs on this link allow their peers, and in which domain.
    grants: HashMap<Qpn, (u32, Access)>,
}

impl Given {
    /// A queue pair grants its peer what the file gives.
    fn may_have(&self, home: Home) -> bool {
        let Home { domain, class } = home;
        self.grants.values().any(|(of, access)| *of == domain && class.allows(*access))
    }
}

/// State of the offer of a file of ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Offer {
    /// The other was offered the file.
    Offered,
    /// The other has it.
    Has,
    /// The other may not have it.
    Withheld,
}

impl Default for Imports {
    fn default() -> Self {
        Self {
            stream: OnceLock::new(),
            files: Mutex::default(),
            version: AtomicU64::new(new_version()),
            given: Mutex::default(),
            process: AtomicU32::new(0),
            is_read: AtomicBool::new(false),
        }
    }
}

/// One that no link of this process has had; never 0.
fn new_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Imports {
    /// Where the other side's handshake thread listens.
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
    pub(crate) fn file(&self, number: u64) -> Option<Arc<ImportedFile>> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(&number) {
            return known.clone();
        }
        if files.len() < FILES_MAX && self.say(Message::Ask(number), &[]).is_ok() {
            files.insert(number, None);
        }
        None
    }

    /// A queue pair on this link allows its peer this, in this domain; until [`Imports::revoke`]. What the peer has got
    /// by then it keeps.
    pub(crate) fn grant(&self, qp: Qpn, domain: u32, access: Access) {
        let mut given = self.given.lock();
        given.grants.insert(qp, (domain, access));
        given.files.retain(|_, offer| *offer != Offer::Withheld);
        for number in std::mem::take(&mut given.refused) {
            let _ = self.say(Message::Gone(number), &[]); // It may ask again.
        }
    }

    /// The queue pair allows nothing any more.
    pub(crate) fn revoke(&self, qp: Qpn) {
        self.given.lock().grants.remove(&qp);
    }

    /// The other has this file of ours, and can fetch what is in it. `find` finds it, for an offer that was
    /// not made yet.
    pub(crate) fn can_fetch(
        &self,
        number: u64,
        find: impl FnOnce() -> Option<(Home, OwnedFd)>,
    ) -> bool {
        if number == 0 {
            return self.is_read.load(Ordering::Acquire);
        }
        let mut given = self.given.lock();
        match given.files.get(&number) {
            Some(offer) => *offer == Offer::Has,
            None => {
                if let Some((home, file)) = find() {
                    let offer = match home.class == Class::Open && !given.may_have(home) {
                        true => Some(Offer::Withheld),
                        false => self
                            .say(Message::File(number), &[file.as_fd()])
                            .is_ok()
                            .then_some(Offer::Offered),
                    };
                    given.files.extend(offer.map(|offer| (number, offer)));
                }
                false
            }
        }
    }

    /// A file of ours is gone.
    pub(crate) fn on_own_gone(&self, number: u64) {
        let mut given = self.given.lock();
        given.files.remove(&number);
        given.refused.remove(&number);
        drop(given);
        let _ = self.say(Message::Gone(number), &[]);
    }

    /// The other side says something; `find` finds a file of ours.
    pub(crate) fn on_message(
        &self,
        message: Message,
        file: Option<OwnedFd>,
        find: impl FnOnce(u64) -> Option<(Home, OwnedFd)>,
    ) {
        match message {
            Message::Ask(number) => {
                let Some((home, file)) = find(number) else {
                    return;
                };
                let mut given = self.given.lock();
                if given.may_have(home) {
                    let _ = self.say(Message::File(number), &[file.as_fd()]);
                } else {
                    given.refused.insert(number);
                }
            }
            Message::File(number) => {
                let Some(imported) = file.and_then(|file| map(&file).ok()) else {
                    return;
                };
                let mut files = self.files.lock();
                if files.len() < FILES_MAX || files.contains_key(&number) {
                    files.insert(number, Some(Arc::new(imported)));
                    let _ = self.say(Message::Mapped(number), &[]);
                }
            }
            Message::Mapped(number) => {
                let mut given = self.given.lock();
                if let Some(offer @ Offer::Offered) = given.files.get_mut(&number) {
                    *offer = Offer::Has;
                }
            }
            Message::Gone(number) => {
                self.files.lock().remove(&number);
                self.version.store(new_version(), Ordering::Release);
            }
            Message::Reads => self.is_read.store(true, Ordering::Release),
        }
    }
}

/// Maps all of a file whose length cannot change, for reading only if no more is allowed.
fn map(file: &OwnedFd) -> io::Result<ImportedFile> {
    if !is_sealed(file) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let len = file_len(file)?;
    let (pages, is_writable) = match Mapping::shared(file, len) {
        Ok(pages) => (pages, true),
        Err(_) => (Mapping::shared_for_reading(file, len)?, false),
    };
    Ok(ImportedFile { pages, is_writable })
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
        let imports = Imports::default();
        let none = |_| None;
        let (_here, sealed) = Mapping::memfd("x", 4096).unwrap();
        let open = adverb_sys::memory::memfd("x", 4096).unwrap();
        imports.on_message(Message::File(1), Some(sealed), none);
        imports.on_message(Message::File(2), Some(open), none);
        imports.on_message(Message::File(3), None, none);
        assert_eq!(imports.file(1).unwrap().pages.len(), 4096);
        assert!(imports.file(2).is_none() && imports.file(3).is_none());
        let version = imports.version();
        imports.on_message(Message::Gone(1), None, none);
        assert!(imports.file(1).is_none());
        assert_ne!(imports.version(), version);
    }

    /// Goal: a neighbour that hands over files without end takes no address space without end.
    #[test]
    fn no_more_files_are_mapped_than_the_bound() {
        let imports = Imports::default();
        let (_here, sealed) = Mapping::memfd("x", 4096).unwrap();
        let bound = u64::try_from(FILES_MAX).unwrap();
        let hand_over = |number| {
            let file = sealed.try_clone().unwrap();
            imports.on_message(Message::File(number), Some(file), |_| None);
            imports.file(number).is_some()
        };
        assert!((1..=bound).all(hand_over));
        assert!(!hand_over(bound + 1), "one too many");
        assert!(hand_over(1), "another one of the same number takes its place");
        imports.on_message(Message::Gone(2), None, |_| None);
        assert!(hand_over(bound + 1));
    }

    /// Goal: a neighbour gets the files of regions that its queue pairs may reach, and no others, by whatever number
    /// it asks for them. Method: the other end of the stream is the test itself.
    #[test]
    fn a_file_is_handed_out_only_with_the_rights_of_a_queue_pair() {
        let name = format!("adverb-test-imports-{}", std::process::id());
        let listener = adverb_sys::unix::Listener::bind(name.as_bytes()).unwrap();
        let neighbour = Stream::connect(name.as_bytes()).unwrap();
        let stream = listener.accept().unwrap();
        let imports = Imports::default();
        imports.attach(&Arc::new(stream));
        let home = |domain, class| Home { domain, class };
        let all = [
            home(1, Class::Local),
            home(1, Class::Readable),
            home(1, Class::Open),
            home(2, Class::Open),
        ];
        let find = |number: u64| {
            let home = *all.get(usize::try_from(number).unwrap().checked_sub(1)?)?;
            Some((home, home.class.file("x", 4096).unwrap().1))
        };
        let heard = || {
            let mut heard = Vec::new();
            let (mut bytes, mut files) = ([0; Message::BYTES], Vec::new());
            while let Ok(len @ 1..) = neighbour.recv(&mut bytes, &mut files) {
                heard.push((Message::parse(&bytes[..len]).unwrap(), files.drain(..).count()));
            }
            heard
        };
        let ask_all = || {
            (0..9).for_each(|number| imports.on_message(Message::Ask(number), None, find));
            heard()
        };
        let qp = Qpn::new(7);
        assert_eq!(ask_all(), [], "without a queue pair");
        imports.grant(qp, 1, Access::NONE);
        let again: Vec<_> = (1..5).map(|number| (Message::Gone(number), 0)).collect();
        assert_eq!(heard(), again, "it may ask again");
        assert_eq!(ask_all(), [], "without rights");
        imports.grant(qp, 1, Access::REMOTE_READ);
        heard();
        assert_eq!(ask_all(), [(Message::File(2), 1)]);
        imports.grant(qp, 1, Access::REMOTE_WRITE);
        heard();
        assert_eq!(ask_all(), [], "a mapping for writing would be one for reading, too");
        imports.grant(qp, 1, Access::ALL);
        heard();
        assert_eq!(ask_all(), [(Message::File(2), 1), (Message::File(3), 1)]);
        imports.revoke(qp);
        assert_eq!(ask_all(), []);

        // What the neighbour may not write to goes by reference; what it could write to only as far as it was granted.
        for (number, offered) in [(1, true), (2, true), (3, false), (4, false)] {
            assert!(!imports.can_fetch(number, || find(number)));
            assert_eq!(heard(), if offered { vec![(Message::File(number), 1)] } else { vec![] });
            imports.on_message(Message::Mapped(number), None, find);
            assert_eq!(imports.can_fetch(number, || panic!("it is known")), offered);
        }
        imports.grant(qp, 1, Access::ALL);
        heard();
        assert!(!imports.can_fetch(3, || find(3)));
        assert_eq!(heard(), [(Message::File(3), 1)]);
    }

    #[test]
    fn a_file_that_only_its_owner_writes_to_is_mapped_for_reading() {
        let imports = Imports::default();
        for (number, class) in [(1, Class::Local), (2, Class::Open)] {
            let (_here, file) = class.file("x", 4096).unwrap();
            imports.on_message(Message::File(number), Some(file), |_| None);
            assert_eq!(imports.file(number).unwrap().is_writable, class == Class::Open);
        }
    }
}
