//! Randomness that a seed decides.

/// A generator of numbers that look random: SplitMix64, small and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator that this seed stands for.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0. The bias is beyond what a test could notice.
    pub const fn below(&mut self, bound: u64) -> u64 {
        match self.bits().checked_rem(bound) {
            Some(number) => number,
            None => 0,
        }
    }

    /// A number of `from..=to`.
    pub const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True with a probability of `ppm` in a million.
    pub const fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < widen(ppm)
    }

    /// One of `choices`.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = self.index(choices.len());
        *choices.get(at).expect("there is something to choose from")
    }

    /// An index below `len`; 0 if that is 0.
    pub fn index(&mut self, len: usize) -> usize {
        let bound = u64::try_from(len).unwrap_or(u64::MAX);
        usize::try_from(self.below(bound)).unwrap_or(0)
    }

    /// An independent generator.
    pub const fn fork(&mut self) -> Self {
        Self(self.bits())
    }
}

/// `u64::from`, where constants can use it.
const fn widen(ppm: u32) -> u64 {
    let [a, b, c, d] = ppm.to_be_bytes();
    u64::from_be_bytes([0, 0, 0, 0, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs that the author of SplitMix64 gives for the seed 1234567.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [random.bits(), random.bits(), random.bits()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn chances_and_bounds_hold() {
        let mut random = Random::new(1);
        let hits = (0..10_000).filter(|_| random.chance(100_000)).count();
        assert!((800..1200).contains(&hits), "{hits} of 10000 at 10 %");
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert!((0..1000).all(|_| (5..=7).contains(&random.between(5, 7))));
        assert_eq!(random.below(0), 0);
        assert!(!random.chance(0));
    }
}
