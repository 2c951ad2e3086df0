//! Channels: work that is waited for, posted, or awaited.

use crate::buffer::{Block, RemoteBlock};
use crate::errors::raise;
use crate::wait::{awaitable, runtime, seconds, sliced};
use adverb::session::{self, ChannelError};
use pyo3::prelude::*;
use std::time::Duration;

/// A way to the peer, in both directions, on which everything stays in order.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Channel {
    inner: session::Channel,
    /// How long calls wait unless they say it themselves.
    limit: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(inner: session::Channel, limit: Option<Duration>) -> Self {
        Self { inner, limit }
    }

    fn limit(&self, timeout: Option<f64>) -> PyResult<Option<Duration>> {
        timeout.map_or(Ok(self.limit), |timeout| seconds(timeout).map(Some))
    }

    /// Waits for posted work.
    fn finish(
        &self,
        py: Python<'_>,
        posted: Result<session::Ticket, ChannelError>,
        timeout: Option<f64>,
    ) -> PyResult<session::Event> {
        let (ticket, limit) = (posted.map_err(raise)?, self.limit(timeout)?);
        sliced(py, limit, |slice| self.inner.with_timeout(slice).wait(ticket))
    }
}

/// What an atomic brought.
fn word(event: &session::Event) -> PyResult<u64> {
    event.block.load_u64(0).map_err(raise)
}

#[pymethods]
impl Channel {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// How much more can be posted, sends and receives.
    #[getter]
    fn room(&self) -> (u64, u64) {
        self.inner.room()
    }

    /// Sends a message, and waits until the peer has it.
    #[pyo3(signature = (block, *, imm = None, timeout = None))]
    fn send(
        &self,
        py: Python<'_>,
        block: &Block,
        imm: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.finish(py, self.start_send(block, imm), timeout).map(drop)
    }

    /// Writes `block` to the start of `to`, and waits until it is there.
    #[pyo3(signature = (block, to, *, imm = None, timeout = None))]
    fn write(
        &self,
        py: Python<'_>,
        block: &Block,
        to: &RemoteBlock,
        imm: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.finish(py, self.start_write(block, to, imm), timeout).map(drop)
    }

    /// Reads the start of `source` into `block`, and waits until it is here.
    #[pyo3(signature = (block, source, *, timeout = None))]
    fn read(
        &self,
        py: Python<'_>,
        block: &Block,
        source: &RemoteBlock,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let posted = self.inner.post_read(block.inner.clone(), source.inner);
        self.finish(py, posted, timeout).map(drop)
    }

    /// Adds to the peer's 8 bytes at the start of `at`; returns what was there, which `block` has too.
    #[pyo3(signature = (block, at, add, *, timeout = None))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        block: &Block,
        at: &RemoteBlock,
        add: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let posted = self.inner.post_fetch_add(block.inner.clone(), at.inner, add);
        word(&self.finish(py, posted, timeout)?)
    }

    /// Puts `swap` in the place of the peer's 8 bytes at the start of `at` if they equal `compare`; returns what was
    /// there, which `block` has too.
    #[pyo3(signature = (block, at, compare, swap, *, timeout = None))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        block: &Block,
        at: &RemoteBlock,
        compare: u64,
        swap: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let posted = self.inner.post_compare_swap(block.inner.clone(), at.inner, compare, swap);
        word(&self.finish(py, posted, timeout)?)
    }

    /// Waits for something to arrive in the oldest of the posted receives.
    #[pyo3(signature = (*, timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Event> {
        let limit = self.limit(timeout)?;
        sliced(py, limit, |slice| self.inner.with_timeout(slice).recv()).map(Event::from)
    }

    /// Posts a receive: `block` takes one message of the peer's.
    fn post_recv(&self, block: &Block) -> PyResult<Ticket> {
        self.inner.post_recv(block.inner.clone()).map(Ticket).map_err(raise)
    }

    /// Posts a message.
    #[pyo3(signature = (block, *, imm = None))]
    fn post_send(&self, block: &Block, imm: Option<u32>) -> PyResult<Ticket> {
        self.start_send(block, imm).map(Ticket).map_err(raise)
    }

    /// Posts a WRITE of `block` to the start of `to`.
    #[pyo3(signature = (block, to, *, imm = None))]
    fn post_write(&self, block: &Block, to: &RemoteBlock, imm: Option<u32>) -> PyResult<Ticket> {
        self.start_write(block, to, imm).map(Ticket).map_err(raise)
    }

    /// Posts a READ of the start of `source` into `block`.
    fn post_read(&self, block: &Block, source: &RemoteBlock) -> PyResult<Ticket> {
        let posted = self.inner.post_read(block.inner.clone(), source.inner);
        posted.map(Ticket).map_err(raise)
    }

    /// Waits for the end of posted work.
    #[pyo3(signature = (ticket, *, timeout = None))]
    fn wait(&self, py: Python<'_>, ticket: &Ticket, timeout: Option<f64>) -> PyResult<Event> {
        self.finish(py, Ok(ticket.0), timeout).map(Event::from)
    }

    /// Takes an event of posted work, if there is one.
    fn poll(&self) -> PyResult<Option<Event>> {
        self.inner.poll().map(|event| event.map(Event::from)).map_err(raise)
    }

    /// Waits until all work but receives is done.
    #[pyo3(signature = (*, timeout = None))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = self.limit(timeout)?;
        sliced(py, limit, |slice| self.inner.with_timeout(slice).drain())
    }

    /// The same channel for tasks of asyncio.
    fn asynchronous(&self, py: Python<'_>) -> PyResult<AsyncChannel> {
        let runtime = runtime(py)?;
        let _entered = runtime.enter();
        session::AsyncChannel::new(self.inner.clone())
            .map(|inner| AsyncChannel { inner })
            .map_err(raise)
    }

    fn __repr__(&self) -> String {
        format!("<Channel {:?}>", self.name())
    }
}

impl Channel {
    fn start_send(&self, block: &Block, imm: Option<u32>) -> Result<session::Ticket, ChannelError> {
        let block = block.inner.clone();
        match imm {
            Some(imm) => self.inner.post_send_with_imm(block, imm),
            None => self.inner.post_send(block),
        }
    }

    fn start_write(
        &self,
        block: &Block,
        to: &RemoteBlock,
        imm: Option<u32>,
    ) -> Result<session::Ticket, ChannelError> {
        let block = block.inner.clone();
        match imm {
            Some(imm) => self.inner.post_write_with_imm(block, to.inner, imm),
            None => self.inner.post_write(block, to.inner),
        }
    }
}

/// A channel for tasks of asyncio: each call is awaited.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct AsyncChannel {
    inner: session::AsyncChannel,
}

#[pymethods]
impl AsyncChannel {
    /// Sends a message; done when the peer has it.
    #[pyo3(signature = (block, *, imm = None))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        block: &Block,
        imm: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (channel, block) = (self.inner.clone(), block.inner.clone());
        awaitable(py, async move {
            match imm {
                Some(imm) => channel.send_with_imm(block, imm).await,
                None => channel.send(block).await,
            }
            .map_err(raise)
        })
    }

    /// Writes `block` to the start of `to`; done when it is there.
    #[pyo3(signature = (block, to, *, imm = None))]
    fn write<'py>(
        &self,
        py: Python<'py>,
        block: &Block,
        to: &RemoteBlock,
        imm: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (channel, block, to) = (self.inner.clone(), block.inner.clone(), to.inner);
        awaitable(py, async move {
            match imm {
                Some(imm) => channel.write_with_imm(block, to, imm).await,
                None => channel.write(block, to).await,
            }
            .map_err(raise)
        })
    }

    /// Reads the start of `source` into `block`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        block: &Block,
        source: &RemoteBlock,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (channel, block, source) = (self.inner.clone(), block.inner.clone(), source.inner);
        awaitable(py, async move { channel.read(block, source).await.map_err(raise) })
    }

    /// Adds to the peer's 8 bytes at the start of `at`; brings what was there.
    fn fetch_add<'py>(
        &self,
        py: Python<'py>,
        block: &Block,
        at: &RemoteBlock,
        add: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (channel, block, at) = (self.inner.clone(), block.inner.clone(), at.inner);
        awaitable(py, async move { channel.fetch_add(block, at, add).await.map_err(raise) })
    }

    /// Puts `swap` in the place of the peer's 8 bytes at the start of `at` if they equal `compare`; brings what was
    /// there.
    fn compare_swap<'py>(
        &self,
        py: Python<'py>,
        block: &Block,
        at: &RemoteBlock,
        compare: u64,
        swap: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (channel, block, at) = (self.inner.clone(), block.inner.clone(), at.inner);
        awaitable(
            py,
            async move { channel.compare_swap(block, at, compare, swap).await.map_err(raise) },
        )
    }

    /// Waits for something to arrive in the oldest of the posted receives.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let channel = self.inner.clone();
        awaitable(py, async move { channel.recv().await.map(Event::from).map_err(raise) })
    }

    /// Waits for the next event of posted work.
    fn event<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let channel = self.inner.clone();
        awaitable(py, async move { channel.event().await.map(Event::from).map_err(raise) })
    }
}

/// Posted work.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Ticket(session::Ticket);

#[pymethods]
impl Ticket {
    fn __repr__(&self) -> String {
        format!("<Ticket {}>", self.0)
    }
}

/// How work ended.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Event {
    /// What it was.
    #[pyo3(get)]
    operation: String,
    /// It has been done.
    #[pyo3(get)]
    ok: bool,
    /// How it ended, in words.
    #[pyo3(get)]
    status: String,
    /// Bytes that arrived, or were sent.
    #[pyo3(get)]
    bytes: usize,
    /// Immediate data, if there was some.
    #[pyo3(get)]
    imm: Option<u32>,
    block: session::Block,
}

impl From<session::Event> for Event {
    fn from(event: session::Event) -> Self {
        Self {
            operation: event.operation.to_string(),
            ok: event.status == session::WcStatus::Success,
            status: event.status.to_string(),
            bytes: event.bytes,
            imm: event.imm,
            block: event.block,
        }
    }
}

#[pymethods]
impl Event {
    /// The block that was posted.
    #[getter]
    fn block(&self) -> Block {
        Block { inner: self.block.clone() }
    }

    /// What arrived: the first `bytes` of the block.
    #[getter]
    fn data(&self) -> PyResult<Block> {
        let inner = self.block.clone().first(self.bytes).map_err(raise)?;
        Ok(Block { inner })
    }

    fn __repr__(&self) -> String {
        format!("<Event {}: {}, {} bytes>", self.operation, self.status, self.bytes)
    }
}
