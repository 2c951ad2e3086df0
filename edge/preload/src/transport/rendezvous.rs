//! The rendezvous: a directory in shared memory, of one user, in which processes find one another's files.
//!
//! The directory is the user's own, so that only processes of one user meet. Names in it are made of all that
//! has to be the same for both. Rings are offered there (`offer.rs`), and mailboxes; tables that many share,
//! such as doorbells, lie there as well.
//!
//! # Safety
//!
//! A file that is found may be anything. It is used only if it is this user's alone ([`open_own`]), as
//! the directory has to be ([`Trust`]).

use std::ffi::{CStr, CString, OsString, c_int};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use adverb_shm::file::{self, Expect, SharedFile, Trust};
use adverb_shm::page::Layout;
use adverb_sockconf::Level;

use crate::base::lock::Lazy;
use crate::base::shelter::Mapping;
use crate::base::{config, log, raw};

/// The directory, and whether it may be used.
#[derive(Debug)]
struct Place {
    path: String,
    trust: Trust,
}

fn whole_place() -> &'static Place {
    static PLACE: Lazy<Place> = Lazy::new();
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let is_new = PLACE.get().is_none();
    let place = PLACE.get_or_init(|| {
        let path = config::rendezvous();
        let trust = CString::new(path.as_str()).map_or(Trust::Absent, |path| Trust::of(&path));
        Place { path, trust }
    });
    if is_new && place.trust != Trust::Own && !IS_SAID.swap(true, Ordering::Relaxed) {
        complain(place);
    }
    place
}

/// Says why there is no rendezvous. A system without the default directory is no reason for a warning.
fn complain(place: &Place) {
    let is_usual = place.trust == Trust::Absent && place.path == config::default_place();
    let level = if is_usual { Level::Debug } else { Level::Warning };
    let what = match place.trust {
        Trust::Own => return,
        Trust::Foreign => "belongs to another user, or others may write to it",
        Trust::Absent => "cannot be opened as a directory, or is a symbolic link",
        Trust::Relative => "is not an absolute path",
    };
    log::print(level, || {
        let Place { path, .. } = place;
        format!(
            "{path} {what}: all sockets stay with the kernel. Shared memory needs a directory of user {} \
             with mode 0700; ADVERB_SOCKETS_SHM_DIR names one",
            raw::user_id()
        )
    });
}

/// The directory, if it may be used.
pub(crate) fn place() -> Option<&'static str> {
    let place = whole_place();
    (place.trust == Trust::Own).then_some(place.path.as_str())
}

/// The path of a file in the rendezvous, if that may be used.
pub(crate) fn path(name: &str) -> Option<CString> {
    CString::new(format!("{}/{name}", place()?)).ok()
}

/// Opens a file in the rendezvous, to read and write.
pub(crate) fn open_own(path: &CStr, expect: Expect) -> Option<SharedFile> {
    SharedFile::open_own(path, expect, NAMES_MAX).ok()
}

/// Names of one file: the one under which it was made, and that of a path proof (`path_proof.rs`).
const NAMES_MAX: u32 = 2;

/// A name of 128 bits, made of everything that has to be the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(pub(crate) [u64; 2]);

impl Name {
    const EMPTY: Self = Self([0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142]);

    pub(crate) fn and(self, bytes: &[u8]) -> Self {
        let Self([mut a, mut b]) = self;
        for byte in bytes {
            a = (a ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            b = (b ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        Self([a, b])
    }

    /// What a link of the kernel's says.
    fn and_link(self, path: &CStr) -> Self {
        self.and(file::read_link(path, &mut [0; 64]))
    }

    /// Ends are asked by their numbers whether they live: they must mean the same to both. What they
    /// mean to a process stays so: it looks once.
    pub(crate) fn of_processes() -> Self {
        let (o, me) = (Ordering::Relaxed, raw::process_id());
        let [a, b] = &SEEN;
        if SEEN_BY.load(Ordering::Acquire) == me {
            return Self([a.load(o), b.load(o)]);
        }
        let seen = Self::EMPTY.and(&FORMAT).and_link(c"/proc/self/ns/pid");
        let Self([first, second]) = seen;
        a.store(first, o);
        b.store(second, o);
        SEEN_BY.store(me, Ordering::Release);
        seen
    }
}

/// Another one, where what lies in the rendezvous has come to mean something else.
const FORMAT: [u8; 1] = [3];

static SEEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static SEEN_BY: AtomicU32 = AtomicU32::new(0);

/// In the child: it may be in another namespace, and have its parent's number there.
pub(crate) fn after_fork() {
    SEEN_BY.store(0, Ordering::Relaxed);
}

/// The network namespace that a socket is in.
pub(crate) fn space(fd: c_int) -> Option<u64> {
    let cookie = raw::option::<u64>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok();
    cookie.or_else(|| {
        let Name([a, _]) = Name::EMPTY.and_link(c"/proc/thread-self/ns/net");
        Some(a)
    })
}

const SO_NETNS_COOKIE: c_int = 71;

/// The kernel's number for a socket, the same in every process that has it.
pub(crate) fn cookie(fd: c_int) -> u64 {
    raw::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).unwrap_or(0)
}

/// The directory.
pub(crate) fn directory() -> &'static str {
    &whole_place().path
}

/// Whether there is memory for rings that grow: most of what the rendezvous may have is free.
pub(crate) fn is_roomy() -> bool {
    has_room(2)
}

/// Whether at least one of so many parts of what the rendezvous may hold is free.
pub(crate) fn has_room(parts: u64) -> bool {
    let Some(path) = place().and_then(|place| CString::new(place).ok()) else { return false };
    file::free_blocks(&path).is_ok_and(|(free, all)| free >= all / parts)
}

/// Whether there is a file of this user's.
pub(crate) fn has(path: &CStr) -> bool {
    open_own(path, Expect::File).is_some()
}

/// Whether a file does not say yet what it is.
pub(crate) fn is_blank(path: &CStr) -> bool {
    read_own(path, size_of::<u64>()).is_some_and(|head| head.iter().all(|byte| *byte == 0))
}

/// Whether a file is blank that its process would have written to long ago: it was killed before.
pub(crate) fn is_stillborn(path: &CStr) -> bool {
    let about = SharedFile::locate(path).and_then(|file| file.about());
    let age = about.map_or(0, |about| raw::real_time().0.saturating_sub(about.st_ctime));
    age > STILLBORN_S && is_blank(path)
}

/// A file that is still blank after so many seconds will be for ever.
const STILLBORN_S: i64 = 2;

/// The first bytes of a file in the rendezvous, `most` at most, if it is one that [`open_own`] opens.
pub(crate) fn read_own(path: &CStr, most: usize) -> Option<Vec<u8>> {
    let file = open_own(path, Expect::File)?;
    let mut bytes = vec![0; most.min(file.size().ok()?)];
    let len = file.read(&mut bytes).len();
    bytes.truncate(len);
    Some(bytes)
}

/// This process ends: if no other has anything here, what all of them shared goes, and the
/// directory. A process that starts at this very moment makes its own.
pub(crate) fn clear_away() {
    let Some(place) = place() else { return };
    let Some(names) = raw::names(Path::new(place), TIDY_MAX) else { return };
    let names = names.into_iter().map(OsString::into_string);
    let Ok(names) = names.collect::<Result<Vec<String>, _>>() else { return };
    let is_shared = |name: &String| {
        let (kind, rest) = name.split_once('.').unwrap_or((name, "."));
        let parts = rest.split('.').count();
        matches!((kind, parts), ("ports" | "doorbells" | "doors", 1)) || (kind, parts) == ("udp", 2)
    };
    if !names.iter().all(is_shared) {
        return;
    }
    for name in names {
        if let Some(path) = path(&name) {
            raw::unlink(&path);
        }
    }
    // A directory that the user has named may be there for other reasons too.
    if place == config::default_place() {
        let _ = std::fs::remove_dir(place);
    }
}

/// The names of the files there, as far as they are looked at.
pub(crate) fn names() -> Vec<OsString> {
    place().and_then(|place| raw::names(Path::new(place), TIDY_MAX)).unwrap_or_default()
}

/// Files that one process looks at when it starts, at most.
const TIDY_MAX: usize = 256;
/// Which processes share a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reach {
    /// All of a network namespace.
    Network,
    /// All that know each other's processes by the same numbers.
    Host,
}

/// What lies in a file that many share, of zeros at first: mapped when it is first looked at, and for good.
#[derive(Debug)]
pub(crate) struct Table<T>(AtomicPtr<T>);

impl<T: Layout> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// What this process has mapped.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: mapped for good, for its whole length, and legal whatever it holds.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// What this process has mapped, or else maps from this file.
    #[inline]
    pub(crate) fn get_or_map(&self, file: impl FnOnce() -> Option<SharedFile>) -> Option<&T> {
        let mut at = self.0.load(Ordering::Acquire);
        if at.is_null() {
            at = map_whole(&file()?, size_of::<T>())?.keep().cast();
            self.0.store(at, Ordering::Release);
        }
        // SAFETY: mapped for good, for its whole length, and legal whatever it holds.
        unsafe { at.as_ref() }
    }
}

/// A file that many share, by what it is for.
pub(crate) fn shared(kind: &str, reach: Reach) -> Option<SharedFile> {
    let Name([a, _]) = match reach {
        Reach::Network => Name::of_processes().and_link(c"/proc/self/ns/net"),
        Reach::Host => Name::of_processes(),
    };
    open_own(&path(&format!("{kind}.{a:016x}"))?, Expect::FileOrNothing)
}

/// Maps a file of that length whose memory is put aside from the start.
pub(crate) fn map_whole(file: &SharedFile, len: usize) -> Option<Mapping> {
    // Each process of a server maps it, and to reserve again what is there takes as long as the file is.
    if !file.is_reserved(len) {
        file.set_len(len).ok()?;
        file.reserve(0, len).ok()?;
    }
    Mapping::new(file, len)
}

/// Connections get rings, and sockets mailboxes, while more than this part of what the file system may hold is free.
pub(crate) const MAKE_SHARE: u64 = 4;
