//! The state of sockets: what we know about each open one.
//!
//! There is one [`Socket`] for a socket, however many descriptors in however many processes stand for it. It
//! lies in memory that children inherit as shared, so that parent and child agree about what has been
//! read and written. What differs between processes is where they have mapped the rings
//! ([`Socket::attached`]).
//!
//! # Safety
//!
//! 1. The arena is mapped once, by the first process, and never unmapped. It holds atomics alone,
//!    for which every bit pattern, zeros above all, is legal.
//! 2. What has been attached to a socket is freed when the last user of the socket in this process has
//!    gone ([`Socket::release`]), and a reference to it is held only as long as the socket is.
//! 3. Each type has a place of its own ([`Attached`]), where nothing else is, and what lies there begins
//!    with the function that frees this type.

#![expect(clippy::as_conversions, reason = "enumerations are stored as their numbers")]

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use adverb_switchover::{End, Route, Waiters};

use crate::base::config;
use crate::base::lock::Lock;
use crate::socket::counters::Counters;
use crate::socket::ownership::{Allocation, Ownership, Place};
use crate::socket::pacing::Paced;
use crate::socket::parts::{
    Completions, Datagrams, Flags, Identity, Options, Rendezvous, State, Traffic, Waiting,
};
use crate::socket::takers::Takers;
use crate::socket::{arena, changes, memberships, own};

/// What a socket is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A TCP socket that has not done anything yet.
    Fresh = 1,
    /// It listens.
    Listener = 2,
    /// It is on its way to a peer, and has not been looked at since.
    Connecting = 3,
    /// It has a peer.
    Stream = 4,
    /// UDP.
    Datagram = 5,
}

/// Why a socket is treated as it is, for logs and statistics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Reason {
    Undecided = 0,
    Rule = 1,
    Off = 2,
    PeerElsewhere = 3,
    PeerSilent = 4,
    Rings = 5,
    NoRoom = 6,
    Feature = 7,
    Spin = 8,
    HandedOver = 9,
    Offered = 10,
    Listening = 11,
    Left = 12,
    Unproven = 13,
    ShortLived = 14,
    NoPlace = 15,
    Broken = 16,
    Spoilt = 17,
    Frames = 18,
    NoFrames = 19,
    Reset = 20,
    Bulk = 21,
    BothSend = 22,
    NotWhole = 23,
    Forked = 24,
}

impl Reason {
    pub(crate) const ALL: [(Self, &'static str); 25] = [
        (Self::Undecided, "not decided yet"),
        (Self::Rule, "a rule says os"),
        (Self::Off, "acceleration is off"),
        (Self::PeerElsewhere, "the peer is not on this host, or listens elsewhere unseen"),
        (Self::PeerSilent, "the peer does not offer shared memory"),
        (Self::Rings, "shared memory with the peer"),
        (Self::NoRoom, "shared memory could not be set up"),
        (Self::Feature, "it needs a feature that only the kernel has"),
        (Self::Spin, "the kernel's socket, with spinning waits"),
        (Self::HandedOver, "came from or went to a program that may not be accelerated"),
        (Self::Offered, "shared memory is offered, the peer has not taken it"),
        (Self::Listening, "listens, and looks for offers"),
        (Self::Left, "back from shared memory, for a program without the library"),
        (Self::Unproven, "nothing shows that the peer is in another namespace of this host"),
        (Self::ShortLived, "connections to there are too short for shared memory to pay"),
        (Self::NoPlace, "there is no directory of this user alone where shared memory could be"),
        (
            Self::Broken,
            "the peer has written nonsense to shared memory, and the connection is reset",
        ),
        (Self::Spoilt, "the mailbox held nonsense, or was cut off: the kernel brings everything"),
        (Self::Frames, "frames of the interface, past the kernel"),
        (
            Self::NoFrames,
            "no frames: no daemon owns the interface for this user, or the port is shared",
        ),
        (
            Self::Reset,
            "the peer has reset the connection, does not answer, or the daemon has ended",
        ),
        (Self::Bulk, "a stream, which the kernel carries better than frames"),
        (Self::BothSend, "both ends send more than rings hold before they read"),
        (
            Self::NotWhole,
            "it could not go back from shared memory to the kernel without loss, and is reset",
        ),
        (Self::Forked, "the program has forked, and frames are for one process alone"),
    ];

    /// Programs that read the statistics find a reason's text by its number.
    const IS_IN_ORDER: () = {
        let (mut rest, mut number) = (Self::ALL.as_slice(), 0);
        while let [(reason, _), others @ ..] = rest {
            assert!(*reason as usize == number);
            (rest, number) = (others, number + 1);
        }
    };

    pub(crate) fn text(self) -> &'static str {
        let () = Self::IS_IN_ORDER;
        Self::ALL.iter().find(|(reason, _)| *reason == self).map_or("", |(_, text)| text)
    }
}

/// One socket.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Socket {
    /// Whether it is free, and which processes have it otherwise.
    pub(crate) allocation: Allocation,
    /// How often the socket has become a new socket: tells one from the next.
    pub(crate) life: AtomicU32,
    pub(crate) identity: Identity,
    pub(crate) takers: Takers,
    state: State,
    pub(crate) flags: Flags,
    pub(crate) receiving: Lock,
    pub(crate) sending: Lock,
    pub(crate) waiting: Waiting,
    pub(crate) waiters: Waiters,
    pub(crate) traffic: Traffic,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) datagrams: Datagrams,
    pub(crate) options: Options,
    pub(crate) completions: Completions,
    /// The rate that sends keep.
    pub(crate) paced: Paced,
    pub(crate) counters: Counters,
}

/// From so many sockets on it is worth looking for those of dead processes, whenever there are twice as many.
const SWEEP_MIN: u32 = 1024;

/// What this process alone knows about a socket.
#[derive(Debug)]
pub(crate) struct Local {
    /// Descriptors that stand for it here, and calls that are using it. 0: this process has not got
    /// it.
    users: AtomicU32,
    /// Those descriptors alone.
    names: AtomicU32,
    /// What it has of it besides: rings, or what belongs to a mailbox.
    attached: [AtomicPtr<Head>; PLACES],
}

/// What a process can have of a socket. Only what carries its bytes knows that type.
///
/// # Safety
///
/// No two types have the same place.
pub(crate) unsafe trait Attached {
    /// Below [`PLACES`].
    const PLACE: usize;
}

const PLACES: usize = 4;

/// Something attached, and in front of it how to free it.
#[derive(Debug)]
#[repr(C)]
struct Boxed<T> {
    head: Head,
    value: T,
}

#[derive(Debug)]
struct Head {
    free: unsafe fn(*mut Head),
}

/// # Safety
///
/// `at` came from a box with this type, and is not used any more.
unsafe fn free<T>(at: *mut Head) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(at.cast::<Boxed<T>>()) });
}

/// Where a field of a socket lies: its name, offset and size in bytes, for readers of statistics.
pub(crate) fn fields() -> String {
    use std::mem::offset_of;
    let counters = offset_of!(Socket, counters);
    let mut text = String::new();
    for (name, offset, size) in [
        ("refs", offset_of!(Socket, allocation), 4),
        ("pid", offset_of!(Socket, identity.owner), 4),
        ("fd", offset_of!(Socket, identity.owner_fd), 4),
        ("kind", offset_of!(Socket, state.kind), 1),
        ("carrier", offset_of!(Socket, state.route), 1),
        ("why", offset_of!(Socket, state.reason), 1),
        ("nonblocking", offset_of!(Socket, flags.is_nonblocking), 1),
        ("ring_bytes", offset_of!(Socket, rendezvous.ring_bytes), 8),
        ("is_server", offset_of!(Socket, state.is_server), 1),
        ("has_inbox", offset_of!(Socket, datagrams.has_inbox), 1),
        ("loop_off", offset_of!(Socket, datagrams.is_loop_off), 1),
        ("meeting_a", offset_of!(Socket, rendezvous.name_first), 8),
        ("meeting_b", offset_of!(Socket, rendezvous.name_second), 8),
        ("cookie", offset_of!(Socket, rendezvous.cookie), 8),
    ] {
        text.push_str(&format!("{name}:{offset}:{size} "));
    }
    for (name, offset) in Counters::FIELDS {
        text.push_str(&format!("{name}:{}:8 ", counters + offset));
    }
    text
}

/// Calls `f` with all sockets that have been used.
pub(crate) fn each(f: impl Fn(&'static Socket)) {
    each_local(|socket, _| f(socket));
}

/// Calls `f` with all sockets that have been used, and what this process knows of them.
fn each_local(f: impl Fn(&'static Socket, &Local)) {
    for socket in (0..arena::fresh()).map_while(arena::slot) {
        socket.local().into_iter().for_each(|local| f(socket, local));
    }
}

/// In a child just forked: no socket has users, until they are counted again.
pub(crate) fn forget_users() {
    each_local(|_, local| {
        if local.users.load(Ordering::Relaxed) != 0 {
            local.users.store(0, Ordering::Relaxed);
        }
    });
}

/// The same, once they have been counted: gives back what no user needs.
pub(crate) fn forget_unused() {
    each_local(|socket, local| {
        if local.users.load(Ordering::Relaxed) == 0 {
            socket.detach();
        }
    });
}

impl Socket {
    /// A new socket, with one user; `None` if there are too many. `make_room` may take from the dead what
    /// they had, if there are many, and says whether it has.
    pub(crate) fn create(kind: Kind, make_room: fn() -> bool) -> Option<&'static Self> {
        let (ownership, me) =
            (arena::ownership()?, own::me().filter(|me| *me != Place::UNTRACKED)?);
        ownership.places.more(me);
        let Some(socket) = Self::take_free(&ownership, me, make_room) else {
            ownership.places.fewer(me);
            return None;
        };
        // Left by the other threads of a parent, in a child that was forked in a handler.
        socket.detach();
        socket.reset(kind);
        ownership.get_in_hand(me, socket.index());
        socket.allocation.settle(me);
        socket.local()?.users.store(1, Ordering::Release);
        Some(socket)
    }

    fn take_free(
        ownership: &Ownership<'_>,
        me: Place,
        make_room: fn() -> bool,
    ) -> Option<&'static Self> {
        loop {
            let index = ownership
                .vacancies
                .take(arena::fresh())
                .or_else(|| Self::take_fresh(ownership, make_room))?;
            let socket = arena::slot(index)?;
            if socket.allocation.claim(me) {
                return Some(socket);
            }
        }
    }

    /// One that has never been used; or one that a dead process had, if there are many.
    fn take_fresh(ownership: &Ownership<'_>, make_room: fn() -> bool) -> Option<u32> {
        let before = arena::fresh();
        let is_over = usize::try_from(before).ok()? >= arena::SLOTS_MAX;
        if before >= SWEEP_MIN
            && (before.is_power_of_two() || is_over)
            && make_room()
            && let Some(index) = ownership.vacancies.take(before)
        {
            return Some(index);
        }
        arena::take_fresh()
    }

    fn reset(&self, kind: Kind) {
        if self.kind() == Kind::Datagram {
            memberships::forget(self);
        }
        let life = self.life.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.identity.reset();
        self.takers.begin(life);
        // It is not watched yet: no instance is told.
        self.state.reset();
        self.set_kind(kind);
        self.flags.reset();
        self.receiving.reset();
        self.sending.reset();
        self.waiting.reset();
        self.waiters.reset();
        self.traffic.reset();
        self.rendezvous.reset();
        self.datagrams.reset();
        self.options.reset();
        self.completions.reset();
        self.paced.reset();
        self.counters.reset();
    }

    /// Remembers for statistics which process uses it, and under which number.
    pub(crate) fn set_owner(&self, process: u32, fd: c_int) {
        self.identity.owner.store(process, Ordering::Relaxed);
        self.identity.owner_fd.store(u32::try_from(fd).unwrap_or(0), Ordering::Relaxed);
    }

    /// Its number.
    pub(crate) fn index(&self) -> u32 {
        arena::index_of(self)
    }

    /// In a child just forked: counts a user.
    pub(crate) fn count_user(&self) {
        if let Some(Local { users, .. }) = self.local() {
            users.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// In a child just forked: whether a user has been counted.
    pub(crate) fn has_users(&self) -> bool {
        self.local().is_some_and(|local| local.users.load(Ordering::Relaxed) != 0)
    }

    /// In a child just forked: it has no user after all.
    pub(crate) fn forget_user(&self) {
        if let Some(Local { users, .. }) = self.local() {
            users.store(0, Ordering::Relaxed);
        }
    }

    /// One more user in this process, unless it has none.
    #[inline]
    pub(crate) fn retain(&self) -> bool {
        let Some(Local { users, .. }) = self.local() else { return false };
        let mut count = users.load(Ordering::Relaxed);
        while count != 0 {
            let (o, r) = (Ordering::Acquire, Ordering::Relaxed);
            match users.compare_exchange_weak(count, count.wrapping_add(1), o, r) {
                Ok(_) => return true,
                Err(changed) => count = changed,
            }
        }
        false
    }

    /// One user less. The last one of this process unmaps the rings, and the last process gives the
    /// socket back.
    #[inline]
    pub(crate) fn release(&'static self) {
        let Some(Local { users, .. }) = self.local() else { return };
        if users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.let_go();
        }
    }

    /// This process has got it no more.
    #[cold]
    #[inline(never)]
    fn let_go(&'static self) {
        self.detach();
        arena::with(|ownership, me| ownership.give_back(me, self.index()));
    }

    /// One more descriptor of this process stands for it.
    pub(crate) fn name(&self) {
        let Some(Local { names, .. }) = self.local() else { return };
        if names.fetch_add(1, Ordering::AcqRel) == 0 {
            self.note_name();
        }
    }

    /// One less.
    pub(crate) fn unname(&self) {
        let Some(Local { names, .. }) = self.local() else { return };
        if names.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.hide_name();
        }
    }

    /// Whether several do.
    pub(crate) fn has_copies_here(&self) -> bool {
        self.local().is_some_and(|local| local.names.load(Ordering::Acquire) > 1)
    }

    /// Others see that this process has descriptors for it, if it has any.
    pub(crate) fn note_name(&self) {
        if self.is_named_here() {
            arena::with(|ownership, me| ownership.name(me, self.index()));
        }
    }

    /// Others see none, whatever there is.
    pub(crate) fn hide_name(&self) {
        arena::with(|ownership, me| ownership.unname(me, self.index()));
    }

    /// Whether a descriptor of this process does.
    pub(crate) fn is_named_here(&self) -> bool {
        self.local().is_some_and(|local| local.names.load(Ordering::Acquire) != 0)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.state.kind.load(Ordering::Acquire) {
            2 => Kind::Listener,
            3 => Kind::Connecting,
            4 => Kind::Stream,
            5 => Kind::Datagram,
            _ => Kind::Fresh,
        }
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        self.state.kind.store(number(kind as u32), Ordering::Release);
    }

    #[inline]
    pub(crate) fn route(&self) -> Route {
        match self.state.route.load(Ordering::Acquire) {
            0 => Route::Open,
            2 => Route::Offered,
            3 => Route::Rings,
            4 => Route::Leaving,
            _ => Route::Kernel,
        }
    }

    pub(crate) fn set_route(&self, route: Route) {
        self.state.route.store(number(route as u32), Ordering::Release);
        changes::note(self.index());
    }

    /// Leaves the socket to the kernel, for a reason, unless rings are there already.
    pub(crate) fn leave_to_kernel(&self, reason: Reason) {
        let (open, kernel) = (number(Route::Open as u32), number(Route::Kernel as u32));
        let o = Ordering::AcqRel;
        if self.state.route.compare_exchange(open, kernel, o, Ordering::Acquire).is_ok() {
            self.set_reason(reason);
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        let reason = self.state.reason.load(Ordering::Relaxed);
        let found = Reason::ALL.iter().find(|(known, _)| number(*known as u32) == reason);
        found.map_or(Reason::Undecided, |(known, _)| *known)
    }

    /// Frames have carried its connection, which was reset.
    #[inline]
    pub(crate) fn is_reset(&self) -> bool {
        self.state.reason.load(Ordering::Relaxed) == number(Reason::Reset as u32)
    }

    pub(crate) fn set_reason(&self, reason: Reason) {
        self.state.reason.store(number(reason as u32), Ordering::Relaxed);
    }

    pub(crate) fn end(&self) -> End {
        if self.state.is_server.load(Ordering::Relaxed) { End::Server } else { End::Client }
    }

    pub(crate) fn set_end(&self, end: End) {
        self.state.is_server.store(end == End::Server, Ordering::Relaxed);
    }

    #[inline]
    fn local(&self) -> Option<&'static Local> {
        arena::local(self)
    }

    /// What this process has of it. The socket must be in use by the caller.
    #[inline]
    pub(crate) fn attached<T: Attached>(&self) -> Option<&T> {
        let at = NonNull::new(self.local()?.attached.get(T::PLACE)?.load(Ordering::Acquire))?;
        // SAFETY: published, with this type (rule 3), and not freed while the socket is in use (rule 2).
        Some(unsafe { &at.cast::<Boxed<T>>().as_ref().value })
    }

    /// Publishes what this process has of it. A thread that comes second loses, and uses the first's.
    pub(crate) fn attach<T: Attached>(&self, value: T) {
        let Some(place) = self.local().and_then(|local| local.attached.get(T::PLACE)) else {
            return;
        };
        let head = Head { free: free::<T> };
        let new = Box::into_raw(Box::new(Boxed { head, value })).cast::<Head>();
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if place.compare_exchange(ptr::null_mut(), new, o, r).is_err() {
            // SAFETY: it came from a box of this type just now, and has not been published.
            unsafe { free::<T>(new) };
        }
    }

    /// Frees all of that. The caller is the last user here.
    fn detach(&self) {
        for place in self.local().iter().flat_map(|local| &local.attached) {
            let old = place.swap(ptr::null_mut(), Ordering::AcqRel);
            if let Some(at) = NonNull::new(old) {
                // SAFETY: published, and not used any more (rule 2).
                let Head { free } = unsafe { at.as_ref() };
                // SAFETY: it is what this function is for (rule 3).
                unsafe { free(old) };
            }
        }
    }

    /// What the program has said of it for completions: by default its descriptor.
    pub(crate) fn user_data_or(&self, fd: c_int) -> u64 {
        match self.completions.has_user_data.load(Ordering::Acquire) {
            true => self.completions.user_data.load(Ordering::Relaxed),
            false => u64::try_from(fd).unwrap_or(0),
        }
    }

    /// A call has found no room for all that was to be sent: where the program polls rings, it is told of some.
    #[cold]
    pub(crate) fn want_room(&self) {
        if config::get().socketxtreme {
            self.completions.wants_room.store(true, Ordering::Relaxed);
            WANTS.fetch_add(1, Ordering::Release);
        }
    }

    /// A call has got the error that the kernel had for it.
    pub(crate) fn note_error_taken(&self) {
        self.completions.has_told_error.store(false, Ordering::Relaxed);
    }

    /// The next call reports an error. What has been written before is seen by it.
    pub(crate) fn set_error(&self, errno: c_int) {
        self.flags.pending_error.store(u8::try_from(errno).unwrap_or(0), Ordering::Release);
    }

    /// An error that the next call reports, once.
    pub(crate) fn take_error(&self) -> Option<c_int> {
        if self.flags.pending_error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.flags.pending_error.swap(0, Ordering::Acquire) {
            0 => None,
            error => Some(c_int::from(error)),
        }
    }
}

/// How often calls of this process have found no room.
static WANTS: AtomicU32 = AtomicU32::new(0);

/// Changes when one more has.
pub(crate) fn wants_of_room() -> u32 {
    WANTS.load(Ordering::Acquire)
}

fn number(small: u32) -> u8 {
    u8::try_from(small).unwrap_or(u8::MAX)
}
