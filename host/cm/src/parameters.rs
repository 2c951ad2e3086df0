//! What programs say and hear of connections.

use adverb_device::{AhAttr, Gid, PathMtu};
use adverb_wire::cm::PortSpace;
use std::fmt;

/// What a port is of. `enum rdma_port_space`.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Space {
    /// `RDMA_PS_IB`, with addresses of IP: any transport.
    Ib,
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams, and multicast groups.
    Udp,
    /// `RDMA_PS_IPOIB`: multicast groups alone.
    Ipoib,
}

/// Of what transport queue pairs are.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
    /// Extended reliable connections.
    Xrc,
}

/// What one side says to the other: at most [`Private::MAX`] bytes.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Private {
    bytes: [u8; Self::MAX],
    len: u8,
}

/// What one side proposes, or what the other side has proposed. `struct rdma_conn_param`.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// The queue pair: of this side in what is said, of the other one in what is heard.
    pub qpn: u32,
    /// Datagrams: the key that they must show; `None` for the usual one.
    pub qkey: Option<u32>,
    /// What the users say to one another.
    pub private: Private,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// How many READs and atomics of the peer this side serves at once.
    pub responder_resources: u8,
    /// How many READs and atomics this side has outstanding at once.
    pub initiator_depth: u8,
    /// There is end-to-end flow control.
    pub flow_control: bool,
    /// How often to send a packet again: 0 to 7.
    pub retry_count: u8,
    /// How often to ask again while no receive is posted: 0 to 7, which is for ever.
    pub rnr_retry_count: u8,
}

/// Where datagrams go. `struct rdma_ud_param`.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DatagramParameters {
    /// The queue pair there; 0xffffff for a multicast group.
    pub qpn: u32,
    /// The key to show there.
    pub qkey: u32,
    /// The way there.
    pub ah: AhAttr,
    /// What the peer's user says.
    pub private: Private,
}

/// The device that an identifier is bound to.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BoundDevice {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub guid: u64,
    /// The port, counted from 1.
    pub port: u8,
    /// Place of the identifier's address in the GID table.
    pub gid_index: u8,
}

/// The path of a connection.
///
/// [`Id`](crate::Id) has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathInfo {
    /// Address of this side.
    pub local: Gid,
    /// Address of the other side.
    pub peer: Gid,
    /// Size of the parts into which messages are cut.
    pub mtu: PathMtu,
    /// The partition.
    pub pkey: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// How long to wait for acknowledgements: 4.096 µs × 2 to this.
    pub ack_timeout: u8,
}

impl Space {
    /// The number that `enum rdma_port_space` has for it.
    pub const fn number(self) -> u16 {
        match self {
            Self::Ib => 0x013f,
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
        }
    }

    /// The space of this number; `None` for others.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x0002 => Some(Self::Ipoib),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// What the wire calls it; `None` if nothing can be asked for in it.
    pub(crate) const fn on_wire(self) -> Option<PortSpace> {
        match self {
            Self::Ib => Some(PortSpace::Ib),
            Self::Tcp => Some(PortSpace::Tcp),
            Self::Udp => Some(PortSpace::Udp),
            Self::Ipoib => None,
        }
    }
}

impl Private {
    /// The most there can be, in any message.
    pub const MAX: usize = 255;

    /// Nothing.
    pub const NONE: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// These bytes; `None` if there are too many.
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: u8::try_from(from.len()).ok()? })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// As they stand in a message, with zeros after them; `None` if there are too many.
    pub(crate) fn padded<const N: usize>(&self, head: &[u8]) -> Option<[u8; N]> {
        let mut field = [0; N];
        let (first, rest) = field.split_at_mut_checked(head.len())?;
        first.copy_from_slice(head);
        rest.get_mut(..usize::from(self.len))?.copy_from_slice(self.as_slice());
        Some(field)
    }

    /// A field of a message, which is shorter than [`Private::MAX`].
    pub(crate) fn of_field(field: &[u8]) -> Self {
        Self::new(field).unwrap_or(Self::NONE)
    }
}

impl Default for Private {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

impl Default for Parameters {
    /// No queue pair, one READ or atomic each way, and the most retries.
    fn default() -> Self {
        Self {
            qpn: 0,
            qkey: None,
            private: Private::NONE,
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_stand_after_what_the_protocol_says() {
        let private = Private::new(b"abc").unwrap();
        assert_eq!(private.padded::<6>(b"12"), Some(*b"12abc\0"));
        assert_eq!(private.padded::<4>(b"12"), None);
        assert_eq!(private.padded::<1>(b"12"), None);
        assert_eq!(Private::new(&[0; 256]), None);
        assert_eq!(Private::new(&[1; 255]).map(|p| p.as_slice().len()), Some(255));
    }

    #[test]
    fn port_spaces_have_the_numbers_of_the_kernels_header() {
        for space in [Space::Ib, Space::Tcp, Space::Udp, Space::Ipoib] {
            assert_eq!(Space::from_number(space.number()), Some(space));
        }
        assert_eq!(Space::from_number(0x0112), None);
    }
}
