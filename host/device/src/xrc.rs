//! Extended reliable connections: domains, and the shared receive queues that a target finds in them.
//!
//! A request over XRC names a shared receive queue of the target's domain by number. The target keeps
//! a hold on each queue that it has met, and asks the domain again only when queues have come or
//! gone: finding one takes no lock.
//!
//! A domain lives in one process. Opened by a file, it is the same for all who open that file in this
//! process; other processes have one of their own, with queue pairs of their own, for a queue pair
//! lives in its process here. Numbers of queues are unique on the host.
//!
//! Read IBTA Vol. 1 Annex A14 (extended reliable connection) before changing this file.

use crate::locks::Mutex;
use crate::port::Port;
use crate::srq::{Drawn, Srq, SrqShared};
use adverb_engine::{NoReceive, Receive};
use adverb_wire::Qpn;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Shared receive queues of one domain, at most.
pub const XRC_SRQS_MAX: usize = 4096;

/// What to do if there is a domain of the file already, or none. `oflags` of
/// `struct ibv_xrcd_init_attr`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenXrcd {
    /// Open it, or make it. `O_CREAT`.
    Create,
    /// Make it; there must be none. `O_CREAT | O_EXCL`.
    CreateNew,
    /// Open it; there must be one. No flags.
    Existing,
}

/// A domain of shared receive queues and the targets that use them. `struct ibv_xrcd`.
///
/// A handle: clones are the same domain.
#[derive(Clone, Debug)]
pub struct Xrcd {
    pub(crate) shared: Arc<XrcdShared>,
}

/// A file, wherever it is open: its device and inode.
type FileId = (u64, u64);

/// What the users of a domain share.
#[derive(Debug)]
pub(crate) struct XrcdShared {
    /// Whose queues: of another device they are not found.
    device: String,
    file: Option<FileId>,
    /// Grows whenever a queue comes or goes.
    version: AtomicU64,
    srqs: Mutex<Vec<Weak<SrqShared>>>,
}

/// Domains of files.
static OPEN: Mutex<Vec<Weak<XrcdShared>>> = Mutex::new(Vec::new());

impl Xrcd {
    /// A domain that nobody else can open.
    pub fn new(port: &Port) -> Self {
        Self::of(port, None)
    }

    /// The domain of a file. The file is not read, and can be closed afterwards.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` and `NotFound`, as `how` has it; those of `fstat(2)`.
    pub fn open(port: &Port, file: impl AsFd, how: OpenXrcd) -> io::Result<Self> {
        let metadata = File::from(file.as_fd().try_clone_to_owned()?).metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let mut open = lock(&OPEN);
        open.retain(|domain| domain.strong_count() > 0);
        let same = |domain: &Arc<XrcdShared>| {
            domain.file == Some(id) && domain.device == port.device().name
        };
        match (open.iter().filter_map(Weak::upgrade).find(same), how) {
            (Some(shared), OpenXrcd::Create | OpenXrcd::Existing) => Ok(Self { shared }),
            (Some(_), OpenXrcd::CreateNew) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is an XRC domain of this file already",
            )),
            (None, OpenXrcd::Existing) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "there is no XRC domain of this file in this process",
            )),
            (None, OpenXrcd::Create | OpenXrcd::CreateNew) => {
                let domain = Self::of(port, Some(id));
                open.push(Arc::downgrade(&domain.shared));
                Ok(domain)
            }
        }
    }

    fn of(port: &Port, file: Option<FileId>) -> Self {
        let shared = XrcdShared {
            device: port.device().name.clone(),
            file,
            version: AtomicU64::new(0),
            srqs: Mutex::new(Vec::new()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// It is of this device.
    pub fn is_of(&self, port: &Port) -> bool {
        self.shared.device == port.device().name
    }

    /// Two handles are of the same domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl XrcdShared {
    /// A queue has come; false if there are too many.
    pub(crate) fn enter(&self, srq: &Arc<SrqShared>) -> bool {
        let mut srqs = lock(&self.srqs);
        srqs.retain(|srq| srq.strong_count() > 0);
        if srqs.len() >= XRC_SRQS_MAX {
            return false;
        }
        srqs.push(Arc::downgrade(srq));
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    /// A queue goes: nothing is found in it any more.
    pub(crate) fn leave(&self, number: u32) {
        lock(&self.srqs).retain(|srq| srq.upgrade().is_some_and(|srq| srq.number() != number));
        self.version.fetch_add(1, Ordering::Release);
    }

    fn find(&self, number: u32) -> Option<Srq> {
        let srqs = lock(&self.srqs);
        let shared = srqs.iter().filter_map(Weak::upgrade).find(|srq| srq.number() == number)?;
        Some(Srq { shared })
    }

    fn has(&self, number: u32) -> bool {
        let srqs = lock(&self.srqs);
        srqs.iter().filter_map(Weak::upgrade).any(|srq| srq.number() == number)
    }
}

/// A target's hold on the queues of its domain.
#[derive(Debug)]
pub(crate) struct Targets {
    domain: Arc<XrcdShared>,
    /// The domain's version when it was last asked.
    seen: u64,
    /// Queues that were met.
    met: Vec<Drawn>,
    /// The one that the message at hand draws from.
    current: usize,
}

impl Targets {
    pub(crate) fn new(domain: &Xrcd) -> Self {
        let domain = Arc::clone(&domain.shared);
        Self { seen: 0, domain, met: Vec::new(), current: 0 }
    }

    /// Makes sure that a queue is at hand; the protection domain of its memory.
    pub(crate) fn meet(&mut self, number: Qpn) -> Option<u32> {
        let number = number.get();
        let version = self.domain.version.load(Ordering::Acquire);
        if version != self.seen {
            let Self { domain, met, .. } = self;
            // One whose message is arriving stays until that has ended.
            met.retain(|drawn| drawn.is_held() || domain.has(drawn.number()));
            self.current = self.met.iter().position(Drawn::is_held).unwrap_or(0);
            self.seen = version;
        }
        if let Some(drawn) = self.met.iter().find(|drawn| drawn.number() == number) {
            return Some(drawn.domain());
        }
        let srq = self.domain.find(number)?;
        self.met.push(Drawn::new(&srq));
        Some(srq.shared.domain())
    }

    /// Draws the oldest receive of a queue.
    pub(crate) fn take(&mut self, number: Qpn) -> Result<Receive, NoReceive> {
        self.put_back(); // A queue pair that was reset has forgotten the message it had begun.
        self.meet(number).ok_or(NoReceive::NoSuchQueue)?;
        let found = self.met.iter().position(|drawn| drawn.number() == number.get());
        self.current = found.ok_or(NoReceive::NoSuchQueue)?;
        self.current_mut().and_then(Drawn::take).ok_or(NoReceive::Empty)
    }

    pub(crate) fn put_back(&mut self) {
        if let Some(drawn) = self.current_mut() {
            drawn.put_back();
        }
    }

    /// The queue that the message at hand draws from.
    pub(crate) fn current(&self) -> Option<&Drawn> {
        self.met.get(self.current)
    }

    fn current_mut(&mut self) -> Option<&mut Drawn> {
        self.met.get_mut(self.current)
    }

    /// The receive has ended: what its poster said of it, and the queue's number.
    pub(crate) fn finish(&mut self) -> Option<(u64, Option<u32>, u32)> {
        self.current_mut().map(Drawn::finish)
    }

    /// Protection domains of the queues that were met.
    pub(crate) fn domains(&self) -> impl Iterator<Item = u32> + '_ {
        self.met.iter().map(Drawn::domain)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
