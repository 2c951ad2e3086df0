//! XRC targets that several handles are of, in one process or in several. `ibv_open_qp`.
//!
//! A target of a domain can be opened by its number, and ends with the last that has it open. It stays in the process
//! that has made it, whose responder it is. Another process that opens it connects to that one's handshake thread
//! (`handshake.rs`), and is let in by its visits thread (`visits.rs`) if it has the domain open. The connection is its
//! handle, so that a process that is killed lets go as one that closes. By it the opener asks, and is answered; what is
//! asked, and how, is the affair of the library that the programs use ([`Serve`]). Events come by a second connection,
//! which the maker gives along when it lets the opener in; if the maker ends, so does that, and the target fails in the
//! opener. Openers send no descriptors: one that came could keep a connection from ending.
//!
//! Packets are none of its business: `xrc_home.rs` has those.

use crate::link::shm::handshake::receive;
use crate::link::shm::link::PeerId;
use crate::link::shm::visits::{Attended, Visit, without_descriptors};
use crate::objects::events::{Element, EventKind, EventQueue, Listener};
use crate::objects::xrc::Xrcd;
use crate::port::qp::Qp;
use crate::progress::Port;
use crate::registry::DomainName;
use crate::sync::Mutex;
use adverb_sys::fork::PerProcess;
use adverb_sys::poll;
use adverb_sys::unix::Stream;
use adverb_wire::Qpn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Does what another process asks of a target that it has opened, and answers. The request may be anything.
pub type Serve = fn(&Qp, &[u8]) -> Vec<u8>;

/// Another handle of an XRC target. `ibv_open_qp`.
#[derive(Debug)]
pub enum OpenTarget {
    /// It is of this process.
    Here {
        /// The target.
        target: Arc<Qp>,
        /// Hears of its events.
        listener: Listener,
    },
    /// It is of another process.
    There(RemoteTarget),
}

/// A target that can be opened.
#[derive(Debug)]
struct Shared {
    domain: Xrcd,
    number: Qpn,
    target: Weak<Qp>,
    serve: Serve,
}

/// Those of this process.
static TARGETS: PerProcess<Mutex<Vec<Shared>>> = PerProcess::new();

impl Port {
    /// From now on this target can be opened: by processes that have the domain open, if it is of a file, and by this
    /// one. What those processes ask, `serve` does.
    pub fn share_target(&self, domain: &Xrcd, target: &Arc<Qp>, serve: Serve) {
        self.handshake.admit(admit);
        let (domain, number, target) = (domain.clone(), target.number(), Arc::downgrade(target));
        TARGETS.get().lock().push(Shared { domain, number, target, serve });
    }

    /// Opens the target of this domain with this number. `events` hears of it, where it goes by `context`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such target; `TimedOut` if its process does not answer; no descriptors left.
    pub fn open_target(
        &self,
        domain: &Xrcd,
        number: Qpn,
        events: &Arc<EventQueue>,
        context: u64,
    ) -> io::Result<OpenTarget> {
        let listener = Listener::new(events, Element::Qp { number, context });
        if let Some((target, _)) = find(number, |known| known.is_same(domain)) {
            target.listen(&listener);
            return Ok(OpenTarget::Here { target, listener });
        }
        let name = domain.shared.name().ok_or(io::ErrorKind::NotFound)?;
        RemoteTarget::open(self, name, number, listener).map(OpenTarget::There)
    }
}

/// A target has ended: its domain is let go of.
pub(super) fn forget_ended_targets() {
    let mut targets = TARGETS.get().lock();
    let ended: Vec<_> = targets.extract_if(.., |known| known.target.strong_count() == 0).collect();
    drop(targets); // What ends with a domain may be a device.
    drop(ended);
}

/// The target with this number, if it has not ended.
fn find(number: Qpn, is_domain: impl Fn(&Xrcd) -> bool) -> Option<(Arc<Qp>, Serve)> {
    let targets = TARGETS.get().lock();
    let mut same =
        targets.iter().filter(|known| known.number == number && is_domain(&known.domain));
    // Only what is handed out is held: a handle that ended here, as the last, would ask for this lock.
    same.find_map(|known| Some((known.target.upgrade()?, known.serve)))
}

/// What an opener says first: which target, of which domain. Bytes that it cannot have written say nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Open {
    domain: DomainName,
    number: Qpn,
}

const MAGIC: u32 = u32::from_be_bytes(*b"advt");
/// Grows with every change of what openers and makers say; the library has a list of attributes, which is part of that.
const VERSION: u32 = 4;
/// The answer to an opener that is let in. The connection by which events come is with it.
const ADMITTED: &[u8] = b"adva";

impl Open {
    fn emit(self) -> Vec<u8> {
        let words = [MAGIC, VERSION, self.number.get()].into_iter().chain(self.domain.words());
        words.flat_map(u32::to_be_bytes).collect()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<4>() else { return None };
        let [magic, version, number, domain @ ..] = <[[u8; 4]; 8]>::try_from(words).ok()?;
        let known = [magic, version].map(u32::from_be_bytes) == [MAGIC, VERSION];
        let domain = DomainName::from_words(domain.map(u32::from_be_bytes));
        known.then_some(Self { domain, number: Qpn::new(u32::from_be_bytes(number)) })
    }
}

/// A target of this process that another has open.
#[derive(Debug)]
struct Opened {
    target: Arc<Qp>,
    serve: Serve,
    _listener: Listener,
}

/// Lets in a process that opens a target of a domain that it has open.
fn admit(process: u32, message: &[u8], stream: &Stream) -> io::Result<Arc<dyn Visit>> {
    let Open { domain, number } = Open::parse(message).ok_or(io::ErrorKind::InvalidData)?;
    let found = find(number, |known| known.shared.name() == Some(domain));
    let (target, serve) = found.ok_or(io::ErrorKind::NotFound)?;
    if !target.port.links.registry.is_held_by(domain, process) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let [events, theirs] = Stream::one_way()?;
    let listener = Listener::of_process(events);
    target.listen(&listener);
    stream.send(ADMITTED, &[theirs.as_fd()])?;
    Ok(Arc::new(Opened { target, serve, _listener: listener }))
}

impl Visit for Opened {
    fn attend(&self, stream: &Stream) -> io::Result<()> {
        let (request, fds) = receive(stream)?;
        without_descriptors(fds)?;
        stream.send(&(self.serve)(&self.target, &request), &[])
    }
}

/// A target of another process. Dropped, it is closed.
#[derive(Debug)]
pub struct RemoteTarget {
    number: Qpn,
    /// Where it is asked; none once its process has ended. One thread asks at a time.
    stream: Mutex<Option<Stream>>,
    listener: Arc<Mutex<Option<Listener>>>,
    _events: Attended,
}

/// The connection by which events of a target come.
#[derive(Debug)]
struct Events(Arc<Mutex<Option<Listener>>>);

/// How long the target's process may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is seen of a target's process that ends, closes the device, does not let us in, or is of another user.
const HUNG_UP: [io::ErrorKind; 5] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::InvalidData,
    io::ErrorKind::UnexpectedEof,
];

impl RemoteTarget {
    fn open(port: &Port, domain: DomainName, number: Qpn, listener: Listener) -> io::Result<Self> {
        let registry = &port.links.registry;
        let slot =
            registry.owner(number).filter(|slot| registry.holders(domain).any(|one| one == *slot));
        let slot = slot.ok_or(io::ErrorKind::NotFound)?;
        let maker = PeerId { slot, nonce: registry.nonce(slot) };
        let until = Instant::now() + ANSWER_TIMEOUT;
        let asked = || {
            let stream = port.handshake.connect(maker, || Instant::now() > until)?;
            stream.send(&Open { domain, number }.emit(), &[])?;
            let (said, fds) = hear(&stream)?;
            let events = fds.into_iter().next().filter(|_| said == ADMITTED);
            Ok::<_, io::Error>((stream, Stream::of(events.ok_or(io::ErrorKind::InvalidData)?)?))
        };
        let (stream, events) = asked().map_err(|error| match HUNG_UP.contains(&error.kind()) {
            true => io::ErrorKind::NotFound.into(),
            false => error,
        })?;
        let listener = Arc::new(Mutex::new(Some(listener)));
        let heard = Arc::new(Events(Arc::clone(&listener)));
        let events = port.handshake.attend_to(events, heard)?;
        Ok(Self { number, stream: Mutex::new(Some(stream)), listener, _events: events })
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Asks its process something, and waits for the answer.
    ///
    /// # Errors
    ///
    /// It has ended, or does not answer: it is not known whether it has done what was asked, and the target is out of
    /// reach for good.
    pub fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.stream.lock();
        let asked = stream.as_ref().ok_or(io::ErrorKind::BrokenPipe.into());
        let answered = asked.and_then(|stream| {
            stream.send(request, &[])?;
            answer(stream)
        });
        answered.map_err(|error: io::Error| {
            *stream = None; // A late answer would be taken for that to another question.
            let has_ended = error.kind() != io::ErrorKind::TimedOut;
            if has_ended { io::Error::new(io::ErrorKind::BrokenPipe, ENDED) } else { error }
        })
    }
}

const ENDED: &str = "the process that has made the target has ended";

/// Waits for an answer.
fn answer(stream: &Stream) -> io::Result<Vec<u8>> {
    hear(stream).map(|(answer, _)| answer)
}

/// Waits for a message, and what comes along.
fn hear(stream: &Stream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    if !poll::readable(stream, std::iter::empty(), Some(ANSWER_TIMEOUT))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    receive(stream)
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        *self.listener.lock() = None; // It hears no more, not even of the end.
    }
}

impl Visit for Events {
    fn attend(&self, stream: &Stream) -> io::Result<()> {
        let (message, _) = receive(stream)?;
        let [code] = *message else { return Err(io::ErrorKind::InvalidData.into()) };
        let kind = EventKind::of_code(code).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(listener) = &*self.0.lock() {
            listener.hear(kind);
        }
        Ok(())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(listener) = &*self.0.lock() {
            listener.hear(EventKind::QpFatal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::path::{PathChoice, PortConfig};
    use crate::link::shm::handshake::name;
    use crate::memory::local::Sge;
    use crate::objects::cq::CqConfig;
    use crate::objects::qp::{QpCap, QpConfig};
    use crate::objects::srq::SrqConfig;
    use crate::objects::work::ReceiveWork;
    use crate::objects::xrc::{OpenXrcd, Targets};
    use crate::sync::{AtomicBool, Ordering};
    use adverb_engine::QpType;
    use adverb_sys::{memory, unix};
    use std::thread;

    fn port() -> Arc<Port> {
        port_by(PathChoice::Udp)
    }

    fn port_by(path: PathChoice) -> Arc<Port> {
        let config = PortConfig { path: Some(path), exclusive: true };
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

    /// A target of this process, which answers with what it is asked.
    fn shared_target(port: &Arc<Port>, xrcd: &Xrcd) -> Arc<Qp> {
        let target = target(port, xrcd);
        port.share_target(xrcd, &target, |_, request| request.to_vec());
        target
    }

    fn id(port: &Port) -> PeerId {
        let registry = &port.links.registry;
        PeerId { slot: registry.slot(), nonce: registry.nonce(registry.slot()) }
    }

    fn place(port: &Port) -> String {
        name(port.links.registry.place(), id(port))
    }

    fn open(xrcd: &Xrcd, number: Qpn) -> Vec<u8> {
        Open { domain: xrcd.shared.name().unwrap(), number }.emit()
    }

    /// One that has said this.
    fn stranger(port: &Port, message: &[u8]) -> Stream {
        let stranger = Stream::connect(place(port).as_bytes()).unwrap();
        stranger.send(message, &[]).unwrap();
        stranger
    }

    /// An opener that is let in, and what its events come by.
    fn opener(port: &Port, message: &[u8]) -> (Stream, Stream) {
        let opener = stranger(port, message);
        let (said, fds) = hear(&opener).unwrap();
        assert_eq!((&said[..], fds.len()), (ADMITTED, 1));
        (opener, Stream::of(fds.into_iter().next().unwrap()).unwrap())
    }

    /// Nothing holds the target but this.
    fn wait_until_alone(target: &Arc<Qp>) {
        while Arc::strong_count(target) > 1 {
            thread::yield_now();
        }
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
                let target = shared_target(&port, &xrcd);
                drop(opener(&port, &open(&xrcd, target.number())));
            }
        };
        thread::scope(|scope| {
            scope.spawn(come_and_go);
            scope.spawn(come_and_go);
        });
    }

    const ROUNDS: usize = 500;

    /// Goal: a target whose process ends while it is opened is not found, however far that has come. Method: a listener in
    /// place of the thread that goes at once, once it has a connection, and once it is asked.
    #[test]
    fn a_target_that_ends_while_it_is_opened_is_not_found() {
        let file = memory::memfd("domain", 1).unwrap();
        for (accepts, hears) in [(false, false), (true, false), (true, true)] {
            let port = port();
            let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
            let (target, domain) = (target(&port, &xrcd), xrcd.shared.name().unwrap());
            let number = target.number();
            let element = Element::Qp { number, context: 0 };
            let heard = Listener::new(&port.create_event_queue().unwrap(), element);
            port.links.registry.set_shm(0, adverb_sys::random::number(), 0);
            let listener = unix::Listener::bind(place(&port).as_bytes()).unwrap();
            let found = thread::scope(|scope| {
                scope.spawn(move || {
                    let time = Some(ANSWER_TIMEOUT);
                    assert!(poll::readable(&listener, std::iter::empty(), time).unwrap());
                    let opener = accepts.then(|| listener.accept().unwrap());
                    if let Some(opener) = opener.filter(|_| hears) {
                        let said = Open::parse(&answer(&opener).unwrap());
                        assert_eq!(said, Some(Open { domain, number }));
                    }
                });
                RemoteTarget::open(&port, domain, number, heard)
            });
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::NotFound, "{accepts} {hears}");
        }
    }

    /// Goal: a proxy does not keep its domain open, whatever comes late from the target's process, and finds the queues of
    /// the domain when it is opened again. It has to go if a queue ends whose receive it fills.
    #[test]
    fn a_proxy_keeps_no_domain_open() {
        let port = port();
        let cq = port.create_cq(&CqConfig { capacity: 1, ..Default::default() });
        let file = memory::memfd("domain", 1).unwrap();
        let config = SrqConfig { domain: 1, context: 0, max_wr: 1, max_sge: 1, events: None };
        let queue = |xrcd: &Xrcd| {
            let srq = port.create_xrc_srq(&config, xrcd, &cq).unwrap();
            let sges = [Sge { addr: 0, len: 8, lkey: 1 }];
            srq.post_receive(&[ReceiveWork { wr_id: 1, sges: &sges, buffer: None }]).unwrap();
            let number = Qpn::new(srq.number());
            (srq, number)
        };

        let xrcd = port.open_xrcd(&file, OpenXrcd::CreateNew).unwrap();
        let name = xrcd.shared.name().unwrap();
        let mut idle = Targets::new(&Xrcd::known(name, &port.progress()));
        let mut filling = Targets::new(&Xrcd::known(name, &port.progress()));
        let (srq, number) = queue(&xrcd);
        assert!(idle.meet(number).is_some() && filling.take(number).is_ok());
        srq.close();
        assert!(!idle.forget_gone() && filling.forget_gone());
        assert!(filling.forget_gone(), "it says so as long as it fills the receive");
        drop((srq, filling));
        assert_eq!(idle.meet(number), None);
        let mut late = Targets::new(&Xrcd::known(name, &port.progress()));
        drop(xrcd);
        assert_eq!(port.links.registry.holders(name).count(), 0);
        let refused = port.open_xrcd(&file, OpenXrcd::Existing).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);

        let xrcd = port.open_xrcd(&file, OpenXrcd::CreateNew).unwrap();
        let (_srq, number) = queue(&xrcd);
        assert!(idle.take(number).is_ok() && late.meet(number).is_some());
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
            assert_eq!(answer(&stranger).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            return;
        }
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = shared_target(&port, &xrcd);
        let message: Vec<_> =
            open(&xrcd, target.number()).iter().map(|byte| byte.to_string()).collect();
        let message = message.join(" ");
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.env(PLACE, place(&port)).env(MESSAGE, message);
        let test = thread::current().name().unwrap().to_owned();
        let output = command.args(["--exact", &test]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Goal: an opener that makes no sense is shown out; others go on. Method: one that stays, and strangers that say what is
    /// no message.
    #[test]
    fn openers_that_make_no_sense_are_shown_out() {
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = shared_target(&port, &xrcd);
        let (domain, number) = (xrcd.shared.name().unwrap(), target.number());
        let open = open(&xrcd, number);

        let (good, events) = opener(&port, &open);
        let elsewhere = Open { domain: DomainName::from_words([0; 5]), number };
        let unknown = Open { domain, number: Qpn::new(number.get() ^ 1) };
        let other = open.iter().map(|byte| byte ^ 0x55).collect();
        for nonsense in [elsewhere.emit(), unknown.emit(), vec![1; 4096], b"x".to_vec(), other] {
            assert!(answer(&stranger(&port, &nonsense)).is_err(), "{nonsense:?}");
        }

        good.send(b"a question", &[]).unwrap();
        assert_eq!(answer(&good).unwrap(), b"a question");
        target.to_err();
        let heard = answer(&events).unwrap();
        assert_eq!(EventKind::of_code(heard[0]), Some(EventKind::LastWqeReached));
        drop(good);
        assert_eq!(answer(&events).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        wait_until_alone(&target);
    }

    /// Goal: an opener cannot keep a target in its maker by a descriptor of its own connection that it leaves there.
    /// Method: one that sends it with its first message, with a question, and by where its events come from, and ends.
    #[test]
    fn a_connection_that_is_sent_to_the_maker_ends_with_its_opener() {
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = shared_target(&port, &xrcd);
        let open = open(&xrcd, target.number());

        let early = Stream::connect(place(&port).as_bytes()).unwrap();
        early.send(&open, &[early.as_fd()]).unwrap();
        assert!(answer(&early).is_err());

        let (late, events) = opener(&port, &open);
        late.send(b"a question", &[late.as_fd(), events.as_fd()]).unwrap();
        assert!(answer(&late).is_err());

        let (aside, events) = opener(&port, &open);
        assert!(events.send(b"x", &[aside.as_fd(), events.as_fd()]).is_err());
        drop(aside);
        assert_eq!(answer(&events).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        wait_until_alone(&target);
    }

    /// Goal: what an opener has to wait for holds up no neighbour. Method: an answer that waits until a link is made.
    #[test]
    fn a_question_that_waits_holds_up_no_link() {
        static MET: AtomicBool = AtomicBool::new(false);
        let [here, there] = [PathChoice::Auto; 2].map(port_by);
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = there.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let target = target(&there, &xrcd);
        there.share_target(&xrcd, &target, |_, request| {
            while !MET.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            request.to_vec()
        });
        let (opener, _events) = opener(&there, &open(&xrcd, target.number()));
        opener.send(b"a question", &[]).unwrap();
        let has_met = here.meet(id(&there)).is_some();
        MET.store(true, Ordering::Relaxed);
        assert!(has_met);
        assert_eq!(answer(&opener).unwrap(), b"a question");
    }

    /// Goal: a target that ends while another one is sought is let go of by its last handle, wherever that is. Method: one
    /// thread that makes and ends targets, and one that seeks.
    #[test]
    fn a_target_that_ends_while_another_is_sought_ends() {
        let port = port();
        let file = memory::memfd("domain", 1).unwrap();
        let xrcd = port.open_xrcd(&file, OpenXrcd::Create).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let target = shared_target(&port, &xrcd);
                    thread::sleep(Duration::from_micros(50)); // So that it is come across.
                    drop(target);
                }
                ends.store(true, Ordering::Relaxed);
            });
            while !ends.load(Ordering::Relaxed) {
                assert!(find(Qpn::new(0), |known| known.is_same(&xrcd)).is_none());
            }
        });
    }
}
