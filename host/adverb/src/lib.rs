//! RDMA verbs, everywhere: on the software device that every network interface has, without hardware, kernel module
//! or privilege.
//!
//! - [`session`] moves bytes between programs: servers and clients, channels and buffers by name, messages of any
//!   length, one-sided operations, collectives. Start here.
//! - [`verbs`] is the API below it: devices, memory regions, completion queues, queue pairs.
//!
//! ```
//! use adverb::session::{ClientSession, Config, ServerSession};
//! use std::{thread, time::Duration};
//!
//! let mut server = ServerSession::bind("127.0.0.1:0", Config::default())?;
//! let address = server.local_addr();
//! let accepting = thread::spawn(move || server.accept(Duration::from_secs(5)));
//! let client = ClientSession::new(Config::default())?.connect(address)?;
//! let server = accepting.join().map_err(|_| "the server panicked")??;
//!
//! // The server's memory, under a name; what a peer may reach is copied, never borrowed.
//! let table = server.adapter().buffer(4, 64)?;
//! table.at(2)?.write(0, b"hello")?;
//! server.advertise("table", &table)?;
//!
//! // The client reads it. The server's program does nothing meanwhile.
//! let (channel, remote) = (client.channel("data")?, client.remote_buffer("table")?);
//! let local = client.adapter().buffer(1, 64)?.at(0)?;
//! channel.read(local.clone().first(5)?, remote.at(2)?)?;
//! assert_eq!(local.first(5)?.to_vec(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | wait for many channels, or not sleep at all | [`session::WorkMode`], [`session::ThreadMode`] |
//! | be called when something arrives | [`session::Handler`], [`session::ServerSession::serve`] |
//! | wait in tasks | `session::AsyncChannel`, `verbs::AsyncCompChannel`, with the feature `tokio` |
//! | send messages of any length | [`session::Messenger`] |
//! | reduce vectors over many processes | [`session::Group`] |
//! | come back to a server that was lost | [`session::Reconnect`] |
//! | post work to a queue pair | [`verbs::Qp::post`], [`verbs::Work`] |
//! | tell a peer of a queue pair or of memory | [`verbs::RemoteQp`], [`verbs::RemoteSlice`]: bytes or text |
//! | meet by `rdma_cm`'s messages | [`verbs::cm`] |
//! | find a function of libibverbs | the search field: `ibv_post_send`, and every other name, leads to its counterpart |
//!
//! # Features
//!
//! None is on unless it is asked for.
//!
//! | feature | brings |
//! |---|---|
//! | `tokio` | futures of channels, messengers, sessions and completion channels, for tasks of a tokio runtime; depends on `tokio` |
//! | `serde` | `Serialize` and `Deserialize` of [`verbs::RemoteQp`] and [`verbs::RemoteSlice`], as text; depends on `serde` |
//!
//! # What it tells
//!
//! What happens besides the traffic is told to [`tracing`](https://docs.rs/tracing): devices, queue pairs and their
//! states, buffers, peers. [`log_to_stderr`] prints it for programs that have no subscriber of their own.
//!
//! The tree has a book (`docs/book`) and examples (`host/adverb/examples`), among them the whole life of a queue pair
//! and a key-value store by READ.

mod log;

pub use adverb_session as session;
pub use adverb_verbs as verbs;
pub use log::{LogError, log_to_stderr};

/// The examples of the project's front page, which are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
