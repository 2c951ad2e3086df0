//! A keyed hash: SipHash-2-4, by Aumasson and Bernstein. Without the key its values cannot be guessed, so that a peer
//! can neither choose connections that fall together in a table nor guess a first sequence number.

/// The key.
#[derive(Clone, Copy)]
pub(super) struct Key(pub(super) [u64; 2]);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The hash of these words, as bytes in little-endian order.
    pub(super) fn hash<const N: usize>(self, words: [u64; N]) -> u64 {
        let Self([k0, k1]) = self;
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let bytes = u64::try_from(N).unwrap_or_default() * 8;
        for word in words.into_iter().chain([bytes << 56]) {
            state = absorb(state, word);
        }
        let [v0, v1, v2, v3] = state;
        let mut state = [v0, v1, v2 ^ 0xff, v3];
        for _ in 0..4 {
            state = round(state);
        }
        let [v0, v1, v2, v3] = state;
        v0 ^ v1 ^ v2 ^ v3
    }
}

fn absorb([v0, v1, v2, v3]: [u64; 4], word: u64) -> [u64; 4] {
    let [v0, v1, v2, v3] = round(round([v0, v1, v2, v3 ^ word]));
    [v0 ^ word, v1, v2, v3]
}

fn round([mut v0, mut v1, mut v2, mut v3]: [u64; 4]) -> [u64; 4] {
    v0 = v0.wrapping_add(v1);
    v1 = v1.rotate_left(13) ^ v0;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v3);
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.wrapping_add(v3);
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.wrapping_add(v1);
    v1 = v1.rotate_left(17) ^ v2;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key 00 01 … 0f, message 00 01 … 07: the ninth vector that the authors publish.
    #[test]
    fn the_hash_is_what_its_authors_say() {
        let key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(key.hash([0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
        assert_eq!(key.hash([]), 0x726f_db47_dd0e_0e31);
    }
}
