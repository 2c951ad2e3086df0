//! Fallback to the kernel: a connection gives up its rings while bytes are in them.
//!
//! What the end that leaves does, and the one that follows, and in which order, is `leave.rs` of `adverb-switchover`;
//! this carries it out.
//!
//! If the other end has closed or died and cannot send again, its last bytes and its end are put into a connection of this process with
//! itself, which takes the place of the old one. If both leave, and the second has bytes in its ring
//! that it has not read, they cannot be sent again: the connection is reset, rather than have a hole.
//!
//! An end that finds nonsense in the rings resets the connection as well ([`poison`]), and so does one that cannot leave
//! or follow in time: it is the kernel's from then on, which says what has happened.
//!
//! # Safety
//!
//! Addresses passed to the kernel are arrays on this stack; bytes of a ring are passed to it under
//! rule 2 of `ring.rs`.

#![expect(clippy::as_conversions, reason = "the kernel's arguments are machine words")]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_shm::file::Expect;
use adverb_switchover::{Broken, Connection, Following, Leave, Leaver, Leaving, Received, Route};

use crate::base::lock::{Held, Lock};
use crate::base::raw::{self, Errno};
use crate::base::yields::Yields;
use crate::base::{address, log};
use crate::socket::counters::add;
use crate::socket::state::{Kind, Reason, Socket};
use crate::socket::{policy, table};
use crate::transport::ring::Segment;
use crate::transport::xdp::streams::{self, ANSWER, GivenBack};
use crate::transport::{bell, offer, rendezvous};

/// Gives a connection back to the kernel for good, as what comes next knows of the kernel alone. `fd` stands for it in
/// this process. One that frames carry on all the same is reset: its socket would take what is sent for received.
pub(crate) fn leave(socket: &Socket, fd: c_int) {
    let mut together = Together::default();
    together.leave(socket, fd);
    together.finish();
}

/// The same of several, before a fork: they are waited for together, and what frames carry on parent and child have by
/// rings.
pub(crate) fn leave_all(all: &[(&Socket, c_int)]) {
    let mut together = Together::default();
    for (socket, fd) in all {
        if together.begin(socket, *fd, Reason::Forked) == Departure::OtherFirst {
            together.left.push((*socket, *fd));
        }
    }
    together.finish();
}

/// Connections that go back to the kernel together: threads that have their locks are waited for as long as for one, and so
/// are the other ends.
#[derive(Debug, Default)]
pub(crate) struct Together<'a> {
    waits: Waits,
    left: Vec<(&'a Socket, c_int)>,
}

impl<'a> Together<'a> {
    /// The first half of [`leave`].
    pub(crate) fn leave(&mut self, socket: &'a Socket, fd: c_int) {
        match self.begin(socket, fd, Reason::Left) {
            Departure::Gone => {}
            Departure::OtherFirst => self.left.push((socket, fd)),
            Departure::Stays => streams::reset(socket, fd),
            Departure::Busy => abort(socket, fd, Reason::NotWhole),
        }
    }

    /// The other half, of all.
    pub(crate) fn finish(mut self) {
        follow_to_the_end(&self.left, &mut self.waits);
    }

    fn begin(&mut self, socket: &Socket, fd: c_int, reason: Reason) -> Departure {
        advance_within(socket, fd, &mut self.waits);
        socket.leave_to_kernel(Reason::HandedOver);
        leave_as(socket, fd, reason, &mut self.waits)
    }
}

/// Frames carry a stream that the kernel carries better.
#[cold]
pub(crate) fn leave_as_bulk(socket: &Socket, fd: c_int) {
    if leave_now_as(socket, fd, Reason::Bulk) {
        policy::explain(socket, fd, "stream");
    }
}

/// Both ends wait for room in the rings, and neither reads: the kernel's queues hold more. Returns false if nothing has
/// happened.
#[cold]
pub(crate) fn leave_for_room(socket: &Socket, fd: c_int) -> bool {
    let departure = leave_as(socket, fd, Reason::BothSend, &mut Waits::one_try());
    let has_left = matches!(departure, Departure::Gone | Departure::OtherFirst);
    if has_left {
        policy::explain(socket, fd, "write");
    }
    has_left
}

/// The program wants of a connection what only the kernel has: its rings go, as soon as it has read what it has been
/// sent by them, since the other end would send that again with its next call only; or as soon as an owner of frames answers.
#[cold]
pub(crate) fn leave_for_feature(socket: &Socket, fd: c_int) {
    advance(socket, fd);
    socket.leave_to_kernel(Reason::Feature);
    let has_unread = |segment: &Segment| segment.incoming(socket.end()).direction.has_bytes();
    let has_to_wait =
        socket.segment().is_some_and(has_unread) || !leave_now_as(socket, fd, Reason::Feature);
    socket.flags.wants_kernel.store(has_to_wait, Ordering::Relaxed);
}

/// The same at once, whatever has not been read. Returns false if frames carry it on.
///
/// # Errors
///
/// `EAGAIN`: another thread is in the midst of something. One that may wait waits for it, as long as a send may take.
#[cold]
pub(crate) fn leave_now(socket: &Socket, fd: c_int, may_wait: bool) -> Result<bool, Errno> {
    advance(socket, fd);
    socket.leave_to_kernel(Reason::Feature);
    let mut waits = if may_wait { Waits::of_send(socket) } else { Waits::of_call(socket) };
    match leave_as(socket, fd, Reason::Feature, &mut waits) {
        Departure::Gone | Departure::OtherFirst => Ok(true),
        Departure::Stays => Ok(false),
        Departure::Busy => Err(Errno::AGAIN),
    }
}

/// The same at once, whatever has not been read, of a connection that frames cannot carry on. Nothing happens if it ends or has
/// ended, or another thread is in the midst of something. `copy` is a descriptor that no other thread closes meanwhile.
#[cold]
pub(crate) fn leave_at_once(socket: &Socket, copy: c_int, reason: Reason) {
    let Ok(_held) = Waits::of_call(socket).hold(socket) else { return };
    let Some(segment) = socket.segment() else { return };
    if streams::give_back_open(socket, copy) {
        go_on_by_kernel(socket, segment, copy, reason);
        policy::explain(socket, copy, "stream");
    }
}

/// Frames have given the connection back, with both locks held.
fn go_on_by_kernel(socket: &Socket, segment: &Segment, fd: c_int, reason: Reason) {
    if !socket.is_reset() {
        socket.set_reason(reason);
    }
    push_held(socket, segment, fd);
    if socket.reason() == Reason::Left {
        socket.set_reason(reason);
    }
}

/// Returns false if nothing has happened, so that it is to be tried again.
fn leave_now_as(socket: &Socket, fd: c_int, reason: Reason) -> bool {
    match leave_as(socket, fd, reason, &mut Waits::of_call(socket)) {
        Departure::Gone | Departure::OtherFirst => true,
        Departure::Stays | Departure::Busy => false,
    }
}

/// A connection that was on its way may have arrived: then it is time to offer rings. One whose other
/// end has gone back to the kernel follows.
pub(crate) fn advance(socket: &Socket, fd: c_int) {
    advance_within(socket, fd, &mut Waits::of_call(socket));
}

fn advance_within(socket: &Socket, fd: c_int, waits: &mut Waits) {
    if socket.segment().is_some_and(|segment| segment.is_leaving() || segment.is_spoilt()) {
        follow_within(socket, fd, waits);
    }
    if socket.route() == Route::Leaving {
        follow_within(socket, fd, waits);
    }
    arrive(socket, fd);
}

/// The first half of that, and of the second what is under way already.
#[inline]
pub(crate) fn advance_connection(socket: &Socket, fd: c_int) {
    if socket.route() == Route::Leaving {
        follow(socket, fd);
    }
    arrive(socket, fd);
}

#[inline]
fn arrive(socket: &Socket, fd: c_int) {
    if socket.kind() == Kind::Connecting
        && let Some(peer) = address::name(fd, true)
    {
        socket.set_kind(Kind::Stream);
        if socket.route() == Route::Open {
            offer::offer(socket, fd, peer);
            policy::explain(socket, fd, "connect");
        }
    }
}

/// What has come of an attempt to leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Departure {
    /// The connection is the kernel's.
    Gone,
    /// The other end has begun to leave before.
    OtherFirst,
    /// Frames carry it on: this process's, or those of the one that has forked it.
    Stays,
    /// Another thread of this process uses it all the time, and nothing has happened.
    Busy,
}

fn leave_as(socket: &Socket, fd: c_int, reason: Reason, waits: &mut Waits) -> Departure {
    let _held = match waits.hold(socket) {
        Ok(held) => held,
        // Its peer would learn nothing of a reset by the kernel.
        Err(_) if streams::is_carried(socket) => return Departure::Stays,
        Err(Holder::Ours) => return Departure::Busy,
        // It can wait.
        Err(Holder::Anothers) if reason == Reason::BothSend => return Departure::Busy,
        Err(Holder::Anothers) => {
            abort(socket, fd, Reason::NotWhole);
            return Departure::Gone;
        }
    };
    let Some(segment) = socket.segment() else { return Departure::Gone };
    let behind = match streams::give_back(socket, fd) {
        GivenBack::NotFramed => Vec::new(),
        GivenBack::Ended(behind) => behind,
        GivenBack::Stays => return Departure::Stays,
        GivenBack::Back => {
            go_on_by_kernel(socket, segment, fd, reason);
            return Departure::OtherFirst;
        }
    };
    if !segment.page().is_accepted() && offer::take_back(socket, segment, fd) {
        return Departure::Gone;
    }
    let Some(leave) = segment.connection(socket).leave(LEAVE_NS) else {
        return Departure::OtherFirst;
    };
    leave_first(socket, segment, fd, (leave, behind));
    if !matches!(socket.reason(), Reason::Broken | Reason::NotWhole) {
        socket.set_reason(reason);
    }
    Departure::Gone
}

/// What is left of [`HOLDER_NS`], in steps: while all processes are stopped, no holder goes on.
#[derive(Debug)]
struct Waits {
    steps: u64,
    /// How many of these for a thread of this process.
    for_ours: u64,
}

impl Default for Waits {
    fn default() -> Self {
        let steps = HOLDER_NS / STEP_NS;
        Self { steps, for_ours: steps }
    }
}

/// Which thread has a lock for so long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Holder {
    /// One of this process: what it copies may come from far away. It goes on one day.
    Ours,
    /// One of another process of the family, which may have been stopped for ever.
    Anothers,
}

impl Waits {
    /// Those of a call that comes back to it, and must not wait.
    fn one_try() -> Self {
        Self { steps: 0, for_ours: 0 }
    }

    /// Those of a call that comes back to it: it waits for a thread of this process but once, and not for long.
    fn of_call(socket: &Socket) -> Self {
        let is_held_up = socket.flags.is_held_up.load(Ordering::Relaxed);
        Self { for_ours: if is_held_up { 0 } else { CALL_NS / STEP_NS }, ..Self::default() }
    }

    /// Those of a call that sends and may wait.
    fn of_send(socket: &Socket) -> Self {
        let limit_ns = match socket.options.send_limit_ns.load(Ordering::Relaxed) {
            0 => HOLDER_NS,
            limit_ns => limit_ns.min(HOLDER_NS),
        };
        Self { for_ours: limit_ns.div_ceil(STEP_NS), ..Self::default() }
    }

    /// Both locks of a connection.
    fn hold<'b>(&mut self, socket: &'b Socket) -> Result<[Held<'b>; 2], Holder> {
        let is_patient = self.steps > 0;
        let held = self.hold_both(socket);
        let is_held_up = &socket.flags.is_held_up;
        if (is_patient || held.is_ok()) && is_held_up.load(Ordering::Relaxed) != held.is_err() {
            is_held_up.store(held.is_err(), Ordering::Relaxed);
        }
        held
    }

    fn hold_both<'b>(&mut self, socket: &'b Socket) -> Result<[Held<'b>; 2], Holder> {
        loop {
            let receiving = self.hold_one(&socket.receiving)?;
            if let Some(sending) = socket.sending.hold_within(LAST_NS) {
                return Ok([receiving, sending]);
            }
            // While it waits for one that sends, others receive.
            drop(receiving);
            drop(self.hold_one(&socket.sending)?);
            // Where many send in turn, each turn counts.
            if self.for_ours == 0 {
                return Err(Holder::Ours);
            }
            self.steps = self.steps.saturating_sub(1);
            self.for_ours = self.for_ours.saturating_sub(1);
        }
    }

    fn hold_one<'b>(&mut self, lock: &'b Lock) -> Result<Held<'b>, Holder> {
        let mut is_anothers = false;
        loop {
            let left = if is_anothers { self.steps } else { self.for_ours };
            if let Some(held) = lock.hold_within(if left == 0 { LAST_NS } else { STEP_NS }) {
                return Ok(held);
            }
            let holder = lock.holder();
            is_anothers = holder != 0 && !raw::is_own_thread(holder);
            match is_anothers {
                true if self.steps == 0 => return Err(Holder::Anothers),
                false if self.for_ours == 0 => return Err(Holder::Ours),
                true | false => {}
            }
            self.steps = self.steps.saturating_sub(1);
            self.for_ours = self.for_ours.saturating_sub(1);
        }
    }
}

/// Leaves before the other end does, with both locks held. Some bytes may come behind those in the ring, if that end is no
/// more.
fn leave_first(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    (mut leave, behind): (Leave<'_>, Vec<u8>),
) {
    let mut given = Vec::new();
    let (mut yields, mut patience) = (Yields::default(), Patience::start());
    let mut is_at_end = false;
    let is_alone = || segment.is_abandoned(socket.end()) || streams::has_ended(socket);
    loop {
        match leave.next(is_alone, patience.spent_ns()) {
            Leaving::Pause => pause(&mut yields),
            Leaving::Receive { most, are_bells } => leave.on_received(receive(fd, most, |bytes| {
                if !are_bells {
                    given.extend_from_slice(bytes);
                }
            })),
            Leaving::Await => _ = raw::poll_for(fd, libc::POLLIN, 10),
            Leaving::Keep => leave.on_kept(keep_for_resending(socket, &given)),
            Leaving::Inherit => {
                inherit(socket, segment, fd, (std::mem::take(&mut given), &behind));
                leave.on_inherited();
            }
            Leaving::LastBell(sleeper) => {
                // The end first: what it comes behind is there by then.
                let incoming = segment.incoming(socket.end()).direction;
                is_at_end = incoming.has_fin()
                    && incoming.is_past()
                    && !incoming.has_bytes()
                    && given.is_empty()
                    && !streams::is_carried(socket);
                bell::wake(sleeper);
                leave.on_last_bell(raw::send(fd, &[0]).is_ok());
            }
            Leaving::Reset => return abort(socket, fd, Reason::NotWhole),
            Leaving::Finish(sleeper) => {
                if is_at_end {
                    // The other end may be long in making the call with which the kernel's stream ends, too.
                    raw::shut(fd, libc::SHUT_RD);
                }
                finish(socket, fd);
                bell::wake(sleeper);
                return;
            }
        }
    }
}

/// How long this thread has waited. While all processes are stopped, nothing comes that it could have waited for: such
/// a pause counts as one step.
#[derive(Debug)]
struct Patience {
    last_ns: u64,
    spent_ns: u64,
}

impl Patience {
    fn start() -> Self {
        Self { last_ns: raw::now_ns(), spent_ns: 0 }
    }

    fn spent_ns(&mut self) -> u64 {
        let now = raw::now_ns();
        self.spent_ns += now.saturating_sub(self.last_ns).min(STEP_NS);
        self.last_ns = now;
        self.spent_ns
    }
}

/// Waits for what the other end is about to have done: naps are long where processors are busy.
pub(crate) fn pause(yields: &mut Yields) {
    if !yields.give_way() {
        raw::nap(NAP_NS);
    }
}

/// There is no memory for what this end has to send: the connection goes back to the kernel, with all that is
/// in its rings. Returns false if it cannot do so yet, as the other end would have to be given back what has
/// come through the kernel: then the ring is full.
#[cold]
pub(crate) fn leave_for_want_of_memory(socket: &Socket, fd: c_int) -> bool {
    let is_free = {
        let _receiving = socket.receiving.hold();
        let Some(segment) = socket.segment() else { return true };
        if segment.is_leaving() {
            return true;
        }
        segment.connection(socket).leaves_freely()
    };
    if is_free {
        return leave_now_as(socket, fd, Reason::NoRoom);
    }
    raw::nap(NAP_NS);
    false
}

/// Receives at most so many bytes, and hands them to `take`.
fn receive(fd: c_int, most: u64, take: impl FnOnce(&[u8])) -> Received {
    let mut buffer = vec![0; usize::try_from(most).unwrap_or(usize::MAX).min(65_536)];
    match raw::recv(fd, &mut buffer, 0) {
        Ok(0) => Received::Ended,
        Ok(got) => {
            take(buffer.get(..got).unwrap_or(&[]));
            Received::Bytes(got as u64)
        }
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Ended,
    }
}

/// Leaves bytes where the other end finds them, to send them again: so many, unless there is no room.
pub(crate) fn keep_for_resending(socket: &Socket, given: &[u8]) -> Option<u64> {
    let path = offer::resend_path(socket)?;
    raw::unlink(&path);
    let written = rendezvous::open_own(&path, Expect::Nothing)?.write(given);
    if written < given.len() {
        raw::unlink(&path);
        return None;
    }
    Some(written as u64)
}

/// From here on the socket is what it would be without us.
fn finish(socket: &Socket, fd: c_int) {
    end_stream(socket, fd);
    let nodelay = c_int::from(socket.flags.nodelay.load(Ordering::Relaxed));
    let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, nodelay);
    note_left(socket);
    log::print(adverb_sockconf::Level::Debug, || {
        format!("fd {} goes back to the kernel", table::shown(fd, socket))
    });
}

/// All that the program has sent is with the kernel: the end follows that, if it has said so.
fn end_stream(socket: &Socket, fd: c_int) {
    if socket.flags.is_write_shut.load(Ordering::Acquire) {
        raw::shut(fd, libc::SHUT_WR);
    }
}

fn note_left(socket: &Socket) {
    let has_other = matches!(socket.reason(), Reason::Bulk | Reason::Broken | Reason::NotWhole);
    if !has_other && !socket.is_reset() {
        socket.set_reason(Reason::Left);
    }
    socket.set_route(Route::Kernel);
}

/// The other end leaves, or has left: does what can be done now. Called with every use of the
/// connection until nothing is left to do. Returns false if the other end is still about to leave, so
/// that nothing can be done yet, or another thread of this process uses the connection.
#[cold]
pub(crate) fn follow(socket: &Socket, fd: c_int) -> bool {
    follow_within(socket, fd, &mut Waits::of_call(socket))
}

#[cold]
fn follow_within(socket: &Socket, fd: c_int, waits: &mut Waits) -> bool {
    let _held = match waits.hold(socket) {
        Ok(held) => held,
        Err(Holder::Ours) => return false,
        Err(Holder::Anothers) if streams::is_carried(socket) => return false,
        Err(Holder::Anothers) => return reset(socket, fd, Reason::NotWhole),
    };
    socket.segment().is_none_or(|segment| follow_held(socket, segment, fd))
}

/// The same, where the next use may be long in coming: the kernel takes as much as it can hold.
#[cold]
pub(crate) fn push(socket: &Socket, fd: c_int) {
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    if let Some(segment) = socket.segment() {
        push_held(socket, segment, fd);
    }
}

/// The same, with both locks held.
fn push_held(socket: &Socket, segment: &Segment, fd: c_int) {
    let _low_water = raw::lift_low_water(fd);
    // The kernel finds out itself how long its queue should be, unless the program has said so.
    let _locks = raw::Restored::after(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK);
    hold_all(fd, segment.connection(socket).left_to_send());
    follow_held(socket, segment, fd);
}

/// [`follow`], with both locks held.
fn follow_held(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let is_abandoned = || segment.is_abandoned(socket.end());
    let mut follow = segment.connection(socket).follow();
    let mut yields = Yields::default();
    let until = raw::now_ns() + LEAVING_NS;
    loop {
        let next = if segment.is_spoilt() { Following::Reset } else { follow.next(is_abandoned) };
        match next {
            Following::Wait if raw::now_ns() < until => pause(&mut yields),
            Following::Wait => return is_overdue(socket, fd),
            Following::Gone => {
                note_left(socket);
                return true;
            }
            Following::Resend { from, of } => {
                begin_to_follow(socket);
                match resend(socket, fd, from, of) {
                    Ok((sent, is_all)) => follow.on_resent(sent, is_all),
                    Err(Broken) => return reset(socket, fd, Reason::NotWhole),
                }
            }
            Following::Forward => {
                begin_to_follow(socket);
                match forward(socket, segment, fd) {
                    Ok(is_all) => {
                        if is_all {
                            end_stream(socket, fd);
                        }
                        follow.on_forwarded(is_all);
                    }
                    Err(Broken) => return reset(socket, fd, Reason::NotWhole),
                }
            }
            Following::Drain => follow.on_drained(is_drained(socket, segment, fd)),
            Following::Later => return true,
            Following::Finish => {
                finish(socket, fd);
                offer::withdraw(socket);
                return true;
            }
            Following::Reset => return reset(socket, fd, Reason::Broken),
        }
    }
}

/// Whether the other end has been about to leave for so long that the connection is reset.
fn is_overdue(socket: &Socket, fd: c_int) -> bool {
    let (now, o) = (raw::now_ns(), Ordering::Relaxed);
    let since = match socket.rendezvous.leaving_since_ns.compare_exchange(0, now, o, o) {
        Ok(_) => now,
        Err(since) => since,
    };
    now.saturating_sub(since) > TIMEOUT_NS && reset(socket, fd, Reason::NotWhole)
}

fn begin_to_follow(socket: &Socket) {
    if socket.route() != Route::Leaving {
        socket.set_route(Route::Leaving);
    }
}

/// There is nothing left to follow.
fn reset(socket: &Socket, fd: c_int, reason: Reason) -> bool {
    abort(socket, fd, reason);
    true
}

/// The other end has written nonsense: the connection is given up.
#[cold]
pub(crate) fn poison(socket: &Socket, fd: c_int) {
    abort(socket, fd, Reason::Broken);
}

/// Both ends see a connection that is reset, for this reason, and this end is the kernel's.
#[cold]
fn abort(socket: &Socket, fd: c_int, reason: Reason) {
    if socket.route() == Route::Kernel {
        return;
    }
    raw::disconnect(fd);
    socket.set_reason(reason);
    socket.set_route(Route::Kernel);
    add(&socket.counters.rings_broken, 1);
    if let Some(segment) = socket.mapped() {
        bell::wake(segment.incoming(socket.end()).direction.wake_at_end());
    }
    offer::withdraw(socket);
    log::print(adverb_sockconf::Level::Warning, || {
        format!("fd {}: {}", table::shown(fd, socket), reason.text())
    });
}

/// These ends have to leave as well. Each can, once all that it has sent is with the kernel, if all that was sent to it
/// through its ring has been read. No lock is held while the kernel is waited for.
fn follow_to_the_end(left: &[(&Socket, c_int)], waits: &mut Waits) {
    let (start, mut is_over) = (raw::now_ns(), false);
    loop {
        let mut waits_for = None;
        for (socket, fd) in left {
            if let Some(events) = is_behind(socket, *fd, is_over, waits) {
                waits_for = Some((*fd, events));
            }
        }
        let Some((fd, events)) = waits_for else { return };
        is_over = raw::now_ns().saturating_sub(start) > TIMEOUT_NS;
        let _ = raw::poll_for(fd, events, 10);
    }
}

/// Does what can be done now. What is waited for, if that is not all; the connection is reset if `is_over`.
fn is_behind(socket: &Socket, fd: c_int, is_over: bool, waits: &mut Waits) -> Option<i16> {
    let _held = match waits.hold(socket) {
        Ok(held) => held,
        Err(Holder::Ours) if !is_over => return Some(0),
        Err(Holder::Ours | Holder::Anothers) => {
            abort(socket, fd, Reason::NotWhole);
            return None;
        }
    };
    let segment = socket.segment()?;
    if follow_held(socket, segment, fd) && socket.route() == Route::Kernel {
        return None;
    }
    let connection = segment.connection(socket);
    if connection.bells_behind().is_none() || is_over {
        abort(socket, fd, Reason::NotWhole);
        return None;
    }
    Some(if connection.left_to_send() == 0 { libc::POLLIN } else { libc::POLLOUT })
}

/// Whether everything that came otherwise than it will from now on has been read. Drops bells. Those that
/// do not come any more, since the kernel's stream has ended, are not waited for.
pub(crate) fn is_drained(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let connection = segment.connection(socket);
    drops_bells(socket, connection, fd, || connection.bells_behind())
}

/// Whether what the kernel has comes right behind what is in the ring: the other end has left. Drops bells.
pub(crate) fn is_kernel_next(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let connection = segment.connection(socket);
    matches!(segment.leaver(), Ok(Leaver::Left(end)) if end != socket.end())
        && drops_bells(socket, connection, fd, || connection.bells_past())
}

fn drops_bells(
    socket: &Socket,
    connection: Connection<'_>,
    fd: c_int,
    left: impl Fn() -> Option<u64>,
) -> bool {
    let mut bells = [0_u8; 64];
    for _ in 0..DRAINS_MAX {
        let Some(left) = left() else { return false };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(bells.len());
        if most == 0 {
            return true;
        }
        match raw::recv(fd, bells.get_mut(..most).unwrap_or(&mut []), 0) {
            Ok(0) => return true,
            Ok(got) => connection.incoming().drained(got as u64),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(Errno(error)) => {
                // The kernel says it once: now.
                socket.set_error(error);
                return true;
            }
        }
    }
    false
}

/// Receptions of bells in one attempt: the other end says how many there are, and may send more meanwhile.
const DRAINS_MAX: u32 = 1024;

/// Sends again what the end that left has not read of the kernel's queue, from a position on, as far as the kernel takes
/// it: so many bytes, and whether that was all.
fn resend(socket: &Socket, fd: c_int, from: u64, of: u64) -> Result<(u64, bool), Broken> {
    if raw::poll_now(fd, libc::POLLOUT) == Ok(0) {
        return Ok((0, false));
    }
    let path = offer::resend_path(socket).ok_or(Broken)?;
    let given = usize::try_from(of).ok().and_then(|of| rendezvous::read_own(&path, of));
    let given = given.filter(|given| given.len() as u64 == of).ok_or(Broken)?;
    let rest = given.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or(&[]);
    let sent = give(fd, rest.as_ptr(), rest.len())?;
    if sent == rest.len() {
        raw::unlink(&path);
    }
    Ok((sent as u64, sent == rest.len()))
}

/// Sends what the end that left has not read of the ring, as far as the kernel takes it. Returns whether that was all.
fn forward(socket: &Socket, segment: &Segment, fd: c_int) -> Result<bool, Broken> {
    let mut is_torn = false;
    let is_all = segment.outgoing(socket.end()).forward(|bytes, len| {
        give(fd, bytes, len).unwrap_or_else(|Broken| {
            is_torn = true;
            0
        })
    });
    if is_torn { Err(Broken) } else { is_all }
}

/// Gives the kernel what it takes. A connection that has ended takes everything, but none whose stream alone has: its
/// reader would not see that bytes are missing. A ring whose file has been cut off has nothing to give.
fn give(fd: c_int, bytes: *const u8, len: usize) -> Result<usize, Broken> {
    let mut done = 0;
    while done < len {
        // SAFETY: the callers' bytes are mapped: a slice, or a run of a ring.
        match unsafe { raw::send_from(fd, bytes.wrapping_add(done), len - done) } {
            Ok(sent) => done += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(done),
            Err(Errno(libc::EFAULT)) => return Err(Broken),
            Err(Errno::PIPE) if !raw::is_over(fd) => return Err(Broken),
            Err(_) => return Ok(len),
        }
    }
    Ok(len)
}

/// A connection whose other end has left is being closed: what it has not read must be on its way. The kernel is
/// asked to hold all of it; what it does not take, as a reader is slow, is waited for, but not for long. Then the
/// connection is reset: to end it would hide that bytes are missing.
pub(crate) fn send_the_rest(socket: &Socket, fd: c_int) {
    let mut since = raw::now_ns();
    let mut before = u64::MAX;
    loop {
        advance(socket, fd);
        let Some(segment) = socket.segment() else { return };
        let rest = segment.connection(socket).left_to_send();
        if rest == 0 {
            return;
        }
        if !segment.outgoing(socket.end()).waiting_is_possible() {
            return poison(socket, fd);
        }
        if before == u64::MAX {
            hold_all(fd, rest);
        }
        if rest < before {
            (before, since) = (rest, raw::now_ns());
        } else if raw::now_ns().saturating_sub(since) > STALLED_NS {
            log::print(adverb_sockconf::Level::Warning, || {
                format!("fd {fd}: closed with {rest} bytes that its reader does not take: reset")
            });
            return raw::disconnect(fd);
        }
        let _ = raw::poll_for(fd, libc::POLLOUT, 100);
    }
}

/// Has the kernel hold so many bytes more than it would, as far as it lets this process ask for that.
fn hold_all(fd: c_int, rest: u64) {
    let holds = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    // It counts what it spends on the bytes, too, and takes twice what it is asked for.
    let wanted = c_int::try_from(rest).unwrap_or(c_int::MAX / 4).min(c_int::MAX / 4);
    let wanted = wanted.saturating_add(holds);
    let is_forced = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted).is_ok();
    if !is_forced && holds < GRANTED_BYTES {
        let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted);
    }
}

/// The other end is no more, and its last bytes wait here: they go where a program finds them that
/// does not know of rings.
fn inherit(socket: &Socket, segment: &Segment, fd: c_int, (mut bytes, behind): (Vec<u8>, &[u8])) {
    let incoming = segment.incoming(socket.end());
    let is_whole = incoming.forward(|run, len| {
        // SAFETY: a run of the ring, mapped and initialised.
        bytes.extend((0..len).map(|at| unsafe { run.wrapping_add(at).read_volatile() }));
        len
    });
    if is_whole.is_err() {
        return poison(socket, fd);
    }
    bytes.extend_from_slice(behind);
    // What frames have carried has no end in the kernel.
    if bytes.is_empty() && !streams::has_ended(socket) {
        return;
    }
    let domain = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let Some((writer, reader)) = pair(domain.unwrap_or(libc::AF_INET)) else {
        return raw::disconnect(fd);
    };
    let is_reset = socket.is_reset() && socket.take_error().is_some();
    if is_reset {
        widen(reader, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, bytes.len());
    }
    let is_given =
        !give(writer, bytes.as_ptr(), bytes.len()).is_ok_and(|given| given < bytes.len());
    let is_whole = is_given && (!is_reset || arrives(reader, bytes.len()));
    if !is_whole && !is_reset {
        // An end would say that nothing is missing.
        raw::disconnect(fd);
    } else {
        if is_reset {
            if is_whole && streams::has_fin(socket) {
                raw::shut(writer, libc::SHUT_WR);
            }
            // A reset takes what has not arrived.
            raw::disconnect(writer);
        }
        raw::shut(writer, libc::SHUT_WR);
        raw::set_file_flags(reader, raw::file_flags(fd).unwrap_or(0));
        let cookie = rendezvous::cookie(fd);
        for other in table::open_descriptors() {
            if other == fd || rendezvous::cookie(other) == cookie && cookie != 0 {
                let _ = raw::replace(reader, other);
            }
        }
    }
    raw::close(writer);
    raw::close(reader);
}

/// Makes a buffer of a socket hold as much, as far as the kernel allows. What it spends on the bytes it counts, too.
fn widen(fd: c_int, name: c_int, forced: c_int, bytes: usize) {
    let wanted = c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX / 4);
    let wanted = wanted.min(c_int::MAX / 4);
    if raw::set_option(fd, libc::SOL_SOCKET, forced, wanted).is_err() {
        let _ = raw::set_option(fd, libc::SOL_SOCKET, name, wanted);
    }
}

/// Whether so many bytes come to the end of a connection within this host, for which they take a moment.
fn arrives(reader: c_int, bytes: usize) -> bool {
    let until = raw::now_ns() + ARRIVING_NS;
    loop {
        match raw::waiting(reader) {
            Ok(there) if there >= bytes => return true,
            Ok(_) if raw::now_ns() < until => raw::nap(ARRIVING_NAP_NS),
            Ok(_) | Err(_) => return false,
        }
    }
}

/// Two ends of a connection of this process with itself.
fn pair(domain: c_int) -> Option<(c_int, c_int)> {
    let mut address = [0_u8; 28];
    let [f0, f1] = u16::try_from(domain).ok()?.to_ne_bytes();
    let len = if domain == libc::AF_INET {
        let [a, b, _, _, w, x, y, z, ..] = &mut address;
        (*a, *b, *w, *x, *y, *z) = (f0, f1, 127, 0, 0, 1);
        16
    } else {
        let [a, b, rest @ ..] = &mut address;
        (*a, *b) = (f0, f1);
        *rest.get_mut(21)? = 1;
        28
    };
    let listener = socket(domain)?;
    let made = connect_to_self(listener, domain, &mut address, len);
    raw::close(listener);
    made
}

fn connect_to_self(
    listener: c_int,
    domain: c_int,
    address: &mut [u8; 28],
    len: usize,
) -> Option<(c_int, c_int)> {
    let at = address.as_mut_ptr() as usize;
    let call = |number, fd: c_int, args: [usize; 3]| {
        let [a, b, c] = args;
        // SAFETY: an address of 28 bytes, of which the kernel reads or writes at most `len`.
        unsafe { raw::syscall(number, [fd as usize, a, b, c, 0, 0]) }.ok()
    };
    call(libc::SYS_bind, listener, [at, len, 0])?;
    call(libc::SYS_listen, listener, [8, 0, 0])?;
    let mut room = len as libc::socklen_t;
    call(libc::SYS_getsockname, listener, [at, &raw mut room as usize, 0])?;
    let writer = socket(domain)?;
    let reader = call(libc::SYS_connect, writer, [at, len, 0])
        .and_then(|_| call(libc::SYS_accept4, listener, [0, 0, libc::SOCK_CLOEXEC as usize]))
        .and_then(|fd| c_int::try_from(fd).ok());
    // Another process may have been faster.
    match reader {
        Some(reader) if address::name(reader, true) == address::name(writer, false) => {
            Some((writer, reader))
        }
        Some(_) | None => {
            reader.into_iter().for_each(raw::close);
            raw::close(writer);
            None
        }
    }
}

fn socket(domain: c_int) -> Option<c_int> {
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;
    // SAFETY: no pointer.
    let fd = unsafe { raw::syscall(libc::SYS_socket, [domain as usize, kind, 0, 0, 0, 0]) };
    let fd = c_int::try_from(fd.ok()?).ok()?;
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        let _ = raw::set_option(fd, libc::SOL_SOCKET, name, 1 << 20);
    }
    Some(fd)
}

/// Naps of an end that waits for the other to finish what takes it a moment.
const NAP_NS: i64 = 50_000;
/// How long an end that leaves waits for the other to finish what it has begun: a bell, bytes on their way.
const LEAVE_NS: u64 = 500_000_000;
/// A single wait of it counts as so much at most; it is meant to last less.
const STEP_NS: u64 = 20_000_000;
/// How long for threads that have locks of connections. One that is not stopped asks an owner of frames twice at most, and
/// leaves.
const HOLDER_NS: u64 = 5_000_000_000;
const _: () = assert!((HOLDER_NS - LEAVE_NS) as u128 > 2 * ANSWER.as_nanos());
/// How long a call that comes back waits for one of its own process: longer than others run that are to run first.
const CALL_NS: u64 = 200_000_000;
/// Once that is over, for those that have more locks: as long as it takes to copy something, or to see that a thread has died.
const LAST_NS: u64 = 1_000_000;
/// How long for an end that leaves, with each use of the connection.
const LEAVING_NS: u64 = 20_000_000;
/// How long for room for bytes that are to be sent again, and for an end that leaves.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// What every process is granted for the asking, unless the system has been told otherwise (`wmem_max`, tcp(7)):
/// where the kernel holds more by itself, asking might make it less.
const GRANTED_BYTES: c_int = 2 * 212_992;
/// How long bytes take to the other end of a connection within this host, and how long a nap is meanwhile.
const ARRIVING_NS: u64 = 20_000_000;
const ARRIVING_NAP_NS: i64 = 100_000;
/// How long an end that closes waits for a reader that takes nothing: a call that another process holds up takes
/// less than a second.
const STALLED_NS: u64 = 800_000_000;
