//! The evacuation of a mailbox: what lies in that of a socket that another program is about to have goes
//! into the kernel's queue, where that finds it.
//!
//! Each datagram is sent once more, from the very socket that sent it, so that it comes from the same
//! address: a descriptor of it is borrowed from the process that has it, which the kernel allows where it
//! would allow to trace that process (ptrace(2)). If that socket is closed, its address is free, and a
//! new one takes it for the moment. A datagram for which there is neither is lost, and counted as dropped.
//! Nothing is put into the mailbox any more when this begins.

use std::ffi::c_int;
use std::net::SocketAddr;

use adverb_shm::alive;

use super::mailbox::{Mailbox, Origin};
use super::outbox;
use crate::base::{address, raw};
use crate::socket::table;
use crate::transport::rendezvous;

/// Sends everything in the mailbox of the socket `fd` to it through the kernel.
pub(super) fn empty(mailbox: &Mailbox, fd: c_int) {
    let Some(own) = address::name(fd, false).filter(|_| mailbox.has_record()) else { return };
    let was = raw::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF);
    // There is to be room for both queues. What is there stays there when the limit is what it was.
    let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, c_int::MAX / 2);
    let mut lenders: Vec<(u64, SocketAddr, Option<c_int>)> = Vec::new();
    mailbox.take_all(|origin, bytes| {
        let Origin { cookie, from, .. } = origin;
        let known = lenders.iter().find(|(of, at, _)| (*of, *at) == (cookie, from));
        let lender = match known {
            Some((_, _, lender)) => *lender,
            None => {
                let lender = borrow(origin).or_else(|| stand_in(from));
                lenders.push((cookie, from, lender));
                lender
            }
        };
        lender.is_some_and(|lender| send(lender, bytes, own, from))
    });
    for (_, _, lender) in lenders {
        lender.map(raw::close).unwrap_or(());
    }
    if let Ok(was) = was {
        // The kernel doubles what it is told.
        let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, was / 2);
    }
}

/// Sends one datagram to `own`, or to the host's address by which `from` is reached, if `own` is any of them.
fn send(lender: c_int, bytes: &[u8], own: SocketAddr, from: SocketAddr) -> bool {
    let is_any = own.ip().is_unspecified() || own.ip().is_multicast();
    let ip = if is_any { outbox::facing(from).map_or(from.ip(), |at| at.ip()) } else { own.ip() };
    let domain = raw::option::<c_int>(lender, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(0);
    let (to, to_len) = address::write(SocketAddr::new(ip, own.port()), domain);
    raw::send_to(lender, bytes, &to, to_len).is_ok()
}

/// A descriptor of the socket that has sent.
fn borrow(origin: Origin) -> Option<c_int> {
    let Origin { cookie, process, .. } = origin;
    let process = alive::number(process);
    if process == raw::process_id() {
        let mut all = table::open_descriptors().into_iter();
        let fd = all.find(|fd| rendezvous::cookie(*fd) == cookie)?;
        return raw::copy_above(fd, 0).ok();
    }
    if process == 0 || cookie == 0 {
        return None;
    }
    let of = raw::open_process(process)?;
    let numbers = raw::descriptors_of(&process.to_string()).unwrap_or_default();
    let mut sockets = numbers.into_iter().filter_map(|number| {
        let copy = raw::copy_from(of, number)?;
        let is_it = rendezvous::cookie(copy) == cookie;
        if !is_it {
            raw::close(copy);
        }
        is_it.then_some(copy)
    });
    let found = sockets.next();
    raw::close(of);
    found
}

/// A socket with the address of one that is closed.
fn stand_in(from: SocketAddr) -> Option<c_int> {
    let domain = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = raw::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).ok()?;
    let (at, len) = address::write(from, domain);
    if raw::bind(fd, &at, len).is_ok() {
        return Some(fd);
    }
    raw::close(fd);
    None
}
