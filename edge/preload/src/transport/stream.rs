//! Connections: bytes in and out, through the kernel or through the rings.
//!
//! [`try_receive`] and [`try_send`] never wait; calls that do are in `blocking.rs`. See `ring.rs` for how
//! bytes move from the kernel to the rings, and for the bell.
//!
//! # Safety
//!
//! Message headers passed to the kernel point to arrays on this stack, and these to the program's
//! buffers, which it has promised for the length of the call (see `iovec.rs`). Short receptions go to memory of ours, for
//! which the caller answers.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use adverb_sockconf::Level;
use adverb_switchover::{Empty, Route, Source, Want, WayOut};

use crate::base::iovec::{IoCursor, PARTS_MAX};
use crate::base::lock::Held;
use crate::base::raw::{self, Answer, Errno};
use crate::base::{copy, log, thread};
use crate::socket::counters::{add, rise};
use crate::socket::loans::{Loan, PIECES_MAX};
use crate::socket::policy;
use crate::socket::state::{Kind, Reason, Socket};
use crate::transport::ring::{Ring, Segment, Trouble};
use crate::transport::xdp::streams::{self, Written};
use crate::transport::{bell, fallback, kernel, offer, park, rendezvous, streak};

/// What an attempt has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// So many bytes have moved.
    Moved(usize),
    /// The peer will send no more.
    Ended,
    /// Nothing to read, or no room to write.
    Nothing,
    /// It failed.
    Failed(Errno),
}

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receive<'a> {
    /// What is read stays where it is.
    pub(crate) peek: bool,
    /// All that was asked for, or nothing yet.
    pub(crate) all: bool,
    /// Throw away instead of copying.
    pub(crate) discard: bool,
    /// Do not wait.
    pub(crate) now: bool,
    /// What comes out of a ring may be lent where it lies, rather than copied.
    pub(crate) loan: Option<&'a Loan<'a>>,
    /// What frames have brought has just been looked for.
    pub(crate) looked: bool,
}

impl Receive<'_> {
    fn kernel_flags(self) -> c_int {
        let peek = if self.peek { libc::MSG_PEEK } else { 0 };
        let discard = if self.discard { libc::MSG_TRUNC } else { 0 };
        peek | discard | libc::MSG_DONTWAIT
    }
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros is a legal value of this structure of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

pub(crate) const NO_PARTS: [libc::iovec; PARTS_MAX] =
    [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];

/// Receives at most `most` bytes from the kernel, without waiting.
fn kernel_receive(fd: c_int, cursor: &mut IoCursor<'_>, most: usize, how: Receive<'_>) -> Answer {
    let mut parts = NO_PARTS;
    let count = cursor.rest(most, &mut parts);
    let mut message = message(parts.get_mut(..count).unwrap_or(&mut []));
    // SAFETY: the header points to an array on this stack, and that to the program's buffers.
    let got = unsafe { raw::recvmsg(fd, &raw mut message, how.kernel_flags()) }?;
    Ok(got)
}

/// Sends through the kernel, without waiting.
fn kernel_send(fd: c_int, cursor: &mut IoCursor<'_>, more: bool) -> Answer {
    let mut parts = NO_PARTS;
    let count = cursor.rest(usize::MAX, &mut parts);
    let message = message(parts.get_mut(..count).unwrap_or(&mut []));
    let more = if more { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    // SAFETY: the header points to an array on this stack, and that to the program's buffers.
    let sent = unsafe { raw::sendmsg(fd, &raw const message, flags) }?;
    cursor.skip(sent);
    Ok(sent)
}

/// An error that this call reports. The kernel has another one, and reports none then, for a connection of frames.
pub(crate) fn take_error(socket: &Socket, fd: c_int) -> Option<Errno> {
    if socket.flags.pending_error.load(Ordering::Acquire) == 0 {
        return None;
    }
    // The kernel's is taken first: a thread that finds no error here goes on to the kernel.
    if socket.is_reset() {
        streams::await_disconnected(socket);
        let _ = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    }
    socket.take_error().map(Errno)
}

/// The same of a call that receives: what had come before the connection was reset comes first, and of one that frames carry the
/// end of the stream, if its peer had said so, hides the error from it for good.
fn take_error_unless_unread(socket: &Socket, fd: c_int) -> Option<Errno> {
    let is_in_queue = || raw::waiting(fd).is_ok_and(|unread| unread > 0);
    let is_behind = || match (socket.is_reset(), socket.segment()) {
        (true, segment) => segment.is_some() || streams::has_fin(socket),
        (false, None) => is_in_queue(),
        // What the queue has may be bells.
        (false, Some(segment)) => {
            segment.incoming(socket.end()).direction.has_bytes()
                || park::kernel_speaks(socket, segment).0 && is_in_queue()
        }
    };
    let is_one = socket.flags.pending_error.load(Ordering::Acquire) != 0;
    if is_one && !is_behind() { take_error(socket, fd) } else { None }
}

/// Receives what is there. The cursor moves by as many bytes as the answer says.
pub(crate) fn try_receive(
    socket: &Socket,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    if !how.looked {
        streams::look();
    }
    if let Some(error) = take_error_unless_unread(socket, fd) {
        return Step::Failed(error);
    }
    fallback::advance_connection(socket, fd);
    for _ in 0..FOLLOWS_MAX {
        let held = socket.receiving.hold();
        match socket.segment() {
            None => return receive_unsettled(socket, fd, into, how),
            Some(segment) if is_left_behind(socket, segment) => {}
            Some(segment) => return receive_settled(socket, segment, fd, into, how),
        }
        drop(held);
        if !fallback::follow(socket, fd) {
            return Step::Nothing;
        }
    }
    broken(socket, fd)
}

/// Attempts that find anew that the other end goes back to the kernel, before its word is no more believed.
const FOLLOWS_MAX: u32 = 8;

/// The other end has written nonsense: the connection is reset, which is said once.
#[cold]
fn broken(socket: &Socket, fd: c_int) -> Step {
    fallback::poison(socket, fd);
    let _ = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    Step::Failed(Errno::CONNRESET)
}

/// Whether the other end goes back to the kernel, and this one has not begun to follow.
#[inline]
fn is_left_behind(socket: &Socket, segment: &Segment) -> bool {
    segment.connection(socket).is_left_behind(|| socket.route())
}

/// Through the kernel. The first bytes of a connection that was accepted are the moment to look for
/// an offer: a peer that makes one does so before it sends.
fn receive_unsettled(
    socket: &Socket,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    match kernel_receive(fd, into, usize::MAX, how) {
        Ok(0) if into.remaining() > 0 => Step::Ended,
        Ok(got) => {
            into.skip(got);
            if !how.peek {
                streak::note_run(socket);
                let before =
                    socket.traffic.taken.fetch_add(got.try_into().unwrap_or(0), Ordering::Relaxed);
                if socket.route() == Route::Open && socket.kind() == Kind::Stream {
                    look_for_rings(socket, fd, before == 0);
                }
                add(&socket.counters.rx_os_packets, 1);
                add(&socket.counters.rx_os_bytes, got);
                kernel::acknowledge(socket, fd);
            }
            Step::Moved(got)
        }
        Err(Errno::AGAIN) => Step::Nothing,
        // Its socket is in repair, of which the kernel would say something else than of one that was reset.
        Err(_) if socket.is_reset() => Step::Ended,
        Err(error) => Step::Failed(error),
    }
}

/// After a reception through the kernel. What comes from another namespace may take its time: its end
/// has to prove its path, and the probe socket may not have been open yet.
fn look_for_rings(socket: &Socket, fd: c_int, is_first: bool) {
    let looks = socket.traffic.probe_count.load(Ordering::Relaxed);
    if looks > 0 {
        socket.traffic.probe_count.store(looks + 1, Ordering::Relaxed);
    }
    let is_due = is_first || (1..LOOKS_CLOSE).contains(&looks) || looks.is_power_of_two();
    if !is_due {
        return;
    }
    let _held = socket.sending.hold();
    if socket.route() != Route::Open {
        // Another thread has shut it meanwhile.
        return;
    }
    if !offer::take(socket, fd) && socket.route() == Route::Open {
        match socket.traffic.probe_count.load(Ordering::Relaxed) {
            0 => socket.leave_to_kernel(Reason::PeerSilent),
            looks if looks > LOOKS_MAX => socket.leave_to_kernel(Reason::Unproven),
            _ => return,
        }
    }
    policy::explain(socket, fd, "read");
}

/// The first receptions after each of which rings from another namespace are looked for, and the one
/// after which they are not any more.
const LOOKS_CLOSE: u32 = 8;
const LOOKS_MAX: u32 = 1024;

fn receive_settled(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    let connection = segment.connection(socket);
    for _ in 0..SETTLING_LOOKS_MAX {
        let most = match connection.source() {
            Source::Ring => return receive_ring(socket, segment, fd, into, how),
            Source::Kernel(most) => usize::try_from(most).unwrap_or(usize::MAX),
            Source::Queue => match (raw::waiting(fd).unwrap_or(0), connection.source()) {
                (_, Source::Ring | Source::Kernel(_)) => continue,
                (0, Source::Queue) => match raw::recv(fd, &mut [0], libc::MSG_PEEK) {
                    Ok(0) if into.remaining() > 0 => return ended(socket, fd),
                    Ok(0) => return Step::Moved(0),
                    Ok(_) => continue,
                    Err(Errno::AGAIN) if connection.incoming().is_switched() => continue,
                    Err(Errno::AGAIN) => return Step::Nothing,
                    Err(error) => return Step::Failed(error),
                },
                (waiting, Source::Queue) => waiting,
            },
        };
        let got = match kernel_receive(fd, into, most, how) {
            Ok(0) if into.remaining() > 0 => return ended(socket, fd),
            Ok(got) => got,
            Err(Errno::AGAIN) => return Step::Nothing,
            Err(error) => return Step::Failed(error),
        };
        into.skip(got);
        if how.peek {
            // The ring's bytes come right behind the last of the kernel's.
            let is_last = connection.source() == Source::Kernel(got.try_into().unwrap_or(0));
            let more = is_last.then(|| peek_ring(socket, segment, fd, into, how));
            return Step::Moved(got + more.map_or(0, |more| more.unwrap_or(0)));
        }
        connection.on_taken(got.try_into().unwrap_or(0));
        add(&socket.counters.rx_os_packets, 1);
        add(&socket.counters.rx_os_bytes, got);
        if socket.route() == Route::Offered {
            give_up(socket, segment, fd);
        }
        return Step::Moved(got);
    }
    if into.remaining() == 0 { Step::Moved(0) } else { Step::Nothing }
}

/// Looks at where the bytes are, each of which finds that this has just changed.
const SETTLING_LOOKS_MAX: u32 = 64;

/// The peer has answered through the kernel, though rings are offered to it. It looks for them with
/// the first bytes that it gets: if it has answered a few times, it is not going to take them.
fn give_up(socket: &Socket, segment: &Segment, fd: c_int) {
    let answers = socket.traffic.kernel_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let given = segment.outgoing(socket.end()).direction.producer.given.load(Ordering::Relaxed);
    let has_to_be_brought = offer::probe_again(segment, fd);
    if given == 0 || answers < ANSWERS {
        return;
    }
    // No other thread is about to send on the rings.
    let _held = socket.sending.hold();
    if offer::take_back(socket, segment, fd) {
        socket.set_reason(if has_to_be_brought { Reason::Unproven } else { Reason::PeerSilent });
    }
}

/// Looks at what the ring has, and at what the kernel has behind it if the peer has gone back there.
#[cold]
fn peek_ring(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Result<usize, Trouble> {
    let ring = segment.incoming(socket.end());
    if how.discard {
        return Ok(ring.available().min(into.remaining()));
    }
    let got = ring.read(into, true)?;
    let is_all = got > 0 && got == ring.available() && into.remaining() > 0;
    if !is_all || !fallback::is_kernel_next(socket, segment, fd) {
        return Ok(got);
    }
    Ok(got + kernel_receive(fd, into, usize::MAX, how).unwrap_or(0))
}

fn receive_ring(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    let ring = segment.incoming(socket.end());
    let is_long = |loan: &&Loan<'_>| loan.least == 0 || ring.available() >= loan.least;
    let read = if let Some(loan) = how.loan.filter(is_long) {
        let take = |pieces: &mut [libc::iovec; PIECES_MAX]| {
            let pieces = pieces.get_mut(..loan.pieces).unwrap_or(&mut []);
            ring.lend(loan.most.get(), pieces, loan.shows)
        };
        loan.lend(false, take).map_err(Trouble::from)
    } else if how.peek {
        peek_ring(socket, segment, fd, into, how)
    } else if how.discard {
        ring.discard(into.remaining()).map_err(Trouble::from)
    } else {
        ring.read(into, false)
    };
    match read {
        Err(Trouble::Broken) => broken(socket, fd),
        Err(Trouble::Fault | Trouble::NoMemory) => Step::Failed(Errno::FAULT),
        Ok(0) if into.remaining() == 0 => Step::Moved(0),
        Ok(0) => at_empty(socket, segment, fd, into, how),
        Ok(got) => {
            if !how.peek {
                note_received(socket, segment, fd, got);
            }
            Step::Moved(got)
        }
    }
}

/// So many bytes have been taken out of the ring. The lock for receiving is held.
#[inline]
fn note_received(socket: &Socket, segment: &Segment, fd: c_int, got: usize) {
    count_received(socket, got);
    bell::notify_of_room(socket, segment, fd);
    streams::taken(socket);
    bell::drain_pending(segment.connection(socket), fd);
}

#[inline]
fn count_received(socket: &Socket, got: usize) {
    streak::note_run(socket);
    if socket.traffic.streamed.load(Ordering::Relaxed) != 0 {
        socket.traffic.streamed.store(0, Ordering::Relaxed);
    }
    rise(&socket.counters.rx_waiting_bytes_max, got);
    add(&socket.counters.rx_packets, 1);
    add(&socket.counters.rx_bytes, got);
}

/// Receives the few bytes that are there, at most `most`, in the plainest case; `None`: [`try_receive`] finds out what
/// there is, and nothing has happened.
///
/// # Safety
///
/// `into` has room for `most` bytes, which are nothing else's.
#[inline]
pub(crate) unsafe fn try_receive_short(
    socket: &Socket,
    fd: c_int,
    into: *mut u8,
    most: usize,
) -> Option<usize> {
    let segment = plain_segment(socket).filter(|_| !streams::is_framed(socket))?;
    let _held = socket.receiving.hold();
    let is_source = segment.connection(socket).source() == Source::Ring;
    if !is_source || is_left_behind(socket, segment) {
        return None;
    }
    // SAFETY: the caller's promise.
    let got = unsafe { segment.incoming(socket.end()).read_short(into, most) }?;
    note_received(socket, segment, fd, got);
    Some(got)
}

/// Looks for what frames have brought. What that is of a connection that they carry goes into one buffer of the program's,
/// past the ring, in the plainest case. Says whether frames carry the connection, and how many bytes are there.
#[inline]
pub(crate) fn look_for(
    socket: &Socket,
    fd: c_int,
    into: *mut u8,
    most: usize,
) -> (bool, Option<usize>) {
    let mut taken = None;
    let is_framed = streams::look_for(socket, |bytes| {
        if taken.is_some() {
            return false;
        }
        taken = take_past_ring(socket, bytes, into, most);
        taken.is_some()
    });
    let got = taken.map(|(segment, got, _held)| {
        count_received(socket, got);
        bell::drain_pending(segment.connection(socket), fd);
        got
    });
    (is_framed, got)
}

/// Takes all of these bytes, which are about to be put into the ring, if there are none before them.
#[inline]
fn take_past_ring<'a>(
    socket: &'a Socket,
    bytes: &[u8],
    into: *mut u8,
    most: usize,
) -> Option<(&'a Segment, usize, Held<'a>)> {
    let segment = plain_segment(socket).filter(|_| bytes.len() <= most)?;
    // It comes before the lock that is held, and is not waited for.
    let held = socket.receiving.try_hold()?;
    let is_next = !segment.incoming(socket.end()).direction.has_bytes()
        && segment.connection(socket).source() == Source::Ring
        && !is_left_behind(socket, segment);
    // SAFETY: the program's promise for where it receives; it is no memory of ours.
    let is_there =
        is_next && unsafe { copy::copy_by(held.here(), into, bytes.as_ptr(), bytes.len()) };
    is_there.then_some((segment, bytes.len(), held))
}

/// As [`try_receive`], into one buffer of the program's, of a connection that has nothing but rings and whose bytes lie behind
/// one another. `None`: [`try_receive`] finds out what there is, and nothing has happened. `is_framed`: frames carry it.
#[inline]
pub(crate) fn try_receive_plain(
    socket: &Socket,
    fd: c_int,
    into: *mut u8,
    most: usize,
    is_framed: bool,
) -> Option<usize> {
    let segment = plain_segment(socket)?;
    let ring = segment.incoming(socket.end());
    if !ring.direction.has_bytes() {
        return None;
    }
    let held = socket.receiving.hold();
    let connection = segment.connection(socket);
    if connection.source() != Source::Ring || is_left_behind(socket, segment) {
        return None;
    }
    let got = ring.read_plain(held.here(), into, most)?;
    if !is_framed {
        note_received(socket, segment, fd, got);
        return Some(got);
    }
    count_received(socket, got);
    // What writes there waits for no room: it says that the ring is full, and looks again.
    fence(Ordering::SeqCst);
    streams::taken(socket);
    bell::drain_pending(connection, fd);
    Some(got)
}

/// The rings of a connection that has nothing but rings, and no error to report.
#[inline]
fn plain_segment(socket: &Socket) -> Option<&Segment> {
    let is_plain = socket.kind() == Kind::Stream
        && socket.route() == Route::Rings
        && socket.flags.pending_error.load(Ordering::Relaxed) == 0;
    is_plain.then(|| socket.mapped()).flatten()
}

/// There was nothing in the ring.
fn at_empty(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    let empty = segment.connection(socket).at_empty(
        socket.flags.is_read_shut.load(Ordering::Relaxed),
        || socket.flags.is_peer_gone.load(Ordering::Acquire),
        || park::is_at_end(socket, segment),
        segment.leaver().ok(),
    );
    match empty {
        Empty::Again => Step::Moved(0),
        Empty::Nothing => Step::Nothing,
        Empty::Ended => Step::Ended,
        Empty::AskKernel => last_word(socket, segment, fd),
        Empty::Behind => receive_after_ring(socket, segment, fd, into, how),
    }
}

/// The peer has gone back to the kernel, and the ring is empty: what comes now comes from there.
fn receive_after_ring(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    into: &mut IoCursor<'_>,
    how: Receive<'_>,
) -> Step {
    if !fallback::is_drained(socket, segment, fd) {
        let has_bytes = segment.incoming(socket.end()).direction.has_bytes();
        return if has_bytes { Step::Moved(0) } else { Step::Nothing };
    }
    if let Some(error) = take_error(socket, fd) {
        return Step::Failed(error);
    }
    match kernel_receive(fd, into, usize::MAX, how) {
        Ok(0) if into.remaining() > 0 => Step::Ended,
        Ok(got) => {
            into.skip(got);
            if !how.peek {
                add(&socket.counters.rx_os_packets, 1);
                add(&socket.counters.rx_os_bytes, got);
            }
            Step::Moved(got)
        }
        Err(Errno::AGAIN) => Step::Nothing,
        Err(error) => Step::Failed(error),
    }
}

/// The peer is gone: the kernel knows whether it went in peace. Bells are dropped, and counted; what comes behind them
/// is not ours if the peer has gone back to the kernel since.
fn last_word(socket: &Socket, segment: &Segment, fd: c_int) -> Step {
    if socket.is_reset() {
        return at_reset(socket, fd);
    }
    let (mut bytes, incoming) = ([0_u8; 512], segment.incoming(socket.end()).direction);
    for _ in 0..SETTLING_LOOKS_MAX {
        let pending = usize::try_from(incoming.pending_bells()).unwrap_or(usize::MAX);
        let (most, flags) = if pending == 0 { (1, libc::MSG_PEEK) } else { (pending, 0) };
        let most = most.min(bytes.len());
        match raw::recv(fd, bytes.get_mut(..most).unwrap_or(&mut []), flags) {
            Ok(0) => return ended(socket, fd),
            Ok(got) if pending > 0 => incoming.drained(got.try_into().unwrap_or(0)),
            Ok(_) if segment.is_leaving() => return Step::Moved(0),
            // No bell that has been counted, and no byte of a peer that has left: nonsense.
            Ok(_) if incoming.pending_bells() == 0 => _ = raw::recv(fd, &mut bytes, 0),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Not yet: its last bytes, or its FIN, are still on their way.
                socket.flags.is_peer_gone.store(false, Ordering::Release);
                return Step::Nothing;
            }
            Err(error) => return Step::Failed(error),
        }
    }
    Step::Moved(0)
}

/// The kernel says that the peer will send no more: unless it was killed with bytes unread.
fn ended(socket: &Socket, fd: c_int) -> Step {
    park::look_at_kernel(socket, fd);
    match raw::recv(fd, &mut [0], libc::MSG_PEEK) {
        Err(Errno::CONNRESET) => Step::Failed(Errno::CONNRESET),
        Ok(_) | Err(_) => Step::Ended,
    }
}

/// The ring is empty of a connection that frames have carried, and that was reset: what comes behind, or the error, once,
/// and the end; the end alone, if the peer had said so before.
#[cold]
fn at_reset(socket: &Socket, fd: c_int) -> Step {
    if streams::refill(socket) {
        return Step::Moved(0);
    }
    if streams::is_parents_to_read(socket) {
        // A child reads no further. The rest, and the error behind it, are there for the one that has the rest.
        return Step::Failed(Errno::CONNRESET);
    }
    socket.set_route(Route::Kernel);
    take_error_unless_unread(socket, fd).map_or(Step::Ended, Step::Failed)
}

/// Goes the way of a send as far as the ring that it would write to. Returns whether there is one.
pub(crate) fn warm(socket: &Socket, fd: c_int) -> bool {
    fallback::advance_connection(socket, fd);
    let _held = socket.sending.hold();
    let Some(segment) = socket.segment().filter(|_| socket.route() == Route::Rings) else {
        return false;
    };
    let ring = segment.outgoing(socket.end());
    ring.prepare();
    std::hint::black_box(ring.has_room());
    std::hint::black_box(ring.direction.consumer.sleep.armed.load(Ordering::Relaxed));
    true
}

/// Sends a few bytes in the plainest case. False: [`try_send`] finds out how, and nothing has happened.
#[inline]
pub(crate) fn try_send_short(socket: &Socket, fd: c_int, from: *const u8, len: usize) -> bool {
    let Some(segment) = plain_segment(socket).filter(|_| !socket.paced.is_on()) else {
        return false;
    };
    let ring = segment.outgoing(socket.end());
    ring.prepare();
    let held = socket.sending.hold();
    let streamed = socket.traffic.streamed.load(Ordering::Relaxed);
    let is_plain = ring.direction.sender.is_switched()
        && !segment.is_leaving()
        && !socket.flags.is_write_shut.load(Ordering::Relaxed)
        && ring.direction.consumer.sleep.gone.load(Ordering::Acquire) == 0
        && !socket.flags.is_peer_gone.load(Ordering::Acquire);
    let is_stream = streamed >= STREAM_BYTES;
    // Whether the kernel carries a stream better than frames, `try_send` finds out.
    if !is_plain || is_look_due(socket) || is_stream && streams::is_framed(socket) {
        return false;
    }
    let bytes = len.try_into().unwrap_or(0);
    let sent = streamed.saturating_add(bytes);
    let written = Written { streamed: sent, sent: bytes, is_whole: true, more: false };
    if streams::send_short(socket, from, written) {
        socket.traffic.streamed.store(sent, Ordering::Relaxed);
        count_sent(socket, len);
        return true;
    }
    if !ring.write_short(from, len, is_stream) {
        return false;
    }
    if is_stream && !ring.is_lent() {
        widen(ring, fd, len, true);
    }
    let how = Sent { is_whole: true, more: false };
    note_sent(socket, segment, fd, streamed, len, how);
    drop(held);
    if is_left_behind(socket, segment) {
        fallback::follow(socket, fd);
    }
    true
}

/// Whether the kernel is to be asked, before a send, whether the peer still lives: one that was killed says nothing in memory.
#[inline]
fn is_look_due(socket: &Socket) -> bool {
    let sends = socket.counters.tx_packets.load(Ordering::Relaxed);
    sends.is_multiple_of(LOOK_EVERY)
        && park::is_look_due(socket, raw::coarse_now_ns())
        && !streams::is_framed(socket)
}

/// Sends on rings for each of which such a look may be due.
const LOOK_EVERY: u64 = 16;

/// What is known of bytes that have been put into a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// They are all that the call was given.
    is_whole: bool,
    /// More are about to be.
    more: bool,
}

/// So many bytes have been put into the ring, after so many others. The lock for sending is held.
#[inline]
fn note_sent(socket: &Socket, segment: &Segment, fd: c_int, streamed: u64, sent: usize, how: Sent) {
    let bytes = sent.try_into().unwrap_or(0);
    let streamed = streamed.saturating_add(bytes);
    socket.traffic.streamed.store(streamed, Ordering::Relaxed);
    if sent > 0 {
        if streams::is_framed(socket) {
            let Sent { is_whole, more } = how;
            streams::written(socket, Written { streamed, sent: bytes, is_whole, more });
        } else {
            bell::wake_reader(socket, segment.connection(socket), fd);
        }
        count_sent(socket, sent);
    }
}

#[inline]
fn count_sent(socket: &Socket, sent: usize) {
    streak::end_run(socket);
    add(&socket.counters.tx_packets, 1);
    add(&socket.counters.tx_bytes, sent);
}

/// Sends what there is room for. The cursor moves by as many bytes as the answer says.
pub(crate) fn try_send(socket: &Socket, fd: c_int, from: &mut IoCursor<'_>, more: bool) -> Step {
    if let Some(error) = take_error(socket, fd) {
        return Step::Failed(error);
    }
    fallback::advance_connection(socket, fd);
    if socket.route() == Route::Rings && is_look_due(socket) {
        socket.waiting.looked_ns.store(raw::now_ns(), Ordering::Relaxed);
        park::look_at_kernel(socket, fd);
    }
    if socket.route() == Route::Open {
        look_for_offer(socket, fd);
    }
    // This call has more to send: what the kernel does not take of what is in the ring, the program comes back for.
    if from.remaining() > 0 && streams::is_bulk(socket) {
        fallback::leave_as_bulk(socket, fd);
    }
    let mut is_short = false;
    for _ in 0..FOLLOWS_MAX {
        if is_short && !fallback::leave_for_want_of_memory(socket, fd) {
            return Step::Nothing;
        }
        let held = socket.sending.hold();
        if socket.flags.is_write_shut.load(Ordering::Relaxed) {
            return Step::Failed(Errno::PIPE);
        }
        let Some(segment) = socket.segment() else {
            return through_kernel(socket, None, fd, from, more);
        };
        let step = match segment.connection(socket).way_out(socket.route()) {
            WayOut::Follow => None,
            WayOut::Blocked => Some(Step::Nothing),
            WayOut::Kernel => Some(send_beside(socket, segment, fd, from, more)),
            WayOut::Ring => Some(through_ring(socket, segment, fd, from, more)),
        };
        drop(held);
        match step {
            Some(Step::Failed(Errno::NOMEM)) if socket.route() == Route::Rings => is_short = true,
            Some(step) => {
                if is_left_behind(socket, segment) {
                    // The other end did not wait for these bytes: they follow it.
                    fallback::follow(socket, fd);
                }
                return step;
            }
            None if fallback::follow(socket, fd) => {}
            None => return Step::Nothing,
        }
    }
    broken(socket, fd)
}

/// Through the kernel, though there are rings.
fn send_beside(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    from: &mut IoCursor<'_>,
    more: bool,
) -> Step {
    let step = through_kernel(socket, Some(segment), fd, from, more);
    if socket.route() == Route::Offered
        && socket.counters.tx_os_packets.load(Ordering::Relaxed).is_power_of_two()
    {
        offer::probe_again(segment, fd);
    }
    step
}

/// A connection that was accepted and is written to first: looks for an offer now and then.
fn look_for_offer(socket: &Socket, fd: c_int) {
    let sends = socket.traffic.kernel_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if socket.kind() == Kind::Stream && sends.is_power_of_two() {
        let _receiving = socket.receiving.hold();
        let _sending = socket.sending.hold();
        if socket.route() == Route::Open && offer::take(socket, fd) {
            policy::explain(socket, fd, "write");
        }
    }
}

fn through_kernel(
    socket: &Socket,
    segment: Option<&Segment>,
    fd: c_int,
    from: &mut IoCursor<'_>,
    more: bool,
) -> Step {
    match kernel_send(fd, from, more) {
        Ok(sent) => {
            streak::end_run(socket);
            thread::note_woken();
            let bytes = sent.try_into().unwrap_or(0);
            match segment {
                None => _ = socket.traffic.given.fetch_add(bytes, Ordering::AcqRel),
                Some(segment) => segment.connection(socket).on_given(bytes),
            }
            add(&socket.counters.tx_os_packets, 1);
            add(&socket.counters.tx_os_bytes, sent);
            Step::Moved(sent)
        }
        Err(Errno::AGAIN) => Step::Nothing,
        Err(error) => Step::Failed(error),
    }
}

fn through_ring(
    socket: &Socket,
    segment: &Segment,
    fd: c_int,
    from: &mut IoCursor<'_>,
    more: bool,
) -> Step {
    let ring = segment.outgoing(socket.end());
    let consumer = &ring.direction.consumer;
    bell::switch(socket, segment);
    let is_gone = consumer.sleep.gone.load(Ordering::Acquire) != 0;
    if is_gone || socket.flags.is_peer_gone.load(Ordering::Acquire) {
        return into_the_void(socket, fd, from);
    }
    let streamed = socket.traffic.streamed.load(Ordering::Relaxed);
    let is_stream = streamed >= STREAM_BYTES;
    let mut sent = match ring.write(from, is_stream) {
        Ok(sent) => sent,
        Err(Trouble::Broken) => return broken(socket, fd),
        Err(Trouble::Fault) => return Step::Failed(Errno::FAULT),
        Err(Trouble::NoMemory) => return Step::Failed(Errno::NOMEM),
    };
    let is_full = from.remaining() > 0;
    if is_full {
        socket.traffic.tx_full_count.fetch_add(1, Ordering::AcqRel);
    }
    if (is_full || is_stream) && !ring.is_lent() && widen(ring, fd, sent, is_stream) {
        sent += ring.write(from, is_stream).unwrap_or(0);
    }
    // Another thread may sleep on an instance, having seen room: it is to be notified of room to come.
    if from.remaining() > 0
        && socket.waiters.watchers.load(Ordering::SeqCst) > 0
        && !park::arm(socket, segment, Want::Room)
    {
        sent += ring.write(from, is_stream).unwrap_or(0);
    }
    let how = Sent { is_whole: from.remaining() == 0, more };
    note_sent(socket, segment, fd, streamed, sent, how);
    if sent == 0 && from.remaining() > 0 { Step::Nothing } else { Step::Moved(sent) }
}

/// After sending on a ring that is full, or part of a stream: has it grow when that pays.
fn widen(ring: Ring<'_>, fd: c_int, sent: usize, is_stream: bool) -> bool {
    let bytes = if is_stream { sent.try_into().unwrap_or(0) } else { ring.progress() };
    let is_wider = ring.want_larger(bytes, rendezvous::is_roomy);
    if is_wider {
        log::print(Level::Debug, || format!("fd {fd} sends through a larger ring"));
    }
    is_wider
}

/// What has been sent without anything received in between is a stream, from so many bytes on.
const STREAM_BYTES: u64 = 1 << 18;

/// The peer has closed. A byte in the kernel's stream finds out what TCP says to that: the first is
/// accepted and answered with a reset, the next one fails.
fn into_the_void(socket: &Socket, fd: c_int, from: &mut IoCursor<'_>) -> Step {
    let byte: &[u8] = if from.remaining() > 0 { &[0] } else { &[] };
    match raw::send(fd, byte) {
        Ok(_) | Err(Errno::AGAIN) => {
            let count = from.remaining();
            from.skip(count);
            Step::Moved(count)
        }
        Err(error) => {
            add(&socket.counters.tx_errors, 1);
            Step::Failed(told(socket, error))
        }
    }
}

/// An error of the kernel's as TCP would have it: a reset from a peer that had shut its sending side before is a
/// broken pipe, but of that the kernel's stream does not know.
pub(crate) fn told(socket: &Socket, error: Errno) -> Errno {
    let has_fin = socket.segment().is_some_and(|segment| {
        segment.incoming(socket.end()).direction.producer.fin.load(Ordering::Relaxed) != 0
    });
    let is_open = !socket.flags.is_write_shut.load(Ordering::Relaxed);
    if error == Errno::CONNRESET && has_fin && is_open { Errno::PIPE } else { error }
}

/// Answers through the kernel after which an offer is taken back.
const ANSWERS: u32 = 4;
