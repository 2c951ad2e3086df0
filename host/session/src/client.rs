//! The side that connects.

use crate::adapter::{Adapter, Adapters};
use crate::auth::Role;
use crate::config::{self, Config};
use crate::connector::{self, Connector, Deadline, STRANGER_PATIENCE, unexpected};
use crate::endpoint::Endpoint;
use crate::error::{AdapterError, ConnectError, ConnectorError, SecretError, SetUpError};
use crate::frame::{Features, Frame, NONCE_BYTES, PROOF_BYTES, Reason, Refusal};
use crate::link::PeerInfo;
use crate::pipe::{CmWay, Pipe};
use crate::set_up::{self, Failure, Unlinked};
use adverb_verbs::cm;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tracing::debug;

/// Connects to servers, each an [`Endpoint`].
///
/// The example of the [crate](crate) has one.
#[derive(Clone, Debug)]
pub struct ClientSession {
    adapters: Arc<Adapters>,
}

impl ClientSession {
    /// A client with these settings. If they name no device, each connection opens the one that has its
    /// local address.
    ///
    /// # Errors
    ///
    /// [`AdapterError`].
    pub fn new(config: Config) -> Result<Self, AdapterError> {
        Ok(Self { adapters: Arc::new(Adapters::new(config)?) })
    }

    /// A client on an adapter that is open already.
    pub fn on(adapter: Adapter) -> Self {
        Self { adapters: Arc::new(Adapters::of(adapter)) }
    }

    /// The adapter of all its endpoints.
    ///
    /// # Errors
    ///
    /// [`AdapterError::NotOne`] if the device is chosen for each connection: then each endpoint has its
    /// adapter.
    pub fn adapter(&self) -> Result<&Adapter, AdapterError> {
        self.adapters.only()
    }

    /// Connects to a server. While there is none, or it is too busy, it tries again until the
    /// configured time is over.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(&self, to: impl ToSocketAddrs) -> Result<Endpoint, ConnectError> {
        let deadline = Deadline::after(self.adapters.config().timeouts.connect);
        let failed = |error| ConnectError::Address { error };
        let addresses: Vec<_> = to.to_socket_addrs().map_err(failed)?.collect();
        let mut attempt =
            Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        loop {
            for address in &addresses {
                attempt = self.try_connect(*address, deadline);
                if let Err(error) = &attempt {
                    debug!(%address, "{error}");
                }
                match &attempt {
                    Ok(_) => return attempt,
                    Err(error) if error.is_final() => return attempt,
                    Err(_) => {}
                }
            }
            if addresses.is_empty() || deadline.left() <= TRY_AGAIN {
                return attempt;
            }
            thread::sleep(TRY_AGAIN);
        }
    }

    fn try_connect(&self, to: SocketAddr, deadline: Deadline) -> Result<Endpoint, ConnectError> {
        let make = |adapter: &Adapter| set_up::make(adapter, adapter.channel_names());
        let Met { adapter, peer, connector, channels } = self.meet(to, deadline, &make)?;
        Endpoint::new(&adapter, peer, connector, channels, Some(to))
            .map_err(|error| ConnectError::Handshake { to, error })
    }

    /// Connects queue pairs that `make` makes to a server, once, and tries the first.
    pub(crate) fn meet(
        &self,
        to: SocketAddr,
        deadline: Deadline,
        make: Make<'_>,
    ) -> Result<Met, ConnectError> {
        let (pipe, local) = match self.adapters.config().connector {
            config::Connector::Cm => self.ask(to, deadline)?,
            config::Connector::Tcp => self.call(to, deadline)?,
        };
        let refused = |error| ConnectError::Handshake { to, error };
        let mut connector = Connector::new(pipe);
        match self.shake_hands(&mut connector, (local, to), deadline, make) {
            Ok((adapter, peer, channels)) => Ok(Met { adapter, peer, connector, channels }),
            Err(Failure::Connector(error)) => {
                connector.refuse(&error);
                Err(refused(error))
            }
            Err(Failure::SetUp(error)) => {
                let refusal = Refusal::new(Reason::Disagreement, &error.to_string());
                connector.part(&Frame::Refuse(refusal), STRANGER_PATIENCE);
                Err(ConnectError::SetUp { to, error })
            }
        }
    }

    /// A TCP connection, and its address here.
    fn call(&self, to: SocketAddr, deadline: Deadline) -> Result<(Pipe, SocketAddr), ConnectError> {
        let unreachable = |error| ConnectError::Unreachable { to, waited: deadline.allowed, error };
        // The standard library refuses to wait for no time at all.
        let left = deadline.left().max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&to, left).map_err(unreachable)?;
        let local = stream.local_addr().map_err(unreachable)?;
        // A connection to a free port of this host can meet itself.
        if local == to {
            return Err(unreachable(io::ErrorKind::ConnectionRefused.into()));
        }
        connector::mark(&stream, &self.adapters.config().adapter);
        Ok((Pipe::tcp(stream).map_err(unreachable)?, local))
    }

    /// A queue pair that connection management has connected, and its address here.
    fn ask(&self, to: SocketAddr, deadline: Deadline) -> Result<(Pipe, SocketAddr), ConnectError> {
        let unreachable = |error| ConnectError::Unreachable { to, waited: deadline.allowed, error };
        let named = self.adapters.only().ok().map(|adapter| adapter.place(to).ip());
        let source = named.map_or_else(|| cm::source(to), |ip| Ok(SocketAddr::new(ip, 0)));
        let source = source.map_err(unreachable)?;
        let class = self.adapters.config().adapter.traffic_class;
        let way = CmWay::find(to, source, class).map_err(unreachable)?;
        let local = way.local();
        let adapter = self.adapters.at(local);
        let adapter = adapter
            .map_err(|error| ConnectError::SetUp { to, error: SetUpError::Adapter(error) })?;
        let pipe = way.connect(adapter.context(), adapter.pd(), deadline.left());
        Ok((Pipe::Cm(Box::new(pipe.map_err(unreachable)?)), local))
    }

    fn shake_hands(
        &self,
        connector: &mut Connector,
        (local, to): (SocketAddr, SocketAddr),
        deadline: Deadline,
        make: Make<'_>,
    ) -> Result<(Adapter, PeerInfo, Vec<Unlinked>), Failure> {
        let adapter = self.adapters.at(local).map_err(SetUpError::Adapter)?;
        let (channels, place) = (make(&adapter)?, adapter.place(local));
        let (mtu, features) = (adapter.path_mtu(), Features::OURS);
        let hello = set_up::hello(&adapter, &channels, place, mtu, features)?;
        let hello = Frame::Hello(hello);
        connector.send(&hello, deadline)?;
        let mut proved = false;
        let theirs = loop {
            match connector.receive("Welcome", deadline)? {
                Frame::Challenge { nonce, proof } if !proved => {
                    let answer = self.answer(&hello, &nonce, &proof);
                    connector.send(&answer.map_err(ConnectorError::Secret)?, deadline)?;
                    proved = true;
                }
                Frame::Welcome(_) if !proved && self.adapters.config().secret.is_some() => {
                    return Err(ConnectorError::Secret(SecretError::Unasked).into());
                }
                Frame::Welcome(theirs) => break theirs,
                other @ (Frame::Hello(_)
                | Frame::Ready
                | Frame::Challenge { .. }
                | Frame::Proof(_)
                | Frame::Ping
                | Frame::Pong
                | Frame::Advertise(_)
                | Frame::Bye
                | Frame::Refuse(_)) => return Err(unexpected("Welcome", other).into()),
            }
        };
        let peer = set_up::agree(&adapter, place, &theirs, to)?;
        set_up::connect(&adapter, &channels, &peer)?;
        set_up::probe(&channels, &peer, deadline)?;
        connector.send(&Frame::Ready, deadline)?;
        Ok((adapter, peer, channels))
    }
}

impl ClientSession {
    /// The answer to a server's challenge, if the challenge proves that the server knows the secret.
    fn answer(
        &self,
        hello: &Frame,
        nonce: &[u8; NONCE_BYTES],
        proof: &[u8; PROOF_BYTES],
    ) -> Result<Frame, SecretError> {
        let secret = self.adapters.config().secret.as_ref().ok_or(SecretError::Missing)?;
        match secret.is_proved(Role::Server, hello, nonce, proof) {
            true => Ok(Frame::Proof(secret.prove(Role::Client, hello, nonce))),
            false => Err(SecretError::Wrong),
        }
    }
}

/// Makes the queue pairs of an endpoint.
pub(crate) type Make<'a> = &'a dyn Fn(&Adapter) -> Result<Vec<Unlinked>, SetUpError>;

/// A server that has been met.
pub(crate) struct Met {
    pub(crate) adapter: Adapter,
    pub(crate) peer: PeerInfo,
    pub(crate) connector: Connector,
    pub(crate) channels: Vec<Unlinked>,
}

impl ConnectError {
    /// Trying again would not help.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Unreachable { .. } => false,
            // The server went away just now, or does not listen; it may come back.
            Self::Handshake { error, .. } => match error {
                ConnectorError::Closed
                | ConnectorError::System { .. }
                | ConnectorError::Timeout { .. } => false,
                ConnectorError::Refused(refusal) => refusal.reason != Reason::Busy,
                ConnectorError::Frame(_)
                | ConnectorError::Secret(_)
                | ConnectorError::Unexpected { .. } => true,
            },
            Self::Address { .. }
            | Self::Exchange { .. }
            | Self::NotAClient
            | Self::SetUp { .. } => true,
        }
    }
}

const TRY_AGAIN: Duration = Duration::from_millis(20);
