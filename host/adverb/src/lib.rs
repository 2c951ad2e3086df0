//! RDMA verbs, everywhere.
//!
//! [`verbs`] is the API of devices, memory regions and queue pairs; [`session`] is the library of
//! sessions, endpoints, channels and buffers above it. Both run on the software device that every
//! network interface has, so nothing needs hardware, a kernel module or a privilege.

pub use adverb_session as session;
pub use adverb_verbs as verbs;

/// The examples of the project's front page, which are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
