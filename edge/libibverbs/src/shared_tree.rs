//! Directories that processes of one user share under a name that tells what is in them: `sysfs.rs` fills them.
//!
//! Each process that uses one holds a shared lock on it, which the kernel lets go of however the process ends. It stays
//! then, for the next. A process that begins removes those that have no lock, but its own: of other sets of devices, as
//! network namespaces that are gone had them, and of processes that were killed while they made theirs.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory that is complete and stays while this value lives.
#[derive(Debug)]
pub(crate) struct SharedTree {
    pub(crate) root: PathBuf,
    #[expect(dead_code, reason = "holds the lock")]
    lock: File,
}

/// How often a directory is tried that other processes make or remove at the same time.
const TRIES: u32 = 16;

impl SharedTree {
    /// The directory of this name in `base`; `fill` puts into a new one what belongs there.
    pub(crate) fn open(
        base: &Path,
        name: &str,
        fill: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let user = fs::metadata("/proc/self")?.uid();
        let prefix = format!("{PREFIX}{user}-");
        let root = base.join(format!("{prefix}{name}"));
        let mut result = Err(io::Error::from(io::ErrorKind::NotFound));
        for _ in 0..TRIES {
            let found = used(&root, user);
            remove_unused(base, &prefix, user); // What was found has a lock by now.
            result = match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    made(base, &prefix, &root, user, &fill)
                }
                found => found,
            };
            match &result {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(_) | Err(_) => break,
            }
        }
        Ok(Self { root, lock: result? })
    }
}

/// A directory that is this user's own, with a lock on it; `NotFound`, too, if it is about to be removed.
fn used(root: &Path, user: u32) -> io::Result<File> {
    let lock = own(root, user)?;
    lock.try_lock_shared().map_err(|_| io::ErrorKind::NotFound)?;
    // It may have been removed, and another made, before it was locked.
    let (locked, there) = (lock.metadata()?, fs::symlink_metadata(root)?);
    match (locked.dev(), locked.ino()) == (there.dev(), there.ino()) {
        true => Ok(lock),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// A directory, and no link to one, that is this user's own.
fn own(path: &Path, user: u32) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match directory.metadata()?.uid() == user {
        true => Ok(directory),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Makes the directory elsewhere, locked from the start, and puts it into its place when it is complete.
fn made(
    base: &Path,
    prefix: &str,
    root: &Path,
    user: u32,
    fill: &impl Fn(&Path) -> io::Result<()>,
) -> io::Result<File> {
    let new = base.join(format!("{prefix}new-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&new)?;
    let filled = used(&new, user).and_then(|lock| fill(&new).map(|()| lock));
    let placed = filled.and_then(|lock| match fs::rename(&new, root) {
        Ok(()) => Ok(lock),
        // Another process has been faster: its directory is the same.
        Err(_) => Err(io::ErrorKind::NotFound.into()),
    });
    if placed.is_err() {
        let _ = fs::remove_dir_all(&new); // Its place may have been taken by what was made.
    }
    placed
}

/// Removes directories that no process uses.
fn remove_unused(base: &Path, prefix: &str, user: u32) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_one = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(prefix));
        let path = entry.path();
        if !is_one(&entry.file_name()) {
            continue;
        }
        if let Ok(lock) = own(&path, user)
            && lock.try_lock().is_ok()
        {
            // A process that finds it now sees that it is locked, or gone. What cannot be removed stays.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// What the names of all of them begin with.
const PREFIX: &str = "adverb-ibverbs-";
