//! Standby: which thread waits for packets while the program sleeps, one of its own or the helper.
//!
//! A thread that sleeps until a completion comes waits for the port's sockets itself and drives when
//! something arrives, so that a packet wakes one thread and not two. A program that sleeps elsewhere,
//! in a set of its own, can put a [`Standby::new_set`] into it, which becomes readable when a packet
//! comes. Where neither will do, the helper has to stand in from the moment a program asks for an
//! event: [`Standby::engage`].
//!
//! A sleeper announces that it sleeps first and looks for reasons not to second; a thread that makes
//! a reason does it the other way round. All of it is sequentially consistent, so that one of the
//! two sees the other.

use crate::link::shm::doorbell::Doorbell;
use crate::sync::Mutex;
use adverb_sys::epoll::{Epoll, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_sys::fork::KeptFd;
use adverb_sys::poll;
use adverb_sys::signals::Held;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// State that the helper and sleeping threads share.
#[derive(Debug)]
pub(crate) struct Standby {
    /// Wakes the helper.
    wake: EventFd,
    /// Rung by other devices of this host.
    doorbell: Arc<Doorbell>,
    /// Events asked for by threads that cannot drive while they sleep.
    engaged: AtomicI32,
    /// Threads that wait for the sockets.
    sleepers: AtomicU32,
    /// The helper only looks, now and then, whether the program still drives.
    looking: AtomicBool,
    /// The helper sleeps and leaves the sockets to the sleepers.
    blind: AtomicBool,
    sockets: [OnceLock<KeptFd>; SOCKETS_MAX],
    /// Sockets watched; those past the array's end are the helper's alone.
    used: AtomicUsize,
    /// Sets that hold the sockets for programs to sleep on.
    sets: Mutex<Vec<Weak<Epoll>>>,
}

/// Sockets that a sleeping thread waits for; a port with more leaves them to the helper.
const SOCKETS_MAX: usize = poll::FDS_MAX - 1;
/// Threads that wait for the sockets at once: each packet wakes all of them.
const SLEEPERS_MAX: u32 = 4;
/// Sets that hold the sockets: each packet wakes the sleepers of one, and the kernel refuses more than
/// 500 ways from a descriptor through two epoll sets, and 100 through three (`path_limits` of
/// fs/eventpoll.c).
const SETS_MAX: usize = 64;

fn readable<'a>(
    first: &'a EventFd,
    more: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
    held: Option<&Held>,
) -> io::Result<bool> {
    match held {
        Some(held) => held.readable(first.as_fd(), more, timeout),
        None => poll::readable(first, more, timeout),
    }
}

impl Standby {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            wake: EventFd::new()?,
            doorbell: Arc::new(Doorbell::new()?),
            engaged: AtomicI32::new(0),
            sleepers: AtomicU32::new(0),
            looking: AtomicBool::new(false),
            blind: AtomicBool::new(false),
            sockets: [const { OnceLock::new() }; SOCKETS_MAX],
            used: AtomicUsize::new(0),
            sets: Mutex::default(),
        })
    }

    /// What other devices of this host ring.
    pub(crate) fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// What wakes the helper.
    pub(crate) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Sleepers wait for this socket too, from their next sleep on.
    pub(crate) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        let copy = KeptFd::new(socket.as_fd().try_clone_to_owned()?)?;
        let mut sets = self.sets.lock();
        let at = self.used.fetch_add(1, Ordering::SeqCst);
        if let Some(place) = self.sockets.get(at) {
            let socket = place.get_or_init(|| copy);
            sets.retain(|set| set.strong_count() > 0);
            for set in sets.iter().filter_map(Weak::upgrade) {
                set.add(socket, 0, Interest::Readable)?;
            }
        }
        Ok(())
    }

    /// A set that can be read when `doorbell` rings or a packet arrives: a thread that sleeps on it drives
    /// when it wakes. `None` if there are too many of them.
    pub(crate) fn new_set(&self, doorbell: &EventFd) -> io::Result<Option<Arc<Epoll>>> {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        if sets.len() >= SETS_MAX {
            return Ok(None);
        }
        let set = Epoll::new()?;
        set.add(doorbell, 0, Interest::Readable)?;
        for socket in self.sockets.iter().filter_map(OnceLock::get) {
            set.add(socket, 0, Interest::Readable)?;
        }
        // Its owner may sleep on it at any time.
        self.doorbell.announce();
        let set = Arc::new(set);
        sets.push(Arc::downgrade(&set));
        Ok(Some(set))
    }

    /// The helper has to stand in now, until [`Standby::disengage`].
    pub(crate) fn engage(&self, count: i32) {
        if count == 0 {
            return;
        }
        self.engaged.fetch_add(count, Ordering::SeqCst);
        if self.looking.load(Ordering::SeqCst) {
            let _ = self.wake.signal();
        }
    }

    /// Takes back an [`Standby::engage`].
    pub(crate) fn disengage(&self, count: i32) {
        self.engaged.fetch_sub(count, Ordering::SeqCst);
    }

    /// The helper has to stand in.
    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until `doorbell` rings or a packet arrives, and says whether that was so; at most for
    /// `timeout`. Signals that are `held` back come in meanwhile, and can be an error.
    pub(crate) fn sleep(
        &self,
        doorbell: &EventFd,
        timeout: Option<Duration>,
        held: Option<&Held>,
    ) -> io::Result<bool> {
        let few = self.used.load(Ordering::SeqCst) <= SOCKETS_MAX;
        if few && self.sleepers.fetch_add(1, Ordering::SeqCst) < SLEEPERS_MAX {
            let sockets = self.sockets.iter().filter_map(|socket| Some(socket.get()?.as_fd()));
            let result = readable(doorbell, sockets, timeout, held);
            self.leave();
            return result;
        }
        if few {
            self.leave();
        }
        self.engage(1);
        let result = readable(doorbell, std::iter::empty(), timeout, held);
        self.disengage(1);
        result
    }

    fn leave(&self) {
        let last = self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.blind.load(Ordering::SeqCst) {
            let _ = self.wake.signal();
        }
    }

    /// The helper begins to look only now and then; false if a waiter needs more than that.
    pub(crate) fn begin_looking(&self) -> bool {
        self.looking.store(true, Ordering::SeqCst);
        let enough = !self.is_engaged();
        if !enough {
            self.end_looking();
        }
        enough
    }

    pub(crate) fn end_looking(&self) {
        self.looking.store(false, Ordering::SeqCst);
    }

    /// The helper goes to sleep; true if others wait for the sockets, so that it need not.
    pub(crate) fn begin_blindness(&self) -> bool {
        self.blind.store(true, Ordering::SeqCst);
        let others = self.sleepers.load(Ordering::SeqCst) > 0;
        if !others {
            self.end_blindness();
        }
        others
    }

    pub(crate) fn end_blindness(&self) {
        self.blind.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn the_helper_is_woken_only_if_it_merely_looks() {
        let standby = Standby::new().unwrap();
        standby.engage(1);
        assert_eq!(standby.wake().drain().unwrap(), 0);
        assert!(!standby.begin_looking());
        standby.disengage(1);
        assert!(standby.begin_looking());
        standby.engage(1);
        assert_eq!(standby.wake().drain().unwrap(), 1);
    }

    #[test]
    fn the_last_sleeper_to_leave_wakes_a_helper_that_left_the_sockets_to_it() {
        let standby = Standby::new().unwrap();
        let doorbell = EventFd::new().unwrap();
        assert!(!standby.begin_blindness());
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| assert!(standby.sleep(&doorbell, None, None).unwrap()));
            while !standby.begin_blindness() {
                std::thread::yield_now();
            }
            doorbell.signal().unwrap();
            sleeper.join().unwrap();
        });
        assert_eq!(standby.wake().drain().unwrap(), 1);
    }

    #[test]
    fn a_socket_that_can_be_read_ends_the_sleep() {
        let standby = Standby::new().unwrap();
        let (doorbell, socket) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        standby.watch(&socket).unwrap();
        socket.signal().unwrap();
        assert!(standby.sleep(&doorbell, None, None).unwrap());
        socket.drain().unwrap();
        assert!(!standby.sleep(&doorbell, NOW, None).unwrap());
    }

    #[test]
    fn a_set_can_be_read_for_packets_at_sockets_from_before_and_after_it() {
        let standby = Standby::new().unwrap();
        let doorbell = EventFd::new().unwrap();
        let sockets = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        standby.watch(&sockets[0]).unwrap();
        let set = standby.new_set(&doorbell).unwrap().unwrap();
        standby.watch(&sockets[1]).unwrap();
        let ready = || poll::readable(&*set, std::iter::empty(), NOW).unwrap();
        assert!(!ready());
        for source in [&doorbell, &sockets[0], &sockets[1]] {
            source.signal().unwrap();
            assert!(ready());
            source.drain().unwrap();
            assert!(!ready());
        }
    }

    #[test]
    fn there_are_so_many_sets_at_once() {
        let standby = Standby::new().unwrap();
        let doorbell = EventFd::new().unwrap();
        let set = || standby.new_set(&doorbell).unwrap();
        let mut sets: Vec<_> = (0..SETS_MAX).map(|_| set().unwrap()).collect();
        assert!(set().is_none());
        sets.pop();
        assert!(set().is_some());
    }

    #[test]
    fn sleepers_beyond_the_bound_engage_the_helper() {
        let standby = Standby::new().unwrap();
        let doorbell = EventFd::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..=SLEEPERS_MAX {
                scope.spawn(|| assert!(standby.sleep(&doorbell, None, None).unwrap()));
            }
            while !standby.is_engaged() {
                std::thread::yield_now();
            }
            doorbell.signal().unwrap();
        });
        assert!(!standby.is_engaged());
    }
}
