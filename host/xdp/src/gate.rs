//! Gates: words by which a member says whether it wants packets now, or the kernel is to have them.
//!
//! They lie in a map of the kernel's that the member maps, one for each member, and the steering program reads them. A
//! packet that was looked up just before a gate was shut may still arrive a moment after that: the program hands packets
//! over in batches.

use adverb_sys::bpf::{Map, MapKind};
use adverb_sys::memory::Mapping;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Gates of one member.
pub const GATES: u32 = 4096;

/// A member's gates. All are shut at first.
#[derive(Debug)]
pub struct Gates(Mapping);

/// What a member maps.
pub(crate) fn new_map() -> io::Result<Map> {
    Map::create(MapKind::Array, 4, 4, GATES)
}

impl Gates {
    /// Those that an owner has made.
    pub(crate) fn open(map: &OwnedFd) -> io::Result<Self> {
        // An array of four-byte values has each in eight.
        let mapping = Mapping::shared(map, usize::try_from(GATES).unwrap_or(0) * STRIDE)?;
        // Best effort: a child that has the mapping does not use it.
        let _ = mapping.keep_from_children();
        Ok(Self(mapping))
    }

    /// Those of a test.
    #[cfg(test)]
    pub(crate) const fn over(mapping: Mapping) -> Self {
        Self(mapping)
    }

    /// Opens or shuts a gate. One that there is not stays shut.
    pub fn set(&self, gate: u32, is_open: bool) {
        if gate < GATES {
            let at = usize::try_from(gate).unwrap_or(0) * STRIDE;
            self.0.half(at).store(u32::from(is_open), Ordering::SeqCst);
        }
    }
}

const STRIDE: usize = 8;
