//! Registered memory of a simulated node: plain bytes behind keys.

use crate::node::Window;
use adverb_engine::{Access, AccessError, AtomicOp, Range};
use adverb_wire::Rkey;
use alloc::vec;
use alloc::vec::Vec;

/// Bytes that peers may name.
#[derive(Clone, Debug)]
pub struct Region {
    /// The key.
    pub rkey: Rkey,
    /// Address of the first byte.
    pub va: u64,
    /// What peers may do.
    pub access: Access,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The region was deregistered: its key means nothing any more.
    pub gone: bool,
    /// It is a window on this region, and has no bytes of its own.
    pub window_on: Option<usize>,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Target {
    /// The region.
    pub rkey: Rkey,
    /// The address.
    pub va: u64,
}

impl Target {
    /// The place `bytes` later.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self { va: self.va.wrapping_add(bytes), ..self }
    }
}

/// All regions of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
}

impl Memory {
    pub(crate) fn register(&mut self, rkey: Rkey, va: u64, len: usize, access: Access) {
        self.regions.push(Region {
            rkey,
            va,
            access,
            bytes: vec![0; len],
            gone: false,
            window_on: None,
        });
    }

    /// Makes a key of a window known; peers can use it once it is bound.
    pub(crate) fn bind(&mut self, window: &Window) -> Result<(), AccessError> {
        let Window { rkey, region, va, len, access } = *window;
        let behind = self.regions.get(region).ok_or(AccessError::UnknownKey)?;
        let end = va.checked_add(u64::from(len)).ok_or(AccessError::OutOfBounds)?;
        let fits = u64::try_from(behind.bytes.len())
            .is_ok_and(|len| va >= behind.va && end <= behind.va.saturating_add(len));
        if behind.gone || behind.window_on.is_some() || !fits {
            return Err(AccessError::OutOfBounds);
        }
        let bytes = vec![0; usize::try_from(len).unwrap_or(0)]; // Only their number counts.
        self.regions.push(Region { rkey, va, access, bytes, gone: false, window_on: Some(region) });
        Ok(())
    }

    /// Makes a key mean nothing; a peer may do so to windows only.
    pub(crate) fn invalidate(&mut self, rkey: Rkey, windows_only: bool) -> Result<(), AccessError> {
        let region = self.regions.iter_mut().find(|region| region.rkey == rkey && !region.gone);
        let region = region.ok_or(AccessError::UnknownKey)?;
        if windows_only && region.window_on.is_none() {
            return Err(AccessError::Denied);
        }
        region.gone = true;
        Ok(())
    }

    /// The region with the bytes that a range means, and where they start in it.
    fn region(&self, range: Range, access: Access) -> Result<(&Region, usize), AccessError> {
        let region = self.regions.iter().find(|region| region.rkey == range.rkey && !region.gone);
        let region = region.ok_or(AccessError::UnknownKey)?;
        if !region.access.contains(access) {
            return Err(AccessError::Denied);
        }
        let at = place(region, range).ok_or(AccessError::OutOfBounds)?;
        match region.window_on {
            None => Ok((region, at)),
            Some(behind) => {
                let region = self.regions.get(behind).filter(|region| !region.gone);
                let region = region.ok_or(AccessError::UnknownKey)?;
                Ok((region, place(region, range).ok_or(AccessError::OutOfBounds)?))
            }
        }
    }

    pub(crate) fn check(&self, range: Range, access: Access) -> Result<(), AccessError> {
        self.region(range, access).map(|_| ())
    }

    pub(crate) fn read(&self, range: Range) -> Result<&[u8], AccessError> {
        let (region, at) = self.region(range, Access::REMOTE_READ)?;
        let len = usize::try_from(range.len).unwrap_or(usize::MAX);
        region.bytes.get(at..).and_then(|bytes| bytes.get(..len)).ok_or(AccessError::OutOfBounds)
    }

    fn bytes_mut(&mut self, range: Range, access: Access) -> Result<&mut [u8], AccessError> {
        let (region, at) = self.region(range, access)?;
        let (rkey, len) = (region.rkey, usize::try_from(range.len).unwrap_or(usize::MAX));
        let region = self.regions.iter_mut().find(|region| region.rkey == rkey && !region.gone);
        let bytes = region.and_then(|region| region.bytes.get_mut(at..));
        bytes.and_then(|bytes| bytes.get_mut(..len)).ok_or(AccessError::OutOfBounds)
    }

    pub(crate) fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).map_err(|_| AccessError::OutOfBounds)?;
        let target = self.bytes_mut(Range { rkey, va, len }, Access::REMOTE_WRITE)?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        let bytes = self.bytes_mut(Range { rkey, va, len: 8 }, Access::REMOTE_ATOMIC)?;
        let (cell, _) = bytes.split_first_chunk_mut::<8>().ok_or(AccessError::OutOfBounds)?;
        let found = u64::from_ne_bytes(*cell);
        let value = match op {
            AtomicOp::CompareSwap { compare, swap } if found == compare => swap,
            AtomicOp::CompareSwap { .. } => found,
            AtomicOp::FetchAdd { add } => found.wrapping_add(add),
        };
        *cell = value.to_ne_bytes();
        Ok(found)
    }
}

/// Offset of a range in a region, if it fits.
fn place(region: &Region, range: Range) -> Option<usize> {
    let at = usize::try_from(range.va.checked_sub(region.va)?).ok()?;
    let end = at.checked_add(usize::try_from(range.len).ok()?)?;
    (end <= region.bytes.len()).then_some(at)
}
