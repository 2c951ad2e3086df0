//! Attributes of a queue pair: how they are changed and queried.

use crate::link::address_vector::check;
use crate::link::errors::ConnectError;
use crate::objects::limits::QpLimits;
use adverb_engine::{Attributes, QpState, Settings};
use adverb_wire::Marks;

/// Changes to a queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// The attributes.
    pub attributes: Attributes,
    /// With a peer's address: the place of its own in the GID table.
    pub gid_index: u8,
    /// With a peer's address: how packets are to be marked. Between queue pairs of one host there are
    /// none.
    pub marks: Marks,
}

impl Change {
    /// Says whether the attributes have values that exist here.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Attribute`].
    pub fn check(&self) -> Result<(), ConnectError> {
        let Attributes { partition, port, max_rd_atomic, max_dest_rd_atomic, .. } = self.attributes;
        check(self.marks)?;
        let reads_max = u32::from(QpLimits::RD_ATOMIC_MAX);
        let checks = [
            ("pkey_index", partition.map(|partition| partition.index.into()), (0, 0)),
            ("port_num", port.map(u32::from), (1, 1)),
            ("max_rd_atomic", max_rd_atomic.map(u32::from), (0, reads_max)),
            ("max_dest_rd_atomic", max_dest_rd_atomic.map(u32::from), (0, reads_max)),
        ];
        for (what, asked, allowed) in checks {
            if let Some(asked) = asked.filter(|asked| *asked < allowed.0 || *asked > allowed.1) {
                return Err(ConnectError::Attribute { what, asked, allowed });
            }
        }
        Ok(())
    }
}

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// Its receive queue.
    Receive,
    /// Its send queue.
    Send,
}

/// Attributes of a queue pair as they are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpQuery {
    /// Its state.
    pub state: QpState,
    /// In SQD: requests that had begun have not all ended.
    pub draining: bool,
    /// Place of its own address in the GID table, once it is known.
    pub gid_index: u8,
    /// How its packets are to be marked.
    pub marks: Marks,
    /// Its attributes.
    pub settings: Settings,
}
