//! Ends without a message: of this process, and of other ones of this host.
//!
//! A process that ends by `exit` tells the peers of its connections. One that is killed cannot: the kernel, whose
//! manager outlives its programs, tells for them, and here there is no manager but in the process. Peers on the same
//! host see from the registry that it has gone. Peers on other hosts see that their packets are not acknowledged.

use crate::service::{self, Core};
use crate::state::gid_of;
use adverb_device::Port;
use adverb_wire::cm::CommId;
use std::time::Duration;

impl Core {
    /// A connection can be used: if its peer is a process of this host, its life is watched from now on.
    pub(crate) fn watch_peer(&mut self, connection: CommId) {
        let owner = self.connections.get(&connection).and_then(|key| {
            let state = self.ids.get(key)?;
            let (request, reply) = (state.request.as_ref(), state.reply.as_ref());
            let remote = request.map(|req| req.local_id).or(reply.map(|rep| rep.local_id))?;
            let (port, _) = self.ports.of_gid(gid_of(state.peer?))?;
            port.owner(remote)
        });
        if let Some(owner) = owner {
            self.peers.watch(connection, owner);
        }
    }

    /// When it is to be looked next at what other processes do.
    pub(crate) fn next_look(&self) -> Option<Duration> {
        (!self.ids.is_empty()).then(|| self.looked.saturating_add(LOOK_INTERVAL))
    }

    /// If it is time, ends connections whose peers have gone, and sees to it that requests arrive.
    pub(crate) fn look_around(&mut self, now: Duration) {
        if self.next_look().is_none_or(|next| now < next) {
            return;
        }
        self.looked = now;
        self.ports.all().iter().for_each(|port| port.look_after_requests());
        let Some(home) = self.ports.home() else {
            return;
        };
        for connection in self.peers.look(|owner| home.lives(owner)) {
            if let Ok((manager, now)) = self.manager() {
                let _ = manager.lose(connection, now); // It may be over.
            }
        }
    }
}

/// Tells all peers of this process that their connections end, once: it ends itself, and waits for no answer. False if
/// another thread has the lock.
pub(crate) fn disconnect_all() -> bool {
    let Some(mut core) = service::try_core() else {
        return false;
    };
    let connections: Vec<_> = core.connections.keys().copied().collect();
    for connection in connections {
        if let Ok((manager, now)) = core.manager() {
            let _ = manager.destroy(connection, now); // It may be over.
        }
        core.settle();
    }
    true
}

const LOOK_INTERVAL: Duration = Duration::from_millis(Port::REQUESTS_LOOK_MS);
