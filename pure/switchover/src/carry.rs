//! Which way bytes travel, and how an end closes.

use crate::bell::Wake;
use crate::page::{Connection, Leaver, NEVER, Route};
use crate::sync::{Ordering, fence};

/// Where the next bytes come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// From the ring.
    Ring,
    /// From the kernel: so many, before the ring's.
    Kernel(u64),
    /// From the kernel's queue, as long as the other end has not switched: what is there by a count, after which it
    /// still has not, is no bell.
    Queue,
}

/// What it means that the ring is empty.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Empty {
    /// It is not, by now.
    Again,
    /// Nothing has come yet.
    Nothing,
    /// No more will come.
    Ended,
    /// The other end is gone, and the kernel knows how.
    AskKernel,
    /// The other end has left: what comes now comes through the kernel, once bells in front of it are dropped.
    Behind,
}

/// Which way bytes are sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WayOut {
    /// Through the ring.
    Ring,
    /// Through the kernel.
    Kernel,
    /// None yet: what the end that left has not read goes first.
    Blocked,
    /// The other end goes back to the kernel: this one follows first.
    Follow,
}

/// An end has closed: what it does next.
#[derive(Debug)]
pub struct Closing<'a> {
    /// A thread of the other end that sleeps.
    pub wakes: Wake<'a>,
    /// There are bytes that have not been read: the connection is reset, as the kernel does.
    pub is_unread: bool,
    /// The other end leaves or has left: it is to get what it has not read, through the kernel.
    pub has_to_resend: bool,
}

impl<'a> Connection<'a> {
    /// Whether the other end goes back to the kernel, and this one has not begun to follow.
    #[inline]
    pub fn is_left_behind(&self, route: impl FnOnce() -> Route) -> bool {
        self.page.is_leaving() && route() != Route::Leaving
    }

    /// Where the next bytes come from. The lock for receiving is held.
    #[inline]
    pub fn source(&self) -> Source {
        let incoming = self.incoming();
        let switched = incoming.producer.switched_at.load(Ordering::Acquire);
        let taken = incoming.consumer.taken.load(Ordering::Relaxed);
        match switched {
            NEVER => Source::Queue,
            _ if taken >= switched => Source::Ring,
            _ => Source::Kernel(switched.wrapping_sub(taken)),
        }
    }

    /// So many bytes have been taken from the kernel's stream. The lock for receiving is held.
    #[inline]
    pub fn on_taken(&self, bytes: u64) {
        let taken = &self.incoming().consumer.taken;
        taken.store(taken.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Release);
    }

    /// What it means that the ring is empty. `is_read_shut`, `is_peer_gone`: what this end and the kernel have said;
    /// `leaver`: which end goes back, if that is known.
    #[inline]
    pub fn at_empty(
        &self,
        is_read_shut: bool,
        is_peer_gone: impl Fn() -> bool,
        is_at_end: impl FnOnce() -> bool,
        leaver: Option<Leaver>,
    ) -> Empty {
        let incoming = self.incoming();
        let unless_again = |otherwise| if incoming.has_bytes() { Empty::Again } else { otherwise };
        if is_read_shut {
            return if is_at_end() { Empty::AskKernel } else { Empty::Ended };
        }
        if incoming.has_fin() {
            return unless_again(Empty::Ended);
        }
        match leaver {
            Some(Leaver::Left(_)) => Empty::Behind,
            _ if is_peer_gone() => unless_again(Empty::AskKernel),
            Some(Leaver::Neither | Leaver::Leaves(_)) | None => Empty::Nothing,
        }
    }

    /// Which way bytes are sent. The lock for sending is held.
    #[inline]
    pub fn way_out(&self, route: Route) -> WayOut {
        if self.is_left_behind(|| route) {
            return WayOut::Follow;
        }
        match route {
            Route::Leaving if self.left_to_send() > 0 => WayOut::Blocked,
            Route::Leaving => WayOut::Kernel,
            Route::Offered if !self.page.is_accepted() => WayOut::Kernel,
            Route::Offered | Route::Rings | Route::Open | Route::Kernel => WayOut::Ring,
        }
    }

    /// So many bytes have been given to the kernel's stream. The lock for sending is held.
    #[inline]
    pub fn on_given(&self, bytes: u64) {
        self.outgoing().producer.given.fetch_add(bytes, Ordering::AcqRel);
    }

    /// This end closes. `is_abortive`: by a reset.
    pub fn close(&self, is_abortive: bool) -> Closing<'a> {
        let (incoming, outgoing) = (self.incoming(), self.outgoing());
        let is_unread = incoming.has_bytes();
        if !is_unread && !is_abortive {
            outgoing.producer.fin.store(1, Ordering::Release);
        }
        incoming.consumer.sleep.gone.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let wakes = outgoing.wake_at_end();
        let has_to_resend = self.page.is_leaving();
        if !has_to_resend {
            // From here on the peer sends no bells.
            incoming.consumer.sleep.armed.store(0, Ordering::SeqCst);
            outgoing.writer.armed.store(0, Ordering::SeqCst);
        }
        Closing { wakes, is_unread, has_to_resend }
    }

    /// Whether a thread of the other end is about to send a bell: an end that closes gives it a moment, since a bell
    /// that has not been drained turns the FIN into a reset.
    pub fn is_being_notified(&self) -> bool {
        self.incoming().producer.notifying.load(Ordering::SeqCst) != 0
    }

    /// This end sends no more. The lock for sending is held. `reads`: it still reads; else what the peer sends
    /// now the kernel answers with a reset. Returns what wakes a reader of the other end; one that sleeps on the
    /// kernel's stream [`Connection::wake_at_fin`] wakes.
    pub fn shut(&self, reads: bool) -> Wake<'a> {
        let outgoing = self.outgoing();
        outgoing.producer.fin.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let wakes = outgoing.wake_at_end();
        if !reads {
            self.incoming().consumer.sleep.gone.store(1, Ordering::SeqCst);
        }
        wakes
    }

    /// The kernel's stream from the other end has ended. Returns whether that end was killed, closed in no other way, with
    /// bytes that it had not read; if it had read all, it has no part in what is sent from now on.
    pub fn is_killed_with_unread(&self) -> bool {
        if self.incoming().has_fin() || self.page.is_leaving() || !self.page.is_accepted() {
            return false;
        }
        let is_unread = self.outgoing().has_bytes();
        if !is_unread {
            self.incoming().producer.fin.store(1, Ordering::Release);
        }
        is_unread
    }

    /// This end is no more, and can send nothing: its connection has been reset, or its process was killed. `fin`: all that
    /// it had been sent it had read. Returns what wakes a reader of the other end.
    pub fn vanish(&self, fin: bool) -> Wake<'a> {
        let (incoming, outgoing) = (self.incoming(), self.outgoing());
        if fin {
            outgoing.producer.fin.store(1, Ordering::Release);
        }
        incoming.consumer.sleep.gone.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        outgoing.wake_at_end()
    }
}
