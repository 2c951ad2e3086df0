//! Waiting: threads without the interpreter's lock, and tasks of asyncio.
//!
//! A call that waits does so in slices, and looks for signals between them, so that Ctrl-C ends it. What asyncio
//! awaits runs on one thread of a tokio runtime; a future that is cancelled there is dropped here.

use crate::errors::{Kind, Patient, other, raise};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::future::Future;
use std::mem;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

/// The longest wait without a look for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Seconds of a program as a length of time.
pub(crate) fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number).map_err(|_| {
        PyValueError::new_err(format!("{number} is no timeout: give seconds, 0 or more, or None"))
    })
}

/// Waits by `call`, which is told for how long, until it has an answer or `limit` is over.
pub(crate) fn sliced<T: Send, E: Patient + Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    call: impl Fn(Duration) -> Result<T, E> + Send + Sync,
) -> PyResult<T> {
    let limit = limit.unwrap_or(Duration::MAX);
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match py.detach(|| call(left.min(SLICE))) {
            Ok(answer) => return Ok(answer),
            Err(error) if error.kind() != Kind::Timeout => return Err(raise(error)),
            Err(_) if left <= SLICE => return Err(raise(E::after(limit))),
            Err(_) => py.check_signals()?,
        }
    }
}

/// How long the end of the program waits for the thread of asyncio at most.
const ENDING: Duration = Duration::from_secs(5);

/// The runtime of all tasks, which one thread runs, from the first task until the interpreter's end.
///
/// It is stopped by a handler of `atexit`: a thread that enters the interpreter while `Py_FinalizeEx` runs is a crash.
/// A child made by `fork` has the runtime without its thread, and makes one of its own.
enum Tasks {
    Unused,
    Run { runtime: Runtime, process: u32 },
    Stopped,
}

static TASKS: Mutex<Tasks> = Mutex::new(Tasks::Unused);

/// The handle of the runtime.
///
/// Fails if there can be no thread, and from when the interpreter ends.
pub(crate) fn runtime(py: Python<'_>) -> PyResult<Handle> {
    let mut tasks = TASKS.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
    match &*tasks {
        Tasks::Run { runtime, process } if *process == process::id() => {
            return Ok(runtime.handle().clone());
        }
        Tasks::Stopped => {
            return Err(other("the interpreter ends: nothing can be awaited".to_owned()));
        }
        Tasks::Run { .. } | Tasks::Unused => {}
    }
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(stop, py)?,))?;
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(1).thread_name("adverb-asyncio").enable_all().build();
    let runtime =
        built.map_err(|error| other(format!("cannot start the thread of asyncio: {error}")))?;
    let handle = runtime.handle().clone();
    mem::replace(&mut *tasks, Tasks::Run { runtime, process: process::id() }).end(py);
    Ok(handle)
}

/// Stops the runtime. Its thread gets the interpreter's lock for what it delivers now, and ends.
#[pyfunction]
fn stop(py: Python<'_>) {
    let mut tasks = TASKS.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
    let ended = mem::replace(&mut *tasks, Tasks::Stopped);
    drop(tasks);
    ended.end(py);
}

impl Tasks {
    fn end(self, py: Python<'_>) {
        match self {
            Self::Run { runtime, process } if process == process::id() => {
                py.detach(|| runtime.shutdown_timeout(ENDING));
            }
            // The thread is one of the parent.
            Self::Run { runtime, .. } => mem::forget(runtime),
            Self::Unused | Self::Stopped => {}
        }
    }
}

/// A future of the running event loop of asyncio, which has the outcome of `future`.
pub(crate) fn awaitable<'py, T>(
    py: Python<'py>,
    future: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'any> IntoPyObject<'any> + Send + 'static,
{
    let runtime = runtime(py)?;
    let events = py.import("asyncio")?.call_method0("get_running_loop")?;
    let promise = events.call_method0("create_future")?;
    let (to, events) = (promise.clone().unbind(), events.unbind());
    let task = runtime.spawn(async move {
        let outcome = future.await;
        // Without an interpreter there is no loop that waits.
        Python::try_attach(|py| deliver(py, &events, &to, outcome));
    });
    promise.call_method1("add_done_callback", (Abort { task: task.abort_handle() },))?;
    Ok(promise)
}

/// Has the loop settle the promise. A loop that is closed has nothing that waits.
fn deliver<T>(py: Python<'_>, events: &Py<PyAny>, promise: &Py<PyAny>, outcome: PyResult<T>)
where
    T: for<'any> IntoPyObject<'any>,
{
    let outcome = outcome.and_then(|value| value.into_py_any(py));
    let (method, value) = match outcome {
        Ok(value) => ("set_result", value),
        Err(error) => ("set_exception", error.into_value(py).into_any()),
    };
    let settle = Settle { promise: promise.clone_ref(py), method, value };
    let _ = events.call_method1(py, "call_soon_threadsafe", (settle,));
}

/// Settles a promise, unless it has been cancelled.
#[pyclass(frozen)]
struct Settle {
    promise: Py<PyAny>,
    method: &'static str,
    value: Py<PyAny>,
}

#[pymethods]
impl Settle {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        if !self.promise.call_method0(py, "done")?.is_truthy(py)? {
            self.promise.call_method1(py, self.method, (&self.value,))?;
        }
        Ok(())
    }
}

/// Ends the task of a promise that is settled: of one that was cancelled before the task's end.
#[pyclass(frozen)]
struct Abort {
    task: AbortHandle,
}

#[pymethods]
impl Abort {
    fn __call__(&self, _promise: &Bound<'_, PyAny>) {
        self.task.abort();
    }
}
