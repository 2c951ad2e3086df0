//! Epoll instances: the kernel's, and beside it a list of the connections that have rings.
//!
//! The program's instance stays a kernel instance. A connection without rings is registered there as
//! the program wants it. One with rings is registered for bells alone, edge-triggered, under a mark
//! of ours; what the program wants to know of it is worked out from the rings. It is *polled* while
//! its ring is looked at at each call, and *armed* after that: then a bell will come, and the
//! kernel says so. Idle connections are armed and cost nothing.
//!
//! One registration is in `item.rs`; how they come and go is in `control.rs`. Waiting is in `wait.rs`, and in
//! `filtered.rs` where the program looks at packets first. What others see that watch an instance is in
//! `outside.rs`.
//!
//! # Safety
//!
//! 1. `state` is touched only while `lock` is held.
//! 2. Instances are made by `Box::leak` and never freed, so that an entry of the table is always
//!    good to follow. One is used again when nothing counts it any longer: no entry, no thread that is
//!    inside, and no instance that watches it.

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

mod control;
mod filtered;
mod item;
mod outside;
mod wait;

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::base::lock::{Guarded, Lock};
use crate::base::raw::{self, Answer};
use crate::socket::state::Socket;
use crate::socket::table;
use crate::transport::doorbell::{Doorbell, Sleeping};

pub(crate) use self::item::events_of;
use self::item::{Item, Target};

#[derive(Default)]
struct State {
    items: Vec<Option<Item>>,
    polled: Vec<usize>,
    /// The number of the next change that has not been looked at here.
    changes: u64,
    /// Items to be looked at besides.
    stale: Vec<usize>,
    /// Calls in a row that did not ask the kernel.
    skipped: u32,
    /// Threads that sleep on this instance.
    asleep: u32,
    /// A thread has slept on another instance that watches this one, or polled it, and may again.
    is_watched: bool,
    /// Items that the kernel knows under our mark.
    marks: usize,
    /// The doorbell by which all of them notify.
    doorbell: Doorbell,
    /// Items that were polled until their watcher went to sleep.
    parked: Vec<usize>,
    /// Places in `items` that are free.
    free: Vec<usize>,
    /// Where items of sockets are, by socket and descriptor.
    places: BTreeMap<(u32, c_int), usize>,
    /// Which items are UDP sockets.
    datagrams: Vec<usize>,
    /// Which items are other instances.
    inners: Vec<usize>,
    /// The item that is looked at next in case its bell was lost.
    next_check: usize,
    /// What the kernel has reported of other descriptors to a caller that was not the program.
    kept: Vec<libc::epoll_event>,
}

/// One epoll instance.
pub(crate) struct Epoll {
    /// Descriptors that stand for it.
    descriptors: AtomicUsize,
    /// These, and everything else that uses it; 0 if it is free.
    users: AtomicUsize,
    /// Other instances may watch it.
    is_inner: AtomicBool,
    lock: Lock,
    /// Threads that wait for the lock.
    wanting: AtomicUsize,
    /// How many items there are.
    count: AtomicUsize,
    /// The kernel has been told a mark of ours, and may speak of it after its item has gone.
    has_marked: AtomicBool,
    /// When items were last looked at again for which a bell may have been lost.
    checked_ns: AtomicU64,
    state: UnsafeCell<State>,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").field("count", &self.count).finish_non_exhaustive()
    }
}

// SAFETY: `state` is touched only while `lock` is held (rule 1); the rest is atomics.
unsafe impl Sync for Epoll {}

/// An instance in use: it stays what it is until this is dropped.
#[derive(Debug)]
pub(crate) struct Instance(&'static Epoll);

impl Deref for Instance {
    type Target = Epoll;

    #[inline]
    fn deref(&self) -> &Epoll {
        self.0
    }
}

impl Drop for Instance {
    #[inline]
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.recycle();
        }
    }
}

/// The instance that a descriptor stands for.
#[inline]
pub(crate) fn of(fd: c_int) -> Option<Instance> {
    // SAFETY: the table has it from `set`, and an instance is never freed (rule 2).
    table::other(fd, |at| unsafe { instance_at(at) }.retain())
}

/// Whether a descriptor stands for this instance.
pub(crate) fn is_of(fd: c_int, epoll: &Epoll) -> bool {
    table::is_other(fd, ptr::from_ref(epoll).addr())
}

/// Makes `fd` stand for an instance.
pub(crate) fn set(fd: c_int, instance: Instance) {
    let epoll = Epoll::name(instance);
    get_ready();
    if !table::set_other(fd, ptr::from_ref(epoll).expose_provenance()) {
        epoll.unname();
    }
}

/// What the first instance needs, which children would each make for themselves.
pub(crate) fn get_ready() {
    // SAFETY: what [`set`] has put there.
    table::tell(|at| unsafe { instance_at(at) }.unname());
}

/// The instance that lies there.
///
/// # Safety
///
/// `at` is the exposed address of an instance.
unsafe fn instance_at(at: usize) -> &'static Epoll {
    // SAFETY: the caller's promise; instances are never freed (rule 2).
    unsafe { &*ptr::with_exposed_provenance(at) }
}

/// Instances that nothing uses.
pub(crate) static FREE: Guarded<Vec<&'static Epoll>> = Guarded::new(Vec::new());

/// The mark of our items in the kernel's instances: it is in the upper half of an event's data.
const MARK: u64 = 0xad5e_71c3 << 32;
/// Where an item would be: the doorbell.
const BELL: u64 = u32::MAX as u64;
/// An item that was looked at so often in vain is armed.
const IDLE_MAX: u32 = 2000;
/// Items that can be polled before they are too many.
const CROWD: usize = 64;
/// How long a fork waits for those that hold an instance.
const HOLDERS_NAP_NS: i64 = 20_000;
/// How often a thread that spins gives way to those that want the instance, before it looks again.
const LET_IN_MAX: u32 = 64;

fn kernel_wait(epfd: c_int, events: &mut [libc::epoll_event]) -> usize {
    let (base, len) = (events.as_mut_ptr() as usize, events.len());
    let args = [epfd as isize as usize, base, len, 0, 0, 8];
    // SAFETY: the kernel writes at most `len` events, which are borrowed; there is no signal mask.
    unsafe { raw::syscall(libc::SYS_epoll_pwait, args) }.unwrap_or(0)
}

fn kernel_control(epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
    let event = libc::epoll_event { events, u64: data };
    let at = &raw const event as usize;
    let args = [epfd as isize as usize, op as usize, fd as isize as usize, at, 0, 0];
    // SAFETY: the kernel reads one event, which is ours.
    unsafe { raw::syscall(libc::SYS_epoll_ctl, args) }
}

impl Epoll {
    /// A new instance, for the table.
    pub(crate) fn create() -> Instance {
        let free = FREE.with(Vec::pop);
        let epoll: &'static Self = free.unwrap_or_else(|| {
            Box::leak(Box::new(Self {
                descriptors: AtomicUsize::new(0),
                users: AtomicUsize::new(0),
                is_inner: AtomicBool::new(false),
                lock: Lock::new(),
                wanting: AtomicUsize::new(0),
                count: AtomicUsize::new(0),
                has_marked: AtomicBool::new(false),
                checked_ns: AtomicU64::new(0),
                state: UnsafeCell::default(),
            }))
        });
        epoll.users.store(1, Ordering::Release);
        Instance(epoll)
    }

    /// One user more, unless it is free.
    #[inline]
    pub(crate) fn retain(&'static self) -> Option<Instance> {
        let more = |users: usize| (users != 0).then(|| users.wrapping_add(1));
        self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Instance(self))
    }

    /// One descriptor more, which takes over the caller's use.
    pub(crate) fn name(instance: Instance) -> &'static Self {
        let epoll = instance.0;
        std::mem::forget(instance);
        if epoll.descriptors.fetch_add(1, Ordering::AcqRel) == 0 {
            with_all(|all| all.push(epoll));
        }
        epoll
    }

    /// One descriptor less. The last one empties the instance.
    pub(crate) fn unname(&'static self) {
        let _used = Instance(self);
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            with_all(|all| {
                all.retain(|known| !ptr::eq(*known, self));
                if self.is_inner.load(Ordering::Acquire) {
                    all.iter().for_each(|epoll| epoll.forget_inner(self));
                }
            });
            self.empty();
        }
    }

    /// Nothing is registered any longer.
    fn empty(&self) {
        let mut gone = self.with(|state| {
            state.doorbell.give_back();
            let asleep = state.asleep;
            let gone = std::mem::take(state);
            state.asleep = asleep;
            gone
        });
        self.count.store(0, Ordering::Release);
        gone.items.iter_mut().flatten().for_each(Item::part);
    }

    /// Its last user has gone.
    #[cold]
    fn recycle(&'static self) {
        // A thread that was inside may have registered something after the last descriptor was closed.
        self.empty();
        self.with(|state| state.asleep = 0);
        self.is_inner.store(false, Ordering::Relaxed);
        self.has_marked.store(false, Ordering::Relaxed);
        FREE.with(|free| free.push(self));
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let _held = self.lock.try_hold().unwrap_or_else(|| {
            self.wanting.fetch_add(1, Ordering::Relaxed);
            let held = self.lock.hold();
            self.wanting.fetch_sub(1, Ordering::Relaxed);
            held
        });
        // SAFETY: the lock is held (rule 1), and `f` cannot come back here: nothing below it calls
        // the program.
        f(unsafe { &mut *self.state.get() })
    }

    /// A thread that spins holds the lock nearly all the time: between two looks it lets others have it.
    fn let_in(&self) {
        let mut rounds = 0;
        while self.wanting.load(Ordering::Relaxed) > 0 && rounds < LET_IN_MAX {
            raw::give_way();
            rounds += 1;
        }
    }

    /// For a child just forked, whose thread has held the lock since before, unless it has been alone.
    fn after_fork(&self, was_alone: bool) {
        if !was_alone {
            self.lock.let_go();
        }
        self.wanting.store(0, Ordering::Relaxed);
        self.with(|state| {
            state.asleep = 0;
            // It is the parent's.
            state.doorbell.after_fork();
            // Threads that were about to write down a change are not here.
            state.changes = 0;
            state.items.iter_mut().flatten().for_each(Item::after_fork);
        });
    }
}

impl State {
    /// The item of a descriptor and a socket, and whether it has been removed.
    fn find(&self, fd: c_int, socket: &Socket) -> Option<(usize, bool)> {
        let at = *self.places.get(&(socket.index(), fd))?;
        let item = self.items.get(at)?.as_ref()?;
        Some((at, item.ghost_of.is_some()))
    }

    /// The items of a socket, by its number.
    fn items_of(&self, socket: u32) -> impl Iterator<Item = usize> {
        self.places.range((socket, c_int::MIN)..=(socket, c_int::MAX)).map(|(_, at)| *at)
    }

    /// A thread sleeps no more.
    fn awakes(&mut self) {
        self.asleep = self.asleep.saturating_sub(1);
        let is_asleep = self.asleep > 0;
        self.doorbell.set(if is_asleep { Sleeping::InKernel } else { Sleeping::Awake });
    }
}

/// Polls an item: it is looked at at each call from now on.
fn start_polling(polled: &mut Vec<usize>, at: usize, item: &mut Item) {
    let is_looked_at = item.is_marked || item.is_seen && !item.is_kernels();
    if is_looked_at && !item.is_polled {
        item.is_polled = true;
        item.idle = 0;
        polled.push(at);
    }
}

/// By how much more it counts that an item was looked at in vain where many are: each event that is
/// waited for costs a look at all of them.
fn crowding(polled: &[usize]) -> u32 {
    u32::try_from(polled.len() / CROWD).unwrap_or(u32::MAX).saturating_add(1)
}

/// Every instance of this process.
struct All {
    lock: Lock,
    list: UnsafeCell<Vec<&'static Epoll>>,
}

// SAFETY: the list is touched only while the lock is held.
unsafe impl Sync for All {}

static ALL: All = All { lock: Lock::new(), list: UnsafeCell::new(Vec::new()) };

fn with_all<T>(f: impl FnOnce(&mut Vec<&'static Epoll>) -> T) -> T {
    let _held = ALL.lock.hold();
    // SAFETY: the lock is held, and `f` does not come back here.
    f(unsafe { &mut *ALL.list.get() })
}

/// Before a fork: no other thread is in the middle of the list or of an instance, of which the child gets
/// a copy.
pub(crate) fn before_fork() {
    std::mem::forget(ALL.lock.hold());
    // SAFETY: the lock is held, so the list does not change meanwhile.
    let all = unsafe { &*ALL.list.get() };
    for epoll in all {
        epoll.wanting.fetch_add(1, Ordering::Relaxed);
    }
    // A holder of one may wait for another, in whatever order: all at once, or none.
    let held = loop {
        let held: Option<Vec<_>> = all.iter().map(|epoll| epoll.lock.try_hold()).collect();
        match held {
            Some(held) => break held,
            None => raw::nap(HOLDERS_NAP_NS),
        }
    };
    held.into_iter().for_each(std::mem::forget);
    for epoll in all {
        epoll.wanting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// After it, in the parent.
pub(crate) fn after_fork_in_parent() {
    // SAFETY: the lock is held since before the fork.
    let all = unsafe { &*ALL.list.get() };
    all.iter().for_each(|epoll| epoll.lock.let_go());
    ALL.lock.let_go();
}

/// A socket's last descriptor, `fd` if there still is one, is being closed: no instance knows it any longer.
pub(crate) fn forget(fd: Option<c_int>, socket: &Socket) {
    with_all(|all| all.iter().for_each(|epoll| epoll.forget(fd, socket)));
}

/// A descriptor of a socket is being closed, and others stand for it still.
pub(crate) fn lay(fd: c_int, socket: &Socket) {
    with_all(|all| all.iter().for_each(|epoll| epoll.lay(fd, socket)));
}

/// Calls `f` with the socket of each registration of this process, where there is no other thread.
pub(crate) fn each_socket(mut f: impl FnMut(&'static Socket)) {
    with_all(|all| {
        for epoll in all.iter() {
            epoll.with(|state| {
                state.items.iter().flatten().filter_map(Item::socket).for_each(&mut f)
            });
        }
    });
}

/// For a child just forked: the only thread holds the locks of the list and of all instances, unless it has been alone.
pub(crate) fn after_fork(was_alone: bool) {
    if !was_alone {
        ALL.lock.let_go();
    }
    with_all(|all| all.iter().for_each(|epoll| epoll.after_fork(was_alone)));
}

/// The same, if that thread is inside no call: what the child has is all that uses an instance.
pub(crate) fn count_again() {
    with_all(|all| {
        for epoll in all.iter() {
            epoll.users.store(epoll.descriptors.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let count = |item: &Item| {
            if let Target::Inner(inner) = &item.target {
                inner.users.fetch_add(1, Ordering::Relaxed);
            }
        };
        all.iter()
            .for_each(|epoll| epoll.with(|state| state.items.iter().flatten().for_each(count)));
    });
}
