//! The thread that answers processes which open this one's XRC targets, and listens to those whose targets it has opened.
//!
//! There is one in a process, from the first target on that several processes may have. Only processes of the same user
//! are let in, and what they may open is what they have the domain of open; no answer waits for a peer.

use super::message::Message;
use super::opened::Connection;
use super::{find_named, forget_ended_targets, name};
use crate::link::errors::ConnectError;
use crate::link::shm::handshake::accepted;
use crate::objects::events::{Element, EventQueue, Listener};
use crate::port::qp::Qp;
use crate::progress::Port;
use crate::sync::Mutex;
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::fork::PerProcess;
use adverb_sys::unix::{self, Stream};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

/// The thread, seen from others.
#[derive(Debug)]
pub(super) struct Service {
    epoll: Epoll,
    /// What other threads give it to wait for.
    places: Mutex<HashMap<u64, Place>>,
    tokens: AtomicU64,
}

#[derive(Clone, Debug)]
enum Place {
    /// Where processes of this user connect to open a port's targets.
    Listener { listener: Arc<unix::Listener>, port: Weak<Port>, user: u32 },
    /// A target of another process that this one has opened.
    Opened(Weak<Connection>),
}

/// A process that opens a target of this one.
#[derive(Debug)]
struct Opener {
    stream: Stream,
    port: Weak<Port>,
    open: Option<Open>,
}

/// A target that another process has open.
#[derive(Debug)]
struct Open {
    target: Arc<Qp>,
    events: Arc<EventQueue>,
    _listener: Listener,
}

/// Openers at once; more are not let in.
const OPENERS_MAX: usize = 4096;
/// Connections that are accepted before something else is looked at.
const ACCEPTS_MAX: usize = 64;

static SERVICE: PerProcess<Mutex<Option<Arc<Service>>>> = PerProcess::new();

/// The thread of this process, which is started if it was not before.
pub(super) fn service() -> io::Result<Arc<Service>> {
    let mut service = SERVICE.get().lock();
    if let Some(service) = &*service {
        return Ok(Arc::clone(service));
    }
    let (places, tokens) = (Mutex::default(), AtomicU64::new(0));
    let made = Arc::new(Service { epoll: Epoll::new()?, places, tokens });
    let run = Arc::clone(&made);
    thread::Builder::new().name("adverb-xrc".to_owned()).spawn(move || run.run())?;
    *service = Some(Arc::clone(&made));
    Ok(made)
}

/// Lets other processes open targets of a port, from now on for as long as it lives: its name could not be had again at once
/// where a child of this process has the listener until it calls `exec`.
pub(super) fn listen(port: &Arc<Port>) -> io::Result<()> {
    let service = service()?;
    let mut places = service.places.lock();
    forget_ended(&mut places);
    let is_there = |place: &Place| match place {
        Place::Listener { port: known, .. } => Weak::ptr_eq(known, &Arc::downgrade(port)),
        Place::Opened(_) => false,
    };
    if places.values().any(is_there) {
        return Ok(());
    }
    let registry = &port.links.registry;
    let (place, user) = (registry.place(), registry.place().user());
    let listener = unix::Listener::bind(name(place, registry.me()).as_bytes())?;
    let token = service.next_token();
    service.epoll.add(&listener, token, Interest::Readable)?;
    let (listener, port) = (Arc::new(listener), Arc::downgrade(port));
    places.insert(token, Place::Listener { listener, port, user });
    Ok(())
}

/// Closes listeners of ports that have gone, and forgets connections that have ended.
fn forget_ended(places: &mut HashMap<u64, Place>) {
    places.retain(|_, place| match place {
        Place::Listener { port, .. } => port.strong_count() > 0,
        Place::Opened(connection) => connection.strong_count() > 0,
    });
}

impl Service {
    fn next_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Listens to the process that has made a target.
    pub(super) fn attend_to(&self, connection: &Arc<Connection>) -> io::Result<()> {
        let token = self.next_token();
        let mut places = self.places.lock();
        forget_ended(&mut places);
        places.insert(token, Place::Opened(Arc::downgrade(connection)));
        self.epoll.add(connection.stream(), token, Interest::Readable)
    }

    /// No more is heard of this connection.
    pub(super) fn forget(&self, stream: &Stream) {
        let _ = self.epoll.remove(stream);
    }

    fn run(&self) {
        let (mut events, mut openers) = (Events::with_capacity(16), HashMap::new());
        while self.epoll.wait(&mut events, None).is_ok() {
            for event in events.iter() {
                match openers.get_mut(&event.token) {
                    Some(opener) => {
                        if self.answer(event.token, opener).is_err() {
                            self.show_out(openers.remove(&event.token));
                        }
                    }
                    None => self.attend(event.token, &mut openers),
                }
            }
        }
    }

    fn show_out(&self, opener: Option<Opener>) {
        let Some(Opener { stream, open, .. }) = opener else { return };
        self.forget(&stream);
        if let Some(Open { target, events, .. }) = open {
            let _ = self.epoll.remove(events.watch());
            drop(target);
            forget_ended_targets();
        }
    }

    /// Lets openers in, or listens to a process whose target is open here.
    fn attend(&self, token: u64, openers: &mut HashMap<u64, Opener>) {
        let place = self.places.lock().get(&token).cloned(); // What waits for descriptors holds up no port.
        match place {
            None => {}
            Some(Place::Listener { listener, port, user }) => {
                for stream in (0..ACCEPTS_MAX).map_while(|_| accepted(&listener)) {
                    let token = self.next_token();
                    if stream.peer().is_ok_and(|peer| peer.uid == user)
                        && openers.len() < OPENERS_MAX
                        && self.epoll.add(&stream, token, Interest::Readable).is_ok()
                    {
                        let port = Weak::clone(&port);
                        openers.insert(token, Opener { stream, port, open: None });
                    }
                }
            }
            Some(Place::Opened(connection)) => {
                let goes_on = connection.upgrade().is_some_and(|connection| connection.listen());
                if !goes_on {
                    self.places.lock().remove(&token);
                }
            }
        }
    }

    /// Tells an opener what has happened to its target, and answers what it asks.
    fn answer(&self, token: u64, opener: &mut Opener) -> io::Result<()> {
        let Opener { stream, port, open } = opener;
        while let Some(event) = open.as_ref().and_then(|open| open.events.try_get()) {
            match event.element {
                Element::Qp { .. } => stream.send(&Message::Event(event.kind).emit(), &[])?,
                // The queue hears what happens to the port, too, as the opener's own does.
                Element::Cq { .. }
                | Element::Device
                | Element::Port { .. }
                | Element::Srq { .. } => {}
            }
        }
        let message = match receive(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            received => received?,
        };
        let answer = match (message, &open) {
            (Message::Open { domain, number }, None) => {
                let port = port.upgrade().ok_or(io::ErrorKind::NotFound)?;
                let is_held = port.links.registry.is_held_by(domain, stream.peer()?.pid);
                match find_named(domain, number).filter(|_| is_held) {
                    None => Message::Refused(0),
                    Some(target) => {
                        let events = port.create_event_queue()?;
                        let _listener = target.listen(&events, 0);
                        self.epoll.add(events.watch(), token, Interest::Readable)?;
                        *open = Some(Open { target, events, _listener });
                        Message::Done
                    }
                }
            }
            (Message::Modify { to, change }, Some(open)) => {
                match open.target.modify(to, &change, |_, _| {}) {
                    Ok(()) => Message::Done,
                    Err(error) => Message::Refused(errno_of(&error)),
                }
            }
            (Message::Query, Some(open)) => Message::Found {
                query: open.target.query(),
                is_connected: open.target.remote().is_some(),
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        stream.send(&answer.emit(), &[])
    }
}

/// Takes one message.
///
/// # Errors
///
/// `WouldBlock` if there is none; `UnexpectedEof` if the other end has hung up; it makes no sense.
pub(super) fn receive(stream: &Stream) -> io::Result<Message> {
    let mut bytes = [0; Message::LEN + 1];
    let len = stream.recv(&mut bytes, &mut Vec::new())?;
    if len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let bytes = bytes.get(..len).unwrap_or_default();
    Message::parse(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What an opener is told: the system's error, or 0 for its own.
fn errno_of(error: &ConnectError) -> u32 {
    let (ConnectError::Socket { error, .. }
    | ConnectError::System(error)
    | ConnectError::Refused { error, .. }) = error
    else {
        return 0;
    };
    error.raw_os_error().map_or(0, i32::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::path::{PathChoice, PortConfig};
    use crate::link::shm::handshake::connect;
    use crate::objects::cq::CqConfig;
    use crate::objects::qp::{Change, QpCap, QpConfig};
    use crate::objects::xrc::{OpenXrcd, Xrcd};
    use crate::port::xrc_targets::RemoteTarget;
    use crate::registry::DomainName;
    use adverb_engine::{QpState, QpType};
    use adverb_sys::{memory, poll};
    use adverb_wire::Qpn;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    /// The next message of the thread; `None` if it has hung up.
    fn next(stream: &Stream) -> Option<Message> {
        readable(stream);
        receive(stream).ok()
    }

    fn readable(what: &impl AsFd) {
        assert!(poll::readable(what, std::iter::empty(), Some(Duration::from_secs(60))).unwrap());
    }

    fn port() -> Arc<Port> {
        let config = PortConfig { path: Some(PathChoice::Udp), exclusive: true };
        Port::open_with("soft_lo", &config).unwrap()
    }

    fn target(port: &Arc<Port>, xrcd: &Xrcd) -> Arc<Qp> {
        let cq = port.create_cq(&CqConfig { capacity: 1, ..Default::default() });
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let target = port.create_qp(&QpConfig {
            domain: port.new_domain(),
            kind: QpType::XrcTarget,
            send_cq: (*cq).clone(),
            recv_cq: (*cq).clone(),
            srq: None,
            xrcd: Some(xrcd.clone()),
            events: None,
            context: 0,
            cap,
            signal_all: false,
            block_self_multicast: false,
        });
        Arc::new(target.unwrap())
    }

    fn shared_target(port: &Arc<Port>, xrcd: &Xrcd) -> io::Result<Arc<Qp>> {
        let target = target(port, xrcd);
        port.share_target(xrcd, &target).map(|()| target)
    }

    fn place(port: &Port) -> String {
        let registry = &port.links.registry;
        name(registry.place(), registry.me())
    }

    fn open(xrcd: &Xrcd, number: Qpn) -> [u8; Message::LEN] {
        Message::Open { domain: xrcd.shared.name().unwrap(), number }.emit()
    }

    /// Goal: a target can be opened from its beginning to its end, whatever happens to others of its device. Method: two
    /// threads that make, open and end a target each, so that the last one often ends while another begins.
    #[test]
    fn targets_that_come_and_go_at_once_can_be_opened() {
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let come_and_go = || {
            for _ in 0..ROUNDS {
                let target = shared_target(&port, &xrcd).unwrap();
                let opener = connect(place(&port).as_bytes(), || false).unwrap();
                opener.send(&open(&xrcd, target.number()), &[]).unwrap();
                assert_eq!(next(&opener), Some(Message::Done));
                drop((opener, target));
                forget_ended_targets();
            }
        };
        thread::scope(|scope| {
            scope.spawn(come_and_go);
            scope.spawn(come_and_go);
        });
    }

    const ROUNDS: usize = 500;

    /// A listener of this name, once another test's child has let go of the last one, as it calls `exec`.
    fn bound(name: &str) -> unix::Listener {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match unix::Listener::bind(name.as_bytes()) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until =>
                {
                    thread::yield_now();
                }
                bound => return bound.unwrap(),
            }
        }
    }

    /// Goal: a target whose process ends while it is opened is not found, however far that has come. Method: a listener in
    /// place of the thread that goes at once, once it has a connection, and once it is asked.
    #[test]
    fn a_target_that_ends_while_it_is_opened_is_not_found() {
        let file = memory::memfd("domain", 1).unwrap();
        for (accepts, hears) in [(false, false), (true, false), (true, true)] {
            let port = port();
            let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
            let (target, domain) = (target(&port, &xrcd), xrcd.shared.name().unwrap());
            let (number, events) = (target.number(), port.create_event_queue().unwrap());
            let listener = bound(&place(&port));
            let found = thread::scope(|scope| {
                scope.spawn(move || {
                    readable(&listener);
                    let opener = accepts.then(|| listener.accept().unwrap());
                    if let Some(opener) = opener.filter(|_| hears) {
                        assert_eq!(next(&opener), Some(Message::Open { domain, number }));
                    }
                });
                RemoteTarget::open(&port, domain, number, &events, 0)
            });
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::NotFound, "{accepts} {hears}");
        }
    }

    /// Goal: a process that does not have the domain opens none of its targets, though it knows their names. Method: this
    /// test in another process.
    #[test]
    fn a_process_without_the_domain_opens_no_target() {
        const PLACE: &str = "PLACE_OF_TARGET";
        const MESSAGE: &str = "MESSAGE_TO_TARGET";
        if let (Ok(place), Ok(message)) = (std::env::var(PLACE), std::env::var(MESSAGE)) {
            let bytes: Vec<u8> = message.split(' ').map(|byte| byte.parse().unwrap()).collect();
            let stranger = Stream::connect(place.as_bytes()).unwrap();
            stranger.send(&bytes, &[]).unwrap();
            assert_eq!(next(&stranger), Some(Message::Refused(0)));
            return;
        }
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = shared_target(&port, &xrcd).unwrap();
        let message = open(&xrcd, target.number()).map(|byte| byte.to_string()).join(" ");
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.env(PLACE, place(&port)).env(MESSAGE, message);
        let test = thread::current().name().unwrap().to_owned();
        let output = command.args(["--exact", &test]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Goal: an opener that makes no sense is shown out, and what it had open is closed; others go on. Method: one that
    /// stays, and strangers that say what is no message, or not their turn.
    #[test]
    fn openers_that_make_no_sense_are_shown_out() {
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = shared_target(&port, &xrcd).unwrap();
        let place = place(&port);
        let (domain, number) = (xrcd.shared.name().unwrap(), target.number());
        let open = open(&xrcd, number);
        let connect = || connect(place.as_bytes(), || false).unwrap();

        let good = connect();
        good.send(&open, &[]).unwrap();
        assert_eq!(next(&good), Some(Message::Done));
        let elsewhere = DomainName::from_words([0; 5]);
        for unknown in [
            Message::Open { domain: elsewhere, number },
            Message::Open { domain, number: Qpn::new(number.get() ^ 1) },
        ] {
            let stranger = connect();
            stranger.send(&unknown.emit(), &[]).unwrap();
            assert_eq!(next(&stranger), Some(Message::Refused(0)));
        }
        let to_err = Message::Modify { to: QpState::Err, change: Change::default() };
        let (query, long) = (Message::Query.emit(), [1; 4096]);
        for nonsense in [&b"x"[..], &long, &to_err.emit(), &query, &Message::Done.emit()] {
            let stranger = connect();
            stranger.send(nonsense, &[]).unwrap();
            assert_eq!(next(&stranger), None);
        }
        let twice = connect();
        twice.send(&open, &[]).unwrap();
        twice.send(&open, &[]).unwrap();
        assert_eq!((next(&twice), next(&twice)), (Some(Message::Done), None));

        good.send(&query, &[]).unwrap();
        let Some(Message::Found { query, .. }) = next(&good) else {
            panic!("it is shown out with the others");
        };
        assert_eq!(query.state, QpState::Reset);
        drop(good);
        while Arc::strong_count(&target) > 1 {
            thread::yield_now();
        }
    }
}
