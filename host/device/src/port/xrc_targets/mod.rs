//! XRC targets that several handles are of, in one process or in several. `ibv_open_qp`.
//!
//! A target of a domain can be opened by its number, and ends with the last that has it open. It stays in the process
//! that has made it, whose responder it is. Another process that opens it connects to that one (a UNIX socket, by a name
//! that belongs to the device), asks by messages what its program asks, and hears of events; the connection is its handle,
//! so that one that is killed lets go as one that closes. If the maker ends, its targets fail in the others.
//!
//! One thread of a process answers openers, and listens to makers (`service.rs`); it sleeps but for messages. Packets
//! are none of its business: `xrc_home.rs` has those.

mod message;
mod opened;
mod service;

pub use self::opened::RemoteTarget;

use crate::objects::events::{EventQueue, Listener};
use crate::objects::xrc::Xrcd;
use crate::port::qp::Qp;
use crate::progress::Port;
use crate::registry::rendezvous::Place;
use crate::registry::{DomainName, Member};
use crate::sync::Mutex;
use adverb_sys::fork::PerProcess;
use adverb_wire::Qpn;
use std::io;
use std::sync::{Arc, Weak};

/// Another handle of an XRC target. `ibv_open_qp`.
#[derive(Debug)]
pub enum OpenTarget {
    /// It is of this process.
    Here {
        /// The target.
        target: Arc<Qp>,
        /// Hears of its events.
        listener: Listener,
    },
    /// It is of another process.
    There(RemoteTarget),
}

/// Targets that can be opened, with their domains.
type Targets = Mutex<Vec<(Xrcd, Weak<Qp>)>>;

/// Those of this process.
static TARGETS: PerProcess<Targets> = PerProcess::new();

impl Port {
    /// From now on this target can be opened: by processes that have the domain open, if it is of a file, and by this
    /// one. Its last handle calls [`forget_ended_targets`] when it is dropped.
    ///
    /// # Errors
    ///
    /// No descriptors or threads left; it cannot be opened then.
    pub fn share_target(self: &Arc<Self>, domain: &Xrcd, target: &Arc<Qp>) -> io::Result<()> {
        if domain.is_of_file() {
            service::listen(self)?;
        }
        TARGETS.get().lock().push((domain.clone(), Arc::downgrade(target)));
        Ok(())
    }

    /// Opens the target of this domain with this number. `events` hears of it, where it goes by `context`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such target; `TimedOut` if its process does not answer; no descriptors or threads left.
    pub fn open_target(
        self: &Arc<Self>,
        domain: &Xrcd,
        number: Qpn,
        events: &Arc<EventQueue>,
        context: u64,
    ) -> io::Result<OpenTarget> {
        if let Some(target) = find(number, |known| known.is_same(domain)) {
            let listener = target.listen(events, context);
            return Ok(OpenTarget::Here { target, listener });
        }
        let name = domain.shared.name().ok_or(io::ErrorKind::NotFound)?;
        RemoteTarget::open(self, name, number, events, context).map(OpenTarget::There)
    }
}

/// A handle of a target was dropped: those that have ended let go of their domains.
pub fn forget_ended_targets() {
    TARGETS.get().lock().retain(|(_, target)| target.strong_count() > 0);
}

fn find(number: Qpn, is_domain: impl Fn(&Xrcd) -> bool) -> Option<Arc<Qp>> {
    let targets = TARGETS.get().lock();
    let same = targets.iter().filter(|(domain, _)| is_domain(domain));
    same.filter_map(|(_, target)| target.upgrade()).find(|target| target.number() == number)
}

/// A target that processes can open which have its domain open.
fn find_named(name: DomainName, number: Qpn) -> Option<Arc<Qp>> {
    find(number, |domain| domain.shared.name() == Some(name))
}

/// The name by which a device is found that has made targets. Abstract names belong to the network namespace.
fn name(place: Place, member: Member) -> String {
    format!("adverb-xrc-{}-{}-{}", place.label(), member.slot.number(), member.serial)
}
