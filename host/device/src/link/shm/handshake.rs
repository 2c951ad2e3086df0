//! The handshake thread: it exchanges descriptors with other devices of the host, and notices their deaths.
//!
//! Each device listens by a name that the registry lets others find. A device that needs a link to another
//! device connects and says hello, with the descriptors of the link, of its own peer page and doorbell; the
//! other answers with its own. The connection stays: that it hangs up is how either learns of the
//! other's end, however that came. Only processes of the same user are let in, and each only as the device that
//! it is: the kernel says which process has connected, and which one listens by the name of the device that the
//! hello names. A device that uses no memory of others has the thread, too: it hands the registry to newcomers.
//! Processes that come for something else than a link go on to the visits thread (`visits.rs`), which may wait.
//!
//! The thread sleeps but for introductions and deaths; packets are none of its business.

use crate::holder::Holder;
use crate::link::shm::doorbell::{Doorbell, PeerDoorbell};
use crate::link::shm::link::{PeerId, Segment, ShmLink};
use crate::link::shm::visits::{Admit, Arrival, Attended, Visit, Visits};
use crate::memory::export::Exports;
use crate::memory::import::Message;
use crate::memory::peer_page::{PeerPage, VERSION};
use crate::registry::rendezvous::Place;
use crate::registry::{Registry, SlotId};
use crate::sync::Mutex;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::eventfd::EventFd;
use adverb_sys::poll;
use adverb_sys::unix::{Listener, Stream};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A port with a handshake thread.
pub(crate) trait Meeting: Send + Sync {
    fn registry(&self) -> &Registry;

    /// From now on records are taken from this link.
    fn add_shm_receiver(&self, shm_link: &Arc<ShmLink>);

    /// Queue pairs use this link from now on, unless there is one already.
    fn remember_shm_link(&self, shm_link: &Arc<ShmLink>);

    /// The device at the other end is gone. What it has sent is still taken.
    fn forget_shm_link(&self, shm_link: &Arc<ShmLink>);

    /// Puts right what others have written over of this port's part of the registry.
    fn mend_registry(&self);

    /// Hands the registry to the newcomers that wait.
    fn answer_newcomers(&self);

    /// A neighbour was not let in.
    fn count_refused_neighbour(&self);
}

/// The thread, seen from the port.
#[derive(Debug)]
pub(crate) struct Handshake {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    me: PeerId,
    place: Place,
    doorbell: Arc<Doorbell>,
    exports: Arc<Exports>,
    listener: Listener,
    /// The device makes links.
    uses_shm: bool,
    /// Lets in processes that come for something else than a link, if any do.
    admit: OnceLock<Admit>,
    visits: Mutex<Option<Arc<Visits>>>,
    epoll: Epoll,
    wake: EventFd,
    stop: AtomicBool,
    guests: Mutex<HashMap<u64, Guest>>,
    tokens: AtomicU64,
    holder: Arc<Holder>,
}

/// A connection.
#[derive(Clone, Debug)]
struct Guest {
    stream: Arc<Stream>,
    /// The process at the other end; 0 for one that cannot be seen.
    pid: u32,
    /// What the connection is about; none before the other side has said hello.
    shm_link: Option<Arc<ShmLink>>,
    since: Instant,
}

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const NEWCOMERS: u64 = 2;
const FIRST_GUEST: u64 = 3;
/// Time-out for the answer of another device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a device is asked again that wants to be asked later.
const LATERS_MAX: u32 = 32;
/// Interval of looks whether waiting is useless, and pause before a busy device is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Connections that have not said hello, at once: strangers cannot take all descriptors.
const NAMELESS_MAX: usize = 64;
/// Links to one device at once. Two that meet each other at the same time have two.
const LINKS_MAX: usize = 8;
/// Length of a message, at most.
const MESSAGE_BYTES_MAX: usize = 256;
/// How long to leave connections alone that cannot be accepted, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The name by which a device is found. Abstract names belong to the network namespace.
pub(crate) fn name(place: Place, peer: PeerId) -> String {
    format!("adverb-{}-{}-{:016x}", place.label(), peer.slot.number(), peer.nonce)
}

/// Message of a device that meets another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Hello {
    peer: PeerId,
}

const HELLO_BYTES: usize = 24;
const MAGIC: [u8; 4] = *b"advh";
/// The answer to a device that cannot be verified now, because strangers crowd where it listens.
const LATER: &[u8] = b"advl";

impl Hello {
    fn emit(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let parts: [&[u8]; 4] = [
            &MAGIC,
            &VERSION.to_ne_bytes(),
            &u64::from(self.peer.slot.number()).to_ne_bytes(),
            &self.peer.nonce.to_ne_bytes(),
        ];
        for (place, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (slot, rest) = rest.split_first_chunk::<8>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let fits = *magic == MAGIC && *version == VERSION.to_ne_bytes() && rest.is_empty();
        let slot = u32::try_from(u64::from_ne_bytes(*slot)).ok().and_then(SlotId::new)?;
        let nonce = u64::from_ne_bytes(*nonce);
        fits.then_some(Self { peer: PeerId { slot, nonce } })
    }
}

impl Handshake {
    /// Listens: for links if the device uses shared memory (`uses_shm`). No connection is answered before
    /// [`Handshake::start`].
    pub(crate) fn new(
        me: PeerId,
        registry: &Registry,
        doorbell: &Arc<Doorbell>,
        exports: &Arc<Exports>,
        uses_shm: bool,
    ) -> io::Result<Self> {
        let place = registry.place();
        let shared = Shared {
            me,
            place,
            doorbell: Arc::clone(doorbell),
            exports: Arc::clone(exports),
            listener: Listener::bind(name(place, me).as_bytes())?,
            uses_shm,
            admit: OnceLock::new(),
            visits: Mutex::default(),
            epoll: Epoll::new()?,
            wake: EventFd::new()?,
            stop: AtomicBool::new(false),
            guests: Mutex::default(),
            tokens: AtomicU64::new(FIRST_GUEST),
            holder: Arc::default(),
        };
        shared.epoll.add(&shared.wake, WAKE, Interest::Readable)?;
        shared.epoll.add(&shared.listener, LISTENER, Interest::Readable)?;
        if let Some(listener) = registry.listener() {
            shared.epoll.add(listener, NEWCOMERS, Interest::Readable)?;
        }
        Ok(Self { shared: Arc::new(shared), thread: Mutex::default() })
    }

    pub(crate) fn start(&self, port: Weak<dyn Meeting>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = move || shared.run(&port);
        let thread = adverb_sys::signals::spawn("adverb-meet", run)?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    pub(crate) fn holder(&self) -> Arc<Holder> {
        Arc::clone(&self.shared.holder)
    }

    /// The device makes links to others.
    pub(crate) fn uses_shm(&self) -> bool {
        self.shared.uses_shm
    }

    /// Ends the thread and that of visits, and waits for them unless one is the caller.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.wake.signal();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
        let visits = self.shared.visits.lock().take();
        if let Some(visits) = visits {
            visits.stop();
        }
        self.shared.guests.lock().clear();
    }

    /// Makes a link to another device, which answers within [`ANSWER_TIMEOUT`] unless it is stopped, or until
    /// it is `in_vain` to wait.
    ///
    /// # Errors
    ///
    /// It has gone, or does not answer, or makes no sense.
    pub(crate) fn meet(
        &self,
        peer: PeerId,
        in_vain: impl Fn() -> bool,
    ) -> io::Result<Arc<ShmLink>> {
        let until = Instant::now() + ANSWER_TIMEOUT;
        let over = || Instant::now() >= until || in_vain();
        for _ in 0..LATERS_MAX {
            if in_vain() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.introduce(peer, over) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && !over() => {
                    thread::sleep(RETRY_INTERVAL);
                }
                result => return result,
            }
        }
        self.introduce(peer, over)
    }

    /// Says hello to another device, and waits for its answer until it is `over`.
    fn introduce(&self, peer: PeerId, over: impl Fn() -> bool) -> io::Result<Arc<ShmLink>> {
        let shared = &*self.shared;
        let stream = self.connect(peer, &over)?;
        let (segment, file) = Segment::create()?;
        let doorbell = &shared.doorbell;
        let fds = [file.as_fd(), doorbell.page().as_fd(), doorbell.fd().as_fd()];
        stream.send(&Hello { peer: shared.me }.emit(), &fds)?;
        while !poll::readable(&stream, std::iter::empty(), Some(RETRY_INTERVAL))? {
            if over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let (answer, mut fds) = receive(&stream)?;
        if answer == LATER {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let hello = Hello::parse(&answer).filter(|hello| hello.peer == peer);
        let hello = hello.ok_or_else(invalid)?;
        let peer_doorbell = peer_doorbell(&mut fds)?;
        let shm_link = Arc::new(ShmLink::new(hello.peer, segment, peer_doorbell, &shared.exports));
        let pid = stream.peer()?.pid;
        shared.keep(stream, Some(Arc::clone(&shm_link)))?;
        shm_link.probe(pid);
        Ok(shm_link)
    }

    /// Connects to another device of this user, and tries again while it has too many waiting.
    pub(crate) fn connect(&self, peer: PeerId, over: impl Fn() -> bool) -> io::Result<Stream> {
        let place = self.shared.place;
        loop {
            match Stream::connect(name(place, peer).as_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !over() => {
                    thread::yield_now();
                }
                connected => {
                    let stream = connected?;
                    let is_ours = stream.peer()?.uid == place.user();
                    return if is_ours { Ok(stream) } else { Err(invalid()) };
                }
            }
        }
    }

    /// Lets in those that come for something else than a link, from now on.
    pub(crate) fn admit(&self, admit: Admit) {
        self.shared.admit.get_or_init(|| admit);
    }

    /// Has the visits thread listen to what comes by a connection, until that ends or nothing is left to hear.
    pub(crate) fn attend_to(&self, stream: Stream, visit: Arc<dyn Visit>) -> io::Result<Attended> {
        self.shared.visits()?.attend_to(stream, visit)
    }
}

/// The next connection, if there is one. One that cannot be accepted, for want of descriptors or memory, is left alone for a
/// while: the listener can still be read, and no wait would be one.
fn accepted(listener: &Listener) -> Option<Stream> {
    match listener.accept() {
        Ok(stream) => Some(stream),
        Err(error) => {
            if error.kind() != io::ErrorKind::WouldBlock {
                thread::sleep(ACCEPT_PAUSE);
            }
            None
        }
    }
}

/// Takes one message, and the descriptors that come along. One that is too long is cut.
///
/// # Errors
///
/// `WouldBlock` if there is none; `UnexpectedEof` if the other end has hung up.
pub(crate) fn receive(stream: &Stream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut bytes, mut fds) = ([0; MESSAGE_BYTES_MAX], Vec::new());
    match stream.recv(&mut bytes, &mut fds)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        len => Ok((bytes.get(..len).unwrap_or_default().to_vec(), fds)),
    }
}

/// The last two descriptors: peer page and doorbell.
fn peer_doorbell(fds: &mut Vec<OwnedFd>) -> io::Result<PeerDoorbell> {
    let doorbell = fds.pop().ok_or_else(invalid)?;
    let page = PeerPage::open(fds.pop().ok_or_else(invalid)?)?;
    Ok(PeerDoorbell::new(EventFd::from(doorbell), Arc::new(page)))
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "another device of this host makes no sense")
}

impl Shared {
    fn run(&self, port: &Weak<dyn Meeting>) {
        let mut events = Events::with_capacity(16);
        while !self.stop.load(Ordering::Acquire) {
            if self.epoll.wait(&mut events, None).is_err() {
                return;
            }
            // The port is ending, and waits for its other threads. Events that nothing handles any more would be reported again
            // at once, and this loop, under a real-time policy, would leave those threads no processor.
            if port.strong_count() == 0 {
                return;
            }
            for event in events.iter() {
                let _held = self.holder.hold();
                match event.token {
                    WAKE => drop(self.wake.drain()),
                    LISTENER => self.let_in(port),
                    NEWCOMERS => {
                        if let Some(port) = port.upgrade() {
                            port.mend_registry();
                            port.answer_newcomers();
                        }
                    }
                    guest => self.attend(guest, port),
                }
            }
        }
    }

    fn keep(&self, stream: Stream, shm_link: Option<Arc<ShmLink>>) -> io::Result<u64> {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(stream);
        let pid = stream.peer()?.pid;
        if let Some(shm_link) = &shm_link {
            shm_link.imports().attach(&stream);
        }
        let guest = Guest { stream: Arc::clone(&stream), pid, shm_link, since: Instant::now() };
        self.guests.lock().insert(token, guest);
        self.epoll.add(&*stream, token, Interest::Readable).inspect_err(|_| {
            let gone = self.guests.lock().remove(&token);
            drop(gone); // Under no lock.
        })?;
        Ok(token)
    }

    fn let_in(&self, port: &Weak<dyn Meeting>) {
        for stream in (0..NAMELESS_MAX).map_while(|_| accepted(&self.listener)) {
            if stream.peer().is_ok_and(|peer| peer.uid == self.place.user()) {
                self.show_out_nameless();
                if let Ok(token) = self.keep(stream, None) {
                    self.attend(token, port); // The hello is there already, mostly.
                }
            }
        }
    }

    /// If too many connections have not said hello, the oldest of the process with most of them goes: the others may
    /// be about to.
    fn show_out_nameless(&self) {
        let mut guests = self.guests.lock();
        let nameless = guests.iter().filter(|(_, guest)| guest.shm_link.is_none());
        if nameless.clone().count() >= NAMELESS_MAX {
            let mut crowds = HashMap::new();
            nameless.clone().for_each(|(_, guest)| *crowds.entry(guest.pid).or_insert(0) += 1);
            let crowd = crowds.into_iter().max_by_key(|(_, count)| *count).map(|(pid, _)| pid);
            let nameless = nameless.filter(|(_, guest)| Some(guest.pid) == crowd);
            let oldest = nameless.min_by_key(|(_, guest)| guest.since).map(|(token, _)| *token);
            if let Some(guest) = oldest.and_then(|token| guests.remove(&token)) {
                let _ = self.epoll.remove(&*guest.stream);
            }
        }
    }

    fn attend(&self, token: u64, port: &Weak<dyn Meeting>) {
        let Some(guest) = self.guests.lock().get(&token).cloned() else {
            return;
        };
        let Some(port) = port.upgrade() else {
            return;
        };
        let result = match &guest.shm_link {
            None => self.welcome(token, &guest, &*port),
            Some(shm_link) => self.listen(&guest.stream, shm_link),
        };
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                let hung_up = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
                self.show_out(token, &*port, hung_up.contains(&error.kind()));
            }
        }
    }

    /// Ends a connection, and what it was about. The other side is no more if `hung_up`.
    fn show_out(&self, token: u64, port: &dyn Meeting, hung_up: bool) {
        let Some(guest) = self.guests.lock().remove(&token) else {
            return;
        };
        let _ = self.epoll.remove(&*guest.stream);
        if let Some(shm_link) = &guest.shm_link {
            if hung_up {
                shm_link.end();
            } else {
                shm_link.cut();
            }
            port.forget_shm_link(shm_link);
        }
    }

    /// A neighbour says something about memory, or nothing any more.
    fn listen(&self, stream: &Stream, shm_link: &ShmLink) -> io::Result<()> {
        let (mut bytes, mut fds) = ([0; Message::BYTES + 1], Vec::new());
        let len = stream.recv(&mut bytes, &mut fds)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = Message::parse(bytes.get(..len).unwrap_or_default());
        let descriptor = |number| self.exports.descriptor(number);
        let message = message.ok_or_else(invalid)?;
        let file = fds.pop().filter(|_| shm_link.shares());
        shm_link.imports().on_message(message, file, descriptor);
        Ok(())
    }

    /// The process at the other end is the one whose device it says it is: that device is open, and the process
    /// that listens by its name is the same, as far as the kernel shows it. Processes of other process namespaces
    /// may all have the number 0.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if strangers crowd where it listens, so that this cannot be seen now.
    fn is_itself(&self, peer: PeerId, stream: &Stream, port: &dyn Meeting) -> io::Result<bool> {
        if port.registry().shm_nonce(peer.slot, VERSION) != Some(peer.nonce) {
            return Ok(false);
        }
        let listens = Stream::connect(name(self.place, peer).as_bytes());
        if listens.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let listens = listens.and_then(|stream| stream.peer());
        Ok(matches!((listens, stream.peer()), (Ok(one), Ok(other)) if one == other))
    }

    /// There may be one more link to this device. Those that it has given up go, but for one by which it accesses our
    /// memory still.
    fn makes_room(&self, peer: PeerId, port: &dyn Meeting) -> bool {
        let guests = self.guests.lock();
        let shm_links =
            guests.iter().filter_map(|(token, guest)| Some((*token, guest.shm_link.as_ref()?)));
        let (gone, there): (Vec<_>, Vec<_>) = shm_links
            .filter(|(_, shm_link)| shm_link.peer() == peer)
            .map(|(token, shm_link)| (token, shm_link.is_given_up() && shm_link.is_vacant()))
            .partition(|(_, given_up)| *given_up);
        drop(guests);
        gone.into_iter().for_each(|(token, _)| self.show_out(token, port, false));
        there.len() < LINKS_MAX
    }

    /// A process says what it comes for.
    fn welcome(&self, token: u64, guest: &Guest, port: &dyn Meeting) -> io::Result<()> {
        let (message, fds) = receive(&guest.stream)?;
        let Some(hello) = Hello::parse(&message).filter(|_| self.uses_shm) else {
            return self.hand_over(token, guest, message, fds);
        };
        let shm_link = self.meet(hello, fds, &guest.stream, port)?;
        if let Some(guest) = self.guests.lock().get_mut(&token) {
            guest.shm_link = Some(shm_link);
        }
        Ok(())
    }

    /// What a process comes for is no link.
    fn hand_over(
        &self,
        token: u64,
        guest: &Guest,
        message: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let admit = *self.admit.get().ok_or_else(invalid)?;
        let visits = self.visits()?;
        self.epoll.remove(&*guest.stream)?;
        self.guests.lock().remove(&token);
        let stream = Arc::clone(&guest.stream);
        visits.meet(Arrival { admit, stream, pid: guest.pid, message, fds })
    }

    /// The visits thread, which is made for the first visit.
    fn visits(&self) -> io::Result<Arc<Visits>> {
        let mut visits = self.visits.lock();
        if let Some(visits) = &*visits {
            return Ok(Arc::clone(visits));
        }
        Ok(Arc::clone(visits.insert(Visits::start()?)))
    }

    /// A device says hello.
    fn meet(
        &self,
        hello: Hello,
        mut fds: Vec<OwnedFd>,
        stream: &Arc<Stream>,
        port: &dyn Meeting,
    ) -> io::Result<Arc<ShmLink>> {
        let is_itself = self.is_itself(hello.peer, stream, port).inspect_err(|_| {
            let _ = stream.send(LATER, &[]); // And that is all that is said to it.
        })?;
        if !is_itself || !self.makes_room(hello.peer, port) {
            port.count_refused_neighbour();
            return Err(invalid());
        }
        let peer_doorbell = peer_doorbell(&mut fds)?;
        let segment = Segment::open(fds.pop().ok_or_else(invalid)?)?;
        let shm_link = Arc::new(ShmLink::new(hello.peer, segment, peer_doorbell, &self.exports));
        shm_link.imports().attach(stream);
        port.add_shm_receiver(&shm_link);
        let fds = [self.doorbell.page().as_fd(), self.doorbell.fd().as_fd()];
        if let Err(error) = stream.send(&Hello { peer: self.me }.emit(), &fds) {
            shm_link.cut(); // The other side has gone after too long a wait, and nothing will tell of it again.
            return Err(error);
        }
        port.remember_shm_link(&shm_link);
        shm_link.probe(stream.peer()?.pid);
        Ok(shm_link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that is no more.
    enum Gone {}

    impl Meeting for Gone {
        fn registry(&self) -> &Registry {
            match *self {}
        }
        fn add_shm_receiver(&self, _: &Arc<ShmLink>) {}
        fn remember_shm_link(&self, _: &Arc<ShmLink>) {}
        fn forget_shm_link(&self, _: &Arc<ShmLink>) {}
        fn mend_registry(&self) {}
        fn answer_newcomers(&self) {}
        fn count_refused_neighbour(&self) {}
    }

    #[test]
    fn a_hello_names_its_device_and_nothing_else_is_one() {
        let slot = SlotId::new(7).unwrap();
        let hello = Hello { peer: PeerId { slot, nonce: 0x0102_0304_0506_0708 } };
        let bytes = hello.emit();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for at in 0..16 {
            let mut other = bytes;
            other[at] ^= 0xff;
            assert_ne!(Hello::parse(&other), Some(hello), "{at}");
        }
        for len in 0..HELLO_BYTES {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        assert_eq!(Hello::parse(&[0; HELLO_BYTES + 1]), None);
    }

    /// Goal: while a port ends, what comes keeps no processor busy. Method: a connection to one that has gone; the thread is
    /// not told to stop.
    #[test]
    fn a_thread_whose_port_has_gone_ends_with_what_comes() {
        let registry = Registry::join().unwrap();
        let slot = registry.slot();
        let me = PeerId { slot, nonce: 0x0102_0304_0506_0708 };
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let exports = Arc::new(Exports::new(Arc::clone(doorbell.page()), false));
        let handshake = Handshake::new(me, &registry, &doorbell, &exports, true).unwrap();
        handshake.start(Weak::<Gone>::new()).unwrap();
        let stream = handshake.connect(me, || false).unwrap();
        let until = Instant::now() + ANSWER_TIMEOUT;
        while !handshake.thread.lock().as_ref().unwrap().is_finished() {
            assert!(Instant::now() < until, "the thread goes on");
            thread::sleep(RETRY_INTERVAL);
        }
        drop(stream);
        handshake.stop();
    }
}
