//! One rule: which sockets it is about, and what is to be done with them.
//!
//! ```text
//! use <transport> <role> <address[/prefix] | *>:<port[-port] | *>[:<address>:<port>]
//! ```
//!
//! The first address is the local one for `tcp_server` and `udp_receiver`, and the remote one for
//! the other roles; `tcp_client` and `udp_connect` may name the local one behind it.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

/// What is to be done with a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// The best there is. Spelt `vma` in the grammar, or `best`.
    Best,
    /// The kernel's, untouched. Spelt `os`.
    Os,
    /// The kernel's, with waits that spin before they sleep. Spelt `spin`.
    Spin,
    /// Shared memory where the peer is on this host and speaks it. Spelt `shm`.
    SharedMemory,
    /// Frames of an interface, past the kernel, where its owner gives them. Spelt `xdp`.
    Frames,
}

/// What part a socket plays when it first becomes clear whom it talks to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It listens; the sockets it accepts are treated like it.
    TcpServer,
    /// It connects.
    TcpClient,
    /// It sends datagrams to an address given with each.
    UdpSender,
    /// It is bound, and receives datagrams.
    UdpReceiver,
    /// It is a datagram socket with one peer.
    UdpConnect,
}

impl Role {
    const ALL: [(&'static str, Self); 5] = [
        ("tcp_server", Self::TcpServer),
        ("tcp_client", Self::TcpClient),
        ("udp_sender", Self::UdpSender),
        ("udp_receiver", Self::UdpReceiver),
        ("udp_connect", Self::UdpConnect),
    ];

    /// Whether the first address of a rule is the local one.
    const fn is_local_first(self) -> bool {
        matches!(self, Self::TcpServer | Self::UdpReceiver)
    }

    /// Whether a rule may name both ends.
    const fn has_two_sides(self) -> bool {
        matches!(self, Self::TcpClient | Self::UdpConnect)
    }
}

/// A set of addresses: a prefix, or all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Addresses {
    /// All.
    Any,
    /// Those whose first so many bits are these.
    Prefix(IpAddr, u8),
}

impl Addresses {
    /// Whether `addr` is one of them. An IPv4 address in IPv6 clothing counts as what it is.
    #[must_use]
    pub fn contains(self, addr: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(prefix, bits) => match (prefix, addr.to_canonical()) {
                (IpAddr::V4(prefix), IpAddr::V4(addr)) => {
                    same_bits(widen(prefix.to_bits()), widen(addr.to_bits()), bits)
                }
                (IpAddr::V6(prefix), IpAddr::V6(addr)) => {
                    same_bits(prefix.to_bits(), addr.to_bits(), bits)
                }
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
            },
        }
    }

    fn parse(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let (addr, bits) = match text.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits)),
            None => (text, None),
        };
        let addr = addr.strip_prefix('[').and_then(|addr| addr.strip_suffix(']')).unwrap_or(addr);
        let addr = IpAddr::from_str(addr).map_err(|_| RuleError::Address)?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse().map_err(|_| RuleError::Prefix)?,
        };
        if bits > most { Err(RuleError::Prefix) } else { Ok(Self::Prefix(addr, bits)) }
    }
}

/// An IPv4 address at the top of 128 bits, where an IPv6 address has its first bits.
fn widen(bits: u32) -> u128 {
    u128::from(bits) << 96
}

/// Whether the first `bits` bits of two addresses are the same.
fn same_bits(a: u128, b: u128, bits: u8) -> bool {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    (a ^ b) & mask == 0
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Every port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// Whether `port` is in the range.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn parse(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::ANY);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        if first > last { Err(RuleError::Port) } else { Ok(Self { first, last }) }
    }
}

/// A port; the manual's ranges end at 65536, which means the last one.
fn port(text: &str) -> Result<u16, RuleError> {
    match text.parse::<u32>() {
        Ok(65_536) => Ok(u16::MAX),
        Ok(port) => u16::try_from(port).map_err(|_| RuleError::Port),
        Err(_) => Err(RuleError::Port),
    }
}

/// One end of a rule: addresses and ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Side {
    /// Which addresses.
    pub addresses: Addresses,
    /// Which ports.
    pub ports: Ports,
}

impl Side {
    /// Any address, any port.
    pub const ANY: Self = Self { addresses: Addresses::Any, ports: Ports::ANY };

    fn contains(self, (addr, port): (IpAddr, u16)) -> bool {
        self.addresses.contains(addr) && self.ports.contains(port)
    }
}

/// A socket, as far as rules care: what it does, and with whom.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Socket {
    /// What part it plays.
    pub role: Role,
    /// Its own address, unspecified and 0 as long as it has none.
    pub local: (IpAddr, u16),
    /// Its peer's, unspecified and 0 if it has none.
    pub remote: (IpAddr, u16),
}

impl Socket {
    /// No address.
    pub const NOWHERE: (IpAddr, u16) = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
}

/// What is to be done with which sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rule {
    /// What is to be done.
    pub transport: Transport,
    /// The part that the socket plays.
    pub role: Role,
    /// Its own end.
    pub local: Side,
    /// The other end.
    pub remote: Side,
}

impl Rule {
    /// Whether the rule is about `socket`.
    #[must_use]
    pub fn is_about(&self, socket: &Socket) -> bool {
        self.role == socket.role
            && self.local.contains(socket.local)
            && self.remote.contains(socket.remote)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    /// Reads a line that begins with `use`.
    fn from_str(line: &str) -> Result<Self, RuleError> {
        let mut words = line.split_whitespace();
        if words.next() != Some("use") {
            return Err(RuleError::Statement);
        }
        let transport = match words.next() {
            Some("vma" | "best") => Transport::Best,
            Some("os") => Transport::Os,
            Some("spin") => Transport::Spin,
            Some("shm") => Transport::SharedMemory,
            Some("xdp") => Transport::Frames,
            Some(_) | None => return Err(RuleError::Transport),
        };
        let role = words.next().ok_or(RuleError::Role)?;
        let role = Role::ALL.iter().find(|(name, _)| *name == role).ok_or(RuleError::Role)?.1;
        let (first, second) = sides(words.next().ok_or(RuleError::Address)?)?;
        if words.next().is_some() || (second.is_some() && !role.has_two_sides()) {
            return Err(RuleError::Trailing);
        }
        let second = second.unwrap_or(Side::ANY);
        let (local, remote) = if role.is_local_first() { (first, second) } else { (second, first) };
        Ok(Self { transport, role, local, remote })
    }
}

/// Reads `address:ports`, and perhaps a second one after another colon.
fn sides(text: &str) -> Result<(Side, Option<Side>), RuleError> {
    let (first, rest) = side(text)?;
    match rest {
        None => Ok((first, None)),
        Some(rest) => match side(rest)? {
            (second, None) => Ok((first, Some(second))),
            (_, Some(_)) => Err(RuleError::Trailing),
        },
    }
}

/// Reads one `address:ports`, and what comes after the colon behind it. IPv6 addresses stand in
/// brackets.
fn side(text: &str) -> Result<(Side, Option<&str>), RuleError> {
    let colon = match text.find(']') {
        Some(bracket) if text.starts_with('[') => {
            text.split_at(bracket).1.find(':').map(|colon| bracket + colon)
        }
        Some(_) | None => text.find(':'),
    };
    let (addresses, rest) = text.split_at(colon.ok_or(RuleError::Port)?);
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let (ports, rest) = match rest.split_once(':') {
        Some((ports, rest)) => (ports, Some(rest)),
        None => (rest, None),
    };
    let side = Side { addresses: Addresses::parse(addresses)?, ports: Ports::parse(ports)? };
    Ok((side, rest))
}

/// Why a line is not a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RuleError {
    /// The address is neither `*` nor an IPv4 address nor an IPv6 address in brackets.
    Address,
    /// The ports are neither `*` nor a port nor a range from a lower to a higher one.
    Port,
    /// The prefix length is not a number, or more than the address has bits.
    Prefix,
    /// The role is none of the five.
    Role,
    /// The line begins with none of the statements there are.
    Statement,
    /// There is more behind the end of the rule.
    Trailing,
    /// The transport is none of `vma`, `os`, `spin`, `shm`, `xdp`.
    Transport,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "an address is *, IPv4 such as 10.0.0.0/8, or IPv6 such as [fd00::]/8",
            Self::Port => "ports are *, one port such as 80, or a range such as 5000-5999",
            Self::Prefix => "a prefix length is at most 32 for IPv4 and 128 for IPv6",
            Self::Role => {
                "a role is tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect"
            }
            Self::Statement => "a statement is application-id, use or log",
            Self::Trailing => "there is something behind the end of the statement",
            Self::Transport => "a transport is vma, os, spin, shm or xdp",
        })
    }
}

impl core::error::Error for RuleError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> (IpAddr, u16) {
        let addr: core::net::SocketAddr = text.parse().unwrap();
        (addr.ip(), addr.port())
    }

    fn client(remote: &str, local: &str) -> Socket {
        Socket { role: Role::TcpClient, local: addr(local), remote: addr(remote) }
    }

    #[test]
    fn the_manuals_example_means_what_it_says() {
        let rule: Rule = "use vma tcp_client 192.168.1.0/24:*:*:*".parse().unwrap();
        assert_eq!(rule.transport, Transport::Best);
        assert!(rule.is_about(&client("192.168.1.77:80", "10.0.0.1:5")));
        assert!(!rule.is_about(&client("192.168.2.77:80", "10.0.0.1:5")));
        let rule: Rule = "use os tcp_server *:5001".parse().unwrap();
        let server =
            |local| Socket { role: Role::TcpServer, local: addr(local), remote: Socket::NOWHERE };
        assert!(rule.is_about(&server("0.0.0.0:5001")));
        assert!(!rule.is_about(&server("0.0.0.0:5002")));
        assert!(!rule.is_about(&client("1.1.1.1:5001", "0.0.0.0:0")));
    }

    #[test]
    fn the_local_part_of_a_client_counts() {
        let rule: Rule = "use os tcp_client 10.0.0.0/8:1-5:127.0.0.1:7000-7001".parse().unwrap();
        assert!(rule.is_about(&client("10.9.8.7:5", "127.0.0.1:7001")));
        assert!(!rule.is_about(&client("10.9.8.7:6", "127.0.0.1:7001")));
        assert!(!rule.is_about(&client("10.9.8.7:5", "127.0.0.2:7001")));
        assert!(!rule.is_about(&client("10.9.8.7:5", "127.0.0.1:7002")));
    }

    #[test]
    fn ipv6_stands_in_brackets_and_mapped_addresses_are_ipv4() {
        let rule: Rule = "use shm tcp_client [fd00::]/8:80".parse().unwrap();
        assert!(rule.is_about(&client("[fd12::1]:80", "[::1]:9")));
        assert!(!rule.is_about(&client("[fe80::1]:80", "[::1]:9")));
        let rule: Rule = "use os tcp_client 127.0.0.0/8:*".parse().unwrap();
        assert!(rule.is_about(&client("[::ffff:127.0.0.1]:80", "[::1]:9")));
    }

    #[test]
    fn a_prefix_of_no_bits_is_everything_of_its_family() {
        let rule: Rule = "use os tcp_client 0.0.0.0/0:*".parse().unwrap();
        assert!(rule.is_about(&client("8.8.8.8:80", "1.1.1.1:1")));
        assert!(!rule.is_about(&client("[fd00::1]:80", "[::1]:9")));
    }

    #[test]
    fn what_is_not_a_rule_is_refused_with_the_part_that_is_wrong() {
        for (line, error) in [
            ("", RuleError::Statement),
            ("drop os tcp_server *:1", RuleError::Statement),
            ("use", RuleError::Transport),
            ("use rdma tcp_server *:1", RuleError::Transport),
            ("use os", RuleError::Role),
            ("use os tcp *:1", RuleError::Role),
            ("use os tcp_server", RuleError::Address),
            ("use os tcp_server 1.2.3:1", RuleError::Address),
            ("use os tcp_server 1.2.3.256:1", RuleError::Address),
            ("use os tcp_server 1.2.3.4/33:1", RuleError::Prefix),
            ("use os tcp_server 1.2.3.4/x:1", RuleError::Prefix),
            ("use os tcp_server *", RuleError::Port),
            ("use os tcp_server *:", RuleError::Port),
            ("use os tcp_server *:9-5", RuleError::Port),
            ("use os tcp_server *:65537", RuleError::Port),
            ("use os tcp_server *:1:*:1", RuleError::Trailing),
            ("use os tcp_client *:1:*:1:*:1", RuleError::Trailing),
            ("use os tcp_server *:1 again", RuleError::Trailing),
        ] {
            assert_eq!(line.parse::<Rule>(), Err(error), "{line}");
        }
        assert!("use os tcp_server *:0-65536".parse::<Rule>().is_ok());
    }
}
