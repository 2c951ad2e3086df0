//! Address resolution of IPv4 over Ethernet: RFC 826.
//!
//! ```text
//!     +-------+--------+-+-+---------+--------------+----------+--------------+----------+
//!     |hardw.1|protocol|6|4|operation| sender MAC, 6| its IP, 4| target MAC, 6| its IP, 4|
//!     +-------+--------+-+-+---------+--------------+----------+--------------+----------+
//! ```

use core::net::Ipv4Addr;

use crate::ethernet::Mac;

/// A question for the Ethernet address of an IPv4 address, or the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arp {
    /// Question or answer.
    pub operation: Operation,
    /// Ethernet and IPv4 address of the sender.
    pub sender: (Mac, Ipv4Addr),
    /// Of the host that is meant; a question's Ethernet address is zero.
    pub target: (Mac, Ipv4Addr),
}

/// What an ARP message is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// The answer.
    Reply,
    /// The question.
    Request,
}

impl Arp {
    /// Length of a message, in bytes.
    pub const LEN: usize = 28;

    /// Reads what an Ethernet frame carries; `None` if it is not ARP of IPv4 over Ethernet. Padding is ignored.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (head, rest) = message.split_first_chunk::<8>()?;
        let (body, _) = rest.split_first_chunk::<20>()?;
        let operation = match *head {
            [0, 1, 8, 0, 6, 4, 0, 1] => Operation::Request,
            [0, 1, 8, 0, 6, 4, 0, 2] => Operation::Reply,
            _ => return None,
        };
        let [s0, s1, s2, s3, s4, s5, a0, a1, a2, a3, target @ ..] = *body;
        let [t0, t1, t2, t3, t4, t5, b0, b1, b2, b3] = target;
        let sender = (Mac([s0, s1, s2, s3, s4, s5]), Ipv4Addr::new(a0, a1, a2, a3));
        let target = (Mac([t0, t1, t2, t3, t4, t5]), Ipv4Addr::new(b0, b1, b2, b3));
        Some(Self { operation, sender, target })
    }

    /// The message as bytes.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let code = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        let ((Mac([s0, s1, s2, s3, s4, s5]), sender), (Mac([t0, t1, t2, t3, t4, t5]), target)) =
            (self.sender, self.target);
        let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (sender.octets(), target.octets());
        [
            0, 1, 8, 0, 6, 4, 0, code, s0, s1, s2, s3, s4, s5, a0, a1, a2, a3, t0, t1, t2, t3, t4,
            t5, b0, b1, b2, b3,
        ]
    }
}
