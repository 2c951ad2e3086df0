//! Mailboxes across network namespaces of one host.
//!
//! Addresses mean nothing elsewhere, and two pairs of namespaces may have the same ones. So sockets that send out
//! of their namespace, and mailboxes that may be reached from elsewhere, are entered by their addresses in a
//! directory of the host, where what is found is a candidate; and before it is used, a *probe* from the sender's
//! address has to reach the namespace that the mailbox is in (`path_proof.rs`). That it is then this very socket to
//! which the kernel brings what is sent there is found out as within a namespace. NAT between them changes
//! addresses: nothing is found, and the kernel brings everything.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use adverb_sys::random;

use super::directory::{self, Directory};
use super::mailbox::Mailbox;
use crate::base::{address, locals, raw};
use crate::socket::state::Socket;
use crate::transport::offer;
use crate::transport::path_proof::{self, Accept};

/// Addresses by which one mailbox is found from elsewhere.
const ADDRESSES_MAX: usize = 8;

/// A mailbox in another namespace, which may be that of a destination.
#[derive(Debug)]
pub(super) struct Stranger {
    mailbox: Option<Mailbox>,
    cookie: u64,
    proof: usize,
    secret: u64,
    looks: u32,
}

impl Stranger {
    /// `from`: where this socket's datagrams come from.
    pub(super) fn new(mailbox: Mailbox, from: IpAddr) -> Option<Self> {
        let (cookie, secret) = (mailbox.cookie(), random::number());
        let proof = mailbox.proofs().ask(secret, from)?;
        Some(Self { mailbox: Some(mailbox), cookie, proof, secret, looks: 0 })
    }

    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The mailbox, if it is reached at `to`. If that is not known yet, it is tried now and then.
    pub(super) fn shown(&mut self, from: IpAddr, to: IpAddr) -> Option<Mailbox> {
        let mailbox = self.mailbox.as_ref()?;
        if mailbox.proofs().is_proved(self.proof, self.secret) {
            mailbox.proofs().end_proof(self.proof, self.secret);
            return self.mailbox.take();
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks.is_power_of_two() && mailbox.proofs().probe_port() != 0 {
            let place = u64::try_from(self.proof).unwrap_or(0);
            let name = [self.cookie, place];
            path_proof::probe_datagrams(
                from,
                SocketAddr::new(to, mailbox.proofs().probe_port()),
                name,
                self.secret,
            );
        }
        None
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.proofs().end_proof(self.proof, self.secret);
        }
    }
}

/// Whether an address may be in another namespace.
fn may_be_elsewhere(ip: IpAddr) -> bool {
    !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified()
}

/// This socket has sent to `to` through the kernel, from `from`: if that may be elsewhere, receivers there may find it.
pub(super) fn announce(from: SocketAddr, to: SocketAddr) {
    if may_be_elsewhere(to.ip())
        && may_be_elsewhere(from.ip())
        && from.ip() != to.ip()
        && let Some(host) = directory::host_or_new()
    {
        host.announce(directory::key(from));
    }
}

/// The kernel has brought a datagram of a sender that is not known. It may be one that is about to show that it
/// reaches this mailbox, or would if it were told that there is one. Now and then this is asked for the latter.
pub(super) fn received(
    socket: &Socket,
    fd: c_int,
    mailbox: &Mailbox,
    from: SocketAddr,
    prove: Accept,
) {
    if mailbox.proofs().probe_port() != 0 {
        if mailbox.proofs().is_asked() {
            offer::receive_probes();
            // The program may have closed it.
            path_proof::port().into_iter().for_each(|port| mailbox.proofs().set_probe_port(port));
        }
    } else {
        let count = socket.traffic.kernel_count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if count.is_power_of_two() && is_announced(from) {
            let errno = raw::errno();
            open(fd, mailbox, prove);
            raw::set_errno(errno);
        }
    }
}

/// Whether a sender of that address has said that it would use a mailbox.
pub(super) fn is_announced(from: SocketAddr) -> bool {
    let host = || directory::host().is_some_and(|host| host.generation(directory::key(from)) > 0);
    may_be_elsewhere(from.ip()) && host()
}

/// A mailbox may be used from elsewhere; `prove` takes probes for it.
#[cold]
pub(super) fn open(fd: c_int, mailbox: &Mailbox, prove: Accept) {
    let (Some(host), Some(network)) = (directory::host(), directory::network(fd)) else { return };
    if mailbox.proofs().probe_port() != 0 {
        return;
    }
    let Some(port) = path_proof::open_for_datagrams(prove) else { return };
    mailbox.proofs().set_probe_port(port);
    for key in keys(fd) {
        host.enter(key, mailbox.cookie(), network);
    }
}

/// The keys by which a socket is known elsewhere.
fn keys(fd: c_int) -> impl Iterator<Item = u16> {
    let own = address::name(fd, false).filter(|own| own.port() != 0);
    let ips = match own {
        None => Vec::new(),
        Some(own) if own.ip().is_unspecified() => locals::addresses(ADDRESSES_MAX),
        Some(own) => vec![own.ip()],
    };
    let port = own.map_or(0, |own| own.port());
    let is_elsewhere = |ip: &IpAddr| may_be_elsewhere(*ip);
    ips.into_iter().filter(is_elsewhere).map(move |ip| directory::key(SocketAddr::new(ip, port)))
}

/// What a socket gets may have changed, or what others get on its port.
pub(super) fn changed(fd: c_int) {
    let Some(host) = directory::host_if_known() else { return };
    keys(fd).filter(|key| host.generation(*key) > 0).for_each(|key| host.change(key));
}

/// A mailbox is used no more.
pub(super) fn withdraw(mailbox: &Mailbox) {
    if mailbox.proofs().probe_port() != 0 {
        directory::host_if_known()
            .into_iter()
            .for_each(|host: &Directory| host.remove_all(mailbox.cookie()));
    }
}
