//! Futures that set endpoints up and end them: accept, connect, open, close.
//!
//! A server's task waits on the server's descriptors. A client's connects on a thread of the runtime for
//! calls that block, because its name may have to be looked up. What is waited for by a channel or a
//! messenger is in `futures.rs`.
//!
//! # Safety
//!
//! The runtime asks that a descriptor it was given stays the same and open while it has it. It is
//! given an [`OwnedFd`], by value, which nothing else can close.

use super::{AsyncChannel, AsyncMessenger};
use crate::buffer::Buffer;
use crate::client::ClientSession;
use crate::connector::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{AcceptError, ChannelError, ConnectError, ExchangeError, MessageError};
use crate::frame::Name;
use crate::messenger::{MessengerConfig, Opening};
use crate::remote::RemoteBuffer;
use crate::server::{Look, ServerSession};
use std::future::{Future, poll_fn};
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A server that a task waits on.
///
/// ```
/// use adverb_session::{AsyncClientSession, AsyncServerSession, ClientSession, Config};
/// use adverb_session::{MessengerConfig, ServerSession};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let config = Config::default();
/// let mut server = AsyncServerSession::new(ServerSession::bind("127.0.0.1:0", config.clone())?)?;
/// let address = server.session().local_addr();
/// let serving = tokio::spawn(async move {
///     let endpoint = server.accept().await?;
///     let messages = endpoint.messenger("data", MessengerConfig::default()).await?;
///     let message = messages.recv().await?;
///     messages.send(&message.to_vec()).await?;
///     messages.close().await?;
///     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// });
/// let client = AsyncClientSession::new(ClientSession::new(config)?);
/// let endpoint = client.connect(address).await?;
/// let messages = endpoint.messenger("data", MessengerConfig::default()).await?;
/// messages.send(b"hello").await?;
/// assert_eq!(messages.recv().await?.to_vec(), b"hello");
/// serving.await?.expect("the server is content");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncServerSession {
    session: ServerSession,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncServerSession {
    /// Lets a task of the current runtime wait for clients of `session`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(session: ServerSession) -> io::Result<Self> {
        let fd = session.descriptor().try_clone_to_owned()?;
        // SAFETY: the runtime owns the only handle of an open descriptor, and an `OwnedFd` names the same one for as
        // long as it lives.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self { session, fd })
    }

    /// The server.
    pub const fn session(&self) -> &ServerSession {
        &self.session
    }

    /// Waits for the next client. Cancel-safe: newcomers stay, and the next call goes on with them.
    ///
    /// # Errors
    ///
    /// As [`ServerSession::accept`], but it waits for as long as it takes.
    ///
    /// # Panics
    ///
    /// If the runtime has no timer.
    pub async fn accept(&mut self) -> Result<AsyncEndpoint, AcceptError> {
        loop {
            match self.session.look() {
                Look::Done(finished) => return finished.map(AsyncEndpoint::new),
                Look::More => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Look::Nothing => {}
            }
            let patience = self.session.patience().map(|left| left.saturating_add(TICK));
            let readable = self.fd.readable();
            let ready = match patience {
                Some(patience) => tokio::time::timeout(patience, readable).await.ok(),
                None => Some(readable.await),
            };
            match ready.transpose() {
                // Before the look: what comes from now on makes it readable again.
                Ok(Some(mut ready)) => ready.clear_ready(),
                Ok(None) => {}
                Err(error) => return Err(AcceptError::Listen { error }),
            }
        }
    }
}

/// A client that tasks connect with.
///
/// [`AsyncServerSession`] has an example.
#[derive(Clone, Debug)]
pub struct AsyncClientSession {
    session: ClientSession,
}

impl AsyncClientSession {
    /// Lets tasks connect with `session`.
    pub const fn new(session: ClientSession) -> Self {
        Self { session }
    }

    /// The client.
    pub const fn session(&self) -> &ClientSession {
        &self.session
    }

    /// Connects to a server, on a thread of the runtime for calls that block
    /// (`tokio::runtime::Builder::max_blocking_threads` says how many connect at once). A future that is
    /// dropped leaves that thread until it is done; its endpoint is closed then.
    ///
    /// # Errors
    ///
    /// As [`ClientSession::connect`]; [`ConnectError::Address`] if the runtime shuts down.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect<A>(&self, to: A) -> Result<AsyncEndpoint, ConnectError>
    where
        A: ToSocketAddrs + Send + 'static,
    {
        let session = self.session.clone();
        let connecting = tokio::task::spawn_blocking(move || session.connect(to));
        let ended = |error| ConnectError::Address { error: io::Error::other(error) };
        connecting.await.map_err(ended)?.map(AsyncEndpoint::new)
    }
}

/// An endpoint that tasks wait on. A handle: clones are the same endpoint.
///
/// [`AsyncServerSession`] has an example.
#[derive(Clone, Debug)]
pub struct AsyncEndpoint {
    endpoint: Endpoint,
}

impl AsyncEndpoint {
    /// Lets tasks wait on `endpoint`.
    pub const fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// The endpoint.
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The channel of this name.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] with a [`crate::NoSuchChannel`], or no descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn channel(&self, name: &str) -> io::Result<AsyncChannel> {
        let none = |error| io::Error::new(io::ErrorKind::NotFound, error);
        AsyncChannel::new(self.endpoint.channel(name).map_err(none)?)
    }

    /// Opens a messenger over a channel, as the peer does.
    ///
    /// # Errors
    ///
    /// As [`AsyncMessenger::open`].
    ///
    /// # Panics
    ///
    /// As [`AsyncMessenger::open`].
    pub async fn messenger(
        &self,
        name: &str,
        config: MessengerConfig,
    ) -> Result<AsyncMessenger, MessageError> {
        AsyncMessenger::open(&self.endpoint, name, config).await
    }

    /// Tells the peer of a buffer, as [`Endpoint::advertise`] does, which does not wait unless the connection is
    /// full.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::advertise`].
    pub fn advertise(&self, name: &str, buffer: &Buffer) -> Result<(), ExchangeError> {
        self.endpoint.advertise(name, buffer)
    }

    /// The buffer that the peer has advertised under this name; waits until it does. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::remote_buffer`].
    ///
    /// # Panics
    ///
    /// If the runtime has no timer.
    pub async fn remote_buffer(&self, name: &str) -> Result<RemoteBuffer, ExchangeError> {
        let name = Name::new(name)?;
        let deadline = Deadline::after(self.limit());
        let look =
            |waker: &Waker| self.endpoint.poll_remote_buffer(&name, deadline, waker).transpose();
        // The last look is when the time is over, and says what there is instead.
        let over = tokio::time::sleep(deadline.left().saturating_add(TICK));
        let mut over = pin!(over);
        poll_fn(|context| {
            let _ = over.as_mut().poll(context);
            look(context.waker()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits until what was posted to all channels is done, and says goodbye. All channels together have
    /// the time that [`crate::Timeouts::work`] gives, or [`crate::Timeouts::connect`] without one. A future that is
    /// dropped has closed nothing.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::close`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with a timer.
    pub async fn close(&self) -> Result<(), ChannelError> {
        self.endpoint.nudge();
        let waited = self.limit();
        let drained = tokio::time::timeout(waited, async {
            for channel in self.endpoint.channels() {
                AsyncChannel::new(channel.clone())
                    .map_err(|error| ChannelError::Sleep(error.kind()))?
                    .drain()
                    .await?;
            }
            Ok(())
        });
        let drained = drained.await.unwrap_or(Err(ChannelError::Timeout { waited }));
        self.endpoint.part();
        drained
    }

    /// How long setting up and ending takes at most.
    fn limit(&self) -> Duration {
        self.endpoint.adapter().config().timeouts.change()
    }
}

impl AsyncMessenger {
    /// Opens a messenger over a channel, as the peer does, and lets tasks of the current runtime wait on it.
    ///
    /// # Errors
    ///
    /// As [`Messenger::open`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with a timer.
    pub async fn open(
        endpoint: &Endpoint,
        name: &str,
        config: MessengerConfig,
    ) -> Result<Self, MessageError> {
        let far = AsyncEndpoint::new(endpoint.clone());
        let opening = Opening::new(endpoint, name, config)?;
        let remote = far.remote_buffer(&opening.title).await?;
        let (facts, remote) = opening.facts(&remote)?;
        let waited = far.limit();
        let channel = AsyncChannel::new(opening.channel.clone())
            .map_err(|error| ChannelError::Sleep(error.kind()))?;
        let read = tokio::time::timeout(waited, channel.read(facts.clone(), remote)).await;
        read.unwrap_or(Err(ChannelError::Timeout { waited }))?;
        Ok(Self { messenger: opening.finish(&facts)?, channel })
    }

    /// Waits until the peer has everything that was sent, and closes the endpoint as [`Messenger::close`] does.
    ///
    /// # Errors
    ///
    /// As [`Messenger::close`].
    ///
    /// # Panics
    ///
    /// As [`AsyncEndpoint::close`].
    pub async fn close(&self) -> Result<(), MessageError> {
        let endpoint = AsyncEndpoint::new(self.messenger.endpoint().clone());
        let waited = endpoint.limit();
        let flushed = tokio::time::timeout(waited, self.flush()).await;
        let closed = endpoint.close().await;
        flushed.unwrap_or(Err(ChannelError::Timeout { waited }.into()))?;
        closed.map_err(MessageError::Channel)
    }
}

/// Added to a wait for a point in time, so that it has passed at the end.
const TICK: Duration = Duration::from_millis(1);
