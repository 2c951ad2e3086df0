//! An endpoint: one peer, with everything that goes to it.

use crate::adapter::Adapter;
use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::client::ClientSession;
use crate::connector::{Connector, Deadline, system};
use crate::error::{ChannelError, ConnectError, ConnectorError, ExchangeError, NoSuchChannel};
#[cfg(feature = "tokio")]
use crate::frame::Name;
use crate::handler::Handler;
use crate::line::Line;
use crate::link::{Departure, Link, PeerInfo};
use crate::remote::RemoteBuffer;
use crate::set_up::Unlinked;
use adverb_sys::eventfd::EventFd;
use adverb_verbs::DataPath;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Duration;
use tracing::info;

/// One peer: a connector, one or more channels, and the buffers that both sides have advertised.
///
/// A handle: clones are the same endpoint. Dropping the last one says goodbye once its channels are
/// dropped too; [`Endpoint::close`] waits before until what was posted is done.
///
/// The example of the [crate](crate) has two.
#[derive(Clone)]
pub struct Endpoint {
    channels: Vec<Channel>,
    line: Arc<Line>,
    adapter: Adapter,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Endpoint");
        shown.field("channels", &self.channels).field("adapter", &self.adapter);
        shown.finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(crate) fn new(
        adapter: &Adapter,
        peer: PeerInfo,
        connector: Connector,
        channels: Vec<Unlinked>,
        server: Option<SocketAddr>,
    ) -> Result<Self, ConnectorError> {
        let link = Arc::new(Link::new(peer, connector, 1));
        let line = Line::new(adapter, Arc::clone(&link), server);
        let channels = channels.into_iter().map(|unlinked| Channel::new(unlinked, &line, adapter));
        let channels: Vec<_> = channels.collect();
        line.set_channels(channels.iter().map(Channel::downgrade).collect());
        adapter.keep(&link).map_err(system("look after the connection"))?;
        // What came together with the end of the handshake has been read already, so that the keeper
        // would not be woken for it.
        link.attend();
        info!(peer = %link.peer.addr, name = %link.peer.name, "peer has come");
        Ok(Self { channels, line, adapter: adapter.clone() })
    }

    pub(crate) fn of(channels: Vec<Channel>, line: Arc<Line>, adapter: &Adapter) -> Self {
        Self { channels, line, adapter: adapter.clone() }
    }

    #[cfg(test)]
    pub(crate) fn link(&self) -> Arc<Link> {
        self.line.link()
    }

    /// Hands what happens on its channels to `handler`, on threads as [`crate::Config::thread_mode`]
    /// says. A channel keeps the handler that it has.
    ///
    /// # Errors
    ///
    /// No thread was started.
    pub fn handle(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        self.channels.iter().try_for_each(|channel| channel.handle(Arc::clone(&handler)))
    }

    /// Connects to the same server again, with the same settings and channels, and advertises the
    /// same buffers under the same names. What was in flight has ended with the old endpoint; the
    /// peer's buffers have to be asked for again.
    ///
    /// It tries for as long as [`crate::Timeouts::connect`] says. With [`crate::Config::reconnect`] an
    /// endpoint comes back by itself.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; [`ConnectError::NotAClient`] for an endpoint of a server, whose client has
    /// to come again.
    pub fn reconnect(&self) -> Result<Self, ConnectError> {
        let server = self.line.server().ok_or(ConnectError::NotAClient)?;
        self.line.close();
        let again = ClientSession::on(self.adapter.clone()).connect(server)?;
        for (name, buffer) in self.line.link().advertised() {
            let told = again.advertise(name.as_str(), &buffer);
            told.map_err(|error| ConnectError::Exchange { to: server, error })?;
        }
        Ok(again)
    }

    /// Waits until the peer is there: at once if it is, or until a client has come back to its server
    /// ([`crate::Config::reconnect`]).
    ///
    /// # Errors
    ///
    /// [`ChannelError::PeerGone`] if it will not come back, [`ChannelError::Timeout`].
    pub fn wait_until_up(&self, timeout: Duration) -> Result<(), ChannelError> {
        self.line.wait_until_up(timeout)
    }

    /// The peer at the other end, or the last one there.
    pub fn peer(&self) -> Arc<PeerInfo> {
        Arc::clone(&self.line.link().peer)
    }

    /// How packets go to the peer; `None` until that is known.
    pub fn path(&self) -> Option<DataPath> {
        self.channels.first().and_then(|channel| channel.route().path)
    }

    /// The adapter that its channels are of, and that makes buffers for them.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The channel of this name.
    ///
    /// # Errors
    ///
    /// [`NoSuchChannel`], with the names that there are.
    pub fn channel(&self, name: &str) -> Result<Channel, NoSuchChannel> {
        let found = self.channels.iter().find(|known| known.name() == name);
        found.cloned().ok_or_else(|| NoSuchChannel {
            name: name.to_owned(),
            known: self.channels.iter().map(|c| c.name().to_owned()).collect(),
        })
    }

    /// Its channels, in the client's order.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Tells the peer of a buffer, under a name of its own. It stays registered for as long as the
    /// endpoint lives.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`]. Only after [`ExchangeError::Connector`] the peer may have been told.
    pub fn advertise(&self, name: &str, buffer: &Buffer) -> Result<(), ExchangeError> {
        if !self.adapter.is(buffer.adapter()) {
            return Err(ExchangeError::ForeignBuffer);
        }
        let timeout = self.adapter.config().timeouts.change();
        self.line.link().advertise(name, buffer, timeout)
    }

    /// The peer was told of a buffer under this name.
    pub(crate) fn has_advertised(&self, name: &str) -> bool {
        self.line.link().advertised().iter().any(|(known, _)| known.as_str() == name)
    }

    /// The buffer that the peer has advertised under this name; waits until it does.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`].
    pub fn remote_buffer(&self, name: &str) -> Result<RemoteBuffer, ExchangeError> {
        let timeout = self.adapter.config().timeouts.change();
        self.line.link().remote_buffer(name, timeout)
    }

    /// As [`Endpoint::remote_buffer`], for a task.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_remote_buffer(
        &self,
        name: &Name,
        deadline: Deadline,
        waker: &Waker,
    ) -> Result<Option<RemoteBuffer>, ExchangeError> {
        self.line.link().poll_remote_buffer(name, deadline, waker)
    }

    /// Says goodbye, and waits for nothing.
    #[cfg(feature = "tokio")]
    pub(crate) fn part(&self) {
        self.line.close();
    }

    /// It is a handle of the same endpoint.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Looks how the peer went; `None` while it is there.
    pub fn departure(&self) -> Option<Departure> {
        self.line.link().check()
    }

    /// The handler knows that the peer has gone, and has handled all events.
    pub(crate) fn is_quiet(&self) -> bool {
        self.line.link().is_quiet()
    }

    /// Has `bell` rung when that is so.
    pub(crate) fn ring_when_gone(&self, bell: &Arc<EventFd>) {
        self.line.link().ring_when_gone(Arc::clone(bell));
    }

    /// Waits until what was posted to all channels is done, and says goodbye. All channels together have
    /// the time that [`crate::Timeouts::work`] gives, or [`crate::Timeouts::connect`] without one.
    ///
    /// # Errors
    ///
    /// What ended the first channel that did not get there, or [`ChannelError::Timeout`]; the
    /// endpoint is closed then too.
    pub fn close(self) -> Result<(), ChannelError> {
        let most = self.adapter.config().timeouts.change();
        self.close_by(&Deadline::after(most))
    }

    /// Closes it as [`Endpoint::close`] does, by then.
    pub(crate) fn close_by(self, deadline: &Deadline) -> Result<(), ChannelError> {
        self.nudge();
        let drain = |channel: &Channel| channel.with_timeout(deadline.left()).drain();
        let drained = self.channels.iter().try_for_each(drain);
        self.line.close();
        drained
    }

    /// Sees to it that all that was posted to its channels ends, and waits for nothing.
    pub(crate) fn nudge(&self) {
        for channel in &self.channels {
            // What cannot be posted says so when it is waited for.
            let _ = channel.nudge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ServerSession};
    use adverb_sys::tcp;
    use std::thread;

    /// Goal: the connector's packets and those of all queue pairs have the class that each side has set.
    #[test]
    fn traffic_classes_and_hops_are_set_on_the_connector_and_all_channels() {
        let config = |class, hops| Config::default().traffic_class(class).hop_limit(hops);
        let names = ["control", "data"];
        let mut server = ServerSession::bind("127.0.0.1:0", config(0x20, 7)).unwrap();
        let address = server.local_addr();
        let accepting = thread::spawn(move || server.accept(Duration::from_secs(60)));
        let client = ClientSession::new(config(0x68, 9).channels(names)).unwrap();
        let client = client.connect(address).unwrap();
        let server = accepting.join().unwrap().unwrap();
        for (endpoint, class, hops) in [(client, 0x68, 9), (server, 0x20, 7)] {
            assert_eq!(tcp::traffic_class(endpoint.line.link().stream(), false).unwrap(), class);
            for name in names {
                let ah = endpoint.channel(name).unwrap().query().ah.unwrap();
                assert_eq!((ah.gid_index, ah.traffic_class, ah.hop_limit), (Some(1), class, hops));
            }
        }
    }
}
