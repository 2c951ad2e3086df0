//! Epoll instances: the kernel's, and beside it a list of the connections that have rings.
//!
//! The program's instance stays a kernel instance. A connection without rings is registered there as
//! the program wants it. One with rings is registered for bells alone, edge-triggered, under a mark
//! of ours; what the program wants to know of it is worked out from the rings. It is *hot* while
//! its ring is looked at at each call, and *cold* once it is armed: then a bell will come, and the
//! kernel says so. Idle connections are cold and cost nothing.
//!
//! # Safety
//!
//! 1. `state` is touched only while `lock` is held.
//! 2. Instances are made by `Box::leak` and never freed, so that an entry of the table is always
//!    good to follow.

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use crate::config;
use crate::datagram::{self, Content};
use crate::doorbell;
use crate::lock::Lock;
use crate::patience::{self, Patience, SLICE_NS, Spin};
use crate::raw::{self, Answer, Errno};
use crate::real::real;
use crate::slot::{Kind, Slot};
use crate::stats::add;
use crate::stream::{self, Want};
use crate::table::{self, Pin};
use crate::thread::{Interrupts, Seen};

/// Counts connections that have got rings, or lost them.
static CHANGES: AtomicU32 = AtomicU32::new(1);

/// Every instance of this process.
static ALL: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());

/// A connection travels otherwise than before.
pub(crate) fn note_change() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// What an item watches.
#[derive(Debug)]
enum Target {
    Socket(Pin),
    /// A UDP socket: the kernel knows it as the program wants it, and its mailbox is looked at
    /// besides.
    Datagram(Pin),
    /// Another instance.
    Inner(&'static Epoll),
}

/// One registration of a connection, or of another instance.
#[derive(Debug)]
struct Item {
    fd: c_int,
    target: Target,
    events: u32,
    data: u64,
    /// It has rings, and the kernel knows it under our mark.
    is_marked: bool,
    is_hot: bool,
    /// It was hot until its watcher went to sleep, and is hot again when that wakes.
    is_dozing: bool,
    /// The program has removed it, by this descriptor of the instance, and the kernel still has it;
    /// see [`Epoll::bury`].
    ghost_of: Option<c_int>,
    /// It was reported once, and once was asked for.
    is_spent: bool,
    /// A UDP socket whose mailbox is closed on our behalf: the kernel brings what comes.
    is_armed: bool,
    /// A UDP socket whose mailbox we know of.
    is_seen: bool,
    /// How far the ring was when it was last reported.
    seen_head: u64,
    seen_end: bool,
    seen_fulls: u32,
    /// Whether the kernel spoke, for reading and for writing.
    seen_kernel: (bool, bool),
    /// What the kernel has said since.
    rung: u32,
    /// Looks that found nothing.
    idle: u32,
}

struct State {
    items: Vec<Option<Item>>,
    hot: Vec<usize>,
    changes: u32,
    /// Calls in a row that did not ask the kernel.
    skipped: u32,
    /// Threads that sleep on this instance.
    asleep: u32,
    /// Items that the kernel knows under our mark.
    marks: usize,
    /// Who is rung for on behalf of all of them; 0 if there is no such doorbell.
    doorbell: u32,
    /// Items that were hot until their watcher went to sleep.
    dozing: Vec<usize>,
    /// Places in `items` that nobody has.
    free: Vec<usize>,
    /// Where the item of a descriptor is, plus one; a guess.
    places: Vec<u32>,
    /// Which items are UDP sockets.
    datagrams: Vec<usize>,
    /// What the kernel has reported of other descriptors to somebody who was not the program.
    kept: Vec<libc::epoll_event>,
}

/// One epoll instance.
pub(crate) struct Epoll {
    refs: AtomicUsize,
    lock: Lock,
    /// Threads that wait for the lock.
    wanting: AtomicUsize,
    /// How many items there are.
    count: AtomicUsize,
    /// The kernel has been told a mark of ours, and may speak of it after its item has gone.
    has_marked: AtomicBool,
    state: UnsafeCell<State>,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll").field("count", &self.count).finish_non_exhaustive()
    }
}

// SAFETY: `state` is touched only while `lock` is held (rule 1); the rest is atomics.
unsafe impl Sync for Epoll {}

/// The mark of our items in the kernel's instances: it is in the upper half of an event's data.
const MARK: u64 = 0xad5e_71c3 << 32;
/// The most events that one call asks the kernel for at a time.
const EVENTS_MAX: usize = 64;
/// How long a watcher sleeps that waits for what the kernel has not brought yet.
const BLOCKED_NAP_NS: i64 = 50_000;
/// What is to be reported anew, whatever it is.
const ALL_RUNG: u32 = u32::MAX;
/// Descriptors from here on have to be searched for.
const PLACES_MAX: usize = 1 << 20;
/// A look at the kernel takes as long as so many at memory.
const KERNEL_LOOKS: u32 = 16;
/// An item that was looked at so often in vain goes cold.
const IDLE_MAX: u32 = 2000;
/// A look that has to ask the kernel is worth so many that do not.
const KERNEL_LOOK_WORTH: u32 = 500;
/// How often one who spins gives way to those who want the instance, before it looks again.
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

impl Item {
    fn new(fd: c_int, target: Target, events: u32, data: u64) -> Self {
        let is_hot = matches!(target, Target::Inner(_));
        Self {
            fd,
            target,
            events,
            data,
            is_marked: false,
            is_hot,
            is_dozing: false,
            ghost_of: None,
            is_spent: false,
            is_armed: false,
            is_seen: false,
            seen_head: u64::MAX,
            seen_end: false,
            seen_fulls: u32::MAX,
            seen_kernel: (false, false),
            rung: 0,
            idle: 0,
        }
    }

    fn change(&mut self, events: u32, data: u64) {
        (self.events, self.data) = (events, data);
        (self.seen_head, self.seen_end, self.seen_fulls) = (u64::MAX, false, u32::MAX);
        (self.is_spent, self.rung) = (false, ALL_RUNG);
        self.idle = 0;
    }

    fn is(&self, fd: c_int, slot: &Slot) -> bool {
        self.fd == fd && self.is_of(slot)
    }

    fn is_of(&self, slot: &Slot) -> bool {
        match &self.target {
            Target::Socket(pin) | Target::Datagram(pin) => std::ptr::eq(pin.slot(), slot),
            Target::Inner(_) => false,
        }
    }

    /// What is to be reported now. Nothing of it counts as reported yet.
    fn due(&self) -> u32 {
        if self.is_spent || self.ghost_of.is_some() {
            return 0;
        }
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let ready = match &self.target {
            Target::Inner(inner) if inner.is_ready() => libc::EPOLLIN as u32,
            Target::Inner(_) => 0,
            Target::Datagram(slot) => self.due_datagram(slot),
            Target::Socket(slot) => {
                let Some(segment) = slot.segment() else {
                    if self.is_marked {
                        // A process of this family has given the rings up.
                        note_change();
                    }
                    return 0;
                };
                let ready = events_of(slot, segment, self.fd);
                if self.events & libc::EPOLLET as u32 != 0 && !self.is_edge(slot, ready) {
                    return 0;
                }
                u32::from(ready.cast_unsigned())
            }
        };
        ready & (self.events | always)
    }

    /// The same for a UDP socket: what its mailbox has. The kernel reports its own.
    fn due_datagram(&self, slot: &Slot) -> u32 {
        let Some(mailbox) = datagram::mapped(slot) else { return 0 };
        let is_new = self.events & libc::EPOLLET as u32 == 0 || mailbox.head() != self.seen_head;
        if !is_new || datagram::content(mailbox, self.fd) != Content::Datagram {
            return 0;
        }
        let out = libc::POLLOUT | libc::POLLWRNORM;
        let wants_room = self.events & u32::from(out.cast_unsigned()) != 0;
        let room = if wants_room { raw::poll_now(self.fd, out).unwrap_or(0) } else { 0 };
        let ready = libc::POLLIN | libc::POLLRDNORM | room & out;
        u32::from(ready.cast_unsigned())
    }

    /// Whether what is to be read of it still comes through the kernel, which wakes its watchers.
    fn is_read_by_kernel(&self) -> bool {
        let Target::Socket(slot) = &self.target else { return false };
        slot.mapped().is_some_and(|segment| stream::kernel_speaks(slot, segment).0)
    }

    /// What it costs to look at it, in looks at memory.
    fn cost(&self) -> u32 {
        let Target::Socket(slot) = &self.target else { return 1 };
        let speaks = slot.mapped().map(|segment| stream::kernel_speaks(slot, segment));
        if speaks.is_some_and(|(reading, writing)| reading || writing) {
            KERNEL_LOOK_WORTH
        } else {
            1
        }
    }

    /// Only the kernel can say whose turn it is, or that once is enough.
    fn is_kernels(&self) -> bool {
        self.events & (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32 != 0
    }

    /// The mailbox of a UDP socket takes what comes from now on, as far as we are concerned.
    fn disarm(&mut self) {
        if self.is_armed
            && !self.is_kernels()
            && let Target::Datagram(slot) = &self.target
            && let Some(mailbox) = datagram::mapped(slot)
        {
            mailbox.rouse();
            self.is_armed = false;
        }
    }

    /// The mailbox of a UDP socket may have come into being: then it is looked at from now on.
    fn meet(&mut self, is_asleep: bool) {
        let Target::Datagram(slot) = &self.target else { return };
        let Some(mailbox) = datagram::mailbox(slot, self.fd) else { return };
        if (self.is_kernels() || is_asleep) && !self.is_armed {
            mailbox.hold();
            self.is_armed = true;
        }
        if !self.is_seen {
            self.is_seen = true;
            mailbox.seen(true);
        }
        if !is_asleep {
            self.disarm();
        }
    }

    /// It is removed.
    fn part(&mut self) {
        match &self.target {
            Target::Socket(slot) => _ = slot.watchers.fetch_sub(1, Ordering::AcqRel),
            Target::Datagram(slot) => {
                if let Some(mailbox) = datagram::mapped(slot) {
                    if self.is_armed {
                        mailbox.rouse();
                    }
                    if self.is_seen {
                        mailbox.seen(false);
                    }
                }
                slot.watchers.fetch_sub(1, Ordering::AcqRel);
            }
            Target::Inner(_) => {}
        }
    }

    /// It has been copied by a fork.
    fn after_fork(&self) {
        if let Target::Datagram(slot) = &self.target {
            slot.watchers.fetch_add(1, Ordering::AcqRel);
            if let Some(mailbox) = datagram::mapped(slot) {
                if self.is_armed {
                    mailbox.hold();
                }
                if self.is_seen {
                    mailbox.seen(true);
                }
            }
        }
    }

    /// Whether something is new since the last report.
    fn is_edge(&self, slot: &Slot, ready: i16) -> bool {
        let Some(segment) = slot.mapped() else { return false };
        let readable = ready & libc::POLLIN != 0;
        let head = segment.incoming(slot.end()).head();
        let ended = ready & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0;
        let writable = ready & libc::POLLOUT != 0;
        let (reading, writing) = stream::kernel_speaks(slot, segment);
        // What comes through the kernel is new when the kernel says so, and what comes after it is too.
        let (was_reading, was_writing) = self.seen_kernel;
        let rung = |events: c_int| self.rung & events as u32 != 0;
        let is_read = match reading {
            true => rung(libc::EPOLLIN),
            false => was_reading || head != self.seen_head,
        };
        let is_written = match writing {
            true => rung(libc::EPOLLOUT),
            false => was_writing || slot.fulls.load(Ordering::Acquire) != self.seen_fulls,
        };
        (readable && is_read)
            || (ended && !self.seen_end)
            || (writable && is_written && self.events & libc::EPOLLOUT as u32 != 0)
    }

    /// It has been reported.
    fn reported(&mut self, events: u32) {
        self.idle = 0;
        if self.events & libc::EPOLLONESHOT as u32 != 0 {
            self.is_spent = true;
        }
        if let Target::Datagram(slot) = &self.target {
            if let Some(mailbox) = datagram::mapped(slot) {
                self.seen_head = mailbox.head();
            }
            add(&slot.counters.rx_poll_hit, 1);
        }
        if let Target::Socket(slot) = &self.target {
            let Some(segment) = slot.mapped() else { return };
            self.seen_head = segment.incoming(slot.end()).head();
            self.seen_kernel = stream::kernel_speaks(slot, segment);
            self.rung &= !events;
            self.seen_end |= events & (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32 != 0;
            if events & libc::EPOLLOUT as u32 != 0 {
                self.seen_fulls = slot.fulls.load(Ordering::Acquire);
            }
            add(&slot.counters.rx_poll_hit, 1);
        }
    }

    /// Arms it, so that a bell comes; together with others, if there is a doorbell for that. Returns
    /// false if it has something to report already.
    fn cool(&mut self, doorbell: u32) -> bool {
        if self.is_spent || self.ghost_of.is_some() {
            return true;
        }
        match &self.target {
            Target::Inner(inner) => inner.cool(false),
            Target::Datagram(slot) => {
                let reading = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
                let Some(mailbox) = datagram::mapped(slot) else { return true };
                datagram::mind(slot, self.fd);
                if self.events & reading == 0 || self.is_armed {
                    return self.due() == 0;
                }
                if !mailbox.doze() {
                    // What is there has been reported, and nobody has read it; unless it waits for
                    // the kernel, and may have to go on without.
                    let is_blocked = datagram::content(mailbox, self.fd) == Content::Blocked
                        && raw::poll_now(self.fd, libc::POLLIN) == Ok(0);
                    if is_blocked {
                        raw::nap(BLOCKED_NAP_NS);
                    }
                    if is_blocked || self.due() != 0 {
                        return false;
                    }
                    mailbox.hold();
                }
                self.is_armed = true;
                self.due() == 0
            }
            Target::Socket(slot) => {
                let Some(segment) = slot.segment() else { return true };
                let (reading, writing) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
                let is_reader = self.events & reading != 0;
                // What the kernel wakes for stays cold when its watcher wakes: it is rung for alone.
                let doorbell = if self.is_read_by_kernel() { 0 } else { doorbell };
                let is_together = is_reader && stream::arm_together(slot, segment, doorbell);
                if is_reader && !is_together {
                    stream::arm(slot, segment, Want::Read);
                }
                if self.events & writing != 0 && !segment.outgoing(slot.end()).has_much_room() {
                    stream::arm(slot, segment, Want::Room);
                }
                stream::drain(slot, segment, self.fd, false);
                doorbell != 0 || self.due() == 0
            }
        }
    }
}

/// What `poll` would say about a connection with rings: from memory, and from the kernel as long as
/// bytes still come through it.
pub(crate) fn events_of(slot: &Slot, segment: &crate::ring::Segment, fd: c_int) -> i16 {
    if segment.is_leaving() {
        stream::settle(slot, fd);
    }
    let mut ready = stream::readiness(slot, segment);
    let (reading, writing) = stream::kernel_speaks(slot, segment);
    if reading || writing {
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        let events = raw::poll_now(fd, all).unwrap_or(0);
        stream::heed(slot, events);
        if reading {
            ready |= events & !(libc::POLLOUT | libc::POLLWRNORM);
        }
        if writing {
            let room = if stream::owes(slot) { 0 } else { events & libc::POLLOUT };
            ready = (ready & !(libc::POLLOUT | libc::POLLWRNORM)) | room;
        }
    }
    ready
}

impl Epoll {
    /// A new instance, for the table.
    pub(crate) fn create() -> &'static Self {
        let state = State {
            items: Vec::new(),
            hot: Vec::new(),
            changes: 0,
            skipped: 0,
            asleep: 0,
            marks: 0,
            doorbell: 0,
            dozing: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            datagrams: Vec::new(),
            kept: Vec::new(),
        };
        let epoll: &'static Self = Box::leak(Box::new(Self {
            refs: AtomicUsize::new(0),
            lock: Lock::new(),
            wanting: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            has_marked: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }));
        all().push(epoll);
        epoll
    }

    pub(crate) fn retain(&self) {
        self.refs.fetch_add(1, Ordering::AcqRel);
    }

    /// One descriptor less. The last one empties the instance.
    pub(crate) fn release(&self) {
        if self.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut gone = self.with(|state| {
                doorbell::give_back(std::mem::take(&mut state.doorbell));
                for list in
                    [&mut state.hot, &mut state.dozing, &mut state.datagrams, &mut state.free]
                {
                    *list = Vec::new();
                }
                (state.places, state.marks) = (Vec::new(), 0);
                std::mem::take(&mut state.items)
            });
            self.count.store(0, Ordering::Release);
            gone.iter_mut().flatten().for_each(Item::part);
        }
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

    /// One who spins holds the lock nearly all the time: between two looks it lets others have it.
    fn let_in(&self) {
        let mut rounds = 0;
        while self.wanting.load(Ordering::Relaxed) > 0 && rounds < LET_IN_MAX {
            raw::give_way();
            rounds += 1;
        }
    }

    /// For a child just forked.
    pub(crate) fn after_fork(&self) {
        self.lock.reset();
        self.wanting.store(0, Ordering::Relaxed);
        self.with(|state| {
            state.asleep = 0;
            // It is the parent's.
            state.doorbell = 0;
            state.items.iter().flatten().for_each(Item::after_fork);
        });
    }

    /// `epoll_ctl(2)` for something that we know.
    pub(crate) fn control(
        &self,
        epfd: c_int,
        op: c_int,
        fd: c_int,
        event: libc::epoll_event,
    ) -> Answer {
        let (events, data) = (event.events, event.u64);
        let is_ours = |slot: &Pin| match slot.kind() {
            Kind::Datagram => op != libc::EPOLL_CTL_ADD || datagram::has_post(slot),
            Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => true,
        };
        let Some(pin) = table::socket(fd).filter(is_ours) else {
            return self.control_inner(epfd, op, fd, events, data);
        };
        let at = self.with(|state| state.find(fd, pin.slot()));
        match (op, at) {
            (libc::EPOLL_CTL_ADD, Some((at, true))) => {
                self.revive(at, events, data);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, Some((_, true))) => {
                Err(Errno(libc::ENOENT))
            }
            (libc::EPOLL_CTL_ADD, _) => {
                kernel_control(epfd, op, fd, events, data)?;
                pin.watchers.fetch_add(1, Ordering::SeqCst);
                let is_datagram = pin.kind() == Kind::Datagram;
                let target = if is_datagram { Target::Datagram } else { Target::Socket };
                let mut item = Item::new(fd, target(pin), events, data);
                // Somebody may sleep on this instance already, and be woken by the kernel alone.
                item.meet(true);
                item.is_hot |= item.is_seen;
                self.insert(item);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD, Some((at, false))) => {
                let is_marked = self.with(|state| {
                    let item = state.items.get_mut(at)?.as_mut()?;
                    item.change(events, data);
                    heat(&mut state.hot, at, item);
                    if item.is_seen {
                        item.meet(true);
                        state.changes = 0;
                    }
                    Some(item.is_marked)
                });
                if is_marked == Some(true) {
                    return Ok(0);
                }
                kernel_control(epfd, op, fd, events, data)
            }
            (libc::EPOLL_CTL_DEL, Some((at, false))) => {
                if self.bury(at, epfd) {
                    return Ok(0);
                }
                self.remove(at);
                kernel_control(epfd, op, fd, events, data)
            }
            _ => kernel_control(epfd, op, fd, events, data),
        }
    }

    /// A connection with rings is removed, and stays where it is: programs that remove a connection
    /// after each message add it again before the next. Returns false if it is no such connection.
    fn bury(&self, at: usize, epfd: c_int) -> bool {
        self.with(|state| {
            let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) else { return false };
            item.ghost_of = match item.target {
                Target::Socket(_) if item.is_marked => Some(epfd),
                Target::Socket(_) | Target::Datagram(_) | Target::Inner(_) => None,
            };
            item.ghost_of.is_some()
        })
    }

    /// It is added again.
    fn revive(&self, at: usize, events: u32, data: u64) {
        self.with(|state| {
            if let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) {
                item.ghost_of = None;
                item.change(events, data);
                heat(&mut state.hot, at, item);
            }
        });
    }

    /// A descriptor that is about to be closed stands for a socket that others have as well: if it
    /// has been removed here, it is now.
    fn lay(&'static self, fd: c_int, slot: &Slot) {
        let Some((at, true)) = self.with(|state| state.find(fd, slot)) else { return };
        let epfd = self.with(|state| state.items.get(at)?.as_ref()?.ghost_of);
        if let Some(epfd) =
            epfd.filter(|epfd| table::epoll(*epfd).is_some_and(|is| std::ptr::eq(is, self)))
        {
            let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        self.remove(at);
    }

    /// The same, where the other side is an instance or something that is none of our business.
    fn control_inner(&self, epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
        kernel_control(epfd, op, fd, events, data)?;
        let Some(inner) = table::epoll(fd) else { return Ok(0) };
        let at = self.with(|state| {
            state.items.iter().position(|item| {
                let target = item.as_ref().filter(|item| item.fd == fd).map(|item| &item.target);
                matches!(target, Some(Target::Inner(known)) if std::ptr::eq(*known, inner))
            })
        });
        match (op, at) {
            (libc::EPOLL_CTL_ADD, _) => {
                self.insert(Item::new(fd, Target::Inner(inner), events, data));
            }
            (libc::EPOLL_CTL_MOD, Some(at)) => self.with(|state| {
                if let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) {
                    item.change(events, data);
                }
            }),
            (libc::EPOLL_CTL_DEL, Some(at)) => self.remove(at),
            _ => {}
        }
        Ok(0)
    }

    fn insert(&self, item: Item) {
        self.with(|state| {
            state.changes = 0;
            let at = state.free.pop().unwrap_or(state.items.len());
            state.guess(item.fd, at);
            if let Target::Datagram(_) = item.target {
                state.datagrams.push(at);
            }
            if item.is_hot {
                state.hot.push(at);
            }
            match state.items.get_mut(at) {
                Some(place) => *place = Some(item),
                None => state.items.push(Some(item)),
            }
        });
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn remove(&self, at: usize) {
        let gone = self.with(|state| {
            for list in [&mut state.hot, &mut state.dozing, &mut state.datagrams] {
                list.retain(|known| *known != at);
            }
            let gone = state.items.get_mut(at).and_then(Option::take);
            if let Some(item) = &gone {
                state.free.push(at);
                state.marks = state.marks.saturating_sub(usize::from(item.is_marked));
            }
            gone
        });
        if let Some(mut item) = gone {
            self.count.fetch_sub(1, Ordering::AcqRel);
            item.part();
        }
    }

    /// Forgets a socket whose last descriptor is being closed.
    fn forget(&self, slot: &Slot) {
        loop {
            let at = self.with(|state| {
                let mut items = state.items.iter();
                items.position(|item| item.as_ref().is_some_and(|item| item.is_of(slot)))
            });
            match at {
                Some(at) => self.remove(at),
                None => return,
            }
        }
    }

    /// Registers connections that have got rings under our mark.
    fn sync(&self, epfd: c_int) {
        let changes = CHANGES.load(Ordering::Acquire);
        let mut ghosts = Vec::new();
        self.with(|state| {
            if state.changes == changes {
                return;
            }
            state.changes = changes;
            let State { items, hot, asleep, marks, .. } = state;
            for (at, place) in items.iter_mut().enumerate() {
                let Some(item) = place else { continue };
                if let Target::Datagram(_) = item.target {
                    item.meet(*asleep > 0);
                    heat(hot, at, item);
                    continue;
                }
                let wanted = match &item.target {
                    Target::Datagram(_) => false,
                    Target::Socket(slot) => slot.segment().is_some(),
                    Target::Inner(inner) => {
                        inner.sync(item.fd);
                        inner.has_marks()
                    }
                };
                if wanted == item.is_marked {
                    continue;
                }
                item.is_marked = wanted;
                let (op, fd) = (libc::EPOLL_CTL_MOD, item.fd);
                *marks = if wanted { *marks + 1 } else { marks.saturating_sub(1) };
                if item.ghost_of.is_some() {
                    let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
                    ghosts.push(at);
                } else if wanted {
                    let bells = match item.target {
                        Target::Socket(_) => {
                            libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET
                        }
                        Target::Inner(_) | Target::Datagram(_) => libc::EPOLLIN,
                    };
                    let mark = MARK | at as u64;
                    // The kernel says again what there is.
                    item.rung = 0;
                    self.has_marked.store(true, Ordering::SeqCst);
                    let _ = kernel_control(epfd, op, fd, bells as u32, mark);
                    heat(hot, at, item);
                } else {
                    let _ = kernel_control(epfd, op, fd, item.events, item.data);
                    item.is_hot = false;
                    hot.retain(|hot| *hot != at);
                }
            }
        });
        ghosts.into_iter().for_each(|at| self.remove(at));
    }

    /// Reports hot items that have something to say. Returns how many, and how many hot
    /// ones there are.
    fn scan(&self, events: &mut [libc::epoll_event]) -> (usize, usize) {
        self.with(|state| {
            let State { items, hot, kept, .. } = state;
            let mut count = 0;
            let mut cooled = false;
            while let (Some(place), Some(event)) = (events.get_mut(count), kept.pop()) {
                *place = event;
                count += 1;
            }
            for at in hot.iter().copied() {
                let Some(place) = events.get_mut(count) else { break };
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { continue };
                let due = item.due();
                if due != 0 {
                    *place = libc::epoll_event { events: due, u64: item.data };
                    item.reported(due);
                    count += 1;
                    continue;
                }
                item.idle = item.idle.wrapping_add(item.cost());
                let is_socket = matches!(item.target, Target::Socket(_) | Target::Datagram(_));
                if is_socket && item.idle > IDLE_MAX && item.cool(0) {
                    item.is_hot = false;
                    cooled = true;
                }
            }
            if cooled {
                hot.retain(|at| {
                    items.get(*at).and_then(Option::as_ref).is_some_and(|item| item.is_hot)
                });
            }
            // Whoever was first goes to the end, so that the last is not always the last.
            if count > 0 && count == events.len() {
                let turn = count.min(hot.len());
                hot.rotate_left(turn);
            }
            (count, hot.len())
        })
    }

    /// Whether the kernel's events are not the program's as they are. Asked once they are there: items
    /// come and go meanwhile, and the last one's mark is in the kernel until its socket is closed.
    fn is_to_sift(&self) -> bool {
        self.has_marked.load(Ordering::SeqCst) || self.count.load(Ordering::Relaxed) > 0
    }

    /// Keeps of the kernel's events those that the program knows, and makes hot what has been rung
    /// for.
    fn sift(&self, epfd: c_int, events: &mut [libc::epoll_event], count: usize) -> usize {
        let (mut kept, mut ghosts) = (0, Vec::new());
        self.with(|state| {
            for read in 0..count {
                let Some(event) = events.get(read).copied() else { break };
                let (mask, data) = (event.events, event.u64);
                if data & !u64::from(u32::MAX) == MARK {
                    let at = usize::try_from(data & u64::from(u32::MAX)).unwrap_or(usize::MAX);
                    let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) else {
                        continue;
                    };
                    if item.ghost_of.is_some() {
                        // Somebody else uses the connection: it is really removed.
                        let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, item.fd, 0, 0);
                        ghosts.push(at);
                        continue;
                    }
                    match &item.target {
                        Target::Datagram(_) => {}
                        Target::Inner(inner) => inner.harvest(item.fd),
                        Target::Socket(slot) => {
                            item.rung |= mask;
                            stream::heed(slot, (mask & 0x7fff) as i16);
                            if slot.watchers.load(Ordering::Relaxed) == 1
                                && let Some(segment) = slot.mapped()
                            {
                                stream::drain(slot, segment, item.fd, false);
                            }
                        }
                    }
                    heat(&mut state.hot, at, item);
                    continue;
                }
                if !state.datagrams.is_empty() {
                    state.rouse(data);
                }
                if let Some(place) = events.get_mut(kept) {
                    *place = event;
                    kept += 1;
                }
            }
        });
        ghosts.into_iter().for_each(|at| self.remove(at));
        kept
    }

    /// Whether something in it has rings, so that the kernel's word about it is not the last.
    pub(crate) fn has_marks(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.with(|state| state.marks > 0)
    }

    /// Takes what the kernel has to report: bells make their items hot, and the rest is kept for
    /// the program's next call.
    pub(crate) fn harvest(&self, epfd: c_int) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let found = kernel_wait(epfd, &mut events);
        let kept = self.sift(epfd, &mut events, found);
        self.with(|state| {
            for event in events.iter().take(kept) {
                let data = event.u64;
                match state.kept.iter_mut().find(|known| { known.u64 } == data) {
                    Some(known) => known.events = event.events | { known.events },
                    None => state.kept.push(*event),
                }
            }
        });
    }

    /// Whether an item has something to report.
    pub(crate) fn is_ready(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && self.with(|state| {
                if !state.kept.is_empty() {
                    return true;
                }
                let items = &state.items;
                let mut hot = state.hot.iter();
                hot.any(|at| {
                    items.get(*at).and_then(Option::as_ref).is_some_and(|item| item.due() != 0)
                })
            })
    }

    /// Arms everything, so that the kernel's instance becomes readable when something happens.
    /// Returns false if something has happened already. `is_own`: the caller is about to sleep on this
    /// very instance, and wakes everything up again: then one bell is enough for all.
    pub(crate) fn cool(&self, is_own: bool) -> bool {
        self.with(|state| {
            if is_own && state.doorbell == 0 && state.marks > 0 {
                state.doorbell = doorbell::take();
            }
            let State { items, hot, dozing, doorbell, .. } = state;
            let number = if is_own { *doorbell } else { 0 };
            let mut each = |f: &mut dyn FnMut(&mut Item) -> bool| {
                let mut is_quiet = true;
                for at in hot.iter() {
                    is_quiet &= items.get_mut(*at).and_then(Option::as_mut).is_none_or(&mut *f);
                }
                is_quiet
            };
            let mut is_quiet = each(&mut |item| item.cool(number));
            if number != 0 {
                doorbell::set(number, true);
                // Whoever has something for us sees that, or we see what it has.
                fence(Ordering::SeqCst);
                is_quiet = is_quiet && each(&mut |item| item.due() == 0);
            }
            if is_quiet {
                hot.retain(|at| {
                    let Some(item) = items.get_mut(*at).and_then(Option::as_mut) else {
                        return false;
                    };
                    item.is_hot = matches!(item.target, Target::Inner(_));
                    if !item.is_hot && !item.is_dozing {
                        item.is_dozing = true;
                        dozing.push(*at);
                    }
                    item.is_hot
                });
            }
            is_quiet
        })
    }

    /// A thread is about to sleep on this instance. Returns false if it must not.
    fn fall_asleep(&self, has_items: bool) -> bool {
        self.with(|state| state.asleep += 1);
        let sleeps = !has_items || self.cool(true);
        if !sleeps {
            self.with(State::awakes);
        }
        sleeps
    }

    /// After a sleep: what was hot before is hot again, and nobody has to ring for it.
    fn wake(&self) {
        self.with(|state| {
            let State { items, hot, asleep, datagrams, dozing, .. } = state;
            for at in datagrams.iter().filter(|_| *asleep == 0) {
                let item = items.get_mut(*at).and_then(Option::as_mut);
                if let Some(item) = item.filter(|item| item.is_dozing || item.is_hot) {
                    item.disarm();
                }
            }
            dozing.retain(|at| {
                let at = *at;
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { return false };
                if item.is_dozing && !item.is_hot && item.is_read_by_kernel() {
                    return true;
                }
                item.is_dozing = false;
                if let Target::Socket(slot) = &item.target
                    && let Some(segment) = slot.mapped()
                {
                    stream::disarm(slot, segment);
                }
                heat(hot, at, item);
                false
            });
        });
    }

    /// Registers what has got rings; for whoever polls this instance from outside.
    pub(crate) fn refresh(&self, epfd: c_int) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.sync(epfd);
        }
    }

    /// `epoll_pwait2(2)`: waits for at most `limit_ns`, and reports what has happened.
    pub(crate) fn wait(
        &self,
        epfd: c_int,
        events: &mut [libc::epoll_event],
        limit_ns: Option<u64>,
        mask: Option<&libc::sigset_t>,
    ) -> Result<usize, Errno> {
        let config = config::get();
        let most_ns = config.select_spin_ns;
        let (errno, seen) = (raw::errno(), Seen::now());
        // What rings have to say comes first; the kernel is asked after a while, or by the sleep.
        let mut looks = 0_usize;
        let every = config.kernel_every;
        let mut patience: Option<Patience> = None;
        if self.count.load(Ordering::Relaxed) > 0 && self.is_dozing() {
            // It was looked at as a part of another instance, or by `poll`.
            self.wake();
        }
        loop {
            self.let_in();
            let has_items = self.count.load(Ordering::Relaxed) > 0;
            if has_items {
                self.sync(epfd);
            }
            let (mut count, hot) = if has_items { self.scan(events) } else { (0, 0) };
            let has_hot = hot > 0;
            let look = match &mut patience {
                _ if count > 0 => self.is_kernels_turn(config.kernel_skip),
                _ if limit_ns == Some(0) => true,
                None if has_hot => false,
                patience => {
                    let start = || Patience::start(most_ns, limit_ns, Interrupts::All).since(seen);
                    patience.get_or_insert_with(start).spins() && (!has_hot || looks >= every)
                }
            };
            if look {
                looks = 0;
                let rest = events.get_mut(count..).unwrap_or(&mut []);
                let most = rest.len().min(EVENTS_MAX.max(if has_items { 0 } else { usize::MAX }));
                let rest = rest.get_mut(..most).unwrap_or(&mut []);
                if !rest.is_empty() {
                    let found = kernel_wait(epfd, rest);
                    let kept = if self.is_to_sift() { self.sift(epfd, rest, found) } else { found };
                    count = if count > 0 { merge(events, count, kept) } else { kept };
                    if count == 0 && found > 0 {
                        // Bells alone: what they were rung for is hot now.
                        (count, _) = self.scan(events);
                    }
                }
            }
            if count > 0 {
                if let Some(patience) = &patience {
                    patience.hit(most_ns);
                }
                raw::set_errno(errno);
                return Ok(count);
            }
            looks += hot;
            if limit_ns == Some(0) {
                return Ok(0);
            }
            let patience = patience.get_or_insert_with(|| {
                Patience::start(most_ns, limit_ns, Interrupts::All).since(seen)
            });
            let looked =
                if has_hot { u32::try_from(hot).unwrap_or(u32::MAX) } else { KERNEL_LOOKS };
            match patience.goes_on_after(looked) {
                Spin::Look => continue,
                Spin::Interrupted => return Err(Errno::INTR),
                Spin::TimedOut if look => return Ok(0),
                Spin::TimedOut | Spin::Sleep => {}
            }
            if !self.fall_asleep(has_items) {
                looks = 0;
                continue;
            }
            let since = raw::now_ns();
            let has_marks = has_items && self.has_marks();
            let has_datagrams = has_items && self.with(|state| !state.datagrams.is_empty());
            let left_ns = patience.left_ns();
            let slice_ns = match has_marks {
                true => Some(left_ns.unwrap_or(u64::MAX).min(SLICE_NS)),
                false => patience.slice_ns(),
            };
            let answer = sleep(epfd, events, slice_ns, mask);
            patience::miss(raw::now_ns().saturating_sub(since), most_ns);
            self.with(State::awakes);
            if has_marks || has_datagrams {
                self.wake();
            }
            let found = answer?;
            let kept = if self.is_to_sift() { self.sift(epfd, events, found) } else { found };
            if kept > 0 {
                // Hot items that have been rung for come with the next call.
                return Ok(kept);
            }
            if has_marks {
                let (count, _) = self.scan(events);
                if count > 0 {
                    raw::set_errno(errno);
                    return Ok(count);
                }
            }
            if found == 0 && patience.is_over() {
                return Ok(0);
            }
            if patience.is_interrupted() {
                return Err(Errno::INTR);
            }
            if found == 0 && has_marks {
                self.heat_all();
            }
            patience.again(most_ns);
            looks = 0;
        }
    }

    /// Looks at everything again: nobody sleeps for ever because a bell was lost.
    fn heat_all(&self) {
        self.with(|state| {
            for (at, item) in state.items.iter_mut().enumerate() {
                if let Some(item) = item {
                    let writes = item.events & libc::EPOLLOUT as u32 != 0;
                    if let Target::Socket(slot) = &item.target
                        && writes
                        && item.is_marked
                    {
                        stream::look_at_kernel(slot, item.fd);
                    }
                    heat(&mut state.hot, at, item);
                }
            }
        });
    }

    fn is_dozing(&self) -> bool {
        self.with(|state| {
            let item = |at: &usize| state.items.get(*at).and_then(Option::as_ref);
            let mut datagrams = state.datagrams.iter().filter_map(item);
            state.asleep == 0 && datagrams.any(|item| item.is_dozing && item.is_armed)
        })
    }

    /// Whether, although rings have something to report, the kernel is to be asked as well.
    fn is_kernels_turn(&self, every: u32) -> bool {
        self.with(|state| {
            state.skipped = state.skipped.wrapping_add(1);
            state.skipped.is_multiple_of(every)
        })
    }
}

/// Events of the kernel's, `kept` of them, behind `count` of ours: what is about the same
/// registration becomes one. Returns how many there are then.
fn merge(events: &mut [libc::epoll_event], count: usize, kept: usize) -> usize {
    let (ours, kernels) = events.split_at_mut(count);
    let mut new = 0;
    for read in 0..kept {
        let Some(event) = kernels.get(read).copied() else { break };
        let data = event.u64;
        match ours.iter_mut().find(|known| { known.u64 } == data) {
            Some(known) => known.events = { known.events } | event.events,
            None => {
                if let Some(place) = kernels.get_mut(new) {
                    *place = event;
                    new += 1;
                }
            }
        }
    }
    count + new
}

impl State {
    /// The item of a descriptor and a socket, and whether it has been removed.
    fn find(&self, fd: c_int, slot: &Slot) -> Option<(usize, bool)> {
        let get = |at: usize| {
            let item = self.items.get(at)?.as_ref().filter(|item| item.is(fd, slot))?;
            Some((at, item.ghost_of.is_some()))
        };
        let guess = usize::try_from(fd).ok().and_then(|fd| self.places.get(fd)).copied();
        let guess = guess.and_then(|place| usize::try_from(place).ok()?.checked_sub(1));
        guess.and_then(get).or_else(|| (0..self.items.len()).find_map(get))
    }

    /// Remembers where the item of a descriptor is.
    fn guess(&mut self, fd: c_int, at: usize) {
        let (Ok(fd), Ok(place)) = (usize::try_from(fd), u32::try_from(at + 1)) else { return };
        if fd < PLACES_MAX {
            if self.places.len() <= fd {
                self.places.resize(fd + 1, 0);
            }
            if let Some(known) = self.places.get_mut(fd) {
                *known = place;
            }
        }
    }

    /// A thread sleeps no more.
    fn awakes(&mut self) {
        self.asleep = self.asleep.saturating_sub(1);
        doorbell::set(self.doorbell, self.asleep > 0);
    }

    /// The kernel has reported something under this mark of the program's: mailboxes of UDP sockets
    /// that are known by it are looked at again.
    fn rouse(&mut self, data: u64) {
        let Self { items, hot, asleep, datagrams, .. } = self;
        for at in datagrams.iter().copied() {
            let item = items.get_mut(at).and_then(Option::as_mut);
            let Some(item) = item.filter(|item| item.is_seen && item.data == data) else {
                continue;
            };
            if *asleep == 0 {
                item.disarm();
            }
            heat(hot, at, item);
        }
    }
}

/// Sleeps in the kernel.
fn sleep(
    epfd: c_int,
    events: &mut [libc::epoll_event],
    left_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let milliseconds = match left_ns {
        None => -1,
        Some(left) => c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
    };
    let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let mask = mask.map_or(std::ptr::null(), std::ptr::from_ref);
    let answer = real!(
        c"epoll_pwait"
            as fn(c_int, *mut libc::epoll_event, c_int, c_int, *const libc::sigset_t) -> c_int,
        epfd,
        events.as_mut_ptr(),
        most,
        milliseconds,
        mask
    );
    usize::try_from(answer).map_err(|_| raw::errno())
}

/// Makes an item hot: it is looked at at each call from now on.
fn heat(hot: &mut Vec<usize>, at: usize, item: &mut Item) {
    let is_looked_at = item.is_marked || item.is_seen && !item.is_kernels();
    if is_looked_at && !item.is_hot {
        item.is_hot = true;
        item.idle = 0;
        hot.push(at);
    }
}

fn all() -> std::sync::MutexGuard<'static, Vec<&'static Epoll>> {
    ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A socket's last descriptor is being closed: no instance knows it any longer.
pub(crate) fn forget(slot: &Slot) {
    for epoll in all().iter() {
        epoll.forget(slot);
    }
}

/// A descriptor of a socket is being closed, and others stand for it still.
pub(crate) fn lay(fd: c_int, slot: &Slot) {
    for epoll in all().iter() {
        epoll.lay(fd, slot);
    }
}

/// For a child just forked: the only thread holds no lock.
pub(crate) fn after_fork() {
    if let Ok(all) = ALL.try_lock() {
        for epoll in all.iter() {
            epoll.after_fork();
        }
    }
}
