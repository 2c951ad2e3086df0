//! Files of this user that programs have left behind, and that no process uses.
//!
//! What counts as unused is what the makers say: of the trees of `/sys/class/infiniband` `shared_tree.rs` of
//! adverb-libibverbs (no lock, and none for two minutes), of the places where sockets meet `source.rs` (no process has the
//! number that a file is named after). A directory of `adverb run --drop-in` is used while some program is told of it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::{Finding, Grade};

/// Finds them where programs make them.
pub(super) fn leftovers() -> Finding {
    const CHECK: &str = "leftovers";
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].iter().filter_map(std::env::var_os);
    let named = named.filter(|place| !place.is_empty()).map(PathBuf::from);
    let mut bases: Vec<_> = named.chain([PathBuf::from(SHM)]).collect();
    bases.sort_unstable();
    bases.dedup();
    let user = adverb_sys::process::user();
    let (meetings, others): (Vec<_>, Vec<_>) = bases
        .iter()
        .flat_map(|base| unused_in(base, user))
        .partition(|(kind, _)| *kind == Kind::Meeting);
    let all: Vec<_> = meetings.iter().chain(&others).map(|(_, path)| path).collect();
    if all.is_empty() {
        return Finding::good(CHECK, "none");
    }
    let kibibytes = all.iter().map(|path| bytes_of(path)).sum::<u64>() >> 10;
    let removal = (!others.is_empty()).then(|| {
        let paths: Vec<_> = others.iter().map(|(_, path)| path.display().to_string()).collect();
        format!("rm -r {}", paths.join(" "))
    });
    let meeting = (!meetings.is_empty()).then(|| {
        "the next program under adverb sockets removes files of those that ended".to_owned()
    });
    Finding {
        check: CHECK,
        grade: Grade::Costs,
        found: format!("{kibibytes} KiB that no process uses: {}", listed(all.iter())),
        cost: "memory, or room on a disk",
        cure: removal.into_iter().chain(meeting).collect::<Vec<_>>().join("; ").into(),
    }
}

/// Where the trees are.
pub(super) fn trees_base() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from(SHM), PathBuf::from)
}

const SHM: &str = "/dev/shm";

/// What a directory is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// Files as in `/sys/class/infiniband`.
    Tree,
    /// Names of libibverbs.
    DropIn,
    /// Where programs under `adverb sockets` meet.
    Meeting,
}

impl Kind {
    /// By its name.
    fn of(name: &str, user: u32) -> Option<Self> {
        let is_of = |kind: &str| name.starts_with(&format!("adverb-{kind}-{user}-"));
        if is_of("ibverbs") {
            Some(Self::Tree)
        } else if is_of("drop-in") {
            Some(Self::DropIn)
        } else {
            (name == format!("adverb-sockets-{user}")).then_some(Self::Meeting)
        }
    }
}

/// Directories of this user in `base` that no process uses.
fn unused_in(base: &Path, user: u32) -> Vec<(Kind, PathBuf)> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let kinds = entries.filter_map(|entry| {
        let kind = Kind::of(entry.file_name().to_str()?, user)?;
        Some((kind, entry.path()))
    });
    let is_unused = |(kind, path): &(Kind, PathBuf)| {
        let is_unused = match kind {
            Kind::Tree => is_unlocked(path, user),
            Kind::DropIn => is_untold(path, user),
            Kind::Meeting => is_deserted(path, user),
        };
        is_unused.unwrap_or(false)
    };
    kinds.filter(is_unused).collect()
}

/// A directory of this user, and no link to one, that has not been used for a while.
fn old(path: &Path, user: u32) -> io::Result<Option<fs::File>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = directory.metadata()?;
    let is_recent = about.modified()?.elapsed().is_ok_and(|age| age < UNUSED_MAX);
    Ok((about.uid() == user && !is_recent).then_some(directory))
}

/// As long as in `shared_tree.rs`.
const UNUSED_MAX: Duration = Duration::from_secs(2 * 60);

/// No process has its lock.
fn is_unlocked(path: &Path, user: u32) -> io::Result<bool> {
    Ok(old(path, user)?.is_some_and(|directory| directory.try_lock().is_ok()))
}

/// No process that can be looked at has it in its environment.
fn is_untold(path: &Path, user: u32) -> io::Result<bool> {
    if old(path, user)?.is_none() {
        return Ok(false);
    }
    let name = path.as_os_str().as_bytes();
    let mut processes = fs::read_dir("/proc")?.flatten();
    let is_told = processes.any(|process| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        environment.windows(name.len()).any(|part| part == name)
    });
    Ok(!is_told)
}

/// All files there that are named after a process are of some that have ended.
fn is_deserted(path: &Path, user: u32) -> io::Result<bool> {
    let about = fs::symlink_metadata(path)?;
    if !about.is_dir() || about.uid() != user {
        return Ok(false);
    }
    let own = fs::read_link("/proc/self/ns/pid")?;
    let is_alive = |name: &str| {
        let of = name.strip_prefix("stat.")?;
        let (process, processes) = of.split_once('.').unwrap_or((of, "0"));
        let is_known = processes == "0" || own.as_os_str() == &*format!("pid:[{processes}]");
        Some(!is_known || Path::new("/proc").join(process).exists())
    };
    let mut names = fs::read_dir(path)?.flatten().map(|entry| entry.file_name());
    Ok(!names.any(|name| name.to_str().and_then(is_alive).unwrap_or(false)))
}

/// What a directory takes.
fn bytes_of(directory: &Path) -> u64 {
    let mut left = vec![directory.to_owned()];
    let (mut blocks, mut entries) = (0, 0..ENTRIES_MAX);
    while let Some(path) = left.pop().filter(|_| entries.next().is_some()) {
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        blocks += about.blocks();
        if about.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
    }
    blocks * BLOCK_BYTES
}

/// Files that are counted, at most.
const ENTRIES_MAX: u32 = 10_000;
/// What `st_blocks` counts, whatever the file system.
const BLOCK_BYTES: u64 = 512;

/// The first few, and how many more there are.
fn listed<P: AsRef<Path>>(paths: impl Iterator<Item = P>) -> String {
    let mut paths: Vec<_> = paths.map(|path| path.as_ref().display().to_string()).collect();
    let more = paths.len().saturating_sub(LISTED_MAX);
    paths.truncate(LISTED_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    paths.join(" ") + &rest
}

const LISTED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::time::SystemTime;

    use super::*;

    /// A directory for directories, which goes with this value.
    struct Base(PathBuf);

    impl Base {
        fn new(name: &str) -> Self {
            let name = format!("adverb-doctor-{name}-{}", std::process::id());
            let base = std::env::temp_dir().join(name);
            fs::create_dir(&base).unwrap();
            Self(base)
        }

        /// An entry of this user, used long ago.
        fn old(&self, name: &str) -> fs::File {
            let path = self.0.join(name.replace("USER", &user().to_string()));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), [1; 4096]).unwrap();
            let directory = fs::File::open(&path).unwrap();
            directory.set_modified(SystemTime::now() - UNUSED_MAX).unwrap();
            directory
        }

        fn unused(&self) -> Vec<Kind> {
            unused_in(&self.0, user()).into_iter().map(|(kind, _)| kind).collect()
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn user() -> u32 {
        adverb_sys::process::user()
    }

    /// Goal: a tree is a leftover once it has no lock and is old, complete or not, and of this user.
    #[test]
    fn a_tree_is_left_over_once_no_process_has_it() {
        let base = Base::new("trees");
        let tree = base.old("adverb-ibverbs-USER-0123");
        assert_eq!(base.unused(), [Kind::Tree]);
        tree.lock_shared().unwrap();
        assert_eq!(base.unused(), []);
        tree.unlock().unwrap();
        tree.set_modified(SystemTime::now()).unwrap();
        assert_eq!(base.unused(), []);
        base.old("adverb-ibverbs-USER-new-7-0");
        base.old(&format!("adverb-ibverbs-{}-0123", user() + 1));
        symlink("adverb-ibverbs-none", base.0.join(format!("adverb-ibverbs-{}-link", user())))
            .unwrap();
        assert_eq!(base.unused(), [Kind::Tree]);
        assert!(bytes_of(&base.0) >= 3 * 4096);
    }

    #[test]
    fn a_drop_in_directory_is_left_over_once_no_program_is_told_of_it() {
        let base = Base::new("drop-in");
        base.old("adverb-drop-in-USER-0123");
        assert_eq!(base.unused(), [Kind::DropIn]);
        let path = base.0.join(format!("adverb-drop-in-{}-0123", user()));
        let mut program = Command::new("cat");
        program.env("LD_LIBRARY_PATH", format!("/nowhere:{}", path.display()));
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // A program that has only just been started may have no environment yet; one that answers has it.
        program.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        program.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(base.unused(), []);
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(base.unused(), [Kind::DropIn]);
    }

    /// Goal: a place where sockets meet is left over once all its programs have ended. One of another process namespace
    /// may run.
    #[test]
    fn a_meeting_place_is_left_over_once_its_programs_have_ended() {
        let base = Base::new("meeting");
        base.old("adverb-sockets-USER");
        let own = fs::read_link("/proc/self/ns/pid").unwrap();
        let own: String = own.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let dead = 4_194_305; // The kernel has no numbers beyond 2²².
        let place = base.0.join(format!("adverb-sockets-{}", user()));
        fs::write(place.join(format!("stat.{dead}.{own}")), "").unwrap();
        assert_eq!(base.unused(), [Kind::Meeting]);
        for (process, processes) in [(std::process::id(), &*own), (dead, "1")] {
            let file = place.join(format!("stat.{process}.{processes}"));
            fs::write(&file, "").unwrap();
            assert_eq!(base.unused(), [], "{}", file.display());
            fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(listed(["a", "b"].iter()), "a b");
        assert_eq!(listed(["a", "b", "c", "d", "e", "f"].iter()), "a b c d and 2 more");
    }
}
