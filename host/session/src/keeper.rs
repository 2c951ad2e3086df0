//! The keeper: a thread of an adapter that listens to the peers of all its endpoints.
//!
//! Whatever the program does or does not do meanwhile, it takes in what peers say, answers those that
//! ask, asks those that are silent, and ends the channels of those that have gone. It sleeps in
//! between; while peers are heard of on the data path it only looks at their counters.

use crate::link::Link;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_verbs::locks::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The handle of a keeper. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Keeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    epoll: Epoll,
    bell: EventFd,
    links: Mutex<Links>,
    ended: AtomicBool,
    /// How long a peer may be silent; `None`: for ever.
    patience: Option<Duration>,
}

#[derive(Debug, Default)]
struct Links {
    known: HashMap<u64, Weak<Link>>,
    next: u64,
}

impl Keeper {
    /// Starts a keeper.
    pub(crate) fn start(patience: Option<Duration>) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            epoll: Epoll::new()?,
            bell: EventFd::new()?,
            links: Mutex::default(),
            ended: AtomicBool::new(false),
            patience: patience.map(|patience| patience.max(PATIENCE_MIN)),
        });
        inner.epoll.add(&inner.bell, BELL, Interest::Readable)?;
        let worker = Arc::clone(&inner);
        thread::Builder::new().name("adverb-keeper".to_owned()).spawn(move || worker.run())?;
        Ok(Self { inner })
    }

    /// Looks after a link from now on, until the peer has gone or the link has ended.
    pub(crate) fn keep(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut links = self.inner.links.lock();
        let token = links.next;
        links.next += 1;
        links.known.insert(token, Arc::downgrade(link));
        self.inner.epoll.add(link.stream(), token, Interest::Readable)?;
        drop(links);
        // It sleeps for ever if there was none.
        self.inner.bell.signal()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        let _ = self.inner.bell.signal();
    }
}

impl Inner {
    fn run(&self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut rest = None;
        let mut due: Option<Instant> = None;
        while !self.ended.load(Ordering::Relaxed) {
            if self.epoll.wait(&mut events, rest).is_err() {
                return; // None in practice: the descriptor is ours.
            }
            for event in events.iter() {
                match event.token {
                    BELL => drop(self.bell.drain()),
                    token => self.attend(token),
                }
            }
            // A newcomer's time comes no sooner than that of the next look.
            let now = Instant::now();
            if due.is_none_or(|due| now >= due) {
                due = self.look().map(|soon| now + soon);
            }
            // Rounded up, so that it is time when it wakes.
            rest = due.map(|due| {
                due.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
            });
        }
    }

    fn attend(&self, token: u64) {
        let link = self.links.lock().known.get(&token).and_then(Weak::upgrade);
        // One that has ended is closed, and the kernel has forgotten it.
        let Some(link) = link else {
            self.links.lock().known.remove(&token);
            return;
        };
        if !link.attend() {
            self.forget(token, &link);
        }
    }

    fn forget(&self, token: u64, link: &Link) {
        self.links.lock().known.remove(&token);
        let _ = self.epoll.remove(link.stream());
    }

    /// Looks after all peers, and says how soon to do it again.
    fn look(&self) -> Option<Duration> {
        let patience = self.patience?;
        let known: Vec<_> = {
            let mut links = self.links.lock();
            links.known.retain(|_, link| link.strong_count() > 0);
            links.known.iter().map(|(token, link)| (*token, Weak::clone(link))).collect()
        };
        let mut soon = None;
        for (token, link) in known {
            let Some(link) = link.upgrade() else {
                continue;
            };
            let again = link.look_after(patience);
            if link.departure().is_some() {
                self.forget(token, &link);
                continue;
            }
            soon = Some(soon.map_or(again, |soon: Duration| soon.min(again)));
        }
        // Peers whose times are close to one another are looked at together.
        soon.map(|soon| soon.max(patience / LOOKS_MAX))
    }
}

/// Not the number of a link: they count from 0.
const BELL: u64 = u64::MAX;
const EVENTS_MAX: usize = 64;
/// Looks in the time that a peer may be silent for.
const LOOKS_MAX: u32 = 16;
/// A peer is not given up faster than a busy machine may take to let it answer.
const PATIENCE_MIN: Duration = Duration::from_millis(20);
