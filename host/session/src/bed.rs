//! Where threads and tasks sleep until completion queues have something.
//!
//! Of those that sleep in one bed, one watches the descriptors and the others wait for it: whoever
//! wakes may take completions that somebody else waits for, so all are woken and look for themselves.
//!
//! The way to sleep without missing anything: ask for the bed's [`Bed::epoch`], look for what is waited
//! for, arm the completion queue, take what it has, look again, and only then [`Bed::sleep`] with that
//! epoch. A wake-up that somebody else has taken in between has changed the epoch.

use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_sys::poll;
use adverb_verbs::CompChannel;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// A place to sleep in.
#[derive(Debug)]
pub(crate) struct Bed {
    epoch: AtomicU64,
    state: Mutex<State>,
    woken: Condvar,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody watches the descriptors.
    watched: bool,
    sleepers: u32,
    wakers: Vec<Waker>,
}

/// What wakes.
#[derive(Debug)]
enum Alarm {
    /// Nothing: those that poll without rest do not sleep.
    Nothing,
    /// One completion channel, and a bell once others take its events too.
    Channel { channel: CompChannel, bell: OnceLock<EventFd> },
    /// Many of them.
    Set(Set),
}

#[derive(Debug)]
struct Set {
    epoll: Epoll,
    bell: EventFd,
    channels: Mutex<Channels>,
    /// Used by the one who watches.
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Channels {
    known: HashMap<u64, CompChannel>,
    next: u64,
}

impl Bed {
    fn with(alarm: Alarm) -> Self {
        Self { epoch: AtomicU64::new(0), state: Mutex::default(), woken: Condvar::new(), alarm }
    }

    /// For those that poll without rest.
    pub(crate) fn of_nails() -> Self {
        Self::with(Alarm::Nothing)
    }

    /// One that a completion channel wakes from.
    pub(crate) fn on_channel(channel: CompChannel) -> Self {
        Self::with(Alarm::Channel { channel, bell: OnceLock::new() })
    }

    /// One that many completion channels wake from.
    pub(crate) fn on_set() -> io::Result<Self> {
        let (epoll, bell) = (Epoll::new()?, EventFd::new()?);
        epoll.add(&bell, BELL, Interest::Readable)?;
        let events = Mutex::new(Events::with_capacity(EVENTS_MAX));
        Ok(Self::with(Alarm::Set(Set { epoll, bell, channels: Mutex::default(), events })))
    }

    /// Lets another completion channel wake, if there can be several. Returns its number.
    pub(crate) fn add(&self, channel: &CompChannel) -> io::Result<u64> {
        let Alarm::Set(set) = &self.alarm else {
            return Ok(0);
        };
        let mut channels = set.channels();
        let number = channels.next;
        channels.next += 1;
        channels.known.insert(number, channel.clone());
        set.epoll.add(channel.poll_fd()?, number, Interest::Readable)?;
        Ok(number)
    }

    /// The completion channel with this number wakes no more.
    pub(crate) fn remove(&self, number: u64) {
        if let Alarm::Set(set) = &self.alarm
            && let Some(channel) = set.channels().known.remove(&number)
            && let Ok(fd) = channel.poll_fd()
        {
            let _ = set.epoll.remove(fd);
        }
    }

    /// Changes with every wake-up.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Sleeps until something may have happened since `epoch`, at most for `most`.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)` and `epoll_wait(2)`.
    pub(crate) fn sleep(&self, epoch: u64, most: Duration) -> io::Result<()> {
        let mut state = self.lock();
        if self.epoch() != epoch {
            return Ok(());
        }
        if state.watched {
            state.sleepers += 1;
            let waited = self.woken.wait_timeout_while(state, most, |_| self.epoch() == epoch);
            waited.unwrap_or_else(PoisonError::into_inner).0.sleepers -= 1;
            return Ok(());
        }
        state.watched = true;
        drop(state);
        let watched = self.watch(most);
        let mut state = self.lock();
        state.watched = false;
        self.wake(state);
        watched
    }

    fn watch(&self, most: Duration) -> io::Result<()> {
        match &self.alarm {
            Alarm::Nothing => thread::sleep(most.min(NAP)),
            Alarm::Channel { channel, bell } => match bell.get() {
                None => drop(channel.get_event_timeout(most)?),
                Some(bell) => {
                    let fd = channel.poll_fd()?;
                    poll::readable(bell, std::iter::once(fd), Some(most))?;
                    while channel.try_get_event().is_some() {}
                    bell.drain()?;
                }
            },
            Alarm::Set(set) => set.watch(most)?,
        }
        Ok(())
    }

    /// Wakes everybody who can be woken.
    pub(crate) fn kick(&self) {
        let state = self.lock();
        let watched = state.watched;
        self.wake(state);
        let bell = match &self.alarm {
            Alarm::Nothing => None,
            Alarm::Channel { bell, .. } => bell.get(),
            Alarm::Set(set) => Some(&set.bell),
        };
        if let Some(bell) = bell.filter(|_| watched) {
            let _ = bell.signal();
        }
    }

    /// Somebody else takes events of the completion channel too, and says so with [`Bed::kick`].
    #[cfg(feature = "tokio")]
    pub(crate) fn share(&self) -> io::Result<()> {
        if let Alarm::Channel { bell, .. } = &self.alarm
            && bell.get().is_none()
        {
            let _ = bell.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Has `waker` woken once, at the next wake-up.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let sleepers = state.sleepers;
        for waker in state.wakers.drain(..) {
            waker.wake();
        }
        drop(state);
        if sleepers > 0 {
            self.woken.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Set {
    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, most: Duration) -> io::Result<()> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        self.epoll.wait(&mut events, Some(most))?;
        for event in events.iter() {
            if event.token == BELL {
                self.bell.drain()?;
                continue;
            }
            let channel = self.channels().known.get(&event.token).cloned();
            // Those who sleep have armed their queues, and look at them when they are awake.
            while channel.as_ref().and_then(CompChannel::try_get_event).is_some() {}
        }
        Ok(())
    }
}

/// Not the number of a channel: they count from 0.
const BELL: u64 = u64::MAX;
const EVENTS_MAX: usize = 64;
/// How long who cannot be woken sleeps.
const NAP: Duration = Duration::from_millis(1);
