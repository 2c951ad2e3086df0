//! Gates: words by which a member says whether it wants packets now, or the kernel is to have them.
//!
//! They lie in a map of the kernel's that the member maps, one for each member, and the steering program reads them. A
//! packet that was looked up just before a gate was shut may still arrive a moment after that, as the program hands packets
//! over in batches: the program counts those that it lets through, so that the member can tell.

use adverb_sys::bpf::{Map, MapKind};
use adverb_sys::memory::Mapping;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Gates of one member.
pub const GATES: u32 = 1 << 14;

/// A member's gates. All are shut at first.
#[derive(Debug)]
pub struct Gates(Mapping);

/// What a member maps.
pub(crate) fn new_map() -> io::Result<Map> {
    Map::create(MapKind::Array, 4, VALUE_BYTES, GATES)
}

impl Gates {
    /// Those that an owner has made.
    pub(crate) fn open(map: &OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::shared(map, usize::try_from(GATES).unwrap_or(0) * STRIDE)?;
        // Best effort: a child that has the mapping does not use it. No lock keeps handlers away while it is looked at.
        let _ = mapping.leave_zeros_to_children();
        Ok(Self(mapping))
    }

    /// Those of a test.
    #[cfg(test)]
    pub(crate) const fn over(mapping: Mapping) -> Self {
        Self(mapping)
    }

    /// How many packets a gate has let through so far, modulo two to the power of 32.
    #[must_use]
    pub fn let_through(&self, gate: u32) -> u32 {
        if gate >= GATES {
            return 0;
        }
        let at = usize::try_from(gate).unwrap_or(0) * STRIDE;
        self.0.half(at + usize::from(COUNT.unsigned_abs())).load(Ordering::SeqCst)
    }

    /// Opens or shuts a gate. One that there is not stays shut.
    pub fn set(&self, gate: u32, is_open: bool) {
        if gate < GATES {
            let at = usize::try_from(gate).unwrap_or(0) * STRIDE;
            self.0.half(at).store(u32::from(is_open), Ordering::SeqCst);
        }
    }
}

const STRIDE: usize = VALUE_BYTES;
/// Of each gate: the word that says whether it is open, and the count of what it has let through.
const VALUE_BYTES: usize = 8;
/// Where the count is.
pub(crate) const COUNT: i16 = 4;
