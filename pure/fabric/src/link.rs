//! One direction of a path: what it does to the datagrams that it is given.

use crate::random::Random;
use adverb_engine::Time;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// Parameters of a link. Chances are in parts of a million.
#[derive(Clone, Debug)]
pub struct Link {
    /// From one end to the other.
    pub delay_ns: u64,
    /// Between two datagrams, as long as one takes to leave.
    pub spacing_ns: u64,
    /// Chance that a datagram vanishes.
    pub loss_ppm: u32,
    /// Chance that it arrives twice.
    pub duplication_ppm: u32,
    /// Chance that it is overtaken by later ones.
    pub reordering_ppm: u32,
    /// Chance that one to three of its bits are flipped.
    pub corruption_ppm: u32,
    /// How long a datagram that is overtaken is held, at most.
    pub detour_ns: u64,
    /// Datagrams longer than this vanish, in bytes of UDP payload.
    pub datagram_max: usize,
}

impl Default for Link {
    /// A path without faults.
    fn default() -> Self {
        Self {
            delay_ns: 2_000,
            spacing_ns: 100,
            loss_ppm: 0,
            duplication_ppm: 0,
            reordering_ppm: 0,
            corruption_ppm: 0,
            detour_ns: 20_000,
            datagram_max: 4096 + 64,
        }
    }
}

/// Fault of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Bits of it are flipped.
    Corrupt,
    /// It arrives this much later, so that others overtake it.
    Delay(u64),
    /// It vanishes.
    Drop,
    /// It arrives twice.
    Duplicate,
}

/// A link at work.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) link: Link,
    random: Random,
    /// When the last datagram will have left.
    pub(crate) free_at: Time,
    /// Datagrams given to the link so far.
    count: u64,
    script: Vec<(RangeInclusive<u64>, Fault)>,
}

/// A datagram on its way.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) bytes: Vec<u8>,
    /// Bits were flipped that matter.
    pub(crate) damaged: bool,
    /// A switch has marked it: it has met congestion.
    pub(crate) marked: bool,
}

impl Line {
    pub(crate) fn new(link: Link, random: Random) -> Self {
        Self { link, random, free_at: Time::ZERO, count: 0, script: Vec::new() }
    }

    pub(crate) fn script(&mut self, which: RangeInclusive<u64>, fault: Fault) {
        self.script.push((which, fault));
    }

    /// Takes a datagram; says when it arrives, perhaps twice, and what happened to it.
    pub(crate) fn carry(&mut self, bytes: Vec<u8>, now: Time) -> (Fault, Vec<(Time, Datagram)>) {
        self.count += 1;
        let fault = match self.scripted() {
            Some(fault) => fault,
            None if bytes.len() > self.link.datagram_max => Fault::Drop,
            None => self.roll(),
        };
        self.free_at = self.free_at.max(now).plus_nanos(self.link.spacing_ns);
        let at = self.free_at.plus_nanos(self.link.delay_ns);
        let datagram = Datagram { bytes, damaged: false, marked: false };
        let arrivals = match fault {
            Fault::None => Vec::from([(at, datagram)]),
            Fault::Corrupt => Vec::from([(at, self.damage(datagram))]),
            Fault::Delay(by) => Vec::from([(at.plus_nanos(by), datagram)]),
            Fault::Drop => Vec::new(),
            Fault::Duplicate => {
                let later = at.plus_nanos(self.random.below(self.link.detour_ns));
                Vec::from([(at, datagram.clone()), (later, datagram)])
            }
        };
        (fault, arrivals)
    }

    fn scripted(&self) -> Option<Fault> {
        let hit = self.script.iter().find(|(which, _)| which.contains(&self.count));
        hit.map(|(_, fault)| *fault)
    }

    fn roll(&mut self) -> Fault {
        if self.random.chance(self.link.loss_ppm) {
            Fault::Drop
        } else if self.random.chance(self.link.corruption_ppm) {
            Fault::Corrupt
        } else if self.random.chance(self.link.duplication_ppm) {
            Fault::Duplicate
        } else if self.random.chance(self.link.reordering_ppm) {
            Fault::Delay(self.random.below(self.link.detour_ns))
        } else {
            Fault::None
        }
    }

    fn damage(&mut self, mut datagram: Datagram) -> Datagram {
        for _ in 0..self.random.between(1, 3) {
            let at = self.random.index(datagram.bytes.len());
            let bit = self.random.pick(&[1, 2, 4, 8, 16, 32, 64, 128]);
            if let Some(byte) = datagram.bytes.get_mut(at) {
                *byte ^= bit;
            }
            // The ICRC leaves the byte with the congestion marks out, so that one may change.
            datagram.damaged |= at != MARKS_AT;
        }
        datagram
    }
}

/// Where the congestion marks of a base transport header are.
const MARKS_AT: usize = 4;
