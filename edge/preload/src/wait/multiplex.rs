//! `poll` and `select`: many descriptors are looked at at once, some of which have rings.
//!
//! The kernel is asked about everything, rings or not: about a connection with rings, whether a
//! bell has come or the peer is gone. What the program is told of such a connection is worked out
//! from the rings.
//!
//! # Safety
//!
//! Arrays passed to the kernel are slices of ours, or the program's own, as it passed them.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use adverb_switchover::{Route, Want};

use crate::base::few::Few;
use crate::base::raw::{self, Errno};
use crate::base::thread::{Interrupts, Seen};
use crate::base::{config, ppoll};
use crate::socket::arena;
use crate::socket::spin::{LOOKS_OF_KERNEL, SLICE_NS, SpinBudget};
use crate::socket::table::{self, SocketRef};
use crate::socket::wait_loop::{self, Budget, Ended, Limits, Look, Rest, Wait};
use crate::socket::waits::{Call, Waiting};
use crate::transport::datagram::{self, Content};
use crate::transport::doorbell::{Borrowed, Doorbell, Sleeping};
use crate::transport::park::{self, Sleeper};
use crate::transport::ring::Segment;
use crate::transport::{bell, fallback, xdp};
use crate::wait::epoll::{self, Instance};
use crate::wait::{filters, standstill};

/// What we know about one descriptor of the set.
#[derive(Debug)]
enum Known {
    Nothing,
    Socket(SocketRef),
    /// One that has a mailbox, or may get one while we wait.
    Datagram(SocketRef),
    Epoll(Instance),
}

impl Known {
    fn of(fd: c_int) -> Self {
        if let Some(socket) = table::socket(fd) {
            fallback::advance(&socket, fd);
            if datagram::may_use_mailbox(&socket) {
                xdp::get(&socket, fd);
                return Self::Datagram(socket);
            }
            return match socket.segment() {
                Some(_) => Self::Socket(socket),
                None => Self::Nothing,
            };
        }
        epoll::of(fd).map_or(Self::Nothing, Self::Epoll)
    }

    fn rings(&self) -> Option<(&SocketRef, &Segment)> {
        match self {
            Self::Socket(socket) => socket.segment().map(|segment| (socket, segment)),
            Self::Nothing | Self::Datagram(_) | Self::Epoll(_) => None,
        }
    }

    /// Whether the kernel has to be asked from the start: not if memory alone may have the answer.
    fn needs_kernel(&self, fd: &libc::pollfd) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Datagram(_) => self.waits_for_kernel(fd) || fd.events & libc::POLLOUT != 0,
            Self::Nothing | Self::Epoll(_) => true,
        }
    }

    /// A socket that may get a mailbox, and has none yet.
    fn waits_for_kernel(&self, fd: &libc::pollfd) -> bool {
        matches!(self, Self::Datagram(socket) if datagram::store(socket, fd.fd).is_none())
    }
}

/// `ppoll(2)`; `call` is the one that the program has made.
pub(crate) fn poll(
    call: Call,
    fds: &mut [libc::pollfd],
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    raw::cancellation_point();
    let errno = raw::errno();
    let mut waiting = Waiting::begin(arena::waits(), call);
    let answer = match filters::is_any() {
        false => poll_unfiltered(fds, limit_ns, mask, &mut waiting),
        true => filters::until_kept(limit_ns, |left_ns| {
            let count = poll_unfiltered(fds, left_ns, mask, &mut waiting)?;
            Ok((count, filters::sift(fds)))
        }),
    };
    waiting.end(&answer);
    raw::set_errno(errno);
    answer
}

/// `ppoll(2)`, of whatever comes.
pub(crate) fn poll_unfiltered(
    fds: &mut [libc::pollfd],
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
    waiting: &mut Waiting,
) -> Result<usize, Errno> {
    let (config, seen) = (config::get(), Seen::now());
    // A mask that changes which signals arrive is the kernel's business alone, as are no descriptors.
    if fds.is_empty() || limit_ns == Some(0) && !fds.iter().any(|fd| is_known(fd.fd)) {
        waiting.sleeps();
        return ppoll::sleep(fds, limit_ns, mask);
    }
    let known = fds.iter().map(|fd| Known::of(fd.fd)).collect::<Few<_>>();
    let limits = Limits { spin_ns: config.select_spin_ns, limit_ns, kind: Interrupts::All };
    if known.iter().all(|known| matches!(known, Known::Nothing)) {
        return wait_for_kernel(fds, Budget::new(limits, seen), mask, waiting);
    }
    // If there is nothing but rings, the first look at the kernel can wait until they are empty.
    let is_mixed = known.iter().zip(&*fds).any(|(known, fd)| known.needs_kernel(fd));
    let has_streams = known.iter().any(|known| matches!(known, Known::Socket(_) | Known::Epoll(_)));
    let every = if is_mixed { config.kernel_every } else { config.kernel_every.max(RINGS_ALONE) };
    let mut budget = Budget::new(limits, seen);
    let looks = if is_mixed || is_due(&known, budget.start().start_ns()) { every } else { 0 };
    let is_look = limit_ns == Some(0);
    let (has_asked, slept, asked) = (false, Ok(0), None);
    answer_of(wait_loop::wait(
        budget,
        &mut Polling {
            fds,
            known,
            mask,
            waiting,
            has_streams,
            every,
            looks,
            is_look,
            has_asked,
            slept,
            asked,
        },
    ))
}

/// What `poll` and `select` say of a wait.
fn answer_of(answer: Result<Result<usize, Errno>, Ended>) -> Result<usize, Errno> {
    match answer {
        Ok(answer) => answer,
        Err(Ended::TimedOut) => Ok(0),
        Err(Ended::Interrupted) => Err(Errno::INTR),
    }
}

/// A call whose descriptors may have something in memory.
struct Polling<'a> {
    fds: &'a mut [libc::pollfd],
    known: Few<Known>,
    mask: Option<&'a libc::sigset_t>,
    waiting: &'a mut Waiting,
    has_streams: bool,
    /// The kernel is asked after so many looks at memory, and there have been so many.
    every: usize,
    looks: usize,
    /// The call does not wait.
    is_look: bool,
    /// The last look, or the sleep before it, asked the kernel.
    has_asked: bool,
    /// What the kernel said of the last sleep, and of the descriptors then.
    slept: Result<usize, Errno>,
    asked: Option<Few<libc::pollfd>>,
}

impl Wait for Polling<'_> {
    type Answer = Result<usize, Errno>;

    #[inline]
    fn look(&mut self, _: &mut Budget) -> Look<Self::Answer> {
        xdp::streams::look();
        let mut each = self.known.iter().zip(&*self.fds);
        let is_eager = each.any(|(known, fd)| known.waits_for_kernel(fd));
        let kernel = is_eager || self.looks >= self.every || self.is_look;
        self.has_asked = kernel;
        self.looks = if kernel { 0 } else { self.looks + self.fds.len() };
        if kernel {
            end_standstills(self.fds, &self.known);
        }
        let asked = kernel.then(|| ask_now(self.fds, &self.known));
        let count = look(self.fds, &mut self.known, asked, self.waiting);
        if count > 0 || self.is_look {
            return Look::Found(Ok(count));
        }
        let looks = u32::try_from(self.fds.len()).unwrap_or(u32::MAX);
        Look::Nothing(if is_eager { LOOKS_OF_KERNEL } else { looks })
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Self::Answer> {
        self.looks = 0;
        if end_standstills(self.fds, &self.known) {
            return Rest::Barred;
        }
        xdp::streams::resting();
        self.waiting.sleeps();
        match sleep_on_memory(self.fds, &self.known, budget.left_ns(), self.mask) {
            Err(error) => return Rest::Answered(Err(error)),
            Ok(true) => {
                (self.slept, self.asked) = (Ok(0), None);
                return Rest::Slept;
            }
            Ok(false) => {}
        }
        let Some(parked) = park(self.fds, &self.known) else {
            // Something is there, or about to come through the kernel.
            raw::nap(BLOCKED_NAP_NS);
            self.looks = self.every;
            return Rest::Barred;
        };
        let sleepers = sleepers(self.fds, &self.known);
        let waits_for_bytes = self.fds.iter().zip(&*self.known).any(waits_for_ring_bytes);
        let bell = waits_for_bytes.then(Borrowed::take).flatten();
        if !arm_all(self.fds, &self.known, bell.as_deref()) {
            // That may be so for long, and only the kernel knows of the others.
            self.looks = self.every;
            return Rest::Barred;
        }
        let mut asked = ask(self.fds, &self.known);
        let bell_fd = bell.as_ref().and_then(|bell| bell.fd());
        if let Some(fd) = bell_fd {
            asked.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        }
        let slice_ns = match self.has_streams {
            true => Some(budget.left_ns().unwrap_or(u64::MAX).min(SLICE_NS)),
            false => budget.slice_ns(),
        };
        let has_frames = || parked.iter().any(datagram::Sleeper::has_frames);
        let framed_ns = xdp::slice_ns().filter(|_| has_frames());
        let left_ns = [slice_ns, framed_ns].into_iter().flatten().min();
        self.slept = ppoll::sleep(&mut asked, left_ns, self.mask);
        if let (Some(bell), Some(_)) = (&bell, bell_fd)
            && asked.last().is_some_and(|polled| polled.revents != 0)
        {
            bell.drain();
        }
        drop(bell);
        drop(sleepers);
        drop(parked);
        self.asked = Some(asked);
        Rest::Slept
    }

    fn woken(&mut self) -> Option<Self::Answer> {
        self.waiting.wakes();
        for (asked, known) in self.asked.iter().flat_map(|asked| &**asked).zip(&*self.known) {
            if let Some((socket, segment)) = known.rings() {
                park::apply_events(socket, asked.fd, asked.revents);
                if asked.revents & libc::POLLIN != 0 {
                    bell::drain_after_sleep(socket, segment, asked.fd);
                }
            }
        }
        if let Err(error) = self.slept {
            return Some(Err(error));
        }
        // What the kernel has said is still true of its own.
        self.has_asked = self.asked.is_some();
        let count = look(self.fds, &mut self.known, self.asked.take(), self.waiting);
        (count > 0).then_some(Ok(count))
    }

    /// Senders without a mailbox are heard of by the kernel alone, and a short limit leaves no time for the look at it.
    fn last_look(&mut self) -> Option<Self::Answer> {
        let is_datagram = |known: &Known| matches!(known, Known::Datagram(_));
        if self.has_asked || !self.known.iter().any(is_datagram) {
            return None;
        }
        let asked = ask_now(self.fds, &self.known);
        let count = look(self.fds, &mut self.known, Some(asked), self.waiting);
        (count > 0).then_some(Ok(count))
    }
}

/// Whether it is time to ask the kernel about connections with rings, however much they bring: that the
/// other end has been killed only the kernel says.
fn is_due(known: &[Known], now_ns: u64) -> bool {
    let each = || known.iter().filter_map(Known::rings);
    let is_due = each().any(|(socket, _)| park::is_look_due(socket, now_ns));
    if is_due {
        each().for_each(|(socket, _)| socket.waiting.looked_ns.store(now_ns, Ordering::Relaxed));
    }
    is_due
}

/// Says of every datagram socket that is waited for that its owner sleeps. `None` if one has
/// something already.
fn park<'a>(fds: &[libc::pollfd], known: &'a [Known]) -> Option<Few<datagram::Sleeper<'a>>> {
    let mut parked = Few::new();
    let stack = (&raw const parked).addr();
    datagram::end_left_sleeps(stack);
    for (fd, known) in fds.iter().zip(known) {
        let Known::Datagram(socket) = known else { continue };
        datagram::mind(socket, fd.fd);
        if fd.events & READING != 0 {
            parked.push(datagram::Sleeper::new(socket, fd.fd, stack)?);
        }
    }
    Some(parked)
}

/// Events that a datagram is.
const READING: i16 = libc::POLLIN | libc::POLLRDNORM;
/// Looks at nothing but rings for each look at the kernel, at least.
const RINGS_ALONE: usize = 4096;
/// How long a poller sleeps that waits for what the kernel has not brought yet.
const BLOCKED_NAP_NS: i64 = 50_000;

fn is_known(fd: c_int) -> bool {
    table::socket(fd).is_some() || epoll::of(fd).is_some()
}

/// A call that waits for nothing but the kernel's descriptors.
struct KernelPolling<'a> {
    fds: &'a mut [libc::pollfd],
    mask: Option<&'a libc::sigset_t>,
    waiting: &'a mut Waiting,
    /// Its looks ask the kernel.
    spins: bool,
}

impl Wait for KernelPolling<'_> {
    type Answer = Result<usize, Errno>;

    fn look(&mut self, budget: &mut Budget) -> Look<Self::Answer> {
        self.spins = budget.start().spins();
        match if self.spins { ppoll::now(self.fds) } else { 0 } {
            0 => Look::Nothing(LOOKS_OF_KERNEL),
            count => Look::Found(Ok(count)),
        }
    }

    fn sleep(&mut self, budget: &mut SpinBudget) -> Rest<Self::Answer> {
        self.waiting.sleeps();
        loop {
            let answer = ppoll::sleep(self.fds, budget.slice_ns(), self.mask);
            if answer != Ok(0) || budget.is_over() {
                return Rest::Answered(answer);
            }
            if budget.is_interrupted() {
                return Rest::Answered(Err(Errno::INTR));
            }
        }
    }

    fn last_look(&mut self) -> Option<Self::Answer> {
        (!self.spins).then(|| Ok(ppoll::now(self.fds)))
    }
}

/// Waits for nothing but the kernel's descriptors.
fn wait_for_kernel(
    fds: &mut [libc::pollfd],
    mut budget: Budget,
    mask: Option<&libc::sigset_t>,
    waiting: &mut Waiting,
) -> Result<usize, Errno> {
    // Without a socket of ours among them, the wait is for a pipe or a terminal: no reason to
    // burn a processor.
    if mask.is_some() || !fds.iter().any(|fd| is_known(fd.fd)) {
        waiting.sleeps();
        return ppoll::sleep(fds, budget.start().left_ns(), mask);
    }
    answer_of(wait_loop::wait(budget, &mut KernelPolling { fds, mask, waiting, spins: false }))
}

/// The set as the kernel is asked about it: bells and ends of connections with rings, everything
/// of the others.
fn ask(fds: &[libc::pollfd], known: &[Known]) -> Few<libc::pollfd> {
    let each = fds.iter().zip(known).map(|(fd, known)| match known.rings() {
        None => libc::pollfd { fd: fd.fd, events: fd.events, revents: 0 },
        Some((socket, segment)) => {
            let (_, writing) = park::kernel_speaks(socket, segment);
            let writing = if writing { fd.events } else { 0 };
            let writing = if park::has_to_resend(socket) { libc::POLLOUT } else { writing };
            let room = writing & libc::POLLOUT;
            // The peer's end may be the kernel's already: it wakes those alone that wait for it.
            let is_leaving = socket.route() == Route::Leaving;
            let wanted = if is_leaving { fd.events } else { libc::POLLIN | libc::POLLRDHUP };
            let wanted = wanted & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP);
            let events = wanted | room;
            libc::pollfd { fd: fd.fd, events, revents: 0 }
        }
    });
    each.collect()
}

/// Asks the kernel about the set, now.
fn ask_now(fds: &[libc::pollfd], known: &[Known]) -> Few<libc::pollfd> {
    let mut asked = ask(fds, known);
    ppoll::now(&mut asked);
    asked
}

/// Looks at everything once, with the kernel's answers if it has been asked, and fills in what has happened. Returns how many have something.
fn look(
    fds: &mut [libc::pollfd],
    known: &mut [Known],
    mut asked: Option<Few<libc::pollfd>>,
    waiting: &mut Waiting,
) -> usize {
    let kernel = asked.is_some();
    let mut has_changed = false;
    for (fd, known) in fds.iter().zip(known.iter_mut()) {
        if let Known::Socket(socket) = known
            && socket.segment().is_none_or(Segment::is_leaving)
        {
            *known = Known::of(fd.fd);
            has_changed = true;
        }
    }
    if kernel && has_changed {
        // It was asked for bells.
        asked = Some(ask_now(fds, known));
    }
    if let Some(asked) = asked {
        for ((fd, known), asked) in fds.iter_mut().zip(known.iter_mut()).zip(&*asked) {
            fd.revents = 0;
            match known {
                Known::Socket(socket) => {
                    park::apply_events(socket, asked.fd, asked.revents);
                }
                Known::Nothing | Known::Datagram(_) | Known::Epoll(_) => fd.revents = asked.revents,
            }
            if let Known::Nothing = known
                && let refreshed @ Known::Socket(_) = Known::of(fd.fd)
            {
                // It has got rings while we waited.
                fd.revents = 0;
                *known = refreshed;
            }
        }
    }
    let (mut count, mut rings) = (0, 0);
    for (fd, known) in fds.iter_mut().zip(known.iter()) {
        let mut is_of_ring = false;
        match known {
            Known::Nothing => {
                if !kernel {
                    fd.revents = 0;
                }
            }
            Known::Datagram(socket) => {
                if !kernel {
                    fd.revents = 0;
                }
                let is_wanted = fd.events & READING != 0;
                let store = datagram::store(socket, fd.fd).filter(|_| is_wanted);
                let has = |store| datagram::content(socket, store, fd.fd) == Content::Datagram;
                if store.is_some_and(has) {
                    is_of_ring = true;
                    fd.revents |= fd.events & READING;
                }
            }
            Known::Socket(_) => {
                if let Some((socket, segment)) = known.rings() {
                    let ready = epoll::events_of(socket, segment, fd.fd);
                    let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
                    fd.revents = ready & (fd.events | always);
                    is_of_ring = true;
                }
            }
            Known::Epoll(epoll) => {
                epoll.refresh(fd.fd);
                if epoll.has_marks() && fd.revents != 0 {
                    epoll.harvest(fd.fd);
                    fd.revents = 0;
                }
                if epoll.is_ready() {
                    fd.revents |= libc::POLLIN & fd.events;
                } else if !kernel {
                    fd.revents = 0;
                }
            }
        }
        count += usize::from(fd.revents != 0);
        rings += usize::from(fd.revents != 0 && is_of_ring);
    }
    waiting.rings = rings;
    count
}

/// Whether it is a connection with rings whose bytes are waited for.
fn waits_for_ring_bytes((fd, known): (&libc::pollfd, &Known)) -> bool {
    fd.events & libc::POLLIN != 0 && known.rings().is_some()
}

/// Arms everything, together if there is a doorbell for that. Returns false if something has happened
/// already.
fn arm_all(fds: &[libc::pollfd], known: &[Known], bell: Option<&Doorbell>) -> bool {
    let mut is_quiet = true;
    let number = bell.map_or(0, Doorbell::number);
    let ready = |fd: &libc::pollfd, known: &Known| {
        known.rings().is_some_and(|(socket, segment)| is_ready(fd, socket, segment))
    };
    for (fd, known) in fds.iter().zip(known) {
        match known {
            Known::Nothing | Known::Datagram(_) => {}
            Known::Epoll(epoll) => is_quiet &= epoll.arm(None),
            Known::Socket(_) => {
                let Some((socket, segment)) = known.rings() else { continue };
                // What comes through the kernel, the kernel wakes for.
                let number = if park::kernel_speaks(socket, segment).0 { 0 } else { number };
                let is_writer = fd.events & libc::POLLOUT != 0;
                let is_drained = bell::drain(socket, segment, fd.fd, is_writer);
                if fd.events & libc::POLLIN != 0
                    && !segment.connection(socket).arm_together(number, true)
                {
                    park::arm(socket, segment, Want::Read);
                }
                if is_writer {
                    park::arm(socket, segment, Want::Room);
                }
                if !is_drained && fd.events & libc::POLLIN == 0 {
                    // Another thread has to read what keeps the kernel's queue full.
                    raw::nap(NAP_NS);
                    park::look_at_kernel(socket, fd.fd);
                    is_quiet = false;
                }
                is_quiet &= number != 0 || !ready(fd, known);
            }
        }
    }
    if let Some(bell) = bell.filter(|_| number != 0) {
        bell.set(Sleeping::InKernel);
        // A peer that has something for us sees that, or we see what it has.
        fence(Ordering::SeqCst);
        is_quiet = is_quiet && !fds.iter().zip(known).any(|(fd, known)| ready(fd, known));
    }
    is_quiet
}

/// Gives connections back to the kernel that stand still, and for whose room alone this call waits. True if there was one.
fn end_standstills(fds: &[libc::pollfd], known: &[Known]) -> bool {
    let mut has_ended = false;
    for (fd, known) in fds.iter().zip(known) {
        match known {
            Known::Nothing | Known::Datagram(_) => {}
            Known::Epoll(epoll) => _ = epoll.check_if_due(),
            Known::Socket(_) => {
                if let Some((socket, _)) = known.rings()
                    && fd.events & (libc::POLLIN | libc::POLLOUT) == libc::POLLOUT
                    && standstill::is_due(socket)
                {
                    has_ended |= standstill::end(socket, fd.fd);
                }
            }
        }
    }
    has_ended
}

/// All that have rings, as sleepers.
fn sleepers<'a>(fds: &[libc::pollfd], known: &'a [Known]) -> Few<Sleeper<'a>> {
    let sleeper = |(fd, known): (&libc::pollfd, &'a Known)| {
        let (socket, _) = known.rings()?;
        Some(Sleeper::new(socket, fd.events & libc::POLLOUT != 0))
    };
    fds.iter().zip(known).filter_map(sleeper).collect()
}

/// Where all there is to wait for are bytes in rings: sleeps where only their writers wake it, for a
/// moment. A thread that has slept in vain sleeps on everything next. Returns whether it is worth looking.
fn sleep_on_memory(
    fds: &[libc::pollfd],
    known: &[Known],
    left_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<bool, Errno> {
    if !fds.iter().zip(known).all(waits_for_ring_bytes) {
        return Ok(false);
    }
    let _sleepers = sleepers(fds, known);
    if let ([fd], [known], None) = (fds, known, mask)
        && fd.events & libc::POLLOUT == 0
        && let Some((socket, segment)) = known.rings()
    {
        return Ok(park::sleep_on_word(socket, segment, left_ns));
    }
    Borrowed::take().map_or(Ok(false), |bell| sleep_on_bell(fds, known, &bell, left_ns, mask))
}

/// The same, on a doorbell.
fn sleep_on_bell(
    fds: &[libc::pollfd],
    known: &[Known],
    bell: &Doorbell,
    left_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<bool, Errno> {
    let of_bytes = READING | libc::POLLRDHUP | libc::POLLPRI;
    let is_together = |(fd, known): (&libc::pollfd, &Known)| {
        known.rings().is_some_and(|(socket, segment)| {
            fd.events & !of_bytes == 0
                && park::is_in_memory(socket, segment)
                && segment.connection(socket).arm_together(bell.number(), true)
        })
    };
    let Some(bell_fd) = bell.fd() else { return Ok(false) };
    if !fds.iter().zip(known).all(is_together) {
        return Ok(false);
    }
    bell.set(Sleeping::OnBell);
    // A peer that has something for us sees that, or we see what it has.
    fence(Ordering::SeqCst);
    let has_changed = |(fd, known): (&libc::pollfd, &Known)| {
        known.rings().is_none_or(|(socket, segment)| {
            is_ready(fd, socket, segment) || !park::is_in_memory(socket, segment)
        })
    };
    let mut asked = [libc::pollfd { fd: bell_fd, events: libc::POLLIN, revents: 0 }];
    let mut slept = Ok(1);
    if !fds.iter().zip(known).any(has_changed) {
        let most_ns = left_ns.unwrap_or(u64::MAX).min(park::MOMENT_NS);
        slept = ppoll::sleep(&mut asked, Some(most_ns), mask);
    }
    bell.set(Sleeping::Awake);
    if asked.iter().any(|polled| polled.revents != 0) {
        bell.drain();
    }
    slept.map(|count| count != 0)
}

fn is_ready(fd: &libc::pollfd, socket: &SocketRef, segment: &Segment) -> bool {
    let ready = epoll::events_of(socket, segment, fd.fd);
    ready & (fd.events | libc::POLLERR | libc::POLLHUP) != 0
}

/// How long a poller sleeps that cannot be woken.
const NAP_NS: i64 = 100_000;

/// The three sets of `select(2)`.
#[derive(Debug)]
pub(crate) struct Sets<'a> {
    pub(crate) read: Option<&'a mut [u64]>,
    pub(crate) write: Option<&'a mut [u64]>,
    pub(crate) except: Option<&'a mut [u64]>,
}

fn has(set: Option<&[u64]>, fd: usize) -> bool {
    set.and_then(|set| set.get(fd / 64)).is_some_and(|word| word & (1 << (fd % 64)) != 0)
}

/// Leaves in `set` the descriptors of `fds`, which ascend, for which `keep` says so. Returns how many.
fn keep(
    set: Option<&mut [u64]>,
    fds: &[libc::pollfd],
    keep: impl Fn(&libc::pollfd) -> bool,
) -> usize {
    let mut count = 0;
    let mut fds = fds.iter().filter_map(|fd| Some((usize::try_from(fd.fd).ok()?, fd))).peekable();
    for (at, word) in set.into_iter().flatten().enumerate() {
        let mut kept = 0;
        while let Some((number, fd)) = fds.next_if(|(number, _)| number / 64 == at) {
            let bit = 1 << (number % 64);
            if *word & bit != 0 && keep(fd) {
                kept |= bit;
                count += 1;
            }
        }
        *word = kept;
    }
    count
}

/// `pselect(2)`, where at least one descriptor is one that we know.
pub(crate) fn select(
    count: usize,
    sets: Sets<'_>,
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let Sets { read, write, except } = sets;
    let mut fds = Few::new();
    for fd in 0..count {
        let mut events = 0;
        if has(read.as_deref(), fd) {
            events |= libc::POLLIN;
        }
        if has(write.as_deref(), fd) {
            events |= libc::POLLOUT;
        }
        if has(except.as_deref(), fd) {
            events |= libc::POLLPRI;
        }
        if events != 0 {
            let fd = c_int::try_from(fd).unwrap_or(-1);
            fds.push(libc::pollfd { fd, events, revents: 0 });
        }
    }
    poll_selected(&mut fds, limit_ns, mask)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    Ok(keep(read, &fds, |fd| fd.revents & SELECT_READ != 0)
        + keep(write, &fds, |fd| fd.revents & SELECT_WRITE != 0)
        + keep(except, &fds, |fd| fd.revents & libc::POLLPRI != 0))
}

/// What makes a descriptor one to read, or to write, as the kernel has it.
const SELECT_READ: i16 = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
const SELECT_WRITE: i16 = libc::POLLOUT | libc::POLLERR;

/// Waits until a descriptor has what one of its sets is about. `poll` tells of ends and errors in any case: one that has nothing
/// else is left out, and looked at again after a while, as that may pass.
fn poll_selected(
    fds: &mut [libc::pollfd],
    limit_ns: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<(), Errno> {
    let is_wanted = |fd: &libc::pollfd| {
        let sets = [
            (libc::POLLIN, SELECT_READ),
            (libc::POLLOUT, SELECT_WRITE),
            (libc::POLLPRI, libc::POLLPRI),
        ];
        let is_in = |(event, has): &(i16, i16)| fd.events & event != 0 && fd.revents & has != 0;
        fd.revents & libc::POLLNVAL != 0 || sets.iter().any(is_in)
    };
    let (start_ns, mut left_ns, mut slice_ns) = (raw::now_ns(), limit_ns, None);
    loop {
        let wait_ns = [left_ns, slice_ns].into_iter().flatten().min();
        let count = poll(Call::Select, fds, wait_ns, mask)?;
        if fds.iter().any(is_wanted) || wait_ns == left_ns && count == 0 || left_ns == Some(0) {
            return Ok(());
        }
        // `poll` passes over numbers below 0.
        let is_moved = |fd: &libc::pollfd| if count > 0 { fd.revents != 0 } else { fd.fd < 0 };
        fds.iter_mut().filter(|fd| is_moved(fd)).for_each(|fd| fd.fd = !fd.fd);
        slice_ns = (count > 0).then_some(SLICE_NS);
        let passed_ns = raw::now_ns().saturating_sub(start_ns);
        left_ns = limit_ns.map(|limit| limit.saturating_sub(passed_ns));
    }
}

/// Whether one of the first `count` descriptors of a set is one that we know.
pub(crate) fn knows_any(count: usize, sets: &Sets<'_>) -> bool {
    let all = [sets.read.as_deref(), sets.write.as_deref(), sets.except.as_deref()];
    (0..count)
        .any(|fd| all.iter().any(|set| has(*set, fd)) && c_int::try_from(fd).is_ok_and(is_known))
}
