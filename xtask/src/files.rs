//! Files of the tree and of what is built; what fails says which.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))
}

/// Writes a file, and makes its directory if there is none.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    make(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Makes a directory, and those above it.
pub(crate) fn make(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)
        .map_err(|error| format!("making {}: {error}", directory.display()))
}

/// What is in a directory.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(directory);
    let entries = entries.map_err(|error| format!("listing {}: {error}", directory.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
