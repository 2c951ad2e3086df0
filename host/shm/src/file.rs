//! Files with a path that are one user's alone, and descriptors that the C library does not close.
//!
//! What lies at a path of shared memory may have been put there by another user. A file is used only if it is a regular
//! one of this user that no other may open, and has no names that it should not have.
//!
//! # Safety
//!
//! A [`SharedFile`] owns its descriptor: it closes it, once, by a system call.

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// An open file.
#[derive(Debug)]
pub struct SharedFile {
    fd: ManuallyDrop<OwnedFd>,
}

/// What is to be at a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expect {
    /// A file, which is made if it is missing.
    FileOrNothing,
    /// A file.
    File,
    /// Nothing: a file is made.
    Nothing,
}

/// Whether only this user can put files into a directory, or take any away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trust {
    /// It is this user's alone.
    Own,
    /// It belongs to another user, or others may write to it.
    Foreign,
    /// It is not there, cannot be opened, or is no directory.
    Absent,
    /// Its path is not absolute: each process would mean another one.
    Relative,
}

impl SharedFile {
    /// Opens a file of this user, to read and write.
    ///
    /// # Errors
    ///
    /// `PERM` if it is another user's, others may open it, or it is a link, anything but a regular file, or one with
    /// more than `names_max` names; else those of `open(2)`.
    pub fn open_own(path: &CStr, expect: Expect, names_max: u32) -> Result<Self> {
        let more = match expect {
            Expect::File => OFlags::empty(),
            Expect::FileOrNothing => OFlags::CREATE,
            Expect::Nothing => OFlags::CREATE | OFlags::EXCL,
        };
        let file = Self::open(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | more)?;
        if expect == Expect::Nothing {
            return Ok(file);
        }
        let about = file.about()?;
        let others = Mode::RWXG | Mode::RWXO;
        let is_own = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
            && is_of_user(&about)
            && !Mode::from_raw_mode(about.st_mode).intersects(others)
            && about.st_nlink <= names_max.into();
        if is_own { Ok(file) } else { Err(Errno::PERM) }
    }

    /// Opens what is at a path, whatever it is, to ask about it and no more.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn locate(path: &CStr) -> Result<Self> {
        Self::open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// Opens a file, to read it.
    ///
    /// # Errors
    ///
    /// Those of `open(2)`.
    pub fn read_only(path: &CStr) -> Result<Self> {
        Self::open(path, OFlags::RDONLY)
    }

    fn open(path: &CStr, flags: OFlags) -> Result<Self> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(Self::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)?))
    }

    /// What the kernel knows of it.
    ///
    /// # Errors
    ///
    /// Those of `fstat(2)`.
    pub fn about(&self) -> Result<Stat> {
        rustix::fs::fstat(self)
    }

    /// Sets its length.
    ///
    /// # Errors
    ///
    /// Those of `ftruncate(2)`; `FBIG` if no file may be as long (`ulimit -f`).
    pub fn set_len(&self, len: usize) -> Result<()> {
        adverb_sys::process::may_make(bytes(len))?;
        rustix::fs::ftruncate(self, bytes(len))
    }

    /// Has the file system put memory aside for `len` bytes from `from` on, so that it is not missing later. File
    /// systems that cannot say so have it.
    ///
    /// # Errors
    ///
    /// `NOSPC` or `NOMEM` if there is not as much.
    pub fn reserve(&self, from: usize, len: usize) -> Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::empty(), bytes(from), bytes(len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => result,
        }
    }

    /// Whether it is `len` bytes long, and the file system has put memory aside for all of them.
    pub fn is_reserved(&self, len: usize) -> bool {
        let is_enough = |blocks: i64| blocks.checked_mul(BLOCK_BYTES) >= i64::try_from(len).ok();
        self.about().is_ok_and(|about| {
            usize::try_from(about.st_size) == Ok(len) && is_enough(about.st_blocks)
        })
    }

    /// Its length.
    ///
    /// # Errors
    ///
    /// Those of `fstat(2)`.
    pub fn size(&self) -> Result<usize> {
        usize::try_from(self.about()?.st_size).map_err(|_| Errno::OVERFLOW)
    }

    /// Its first bytes, as many as there are and have room in `into`.
    pub fn read<'a>(&self, into: &'a mut [u8]) -> &'a [u8] {
        let mut len = 0;
        while let Some(room) = into.get_mut(len..).filter(|room| !room.is_empty()) {
            match rustix::io::read(self, room) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(more) => len += more,
            }
        }
        into.get(..len).unwrap_or_default()
    }
}

impl SharedFile {
    /// Writes bytes, and returns how many there was room for.
    pub fn write(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::write(self, rest) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(more) => done += more,
            }
        }
        done
    }
}

impl Trust {
    /// Of the directory at a path, which is made if it is missing. A link in its place is not followed.
    pub fn of(path: &CStr) -> Self {
        if path.to_bytes().first() != Some(&b'/') {
            return Self::Relative;
        }
        // If it fails, opening it says why.
        let _ = rustix::fs::mkdir(path, Mode::RWXU);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let directory = SharedFile::open(path, flags);
        let Ok(about) = directory.and_then(|directory| directory.about()) else {
            return Self::Absent;
        };
        let others = Mode::WGRP | Mode::WOTH;
        let is_shut = !Mode::from_raw_mode(about.st_mode).intersects(others);
        if is_of_user(&about) && is_shut { Self::Own } else { Self::Foreign }
    }
}

/// Free blocks of the file system that a path is on, and all that it has.
///
/// # Errors
///
/// Those of `statfs(2)`.
pub fn free_blocks(path: &CStr) -> Result<(u64, u64)> {
    let about = rustix::fs::statfs(path)?;
    Ok((about.f_bavail, about.f_blocks))
}

/// Where a symbolic link points to, as far as there is room for that; nothing if it is none.
pub fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut *into);
    into.get(..len.unwrap_or(0)).unwrap_or_default()
}

fn is_of_user(about: &Stat) -> bool {
    about.st_uid == rustix::process::geteuid().as_raw()
}

/// What `st_blocks` counts, whatever the file system.
const BLOCK_BYTES: i64 = 512;

fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl From<OwnedFd> for SharedFile {
    fn from(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd) }
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // SAFETY: it is this value's, which is used for the last time.
        unsafe { rustix::io::close(self.fd.as_raw_fd()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    /// A directory of one test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("adverb-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn c(path: &Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn only_a_file_of_this_user_alone_is_opened() {
        let scratch = Scratch::new("own");
        let path = scratch.0.join("file");
        let open = |expect| SharedFile::open_own(&c(&path), expect, 2).map(drop);
        assert_eq!(open(Expect::File), Err(Errno::NOENT));
        assert_eq!(open(Expect::Nothing), Ok(()));
        assert_eq!(open(Expect::Nothing), Err(Errno::EXIST));
        assert_eq!(open(Expect::FileOrNothing), Ok(()));

        fs::hard_link(&path, scratch.0.join("second")).unwrap();
        assert_eq!(open(Expect::File), Ok(()));
        fs::hard_link(&path, scratch.0.join("third")).unwrap();
        assert_eq!(open(Expect::File), Err(Errno::PERM), "three names");
        fs::remove_file(scratch.0.join("third")).unwrap();

        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(open(Expect::File), Err(Errno::PERM), "its group reads it");
        fs::remove_file(&path).unwrap();
        symlink(scratch.0.join("second"), &path).unwrap();
        assert_eq!(open(Expect::File), Err(Errno::LOOP), "a link");
        fs::remove_file(&path).unwrap();
        let fifo = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(open(Expect::File), Err(Errno::PERM), "no regular file");
    }

    #[test]
    fn a_directory_is_trusted_if_no_other_user_writes_to_it() {
        let scratch = Scratch::new("trust");
        let path = scratch.0.join("place");
        assert_eq!(Trust::of(&c(&path)), Trust::Own, "it is made");
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(Trust::of(&c(&path)), Trust::Foreign);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Trust::of(&c(&path)), Trust::Own);
        symlink(&path, scratch.0.join("link")).unwrap();
        assert_eq!(Trust::of(&c(&scratch.0.join("link"))), Trust::Absent);
        assert_eq!(Trust::of(c"relative"), Trust::Relative);
        fs::write(scratch.0.join("file"), "").unwrap();
        assert_eq!(Trust::of(&c(&scratch.0.join("file"))), Trust::Absent);
    }

    #[test]
    fn what_is_reserved_is_there_and_read_again() {
        let scratch = Scratch::new("reserve");
        let file = SharedFile::open_own(&c(&scratch.0.join("a")), Expect::Nothing, 1).unwrap();
        file.set_len(1 << 20).unwrap();
        file.reserve(8192, 4096).unwrap();
        let about = file.about().unwrap();
        assert_eq!(about.st_size, 1 << 20);
        assert!(!file.is_reserved(1 << 20));
        file.reserve(0, 1 << 20).unwrap();
        assert!(file.is_reserved(1 << 20) && !file.is_reserved(1 << 19));
        rustix::io::pwrite(&file, b"abc", 0).unwrap();
        assert_eq!(file.read(&mut [0; 3]), b"abc");
    }
}
