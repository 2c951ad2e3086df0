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
}

/// Shared state of a domain.
#[derive(Debug)]
pub(crate) struct XrcdShared {
    /// Whose targets and queues: each port has its own part of a domain.
    port: Weak<dyn Progress>,
    /// What processes share of a file's domain.
    claim: Option<Claim>,
    /// Grows whenever a queue comes or goes.
    version: AtomicU64,
    srqs: Mutex<Vec<Weak<SrqShared>>>,
}

/// A claim on a file's domain, which tells other processes of it.
#[derive(Debug)]
struct Claim {
    name: DomainName,
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

/// Domains of files that this process has open.
static OPEN: PerProcess<Mutex<Vec<Weak<XrcdShared>>>> = PerProcess::new();

impl Xrcd {
    /// A domain that no other process can open.
    pub(crate) fn new(port: &Arc<dyn Progress>) -> Self {
        Self::of(port, None)
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
        let mut open = OPEN.get().lock();
        open.retain(|domain| domain.strong_count() > 0);
        if let Some(shared) = find(&open, name, port) {
            return how.allow(true).map(|()| Self { shared });
        }
        let place = port.links().registry.claim_domain(name, |exists| how.allow(exists))?;
        let domain = Self::of(port, Some(Claim { name, place, port: Arc::downgrade(port) }));
        open.push(Arc::downgrade(&domain.shared));
        Ok(domain)
    }

    /// This port's part of a domain that another process knows by this name.
    pub(crate) fn known(name: DomainName, port: &Arc<dyn Progress>) -> Option<Self> {
        find(&OPEN.get().lock(), name, port).map(|shared| Self { shared })
    }

    fn of(port: &Arc<dyn Progress>, claim: Option<Claim>) -> Self {
        let shared = XrcdShared {
            port: Arc::downgrade(port),
            claim,
            version: AtomicU64::new(0),
            srqs: Mutex::new(Vec::new()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Several processes can have it open.
    pub(crate) fn is_of_file(&self) -> bool {
        self.shared.claim.is_some()
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

fn find(
    open: &[Weak<XrcdShared>],
    name: DomainName,
    port: &Arc<dyn Progress>,
) -> Option<Arc<XrcdShared>> {
    let is_it = |domain: &Arc<XrcdShared>| {
        domain.is_of(port) && domain.claim.as_ref().is_some_and(|claim| claim.name == name)
    };
    open.iter().filter_map(Weak::upgrade).find(is_it)
}

impl XrcdShared {
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
        let last = srqs.is_empty();
        drop(srqs);
        if let Some((claim, port)) =
            self.claim.as_ref().and_then(|claim| Some((claim, claim.port.upgrade()?)))
            && last
        {
            port.end_proxies_in(claim.name); // They would keep the domain open.
        }
    }

    /// What processes know it by, if several can have it open.
    pub(crate) fn name(&self) -> Option<DomainName> {
        self.claim.as_ref().map(|claim| claim.name)
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
    domain: Arc<XrcdShared>,
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
        let domain = Arc::clone(&domain.shared);
        let role = match &domain.claim {
            Some(claim) => Role::XrcHome(Box::new(XrcHome::new(claim.name))),
            None => Role::Alone,
        };
        Self { seen: 0, domain, met: Vec::new(), current: 0, role }
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
    pub(crate) fn finish(&mut self) -> Option<(u64, Option<BufferNumber>, u32)> {
        self.current_mut().map(Drawn::finish)
    }

    /// Protection domains of the queues that were met.
    pub(crate) fn domains(&self) -> impl Iterator<Item = u32> + '_ {
        self.met.iter().map(Drawn::domain)
    }
}
