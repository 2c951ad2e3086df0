//! The cutting of a request: how many packets it becomes, and how many bytes each of them carries.
//!
//! A network that takes many packets in one call takes packets of one length only: UDP segmentation
//! (`UDP_SEGMENT`) and its counterpart at the receiver. The first packet of a WRITE is longer than the rest
//! by its RETH, the first and the last of a READ's response by their AETH, so that a message of few packets
//! is a train for each of them. Over such a link ([`Capabilities::trains`]) a WRITE is cut into messages of
//! one packet, each with its RETH, and a short READ is asked for in such pieces. Their lengths are equal, as
//! far as the message's length allows: then trains run across messages, too.
//!
//! What makes the difference between a message and several is kept: a WRITE with immediate is one message,
//! because its receive tells how long it was; a SEND always is. Its FIRST and MIDDLE packets fill the path MTU, and the
//! last is shorter: a train for each message. A peer that is known to be of our kind ([`Bth::keeps_early`]) takes packets of
//! one length that do not fill it.
//!
//! Read IBTA Vol. 1 §9.4.3 (WRITE), §9.4.4 (READ) and §9.7.2.2 (lengths) before changing this file.
//!
//! [`Capabilities::trains`]: crate::Capabilities::trains
//! [`Bth::keeps_early`]: adverb_wire::Bth::keeps_early

use crate::segment::Segment;
use crate::work::{Request, RequestKind};

/// How a request is cut.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cutting {
    /// Sequence numbers that it takes.
    pub(crate) packets: u32,
    /// Bytes that each packet carries, but for the last, which may carry fewer.
    pub(crate) segment: u32,
    /// Each packet is a message of its own.
    pub(crate) whole: bool,
}

impl Cutting {
    /// Nothing is sent.
    pub(crate) const NONE: Self = Self { packets: 0, segment: 0, whole: false };
    /// One packet, whatever the length: the bytes fit, or the receiver fetches them.
    pub(crate) const ONE: Self = Self { packets: 1, segment: Request::LEN_MAX, whole: false };

    /// Of `len` bytes in one message: packets of the longest payload, and one that carries the rest.
    pub(crate) const fn one_message(len: u32, mtu: Segment) -> Self {
        match mtu.packets(len) {
            1 => Self::ONE,
            packets => Self { packets, segment: mtu.bytes(), whole: false },
        }
    }

    /// Of `len` bytes in messages of one packet, as equally long on the wire as can be.
    pub(crate) fn messages(len: u32, mtu: Segment) -> Self {
        let packets = mtu.packets(len);
        if packets == 1 {
            return Self::ONE;
        }
        // The wire pads to words. One more packet costs less than the end of a train.
        let words = len.div_ceil(WORD_BYTES);
        let most = packets + packets / EXTRA_SHARE + 1;
        let equal = (packets..=most).find(|&packets| words.is_multiple_of(packets));
        let packets = equal.filter(|_| packets <= EQUAL_PACKETS_MAX).unwrap_or(packets);
        let segment = words.div_ceil(packets) * WORD_BYTES;
        Self { packets: len.div_ceil(segment), segment, whole: true }
    }

    /// Of a request over a path with packets of `mtu`. `trains`: packets of one length travel together.
    /// `ours`: the peer takes FIRST and MIDDLE packets that do not fill the MTU. `reads_max`: READs under way at once.
    pub(crate) fn of(
        request: &Request,
        mtu: Segment,
        trains: bool,
        ours: bool,
        reads_max: usize,
    ) -> Self {
        let len = request.len;
        match request.kind {
            RequestKind::Send { .. } if trains && ours => {
                Self { whole: false, ..Self::messages(len, mtu) }
            }
            RequestKind::Write { imm: None, .. } if trains => Self::messages(len, mtu),
            RequestKind::Read { .. } if trains => {
                let cutting = Self::messages(len, mtu);
                // Pieces are READs: they may be under way together only as far as both sides have agreed.
                match usize::try_from(cutting.packets) {
                    Ok(pieces) if pieces <= reads_max / READS_SHARE => cutting,
                    Ok(_) | Err(_) => Self::one_message(len, mtu),
                }
            }
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Write { .. }
            | RequestKind::Read { .. } => Self::one_message(len, mtu),
            RequestKind::AtomicWrite { .. }
            | RequestKind::Flush { .. }
            | RequestKind::CompareSwap { .. }
            | RequestKind::FetchAdd { .. } => Self::ONE,
            RequestKind::LocalInvalidate { .. } | RequestKind::BindWindow => Self::NONE,
        }
    }
}

/// What the wire pads payloads to, in bytes. IBTA Vol. 1 §9.2.
const WORD_BYTES: u32 = 4;
/// Lengths are made equal by one more packet for so many, rounded up.
const EXTRA_SHARE: u32 = 4;
/// Messages of more packets fill trains by themselves.
const EQUAL_PACKETS_MAX: u32 = 32;
/// A READ is cut into pieces of one packet if this many such READs may be under way at once.
const READS_SHARE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ATOMIC, READ, SEND, WRITE, request};
    use crate::work::RequestKind;
    use adverb_wire::{Imm, PathMtu};
    use alloc::vec::Vec;

    const MTU: Segment = Segment::of(PathMtu::B1024);

    /// Lengths of the packets.
    fn lens(cutting: Cutting, len: u32) -> Vec<u32> {
        let offsets = (0..cutting.packets).map(|at| at * cutting.segment);
        offsets.map(|offset| (len - offset).min(cutting.segment)).collect()
    }

    #[test]
    fn messages_of_one_packet_carry_every_byte_in_as_few_packets_as_trains_want() {
        for len in (0..40_000).step_by(7).chain([1023, 1024, 1025, 2048, 2049, 1 << 20, 1 << 31]) {
            let cutting = Cutting::messages(len, MTU);
            let needed = MTU.packets(len);
            let Cutting { packets, segment, whole } = cutting;
            assert!((!whole || segment <= MTU.bytes()) && packets >= needed, "{len}: {cutting:?}");
            assert!(packets <= needed + needed / 4 + 1, "{len}: {cutting:?}");
            assert_eq!(whole, needed > 1, "{len}");
            let before_last = u64::from(packets - 1) * u64::from(segment);
            let last = u64::from(len) - before_last;
            assert!(last <= u64::from(segment) && (last > 0 || len == 0), "{len}: {cutting:?}");
        }
    }

    #[test]
    fn packets_are_equally_long_on_the_wire_where_the_length_allows() {
        let padded = |len: u32| len.next_multiple_of(4);
        for (len, expected) in [(5000, 5), (6144, 6), (12288, 12), (4096, 4), (1536, 2), (5062, 6)]
        {
            let lens = lens(Cutting::messages(len, MTU), len);
            assert_eq!(lens.len(), expected, "{len}");
            assert!(lens.iter().all(|&each| padded(each) == padded(lens[0])), "{len}: {lens:?}");
        }
        // 4 times a prime: nothing divides it. Only the last packet is shorter.
        assert_eq!(lens(Cutting::messages(4 * 521, MTU), 4 * 521), [696, 696, 692]);
    }

    /// A receive's completion says how many bytes were written, so that a WRITE with immediate stays whole;
    /// a SEND fills one receive; READs are cut only if enough of them may be under way.
    #[test]
    fn what_tells_a_message_from_several_is_not_cut_into_several() {
        let whole = |kind, reads| Cutting::of(&request(kind, 4096), MTU, true, true, reads).whole;
        assert!(whole(WRITE, 0));
        let RequestKind::Write { va, rkey, .. } = WRITE else { unreachable!() };
        assert!(!whole(RequestKind::Write { va, rkey, imm: Some(Imm(7)) }, 16));
        assert!(!whole(SEND, 16));
        assert!(!whole(READ, 15));
        assert!(whole(READ, 16));
        assert_eq!(Cutting::of(&request(ATOMIC, 4096), MTU, true, true, 16).packets, 1);
        assert!(!Cutting::of(&request(WRITE, 4096), MTU, false, true, 16).whole);
    }

    /// Goal: packets of a SEND do not fill the MTU only where the peer is known to take that, and trains gain by it.
    #[test]
    fn a_send_is_packets_of_one_length_to_a_peer_of_our_kind() {
        let cut = |trains, ours| {
            let cutting = Cutting::of(&request(SEND, 6000), MTU, trains, ours, 16);
            lens(cutting, 6000)
        };
        assert_eq!(cut(true, true), [1000; 6]);
        for (trains, ours) in [(true, false), (false, true), (false, false)] {
            assert_eq!(cut(trains, ours), [1024, 1024, 1024, 1024, 1024, 880]);
        }
    }
}
