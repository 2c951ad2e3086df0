//! Servers, clients and endpoints.

use crate::buffer::{Buffer, RemoteBuffer};
use crate::channel::Channel;
use crate::config::config;
use crate::errors::{Fault, Kind, other, raise};
use crate::messenger::Messenger;
use crate::wait::{SLICE, awaitable, seconds, sliced};
use adverb::session::{self, AcceptError, MessengerConfig};
use adverb::verbs::Access;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Waits for clients.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Server {
    door: Arc<Mutex<Door>>,
    address: String,
}

/// The session, and clients that came when nothing waited for them any more.
struct Door {
    session: session::ServerSession,
    early: VecDeque<session::Endpoint>,
}

impl Door {
    fn accept(&mut self, timeout: Duration) -> Result<session::Endpoint, AcceptError> {
        self.early.pop_front().map_or_else(|| self.session.accept(timeout), Ok)
    }
}

fn lock(door: &Mutex<Door>) -> MutexGuard<'_, Door> {
    door.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts a client on a thread for calls that block, slice by slice. A client that comes when the task has been
/// cancelled stays for the next.
async fn accept(door: Arc<Mutex<Door>>) -> PyResult<Endpoint> {
    loop {
        let (tell, told) = oneshot::channel();
        let door = Arc::clone(&door);
        spawn_blocking(move || {
            let mut door = lock(&door);
            let outcome = door.accept(SLICE);
            if let Err(Ok(endpoint)) = tell.send(outcome) {
                door.early.push_back(endpoint);
            }
        });
        match told.await {
            Ok(Ok(inner)) => return Ok(Endpoint { inner }),
            Ok(Err(error)) if error.kind() == Kind::Timeout => {}
            Ok(Err(error)) => return Err(raise(error)),
            Err(_) => return Err(other("the runtime has ended".to_owned())),
        }
    }
}

#[pymethods]
impl Server {
    /// Listens on `address`, as `"127.0.0.1:0"`; port 0 takes a free one.
    #[new]
    #[pyo3(signature = (address, **options))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let config = config(options)?;
        let bound = py.detach(|| session::ServerSession::bind(address, config));
        let session = bound.map_err(raise)?;
        let address = session.local_addr().to_string();
        let door = Door { session, early: VecDeque::new() };
        Ok(Self { door: Arc::new(Mutex::new(door)), address })
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Registers `blocks` blocks of `block_bytes` bytes, for all endpoints.
    #[pyo3(signature = (blocks, block_bytes, *, access = None))]
    fn buffer(
        &self,
        py: Python<'_>,
        blocks: usize,
        block_bytes: usize,
        access: Option<u32>,
    ) -> PyResult<Buffer> {
        let adapter = py.detach(|| lock(&self.door).session.adapter().cloned()).map_err(raise)?;
        allocate(py, &adapter, blocks, block_bytes, access)
    }

    /// Waits for a client.
    #[pyo3(signature = (*, timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Endpoint> {
        let limit = timeout.map(seconds).transpose()?;
        sliced(py, limit, |slice| lock(&self.door).accept(slice)).map(|inner| Endpoint { inner })
    }

    /// Waits for a client in a task of asyncio.
    fn accept_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        awaitable(py, accept(Arc::clone(&self.door)))
    }

    fn __repr__(&self) -> String {
        format!("<Server at {}>", self.address)
    }
}

/// Connects to servers.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Client {
    session: Arc<session::ClientSession>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let session = session::ClientSession::new(config(options)?).map_err(raise)?;
        Ok(Self { session: Arc::new(session) })
    }

    /// Connects to the server at `address`.
    fn connect(&self, py: Python<'_>, address: &str) -> PyResult<Endpoint> {
        let connected = py.detach(|| self.session.connect(address));
        connected.map(|inner| Endpoint { inner }).map_err(raise)
    }

    /// Connects in a task of asyncio.
    fn connect_async<'py>(&self, py: Python<'py>, address: String) -> PyResult<Bound<'py, PyAny>> {
        let session = Arc::clone(&self.session);
        awaitable(py, async move {
            let inner = blocking(move || session.connect(address)).await?;
            Ok(Endpoint { inner })
        })
    }
}

/// Runs `call` on a thread for calls that block.
async fn blocking<T: Send + 'static, E: Fault + Send + 'static>(
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    match spawn_blocking(call).await {
        Ok(outcome) => outcome.map_err(raise),
        Err(error) => Err(other(error.to_string())),
    }
}

/// One side of a connection.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Endpoint {
    inner: session::Endpoint,
}

impl Endpoint {
    fn limit(&self) -> Option<Duration> {
        self.inner.adapter().config().timeouts.work
    }
}

#[pymethods]
impl Endpoint {
    /// What the peer is called.
    #[getter]
    fn peer(&self) -> String {
        self.inner.peer().name.to_string()
    }

    /// How packets go: by shared memory or UDP; `None` if the device does not say.
    #[getter]
    fn path(&self) -> Option<String> {
        self.inner.path().map(|path| path.to_string())
    }

    /// The names of its channels.
    #[getter]
    fn channels(&self) -> Vec<String> {
        self.inner.channels().iter().map(|channel| channel.name().to_owned()).collect()
    }

    /// The channel with this name.
    #[pyo3(signature = (name = "data"))]
    fn channel(&self, name: &str) -> PyResult<Channel> {
        let channel = self.inner.channel(name).map_err(raise)?;
        Ok(Channel::new(channel, self.limit()))
    }

    /// Messages of any length on the channel with this name. Both sides have to open it.
    #[pyo3(signature = (name = "data", *, block_bytes = None, message_max = None))]
    fn messenger(
        &self,
        py: Python<'_>,
        name: &str,
        block_bytes: Option<usize>,
        message_max: Option<usize>,
    ) -> PyResult<Messenger> {
        let mut config = MessengerConfig::default();
        config.block_bytes = block_bytes.unwrap_or(config.block_bytes);
        config.message_max = message_max.unwrap_or(config.message_max);
        let opened = py.detach(|| session::Messenger::open(&self.inner, name, config));
        opened.map(|inner| Messenger::new(inner, self.limit())).map_err(raise)
    }

    /// Registers `blocks` blocks of `block_bytes` bytes.
    #[pyo3(signature = (blocks, block_bytes, *, access = None))]
    fn buffer(
        &self,
        py: Python<'_>,
        blocks: usize,
        block_bytes: usize,
        access: Option<u32>,
    ) -> PyResult<Buffer> {
        allocate(py, self.inner.adapter(), blocks, block_bytes, access)
    }

    /// Tells the peer of a buffer under a name.
    fn advertise(&self, py: Python<'_>, name: &str, buffer: &Buffer) -> PyResult<()> {
        py.detach(|| self.inner.advertise(name, &buffer.inner)).map_err(raise)
    }

    /// The peer's buffer with this name; waits until the peer has told of it.
    fn remote_buffer(&self, py: Python<'_>, name: &str) -> PyResult<RemoteBuffer> {
        let found = py.detach(|| self.inner.remote_buffer(name));
        found.map(|inner| RemoteBuffer { inner }).map_err(raise)
    }

    /// The same in a task of asyncio.
    fn remote_buffer_async<'py>(
        &self,
        py: Python<'py>,
        name: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let endpoint = self.inner.clone();
        awaitable(py, async move {
            let inner = blocking(move || endpoint.remote_buffer(&name)).await?;
            Ok(RemoteBuffer { inner })
        })
    }

    /// Waits until all that was posted is done, and says goodbye.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.clone().close()).map_err(raise)
    }

    /// The same in a task of asyncio.
    fn close_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let endpoint = self.inner.clone();
        awaitable(py, blocking(move || endpoint.close()))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Closes it. It says nothing of a peer that has closed before, or after another exception.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let closed = self.close(py);
        let is_over = self.inner.departure() == Some(session::Departure::Closed);
        if kind.is_none() && !is_over { closed } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<Endpoint to {:?}>", self.peer())
    }
}

/// Memory of `adapter` with these rights, or all that a buffer has unless it is said.
fn allocate(
    py: Python<'_>,
    adapter: &session::Adapter,
    blocks: usize,
    block_bytes: usize,
    access: Option<u32>,
) -> PyResult<Buffer> {
    let allocated = py.detach(|| match access {
        Some(bits) => adapter.buffer_with(blocks, block_bytes, Access::from_bits(bits)),
        None => adapter.buffer(blocks, block_bytes),
    });
    allocated.map(|inner| Buffer { inner }).map_err(raise)
}
