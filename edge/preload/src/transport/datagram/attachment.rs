//! The UDP attachment of a socket: what this process has of it, its mailbox, and the ways to those of others.
//!
//! # Safety
//!
//! 1. An inbox that has been published is freed with its attachment, when the last user of the socket in
//!    this process has gone, and a reference to it is held only as long as the socket is.
//! 2. The outbox is touched only while the socket's lock for sending is held, or by the only thread there is.
//!    The cookie in there never changes.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_int};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, compiler_fence};

use adverb_shm::alive;
use adverb_sockconf::{Level, Role, Transport};

use super::across;
use super::directory::{self, Directory};
use super::mailbox::Mailbox;
use super::outbox::Outbox;
use crate::base::lock::Held;
use crate::base::{address, config, log, raw};
use crate::socket::counters::add;
use crate::socket::state::{Attached, Reason, Socket};
use crate::socket::{changes, policy};

/// The mailbox of a socket.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(super) mailbox: Mailbox,
    path: CString,
}

impl Inbox {
    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

/// What this process has of a socket.
#[derive(Debug)]
pub(crate) struct UdpAttachment {
    inbox: AtomicPtr<Inbox>,
    outbox: UnsafeCell<Outbox>,
    /// A thread touches the outbox.
    is_busy: AtomicBool,
    /// The process that has made the ways in there: after a fork it is the parent.
    maker: AtomicU32,
    /// `None`: this socket is not to have a mailbox, nor to use others'.
    pub(super) directory: Option<&'static Directory>,
}

// SAFETY: nothing else has this place.
unsafe impl Attached for UdpAttachment {
    const PLACE: usize = 1;
}

impl Socket {
    /// What this process has of a UDP socket. The socket must be in use by the caller.
    #[inline]
    pub(crate) fn udp_attachment(&self) -> Option<&UdpAttachment> {
        self.attached()
    }

    /// The same, and made if need be. A thread that comes second loses, and uses the first's.
    #[inline]
    pub(super) fn udp_attachment_or_new(&self, fd: c_int) -> Option<&UdpAttachment> {
        self.udp_attachment().or_else(|| self.attach_udp(fd))
    }

    #[cold]
    fn attach_udp(&self, fd: c_int) -> Option<&UdpAttachment> {
        self.attach(UdpAttachment::new(self, fd));
        self.udp_attachment()
    }
}

// SAFETY: the outbox is touched only while a lock is held (rule 2); the rest is atomics.
unsafe impl Sync for UdpAttachment {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for UdpAttachment {}

impl UdpAttachment {
    pub(super) fn new(socket: &Socket, fd: c_int) -> Self {
        let directory = is_allowed(socket, fd).then(|| directory::of(fd)).flatten();
        Self {
            inbox: AtomicPtr::new(ptr::null_mut()),
            outbox: UnsafeCell::new(Outbox::new(fd)),
            is_busy: AtomicBool::new(false),
            maker: AtomicU32::new(alive::me()),
            directory,
        }
    }

    /// The mailbox, if this process has mapped it.
    #[inline]
    pub(super) fn inbox(&self) -> Option<&Inbox> {
        let at = NonNull::new(self.inbox.load(Ordering::Acquire))?;
        // SAFETY: published, and not freed while the socket is in use (rule 1).
        Some(unsafe { at.as_ref() })
    }

    /// Publishes the mailbox for this process. A thread that comes second loses.
    fn publish(&self, mailbox: Mailbox, path: CString) {
        let new = Box::into_raw(Box::new(Inbox { mailbox, path }));
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if self.inbox.compare_exchange(ptr::null_mut(), new, o, r).is_err() {
            // SAFETY: it came from a box just now, and has not been published.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    /// Calls `f` with the ways to others' mailboxes.
    pub(super) fn outbox<T>(&self, _held: &Held<'_>, f: impl FnOnce(&mut Outbox) -> T) -> T {
        self.is_busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the lock is held (rule 2), and `f` does not come back here.
        let result = f(unsafe { &mut *self.outbox.get() });
        compiler_fence(Ordering::SeqCst);
        self.is_busy.store(false, Ordering::Relaxed);
        result
    }

    /// In a child just forked: if the parent's threads were in the middle of the outbox, this process gets
    /// a new one. The lock is shared with the parent, and says nothing about that.
    fn after_fork(&self) {
        if self.is_busy.swap(false, Ordering::Relaxed) {
            let at = self.outbox.get();
            // SAFETY: there is no other thread, and the cookie has been there from the start (rule 2).
            let cookie = unsafe { (*at).cookie };
            // SAFETY: there is no other thread; what was in there is left as it is.
            unsafe { at.write(Outbox::again(cookie)) };
        }
        if self.maker.swap(alive::me(), Ordering::Relaxed) != alive::me() {
            // SAFETY: there is no other thread, and this one has not been in the middle of it.
            unsafe { &mut *self.outbox.get() }.after_fork();
        }
    }
}

impl Drop for UdpAttachment {
    fn drop(&mut self) {
        let Some(inbox) = NonNull::new(self.inbox.swap(ptr::null_mut(), Ordering::AcqRel)) else {
            return;
        };
        // SAFETY: it came from a box in `publish`, and it is not used any more (rule 1).
        let inbox = unsafe { Box::from_raw(inbox.as_ptr()) };
        if inbox.mailbox.disown() {
            across::withdraw(&inbox.mailbox);
            if let Some(directory) = self.directory {
                directory.remove(inbox.mailbox.port(), inbox.mailbox.cookie());
            }
            raw::unlink(&inbox.path);
        }
    }
}

/// Whether rules let a socket use shared memory that may have done nothing that they were asked
/// about.
fn is_allowed(socket: &Socket, fd: c_int) -> bool {
    let local = address::name(fd, false)
        .map_or(adverb_sockconf::Socket::NOWHERE, |addr| (addr.ip(), addr.port()));
    let remote = address::name(fd, true)
        .map_or(adverb_sockconf::Socket::NOWHERE, |addr| (addr.ip(), addr.port()));
    let asked = adverb_sockconf::Socket { role: Role::UdpSender, local, remote };
    match config::get().allowed(|| asked) {
        Transport::Best | Transport::SharedMemory => policy::may_share(socket),
        Transport::Frames => {
            policy::want_frames(socket);
            false
        }
        Transport::Os | Transport::Spin => false,
    }
}

/// The mailbox of a socket: mapped now if another process of this family has made it.
#[inline]
pub(super) fn inbox(socket: &Socket, fd: c_int) -> Option<&Inbox> {
    if !socket.datagrams.has_inbox.load(Ordering::Acquire) {
        return None;
    }
    match socket.udp_attachment().and_then(UdpAttachment::inbox) {
        Some(inbox) if inbox.mailbox.is_spoilt() => give_up(socket, fd),
        Some(inbox) => Some(inbox),
        None => join(socket, fd),
    }
}

/// The mailbox is spoilt: from now on the kernel brings everything, and senders are told.
#[cold]
pub(super) fn give_up(socket: &Socket, fd: c_int) -> Option<&Inbox> {
    if socket.datagrams.has_inbox.swap(false, Ordering::SeqCst) {
        if let Some(inbox) = mapped(socket) {
            inbox.mailbox.give_up();
        }
        socket.set_reason(Reason::Spoilt);
        add(&socket.counters.rings_broken, 1);
        changes::note(socket.index());
        log::print(Level::Warning, || format!("fd {fd}: {}", Reason::Spoilt.text()));
    }
    None
}

/// The mailbox of a socket, if this process has mapped it.
#[inline]
pub(crate) fn mapped(socket: &Socket) -> Option<&Inbox> {
    socket.udp_attachment()?.inbox()
}

#[cold]
fn join(socket: &Socket, fd: c_int) -> Option<&Inbox> {
    let ours = socket.udp_attachment_or_new(fd)?;
    let (mailbox, path) = directory::open(fd, directory::cookie(fd)?)?;
    mailbox.own();
    ours.publish(mailbox, path);
    changes::note(socket.index());
    ours.inbox()
}

/// In a child just forked: nothing of a socket is in the hands of the parent's threads.
#[inline]
pub(crate) fn forget_threads(socket: &Socket) {
    if let Some(attachment) = socket.udp_attachment() {
        attachment.after_fork();
    }
}

/// A socket that came from another program: if it has a mailbox, so it stays.
pub(crate) fn inherit(socket: &Socket, fd: c_int) {
    socket.datagrams.has_inbox.store(true, Ordering::Release);
    if join(socket, fd).is_none() {
        socket.datagrams.has_inbox.store(false, Ordering::Release);
    } else {
        show_drops(socket, fd);
    }
}

/// The kernel says of what it brings how many it had dropped before, unless the program could see that.
fn show_drops(socket: &Socket, fd: c_int) {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    if raw::option::<c_int>(fd, level, name) == Ok(0) {
        socket.datagrams.shows_drops.store(true, Ordering::Release);
        let _ = raw::set_option(fd, level, name, 1);
    }
    if socket.datagrams.is_kernel_only.load(Ordering::Acquire) {
        hide_drops(socket, fd);
    }
}

/// What the kernel brings comes as the program wants it: without saying how many it had dropped before.
pub(crate) fn hide_drops(socket: &Socket, fd: c_int) {
    if socket.datagrams.shows_drops.swap(false, Ordering::AcqRel) {
        let _ = raw::set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 0);
    }
}

/// Makes a mailbox for a socket that has received something from a port on which there are sockets
/// of ours.
#[cold]
pub(super) fn set_up(socket: &Socket, fd: c_int) {
    let Some(ours) = socket.udp_attachment_or_new(fd) else {
        return;
    };
    if ours.inbox().is_some() {
        return; // It was given up.
    }
    let (Some(directory), Some(own)) = (ours.directory, address::name(fd, false)) else {
        return;
    };
    let number = |name| raw::option::<c_int>(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    let limit = u64::try_from(number(libc::SO_RCVBUF)).unwrap_or(0);
    // If this process is killed while it makes the mailbox, others know where it is.
    let (cookie, network) = (directory::cookie(fd), directory::network(fd));
    socket.rendezvous.cookie.store(cookie.unwrap_or(0), Ordering::Relaxed);
    socket.rendezvous.key.store(network.unwrap_or(0), Ordering::Relaxed);
    let Some((mailbox, path)) =
        directory::make(directory, fd, own.port(), number(libc::SO_DOMAIN), limit)
    else {
        return;
    };
    socket.rendezvous.port.store(own.port().into(), Ordering::Relaxed);
    ours.publish(mailbox, path);
    socket.datagrams.has_inbox.store(true, Ordering::SeqCst);
    show_drops(socket, fd);
    socket.set_reason(Reason::Rings);
    policy::explain(socket, fd, "mailbox");
    changes::note(socket.index());
}
