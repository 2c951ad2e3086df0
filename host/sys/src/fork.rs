//! What a child made by `fork(2)` does not share with its parent.
//!
//! Such a child has the descriptors of its parent, and none of its threads. A socket that receives for an address
//! would stay open in the child when the parent closes it, and the kernel would go on to give it packets; the lock
//! of a file would stay, and a connection would not end. So a descriptor that is [`Kept`] is an idle event counter
//! in children, under the same number, and a table that is [`PerProcess`] is a new one.
//!
//! Children made by `vfork`, `posix_spawn` or a bare system call run no handlers: they are to call `exec`, which
//! closes what is kept.
//!
//! # Safety
//!
//! 1. The handler in the child calls what is async-signal-safe: it allocates nothing and takes no lock.
//! 2. A number is in the list only while its descriptor is open: a [`Kept`] is dropped before its descriptor.
//! 3. A part of the list, or a table, that was published is never freed, and is shared with all threads, which its
//!    type allows.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Tells a process from its children: how many forks lie between it and the first that has used this module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Generation(u32);

impl Generation {
    /// That of this process.
    #[inline]
    pub fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// This process is a child of the one that was asked for its generation.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self != Self::now()
    }
}

/// Keeps a descriptor out of children. It has to be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Kept {
    entry: &'static AtomicI32,
    generation: Generation,
}

impl Kept {
    /// From now on, children do not have `fd`.
    ///
    /// # Errors
    ///
    /// No memory left for handlers of `fork`.
    pub fn new(fd: impl AsFd) -> io::Result<Self> {
        prepare()?;
        let entry = free_entry();
        entry.store(fd.as_fd().as_raw_fd(), Ordering::Release);
        Ok(Self { entry, generation: Generation::now() })
    }

    /// This process is a child of the one that made it, and does not have the descriptor.
    pub fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.entry.store(FREE, Ordering::Release);
        }
    }
}

/// A descriptor that children do not have.
#[derive(Debug)]
pub struct KeptFd {
    #[expect(dead_code, reason = "held until before the descriptor is closed")]
    kept: Kept,
    fd: OwnedFd,
}

impl KeptFd {
    /// From now on, children do not have `fd`.
    ///
    /// # Errors
    ///
    /// No memory left for handlers of `fork`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { kept: Kept::new(&fd)?, fd })
    }
}

impl AsRawFd for KeptFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for KeptFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A table of a process. A child starts with an empty one, and never drops its parent's.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Instance<T>>,
}

#[derive(Debug)]
struct Instance<T> {
    generation: Generation,
    table: T,
}

impl<T: Default + Sync> PerProcess<T> {
    /// One that is made when it is looked at.
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// That of this process.
    pub fn get(&'static self) -> &'static T {
        // Without handlers, which there is no memory for, children share the table.
        let _ = prepare();
        let generation = Generation::now();
        let found = self.current.load(Ordering::Acquire);
        // SAFETY: null, or published and never freed (rule 3).
        match unsafe { found.as_ref() } {
            Some(instance) if instance.generation == generation => &instance.table,
            Some(_) | None => self.renew(found, generation),
        }
    }

    #[cold]
    fn renew(&'static self, found: *mut Instance<T>, generation: Generation) -> &'static T {
        let fresh = Box::into_raw(Box::new(Instance { generation, table: T::default() }));
        let swapped =
            self.current.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        let current = match swapped {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: made above, and published nowhere.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: published and never freed (rule 3); another thread of this process made it, if not this one.
        unsafe { &(*current).table }
    }
}

impl<T: Default + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// See [`Generation`].
static GENERATION: AtomicU32 = AtomicU32::new(0);
static LIST: Part = Part::new();
const FREE: RawFd = -1;
/// An entry that was taken, and has no number yet.
const TAKEN: RawFd = -2;
const PART_ENTRIES: usize = 64;

/// A part of the list of descriptors.
struct Part {
    entries: [AtomicI32; PART_ENTRIES],
    next: AtomicPtr<Self>,
}

impl Part {
    const fn new() -> Self {
        Self {
            entries: [const { AtomicI32::new(FREE) }; PART_ENTRIES],
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or published and never freed (rule 3).
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// The part after this one, which is made if there is none.
    fn next_or_new(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let fresh = Box::into_raw(Box::new(Self::new()));
        let none = std::ptr::null_mut();
        let swapped = self.next.compare_exchange(none, fresh, Ordering::AcqRel, Ordering::Acquire);
        let next = match swapped {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: made above, and published nowhere.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
        // SAFETY: published and never freed (rule 3).
        unsafe { &*next }
    }
}

fn free_entry() -> &'static AtomicI32 {
    let mut part = &LIST;
    loop {
        let free = part.entries.iter().find(|entry| {
            entry.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        match free {
            Some(entry) => return entry,
            None => part = part.next_or_new(),
        }
    }
}

/// Has the handlers of `fork` in place.
fn prepare() -> io::Result<()> {
    static RESULT: OnceLock<i32> = OnceLock::new();
    // SAFETY: a function of ours, which may run in a child (rule 1).
    let result =
        *RESULT.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// Runs in a child before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // Bare calls: a library that stands before the C library's functions is not ready yet in a child.
    // SAFETY: no pointers.
    let idle =
        unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    let mut part = Some(&LIST);
    while let Some(Part { entries, .. }) = part {
        for fd in entries.iter().map(|entry| entry.swap(FREE, Ordering::Relaxed)) {
            if fd >= 0 {
                let _ = match idle {
                    // SAFETY: the number is that of a descriptor to be kept out (rule 2).
                    ..0 => unsafe { libc::syscall(libc::SYS_close, fd) },
                    // SAFETY: as above. The number stays in use, so that what is closed by it later is no other's.
                    0.. => unsafe { libc::syscall(libc::SYS_dup3, idle, fd, libc::O_CLOEXEC) },
                };
            }
        }
        part = part.and_then(Part::next);
    }
    if idle >= 0 {
        // SAFETY: made above.
        unsafe { libc::syscall(libc::SYS_close, idle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::sync::Mutex;

    /// What `check` says in a child.
    fn in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child looks at memory and descriptors, and ends without destructors.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(i32::from(check())) },
            child => {
                let mut status = 0;
                // SAFETY: a child of ours, and a place for its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                libc::WEXITSTATUS(status) == 1
            }
        }
    }

    /// The descriptor is a socket.
    fn is_socket(fd: impl AsFd) -> bool {
        rustix::net::sockopt::socket_type(fd).is_ok()
    }

    #[test]
    fn a_child_has_none_of_the_descriptors_that_are_kept() {
        let sockets: Vec<UdpSocket> =
            (0..3 * PART_ENTRIES).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let mut kept: Vec<Kept> = sockets.iter().map(|one| Kept::new(one).unwrap()).collect();
        assert!(in_a_child(|| {
            let own = UdpSocket::bind("127.0.0.1:0").unwrap();
            let keeps_own = Kept::new(&own).unwrap();
            kept.drain(..).for_each(|one| assert!(one.is_inherited()));
            sockets.iter().all(|one| !is_socket(one))
                && !keeps_own.is_inherited()
                && in_a_child(|| !is_socket(&own))
        }));
        assert!(sockets.iter().all(is_socket), "the parent's stay");
        drop(kept.split_off(PART_ENTRIES));
        assert!(in_a_child(
            || sockets.iter().filter(|one| is_socket(one)).count() == 2 * PART_ENTRIES
        ));
    }

    #[test]
    fn a_child_of_a_child_starts_with_tables_of_its_own() {
        static TABLE: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        TABLE.get().lock().unwrap().push(1);
        let held = TABLE.get().lock().unwrap(); // As by a thread that the child does not have.
        assert!(in_a_child(|| {
            let is_new = TABLE.get().lock().unwrap().is_empty();
            TABLE.get().lock().unwrap().push(2);
            is_new && in_a_child(|| TABLE.get().lock().unwrap().is_empty())
        }));
        assert_eq!(*held, [1]);
    }
}
