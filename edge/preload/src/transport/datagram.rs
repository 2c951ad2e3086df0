//! Datagrams: UDP sockets, and their mailboxes.
//!
//! A UDP socket that has received from another one of ours has a *mailbox* in shared memory:
//!
//! ```text
//! mailbox     the memory                      directory   which sockets have one
//! inbox       out of it, or the kernel        outbox      into others', or the kernel
//! framed      out of frames, or the kernel    asleep      threads that wait for one
//! attachment  what this process has of both   group       into those of a multicast group
//! listing     what the kernel says of sockets   evacuation   out of it, into the kernel's queue
//! store       a mailbox, or frames, of one socket
//! order       which of both a reader gets next
//! ways        which of one destination's mailboxes, or the kernel
//! across      from one network namespace into another
//! ```

mod across;
mod asleep;
mod attachment;
mod directory;
mod evacuation;
mod framed;
mod group;
mod inbox;
mod listing;
mod mailbox;
mod order;
mod outbox;
#[cfg(test)]
mod simulation;
mod store;
mod ways;

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::base::{address, raw};
use crate::socket::state::{Kind, Reason, Socket};
use crate::socket::{policy, stamps};
use crate::transport::xdp;

pub(crate) use asleep::{Sleeper, after_fork as forget_sleeps, end_left as end_left_sleeps};
pub(crate) use attachment::{forget_threads, hide_drops};
pub(crate) use directory::{tidy_up, withdraw_of_dead};
use group::BY_UNKNOWN;
pub(crate) use inbox::{
    Arrival, Content, Request, content, dropped, next_len, receive as receive_one, receive_now,
    receive_short,
};
use inbox::{IPV6_MULTICAST_ALL, MCAST_MSFILTER};
pub(crate) use mailbox::{Mailbox, RUN_BYTES, counts};
pub(crate) use outbox::{forget as forget_ways, mind, send, warm};
pub(crate) use store::{Store, store, stored};

/// Whether a socket is one whose datagrams may go into, or come out of, a mailbox.
#[inline]
pub(crate) fn may_use_mailbox(socket: &Socket) -> bool {
    socket.kind() == Kind::Datagram
        && (socket.datagrams.has_inbox.load(Ordering::Relaxed)
            || xdp::of(socket).is_some()
            || !socket.datagrams.is_kernel_only.load(Ordering::Relaxed)
                && (policy::may_share(socket) || policy::wants_frames(socket)))
}

/// Its mailbox, if it has one.
#[inline]
pub(crate) fn mailbox(socket: &Socket, fd: c_int) -> Option<&Mailbox> {
    attachment::inbox(socket, fd).map(attachment::Inbox::mailbox)
}

/// Its mailbox, if this process has mapped it.
#[inline]
pub(crate) fn mapped(socket: &Socket) -> Option<&Mailbox> {
    attachment::mapped(socket).map(attachment::Inbox::mailbox)
}

/// The program wants what only the kernel has: whatever comes from now on comes from there.
pub(crate) fn keep_to_kernel(socket: &Socket, fd: c_int) {
    hide_groups(socket, fd);
    hide_drops(socket, fd);
    if socket.kind() == Kind::Datagram
        && !socket.datagrams.is_kernel_only.swap(true, Ordering::AcqRel)
    {
        if let Some(mailbox) = mapped(socket) {
            mailbox.hold();
        }
        outbox::forget(socket);
        socket.set_reason(Reason::Feature);
        xdp::give_up(socket, Reason::Feature);
    }
}

/// Another program is about to have the socket: what comes from now on comes through the kernel, and so
/// does what is here already.
pub(crate) fn give_up(socket: &Socket, fd: c_int) {
    keep_to_kernel(socket, fd);
    if socket.kind() == Kind::Datagram
        && let Some(mailbox) = mailbox(socket, fd)
    {
        evacuation::empty(mailbox, fd);
    }
}

/// After a `bind`: the kernel may bring to this socket what it brought to another one.
pub(crate) fn bound(socket: &Socket, fd: c_int) {
    let Some(own) = address::name(fd, false) else { return };
    socket.rendezvous.port.store(own.port().into(), Ordering::Relaxed);
    if let Some(directory) = directory::of(fd)
        && directory.generation(own.port()) > 0
    {
        directory.change(own.port());
    }
    across::changed(fd);
}

/// After a `connect`, whatever has come of it.
pub(crate) fn connected(socket: &Socket, fd: c_int) {
    socket.datagrams.epoch.fetch_add(1, Ordering::AcqRel);
    xdp::connected(socket, fd);
    if let Some(mailbox) = mapped(socket) {
        mailbox.turn();
        inbox::expect_groups(fd, mailbox);
        if address::name(fd, false).is_none_or(|own| own.port() != mailbox.port()) {
            // Disconnected, and without the port that it had.
            keep_to_kernel(socket, fd);
        }
    }
    socket.rendezvous.port.store(0, Ordering::Relaxed);
    bound(socket, fd);
}

/// The last descriptor is about to be closed.
#[inline]
pub(crate) fn closing(socket: &Socket) {
    if socket.kind() == Kind::Datagram {
        closing_datagrams(socket);
    }
}

fn closing_datagrams(socket: &Socket) {
    xdp::give_up(socket, socket.reason());
    if let Some(directory) = socket.udp_attachment().and_then(|ours| ours.directory)
        && let Ok(port @ 1..) = u16::try_from(socket.rendezvous.port.load(Ordering::Relaxed))
    {
        directory.change(port);
    }
}

/// A socket that came with its descriptor.
pub(crate) fn adopted(socket: &Socket, fd: c_int) {
    socket.datagrams.multicast_by.store(BY_UNKNOWN, Ordering::Relaxed);
    attachment::inherit(socket, fd);
    // Another process may have it as well.
    xdp::give_up(socket, Reason::HandedOver);
    if let Some(own) = address::name(fd, false) {
        socket.rendezvous.port.store(own.port().into(), Ordering::Relaxed);
    }
}

/// In a child just forked.
#[inline]
pub(crate) fn after_fork(socket: &Socket) {
    if socket.kind() == Kind::Datagram {
        forget_threads(socket);
        own_mailbox(socket);
    }
}

fn own_mailbox(socket: &Socket) {
    if let Some(mailbox) = mapped(socket) {
        mailbox.own();
    }
}

/// What the kernel brings comes as the program wants it: without saying to which group it was sent.
pub(crate) fn hide_groups(socket: &Socket, fd: c_int) {
    if socket.datagrams.shows_groups.swap(false, Ordering::AcqRel) {
        let (level, name) = inbox::shows_option(fd);
        let _ = raw::set_option(fd, level, name, 0);
        if let Some(mailbox) = mapped(socket) {
            mailbox.show_never();
        }
    }
}

/// Whether the program asks for an option that is on because of us.
pub(crate) fn is_hidden(socket: &Socket, fd: c_int, level: c_int, name: c_int) -> bool {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
            socket.datagrams.shows_drops.load(Ordering::Acquire)
        }
        option => {
            socket.datagrams.shows_groups.load(Ordering::Acquire)
                && option == inbox::shows_option(fd)
        }
    }
}

/// The socket has joined a group, or left it, or its filters have changed.
fn membership_changed(socket: &Socket, fd: c_int) {
    if let Some(mailbox) = mapped(socket) {
        mailbox.turn();
        inbox::expect_groups(fd, mailbox);
    }
    bound(socket, fd);
    xdp::connected(socket, fd);
}

/// The program has set an option. What is not known to be harmless needs the kernel.
pub(crate) fn option_set(socket: &Socket, fd: c_int, level: c_int, name: c_int) {
    let is_harmless = match level {
        libc::SOL_SOCKET => HARMLESS_ANY.contains(&name) || stamps::is_known(fd, name),
        libc::IPPROTO_IP => {
            [&HARMLESS_V4[..], &MEMBERSHIP_V4, &WAY_V4].iter().any(|some| some.contains(&name))
        }
        libc::IPPROTO_IPV6 => {
            [&HARMLESS_V6[..], &MEMBERSHIP_V6, &WAY_V6].iter().any(|some| some.contains(&name))
        }
        _ => false,
    };
    let is_about_errors =
        [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];
    if is_about_errors.contains(&(level, name)) {
        hide_groups(socket, fd);
    }
    if !is_harmless {
        if is_hidden(socket, fd, level, name) {
            let is_ours = match level {
                libc::SOL_SOCKET => &socket.datagrams.shows_drops,
                _ => &socket.datagrams.shows_groups,
            };
            is_ours.store(false, Ordering::Release);
        }
        return keep_to_kernel(socket, fd);
    }
    let (memberships, ways) = match level {
        libc::IPPROTO_IP => (&MEMBERSHIP_V4[..], &WAY_V4[..]),
        libc::IPPROTO_IPV6 => (&MEMBERSHIP_V6[..], &WAY_V6[..]),
        _ => (&[][..], &[][..]),
    };
    if memberships.contains(&name) {
        membership_changed(socket, fd);
    }
    if [
        (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    ]
    .contains(&(level, name))
    {
        let is_off = raw::option::<c_int>(fd, level, name) == Ok(0);
        socket.datagrams.is_loop_off.store(is_off, Ordering::Relaxed);
    }
    if ways.contains(&name) || xdp::of(socket).is_some() {
        socket.datagrams.epoch.fetch_add(1, Ordering::AcqRel);
    }
    if level == libc::SOL_SOCKET
        && [libc::SO_REUSEADDR, libc::SO_REUSEPORT].contains(&name)
        && raw::option::<c_int>(fd, level, name) != Ok(0)
    {
        // The kernel chooses among sockets that share a port.
        xdp::share(socket, fd);
    }
    if level == libc::SOL_SOCKET && [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE].contains(&name) {
        socket.counters.note_limit(fd);
        let limit = raw::option::<c_int>(fd, level, libc::SO_RCVBUF).unwrap_or(0);
        if let Some(frames) = xdp::of(socket) {
            frames.queue().set_limit(usize::try_from(limit).unwrap_or(0));
        }
        let Some(mailbox) = mapped(socket) else { return };
        mailbox.set_limit(u64::try_from(limit).unwrap_or(0));
    }
}

const HARMLESS_ANY: [c_int; 16] = [
    libc::SO_REUSEADDR,
    libc::SO_REUSEPORT,
    libc::SO_RCVBUF,
    libc::SO_RCVBUFFORCE,
    libc::SO_SNDBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_BROADCAST,
    libc::SO_KEEPALIVE,
    libc::SO_LINGER,
    libc::SO_PRIORITY,
    libc::SO_BUSY_POLL,
    libc::SO_NO_CHECK,
    libc::SO_INCOMING_CPU,
    libc::SO_MAX_PACING_RATE,
];
const HARMLESS_V4: [c_int; 7] = [
    libc::IP_TTL,
    libc::IP_TOS,
    libc::IP_MTU_DISCOVER,
    libc::IP_RECVERR,
    libc::IP_FREEBIND,
    libc::IP_MULTICAST_TTL,
    libc::IP_BIND_ADDRESS_NO_PORT,
];
/// What a socket gets of which groups.
const MEMBERSHIP_V4: [c_int; 15] = [
    libc::IP_MULTICAST_ALL,
    libc::IP_ADD_MEMBERSHIP,
    libc::IP_DROP_MEMBERSHIP,
    libc::IP_ADD_SOURCE_MEMBERSHIP,
    libc::IP_DROP_SOURCE_MEMBERSHIP,
    libc::IP_BLOCK_SOURCE,
    libc::IP_UNBLOCK_SOURCE,
    libc::IP_MSFILTER,
    MCAST_JOIN_GROUP,
    MCAST_BLOCK_SOURCE,
    MCAST_UNBLOCK_SOURCE,
    MCAST_LEAVE_GROUP,
    MCAST_JOIN_SOURCE_GROUP,
    MCAST_LEAVE_SOURCE_GROUP,
    MCAST_MSFILTER,
];
const MEMBERSHIP_V6: [c_int; 10] = [
    libc::IPV6_ADD_MEMBERSHIP,
    libc::IPV6_DROP_MEMBERSHIP,
    IPV6_MULTICAST_ALL,
    MCAST_JOIN_GROUP,
    MCAST_BLOCK_SOURCE,
    MCAST_UNBLOCK_SOURCE,
    MCAST_LEAVE_GROUP,
    MCAST_JOIN_SOURCE_GROUP,
    MCAST_LEAVE_SOURCE_GROUP,
    MCAST_MSFILTER,
];
const MCAST_JOIN_GROUP: c_int = 42;
const MCAST_BLOCK_SOURCE: c_int = 43;
const MCAST_UNBLOCK_SOURCE: c_int = 44;
const MCAST_LEAVE_GROUP: c_int = 45;
const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
const MCAST_LEAVE_SOURCE_GROUP: c_int = 47;
/// How a socket sends to groups.
const WAY_V4: [c_int; 2] = [libc::IP_MULTICAST_LOOP, libc::IP_MULTICAST_IF];
const WAY_V6: [c_int; 2] = [libc::IPV6_MULTICAST_LOOP, libc::IPV6_MULTICAST_IF];
const HARMLESS_V6: [c_int; 7] = [
    libc::IPV6_V6ONLY,
    libc::IPV6_UNICAST_HOPS,
    libc::IPV6_MULTICAST_HOPS,
    libc::IPV6_MTU_DISCOVER,
    libc::IPV6_RECVERR,
    libc::IPV6_TCLASS,
    libc::IPV6_FREEBIND,
];
