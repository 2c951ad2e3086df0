//! The side that is connected to.
//!
//! The device of each endpoint is the one that has the local address of its connection, unless the
//! settings name one. Newcomers are served side by side, so that one that says nothing keeps no other waiting. Each
//! has a deadline; one that misses it, or says something else than a client does, is told so and gone. If there are
//! too many, the oldest that has not said Hello goes; if all have, the one that has owed its last word the
//! longest, and for longer than [`READY_TIME`].

use crate::adapter::{Adapter, Adapters};
use crate::auth::{self, Role, Secret};
use crate::config::{self, Config};
use crate::connector::{self, Connector, Deadline, STRANGER_PATIENCE, system, unexpected};
use crate::endpoint::Endpoint;
use crate::error::{AcceptError, AdapterError, BindError, ConnectorError, SecretError, SetUpError};
use crate::frame::{Frame, Hello, NONCE_BYTES, Name, Reason, Refusal};
use crate::link::PeerInfo;
use crate::pipe::{CmDoor, Door, Pipe};
use crate::set_up::{self, Failure, Unlinked};
use adverb_sys::epoll::{Epoll, Events, Interest};
use adverb_sys::eventfd::EventFd;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// Accepts clients, each an [`Endpoint`].
///
/// The example of the [crate](crate) has one; [`Handler`](crate::Handler) has one that serves.
#[derive(Debug)]
pub struct ServerSession {
    door: Door,
    local_addr: SocketAddr,
    epoll: Epoll,
    /// The oldest first.
    newcomers: Vec<Newcomer>,
    bell: Option<Arc<EventFd>>,
    adapters: Adapters,
}

/// What can happen to a server.
#[derive(Debug)]
pub(crate) enum Next {
    Came(Endpoint),
    Refused(AcceptError),
    Bell,
    Timeout,
}

/// What a server finds when it looks.
#[derive(Debug)]
pub(crate) enum Look {
    /// A newcomer is an endpoint, or will not be one.
    Done(Result<Endpoint, AcceptError>),
    /// There may be more to hear.
    More,
    /// There is nothing to do until the descriptor is readable, or a newcomer's time is over.
    Nothing,
}

/// A connection that is not an endpoint yet.
#[derive(Debug)]
struct Newcomer {
    from: SocketAddr,
    /// The address that it came to.
    local: SocketAddr,
    connector: Connector,
    deadline: Deadline,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It has not said Hello.
    Silent,
    /// It has, and was asked whether it knows the secret. It has no queue pairs here as yet.
    Challenged { hello: Frame, nonce: [u8; NONCE_BYTES] },
    /// It was answered, and has not said that it can receive.
    Answered { adapter: Adapter, peer: PeerInfo, channels: Vec<Unlinked>, since: Instant },
}

impl ServerSession {
    /// A server that listens on `address`; port 0 takes a free one. If the settings name no device, it
    /// uses the one that has this address; a server on all addresses chooses it for each client, by the
    /// address that the client has come to.
    ///
    /// # Errors
    ///
    /// [`BindError`].
    pub fn bind(address: impl ToSocketAddrs, config: Config) -> Result<Self, BindError> {
        let adapters = Adapters::new(config)?;
        let mut server = Self::listen(address, adapters)?;
        let local = server.local_addr;
        if server.adapters.only().is_err() && !local.ip().is_unspecified() {
            let config = server.adapters.config().clone();
            server.adapters = Adapters::of(Adapter::open_at(local, config)?);
        }
        Ok(server)
    }

    /// A server on an adapter that is open already.
    ///
    /// # Errors
    ///
    /// [`BindError::Listen`].
    pub fn bind_on(address: impl ToSocketAddrs, adapter: Adapter) -> Result<Self, BindError> {
        Self::listen(address, Adapters::of(adapter))
    }

    fn listen(address: impl ToSocketAddrs, adapters: Adapters) -> Result<Self, BindError> {
        let unknown = |error| BindError::Listen { addresses: Vec::new(), error };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(unknown)?.collect();
        let failed = |error| BindError::Listen { addresses: addresses.clone(), error };
        let door = open_door(&addresses, adapters.config()).map_err(failed)?;
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(&door, 0, Interest::Readable).map_err(failed)?;
        let local_addr = door.local().map_err(failed)?;
        info!(address = %local_addr, "server listens");
        Ok(Self { local_addr, door, epoll, newcomers: Vec::new(), bell: None, adapters })
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The adapter of all its endpoints.
    ///
    /// # Errors
    ///
    /// [`AdapterError::NotOne`] if the device is chosen for each client: then each endpoint has its
    /// adapter.
    pub fn adapter(&self) -> Result<&Adapter, AdapterError> {
        self.adapters.only()
    }

    pub(crate) fn config(&self) -> &Config {
        self.adapters.config()
    }

    /// Waits for the next client.
    ///
    /// # Errors
    ///
    /// [`AcceptError`], once for each that did not become an endpoint, except those that were too many. The
    /// server goes on: call again.
    pub fn accept(&mut self, timeout: Duration) -> Result<Endpoint, AcceptError> {
        match self.next(Some(Deadline::after(timeout))) {
            Next::Came(endpoint) => Ok(endpoint),
            Next::Refused(error) => Err(error),
            Next::Bell | Next::Timeout => Err(AcceptError::Timeout { waited: timeout }),
        }
    }

    /// Waits for what happens next.
    pub(crate) fn next(&mut self, deadline: Option<Deadline>) -> Next {
        let failed = |error| Next::Refused(AcceptError::Listen { error });
        let mut events = Events::with_capacity(NEWCOMERS_MAX + 2);
        loop {
            let look = self.look();
            match look {
                Look::Done(Ok(endpoint)) => return Next::Came(endpoint),
                Look::Done(Err(error)) => return Next::Refused(error),
                Look::More | Look::Nothing => {}
            }
            if deadline.is_some_and(|deadline| deadline.has_passed()) {
                return Next::Timeout;
            }
            if matches!(look, Look::More) {
                continue;
            }
            let most =
                self.patience().into_iter().chain(deadline.map(|deadline| deadline.left())).min();
            // Rounded up, so that a deadline has passed when it wakes us.
            let most = most.map(|most| most.saturating_add(Duration::from_millis(1)));
            if let Err(error) = self.epoll.wait(&mut events, most) {
                return failed(error);
            }
            if let Some(bell) = &self.bell
                && events.iter().any(|event| event.token == BELL)
            {
                let _ = bell.drain();
                return Next::Bell;
            }
        }
    }

    /// Hears what newcomers have to say, and lets others in, without waiting.
    pub(crate) fn look(&mut self) -> Look {
        if let Some(finished) = self.serve_newcomers() {
            return Look::Done(finished);
        }
        // Only now, when all that newcomers have said was heard: one of them may have to go.
        match self.let_in() {
            Ok(true) => Look::More,
            Ok(false) => Look::Nothing,
            Err(error) => Look::Done(Err(AcceptError::Listen { error })),
        }
    }

    /// How long until a newcomer's deadline has passed; `None` if there is no newcomer.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.newcomers.iter().map(|newcomer| newcomer.deadline.left()).min()
    }

    /// Readable when there is something to hear.
    #[cfg(feature = "tokio")]
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A bell that wakes a thread that waits for clients.
    pub(crate) fn bell(&mut self) -> io::Result<Arc<EventFd>> {
        let bell = Arc::new(EventFd::new()?);
        self.epoll.add(&*bell, BELL, Interest::Readable)?;
        self.bell = Some(Arc::clone(&bell));
        Ok(bell)
    }

    /// Lets in as many of those that knock as there are places, or one if there is none. Whether any
    /// came.
    fn let_in(&mut self) -> io::Result<bool> {
        let mut came = false;
        for _ in 0..NEWCOMERS_MAX.saturating_sub(self.newcomers.len()).max(1) {
            match self.knock()? {
                Knock::Guest(guest) => {
                    came = true;
                    self.welcome(guest)?;
                }
                Knock::Gone => came = true,
                Knock::Nothing => break,
            }
        }
        Ok(came)
    }

    /// Opens to the next that knocks.
    fn knock(&self) -> io::Result<Knock> {
        match &self.door {
            Door::Cm(door) => {
                let Some(guest) = door.next() else {
                    return Ok(Knock::Nothing);
                };
                let (local, from) = (guest.local(), guest.peer());
                let let_in = || {
                    let adapter = self.adapters.at(local).ok()?;
                    let accepted = guest.accept(adapter.context(), adapter.pd());
                    accepted.inspect_err(|error| debug!("a request is refused: {error}")).ok()
                };
                let guest = from.zip(let_in());
                Ok(guest.map_or(Knock::Gone, |(from, pipe)| {
                    Knock::Guest(Guest { pipe: Pipe::Cm(Box::new(pipe)), from, local })
                }))
            }
            Door::Tcp(listener) => match listener.accept() {
                Ok((stream, from)) => {
                    let guest = stream.local_addr().and_then(|local| {
                        Ok(Knock::Guest(Guest { pipe: Pipe::tcp(stream)?, from, local }))
                    });
                    Ok(guest.unwrap_or(Knock::Gone))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Knock::Nothing),
                // A connection was given up while it waited, or a signal came.
                Err(error)
                    if [ErrorKind::ConnectionAborted, ErrorKind::Interrupted]
                        .contains(&error.kind()) =>
                {
                    Ok(Knock::Gone)
                }
                Err(error) => Err(error),
            },
        }
    }

    fn welcome(&mut self, Guest { pipe, from, local }: Guest) -> io::Result<()> {
        let mut connector = Connector::new(pipe);
        if self.newcomers.len() >= NEWCOMERS_MAX && !self.make_room() {
            connector.part(&busy(), STRANGER_PATIENCE);
            return Ok(());
        }
        debug!(%from, "a connection has come");
        self.epoll.add(&**connector.stream(), 1, Interest::Readable)?;
        self.newcomers.push(Newcomer {
            from,
            local,
            connector,
            deadline: Deadline::after(self.adapters.config().timeouts.handshake),
            stage: Stage::Silent,
        });
        Ok(())
    }

    /// Sends away the oldest of those that have not said Hello, or not proved that they know the secret; or else the one that was
    /// answered the longest ago, if it has had time to say that it can receive. False if there is none.
    fn make_room(&mut self) -> bool {
        let is_unknown = |n: &Newcomer| !matches!(n.stage, Stage::Answered { .. });
        let oldest = self.newcomers.iter().position(is_unknown);
        let Some(at) = oldest.or_else(|| self.longest_answered()) else {
            return false;
        };
        let mut newcomer = self.remove(at);
        debug!(from = %newcomer.from, "there are too many newcomers: the oldest has to go");
        newcomer.connector.part(&busy(), STRANGER_PATIENCE);
        true
    }

    /// The newcomer that was answered the longest ago, and [`READY_TIME`] at least.
    fn longest_answered(&self) -> Option<usize> {
        let answered = self.newcomers.iter().enumerate().filter_map(|(at, n)| match n.stage {
            Stage::Answered { since, .. } => Some((since, at)),
            Stage::Silent | Stage::Challenged { .. } => None,
        });
        let (since, at) = answered.min()?;
        (since.elapsed() >= READY_TIME).then_some(at)
    }

    fn remove(&mut self, at: usize) -> Newcomer {
        let newcomer = self.newcomers.remove(at);
        // It may be closed already, and is forgotten then by itself.
        let _ = self.epoll.remove(&**newcomer.connector.stream());
        newcomer
    }

    /// Hears what newcomers have to say, until one of them is done one way or the other.
    fn serve_newcomers(&mut self) -> Option<Result<Endpoint, AcceptError>> {
        for at in 0..self.newcomers.len() {
            let newcomer = self.newcomers.get_mut(at)?;
            let step = newcomer.step(&self.adapters);
            if matches!(step, Ok(Step::Wait)) {
                continue;
            }
            let finished = self.remove(at).finish(step);
            if let Err(error) = &finished {
                warn!("{error}");
            }
            return Some(finished);
        }
        None
    }
}

/// What is at the door.
enum Knock {
    Guest(Guest),
    /// It has gone again.
    Gone,
    Nothing,
}

/// A connection that has come.
struct Guest {
    pipe: Pipe,
    from: SocketAddr,
    local: SocketAddr,
}

/// Listens on the first of the addresses that can be had.
fn open_door(addresses: &[SocketAddr], config: &Config) -> io::Result<Door> {
    match config.connector {
        config::Connector::Cm => {
            let class = config.adapter.traffic_class;
            let mut result = Err(ErrorKind::AddrNotAvailable.into());
            for address in addresses {
                result = CmDoor::bind(*address, BACKLOG, class).map(Door::Cm);
                if result.is_ok() {
                    break;
                }
            }
            result
        }
        config::Connector::Tcp => {
            let listener = TcpListener::bind(addresses)?;
            listener.set_nonblocking(true)?;
            connector::mark(&listener, &config.adapter);
            Ok(Door::Tcp(listener))
        }
    }
}

/// Where a newcomer stands.
enum Step {
    Wait,
    Done,
}

impl Newcomer {
    /// Goes as far as it goes without waiting.
    fn step(&mut self, adapters: &Adapters) -> Result<Step, Failure> {
        while let Some(frame) = self.connector.try_receive()? {
            match (&self.stage, frame) {
                (Stage::Silent, hello @ Frame::Hello(_)) if adapters.config().secret.is_some() => {
                    self.challenge(adapters, hello)?;
                }
                (Stage::Silent, Frame::Hello(theirs)) => self.answer(adapters, &theirs)?,
                (Stage::Challenged { hello, nonce }, Frame::Proof(proof)) => {
                    let secret = adapters.config().secret.as_ref();
                    let good = |s: &Secret| s.is_proved(Role::Client, hello, nonce, &proof);
                    let Some(Frame::Hello(theirs)) = secret.is_some_and(good).then_some(hello)
                    else {
                        return Err(ConnectorError::Secret(SecretError::Wrong).into());
                    };
                    let theirs = theirs.clone();
                    self.answer(adapters, &theirs)?;
                }
                (Stage::Answered { .. }, Frame::Ready) => return Ok(Step::Done),
                (_, other) => return Err(unexpected(self.due(), other).into()),
            }
        }
        match self.deadline.has_passed() {
            false => Ok(Step::Wait),
            true => Err(Failure::Connector(ConnectorError::Timeout {
                due: self.due(),
                waited: self.deadline.allowed,
            })),
        }
    }

    fn due(&self) -> &'static str {
        match self.stage {
            Stage::Silent => "Hello",
            Stage::Challenged { .. } => "Proof",
            Stage::Answered { .. } => "Ready",
        }
    }

    /// Shows that this side knows the secret, and asks whether the newcomer does.
    fn challenge(&mut self, adapters: &Adapters, hello: Frame) -> Result<(), Failure> {
        let nonce = auth::nonce().map_err(system("get random bytes"))?;
        if let Some(secret) = &adapters.config().secret {
            let proof = secret.prove(Role::Server, &hello, &nonce);
            self.connector.send(&Frame::Challenge { nonce, proof }, at_once())?;
        }
        self.stage = Stage::Challenged { hello, nonce };
        Ok(())
    }

    fn answer(&mut self, adapters: &Adapters, theirs: &Hello) -> Result<(), Failure> {
        let adapter = adapters.at(self.local).map_err(SetUpError::Adapter)?;
        let place = adapter.place(self.local);
        let peer = set_up::agree(&adapter, place, theirs, self.from)?;
        let names: Vec<Name> = theirs.channels.iter().map(|c| c.name.clone()).collect();
        let channels = set_up::make(&adapter, &names)?;
        set_up::connect(&adapter, &channels, &peer)?;
        let ours = set_up::hello(&adapter, &channels, place, peer.path_mtu, peer.features)?;
        self.connector.send(&Frame::Welcome(ours), at_once())?;
        self.stage = Stage::Answered { adapter, peer, channels, since: Instant::now() };
        Ok(())
    }

    fn finish(mut self, step: Result<Step, Failure>) -> Result<Endpoint, AcceptError> {
        let from = self.from;
        match (step, self.stage) {
            (Ok(_), Stage::Answered { adapter, peer, channels, .. }) => {
                Endpoint::new(&adapter, peer, self.connector, channels, None)
                    .map_err(|error| AcceptError::Stranger { from, error })
            }
            (Ok(_), Stage::Silent | Stage::Challenged { .. }) => {
                unreachable!("only a connection that was answered can be done")
            }
            (Err(Failure::Connector(error)), _) => {
                self.connector.refuse(&error);
                Err(AcceptError::Stranger { from, error })
            }
            (Err(Failure::SetUp(error)), _) => {
                let refusal = Refusal::new(Reason::Disagreement, &error.to_string());
                self.connector.part(&Frame::Refuse(refusal), STRANGER_PATIENCE);
                Err(AcceptError::SetUp { from, error })
            }
        }
    }
}

/// Frames to newcomers are sent at once or not at all: others would wait meanwhile. An empty connection has
/// room for the longest.
fn at_once() -> Deadline {
    Deadline::after(Duration::ZERO)
}

fn busy() -> Frame {
    Frame::Refuse(Refusal::new(Reason::Busy, "the server is busy with others: try again"))
}

const BELL: u64 = 2;
/// How long a newcomer that was answered keeps its place when there is none left for others. A client needs a round
/// trip, unless its packets are lost on the way.
const READY_TIME: Duration = Duration::from_secs(1);
/// Newcomers at once. More of them are told to come back, if none has to go.
const NEWCOMERS_MAX: usize = 64;
/// Requests that wait to be let in.
const BACKLOG: u32 = 128;
