//! How long a packet's payload is at most: the path MTU on a network, more between two queue pairs
//! of one host, whose packets are records in shared memory.

use adverb_wire::PathMtu;

/// The longest payload of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Segment {
    bytes: u32,
}

impl Segment {
    /// Between queue pairs of one host.
    pub(crate) const LOCAL: Self = Self { bytes: crate::LOCAL_SEGMENT_BYTES };

    /// On a network.
    pub(crate) const fn of(mtu: PathMtu) -> Self {
        Self { bytes: mtu.bytes() }
    }

    /// In bytes.
    #[inline]
    pub(crate) const fn bytes(self) -> u32 {
        self.bytes
    }

    /// Packets that `len` bytes are cut into; nothing takes one too.
    #[inline]
    pub(crate) const fn packets(self, len: u32) -> u32 {
        if len <= self.bytes { 1 } else { len.div_ceil(self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_as_a_path_mtu_cuts_it() {
        let mtu = PathMtu::B256;
        let segment = Segment::of(mtu);
        for len in [0, 1, 255, 256, 257, 512, 513, 1 << 31] {
            assert_eq!(segment.packets(len), mtu.packets(len), "{len}");
        }
        assert_eq!(Segment::LOCAL.packets(Segment::LOCAL.bytes() + 1), 2);
    }
}
