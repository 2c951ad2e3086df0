//! Segment size, the longest payload of a packet: the path MTU, unless the link has another bound.

use adverb_wire::PathMtu;

/// The longest payload of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Segment {
    bytes: u32,
}

impl Segment {
    /// Of packets with this path MTU.
    pub(crate) const fn of(mtu: PathMtu) -> Self {
        Self { bytes: mtu.bytes() }
    }

    /// Of a link with a bound of its own, in bytes.
    pub(crate) const fn of_link(bytes: u32) -> Self {
        Self { bytes }
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
        assert_eq!(Segment::of_link(8192).packets(8193), 2);
    }
}
