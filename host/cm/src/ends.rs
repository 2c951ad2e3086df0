//! Ends without a message: of this process, and of other ones of this host.
//!
//! A process that ends by `exit` tells the peers of its connections. One that is killed cannot: the kernel, whose
//! manager outlives its programs, tells for them, and here there is no manager but in the process. Peers on the same
//! host see from the registry that it has gone. Peers on other hosts are told by another process of this one, if there
//! is one that manages connections; else they see that their packets are not acknowledged.

use crate::news::ip_of;
use crate::service::{self, Core};
use crate::state::gid_of;
use adverb_device::{Gid, Port};
use adverb_wire::cm::{CommId, ConnectionRecord};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

impl Core {
    /// A connection can be used: if its peer is a process of this host, its life is watched from now on; otherwise it is
    /// written down.
    pub(crate) fn watch_peer(&mut self, connection: CommId) {
        let Some((port, remote)) = self.remote(connection) else {
            return;
        };
        if let Some((peer, _)) = self.ports.of_gid(Gid(remote.peer)) {
            if let Some(owner) = peer.owner(remote.remote_id) {
                self.peers.watch(connection, owner);
            }
        } else if !self.recorded.contains_key(&connection)
            && let Some(recorded) = port.record(&remote)
        {
            self.recorded.insert(connection, recorded);
        }
    }

    /// A connection as its peer knows it, once that has said what it calls it; and the device that names it.
    fn remote(&self, connection: CommId) -> Option<(Arc<Port>, ConnectionRecord)> {
        let state = self.ids.get(self.connections.get(&connection)?)?;
        let (remote_id, remote_qpn) = match (&state.request, &state.reply) {
            (Some(request), _) => (request.local_id, request.qpn),
            (None, Some(reply)) => (reply.local_id, reply.qpn),
            (None, None) => return None,
        };
        let remote = ConnectionRecord {
            local: state.place.as_ref()?.gid.0,
            peer: gid_of(state.peer?).0,
            id: connection,
            remote_id,
            remote_qpn,
            traffic_class: state.traffic_class(),
        };
        Some((Arc::clone(self.ports.home()?), remote))
    }

    /// The peer of a connection knows that it is over, or learns it from this process.
    pub(crate) fn forget_peer(&mut self, connection: CommId) {
        self.peers.forget(connection);
        if let (Some(recorded), Some(home)) = (self.recorded.remove(&connection), self.ports.home())
        {
            home.strike(recorded);
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
        let Some(home) = self.ports.home().cloned() else {
            return;
        };
        home.take_orphans().iter().for_each(|orphan| self.part_from(orphan));
        for connection in self.peers.look(|owner| home.lives(owner)) {
            if let Ok((manager, now)) = self.manager() {
                let _ = manager.lose(connection, now); // It may be over.
            }
        }
    }
}

impl Core {
    /// Tells the peer of a connection that a killed process had, from the address that it had.
    fn part_from(&mut self, of: &ConnectionRecord) {
        let local = Gid(of.local);
        let opened = self.ports.of_gid(local).map(|(port, index)| port.open_address(index).is_ok());
        let address = SocketAddr::new(ip_of(local), 0);
        if opened != Some(true) && self.ports.place(address).is_err() {
            return;
        }
        if let Ok((manager, now)) = self.manager() {
            let _ = manager.part_from(of, now); // As if it was lost.
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
        core.forget_peer(connection);
        if let Ok((manager, now)) = core.manager() {
            let _ = manager.destroy(connection, now); // It may be over.
        }
        core.settle();
    }
    true
}

const LOOK_INTERVAL: Duration = Duration::from_millis(Port::REQUESTS_LOOK_MS);
