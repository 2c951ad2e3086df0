//! Threads that sleep until a datagram comes: what they say when they begin to, and when they have woken up.
//!
//! What a sleep means to senders is in `mailbox/sleepers.rs`. A handler may leave the call that sleeps for good, by `longjmp`:
//! nothing tells of that, so a thread that is about to sleep ends the sleeps that it has left.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use super::store::{Store, store};
use crate::base::thread;
use crate::socket::state::Socket;
use crate::socket::table::SocketRef;
use crate::transport::xdp;

/// A sleep that has begun. A call that is left keeps its socket in use for good, and so what the socket has.
#[derive(Clone, Copy, Debug)]
struct Begun {
    socket: &'static Socket,
    store: Option<Store<'static>>,
    /// Senders know that the thread reads when it wakes up.
    is_known: bool,
    /// Where on its stack the thread sleeps.
    stack: usize,
}

thread_local! {
    /// The sleeps of the calling thread. There are several if it sleeps for several sockets, or if handlers sleep.
    static BEGUN: [Cell<Option<Begun>>; BEGUN_MAX] = const { [const { Cell::new(None) }; BEGUN_MAX] };
}

impl Begun {
    fn end(self) {
        match self.store {
            Some(store) => store.awake_to_read(self.is_known),
            None => _ = self.socket.waiters.sleepers.fetch_sub(1, Ordering::SeqCst),
        }
    }

    /// Notes it, and returns where, if there is room.
    fn note(self) -> Option<usize> {
        BEGUN.with(|all| {
            let at = all.iter().position(|place| place.get().is_none())?;
            all.get(at)?.set(Some(self));
            Some(at)
        })
    }
}

/// A thread that sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct Sleeper<'a> {
    begun: Begun,
    /// Where that is noted.
    noted: Option<usize>,
    _socket: &'a SocketRef,
}

impl<'a> Sleeper<'a> {
    /// Refused if there is something in the mailbox. `stack`: as it was said to [`end_left`].
    pub(crate) fn new(in_use: &'a SocketRef, fd: c_int, stack: usize) -> Option<Self> {
        let socket = in_use.socket();
        let store = store(socket, fd);
        let is_known = match store {
            Some(store) => store.doze_to_read()?,
            None => {
                socket.waiters.sleepers.fetch_add(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                false
            }
        };
        let begun = Begun { socket, store, is_known, stack };
        let sleeper = Self { begun, noted: begun.note(), _socket: in_use };
        // A thread that makes a mailbox now, or gets frames, has seen that we sleep, or is seen here.
        let has_store =
            socket.datagrams.has_inbox.load(Ordering::SeqCst) || xdp::of(socket).is_some();
        (store.is_some() || !has_store).then_some(sleeper)
    }

    /// Whether it waits for frames.
    pub(crate) fn has_frames(&self) -> bool {
        matches!(self.begun.store, Some(Store::Frames(_)))
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let place = |at| BEGUN.with(|all| all.get(at).and_then(Cell::take));
        // One that is noted no longer has been ended, or is the parent's.
        if self.noted.is_none_or(|at| place(at).is_some()) {
            self.begun.end();
        }
    }
}

/// The calling thread is about to sleep, at `stack`: it has left sleeps that lie no higher, unless it is in a handler, which
/// returns to them.
pub(crate) fn end_left(stack: usize) {
    let is_left = |begun: &Begun| begun.stack <= stack && !thread::is_in_handler();
    BEGUN.with(|all| {
        for place in all.iter().filter(|place| place.get().as_ref().is_some_and(is_left)) {
            place.take().into_iter().for_each(Begun::end);
        }
    });
}

/// In a child just forked: its parent sleeps, and wakes up.
pub(crate) fn after_fork() {
    BEGUN.with(|all| all.iter().for_each(|place| place.set(None)));
}

/// So many sleeps are noted at a time; more are not, and those of them that a handler leaves last for good.
const BEGUN_MAX: usize = 8;
