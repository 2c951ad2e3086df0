//! Notification of completions: the one place where publishing, polling, arming and
//! sleeping meet.
//!
//! A [`Queue`] holds items under its lock, and with them whether its owner wants to be woken for
//! the next one; a [`Mailbox`] holds the wake-ups, and with them whether a thread sleeps. No wake-up
//! is lost, because each question is asked and each answer changed under the lock that also guards
//! what it is about: an item published after arming wakes, one published before it is there to be
//! polled after arming; a sleeper that has registered is rung for, one that has not sees the mail.
//!
//! The primitives come from the module's surroundings (`super::sync`), so that a test can put in
//! those of a model checker and try every interleaving: `tests/notify_model.rs`.

use super::sync::{AtomicBool, AtomicUsize, FutexMutex, Mutex, Ordering};
use std::collections::VecDeque;

/// For which items the owner of a queue wants to be woken. Ordered: a later one includes an
/// earlier one.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Arm {
    /// For none.
    #[default]
    Off,
    /// For the next one that its sender marked as urgent, or that reports an error.
    Solicited,
    /// For the next one.
    Any,
}

/// Effects of publishing an item.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Published {
    /// The item is in the queue; otherwise there was no room.
    pub(crate) stored: bool,
    /// It is the first one for which there was no room.
    pub(crate) first_overrun: bool,
    /// The owner wants to be woken. The queue is not armed any more.
    pub(crate) wake: bool,
}

/// A bounded queue whose owner can ask to be woken.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// Taken for each completion: its release is a plain store, and asks nothing about panics.
    state: FutexMutex<State<T>>,
    /// Length of the queue, so that an empty one is seen without its lock.
    len: AtomicUsize,
    overrun: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    arm: Arm,
}

impl<T: Copy> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let items = VecDeque::with_capacity(capacity);
        Self {
            state: FutexMutex::new(State { items, capacity, arm: Arm::Off }),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
        }
    }

    /// Adds an item.
    #[inline(always)]
    pub(crate) fn publish(&self, item: T, urgent: bool) -> Published {
        let mut state = self.state.lock();
        let stored = state.items.len() < state.capacity;
        let mut first_overrun = false;
        if stored {
            state.items.push_back(item);
            self.len.store(state.items.len(), Ordering::Release);
        } else {
            first_overrun = !self.overrun.swap(true, Ordering::AcqRel);
        }
        let wake = match state.arm {
            Arm::Off => false,
            Arm::Solicited => urgent || !stored,
            Arm::Any => true,
        };
        if wake {
            state.arm = Arm::Off;
        }
        Published { stored, first_overrun, wake }
    }

    /// Takes items, oldest first; says how many.
    #[inline(always)]
    pub(crate) fn take(&self, out: &mut [T]) -> usize {
        match self.len.load(Ordering::Acquire) {
            0 => 0,
            _ => self.take_some(out),
        }
    }

    /// It has no items, as far as can be known without its lock.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    fn take_some(&self, out: &mut [T]) -> usize {
        let mut state = self.state.lock();
        let mut taken = 0;
        for place in out {
            let Some(item) = state.items.pop_front() else {
                break;
            };
            *place = item;
            taken += 1;
        }
        self.len.store(state.items.len(), Ordering::Release);
        taken
    }

    /// Keeps the items that pass.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut state = self.state.lock();
        state.items.retain(keep);
        self.len.store(state.items.len(), Ordering::Release);
    }

    /// How many items pass.
    pub(crate) fn count(&self, passes: impl Fn(&T) -> bool) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.state.lock().items.iter().filter(|item| passes(item)).count(),
        }
    }

    /// Asks to be woken for the next item; says whether nothing had been asked before. Asking for
    /// less than before changes nothing. IBTA Vol. 1 §11.4.2.2.
    pub(crate) fn arm(&self, arm: Arm) -> bool {
        let mut state = self.state.lock();
        let first = state.arm == Arm::Off;
        state.arm = state.arm.max(arm);
        first && arm != Arm::Off
    }

    /// Asks for nothing any more; says whether something had been asked.
    pub(crate) fn disarm(&self) -> bool {
        std::mem::take(&mut self.state.lock().arm) != Arm::Off
    }

    /// Some item found no room.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Makes room for `capacity` items.
    ///
    /// # Errors
    ///
    /// As many items as there are now do not fit; nothing has changed.
    pub(crate) fn resize(&self, capacity: usize) -> Result<(), usize> {
        let mut state = self.state.lock();
        let used = state.items.len();
        if used > capacity {
            return Err(used);
        }
        state.items.reserve(capacity - used);
        state.capacity = capacity;
        Ok(())
    }
}

/// Wake-ups that wait to be taken, and their waiters.
#[derive(Debug)]
pub(crate) struct Mailbox<E> {
    state: Mutex<Mail<E>>,
}

#[derive(Debug)]
struct Mail<E> {
    events: VecDeque<E>,
    /// Threads that sleep, or are about to, until the doorbell rings.
    sleepers: usize,
    /// The doorbell is watched from outside: it rings for every event that no thread looks for.
    watched: bool,
    /// Threads that are about to look: for what comes meanwhile the doorbell need not ring.
    lookers: usize,
    /// The doorbell has been rung, or is about to be, and not been silenced since.
    rung: bool,
    /// Threads that are about to ring.
    ringers: usize,
    /// The doorbell was silenced while a thread was about to ring.
    hasty: bool,
}

impl<E> Mail<E> {
    /// Silences the doorbell if there is no mail left; again, if a ring may have come too late.
    fn quiet(&mut self, silence: impl FnOnce()) {
        if (self.rung || self.hasty) && self.events.is_empty() {
            self.rung = false;
            self.hasty = self.ringers > 0;
            silence();
        }
    }
}

impl<E> Mailbox<E> {
    pub(crate) fn new(capacity: usize) -> Self {
        let events = VecDeque::with_capacity(capacity);
        let (sleepers, lookers, ringers) = (0, 0, 0);
        let (watched, rung, hasty) = (false, false, false);
        let mail = Mail { events, sleepers, watched, lookers, rung, ringers, hasty };
        Self { state: Mutex::new(mail) }
    }

    /// Adds mail by way of `add`; true if the doorbell has to be rung. Then, and as soon as no lock is
    /// held that the woken thread will want, ring it, and call [`Mailbox::rang`].
    #[must_use]
    pub(crate) fn post(&self, add: impl FnOnce(&mut VecDeque<E>)) -> bool {
        let mut mail = self.state.lock();
        add(&mut mail.events);
        // Once is enough for sleepers, for the doorbell rings on until the last event is taken; watchers
        // from outside may count rings, but a looker takes all there is, or rings for it.
        let watched = mail.watched && mail.lookers == 0;
        let ring = !mail.events.is_empty() && (watched || (mail.sleepers > 0 && !mail.rung));
        if ring {
            mail.rung = true;
            mail.ringers += 1;
        }
        ring
    }

    /// The doorbell was rung as [`Mailbox::post`] has asked. Silences it if all mail was taken before, and
    /// the ring came too late.
    pub(crate) fn rang(&self, silence: impl FnOnce()) {
        let mut mail = self.state.lock();
        mail.ringers -= 1;
        if mail.ringers == 0 && std::mem::take(&mut mail.hasty) && mail.events.is_empty() {
            mail.rung = false;
            silence();
        }
    }

    /// Takes mail by way of `take`, and silences the doorbell if that was all.
    pub(crate) fn take<R>(
        &self,
        take: impl FnOnce(&mut VecDeque<E>) -> R,
        silence: impl FnOnce(),
    ) -> R {
        let mut mail = self.state.lock();
        let result = take(&mut mail.events);
        mail.quiet(silence);
        result
    }

    /// Registers a looker; [`Mailbox::end_look`] has to follow.
    pub(crate) fn begin_look(&self) {
        self.state.lock().lookers += 1;
    }

    /// Takes mail as [`Mailbox::take`] does. True if the doorbell has to be rung for what is left, as
    /// after [`Mailbox::post`], because no thread has and no other one looks.
    #[must_use]
    pub(crate) fn end_look<R>(
        &self,
        take: impl FnOnce(&mut VecDeque<E>) -> R,
        silence: impl FnOnce(),
    ) -> (R, bool) {
        let mut mail = self.state.lock();
        mail.lookers -= 1;
        let result = take(&mut mail.events);
        mail.quiet(silence);
        let ring = !mail.events.is_empty() && mail.watched && mail.lookers == 0 && !mail.rung;
        if ring {
            mail.rung = true;
            mail.ringers += 1;
        }
        (result, ring)
    }

    /// Registers a sleeper; false if there is mail, so that there is nothing to sleep for. After
    /// true, [`Mailbox::end_sleep`] has to follow.
    pub(crate) fn begin_sleep(&self) -> bool {
        let mut mail = self.state.lock();
        if !mail.events.is_empty() {
            return false;
        }
        mail.sleepers += 1;
        true
    }

    pub(crate) fn end_sleep(&self) {
        self.state.lock().sleepers -= 1;
    }

    /// From now on the doorbell is watched from outside; says whether it was not before.
    pub(crate) fn watch(&self, ring: impl FnOnce()) -> bool {
        let mut mail = self.state.lock();
        let first = !mail.watched;
        mail.watched = true;
        if first && !mail.events.is_empty() && !mail.rung {
            mail.rung = true;
            ring();
        }
        first
    }
}
