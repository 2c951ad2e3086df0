//! Fallback to the kernel: a connection gives up its rings while bytes are in them.
//!
//! A program without this library can use a connection only if all that is still to come arrives
//! through the kernel. So the end that is about to be handed to one *leaves*:
//!
//! 1. It reads no more from its ring, and writes no more to the other.
//! 2. It takes what the kernel's queue holds in front of pending bells, and the bells.
//! 3. It sends a last bell, and is the kernel's.
//!
//! The other end *follows* with its next call, or when the last bell has woken it:
//!
//! 1. It reads what is in its ring, drops the bells, which it can count, and then reads from the kernel.
//! 2. What the end that left has not read it sends again, through the kernel, before anything new.
//!
//! ```text
//! leaver            Leaves: no more rings              Left: as if there had never been any
//! its queue         given | bell bell      ==>         (empty)
//! follower sends                                       what was given and not read | its ring | new
//! follower reads    given | bell | ring | last bell    new
//! ```
//!
//! Bytes are counted, so neither end has to wait for the other. If the other end has closed or died
//! and cannot send again, its last bytes and its end are put into a connection of this process with
//! itself, which takes the place of the old one. If both leave, and the second has bytes in its ring
//! that it has not read, they cannot be sent again: the connection is reset, rather than have a hole.
//!
//! An end that finds nonsense in the rings resets the connection as well ([`poison`]): it is the kernel's
//! from then on, which says what has happened.
//!
//! # Safety
//!
//! Addresses passed to the kernel are arrays on this stack; bytes of a ring are passed to it under
//! rule 2 of `ring.rs`.

#![expect(clippy::as_conversions, reason = "the kernel's arguments are machine words")]

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use adverb_shm::file::Expect;

use crate::base::raw::{self, Errno};
use crate::base::{address, log};
use crate::socket::counters::add;
use crate::socket::state::{End, Kind, Reason, Route, Socket};
use crate::socket::table;
use crate::transport::ring::{ACCEPTED, Broken, Leaver, NEVER, Ring, Segment};
use crate::transport::{bell, offer, rendezvous};

/// Gives a connection back to the kernel for good. `fd` stands for it in this process.
pub(crate) fn leave(socket: &Socket, fd: c_int) {
    advance(socket, fd);
    socket.leave_to_kernel(Reason::HandedOver);
    if leave_as(socket, fd, Reason::Left) == Departure::OtherFirst {
        follow_to_the_end(socket, fd);
    }
}

/// The program wants of a connection what only the kernel has: its rings go, as soon as it has read what it has been
/// sent by them, since the other end would send that again with its next call only.
#[cold]
pub(crate) fn leave_for_feature(socket: &Socket, fd: c_int) {
    advance(socket, fd);
    socket.leave_to_kernel(Reason::Feature);
    let has_unread = |segment: &Segment| segment.incoming(socket.end()).has_bytes();
    let has_to_wait = socket.segment().is_some_and(has_unread);
    socket.flags.wants_kernel.store(has_to_wait, Ordering::Relaxed);
    if !has_to_wait {
        leave_as(socket, fd, Reason::Feature);
    }
}

/// The same at once, whatever has not been read.
#[cold]
pub(crate) fn leave_now(socket: &Socket, fd: c_int) {
    advance(socket, fd);
    socket.leave_to_kernel(Reason::Feature);
    leave_as(socket, fd, Reason::Feature);
}

/// A connection that was on its way may have arrived: then it is time to offer rings. One whose other
/// end has gone back to the kernel follows.
pub(crate) fn advance(socket: &Socket, fd: c_int) {
    if socket.segment().is_some_and(|segment| segment.is_leaving() || segment.is_spoilt()) {
        follow(socket, fd);
    }
    advance_connection(socket, fd);
}

/// The first half of that, and of the second what is under way already.
#[inline]
pub(crate) fn advance_connection(socket: &Socket, fd: c_int) {
    if socket.route() == Route::Leaving {
        follow(socket, fd);
    }
    if socket.kind() == Kind::Connecting
        && let Some(peer) = address::name(fd, true)
    {
        socket.set_kind(Kind::Stream);
        if socket.route() == Route::Open {
            offer::offer(socket, fd, peer);
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
}

fn leave_as(socket: &Socket, fd: c_int, reason: Reason) -> Departure {
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    let Some(segment) = socket.segment() else { return Departure::Gone };
    if segment.header().state.load(Ordering::Acquire) != ACCEPTED
        && offer::take_back(socket, segment, fd)
    {
        return Departure::Gone;
    }
    let me = socket.end();
    if !segment.begin_to_leave(me) {
        return Departure::OtherFirst;
    }
    bell::switch(socket, segment);
    leave_first(socket, segment, fd);
    socket.set_reason(if socket.reason() == Reason::Broken { Reason::Broken } else { reason });
    Departure::Gone
}

/// Leaves before the other end does, with both locks held; waits for that for [`LEAVE_NS`] at most.
fn leave_first(socket: &Socket, segment: &Segment, fd: c_int) {
    let me = socket.end();
    let until = raw::now_ns() + LEAVE_NS;
    let incoming = segment.incoming(me);
    // Threads of the other end that are sending a bell have a moment to finish: then bells can be counted.
    let mut round = 0_u32;
    while incoming.direction.producer.notifying.load(Ordering::SeqCst) != 0
        && !segment.is_abandoned(me)
        && raw::now_ns() < until
    {
        round += 1;
        if round < 64 { raw::give_way() } else { raw::nap(NAP_NS) }
    }
    let is_alone = segment.outgoing(me).direction.consumer.sleep.gone.load(Ordering::SeqCst) != 0
        || segment.is_abandoned(me);
    let Some(given) = empty_queue(incoming, fd, is_alone && incoming.has_bytes(), until) else {
        return poison(socket, fd);
    };
    if is_alone {
        inherit(socket, segment, fd, given);
    } else if !keep_for_resending(socket, segment, &given) {
        return poison(socket, fd);
    } else {
        notify_last(segment, me, fd);
    }
    segment.has_left(me);
    finish(socket, fd);
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
        let incoming = segment.incoming(socket.end());
        incoming.pending_bells() == 0 || is_past(incoming)
    };
    if is_free {
        leave_as(socket, fd, Reason::NoRoom);
    } else {
        raw::nap(NAP_NS);
    }
    is_free
}

/// Takes bells out of the kernel's queue, and returns the bytes in front of them. If there are no
/// bells, these stay where they are, unless `all` are wanted. `None` if there are not as many by then as the
/// other end says: what comes later could not be told apart from its data.
fn empty_queue(incoming: Ring<'_>, fd: c_int, all: bool, until: u64) -> Option<Vec<u8>> {
    let (producer, consumer) = (&incoming.direction.producer, &incoming.direction.consumer);
    let bells = incoming.pending_bells();
    if bells == 0 && !all {
        return Some(Vec::new());
    }
    let taken = consumer.taken.load(Ordering::Acquire);
    let end = match producer.switched_at.load(Ordering::Acquire) {
        NEVER => producer.given.load(Ordering::Acquire),
        switched => switched,
    };
    let mut given = Vec::new();
    let waiting = end.saturating_sub(taken);
    if waiting.max(bells) > QUEUE_MAX {
        return None;
    }
    let is_whole = take_exactly(fd, waiting, until, |bytes| given.extend_from_slice(bytes));
    consumer.taken.fetch_add(given.len() as u64, Ordering::AcqRel);
    let is_drained = take_exactly(fd, bells, until, |bytes| {
        consumer.drained.fetch_add(bytes.len() as u64, Ordering::AcqRel);
    });
    (is_whole && is_drained).then_some(given)
}

/// Receives so many bytes that are known to come. Returns whether they have, or never will, as the kernel's stream
/// has ended.
fn take_exactly(fd: c_int, mut count: u64, until: u64, mut take: impl FnMut(&[u8])) -> bool {
    let mut buffer = vec![0; usize::try_from(count).unwrap_or(usize::MAX).min(65_536)];
    while count > 0 {
        let most = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
        match raw::recv(fd, buffer.get_mut(..most).unwrap_or(&mut []), 0) {
            Ok(0) => return true,
            Ok(got) => {
                take(buffer.get(..got).unwrap_or(&[]));
                count = count.saturating_sub(got as u64);
            }
            Err(Errno::AGAIN | Errno::INTR) if raw::now_ns() < until => {
                let _ = raw::poll_for(fd, libc::POLLIN, 10);
            }
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// Leaves bytes where the other end finds them, to send them again. Returns whether there was room for all.
fn keep_for_resending(socket: &Socket, segment: &Segment, given: &[u8]) -> bool {
    if given.is_empty() {
        return true;
    }
    let Some(path) = offer::resend_path(socket) else { return false };
    raw::unlink(&path);
    let Some(file) = rendezvous::open_own(&path, Expect::Nothing) else { return false };
    let written = file.write(given);
    segment.header().resend.store(written as u64, Ordering::Release);
    written == given.len()
}

/// Wakes the other end.
fn notify_last(segment: &Segment, me: End, fd: c_int) {
    let outgoing = segment.outgoing(me).direction;
    bell::wake_at_end(outgoing);
    let bells = &outgoing.producer.bells;
    bells.fetch_add(1, Ordering::SeqCst);
    if raw::send(fd, &[0]).is_err() {
        bells.fetch_sub(1, Ordering::SeqCst);
    }
}

/// From here on the socket is what it would be without us.
fn finish(socket: &Socket, fd: c_int) {
    if socket.flags.is_write_shut.load(Ordering::Acquire) {
        raw::shut(fd, libc::SHUT_WR);
    }
    let nodelay = c_int::from(socket.flags.nodelay.load(Ordering::Relaxed));
    let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, nodelay);
    socket.set_reason(Reason::Left);
    socket.set_route(Route::Kernel);
    log::print(adverb_sockconf::Level::Debug, || format!("fd {fd} goes back to the kernel"));
}

/// The other end leaves, or has left: does what can be done now. Called with every use of the
/// connection until nothing is left to do. Returns false if the other end is still about to leave, so
/// that nothing can be done yet.
#[cold]
pub(crate) fn follow(socket: &Socket, fd: c_int) -> bool {
    let _receiving = socket.receiving.hold();
    let _sending = socket.sending.hold();
    socket.segment().is_none_or(|segment| follow_held(socket, segment, fd))
}

/// The same, with both locks held.
fn follow_held(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let me = socket.end();
    let mut round = 0_u32;
    let until = raw::now_ns() + LEAVING_NS;
    loop {
        match segment.leaver() {
            Err(Broken) | Ok(Leaver::Neither) => {
                poison(socket, fd);
                return true;
            }
            Ok(Leaver::Leaves(end) | Leaver::Left(end)) if end == me => {
                // Another program that had this end too has left.
                socket.set_reason(Reason::Left);
                socket.set_route(Route::Kernel);
                return true;
            }
            Ok(Leaver::Leaves(_)) if !segment.is_abandoned(me) => {}
            Ok(Leaver::Leaves(_) | Leaver::Left(_)) => return follow_left(socket, segment, fd),
        }
        // Naps are long where processors are busy.
        if raw::now_ns() >= until {
            break;
        }
        round += 1;
        if round < 64 { raw::give_way() } else { raw::nap(NAP_NS) }
    }
    let (now, o) = (raw::now_ns(), Ordering::Relaxed);
    let since = match socket.rendezvous.leaving_since_ns.compare_exchange(0, now, o, o) {
        Ok(_) => now,
        Err(since) => since,
    };
    let is_over = now.saturating_sub(since) > TIMEOUT_NS;
    if is_over {
        poison(socket, fd);
    }
    is_over
}

fn follow_left(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    if socket.route() != Route::Leaving {
        socket.set_route(Route::Leaving);
    }
    match resend_all(socket, segment, fd) {
        Err(Broken) => poison(socket, fd),
        Ok(true) if is_drained(socket, segment, fd) => {
            finish(socket, fd);
            offer::withdraw(socket);
        }
        Ok(_) => {}
    }
    true
}

/// The other end has written nonsense, or has not left for ever so long: both ends see a connection that
/// is reset, and this one is the kernel's.
#[cold]
pub(crate) fn poison(socket: &Socket, fd: c_int) {
    if socket.route() == Route::Kernel {
        return;
    }
    disconnect(fd);
    socket.set_reason(Reason::Broken);
    socket.set_route(Route::Kernel);
    add(&socket.counters.rings_broken, 1);
    if let Some(segment) = socket.mapped() {
        bell::wake_at_end(segment.incoming(socket.end()).direction);
    }
    offer::withdraw(socket);
    log::print(adverb_sockconf::Level::Warning, || format!("fd {fd}: {}", Reason::Broken.text()));
}

/// This end has to leave as well. It can, once all that it has sent is with the kernel, if all that
/// was sent to it through its ring has been read. No lock is held while the kernel is waited for.
fn follow_to_the_end(socket: &Socket, fd: c_int) {
    let start = raw::now_ns();
    loop {
        let events = {
            let _receiving = socket.receiving.hold();
            let _sending = socket.sending.hold();
            let Some(segment) = socket.segment() else { return };
            if follow_held(socket, segment, fd) && socket.route() == Route::Kernel {
                return;
            }
            let incoming = segment.incoming(socket.end());
            if incoming.has_bytes()
                || !is_past(incoming)
                || raw::now_ns().saturating_sub(start) > TIMEOUT_NS
            {
                disconnect(fd);
                return finish(socket, fd);
            }
            if has_resent(segment, socket.end()) { libc::POLLIN } else { libc::POLLOUT }
        };
        let _ = raw::poll_for(fd, events, 10);
    }
}

/// Whether all that came through the kernel before the ring has been read.
fn is_past(incoming: Ring<'_>) -> bool {
    let switched = incoming.direction.producer.switched_at.load(Ordering::Acquire);
    switched != NEVER && incoming.direction.consumer.taken.load(Ordering::Relaxed) >= switched
}

/// Whether everything that came otherwise than it will from now on has been read. Drops bells. Those that
/// do not come any more, since the kernel's stream has ended, are not waited for.
pub(crate) fn is_drained(socket: &Socket, segment: &Segment, fd: c_int) -> bool {
    let incoming = segment.incoming(socket.end());
    if !is_past(incoming) || incoming.has_bytes() {
        return false;
    }
    let mut bells = [0_u8; 64];
    loop {
        let left = usize::try_from(incoming.pending_bells()).unwrap_or(usize::MAX);
        if left == 0 {
            return true;
        }
        let most = left.min(bells.len());
        match raw::recv(fd, bells.get_mut(..most).unwrap_or(&mut []), 0) {
            Ok(0) => return true,
            Ok(got) => {
                incoming.direction.consumer.drained.fetch_add(got as u64, Ordering::AcqRel);
            }
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(Errno(error)) => {
                // The kernel says it once: now.
                socket
                    .flags
                    .pending_error
                    .store(u8::try_from(error).unwrap_or(0), Ordering::Relaxed);
                return true;
            }
        }
    }
}

/// Whether everything that the end that left has not read has been sent again.
pub(crate) fn has_resent(segment: &Segment, me: End) -> bool {
    left_to_send(segment, me) == 0
}

/// How much of that is still to be sent.
fn left_to_send(segment: &Segment, me: End) -> u64 {
    let resent = segment.header().resent.load(Ordering::Acquire);
    resend_of(segment).saturating_sub(resent).saturating_add(segment.outgoing(me).waiting())
}

/// Bytes that the end that left has left to be sent again.
fn resend_of(segment: &Segment) -> u64 {
    segment.header().resend.load(Ordering::Acquire).min(QUEUE_MAX)
}

/// Sends again what the end that left has not read, as far as the kernel takes it. Returns whether
/// that was all.
fn resend_all(socket: &Socket, segment: &Segment, fd: c_int) -> Result<bool, Broken> {
    let header = segment.header();
    let resend = resend_of(segment);
    let done = header.resent.load(Ordering::Acquire);
    if done < resend {
        let given = offer::resend_path(socket)
            .and_then(|path| rendezvous::read_own(&path, usize::try_from(resend).ok()?))
            .filter(|given| given.len() as u64 == resend)
            .ok_or(Broken)?;
        let rest = given.get(usize::try_from(done).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        let sent = give(fd, rest.as_ptr(), rest.len())?;
        header.resent.fetch_add(sent as u64, Ordering::AcqRel);
        if sent < rest.len() {
            return Ok(false);
        }
        header.resent.store(resend, Ordering::Release);
        if let Some(path) = offer::resend_path(socket) {
            raw::unlink(&path);
        }
    }
    let mut is_torn = false;
    let is_all = segment.outgoing(socket.end()).forward(|bytes, len| {
        give(fd, bytes, len).unwrap_or_else(|Broken| {
            is_torn = true;
            0
        })
    });
    if is_torn { Err(Broken) } else { is_all }
}

/// Gives the kernel what it takes. A connection that has ended takes everything; a ring whose file has been cut
/// off has nothing to give.
fn give(fd: c_int, bytes: *const u8, len: usize) -> Result<usize, Broken> {
    let mut done = 0;
    while done < len {
        // SAFETY: the callers' bytes are mapped: a slice, or a run of a ring.
        match unsafe { raw::send_from(fd, bytes.wrapping_add(done), len - done) } {
            Ok(sent) => done += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(done),
            Err(Errno(libc::EFAULT)) => return Err(Broken),
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
        let rest = left_to_send(segment, socket.end());
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
            return disconnect(fd);
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
fn inherit(socket: &Socket, segment: &Segment, fd: c_int, given: Vec<u8>) {
    let mut bytes = given;
    let incoming = segment.incoming(socket.end());
    let is_whole = incoming.forward(|run, len| {
        // SAFETY: a run of the ring, mapped and initialised.
        bytes.extend((0..len).map(|at| unsafe { run.wrapping_add(at).read_volatile() }));
        len
    });
    if is_whole.is_err() {
        return poison(socket, fd);
    }
    if bytes.is_empty() {
        return;
    }
    let domain = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let Some((writer, reader)) = pair(domain.unwrap_or(libc::AF_INET)) else {
        return disconnect(fd);
    };
    if give(writer, bytes.as_ptr(), bytes.len()).is_ok_and(|given| given < bytes.len()) {
        disconnect(fd);
    } else {
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

/// Resets a connection, for all processes that have it.
fn disconnect(fd: c_int) {
    let nowhere = [0_u8; 16];
    let args = [fd as usize, nowhere.as_ptr() as usize, nowhere.len(), 0, 0, 0];
    // SAFETY: the kernel reads an address of 16 bytes, which is ours.
    let _ = unsafe { raw::syscall(libc::SYS_connect, args) };
}

/// Naps of an end that waits for the other to finish what takes it a moment.
const NAP_NS: i64 = 50_000;
/// How long an end that leaves waits for the other to finish what it has begun: a bell, bytes on their way.
const LEAVE_NS: u64 = 500_000_000;
/// How long for an end that leaves, with each use of the connection.
const LEAVING_NS: u64 = 20_000_000;
/// How long for room for bytes that are to be sent again, and for an end that leaves.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// What every process is granted for the asking, unless the system has been told otherwise (`wmem_max`, tcp(7)):
/// where the kernel holds more by itself, asking might make it less.
const GRANTED_BYTES: c_int = 2 * 212_992;
/// How long an end that closes waits for a reader that takes nothing: a call that another process holds up takes
/// less than a second.
const STALLED_NS: u64 = 800_000_000;
/// More than the kernel holds for a connection.
const QUEUE_MAX: u64 = 1 << 30;
