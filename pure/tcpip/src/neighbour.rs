//! Neighbour discovery of IPv6: which Ethernet address belongs to an IPv6 address. RFC 4861 §4.3, §4.4.
//!
//! ```text
//!     +----+----+--------+----------+-----------------+---------------------------+
//!     |type|code| check  | flags, 4 | the address, 16 | options: type, words, ... |
//!     +----+----+--------+----------+-----------------+---------------------------+
//! ```

use core::net::Ipv6Addr;

use adverb_wire::ip::Sum;

use crate::ethernet::Mac;

/// A question for the Ethernet address of an IPv6 address, or the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// Question or answer.
    pub kind: Kind,
    /// The address that is meant.
    pub target: Ipv6Addr,
    /// Ethernet address of the sender of a question, of the target in an answer, if there is one.
    pub mac: Option<Mac>,
}

/// What a message of neighbour discovery is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The answer.
    Advertisement {
        /// It answers a question.
        solicited: bool,
    },
    /// The question.
    Solicitation,
}

impl Neighbour {
    /// Length of the messages that [`Neighbour::emit`] makes, in bytes.
    pub const LEN: usize = 32;

    /// Reads an ICMPv6 message whose checksum has been checked. `hop_limit` is that of its IP header: one below
    /// 255 has passed a router, and is no neighbour's. `None` if it is something else.
    pub fn parse(message: &[u8], hop_limit: u8) -> Option<Self> {
        let (head, rest) = message.split_first_chunk::<8>()?;
        let (target, options) = rest.split_first_chunk::<16>()?;
        let (kind, option) = match *head {
            [135, 0, ..] => (Kind::Solicitation, SOURCE),
            [136, 0, _, _, flags, ..] => {
                (Kind::Advertisement { solicited: flags & SOLICITED != 0 }, TARGET)
            }
            _ => return None,
        };
        let target = Ipv6Addr::from(*target);
        if hop_limit != 255 || target.is_multicast() {
            return None;
        }
        Some(Self { kind, target, mac: find(options, option)? })
    }

    /// The message from `src` to `dst` as bytes, with its checksum.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; Self::LEN] {
        let (kind, flags, option) = match self.kind {
            Kind::Solicitation => (135, 0, SOURCE),
            Kind::Advertisement { solicited: true } => (136, SOLICITED | OVERRIDE, TARGET),
            Kind::Advertisement { solicited: false } => (136, OVERRIDE, TARGET),
        };
        let mut bytes = [0; Self::LEN];
        let head = [kind, 0, 0, 0, flags, 0, 0, 0].into_iter().chain(self.target.octets());
        let all = head.chain([option, 1]).chain(self.mac.map_or([0; 6], |mac| mac.0));
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = from;
        }
        let sum = Sum::pseudo_v6(src, dst, 58, LEN).with(&bytes).finish().to_be_bytes();
        let [_, _, c0, c1, ..] = &mut bytes;
        [*c0, *c1] = sum;
        bytes
    }
}

/// The Ethernet address in the first option of this type, if there is one; `None` if the options are not legal.
fn find(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let Some(([kind, words], _)) = options.split_first_chunk::<2>() {
        let (option, rest) = options.split_at_checked(usize::from(*words) * 8)?;
        if option.is_empty() {
            return None; // An option without length: RFC 4861 §4.6 has the message dropped.
        }
        if let (true, &[_, _, m0, m1, m2, m3, m4, m5]) = (*kind == wanted, option) {
            found = found.or(Some(Mac([m0, m1, m2, m3, m4, m5])));
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

/// Option: source link-layer address.
const SOURCE: u8 = 1;
/// Option: target link-layer address.
const TARGET: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// [`Neighbour::LEN`] as the pseudo header counts.
const LEN: u16 = 32;
