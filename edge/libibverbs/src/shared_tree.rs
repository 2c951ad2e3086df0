//! Directories that processes of one user share under a name that tells what is in them: `sysfs.rs` fills them.
//!
//! Each process that uses one holds a shared lock on it, which the kernel lets go of however the process ends. It stays
//! then, for the next. A process that begins removes those that have no lock and that no process has begun to use for a
//! while: of other sets of devices, as network namespaces that are gone had them, and of processes that were killed while
//! they made theirs.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A directory that is complete and stays while this value lives.
#[derive(Debug)]
pub(crate) struct SharedTree {
    pub(crate) root: PathBuf,
    _lock: File,
}

/// How often a directory is tried that other processes make or remove at the same time.
const TRIES: u32 = 16;
/// How long a directory stays without a process that begins to use it: programs of two sets of devices take turns.
const UNUSED_MAX: Duration = Duration::from_secs(2 * 60);

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
        for attempt in 0..TRIES {
            let found = used(&root, user);
            remove_unused(base, &prefix, user); // What was found has a lock by now.
            result = match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let new = format!("{prefix}new-{}-{attempt}", std::process::id());
                    made(&base.join(new), &root, user, &fill)
                }
                found => found,
            };
            match &result {
                // Of a process in another PID namespace, which has the same number, or one that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(_) | Err(_) => break,
            }
        }
        Ok(Self { root, _lock: result? })
    }
}

/// A directory that is this user's own, with a lock on it; `NotFound`, too, if it is about to be removed.
fn used(root: &Path, user: u32) -> io::Result<File> {
    let lock = own(root, user)?;
    lock.try_lock_shared().map_err(|_| io::ErrorKind::NotFound)?;
    match is_at(&lock, root)? {
        true => lock.set_modified(SystemTime::now()).map(|()| lock),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// This directory is still there: it may have been removed, and another made, before it was locked.
fn is_at(lock: &File, path: &Path) -> io::Result<bool> {
    let (locked, there) = (lock.metadata()?, fs::symlink_metadata(path)?);
    Ok((locked.dev(), locked.ino()) == (there.dev(), there.ino()))
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
    new: &Path,
    root: &Path,
    user: u32,
    fill: &impl Fn(&Path) -> io::Result<()>,
) -> io::Result<File> {
    fs::DirBuilder::new().mode(0o700).create(new)?;
    let lock = used(new, user)?;
    // Where another process has been faster, its directory is the same.
    let placed =
        fill(new).and_then(|()| fs::rename(new, root).map_err(|_| io::ErrorKind::NotFound.into()));
    if placed.is_err() {
        let _ = fs::remove_dir_all(new);
    }
    placed.map(|()| lock)
}

/// Removes directories that no process uses.
fn remove_unused(base: &Path, prefix: &str, user: u32) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_one = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(prefix));
        let path = entry.path();
        if !is_one(&entry.file_name()) {
            continue;
        }
        if let Ok(directory) = own(&path, user) {
            let _ = remove_if_unused(&path, &directory); // What cannot be removed stays.
        }
    }
}

/// Removes a directory that was found at this path, if no process uses it.
fn remove_if_unused(path: &Path, directory: &File) -> io::Result<()> {
    let is_recent = directory.metadata()?.modified()?.elapsed().is_ok_and(|age| age < UNUSED_MAX);
    if is_recent || directory.try_lock().is_err() || !is_at(directory, path)? {
        return Ok(());
    }
    // A process that finds it now sees that it is locked, or gone. Once it is empty, another may take its place.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))? {
        fs::remove_dir_all(entry?.path())?;
    }
    fs::remove_dir(path)
}

/// What the names of all of them begin with.
const PREFIX: &str = "adverb-ibverbs-";

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    /// A directory for directories, which goes with this value.
    struct Base(PathBuf);

    impl Base {
        fn new(name: &str) -> Self {
            let base = std::env::temp_dir().join(format!("adverb-{name}-{}", std::process::id()));
            fs::create_dir(&base).unwrap();
            Self(base)
        }

        fn tree(&self) -> SharedTree {
            SharedTree::open(&self.0, "tree", |root| fs::create_dir(root.join("class"))).unwrap()
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Goal: a process removes only what it has looked at. Method: each is found, and another is at its path before it is
    /// locked, as old as that and as full, or empty.
    #[test]
    fn a_directory_that_has_taken_the_place_of_another_stays() {
        let base = Base::new("taken");
        let user = fs::metadata(&base.0).unwrap().uid();
        let path = base.tree().root;
        for is_full in [true, false] {
            let found = own(&path, user).unwrap();
            fs::remove_dir_all(&path).unwrap();
            match is_full {
                true => drop(base.tree()),
                false => fs::create_dir(&path).unwrap(),
            }
            let other = own(&path, user).unwrap();
            for directory in [&found, &other] {
                directory.set_modified(SystemTime::now() - HOUR).unwrap();
            }
            let _ = remove_if_unused(&path, &found);
            assert!(is_at(&other, &path).unwrap(), "{is_full}");
            assert_eq!(path.join("class").is_dir(), is_full);
        }
    }

    /// Goal: programs of two sets of devices that take turns each find their directory. Method: one that was used just now,
    /// and long ago.
    #[test]
    fn a_directory_stays_for_a_while_after_its_last_process() {
        let base = Base::new("turns");
        let open =
            |name| SharedTree::open(&base.0, name, |root| fs::create_dir(root.join("class")));
        let one = open("one").unwrap().root;
        open("other").unwrap();
        assert!(one.is_dir());
        let directory = File::open(&one).unwrap();
        directory.set_modified(SystemTime::now() - HOUR).unwrap();
        open("one").unwrap();
        open("other").unwrap();
        assert!(is_at(&directory, &one).unwrap(), "it was used again");
        directory.set_modified(SystemTime::now() - HOUR).unwrap();
        open("other").unwrap();
        assert!(!one.exists());
    }

    /// Goal: a process makes its directory though another has the same number. Method: what that one makes is there.
    #[test]
    fn a_name_that_another_process_has_is_passed_over() {
        let base = Base::new("numbers");
        let user = fs::metadata(&base.0).unwrap().uid();
        let new = base.0.join(format!("{PREFIX}{user}-new-{}-0", std::process::id()));
        fs::create_dir(&new).unwrap();
        assert!(base.tree().root.join("class").is_dir());
        assert!(new.is_dir());
    }
}
