//! Results as JSON, which says its version, and a file for them that the user has named: opened before anything is measured
//! for nothing.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::{Doing, Failure};

/// What the JSON of all commands has as `schema_version`: it rises when a field changes its meaning or goes.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// What every command prints as JSON: an object with the version, and what it has found. `docs/json.md` describes each.
#[derive(Debug, Serialize)]
struct Document<T> {
    schema_version: u32,
    #[serde(flatten)]
    found: T,
}

/// `found`, an object, as JSON for a person and for programs.
pub(crate) fn json(found: impl Serialize) -> Result<String, Failure> {
    let document = Document { schema_version: SCHEMA_VERSION, found };
    Ok(serde_json::to_string_pretty(&document).doing("writing JSON")? + "\n")
}

/// The same on one line, for what comes again and again.
pub(crate) fn json_line(found: impl Serialize) -> Result<String, Failure> {
    let document = Document { schema_version: SCHEMA_VERSION, found };
    Ok(serde_json::to_string(&document).doing("writing JSON")? + "\n")
}

/// An open file, and its name for errors.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    /// Makes the file, or empties the one that is there.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).doing(format_args!("creating {}", path.display()))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes all that it will have.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.write_all(text.as_bytes());
        written.doing(format_args!("writing {}", self.path.display()))
    }
}
