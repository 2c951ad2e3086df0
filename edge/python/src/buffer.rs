//! Buffers and their blocks, of this side and of the peer.
//!
//! # Safety
//!
//! 1. An object never changes the buffer or block that it holds, so what it lends by the buffer protocol is there for as long as it lives. The
//!    rest is `memory.rs`'s.

use crate::errors::raise;
use crate::memory::Range;
use adverb::session;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::c_int;

/// Registered memory of equal blocks. `memoryview(buffer)` is all of it, without a copy.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Buffer {
    pub(crate) inner: session::Buffer,
}

impl Buffer {
    fn range(&self) -> PyResult<Range> {
        let offset = start_in_region(&self.inner);
        Range::new(self.inner.mr(), offset, self.inner.len())
    }
}

/// Where the buffer's first byte is in its region.
fn start_in_region(buffer: &session::Buffer) -> usize {
    usize::try_from(buffer.addr() - buffer.mr().addr()).unwrap_or(usize::MAX)
}

#[pymethods]
impl Buffer {
    /// How many blocks it has.
    #[getter]
    fn blocks(&self) -> usize {
        self.inner.blocks()
    }

    /// Bytes of each.
    #[getter]
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Block number `index`, whether it is in use or not.
    fn at(&self, index: usize) -> PyResult<Block> {
        self.inner.at(index).map(|inner| Block { inner }).map_err(raise)
    }

    /// A block that is not in use: the next one in turn.
    fn next(&self) -> PyResult<Block> {
        self.inner.next().map(|inner| Block { inner }).map_err(raise)
    }

    /// `blocks` blocks from number `first` on, as a buffer.
    fn part(&self, first: usize, blocks: usize) -> PyResult<Self> {
        self.inner.part(first, blocks).map(|inner| Self { inner }).map_err(raise)
    }

    /// The same memory in blocks of another length.
    fn in_blocks_of(&self, block_bytes: usize) -> PyResult<Self> {
        self.inner.in_blocks_of(block_bytes).map(|inner| Self { inner }).map_err(raise)
    }

    fn __repr__(&self) -> String {
        format!("<Buffer of {} blocks of {} bytes>", self.blocks(), self.block_bytes())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let range = slf.get().range()?;
        // SAFETY: the call is the buffer protocol's, and the object holds its buffer, which it never changes.
        unsafe { range.lend(slf.as_any(), view, flags) }
    }
}

/// A block of a buffer, or a part of one: what is posted. `memoryview(block)` is its memory, without a copy.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Block {
    pub(crate) inner: session::Block,
}

impl Block {
    fn range(&self) -> PyResult<Range> {
        let buffer = self.inner.buffer();
        let offset = start_in_region(buffer) + self.inner.offset();
        Range::new(buffer.mr(), offset, self.inner.len())
    }
}

#[pymethods]
impl Block {
    /// Its number in the buffer.
    #[getter]
    fn index(&self) -> usize {
        self.inner.index()
    }

    /// Where it starts in the buffer, in bytes.
    #[getter]
    fn offset(&self) -> usize {
        self.inner.offset()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Its first `length` bytes.
    fn first(&self, length: usize) -> PyResult<Self> {
        self.part(0, length)
    }

    /// `length` bytes from `offset` on.
    fn part(&self, offset: usize, length: usize) -> PyResult<Self> {
        let part = self.inner.clone().part(offset, length);
        part.map(|inner| Self { inner }).map_err(raise)
    }

    /// Copies `data` to `offset`.
    #[pyo3(signature = (data, offset = 0))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        self.range()?.write(offset, data)
    }

    /// A copy of its bytes.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.range()?.to_bytes(py)
    }

    /// Reads the 8 bytes at `offset` in one go.
    fn load_u64(&self, offset: usize) -> PyResult<u64> {
        self.inner.load_u64(offset).map_err(raise)
    }

    /// Writes the 8 bytes at `offset` in one go.
    fn store_u64(&self, offset: usize, value: u64) -> PyResult<()> {
        self.inner.store_u64(offset, value).map_err(raise)
    }

    fn __repr__(&self) -> String {
        format!("<Block {}: {} bytes at {}>", self.index(), self.inner.len(), self.offset())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let range = slf.get().range()?;
        // SAFETY: the call is the buffer protocol's, and the object holds its block, which it never changes.
        unsafe { range.lend(slf.as_any(), view, flags) }
    }
}

/// A buffer of the peer.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct RemoteBuffer {
    pub(crate) inner: session::RemoteBuffer,
}

#[pymethods]
impl RemoteBuffer {
    /// How many blocks it has.
    #[getter]
    fn blocks(&self) -> usize {
        self.inner.blocks()
    }

    /// Bytes of each.
    #[getter]
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    /// Block number `index`.
    fn at(&self, index: usize) -> PyResult<RemoteBlock> {
        self.inner.at(index).map(|inner| RemoteBlock { inner }).map_err(raise)
    }

    /// The next block in turn, without a look: the peer alone knows whether it is free.
    fn next(&self) -> RemoteBlock {
        RemoteBlock { inner: self.inner.next() }
    }

    fn __repr__(&self) -> String {
        format!("<RemoteBuffer of {} blocks of {} bytes>", self.blocks(), self.block_bytes())
    }
}

/// A block of the peer's buffer, or a part of one.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct RemoteBlock {
    pub(crate) inner: session::RemoteBlock,
}

#[pymethods]
impl RemoteBlock {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Its first `length` bytes.
    fn first(&self, length: usize) -> PyResult<Self> {
        self.part(0, length)
    }

    /// `length` bytes from `offset` on.
    fn part(&self, offset: usize, length: usize) -> PyResult<Self> {
        self.inner.part(offset, length).map(|inner| Self { inner }).map_err(raise)
    }
}
