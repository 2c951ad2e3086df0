//! Queue pair numbers of a port: those that are free, and those that rest.
//!
//! When a queue pair has gone, packets to it may still be on their way, and its peer may know it for a while. So its
//! number rests, for the time-wait of connection management, before another queue pair has it. Where queue pairs come
//! and go by the thousand, as many numbers rest as are allowed to, and the rest of the oldest is cut short.

use crate::registry::{BLOCK_BITS, Block};
use adverb_engine::Time;
use adverb_wire::Qpn;
use std::collections::VecDeque;

/// Numbers that no queue pair has.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Those that none has had, or not for long.
    free: VecDeque<Qpn>,
    /// The others, and until when; oldest first.
    resting: VecDeque<(Qpn, Time)>,
    blocks: usize,
}

impl Numbers {
    /// A number, if there is one that does not rest.
    pub(super) fn take(&mut self, now: Time) -> Option<Qpn> {
        if let Some(number) = self.free.pop_front() {
            return Some(number);
        }
        let (_, until) = self.resting.front()?;
        let has_rested = *until <= now || self.resting.len() >= RESTING_MAX;
        if has_rested { self.take_resting() } else { None }
    }

    /// The number that has rested for longest, whether or not that is long enough.
    pub(super) fn take_resting(&mut self) -> Option<Qpn> {
        self.resting.pop_front().map(|(number, _)| number)
    }

    /// Takes in a block that was claimed; says how many there were before.
    pub(super) fn add(&mut self, block: Block) -> usize {
        self.free.extend(block.numbers());
        self.blocks += 1;
        self.blocks - 1
    }

    /// A queue pair has gone.
    pub(super) fn rest(&mut self, number: Qpn, now: Time) {
        self.resting.push_back((number, now.plus_nanos(REST_NANOS)));
    }

    /// Nothing was sent to or from this number.
    pub(super) fn give_back(&mut self, number: Qpn) {
        self.free.push_back(number);
    }
}

/// The time-wait of a connection, 2.1 s: 4.096 µs × 2 to the nineteenth.
const REST_NANOS: u64 = 4096 << 19;
/// Numbers that rest at once: those of a thousand connections a second, twice.
const RESTING_MAX: usize = 4096;
const _: () = assert!(RESTING_MAX >= 1 << BLOCK_BITS);

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Numbers {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.add(Block::of(Qpn::new(0x100))), 0);
        numbers
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn a_number_rests_before_another_queue_pair_has_it() {
        let mut numbers = numbers();
        let all: Vec<_> = std::iter::from_fn(|| numbers.take(at(0))).collect();
        assert_eq!(all.len(), 1 << BLOCK_BITS);
        numbers.rest(Qpn::new(0x105), at(7));
        numbers.rest(Qpn::new(0x103), at(8));
        assert_eq!(numbers.take(at(6 + REST_NANOS)), None);
        assert_eq!(numbers.take(at(7 + REST_NANOS)), Some(Qpn::new(0x105)));
        assert_eq!(numbers.take(at(7 + REST_NANOS)), None);
        // No more numbers can be had: better this one than none.
        assert_eq!(numbers.take_resting(), Some(Qpn::new(0x103)));
        numbers.give_back(Qpn::new(0x103));
        assert_eq!(numbers.take(at(8)), Some(Qpn::new(0x103)));
    }

    #[test]
    fn so_many_numbers_rest_and_no_more() {
        let mut numbers = Numbers::default();
        for number in 0..u32::try_from(RESTING_MAX).unwrap() {
            assert_eq!(numbers.take(at(0)), None);
            numbers.rest(Qpn::new(number), at(0));
        }
        assert_eq!(numbers.take(at(0)), Some(Qpn::new(0)));
        assert_eq!(numbers.take(at(0)), None);
    }
}
