//! Bells: what wakes an end that sleeps, sent and taken.
//!
//! An end that sleeps says so in memory first, and on what (`park.rs`).

use crate::page::{Connection, Direction, ON_WORD, Producer, TOGETHER};
use crate::sync::{AtomicU32, Ordering, fence};

/// What has to be done to wake a sleeper.
#[derive(Clone, Copy, Debug)]
pub enum Wake<'a> {
    /// None sleeps.
    Nothing,
    /// It sleeps on this word.
    Word(&'a AtomicU32),
    /// It has the doorbell of this number, which knows whether it sleeps.
    Doorbell(u32),
    /// It sleeps on the kernel's stream: a bell wakes it ([`Connection::bell`]).
    Bell,
}

/// What can be done about bells in the kernel's queue before a sleep on the kernel's stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bells {
    /// There are none.
    None,
    /// So many can be taken out: they are for no other thread, and what they announce has been read.
    Take(u64),
    /// They are left: another thread has to find them.
    Leave,
    /// What is in the queue is data, as far as there is something.
    Data,
}

/// A bell that is about to be sent: the other end waits for it if it leaves or closes.
#[derive(Debug)]
pub struct Bell<'a> {
    producer: &'a Producer,
}

impl Drop for Bell<'_> {
    #[inline]
    fn drop(&mut self) {
        self.producer.notifying.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Bell<'_> {
    /// Counts it, and has it sent: `send` gives a byte to the kernel and says whether that took it.
    #[inline]
    pub fn send(self, send: impl FnOnce() -> bool) {
        self.producer.bells.fetch_add(1, Ordering::SeqCst);
        if !send() {
            self.producer.bells.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Takes the word of a sleeper back, if there is one.
#[inline]
fn take<'a>(armed: &'a AtomicU32) -> Wake<'a> {
    match armed.swap(0, Ordering::AcqRel) {
        0 => Wake::Nothing,
        ON_WORD => Wake::Word(armed),
        _ => Wake::Bell,
    }
}

impl<'a> Connection<'a> {
    /// Bytes have been written to the ring, or the end of them: what wakes the reader.
    #[inline]
    pub fn wake_reader(&self) -> Wake<'a> {
        fence(Ordering::SeqCst);
        let sleep = &self.outgoing().consumer.sleep;
        match sleep.armed.load(Ordering::Relaxed) {
            0 => Wake::Nothing,
            TOGETHER => Wake::Doorbell(sleep.doorbell.load(Ordering::Acquire)),
            _ => take(&sleep.armed),
        }
    }

    /// Bytes have been read: what wakes a writer of the other end that waits for room, if there is enough
    /// of it.
    #[inline]
    pub fn wake_writer(&self, has_room: impl FnOnce() -> bool) -> Wake<'a> {
        fence(Ordering::SeqCst);
        let armed = &self.incoming().writer.armed;
        if armed.load(Ordering::Relaxed) == 0 || !has_room() { Wake::Nothing } else { take(armed) }
    }

    /// The end of what this end sends has been published: what wakes a reader that sleeps on the kernel's stream.
    /// One that sleeps otherwise [`Direction::wake_at_end`] wakes.
    pub fn wake_at_fin(&self) -> Wake<'a> {
        take(&self.outgoing().consumer.sleep.armed)
    }

    /// A bell for the other end: the caller sends it. `None` if that end has closed or leaves: both wait for
    /// threads that are about to send one.
    #[inline]
    pub fn bell(&self) -> Option<Bell<'a>> {
        let Direction { producer, consumer, .. } = self.outgoing();
        producer.notifying.fetch_add(1, Ordering::SeqCst);
        let bell = Bell { producer };
        let is_listening =
            consumer.sleep.gone.load(Ordering::SeqCst) == 0 && !self.page.is_leaving();
        is_listening.then_some(bell)
    }

    /// How many bells can be taken out of the kernel's queue after reading: none if another thread may be
    /// waiting for them. What came before them has been read.
    #[inline]
    pub fn pending_after_read(&self) -> u64 {
        match self.incoming().pending_bells() {
            0 => 0,
            _ if self.waiters.sleepers.load(Ordering::SeqCst) != 0 => 0,
            _ if self.waiters.watchers.load(Ordering::SeqCst) != 0 => 0,
            pending => pending,
        }
    }

    /// Whether bells may be taken out before this thread sleeps; `Take` is for [`Connection::bells_to_take`] to
    /// say, with the lock for receiving held. A bell may be for a thread that waits for room: as long as there
    /// is another than the caller, all are left.
    #[inline]
    pub fn looks_for_bells(&self, is_writer: bool) -> Option<Bells> {
        let incoming = self.incoming();
        if incoming.is_past() && incoming.pending_bells() == 0 {
            return Some(Bells::None);
        }
        let others = self.waiters.writers.load(Ordering::SeqCst) > u32::from(is_writer);
        others.then_some(Bells::Leave)
    }

    /// Bells whose bytes have been read: other threads that sleep on this connection must find the
    /// rest. So they are counted first, and the ring looked at after that. The lock for receiving is held.
    pub fn bells_to_take(&self) -> Bells {
        let incoming = self.incoming();
        if !incoming.is_past() {
            return Bells::Data;
        }
        // Between the count of bells and the look at the ring lies all that makes this right.
        let pending = incoming.pending_bells();
        if incoming.has_bytes() { Bells::Leave } else { Bells::Take(pending) }
    }
}

impl Direction {
    /// This direction has come to an end: what wakes a thread that sleeps to read there, and not on the kernel's
    /// stream.
    pub fn wake_at_end(&self) -> Wake<'_> {
        let sleep = &self.consumer.sleep;
        let (o, r) = (Ordering::SeqCst, Ordering::Relaxed);
        match sleep.armed.compare_exchange(ON_WORD, 0, o, r) {
            Ok(_) => Wake::Word(&sleep.armed),
            Err(TOGETHER) => Wake::Doorbell(sleep.doorbell.load(Ordering::Acquire)),
            Err(_) => Wake::Nothing,
        }
    }
}
