//! A file for results that the user has named: opened before anything is measured for nothing.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::{Doing, Failure};

/// What the JSON of all commands has as `schema_version`: it rises when a field changes its meaning or goes.
pub(crate) const SCHEMA_VERSION: u32 = 1;

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
