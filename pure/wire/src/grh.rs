//! The 40 bytes in front of every datagram in its receive: what was the global routing header of
//! InfiniBand, and is the IP header of RoCEv2.
//!
//! ```text
//!     IPv6: the header as it is.
//!     IPv4: 20 bytes without meaning, sent as zeros, then the header.
//! ```
//!
//! A receiver reads them to find out the sender; nothing in the transport depends on them.
//!
//! Read IBTA Vol. 1 Annex A17 (RoCEv2) before changing this file.

use crate::icrc::Flow;
use crate::ip::{Addresses, Marks, V4_LEN, emit_udp_headers, parse_class};

/// The network header of a datagram, as its receiver sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grh {
    /// Where it came from, as a GID: an IPv6 or an IPv4-mapped address.
    pub src: [u8; 16],
    /// Where it went, as a GID.
    pub dst: [u8; 16],
    /// How the network was to treat it, as that stood when it arrived.
    pub marks: Marks,
}

impl Grh {
    /// Length, in bytes.
    pub const LEN: usize = 40;

    /// The header of a datagram of `udp_payload_len` bytes that came by `flow`, as it stands in a
    /// receive. A socket shows neither identification nor check sum; the one is 0 and the other
    /// fits.
    pub fn emit(flow: &Flow, marks: Marks, udp_payload_len: u16) -> [u8; 40] {
        let headers = emit_udp_headers(flow, 0, marks, udp_payload_len);
        let mut grh = [0; Self::LEN];
        let (place, len) = match flow.addresses() {
            Addresses::V4 { .. } => (grh.get_mut(Self::LEN - usize::from(V4_LEN)..), V4_LEN),
            Addresses::V6 { .. } => (grh.get_mut(..), 40),
        };
        let header = headers.as_slice().get(..usize::from(len));
        if let (Some(place), Some(header)) = (place, header) {
            place.copy_from_slice(header);
        }
        grh
    }

    /// Reads the header; `None` if it is neither IPv6's nor IPv4's.
    pub fn parse(bytes: &[u8; 40]) -> Option<Self> {
        let [first, c1, c2, c3, _, _, _, hop_limit, addresses @ ..] = *bytes;
        if first >> 4 == 6 {
            let (src, rest) = addresses.split_first_chunk::<16>()?;
            let (dst, _) = rest.split_first_chunk::<16>()?;
            let (traffic_class, flow_label) = parse_class([first, c1, c2, c3]);
            let marks = Marks { traffic_class, hop_limit, flow_label };
            return Some(Self { src: *src, dst: *dst, marks });
        }
        let (_, header) = bytes.split_last_chunk::<20>()?;
        let [version, traffic_class, _, _, _, _, _, _, hop_limit, _, _, _, addresses @ ..] =
            *header;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        let (src, dst) = (mapped([s0, s1, s2, s3]), mapped([d0, d1, d2, d3]));
        let marks = Marks { traffic_class, hop_limit, flow_label: 0 };
        (version >> 4 == 4).then_some(Self { src, dst, marks })
    }
}

/// The GID of an IPv4 address.
const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::ROCE_PORT;

    #[test]
    fn the_header_names_the_sender() {
        let v4 = Flow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, ROCE_PORT);
        let marks = Marks { traffic_class: 0xa5, ..Marks::USUAL };
        let grh = Grh::emit(&v4, marks, 100);
        assert_eq!((grh[..20].iter().max(), grh[20]), (Some(&0), 0x45));
        let expected = Grh { src: mapped([10, 0, 0, 1]), dst: mapped([10, 0, 0, 2]), marks };
        assert_eq!(Grh::parse(&grh), Some(expected));

        let v6 = Flow::v6([1; 16], [2; 16], 0xc000, ROCE_PORT);
        let marks = Marks { traffic_class: 0x5a, hop_limit: 7, flow_label: 0xa_bcde };
        let expected = Grh { src: [1; 16], dst: [2; 16], marks };
        assert_eq!(Grh::parse(&Grh::emit(&v6, marks, 100)), Some(expected));
        // Labels have 20 bits; more of them do not reach the traffic class.
        let longer = Marks { flow_label: 0xffa_bcde, ..marks };
        assert_eq!(Grh::parse(&Grh::emit(&v6, longer, 100)), Some(expected));
        assert_eq!(Grh::parse(&[0; 40]), None);
    }
}
