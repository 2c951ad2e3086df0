//! The Python package `adverb`: sessions and, in outline, verbs.
//!
//! Each file has the classes of one idea. Nothing here decides anything that the Rust libraries do not: it turns
//! arguments, results and errors. `python/adverb` has the modules that programs import, and their types. Read
//! `memory.rs` before anything that touches bytes, and `wait.rs` before anything that waits.

mod buffer;
mod channel;
mod config;
mod errors;
mod memory;
mod messenger;
mod session;
mod verbs;
mod wait;

use pyo3::prelude::*;

/// What `adverb.session` and `adverb.verbs` are made of.
#[pymodule]
fn _adverb(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Server>()?;
    module.add_class::<session::Client>()?;
    module.add_class::<session::Endpoint>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<buffer::Block>()?;
    module.add_class::<buffer::RemoteBuffer>()?;
    module.add_class::<buffer::RemoteBlock>()?;
    module.add_class::<channel::Channel>()?;
    module.add_class::<channel::AsyncChannel>()?;
    module.add_class::<channel::Ticket>()?;
    module.add_class::<channel::Event>()?;
    module.add_class::<messenger::Messenger>()?;
    module.add_class::<messenger::AsyncMessenger>()?;
    module.add_class::<verbs::Context>()?;
    module.add_class::<verbs::Pd>()?;
    module.add_class::<verbs::Mr>()?;
    module.add_class::<verbs::Cq>()?;
    module.add_class::<verbs::Qp>()?;
    module.add_class::<verbs::Completion>()?;
    module.add_function(wrap_pyfunction!(verbs::devices, module)?)
}
