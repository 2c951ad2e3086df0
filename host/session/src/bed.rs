//! Where threads and tasks sleep until completion queues have something.
//!
//! One of the sleepers watches the descriptors and the others wait for it. A sleeper that wakes may take
//! completions that another one waits for, so all are woken and look for themselves.
//!
//! The way to sleep without missing anything: ask for the bed's [`Bed::epoch`], look for what is waited
//! for, arm the completion queue, take what it has, look again, and only then [`Bed::sleep`] with that
//! epoch. A wake-up that another sleeper has taken in between has changed the epoch.

#[cfg(feature = "tokio")]
use crate::source::Source;
use adverb_sys::eventfd::EventFd;
use adverb_sys::poll;
use adverb_verbs::CompChannel;
use adverb_verbs::locks::Mutex;
#[cfg(feature = "tokio")]
use std::collections::HashMap;
use std::io;
#[cfg(feature = "tokio")]
use std::sync::Weak;
#[cfg(feature = "tokio")]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, MutexGuard, OnceLock, PoisonError};
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
    /// Threads have taken events since the task has looked.
    #[cfg(feature = "tokio")]
    taken: AtomicBool,
    /// Those whose completions the bed's task takes, by the numbers that their queues carry; `None`:
    /// there is no such task.
    #[cfg(feature = "tokio")]
    pub(crate) served: Mutex<Option<HashMap<u64, Weak<Source>>>>,
}

#[derive(Debug, Default)]
struct State {
    /// One of the sleepers watches the descriptors.
    watched: bool,
    sleepers: u32,
    wakers: Vec<Waker>,
}

/// What wakes.
#[derive(Debug)]
enum Alarm {
    /// Nothing: those that poll without rest do not sleep.
    Nothing,
    /// A completion channel, and a bell if others can take its events too.
    Channel { channel: CompChannel, bell: OnceLock<EventFd> },
}

impl Bed {
    fn with(alarm: Alarm) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            state: Mutex::default(),
            woken: Condvar::new(),
            alarm,
            #[cfg(feature = "tokio")]
            taken: AtomicBool::new(false),
            #[cfg(feature = "tokio")]
            served: Mutex::default(),
        }
    }

    /// For those that poll without rest.
    pub(crate) fn of_nails() -> Self {
        Self::with(Alarm::Nothing)
    }

    /// One that a completion channel wakes from.
    pub(crate) fn on_channel(channel: CompChannel) -> Self {
        Self::with(Alarm::Channel { channel, bell: OnceLock::new() })
    }

    /// One in which all of an adapter sleep: its completion channel has many queues.
    pub(crate) fn of_many(channel: CompChannel) -> io::Result<Self> {
        let bed = Self::on_channel(channel);
        bed.share()?;
        Ok(bed)
    }

    /// The completion channel, if one wakes.
    pub(crate) fn channel(&self) -> Option<&CompChannel> {
        match &self.alarm {
            Alarm::Nothing => None,
            Alarm::Channel { channel, .. } => Some(channel),
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
        let most = most.min(SLEEP_MAX);
        let mut state = self.state.lock();
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
        #[cfg(feature = "tokio")]
        self.taken.store(true, Ordering::Release);
        let mut state = self.state.lock();
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
        }
        Ok(())
    }

    /// Wakes all sleepers that can be woken.
    pub(crate) fn kick(&self) {
        let state = self.state.lock();
        let watched = state.watched;
        self.wake(state);
        let bell = match &self.alarm {
            Alarm::Nothing => None,
            Alarm::Channel { bell, .. } => bell.get(),
        };
        if let Some(bell) = bell.filter(|_| watched) {
            let _ = bell.signal();
        }
    }

    /// Others take events of the completion channel too, and say so with [`Bed::kick`].
    pub(crate) fn share(&self) -> io::Result<()> {
        if let Alarm::Channel { bell, .. } = &self.alarm
            && bell.get().is_none()
        {
            let _ = bell.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Whether threads may have taken events since the last call.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_taken(&self) -> bool {
        self.taken.swap(false, Ordering::AcqRel)
    }

    /// Has `waker` woken once, at the next wake-up.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, waker: &Waker) {
        let mut state = self.state.lock();
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
}

/// The longest sleep at once; a sleep without a limit looks again after it.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// How long a sleeper that cannot be woken sleeps.
const NAP: Duration = Duration::from_millis(1);
