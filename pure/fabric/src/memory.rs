//! Registered memory of a simulated node: plain bytes behind keys.

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
        self.regions.push(Region { rkey, va, access, bytes: vec![0; len], gone: false });
    }

    fn region(&self, range: Range, access: Access) -> Result<(&Region, usize), AccessError> {
        let region = self.regions.iter().find(|region| region.rkey == range.rkey && !region.gone);
        let region = region.ok_or(AccessError::UnknownKey)?;
        if !region.access.contains(access) {
            return Err(AccessError::Denied);
        }
        let at = range.va.checked_sub(region.va).and_then(|at| usize::try_from(at).ok());
        let len = usize::try_from(range.len).ok();
        let fits =
            |at: usize, len: usize| at.checked_add(len).is_some_and(|e| e <= region.bytes.len());
        match (at, len) {
            (Some(at), Some(len)) if fits(at, len) => Ok((region, at)),
            (Some(_) | None, Some(_) | None) => Err(AccessError::OutOfBounds),
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
        let (_, at) = self.region(range, access)?;
        let len = usize::try_from(range.len).unwrap_or(usize::MAX);
        let region =
            self.regions.iter_mut().find(|region| region.rkey == range.rkey && !region.gone);
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
