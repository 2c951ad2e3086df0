//! Statistics: the file that others may look at while the program runs, and reports.
//!
//! Counters lie in the sockets themselves, and the arena that these lie in is a file: publishing costs nothing.
//! The file begins with a text that says how to read it, so that a reader of another version sees
//! what it knows and nothing wrong.
//!
//! # Safety
//!
//! The file's mapping becomes the arena, under the rules of `arena.rs`. The text at its
//! start is written before any other process can know the file, and never again.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_sockconf::Level;

use adverb_shm::alive;
use adverb_shm::file::{Expect, SharedFile};

use crate::base::shelter::Mapping;
use crate::base::{config, log, raw};
use crate::socket::arena::{self, Mapped};
use crate::socket::own;
use crate::socket::state::{self, Kind, Socket};
use crate::socket::table;
use crate::transport::{datagram, offer, rendezvous, ring};

/// Sees to it that there is memory for sockets. Returns whether there is.
pub(crate) fn provide() -> bool {
    arena::is_there() || set_up()
}

#[cold]
fn set_up() -> bool {
    let is_ours = arena::set_up(map, |fd, level| _ = describe(fd, Level::of(level)));
    if is_ours == Some(true) {
        arena::hold(MAKER.load(Ordering::Relaxed));
        arena::add_process(alive::me());
    }
    is_ours.is_some()
}

/// Maps the memory that sockets lie in: a file that others can look at, or nameless memory if there
/// cannot be one.
fn map(len: usize) -> Option<Mapped> {
    let nameless = || Some(Mapped::Nameless { base: raw::map_zeros(len, true).ok()?, len });
    file(len).map(Mapped::File).or_else(nameless)
}

/// Where the file of a process is; `None` if there is to be none. `space`: the namespace of its number, since processes
/// of two may meet here that have the same one.
fn path(pid: u32, space: u64) -> Option<CString> {
    match config::get().stats_dir.as_deref() {
        None => rendezvous::path(&format!("stat.{pid}.{space}")),
        Some("") => None,
        Some(dir) => CString::new(format!("{dir}/adverb-sockets.{pid}.{space}")).ok(),
    }
}

/// The process that a file is named after that lies at the rendezvous, and the namespace of its number.
fn maker(name: &str) -> Option<(u32, u64)> {
    let (pid, space) = name.strip_prefix("stat.")?.split_once('.')?;
    Some((pid.parse().ok()?, space.parse().ok()?))
}

/// The process that has made the file.
static MAKER: AtomicU32 = AtomicU32::new(0);

/// This process ends. If the file is named after it, another one that has it too gives it its name, as
/// the child of a program that goes into the background does, or it is removed. Returns whether it has
/// been, and lay at the rendezvous.
pub(crate) fn remove() -> bool {
    let pid = raw::process_id();
    arena::remove_process();
    if arena::holder() != Some(pid) {
        return false;
    }
    let space = own::OWN.space.load(Ordering::Relaxed);
    let Some(here) = path(pid, space) else { return config::get().stats_dir.is_none() };
    if let Some(other) = arena::other_process()
        && let Some(there) = path(other, space)
        && raw::link(&here, &there).is_ok()
    {
        arena::hold(other);
        raw::unlink(&here);
        return false;
    }
    raw::unlink(&here);
    config::get().stats_dir.is_none()
}

fn file(len: usize) -> Option<Mapping> {
    let pid = raw::process_id();
    tidy_up(false);
    let path = path(pid, alive::namespace())?;
    MAKER.store(pid, Ordering::Relaxed);
    raw::unlink(&path);
    let file = SharedFile::open_own(&path, Expect::Nothing, 1).ok()?;
    let is_ready = file.set_len(len).and_then(|()| file.reserve(0, arena::HEAD_PAGES)).is_ok();
    let Some(mapping) = is_ready.then(|| Mapping::new(&file, len)).flatten() else {
        raw::unlink(&path);
        return None;
    };
    let base = mapping.base().as_ptr();
    let list = |places: &[usize]| places.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let text = format!(
        "adverb-sockets 1 pid={pid} {}ring={} box={} {} layout={} why={} command={}\0",
        config::get().stats_fds.map_or_else(String::new, |most| format!("fds={most} ")),
        list(&ring::cursors()),
        list(&datagram::counts()),
        arena::sums(),
        arena::layout(),
        state::Reason::ALL.map(|(_, text)| text).join(";"),
        config::command(),
    );
    let count = text.len().min(arena::ABOUT_BYTES - 1);
    // SAFETY: the mapping is longer than the text, and has not been published yet.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), base, count) };
    Some(mapping)
}

/// Removes what processes have left behind that were killed. `tells`: peers of those are told first.
pub(crate) fn tidy_up(tells: bool) {
    for name in rendezvous::names() {
        let Some(name) = name.to_str() else { continue };
        datagram::tidy_up(name);
        offer::tidy_up(name, tells);
        if maker(name).is_some_and(|(pid, space)| alive::is_known(space) && alive::has_ended(pid))
            && let Some(path) = rendezvous::path(name)
        {
            raw::unlink(&path);
        }
    }
}

/// Fills in what only others know: the kernel, and senders that found no room.
pub(crate) fn sum_up(socket: &Socket, fd: i32) {
    let counters = &socket.counters;
    let number = |name| raw::option::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    let mut limit = u64::try_from(number(libc::SO_RCVBUF)).unwrap_or(0);
    if socket.mapped().is_some() {
        limit = socket.rendezvous.ring_bytes.load(Ordering::Relaxed);
    }
    counters.rx_limit_bytes.store(limit, Ordering::Relaxed);
    if socket.kind() == Kind::Datagram {
        let (packets, bytes) = datagram::dropped(socket, fd);
        counters.rx_dropped_packets.store(packets, Ordering::Relaxed);
        counters.rx_dropped_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A socket is about to close: adds what it has counted to what others had, and to the file that
/// `VMA_STATS_FILE` names.
pub(crate) fn close(fd: i32, socket: &Socket) {
    if socket.kind() == Kind::Datagram {
        sum_up(socket, fd);
    }
    if let Some(closed) = arena::closed() {
        closed.absorb(&socket.counters);
    }
    if let Some(path) = &config::get().stats_file {
        sum_up(socket, fd);
        let report = socket.counters.report(fd);
        log::append(path, &report);
    }
}

/// Describes a socket in the log, or all of them for descriptor 0. Returns whether there is one.
pub(crate) fn describe(fd: i32, level: Level) -> bool {
    let mut is_there = false;
    let mut describe = |fd: i32| {
        if let Some(socket) = table::socket(fd) {
            is_there = true;
            log::print(level, || {
                sum_up(&socket, fd);
                let text = socket.counters.report(fd);
                format!("[fd={fd}] {:?}, {}\n{text}", socket.kind(), socket.reason().text())
            });
        }
    };
    if fd == 0 {
        table::each(0, usize::MAX, describe);
    } else {
        describe(fd);
    }
    is_there
}
