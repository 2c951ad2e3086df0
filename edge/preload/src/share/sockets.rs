//! Sockets, from call to call: what becomes of one is decided when its peer is first known.
//!
//! Not here: what rules allow (`policy.rs`).

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use adverb_sockconf::{Level, Role};
use adverb_switchover::{End, Route};

use crate::base::{address, config, raw, signal};
use crate::share::processes;
use crate::socket::state::{Kind, Reason, Socket};
use crate::socket::table::{self, SocketRef};
use crate::socket::{policy, stamps};
use crate::transport::xdp::streams;
use crate::transport::{datagram, fallback, offer, path_proof, ports};

/// A socket has been made.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int) {
    table::clear(fd).map(Socket::release).unwrap_or(());
    if ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
        return;
    }
    let config = config::get();
    if !policy::is_wanted() {
        if config.explain {
            let text = format!("fd {fd} socket: {}, also for what it accepts", Reason::Off.text());
            config.log.print(Level::Info, &text);
        }
        return;
    }
    let socket_kind = match kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
        libc::SOCK_STREAM => Kind::Fresh,
        libc::SOCK_DGRAM => Kind::Datagram,
        _ => return,
    };
    let Some(socket) = processes::create(socket_kind) else { return };
    if config.traces_faults {
        signal::trace_faults();
    }
    socket.flags.is_nonblocking.store(kind & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    if socket_kind == Kind::Datagram {
        socket.datagrams.is_v4.store(domain == libc::AF_INET, Ordering::Relaxed);
        socket.leave_to_kernel(Reason::Spin);
        socket.counters.note_limit(fd);
        if !config.multicast_loop {
            let _ = raw::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0);
            if domain == libc::AF_INET6 {
                let _ = raw::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0);
            }
            socket.datagrams.is_loop_off.store(true, Ordering::Relaxed);
        }
    } else {
        options(fd);
    }
    table::set_socket(fd, socket);
}

/// Options that parameters set for every connection.
fn options(fd: c_int) {
    let config = config::get();
    let set = |name, value| _ = raw::set_option(fd, libc::IPPROTO_TCP, name, value);
    if config.nodelay {
        set(libc::TCP_NODELAY, 1);
    }
    if config.quickack {
        set(libc::TCP_QUICKACK, 1);
    }
    if let Some(longest) = config.segment_max {
        set(libc::TCP_MAXSEG, longest);
    }
    if let Some(name) = config.congestion {
        let _ = raw::set_option_as(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
    }
}

/// Before a `connect`.
pub(crate) fn connecting(socket: &Socket, fd: c_int, peer: Option<SocketAddr>) {
    let role = match socket.kind() {
        Kind::Datagram => Role::UdpConnect,
        Kind::Fresh | Kind::Listener | Kind::Connecting | Kind::Stream => Role::TcpClient,
    };
    if matches!(socket.kind(), Kind::Fresh | Kind::Datagram) {
        policy::judge(socket, fd, role, peer);
    }
}

/// After a `connect` that ended with `errno`, 0 if it succeeded.
pub(crate) fn connected(socket: &Socket, fd: c_int, errno: c_int) {
    if socket.kind() == Kind::Datagram {
        return datagram::connected(socket, fd);
    }
    if !matches!(socket.kind(), Kind::Fresh | Kind::Connecting) {
        return;
    }
    if matches!(errno, 0 | libc::EINPROGRESS | libc::EINTR) {
        // Of a connection before, which has ended before it was known to have arrived.
        let _ = socket.take_error();
    }
    match errno {
        0 => {
            socket.set_kind(Kind::Stream);
            match address::name(fd, true) {
                Some(peer) if socket.route() == Route::Open => offer::offer(socket, fd, peer),
                None if socket.route() == Route::Open => {
                    socket.leave_to_kernel(Reason::PeerElsewhere);
                }
                _ => {}
            }
            policy::explain(socket, fd, "connect");
        }
        libc::EINPROGRESS | libc::EINTR | libc::EALREADY => socket.set_kind(Kind::Connecting),
        _ => {}
    }
}

/// After a `listen`.
pub(crate) fn listening(socket: &Socket, fd: c_int) {
    socket.set_kind(Kind::Listener);
    policy::judge(socket, fd, Role::TcpServer, None);
    if policy::may_share(socket)
        && let Some(addr) = address::name(fd, false)
    {
        ports::announce(addr.port());
        socket.rendezvous.port.store(addr.port().into(), Ordering::Relaxed);
        path_proof::announce(fd, addr);
        socket.set_reason(Reason::Listening);
    }
    policy::explain(socket, fd, "listen");
}

/// A connection has been accepted; `is_near` if it is known to come from this very namespace.
pub(crate) fn accepted(listener: &SocketRef, fd: c_int, flags: c_int, is_near: bool) {
    let Some(socket) = processes::create(Kind::Stream) else { return };
    socket.flags.is_nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    socket.set_end(End::Server);
    let allowed = listener.flags.allowed.load(Ordering::Relaxed);
    socket.flags.allowed.store(allowed, Ordering::Relaxed);
    let limits = [
        (&socket.options.receive_limit_ns, &listener.options.receive_limit_ns),
        (&socket.options.send_limit_ns, &listener.options.send_limit_ns),
    ];
    for (new, old) in limits {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    socket
        .flags
        .is_abortive
        .store(listener.flags.is_abortive.load(Ordering::Relaxed), Ordering::Relaxed);
    socket.options.stamps.store(listener.options.stamps.load(Ordering::Relaxed), Ordering::Relaxed);
    let has_least = listener.flags.has_least.load(Ordering::Relaxed);
    socket.flags.has_least.store(has_least, Ordering::Relaxed);
    socket.paced.inherit(&listener.paced);
    if is_near {
        // Where no offers are made to this port, there is nothing to look for.
        socket
            .rendezvous
            .port
            .store(listener.rendezvous.port.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    options(fd);
    match allowed {
        policy::OS => socket.leave_to_kernel(Reason::Rule),
        policy::SPIN => socket.leave_to_kernel(Reason::Spin),
        // It has the listener's options.
        _ if listener.route() == Route::Kernel => socket.leave_to_kernel(Reason::Feature),
        // If the offer is not there yet, it is looked for with the first bytes in either direction.
        _ => _ = offer::take(socket, fd),
    }
    policy::explain(socket, fd, "accept");
    table::set_socket(fd, socket);
}

/// The program has set an option.
pub(crate) fn option_set(socket: &Socket, fd: c_int, level: c_int, name: c_int) {
    if socket.kind() == Kind::Datagram {
        datagram::option_set(socket, fd, level, name);
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_LINGER) => {
            policy::read_limits(socket, fd);
        }
        (libc::SOL_SOCKET, _) if stamps::is_one(name) => match stamps::is_known(fd, name) {
            true => socket.options.stamps.store(stamps::wanted(fd), Ordering::Relaxed),
            false => give_back(socket, fd),
        },
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if socket.kind() != Kind::Datagram => {
            let has_least = raw::option::<c_int>(fd, level, name).is_ok_and(|least| least > 1);
            socket.flags.has_least.store(has_least, Ordering::Relaxed);
            if has_least {
                give_back(socket, fd);
            }
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY | libc::SO_PEEK_OFF)
        | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_INQ) => {
            give_back(socket, fd)
        }
        (libc::SOL_SOCKET, libc::SO_MARK)
        | (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_TTL)
        | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS | libc::IPV6_UNICAST_HOPS)
            if streams::wants_other_packets(socket, fd) =>
        {
            give_back(socket, fd);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) if socket.mapped().is_some() => {
            let on = raw::option::<c_int>(fd, level, name).unwrap_or(1) != 0;
            socket.flags.nodelay.store(on, Ordering::Relaxed);
            let _ = raw::set_option(fd, level, name, 1);
        }
        _ => {}
    }
    streams::option_set(socket, level, name);
}

/// A filter of the program's may be attached or removed: frames carry the connection no longer. False if they still do, as the
/// owner does not answer, or another thread is in the midst of something.
pub(crate) fn may_filter(socket: &Socket, fd: c_int) -> bool {
    if streams::is_framed(socket) {
        fallback::leave_at_once(socket, fd, Reason::Feature);
    }
    !streams::is_framed(socket)
}

/// The program wants of a connection, or of those that a listener will accept, what only the kernel has.
pub(crate) fn give_back(socket: &Socket, fd: c_int) {
    if socket.kind() != Kind::Datagram {
        fallback::leave_for_feature(socket, fd);
    }
}

/// The program wants of a socket what only the kernel has.
pub(crate) fn keep_to_kernel(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        datagram::keep_to_kernel(&socket, fd);
        socket.leave_to_kernel(Reason::Feature);
    }
}
