//! The internet checksum: RFC 1071.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A running internet checksum. Bytes may be added in pieces of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of 16-bit words in this machine's byte order, carries above. The sum does not depend on the order but for a
    /// swap at its end: RFC 1071 §2 (B).
    total: u64,
    /// An odd number of bytes was added: the next one is the low half of a word.
    odd: bool,
}

impl Sum {
    /// The sum of a TCP, UDP or ICMP message of `len` bytes over IPv4 begins with this. RFC 9293 §3.1.
    #[inline]
    pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Self {
        let [l0, l1] = len.to_be_bytes();
        Self::default().with(&src.octets()).with(&dst.octets()).with(&[0, protocol, l0, l1])
    }

    /// The sum of a TCP, UDP or ICMP message of `len` bytes over IPv6 begins with this. RFC 8200 §8.1.
    #[inline]
    pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u16) -> Self {
        let [l0, l1] = len.to_be_bytes();
        Self::default().with(&src.octets()).with(&dst.octets()).with(&[0, protocol, l0, l1])
    }

    /// The sum of words, as they are on the wire, of which none need lie in memory.
    #[inline]
    pub(super) fn of_words<const N: usize>(words: &[[u8; 2]; N]) -> Self {
        let total = words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum();
        Self { total, odd: false }
    }

    /// The sum with `bytes` behind those that it has.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let words = word_sum(bytes);
        let words = if self.odd { u64::from(fold(words).swap_bytes()) } else { words };
        Self { total: self.total + words, odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// The checksum: the complement of the sum. Over a message that contains its own checksum, 0.
    #[inline]
    pub fn finish(self) -> u16 {
        !u16::from_be(fold(self.total))
    }
}

/// The sum of `bytes` as words of this machine, with a zero byte appended if their number is odd.
#[inline]
fn word_sum(bytes: &[u8]) -> u64 {
    if bytes.len() > SHORT_BYTES {
        return word_sum_of_many(bytes);
    }
    // By twice as many at a time, with the carries in a word of their own: several at once would take longer to begin.
    let (chunks, rest) = bytes.as_chunks::<8>();
    let total: u128 = chunks.iter().map(|chunk| u128::from(u64::from_ne_bytes(*chunk))).sum();
    let part = |shift: u32| u64::try_from((total >> shift) & 0xffff_ffff).unwrap_or_default();
    part(0) + part(32) + part(64) + word_sum_of_many(rest)
}

/// The same, by any number of words at a time.
#[inline]
fn word_sum_of_many(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<4>();
    let total: u64 = chunks.iter().map(|chunk| u64::from(u32::from_ne_bytes(*chunk))).sum();
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    total + u64::from(u32::from_ne_bytes(last))
}

/// Up to so many bytes are few.
const SHORT_BYTES: usize = 256;

/// Carries added back in until none is left.
fn fold(total: u64) -> u16 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    let total = (total & 0xffff) + ((total >> 16) & 0xffff) + (total >> 32);
    let total = (total & 0xffff) + (total >> 16);
    let total = (total & 0xffff) + (total >> 16);
    let [.., high, low] = total.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 §3 computes this sum.
    #[test]
    fn the_sum_is_as_the_rfc_computes_it() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().with(&bytes).finish(), !0xddf2);
    }

    #[test]
    fn pieces_sum_up_to_the_same_wherever_they_are_cut() {
        let bytes: Vec<u8> = (0..37).map(|byte: u8| byte.wrapping_mul(77) ^ 0x85).collect();
        let whole = Sum::default().with(&bytes).finish();
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let sum = Sum::default().with(&bytes[..first]).with(&bytes[first..second]);
                assert_eq!(sum.with(&bytes[second..]).finish(), whole, "{first} {second}");
            }
        }
    }

    #[test]
    fn few_bytes_sum_up_as_many_do() {
        let bytes: Vec<u8> =
            (0..600_u32).map(|at| (at * at * 37).to_le_bytes()[1] | 0x80).collect();
        for len in 0..bytes.len() {
            let (sum, many) = (word_sum(&bytes[..len]), word_sum_of_many(&bytes[..len]));
            assert_eq!(fold(sum), fold(many), "{len}");
        }
    }

    #[test]
    fn carries_are_not_lost() {
        assert_eq!(Sum::default().with(&[0xff; 256]).finish(), 0);
        assert_eq!(Sum::default().with(&[0xff; 65_535]).finish(), 0x00ff);
        assert_eq!(Sum::default().with(&[0xff; 65_536]).finish(), 0);
    }

    extern crate std;
    use std::vec::Vec;
}
