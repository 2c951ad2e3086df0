//! Handlers: what a program wants done when something happens, instead of asking for it.

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::error::AcceptError;
use crate::link::{Departure, PeerInfo};
use crate::ring::Event;
use adverb_verbs::WcStatus;
use tracing::{debug, warn};

/// What is done when something happens. Give one to [`Endpoint::handle`], [`crate::Channel::handle`]
/// or [`crate::ServerSession::serve`].
///
/// The events of one channel come one after the other and in order, those of several channels side by
/// side if there are several threads. Work whose event is waited for, as by [`Channel::send`],
/// has none here. A handler that takes long holds up the other channels of its thread.
///
/// What a handler does not say anything about is not lost in silence: errors are logged, and receives
/// are posted again.
///
/// ```
/// use adverb_session::{Channel, ClientSession, Config, Endpoint, Event, Handler, ServerSession};
/// use std::sync::Arc;
///
/// struct Echo;
///
/// fn welcome(endpoint: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
///     let buffer = endpoint.adapter().buffer(1, 64)?;
///     endpoint.channel("data")?.post_recv(buffer.at(0)?)?;
///     Ok(())
/// }
///
/// impl Handler for Echo {
///     fn established(&self, endpoint: &Endpoint) {
///         welcome(endpoint).unwrap_or_else(|error| eprintln!("{error}"));
///     }
///
///     fn received(&self, channel: &Channel, event: Event) {
///         let sent = event.block.first(event.bytes).map(|message| channel.post_send(message));
///         assert!(sent.is_ok());
///     }
/// }
///
/// let service = ServerSession::bind("127.0.0.1:0", Config::default())?.serve(Arc::new(Echo))?;
/// let endpoint = ClientSession::new(Config::default())?.connect(service.local_addr())?;
/// let (channel, buffer) = (endpoint.channel("data")?, endpoint.adapter().buffer(2, 64)?);
/// channel.post_recv(buffer.at(1)?)?;
/// buffer.at(0)?.write(0, b"hello")?;
/// channel.send(buffer.at(0)?.first(5)?)?;
/// assert_eq!(channel.recv()?.bytes, 5);
/// service.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(unused_variables, reason = "a handler names what it uses")]
pub trait Handler: Send + Sync + 'static {
    /// A peer has come, and its endpoint is up. Called by [`crate::ServerSession::serve`], on a thread of
    /// the endpoint's own: it holds up no other client, and the endpoint's events come after it. Called
    /// too when a client has come back to its server ([`crate::Config::reconnect`]): receives have to be
    /// posted again.
    fn established(&self, endpoint: &Endpoint) {}

    /// A connection was refused.
    fn refused(&self, error: &AcceptError) {
        warn!(%error, "a newcomer was not let in");
    }

    /// A message was sent.
    fn sent(&self, channel: &Channel, event: Event) {}

    /// A message was received, which used up a receive: post the event's block again to keep their
    /// number.
    fn received(&self, channel: &Channel, event: Event);

    /// The peer wrote to memory here, and said so, which used up a receive. Unless there is a handler
    /// for it, it is logged, and the receive is posted again.
    fn write_received(&self, channel: &Channel, event: Event) {
        warn!(channel = channel.name(), imm = event.imm, "a WRITE has come that has no handler");
        if let Err(error) = channel.post_recv(event.block) {
            // It says so to `failed` or `gone`, too.
            debug!(channel = channel.name(), %error, "its receive was not posted again");
        }
    }

    /// The peer's memory was written.
    fn written(&self, channel: &Channel, event: Event) {}

    /// The peer's memory was read.
    fn read(&self, channel: &Channel, event: Event) {}

    /// An atomic was done.
    fn atomic(&self, channel: &Channel, event: Event) {}

    /// Work failed. Unless there is a handler for it, it is logged; what ended because other work had
    /// failed, or the peer was gone, at the level of `debug`.
    fn failed(&self, channel: &Channel, event: Event) {
        let (operation, status) = (event.operation, event.status);
        if status == WcStatus::WorkRequestFlushed {
            debug!(channel = channel.name(), %operation, "work has ended with its channel");
        } else {
            warn!(channel = channel.name(), %operation, ?status, "work has failed");
        }
    }

    /// The peer is gone, and all its channels' events have been handled. Once for each time that it goes.
    fn gone(&self, peer: &PeerInfo, how: Departure) {}
}
