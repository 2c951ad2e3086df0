//! Where datagrams of a socket wait besides the kernel's queue: its mailbox, or its frames.

use std::ffi::c_int;

use super::attachment::{self, Inbox};
use super::mailbox::Mailbox;
use crate::socket::state::Socket;
use crate::transport::xdp::{self, Frames};

/// Where datagrams of a socket wait, besides the kernel's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store<'a> {
    Frames(&'a Frames),
    Mailbox(&'a Mailbox),
}

/// That of a socket, if it has one.
#[inline]
pub(crate) fn store(socket: &Socket, fd: c_int) -> Option<Store<'_>> {
    match xdp::get(socket, fd) {
        Some(frames) => Some(Store::Frames(frames)),
        None => attachment::inbox(socket, fd).map(Inbox::mailbox).map(Store::Mailbox),
    }
}

/// That of a socket, if this process has got it.
#[inline]
pub(crate) fn stored(socket: &Socket) -> Option<Store<'_>> {
    xdp::of(socket)
        .map(Store::Frames)
        .or_else(|| attachment::mapped(socket).map(Inbox::mailbox).map(Store::Mailbox))
}

impl Store<'_> {
    /// Whether there is something, which may have to wait for what the kernel is about to bring.
    #[inline]
    pub(crate) fn has_record(self) -> bool {
        match self {
            Self::Frames(frames) => {
                frames.watched();
                frames.has_any()
            }
            Self::Mailbox(mailbox) => mailbox.has_record(),
        }
    }

    /// Changes with every datagram.
    #[inline]
    pub(crate) fn head(self) -> u64 {
        match self {
            Self::Frames(frames) => frames.head(),
            Self::Mailbox(mailbox) => mailbox.head(),
        }
    }

    /// The caller is about to sleep: from now on the kernel brings what comes. Refused if something is here.
    pub(crate) fn doze(self) -> bool {
        match self {
            Self::Frames(frames) => frames.doze(),
            Self::Mailbox(mailbox) => mailbox.doze(),
        }
    }

    /// The same, for a thread that reads what is here when the kernel has woken it. Returns whether senders know that.
    pub(crate) fn doze_to_read(self) -> Option<bool> {
        match self {
            Self::Frames(frames) => frames.doze().then_some(false),
            Self::Mailbox(mailbox) => mailbox.doze_to_read(),
        }
    }

    /// It has woken up.
    pub(crate) fn awake_to_read(self, is_known: bool) {
        match self {
            Self::Frames(frames) => frames.awake(),
            Self::Mailbox(mailbox) => mailbox.awake_to_read(is_known),
        }
    }

    /// From now on the kernel brings what comes, whatever is here.
    pub(crate) fn hold(self) {
        match self {
            Self::Frames(frames) => frames.hold(),
            Self::Mailbox(mailbox) => mailbox.hold(),
        }
    }

    /// A sleeper has woken up, or a hold has ended.
    pub(crate) fn awake(self) {
        match self {
            Self::Frames(frames) => frames.awake(),
            Self::Mailbox(mailbox) => mailbox.awake(),
        }
    }

    /// An epoll instance has got to know of it, or knows of it no longer.
    pub(crate) fn seen(self, is_new: bool) {
        match self {
            Self::Frames(frames) => frames.watched(),
            Self::Mailbox(mailbox) => mailbox.seen(is_new),
        }
    }
}
