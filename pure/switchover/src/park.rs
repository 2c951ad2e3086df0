//! Sleepers: what there is to see in memory, and how an end says that it sleeps, and on what.
//!
//! An end that sleeps writes its word, and then looks at what it waits for; an end that has done something looks at that
//! word afterwards (`bell.rs`). A full fence lies between on both sides, so that one of the two sees the other.

use crate::bell::Wake;
use crate::page::{ALONE, Connection, Direction, ON_WORD, Route, TOGETHER};
use crate::sync::{Ordering, fence};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// Bytes, or the end.
    Read,
    /// Room for a byte.
    Write,
    /// So much room that `poll` calls it writable.
    Room,
}

/// An end has said that it sleeps on the kernel's stream.
#[derive(Debug)]
pub struct Armed<'a> {
    /// A thread that had said before that it sleeps on something else, and has to look for itself.
    pub wakes: Wake<'a>,
    /// There is nothing to look at yet: it may sleep.
    pub sleeps: bool,
}

/// Whether an end may sleep on the ring's own word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnWord {
    /// No: something else has to be looked at, or another thread sleeps here.
    Refused,
    /// There is something to look at by now.
    Look,
    /// It may, as long as the word is [`ON_WORD`].
    Sleep,
}

impl<'a> Connection<'a> {
    /// Whether there is anything new to look at, going by memory alone. `has_room`: whether there is as much room in
    /// the ring as a writer wants.
    #[inline]
    pub fn is_worth_a_look(
        &self,
        want: Want,
        route: impl FnOnce() -> Route,
        has_room: impl FnOnce() -> bool,
    ) -> bool {
        if self.page.is_leaving() {
            return true;
        }
        match want {
            Want::Read => {
                let incoming = self.incoming();
                let is_past = incoming.is_past();
                incoming.has_bytes()
                    || incoming.producer.fin.load(Ordering::Relaxed) != 0
                    || !is_past
            }
            Want::Write | Want::Room => {
                has_room()
                    || self.outgoing().consumer.sleep.gone.load(Ordering::Relaxed) != 0
                    || route() != Route::Rings
            }
        }
    }

    /// How much both ends have read together, and one more.
    pub fn progress(&self) -> u64 {
        let tail = |of: &Direction| of.consumer.tail.load(Ordering::Relaxed);
        tail(self.incoming()).wrapping_add(tail(self.outgoing())).wrapping_add(1)
    }

    /// Says once more that this end has waited for room for a while, without any progress since this. Returns how often the
    /// other end has said the same of itself, at least once; `None` if it has not.
    pub fn waits_in_vain(&self, progress: u64) -> Option<u32> {
        let (own, others) = (&self.outgoing().writer, &self.incoming().writer);
        own.still_at.store(progress, Ordering::Relaxed);
        own.still_count.fetch_add(1, Ordering::Relaxed);
        // One of two ends that say so at once sees the other.
        fence(Ordering::SeqCst);
        let does = others.still_at.load(Ordering::Relaxed) == progress;
        does.then(|| others.still_count.load(Ordering::Relaxed))
    }

    /// Says that this end sleeps, on the kernel's stream, until it can read, or has room to write. Bells are taken out of
    /// the kernel's queue before that and not behind it: one that has come since may be for this very sleeper.
    #[inline]
    pub fn arm(
        &self,
        want: Want,
        route: impl Fn() -> Route,
        has_room: impl FnOnce() -> bool,
    ) -> Armed<'a> {
        let armed = match want {
            Want::Read => &self.incoming().consumer.sleep.armed,
            Want::Write | Want::Room => &self.outgoing().writer.armed,
        };
        let mut wakes = Wake::Nothing;
        if armed.load(Ordering::Relaxed) != ALONE {
            // From now on bells are in the kernel's stream, for a thread that sleeps on something else as well.
            wakes = match armed.swap(ALONE, Ordering::AcqRel) {
                ON_WORD => Wake::Word(armed),
                TOGETHER if want == Want::Read => Wake::Doorbell(self.incoming().doorbell()),
                _ => Wake::Nothing,
            };
        }
        fence(Ordering::SeqCst);
        let sleeps = self.may_sleep(want, route, has_room);
        Armed { wakes, sleeps }
    }

    /// Whether an end that has armed may sleep: there is nothing to look at yet.
    #[inline]
    fn may_sleep(
        &self,
        want: Want,
        route: impl Fn() -> Route,
        has_room: impl FnOnce() -> bool,
    ) -> bool {
        // As long as the kernel's stream still matters, it is what the sleeper sleeps on.
        if self.page.is_leaving() && route() != Route::Leaving {
            false
        } else if want == Want::Read {
            let incoming = self.incoming();
            !incoming.has_bytes() && incoming.producer.fin.load(Ordering::Relaxed) == 0
        } else {
            !self.is_worth_a_look(want, &route, has_room) || route() != Route::Rings
        }
    }

    /// Says that this end sleeps on the ring's own word until there is something to read: to wake a sleeper there
    /// takes less than to send a bell. Only the peer wakes it, and not if it is killed: the caller sleeps for a moment.
    /// `is_shut`: whether another thread of this end has shut it.
    pub fn arm_on_word(&self, route: Route, is_shut: impl Fn() -> bool) -> OnWord {
        let is_worth_a_look = || self.is_worth_a_look(Want::Read, || route, || false);
        let is_settled = route == Route::Rings
            && self.waiters.watchers.load(Ordering::SeqCst) == 0
            && self.outgoing().consumer.sleep.gone.load(Ordering::Relaxed) == 0
            && !is_worth_a_look();
        if !is_settled {
            return OnWord::Refused;
        }
        let armed = &self.incoming().consumer.sleep.armed;
        let (o, r) = (Ordering::SeqCst, Ordering::Relaxed);
        let is_only_one = || self.waiters.sleepers.load(Ordering::SeqCst) <= 1;
        let is_ours = match armed.load(Ordering::Relaxed) {
            // It was armed by a poll that is over.
            TOGETHER => is_only_one() && armed.compare_exchange(TOGETHER, ON_WORD, o, r).is_ok(),
            _ => matches!(armed.compare_exchange(0, ON_WORD, o, r), Ok(_) | Err(ON_WORD)),
        };
        if !is_ours {
            return OnWord::Refused;
        }
        fence(Ordering::SeqCst);
        if is_worth_a_look() || is_shut() { OnWord::Look } else { OnWord::Sleep }
    }

    /// Says that the sleeper with that doorbell looks here when a bell has come. Returns false if another
    /// sleeps on this connection as well, or may. A full fence has to follow.
    /// `polls`: the caller is a sleeper on this connection, rather than the instance that watches it.
    pub fn arm_together(&self, number: u32, polls: bool) -> bool {
        let sleep = &self.incoming().consumer.sleep;
        let is_alone = self.waiters.watchers.load(Ordering::SeqCst) > u32::from(!polls)
            || self.waiters.sleepers.load(Ordering::SeqCst) > u32::from(polls)
            || sleep.armed.load(Ordering::Relaxed) == ALONE;
        if is_alone || number == 0 {
            return false;
        }
        if sleep.doorbell.load(Ordering::Relaxed) != number {
            sleep.doorbell.store(number, Ordering::Release);
        }
        let (o, r) = (Ordering::AcqRel, Ordering::Relaxed);
        match sleep.armed.compare_exchange(0, TOGETHER, o, r) {
            Ok(_) => true,
            Err(armed) => armed == TOGETHER,
        }
    }

    /// The sleeper with the doorbell looks here no longer: the next bell is for this connection alone.
    pub fn part_together(&self) {
        let armed = &self.incoming().consumer.sleep.armed;
        let _ = armed.compare_exchange(TOGETHER, ALONE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// A sleeper has woken up: as long as it is awake, it need not be notified.
    #[inline]
    pub fn disarm(&self) {
        let armed = &self.incoming().consumer.sleep.armed;
        if armed.load(Ordering::Relaxed) == ALONE
            && self.waiters.sleepers.load(Ordering::SeqCst) == 0
            && self.waiters.watchers.load(Ordering::SeqCst) <= 1
        {
            armed.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the kernel's own events still speak for the bytes of this connection, read and written: as long as some
    /// are on their way there, or may be.
    #[inline]
    pub fn kernel_speaks(&self, route: Route) -> (bool, bool) {
        if route == Route::Leaving {
            return (true, true);
        }
        (!self.incoming().is_past(), !self.page.is_accepted())
    }

    /// Whether nothing can happen to this connection, short of the peer's being killed, that is not seen in
    /// memory: a reader need not sleep on the kernel's stream.
    pub fn is_in_memory(&self, route: Route) -> bool {
        route == Route::Rings
            && !self.page.is_leaving()
            && self.kernel_speaks(route) == (false, false)
            && self.outgoing().consumer.sleep.gone.load(Ordering::Relaxed) == 0
    }
}

impl Direction {
    /// The doorbell of the sleeper that reads in this direction.
    #[inline]
    pub fn doorbell(&self) -> u32 {
        self.consumer.sleep.doorbell.load(Ordering::Acquire)
    }
}
