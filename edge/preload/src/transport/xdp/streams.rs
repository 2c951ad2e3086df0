//! Connections past the kernel: TCP of our own over frames, for sockets whose rules name the transport `xdp`.
//!
//! ```text
//! adoption    a connection of the kernel's is carried by frames, and goes back to the kernel
//! carrier     the connections of one interface: between rings and segments
//! closing     those of them that their programs have closed
//! habits      what the program has said of the sockets of these
//! helper      the thread that takes steps when the program does not
//! ```
//!
//! A connection is made and accepted by the kernel. Then its owner takes the socket out of the kernel's hands (`TCP_REPAIR`),
//! and this process carries it on from where it was. To the rest of the library it has rings, whose other end is
//! here: so waiting, polling, peeking and going back to the kernel are as for every connection with rings. It goes back
//! before another process has it, before its program ends its stream, and when it is closed, with all that is on its way:
//! the kernel ends it. Bells are bytes that are put into the queue of the socket by hand.
//!
//! Steps are taken by threads of the program that wait, and by the helper when none has for a while. Each is taken with
//! the lock, which comes after those of sockets.
//!
//! # Safety
//!
//! What a connection is to its carrier is attached to its socket in a place that nothing else has.

mod adoption;
mod carrier;
mod closing;
mod habits;
mod helper;

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use adverb_sys::fork::{Generation, PerProcess};
use adverb_tcpip::stack::ConnectionId;
use adverb_tcpip::tcp::State;
use adverb_xdp::Membership;

use crate::base::lock::Guarded;
use crate::base::thread::{self, Interrupts};
use crate::base::{address, confined, raw};
use crate::socket::state::{Attached, Reason, Socket};
use crate::socket::{arena, policy};
use crate::transport::ring::Segment;

use super::uplink::Turns;
use carrier::Carrier;

/// What this process has of connections.
#[derive(Debug)]
struct Process {
    carriers: Guarded<Vec<Carrier>>,
    /// When the interface of an address was last looked for, and its owner asked.
    sought: Turns<IpAddr>,
    asked: Turns<u32>,
    /// When a thread of the program last took a step.
    program_ns: AtomicU64,
    /// Looks of threads that wait, of which one in some is a step in any case.
    looks: AtomicU32,
    helper: helper::Words,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            carriers: Guarded::new(Vec::new()),
            sought: Turns::default(),
            asked: Turns::default(),
            program_ns: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            helper: helper::Words::default(),
        }
    }
}

/// A child begins anew.
static PROCESS: PerProcess<Process> = PerProcess::new();
/// The program ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// Some process of this family has had a connection.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// What both the program's end and its carrier look at.
#[derive(Debug)]
struct Shared {
    /// It is carried by frames no longer.
    is_over: AtomicBool,
    /// It has been reset, by another process than the one that carries it.
    is_lost: AtomicBool,
    /// The peer has ended its stream. The end is in the ring once all that came before is.
    has_fin: AtomicBool,
    /// More has come than there is room for in its ring.
    is_full: AtomicBool,
    /// That, once frames carry the connection no longer.
    rest: Guarded<Vec<u8>>,
    /// Calls that have sent something whole since something was received.
    sends: AtomicU64,
    /// Bytes of a stream that wait in its ring for more of it.
    deferred: AtomicU64,
    /// When its carrier last took a step after a write.
    stepped_ns: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            is_over: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            has_fin: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            rest: Guarded::new(Vec::new()),
            sends: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            stepped_ns: AtomicU64::new(0),
        }
    }
}

impl Shared {
    fn count(&self, Written { streamed, sent, is_whole, .. }: Written) {
        let before = if streamed == sent { 0 } else { self.sends.load(Ordering::Relaxed) };
        self.sends.store(before.saturating_add(is_whole.into()), Ordering::Relaxed);
    }

    /// Counts bytes of a stream that may wait in the ring for more of it: there are few there, and the last step is not long
    /// ago. `None` if they may not; otherwise whether they are the first.
    #[inline]
    fn defer(&self, what: Written, now_ns: u64) -> Option<bool> {
        let is_recent = now_ns <= self.stepped_ns.load(Ordering::Relaxed) + carrier::FLUSH_NS;
        let may_wait = what.streamed >= STREAM_BYTES && what.is_whole && !what.more && is_recent;
        if !may_wait {
            return None;
        }
        let before = self.deferred.fetch_add(what.sent, Ordering::AcqRel);
        (before + what.sent < DEFERRED_BYTES).then_some(before == 0)
    }
}

/// A connection that frames carry.
#[derive(Debug)]
struct Framed {
    generation: Generation,
    interface: u32,
    id: ConnectionId,
    shared: Arc<Shared>,
}

// SAFETY: nothing else has this place.
unsafe impl Attached for Framed {
    const PLACE: usize = 3;
}

#[inline]
fn of(socket: &Socket) -> Option<&Framed> {
    if !IS_ANY.load(Ordering::Relaxed) {
        return None;
    }
    let framed = socket.attached::<Framed>()?;
    let is_ours =
        !framed.shared.is_over.load(Ordering::Acquire) && !framed.generation.is_inherited();
    is_ours.then_some(framed)
}

/// Whether frames carry a connection.
#[inline]
pub(crate) fn is_framed(socket: &Socket) -> bool {
    of(socket).is_some()
}

/// The same, by this process or by the one that has forked it.
pub(crate) fn is_carried(socket: &Socket) -> bool {
    let is_left = || socket.segment().is_none_or(Segment::is_leaving);
    let is_parents = || socket.attached::<Framed>().is_some() && !has_ended(socket) && !is_left();
    is_framed(socket) || is_parents()
}

/// Whether what the kernel has said of a peer that is gone counts. Of a connection that frames carry it knows nothing, unless a
/// child of this process has disconnected the socket, which resets the connection; and while one goes back, its socket is without
/// a connection for a moment: the kernel is asked again for `grave` events where that is over.
pub(crate) fn is_kernels_word(socket: &Socket, grave: i16, ask: impl Fn() -> i16) -> bool {
    if let Some(framed) = of(socket) {
        // It goes back, or ends, under this lock.
        let deadline = with(framed, |carrier| {
            let now = raw::now_ns();
            carrier.reset_if_disconnected(framed.id, now).then(|| carrier.deadline_ns(now))
        });
        if let Some(deadline) = deadline.flatten() {
            helper::expect(PROCESS.get(), deadline);
            return true;
        }
        if is_framed(socket) {
            return false;
        }
    }
    !has_ended(socket) || ask() & grave != 0
}

/// Whether frames have ever carried one.
pub(super) fn has_had_any() -> bool {
    IS_ANY.load(Ordering::Relaxed)
}

/// Calls `f` with the carrier of a connection.
fn with<A>(framed: &Framed, f: impl FnOnce(&mut Carrier) -> A) -> Option<A> {
    PROCESS.get().carriers.with(|carriers| {
        let carrier = carriers.iter_mut().find(|carrier| carrier.index == framed.interface);
        carrier.map(f)
    })
}

/// Carries a connection from now on, if its rules want that and there is an owner that helps. No other thread sends or
/// receives on it.
#[inline]
pub(crate) fn adopt(socket: &Socket, fd: c_int) -> bool {
    policy::wants_frames(socket) && adopt_wanted(socket, fd)
}

#[inline(never)]
fn adopt_wanted(socket: &Socket, fd: c_int) -> bool {
    let is_out = super::FORKS.load(Ordering::SeqCst) > 0
        || confined::is_confined()
        || socket.attached::<Framed>().is_some();
    let Some(socket) = arena::slot(socket.index()).filter(|_| !is_out) else { return false };
    let errno = raw::errno();
    let process = PROCESS.get();
    let framed = process.carriers.with(|carriers| adoption::adopt(process, carriers, socket, fd));
    let is_adopted = framed.is_some();
    if let Some(framed) = framed {
        socket.attach(framed);
        IS_ANY.store(true, Ordering::Relaxed);
        socket.set_reason(Reason::Frames);
        socket.set_route(adverb_switchover::Route::Rings);
    }
    raw::set_errno(errno);
    is_adopted
}

/// A step of all connections, by a thread that waits for one.
#[inline]
pub(crate) fn look() {
    if IS_ANY.load(Ordering::Relaxed) {
        look_at_all();
    }
}

#[inline(never)]
fn look_at_all() {
    look_by(None, |_| false);
}

/// The same by one that receives: `take` gets the next bytes of its connection if none before them wait for room, and says
/// whether it has taken them. Otherwise they go into the ring. Says whether frames carry the connection.
#[inline]
pub(crate) fn look_for(socket: &Socket, take: impl FnMut(&[u8]) -> bool) -> bool {
    let Some(framed) = of(socket) else {
        look();
        return false;
    };
    look_by(Some(framed), take);
    !framed.shared.is_over.load(Ordering::Acquire)
}

#[inline]
fn look_by(receiver: Option<&Framed>, mut take: impl FnMut(&[u8]) -> bool) {
    let process = PROCESS.get();
    process.carriers.try_with(|carriers| {
        let looks = process.looks.load(Ordering::Relaxed).wrapping_add(1);
        process.looks.store(looks, Ordering::Relaxed);
        // The clock costs more than a look.
        if looks.is_multiple_of(STEP_LOOKS) || carriers.iter().any(Carrier::is_due) {
            let now = raw::now_ns();
            process.program_ns.store(now, Ordering::Relaxed);
            each(carriers, |carrier| {
                let its = receiver.filter(|framed| framed.interface == carrier.index);
                let its = its.map(|framed| framed.id);
                carrier.step_for_news(now, &mut |id, bytes| its == Some(id) && take(bytes));
            });
            // A helper that sleeps does not see what this thread has taken.
            if helper::sleeps(process) {
                let deadlines = carriers.iter().filter_map(|carrier| carrier.deadline_ns(now));
                helper::expect(process, deadlines.min());
            }
        }
    });
}

/// Calls `step` with each carrier. Those that are over are gone after that.
fn each(carriers: &mut Vec<Carrier>, mut step: impl FnMut(&mut Carrier)) {
    carriers.retain_mut(|carrier| {
        step(carrier);
        !carrier.is_over()
    });
}

fn step_all(carriers: &mut Vec<Carrier>, now_ns: u64) -> bool {
    let mut is_busy = false;
    each(carriers, |carrier| is_busy |= carrier.step(now_ns));
    is_busy
}

/// What a call that sends has put into its ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Bytes that have been sent since something was received, these included.
    pub(crate) streamed: u64,
    /// Bytes of this call.
    pub(crate) sent: u64,
    /// All that the call was given is there.
    pub(crate) is_whole: bool,
    /// More follows.
    pub(crate) more: bool,
}

/// The program has written into its ring: what is there leaves, but for a small segment where more follows, and, of a stream,
/// for the last few where others have just left.
#[inline]
pub(crate) fn written(socket: &Socket, what: Written) {
    let Some(framed) = of(socket) else { return };
    let (process, now) = (PROCESS.get(), raw::now_ns());
    process.program_ns.store(now, Ordering::Relaxed);
    framed.shared.count(what);
    let is_first = framed.shared.defer(what, now);
    if is_first == Some(false) {
        return;
    }
    let deadline = with(framed, |carrier| {
        match is_first {
            Some(_) => carrier.defer(framed.id, now),
            None => {
                carrier.expect_more(framed.id, what.more);
                carrier.send_from_ring(framed.id, now);
                match what.streamed >= STREAM_BYTES {
                    true => carrier.step_stream(framed.id, now),
                    false => carrier.step_for_written(now),
                }
            }
        }
        carrier.deadline_ns(now)
    });
    helper::expect(process, deadline.flatten());
}

/// Sends a few bytes past the ring, of which `written` is to count, where frames carry the connection and nothing waits in
/// the ring. False: nothing has happened. The lock for sending is held.
#[inline]
pub(crate) fn send_short(socket: &Socket, from: *const u8, written: Written) -> bool {
    let Some(framed) = of(socket) else { return false };
    let (process, now) = (PROCESS.get(), raw::now_ns());
    let len = usize::try_from(written.sent).unwrap_or(usize::MAX);
    let deadline = with(framed, |carrier| {
        carrier.send_short(framed.id, from, len, now).then(|| {
            carrier.step_for_written(now);
            carrier.deadline_ns(now)
        })
    });
    let Some(deadline) = deadline.flatten() else { return false };
    process.program_ns.store(now, Ordering::Relaxed);
    helper::expect(process, deadline);
    framed.shared.count(written);
    true
}

/// Whether frames carry what a program sends as a stream of long pieces. The kernel cuts those in one go; it asks more for
/// short ones than frames do.
#[inline]
pub(crate) fn is_bulk(socket: &Socket) -> bool {
    let Some(framed) = of(socket) else { return false };
    let streamed = socket.traffic.streamed.load(Ordering::Relaxed);
    let sends = framed.shared.sends.load(Ordering::Relaxed);
    streamed >= BULK_BYTES && streamed / sends.max(1) >= BULK_SEND_BYTES
}

/// The program has read from its ring: there may be room for what has come.
#[inline]
pub(crate) fn taken(socket: &Socket) {
    if IS_ANY.load(Ordering::Relaxed) {
        serve_taken(socket);
    }
}

#[inline(never)]
fn serve_taken(socket: &Socket) {
    let is_full = |framed: &&Framed| framed.shared.is_full.load(Ordering::Relaxed);
    let Some(framed) = socket.attached::<Framed>().filter(is_full) else { return };
    if of(socket).is_none() {
        refill(socket);
        return;
    }
    let now = raw::now_ns();
    with(framed, |carrier| {
        carrier.serve(framed.id, now);
        carrier.step(now);
    });
}

/// A connection that was reset, and what had come before and found no room in its ring, if this process has that.
fn left_of(socket: &Socket) -> Option<&Framed> {
    let framed = socket.attached::<Framed>()?;
    let Shared { is_over, is_full, .. } = &*framed.shared;
    let has_rest = is_over.load(Ordering::Acquire) && is_full.load(Ordering::Acquire);
    (has_rest && !framed.generation.is_inherited()).then_some(framed)
}

/// What had come before a connection was reset goes into its ring, as far as there is room. Says whether any has.
#[cold]
pub(crate) fn refill(socket: &Socket) -> bool {
    let Some((framed, segment)) = left_of(socket).zip(socket.segment()) else { return false };
    let Shared { rest, is_full, .. } = &*framed.shared;
    rest.with(|rest| {
        let done = carrier::put_into(segment.outgoing(socket.end().other()), rest);
        rest.drain(..done);
        is_full.store(!rest.is_empty(), Ordering::Release);
        socket.flags.has_rest.store(!rest.is_empty(), Ordering::Release);
        done > 0
    })
}

/// Whether the parent of this process has something of a connection that was reset, which it has not read yet.
pub(crate) fn is_parents_to_read(socket: &Socket) -> bool {
    socket.flags.has_rest.load(Ordering::Acquire) && left_of(socket).is_none()
}

/// Whether this process alone has something of a connection: frames carry it, or not all that had come before it was reset
/// is in its ring.
pub(crate) fn is_bound(socket: &Socket) -> bool {
    is_framed(socket) || left_of(socket).is_some() && socket.segment().is_some()
}

/// Returns once the kernel's socket of a connection that was reset is disconnected, too. That leaves an error there. The program
/// may learn of the reset a moment before. A child of the process that carries the connection does not wait, and may find that
/// error in place of the end.
#[cold]
pub(crate) fn await_disconnected(socket: &Socket) {
    let framed = socket.attached::<Framed>();
    if framed.is_some_and(|framed| !framed.generation.is_inherited()) {
        // The reset is told and the socket disconnected under this lock.
        PROCESS.get().carriers.with(|_| ());
    }
}

/// The program has set an option of a socket.
pub(crate) fn option_set(socket: &Socket, level: c_int, name: c_int) {
    let Some(framed) = of(socket) else { return };
    let (errno, now) = (raw::errno(), raw::now_ns());
    let no_delay = socket.flags.nodelay.load(Ordering::Relaxed);
    let deadline = with(framed, |carrier| {
        carrier.heed(framed.id, (level, name), no_delay);
        carrier.step(now);
        carrier.deadline_ns(now)
    });
    helper::expect(PROCESS.get(), deadline.flatten());
    raw::set_errno(errno);
}

/// Whether frames carry a connection whose socket now wants headers or a mark, which frames do not have.
pub(crate) fn wants_other_packets(socket: &Socket, fd: c_int) -> bool {
    is_framed(socket) && (habits::has_mark(fd) || !habits::has_usual_headers(fd))
}

/// What `SO_KEEPALIVE` of a connection is, if frames carry it.
pub(crate) fn keeps_alive(socket: &Socket) -> Option<bool> {
    let framed = of(socket)?;
    with(framed, |carrier| carrier.keeps_alive(framed.id)).flatten()
}

/// A thread of the program is about to sleep: the helper takes steps.
#[inline]
pub(crate) fn resting() {
    if IS_ANY.load(Ordering::Relaxed) {
        helper::resume(PROCESS.get());
    }
}

/// What has come of giving a connection back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum GivenBack {
    /// Its rings' other end has left: it is the kernel's, or has been reset.
    Back,
    /// Both streams have ended, or it was reset, and frames carry it no longer: these bytes come behind those in its ring.
    Ended(Vec<u8>),
    /// Frames do not carry it.
    NotFramed,
    /// It cannot: its owner does not answer; or it is for the parent of this process to do.
    Stays,
}

/// The connection goes back to the kernel, with both locks held.
pub(crate) fn give_back(socket: &Socket, fd: c_int) -> GivenBack {
    let Some(framed) = of(socket) else {
        if is_carried(socket) {
            return GivenBack::Stays;
        }
        let rest = left_of(socket).map(|framed| {
            framed.shared.is_full.store(false, Ordering::Release);
            socket.flags.has_rest.store(false, Ordering::Release);
            framed.shared.rest.with(std::mem::take)
        });
        return rest.map_or(GivenBack::NotFramed, GivenBack::Ended);
    };
    let errno = raw::errno();
    let given = with(framed, |carrier| {
        if adoption::give_back(carrier, framed.id, socket, fd) {
            return GivenBack::Back;
        }
        let rest = carrier.take_rest(framed.id, raw::now_ns());
        rest.map_or(GivenBack::Stays, GivenBack::Ended)
    });
    raw::set_errno(errno);
    given.unwrap_or(GivenBack::Stays)
}

/// The same of one that neither has ended nor was reset. Says whether it is back.
pub(crate) fn give_back_open(socket: &Socket, fd: c_int) -> bool {
    let Some(framed) = of(socket) else { return false };
    let given = with(framed, |carrier| adoption::give_back(carrier, framed.id, socket, fd));
    given == Some(true)
}

/// Whether the peer of a connection that frames carry has ended its stream, however much of it the program has to read yet.
#[inline]
pub(crate) fn has_fin(socket: &Socket) -> bool {
    let is_told = |framed: &Framed| framed.shared.has_fin.load(Ordering::Acquire);
    IS_ANY.load(Ordering::Relaxed) && socket.attached::<Framed>().is_some_and(is_told)
}

/// Whether a connection that frames have carried is over: both streams have ended, and there is no other end any more.
pub(crate) fn has_ended(socket: &Socket) -> bool {
    let framed = socket.attached::<Framed>();
    framed.is_some_and(|framed| framed.shared.is_over.load(Ordering::Acquire))
}

/// A connection that cannot go back to the kernel is reset, unless it has just ended.
#[cold]
pub(crate) fn reset(socket: &Socket, fd: c_int) {
    if let Some(framed) = of(socket) {
        let now = raw::now_ns();
        let deadline = with(framed, |carrier| {
            carrier.reset(framed.id, now);
            carrier.deadline_ns(now)
        });
        // Where there is no room for it now, the reset leaves later.
        return helper::expect(PROCESS.get(), deadline.flatten());
    }
    if has_ended(socket) {
        return;
    }
    // The parent of this process tells the peer when it sees that, or closes the connection.
    socket.flags.is_abortive.store(true, Ordering::Relaxed);
    let framed = socket.attached::<Framed>();
    framed.into_iter().for_each(|framed| framed.shared.is_lost.store(true, Ordering::Relaxed));
    raw::disconnect(fd);
}

/// Whether that has happened to a connection that the parent of this process carries: this one passes it on no more.
pub(crate) fn is_lost(socket: &Socket) -> bool {
    let framed = socket.attached::<Framed>();
    framed.is_some_and(|framed| framed.shared.is_lost.load(Ordering::Relaxed))
}

/// Whether an owner that does not answer has, or will have, a copy of a connection's socket: one that this process has
/// asked, or its parent. No other program has it.
pub(crate) fn is_copied(socket: &Socket, fd: c_int) -> bool {
    let is_late = |own: SocketAddr| {
        PROCESS.get().carriers.with(|carriers| {
            let its = carriers.iter().find(|carrier| carrier.has(own.ip()));
            its.is_none_or(|carrier| carrier.membership.is_stuck())
        })
    };
    socket.flags.is_copied.load(Ordering::Relaxed)
        && !socket.takers.is_any()
        && address::name(fd, false).is_some_and(is_late)
}

/// What is to be done about a connection that its program closes, or whose stream it ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// As without frames: it was none of ours, or is the kernel's now.
    Kernel,
    /// Nothing: frames end it.
    Frames,
}

/// The program closes the connection. `is_abortive`: by a reset.
pub(crate) fn close(socket: &Socket, fd: c_int, is_abortive: bool) -> Ending {
    end(socket, fd, |carrier, framed, now, is_in_any_case| {
        if is_abortive {
            carrier.abort(framed.id, now);
            return true;
        }
        let is_second = carrier.state(framed.id) != Some(State::Established);
        (is_second || is_in_any_case) && carrier.close(framed.id, now)
    })
}

/// The program may want to wait until the peer has all of a connection that frames end, but no longer than so: `SO_LINGER`,
/// socket(7). A signal ends the wait. No lock is held.
pub(crate) fn await_acknowledged(socket: &Socket, fd: c_int) {
    if IS_ENDING.load(Ordering::Relaxed) {
        return;
    }
    let lingers = raw::option::<[c_int; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    let seconds = lingers.map_or(0, |[is_on, seconds]| if is_on == 0 { 0 } else { seconds });
    let Some(framed) = socket.attached::<Framed>().filter(|_| seconds > 0) else { return };
    let wait_ns = u64::from(seconds.unsigned_abs()).saturating_mul(1_000_000_000);
    let until = raw::now_ns().saturating_add(wait_ns);
    let is_left = || {
        with(framed, |carrier| {
            carrier.step(raw::now_ns());
            let state = carrier.state(framed.id);
            matches!(state, Some(State::FinWait1 | State::Closing | State::LastAck))
        })
    };
    let handled = || thread::interrupts(Interrupts::All);
    let before = handled();
    while is_left() == Some(true) && raw::now_ns() < until && handled() == before {
        raw::nap(LINGER_NAP_NS);
    }
}

/// The program ends: no close waits any more, [`linger`] does for all.
pub(crate) fn end_begins() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// The program ends its stream.
pub(crate) fn shut_down(socket: &Socket, fd: c_int) -> Ending {
    end(socket, fd, |carrier, framed, now, is_in_any_case| {
        let is_second = carrier.state(framed.id) != Some(State::Established);
        (is_second || is_in_any_case) && carrier.shut_down(framed.id, now)
    })
}

fn end(
    socket: &Socket,
    fd: c_int,
    by_frames: impl Fn(&mut Carrier, &Framed, u64, bool) -> bool,
) -> Ending {
    let Some(framed) = of(socket) else { return Ending::Kernel };
    let errno = raw::errno();
    let now = raw::now_ns();
    let ends = with(framed, |carrier| {
        carrier.send_from_ring(framed.id, now);
        carrier.step(now);
        let ends = by_frames(carrier, framed, now, false)
            || !adoption::give_back(carrier, framed.id, socket, fd) && {
                // The owner does not answer, or both streams have ended.
                let is_closed = carrier.state(framed.id).is_none_or(|state| state == State::Closed);
                is_closed || by_frames(carrier, framed, now, true)
            };
        (ends, carrier.deadline_ns(now))
    });
    helper::expect(PROCESS.get(), ends.and_then(|(_, deadline)| deadline));
    raw::set_errno(errno);
    if ends.is_some_and(|(ends, _)| ends) { Ending::Frames } else { Ending::Kernel }
}

/// The program ends: connections whose last words are on their way are given a moment.
pub(crate) fn linger() {
    if !IS_ANY.load(Ordering::Relaxed) {
        return;
    }
    let until = raw::now_ns() + LINGER_NS;
    while raw::now_ns() < until {
        let is_left = PROCESS.get().carriers.with(|carriers| {
            step_all(carriers, raw::now_ns());
            carriers.iter_mut().any(Carrier::is_closing)
        });
        if !is_left {
            return;
        }
        raw::nap(LINGER_NAP_NS);
    }
}

/// How long an answer of an owner may take, which [`give_back`] asks twice at most.
pub(crate) const ANSWER: Duration = Membership::ANSWER;
/// Looks in which nothing is due until the next step.
const STEP_LOOKS: u32 = 64;
/// What is sent without anything received in between is a stream, from so many bytes on.
const STREAM_BYTES: u64 = 256 << 10;
/// Bytes of a stream that go from its ring together: about as many as frames that leave together.
const DEFERRED_BYTES: u64 = 22 << 10;
/// The kernel carries a stream of so many bytes, if calls send as many as this at a time.
const BULK_BYTES: u64 = 4 << 20;
const BULK_SEND_BYTES: u64 = 8 << 10;
/// How long a program that ends waits for its peers to take its last words.
const LINGER_NS: u64 = 500_000_000;
const LINGER_NAP_NS: i64 = 100_000;
