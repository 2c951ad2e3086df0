//! Settings of a session, as keywords.

use crate::wait::seconds;
use adverb::session::{Config, Connector, WorkMode};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The settings that there are, in the order of the library's `Config`.
const KNOWN: &str = "channels, connect_timeout, connector, device, gid_index, inline_bytes, name, receive_depth, \
                     secret, send_depth, silence_timeout, work_mode, work_timeout";

/// The settings that `options` changes.
pub(crate) fn config(options: Option<&Bound<'_, PyDict>>) -> PyResult<Config> {
    let mut config = Config::default();
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        config = match name.as_str() {
            "channels" => config.channels(value.extract::<Vec<String>>()?),
            "connect_timeout" => config.connect_timeout(seconds(value.extract()?)?),
            "connector" => config.connector(connector(&value.extract::<String>()?)?),
            "device" => config.device(value.extract::<String>()?),
            "gid_index" => config.gid_index(value.extract()?),
            "inline_bytes" => config.inline_bytes(value.extract()?),
            "name" => config.name(value.extract::<String>()?),
            "receive_depth" => config.receive_depth(value.extract()?),
            "secret" => config.secret(value.extract::<String>()?),
            "send_depth" => config.send_depth(value.extract()?),
            "silence_timeout" => config.silence_timeout(seconds(value.extract()?)?),
            "work_mode" => config.work_mode(work_mode(&value.extract::<String>()?)?),
            "work_timeout" => config.work_timeout(seconds(value.extract()?)?),
            _ => {
                let text = format!("there is no setting {name:?}; there are {KNOWN}");
                return Err(PyTypeError::new_err(text));
            }
        };
    }
    Ok(config)
}

fn connector(word: &str) -> PyResult<Connector> {
    match word {
        "cm" => Ok(Connector::Cm),
        "tcp" => Ok(Connector::Tcp),
        _ => Err(PyValueError::new_err(format!("connector is \"cm\" or \"tcp\", not {word:?}"))),
    }
}

fn work_mode(word: &str) -> PyResult<WorkMode> {
    match word {
        "busy" => Ok(WorkMode::BusyPoll),
        "completion" => Ok(WorkMode::CompletionChannel),
        "epoll" => Ok(WorkMode::Epoll),
        _ => Err(PyValueError::new_err(format!(
            "work_mode is \"busy\", \"completion\" or \"epoll\", not {word:?}"
        ))),
    }
}
