//! Makes hostile inputs of good ones.

/// Random numbers from a seed: xorshift64*, with the seed mixed so that neighbours differ.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mixed = (seed ^ (seed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ (mixed >> 29)).max(1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, or 0 if there is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from((self.next() >> 8) % bound).unwrap_or_default()
    }

    fn byte(&mut self) -> u8 {
        let [_, _, _, byte, ..] = self.next().to_be_bytes();
        byte
    }
}

/// One of `corpus`, changed in up to eight ways.
pub(crate) fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = pick(corpus, random).to_vec();
    for _ in 0..random.below(9) {
        change(&mut input, corpus, random);
    }
    input
}

fn pick<'a>(corpus: &'a [Vec<u8>], random: &mut Random) -> &'a [u8] {
    corpus.get(random.below(corpus.len())).map(Vec::as_slice).unwrap_or_default()
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    // Headers are where decisions are made: half of the changes are there.
    let reach = if random.below(2) == 0 { input.len().min(48) } else { input.len() };
    let at = random.below(reach);
    match random.below(7) {
        0 => set(input, at, |byte| byte ^ (1 << random.below(8))),
        1 => set(input, at, |_| random.byte()),
        2 => set(input, at, |_| if random.below(2) == 0 { 0xff } else { 0 }),
        3 => set(input, 0, |_| random.byte()),
        4 => input.truncate(at),
        5 => {
            let more = random.below(20);
            input.extend((0..more).map(|_| random.byte()));
        }
        _ => {
            let other = pick(corpus, random);
            input.truncate(at);
            input.extend_from_slice(other.get(at..).unwrap_or_default());
        }
    }
}

fn set(input: &mut [u8], at: usize, value: impl FnOnce(u8) -> u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte = value(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_makes_one_input_and_another_seed_another() {
        let corpus = [vec![7; 100], vec![9; 30]];
        let input = |seed| mutate(&corpus, &mut Random::new(seed));
        let inputs: HashSet<_> = (0..1000).map(input).collect();
        assert!(inputs.len() > 700, "only {} of 1000 inputs differ", inputs.len());
        assert_eq!(input(5), input(5));
    }

    #[test]
    fn inputs_stay_short_and_an_empty_corpus_is_no_trouble() {
        let corpus = [vec![7; 100]];
        for seed in 0..1000 {
            assert!(mutate(&corpus, &mut Random::new(seed)).len() <= 100 + 8 * 20);
            assert!(mutate(&[], &mut Random::new(seed)).len() <= 8 * 20);
        }
    }
}
