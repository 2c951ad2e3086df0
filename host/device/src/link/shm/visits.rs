//! The visits thread: it attends to processes that come to a device for something else than a link ([`Visit`]).
//!
//! The handshake thread (`handshake.rs`) lets them in and hands them over, as soon as they have said something. What they
//! ask may wait for neighbours or for a lock of the registry, and so may the end of what they have held, or closing a
//! descriptor that they send: this thread may wait, and the handshake thread, which ends the links of the dead, does not.
//! It is made for the first visit.
//!
//! A visitor counts from when it is handed over, so that what waits for the thread is bounded, too.

use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_sys::unix::Stream;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

/// What a connection is about that is no link. Dropped when the connection has ended.
pub(crate) trait Visit: fmt::Debug + Send + Sync {
    /// Takes one message.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; others end the connection.
    fn attend(&self, stream: &Stream) -> io::Result<()>;
}

/// Finds what a process (by its number, 0 if it cannot be seen) comes for with a message, and answers.
///
/// # Errors
///
/// It is not let in: the connection ends.
pub(crate) type Admit = fn(u32, &[u8], &Stream) -> io::Result<Arc<dyn Visit>>;

/// A process that has come, and what it has said first.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) admit: Admit,
    pub(crate) stream: Arc<Stream>,
    /// The process; 0 for one that cannot be seen.
    pub(crate) pid: u32,
    pub(crate) message: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The thread, seen from others.
#[derive(Debug)]
pub(crate) struct Visits {
    epoll: Epoll,
    wake: EventFd,
    stop: AtomicBool,
    tokens: AtomicU64,
    guests: Mutex<Guests>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Guests {
    visitors: HashMap<u64, Visitor>,
    /// Those that the thread has not met. They are visitors as well.
    arrivals: Vec<(u64, Arrival)>,
}

/// A connection of this process's own. Dropped, it ends, whether or not the other side wants that.
#[derive(Debug)]
pub(crate) struct Attended {
    visits: Weak<Visits>,
    token: u64,
}

impl Drop for Attended {
    fn drop(&mut self) {
        if let Some(visits) = self.visits.upgrade() {
            visits.show_out(self.token);
        }
    }
}

/// A connection.
#[derive(Clone, Debug)]
struct Visitor {
    stream: Arc<Stream>,
    /// The process that has come by it; none if it is this one's own.
    pid: Option<u32>,
    /// What it is about; none before the thread has met it.
    visit: Option<Arc<dyn Visit>>,
}

const WAKE: u64 = 0;
const FIRST_VISITOR: u64 = 1;
/// Connections at once by which other processes have come.
const VISITORS_MAX: usize = 4096;
/// Those of them that one process has, at most: it leaves places to others.
const OF_PROCESS_MAX: usize = VISITORS_MAX / 2;
/// Connections of this process's own, at once.
const OWN_MAX: usize = 4096;

impl Visits {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let visits = Arc::new(Self {
            epoll: Epoll::new()?,
            wake: EventFd::new()?,
            stop: AtomicBool::new(false),
            tokens: AtomicU64::new(FIRST_VISITOR),
            guests: Mutex::default(),
            thread: Mutex::default(),
        });
        visits.epoll.add(&visits.wake, WAKE, Interest::Readable)?;
        let shared = Arc::clone(&visits);
        let run = move || shared.run();
        let thread = adverb_sys::signals::spawn("adverb-visits", run)?;
        *visits.thread.lock() = Some(thread);
        Ok(visits)
    }

    /// Ends the thread, waits for it unless it is the caller, and ends all visits.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.wake.signal();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
        let guests = mem::take(&mut *self.guests.lock());
        drop(guests); // Under no lock.
    }

    /// Has the thread meet a process.
    ///
    /// # Errors
    ///
    /// There are too many, or too many of this one.
    pub(crate) fn meet(&self, arrival: Arrival) -> io::Result<()> {
        let stream = Arc::clone(&arrival.stream);
        let token = self.take_place(Visitor { stream, pid: Some(arrival.pid), visit: None })?;
        self.guests.lock().arrivals.push((token, arrival));
        self.wake.signal()
    }

    /// Has the thread listen to what comes by a connection of this process's own, until that ends.
    ///
    /// # Errors
    ///
    /// There are too many; those of `epoll_ctl(2)`.
    pub(crate) fn attend_to(
        self: &Arc<Self>,
        stream: Stream,
        visit: Arc<dyn Visit>,
    ) -> io::Result<Attended> {
        let stream = Arc::new(stream);
        let visitor = Visitor { stream: Arc::clone(&stream), pid: None, visit: Some(visit) };
        let attended = Attended { visits: Arc::downgrade(self), token: self.take_place(visitor)? };
        self.epoll.add(&*stream, attended.token, Interest::Readable)?;
        Ok(attended)
    }

    fn take_place(&self, visitor: Visitor) -> io::Result<u64> {
        let mut guests = self.guests.lock();
        let all = guests.visitors.values();
        let of_process = all.clone().filter(|one| one.pid == visitor.pid).count();
        let others = all.filter(|one| one.pid.is_some()).count();
        let has_room = match visitor.pid {
            None => of_process < OWN_MAX,
            Some(_) => of_process < OF_PROCESS_MAX && others < VISITORS_MAX,
        };
        if !has_room {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        guests.visitors.insert(token, visitor);
        Ok(token)
    }

    fn run(&self) {
        let mut events = Events::with_capacity(16);
        while !self.stop.load(Ordering::Acquire) {
            if self.epoll.wait(&mut events, None).is_err() {
                return;
            }
            for event in events.iter() {
                match event.token {
                    WAKE => self.welcome_all(),
                    visitor => self.attend(visitor),
                }
            }
        }
    }

    fn welcome_all(&self) {
        drop(self.wake.drain());
        let arrivals = mem::take(&mut self.guests.lock().arrivals);
        for (token, arrival) in arrivals {
            if self.welcome(token, arrival).is_err() {
                self.show_out(token);
            }
        }
    }

    fn welcome(&self, token: u64, arrival: Arrival) -> io::Result<()> {
        let Arrival { admit, stream, pid, message, fds } = arrival;
        without_descriptors(fds)?;
        let visit = admit(pid, &message, &stream)?;
        if let Some(visitor) = self.guests.lock().visitors.get_mut(&token) {
            visitor.visit = Some(visit);
        }
        self.epoll.add(&*stream, token, Interest::Readable)
    }

    fn attend(&self, token: u64) {
        let visitor = self.guests.lock().visitors.get(&token).cloned();
        let Some((stream, visit)) = visitor.and_then(|one| Some((one.stream, one.visit?))) else {
            return;
        };
        match visit.attend(&stream) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.show_out(token),
        }
    }

    fn show_out(&self, token: u64) {
        let gone = self.guests.lock().visitors.remove(&token);
        if let Some(visitor) = gone {
            let _ = self.epoll.remove(&*visitor.stream);
        }
    }
}

/// No descriptor may come: what is open elsewhere as well could keep a connection from ending.
pub(crate) fn without_descriptors(fds: Vec<OwnedFd>) -> io::Result<()> {
    if fds.is_empty() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_sys::memory;

    #[derive(Debug)]
    struct Quiet;

    impl Visit for Quiet {
        fn attend(&self, _: &Stream) -> io::Result<()> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Goal: a connection of its own ends with what it is for, or if it cannot be waited for.
    #[test]
    fn a_connection_that_is_let_go_of_leaves_nothing_behind() {
        let visits = Visits::start().unwrap();
        let visit: Arc<dyn Visit> = Arc::new(Quiet);
        let file = Stream::of(memory::memfd("no-socket", 1).unwrap()).unwrap();
        assert!(visits.attend_to(file, Arc::clone(&visit)).is_err());
        let [_theirs, ours] = Stream::one_way().unwrap();
        let attended = visits.attend_to(ours, Arc::clone(&visit)).unwrap();
        assert_eq!(visits.guests.lock().visitors.len(), 1);
        drop(attended);
        assert_eq!((Arc::strong_count(&visit), visits.guests.lock().visitors.len()), (1, 0));
        visits.stop();
    }

    /// Goal: neither one process nor this one's own connections take the places of others. Method: places alone, of one
    /// connection.
    #[test]
    fn one_process_leaves_places_to_others() {
        let visits = Visits::start().unwrap();
        let stream = Arc::new(Stream::one_way().unwrap().into_iter().next().unwrap());
        let takes = |pid: Option<u32>| {
            let stream = Arc::clone(&stream);
            visits.take_place(Visitor { stream, pid, visit: None }).is_ok()
        };
        let fill = |pid: Option<u32>, count: usize| {
            let mut guests = visits.guests.lock();
            for _ in 0..count {
                let (stream, token) = (Arc::clone(&stream), visits.tokens.load(Ordering::Relaxed));
                guests.visitors.insert(token, Visitor { stream, pid, visit: None });
                visits.tokens.store(token + 1, Ordering::Relaxed);
            }
        };
        fill(Some(7), OF_PROCESS_MAX - 1);
        assert!(takes(Some(7)) && !takes(Some(7)) && takes(Some(8)));
        fill(Some(8), VISITORS_MAX - OF_PROCESS_MAX - 2);
        assert!(takes(Some(9)) && !takes(Some(9)) && takes(None));
        fill(None, OWN_MAX - 2);
        assert!(takes(None) && !takes(None));
        visits.stop();
    }
}
