//! Descriptors of this library's own, which programs do not know: a bit for each number.
//!
//! A program that closes a range of descriptors has this library go through it once (`exports/descriptors.rs`).

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug)]
pub(super) struct OwnFds {
    words: Vec<AtomicU64>,
    /// From this word on there has never been one.
    end: AtomicUsize,
}

impl Default for OwnFds {
    fn default() -> Self {
        let words = (0..FDS_MAX / WORD_BITS).map(|_| AtomicU64::new(0)).collect();
        Self { words, end: AtomicUsize::new(0) }
    }
}

impl OwnFds {
    /// Takes note of one; false if its number is too high.
    pub(super) fn note(&self, fd: c_int) -> bool {
        let (at, bit) = place(fd);
        let Some(word) = self.words.get(at) else { return false };
        word.fetch_or(bit, Ordering::AcqRel);
        self.end.fetch_max(at + 1, Ordering::AcqRel);
        true
    }

    pub(super) fn forget(&self, fd: c_int) {
        let (at, bit) = place(fd);
        if let Some(word) = self.words.get(at) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// The first in a range.
    pub(super) fn first(&self, fds: &RangeInclusive<c_int>) -> Option<c_int> {
        first_by(fds, &mut self.words())
    }

    /// Calls `part` with the ends of each part of a range between them.
    pub(super) fn between(&self, fds: RangeInclusive<c_int>, part: impl FnMut(c_int, c_int)) {
        between_by(fds, self.words(), part);
    }

    fn words(&self) -> impl FnMut(usize) -> Option<u64> {
        let end = self.end.load(Ordering::Acquire);
        move |at| {
            let word = self.words.get(at).filter(|_| at < end)?;
            Some(word.load(Ordering::Acquire))
        }
    }
}

/// The same, where `word` has the bits of so many numbers, up to a last word.
fn first_by(
    fds: &RangeInclusive<c_int>,
    word: &mut impl FnMut(usize) -> Option<u64>,
) -> Option<c_int> {
    let (mut at, first) = place(*fds.start());
    let (end, _) = place(*fds.end());
    // Those before the range do not count.
    let mut wanted = first.wrapping_neg();
    loop {
        let found = word(at)? & wanted;
        if found != 0 {
            let number = at
                .checked_mul(WORD_BITS)?
                .checked_add(usize::try_from(found.trailing_zeros()).ok()?)?;
            return c_int::try_from(number).ok().filter(|fd| fd <= fds.end());
        }
        if at >= end {
            return None;
        }
        (at, wanted) = (at + 1, u64::MAX);
    }
}

fn between_by(
    fds: RangeInclusive<c_int>,
    mut word: impl FnMut(usize) -> Option<u64>,
    mut part: impl FnMut(c_int, c_int),
) {
    let (mut first, last) = (*fds.start(), *fds.end());
    while let Some(own) = first_by(&(first..=last), &mut word) {
        if first < own {
            part(first, own - 1);
        }
        if own == last {
            return;
        }
        first = own + 1;
    }
    if first <= last {
        part(first, last);
    }
}

/// The word of a number, and its bit there.
fn place(fd: c_int) -> (usize, u64) {
    let number = usize::try_from(fd).unwrap_or(0);
    (number / WORD_BITS, 1 << (number % WORD_BITS))
}

const WORD_BITS: usize = 64;
/// They have the lowest numbers that are free (`FD_MIN`), and a process has fewer descriptors.
const FDS_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn all_between(own: &OwnFds, fds: RangeInclusive<c_int>) -> Vec<(c_int, c_int)> {
        let mut parts = Vec::new();
        own.between(fds, |first, last| parts.push((first, last)));
        parts
    }

    #[test]
    fn a_range_is_split_at_each_of_them() {
        let own = OwnFds::default();
        assert_eq!(all_between(&own, 3..=c_int::MAX), [(3, c_int::MAX)]);
        assert!([1000, 1001, 1023, 1024, 5000].into_iter().all(|fd| own.note(fd)));
        let parts = [(3, 999), (1002, 1022), (1025, 4999), (5001, c_int::MAX)];
        assert_eq!(all_between(&own, 3..=c_int::MAX), parts);
        assert_eq!(all_between(&own, 1001..=1024), [(1002, 1022)]);
        assert_eq!(all_between(&own, 1000..=1001), []);
        assert_eq!((own.first(&(1002..=1022)), own.first(&(1002..=1023))), (None, Some(1023)));
        own.forget(1023);
        assert_eq!(all_between(&own, 1001..=1024), [(1002, 1023)]);
        assert!(!own.note(c_int::MAX));
    }

    /// Goal: what it takes to go through a range grows with the number of those in it, and no faster.
    #[test]
    fn a_range_is_gone_through_once() {
        const COUNT: c_int = 10_000;
        let own = OwnFds::default();
        // With a descriptor of the program's between any two.
        assert!((0..COUNT).all(|at| own.note(1000 + 2 * at)));
        let (mut looks, mut parts) = (0, 0);
        let mut words = own.words();
        let word = |at| {
            looks += 1;
            words(at)
        };
        between_by(0..=c_int::MAX, word, |_, _| parts += 1);
        assert_eq!(parts, COUNT + 1);
        assert!(looks < 2 * COUNT, "{looks}");
        looks = 0;
        let mut words = own.words();
        let mut word = |at| {
            looks += 1;
            words(at)
        };
        own.forget(1000);
        assert_eq!(first_by(&(1000..=1000), &mut word), None);
        assert_eq!(looks, 1, "a single one");
    }
}
