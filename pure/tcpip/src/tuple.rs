//! The four values that name a connection.

use core::net::IpAddr;

/// Addresses and ports of both ends, as this end sees them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tuple {
    /// Our address.
    pub local: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// The peer's address, of the same family.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
}

impl Tuple {
    /// As the other end sees them.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        let Self { local, local_port, remote, remote_port } = *self;
        Self { local: remote, local_port: remote_port, remote: local, remote_port: local_port }
    }
}
