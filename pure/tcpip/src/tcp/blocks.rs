//! What to report as selectively acknowledged. RFC 2018 §4, RFC 2883.

use super::options::SackBlocks;
use super::position::Origin;
use super::seq::Seq;

/// Ranges that have arrived early, the one that grew last first. Those that are forgotten, the oldest, have been
/// reported before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    blocks: [Option<(u64, u64)>; SackBlocks::MAX],
}

impl Recent {
    /// `start..end` has arrived.
    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        for block in &mut self.blocks {
            if let Some((from, to)) = *block
                && from <= end
                && start <= to
            {
                (start, end) = (start.min(from), end.max(to));
                *block = None;
            }
        }
        let old = self.blocks;
        let all = [Some((start, end))].into_iter().chain(old.into_iter().flatten().map(Some));
        let mut all = all.chain([None; SackBlocks::MAX]);
        self.blocks = core::array::from_fn(|_| all.next().flatten());
    }

    /// All before `next` has arrived: it is acknowledged, not reported.
    pub(super) fn pass(&mut self, next: u64) {
        self.keep(|(from, to)| (to > next).then_some((from.max(next), to)));
    }

    /// What was from `start` on has been dropped.
    pub(super) fn forget_from(&mut self, start: u64) {
        self.keep(|(from, to)| (from < start).then_some((from, to.min(start))));
    }

    fn keep(&mut self, change: impl Fn((u64, u64)) -> Option<(u64, u64)>) {
        let mut kept = self.blocks.into_iter().flatten().filter_map(change);
        self.blocks = core::array::from_fn(|_| kept.next());
    }

    /// As an option has it, with what arrived twice before all others.
    pub(super) fn option(&self, origin: Origin, twice: Option<(u64, u64)>) -> SackBlocks {
        let mut option = SackBlocks::default();
        for (from, to) in twice.into_iter().chain(self.blocks.into_iter().flatten()) {
            let (from, to): (Seq, Seq) = (origin.seq(from), origin.seq(to));
            option.push(from, to);
        }
        option
    }

    /// There is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(recent: &Recent) -> impl Iterator<Item = (u64, u64)> {
        recent.blocks.into_iter().flatten()
    }

    #[test]
    fn the_block_that_grew_last_is_first_and_blocks_that_meet_are_one() {
        let mut recent = Recent::default();
        for (from, to) in [(10, 20), (30, 40), (50, 60), (20, 25)] {
            recent.add(from, to);
        }
        assert!(blocks(&recent).eq([(10, 25), (50, 60), (30, 40)]));
        recent.add(40, 50);
        assert!(blocks(&recent).eq([(30, 60), (10, 25)]));
        recent.pass(25);
        assert!(blocks(&recent).eq([(30, 60)]));
        recent.forget_from(45);
        assert!(blocks(&recent).eq([(30, 45)]));
        for from in [100, 200, 300, 400] {
            recent.add(from, from + 1);
        }
        assert!(blocks(&recent).eq([(400, 401), (300, 301), (200, 201), (100, 101)]));
    }
}
