//! Connections whose peers are processes of this host, and which devices those are.

use adverb_device::Owner;
use adverb_wire::cm::CommId;
use std::collections::HashMap;

/// The peers.
#[derive(Debug, Default)]
pub(crate) struct Peers(HashMap<CommId, Owner>);

impl Peers {
    pub(crate) fn watch(&mut self, connection: CommId, owner: Owner) {
        self.0.insert(connection, owner);
    }

    pub(crate) fn forget(&mut self, connection: CommId) {
        self.0.remove(&connection);
    }

    /// Forgets the connections whose peers have gone, and says which these are. `lives` is asked once for each device.
    pub(crate) fn look(&mut self, lives: impl Fn(Owner) -> bool) -> Vec<CommId> {
        let mut known = HashMap::new();
        let gone = |_: &CommId, owner: &mut Owner| {
            !*known.entry(*owner).or_insert_with_key(|owner| lives(*owner))
        };
        self.0.extract_if(gone).map(|(connection, _)| connection).collect()
    }
}
