//! The directory in which `libibverbs.so.1` is our library, for `adverb run --drop-in`.
//!
//! It is beside the library if this user may write there, else in `XDG_RUNTIME_DIR`, `TMPDIR` or `/dev/shm`, where it must be
//! this user's alone: the dynamic linker runs what it finds there.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The names by which programs and loaders ask for libibverbs.
const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// A directory with `library` under the names of libibverbs: made if it is not there yet.
pub(crate) fn directory(library: &Path) -> Result<PathBuf, Failure> {
    let beside = library.parent().map(|place| place.join("adverb-drop-in"));
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let user = adverb_sys::process::user();
    let name = format!("adverb-drop-in-{user}-{:016x}", hasher.finish());
    let elsewhere = ["XDG_RUNTIME_DIR", "TMPDIR"].iter().filter_map(std::env::var_os);
    let elsewhere = elsewhere.filter(|place| !place.is_empty()).map(PathBuf::from);
    let elsewhere = elsewhere.chain([PathBuf::from("/dev/shm")]).map(|place| place.join(&name));
    let mut result = Err(io::Error::from(io::ErrorKind::NotFound));
    for place in beside.into_iter().chain(elsewhere) {
        result = filled(&place, library, user).map(|()| place);
        if result.is_ok() {
            break;
        }
    }
    result.map_err(|error| Failure::failed(format!("a directory for libibverbs.so.1: {error}")))
}

/// Makes the directory what it has to be.
fn filled(place: &Path, library: &Path, user: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(place)?;
    let trusted = [user, 0].contains(&found.uid()) && found.mode() & WRITABLE_BY_OTHERS == 0;
    if !found.is_dir() || !trusted {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    for name in NAMES {
        let link = place.join(name);
        if fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        // Another process may do the same at this moment: a name always leads somewhere.
        let new = place.join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_file(&new);
        symlink(library, &new)?;
        fs::rename(&new, &link)?;
    }
    Ok(())
}

const WRITABLE_BY_OTHERS: u32 = 0o022;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_and_a_stale_name_is_put_right() {
        let place =
            std::env::temp_dir().join(format!("adverb-drop-in-test-{}", std::process::id()));
        let user = adverb_sys::process::user();
        let library = Path::new("/some/library.so");
        filled(&place, Path::new("/an/older/one.so"), user).unwrap();
        filled(&place, library, user).unwrap();
        for name in NAMES {
            assert_eq!(fs::read_link(place.join(name)).unwrap(), library);
        }
        fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let refused = filled(&place, library, user).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(&place).unwrap();
    }
}
