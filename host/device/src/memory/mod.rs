//! Registered memory: regions, windows, their keys, and what neighbours can map of it.

pub(crate) mod arena;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod local;
pub(crate) mod lost;
pub(crate) mod peer_page;
pub(crate) mod region;
pub(crate) mod window;
