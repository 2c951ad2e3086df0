//! Exec targets: which program will have our connections next, one with this library or one without.
//!
//! A program that takes this process over, or is started with its descriptors, finds rings where they
//! met if this library is in front of it too, and if both mean the same place. A program that cannot be
//! seen to be such is none: then connections go back to the kernel before it starts.
//!
//! # Safety
//!
//! Environments are arrays of C strings that end with a null pointer, as the C library's functions
//! want them. The one call into the loader asks what file a function of ours came from.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use adverb_shm::alive;
use adverb_switchover::Route;

use crate::base::lock::Lazy;
use crate::base::{config, raw, vfork};
use crate::share::processes;
use crate::socket::state::{Kind, Reason, Socket};
use crate::socket::table::{self, SocketRef};
use crate::socket::{arena, policy};
use crate::transport::fallback::Together;
use crate::transport::{datagram, fallback, offer, rendezvous, xdp};

/// What has been done for a program that is about to take this process over.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Sockets of which this process has descriptors, and for those that others have too what it takes to
    /// have them again.
    unnamed: Vec<(&'static Socket, Option<u32>)>,
    /// Those among them that the next program will have.
    passed_on: Vec<&'static Socket>,
    counted: Counted,
}

/// Sockets that another program is to have besides, and their lives.
#[derive(Debug, Default)]
pub(crate) struct Counted(Vec<(&'static Socket, u32)>);

impl Counted {
    /// If another program is about to have a connection, or may be, to close it here does not end it.
    fn count(&mut self, socket: &SocketRef, fd: c_int) {
        if raw::ends_with_program(fd) {
            return;
        }
        self.0.push((socket.socket(), socket.takers.count()));
    }

    /// There is no such program. Another one that has been started, or is about to be, may have the same sockets.
    pub(crate) fn undo(self) {
        self.0.into_iter().for_each(|(socket, life)| socket.takers.take_back(life));
    }
}

/// Whether any socket of this process uses shared memory.
fn has_rings() -> bool {
    let mut found = false;
    table::each(0, usize::MAX, |fd| {
        found |= table::socket(fd).is_some_and(|socket| shares_memory(&socket));
    });
    found
}

fn shares_memory(socket: &Socket) -> bool {
    datagram::may_use_mailbox(socket)
        || matches!(socket.route(), Route::Offered | Route::Rings | Route::Leaving)
}

/// The socket in shared memory that a descriptor of the calling process stands for. A `vfork` child in our
/// memory may have given it another number than we know.
pub(crate) fn in_shared_memory(fd: c_int) -> Option<SocketRef> {
    let is_it = |socket: &SocketRef, cookie: Option<u64>| {
        shares_memory(socket)
            && cookie
                .is_none_or(|cookie| socket.rendezvous.cookie.load(Ordering::Relaxed) == cookie)
    };
    if !vfork::is_child() {
        return table::socket(fd).filter(|socket| is_it(socket, None));
    }
    let cookie = Some(rendezvous::cookie(fd)).filter(|cookie| *cookie != 0)?;
    let mut found = None;
    table::each(0, usize::MAX, |known| {
        if found.is_none() {
            found = table::socket(known).filter(|socket| is_it(socket, Some(cookie)));
        }
    });
    found
}

/// This process is about to become `program`: connections that it will find are left where it looks
/// for them.
///
/// # Safety
///
/// `environment` is null or an environment.
pub(crate) unsafe fn prepare(
    program: Option<&Path>,
    environment: *const *const c_char,
) -> Prepared {
    let errno = raw::errno();
    // A parent has not counted a `vfork` child in its memory.
    // SAFETY: the caller's promise.
    let counted = unsafe { leave_to(program, environment, vfork::is_child()) };
    let mut prepared = Prepared { counted, ..Prepared::default() };
    if !vfork::is_child() {
        table::each(0, usize::MAX, |fd| prepared.unname(fd));
        arena::remove_process();
        // What it has besides descriptors goes when others see that it is another program.
        processes::set_exec(true);
    }
    raw::set_errno(errno);
    prepared
}

impl Prepared {
    /// A descriptor counts no longer: this process is about to lose it, or to give it to an unknown
    /// process.
    fn unname(&mut self, fd: c_int) {
        let Some(socket) = table::socket(fd).map(|socket| socket.socket()) else { return };
        // A program that takes the rings over keeps the connection open.
        let has_rings = socket.segment().is_some() && !xdp::streams::is_lost(socket);
        let stays = has_rings && !raw::ends_with_program(fd);
        if stays && !self.passed_on.iter().any(|known| std::ptr::eq(*known, socket)) {
            socket.identity.strangers.fetch_add(1, Ordering::AcqRel);
            self.passed_on.push(socket);
        }
        if !self.unnamed.iter().any(|(known, _)| std::ptr::eq(*known, socket)) {
            datagram::forget_ways(socket);
            socket.hide_name();
            self.unnamed.push((socket, processes::suspend(socket)));
        }
    }

    /// It has not come to that, and `errno` says why.
    pub(crate) fn undo(self) {
        self.counted.undo();
        if vfork::is_child() {
            return;
        }
        arena::add_process(alive::me());
        processes::set_exec(false);
        for (socket, lent) in self.unnamed {
            if lent.is_none_or(|since| processes::resume(socket, since)) {
                table::unchanged(|| socket.note_name());
            } else {
                table::disown(socket);
            }
        }
        for socket in self.passed_on {
            socket.identity.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A program is about to be started that finds our descriptors, and this one goes on. What is returned is to be undone if
/// it cannot be started.
///
/// # Safety
///
/// `environment` is null or an environment.
pub(crate) unsafe fn prepare_child(
    program: Option<&Path>,
    environment: *const *const c_char,
) -> Counted {
    let errno = raw::errno();
    // SAFETY: the caller's promise.
    let counted = unsafe { leave_to(program, environment, true) };
    raw::set_errno(errno);
    counted
}

/// Leaves what is in shared memory to a program: where it finds it, or else to the kernel. `is_another`: this
/// one, or its host, has it as well.
///
/// # Safety
///
/// `environment` is null or an environment.
unsafe fn leave_to(
    program: Option<&Path>,
    environment: *const *const c_char,
    is_another: bool,
) -> Counted {
    let mut counted = Counted::default();
    table::each(0, usize::MAX, |fd| {
        table::socket(fd).iter().for_each(|socket| counted.count(socket, fd));
    });
    if !has_rings() {
        return counted;
    }
    // SAFETY: the caller's promise.
    let knows_us = program.is_some_and(|program| unsafe { is_one_of_us(program, environment) });
    let inherited = |fd| in_shared_memory(fd).filter(|_| !raw::ends_with_program(fd));
    let all: Vec<_> = table::open_descriptors()
        .into_iter()
        .filter_map(|fd| inherited(fd).map(|socket| (socket, fd)))
        .collect();
    let mut together = Together::default();
    // One that has several descriptors may have left by the first.
    for (socket, fd) in all.iter().filter(|(socket, _)| shares_memory(socket)) {
        if !knows_us || xdp::streams::is_bound(socket) {
            give_up(socket, *fd, &mut together);
            continue;
        }
        datagram::hide_groups(socket, *fd);
        datagram::hide_drops(socket, *fd);
        if is_another {
            xdp::give_up(socket, Reason::HandedOver);
            pass_on(socket, *fd);
        }
    }
    together.finish();
    counted
}

/// A connection is put where programs expect their terminal: it may be used by the C library's own
/// streams, and by whatever program comes next.
pub(crate) fn prepare_standard(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        socket.takers.count();
    }
    if let Some(socket) = in_shared_memory(fd) {
        let errno = raw::errno();
        let mut together = Together::default();
        give_up(&socket, fd, &mut together);
        together.finish();
        raw::set_errno(errno);
    }
}

/// The program is about to use sockets in a way that cannot be seen: all of them are the kernel's from
/// now on, and those that it makes.
pub(crate) fn give_up_all() {
    let errno = raw::errno();
    policy::end_acceleration();
    let mut all = Vec::new();
    table::each(0, usize::MAX, |fd| all.extend(table::socket(fd).map(|socket| (socket, fd))));
    let mut together = Together::default();
    for (socket, fd) in &all {
        policy::leave_alone(socket);
        give_up(socket, *fd, &mut together);
    }
    together.finish();
    raw::set_errno(errno);
}

/// What travelled through shared memory travels through the kernel from now on.
fn give_up<'a>(socket: &'a Socket, fd: c_int, together: &mut Together<'a>) {
    match socket.kind() {
        Kind::Datagram => datagram::give_up(socket, fd),
        Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => {
            together.leave(socket, fd)
        }
    }
}

/// A descriptor is about to be passed to another process over `over`. If that one can take the rings
/// over, it finds them at the rendezvous, and closing the descriptor here does not end the connection any
/// more; if not, the connection goes back to the kernel.
pub(crate) fn hand_over(over: c_int, fd: c_int) {
    let Some(socket) = table::socket(fd) else { return };
    socket.takers.count();
    datagram::give_up(&socket, fd);
    if takes_over(over) {
        pass_on(&socket, fd);
    } else {
        fallback::leave(&socket, fd);
    }
}

/// Another program will have the connection too, and knows of rings.
fn pass_on(socket: &Socket, fd: c_int) {
    if xdp::streams::is_bound(socket) {
        // Its other end is this process.
        return fallback::leave(socket, fd);
    }
    socket.leave_to_kernel(Reason::HandedOver);
    if let Some(segment) = socket.segment()
        && (segment.page().is_accepted() || !offer::take_back(socket, segment, fd))
    {
        segment.share(socket.end());
        socket.identity.strangers.fetch_add(1, Ordering::AcqRel);
    }
}

/// Whether the receiver of descriptors over a UNIX socket can take rings over. If the two ends were
/// made by one process, it is not known which process has the other one.
fn takes_over(over: c_int) -> bool {
    let peer = raw::option::<[u32; 3]>(over, libc::SOL_SOCKET, libc::SO_PEERCRED);
    let Ok([process, user, _]) = peer else { return false };
    // SAFETY: the function has no preconditions.
    let parent = u32::try_from(unsafe { libc::getppid() }).unwrap_or(0);
    if process == 0 || process == raw::process_id() || process == parent || user != raw::user_id() {
        return false;
    }
    let read = |name| {
        let path = format!("/proc/{process}/{name}");
        raw::read_file(path.as_ref(), PROC_MAX).unwrap_or_default()
    };
    let (maps, environment) = (read("maps"), read("environ"));
    let variables = environment.split(|byte| *byte == 0);
    let place = variables.filter_map(|line| line.strip_prefix(PLACE)).next().unwrap_or(b"");
    let name = library().as_bytes();
    is_our_place(place) && maps.windows(name.len()).any(|window| window == name)
}

const PLACE: &[u8] = b"ADVERB_SOCKETS_SHM_DIR=";
const PRELOAD: &[u8] = b"LD_PRELOAD=";

fn is_our_place(place: &[u8]) -> bool {
    let default = config::default_place();
    let place = if place.is_empty() { default.as_bytes() } else { place };
    place == rendezvous::directory().as_bytes()
}

/// The file name of this library.
fn library() -> &'static OsStr {
    static NAME: Lazy<PathBuf> = Lazy::new();
    let path = NAME.get_or_init(|| {
        // SAFETY: all zeros is a legal value of this structure of pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address within this library, and room for an answer.
        let found = unsafe { libc::dladdr((&raw const NAME).cast(), &raw mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return PathBuf::from("libadverb_sockets.so");
        }
        // SAFETY: the loader's own C string, which lives as long as the library.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    });
    path.file_name().unwrap_or(OsStr::new("libadverb_sockets.so"))
}

/// Whether a program with that environment loads this library, and finds rings where we have them.
///
/// # Safety
///
/// `environment` is null or an environment.
unsafe fn is_one_of_us(program: &Path, environment: *const *const c_char) -> bool {
    if environment.is_null() || !config::get().is_on {
        return false;
    }
    let (mut loads, mut place) = (false, &b""[..]);
    let mut at = environment;
    loop {
        // SAFETY: within the array, which ends with a null pointer.
        let entry = unsafe { at.read() };
        if entry.is_null() {
            break;
        }
        // SAFETY: a C string of the environment.
        let line = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(libraries) = line.strip_prefix(PRELOAD) {
            let mut files = libraries.split(|byte| [b':', b' '].contains(byte));
            loads |=
                files.any(|file| Path::new(OsStr::from_bytes(file)).file_name() == Some(library()));
        } else if let Some(given) = line.strip_prefix(PLACE) {
            place = given;
        }
        at = at.wrapping_add(1);
    }
    loads && is_our_place(place) && is_dynamic(program, 0)
}

/// Whether the loader starts a program, and heeds the environment.
fn is_dynamic(program: &Path, depth: u32) -> bool {
    let is_plain =
        program.metadata().is_ok_and(|meta| meta.mode() & (libc::S_ISUID | libc::S_ISGID) == 0);
    if !is_plain || has_capabilities(program) {
        return false;
    }
    let Some(head) = raw::read_file(program, HEAD_BYTES) else { return false };
    if let Some(script) = head.strip_prefix(b"#!") {
        let line = script.split(|byte| *byte == b'\n').next().unwrap_or(b"").trim_ascii();
        let interpreter = line.split(|byte| [b' ', b'\t'].contains(byte)).next().unwrap_or(b"");
        return depth < SCRIPTS_MAX
            && is_dynamic(Path::new(OsStr::from_bytes(interpreter)), depth + 1);
    }
    // Another C library has another loader, and cannot load this one.
    interpreter(&head).is_some_and(|loader| is_our_loader(&loader))
}

/// Scripts that are run by scripts, at most.
const SCRIPTS_MAX: u32 = 4;

fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(program.as_os_str().as_bytes()) else { return true };
    // SAFETY: two C strings; no room for an answer, whose length is all that is wanted.
    unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0
    }
}

/// Whether that is the loader by which this process was started, or could have been.
fn is_our_loader(loader: &[u8]) -> bool {
    let name = loader.rsplit(|byte| *byte == b'/').next().unwrap_or(b"");
    name.starts_with(if cfg!(target_arch = "x86_64") {
        b"ld-linux-x86-64"
    } else {
        b"ld-linux-aarch64"
    })
}

/// The loader that an ELF file of 64 bits names, of which this is the beginning.
fn interpreter(head: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize, len: usize| -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.get_mut(..len)?.copy_from_slice(head.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count.min(HEADERS_MAX) {
        let at = usize::try_from(start.checked_add(index.checked_mul(size)?)?).ok()?;
        if number(at, 4)? == PT_INTERP {
            let from = usize::try_from(number(at.checked_add(8)?, 8)?).ok()?;
            let len = usize::try_from(number(at.checked_add(32)?, 8)?).ok()?;
            let mut name = head.get(from..from.checked_add(len)?)?.to_vec();
            name.retain(|byte| *byte != 0);
            return Some(name);
        }
    }
    None
}

const PT_INTERP: u64 = 3;
/// So much of a program is read: its headers, and the loader's name, which lies behind them.
const HEAD_BYTES: usize = 16_384;
/// So much of what the kernel says about a process.
const PROC_MAX: usize = 1 << 20;
/// Program headers that are looked at.
const HEADERS_MAX: u64 = 64;

/// The file that `execvp` would run.
pub(crate) fn find(file: &CStr) -> Option<PathBuf> {
    let name = OsStr::from_bytes(file.to_bytes());
    if file.to_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|place| place.join(name))
        .find(|path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0))
}
