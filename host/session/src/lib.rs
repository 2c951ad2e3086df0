//! Sessions: servers and clients that talk through endpoints, channels and buffers over RDMA.
//!
//! A [`ServerSession`] accepts peers and a [`ClientSession`] connects to one; each gets an
//! [`Endpoint`]: one peer, a TCP connection to exchange what has to be known before and beside the
//! traffic, and one or more named [`Channel`]s, each with a queue pair and a completion queue of its
//! own. What goes over a channel lies in [`Buffer`]s: registered memory of equal blocks, which an
//! endpoint advertises to its peer by name.
//!
//! ```
//! use adverb_session::{ClientSession, Config, ServerSession};
//! use std::{thread, time::Duration};
//!
//! let config = Config::default().device("soft_lo");
//! let mut server = ServerSession::bind("127.0.0.1:0", config.clone())?;
//! let address = server.local_addr();
//!
//! let echo = thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let endpoint = server.accept(Duration::from_secs(5))?;
//!     let channel = endpoint.channel("data")?;
//!     let sink = endpoint.adapter().buffer(4, 64)?;
//!     endpoint.advertise("sink", &sink)?;
//!     channel.post_recv(sink.at(3)?)?;
//!     let message = channel.recv()?; // A message, or a WRITE with immediate data.
//!     assert_eq!(message.imm, Some(7));
//!     channel.send(sink.at(0)?)?;
//!     Ok(())
//! });
//!
//! let endpoint = ClientSession::new(config)?.connect(address)?;
//! let channel = endpoint.channel("data")?;
//! let buffer = endpoint.adapter().buffer(2, 64)?;
//! channel.post_recv(buffer.at(1)?)?;
//! let sink = endpoint.remote_buffer("sink")?;
//! buffer.at(0)?.write(0, b"hello")?;
//! channel.write_with_imm(buffer.at(0)?, sink.at(0)?, 7)?;
//!
//! let answer = channel.recv()?;
//! let mut text = [0; 5];
//! answer.block.read(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! echo.join().expect("the server does not panic").expect("the server is content");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two ways to work
//!
//! The plain calls of a channel, such as [`Channel::send`], return when the work is done or the
//! configured time is over. The `post_*` calls return a [`Ticket`] at once; [`Channel::poll`] then
//! hands out one [`Event`] for each, once, and [`Channel::wait`] waits for one of them. Both can be
//! mixed, and several threads may use clones of one channel.
//!
//! # When things go wrong
//!
//! Every call that waits has a time limit. The TCP connection stays open for as long as the
//! endpoint lives, so that a peer that ends or is killed is noticed even if it owes nothing: all
//! outstanding work then ends, once, and further calls say [`ChannelError::PeerGone`].

mod adapter;
mod auth;
mod bed;
mod buffer;
mod channel;
mod client;
mod collective;
mod config;
mod connector;
mod endpoint;
mod error;
#[cfg(feature = "tokio")]
mod futures;
mod handler;
mod keeper;
mod line;
mod link;
mod messenger;
mod pipe;
mod remote;
mod ring;
mod server;
mod service;
mod set_up;
mod source;
mod worker;

pub use adapter::Adapter;
pub use adverb_messages::frame;
pub use adverb_verbs::{
    Access, AckTimeout, AhAttr, DataPath, Gid, PathMtu, QpAttr, RetryCount, Rkey, RnrRetry,
    RnrTimer, WcStatus,
};
pub use auth::Secret;
pub use buffer::{Block, Buffer};
pub use channel::{Channel, InFlight};
pub use client::ClientSession;
pub use collective::{Group, GroupError, Number, Reduction, Topology};
pub use config::{
    AdapterConfig, CHANNELS_MAX, Config, Connector, QueueConfig, Reconnect, Signal, ThreadMode,
    Timeouts, WorkMode,
};
pub use endpoint::Endpoint;
pub use error::{
    AcceptError, AdapterError, BindError, BlockError, BufferError, ChannelError, ConnectError,
    ConnectorError, ExchangeError, MessageError, NoSuchChannel, Route, SecretError, SetUpError,
};
#[cfg(feature = "tokio")]
pub use futures::{
    AsyncChannel, AsyncClientSession, AsyncEndpoint, AsyncMessenger, AsyncServerSession, Messages,
};
pub use handler::Handler;
pub use link::{Departure, PeerInfo};
pub use messenger::{Message, Messenger, MessengerConfig, Window};
pub use remote::{RemoteBlock, RemoteBuffer};
pub use ring::{Event, Operation, Queue, Ticket};
pub use server::ServerSession;
pub use service::Service;
