//! Extended reliable connections: domains, and the shared receive queues that a target finds in them.
//!
//! A request over XRC names a shared receive queue of the target's domain by number. The target keeps
//! a hold on each queue that it has met, and asks the domain again only when queues have come or
//! gone: finding one takes no lock.
//!
//! Opened by a file, a domain is the same for all processes of a user that open that file. Each has its own
//! part of it: the queues and the targets that it has made. The registry says which processes have the domain open and
//! whose a queue's number is; `xrc_home.rs` and `xrc_proxy.rs` bring requests and queues of different processes
//! together.
//!
//! Read IBTA Vol. 1 Annex A14 (extended reliable connection) before changing this file.

use crate::locks::Mutex;
use crate::memory::local::BufferNumber;
use crate::objects::progress::Progress;
use crate::objects::srq::{Drawn, Srq, SrqShared};
use crate::objects::xrc_home::XrcHome;
use crate::objects::xrc_proxy::XrcProxy;
use crate::registry::{DomainClaim, DomainName};
use adverb_engine::{NoReceive, Receive};
use adverb_sys::fork::PerProcess;
use adverb_wire::Qpn;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Shared receive queues of one domain, at most.
pub const XRC_SRQS_MAX: usize = 4096;

/// What to do if there is a domain of the file already, or none. `oflags` of
/// `struct ibv_xrcd_init_attr`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(alias = "ibv_xrcd_init_attr")]
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
    /// Keeps a file's domain open; a proxy has none.
    _claim: Option<Arc<Claim>>,
}

/// A port's part of a domain.
#[derive(Debug)]
pub(crate) struct XrcdShared {
    port: Weak<dyn Progress>,
    /// The name of a file's domain.
    name: Option<DomainName>,
    /// There is one as long as this process has the domain open.
    claim: Mutex<Weak<Claim>>,
    /// Grows whenever a queue comes or goes.
    version: AtomicU64,
    srqs: Mutex<Vec<Weak<SrqShared>>>,
}

/// A claim on a file's domain, which tells other processes of it.
#[derive(Debug)]
struct Claim {
    place: DomainClaim,
    port: Weak<dyn Progress>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A port that goes takes its claims along.
        if let Some(port) = self.port.upgrade() {
            port.links().registry.release_domain(self.place);
        }
    }
}

/// Domains of files that this process has open, or that its proxies know.
static KNOWN: PerProcess<Mutex<Vec<Weak<XrcdShared>>>> = PerProcess::new();

impl Xrcd {
    /// A domain that no other process can open.
    pub(crate) fn new(port: &Arc<dyn Progress>) -> Self {
        Self { shared: Arc::new(XrcdShared::new(port, None)), _claim: None }
    }

    /// The domain of a file, for this process and others of this user. The file is not read, and can be
    /// closed afterwards.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` and `NotFound`, as `how` has it; `PermissionDenied` if the file belongs to another
    /// user; those of `fstat(2)`.
    pub(crate) fn open(
        port: &Arc<dyn Progress>,
        file: impl AsFd,
        how: OpenXrcd,
    ) -> io::Result<Self> {
        let metadata = File::from(file.as_fd().try_clone_to_owned()?).metadata()?;
        let (owner, user) = (metadata.uid(), adverb_sys::process::user());
        if owner != user {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "the file belongs to user {owner}, and this process to user {user}: an XRC domain \
                     is shared by processes of one user, by a file of that user"
                ),
            ));
        }
        let name = DomainName::new(port.links().device.index, &metadata);
        let shared = find_or_add(&mut KNOWN.get().lock(), name, port);
        let mut claim = shared.claim.lock();
        let held = match claim.upgrade() {
            Some(held) => how.allow(true).map(|()| held)?,
            None => {
                let registry = &port.links().registry;
                let place = registry.claim_domain(name, |exists| how.allow(exists))?;
                Arc::new(Claim { place, port: Arc::downgrade(port) })
            }
        };
        *claim = Arc::downgrade(&held);
        drop(claim);
        Ok(Self { shared, _claim: Some(held) })
    }

    /// This port's part of a domain that another process knows by this name. It does not keep the domain open.
    pub(crate) fn known(name: DomainName, port: &Arc<dyn Progress>) -> Self {
        Self { shared: find_or_add(&mut KNOWN.get().lock(), name, port), _claim: None }
    }

    /// Several processes can have it open.
    pub(crate) fn is_of_file(&self) -> bool {
        self.shared.name.is_some()
    }

    /// It is of this port.
    pub(crate) fn is_of(&self, port: &Arc<dyn Progress>) -> bool {
        self.shared.is_of(port)
    }

    /// Two handles are of the same domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl OpenXrcd {
    fn allow(self, exists: bool) -> io::Result<()> {
        match (self, exists) {
            (Self::Create, _) | (Self::CreateNew, false) | (Self::Existing, true) => Ok(()),
            (Self::CreateNew, true) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is an XRC domain of this file already",
            )),
            (Self::Existing, false) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "no process of this user has an XRC domain of this file open",
            )),
        }
    }
}

fn find_or_add(
    known: &mut Vec<Weak<XrcdShared>>,
    name: DomainName,
    port: &Arc<dyn Progress>,
) -> Arc<XrcdShared> {
    known.retain(|domain| domain.strong_count() > 0);
    let is_it = |domain: &Arc<XrcdShared>| domain.is_of(port) && domain.name == Some(name);
    known.iter().filter_map(Weak::upgrade).find(is_it).unwrap_or_else(|| {
        let shared = Arc::new(XrcdShared::new(port, Some(name)));
        known.push(Arc::downgrade(&shared));
        shared
    })
}

impl XrcdShared {
    fn new(port: &Arc<dyn Progress>, name: Option<DomainName>) -> Self {
        Self {
            port: Arc::downgrade(port),
            name,
            claim: Mutex::new(Weak::new()),
            version: AtomicU64::new(0),
            srqs: Mutex::new(Vec::new()),
        }
    }

    fn is_of(&self, port: &Arc<dyn Progress>) -> bool {
        std::ptr::addr_eq(self.port.as_ptr(), Arc::as_ptr(port))
    }

    /// A queue has come; false if there are too many.
    pub(crate) fn enter(&self, srq: &Arc<SrqShared>) -> bool {
        let mut srqs = self.srqs.lock();
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
        let mut srqs = self.srqs.lock();
        srqs.retain(|srq| srq.upgrade().is_some_and(|srq| srq.number() != number));
        self.version.fetch_add(1, Ordering::Release);
        let is_last = srqs.is_empty();
        drop(srqs);
        if let Some((name, port)) = self.name.and_then(|name| Some((name, self.port.upgrade()?)))
            && is_last
        {
            port.forget_queues_in(name); // A queue keeps its domain open.
        }
    }

    /// What processes know it by, if several can have it open.
    pub(crate) fn name(&self) -> Option<DomainName> {
        self.name
    }

    fn find(&self, number: u32) -> Option<Srq> {
        let srqs = self.srqs.lock();
        let shared = srqs.iter().filter_map(Weak::upgrade).find(|srq| srq.number() == number)?;
        Some(Srq { shared })
    }

    fn has(&self, number: u32) -> bool {
        let srqs = self.srqs.lock();
        srqs.iter().filter_map(Weak::upgrade).any(|srq| srq.number() == number)
    }
}

/// A target's hold on the queues of its domain.
#[derive(Debug)]
pub(crate) struct Targets {
    domain: Xrcd,
    /// The domain's version when it was last asked.
    seen: u64,
    /// Queues that were met.
    met: Vec<Drawn>,
    /// The one that the message at hand draws from.
    current: usize,
    pub(crate) role: Role,
}

/// Role of a queue pair in a domain of several processes.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing: the domain is this process's alone.
    Alone,
    /// They may serve some of its requests.
    XrcHome(Box<XrcHome>),
    /// It is one of theirs, of which this one serves some requests.
    XrcProxy(Box<XrcProxy>),
}

impl Targets {
    pub(crate) fn new(domain: &Xrcd) -> Self {
        let role = match domain.shared.name {
            Some(name) => Role::XrcHome(Box::new(XrcHome::new(name))),
            None => Role::Alone,
        };
        Self { seen: 0, domain: domain.clone(), met: Vec::new(), current: 0, role }
    }

    pub(crate) fn home_mut(&mut self) -> Option<&mut XrcHome> {
        match &mut self.role {
            Role::XrcHome(home) => Some(home),
            Role::Alone | Role::XrcProxy(_) => None,
        }
    }

    pub(crate) fn proxy_mut(&mut self) -> Option<&mut XrcProxy> {
        match &mut self.role {
            Role::XrcProxy(proxy) => Some(proxy),
            Role::Alone | Role::XrcHome(_) => None,
        }
    }

    /// Makes sure that a queue is at hand; the protection domain of its memory.
    pub(crate) fn meet(&mut self, number: Qpn) -> Option<u32> {
        let number = number.get();
        if self.domain.shared.version.load(Ordering::Acquire) != self.seen {
            self.forget_gone();
        }
        if let Some(drawn) = self.met.iter().find(|drawn| drawn.number() == number) {
            return Some(drawn.domain());
        }
        let srq = self.domain.shared.find(number)?;
        self.met.push(Drawn::new(&srq));
        Some(srq.shared.domain())
    }

    /// Lets go of queues that have left the domain. True if one of them has to stay, as its message is arriving.
    pub(crate) fn forget_gone(&mut self) -> bool {
        let domain = &self.domain.shared;
        self.seen = domain.version.load(Ordering::Acquire);
        self.met.retain(|drawn| drawn.is_held() || domain.has(drawn.number()));
        self.current = self.met.iter().position(Drawn::is_held).unwrap_or(0);
        self.met.iter().any(|drawn| !domain.has(drawn.number()))
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
    pub(crate) fn finish(&mut self) -> Option<(u64, Option<BufferNumber>, u32)> {
        self.current_mut().map(Drawn::finish)
    }

    /// Protection domains of the queues that were met.
    pub(crate) fn domains(&self) -> impl Iterator<Item = u32> + '_ {
        self.met.iter().map(Drawn::domain)
    }
}
