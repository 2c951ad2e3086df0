//! Links: the ways by which packets and records go from port to port.

pub(crate) mod gid;
pub(crate) mod path;
pub(crate) mod shm;
pub(crate) mod udp;
pub(crate) mod vicinity;
pub(crate) mod way;
