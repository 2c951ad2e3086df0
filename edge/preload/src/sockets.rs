//! What becomes of a socket: decided when it first becomes clear whom it talks to.
//!
//! # Safety
//!
//! One call asks for the name of the calling thread; it takes nothing.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use adverb_sockconf::{Level, Role, Socket, Transport};

use crate::config;
use crate::extra::stamps;
use crate::lock::{Guarded, Lock};
use crate::slot::{Carrier, End, Kind, Slot, Why};
use crate::table::{self, Pin};
use crate::{address, arena, datagram, doors, family, log, offer, ports, raw};

/// Sockets of the calling thread: as everybody's, accelerated, or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wish {
    Default,
    On,
    Off,
}

static WISHES: Guarded<Vec<(u64, Wish)>> = Guarded::new(Vec::new());
static WISH_COUNT: AtomicI32 = AtomicI32::new(0);

/// What one thread wishes for the sockets it makes from now on.
pub(crate) fn wish(thread: u64, wish: Wish) {
    WISHES.with(|wishes| {
        wishes.retain(|(known, _)| *known != thread);
        if wish != Wish::Default {
            wishes.push((thread, wish));
        }
        WISH_COUNT.store(i32::try_from(wishes.len()).unwrap_or(i32::MAX), Ordering::Release);
    });
}

/// The lock on them, for a fork.
pub(crate) fn wishes() -> &'static Lock {
    WISHES.lock()
}

/// The program wants none of its sockets accelerated any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Sockets that are made from now on are the kernel's.
pub(crate) fn end_acceleration() {
    IS_OVER.store(true, Ordering::Release);
}

/// Whether they are.
pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::Acquire)
}

/// A socket that has no peer yet will not be accelerated, nor what it accepts.
pub(crate) fn leave_alone(slot: &Slot) {
    if matches!(slot.kind(), Kind::Fresh | Kind::Listener) {
        slot.allowed.store(OS, Ordering::Relaxed);
        slot.leave_to_kernel(Why::Feature);
    }
}

fn is_wanted() -> bool {
    if is_over() {
        return false;
    }
    if WISH_COUNT.load(Ordering::Acquire) > 0 {
        // SAFETY: the function has no preconditions.
        let me = unsafe { libc::pthread_self() };
        let is_me = |(thread, _): &&(u64, Wish)| *thread == me;
        if let Some((_, wish)) = WISHES.with(|wishes| wishes.iter().find(is_me).copied()) {
            return wish == Wish::On;
        }
    }
    config::get().is_on
}

/// A socket has been made.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int) {
    table::clear(fd).map(Slot::release).unwrap_or(());
    if ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
        return;
    }
    let config = config::get();
    if !is_wanted() {
        if config.explain {
            let text = format!("fd {fd} socket: {}, also for what it accepts", Why::Off.text());
            config.log.print(Level::Info, &text);
        }
        return;
    }
    let slot_kind = match kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        libc::SOCK_STREAM => Kind::Fresh,
        libc::SOCK_DGRAM => Kind::Datagram,
        _ => return,
    };
    let Some(slot) = family::create(slot_kind) else { return };
    slot.is_nonblocking.store(kind & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    if slot_kind == Kind::Datagram {
        slot.leave_to_kernel(Why::Spin);
        slot.counters.note_limit(fd);
        if !config.multicast_loop {
            let _ = raw::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0);
            slot.is_loop_off.store(true, Ordering::Relaxed);
        }
    } else {
        options(fd);
    }
    table::set_socket(fd, slot);
}

/// Options that parameters set for every connection.
fn options(fd: c_int) {
    if config::get().nodelay {
        let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
    if config::get().quickack {
        let _ = raw::set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1);
    }
}

/// Asks the rules about a socket, and remembers the answer.
pub(crate) fn judge(slot: &Slot, fd: c_int, role: Role, peer: Option<SocketAddr>) {
    let local = address::name(fd, false).map_or(Socket::NOWHERE, |addr| (addr.ip(), addr.port()));
    let remote = peer.map_or(Socket::NOWHERE, |addr| (addr.ip(), addr.port()));
    let transport = config::get().allowed(&Socket { role, local, remote });
    allow(slot, transport);
}

fn allow(slot: &Slot, transport: Transport) {
    let (number, reason) = match transport {
        Transport::Best => (BEST, None),
        Transport::SharedMemory => (SHARED, None),
        Transport::Spin => (SPIN, Some(Why::Spin)),
        Transport::Os => (OS, Some(Why::Rule)),
    };
    slot.allowed.store(number, Ordering::Relaxed);
    if let Some(why) = reason {
        slot.leave_to_kernel(why);
        slot.set_why(why);
    }
}

const BEST: u8 = 0;
const OS: u8 = 1;
const SPIN: u8 = 2;
const SHARED: u8 = 3;

/// Whether a socket is to be left entirely alone.
#[inline]
pub(crate) fn is_plain(slot: &Slot) -> bool {
    slot.allowed.load(Ordering::Relaxed) == OS
}

/// Whether what rules have said so far allows shared memory.
#[inline]
pub(crate) fn may_share(slot: &Slot) -> bool {
    [BEST, SHARED].contains(&slot.allowed.load(Ordering::Relaxed))
}

/// Whether rules want shared memory, and nothing less, where there can be some.
pub(crate) fn insists(slot: &Slot) -> bool {
    slot.allowed.load(Ordering::Relaxed) == SHARED
}

/// Whether the kernel's own call is all there is to it: for good, and without spinning.
#[inline]
pub(crate) fn may_ring(slot: &Slot) -> bool {
    slot.carrier() != Carrier::Kernel && matches!(slot.kind(), Kind::Stream | Kind::Connecting)
}

/// Before a `connect`.
pub(crate) fn connecting(slot: &Slot, fd: c_int, peer: Option<SocketAddr>) {
    let role = match slot.kind() {
        Kind::Datagram => Role::UdpConnect,
        Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => Role::TcpClient,
    };
    if matches!(slot.kind(), Kind::Fresh | Kind::Datagram) {
        judge(slot, fd, role, peer);
    }
}

/// After a `connect` that ended with `errno`, 0 if it succeeded.
pub(crate) fn connected(slot: &Slot, fd: c_int, errno: c_int) {
    if slot.kind() == Kind::Datagram {
        return datagram::connected(slot, fd);
    }
    if !matches!(slot.kind(), Kind::Fresh | Kind::Connecting) {
        return;
    }
    match errno {
        0 => {
            slot.set_kind(Kind::Stream);
            match address::name(fd, true) {
                Some(peer) if slot.carrier() == Carrier::Open => offer::offer(slot, fd, peer),
                None if slot.carrier() == Carrier::Open => {
                    slot.leave_to_kernel(Why::PeerElsewhere);
                }
                _ => {}
            }
            explain(slot, fd, "connect");
        }
        libc::EINPROGRESS | libc::EINTR | libc::EALREADY => slot.set_kind(Kind::Connecting),
        _ => {}
    }
}

/// After a `listen`.
pub(crate) fn listening(slot: &Slot, fd: c_int) {
    slot.set_kind(Kind::Listener);
    judge(slot, fd, Role::TcpServer, None);
    if [BEST, SHARED].contains(&slot.allowed.load(Ordering::Relaxed))
        && let Some(addr) = address::name(fd, false)
    {
        ports::announce(addr.port());
        slot.port.store(addr.port().into(), Ordering::Relaxed);
        doors::announce(fd, addr);
        slot.set_why(Why::Listening);
    }
    explain(slot, fd, "listen");
}

/// A connection has been accepted; `is_near` if it is known to come from this very namespace.
pub(crate) fn accepted(listener: &Pin, fd: c_int, flags: c_int, is_near: bool) {
    let Some(slot) = family::create(Kind::Stream) else { return };
    slot.is_nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    slot.set_end(End::Server);
    let allowed = listener.allowed.load(Ordering::Relaxed);
    slot.allowed.store(allowed, Ordering::Relaxed);
    let limits = [
        (&slot.receive_limit_ns, &listener.receive_limit_ns),
        (&slot.send_limit_ns, &listener.send_limit_ns),
    ];
    for (new, old) in limits {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    slot.is_abortive.store(listener.is_abortive.load(Ordering::Relaxed), Ordering::Relaxed);
    slot.stamps.store(listener.stamps.load(Ordering::Relaxed), Ordering::Relaxed);
    slot.paced.inherit(&listener.paced);
    if is_near {
        // Where no offers are made to this port, there is nothing to look for.
        slot.port.store(listener.port.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    options(fd);
    match allowed {
        OS => slot.leave_to_kernel(Why::Rule),
        SPIN => slot.leave_to_kernel(Why::Spin),
        // If the offer is not there yet, it is looked for with the first bytes in either direction.
        _ => _ = offer::take(slot, fd),
    }
    explain(slot, fd, "accept");
    table::set_socket(fd, slot);
}

/// Reads the time limits of a socket that came from elsewhere.
pub(crate) fn read_limits(slot: &Slot, fd: c_int) {
    for (name, limit) in
        [(libc::SO_RCVTIMEO, &slot.receive_limit_ns), (libc::SO_SNDTIMEO, &slot.send_limit_ns)]
    {
        if let Ok([seconds, micros]) = raw::option::<[i64; 2]>(fd, libc::SOL_SOCKET, name) {
            let ns = seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000);
            limit.store(u64::try_from(ns).unwrap_or(0), Ordering::Relaxed);
        }
    }
    if let Ok([on, seconds]) = raw::option::<[c_int; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER) {
        slot.is_abortive.store(on != 0 && seconds == 0, Ordering::Relaxed);
    }
}

/// The program has set an option.
pub(crate) fn option_set(slot: &Slot, fd: c_int, level: c_int, name: c_int) {
    if slot.kind() == Kind::Datagram {
        datagram::option_set(slot, fd, level, name);
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_LINGER) => {
            read_limits(slot, fd);
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING)
            if stamps::is_known(fd, name) =>
        {
            slot.stamps.store(stamps::wanted(fd), Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY | libc::SO_RCVLOWAT | libc::SO_TIMESTAMPING)
        | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR) => {
            slot.leave_to_kernel(Why::Feature);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) if slot.mapped().is_some() => {
            let on = raw::option::<c_int>(fd, level, name).unwrap_or(1) != 0;
            slot.nodelay.store(on, Ordering::Relaxed);
            let _ = raw::set_option(fd, level, name, 1);
        }
        _ => {}
    }
}

/// The program wants of a socket what only the kernel has.
pub(crate) fn keep_to_kernel(fd: c_int) {
    if let Some(slot) = table::socket(fd) {
        datagram::keep_to_kernel(&slot, fd);
        slot.leave_to_kernel(Why::Feature);
    }
}

/// Says what has become of a socket, if somebody wants to know.
pub(crate) fn explain(slot: &Slot, fd: c_int, event: &str) {
    arena::heed();
    let text = || {
        let name =
            |of_peer| address::name(fd, of_peer).map_or("-".to_owned(), |addr| addr.to_string());
        format!("fd {fd} {event} {} <- {}: {}", name(false), name(true), slot.why().text())
    };
    if config::get().explain {
        config::get().log.print(Level::Info, &text());
    } else {
        log::print(Level::Debug, text);
    }
}
