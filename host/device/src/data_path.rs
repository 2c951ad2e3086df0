//! Data paths of a queue pair's packets, and their names.

use std::fmt;

/// The path of a queue pair's packets, chosen when it learns of its peer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum DataPath {
    /// RoCE over UDP: to a peer anywhere.
    Udp,
    /// Shared memory: to a peer in another process of this host and user, or of another device.
    SharedMemory,
    /// Memory of this process: to a peer on the same device.
    InProcess,
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::SharedMemory => "shm",
            Self::InProcess => "in-process",
        })
    }
}
