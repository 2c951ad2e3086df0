//! Handlers: what a program wants done when something happens, instead of asking for it.

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::error::AcceptError;
use crate::link::{Departure, PeerInfo};
use crate::ring::Event;

/// What is done when something happens. Give one to [`Endpoint::handle`], [`crate::Channel::handle`]
/// or [`crate::ServerSession::serve`].
///
/// The events of one channel come one after the other and in order, those of several channels side by
/// side if there are several threads. Work whose event somebody waits for, as [`Channel::send`] does,
/// has none here. A handler that takes long holds up the other channels of its thread.
#[expect(unused_variables, reason = "a handler names what it uses")]
pub trait Handler: Send + Sync + 'static {
    /// A peer has come, and its endpoint is up. Called by [`crate::ServerSession::serve`], and when a
    /// client has come back to its server ([`crate::Config::reconnect`]): receives have to be posted
    /// again.
    fn established(&self, endpoint: &Endpoint) {}

    /// Somebody came and was not let in.
    fn refused(&self, error: &AcceptError) {}

    /// A message was sent.
    fn sent(&self, channel: &Channel, event: Event) {}

    /// A message was received.
    fn received(&self, channel: &Channel, event: Event) {}

    /// The peer wrote to memory here, and said so.
    fn write_received(&self, channel: &Channel, event: Event) {}

    /// The peer's memory was written.
    fn written(&self, channel: &Channel, event: Event) {}

    /// The peer's memory was read.
    fn read(&self, channel: &Channel, event: Event) {}

    /// An atomic was done.
    fn atomic(&self, channel: &Channel, event: Event) {}

    /// Work failed.
    fn failed(&self, channel: &Channel, event: Event) {}

    /// The peer is gone, and all its channels' events have been handled. Once for each time that it goes.
    fn gone(&self, peer: &PeerInfo, how: Departure) {}
}
