//! An endpoint: one peer, with everything that goes to it.

use crate::adapter::Adapter;
use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::connector::Connector;
use crate::error::{ChannelError, ConnectorError, ExchangeError, NoSuchChannel};
use crate::link::{Departure, Link, PeerInfo};
use crate::remote::RemoteBuffer;
use crate::set_up::Unlinked;
use std::sync::Arc;

/// One peer: a connector, one or more channels, and the buffers that both sides have advertised.
///
/// Dropping it says goodbye once its channels are dropped too; [`Endpoint::close`] waits before
/// until what was posted is done.
#[derive(Debug)]
pub struct Endpoint {
    channels: Vec<Channel>,
    link: Arc<Link>,
    adapter: Adapter,
}

impl Endpoint {
    pub(crate) fn new(
        adapter: &Adapter,
        peer: PeerInfo,
        connector: Connector,
        channels: Vec<Unlinked>,
    ) -> Result<Self, ConnectorError> {
        let link = Arc::new(Link::new(peer, connector)?);
        let channels = channels.into_iter().map(|unlinked| Channel::new(unlinked, &link, adapter));
        Ok(Self { channels: channels.collect(), link, adapter: adapter.clone() })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &PeerInfo {
        &self.link.peer
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
        let timeout = self.adapter.config().timeouts.work;
        self.link.advertise(name, buffer, timeout)
    }

    /// The buffer that the peer has advertised under this name; waits until it does.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`].
    pub fn remote_buffer(&self, name: &str) -> Result<RemoteBuffer, ExchangeError> {
        let timeout = self.adapter.config().timeouts.work;
        self.link.remote_buffer(name, timeout)
    }

    /// Looks how the peer went; `None` while it is there.
    pub fn departure(&self) -> Option<Departure> {
        self.link.check()
    }

    /// Waits until what was posted to all channels is done, and says goodbye.
    ///
    /// # Errors
    ///
    /// What ended the first channel that did not get there, or [`ChannelError::Timeout`]; the
    /// endpoint is closed then too.
    pub fn close(self) -> Result<(), ChannelError> {
        let drained = self.channels.iter().try_for_each(Channel::drain);
        self.link.close();
        drained
    }
}
