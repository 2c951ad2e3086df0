//! The invariant CRC: the check sum of what no router may change.
//!
//! It covers the packet from eight bytes of ones, in the place of InfiniBand's local route header,
//! over the IP and UDP headers to the last byte of padding. What a router may change counts as
//! ones: traffic class, hop limit, flow label, header check sum, UDP check sum, and the byte of
//! the base transport header that carries congestion marks. The IPv4 identification counts as it
//! is, and that is the difficulty: a UDP socket shows it neither to the sender nor to the receiver.
//!
//! [`Flow`] holds the sum up to the end of the UDP header, for lengths and identification of zero;
//! the sum is linear (`crc.rs`), so setting them is an XOR of table entries, and an identification
//! that was not told can be solved for. That leaves 16 of the 32 check bits to find corruption; a
//! single flipped bit is still always found, unless the datagram is longer than 26 000 bytes.
//!
//! Read IBTA Vol. 1 Annex A17 (RoCEv2) before changing this file.

use crc32fast::Hasher;

use crate::bth::Bth;
use crate::crc::{Table, multiply};
use crate::ip::{self, Addresses};

/// Length of the invariant CRC on the wire, in bytes.
pub const ICRC_LEN: usize = 4;

/// Two addresses with their ports, and the part of the invariant CRC that is the same for every
/// packet between them.
///
/// Packets are taken to carry the don't-fragment flag, which counts, as those of every RoCE
/// implementation do.
///
/// # Examples
///
/// The sum of a packet is computed from its parts, wherever they lie:
///
/// ```
/// # use adverb_wire::{Flow, ROCE_PORT};
/// # let bth = [0x64, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 1];
/// # let deth = [0, 0, 0, 7, 0, 0, 0, 1];
/// let headers = [bth.as_slice(), &deth].concat();
/// let payload = [1, 2, 3, 4];
/// let flow = Flow::v4([127, 0, 0, 1], [127, 0, 0, 1], 0xc000, ROCE_PORT);
///
/// let mut icrc = flow.icrc(28, 0); // 20 bytes of headers, 4 of payload, 4 of the sum itself.
/// icrc.headers(&headers);
/// icrc.update(&payload);
/// let datagram = [headers.as_slice(), &payload, &icrc.finish()].concat();
///
/// assert_eq!(flow.verify(&datagram, 0), Some(0));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Flow {
    addresses: Addresses,
    src_port: u16,
    dst_port: u16,
    /// The sum up to the end of the UDP header, all lengths and the identification being 0.
    prefix: u32,
}

impl Flow {
    /// Its packets are those of IPv6, and not of IPv4.
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        matches!(self.addresses, Addresses::V6 { .. })
    }

    /// From one IPv4 address and port to another. The RoCE destination port is
    /// [`ROCE_PORT`](crate::ROCE_PORT).
    pub fn v4(src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> Self {
        Self::new(Addresses::V4 { src, dst }, src_port, dst_port)
    }

    /// From one IPv6 address and port to another.
    pub fn v6(src: [u8; 16], dst: [u8; 16], src_port: u16, dst_port: u16) -> Self {
        Self::new(Addresses::V6 { src, dst }, src_port, dst_port)
    }

    fn new(addresses: Addresses, src_port: u16, dst_port: u16) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        hasher.update(ip::masked_headers(&addresses, src_port, dst_port).as_slice());
        Self { addresses, src_port, dst_port, prefix: hasher.finalize() }
    }

    /// Whether the addresses are IPv6's.
    #[inline]
    pub const fn is_v6(&self) -> bool {
        matches!(self.addresses, Addresses::V6 { .. })
    }

    /// The flow of the answers: addresses exchanged, ports kept, because RoCE packets go to the
    /// same port in both directions and the source port stands for the pair.
    pub fn reversed(&self) -> Self {
        let addresses = match self.addresses {
            Addresses::V4 { src, dst } => Addresses::V4 { src: dst, dst: src },
            Addresses::V6 { src, dst } => Addresses::V6 { src: dst, dst: src },
        };
        Self::new(addresses, self.src_port, self.dst_port)
    }

    /// Starts the sum of a packet of `udp_payload_len` bytes, from the base transport header to
    /// the ICRC's last byte, under the IPv4 identification `id`. IPv6 has none and ignores it.
    ///
    /// Lengths wrap beyond what an IP packet can carry, 65 507 bytes; there is no such packet.
    #[inline]
    pub fn icrc(&self, udp_payload_len: u16, id: u16) -> Icrc {
        let [udp_high, udp_low] = udp_payload_len.wrapping_add(ip::UDP_LEN).to_be_bytes();
        let fields = if self.is_v6() {
            V6_LENGTHS_HIGH.at(udp_high) ^ V6_LENGTHS_LOW.at(udp_low)
        } else {
            let ip_len = udp_payload_len.wrapping_add(ip::UDP_LEN + ip::V4_LEN);
            let [ip_high, ip_low] = ip_len.to_be_bytes();
            let [id_high, id_low] = id.to_be_bytes();
            UDP_LENGTH_HIGH.at(udp_high)
                ^ UDP_LENGTH_LOW.at(udp_low)
                ^ V4_LENGTH_HIGH.at(ip_high)
                ^ V4_LENGTH_LOW.at(ip_low)
                ^ V4_ID_HIGH.at(id_high)
                ^ V4_ID_LOW.at(id_low)
        };
        Icrc { sum: self.prefix ^ fields }
    }

    /// Checks a datagram, from its base transport header to its ICRC, that arrived under an
    /// identification that is not known; returns the one that fits. `None` means corruption.
    ///
    /// `guess` costs least when it is right, and nothing else depends on it. A sender counts up or
    /// stays at 0, so the last packet's identification plus one, or 0, are good guesses. IPv6 has
    /// no identification: the answer is `Some(0)` or `None`.
    #[inline]
    pub fn verify(&self, datagram: &[u8], guess: u16) -> Option<u16> {
        let (packet, sum) = datagram.split_last_chunk::<ICRC_LEN>()?;
        let len = u16::try_from(datagram.len()).ok()?;
        if packet.len() < Bth::LEN || len > ip::UDP_PAYLOAD_MAX {
            return None;
        }
        let mut icrc = self.icrc(len, guess);
        icrc.headers(packet);
        let difference = icrc.sum ^ u32::from_le_bytes(*sum);
        match self.addresses {
            Addresses::V4 { .. } if difference == 0 => Some(guess),
            Addresses::V4 { .. } => Some(guess ^ id_behind(difference, len)?),
            Addresses::V6 { .. } => (difference == 0).then_some(0),
        }
    }

    pub(crate) const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) const fn ports(&self) -> (u16, u16) {
        (self.src_port, self.dst_port)
    }
}

/// The change of the identification that changes the sum of a datagram of `len` bytes by
/// `difference`; `None` if no such change does.
#[inline]
fn id_behind(difference: u32, len: u16) -> Option<u16> {
    let [high, low] = len.to_be_bytes();
    let undo = multiply(UNDO_HIGH.at(high), UNDO_LOW.at(low));
    // What is left is the message that made the difference: an identification's two bytes are
    // below x¹⁶, which the reflected register keeps in its upper half.
    let [0, 0, id_high, id_low] = multiply(difference, undo).to_le_bytes() else {
        return None;
    };
    Some(u16::from_be_bytes([id_high, id_low]))
}

/// The invariant CRC of one packet while it is computed.
///
/// [`Icrc::headers`] comes first, then everything else in the order of the wire, padding included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct Icrc {
    sum: u32,
}

impl Icrc {
    /// Adds the first bytes of the packet, a base transport header at least, as they are on the
    /// wire; the byte that carries congestion marks counts as ones.
    #[inline]
    pub fn headers(&mut self, headers: &[u8]) {
        let [_, _, _, _, marks, ..] = *headers else {
            debug_assert!(false, "{} bytes are not a header", headers.len());
            return;
        };
        // Instead of a copy with the byte changed: change what the byte will meet.
        self.sum ^= MARKS.at(!marks);
        self.update(headers);
    }

    /// Adds the bytes that come next.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return; // Padding, mostly; a hasher costs a look at what the processor can do.
        }
        let mut hasher = Hasher::new_with_initial(self.sum);
        hasher.update(bytes);
        self.sum = hasher.finalize();
    }

    /// The sum as it stands on the wire, least significant byte first.
    #[inline]
    pub const fn finish(self) -> [u8; ICRC_LEN] {
        self.sum.to_le_bytes()
    }
}

// How many bytes follow a field until the end of the UDP header decides what it contributes.
//
//     IPv4, 20 bytes: length at 2, identification at 4      UDP, 8 bytes: length at 4
//     IPv6, 40 bytes: length at 4, the same value as UDP's
static V4_LENGTH_HIGH: Table = Table::contributions(25);
static V4_LENGTH_LOW: Table = Table::contributions(24);
static V4_ID_HIGH: Table = Table::contributions(23);
static V4_ID_LOW: Table = Table::contributions(AFTER_ID);
static UDP_LENGTH_HIGH: Table = Table::contributions(3);
static UDP_LENGTH_LOW: Table = Table::contributions(2);
static V6_LENGTHS_HIGH: Table = Table::contributions(43).plus(&Table::contributions(3));
static V6_LENGTHS_LOW: Table = Table::contributions(42).plus(&Table::contributions(2));

/// Corrections for the byte with the congestion marks, the fifth of the packet.
static MARKS: Table = Table::corrections(4);

// Powers that take back the bytes between the identification and the end of the sum. The message
// of a CRC is multiplied by x³², four bytes; the datagram's length counts the ICRC's own four,
// which the sum does not cover, so that the two cancel.
static UNDO_HIGH: Table = Table::undoing(256, AFTER_ID);
static UNDO_LOW: Table = Table::undoing(1, 0);

/// Bytes between the IPv4 identification and the end of the UDP header.
const AFTER_ID: u32 = 22;

#[cfg(test)]
mod tests;
