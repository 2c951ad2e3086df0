//! What a process still does for its peers when it ends and has not dropped its devices: it sends the
//! acknowledgements that wait (`engine`, `port/acks.rs`), and then the messages of connection management that end its
//! connections; last, it passes on the packets of others that its sockets have.
//!
//! The hardware of an adapter acknowledges a message whatever becomes of the program that received it. Here a
//! program that ends with its last completion would take the acknowledgement along, and its peer's SEND would
//! fail. A process that is killed still does.
//!
//! The helper of each device does it, and the thread that ends waits for it: `exit` may have been called by a signal
//! handler, in the midst of a call whose locks nothing will let go.

use super::seats::Table;
use super::{Clock, Port};
use crate::link::udp::endpoint::gid_of;
use crate::link::udp::steering::scope;
use crate::sync::Mutex;
use adverb_engine::Look;
use adverb_sys::fork::PerProcess;
use adverb_sys::process::at_exit;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Open ports of this process.
static OPEN: PerProcess<Mutex<Vec<Weak<Port>>>> = PerProcess::new();

/// What ends connections, after the acknowledgements.
static END_CONNECTIONS: PerProcess<OnceLock<fn() -> bool>> = PerProcess::new();

/// Looks for something that comes at once, or never.
const LOOKS_MAX: u32 = 1000;
/// Looks whether the helpers are done: they may have to wait for a processor.
const FINISH_LOOKS_MAX: u32 = 10 * LOOKS_MAX;
/// From one look to the next.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// This port sends what its peers wait for when the process ends.
pub(super) fn register(port: &Arc<Port>) {
    static HANDLER: PerProcess<OnceLock<()>> = PerProcess::new();
    let mut open = OPEN.get().lock();
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(port));
    drop(open);
    HANDLER.get().get_or_init(|| {
        let _ = at_exit(on_exit);
    });
}

/// Has all ports finish, and waits for that, for a second at most.
extern "C" fn on_exit() {
    let Some(open) = look(LOOKS_MAX, || OPEN.get().try_lock()) else {
        return;
    };
    // The last handle of a port may go meanwhile: threads are not waited for here.
    let ports = || open.iter().filter_map(Weak::upgrade).map(ManuallyDrop::new);
    ports().for_each(|port| port.helper.finish());
    let _ = look(FINISH_LOOKS_MAX, || ports().all(|port| port.helper.has_finished()).then_some(()));
}

/// What `attempt` gives, sooner or later.
fn look<T>(most: u32, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    (0..most).find_map(|_| {
        let found = attempt();
        if found.is_none() {
            std::thread::sleep(LOOK_INTERVAL);
        }
        found
    })
}

impl Port {
    /// Has `end` called when this process ends by `exit(3)` or by returning from `main`, after the acknowledgements that
    /// peers wait for, until it answers true, and for a tenth of a second at most: a lock that it needs may be held
    /// for ever. The first function that is given is called, and no other one.
    pub fn end_connections_at_exit(end: fn() -> bool) {
        let _ = END_CONNECTIONS.get().set(end);
    }

    /// Sends all acknowledgements that wait, and ends connections. For the helper.
    pub(super) fn finish(&self) {
        if let Some(mut receiver) = look(LOOKS_MAX, || self.receiver.try_lock()) {
            let mut clock = Clock::new();
            let now = clock.now();
            let mut table = Table { port: self, clock: &mut clock, poll_buffer: None };
            receiver.waiting.acknowledge(&mut table, Look::Everything);
            receiver.waiting.acknowledge_held(&mut table, now, Look::Everything);
        }
        static CALLED: AtomicBool = AtomicBool::new(false);
        if let Some(end) = END_CONNECTIONS.get().get()
            && !CALLED.swap(true, Ordering::AcqRel)
        {
            let _ = look(LOOKS_MAX, || end().then_some(()));
        }
        self.leave_company();
    }

    /// Leaves the groups of addresses that others have, too, as [`Port::leave_groups`] does.
    fn leave_company(&self) {
        let endpoints = look(LOOKS_MAX, || {
            let endpoints = self.endpoints.try_lock()?;
            Some(endpoints.values().cloned().collect::<Vec<_>>())
        });
        let registry = &self.links.registry;
        for endpoint in endpoints.into_iter().flatten() {
            let (address, scope) = (gid_of(endpoint.addr.ip()).0, scope(endpoint.addr));
            if registry.has_company(address, scope) {
                let leave = || {
                    let left = registry.try_with_group(address, scope, |_, members| {
                        self.leave_group(Arc::clone(&endpoint), members);
                        Ok(())
                    });
                    left.ok().flatten()
                };
                let _ = look(LOOKS_MAX, leave);
            }
        }
    }
}
