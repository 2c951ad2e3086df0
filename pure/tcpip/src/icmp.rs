//! Errors that routers and hosts report: ICMP (RFC 792) and ICMPv6 (RFC 4443).
//!
//! ```text
//!     +----+----+--------+-----------------+--------------------------------------+
//!     |type|code| check  | unused, or MTU  | the packet: IP header, 8 bytes or more |
//!     +----+----+--------+-----------------+--------------------------------------+
//! ```
//!
//! Such a message may come from anywhere. What it quotes is all that shows that its sender has seen the packet:
//! [`IcmpError::seq`] is for the connection to compare with what it has in flight (RFC 5927 §4).

use core::net::IpAddr;

use adverb_wire::ip::Sum;

use crate::tcp::Seq;
use crate::tuple::Tuple;

/// An error that concerns one of our packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcmpError {
    /// What is reported.
    pub report: Report,
    /// What the packet carried: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// From where to where the packet went, as its sender, this host, sees it.
    pub tuple: Tuple,
    /// The packet's sequence number, if it carried TCP.
    pub seq: Seq,
}

/// What a router or a host reports of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Report {
    /// Nothing listens on the port, or the host does not know the protocol.
    Refused,
    /// The packet is longer than the next link takes, which is so many bytes; 0 if a router does not say.
    TooBig {
        /// Bytes of an IP packet.
        mtu: u32,
    },
    /// A router cannot deliver the packet now, or took it for circling.
    Unreachable,
}

impl IcmpError {
    /// Reads an ICMP message; `None` if it is not an error about TCP or UDP, or its checksum is wrong.
    pub fn parse_v4(message: &[u8]) -> Option<Self> {
        if Sum::default().with(message).finish() != 0 {
            return None;
        }
        let (head, quoted) = message.split_first_chunk::<8>()?;
        let report = match *head {
            [3, 4, _, _, _, _, m0, m1] => {
                Report::TooBig { mtu: u32::from(u16::from_be_bytes([m0, m1])) }
            }
            [3, 2 | 3, ..] => Report::Refused,
            [3 | 11, ..] => Report::Unreachable,
            _ => return None,
        };
        // The quoted packet is cut: its own length and checksum mean nothing.
        let (ip, _) = quoted.split_first_chunk::<20>()?;
        let [version, _, _, _, _, _, f0, f1, _, protocol, _, _, addresses @ ..] = *ip;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        if version >> 4 != 4 || u16::from_be_bytes([f0, f1]) & OFFSET != 0 {
            return None;
        }
        let rest = quoted.get(usize::from(version & 0xf).max(5) * 4..)?;
        let (local, remote) = (IpAddr::from([s0, s1, s2, s3]), IpAddr::from([d0, d1, d2, d3]));
        Self::quoting(report, protocol, local, remote, rest)
    }

    /// Reads an ICMPv6 message whose checksum has been checked; `None` if it is not an error about TCP or UDP.
    pub fn parse_v6(message: &[u8]) -> Option<Self> {
        let (head, quoted) = message.split_first_chunk::<8>()?;
        let [kind, code, _, _, mtu @ ..] = *head;
        let report = match (kind, code) {
            (2, _) => Report::TooBig { mtu: u32::from_be_bytes(mtu) },
            (1, 4) => Report::Refused,
            (1 | 3, _) => Report::Unreachable,
            _ => return None,
        };
        let (ip, rest) = quoted.split_first_chunk::<8>()?;
        let (src, rest) = rest.split_first_chunk::<16>()?;
        let (dst, rest) = rest.split_first_chunk::<16>()?;
        let [version, _, _, _, _, _, next, _] = *ip;
        if version >> 4 != 6 {
            return None;
        }
        Self::quoting(report, next, IpAddr::from(*src), IpAddr::from(*dst), rest)
    }

    fn quoting(
        report: Report,
        protocol: u8,
        local: IpAddr,
        remote: IpAddr,
        quoted: &[u8],
    ) -> Option<Self> {
        let (head, _) = quoted.split_first_chunk::<8>()?;
        let [s0, s1, d0, d1, seq @ ..] = *head;
        let (local_port, remote_port) =
            (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        let tuple = Tuple { local, local_port, remote, remote_port };
        let seq = Seq::new(u32::from_be_bytes(seq));
        matches!(protocol, 6 | 17).then_some(Self { report, protocol, tuple, seq })
    }
}

/// Fragment offset.
const OFFSET: u16 = 0x1fff;
