//! Attributes that the verbs set on a queue pair before it can work.

use crate::access::Access;
use crate::status::QpState;
use crate::time::AckTimeout;
use crate::transition::AttributeSet;
use adverb_wire::{PathMtu, Pkey, Psn, Qkey, Qpn, RnrTimer};
use core::fmt;
use core::net::{AddrParseError, IpAddr, Ipv6Addr};
use core::str::FromStr;

/// A global identifier: the address of a port. For RoCEv2 an IPv6 or an IPv4-mapped address.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The identifier of an IPv4 address, `::ffff:a.b.c.d`.
    pub const fn from_v4(address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// It is an address of the loopback interface, which reaches its own host alone.
    pub const fn is_loopback(&self) -> bool {
        match self.v4() {
            Some([first, ..]) => first == 127,
            None => u128::from_be_bytes(self.0) == 1,
        }
    }

    /// The IPv4 address within, if it is one.
    pub const fn v4(&self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
}

/// As an IPv6 address is written, `fe80::1` or `::ffff:10.0.0.1`.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// As an IPv6 address is written; an IPv4 address is one of those (`::ffff:10.0.0.1`), or written by itself.
impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        match text.parse()? {
            IpAddr::V4(address) => Ok(Self::from_v4(address.octets())),
            IpAddr::V6(address) => Ok(Self(address.octets())),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How often a request is sent again when no acknowledgement comes: 0 to 7.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The most that the three bits can say.
    pub const MAX: Self = Self(7);

    /// The count; `None` if it does not fit three bits.
    pub const fn new(count: u8) -> Option<Self> {
        if count > Self::MAX.0 { None } else { Some(Self(count)) }
    }

    /// The count.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// How often a request is sent again when the peer has no receive for it: 0 to 6, or for ever.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Until the peer posts a receive, however long that takes; encoded as 7.
    pub const FOREVER: Self = Self(7);

    /// The count, or [`RnrRetry::FOREVER`] for 7; `None` if it does not fit three bits.
    pub const fn new(count: u8) -> Option<Self> {
        if count > Self::FOREVER.0 { None } else { Some(Self(count)) }
    }

    /// The three bits.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A partition: its key, and its place in the port's table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Partition {
    /// Index in the port's table.
    pub index: u16,
    /// The key there.
    pub pkey: Pkey,
}

impl Partition {
    /// The only partition of a RoCE port.
    pub const DEFAULT: Self = Self { index: 0, pkey: Pkey::DEFAULT };
}

/// What a queue pair is set to. `struct ibv_qp_attr`, as a query returns it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The partition.
    pub partition: Partition,
    /// The port, counted from 1.
    pub port: u8,
    /// What the peer may do to this queue pair at all.
    pub access: Access,
    /// The key that datagrams must show.
    pub qkey: Qkey,
    /// The peer's address.
    pub remote_gid: Gid,
    /// The peer's queue pair.
    pub remote: Qpn,
    /// Size of the parts into which both sides cut messages.
    pub path_mtu: PathMtu,
    /// Sequence number of the peer's first packet.
    pub expected_psn: Psn,
    /// READs and atomics of the peer that are remembered at once.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is told to wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// Sequence number of the first packet.
    pub first_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to send again then.
    pub retry_count: RetryCount,
    /// How often to send again when the peer has no receive.
    pub rnr_retry: RnrRetry,
    /// READs and atomics under way at once.
    pub max_rd_atomic: u8,
    /// Packets under way at once, at most: what the path and the peer's buffers are known to bear.
    pub window_packets: u32,
    /// The same at first, over a link that may lose packets; `None`: nothing is known of the path.
    pub window_first: Option<u32>,
    /// SQ_DRAINED is raised.
    pub notify_drained: bool,
}

impl Settings {
    /// Packets under way at once, by default.
    pub const WINDOW_PACKETS: u32 = 64;

    /// What a new queue pair is set to, on a port with this MTU.
    pub(crate) fn new(path_mtu: PathMtu) -> Self {
        Self {
            partition: Partition::DEFAULT,
            port: 1,
            access: Access::NONE,
            qkey: Qkey(0),
            remote_gid: Gid([0; 16]),
            remote: Qpn::new(0),
            path_mtu,
            expected_psn: Psn::new(0),
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0),
            first_psn: Psn::new(0),
            timeout: AckTimeout::FOREVER,
            retry_count: RetryCount(0),
            rnr_retry: RnrRetry(0),
            max_rd_atomic: 0,
            window_packets: Self::WINDOW_PACKETS,
            window_first: None,
            notify_drained: false,
        }
    }
}

macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $set:expr,)*) => {
        /// Attributes to set with [`crate::Qp::modify`]; those that are `None` stay.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct Attributes {
            /// The state that the queue pair is believed to be in.
            pub current: Option<QpState>,
            /// Packets under way at once, at most: no attribute of the verbs, allowed always.
            pub window_packets: Option<u32>,
            /// Packets under way at first, over a link that may lose some; allowed always, too.
            pub window_first: Option<u32>,
            $($(#[$doc])* pub $name: Option<$type>,)*
        }

        impl Attributes {
            /// Which ones are given.
            pub fn given(&self) -> AttributeSet {
                let mut given = match self.current {
                    Some(_) => AttributeSet::CURRENT_STATE,
                    None => AttributeSet::NONE,
                };
                $(if self.$name.is_some() {
                    given = given.with($set);
                })*
                given
            }

            /// The settings after the change.
            pub(crate) fn change(&self, settings: Settings) -> Settings {
                Settings {
                    window_packets: self.window_packets.unwrap_or(settings.window_packets),
                    window_first: self.window_first.or(settings.window_first),
                    $($name: self.$name.unwrap_or(settings.$name),)*
                }
            }
        }
    };
}

changes! {
    /// The partition.
    partition: Partition = AttributeSet::PKEY,
    /// The port, counted from 1.
    port: u8 = AttributeSet::PORT,
    /// What the peer may do to this queue pair at all.
    access: Access = AttributeSet::ACCESS,
    /// The key that datagrams must show.
    qkey: Qkey = AttributeSet::QKEY,
    /// The peer's address.
    remote_gid: Gid = AttributeSet::ADDRESS,
    /// The peer's queue pair.
    remote: Qpn = AttributeSet::REMOTE,
    /// Size of the parts into which both sides cut messages.
    path_mtu: PathMtu = AttributeSet::PATH_MTU,
    /// Sequence number of the peer's first packet.
    expected_psn: Psn = AttributeSet::EXPECTED_PSN,
    /// READs and atomics of the peer that are remembered at once.
    max_dest_rd_atomic: u8 = AttributeSet::MAX_DEST_RD_ATOMIC,
    /// How long the peer is told to wait when no receive is posted.
    min_rnr_timer: RnrTimer = AttributeSet::MIN_RNR_TIMER,
    /// Sequence number of the first packet.
    first_psn: Psn = AttributeSet::FIRST_PSN,
    /// How long to wait for an acknowledgement.
    timeout: AckTimeout = AttributeSet::TIMEOUT,
    /// How often to send again then.
    retry_count: RetryCount = AttributeSet::RETRY_COUNT,
    /// How often to send again when the peer has no receive.
    rnr_retry: RnrRetry = AttributeSet::RNR_RETRY,
    /// READs and atomics under way at once.
    max_rd_atomic: u8 = AttributeSet::MAX_RD_ATOMIC,
    /// Raise SQ_DRAINED when the send queue has drained.
    notify_drained: bool = AttributeSet::NOTIFY_DRAINED,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_ipv4_address_survives_in_an_identifier() {
        let gid = Gid::from_v4([10, 77, 0, 11]);
        assert_eq!(gid.v4(), Some([10, 77, 0, 11]));
        assert_eq!(gid.to_string(), "::ffff:10.77.0.11");
        assert_eq!("::ffff:10.77.0.11".parse(), Ok(gid));
        assert_eq!("0000:0000:0000:0000:0000:ffff:0a4d:000b".parse(), Ok(gid));
        assert_eq!(Gid([1; 16]).v4(), None);
    }

    #[test]
    fn counts_have_three_bits() {
        assert_eq!(RetryCount::new(7), Some(RetryCount::MAX));
        assert_eq!(RetryCount::new(8), None);
        assert_eq!(RnrRetry::new(7), Some(RnrRetry::FOREVER));
        assert_eq!(RnrRetry::new(8), None);
    }
}
