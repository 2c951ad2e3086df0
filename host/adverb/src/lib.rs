//! RDMA verbs, everywhere.
//!
//! [`verbs`] is the API of devices, memory regions and queue pairs; [`session`] is the library of
//! sessions, endpoints, channels and buffers above it. Both run on the software device that every
//! network interface has, so nothing needs hardware, a kernel module or a privilege.
//!
//! What happens besides the traffic is told to [`tracing`](https://docs.rs/tracing): devices, queue
//! pairs and their states, buffers, peers. [`log_to_stderr`] prints it for programs that have no
//! subscriber of their own.

mod log;

pub use adverb_session as session;
pub use adverb_verbs as verbs;
pub use log::{LogError, log_to_stderr};

/// The examples of the project's front page, which are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
