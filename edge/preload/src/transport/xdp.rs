//! Frames: UDP past the kernel, by AF_XDP, for sockets whose rules name the transport `xdp`.
//!
//! ```text
//! uplink    an interface whose frames this process has      queue     what has come for one socket, and its gate
//! way       where a datagram goes, and its headers          streams   TCP
//! own_fds   descriptors that programs do not know
//! ```
//!
//! A socket stays the kernel's: its port, its name, its groups, its errors. What is sent to it by an interface that has an
//! owner (`adverb sockets daemon --interface`) comes as frames while its *gate* is open, that is, while no thread sleeps
//! on it and no instance waits for it; everything else comes by the kernel's queue, which wakes sleepers. So sleeping,
//! and whatever watches the descriptor without our knowledge, is as it always was. What is sent goes as a frame where the
//! kernel knows the route and the neighbour, and by the kernel elsewhere.
//!
//! Frames belong to the process that has got them. Before it forks, its sockets go back to the kernel, and so does one
//! that another program gets. An owner that ends takes its program with it: everything is the kernel's then.
//!
//! # Safety
//!
//! What a socket's frames are is dropped by the process that made it, with the attachment, and never used after that. A
//! descriptor of the program's is open for the length of its call.

pub(crate) mod discard;
mod own_fds;
mod queue;
pub(crate) mod streams;
mod uplink;
mod way;

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use adverb_sys::fork::Generation;
use adverb_sys::netdev;
use adverb_xdp::Key;
use adverb_xdp::steering::Protocol;

use crate::base::lock::Guarded;
use crate::base::{address, raw, thread};
use crate::socket::state::{Attached, Kind, Reason, Socket};
use crate::socket::{memberships, policy, table};

pub(crate) use queue::{Datagram, Queue, Side};
use uplink::{Uplink, process};
use way::Ways;

/// What a process has of a socket's frames.
#[derive(Debug)]
pub(crate) struct Frames {
    generation: Generation,
    parts: ManuallyDrop<Parts>,
}

/// What has been asked for, and of which owner.
type Claim = (Arc<Uplink>, Key);

#[derive(Debug)]
struct Parts {
    uplinks: Vec<Arc<Uplink>>,
    queue: Arc<Queue>,
    keys: Guarded<Vec<Claim>>,
    /// How often addresses had changed when that was asked for.
    addresses_version: AtomicU64,
    /// One thread at a time changes that: with facts that are older than another's it would undo what that one has done.
    claiming: Guarded<()>,
    /// The places among the interfaces of those that some are for, a bit each, for looks without the lock.
    places: AtomicU64,
    domain: c_int,
    ways: Guarded<Ways>,
    /// The kernel is to be asked at each call that finds nothing: the program has been told what it has, or may be.
    is_watched: AtomicBool,
    /// Looks for frames so far, about: threads may count at once.
    looks: AtomicU32,
    /// When a call that found nothing has last asked it.
    asked_ns: AtomicU64,
    /// How many more its gate has let through than have arrived, as far as that is known: before its time, and dropped.
    through: AtomicU32,
}

// SAFETY: nothing else has this place.
unsafe impl Attached for Frames {
    const PLACE: usize = 2;
}

impl Drop for Frames {
    fn drop(&mut self) {
        // In a child it is all the parent's.
        if !self.generation.is_inherited() {
            self.let_go();
            process().free_gate(self.parts.queue.gate());
            // SAFETY: it is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

// What has become of a socket's frames, as `Datagrams::frames` has it.
const UNDECIDED: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;
const DECIDING: u8 = 3;

/// Forks that are about to happen: no socket gets frames meanwhile.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A handler has forked in the midst of something: the sockets that frames come for are still to be handed over.
static IS_HAND_OVER_DUE: AtomicBool = AtomicBool::new(false);

/// The frames of a socket, if this process has got them.
#[inline]
pub(crate) fn of(socket: &Socket) -> Option<&Frames> {
    if socket.datagrams.frames.load(Ordering::Acquire) != TAKEN {
        return None;
    }
    socket.attached::<Frames>().filter(|frames| !frames.generation.is_inherited())
}

/// The same; they are got now if rules want that, and nothing waits for the socket yet.
#[inline]
pub(crate) fn get(socket: &Socket, fd: c_int) -> Option<&Frames> {
    if has_none(socket) { None } else { get_wanted(socket, fd) }
}

#[inline(never)]
fn get_wanted(socket: &Socket, fd: c_int) -> Option<&Frames> {
    hand_over_if_due();
    let is_due = socket.datagrams.frames.load(Ordering::Acquire) == UNDECIDED
        && policy::wants_frames(socket)
        && socket.kind() == Kind::Datagram
        && !socket.datagrams.is_kernel_only.load(Ordering::Relaxed);
    if is_due {
        begin(socket, fd);
    }
    of(socket).inspect(|frames| frames.heed_addresses(socket, fd))
}

/// Whether a socket has none, nor is about to have any, and there is nothing to be done for others'.
#[inline]
pub(crate) fn has_none(socket: &Socket) -> bool {
    !IS_HAND_OVER_DUE.load(Ordering::Relaxed)
        && match socket.datagrams.frames.load(Ordering::Acquire) {
            TAKEN | DECIDING => false,
            UNDECIDED => !policy::wants_frames(socket),
            _ => true,
        }
}

#[cold]
fn begin(socket: &Socket, fd: c_int) {
    let errno = raw::errno();
    let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
    let state = &socket.datagrams.frames;
    // One thread decides; until it has, there are none.
    if address::name(fd, false).is_some_and(|own| own.port() != 0)
        && state.compare_exchange(UNDECIDED, DECIDING, Ordering::SeqCst, r).is_ok()
    {
        // A fork that is not seen here sees that a thread decides.
        let may = FORKS.load(Ordering::SeqCst) == 0 && !is_waited_for(socket);
        let found = if may { Frames::new(socket, fd) } else { None };
        let has_frames = found.is_some();
        found.into_iter().for_each(|frames| socket.attach(frames));
        let decided = if has_frames { TAKEN } else { REFUSED };
        let is_in_time = state.compare_exchange(DECIDING, decided, o, r).is_ok();
        fence(Ordering::SeqCst);
        // A thread that has gone to sleep meanwhile is seen here, or sees that there are frames.
        if is_in_time && has_frames && !is_waited_for(socket) {
            socket.set_reason(Reason::Frames);
            of(socket).into_iter().for_each(|frames| frames.parts.queue.release());
        } else {
            socket.attached::<Frames>().into_iter().for_each(Frames::let_go);
            socket.set_reason(if is_in_time { Reason::NoFrames } else { Reason::HandedOver });
        }
        policy::explain(socket, fd, "frames");
    }
    raw::set_errno(errno);
}

/// Whether a thread sleeps on the socket, or an instance watches it.
fn is_waited_for(socket: &Socket) -> bool {
    socket.waiters.watchers.load(Ordering::SeqCst) > 0
        || socket.waiters.sleepers.load(Ordering::SeqCst) > 0
}

/// The socket is the kernel's from now on, but for what is here already.
pub(crate) fn give_up(socket: &Socket, reason: Reason) {
    if !refuse(socket)
        && let Some(frames) = of(socket)
    {
        frames.let_go();
        socket.set_reason(reason);
    }
}

/// The socket's port may be others' as well, among which the kernel chooses.
pub(crate) fn share(socket: &Socket, fd: c_int) {
    if of(socket).is_some_and(|frames| !frames.parts.queue.is_over()) {
        give_up(socket, Reason::NoFrames);
        policy::explain(socket, fd, "frames");
    }
}

/// A socket that has no frames gets none; says whether it has none.
fn refuse(socket: &Socket) -> bool {
    let refused = |old| (old != TAKEN).then_some(REFUSED);
    socket.datagrams.frames.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refused).is_ok()
}

/// The socket has been connected, or is no more; or it has joined a group, or left it.
pub(crate) fn connected(socket: &Socket, fd: c_int) {
    if let Some(frames) = of(socket).filter(|frames| !frames.parts.queue.is_over()) {
        let errno = raw::errno();
        if !frames.parts.claiming.with(|()| frames.claim_anew(socket, fd)) {
            socket.set_reason(Reason::NoFrames);
        }
        raw::set_errno(errno);
    }
}

/// Just before a fork: sockets that two processes have are the kernel's.
pub(crate) fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    hand_over();
}

/// Whether anything of this process, or of one before it in the family, has had frames.
pub(crate) fn has_had_any() -> bool {
    uplink::is_any() || streams::has_had_any()
}

/// Just before the fork of a handler that has interrupted a thread which holds locks: the sockets are handed over once
/// that thread waits or calls again. What comes until then is the parent's.
pub(crate) fn defer_hand_over() {
    IS_HAND_OVER_DUE.store(true, Ordering::Release);
}

#[inline]
fn hand_over_if_due() {
    if IS_HAND_OVER_DUE.load(Ordering::Relaxed)
        && !thread::holds_locks()
        && IS_HAND_OVER_DUE.swap(false, Ordering::AcqRel)
    {
        let errno = raw::errno();
        hand_over();
        raw::set_errno(errno);
    }
}

fn hand_over() {
    table::each(0, usize::MAX, |fd| {
        if let Some(socket) = table::socket(fd)
            && !refuse(&socket)
            && of(&socket).is_some_and(|frames| !frames.parts.queue.is_over())
        {
            give_up(&socket, Reason::Forked);
            policy::explain(&socket, fd, "frames");
        }
    });
}

/// Still before it, when no thread changes a descriptor any more: none that was made meanwhile has frames yet.
pub(crate) fn about_to_fork() {
    table::each_socket(|socket| {
        if socket.kind() == Kind::Datagram {
            refuse(socket);
        }
    });
}

/// Just after it.
pub(crate) fn after_fork(is_child: bool) {
    // Forks by the parent's other threads are not the child's.
    match is_child {
        true => {
            FORKS.store(0, Ordering::SeqCst);
            IS_HAND_OVER_DUE.store(false, Ordering::Relaxed);
        }
        false => _ = FORKS.fetch_sub(1, Ordering::SeqCst),
    }
}

/// How long a thread may sleep that waits for a socket with frames: one may have been on its way when the gate was shut.
#[inline]
pub(crate) fn slice_ns() -> Option<u64> {
    uplink::is_any().then(slice_with_frames_ns)
}

#[inline(never)]
fn slice_with_frames_ns() -> u64 {
    let now = raw::now_ns();
    match now.saturating_sub(process().came_ns(now)) {
        ..ACTIVE_NS => ACTIVE_SLICE_NS,
        ACTIVE_NS.. => crate::socket::spin::SLICE_NS,
    }
}

/// Whether descriptors in a range are of this library's own, which the program does not know and must not close.
pub(crate) fn owns(fds: &RangeInclusive<c_int>) -> bool {
    uplink::is_any() && process().has_own(fds)
}

/// The parts of a range between descriptors of this library's own.
pub(crate) fn without_own(fds: RangeInclusive<c_int>, part: impl FnMut(c_int, c_int)) {
    process().without_own(fds, part);
}

impl Frames {
    /// Takes what comes for a socket, if there is an owner that gives it.
    fn new(socket: &Socket, fd: c_int) -> Option<Self> {
        let uplinks = process().uplinks();
        if uplinks.is_empty()
            || raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) != Ok(0)
        {
            return None;
        }
        let limit = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        let gate = process().take_gate(&socket.counters)?;
        let queue = Arc::new(Queue::new(gate, usize::try_from(limit).unwrap_or(0)));
        let through = uplinks.iter().map(|uplink| uplink.let_through(gate));
        let through = through.fold(0, u32::wrapping_add);
        let parts = Parts {
            uplinks,
            queue,
            keys: Guarded::new(Vec::new()),
            addresses_version: AtomicU64::new(process().addresses_version()),
            claiming: Guarded::new(()),
            places: AtomicU64::new(0),
            domain: raw::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET),
            ways: Guarded::new(Ways::default()),
            is_watched: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            asked_ns: AtomicU64::new(0),
            through: AtomicU32::new(through),
        };
        let frames = Self { generation: Generation::now(), parts: ManuallyDrop::new(parts) };
        frames.claim(socket, fd).then_some(frames)
    }

    /// Asks owners for what the kernel would bring to the socket; says whether it has got any of it.
    fn claim(&self, socket: &Socket, fd: c_int) -> bool {
        // SAFETY: the program's descriptor, which is open for the length of this call.
        let twin = unsafe { BorrowedFd::borrow_raw(fd) };
        let Parts { uplinks, queue, .. } = &*self.parts;
        for (uplink, key) in self.wanted(socket, fd) {
            if !process().enter(key, queue) {
                continue; // Another socket of this process has the same name.
            }
            match uplink.claim(key, queue.gate(), twin) {
                true => self.change_keys(|keys| keys.push((uplink, key))),
                false => process().leave(&key),
            }
        }
        queue.use_gates(uplinks);
        self.has_keys()
    }

    /// The same, once the socket's name or its peer's has changed. Keys that are needed still or that are not yet
    /// replaced stay meanwhile: what comes under them would come by the kernel, and nothing tells in which order then.
    fn claim_anew(&self, socket: &Socket, fd: c_int) -> bool {
        let (wanted, Parts { queue, keys, .. }) = (self.wanted(socket, fd), &*self.parts);
        let before = keys.with(|keys| keys.clone());
        let is_in = |all: &[Claim], (uplink, key): &Claim| {
            all.iter().any(|(other, old)| old == key && Arc::ptr_eq(other, uplink))
        };
        // Of another peer, or for another group, nothing has come as frames until now: the kernel brings all until the last key is in.
        let is_covered = wanted.iter().all(|claim| {
            let has = |old: &Key| old.remote.is_none() && old.local == claim.1.local;
            is_in(&before, claim) || before.iter().any(|(_, old)| has(old))
        });
        if !is_covered {
            queue.shut();
        }
        self.claim(socket, fd);
        let stale: Vec<_> = before.into_iter().filter(|claim| !is_in(&wanted, claim)).collect();
        self.change_keys(|keys| keys.retain(|claim| !is_in(&stale, claim)));
        self.let_go_of(&stale);
        if !is_covered {
            queue.open();
        }
        self.has_keys()
    }

    /// Addresses of interfaces may have changed, and with them what the kernel would bring to the socket.
    #[inline]
    fn heed_addresses(&self, socket: &Socket, fd: c_int) {
        let (seen, now) = (&self.parts.addresses_version, process().addresses_version());
        if seen.load(Ordering::Relaxed) == now || self.parts.queue.is_over() {
            return;
        }
        let errno = raw::errno();
        // While another thread does that, what has changed since is for a later call.
        self.parts.claiming.try_with(|()| {
            let now = process().addresses_version();
            if seen.swap(now, Ordering::AcqRel) != now {
                let has_any = self.claim_anew(socket, fd);
                socket.set_reason(if has_any { Reason::Frames } else { Reason::NoFrames });
            }
        });
        raw::set_errno(errno);
    }

    /// The keys of what the kernel would bring to the socket.
    fn wanted(&self, socket: &Socket, fd: c_int) -> Vec<Claim> {
        let Some(own) = address::name(fd, false).filter(|own| own.port() != 0) else {
            return Vec::new();
        };
        let remote = address::name(fd, true);
        let mut groups = memberships::of(socket);
        groups.retain(|group| match own.ip().is_unspecified() {
            true => group.is_ipv4() == own.is_ipv4(),
            false => *group == own.ip(),
        });
        let is_both = own.is_ipv6()
            && raw::option::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Ok(0);
        // SAFETY: the program's descriptor, which is open for the length of this call.
        let twin = unsafe { BorrowedFd::borrow_raw(fd) };
        let of_uplink = |uplink: &Arc<Uplink>| {
            let key = |local| Key { protocol: Protocol::Udp, local, remote };
            let claim = |local| (Arc::clone(uplink), key(local));
            let joined =
                groups.iter().filter(|group| netdev::has_group(twin, **group, uplink.index));
            let joined = joined.map(|group| SocketAddr::new(*group, own.port()));
            uplink.locals(own, is_both).into_iter().chain(joined).map(claim).collect::<Vec<_>>()
        };
        self.parts.uplinks.iter().flat_map(of_uplink).collect()
    }

    /// No frames come any more; what is here stays here.
    fn let_go(&self) {
        self.parts.queue.shut_for_good();
        self.parts.uplinks.iter().for_each(|uplink| uplink.let_leave());
        self.let_go_of_keys();
    }

    fn let_go_of_keys(&self) {
        self.let_go_of(&self.change_keys(std::mem::take));
    }

    /// Lets go of keys that are the socket's no more.
    fn let_go_of(&self, keys: &[Claim]) {
        keys.iter().for_each(|(uplink, key)| uplink.release(*key));
        // What has come until now is the socket's.
        if !keys.is_empty() {
            self.parts.uplinks.iter().for_each(|uplink| uplink.drain());
        }
        keys.iter().for_each(|(_, key)| process().leave(key));
        keys.iter().for_each(|(uplink, _)| uplink.forget_last());
    }

    fn change_keys<A>(&self, change: impl FnOnce(&mut Vec<Claim>) -> A) -> A {
        let Parts { uplinks, keys, places, .. } = &*self.parts;
        keys.with(|keys| {
            let answer = change(keys);
            places.store(
                places_of(uplinks, keys.iter().map(|(uplink, _)| uplink)),
                Ordering::Release,
            );
            answer
        })
    }

    fn has_keys(&self) -> bool {
        self.parts.places.load(Ordering::Acquire) != 0
    }

    /// The family of the socket's addresses.
    pub(crate) fn domain(&self) -> c_int {
        self.parts.domain
    }

    /// What has come for the socket.
    pub(crate) fn queue(&self) -> &Queue {
        &self.parts.queue
    }

    /// Gives every socket of this process what has come by the interfaces that something comes by for this one, and now and
    /// then by all: their rings are short, and sockets that read seldom have room for more.
    #[inline]
    pub(crate) fn look(&self) {
        if !self.generation.is_inherited() {
            let Parts { uplinks, places, looks, .. } = &*self.parts;
            let count = looks.load(Ordering::Relaxed).wrapping_add(1);
            looks.store(count, Ordering::Relaxed);
            let is_for_all = count.is_multiple_of(LOOKS_FOR_ALL);
            let places = places.load(Ordering::Acquire);
            for (place, uplink) in uplinks.iter().enumerate() {
                if is_for_all {
                    uplink.look_for_changes();
                }
                if is_for_all || places & bit(place) != 0 || uplink.has_unsent() {
                    uplink.look();
                }
            }
        }
    }

    /// Whether something has come.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.parts.queue.has_any() || {
            self.look();
            self.parts.queue.has_any()
        }
    }

    /// How many datagrams have come so far.
    pub(crate) fn head(&self) -> u64 {
        self.parts.is_watched.store(true, Ordering::Relaxed);
        self.look();
        self.parts.queue.count()
    }

    /// A thread is about to sleep; refused if something has come. In the child of a handler that has interrupted the
    /// parent's call, nothing comes any more.
    pub(crate) fn doze(&self) -> bool {
        if self.generation.is_inherited() {
            return true;
        }
        hand_over_if_due();
        self.parts.queue.shut();
        for _ in 0..LAST_LOOKS {
            if self.has_any() {
                break;
            }
            std::hint::spin_loop();
        }
        if !self.parts.queue.has_any() {
            // Another thread may be about to hand over what is for this one, and wakes nothing then.
            self.parts.uplinks.iter().for_each(|uplink| uplink.drain());
        }
        let sleeps = !self.parts.queue.has_any();
        if !sleeps {
            self.parts.queue.open();
        }
        sleeps
    }

    /// The kernel brings what comes from now on, whatever is here.
    pub(crate) fn hold(&self) {
        self.look();
        self.parts.queue.shut();
    }

    /// A thread does not sleep any more, or a hold has ended.
    pub(crate) fn awake(&self) {
        if !self.generation.is_inherited() {
            self.settle();
            hand_over_if_due();
            self.parts.queue.open();
        }
    }

    /// What a gate has let through before it was shut is here, or does not come: what the kernel has got since is later.
    #[inline]
    fn settle(&self) {
        let Parts { uplinks, queue, through, .. } = &*self.parts;
        let let_through = |uplink: &Arc<Uplink>| uplink.let_through(queue.gate());
        let count = || uplinks.iter().map(let_through).fold(0, u32::wrapping_add);
        // Those that were dropped on their way are not waited for again.
        let is_missing =
            || queue.arrived().wrapping_add(through.load(Ordering::Relaxed)) != count();
        if is_missing() {
            let until = raw::now_ns().saturating_add(SETTLE_NS);
            while is_missing() && raw::now_ns() < until {
                uplinks.iter().for_each(|uplink| uplink.drain());
                raw::give_way();
            }
            through.store(count().wrapping_sub(queue.arrived()), Ordering::Relaxed);
        }
    }

    /// Whether a call that finds no frames and does not wait is to ask the kernel as well.
    pub(super) fn is_kernels_turn(&self) -> bool {
        let Parts { uplinks, queue, is_watched, asked_ns, .. } = &*self.parts;
        if is_watched.load(Ordering::Relaxed)
            || queue.is_shut()
            || !self.has_keys()
            || uplinks.iter().all(|uplink| uplink.is_over())
        {
            return true;
        }
        let now = raw::now_ns();
        let is_due = now.saturating_sub(asked_ns.load(Ordering::Relaxed)) >= KERNEL_EVERY_NS;
        if is_due {
            asked_ns.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// The program has been told what the socket has, or is about to be.
    pub(crate) fn watched(&self) {
        self.parts.is_watched.store(true, Ordering::Relaxed);
    }

    /// Sends a datagram as a frame; `None` if it is to go by the kernel. `waits`: the call may, unless the socket's
    /// calls do not.
    pub(crate) fn send(
        &self,
        socket: &Socket,
        fd: c_int,
        parts: &[libc::iovec],
        to: Option<SocketAddr>,
        waits: bool,
    ) -> Option<usize> {
        let epoch = socket.datagrams.epoch.load(Ordering::Acquire);
        let multicast_by = socket.datagrams.multicast_by.load(Ordering::Relaxed);
        let Parts { uplinks, ways, .. } = &*self.parts;
        let by = (epoch, multicast_by);
        let (len, stuck) = ways.with(|ways| ways.send(uplinks, fd, by, parts, to))?;
        if waits
            && let Some(uplink) = stuck
            && !socket.flags.is_nonblocking.load(Ordering::Relaxed)
        {
            uplink.let_leave();
        }
        Some(len)
    }
}

/// The places of some among all, a bit each.
fn places_of<'a, T: 'a>(all: &[Arc<T>], some: impl Iterator<Item = &'a Arc<T>>) -> u64 {
    let place = |one| all.iter().position(|other| Arc::ptr_eq(other, one));
    some.filter_map(place).fold(0, |places, place| places | bit(place))
}

/// Places beyond the last bit share that bit.
#[inline]
fn bit(place: usize) -> u64 {
    1 << place.min(63)
}

/// One look in so many is at all interfaces.
const LOOKS_FOR_ALL: u32 = 64;
/// Looks at the rings between the shutting of a gate and a sleep: packets are handed over in batches.
const LAST_LOOKS: u32 = 64;
/// How long a frame may take to come that its gate has let through.
const SETTLE_NS: u64 = 1_000_000;
/// Frames have come so recently that one may still be on its way, and how long a sleep lasts then.
const ACTIVE_NS: u64 = 100_000_000;
const ACTIVE_SLICE_NS: u64 = 10_000_000;
/// How late a call that does not wait may learn of what the kernel has got, where nothing watches the socket.
const KERNEL_EVERY_NS: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an interface that something comes by is looked at, however many there are.
    #[test]
    fn places_are_those_of_what_is_asked_about() {
        let all: Vec<_> = (0..70).map(Arc::new).collect();
        let places =
            |numbers: &[usize]| places_of(&all, numbers.iter().map(|number| &all[*number]));
        assert_eq!((places(&[]), places(&[0, 2, 2])), (0, 0b101));
        assert!((0..70).all(|number| places(&[number]) & bit(number) != 0));
        assert_eq!(places(&[64]), places(&[69]));
        assert_eq!(places_of(&all, [Arc::new(1)].iter()), 0);
    }
}
