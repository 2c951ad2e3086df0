//! How a connection comes from the kernel, and goes back.
//!
//! It comes: its packets are claimed, its socket is taken out of the kernel's hands, what the kernel has got for it is
//! taken over, and its sequence numbers are carried on. It goes: the socket is set up as the connection is by then, what
//! is on its way in either direction is put into the socket's queues, and the owner puts it back with its packets.
//!
//! # Safety
//!
//! Descriptors of the program's are lent for the length of its call.

use std::ffi::c_int;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adverb_netstack::{Limits, Netstack};
use adverb_sockconf::Level;
use adverb_switchover::Route;
use adverb_sys::fork::Generation;
use adverb_sys::netdev;
use adverb_sys::repair::{self, Snapshot};
use adverb_tcpip::stack::ConnectionId;
use adverb_tcpip::tcp::{self, Config, Handover, Seq, State};
use adverb_tcpip::tuple::Tuple;
use adverb_xdp::Key;
use adverb_xdp::steering::Protocol;

use super::super::uplink::{self, FD_MIN};
use super::carrier::{Carried, Carrier, SEND_BYTES, Twin, WINDOW_BYTES, time};
use super::habits::{self, Habits};
use super::{Framed, Process, Shared, helper};
use crate::base::{address, config, log, raw};
use crate::socket::state::{Reason, Socket};
use crate::socket::table;
use crate::transport::{fallback, offer};

/// Carries a connection of the kernel's from now on.
pub(super) fn adopt(
    process: &'static Process,
    carriers: &mut Vec<Carrier>,
    socket: &'static Socket,
    fd: c_int,
) -> Option<Framed> {
    let (own, peer) = (address::name(fd, false)?, address::name(fd, true)?);
    let is_near = own.ip().is_loopback() || own.ip() == peer.ip();
    if is_near || own.is_ipv4() != peer.is_ipv4() {
        return None;
    }
    let Some(carrier) = carrier_of(process, carriers, own.ip()) else {
        return refused(fd, "no owner gives those of its interface");
    };
    if let Some(why) = hindrance(carrier, (own, peer), fd) {
        return refused(fd, why);
    }
    let Some(gate) = uplink::process().take_gate(&socket.counters) else {
        return refused(fd, "the process has no gate left");
    };
    let key = Key { protocol: Protocol::Tcp, local: own, remote: Some(peer) };
    let reuse = raw::option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap_or(0);
    // SAFETY: the program's descriptor, which is open for the length of this call.
    let lent = unsafe { BorrowedFd::borrow_raw(fd) };
    if let Err(error) = carrier.membership.claim_by(key, gate, lent) {
        carrier.shut(gate);
        socket.flags.is_copied.store(is_late(&error), Ordering::Relaxed);
        return refused(fd, format_args!("the owner does not give its packets: {error}"));
    }
    // What comes from now on waits among the frames until the connection is known here, and nothing of it is lost between
    // the kernel's socket and them.
    carrier.membership.gates().set(gate, true);
    let framed = match carrier.membership.repair(key, true) {
        Ok(()) => take(process, carrier, (socket, fd), (key, gate), reuse)
            .or_else(|| refused(fd, "the kernel's part of it does not come to rest")),
        Err(error) => refused(fd, format_args!("the owner does not help: {error}")),
    };
    if framed.is_none() {
        carrier.shut(gate);
        if carrier.membership.repair(key, false).is_err() {
            // As soon as it answers again.
            let released = carrier.membership.release(key);
            let is_copied = released.is_err_and(|error| is_late(&error));
            socket.flags.is_copied.store(is_copied, Ordering::Relaxed);
            if is_in_repair(fd) {
                log::print(Level::Warning, || format!("fd {fd}: it stays in repair: reset"));
                tell_of_reset(carrier, key, lent);
                break_off(socket, fd);
                socket.set_route(Route::Kernel);
            }
        }
        let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse);
    }
    framed
}

/// What stands against frames for the connection between these addresses.
fn hindrance(
    carrier: &mut Carrier,
    (own, peer): (SocketAddr, SocketAddr),
    fd: c_int,
) -> Option<&'static str> {
    if let Some(why) = carrier.hindrance(raw::now_ns()) {
        return Some(why);
    }
    if carrier.is_misled(peer.ip()) {
        return Some("packets of its peer come by other ways");
    }
    if carrier.net.source_for(peer.ip(), Some(own.ip())).is_none() {
        return Some("there is no route");
    }
    // One that is late gets no copy of the socket.
    if carrier.membership.is_stuck() {
        return Some("the owner does not answer");
    }
    if raw::unsent(fd) != Ok(0) {
        return Some("the kernel is to see the acknowledgement of what it has sent");
    }
    // The connection is to go back to the kernel one day.
    if !repair::may_bind(own) {
        return Some("its address could not be had again");
    }
    // SAFETY: the program's descriptor, which is open for the length of this call.
    if repair::has_filter(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return Some("it has a filter for its packets");
    }
    if habits::has_mark(fd) {
        return Some("its packets are to have a mark");
    }
    // Frames have the headers that most have.
    (!habits::has_usual_headers(fd)).then_some(
        "its packets are to have a class of service, or other hops than the 64 of frames",
    )
}

fn refused<A>(fd: c_int, why: impl Display) -> Option<A> {
    log::print(Level::Debug, || format!("fd {fd}: no frames: {why}"));
    None
}

fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

fn is_in_repair(fd: c_int) -> bool {
    raw::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR) != Ok(0)
}

/// Resets the connection of a socket in repair, of which the kernel tells the peer nothing.
fn tell_of_reset(carrier: &mut Carrier, key: Key, lent: BorrowedFd<'_>) -> Option<()> {
    let (snapshot, tuple) = (repair::look(lent).ok()?, tuple_of(key.local, key.remote?));
    let (config, now) = (carrier.net.config(), time(raw::now_ns()));
    let id = carrier.net.tcp().take_over(tuple, &config, &handover_of(&snapshot), now).ok()?;
    abort(carrier, id);
    carrier.net.tcp().let_go(id);
    Some(())
}

/// Tells the peer of a connection that it is no more.
fn abort(carrier: &mut Carrier, id: ConnectionId) {
    carrier.net.tcp().with(id, tcp::Connection::abort);
    carrier.net.step(time(raw::now_ns()));
}

/// The socket has no connection any more, and its program learns that it was reset.
fn break_off(socket: &Socket, fd: c_int) {
    raw::disconnect(fd);
    // SAFETY: a descriptor that is open for the length of this call.
    repair::let_in(unsafe { BorrowedFd::borrow_raw(fd) });
    // Of one in repair the kernel says something else.
    let _ = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    socket.set_reason(Reason::Reset);
    socket.set_error(libc::ECONNRESET);
}

/// The carrier of the interface with an address; its owner is asked if there is none yet.
fn carrier_of<'a>(
    process: &Process,
    carriers: &'a mut Vec<Carrier>,
    own: IpAddr,
) -> Option<&'a mut Carrier> {
    if let Some(at) = carriers.iter().position(|carrier| carrier.has(own)) {
        return carriers.get_mut(at);
    }
    let found = process.sought.take(own, || interface_of(own)).flatten()?;
    let ask = || ask(found);
    carriers.push(process.asked.take(found, ask).flatten()?);
    carriers.last_mut()
}

fn interface_of(own: IpAddr) -> Option<u32> {
    let all = netdev::interfaces().ok()?;
    let found = all.iter().find(|one| {
        one.up && !one.loopback && one.addresses.iter().any(|address| address.ip == own)
    });
    found.map(|found| found.index)
}

/// Asks the owner of the interface with this number for frames.
fn ask(index: u32) -> Option<Carrier> {
    let (membership, sockets) = uplink::ask_owner(index)?;
    let limits = Limits::default();
    let mut net = Netstack::new_above(index, sockets, limits, FD_MIN).ok()?;
    net.leave_strangers();
    let ours = uplink::process();
    let all = net.all_fds().chain(membership.all_fds());
    all.for_each(|fd| ours.note_own(std::os::fd::AsRawFd::as_raw_fd(&fd)));
    Some(Carrier::new(index, membership, net))
}

/// Takes over a connection whose socket is in repair. If it cannot be, nothing of it is lost.
fn take(
    process: &'static Process,
    carrier: &mut Carrier,
    (socket, fd): (&'static Socket, c_int),
    (key, gate): (Key, u32),
    reuse: c_int,
) -> Option<Framed> {
    // SAFETY: the program's descriptor, which is open for the length of this call.
    let lent = unsafe { BorrowedFd::borrow_raw(fd) };
    if raw::unsent(fd) != Ok(0) {
        return None;
    }
    let twin = Twin::copy_of(fd)?;
    repair::receive_by_hand(lent).ok()?;
    let (snapshot, unread) = settle(lent, fd)?;
    let me = socket.end().other();
    // Rings change what the kernel says of small segments.
    let habits = Habits::of(fd, reuse);
    let (near, far) = offer::make_both(socket, fd)?;
    let tuple = tuple_of(key.local, key.remote?);
    let usual = carrier.net.config();
    let may_leave = helper::start(process);
    let config = Config {
        congestion: habits::congestion(fd, config::get().is_uncontrolled),
        no_delay: habits.no_delay,
        pacing: habits::pacing(fd),
        quick_ack: config::get().quickack,
        receive_bytes_max: WINDOW_BYTES,
        send_bytes_max: SEND_BYTES,
        keep_alive: habits.keep_alive(fd),
        user_timeout: habits::user_timeout(fd).unwrap_or(usual.user_timeout),
        // The kernel alone has what is urgent out of line, and the helper gives the connection back for it.
        may_leave,
        ..usual
    };
    let handover = handover_of(&snapshot);
    let id = carrier.net.tcp().take_over(tuple, &config, &handover, time(raw::now_ns())).ok()?;
    carrier.net.tcp().with(id, |connection| connection.set_corked(habits.corked));
    let shared = Arc::new(Shared::default());
    let mut carried =
        Carried::new(socket, (far, me), Arc::clone(&shared), (twin, key, gate), habits);
    carried.may_leave = may_leave;
    let connection = carried.connection();
    connection.outgoing().switch();
    connection.page.outgoing(socket.end()).switch();
    // From here on nothing fails.
    carried.put(&unread);
    let mut left = unread.len();
    while left > 0
        && let Ok(done @ 1..) = super::super::discard::swallow(fd, left)
    {
        left -= done;
    }
    let _ = repair::receive_by_hand(lent);
    habits::silence(fd);
    shared.is_full.store(!carried.rest.is_empty(), Ordering::Release);
    socket.attach(near);
    carrier.carried.insert(id, carried);
    carrier.step(raw::now_ns());
    Some(Framed { generation: Generation::now(), interface: carrier.index, id, shared })
}

/// Where the connection is, and what has come and not been read, once packets that were on their way through the kernel
/// have arrived.
fn settle(lent: BorrowedFd<'_>, fd: c_int) -> Option<(Snapshot, Vec<u8>)> {
    // All that is there is read, and counted, up to where something urgent is or was; that stays the kernel's, and so does the
    // connection.
    let _in_line = raw::Restored::after(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE);
    let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    let mut before = None;
    for _ in 0..LOOKS_MAX {
        if raw::poll_now(fd, libc::POLLPRI) != Ok(0) || raw::is_at_mark(fd) {
            return None;
        }
        let snapshot = repair::look(lent).ok()?;
        if before == Some(snapshot.expected) {
            repair::receive_by_hand(lent).ok()?;
            let waiting = raw::waiting(fd).ok()?;
            let mut unread = vec![0; waiting];
            let got = match waiting {
                0 => 0,
                _ => raw::recv(fd, &mut unread, libc::MSG_PEEK).ok()?,
            };
            let is_still = repair::expected(lent).ok()? == snapshot.expected;
            if is_still && got == waiting {
                return Some((snapshot, unread));
            }
        }
        before = Some(snapshot.expected);
        raw::nap(SETTLE_NS);
    }
    None
}

fn tuple_of(own: SocketAddr, peer: SocketAddr) -> Tuple {
    Tuple { local: own.ip(), local_port: own.port(), remote: peer.ip(), remote_port: peer.port() }
}

fn handover_of(snapshot: &Snapshot) -> Handover {
    let Snapshot { next, expected, peer_window, window, scales, segment, sack, stamp, .. } =
        *snapshot;
    Handover {
        unacknowledged: Seq::new(next),
        expected: Seq::new(expected),
        peer_window,
        window,
        peer_scale: scales.map(|(peers, _)| peers),
        scale: scales.map_or(0, |(_, ours)| ours),
        peer_segment: segment,
        sack,
        stamp,
    }
}

/// A connection goes back to the kernel, with both locks of its socket held. Says whether it does: it does not, if both
/// streams have ended, or the owner does not answer. It is reset if the kernel does not take it, or the owner does not say
/// whether it has put it back.
pub(super) fn give_back(
    carrier: &mut Carrier,
    id: ConnectionId,
    socket: &Socket,
    fd: c_int,
) -> bool {
    let now = raw::now_ns();
    carrier.step(now);
    if carrier.membership.is_stuck() {
        return false;
    }
    let found = carrier.net.tcp().get(id).and_then(|connection| connection.hand_over(time(now)));
    let Some((handover, unsent)) = found else { return false };
    let has_ended = carrier.state(id) != Some(State::Established);
    // Bytes in the socket's queue would be sent again while an owner is waited for, with time stamps that those of frames
    // are behind: it has to answer first. This changes nothing.
    let asked = carrier.carried.get(&id).map(|one| carrier.membership.repair(one.key, true));
    if asked.is_some_and(|answer| answer.is_err_and(|error| is_late(&error))) {
        return false;
    }
    let Some(mut one) = carrier.carried.remove(&id) else { return false };
    let received = take_received(carrier, id, &mut one);
    let low_water = raw::lift_low_water(fd);
    let is_put = received.as_ref().map(|received| put_back(&one, &handover, &unsent, received));
    let answer = is_put.flatten().map(|()| carrier.membership.repair(one.key, false));
    // One that is late may have the packets go to the kernel by now, and will put the socket back if it has not yet.
    let is_out = answer.is_some_and(|answer| match answer {
        Ok(()) => true,
        Err(error) => is_late(&error) && !is_in_repair(fd),
    });
    let is_back = is_out && send_waiting(&one, socket, fd, &unsent.waiting).is_some();
    drop(low_water);
    if is_back {
        one.restore_reuse();
        if has_ended {
            raw::shut(fd, libc::SHUT_RD);
        }
    } else {
        log::print(Level::Warning, || {
            format!("fd {}: the kernel does not take it back: reset", table::shown(fd, socket))
        });
        abort(carrier, id);
        let _ = carrier.membership.release(one.key);
        break_off(socket, fd);
    }
    carrier.net.tcp().let_go(id);
    carrier.shut(one.gate);
    one.shared.is_over.store(true, Ordering::Release);
    leave(&one);
    true
}

/// What has come, and the program has not read.
fn take_received(carrier: &mut Carrier, id: ConnectionId, one: &mut Carried) -> Option<Vec<u8>> {
    let mut received = one.take_unread()?;
    received.append(&mut one.rest);
    while let Some(Some(more)) = carrier.net.tcp().with(id, tcp_receive) {
        received.extend_from_slice(&more);
    }
    Some(received)
}

fn tcp_receive(connection: &mut tcp::Connection<Vec<u8>>) -> Option<Vec<u8>> {
    connection.receive().map(|received| received.as_ref().to_vec())
}

/// Sends what has never been sent. What the kernel does not take now is kept, for the program's end to send it.
fn send_waiting(one: &Carried, socket: &Socket, fd: c_int, waiting: &[u8]) -> Option<()> {
    let sent = if waiting.is_empty() { 0 } else { raw::send(fd, waiting).unwrap_or(0) };
    let rest = waiting.get(sent..).filter(|rest| !rest.is_empty());
    if let Some(rest) = rest {
        let kept = fallback::keep_for_resending(socket, rest)?;
        one.segment.page().resend.store(kept, Ordering::Release);
    }
    Some(())
}

/// Sets the socket up, and fills its queues.
fn put_back(
    one: &Carried,
    handover: &Handover,
    unsent: &tcp::Unsent,
    received: &[u8],
) -> Option<()> {
    let fd = one.twin.number();
    let snapshot = snapshot_of(handover, received.len());
    repair::set_up(&one.twin, &snapshot).ok()?;
    // The kernel finds out itself how long its queues should be, unless the program has said so.
    let locks = raw::Restored::after(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK);
    hold(fd, libc::SO_RCVBUF, received.len());
    hold(fd, libc::SO_SNDBUF, unsent.flying.len() + unsent.waiting.len());
    repair::receive_by_hand(&one.twin).ok()?;
    fill(fd, received)?;
    repair::send_by_hand(&one.twin).ok()?;
    fill(fd, &unsent.flying)?;
    drop(locks);
    let after = Snapshot { expected: handover.expected.bits(), ..snapshot };
    // Where it is not believed, the peer is asked.
    let _ = repair::set_windows(&one.twin, &after);
    let keep_alive = c_int::from(one.habits.keeps_alive);
    let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, keep_alive);
    repair::let_in(&one.twin);
    Some(())
}

/// The same, before so many bytes had come.
fn snapshot_of(handover: &Handover, unread: usize) -> Snapshot {
    let unread = u32::try_from(unread).unwrap_or(u32::MAX);
    Snapshot {
        next: handover.unacknowledged.bits(),
        expected: handover.expected.bits().wrapping_sub(unread),
        peer_window: handover.peer_window,
        window: handover.window,
        window_max: handover.peer_window,
        scales: handover.peer_scale.map(|peers| (peers, handover.scale)),
        segment: handover.peer_segment,
        sack: handover.sack,
        stamp: handover.stamp,
    }
}

/// Has a queue hold so many bytes, if it may not do so anyway.
fn hold(fd: c_int, name: c_int, len: usize) {
    if len > HELD_BYTES {
        let _ = raw::set_option(fd, libc::SOL_SOCKET, name, c_int::try_from(len * 2).unwrap_or(0));
    }
}

fn fill(fd: c_int, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let done = raw::send(fd, bytes).ok().filter(|done| *done > 0)?;
        bytes = bytes.get(done..)?;
    }
    Some(())
}

/// The rings' other end has left: what it has not read goes through the kernel, and so does the end of the peer's stream,
/// behind what is unread.
fn leave(one: &Carried) {
    let connection = one.connection();
    if !connection.page.begin_to_leave(one.me) {
        return;
    }
    let outgoing = connection.outgoing();
    outgoing.producer.fin.store(0, Ordering::SeqCst);
    outgoing.drained(outgoing.pending_bells());
    connection.page.has_left(one.me);
    crate::transport::bell::wake(outgoing.wake_at_end());
}

/// What a queue of the kernel's holds without being asked.
const HELD_BYTES: usize = 8 << 10;
/// Looks until two in a row find the same.
const LOOKS_MAX: u32 = 50;
const SETTLE_NS: i64 = 20_000;
