//! Verbs in outline: devices, memory regions, completion queues, and queue pairs of type RC.
//!
//! # Safety
//!
//! 1. An object never changes the region that it holds, so what it lends by the buffer protocol is there for as long as it lives. The
//!    rest is `memory.rs`'s.

use crate::errors::raise;
use crate::memory::Range;
use crate::wait::{SLICE, seconds};
use adverb::verbs::{self, Access, MrSlice, QpConfig, RemoteQp, RemoteSlice, Work};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::c_int;
use std::time::{Duration, Instant};

/// The names of all devices.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    let devices = py.detach(verbs::devices).map_err(raise)?;
    Ok(devices.into_iter().map(|device| device.name).collect())
}

/// An open device.
#[pyclass(frozen, module = "adverb.verbs")]
pub(crate) struct Context {
    inner: verbs::Context,
}

#[pymethods]
impl Context {
    #[new]
    fn new(py: Python<'_>, device: &str) -> PyResult<Self> {
        py.detach(|| verbs::Context::open(device)).map(|inner| Self { inner }).map_err(raise)
    }

    /// Its addresses, in the order of its GID table.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.inner.gids().iter().map(|entry| entry.ip().to_string()).collect()
    }

    fn alloc_pd(&self) -> Pd {
        Pd { inner: self.inner.alloc_pd() }
    }

    /// A queue of `completions` completions.
    fn create_cq(&self, py: Python<'_>, completions: u32) -> PyResult<Cq> {
        let created = py.detach(|| self.inner.create_cq(completions));
        created.map(|inner| Cq { inner }).map_err(raise)
    }
}

/// A protection domain.
#[pyclass(frozen, module = "adverb.verbs")]
pub(crate) struct Pd {
    inner: verbs::Pd,
}

#[pymethods]
impl Pd {
    /// Registers `length` bytes of new memory with these rights.
    fn allocate(&self, py: Python<'_>, length: usize, access: u32) -> PyResult<Mr> {
        let access = Access::from_bits(access);
        py.detach(|| self.inner.allocate(length, access)).map(|inner| Mr { inner }).map_err(raise)
    }

    /// A queue pair of type RC whose completions come to `cq`.
    #[pyo3(signature = (cq, *, max_send_wr = None, max_recv_wr = None))]
    fn create_qp(
        &self,
        py: Python<'_>,
        cq: &Cq,
        max_send_wr: Option<u32>,
        max_recv_wr: Option<u32>,
    ) -> PyResult<Qp> {
        let mut config = QpConfig::new(&cq.inner);
        config.max_send_wr = max_send_wr.unwrap_or(config.max_send_wr);
        config.max_recv_wr = max_recv_wr.unwrap_or(config.max_recv_wr);
        py.detach(|| self.inner.create_qp(&config)).map(|inner| Qp { inner }).map_err(raise)
    }
}

/// A memory region. `memoryview(mr)` is its memory, without a copy.
#[pyclass(frozen, module = "adverb.verbs")]
pub(crate) struct Mr {
    inner: verbs::Mr,
}

impl Mr {
    fn range(&self) -> PyResult<Range> {
        Range::new(&self.inner, 0, self.inner.len())
    }

    /// What is posted: `length` bytes from `offset` on, or all of them.
    fn slice(&self, offset: usize, length: Option<usize>) -> PyResult<MrSlice> {
        let length = length.unwrap_or(self.inner.len().saturating_sub(offset));
        self.inner.slice(offset, length).map_err(raise)
    }
}

#[pymethods]
impl Mr {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// What a peer is told to reach the memory from `offset` on: address and key, as text.
    #[pyo3(signature = (offset = 0))]
    fn remote(&self, offset: u64) -> String {
        let start = RemoteSlice { addr: self.inner.addr(), rkey: self.inner.rkey() };
        start.plus(offset).to_string()
    }

    /// Copies `data` to `offset`.
    #[pyo3(signature = (data, offset = 0))]
    fn write(&self, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        self.range()?.write(offset, data)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.range()?.to_bytes(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let range = slf.get().range()?;
        // SAFETY: the call is the buffer protocol's, and the object holds its region, which it never changes.
        unsafe { range.lend(slf.as_any(), view, flags) }
    }
}

/// A completion queue.
#[pyclass(frozen, module = "adverb.verbs")]
pub(crate) struct Cq {
    inner: verbs::Cq,
}

#[pymethods]
impl Cq {
    /// Takes a completion, if there is one.
    fn poll(&self) -> PyResult<Option<Completion>> {
        self.inner.next().map(|next| next.map(Completion::from)).map_err(raise)
    }

    /// Waits for a completion; `None` if there is none within `timeout` seconds.
    #[pyo3(signature = (*, timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Completion>> {
        let limit = timeout.map_or(Ok(Duration::MAX), seconds)?;
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let next = py.detach(|| self.inner.wait_timeout(left.min(SLICE))).map_err(raise)?;
            if next.is_some() || left <= SLICE {
                return Ok(next.map(Completion::from));
            }
            py.check_signals()?;
        }
    }
}

/// How work ended.
#[pyclass(frozen, get_all, module = "adverb.verbs")]
pub(crate) struct Completion {
    /// What it was posted with.
    wr_id: u64,
    /// It has been done.
    ok: bool,
    /// How it ended, in words.
    status: String,
    /// Bytes that arrived.
    byte_len: u32,
    /// Immediate data, if there was some.
    imm: Option<u32>,
}

impl From<verbs::Completion> for Completion {
    fn from(completion: verbs::Completion) -> Self {
        let wc = completion.wc;
        Self {
            wr_id: wc.wr_id,
            ok: wc.status == verbs::WcStatus::Success,
            status: wc.status.to_string(),
            byte_len: wc.byte_len,
            imm: wc.imm.map(|imm| imm.0),
        }
    }
}

#[pymethods]
impl Completion {
    fn __repr__(&self) -> String {
        format!("<Completion of {}: {}, {} bytes>", self.wr_id, self.status, self.byte_len)
    }
}

/// A queue pair of type RC.
#[pyclass(frozen, module = "adverb.verbs")]
pub(crate) struct Qp {
    inner: verbs::Qp<verbs::Rc>,
}

impl Qp {
    fn post<O>(&self, work: Work<O>, wr_id: u64) -> PyResult<()>
    where
        verbs::Rc: verbs::Supports<O>,
    {
        self.inner.post(work.wr_id(wr_id)).map_err(raise)
    }
}

#[pymethods]
impl Qp {
    /// What its peer has to know to connect to it, as text.
    #[getter]
    fn address(&self) -> PyResult<String> {
        self.inner.address().map(|address| address.to_string()).map_err(raise)
    }

    /// Takes it to where receives can be posted.
    fn init(&self) -> PyResult<()> {
        self.inner.init().map_err(raise)
    }

    /// Connects it to the queue pair with this address.
    fn connect(&self, py: Python<'_>, address: &str) -> PyResult<()> {
        let peer: RemoteQp = address.parse().map_err(raise)?;
        py.detach(|| self.inner.connect(peer)).map_err(raise)
    }

    /// Posts a receive into `length` bytes of `mr` from `offset` on.
    #[pyo3(signature = (mr, offset = 0, length = None, *, wr_id = 0))]
    fn post_recv(&self, mr: &Mr, offset: usize, length: Option<usize>, wr_id: u64) -> PyResult<()> {
        self.post(Work::recv(mr.slice(offset, length)?), wr_id)
    }

    /// Posts a SEND of `length` bytes of `mr` from `offset` on.
    #[pyo3(signature = (mr, offset = 0, length = None, *, imm = None, wr_id = 0))]
    fn post_send(
        &self,
        mr: &Mr,
        offset: usize,
        length: Option<usize>,
        imm: Option<u32>,
        wr_id: u64,
    ) -> PyResult<()> {
        let memory = mr.slice(offset, length)?;
        match imm {
            Some(imm) => self.post(Work::send_with_imm(memory, imm), wr_id),
            None => self.post(Work::send(memory), wr_id),
        }
    }

    /// Posts a WRITE of `length` bytes of `mr` from `offset` on to the peer's memory `remote`.
    #[pyo3(signature = (mr, remote, offset = 0, length = None, *, imm = None, wr_id = 0))]
    fn post_write(
        &self,
        mr: &Mr,
        remote: &str,
        offset: usize,
        length: Option<usize>,
        imm: Option<u32>,
        wr_id: u64,
    ) -> PyResult<()> {
        let (memory, remote) = (mr.slice(offset, length)?, remote.parse().map_err(raise)?);
        match imm {
            Some(imm) => self.post(Work::write_with_imm(memory, remote, imm), wr_id),
            None => self.post(Work::write(memory, remote), wr_id),
        }
    }

    /// Posts a READ of the peer's memory `remote` into `length` bytes of `mr` from `offset` on.
    #[pyo3(signature = (mr, remote, offset = 0, length = None, *, wr_id = 0))]
    fn post_read(
        &self,
        mr: &Mr,
        remote: &str,
        offset: usize,
        length: Option<usize>,
        wr_id: u64,
    ) -> PyResult<()> {
        let (memory, remote) = (mr.slice(offset, length)?, remote.parse().map_err(raise)?);
        self.post(Work::read(memory, remote), wr_id)
    }

    /// Posts an addition to the peer's 8 bytes at `remote`; the 8 bytes of `mr` at `offset` take what was there.
    #[pyo3(signature = (mr, remote, add, offset = 0, *, wr_id = 0))]
    fn post_fetch_add(
        &self,
        mr: &Mr,
        remote: &str,
        add: u64,
        offset: usize,
        wr_id: u64,
    ) -> PyResult<()> {
        let remote = remote.parse().map_err(raise)?;
        self.post(Work::fetch_add(mr.slice(offset, Some(WORD))?, remote, add), wr_id)
    }

    /// Posts a comparison of the peer's 8 bytes at `remote` with `compare`, which puts `swap` in their place if they
    /// are equal; the 8 bytes of `mr` at `offset` take what was there.
    #[pyo3(signature = (mr, remote, compare, swap, offset = 0, *, wr_id = 0))]
    fn post_compare_swap(
        &self,
        mr: &Mr,
        remote: &str,
        compare: u64,
        swap: u64,
        offset: usize,
        wr_id: u64,
    ) -> PyResult<()> {
        let remote = remote.parse().map_err(raise)?;
        let memory = mr.slice(offset, Some(WORD))?;
        self.post(Work::compare_swap(memory, remote, compare, swap), wr_id)
    }
}

/// Bytes of an atomic.
const WORD: usize = 8;
