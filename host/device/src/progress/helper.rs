//! The helper: a thread that drives the port when the program does not.
//!
//! While the program polls, the helper only looks, once a [`TICK`] or [`STEADY_TICK`], whether it
//! still does: no packet wakes it, and the sockets are not even in its set, which would cost each
//! packet a call-back. When the program has been silent for a tick, or somebody who cannot drive while he
//! sleeps has asked for an event, the helper takes over: it drives as long as there is something to
//! do, and [`LINGER`] longer, then sleeps until a packet or a deadline comes. When the program drives
//! again and nobody needs more than that, the helper goes back to looking. Who needs it, and who
//! waits for the sockets in its place, is written down in `standby.rs`.

use crate::objects::notice::Hush;
use crate::objects::standby::Standby;
use crate::progress::Port;
use crate::sync::Mutex;
use adverb_engine::Time;
use adverb_sys::clock;
use adverb_sys::epoll::{Epoll, Events, Interest};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long the program may be silent before the helper takes over.
const TICK: Duration = Duration::from_millis(2);
/// The same, for a program that has driven for [`STEADY_TICKS`] without a pause: each look takes its
/// processor away for some 15 µs.
const STEADY_TICK: Duration = Duration::from_millis(8);
const STEADY_TICKS: u32 = 4;
/// How long the helper keeps looking after the last packet before it sleeps.
const LINGER: Duration = Duration::from_micros(50);
/// How often to try again to emit what a neighbour who is stopped leaves no room for.
const STUCK_TICK: Duration = Duration::from_millis(1);
/// What the helper's own wake-up is called in its set.
const WAKE: u64 = 0;
const SOCKET: u64 = 1;
/// The helper is awake, or looks again within a tick: nobody needs to wake it.
const AWAKE: u64 = 0;

/// What the helper and those who wake it share.
#[derive(Debug)]
struct Shared {
    epoll: Epoll,
    standby: Arc<Standby>,
    /// What wakes the helper while it stands in for the program.
    sockets: Mutex<Vec<OwnedFd>>,
    /// Until when the helper sleeps, in nanoseconds; [`AWAKE`] if it does not.
    asleep_until: AtomicU64,
    stop: AtomicBool,
}

/// The thread, seen from the port.
#[derive(Debug)]
pub(crate) struct Helper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Helper {
    pub(crate) fn new(standby: Arc<Standby>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(standby.wake(), WAKE, Interest::Readable)?;
        let asleep_until = AtomicU64::new(AWAKE);
        let shared = Shared {
            epoll,
            standby,
            sockets: Mutex::new(Vec::new()),
            asleep_until,
            stop: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Wakes the helper for what arrives at `socket`, from its next sleep on.
    pub(crate) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        self.shared.standby.watch(&socket)?;
        let socket = socket.as_fd().try_clone_to_owned()?;
        lock(&self.shared.sockets).push(socket);
        self.shared.standby.wake().signal()
    }

    pub(crate) fn start(&self, port: &Arc<Port>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let weak = Arc::downgrade(port);
        let run = move || shared.run(&weak);
        let thread = thread::Builder::new().name("adverb-helper".to_owned()).spawn(run)?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Closes what it holds of the sockets; it must have been stopped.
    pub(crate) fn forget_sockets(&self) {
        lock(&self.shared.sockets).clear();
    }

    /// Something is due at `at`: the helper must not sleep longer.
    #[inline]
    pub(crate) fn notice(&self, at: Time) {
        if at.nanos() < self.shared.asleep_until.load(Ordering::SeqCst) {
            // Once is enough: on a busy machine it may take long until it wakes.
            self.shared.asleep_until.store(AWAKE, Ordering::SeqCst);
            let _ = self.shared.standby.wake().signal();
        }
    }

    /// Ends the thread, and waits for it unless it is the caller.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.standby.wake().signal();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, port: &Weak<Port>) {
        crate::link::udp::burst::prepare();
        Hush::prepare();
        let mut events = Events::with_capacity(16);
        let mut drives = 0;
        let mut steady = 0_u32;
        while !self.stop.load(Ordering::Acquire) {
            let Some(now) = port.upgrade().map(|port| port.drives()) else {
                return;
            };
            if now != drives && self.standby.begin_looking() {
                drives = now;
                steady = steady.saturating_add(1);
                let tick = if steady > STEADY_TICKS { STEADY_TICK } else { TICK };
                let _ = self.epoll.wait(&mut events, Some(tick));
                self.standby.end_looking();
                self.silence(&events);
                if let Some(port) = port.upgrade() {
                    port.mend_registry();
                    port.mend_steering();
                    port.show_counters();
                }
            } else {
                steady = 0;
                self.take_over(port, drives, &mut events);
            }
        }
    }

    /// Drives until the program does so again.
    fn take_over(&self, port: &Weak<Port>, drives: u64, events: &mut Events) {
        self.stand_in(port, drives, events);
        for socket in lock(&self.sockets).iter() {
            let _ = self.epoll.remove(socket); // Those not in the set are out of it already.
        }
    }

    fn stand_in(&self, port: &Weak<Port>, drives: u64, events: &mut Events) {
        let mut last_busy = clock::now_ns();
        let mut needed = 0;
        while !self.stop.load(Ordering::Acquire) {
            let Some(port) = port.upgrade() else {
                return;
            };
            port.show_counters();
            let now = clock::now_ns();
            if self.standby.is_engaged() {
                needed = now;
            } else if port.drives() != drives && now.saturating_sub(needed) > nanos(TICK) {
                return; // Whoever needed us has had time to need us again.
            }
            if port.help() {
                last_busy = now;
            } else if now.saturating_sub(last_busy) > nanos(LINGER) {
                port.mend_registry();
                port.mend_steering();
                self.sleep(port, events);
                last_busy = clock::now_ns();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Sleeps until a packet, a deadline, or somebody's call.
    fn sleep(&self, port: Arc<Port>, events: &mut Events) {
        // Announce the sleep first, look for reasons not to sleep second: whoever makes a reason
        // does it the other way round, so that one of the two sees the other.
        self.asleep_until.store(u64::MAX, Ordering::SeqCst);
        let deadline = port.next_deadline();
        let blind = self.standby.begin_blindness();
        self.standby.bell().announce();
        let stuck = port.has_unfinished();
        let waiting = port.has_deferred() || port.has_record();
        drop(port); // The program may close the port while we sleep.
        for socket in lock(&self.sockets).iter() {
            let _ = match blind {
                true => self.epoll.remove(socket),
                false => self.epoll.add(socket, SOCKET, Interest::Readable), // Again is no harm.
            };
        }
        let timeout = match deadline {
            _ if waiting => Some(Duration::ZERO),
            // What could not be emitted in all that time will not be in no time.
            _ if stuck => Some(STUCK_TICK),
            Some(at) => Some(Duration::from_nanos(at.nanos().saturating_sub(clock::now_ns()))),
            None => None,
        };
        if let Some(at) = deadline {
            self.asleep_until.store(at.nanos(), Ordering::SeqCst);
        }
        let _ = self.epoll.wait(events, timeout);
        self.asleep_until.store(AWAKE, Ordering::SeqCst);
        self.standby.bell().retire();
        self.standby.end_blindness();
        self.silence(events);
    }

    fn silence(&self, events: &Events) {
        if events.iter().any(|event| event.token == WAKE) {
            let _ = self.standby.wake().drain();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
