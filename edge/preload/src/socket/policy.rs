//! Policy: what the program, its rules and its threads allow a socket to be.
//!
//! Not here: what calls of the program make of it (`sockets.rs`).
//!
//! # Safety
//!
//! One call asks for the name of the calling thread; it takes nothing.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use adverb_sockconf::{Level, Role, Transport};
use adverb_switchover::Route;

use crate::base::lock::Guarded;
use crate::base::{address, config, log, raw};
use crate::socket::state::{Kind, Reason, Socket};
use crate::socket::{arena, table};

/// Sockets of the calling thread: as those of all threads, accelerated, or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wish {
    Default,
    On,
    Off,
}

pub(crate) static WISHES: Guarded<Vec<(u64, Wish)>> = Guarded::new(Vec::new());
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
pub(crate) fn leave_alone(socket: &Socket) {
    if matches!(socket.kind(), Kind::Fresh | Kind::Listener) {
        socket.flags.allowed.store(OS, Ordering::Relaxed);
        socket.leave_to_kernel(Reason::Feature);
    }
}

/// The program has asked for the extra functions.
pub(crate) fn note_extras() {
    KNOWS_EXTRAS.store(true, Ordering::Relaxed);
}

/// Whether it has.
pub(crate) fn knows_extras() -> bool {
    KNOWS_EXTRAS.load(Ordering::Relaxed)
}

static KNOWS_EXTRAS: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_wanted() -> bool {
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

/// Asks the rules about a socket, and remembers the answer.
pub(crate) fn judge(socket: &Socket, fd: c_int, role: Role, peer: Option<SocketAddr>) {
    let nowhere = adverb_sockconf::Socket::NOWHERE;
    let transport = config::get().allowed(|| {
        let local = address::name(fd, false).map_or(nowhere, |addr| (addr.ip(), addr.port()));
        let remote = peer.map_or(nowhere, |addr| (addr.ip(), addr.port()));
        adverb_sockconf::Socket { role, local, remote }
    });
    allow(socket, transport);
}

fn allow(socket: &Socket, transport: Transport) {
    let (number, reason) = match transport {
        Transport::Best => (BEST, None),
        Transport::SharedMemory => (SHARED, None),
        Transport::Frames => (FRAMES, None),
        Transport::Spin => (SPIN, Some(Reason::Spin)),
        Transport::Os => (OS, Some(Reason::Rule)),
    };
    socket.flags.allowed.store(number, Ordering::Relaxed);
    if let Some(reason) = reason {
        socket.leave_to_kernel(reason);
        socket.set_reason(reason);
    }
}

const BEST: u8 = 0;
pub(crate) const OS: u8 = 1;
pub(crate) const SPIN: u8 = 2;
const SHARED: u8 = 3;
const FRAMES: u8 = 4;

/// How long a call that receives from a socket spins, at most, in nanoseconds.
#[inline]
pub(crate) fn receive_spin_ns(socket: &Socket) -> u64 {
    let config = config::get();
    let is_first = |socket: &Socket| {
        socket.kind() == Kind::Datagram && !socket.datagrams.has_joined.load(Ordering::Relaxed)
    };
    config.first_spin_ns.filter(|_| is_first(socket)).unwrap_or(config.receive_spin_ns)
}

/// Whether a socket is to be left entirely alone.
#[inline]
pub(crate) fn is_plain(socket: &Socket) -> bool {
    socket.flags.allowed.load(Ordering::Relaxed) == OS
        || socket.flags.has_least.load(Ordering::Relaxed) && socket.route() == Route::Kernel
}

/// Whether what rules have said so far allows shared memory.
#[inline]
pub(crate) fn may_share(socket: &Socket) -> bool {
    let allowed = socket.flags.allowed.load(Ordering::Relaxed);
    [BEST, SHARED].contains(&allowed) || allowed == FRAMES && socket.kind() != Kind::Datagram
}

/// They do, of a socket that has had no role so far.
pub(crate) fn want_frames(socket: &Socket) {
    let (o, r) = (Ordering::Relaxed, Ordering::Relaxed);
    let _ = socket.flags.allowed.compare_exchange(BEST, FRAMES, o, r);
}

/// Whether rules want frames past the kernel.
#[inline]
pub(crate) fn wants_frames(socket: &Socket) -> bool {
    socket.flags.allowed.load(Ordering::Relaxed) == FRAMES
}

/// Whether rules want shared memory, and nothing less, where there can be some.
pub(crate) fn insists(socket: &Socket) -> bool {
    socket.flags.allowed.load(Ordering::Relaxed) == SHARED
}

/// Whether the kernel's own call is all there is to it: for good, and without spinning.
#[inline]
pub(crate) fn may_ring(socket: &Socket) -> bool {
    let is_ours = socket.route() != Route::Kernel
        || socket.flags.pending_error.load(Ordering::Relaxed) != 0
        || socket.is_reset();
    is_ours && matches!(socket.kind(), Kind::Stream | Kind::Connecting)
}

/// Reads the time limits of a socket that came from elsewhere.
pub(crate) fn read_limits(socket: &Socket, fd: c_int) {
    for (name, limit) in [
        (libc::SO_RCVTIMEO, &socket.options.receive_limit_ns),
        (libc::SO_SNDTIMEO, &socket.options.send_limit_ns),
    ] {
        if let Ok([seconds, micros]) = raw::option::<[i64; 2]>(fd, libc::SOL_SOCKET, name) {
            let ns = seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000);
            limit.store(u64::try_from(ns).unwrap_or(0), Ordering::Relaxed);
        }
    }
    if let Ok([on, seconds]) = raw::option::<[c_int; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER) {
        socket.flags.is_abortive.store(on != 0 && seconds == 0, Ordering::Relaxed);
    }
}

/// Prints what has become of a socket, if the log's level says so.
pub(crate) fn explain(socket: &Socket, fd: c_int, event: &str) {
    arena::describe_wanted();
    let text = || {
        let name =
            |of_peer| address::name(fd, of_peer).map_or("-".to_owned(), |addr| addr.to_string());
        let (shown, why) = (table::shown(fd, socket), socket.reason().text());
        format!("fd {shown} {event} {} <- {}: {why}", name(false), name(true))
    };
    if config::get().explain {
        config::get().log.print(Level::Info, &text());
    } else {
        log::print(Level::Debug, text);
    }
}
