//! `epoll_wait`: looks at the rings, now and then at the kernel, and at last sleeps.

#![expect(clippy::as_conversions, reason = "the kernel's event masks have two widths")]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::item::{Item, Target};
use super::{
    BELL, Epoll, IDLE_MAX, MARK, State, crowding, kernel_control, kernel_wait, start_polling,
};
use crate::base::few::Few;
use crate::base::raw::{self, Errno};
use crate::base::real::real;
use crate::base::thread::{Interrupts, Seen};
use crate::base::{config, copy};
use crate::socket::spin::{LOOKS_OF_KERNEL, SLICE_NS, SpinBudget};
use crate::socket::wait_loop::{self, Budget, Ended, Limits, Look, Rest, Wait};
use crate::socket::waits::Waiting;
use crate::transport::{bell, park, xdp};
use crate::wait::standstill;

impl Epoll {
    /// `epoll_pwait2(2)`: waits for at most `limit_ns`, and reports what has happened, whatever the program thinks
    /// of what has come.
    pub(super) fn wait_unfiltered(
        &self,
        epfd: c_int,
        events: &mut [libc::epoll_event],
        limit_ns: Option<u64>,
        mask: Option<&libc::sigset_t>,
        waiting: &mut Waiting,
    ) -> Result<usize, Errno> {
        raw::cancellation_point();
        let (errno, seen) = (raw::errno(), Seen::now());
        if self.count.load(Ordering::Relaxed) > 0 && self.is_parked() {
            // It was looked at as a part of another instance, or by `poll`.
            self.wake();
        }
        let spin_ns = config::get().select_spin_ns;
        let budget = Budget::new(Limits { spin_ns, limit_ns, kind: Interrupts::All }, seen);
        let mut call = Waiter {
            epoll: self,
            epfd,
            events,
            mask,
            waiting,
            is_look: limit_ns == Some(0),
            has_items: false,
            looks: 0,
            asks: 0,
            is_restless: false,
            has_asked: false,
            is_to_check: false,
            slept: Ok(0),
            marks: Marks::default(),
        };
        let answer = match wait_loop::wait(budget, &mut call) {
            Ok(answer) => answer?,
            Err(Ended::TimedOut) => return Ok(0),
            Err(Ended::Interrupted) => return Err(Errno::INTR),
        };
        self.pass_on(epfd, events.get(..answer).unwrap_or(&[]));
        raw::set_errno(errno);
        Ok(answer)
    }

    /// Reports polled items that have something to say. Returns how many, and how many polled
    /// ones there are.
    fn scan(&self, events: &mut [libc::epoll_event]) -> (usize, usize) {
        self.with(|state| {
            let State { items, polled, kept, .. } = state;
            let (mut count, mut armed) = (0, false);
            let each = crowding(polled);
            let mut room = Room::default();
            while room.has(events, count) {
                let (Some(place), Some(event)) = (events.get_mut(count), kept.pop()) else { break };
                *place = event;
                count += 1;
            }
            for at in polled.iter().copied() {
                if !room.has(events, count) {
                    break;
                }
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { continue };
                let mut look = item.look();
                let due = item.due_since(&mut look);
                if due != 0
                    && let Some(place) = events.get_mut(count)
                {
                    *place = libc::epoll_event { events: due, u64: item.data };
                    item.reported(due, look);
                    count += 1;
                    continue;
                }
                item.idle = item.idle.saturating_add(item.cost().saturating_mul(each));
                let is_socket = matches!(item.target, Target::Socket(_) | Target::Datagram(_));
                if is_socket && item.idle > IDLE_MAX && item.arm(0) {
                    item.is_polled = false;
                    armed = true;
                }
            }
            if armed {
                polled.retain(|at| {
                    items.get(*at).and_then(Option::as_ref).is_some_and(|item| item.is_polled)
                });
            }
            // The first ones go to the end, so that the last is not always the last.
            if count > 0 && !room.has(events, count) {
                let turn = count.min(polled.len());
                polled.rotate_left(turn);
            }
            (count, polled.len())
        })
    }

    /// The caller is about to go with these events, and there may be more, for which no bell was sent since
    /// the caller was awake. If others sleep here, one of them is to have them.
    fn pass_on(&self, epfd: c_int, taken: &[libc::epoll_event]) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let next = self.with(|state| {
            let State { items, polled, asleep, .. } = state;
            let mut due = polled.iter().copied().filter(|at| {
                let item = items.get(*at).and_then(Option::as_ref);
                let is_taken = |item: &Item| taken.iter().any(|event| { event.u64 } == item.data);
                item.is_some_and(|item| item.is_marked && !is_taken(item) && item.due() != 0)
            });
            if *asleep > 0 { due.next() } else { None }
        });
        if let Some(at) = next {
            self.stir(at, epfd);
        }
    }

    /// Whether the kernel's events are not the program's as they are. Asked once they are there: items
    /// come and go meanwhile, and the last one's mark is in the kernel until its socket is closed.
    fn is_to_sift(&self) -> bool {
        self.has_marked.load(Ordering::SeqCst) || self.count.load(Ordering::Relaxed) > 0
    }

    /// Keeps of the kernel's events those that the program knows, and polls what has been notified
    /// for.
    pub(super) fn sift(
        &self,
        epfd: c_int,
        events: &mut [libc::epoll_event],
        count: usize,
    ) -> usize {
        let (mut kept, mut ghosts) = (0, Vec::new());
        self.with(|state| {
            for read in 0..count {
                let Some(event) = events.get(read).copied() else { break };
                let (mask, data) = (event.events, event.u64);
                if data & !u64::from(u32::MAX) == MARK {
                    if data == MARK | BELL {
                        state.doorbell.drain_some();
                        continue;
                    }
                    let at = usize::try_from(data & u64::from(u32::MAX)).unwrap_or(usize::MAX);
                    let Some(item) = state.items.get_mut(at).and_then(Option::as_mut) else {
                        continue;
                    };
                    if item.ghost_of.is_some() {
                        // Another process uses the connection: it is really removed.
                        let _ = kernel_control(epfd, libc::EPOLL_CTL_DEL, item.fd, 0, 0);
                        ghosts.push(at);
                        continue;
                    }
                    match &item.target {
                        Target::Datagram(_) => {}
                        Target::Inner(_) if item.is_orphan() => {}
                        Target::Inner(inner) => inner.harvest(item.fd),
                        Target::Socket(socket) => {
                            item.notified |= mask;
                            if mask & GRAVE != 0 && socket.segment().is_some() {
                                // It may be of a connection that was here when the kernel was asked.
                                park::look_at_kernel(socket, item.via);
                            }
                            if socket.waiters.watchers.load(Ordering::Relaxed) == 1
                                && let Some(segment) = socket.mapped()
                            {
                                bell::drain(socket, segment, item.via, false);
                            }
                        }
                    }
                    start_polling(&mut state.polled, at, item);
                    continue;
                }
                if !state.datagrams.is_empty() {
                    state.claim(data);
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

    /// A thread is about to sleep on this instance. Returns false if it must not.
    fn fall_asleep(&self, epfd: c_int, has_items: bool) -> bool {
        self.with(|state| state.asleep += 1);
        let sleeps = !has_items || self.arm(Some(epfd));
        if !sleeps {
            self.with(State::awakes);
        }
        sleeps
    }

    /// After a sleep: what was polled before is polled again, and need not notify.
    fn wake(&self) {
        self.with(|state| {
            let State { items, polled, asleep, datagrams, parked, .. } = state;
            for at in datagrams.iter().filter(|_| *asleep == 0) {
                let item = items.get_mut(*at).and_then(Option::as_mut);
                if let Some(item) = item.filter(|item| item.is_parked || item.is_polled) {
                    item.disarm();
                }
            }
            parked.retain(|at| {
                let at = *at;
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { return false };
                item.is_parked = false;
                let idle = item.idle;
                // Others may sleep on, which are to be told what comes while this one does something else.
                if *asleep == 0
                    && let Target::Socket(socket) = &item.target
                    && let Some(segment) = socket.mapped()
                {
                    segment.connection(socket).disarm();
                }
                start_polling(polled, at, item);
                item.idle = idle;
                false
            });
        });
    }

    /// Looks at the next few items again: no thread sleeps for ever because a bell was lost, or because both ends of a
    /// connection wait for room.
    fn check(&self) {
        let (mut still, mut inner) = (Few::new(), Few::new());
        self.with(|state| {
            let State { items, polled, next_check, .. } = state;
            let count = items.len().min(CHECK_MAX);
            for _ in 0..count {
                let at = if *next_check < items.len() { *next_check } else { 0 };
                *next_check = at + 1;
                let Some(item) = items.get_mut(at).and_then(Option::as_mut) else { continue };
                let writes = item.events & libc::EPOLLOUT as u32 != 0;
                match &item.target {
                    Target::Socket(socket) if writes && item.is_marked => {
                        park::look_at_kernel(socket, item.via);
                        if standstill::may_be(socket)
                            && item.waits_for_room()
                            && standstill::is_due(socket)
                        {
                            still.push((socket.clone(), item.via));
                        }
                    }
                    Target::Inner(instance) => {
                        instance.0.retain().into_iter().for_each(|used| inner.push(used))
                    }
                    Target::Socket(_) | Target::Datagram(_) => {}
                }
                start_polling(polled, at, item);
            }
        });
        for (socket, fd) in &*still {
            standstill::end(socket, *fd);
        }
        for instance in &*inner {
            instance.check_if_due();
        }
    }

    /// The same, if that has not been for long.
    pub(crate) fn check_if_due(&self) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let now = raw::now_ns();
        if now.saturating_sub(self.checked_ns.load(Ordering::Relaxed)) < SLICE_NS {
            return false;
        }
        self.checked_ns.store(now, Ordering::Relaxed);
        self.check();
        true
    }

    /// Of the kernel's events and ours: a UDP socket is the only one that both may report, and registrations of others may
    /// have the same mark.
    fn merge(&self, events: &mut [libc::epoll_event], count: usize, kept: usize) -> usize {
        self.with(|state| {
            let item = |at: &usize| state.items.get(*at).and_then(Option::as_ref);
            let marks = || state.datagrams.iter().filter_map(item).map(|item| item.data);
            merge(events, count, kept, |data| marks().any(|mark| mark == data))
        })
    }

    fn is_parked(&self) -> bool {
        self.with(|state| {
            let item = |at: &usize| state.items.get(*at).and_then(Option::as_ref);
            let mut datagrams = state.datagrams.iter().filter_map(item);
            state.asleep == 0 && datagrams.any(|item| item.is_parked && item.is_armed)
        })
    }

    /// Whether a UDP socket among the items has frames.
    fn has_frames(&self) -> bool {
        self.with(|state| {
            let item = |at: &usize| state.items.get(*at).and_then(Option::as_ref);
            state.datagrams.iter().filter_map(item).any(Item::has_frames)
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

/// A call that waits.
struct Waiter<'a> {
    epoll: &'a Epoll,
    epfd: c_int,
    events: &'a mut [libc::epoll_event],
    mask: Option<&'a libc::sigset_t>,
    waiting: &'a mut Waiting,
    /// The call does not wait.
    is_look: bool,
    has_items: bool,
    /// Looks at memory since the kernel was asked. What rings have to say comes first; the kernel is asked after a
    /// while, or by the sleep.
    looks: usize,
    /// How often this call has asked the kernel.
    asks: u32,
    /// It must not sleep. It may be so for long, and only the kernel knows of the others.
    is_restless: bool,
    /// The last look, or the sleep after it, asked the kernel about everything.
    has_asked: bool,
    /// It has slept in vain, and goes on: items are looked at again.
    is_to_check: bool,
    /// What the kernel said of the last sleep, and what the instance had then.
    slept: Result<usize, Errno>,
    marks: Marks,
}

/// What an instance has whose thread sleeps.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    rings: bool,
    frames: bool,
}

impl Waiter<'_> {
    /// Asks the kernel, whose events come behind the first `count`. Returns how many there are then.
    fn ask_kernel(&mut self, count: usize) -> usize {
        self.looks = 0;
        self.asks = self.asks.wrapping_add(1);
        let epoll = self.epoll;
        let rest = self.events.get_mut(count..).unwrap_or(&mut []);
        if rest.is_empty() {
            return count;
        }
        let found = kernel_wait(self.epfd, rest);
        let kept = if epoll.is_to_sift() { epoll.sift(self.epfd, rest, found) } else { found };
        if count > 0 {
            return epoll.merge(self.events, count, kept);
        }
        if kept == 0 && found > 0 {
            // Bells alone: what they were sent for is polled now.
            return self.scan().0;
        }
        kept
    }

    fn scan(&mut self) -> (usize, usize) {
        let (count, polled) = self.epoll.scan(self.events);
        self.waiting.rings = count;
        (count, polled)
    }

    /// So many events are there: items are looked at again, if that has not been for long, and reported if there is nothing
    /// else. A program whose time limits are short, or that spins, never sleeps for as long as that.
    fn checked(&mut self, count: usize) -> usize {
        if self.check_if_due() && count == 0 { self.scan().0 } else { count }
    }

    /// Whether items have been looked at again. Where something is always ready, no call ends with nothing: what is found is
    /// reported with the next one.
    fn check_if_due(&self) -> bool {
        self.has_items && self.epoll.check_if_due()
    }
}

impl Wait for Waiter<'_> {
    type Answer = Result<usize, Errno>;

    #[inline]
    fn look(&mut self, budget: &mut Budget) -> Look<Self::Answer> {
        let epoll = self.epoll;
        if std::mem::take(&mut self.is_to_check) {
            epoll.check();
        }
        xdp::streams::look();
        epoll.let_in();
        self.has_items = epoll.count.load(Ordering::Relaxed) > 0;
        self.waiting.rings = 0;
        let (mut count, mut polled) = (0, 0);
        if self.has_items {
            epoll.sync(self.epfd);
            (count, polled) = self.scan();
        }
        let is_restless = std::mem::take(&mut self.is_restless);
        let config = config::get();
        self.has_asked = match polled {
            _ if count > 0 => epoll.is_kernels_turn(config.kernel_skip),
            _ if self.is_look || is_restless => true,
            0 => budget.start().spins(),
            _ => self.looks >= config.kernel_every && budget.start().spins(),
        };
        if self.has_asked {
            count = self.ask_kernel(count);
        }
        let is_late = self.asks.is_multiple_of(ASKS_BY_TIME);
        if self.has_asked && (count > 0 || self.is_look || is_late) {
            count = self.checked(count);
        }
        if count > 0 || self.is_look {
            return Look::Found(Ok(count));
        }
        self.looks += polled;
        Look::Nothing(match polled {
            0 => LOOKS_OF_KERNEL,
            polled => u32::try_from(polled).unwrap_or(u32::MAX),
        })
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Self::Answer> {
        let epoll = self.epoll;
        self.looks = 0;
        if !epoll.fall_asleep(self.epfd, self.has_items) {
            self.is_restless = true;
            return Rest::Barred;
        }
        xdp::streams::resting();
        self.waiting.sleeps();
        let rings = self.has_items && epoll.has_marks();
        let has_datagrams = self.has_items && epoll.with(|state| !state.datagrams.is_empty());
        let framed_ns = xdp::slice_ns().filter(|_| has_datagrams && epoll.has_frames());
        self.marks = Marks { rings, frames: framed_ns.is_some() };
        let slice_ns = match rings {
            true => Some(budget.left_ns().unwrap_or(u64::MAX).min(SLICE_NS)),
            false => budget.slice_ns(),
        };
        let slice_ns = [slice_ns, framed_ns].into_iter().flatten().min();
        let sleeper = Sleeper { epoll, starts_polling: rings || has_datagrams };
        self.slept = sleep(self.epfd, self.events, slice_ns, self.mask);
        drop(sleeper);
        Rest::Slept
    }

    fn woken(&mut self) -> Option<Self::Answer> {
        self.waiting.wakes();
        // Signals may end every sleep, and so may events that are none of the program's.
        self.check_if_due();
        let epoll = self.epoll;
        let found = match self.slept {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let is_to_sift = epoll.is_to_sift();
        let kept = if is_to_sift { epoll.sift(self.epfd, self.events, found) } else { found };
        if kept > 0 {
            // Hot items for which bells have come are reported with the next call, or with another thread's.
            return Some(Ok(kept));
        }
        if self.marks.rings || self.marks.frames {
            let (count, _) = self.scan();
            if count > 0 {
                return Some(Ok(count));
            }
        }
        self.has_asked = found == 0;
        self.is_to_check = found == 0 && (self.marks.rings || self.marks.frames);
        None
    }

    fn last_look(&mut self) -> Option<Self::Answer> {
        let count = if self.has_asked { 0 } else { self.ask_kernel(0) };
        let count = self.checked(count);
        (count > 0).then_some(Ok(count))
    }
}

/// A thread that sleeps on an instance. It may be cancelled there.
#[derive(Debug)]
struct Sleeper<'a> {
    epoll: &'a Epoll,
    /// Whether there is anything that was polled before.
    starts_polling: bool,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.epoll.with(State::awakes);
        if self.starts_polling {
            self.epoll.wake();
        }
    }
}

/// How much of the program's array has been seen to be there. Its first event has been.
#[derive(Debug)]
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(1)
    }
}

impl Room {
    /// Whether there is room for one event behind so many.
    #[inline]
    fn has(&mut self, events: &mut [libc::epoll_event], count: usize) -> bool {
        count < self.0.min(events.len()) || self.grows(events)
    }

    #[cold]
    fn grows(&mut self, events: &mut [libc::epoll_event]) -> bool {
        [ROOM_EVENTS, 1].into_iter().any(|more| {
            let end = self.0.saturating_add(more).min(events.len());
            let next = events.get_mut(self.0..end).unwrap_or(&mut []);
            let bytes = size_of_val(next);
            let is_there = bytes > 0 && copy::is_writable(next.as_mut_ptr().cast(), bytes);
            if is_there {
                self.0 = end;
            }
            is_there
        })
    }
}

/// Events for which it is looked at once whether there is room.
const ROOM_EVENTS: usize = 64;
/// A call that spins looks at the clock when it has asked the kernel so many times.
const ASKS_BY_TIME: u32 = 64;

/// Events of the kernel's, `kept` of them, behind `count` of ours: what is about the same
/// registration becomes one, which `may_be_both` says by its mark. Returns how many there are then.
fn merge(
    events: &mut [libc::epoll_event],
    count: usize,
    kept: usize,
    may_be_both: impl Fn(u64) -> bool,
) -> usize {
    let (ours, kernels) = events.split_at_mut(count);
    let mut new = 0;
    for read in 0..kept {
        let Some(event) = kernels.get(read).copied() else { break };
        let data = event.u64;
        match ours.iter_mut().find(|known| { known.u64 } == data && may_be_both(data)) {
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
    /// The kernel has reported something under this mark of the program's: mailboxes of UDP sockets
    /// that are known by it are looked at again.
    fn claim(&mut self, data: u64) {
        let Self { items, polled, asleep, datagrams, .. } = self;
        for at in datagrams.iter().copied() {
            let item = items.get_mut(at).and_then(Option::as_mut);
            let Some(item) = item.filter(|item| item.is_seen && item.data == data) else {
                continue;
            };
            if *asleep == 0 {
                item.disarm();
            }
            start_polling(polled, at, item);
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

/// Events that say that a peer is gone.
const GRAVE: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
/// Items that are looked at after a sleep in vain, at most.
const CHECK_MAX: usize = 512;
