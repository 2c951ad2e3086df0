//! The table of descriptors: which socket, or which epoll instance, each stands for in this process.
//!
//! Two levels, of which only what is touched exists: a limit of a thousand million descriptors
//! costs nothing. An entry is one word, so that looking at it takes no lock. A socket found there
//! is held by a reference and the entry looked at again, since another thread may have closed the
//! descriptor in between.
//!
//! # Safety
//!
//! An entry is 0, the address of a socket with the last bit set, or what it was set to with the second last
//! bit set: the address of an epoll instance, of which nothing is known here. Sockets are never unmapped.

use std::any::Any;
use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::base::forks;
use crate::base::lock::{Lazy, Lock};
use crate::base::raw::{self, Errno};
use crate::base::thread::{self, Deferring};
use crate::socket::loans::Keep;
use crate::socket::state::Socket;

const PAGE_ENTRIES: usize = 1024;
const PAGES: usize = 1 << 20;
const STRIDE: usize = 64;
const SOCKET: usize = 1;
const OTHER: usize = 2;

/// Held while an entry changes, and across a fork: a child is counted for what it gets, neither more nor
/// less. Where there is one thread alone, handlers are kept out instead ([`forks::is_alone`]).
pub(crate) static CHANGES: Lock = Lock::new();

/// Makes an entry another one, and returns what it was.
fn change(entry: &AtomicUsize, word: usize) -> usize {
    unchanged(|| {
        if let Some(socket) = socket_of(word) {
            socket.name();
        }
        let old = entry.swap(word, Ordering::AcqRel);
        if let Some(socket) = socket_of(old) {
            socket.unname();
        }
        old
    })
}

/// The socket that an entry says.
fn socket_of(word: usize) -> Option<&'static Socket> {
    let at =
        (word & SOCKET != 0).then(|| ptr::with_exposed_provenance::<Socket>(word & !SOCKET))?;
    // SAFETY: the entry holds, or held, the address of a socket, which is never unmapped.
    Some(unsafe { &*at })
}

/// Calls `f` while no other thread changes an entry.
pub(crate) fn unchanged<T>(f: impl FnOnce() -> T) -> T {
    // Handlers of the program's that run in the midst of a fork have the lock already.
    let is_prepared = thread::with(|thread| thread.is_prepared.get());
    let is_alone = forks::is_alone();
    let _deferring = is_alone.then(Deferring::new);
    let _held = (!is_prepared && !is_alone).then(|| CHANGES.hold());
    f()
}

/// Nothing stands for a socket any more, which is another process's: no process is told.
pub(crate) fn disown(socket: &Socket) {
    disown_those(|word| socket_of(word).is_some_and(|known| ptr::eq(known, socket)));
}

/// In a child without a place: nothing stands for any.
pub(crate) fn disown_all() {
    disown_those(|word| word & SOCKET != 0);
}

fn disown_those(is_it: impl Fn(usize) -> bool) {
    each(0, usize::MAX, |fd| {
        if let Some(entry) = entry(fd)
            && is_it(entry.load(Ordering::Acquire))
        {
            entry.store(0, Ordering::Release);
        }
    });
}

/// From here on no descriptor has stood for anything: what is looked at by a child of each fork. In strides, so that a
/// child with a few more than its parent needs no page of its own for that.
static HIGH: AtomicUsize = AtomicUsize::new(0);
static TABLE: [AtomicPtr<AtomicUsize>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

/// The entry of a descriptor, if its page exists.
#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicUsize> {
    let fd = usize::try_from(fd).ok()?;
    let page = NonNull::new(TABLE.get(fd / PAGE_ENTRIES)?.load(Ordering::Acquire))?;
    // SAFETY: a page has this many entries, is never unmapped, and holds atomics.
    Some(unsafe { &*page.as_ptr().wrapping_add(fd % PAGE_ENTRIES) })
}

/// The entry of a descriptor; its page comes into being if need be.
fn entry_or_new(fd: c_int) -> Option<&'static AtomicUsize> {
    let number = usize::try_from(fd).ok()?;
    if HIGH.load(Ordering::Relaxed) <= number {
        HIGH.fetch_max((number + 1).next_multiple_of(STRIDE), Ordering::AcqRel);
    }
    if let Some(entry) = entry(fd) {
        return Some(entry);
    }
    let place = TABLE.get(number / PAGE_ENTRIES)?;
    let len = PAGE_ENTRIES * size_of::<AtomicUsize>();
    let page = raw::map_zeros(len, false).ok()?;
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    if place.compare_exchange(ptr::null_mut(), page.cast(), o, r).is_err() {
        // SAFETY: another thread was faster, and this page has not been published.
        unsafe { raw::unmap(page, len) };
    }
    entry(fd)
}

/// A socket in use: it stays what it is until this is dropped.
#[derive(Debug)]
pub(crate) struct SocketRef(&'static Socket);

impl SocketRef {
    /// One that this process has, if it has it still.
    pub(crate) fn of(socket: &'static Socket) -> Option<Self> {
        socket.retain().then(|| Self(socket))
    }

    pub(crate) fn socket(&self) -> &'static Socket {
        self.0
    }
}

impl Clone for SocketRef {
    fn clone(&self) -> Self {
        // It is in use, so it can be used once more.
        self.0.retain();
        Self(self.0)
    }
}

impl Keep for SocketRef {
    fn key(&self) -> usize {
        ptr::from_ref(self.0).addr()
    }

    fn keep(&self) -> Box<dyn Any + Send> {
        Box::new(self.clone())
    }
}

impl Deref for SocketRef {
    type Target = Socket;

    #[inline]
    fn deref(&self) -> &Socket {
        self.0
    }
}

impl Drop for SocketRef {
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The socket that a descriptor stands for.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<SocketRef> {
    let entry = entry(fd)?;
    loop {
        let found = entry.load(Ordering::Acquire);
        let socket = socket_of(found)?;
        if socket.retain() {
            let socket = SocketRef(socket);
            if entry.load(Ordering::Acquire) == found {
                return Some(socket);
            }
        }
    }
}

/// Whether a descriptor stands for this socket.
pub(crate) fn is_socket(fd: c_int, socket: &Socket) -> bool {
    is_entry(fd, ptr::from_ref(socket).addr() | SOCKET)
}

/// The number that the program knows a socket by, for messages: `fd` may be a copy of this library's own. Looks at all
/// descriptors then.
pub(crate) fn shown(fd: c_int, socket: &Socket) -> c_int {
    if is_socket(fd, socket) { fd } else { find(|fd| is_socket(fd, socket)).unwrap_or(fd) }
}

/// After a wait: another thread may have closed the descriptor meanwhile, and its number may stand for
/// something else, whose bytes are not for this call.
#[inline]
pub(crate) fn still(fd: c_int, socket: &Socket) -> Result<(), Errno> {
    is_socket(fd, socket).then_some(()).ok_or(Errno(libc::EBADF))
}

/// Whether a descriptor stands for what lies there, and is no socket.
pub(crate) fn is_other(fd: c_int, at: usize) -> bool {
    is_entry(fd, at | OTHER)
}

fn is_entry(fd: c_int, word: usize) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) == word)
}

/// A descriptor of which this is so, if there is one: looks at all that stand for something.
pub(crate) fn find(is_it: impl Fn(c_int) -> bool) -> Option<c_int> {
    find_within(0, usize::MAX, is_it)
}

/// What a descriptor stands for that is no socket, kept from where it lies.
#[inline]
pub(crate) fn other<T>(fd: c_int, keep: impl Fn(usize) -> Option<T>) -> Option<T> {
    let entry = entry(fd)?;
    loop {
        let found = entry.load(Ordering::Acquire);
        let kept = keep(other_of(found)?);
        if kept.is_some() && entry.load(Ordering::Acquire) == found {
            return kept;
        }
    }
}

/// Where that lies, by an entry.
fn other_of(word: usize) -> Option<usize> {
    (word & OTHER != 0).then_some(word & !OTHER)
}

/// Makes `fd` stand for `socket`, whose reference the entry takes over. What it stood for before was
/// closed behind our back, and is let go.
pub(crate) fn set_socket(fd: c_int, socket: &'static Socket) {
    match entry_or_new(fd) {
        Some(entry) => {
            let word = ptr::from_ref(socket).expose_provenance() | SOCKET;
            socket.set_owner(raw::process_id(), fd);
            let_go(change(entry, word));
        }
        None => socket.release(),
    }
}

/// What is told when a descriptor no longer stands for what is no socket: one function for all.
pub(crate) fn tell(let_go_of: fn(usize)) {
    LET_GO_OF.get_or_init(|| let_go_of);
}

/// Makes `fd` stand for what lies `at`, and is no socket; see [`tell`]. Returns false if it cannot.
pub(crate) fn set_other(fd: c_int, at: usize) -> bool {
    let entry = entry_or_new(fd);
    entry.map(|entry| let_go(change(entry, at | OTHER))).is_some()
}

static LET_GO_OF: Lazy<fn(usize)> = Lazy::new();

/// Makes `fd` stand for nothing, and returns the socket whose reference the caller now has.
pub(crate) fn clear(fd: c_int) -> Option<&'static Socket> {
    let old = change(entry(fd)?, 0);
    let socket = socket_of(old);
    if socket.is_none() {
        let_go(old);
    }
    socket
}

fn let_go(old: usize) {
    if let Some(socket) = socket_of(old) {
        socket.release();
    } else if let (Some(at), Some(let_go_of)) = (other_of(old), LET_GO_OF.get()) {
        let_go_of(at);
    }
}

/// Calls `f` with every descriptor between two, both included, that stands for something.
#[inline]
pub(crate) fn each(first: usize, last: usize, mut f: impl FnMut(c_int)) {
    find_within(first, last, |fd| {
        f(fd);
        false
    });
}

/// The first of those descriptors of which this is so.
#[inline]
fn find_within(first: usize, last: usize, mut is_it: impl FnMut(c_int) -> bool) -> Option<c_int> {
    let end = last.saturating_add(1).min(HIGH.load(Ordering::Acquire));
    let mut next = first;
    while next < end {
        if TABLE.get(next / PAGE_ENTRIES)?.load(Ordering::Acquire).is_null() {
            next = (next / PAGE_ENTRIES + 1) * PAGE_ENTRIES;
            continue;
        }
        let fd = c_int::try_from(next).ok()?;
        if entry(fd).is_some_and(|entry| entry.load(Ordering::Acquire) != 0) && is_it(fd) {
            return Some(fd);
        }
        next += 1;
    }
    None
}

/// The descriptors that are open in this process.
pub(crate) fn open_descriptors() -> Vec<c_int> {
    raw::descriptors_of("self").unwrap_or_else(|| {
        let mut known = Vec::new();
        each(0, usize::MAX, |fd| known.push(fd));
        known
    })
}

/// Calls `f` with the socket of every descriptor that stands for one, which is not held meanwhile.
pub(crate) fn each_socket(mut f: impl FnMut(&'static Socket)) {
    each(0, usize::MAX, |fd| {
        let found = entry(fd).map_or(0, |entry| entry.load(Ordering::Acquire));
        socket_of(found).into_iter().for_each(&mut f);
    });
}
