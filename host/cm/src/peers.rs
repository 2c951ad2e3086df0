//! Connections whose peers are processes of this host, and which devices those are.

use adverb_device::Owner;
use adverb_wire::cm::CommId;
use std::collections::HashMap;
use std::time::Duration;

/// The peers, and when it was last looked whether they live.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    owners: HashMap<CommId, Owner>,
    looked: Duration,
}

impl Peers {
    pub(crate) fn watch(&mut self, connection: CommId, owner: Owner) {
        self.owners.insert(connection, owner);
    }

    pub(crate) fn forget(&mut self, connection: CommId) {
        self.owners.remove(&connection);
    }

    /// When it is to be looked next whether they live.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.owners.is_empty()).then(|| self.looked.saturating_add(LOOK_INTERVAL))
    }

    /// Forgets the connections whose peers have gone, if it is time to look, and says which these are. `lives` is asked
    /// once for each device.
    pub(crate) fn look(&mut self, now: Duration, lives: impl Fn(Owner) -> bool) -> Vec<CommId> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        self.looked = now;
        let mut known = HashMap::new();
        let gone = |_: &CommId, owner: &mut Owner| {
            !*known.entry(*owner).or_insert_with_key(|owner| lives(*owner))
        };
        self.owners.extract_if(gone).map(|(connection, _)| connection).collect()
    }
}

/// From one look whether peers live to the next.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
