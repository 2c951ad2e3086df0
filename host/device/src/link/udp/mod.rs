//! Packets over UDP sockets.

pub(crate) mod burst;
pub(crate) mod capture;
pub(crate) mod endpoint;
pub(crate) mod multicast;
pub(crate) mod reception;
pub(crate) mod steering;
