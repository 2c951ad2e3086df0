//! Records in memory that two processes of one host share.

pub(crate) mod direct;
pub(crate) mod doorbell;
pub(crate) mod guard;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod ring;
pub(crate) mod visits;

use crate::sync;
use adverb_engine::Capabilities;

/// The longest payload of a record, in bytes.
pub(crate) const SEGMENT_BYTES: u32 = 8192;

/// Records under way to one queue pair: a link has room for fewer long ones, and then waits.
pub(crate) const WINDOW_RECORDS: u32 = 1024;

/// What a link can do; those by which memory is not shared carry records, and no more.
pub(crate) const fn capabilities(shares: bool) -> Capabilities {
    Capabilities {
        segment: SEGMENT_BYTES,
        by_reference: shares,
        direct: shares,
        eager: true,
        lossy: false,
        trains: false,
        keeps_early: false,
    }
}
