//! An XRC target of another process, seen from one that has opened it.

use super::message::Message;
use super::name;
use super::service::{Service, receive, service};
use crate::link::errors::ConnectError;
use crate::link::shm::handshake::connect;
use crate::objects::events::{Affiliation, Element, EventKind, EventQueue, Listener};
use crate::objects::qp::{Change, QpQuery};
use crate::progress::Port;
use crate::registry::DomainName;
use crate::sync::Mutex;
use adverb_engine::{Gid, QpState};
use adverb_sys::poll;
use adverb_sys::unix::Stream;
use adverb_wire::Qpn;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// A target of another process. Dropped, it is closed.
#[derive(Debug)]
pub struct RemoteTarget {
    number: Qpn,
    connection: Arc<Connection>,
    /// Answers to what is asked: one thread asks at a time.
    answers: Mutex<Receiver<Message>>,
    /// What was found last.
    last: Mutex<(QpQuery, bool)>,
    _listener: Listener,
}

/// The connection to the target's process.
#[derive(Debug)]
pub(super) struct Connection {
    service: Arc<Service>,
    stream: Stream,
    affiliation: Arc<Affiliation>,
    /// Where answers go; none once the target's process has ended.
    answers: Mutex<Option<SyncSender<Message>>>,
}

/// How long the target's process may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is seen of a target's process that ends, or closes the device.
const HUNG_UP: [io::ErrorKind; 4] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::UnexpectedEof,
];

impl RemoteTarget {
    pub(super) fn open(
        port: &Arc<Port>,
        domain: DomainName,
        number: Qpn,
        events: &Arc<EventQueue>,
        context: u64,
    ) -> io::Result<Self> {
        let (stream, (query, is_connected)) = opened(port, domain, number).map_err(|error| {
            match HUNG_UP.contains(&error.kind()) {
                true => io::ErrorKind::NotFound.into(),
                false => error,
            }
        })?;
        let (sender, answers) = sync_channel(1);
        let affiliation =
            Affiliation::new(Some(Arc::clone(events)), Element::Qp { number, context });
        let connection = Arc::new(Connection {
            service: service()?,
            stream,
            affiliation: Arc::clone(&affiliation),
            answers: Mutex::new(Some(sender)),
        });
        connection.service.attend_to(&connection)?;
        Ok(Self {
            number,
            connection,
            answers: Mutex::new(answers),
            last: Mutex::new((query, is_connected)),
            _listener: Listener::of(affiliation),
        })
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Goes to another state, or stays and changes attributes; without `to`, it stays.
    ///
    /// # Errors
    ///
    /// [`ConnectError::System`], with `InvalidInput` if the state or the attributes do not allow it; nothing has changed
    /// then. If the target's process has ended or does not answer, it is not known whether something has.
    pub fn modify(&self, to: Option<QpState>, change: &Change) -> Result<(), ConnectError> {
        let to = to.unwrap_or_else(|| self.query().0.state);
        match self.call(&Message::Modify { to, change: *change }).map_err(ConnectError::System)? {
            Message::Done => Ok(()),
            Message::Refused(0) => {
                Err(ConnectError::System(io::Error::new(io::ErrorKind::InvalidInput, REFUSED)))
            }
            Message::Refused(errno) => Err(ConnectError::System(io::Error::from_raw_os_error(
                i32::try_from(errno).unwrap_or(i32::MAX),
            ))),
            Message::Open { .. }
            | Message::Modify { .. }
            | Message::Query
            | Message::Found { .. }
            | Message::Event(_) => Err(ConnectError::System(ended())),
        }
    }

    /// What it is set to now, and its peer, once connected. In ERR, if its process has ended.
    pub fn query(&self) -> (QpQuery, Option<(Gid, Qpn)>) {
        let answer = self.call(&Message::Query);
        let mut last = self.last.lock();
        match answer {
            Ok(Message::Found { query, is_connected }) => *last = (query, is_connected),
            Ok(_) | Err(_) => last.0.state = QpState::Err,
        }
        let (query, is_connected) = *last;
        let settings = &query.settings;
        (query, is_connected.then_some((settings.remote_gid, settings.remote)))
    }

    fn call(&self, message: &Message) -> io::Result<Message> {
        let answers = self.answers.lock();
        if self.connection.has_ended() {
            return Err(ended());
        }
        self.connection.stream.send(&message.emit(), &[])?;
        answers.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Disconnected => ended(),
            RecvTimeoutError::Timeout => {
                self.connection.end(); // Its answer would be taken for that to another question.
                io::ErrorKind::TimedOut.into()
            }
        })
    }
}

const REFUSED: &str = "the state or the attributes do not allow it, says the target's process";

fn ended() -> io::Error {
    let message = "the process that has made the target has ended";
    io::Error::new(io::ErrorKind::BrokenPipe, message)
}

/// A connection that has the target open, and what it is set to.
fn opened(port: &Port, domain: DomainName, number: Qpn) -> io::Result<(Stream, (QpQuery, bool))> {
    let registry = &port.links.registry;
    let slot =
        registry.owner(number).filter(|slot| registry.holders(domain).any(|one| one == *slot));
    let maker = registry.member(slot.ok_or(io::ErrorKind::NotFound)?);
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let place = name(registry.place(), maker);
    let stream = connect(place.as_bytes(), || Instant::now() > deadline)?;
    if stream.peer()?.uid != registry.place().user() {
        return Err(io::ErrorKind::NotFound.into());
    }
    stream.send(&Message::Open { domain, number }.emit(), &[])?;
    let Message::Done = answer(&stream)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    stream.send(&Message::Query.emit(), &[])?;
    let Message::Found { query, is_connected } = answer(&stream)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok((stream, (query, is_connected)))
}

/// Waits for an answer, before events are listened to: those that come meanwhile are passed over.
fn answer(stream: &Stream) -> io::Result<Message> {
    loop {
        if !poll::readable(stream, std::iter::empty(), Some(ANSWER_TIMEOUT))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let message = receive(stream)?;
        if !matches!(message, Message::Event(_)) {
            return Ok(message);
        }
    }
}

impl Connection {
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    fn has_ended(&self) -> bool {
        self.answers.lock().is_none()
    }

    /// Takes what the target's process says; says whether there may be more.
    pub(super) fn listen(&self) -> bool {
        loop {
            match receive(&self.stream) {
                Ok(Message::Event(kind)) => self.affiliation.raise(kind),
                Ok(answer @ (Message::Done | Message::Refused(_) | Message::Found { .. })) => {
                    let answers = self.answers.lock();
                    if answers.as_ref().is_none_or(|answers| answers.try_send(answer).is_err()) {
                        drop(answers);
                        break; // It was not asked.
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(Message::Open { .. } | Message::Modify { .. } | Message::Query) | Err(_) => {
                    break;
                }
            }
        }
        self.end();
        false
    }

    /// The target is out of reach for good.
    fn end(&self) {
        if self.answers.lock().take().is_some() {
            self.service.forget(&self.stream);
            self.affiliation.raise(EventKind::QpFatal);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.service.forget(&self.stream);
    }
}
