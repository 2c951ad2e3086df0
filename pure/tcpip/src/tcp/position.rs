//! Positions in a stream: sequence numbers that do not wrap.
//!
//! The SYN is at position 0, the first byte at 1, and the FIN after the last. Positions have an order, so nothing
//! behind the header compares sequence numbers.

use super::seq::Seq;

/// Where a stream's sequence numbers begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(pub(super) Seq);

impl Origin {
    /// The sequence number of a position.
    pub(super) fn seq(self, position: u64) -> Seq {
        let [.., b0, b1, b2, b3] = position.to_be_bytes();
        self.0.plus(u32::from_be_bytes([b0, b1, b2, b3]))
    }

    /// The position with this sequence number that is nearest to `near`; `None` if it is before the SYN.
    pub(super) fn position(self, seq: Seq, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(seq.since(self.seq(near))))
    }
}

/// A length as a difference of positions.
pub(super) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A difference of positions as a length.
pub(super) fn length(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_on_where_sequence_numbers_wrap() {
        let origin = Origin(Seq::new(0xffff_fff0));
        assert_eq!(origin.seq(0x20), Seq::new(0x10));
        assert_eq!(origin.position(Seq::new(0x10), 0x1f), Some(0x20));
        assert_eq!(origin.position(Seq::new(0x10), 0x1_0000_0000), Some(0x1_0000_0020));
        assert_eq!(origin.position(Seq::new(0xffff_ffef), 0), None);
    }
}
