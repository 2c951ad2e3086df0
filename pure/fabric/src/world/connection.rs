//! A connection, as the two programs know it: what each has asked for, and what must come of it.

use super::tally::Tally;
use super::wires::Medium;
use crate::memory::Target;
use crate::random::Random;
use adverb_engine::{RequestKind, WcStatus};
use adverb_wire::{Imm, Psn, Qpn, Rkey};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Places for WRITEs in a region, and bytes of each.
pub(super) const SLOTS: u64 = 8;
pub(super) const SLOT_BYTES: u64 = 2048;
/// Bytes that are only read, after those.
pub(super) const STILL_BYTES: u64 = 2048;
/// An eight-byte cell for atomics, after those.
pub(super) const REGION_BYTES: u64 = SLOTS * SLOT_BYTES + STILL_BYTES + 8;

/// Record of a request, and its expected outcome.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// A message with this number.
    Send {
        number: u64,
    },
    /// A WRITE with this number, into its slot.
    Write {
        number: u64,
        len: u64,
    },
    /// Immediate data, which is a message with this number.
    WriteImm {
        message: u64,
        number: u64,
        len: u64,
    },
    Read {
        len: u64,
    },
    Add,
    /// What the peer has not granted.
    Forbidden,
}

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) number: Qpn,
    /// Requests that have not ended; in the order of posting.
    pub(super) pending: VecDeque<(u64, Asked)>,
    /// In this life of the connection: messages, WRITEs and additions that were posted.
    pub(super) messages: u64,
    pub(super) writes: u64,
    adds: u64,
    /// Additions that were executed.
    added: u64,
    /// Messages that have arrived here.
    pub(super) arrived: u64,
    /// Requests that were posted, in all lives.
    pub(super) posted: u64,
    /// Its queue pair is gone.
    pub(super) over: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) at: usize,
    pub(super) processes: [usize; 2],
    pub(super) medium: Medium,
    requests: u64,
    /// How often it was made.
    pub(super) life: u64,
    pub(super) sides: [Side; 2],
    pub(super) first_psns: [Psn; 2],
    /// One side has failed or gone; the other is going to hear of it.
    pub(super) broken: bool,
    /// Nothing was written over that a side relies on.
    pub(super) exact: bool,
}

impl Connection {
    pub(super) fn new(at: usize, processes: [usize; 2], medium: Medium, requests: u64) -> Self {
        let side = |side: usize| Side {
            number: Qpn::new(u32::try_from(0x100 + 2 * at + side).unwrap_or(0x100)),
            pending: VecDeque::new(),
            messages: 0,
            writes: 0,
            adds: 0,
            added: 0,
            arrived: 0,
            posted: 0,
            over: true,
        };
        Self {
            at,
            processes,
            medium,
            requests,
            life: 0,
            sides: [side(0), side(1)],
            first_psns: [Psn::new(0); 2],
            broken: false,
            exact: true,
        }
    }

    pub(super) fn side(&self, side: usize) -> &Side {
        self.sides.get(side).expect("two sides")
    }

    pub(super) fn side_mut(&mut self, side: usize) -> &mut Side {
        self.sides.get_mut(side).expect("two sides")
    }

    /// The key of the region that this side's process has for the connection.
    pub(super) fn rkey(&self, side: usize) -> Rkey {
        Rkey(u32::try_from(0x5000 + 2 * self.at + side).unwrap_or(0x5000))
    }

    /// Where that starts.
    pub(super) fn va(&self, side: usize) -> u64 {
        let number = u64::try_from(2 * self.at + side).unwrap_or(0);
        0x7000_0000_0000 + (number << 24)
    }

    fn target(&self, of: usize, offset: u64) -> Target {
        Target { rkey: self.rkey(of), va: self.va(of) + offset }
    }

    /// It begins once more.
    pub(super) fn begin(&mut self, random: &mut Random) {
        self.life += 1;
        (self.broken, self.exact) = (false, true);
        for side in &mut self.sides {
            assert!(side.pending.is_empty(), "all requests have ended");
            (side.messages, side.writes, side.adds, side.added, side.arrived) = (0, 0, 0, 0, 0);
            side.over = false;
        }
        // Far from those before: what is still on its way belongs to another life.
        for psn in &mut self.first_psns {
            let step = (1 << 21) + random.below(1 << 20);
            *psn = psn.plus(u32::try_from(step).unwrap_or(1 << 21));
        }
    }

    /// Both queue pairs have gone.
    pub(super) fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.over)
    }

    /// Everything was asked for that was to be.
    pub(super) fn is_done(&self) -> bool {
        self.sides.iter().all(|side| side.posted >= self.requests)
    }

    /// This side has more to ask for.
    pub(super) fn has_more(&self, side: usize) -> bool {
        !self.broken && self.side(side).posted < self.requests
    }

    /// A process has ended, with all its queue pairs.
    pub(super) fn on_death(&mut self, process: usize, numbers: &[Qpn], tally: &mut Tally) {
        for (at, side) in self.sides.iter_mut().enumerate() {
            if self.processes.get(at) == Some(&process) && numbers.contains(&side.number) {
                tally.failed += u64::try_from(side.pending.len()).unwrap_or(0);
                side.pending.clear();
                side.over = true;
                self.broken = true;
            }
        }
    }

    /// The next request of a side: what it is, its bytes, and how many bytes it brings.
    pub(super) fn next(
        &mut self,
        side: usize,
        random: &mut Random,
        forbidden: bool,
    ) -> (Asked, RequestKind, Vec<u8>, usize) {
        let (life, at) = (self.life, self.at);
        let len = match random.below(8) {
            0 => 0,
            1..5 => random.below(64),
            5 | 6 => random.below(600),
            _ => random.below(SLOT_BYTES),
        };
        let one = self.side_mut(side);
        one.posted += 1;
        let bytes = |number: u64, len: u64, what: u64| {
            pattern([u64::try_from(2 * at + side).unwrap_or(0), life, number, what], len)
        };
        if forbidden && random.below(400) == 0 {
            let to = self.target(1 - side, REGION_BYTES - 4);
            let kind = RequestKind::Write { va: to.va, rkey: to.rkey, imm: None };
            return (Asked::Forbidden, kind, alloc::vec![7; 8], 0);
        }
        match random.below(8) {
            0..4 => {
                let number = one.messages;
                one.messages += 1;
                let imm = (random.below(3) == 0).then(|| imm(number));
                (Asked::Send { number }, RequestKind::Send { imm }, bytes(number, len, 0), 0)
            }
            4 | 5 => {
                let number = one.writes;
                one.writes += 1;
                let bytes = bytes(number, len, 1);
                let imm = (random.below(4) == 0).then(|| {
                    one.messages += 1;
                    imm(one.messages - 1)
                });
                let message = one.messages.saturating_sub(1);
                let to = self.target(1 - side, number % SLOTS * SLOT_BYTES);
                let kind = RequestKind::Write { va: to.va, rkey: to.rkey, imm };
                let asked = match imm {
                    Some(_) => Asked::WriteImm { message, number, len },
                    None => Asked::Write { number, len },
                };
                (asked, kind, bytes, 0)
            }
            6 => {
                let to = self.target(1 - side, SLOTS * SLOT_BYTES);
                let kind = RequestKind::Read { va: to.va, rkey: to.rkey };
                (Asked::Read { len }, kind, Vec::new(), usize::try_from(len).unwrap_or(0))
            }
            _ => {
                let compare = one.adds;
                one.adds += 1;
                let Target { va, rkey } = self.target(1 - side, SLOTS * SLOT_BYTES + STILL_BYTES);
                // Requests are executed in order: what is there then is known.
                let kind = match random.below(2) {
                    0 => RequestKind::FetchAdd { va, rkey, add: 1 },
                    _ => RequestKind::CompareSwap { va, rkey, compare, swap: compare + 1 },
                };
                (Asked::Add, kind, Vec::new(), 8)
            }
        }
    }

    /// A request of a side has ended. `memory`: the peer's region, if it is still there.
    pub(super) fn on_sent(
        &mut self,
        side: usize,
        index: u64,
        status: WcStatus,
        landed: &[u8],
        memory: Option<&[u8]>,
    ) {
        let (life, at, exact) = (self.life, self.at, self.exact);
        let arrived = self.side(1 - side).arrived;
        let one = self.side_mut(side);
        let (expected, asked) = one.pending.pop_front().expect("a request ends once");
        assert_eq!(index, expected, "requests end in the order of posting");
        if status != WcStatus::Success {
            self.broken = true;
            return;
        }
        assert!(!matches!(asked, Asked::Forbidden), "what was not granted is refused");
        if !exact {
            return;
        }
        match asked {
            Asked::Send { number: message } | Asked::WriteImm { message, .. } => {
                assert!(message < arrived, "message {message} is done, and has not arrived");
            }
            Asked::Read { len } => {
                assert!(landed == still(at, 1 - side, len), "a READ brought other bytes");
            }
            Asked::Add => {
                let found = landed.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                assert_eq!(found, Some(one.added), "an addition is executed once");
                one.added += 1;
            }
            Asked::Write { .. } | Asked::Forbidden => {}
        }
        if let Asked::Write { number, len } | Asked::WriteImm { number, len, .. } = asked
            && one.writes <= number + SLOTS
            && let Some(memory) = memory
        {
            let from = usize::try_from(number % SLOTS * SLOT_BYTES).unwrap_or(0);
            let written = memory.get(from..from + usize::try_from(len).unwrap_or(0));
            let sender = u64::try_from(2 * at + side).unwrap_or(0);
            let expected = pattern([sender, life, number, 1], len);
            assert!(written == Some(&expected[..]), "a WRITE has left other bytes");
        }
    }

    /// A message has arrived at a side.
    pub(super) fn on_received(&mut self, side: usize, bytes: &[u8], imm_: Option<Imm>, send: bool) {
        let (life, at, exact) = (self.life, self.at, self.exact);
        let sent = self.side(1 - side).messages;
        let one = self.side_mut(side);
        let number = one.arrived;
        one.arrived += 1;
        if !exact {
            return;
        }
        assert!(number < sent, "message {number} was never sent");
        assert!(imm_.is_none_or(|found| found == imm(number)), "messages arrive in order");
        if send {
            let sender = u64::try_from(2 * at + 1 - side).unwrap_or(0);
            let len = u64::try_from(bytes.len()).unwrap_or(0);
            let expected = pattern([sender, life, number, 0], len);
            assert!(bytes == expected, "message {number} has other bytes");
        }
    }

    pub(super) fn judge_rest(&self, calm: bool) {
        assert!(self.is_done(), "{} rests before it is done", self.at);
        let pending = self.sides.iter().map(|side| side.pending.len()).sum::<usize>();
        assert_eq!(pending, 0, "requests that have never ended");
        if calm {
            assert!(!self.broken && self.life == 1, "nothing was in the way");
            for side in 0..2 {
                assert_eq!(self.side(side).arrived, self.side(1 - side).messages, "messages");
            }
        }
    }
}

fn imm(number: u64) -> Imm {
    Imm(u32::try_from(number & 0xffff_ffff).unwrap_or(0))
}

/// Bytes that belong to one thing only.
pub(super) fn pattern(of: [u64; 4], len: u64) -> Vec<u8> {
    let seed = of.iter().fold(1, |seed: u64, part| {
        Random::new(seed.rotate_left(17) ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)).bits()
    });
    let mut random = Random::new(seed);
    let len = usize::try_from(len).unwrap_or(0);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.bits().to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What is at the place that is only read.
pub(super) fn still(at: usize, side: usize, len: u64) -> Vec<u8> {
    pattern([u64::try_from(2 * at + side).unwrap_or(0), 0, 0, 2], len)
}
