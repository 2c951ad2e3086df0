//! Errors of parsing IP packets.

use core::fmt;

/// Error of parsing an IP packet with one UDP datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// It is, or may become, a fragment.
    Fragment,
    /// The lengths of UDP and IP disagree.
    Length,
    /// The version is neither 4 nor 6.
    NotIp,
    /// It carries something else.
    NotUdp,
    /// The IPv4 header has options.
    Options,
    /// It ends too early.
    Truncated,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fragment => "the packet is, or may become, a fragment",
            Self::Length => "the lengths of UDP and IP disagree",
            Self::NotIp => "the packet is neither IPv4 nor IPv6",
            Self::NotUdp => "the packet does not carry UDP",
            Self::Options => "the IPv4 header has options",
            Self::Truncated => "the packet ends too early",
        })
    }
}

impl core::error::Error for Error {}
