//! What goes over the mesh: blocks that can be told from all others, and from spoilt ones.
//!
//! ```text
//!  byte  0        8       16          24
//!       +--------+-------+-----------+--------------------------
//!       | from   | seq   | checksum  | words that follow from both
//!       +--------+-------+-----------+--------------------------
//! ```
//!
//! All numbers are little-endian. A notice says that a block was written, and where; the last message
//! of a sender says how many blocks there were.

/// Bytes of the shortest block.
pub(crate) const BLOCK_BYTES_MIN: usize = 24;

/// Fills `block` as number `seq` of those that node `from` sends.
pub(crate) fn fill(block: &mut [u8], from: u64, seq: u64) {
    let (head, body) = block.split_at_mut(BLOCK_BYTES_MIN.min(block.len()));
    let mut word = start(from, seq);
    for chunk in body.chunks_mut(size_of::<u64>()) {
        word = word.wrapping_add(STEP);
        for (to, byte) in chunk.iter_mut().zip(word.to_le_bytes()) {
            *to = byte;
        }
    }
    let sum = checksum(from, seq, body);
    let words = [from, seq, sum].into_iter().flat_map(u64::to_le_bytes);
    for (to, byte) in head.iter_mut().zip(words) {
        *to = byte;
    }
}

/// The number of a block of node `from`, if it is whole.
pub(crate) fn check(block: &[u8], from: u64) -> Option<u64> {
    let (head, body) = block.split_at_checked(BLOCK_BYTES_MIN)?;
    let (words, _) = head.as_chunks::<8>();
    let [sender, seq, sum] = words else {
        return None;
    };
    let [sender, seq, sum] = [sender, seq, sum].map(|word| u64::from_le_bytes(*word));
    let good = sender == from && sum == checksum(from, seq, body);
    good.then_some(seq)
}

fn start(from: u64, seq: u64) -> u64 {
    (from ^ seq.rotate_left(20)).wrapping_mul(STEP)
}

/// A sum that depends on every byte and its place.
fn checksum(from: u64, seq: u64, body: &[u8]) -> u64 {
    let mut sum = start(seq, from);
    let (words, rest) = body.as_chunks::<8>();
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(STEP).rotate_left(29);
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(STEP).rotate_left(29);
    }
    sum
}

/// An odd number without a pattern: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a message of the mesh is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Notice {
    /// A block of this number was written into the place that its number has.
    Written(u64),
    /// That were all: so many.
    End(u64),
}

/// Bytes of a notice. No block is as short.
pub(crate) const NOTICE_BYTES: usize = 16;

impl Notice {
    /// As bytes.
    pub(crate) fn emit(self) -> [u8; NOTICE_BYTES] {
        let (kind, number) = match self {
            Self::Written(seq) => (1_u64, seq),
            Self::End(count) => (2, count),
        };
        let mut bytes = [0; NOTICE_BYTES];
        for (to, byte) in
            bytes.iter_mut().zip([kind, number].into_iter().flat_map(u64::to_le_bytes))
        {
            *to = byte;
        }
        bytes
    }

    /// Reads one.
    pub(crate) fn parse(bytes: &[u8; NOTICE_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [kind, number] = words else {
            return None;
        };
        match (u64::from_le_bytes(*kind), u64::from_le_bytes(*number)) {
            (1, seq) => Some(Self::Written(seq)),
            (2, count) => Some(Self::End(count)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_and_any_other_is_not() {
        for len in [24, 25, 64, 1001] {
            let mut block = vec![0; len];
            fill(&mut block, 3, 77);
            assert_eq!(check(&block, 3), Some(77));
            assert_eq!(check(&block, 4), None);
            for at in 0..len {
                block[at] ^= 1;
                assert_eq!(check(&block, 3), None, "byte {at} of {len}");
                block[at] ^= 1;
            }
            let mut old = vec![0; len];
            fill(&mut old, 3, 76);
            // Half of one block and half of another.
            if len > 40 {
                block[32..].copy_from_slice(&old[32..]);
                assert_eq!(check(&block, 3), None);
            }
        }
        assert_eq!(check(&[0; 23], 0), None);
    }

    #[test]
    fn notices_parse_to_what_they_were() {
        for notice in [Notice::Written(5), Notice::End(u64::MAX)] {
            assert_eq!(Notice::parse(&notice.emit()), Some(notice));
        }
        assert_eq!(Notice::parse(&[0; 16]), None);
    }
}
