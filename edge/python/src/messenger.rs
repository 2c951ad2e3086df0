//! Messages of any length over a channel.

use crate::errors::raise;
use crate::memory::Bytes;
use crate::wait::{awaitable, runtime, seconds, sliced};
use adverb::session;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::time::Duration;

/// Messages of any length. It takes all events of its channel.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct Messenger {
    inner: session::Messenger,
    limit: Option<Duration>,
}

impl Messenger {
    pub(crate) fn new(inner: session::Messenger, limit: Option<Duration>) -> Self {
        Self { inner, limit }
    }

    fn limit(&self, timeout: Option<f64>) -> PyResult<Option<Duration>> {
        timeout.map_or(Ok(self.limit), |timeout| seconds(timeout).map(Some))
    }
}

/// A message as a `bytearray`: one copy.
struct Received(session::Message);

impl<'py> IntoPyObject<'py> for Received {
    type Target = PyByteArray;
    type Output = Bound<'py, PyByteArray>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyByteArray::new_with(py, self.0.len(), |bytes| self.0.read(0, bytes).map_err(raise))
    }
}

#[pymethods]
impl Messenger {
    /// Sends a copy of `data`: `bytes`, or what else has the buffer protocol.
    #[pyo3(signature = (data, *, timeout = None))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let (data, limit) = (Bytes::of(data)?.to_vec(), self.limit(timeout)?);
        sliced(py, limit, |slice| self.inner.with_timeout(slice).send(&data))
    }

    /// Waits for the next message.
    #[pyo3(signature = (*, timeout = None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let limit = self.limit(timeout)?;
        Received(sliced(py, limit, |slice| self.inner.with_timeout(slice).recv())?)
            .into_pyobject(py)
    }

    /// Waits until the peer has everything that was sent.
    #[pyo3(signature = (*, timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = self.limit(timeout)?;
        sliced(py, limit, |slice| self.inner.with_timeout(slice).flush())
    }

    /// The same messenger for tasks of asyncio.
    fn asynchronous(&self, py: Python<'_>) -> PyResult<AsyncMessenger> {
        let runtime = runtime(py)?;
        let _entered = runtime.enter();
        session::AsyncMessenger::new(self.inner.clone())
            .map(|inner| AsyncMessenger { inner })
            .map_err(raise)
    }
}

/// A messenger for tasks of asyncio: each call is awaited.
#[pyclass(frozen, module = "adverb.session")]
pub(crate) struct AsyncMessenger {
    inner: session::AsyncMessenger,
}

#[pymethods]
impl AsyncMessenger {
    /// Sends a copy of `data`, when there is room for it.
    fn send<'py>(&self, py: Python<'py>, data: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (messenger, data) = (self.inner.clone(), Bytes::of(data)?.to_vec());
        awaitable(py, async move { messenger.send(&data).await.map_err(raise) })
    }

    /// Waits for the next message.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messenger = self.inner.clone();
        awaitable(py, async move { messenger.recv().await.map(Received).map_err(raise) })
    }

    /// Waits until the peer has everything that was sent.
    fn flush<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let messenger = self.inner.clone();
        awaitable(py, async move { messenger.flush().await.map_err(raise) })
    }
}
